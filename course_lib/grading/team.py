"""Several graders at once, each in a process of its own, so that a hand-in which ends its grader ends no other.

    for task, submission, record, failed in graded(tasks, setting, total, tell, journal):
        ...                             # as they come; close the generator to stop

Threads would not do: they share one parser, and Python's is not made for two at once. A grader goes when its pipe is
closed, by whatever ends the parent.
"""

import contextlib
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.grading.collect import Found
from course_lib.grading.grade import GRADING_SEED, Grader, Submission
from course_lib.grading.isolation.tiers import Tier
from course_lib.grading.journal import Journal
from course_lib.grading.run import Ran

__all__ = ["Done", "Setting", "Task", "Tell", "graded"]

Tell = Callable[[int, int, str], None]
"""Called with how many hand-ins are done, how many there are, and whose was the last."""

PRINTED = 4000
"""Characters of a cell's output that a record keeps."""


@dataclass(frozen=True)
class Setting:
    """How a class is graded. `any_release`: hand-ins of another release are graded against the present one.

    `cache`: a folder in which graders, and nobody else, keep cases for each other.
    """

    jobs: int = 1
    seed: int = GRADING_SEED
    timeout: float = 60
    tier: Tier | None = None
    any_release: bool = False
    cache: Path | None = None


@dataclass(frozen=True)
class Task:
    found: Found
    key: str
    digest: str


Done = tuple[Task, Submission, list[dict[str, Any]], bool]


class _Record:
    """What was run of a learner's, and what came of it: a grader's observer."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    def __call__(self, notebook: NotebookNode, done: Ran) -> None:
        sources = {cell.id: cell.source for cell in notebook.cells if cell.cell_type == "code"}
        cells = []
        for one in done.cells.values():
            if one.role != "ours":
                facts = {name: value for name, value in asdict(one).items() if value not in (None, "", False)}
                facts |= {"source": sources.get(one.cell, "")}
                if one.printed:
                    facts["printed"] = one.printed[:PRINTED]
                cells.append(facts)
        self.runs.append({"seconds": round(done.seconds, 3), "cells": cells})


class _Member:
    """A grader in a process of its own: a hand-in that ends it ends no other. It goes when its pipe is closed."""

    def __init__(self, setting: Setting, close: Sequence[Any]) -> None:
        fork = multiprocessing.get_all_start_methods()[0] != "spawn"  # a system's own way comes first
        context: Any = multiprocessing.get_context("fork" if fork else "spawn")
        self.pipe, theirs = context.Pipe()
        mine = [*close, self.pipe] if fork else []
        self.process = context.Process(target=_work, args=(theirs, mine, setting), name="course-grader")
        self.process.start()
        theirs.close()
        self.task: Task | None = None

    def give(self, task: Task) -> None:
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


def graded(tasks: list[Task], setting: Setting, total: int, tell: Tell | None, journal: Journal) -> Iterator[Done]:
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
    chapter, record = "", _Record()
    with contextlib.ExitStack() as stack, contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            task = pipe.recv()
            if task.found.assignment != chapter:  # a judge for each chapter would stay to the end
                grader, chapter = None, task.found.assignment
                stack.close()
            if grader is None:
                try:
                    grader = stack.enter_context(_grader(setting, record))
                except CourseError as error:
                    pipe.send(CourseError(str(error)))
                    return
            record.runs = []
            row, failed = _one(grader, task)
            if failed:
                grader = None
                stack.close()
            pipe.send((row, record.runs, failed))


def _grader(setting: Setting, record: _Record) -> Grader:
    return Grader(setting.seed, setting.timeout, setting.tier, observer=record, cache=setting.cache)


def _one(grader: Grader, task: Task) -> tuple[Submission, bool]:
    """A hand-in's row, and whether the grader failed on it: then it is not kept, and the next run tries it again."""
    found = task.found
    try:
        submission = grader.grade(found.learner, found.path)
    except Exception as error:
        why = " ".join(str(error).split()) or "no reason given"
        return _failed(found, f"the grader failed on it ({type(error).__name__}: {why})"), True
    flags = tuple(flag.replace(str(found.path), found.place) for flag in submission.flags)
    return replace(submission, flags=flags, assignment=submission.assignment or found.assignment), False


def _failed(found: Found, reason: str) -> Submission:
    return Submission(found.learner, "unreadable", (), (reason,), found.assignment, found.release)
