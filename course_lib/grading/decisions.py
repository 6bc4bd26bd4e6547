"""What a person decided about files: `files.csv` (file, student), a row a file. It lies beside a class's results.

A file is named as the run names it. The student is its owner from then on; with none, the file is left out.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading.roster import Names, fold
from course_lib.grading.table import read_rows

__all__ = ["DECISIONS", "Decision", "read_decisions", "settled"]

DECISIONS = "files.csv"


@dataclass(frozen=True)
class Decision:
    """One line: this file is of this student; of nobody ("") when it does not count."""

    file: str
    student: str
    line: int = 0


def read_decisions(path: Path) -> list[Decision]:
    """[] when there is no such file. CourseError naming the first line that is not clear."""
    if not path.exists():
        return []
    rows = read_rows(path)
    if not rows:
        return []
    head = [fold(cell) for cell in rows[0][1]]
    if head[:1] != ["file"] or head[1:2] not in (["student"], ["learner"]):
        raise CourseError(f"{path}: line {rows[0][0]} must name the columns: file,student")
    found: dict[str, Decision] = {}
    for line, cells in rows[1:]:
        file, student = (*cells, "")[:2]
        if not file:
            raise CourseError(f"{path}: line {line} needs a file")
        if file in found:
            raise CourseError(f"{path}: line {line} repeats the file of line {found[file].line}")
        found[file] = Decision(file, "" if student in ("-", "–") else student, line)
    return list(found.values())


def settled(
    decisions: Sequence[Decision], places: Iterable[str], names: Names | None, notes: list[str]
) -> dict[str, str]:
    """{file: whose, "" for left out}. A file that is not there is a note; CourseError for a student of no class."""
    known = set(places)
    found = {}
    for one in decisions:
        student = one.student
        if names and student:
            learners = names.exactly(student)
            if len(learners) != 1:
                who = "nobody" if not learners else "more than one"
                raise CourseError(f"{DECISIONS}, line {one.line}: {who} in the class list is called {student!r}")
            student = next(iter(learners))
        if one.file in known:
            found[one.file] = student
        else:
            notes.append(f"{DECISIONS}, line {one.line}: there is no file {one.file!r}")
    return found
