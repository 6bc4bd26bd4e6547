"""Points that a person set by hand: `overrides.csv` (student, item, points, reason). They are laid over every grading.

The file is only read here, never written: what a person wrote there survives a regrade.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, Item
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.roster import Learner, Names, fold
from course_lib.grading.table import read_rows

__all__ = ["Override", "apply_overrides", "by_roster", "read_overrides", "unused_overrides"]

_HEAD = {
    "student": ("student", "learner", "studentid", "id"),
    "item": ("item", "exercise"),
    "points": ("points", "score"),
}
_HEAD["reason"] = ("reason", "why", "comment")


@dataclass(frozen=True)
class Override:
    """One line: this learner has these points for this exercise (its id, or its place), and why."""

    student: str
    item: str
    points: float
    reason: str
    line: int = 0


def read_overrides(path: Path) -> list[Override]:
    """[] when there is no such file. CourseError naming the first line that is not clear."""
    if not path.exists():
        return []
    rows = read_rows(path)
    if not rows:
        return []
    head = [fold(cell) for cell in rows[0][1]]
    where = {key: next((head.index(name) for name in names if name in head), None) for key, names in _HEAD.items()}
    if any(where[key] is None for key in ("student", "item", "points")):
        raise CourseError(f"{path}: line {rows[0][0]} must name the columns: student,item,points,reason")
    found: dict[tuple[str, str], Override] = {}
    for line, cells in rows[1:]:
        row = {key: cells[at] if at is not None and at < len(cells) else "" for key, at in where.items()}
        try:
            points = float(row["points"].replace(",", "."))
        except ValueError:
            points = math.nan
        if not math.isfinite(points) or points < 0:
            raise CourseError(f"{path}: line {line}: points must be a number of 0 or more, not {row['points']!r}")
        if not row["student"] or not row["item"]:
            raise CourseError(f"{path}: line {line} needs a student and an item")
        key = row["student"].casefold(), row["item"].casefold()
        if key in found:
            raise CourseError(f"{path}: line {line} repeats the student and item of line {found[key].line}")
        found[key] = Override(row["student"], row["item"], points, row["reason"], line)
    return list(found.values())


def by_roster(overrides: Sequence[Override], roster: Sequence[Learner] | None) -> list[Override]:
    """The same, with the id of whoever is written down by name, address or login.

    CourseError when two lines are of one student and exercise after all.
    """
    if not roster:
        return list(overrides)
    names = Names(list(roster))
    found: dict[tuple[str, str], Override] = {}
    for one in overrides:
        learners = names.exactly(one.student)
        named = replace(one, student=next(iter(learners))) if len(learners) == 1 else one
        first = found.setdefault((named.student.casefold(), named.item.casefold()), named)
        if first is not named:
            raise CourseError(f"overrides, line {one.line} repeats the student and item of line {first.line}")
    return list(found.values())


def apply_overrides(
    learner: str, submission: Submission, overrides: Sequence[Override], assignment: Assignment | None
) -> Submission:
    """The hand-in's row with these points in place of the computed ones, and a flag that says so for each.

    A hand-in that is missing or unreadable gets a row for each exercise that somebody gave points for.
    """
    mine = [one for one in overrides if one.student.casefold() == learner.casefold()]
    for override in mine:
        name = override.item.casefold()
        items = list(submission.items)
        index = next((n for n, one in enumerate(items) if name in (one.id, _place(one.position), one.position)), None)
        if index is None:
            item = next(
                (one for one in _items(assignment) if name in (one.id, _place(one.position), one.position)), None
            )
            if item is None:
                continue
            items.append(GradedItem(item.id, item.position, item.title, "missing", 0.0, item.points, "not graded"))
            index = len(items) - 1
        old = items[index]
        message = f"{old.message} (points set by hand)"
        items[index] = replace(old, score=override.points, message=message)
        why = f": {override.reason}" if override.reason else ""
        flag = f"{old.id}: {override.points:g} points by hand in place of {old.score:g}{why}"
        submission = replace(submission, items=tuple(items), flags=(*submission.flags, flag))
    return submission


def unused_overrides(rows: Sequence[tuple[str, Submission]], overrides: Sequence[Override]) -> list[str]:
    """A line for each override of a learner or an exercise that is not there, or of more points than there are."""
    known: dict[str, dict[str, GradedItem]] = {}
    for learner, submission in rows:
        names = known.setdefault(learner.casefold(), {})
        for item in submission.items:
            names |= dict.fromkeys((item.id, item.position, _place(item.position)), item)
    lines = []
    for one in overrides:
        if one.student.casefold() not in known:
            lines.append(f"overrides, line {one.line}: there is no hand-in of {one.student!r}")
        elif one.item.casefold() not in known[one.student.casefold()]:
            lines.append(f"overrides, line {one.line}: {one.student!r} has no exercise {one.item!r}")
        elif one.points > (found := known[one.student.casefold()][one.item.casefold()]).max_score:
            lines.append(
                f"overrides, line {one.line}: {one.points:g} points are more than the {found.max_score:g} of "
                f"{found.id}; they count as they stand"
            )
    return lines


def _items(assignment: Assignment | None) -> tuple[Item, ...]:
    return assignment.items if assignment else ()


def _place(position: str) -> str:
    """`3.2` of `03.2`."""
    return position.lstrip("0")
