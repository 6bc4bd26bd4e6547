"""A semester plan: what each chapter takes to read and to solve, its points, and the weeks to spread it over."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path

from course_lib.chapters import chapters
from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, all_assignments
from course_lib.machine import material_dir

__all__ = ["Row", "Week", "as_lines", "as_markdown", "read_syllabus", "spread"]


@dataclass(frozen=True)
class Row:
    """One chapter: minutes to read it, and its exercises (None: it has none)."""

    number: int
    title: str
    minutes: float
    assignment: Assignment | None

    @property
    def points(self) -> float:
        return self.assignment.max_score if self.assignment else 0.0

    @property
    def exercise_minutes(self) -> float:
        return sum(item.minutes for item in self.assignment.items) if self.assignment else 0.0


@dataclass(frozen=True)
class Week:
    """One week: what to do in words, the minutes of it, the points that it brings."""

    tasks: tuple[str, ...]
    minutes: float
    points: float


def read_syllabus(wanted: Sequence[int] | None = None, material: Path | None = None) -> list[Row]:
    """Chapters in order, each with its exercises. CourseError for a number that no chapter has."""
    root = material or material_dir()
    pages = {chapter.number: chapter for chapter in chapters(root / "notebooks")}
    solved = {int(one.chapter): one for one in all_assignments(root)}
    numbers = sorted({*pages, *solved})
    missing = sorted(set(wanted or ()) - set(numbers))
    if missing:
        raise CourseError(f"there is no chapter {', '.join(map(str, missing))}")
    rows = []
    for number in numbers:
        if wanted is None or number in wanted:
            page, assignment = pages.get(number), solved.get(number)
            title = page.title if page else assignment.name if assignment else ""
            rows.append(Row(number, title, page.minutes if page else 0.0, assignment))
    return rows


def spread(rows: Sequence[Row], weeks: int) -> list[Week]:
    """The chapters in order over so many weeks, so that the longest week is as short as it can be.

    With more weeks than chapters a chapter's exercises may come in the week after it. CourseError for too many weeks.
    """
    parts = [[_reading(row), _solving(row)] for row in rows]
    if weeks <= len(rows):
        units = [_together([part for part in both if part.minutes or part.points]) for both in parts]
    else:
        units = [part for both in parts for part in both if part.minutes or part.points]
    if weeks > len(units):
        raise CourseError(f"--weeks {weeks}: there is work for at most {len(units)} weeks here")
    cuts = _cuts(tuple(unit.minutes for unit in units), weeks)
    return [_together(units[first:last]) for first, last in zip((0, *cuts), (*cuts, len(units)), strict=True)]


def _reading(row: Row) -> Week:
    return Week((f"chapter {row.number}",), row.minutes, 0.0)


def _solving(row: Row) -> Week:
    return Week((f"exercises {row.number}",), row.exercise_minutes, row.points)


def _together(weeks: Sequence[Week]) -> Week:
    tasks = tuple(task for week in weeks for task in week.tasks)
    return Week(tasks, sum(week.minutes for week in weeks), sum(week.points for week in weeks))


def _cuts(minutes: tuple[float, ...], parts: int) -> tuple[int, ...]:
    """Where to cut a list into so many parts with the smallest largest sum; of those, with the most even one."""

    @cache
    def best(first: int, left: int) -> tuple[float, float, tuple[int, ...]]:
        if left == 1:
            total = sum(minutes[first:])
            return total, total**2, ()
        found = []
        for cut in range(first + 1, len(minutes) - left + 2):
            total = sum(minutes[first:cut])
            largest, squares, rest = best(cut, left - 1)
            found.append((max(total, largest), total**2 + squares, (cut, *rest)))
        return min(found)

    return best(0, parts)[2]


def as_lines(rows: Sequence[Row], weeks: int | None = None) -> list[str]:
    """For the terminal: the plan by weeks, or every exercise."""
    if weeks is not None:
        lines = [f"{'week':>4}  {'hours':>5}  {'points':>6}  what"]
        for number, week in enumerate(spread(rows, weeks), start=1):
            lines.append(f"{number:>4}  {week.minutes / 60:>5.1f}  {week.points:>6g}  {_words(week)}")
        return [*lines, _total(rows)]
    lines = []
    for row in rows:
        reading = f"{row.number:>2}  {row.title}: {row.minutes:g} minutes to read" if row.minutes else ""
        if row.assignment is None:
            lines.append(f"{reading}, no exercises")
            continue
        name, total = row.assignment.name, f"({row.points:g} points, {row.exercise_minutes:g} minutes)"
        lines += [reading] if reading else []
        lines.append(f"{name}  {total}")
        for item in row.assignment.items:
            claims = " ".join(str(claim) for claim in item.claims) or "-"
            points = f"{item.points:>4g} {'point ' if item.points == 1 else 'points'}"
            facts = f"{points} {item.minutes:>4g} minutes  claims {claims}"
            lines.append(f"  {item.position:<6} {item.id:<26} {facts:<44} {item.title}")
    return [*lines, _total(rows)]


def as_markdown(rows: Sequence[Row], weeks: int | None = None) -> list[str]:
    """The same as tables."""
    if weeks is not None:
        lines = ["| Week | What | Hours | Points |", "|---:|---|---:|---:|"]
        for number, week in enumerate(spread(rows, weeks), start=1):
            lines.append(f"| {number} | {_words(week)} | {week.minutes / 60:.1f} | {week.points:g} |")
        return [*lines, "", _total(rows)]
    lines = ["| | Exercise | Id | Minutes | Points |", "|---|---|---|---:|---:|"]
    for row in rows:
        reading = f"{row.minutes:g} to read" if row.minutes else ""
        lines.append(f"| **{row.number}** | **{row.title}** | | {reading} | {row.points:g} |")
        for item in row.assignment.items if row.assignment else ():
            lines.append(f"| {item.position} | {item.title} | `{item.id}` | {item.minutes:g} | {item.points:g} |")
    return [*lines, "", _total(rows)]


def _words(week: Week) -> str:
    """`chapter 3 with exercises, chapter 4` for what is read and solved in one week; `chapters 3 to 5` for many."""
    parts: list[tuple[int, str]] = []
    for task in week.tasks:
        kind, number = task.split()
        if kind == "exercises" and parts and parts[-1] == (int(number), "chapter"):
            parts[-1] = int(number), "both"
        else:
            parts.append((int(number), kind))
    words = []
    for (kind, _), group in groupby(enumerate(parts), key=lambda pair: (pair[1][1], pair[1][0] - pair[0])):
        numbers = [number for _, (number, _) in group]
        dash = " and " if len(numbers) == 2 else " to "
        named = f"chapters {numbers[0]}{dash}{numbers[-1]}" if len(numbers) > 1 else f"chapter {numbers[0]}"
        words.append({"both": f"{named} with exercises", "exercises": f"exercises of {named}"}.get(kind, named))
    return ", ".join(words)


def _total(rows: Sequence[Row]) -> str:
    reading, solving = sum(row.minutes for row in rows), sum(row.exercise_minutes for row in rows)
    points = sum(row.points for row in rows)
    return f"in all {points:g} points, {_hours(reading)} to read and {_hours(solving)} to solve"


def _hours(minutes: float) -> str:
    """In whole hours where it is ten or more; a short part says its half hours."""
    hours = minutes / 60
    shown = f"{hours:.0f}" if hours >= 10 else f"{hours:.1f}"
    return "1 hour" if shown == "1.0" else f"{shown} hours"
