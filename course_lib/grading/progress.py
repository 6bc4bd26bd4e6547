"""What a learner has done, kept in `work/progress.json`, and the map of the course that shows it.

record([submission])                       # after a grading of one's own notebooks
read_progress().exercises["unequal-tokens"].best
course_map(read_syllabus(), read_progress())
"""

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.report import to_type
from course_lib.grading.sheets import WORDS, outcome
from course_lib.grading.table import write_file
from course_lib.machine import work_dir

__all__ = ["Done", "Progress", "is_own", "keep_progress", "kept_line", "progress_path", "read_progress", "record"]

VERSION = 1
STALE = 20.0
"""Seconds after which the lock of a process that was killed is nobody's: one write takes a few milliseconds."""


@dataclass(frozen=True)
class Done:
    """One exercise: the last outcome (one of sheets.OUTCOMES), the best points, the day it first passed, the tries."""

    status: str
    best: float
    max_score: float
    passed: str = ""
    times: int = 1

    @property
    def done(self) -> bool:
        return bool(self.passed)


@dataclass(frozen=True)
class Progress:
    """Exercises by id. `others` is what the file holds beside them: it is kept as it was."""

    exercises: Mapping[str, Done] = field(default_factory=dict)
    others: Mapping[str, Any] = field(default_factory=dict)


def progress_path() -> Path:
    return work_dir() / "progress.json"


def is_own(path: Path) -> bool:
    """Whether a notebook lies in the learner's own folder, so that its grading is the learner's progress."""
    return path.resolve().is_relative_to(work_dir().resolve())


def read_progress(path: Path | None = None) -> Progress:
    """What is kept; nothing when there is no file. CourseError when it is there and says nothing of ours."""
    path = path or progress_path()
    try:
        document = json.loads(path.read_text(encoding="utf-8-sig"))
        if document["version"] > VERSION:
            raise CourseError(f"{path}: is of a newer version of the course; update the course to read it")
        exercises = {str(name): _done(facts) for name, facts in document["exercises"].items()}
    except FileNotFoundError:
        return Progress()
    except OSError as error:
        raise CourseError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise CourseError(
            f"{path}: is damaged ({type(error).__name__}); the next grading puts it aside and keeps what it can read"
        ) from None
    others = {name: value for name, value in document.items() if name not in ("version", "exercises")}
    return Progress(exercises, others)


def _done(facts: Any) -> Done:
    status, passed = str(facts["status"]), str(facts.get("passed", ""))
    best, most, times = float(facts["best"]), float(facts["max_score"]), int(facts.get("times", 1))
    if status not in WORDS or not (math.isfinite(best) and math.isfinite(most)):
        raise ValueError(status)
    if passed:
        date.fromisoformat(passed)
    return Done(status, best, most, passed, times)


def record(submissions: Sequence[Submission], path: Path | None = None, today: str = "") -> Progress:
    """Add these gradings and write the file whole; what it says now. What was passed once stays passed.

    Of a damaged file what can be read is kept, and the file itself beside the new one as `progress.json.damaged-1`.
    Two gradings at once wait for each other.
    """
    path = path or progress_path()
    today = today or time.strftime("%Y-%m-%d")
    with _alone(path):
        try:
            before = read_progress(path)
        except CourseError:
            if _is_newer(path):
                raise
            saved = _salvage(path)
            _put_aside(path)
            before = saved
        exercises = dict(before.exercises)
        for one in submissions:
            for item in one.items:
                exercises[item.id] = _after(exercises.get(item.id), item, today)
        after = replace(before, exercises=exercises)
        if after != before:
            facts = {name: asdict(one) for name, one in exercises.items()}
            document = {"version": VERSION, "exercises": facts, **after.others}
            write_file(path, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return after


def keep_progress(submissions: Sequence[Submission], places: Sequence[Path]) -> list[str]:
    """Record those whose notebooks lie in the learner's own folder; a line when that cannot be done, no exception."""
    own = [one for one, path in zip(submissions, places, strict=True) if one.items and is_own(path)]
    if not own:
        return []
    aside = set(_aside(progress_path()))
    try:
        record(own)
    except CourseError as error:
        return [f"note: your progress is not kept: {error}"]
    return [
        f"note: {progress_path().name} was damaged; what could be read is kept, and the old one is {one.name}"
        for one in sorted(set(_aside(progress_path())) - aside)
    ]


def _aside(path: Path) -> list[Path]:
    """Damaged files that were kept."""
    return list(path.parent.glob(f"{path.name}.damaged-*"))


def kept_line(places: Sequence[tuple[str, Path]]) -> list[str]:
    """What to say at the end of a grading of one's own notebooks; nothing where none of them is one's own."""
    own = [path for _, path in places if path.exists() and is_own(path)]
    if not own:
        return []
    try:
        done = sum(one.done for one in read_progress().exercises.values())
    except CourseError:
        return []
    passed = f"{done} {'exercise' if done == 1 else 'exercises'} passed so far"
    return [f"progress: {passed}; {to_type('progress')} draws the map"]


def _after(before: Done | None, item: GradedItem, today: str) -> Done:
    status = outcome(item)
    if before is None:
        if status in ("not_attempted", "missing"):
            return Done(status, 0.0, item.max_score, times=0)
        before = Done(status, 0.0, item.max_score, times=0)
    tried = status not in ("not_attempted", "missing")
    passed = before.passed or (today if status == "passed" else "")
    best = max(before.best, item.score)
    return Done(status, best, item.max_score, passed, before.times + tried)


_ENTRY = re.compile(r'"([^"\\]+)"\s*:\s*(?=\{)')


def _salvage(path: Path) -> Progress:
    """What can still be read of a damaged file, also of one that was cut off: every exercise whose entry is whole."""
    kept: dict[str, Done] = {}
    try:
        text = path.read_bytes().decode("utf-8-sig", errors="replace")
    except OSError:
        return Progress()
    for found in _ENTRY.finditer(text):
        with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError):
            kept[found[1]] = _done(json.JSONDecoder().raw_decode(text, found.end())[0])
    return Progress(kept)


def _is_newer(path: Path) -> bool:
    try:
        return bool(json.loads(path.read_text(encoding="utf-8-sig"))["version"] > VERSION)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _put_aside(path: Path) -> None:
    """Keep a damaged file under the first name that is free."""
    for number in range(1, 1000):
        aside = path.with_name(f"{path.name}.damaged-{number}")
        if not aside.exists():
            try:
                path.rename(aside)
                return
            except OSError as error:
                raise CourseError(f"{path}: is damaged and cannot be moved: {error.strerror or error}") from None
    raise CourseError(f"{path}: is damaged, and so are 999 others beside it; move them away")


@contextlib.contextmanager
def _alone(path: Path, wait: float = 2 * STALE, now: Callable[[], float] = time.time) -> Iterator[None]:
    """One process at a time: a file beside it, made only when it is not there. One left by a killed process goes."""
    lock = path.with_name(f".{path.name}.lock")
    start = time.monotonic()
    while True:
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(lock, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            with contextlib.suppress(OSError):
                if abs(now() - lock.stat().st_mtime) > STALE:
                    lock.unlink()
                    continue
            if time.monotonic() - start > wait:
                raise CourseError(f"{path}: another grading is writing it; if none runs, delete {lock.name}") from None
            time.sleep(0.02)
        except OSError as error:
            raise CourseError(f"{path}: cannot be written: {error.strerror or error}") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
