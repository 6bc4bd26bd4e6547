"""One hand-in graded: read, spliced, run by nbval, judged. A bad one is a row with a status, never an exception."""

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

from nbformat import NotebookNode
from nbformat.v4 import new_output

from course_lib.checks.core import ran
from course_lib.errors import CourseError, HandInError
from course_lib.grading.alone import facts, lonely, others_before
from course_lib.grading.assignment import Assignment, all_assignments, assignment_paths, find_assignment
from course_lib.grading.cases import cases_file, lay_out
from course_lib.grading.handins import HandIn, read_handin
from course_lib.grading.isolation import restore
from course_lib.grading.isolation.tiers import Tier, best_tier
from course_lib.grading.isolation.warm import Limits
from course_lib.grading.judge import Judge
from course_lib.grading.lean import add_checks, write_library
from course_lib.grading.notebook import course_of
from course_lib.grading.release import release
from course_lib.grading.rerun import Run, run_all
from course_lib.grading.run import CellResult, Ran, Runner
from course_lib.grading.sources import checked_names, defined
from course_lib.grading.splice import Spliced, SplicedItem, splice
from course_lib.grading.verdict import contradiction, decide, hidden_lines
from course_lib.machine import work_dir

__all__ = ["GRADING_SEED", "GradedItem", "Grader", "Observer", "Submission", "assignment_of", "handin_paths"]

GRADING_SEED = 20_611
"""The cases of a grading are other ones than those in a learner's notebook, which has seed 0."""

Observer = Callable[[NotebookNode, Ran], None]

STATUSES = ("passed", "failed", "not_attempted", "missing", "timeout", "kernel_died")

DOUBTED = ("failed", "timeout", "kernel_died")
"""What another exercise's damage may have done."""


CELLS_IN_TOTAL = 10
"""How many cells may take all of their time before the hand-in is stopped."""
LEAST_TOTAL = 300.0


@dataclass(frozen=True)
class GradedItem:
    """One exercise of a hand-in; `status` is one of STATUSES."""

    id: str
    position: str
    title: str
    status: str
    score: float
    max_score: float
    message: str
    misconception: str | None = None
    case: int | None = None
    """The number of the case that went wrong, from 1."""
    seconds: float = 0.0


@dataclass(frozen=True)
class Submission:
    """A hand-in's row: `graded`, `graded_with_problems`, `unreadable` or `missing`, with the reason in `flags`."""

    name: str
    status: str
    items: tuple[GradedItem, ...] = ()
    flags: tuple[str, ...] = field(default=())
    assignment: str = ""
    release: str = ""
    seed: int = 0
    tier: str = ""
    seconds: float = 0.0

    @property
    def score(self) -> float:
        return sum(item.score for item in self.items)

    @property
    def max_score(self) -> float:
        return sum(item.max_score for item in self.items)


def handin_paths(names: list[str]) -> list[tuple[str, Path]]:
    """(name, path) for what the command line names: a file, a folder of notebooks, or a chapter ("03") in work/."""
    found: list[tuple[str, Path]] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            inside = [one for one in sorted(path.rglob("*.ipynb")) if ".ipynb_checkpoints" not in one.parts]
            if not inside:
                raise CourseError(f"{name}: the folder holds no notebooks")
            found += [(str(one), one) for one in inside]
        elif path.suffix == ".ipynb" or path.exists():
            found.append((name, path))
        else:
            assignment = find_assignment(name)
            found.append((assignment.name, work_dir() / "exercises" / assignment.path.name))
    return found


def assignment_of(handin: HandIn, material: Path | None = None) -> Assignment:
    """By the id embedded in it, its file name, the ids it holds, the checks it calls, or the names it defines.

    HandInError when none fits, or more than one.
    """
    known = {path.stem: path for path in assignment_paths(material)}
    if handin.assignment in known:
        return find_assignment(str(handin.assignment), material)
    named = [
        stem for stem in known if re.search(rf"(?<![0-9a-z]){re.escape(stem)}(?![0-9a-z])", handin.path.stem.lower())
    ]
    if len(named) == 1:
        return find_assignment(named[0], material)
    ids = {cell.grade_id for cell in handin.cells} | {cell.cell_id for cell in handin.cells}
    everything = all_assignments(material)
    text = "\n".join(cell.source for cell in handin.cells)
    names = {name for cell in handin.cells for name in defined(cell.source)}
    wanted = lambda one, item: checked_names(one.notebook.cells[item.check].source)
    scores: list[Callable[[Assignment], int]] = [
        lambda one: sum(item.id in ids for item in one.items),
        lambda one: sum(f'check("{item.id}"' in text for item in one.items),
        lambda one: sum(bool(wanted(one, item) & names) for item in one.items),
    ]
    for score in scores:
        best = max(map(score, everything), default=0)
        hits = [one for one in everything if score(one) == best]
        if best and len(hits) == 1:
            return hits[0]
    raise HandInError(f"{handin.path}: is no exercise notebook of this course")


class Grader:
    """All that a grading needs, started once: a worker behind walls, judges, cases. Use as a context manager.

    with Grader(seed=..., timeout=...) as grader:
        submission = grader.grade("smith", Path("smith/03.ipynb"))

    `observer`: is told of every notebook that was run for a hand-in, and of what came of it. `cache`: a folder in
    which graders, and nobody else, keep cases for each other. `timeout`: seconds that a cell may take; `total`: that a
    hand-in may take, which is ten times as much when it is not said, and no less than five minutes.
    """

    def __init__(
        self,
        seed: int | None = None,
        timeout: float = 60,
        tier: Tier | None = None,
        limits: Limits | None = None,
        observer: Observer | None = None,
        cache: Path | None = None,
        total: float | None = None,
    ) -> None:
        self.seed = GRADING_SEED if seed is None else seed
        self.timeout, self.tier = timeout, tier or best_tier()
        self.total = total
        self._limits, self._observer, self._cache = limits, observer, cache
        self._stack = contextlib.ExitStack()
        self._judges: dict[str, Judge] = {}
        self._cases: dict[str, tuple[Path, dict[str, int]]] = {}

    def __enter__(self) -> "Grader":
        with contextlib.ExitStack() as stack:
            self._folder = Path(stack.enter_context(TemporaryDirectory(prefix="course-grader-"))).resolve()
            self._library = write_library(self._folder / "library")
            self._runner = stack.enter_context(Runner(self.tier, self._library, self._limits))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def judge(self, assignment: Assignment) -> Judge:
        """The judge of an assignment, started when it is first wanted."""
        if assignment.checks not in self._judges:
            self._judges[assignment.checks] = self._stack.enter_context(Judge(assignment.checks))
        return self._judges[assignment.checks]

    def cases(self, assignment: Assignment) -> tuple[Path, dict[str, int]]:
        """The folder of an assignment's cases, made once for a seed, and how many each exercise has.

        The judge is started with it, for it will be wanted.
        """
        self.judge(assignment)
        name = assignment.checks
        if name not in self._cases:
            if not name.startswith("course_lib."):
                add_checks(self._library, name)
            folder = self._folder / "cases" / name
            make = lambda: self.judge(assignment).lay_out(self.seed, folder)
            kept = None if self._cache is None else cases_file(self._cache, assignment, self.seed)
            self._cases[name] = folder, lay_out(kept, folder, make)
        return self._cases[name]

    def grade(self, name: str, path: Path) -> Submission:
        """Grade one notebook. Only an error of ours (a bad solution, no worker, no judge) is raised, as CourseError."""
        start = time.perf_counter()
        if not path.exists():
            return Submission(name, "missing", flags=(f"{path}: there is no such file",))
        try:
            handin = read_handin(path)
            assignment = assignment_of(handin)
        except HandInError as error:
            return Submission(name, "unreadable", flags=(str(error),))
        spliced = splice(assignment, handin)
        problems = list(spliced.notes)
        if handin.release and handin.release != course_of(release(assignment)).get("hash"):
            problems.append("it is of another release of these exercises; it was graded against the present one")
        folder, counts = self.cases(assignment)
        _expect(spliced, counts)
        total = self.total or max(LEAST_TOTAL, CELLS_IN_TOTAL * self.timeout)
        deadline = time.monotonic() + total
        run = self._run_all(spliced, folder, deadline)
        for key in run.late - run.ended.keys():
            run.ended[key] = "late", f"your notebook took more than {total:g} s in all; this was not reached"
        if run.late:
            problems.append(f"it would have taken more than {total:g} s in all, and was stopped")
        verdicts = self._judged(assignment, spliced, run, list(spliced.items))
        problems += run.problems
        flags, items = list(problems), []
        for key, one in spliced.items.items():
            flags += [f"{key}: {note}" for note in one.notes]
            found = _found(assignment, one, run, verdicts[key], self.timeout)
            doubt = None if key in run.ended else contradiction(one, _of(run, key), verdicts[key])
            flags += [f"{key}: {doubt}"] if doubt else []
            if found.status in DOUBTED and others_before(spliced, key) and time.monotonic() < deadline:
                again = self._alone(assignment, spliced, key, folder, run.left_out, deadline)
                if again.status == "passed":
                    flags.append(
                        f"{key}: it failed after other answers and passed in a kernel of its own, which counts"
                    )
                stopped = found.status in ("timeout", "kernel_died") and key not in run.late
                if again.status == "passed" or stopped:
                    found = replace(again, seconds=found.seconds + again.seconds)
            items.append(found)
        seconds = time.perf_counter() - start
        whence = assignment.name, handin.release or "", self.seed, self.tier.name
        doubtful = any(one.doubtful for one in spliced.items.values())
        died = any(item.status == "kernel_died" for item in items)
        status = "graded_with_problems" if problems or doubtful or died else "graded"
        return Submission(name, status, tuple(items), tuple(flags), *whence, seconds)

    def _judged(self, assignment: Assignment, spliced: Spliced, run: Run, keys: list[str]) -> dict[str, dict[str, Any]]:
        """The judge's verdicts on what a run recorded. To be asked before the next run, which empties the records."""
        sources = {key: spliced.searched(key) for key in keys}
        ours = [cell.source for cell in spliced.notebook.cells if facts(cell)["role"] == "ours"]
        return self.judge(assignment).ask(self.seed, run.records, sources, "\n".join(ours))

    def _alone(
        self, assignment: Assignment, spliced: Spliced, key: str, cases: Path, left_out: set[str], deadline: float
    ) -> GradedItem:
        """One exercise in a fresh kernel, with what it builds on."""
        alone, wanted = lonely(spliced, key, left_out)
        run = self._run_all(alone, cases, deadline)
        if key not in run.ended and any(name in run.ended for name in wanted):
            run.ended[key] = next(run.ended[name] for name in wanted if name in run.ended)
        verdict = self._judged(assignment, alone, run, [key])[key]
        return _found(assignment, spliced.items[key], run, verdict, self.timeout)

    def _run_all(self, spliced: Spliced, cases: Path, deadline: float) -> Run:
        def once(notebook: NotebookNode, left: float) -> Ran:
            done = self._runner.run(notebook, cases, self.seed, self.timeout, left)
            if self._observer is not None:
                self._observer(notebook, done)
            return done

        return run_all(spliced, once, self.timeout, deadline)


def _of(run: Run, key: str) -> list[CellResult]:
    return [result for result in run.cells.values() if result.item == key]


def _found(assignment: Assignment, one: SplicedItem, run: Run, verdict: dict[str, Any], timeout: float) -> GradedItem:
    """One exercise's row."""
    item = one.item
    mine = _of(run, item.id)
    hidden = hidden_lines(assignment.notebook.cells[item.check].source)
    status, message, misconception = decide(one, mine, run.ended.get(item.id), verdict, hidden, timeout)
    message = message.encode("utf-8", "replace").decode("utf-8")  # half a character cannot be written anywhere
    message = re.sub(r"StdinNotImplementedError: [^\n]*", "input() cannot be used in graded code", message)
    score = item.points if status == "passed" else 0.0
    case = verdict["case"] if status == "failed" else None
    took = sum(result.seconds for result in mine)
    return GradedItem(
        item.id, item.position, item.title, status, score, item.points, message, misconception, case, took
    )


def _expect(spliced: Spliced, counts: dict[str, int]) -> None:
    """What each check prints while it is graded: that it ran, no verdict. And the line that goes ahead of it."""
    for cell in spliced.notebook.cells:
        about = facts(cell)
        if about["role"] == "check":
            text = ran(about["item"], counts[about["item"]]) + "\n"
            cell.outputs = [new_output("stream", name="stdout", text=text)]
            cell.source = f"{restore.LINE}\n{cell.source}"
