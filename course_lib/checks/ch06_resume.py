"""Check 06.2, a resume whose author forgot three things."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch06_run import (
    PARTS,
    SmallRun,
    alike,
    first_difference,
    restore,
    snapshot,
    trajectory,
)
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["FORGOTTEN"]

SAME = 1e-6
"""Two processes may differ in a last bit; whatever is left out moves a weight by more than a thousand times this."""


def _skipped(seed: int) -> int:
    """Steps done when the first update has been left out."""
    run = SmallRun(seed)
    for done in range(1, 80):
        scale = run.scaler.get_scale()
        run.step()
        if run.scaler.get_scale() < scale and done > 1:
            return done
    return 40


def forgotten_cases(seed: int) -> list[Case]:
    """Stops before and after the end of warm-up, between two doublings of the scale, after a skipped update, twice."""
    numbers = [int(n) for n in np.random.default_rng([seed, 602]).integers(0, 10**6, 4)]

    def case(name: str, number: int, stops: list[int], more: int) -> Case:
        return {"name": name, "seed": number, "stops": stops, "steps": stops[-1] + more}

    late = _skipped(numbers[2])
    return [
        case("stopped after 18 steps, then 16 more", numbers[0], [18], 16),
        case("stopped during warm-up, then 30 more", numbers[1], [3], 30),
        case("stopped two steps after a skipped update", numbers[2], [late + 2], 16),
        case("stopped twice, after 10 and after 18 steps", numbers[3], [10, 18], 16),
    ]


def forgotten_run(answer: Mapping[str, Callable[..., Any]], case: Case) -> dict[str, Any]:
    save, load = answer["save"], answer["load"]
    numbers = 0

    def saved(run: SmallRun) -> Any:
        nonlocal numbers
        before = snapshot(run)
        state = save(run)
        if state is None or _strange(state):
            raise _Refused({"refused": "nothing" if state is None else _strange(state)})
        if not alike(before, snapshot(run)):
            raise _Refused({"changed": True})
        numbers = _numbers(state)
        return state

    try:
        found = trajectory(lambda: SmallRun(case["seed"]), case["steps"], case["stops"], saved, load)
    except _Refused as stopped:
        return stopped.what
    return {"weights": torch.stack(found), "numbers": numbers}


class _Refused(Exception):
    """What `save` returned cannot be loaded by anyone."""

    def __init__(self, what: dict[str, Any]) -> None:
        super().__init__("refused")
        self.what = what


def _numbers(value: Any) -> int:
    """About how many numbers a saved state holds; four letters of a text count as one."""
    if isinstance(value, Tensor):
        return value.numel()
    if isinstance(value, Mapping):
        return sum(map(_numbers, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(_numbers, value))
    return len(value) // 4 if isinstance(value, str) else 1


def _strange(value: Any) -> str:
    """The type of the first thing in a saved state that neither safetensors nor JSON can hold, or ""."""
    if isinstance(value, Mapping):
        return next((found for one in value.values() if (found := _strange(one))), "")
    if isinstance(value, (list, tuple)):
        return next((found for one in value if (found := _strange(one))), "")
    return "" if value is None or isinstance(value, (bool, int, float, str, Tensor)) else type(value).__name__


def _counts_batches(run: SmallRun, saved: dict[str, Any]) -> None:
    restore(run, saved, [part for part in PARTS if part != "scheduler"])
    run.scheduler.last_epoch = saved["cursor"]


def _scale_alone(run: SmallRun, saved: dict[str, Any]) -> None:
    state = {**saved["scaler"], "_growth_tracker": 0}
    restore(run, {**saved, "scaler": state})


FORGOTTEN_HINTS = {
    "model": "the weights are wrong before the first step is taken",
    "cursor": "the first step after the resume learns from other rows than it should",
    "generator": (
        "the first step after the resume has the right weights and the right rows, and still another loss. "
        "What else goes into a forward pass?"
    ),
    "optimizer": "the first step after the resume has the right gradient and takes another update",
    "scheduler": (
        "the first update after the resume is right, a later one has the wrong length. "
        "What is prepared at the end of a step for the next one?"
    ),
    "scaler": (
        "many steps are right; then one of the two runs leaves out an update and the other does not. "
        "What decides that a step is skipped?"
    ),
}
FORGOTTEN_IDS = {
    "generator": "random-state-is-a-seed",
    "scheduler": "the-optimizer-knows-the-rate",
    "scaler": "a-scale-finds-itself",
    "optimizer": "weights-are-the-state",
    "cursor": "data-order-does-not-matter",
    "model": "weights-are-the-state",
}


def forgotten_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-6 in every weight after every step (see SAME). Oracle: the same run, never stopped."""
    wrong = _wrong_save(returned)
    if wrong is not None:
        return wrong
    make = lambda: SmallRun(case["seed"])
    right = trajectory(make, case["steps"])
    got = list(returned["weights"])
    step = first_difference(right, got, SAME)
    if step is None:
        return _too_little(returned["numbers"], right[0].numel())
    where = f"the weights first differ {_after(step, case['stops'])}: "

    def gives(load: Callable[..., Any]) -> bool:
        return first_difference(trajectory(make, case["steps"], case["stops"], load=load), got, SAME) is None

    if gives(_counts_batches):
        message = "the schedule is ahead. At which steps does it not move?"
        return Wrong(where + message, "the-schedule-counts-batches")
    if gives(_scale_alone):
        message = "the scale is right and doubles at the wrong step. What else does the scaler count?"
        return Wrong(where + message, "a-scale-is-one-number")
    for count in range(1, len(PARTS) + 1):
        for left in combinations(("model", "cursor", "generator", "optimizer", "scheduler", "scaler"), count):
            kept = [part for part in PARTS if part not in left]
            if gives(lambda run, saved, kept=kept: restore(run, saved, kept)):
                hint = FORGOTTEN_HINTS[left[0]]
                if count > 1:
                    hint += f"{'' if hint.endswith('?') else '.'} It is not the only thing that is missing."
                return Wrong(where + hint, FORGOTTEN_IDS[left[0]])
    return Wrong(where + "what does that step use that was not put back as it was?")


def _wrong_save(returned: dict[str, Any]) -> Wrong | None:
    kind = returned.get("refused", "")
    if kind == "nothing":
        return Wrong("`save` gave back nothing. Does it end in a `return`?", form=True)
    if kind in ("method", "builtin_function_or_method", "function"):
        return Wrong("`save` returns a method, not what the method gives: are its brackets missing?", form=True)
    if kind:
        return Wrong(
            f"`save` returns a {kind} object. A file of tensors and a JSON file cannot hold it, only a pickle can: "
            "what does the object say about itself as plain data?",
            "objects-can-be-saved",
        )
    if "changed" in returned:
        return Wrong("`save` changed the run that it saved. A run is saved many times, and goes on after each")
    return None


def _too_little(numbers: int, weights: int) -> Wrong | None:
    if numbers >= weights:
        return None
    message = (
        f"what `save` returned holds {numbers} numbers, and the weights alone are {weights}. A new process has what "
        "was returned, and nothing that you kept beside it"
    )
    return Wrong(message, "memory-outlives-the-process")


def _after(step: int, stops: Sequence[int]) -> str:
    last = max(stop for stop in stops if stop <= step) if any(stop <= step for stop in stops) else 0
    count = step - last
    return "right after the load" if count == 0 else f"{count} step{'s' if count > 1 else ''} after the resume"


FORGOTTEN = Exercise(
    id="three-forgotten",
    title="A resume whose author forgot three things",
    cases=forgotten_cases,
    run=forgotten_run,
    judge=forgotten_judge,
    forbidden=("snapshot", "restore"),
    misconceptions={
        "random-state-is-a-seed": "the seed is enough: random numbers need no state",
        "the-optimizer-knows-the-rate": "the learning rate comes back with the optimizer",
        "a-scale-finds-itself": "the loss scale need not be saved, it finds its value again",
        "a-scale-is-one-number": "the scale is all that the scaler remembers",
        "the-schedule-counts-batches": "the schedule moves once a batch, skipped updates too",
        "weights-are-the-state": "the weights are what training has reached",
        "data-order-does-not-matter": "it does not matter which batch comes next",
        "memory-outlives-the-process": "what a program keeps in memory is there after a restart",
        "objects-can-be-saved": "whatever Python can copy can be written to a file",
    },
)
