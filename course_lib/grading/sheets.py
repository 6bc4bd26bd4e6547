"""What the reports of a class share: a table for each chapter, outcomes counted, words for them, and text made plain.

Rows are (learner, Submission) in the order in which they are to be shown; a learner may have one for each chapter.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from course_lib.chapters import read_chapter
from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, assignment_paths, load_assignment
from course_lib.grading.grade import GradedItem, Submission
from course_lib.machine import material_dir

__all__ = [
    "OUTCOMES",
    "WORDS",
    "Column",
    "Course",
    "Row",
    "Sheet",
    "item_of",
    "outcome",
    "plain",
    "read_course",
    "reason",
    "sheets",
    "smells",
]

Row = tuple[str, Submission]

WORDS = {
    "passed": "passed",
    "partly": "partly",
    "failed": "wrong",
    "not_attempted": "not attempted",
    "missing": "no answer",
    "timeout": "too long",
    "kernel_died": "kernel died",
}
"""What a report calls the outcome of an exercise; `partly` is some of the points, given by hand."""
OUTCOMES = tuple(WORDS)
_GRADED = ("graded", "graded_with_problems")
# What no report needs, and what a terminal or a page would act on: controls, marks that turn the direction of text.
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")


@dataclass(frozen=True)
class Column:
    """One exercise of a sheet."""

    id: str
    position: str
    title: str
    max_score: float


@dataclass(frozen=True)
class Sheet:
    """The hand-ins of one chapter. `name` is the assignment's; "" holds those of which nobody knows the chapter."""

    name: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def max_score(self) -> float:
        return sum(column.max_score for column in self.columns)


@dataclass(frozen=True)
class Course:
    """What reports say of the course: its chapters' exercises, and the sentence of each misconception's id."""

    title: str = "Pre-training, Measured"
    assignments: tuple[Assignment, ...] = ()
    beliefs: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    titles: Mapping[str, str] = field(default_factory=dict)
    """Of chapters, by the assignment's name."""

    def belief(self, item: str, misconception: str) -> str:
        """The sentence, "" when it is not known."""
        return self.beliefs.get(item, {}).get(misconception, "")

    def assignment(self, name: str) -> Assignment | None:
        return next((one for one in self.assignments if one.name == name), None)


def read_course(rows: Sequence[Row] = ()) -> Course:
    """The chapters of these rows (of none: all of them), with the sentences where a misconception was found."""
    names = {one.assignment for _, one in rows}
    paths = [path for path in assignment_paths() if not names or "" in names or path.stem in names]
    assignments = tuple(load_assignment(path) for path in paths)
    smelt = {item.id for _, one in rows for item in one.items if item.misconception}
    modules = [one.checks for one in assignments if smelt & {item.id for item in one.items}]
    titles = {path.stem: title for path in paths if (title := _chapter_title(path.stem))}
    return Course(assignments=assignments, beliefs=_beliefs(modules) if modules else {}, titles=titles)


def _chapter_title(name: str) -> str:
    """As the chapter calls itself; "" where its page is not there or says none."""
    with suppress(CourseError, OSError, ValueError, LookupError):
        return read_chapter(material_dir() / "notebooks" / f"{name}.ipynb").title
    return ""


def _beliefs(modules: Sequence[str]) -> dict[str, dict[str, str]]:
    """{exercise: {misconception: sentence}}, asked of a process of its own, for checks load torch. {} when it fails."""
    script = (
        "import importlib, json, sys\n"
        "found = {e.id: dict(e.misconceptions) for m in sys.argv[1:] for e in importlib.import_module(m).EXERCISES}\n"
        "print('beliefs ' + json.dumps(found))"
    )
    try:
        done = subprocess.run(
            [sys.executable, "-c", script, *modules], capture_output=True, encoding="utf-8", timeout=120
        )
        line = next(line for line in done.stdout.splitlines() if line.startswith("beliefs "))
        return dict(json.loads(line.removeprefix("beliefs ")))
    except (OSError, subprocess.TimeoutExpired, StopIteration, ValueError):
        return {}


def plain(text: object, limit: int | None = None) -> str:
    """Text from a hand-in as text alone: no colours, no controls but the line end, no turned direction, cut to a limit.

    Letters that no file can hold (half of a surrogate pair) become "?".
    """
    clean = _CONTROLS.sub(" ", _ESCAPES.sub("", str(text).replace("\r\n", "\n")))
    clean = clean.encode("utf-8", "replace").decode("utf-8")
    return clean if limit is None or len(clean) <= limit else clean[:limit].rstrip() + " ..."


def reason(submission: Submission, limit: int | None = 300) -> str:
    """Why a hand-in is not simply graded, without the folder that it lay in; "" when it is."""
    if submission.status == "graded":
        return ""
    lines = [re.sub(r"^(?:[A-Za-z]:)?[^\n:]*[/\\](?=[^/\\:\n]+: )", "", flag) for flag in submission.flags]
    if not lines and submission.status in _GRADED:
        stopped = [item for item in submission.items if item.status in ("timeout", "kernel_died")]
        lines = [f"{item.id}: {item.message}" for item in stopped]
    return plain("; ".join(lines), limit)


def outcome(item: GradedItem) -> str:
    """One of OUTCOMES: the status, but `partly` and `passed` go by the points, which may have been changed by hand."""
    if item.max_score and item.score >= item.max_score:
        return "passed"
    if item.score > 0:
        return "partly"
    return item.status if item.status in WORDS and item.status != "passed" else "failed"


def sheets(rows: Sequence[Row], course: Course | None = None) -> list[Sheet]:
    """The rows by chapter, in order of chapter; where there is one alone, rows of no known chapter are its own."""
    course = course or Course()
    names = sorted({_chapter(one, course) for _, one in rows} - {""})
    lost = [row for row in rows if not _chapter(row[1], course)]
    found = []
    for name in names:
        here = (name, "") if len(names) == 1 else (name,)
        mine = [row for row in rows if _chapter(row[1], course) in here]
        assignment = course.assignment(name)
        columns: dict[str, Column] = {}
        for item in assignment.items if assignment else ():
            columns[item.id] = Column(item.id, item.position, item.title, item.points)
        for _, one in mine:
            for graded in one.items:
                fresh = Column(graded.id, graded.position, graded.title, graded.max_score)
                columns.setdefault(graded.id, fresh)
        found.append(Sheet(name, _title(name, course), tuple(sorted(columns.values(), key=_place)), tuple(mine)))
    if lost and len(names) != 1:
        found.append(Sheet("", "Of no known chapter", (), tuple(lost)))
    return found


def _chapter(submission: Submission, course: Course) -> str:
    """The assignment's name; of old results without one, by the exercises that they hold."""
    if submission.assignment or not submission.items:
        return submission.assignment
    first = submission.items[0]
    for one in course.assignments:
        if any(item.id == first.id for item in one.items):
            return one.name
    return first.position.partition(".")[0]


def _title(name: str, course: Course) -> str:
    chapter, _, rest = name.partition("_")
    words = course.titles.get(name, rest.replace("_", " "))
    return f"Chapter {int(chapter)}{': ' if words else ''}{words}" if chapter.isdigit() else name


def _place(column: Column) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", column.position)]


def smells(rows: Sequence[Row]) -> list[tuple[str, str, int]]:
    """(misconception, exercise, learners) of the class, the commonest first. A learner counts once for each."""
    seen = {
        (item.misconception, item.id, learner)
        for learner, one in rows
        for item in one.items
        if item.misconception and outcome(item) != "passed"
    }
    counted = Counter((name, item) for name, item, _ in seen)
    ranked = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    return [(name, item, learners) for (name, item), learners in ranked]


def item_of(submission: Submission, column: Column) -> GradedItem | None:
    """The exercise of a column in a hand-in; None when there was nothing to grade."""
    return next((item for item in submission.items if item.id == column.id), None)
