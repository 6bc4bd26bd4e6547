"""The parts of a check: `cases` makes the inputs, `run` is the only place where learner code runs, `judge` decides.

In a notebook the three run in a row, and `check("unequal-tokens", accumulate)` prints one line or raises `CheckFailed`
with one line. In grading (`COURSE_GRADE_DIR` is set) only `run` does: cases come as data from the grader
(`COURSE_CASES_DIR`), what `run` returned leaves the kernel as data, and the grader calls `judge_record` in a process of
its own, on cases that it made itself. In both, `judge` sees what went through `pack` and `unpack`.
"""

import copy
import os
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from course_lib.checks.asking import ASKED, CheckFailed, WrongForm, ask, came, kind, variant_of
from course_lib.checks.forbidden import forbidden_in_answer, forbidden_in_source, way_round
from course_lib.checks.guard import explain, is_stub, out_of_time, short, steady
from course_lib.checks.packing import MAX_BYTES, PackError, pack, read_packed, unpack, write_packed

__all__ = [
    "MAX_BYTES",
    "NOT_ATTEMPTED",
    "PASSED",
    "Case",
    "Check",
    "CheckFailed",
    "Exercise",
    "Outcome",
    "PackError",
    "Wrong",
    "WrongForm",
    "ask",
    "came",
    "evaluate",
    "forbidden_in_answer",
    "forbidden_in_source",
    "judge_record",
    "kind",
    "make_check",
    "pack",
    "ran",
    "read_packed",
    "unpack",
    "variant_of",
    "variant_rng",
    "withheld",
    "write_packed",
]

NOT_ATTEMPTED = "not attempted yet: write your answer, and delete every line `raise NotImplementedError()`"

PASSED: set[str] = set()
"""Ids of the exercises that have passed in this session; the hint button then offers the reference."""

CHANGED = "your code changed what it was given, and its caller still needs that: work on a copy"

Case = dict[str, Any]
"""One case: `name` (a few words, shown to the learner) and the inputs, all of it plain data."""


@dataclass(frozen=True)
class Wrong:
    """A judge's "no": what is wrong with what came back (never the answer), and the misconception that it smells of.

    `form`: it is the answer's form that is wrong (a missing key, a text for a number), which costs no variant.
    """

    message: str
    misconception: str | None = None
    form: bool = False


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    cases(seed) -> list of cases, the same for the same seed, with the same names for every seed.
    run(answer, case) -> plain data; gets its own copy of the case. No judging here, but it may raise WrongForm.
    judge(case, returned) -> None when right, else Wrong. Its oracle is independent of `course_lib`'s implementation;
    the reason for its tolerance stands in its docstring.
    forbidden: names the answer may not call (see `course_lib.checks.forbidden`).
    of_judge: keys of a case that `judge` alone gets, such as the right answer.
    in_place: the answer is meant to change what it is given; elsewhere that fails.
    misconceptions: id -> one sentence that says what the learner believes.
    """

    id: str
    title: str
    cases: Callable[[int], list[Case]]
    run: Callable[[Any, Case], Any]
    judge: Callable[[Case, Any], Wrong | None]
    forbidden: tuple[str, ...] = ()
    of_judge: tuple[str, ...] = ()
    in_place: bool = False
    misconceptions: Mapping[str, str] = field(default_factory=dict)

    def given(self, case: Case) -> Case:
        """What learner code gets of a case."""
        return {key: value for key, value in case.items() if key not in self.of_judge}


@dataclass(frozen=True)
class Outcome:
    """What became of an answer: status `passed`, `failed` or `not_attempted`, the line that says so, and where."""

    status: str
    line: str
    misconception: str | None = None
    case: int | None = None
    message: str = ""
    form: bool = False


def variant_rng(exercise: str, variant: int) -> np.random.Generator:
    """The numbers of variant `variant` of a reasoning exercise: the same on every machine, others for every variant."""
    return np.random.default_rng(list(sha256(f"{exercise}/{int(variant)}".encode()).digest()))


def withheld(*_: Any) -> Any:
    """What stands for `cases` and `judge` in the library that learner code sees while it is graded."""
    raise RuntimeError("this part of a check is not here while you are graded; the grader has it")


def evaluate(exercise: Exercise, answer: Any, seed: int = 0) -> Outcome:
    """Cases, run and judge in a row, in this process. Stops at the first case that is wrong. Raises nothing."""
    return _evaluate(exercise, answer, exercise.cases(seed), None)


def judge_record(exercise: Exercise, record: Any, seed: int) -> Outcome:
    """Judge what left the kernel (a record as `Check` writes it), on cases made here. Runs no learner code."""
    cases = exercise.cases(seed)
    try:
        if record["exercise"] != exercise.id or record["seed"] != seed or len(record["cases"]) != len(cases):
            raise ValueError("it is of another exercise, seed or number of cases")
        if record["stopped"]:
            status, message = str(record["stopped"][0]), str(record["stopped"][1])
            status = status if status in ("failed", "not_attempted") else "failed"
            return Outcome(status, f"{exercise.id}: {message}", message=message)
        for number, (case, entry) in enumerate(zip(cases, record["cases"], strict=True), start=1):
            wrong = Wrong(str(entry["error"])) if "error" in entry else _judge(exercise, case, entry["value"])
            if wrong is not None:
                return _failed(exercise, cases, number, wrong)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        message = f"what the check recorded cannot be judged: {error}"
        return Outcome("failed", f"{exercise.id}: {message}", message=message)
    return _passed(exercise, cases)


class Check:
    """What a check cell calls: `check("unequal-tokens", accumulate)`."""

    def __init__(self, chapter: str, exercises: list[Exercise]) -> None:
        self.chapter = chapter
        self.exercises = {exercise.id: exercise for exercise in exercises}
        self._wrong: dict[str, list[str]] = defaultdict(list)
        self._due: dict[str, int] = defaultdict(int)
        if len(self.exercises) != len(exercises):
            raise ValueError(f"chapter {chapter} has two exercises with one id")

    def __call__(self, exercise: str, answer: Any) -> None:
        """Print `ID: passed, 5 cases`, or raise CheckFailed with one line."""
        if exercise not in self.exercises:
            raise CheckFailed(
                f"chapter {self.chapter} has no exercise {exercise!r}; it has {', '.join(self.exercises)}"
            )
        entry, seed = self.exercises[exercise], int(os.environ.get("COURSE_CHECK_SEED", "0"))
        folder = os.environ.get("COURSE_GRADE_DIR")
        variant, due, asked = _variant(answer), self._due[exercise], ASKED.get(exercise)
        if variant is not None and not folder and not _blank(answer):
            if variant < due:
                raise CheckFailed(f"{exercise}: the numbers have changed. {_next_variant(due)}")
            if asked not in (None, variant):
                raise CheckFailed(
                    f'{exercise}: the question cell last showed variant {asked}, the answer says "variant": {variant}. '
                    "Set both to the same number, and answer the numbers of that variant"
                )
        if folder:
            print(_graded(entry, answer, seed, Path(folder)))
            return
        outcome = _evaluate(entry, answer, entry.cases(seed), None)
        if outcome.status == "passed":
            PASSED.add(exercise)
            print(outcome.line)
            return
        line = outcome.line
        if variant is not None and outcome.status == "failed" and not outcome.form:
            wrong = self._wrong[exercise]
            choice = repr({key: value for key, value in answer.items() if key != "evidence"})
            if choice not in wrong:  # the same cell again, or the same choice with other evidence, is one try
                wrong.append(choice)
            if len(wrong) == 2:
                wrong.clear()
                self._due[exercise] = variant + 1
                line += f"\nThat was the second wrong answer, so the numbers change. {_next_variant(variant + 1)}"
        raise CheckFailed(line)


def _graded(exercise: Exercise, answer: Any, seed: int, folder: Path) -> str:
    """Run the cases that the grader laid out, and leave what came back; the line to print. Raises CheckFailed."""
    given = os.environ.get("COURSE_CASES_DIR")
    cases = read_packed(Path(given) / exercise.id) if given else exercise.cases(seed)
    record: dict[str, Any] = {"exercise": exercise.id, "seed": seed, "stopped": None, "cases": []}
    outcome = _evaluate(exercise, answer, cases, record)
    _write_record(folder / exercise.id, record, len(cases))
    if outcome.status != "passed":
        raise CheckFailed(outcome.line)
    return ran(exercise.id, len(cases))


def ran(exercise: str, cases: int) -> str:
    """The line that a check prints while it is graded: no verdict, for its judge is elsewhere."""
    return f"{exercise}: ran {cases} {'case' if cases == 1 else 'cases'}"


def make_check(chapter: str, exercises: list[Exercise]) -> Check:
    """The `check` of a chapter, such as `check = make_check("03", EXERCISES)` at the end of `ch03.py`."""
    return Check(chapter, exercises)


def _next_variant(number: int) -> str:
    return (
        f'Write variant={number} in the question cell and run it, and "variant": {number} in your answer, '
        "which has to fit the new numbers"
    )


def _variant(answer: Any) -> int | None:
    """The variant of an answer that has one in the right form, else None."""
    try:
        return variant_of(answer)
    except WrongForm:
        return None


def _blank(answer: Any) -> bool:
    """Whether nothing was filled in: None, `...`, or a dict in which every value but the variant is."""
    if isinstance(answer, dict):
        values = [value for key, value in answer.items() if key != "variant"]
        return bool(values) and all(value is None or value is ... for value in values)
    return answer is None or answer is ...


def _evaluate(exercise: Exercise, answer: Any, cases: list[Case], record: dict[str, Any] | None) -> Outcome:
    """Run and judge the cases, up to the first wrong one. With a record every case is run and kept, up to one that
    takes too long, and none is judged."""

    def stop(status: str, message: str) -> Outcome:
        if record is not None:
            record["stopped"] = [status, message]
        return Outcome(status, f"{exercise.id}: {message}", message=message)

    if _blank(answer):
        return stop("not_attempted", NOT_ATTEMPTED)
    name = forbidden_in_answer(answer, exercise.forbidden)
    if name:
        return stop("failed", f"`{name}` does this exercise's work: write it yourself")
    name = way_round(answer) if exercise.forbidden else None
    if name:
        return stop("failed", f"`{name}` reaches what this exercise may not call: write it without")
    first: Outcome | None = None
    for number, case in enumerate(cases, start=1):
        try:
            given = copy.deepcopy(exercise.given(case))
            with steady(quiet=record is not None):
                returned = exercise.run(answer, given)
            tree, arrays = pack(returned)
            returned = unpack(tree, arrays)
            changed = not exercise.in_place and not _same(given, exercise.given(case))
        except (Exception, SystemExit) as error:
            over = out_of_time(error)
            if is_stub(error):
                return stop("not_attempted", NOT_ATTEMPTED)
            form = isinstance(error, WrongForm)
            text = str(error) if form else explain(error)
            wrong: Wrong | None = Wrong(text, form=form)
            entry = {"error": text}
        else:
            over = False
            entry = {"error": CHANGED} if changed else {"value": returned}
            wrong = Wrong(CHANGED) if changed else None if record is not None else _judge(exercise, case, returned)
        if record is not None:
            record["cases"].append(entry)
        if wrong is not None and first is None:
            first = _failed(exercise, cases, number, wrong)
            if record is None:
                break
        if over:  # a loop without end would use up the time of the cell, and nothing would be recorded
            break
    return first or _passed(exercise, cases)


def _same(one: Case, other: Case) -> bool:
    """Whether two cases hold the same data, bit for bit."""
    try:
        (tree, arrays), (tree2, arrays2) = pack(one), pack(other)
    except PackError:
        return False
    bits = [{key: (a.dtype, a.shape, a.tobytes()) for key, a in found.items()} for found in (arrays, arrays2)]
    return repr(tree) == repr(tree2) and bits[0] == bits[1]


def _complex(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(_complex, value.values()))
    if isinstance(value, list | tuple | set):
        return any(map(_complex, value))
    return isinstance(value, complex) or (hasattr(value, "is_complex") and bool(value.is_complex()))


def _judge(exercise: Exercise, case: Case, returned: Any) -> Wrong | None:
    if _complex(returned):  # most comparisons would drop the imaginary part
        return Wrong("complex numbers came back; real ones are wanted")
    try:
        return exercise.judge(case, returned)
    except Exception as error:
        return Wrong(
            f"what came back cannot be judged ({type(error).__name__}: {short(error)}); check its type and shape"
        )


def _passed(exercise: Exercise, cases: list[Case]) -> Outcome:
    return Outcome("passed", f"{exercise.id}: passed, {len(cases)} {'case' if len(cases) == 1 else 'cases'}")


def _failed(exercise: Exercise, cases: list[Case], number: int, wrong: Wrong) -> Outcome:
    where = f"case {number} of {len(cases)} ({cases[number - 1]['name']})" if len(cases) > 1 else str(cases[0]["name"])
    smell = f" [{wrong.misconception}]" if wrong.misconception else ""
    line = f"{exercise.id}: {where}: {wrong.message}{smell}"
    return Outcome("failed", line, wrong.misconception, number, wrong.message, wrong.form)


def _write_record(stem: Path, record: dict[str, Any], number: int) -> None:
    record["cases"] += [{"error": "was not run"}] * (number - len(record["cases"]))
    try:
        write_packed(stem, record)
    except PackError as error:
        record.update(cases=[{"error": f"your code {error}"}] * number)
        write_packed(stem, record)
