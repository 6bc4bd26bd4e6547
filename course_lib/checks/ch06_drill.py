"""Check 06.3, the drill that finds the first difference between a run and its resumed twin.

The runs that the answer gets write down when they are saved and into what is loaded, so that the judge can tell a drill
that never resumed from one that compared too little.
"""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch06_run import PARTS, SmallRun, first_difference, restore, snapshot, trajectory
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["DRILL"]


class Watched(SmallRun):
    """A small run that knows how many steps it took itself, and how many are done in all, over its resumes."""

    taken = done = resumed = 0

    def step(self) -> float:
        self.taken, self.done = self.taken + 1, self.done + 1
        return super().step()


def drill_cases(seed: int) -> list[Case]:
    """One fault a case. `left`: a part that the resume leaves out; `fault`: what the load does to a weight.

    `late`: the first resume is without fault.
    """
    rng = np.random.default_rng([seed, 603])
    stop, soon = int(rng.integers(17, 22)), int(rng.integers(7, 10))

    def case(
        name: str,
        left: str = "",
        stops: Sequence[int] = (stop,),
        *,
        fault: str = "",
        late: bool = False,
        more: int = 10,
        shows: int = 0,
    ) -> Case:
        """`more` steps after the last stop; the difference `shows` so many steps after it, where that matters."""
        while True:
            one = {"name": name, "seed": int(rng.integers(10**6)), "stops": list(stops), "steps": stops[-1] + more}
            one |= {"left": left, "fault": fault, "late": late}
            fits = not shows or _right({**one, "steps": stops[-1] + shows}) == stops[-1] + shows
            if fits and (fault != "small bit" or _small(one)):
                return one

    return [
        case("a complete resume"),
        case("a resume without the optimizer", "optimizer"),
        case("a resume without the state of dropout", "generator"),
        case("a resume without the schedule", "scheduler"),
        case("the last bit of one weight is lost", "", (soon,), fault="bit", more=5),
        case("the last bit of another weight is lost", "", (soon,), fault="small bit", more=5),
        case("two weights have changed places", "", (soon,), fault="exchange", more=5),
        case("complete once; the second resume loses the data position", "cursor", (9, stop), late=True),
        case("complete, and stopped three times", "", (3, 5, soon)),
        case("no optimizer, and one step more", "optimizer", (soon,), more=1, shows=1),
        case("no schedule, and one step more", "scheduler", (soon,), more=1, shows=2),
        case("complete once; a bit is lost at the second stop, the end", "", (5, soon), fault="bit", late=True, more=0),
    ]


def _small(case: Case) -> bool:
    """At the stop the smallest number of the matrices has a last bit of less than 1e-9."""
    run = SmallRun(case["seed"])
    for _ in range(case["stops"][-1]):
        run.step()
    return 0 < float(_smallest(run.model).detach().abs()) < 2**-6


@torch.no_grad()
def _smallest(model: torch.nn.Module) -> Tensor:
    """The smallest number of the matrices, as a view of one number."""
    rows = [p.view(-1) for p in model.parameters() if p.dim() > 1]
    row = min(rows, key=lambda row: float(row.abs().min()))
    where = int(row.abs().argmin())
    return row[where : where + 1]


@torch.no_grad()
def _harm(model: torch.nn.Module, fault: str) -> None:
    """What a faulty load does: a last bit of the last tensor or of the smallest number, or two numbers exchanged."""
    tensors = list(model.parameters())
    first, last = tensors[0].view(-1), tensors[-1].view(-1)
    if fault == "exchange":
        one, other = _unseen_pair(first)
        first[[one, other]] = first[[other, one]]
    else:
        number = _smallest(model) if fault == "small bit" else last[:1]
        number.view(torch.int32).add_(1)


def _unseen_pair(vector: Tensor) -> tuple[int, int]:
    """Two different numbers whose exchange leaves the rounded sum as it is, where there are such."""
    for one, other in combinations(range(len(vector)), 2):
        changed = vector.clone()
        changed[[one, other]] = changed[[other, one]]
        if vector[one] != vector[other] and changed.sum() == vector.sum():
            return one, other
    return 0, 1


def _faulty(case: Case, log: dict[str, Any]) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """The save and the load of a case. A state that was saved after a resume says so: `late` faults show there."""

    def save(run: Watched) -> dict[str, Any]:
        log["saves"].append([run.done, run.resumed])
        return {**snapshot(run), "resumed": run.resumed, "done": run.done}

    def load(run: Watched, saved: dict[str, Any]) -> None:
        log["loads"].append(run.taken)
        hit = not case["late"] or saved["resumed"] > 0
        restore(run, saved, [part for part in PARTS if not (hit and part == case["left"])])
        run.resumed, run.done = saved["resumed"] + 1, saved["done"]
        if case["fault"] and hit:
            _harm(run.model, case["fault"])

    return save, load


def _right(case: Case) -> int | None:
    make = lambda: Watched(case["seed"])
    save, load = _faulty(case, {"saves": [], "loads": []})
    whole = trajectory(make, case["steps"])
    return first_difference(whole, trajectory(make, case["steps"], case["stops"], save, load))


def drill_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    log: dict[str, Any] = {"saves": [], "loads": []}
    save, load = _faulty(case, log)
    value = answer(lambda: Watched(case["seed"]), save, load, list(case["stops"]), case["steps"])
    if value is None or isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return {"first": None, "type": type(value).__name__, **log}
    return {"first": int(value), "type": "int", **log}


def drill_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: a number of steps. Oracle: a drill of the judge's own, which compares every bit after every step."""
    if returned["type"] not in ("int", "NoneType"):
        return Wrong(f"return a whole number of steps, or None; yours is a {returned['type']}")
    right, got = _right(case), returned["first"]
    if got == right:
        return None
    if got is not None and got > case["steps"]:
        return Wrong(f"you say {got} steps; only {case['steps']} were to be done. Does a run take one too many?")
    if got is None and not returned["loads"]:
        return Wrong("you found nothing (or nothing came back), and `load` was never called")
    wrong = _resumes(case, returned)
    if wrong is not None:
        return wrong
    if right is None:
        message = f"you found a difference after {got} steps, and there is none"
        return Wrong(message + ". Are both runs made anew, and is the save taken between two steps?")
    return _found_nothing(case, right) if got is None else _wrong_step(case, right, got)


def _resumes(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """What is wrong with the stops and the loads, by what the runs wrote down."""
    stops, saves, got = case["stops"], returned["saves"], returned["first"]
    if any(taken > 0 for taken in returned["loads"]):
        message = "a state was loaded into a run that had taken steps. After a crash, what is left of the old process?"
        return Wrong(message, "resumes-in-place")
    done = [number for number, _ in saves]
    if any(number not in stops for number in done):
        found = " and ".join(str(number) for number in done)
        wanted = " and ".join(str(number) for number in stops)
        return Wrong(f"you saved when {found} steps were done; the stops say {wanted}")
    if any(resumed == 0 for _, resumed in saves[1:]):
        return Wrong("the second save is of a run that was never resumed. Which run is stopped the second time?")
    if len(saves) < len(returned["loads"]):
        return Wrong("a second load got the first save again. What had the run done since then?")
    due = [stop for stop in stops if got is None or stop < got]
    if len(returned["loads"]) < len(due):
        if due[-1] == case["steps"] and len(returned["loads"]) == len(due) - 1:
            return Wrong("the last stop comes when all steps are done. Does your drill stop there, and compare?")
        message = f"the run was to be stopped {len(due)} times; how often does your drill resume it?"
        return Wrong(message, "once-is-enough")
    return None


def _found_nothing(case: Case, right: int) -> Wrong:
    if right == case["steps"]:
        return Wrong(
            f"you found nothing; when all {right} steps are done the weights differ. When do you last compare?"
        )
    if case["fault"]:
        message = (
            "you found nothing, but a weight is wrong right after the load. Do you compare every number, every bit?"
        )
        return Wrong(message, "nearly-is-equal" if case["fault"] == "bit" else None)
    return Wrong("you found nothing (or nothing came back), although a part was not put back. What do you compare?")


def _wrong_step(case: Case, right: int, got: int) -> Wrong:
    if got == case["steps"]:
        message = f"you say {got} steps, the end of the run. When did it begin?"
        return Wrong(message, "compares-the-end")
    if got > right and case["fault"]:
        message = (
            f"you say {got} steps; a weight is wrong right after the load. Do you compare there, and every number?"
        )
        return Wrong(message)
    if got == right + 1:
        message = f"you say {got} steps: one too late. Do you compare losses? Which weights gave the loss of a step?"
        return Wrong(message, "losses-are-the-state")
    if got == right - 1:
        message = f"you say {got} steps: one too early. How many steps are done right after the load?"
        return Wrong(message, "counts-from-the-step")
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
