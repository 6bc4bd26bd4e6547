"""Records that no right answer leaves: no judge calls one of them right, and none ends on it.

A right record is taken, as it comes out of a kernel, and made odd: every float not a number, arrays of another shape or
kind, nothing where there was something. What has the same shape and the same numbers is the same answer, though.
"""

import copy
import math
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np
import pytest
import torch
from mutants import chapters, exercises, references

from course_lib.checks.core import Exercise, judge_record, pack, unpack
from course_lib.checks.guard import steady
from course_lib.grading.grade import GRADING_SEED
from course_lib.machine import material_dir

EXERCISES = [(chapter, exercise) for chapter in chapters() for exercise in exercises(chapter).values()]
SECONDS = 12.0
"""For an exercise: some judges run a model, and take a tenth of a second for a record."""

ONLY_WHEN_WRONG = {"first-difference": ("numbers nan", "numbers inf")}
"""The answer "None" holds no number; what its runs wrote down is read for the message when it is wrong."""

Odd = Callable[[Any], Any]


def is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | torch.Tensor)


def size(value: Any) -> int:
    return int(value.size if isinstance(value, np.ndarray) else value.numel())


def full(value: Any, number: float) -> Any:
    """As `value`, but every number is this one; whole numbers become floats."""
    if isinstance(value, torch.Tensor):
        return torch.full(value.shape, number, dtype=value.dtype if value.is_floating_point() else torch.float64)
    if isinstance(value, np.ndarray | np.generic):
        kind = value.dtype if value.dtype.kind == "f" else np.float64
        return np.full(value.shape, number, kind)[() if isinstance(value, np.generic) else ...]
    return number


def floats(number: float) -> Odd:
    def odd(value: Any) -> Any:
        kinds = isinstance(value, float | np.floating) or (isinstance(value, np.ndarray) and value.dtype.kind == "f")
        kinds = kinds or (isinstance(value, torch.Tensor) and value.is_floating_point())
        return full(value, number) if kinds else value

    return odd


def numbers(number: float) -> Odd:
    def odd(value: Any) -> Any:
        wanted = isinstance(value, int | float | np.number) and not isinstance(value, bool)
        return full(value, number) if wanted or is_array(value) else value

    return odd


def arrays(change: Odd) -> Odd:
    return lambda value: change(value) if is_array(value) and size(value) else value


def last_nan(value: Any) -> Any:
    other = full(value, 0.0)
    other[...] = value if isinstance(value, np.ndarray) else value.to(other.dtype)
    other.reshape(-1)[-1] = math.nan
    return other


def flat(value: Any) -> Any:
    return value.reshape(-1) if value.ndim > 1 else value.reshape(-1, 1)


def whole(value: Any) -> Any:
    return value.astype(np.int64) if isinstance(value, np.ndarray) else value.to(torch.int64)


EVERYWHERE: dict[str, Odd] = {
    "floats nan": floats(math.nan),
    "floats inf": floats(math.inf),
    "floats -inf": floats(-math.inf),
    "numbers nan": numbers(math.nan),
    "numbers inf": numbers(math.inf),
    "last of each array nan": arrays(last_nan),
    "an axis more": arrays(lambda value: value[None]),
    "flat": arrays(flat),
    "empty arrays": arrays(lambda value: value.reshape(-1)[:0]),
    "no row": arrays(lambda value: value[:0] if value.ndim else value.reshape(-1)[:0]),
    "first alone": arrays(lambda value: value.reshape(-1)[:1]),
    "whole numbers": arrays(whole),
    "truths": arrays(lambda value: value.astype(bool) if isinstance(value, np.ndarray) else value.bool()),
    "complex": lambda value: value.to(torch.complex64) if isinstance(value, torch.Tensor) else value,
    "lists for arrays": arrays(lambda value: value.tolist()),
    "floats as text": lambda value: str(value) if type(value) is float else value,
}
"""What is done to every part of a record at once."""

INSTEAD: dict[str, Any] = {
    "nothing": None,
    "a text": "x",
    "an empty text": "",
    "true": True,
    "nan": math.nan,
    "inf": math.inf,
    "a large number": 10**400,
    "an empty list": [],
    "an empty dict": {},
    "an empty set": set(),
    "nested": [[[1.0]]],
    "an empty array": np.zeros(0),
    "an empty tensor": torch.zeros(0),
    "a tensor nan": torch.tensor(math.nan),
}
"""What stands for the whole record of a case, and for every part of it."""


def everywhere(value: Any, odd: Odd) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(everywhere(one, odd) for one in value)
    if isinstance(value, dict):
        return {key: everywhere(one, odd) for key, one in value.items()}
    return odd(value)


def always(instead: Any) -> Odd:
    return lambda _: instead


def odd_ones(value: Any) -> Iterator[tuple[str, Any]]:
    for name, odd in EVERYWHERE.items():
        yield name, everywhere(value, odd)
    for name, instead in INSTEAD.items():
        yield name, instead
        yield f"{name} in every part", everywhere(value, always(instead))


def equal(one: Any, other: Any) -> bool:
    """Whether two records say the same: a number of another kind is the same number."""
    if is_array(one) or is_array(other):
        try:
            first, second = (np.asarray(x.double() if isinstance(x, torch.Tensor) else x, float) for x in (one, other))
        except (TypeError, ValueError, OverflowError):
            return False
        return first.shape == second.shape and bool(np.array_equal(first, second))
    if isinstance(one, list | tuple):
        same = isinstance(other, list | tuple) and len(one) == len(other)
        return same and all(map(equal, one, other))
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(equal(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)


REFERENCES: dict[str, dict[str, Any]] = {}


def reference(chapter: str) -> dict[str, Any]:
    if chapter not in REFERENCES:
        REFERENCES.clear()
        REFERENCES[chapter] = references(chapter, material_dir() / "solutions")
    return REFERENCES[chapter]


def through_files(value: Any) -> Any:
    return unpack(*pack(value))


@pytest.mark.slow
@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES, ids=[exercise.id for _, exercise in EXERCISES])
def test_no_judge_calls_an_odd_record_right(chapter: str, exercise: Exercise) -> None:
    answer = reference(chapter)[exercise.id]
    cases = exercise.cases(GRADING_SEED)
    alone = [Alone(exercise, case) for case in cases]
    values = [one.returned(answer) for one in alone]
    assert {one.status(value) for one, value in zip(alone, values, strict=True)} == {"passed"}
    passed = []
    end = time.monotonic() + SECONDS
    everything = [odd_ones(value) for value in values]
    for ones in zip_longest(*everything):  # of each case the first, then of each the second
        for one, value, odd in zip(alone, values, ones, strict=True):
            if odd is not None and time.monotonic() < end:
                name, found = odd[0], through_files(odd[1])
                if name in ONLY_WHEN_WRONG.get(exercise.id, ()) and value["first"] is None:
                    continue
                if not equal(found, value) and one.status(found) == "passed":
                    passed.append(f"{one.case['name']}: {name}")
    assert not passed, f"{len(passed)} odd records are called right, such as {passed[:20]}"


class Alone:
    """An exercise that has one case."""

    def __init__(self, exercise: Exercise, case: dict[str, Any]) -> None:
        self.case = case
        self.exercise = Exercise(
            exercise.id, exercise.title, lambda seed: [copy.deepcopy(case)], exercise.run, exercise.judge
        )

    def returned(self, answer: Any) -> Any:
        with steady(quiet=True):
            return through_files(self.exercise.run(answer, copy.deepcopy(self.case)))

    def status(self, value: Any) -> str:
        record = {"exercise": self.exercise.id, "seed": 0, "stopped": None, "cases": [{"value": value}]}
        outcome = judge_record(self.exercise, record, 0)
        assert outcome.status in ("passed", "failed") and outcome.line
        return outcome.status
