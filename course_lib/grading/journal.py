"""What a class run has done, one line of JSON a hand-in, on the disk before the next one counts.

    with Journal(folder) as journal:
        journal.found(key)             # the row of a hand-in that was graded before, or None
        journal.add(key, learner, digest, submission)

A run that is killed has every line but the one in progress; a line that is damaged is skipped, and its hand-in graded
again. A key is made of everything that a score depends on, so that nothing old is taken for new.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, fields
from datetime import UTC, datetime
from io import BufferedRandom
from pathlib import Path
from types import TracebackType
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.digests import assignment_digest, file_digest, library_digest, versions
from course_lib.grading.grade import GradedItem, Submission

__all__ = ["Journal", "assignment_digest", "file_digest", "key_of", "library_digest", "submission_from", "versions"]

FORMAT = 1


def key_of(learner: str, handin: str, assignment: str, seed: int, timeout: float, tier: str) -> str:
    """`handin`, `assignment`: digests. What makes another score possible makes another key."""
    facts = [FORMAT, learner, handin, assignment, library_digest(), seed, timeout, tier, versions()]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()[:32]


def submission_from(row: Mapping[str, Any]) -> Submission:
    """A row back from JSON. TypeError, KeyError or ValueError when it is none."""
    names = {one.name for one in fields(Submission)}
    inner = {one.name for one in fields(GradedItem)}
    items = tuple(GradedItem(**{k: v for k, v in one.items() if k in inner}) for one in row["items"])
    for one in items:
        if not isinstance(one.id, str) or not isinstance(one.score + one.max_score, int | float):
            raise ValueError("no graded exercise")
    rest = {name: value for name, value in row.items() if name in names and name not in ("items", "flags")}
    return Submission(**rest, items=items, flags=tuple(map(str, row["flags"])))


class Journal:
    """The journal of one results folder, which is made. CourseError when another run has it open."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journal.jsonl"
        self.damaged = 0
        self._rows: dict[str, Submission] = {}
        self._last: dict[tuple[str, str], tuple[str, Submission]] = {}
        self._file: BufferedRandom | None = None

    def __enter__(self) -> "Journal":
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("a+b")
        except OSError as error:
            raise CourseError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        try:
            _lock(self._file, self.path)
            self._read(self._file)
        except BaseException:
            self._file.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Also for a process that has it from its parent: the lock is the parent's alone."""
        if self._file is not None:
            self._file.close()

    def _read(self, file: BufferedRandom) -> None:
        file.seek(0)
        line = b"\n"
        for line in file:
            try:
                entry = json.loads(line)
                key, learner, digest = (str(entry[name]) for name in ("key", "learner", "file"))
                submission = submission_from(entry["submission"])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
                self.damaged += bool(line.strip())
                continue
            self._rows[key] = submission
            self._last[learner, submission.assignment] = digest, submission
        if not line.endswith(b"\n"):
            file.write(b"\n")  # a run was killed while it wrote: its line ends here
            file.flush()

    def found(self, key: str) -> Submission | None:
        """The row that was graded from exactly this."""
        return self._rows.get(key)

    def last(self, learner: str, assignment: str, digest: str) -> Submission | None:
        """The latest row of this very file, by whichever library and seed it was graded."""
        known, submission = self._last.get((learner, assignment), ("", None))
        return submission if known == digest else None

    def add(self, key: str, learner: str, digest: str, submission: Submission) -> None:
        """Write a row; when this returns it is on the disk."""
        assert self._file is not None
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = {"format": FORMAT, "key": key, "learner": learner, "file": digest, "when": when}
        entry |= {"submission": asdict(submission), "library": library_digest(), "versions": versions()}
        line = json.dumps(entry, ensure_ascii=True) + "\n"
        try:
            self._file.write(line.encode("ascii"))
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise CourseError(f"{self.path}: cannot be written: {error.strerror or error}") from None
        self._rows[key] = submission
        self._last[learner, submission.assignment] = digest, submission


def _lock(file: BufferedRandom, path: Path) -> None:
    """The lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # Windows: two runs at once are not noticed there
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise CourseError(
            f"{path.parent}: another run is writing there; wait for it, or name another --results"
        ) from None
