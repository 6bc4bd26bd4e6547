"""Checks 06.2, a resume whose author forgot three things, and 06.3, the drill that finds the first difference."""

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch06_run import (
    PARTS,
    SmallRun,
    first_difference,
    restore,
    snapshot,
    trajectory,
)
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["DRILL", "FORGOTTEN"]

# --- 06.2 three forgotten things --------------------------------------------------------------------------------------

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
    strange: list[str] = []

    def saved(run: SmallRun) -> Any:
        state = save(run)
        strange.extend([_strange(state)] if _strange(state) else [])
        return state

    found = trajectory(lambda: SmallRun(case["seed"]), case["steps"], case["stops"], saved, load)
    return {"weights": torch.stack(found), "strange": strange[:1]}


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
    make = lambda: SmallRun(case["seed"])
    right = trajectory(make, case["steps"])
    got = list(returned["weights"])
    if returned["strange"]:
        return Wrong(
            f"`save` returns a {returned['strange'][0]} object. A file of tensors and a JSON file cannot hold it, only "
            "a pickle can: what does the object say about itself as plain data?",
            "objects-can-be-saved",
        )
    step = first_difference(right, got, SAME)
    if step is None:
        return None
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
                more = " It is not the only thing that is missing." if count > 1 else ""
                return Wrong(where + FORGOTTEN_HINTS[left[0]] + more, FORGOTTEN_IDS[left[0]])
    return Wrong(where + "what does that step use that was not put back as it was?")


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
        "objects-can-be-saved": "whatever Python can copy can be written to a file",
    },
)

# --- 06.3 the drill ---------------------------------------------------------------------------------------------------


def drill_cases(seed: int) -> list[Case]:
    """One fault a case. `left`: a part that the resume leaves out; `bit`: it flips the last bit of one weight."""
    rng = np.random.default_rng([seed, 603])
    stop = int(rng.integers(17, 22))

    def case(
        name: str, left: str = "", stops: Sequence[int] = (stop,), *, bit: bool = False, late: bool = False
    ) -> Case:
        run = int(rng.integers(10**6))
        return {
            "name": name,
            "seed": run,
            "stops": list(stops),
            "steps": stop + 10,
            "left": left,
            "bit": bit,
            "late": late,
        }

    return [
        case("a complete resume"),
        case("a resume without the optimizer", "optimizer"),
        case("a resume without the state of dropout", "generator"),
        case("a resume without the schedule", "scheduler"),
        case("the last bit of one weight is lost", bit=True),
        case("complete once; the second resume loses the data position", "cursor", (9, stop), late=True),
        case("complete, and stopped three times", "", (5, 9, stop)),
    ]


def _flip(run: SmallRun) -> None:
    """The last parameter's first number, one unit in the last place further from zero."""
    with torch.no_grad():
        number = list(run.model.parameters())[-1].view(-1)[:1]
        number.view(torch.int32).add_(1)


def _faulty(case: Case) -> tuple[Callable[[SmallRun], dict[str, Any]], Callable[[SmallRun, dict[str, Any]], None]]:
    """The save and the load of a case. A state that was saved after a resume says so: `late` faults show there."""

    def save(run: SmallRun) -> dict[str, Any]:
        return {**snapshot(run), "resumed": getattr(run, "resumed", 0)}

    def load(run: SmallRun, saved: dict[str, Any]) -> None:
        hit = not case["late"] or saved["resumed"] > 0
        restore(run, saved, [part for part in PARTS if not (hit and part == case["left"])])
        run.resumed = saved["resumed"] + 1  # type: ignore[attr-defined]
        if case["bit"] and hit:
            _flip(run)

    return save, load


def drill_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    save, load = _faulty(case)
    value = answer(lambda: SmallRun(case["seed"]), save, load, list(case["stops"]), case["steps"])
    if value is None or isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return {"first": None, "type": type(value).__name__}
    return {"first": int(value), "type": "int"}


def drill_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: a number of steps. Oracle: a drill of the judge's own, which compares every bit after every step."""
    make = lambda: SmallRun(case["seed"])
    save, load = _faulty(case)
    whole = trajectory(make, case["steps"])
    resumed = trajectory(make, case["steps"], case["stops"], save, load)
    right, got = first_difference(whole, resumed), returned["first"]
    if returned["type"] not in ("int", "NoneType"):
        return Wrong(f"return a whole number of steps, or None; yours is a {returned['type']}")
    if got == right:
        return None
    if right is None:
        message = f"you found a difference after {got} steps, and there is none"
        return Wrong(message + ". Are both runs made anew, and is the save taken between two steps?")
    if got is None:
        if case["bit"]:
            message = "you found nothing, but one weight is not what it was, by its last bit. With what do you compare?"
            return Wrong(message, "nearly-is-equal")
        if case["late"]:
            message = "you found nothing. This one survives a first resume; how often does your drill stop the run?"
            return Wrong(message, "once-is-enough")
        message = (
            "you found nothing, although a part was not put back. What was in the run into which you loaded: "
            "was it as after a crash, with nothing left of the old process?"
        )
        return Wrong(message, "resumes-in-place")
    if case["bit"] and got == case["steps"]:
        message = "one weight is wrong right after the load. With what, and when, do you compare?"
        return Wrong(message, "compares-the-end")
    if got == case["steps"]:
        message = f"you say {got} steps, the end of the run. When did it begin?"
        return Wrong(message, "compares-the-end")
    if got == right + 1:
        message = f"you say {got} steps: one too late. Do you compare losses? Which weights gave the loss of a step?"
        return Wrong(message, "losses-are-the-state")
    if got == right - 1:
        message = f"you say {got} steps: one too early. How many steps are done right after the load?"
        return Wrong(message, "counts-from-the-step")
    if case["late"] and got > right:
        message = f"you say {got} steps, and it is too late. After the second resume, which batch came first?"
        return Wrong(message)
    return Wrong(f"you say {got} steps. {'The runs are still equal then' if got < right else 'They differ earlier'}")


DRILL = Exercise(
    id="first-difference",
    title="The drill, on your own code",
    cases=drill_cases,
    run=drill_run,
    judge=drill_judge,
    forbidden=("snapshot", "restore", "trajectory", "first_difference"),
    misconceptions={
        "nearly-is-equal": "two runs that agree to a few digits are the same run",
        "resumes-in-place": "loading into the process that saved tests a resume",
        "once-is-enough": "a run that resumes once resumes always",
        "compares-the-end": "the end of the run says when it went wrong",
        "losses-are-the-state": "equal losses mean equal weights",
        "counts-from-the-step": "the weights after a step belong to the step's number",
    },
)
