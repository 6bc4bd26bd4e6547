"""A class graded: several graders at once, each hand-in one row, every row on the disk as soon as it is there.

    with collect(folder, roster) as found, Journal(results) as journal:
        rows = run_class(found, journal, setting)      # (learner, Submission), hand-ins that are missing among them

What was graded before from the same file, exercises, library, seed and versions is taken from the journal. Beside it
lie `records/`: for each score what was run of the learner's, what it printed, with which seed and versions, and when.
"""

import contextlib
import hashlib
import json
import multiprocessing
import multiprocessing.connection
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, find_assignment
from course_lib.grading.collect import Collected, Found
from course_lib.grading.grade import GRADING_SEED, Grader, Submission
from course_lib.grading.isolation.tiers import Tier, best_tier
from course_lib.grading.journal import Journal, assignment_digest, file_digest, key_of, versions
from course_lib.grading.notebook import course_of
from course_lib.grading.release import release
from course_lib.grading.run import Ran
from course_lib.grading.table import write_text

__all__ = ["Change", "Setting", "Tell", "changes", "grade_again", "keep", "run_class"]

Row = tuple[str, Submission]
Tell = Callable[[int, int, str], None]
"""Called with how many hand-ins are done, how many there are, and whose was the last."""

PRINTED = 4000
"""Characters of a cell's output that a record keeps."""


@dataclass(frozen=True)
class Setting:
    """How a class is graded. `any_release`: hand-ins of another release are graded against the present one."""

    jobs: int = 1
    seed: int = GRADING_SEED
    timeout: float = 60
    tier: Tier | None = None
    any_release: bool = False


@dataclass(frozen=True)
class Change:
    """What a regrade makes of one learner's exercise."""

    learner: str
    before: float
    after: float
    max_score: float
    submission: Submission
    """The row as it would be written: the other exercises stay as they were."""
    task: "_Task"
    record: list[dict[str, Any]]


@dataclass(frozen=True)
class _Task:
    found: Found
    key: str
    digest: str


def run_class(
    found: Collected, journal: Journal, setting: Setting, tell: Tell | None = None, older: bool = False
) -> list[Row]:
    """Grade what is new, take the rest from the journal; a row for every hand-in and every one that is missing.

    `older`: a row of the same file counts also when the library or the seed has changed since (beside a regrade).
    CourseError only when no grader can be started. On Ctrl-C the hand-ins in progress are finished and kept.
    """
    rows, tasks = _prepare(found, setting)
    todo = []
    for task in tasks:
        known = journal.found(task.key)
        if known is None and older:
            known = journal.last(task.found.learner, task.found.assignment, task.digest)
        if known is None:
            todo.append(task)
        else:
            rows.append((task.found.learner, known))
    folder = journal.path.parent
    for task, submission, record, failed in _graded(todo, setting, len(tasks), tell, journal):
        if not failed:
            keep(folder, task, submission, record)
            journal.add(task.key, task.found.learner, task.digest, submission)
        rows.append((task.found.learner, submission))
    return sorted(rows, key=lambda row: (row[0].casefold(), row[0], row[1].assignment))


def grade_again(
    found: Collected, journal: Journal, setting: Setting, item: str, assignment: Assignment, tell: Tell | None = None
) -> list[Change]:
    """What grading one exercise anew would make of it, for each that was graded before. Nothing is written."""
    mine = replace_handins(found, [one for one in found.handins if one.assignment == assignment.name])
    tasks, before = [], {}
    for task in _prepare(mine, setting)[1]:
        last = journal.last(task.found.learner, assignment.name, task.digest)
        if last is not None:
            tasks.append(task)
            before[task.found.learner] = last
    if not tasks:
        raise CourseError(f"no hand-in of {assignment.name} was graded here before: leave --regrade out")
    result = []
    for task, new, record, failed in _graded(tasks, setting, len(tasks), tell, journal):
        old = before[task.found.learner]
        fresh = next((one for one in new.items if one.id == item), None)
        if failed or fresh is None:
            reason = "; ".join(new.flags) or new.status
            raise CourseError(f"{task.found.place}: could not be graded anew ({reason}); nothing was written")
        kept = next((one for one in old.items if one.id == item), None)
        items = tuple(fresh if one.id == item else one for one in old.items) + (() if kept else (fresh,))
        score = kept.score if kept else 0.0
        merged = replace(old, items=items)
        result.append(Change(task.found.learner, score, fresh.score, fresh.max_score, merged, task, record))
    return sorted(result, key=lambda one: one.learner.casefold())


def changes(journal: Journal, found: Sequence[Change]) -> None:
    """Write what `grade_again` found: from now on these are the scores."""
    for one in found:
        keep(journal.path.parent, one.task, one.submission, one.record, again=True)
        journal.add(one.task.key, one.learner, one.task.digest, one.submission)


def replace_handins(found: Collected, handins: list[Found]) -> Collected:
    """The same collection with only these hand-ins, and nobody missing."""
    return Collected(handins=handins)


def _prepare(found: Collected, setting: Setting) -> tuple[list[Row], list[_Task]]:
    """The rows that need no grading, and what is to be graded, chapter by chapter."""
    rows: list[Row] = []
    tasks: list[_Task] = []
    known: dict[str, tuple[str, str]] = {}
    tier = (setting.tier or best_tier()).name
    for one in sorted(found.handins, key=lambda one: (one.assignment, one.learner)):
        if one.problem or not one.assignment:
            reason = one.problem or "nothing tells which chapter it is of"
            rows.append((one.learner, Submission(one.learner, "unreadable", (), (reason,), one.assignment)))
            continue
        if one.assignment not in known:
            assignment = find_assignment(one.assignment)
            known[one.assignment] = assignment_digest(assignment), course_of(release(assignment)).get("hash", "")
        digest, present = known[one.assignment]
        if one.release and one.release != present and not setting.any_release:
            reason = (
                f"it is of another release of these exercises ({one.release}; here is {present}): "
                "grade it with that copy of the course, or say --any-release"
            )
            rows.append(
                (one.learner, Submission(one.learner, "unreadable", (), (reason,), one.assignment, one.release))
            )
            continue
        content = file_digest(one.path)
        tasks.append(_Task(one, key_of(one.learner, content, digest, setting.seed, setting.timeout, tier), content))
    for learner, name in found.missing:
        rows.append((learner, Submission(learner, "missing", (), ("nothing was handed in",), name)))
    return rows, tasks


# ---------------------------------------------------------------- several graders, each in a process

_Done = tuple[_Task, Submission, list[dict[str, Any]], bool]


class _Watched:
    """A worker's runner that also notes what was run of the learner's, and what came of it."""

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self.record: list[dict[str, Any]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def run(self, notebook: Any, *args: Any, **kwargs: Any) -> Ran:
        sources = {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}
        done: Ran = self._runner.run(notebook, *args, **kwargs)
        cells = []
        for one in done.cells.values():
            if one.role != "ours":
                facts = {name: value for name, value in asdict(one).items() if value not in (None, "", False)}
                facts |= {"source": sources.get(one.cell, "")}
                if one.printed:
                    facts["printed"] = one.printed[:PRINTED]
                cells.append(facts)
        self.record.append({"seconds": round(done.seconds, 3), "cells": cells})
        return done


class _Member:
    """A grader in a process of its own: a hand-in that ends it ends no other. It goes when its pipe is closed."""

    def __init__(self, setting: Setting, close: Sequence[Any]) -> None:
        fork = sys.platform == "linux"  # from a parent without threads
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        self.pipe, theirs = context.Pipe()
        mine = [*close, self.pipe] if fork else []
        self.process = context.Process(target=_work, args=(theirs, mine, setting), name="course-grader")
        self.process.start()
        theirs.close()
        self.task: _Task | None = None

    def give(self, task: _Task) -> None:
        self.task = task
        with contextlib.suppress(OSError):  # it has gone: the answer will say so
            self.pipe.send(task)

    def answer(self) -> Any:
        """(row, record, failed), a CourseError, or None when the process has ended."""
        try:
            return self.pipe.recv()
        except (EOFError, OSError):
            return None

    def leave(self, patience: float | None = None) -> None:
        self.pipe.close()
        self.process.join(patience)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()


def _graded(tasks: list[_Task], setting: Setting, total: int, tell: Tell | None, journal: Journal) -> Iterator[_Done]:
    """Each task's row as it comes; a generator, so that each is on the disk before the next one is waited for."""
    waiting = list(reversed(tasks))
    team: list[_Member] = []
    count = total - len(tasks)
    if tell and count:
        tell(count, total, "")
    with _interrupts() as interrupts:
        try:
            while True:
                while not interrupts and waiting and len(team) < setting.jobs:
                    team.append(_Member(setting, [journal, *(one.pipe for one in team)]))
                    team[-1].give(waiting.pop())
                if not team:
                    break
                ready = multiprocessing.connection.wait([one.pipe for one in team], 0.5)
                for member in [one for one in team if one.pipe in ready]:
                    task, answer = member.task, member.answer()
                    assert task is not None
                    if isinstance(answer, CourseError):
                        raise answer
                    if answer is None:
                        member.process.join()
                        answer = _failed(task.found, f"it ended the grader (exit {member.process.exitcode})"), [], True
                        member.task = None
                    if member.task and waiting and not interrupts:
                        member.give(waiting.pop())
                    else:
                        team.remove(member)
                        member.leave()
                    count += 1
                    yield (task, *answer)
                    if tell:
                        tell(count, total, task.found.learner if not interrupts else "(finishing these)")
        finally:
            for member in team:
                member.pipe.close()
            for member in team:
                member.leave()
        if interrupts:
            raise KeyboardInterrupt


@contextlib.contextmanager
def _interrupts() -> Iterator[list[int]]:
    """Ctrl-C is noted, and what is in progress is finished; a second one ends at once."""
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        if noted:
            raise KeyboardInterrupt
        noted.append(number)

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, note)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def _work(pipe: Any, close: Sequence[Any], setting: Setting) -> None:
    """A grader's process: tasks in, rows out, until the pipe is closed, also by a parent that was killed."""
    for one in close:
        one.close()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)  # Ctrl-C is the parent's: it lets the hand-in in progress come to its end
    grader: Grader | None = None
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            if grader is None:
                try:
                    grader = stack.enter_context(Grader(setting.seed, setting.timeout, setting.tier))
                except CourseError as error:
                    pipe.send(CourseError(str(error)))
                    return
                grader._runner = watched = _Watched(grader._runner)  # type: ignore[assignment]
            watched.record = []
            row, failed = _one(grader, task)
            if failed:
                grader = None
                stack.close()
            pipe.send((row, watched.record, failed))


def _one(grader: Grader, task: _Task) -> tuple[Submission, bool]:
    """A hand-in's row, and whether the grader failed on it: then it is not kept, and the next run tries it again."""
    found = task.found
    try:
        submission = grader.grade(found.learner, found.path)
    except Exception as error:
        why = " ".join(str(error).split()) or "no reason given"
        return _failed(found, f"the grader failed on it ({type(error).__name__}: {why})"), True
    flags = tuple(flag.replace(str(found.path), found.place) for flag in submission.flags)
    status = submission.status
    if status == "graded" and (
        any(item.status == "kernel_died" for item in submission.items) or any(map(_is_problem, flags))
    ):
        status = "graded_with_problems"
    return replace(submission, status=status, flags=flags, assignment=submission.assignment or found.assignment), False


def _failed(found: Found, reason: str) -> Submission:
    return Submission(found.learner, "unreadable", (), (reason,), found.assignment, found.release)


def _is_problem(flag: str) -> bool:
    """Whether something could not be graded as it was handed in."""
    return "was left out" in flag or "ended the kernel" in flag


# ---------------------------------------------------------------- what a score keeps


def record_path(folder: Path, learner: str, assignment: str) -> Path:
    """One file for a learner and chapter, by a name that any system takes."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", learner).strip("._")[:60] or "learner"
    number = hashlib.sha256(learner.encode("utf-8", "replace")).hexdigest()[:8]
    return folder / "records" / f"{slug}-{number}" / f"{assignment}.json"


def keep(folder: Path, task: _Task, submission: Submission, record: list[dict[str, Any]], again: bool = False) -> None:
    """Write what a score rests on. `again`: one exercise of it alone, so that the runs before stay beside it."""
    found = task.found
    path = record_path(folder, found.learner, found.assignment)
    if again:
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))["runs"] + record
    content = {
        "learner": found.learner,
        "assignment": found.assignment,
        "place": found.place,
        "matched": found.how,
        "file": task.digest,
        "key": task.key,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "submission": asdict(submission),
        "runs": record,
    }
    write_text(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
