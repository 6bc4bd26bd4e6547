"""One row a learner, one column a chapter: what a learning platform's gradebook imports.

The class list's own columns stand first, under their own names, so that the platform knows its people again.
"""

from collections.abc import Sequence
from pathlib import Path

from course_lib.grading.roster import Learner, fold
from course_lib.grading.sheets import Course, Row, sheets
from course_lib.grading.table import csv_text, write_file

__all__ = ["lms_rows", "write_lms"]


def write_lms(path: Path, rows: Sequence[Row], roster: Sequence[Learner], course: Course | None = None) -> None:
    """Write the table whole or not at all. Without a class list there is one column of people, `student`."""
    write_file(path, csv_text(lms_rows(rows, roster, course)))


def lms_rows(rows: Sequence[Row], roster: Sequence[Learner], course: Course | None = None) -> list[list[object]]:
    """Head and rows, in the order of the class list.

    A cell is empty where nothing was graded: platforms leave a mark alone then, and who has no hand-in, or one that a
    person has to look at first, is not given 0 behind anybody's back. A Canvas gradebook gets its line of points.
    """
    chapters = [sheet for sheet in sheets(rows, course) if sheet.columns]
    points: dict[tuple[str, str], float] = {}
    for sheet in chapters:
        for learner, one in sheet.rows:
            if one.items:
                points[learner, sheet.name] = max(one.score, points.get((learner, sheet.name), 0.0))
    listed = {one.id for one in roster}
    others = [Learner(who) for who in dict.fromkeys(who for who, _ in rows) if who not in listed]
    named = bool(roster) and bool(roster[0].cells)
    head = [name for name, _ in roster[0].cells] if named else ["student"]
    table: list[list[object]] = [[*head, *(sheet.name for sheet in chapters)]]
    if {"student", "section"} <= {fold(name) for name in head}:
        most = [_number(sheet.max_score) for sheet in chapters]
        table.append(["    Points Possible", *[""] * (len(head) - 1), *most])
    for person in [*roster, *others]:
        cells = [value for _, value in person.cells] if named and person.cells else [person.id]
        cells += [""] * (len(head) - len(cells))
        found = [points.get((person.id, sheet.name)) for sheet in chapters]
        table.append([*cells, *("" if score is None else _number(score) for score in found)])
    return table


def _number(points: float) -> float | int:
    return int(points) if float(points).is_integer() else round(points, 6)
