"""A learner's own notebooks at the command line: what a name leads to, what is not begun, a sign of life, what to type.

own_places(["03"])                    # [("03_accumulation", Path("work/exercises/03_accumulation.ipynb"))]
exercise_named("unequal-tokens")      # or one line that says what was meant
with Alive("grading 03"): ...
"""

import difflib
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TextIO

from course_lib.checks.core import NOT_ATTEMPTED
from course_lib.errors import CourseError, HandInError
from course_lib.grading.assignment import Item, all_assignments, assignment_paths, find_assignment, find_item
from course_lib.grading.grade import GradedItem, Submission, handin_paths
from course_lib.grading.handins import read_handin
from course_lib.grading.notebook import course_of
from course_lib.grading.release import release
from course_lib.grading.report import to_type
from course_lib.machine import material_dir, work_dir

__all__ = [
    "Alive",
    "exercise_named",
    "has_hints",
    "how_copied",
    "is_own_folder",
    "not_begun",
    "not_there",
    "own_places",
    "rescue",
    "short_path",
]


def is_own_folder(name: str) -> bool:
    """Whether a folder is the learner's own (`work`, `work/exercises`): no class, though it is a folder."""
    return Path(name).is_dir() and Path(name).resolve() in (work_dir().resolve(), (work_dir() / "exercises").resolve())


def own_places(names: Sequence[str]) -> list[tuple[str, Path]]:
    """(name, path) of each notebook that these name, each once. CourseError in a line for a name that leads nowhere."""
    found: dict[Path, tuple[str, Path]] = {}
    for name in names:
        path = Path(name)
        if is_own_folder(name):
            places = [(one.stem, one) for one in sorted((work_dir() / "exercises").glob("*.ipynb"))]
        elif path.is_dir():
            places = handin_paths([name])
        elif path.exists() or path.suffix == ".ipynb":
            places = [(name, path)]
        else:
            places = handin_paths([_chapter_named(name)])
        for one, place in places:
            _no_page(place)
            found.setdefault(place.resolve(), (one, place))
    return list(found.values())


def _chapter_named(name: str) -> str:
    """The name when a chapter has it; else CourseError with what was meant."""
    stems = _stems()
    number = int(name) if name.isascii() and name.isdigit() else None
    if name in stems or number in [int(stem[:2]) for stem in stems]:
        return name if number is None else f"{number:02d}"
    page = sorted((material_dir() / "notebooks").glob(f"{number:02d}_*.ipynb")) if number is not None else []
    if page:
        raise CourseError(f"chapter {number} has no exercises to grade; {to_type('syllabus')} lists those that have")
    if number is not None:
        raise CourseError(f"there is no chapter {number}; {to_type('syllabus')} lists the chapters")
    item = _item_like(name)
    if item is not None:
        told = f"{item.position} ({item.id})"
        raise CourseError(f"{name}: {told} is graded with its chapter: {to_type(f'grade {item.position[:2]}')}")
    raise CourseError(f"{name}: there is no such file or chapter{_meant(name, stems)}")


def _item_like(name: str) -> Item | None:
    return next((item for one in all_assignments() for item in one.items if name in (item.id, *_spelled(item))), None)


def _spelled(item: Item) -> tuple[str, str]:
    return item.position, item.position.lstrip("0")


def _meant(name: str, stems: Sequence[str]) -> str:
    """What a mistyped chapter was likely to be, or where the list is."""
    numbers = re.findall(r"\d+", Path(name).name)
    near = [stem for stem in stems if numbers and int(stem[:2]) == int(numbers[0])]
    near = near or difflib.get_close_matches(name.lower(), [*stems, *(stem[3:] for stem in stems)], 1)
    full = next((stem for stem in stems if near and stem.endswith(near[0])), "")
    if full:
        return f"; did you mean {to_type(f'grade {full[:2]}')} ({full})?"
    return f"; {to_type('syllabus')} lists the chapters"


def _no_page(path: Path) -> None:
    """CourseError when a path is the chapter that is read: it has the name of its exercises, and none of them in it."""
    inside = path.resolve().parent in (work_dir().resolve(), (material_dir() / "notebooks").resolve())
    if not inside or path.stem not in _stems() or not path.is_file():
        return
    if b'"nbgrader"' not in path.read_bytes():
        place = short_path(work_dir() / "exercises" / path.name)
        grade = to_type(f"grade {path.name[:2]}")
        raise CourseError(f"{short_path(path)}: is the chapter itself; its exercises are in {place}: {grade}")


def not_there(name: str, path: Path) -> Submission | None:
    """The row of a notebook that is not there, with what to do about it; None when it is there."""
    if path.exists():
        return None
    exercises = work_dir() / "exercises"
    known = {one.name: short_path(one) for one in sorted(exercises.glob("*.ipynb"))}
    near = difflib.get_close_matches(path.name, known, 1, 0.75)
    if path.parent.resolve() == exercises.resolve() and path.stem in _stems():
        why = f"there is no {short_path(path)}; {how_copied()}"
    else:
        why = "there is no such file" + (f"; did you mean {known[near[0]]}?" if near else "")
    return Submission(name, "missing", flags=(why,))


def how_copied() -> str:
    """How exercises come into the learner's folder; an installed package has no start.py that copies them."""
    if (material_dir() / "start.py").is_file():
        return "`python3 start.py lab` copies it there"
    return f"copy it there from {material_dir() / 'exercises'}"


def rescue(path: Path) -> str:
    """What to do about an own notebook that cannot be read, "" for others: Jupyter keeps a copy of the last save."""
    exercises = work_dir() / "exercises"
    if path.parent.resolve() != exercises.resolve() or not path.is_file():
        return ""
    kept = exercises / ".ipynb_checkpoints" / f"{path.stem}-checkpoint.ipynb"
    if kept.is_file():
        return f"Jupyter kept an earlier save: {short_path(kept)}"
    return f"to begin it anew, move it away; {how_copied()}" if path.stem in _stems() else ""


def _stems() -> list[str]:
    return [one.stem for one in assignment_paths()]


def not_begun(name: str, path: Path, seed: int, tier: str) -> Submission | None:
    """The row of exercises in which no code was changed, for which nothing has to run; None: it has to be graded."""
    try:
        handin = read_handin(path)
        assignment = find_assignment(handin.assignment or "")
    except (HandInError, CourseError):
        return None
    given = release(assignment)
    stubs = [cell.source.strip() for cell in given.cells if cell.cell_type == "code"]
    mine = [cell.source.strip() for cell in handin.cells if cell.kind == "code" and cell.source.strip()]
    if handin.notes or mine != [source for source in stubs if source] or handin.release != course_of(given).get("hash"):
        return None
    items = tuple(
        GradedItem(item.id, item.position, item.title, "not_attempted", 0.0, item.points, NOT_ATTEMPTED)
        for item in assignment.items
    )
    return Submission(name, "graded", items, (), assignment.name, handin.release or "", seed, tier)


def has_hints(submission: Submission) -> bool:
    """Whether this copy of the course has hints to these exercises: what a class is given may be without."""
    return bool(submission.assignment) and any(item.hints for item in find_assignment(submission.assignment).items)


def exercise_named(name: str) -> Item:
    """The exercise with this place or id. CourseError in one line with the nearest ones."""
    try:
        return find_item(name)[1]
    except CourseError as error:
        everything = all_assignments()
        if re.fullmatch(r"\d{1,2}", name):
            items = [item for one in everything if int(one.chapter) == int(name) for item in one.items]
            if items:
                told = ", ".join(f"{item.position} {item.id}" for item in items)
                raise CourseError(f"a hint is for one exercise of the chapter: {told}") from None
        if re.fullmatch(r"\d{1,2}(\.\d+)?", name):
            if any(int(one.chapter) == int(name.partition(".")[0]) for one in everything):
                raise error
            raise CourseError(f"chapter {int(name.partition('.')[0])} has no exercises; try 03.2") from None
        ids = [item.id for one in everything for item in one.items]
        near = difflib.get_close_matches(name.lower().replace("_", "-").replace(" ", "-"), ids, 2)
        meant = f"; did you mean {' or '.join(near)}?" if near else f"; {to_type('progress --all')} lists them"
        raise CourseError(f"there is no exercise {name!r}{meant}") from None


def short_path(path: Path) -> str:
    """A path from where the command was called, when it lies below that."""
    place = path.resolve()
    return os.path.relpath(place) if place.is_relative_to(Path.cwd().resolve()) else str(path)


class Alive:
    """On a terminal, a line that says what is being done and for how many seconds; it goes at the end."""

    def __init__(self, what: str, file: TextIO | None = None, every: float = 1.0) -> None:
        self.what, self.file, self.every = what, file or sys.stderr, every
        self._end = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Alive":
        if self.file.isatty():
            self._start = time.monotonic()
            self._say()
            self._thread = threading.Thread(target=self._beat, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._thread is not None:
            self._end.set()
            self._thread.join()
            print("\r" + " " * 79, end="\r", file=self.file, flush=True)

    def _beat(self) -> None:
        while not self._end.wait(self.every):
            self._say()

    def _say(self) -> None:
        seconds = int(time.monotonic() - self._start)
        told = f"{self.what[-60:]} ..." + (f" {seconds} s" if seconds else "")
        print(f"\r{told}", end="", file=self.file, flush=True)
