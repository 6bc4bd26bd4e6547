"""The command `progress`: a map of the course with what is done, what is left, and what comes next."""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from course_lib.grading.assignment import Item
from course_lib.grading.progress import Done, Progress, read_progress
from course_lib.grading.report import folded, to_type
from course_lib.grading.sheets import WORDS
from course_lib.grading.syllabus import Row, read_syllabus

__all__ = ["Place", "as_lines", "course_map", "progress_main"]


@dataclass(frozen=True)
class Place:
    """A chapter on the map: exercises with what became of them (None: never graded), minutes that are left."""

    row: Row
    items: tuple[tuple[Item, Done | None], ...]
    read: bool
    minutes_left: float

    @property
    def done(self) -> int:
        return sum(one is not None and one.done for _, one in self.items)

    @property
    def points(self) -> float:
        """The best points of each exercise, at most what it has now."""
        return sum(min(one.best, item.points) for item, one in self.items if one)


def course_map(rows: Sequence[Row], progress: Progress) -> list[Place]:
    """Each chapter with what is done. One counts as read when one of its exercises was tried, or a later one passed."""
    known: Mapping[str, Done] = progress.exercises
    tried = {row.number: any(known[one].times for one in _ids(row) if one in known) for row in rows}
    passed = [row.number for row in rows if any(known[one].done for one in _ids(row) if one in known)]
    places = []
    for row in rows:
        items = tuple((item, known.get(item.id)) for item in (row.assignment.items if row.assignment else ()))
        read = tried[row.number] or any(number > row.number for number in passed)
        left = sum(item.minutes for item, one in items if not (one and one.done))
        places.append(Place(row, items, read, left + (0.0 if read else row.minutes)))
    return places


def _ids(row: Row) -> list[str]:
    return [item.id for item in row.assignment.items] if row.assignment else []


def next_place(places: Sequence[Place]) -> tuple[Place, Item | None] | None:
    """Where to go on: in the last chapter with exercises tried and not done, else the first chapter not read, else
    what was passed over. None when all is done.
    """
    undone = [one for one in places if one.done < len(one.items)]
    tried = [one for one in undone if any(known and known.times for _, known in one.items)]
    fresh = next((one for one in places if not one.read), None)
    if fresh and not tried:
        return fresh, None
    if not undone:
        return None
    place = (tried or undone[:1])[-1]
    left = [(item, known) for item, known in place.items if not (known and known.done)]
    begun = [item for item, known in left if known and known.times]
    return place, begun[0] if begun else left[0][0]


def as_lines(
    places: Sequence[Place], wanted: Sequence[int] = (), everything: bool = False, fancy: bool = True
) -> list[str]:
    """The map, at most 80 columns wide. Exercises are listed for `wanted` chapters, else for the one to go on with."""
    full, empty, mark = ("■", "□", "✓") if fancy else ("#", ".", "x")
    ahead = next_place(places)
    shown = set(wanted) or ({ahead[0].row.number} if ahead else set())
    lines = [_total(places), ""]
    for place in places:
        row, count = place.row, len(place.items)
        bar = full * place.done + empty * (count - place.done)
        facts = f"{place.done} of {count}" if count else ""
        points = f"{place.points:g} of {row.points:g} points" if count else "no exercises"
        left = _time(place.minutes_left) if place.minutes_left else "done"
        lines.append(f"{row.number:>2}  {row.title[:28]:<28} {bar:<10} {facts:>7}  {points:<15} {left}")
        if everything or row.number in shown:
            lines += [folded(f"    {_item_line(item, one, mark)}", 80) for item, one in place.items]
    onward = next((one for one in places if not one.read), None)
    return [*lines, "", *_next_lines(ahead, onward if ahead and ahead[1] else None)]


def _item_line(item: Item, one: Done | None, mark: str) -> str:
    state = f"[{mark if one and one.done else ' '}]"
    note = ""
    if one and one.done and one.status != "passed":
        note = f"; passed before, last time {WORDS[one.status]}"
    elif one and not one.done and one.status != "not_attempted":
        note = f"; last time {WORDS[one.status]}"
    points = f"{item.points:g} point{'' if item.points == 1 else 's'}"
    return f"{state} {item.position}  {item.title} ({points}, {item.minutes:g} min{note})"


def _next_lines(ahead: tuple[Place, Item | None] | None, onward: Place | None) -> list[str]:
    if ahead is None:
        return [f"next: nothing is left; {to_type('plan --list')} begins a plan of your own"]
    place, item = ahead
    if item is None:
        return [f"next: read chapter {place.row.number}, {place.row.title} ({place.row.minutes:g} minutes)"]
    hint = f"; a hint: {to_type(f'hint {item.position}')}" if item.hints else ""
    lines = [f"next: {item.position} {item.title}{hint}"]
    grade = to_type(f"grade {place.row.number:02d}")
    lines += [f"      {grade} marks it here; a check in the notebook does not"]
    return lines + ([f"      or read on: chapter {onward.row.number}, {onward.row.title}"] if onward else [])


def _time(minutes: float) -> str:
    return f"{minutes:.0f} min left" if minutes < 100 else f"{minutes / 60:.1f} h left"


def _total(places: Sequence[Place]) -> str:
    done, count = sum(one.done for one in places), sum(len(one.items) for one in places)
    points, most = sum(one.points for one in places), sum(one.row.points for one in places)
    left = sum(one.minutes_left for one in places)
    hours = (
        f"about {left / 60:.0f} hours left" if left >= 90 else f"about {left:.0f} minutes left" if left else "all done"
    )
    return f"{done} of {count} exercises, {points:g} of {most:g} points, {hours}"


def progress_main(argv: list[str]) -> int:
    """`course progress [CHAPTER...]`: the map; with chapters, their exercises too."""
    parser = argparse.ArgumentParser(
        prog="course progress",
        description="A map of the course: what is done, what is left, what comes next. It is kept in "
        "work/progress.json by `course grade`, which runs your answers on new cases; a check that passes in a notebook "
        "marks nothing here.",
    )
    parser.add_argument("chapters", nargs="*", type=int, metavar="CHAPTER", help="list the exercises of these")
    parser.add_argument("--all", action="store_true", help="list every exercise")
    parser.add_argument("--json", action="store_true", help="as JSON")
    options = parser.parse_args(argv)
    rows = read_syllabus()
    if options.chapters:
        read_syllabus(options.chapters)  # names a chapter that is not there
    places = course_map(rows, read_progress())
    if options.json:
        text = json.dumps(as_json(places), indent=1, ensure_ascii=False)
    else:
        text = "\n".join(as_lines(places, options.chapters, options.all, _fancy()))
        if not any(one for place in places for _, one in place.items):
            text += f"\n      (nothing has been graded yet: what passes in `{to_type('grade')}` is marked here)"
    sys.stdout.write(text + "\n")
    return 0


def _fancy() -> bool:
    try:
        "■□✓".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def as_json(places: Sequence[Place]) -> dict[str, object]:
    """`{"chapters": [{"chapter", "title", "read", "minutes_left", "points", "max_score", "exercises": [...]}]}`."""
    return {
        "chapters": [
            {
                "chapter": place.row.number,
                "title": place.row.title,
                "read": place.read,
                "minutes_left": place.minutes_left,
                "points": place.points,
                "max_score": place.row.points,
                "exercises": [
                    {
                        "id": item.id,
                        "position": item.position,
                        "title": item.title,
                        "done": bool(one and one.done),
                        "status": one.status if one else "not_attempted",
                        "points": min(one.best, item.points) if one else 0.0,
                        "max_score": item.points,
                        "minutes": item.minutes,
                    }
                    for item, one in place.items
                ],
            }
            for place in places
        ]
    }
