"""Check 04.5: an update of BF16 weights that is rounded stochastically."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["STOCHASTIC"]

DRAWS = 2048
MOST_TURNS = 64
"""A method with a limit turns once. A coin of its own turns hundreds of times; 16 bits cut from a draw, a few times."""


def stochastic_cases(seed: int) -> list[Case]:
    """A row a weight, a column a draw: a row's draws are DRAWS equally spaced numbers from 0 to under 1, shuffled."""
    g = torch.Generator().manual_seed(seed + 405)

    def case(name: str, weights: list[float], changes: list[float]) -> Case:
        grid = torch.arange(DRAWS) / DRAWS
        rows = torch.stack([grid[torch.randperm(DRAWS, generator=g)] for _ in weights])
        weight = torch.tensor(weights).bfloat16()[:, None].expand(-1, DRAWS).contiguous()
        change = torch.tensor(changes)[:, None].expand(-1, DRAWS).contiguous()
        return {"name": name, "weight": weight, "change": change, "draws": rows}

    some = (torch.rand(6, generator=g) + 0.5).tolist()
    return [
        case("1.0 and updates under half a spacing", [1.0, 1.0], [-0.001, 0.0017]),
        case("updates of more than half a spacing", [1.0, 1.5], [-0.0031, 0.0061]),
        case("negative weights", [-0.75, -1.25], [0.0011, -0.0022]),
        case("no update, and sums that BF16 holds", [0.3, 1.0, -2.0], [0.0, 0.5, -0.25]),
        case("updates of several spacings", [1.0, -1.0, 0.1], [0.0301, 0.0105, 0.0205]),
        case("random weights", some, [0.0007 * (i + 1) * (-1) ** i for i in range(6)]),
    ]


def stochastic_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    result = answer(case["weight"].clone(), case["change"].clone(), case["draws"].clone())
    if not isinstance(result, Tensor):
        return {"form": f"return a tensor; yours is {kind(result)}"}
    return {"dtype": str(result.dtype), "shape": list(result.shape), "values": result.detach().double()}


def _neighbours(x: float) -> tuple[float, float]:
    """The BF16 values next to x toward zero and away from it; x twice where BF16 holds it. By whole numbers."""
    if x == 0:
        return 0.0, 0.0
    quantum = 2.0 ** (math.frexp(x)[1] - 8)
    steps = abs(x) / quantum
    low, high = math.floor(steps), math.ceil(steps)
    return math.copysign(low * quantum, x), math.copysign(high * quantum, x)


def stochastic_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The share of a row's draws that go away from zero has to be the position between the neighbours, within 3 draws
    of 2048: the draws are a grid, so counting has no noise, and a method may use 16 bits of each."""
    if "form" in returned:
        return Wrong(returned["form"], form=True)
    if returned["dtype"] != "torch.bfloat16" or returned["shape"] != list(case["weight"].shape):
        return Wrong(f"the new weights are {returned['dtype']} {tuple(returned['shape'])}: want bfloat16, one a weight")
    if list(returned["values"].shape) != returned["shape"]:
        return Wrong("what the check recorded has fewer values than weights")
    shares: list[tuple[float, float, str]] = []  # share that went away from zero, the right one, in words
    for row, values in enumerate(returned["values"]):
        w, c = float(case["weight"][row, 0]), float(case["change"][row, 0])
        exact = float(np.float32(w) + np.float32(c))
        low, high = _neighbours(exact)
        seen = set(values.tolist())
        what = f"{w:g} {'+' if c >= 0 else '-'} {abs(c):g}"
        if low == high and seen != {low}:
            message = f"{what} is a value of BF16 and needs no rounding; yours gives {sorted(seen)[:3]}"
            return Wrong(message, "moves-what-is-exact")
        if not seen <= {low, high}:
            if seen <= set(_neighbours(float(np.float32(w) - np.float32(c)))):
                return Wrong(f"{what} gives {sorted(seen)[0]:.6g}: as if the change were turned around. It is added")
            message = f"{what} gives {sorted(seen - {low, high})[0]:.6g}, neither of the two neighbours of the sum"
            return Wrong(message, "adds-too-much-noise" if len(seen) > 3 else None)
        if low != high:
            turns = _turns(values == high, case["draws"][row])
            share = float((values == high).double().mean())
            said = f"{what}: {share:.1%} of the draws end at {high:.6g}, the rest at {low:.6g}."
            if turns > MOST_TURNS:
                return Wrong(
                    f"{what}: weights that got nearly the same draw end apart, {turns:,} times. "
                    "`draws` is the only chance that you need: is there another in your code?",
                    "chance-of-its-own",
                )
            shares.append((share, (exact - low) / (high - low), said))
    wrong = [said for share, wanted, said in shares if abs(share - wanted) > 3 / DRAWS]
    if not wrong:
        return None
    for rule, hint in SHARES_HINTS.items():
        if all(abs(_shares(wanted)[rule] - share) <= 3 / DRAWS for share, wanted, _ in shares):
            return Wrong(f"{wrong[0]} {hint}", rule)
    return Wrong(f"{wrong[0]} That is not the share that keeps the mean")


def _turns(outward: Tensor, draws: Tensor) -> int:
    """How often the end changes when a row is put in the order of its draws: once for one limit, or for none 0."""
    ordered = outward[draws.argsort()]
    return int((ordered[1:] != ordered[:-1]).sum())


def _shares(wanted: float) -> dict[str, float]:
    """The share of draws that each misconception sends away from zero."""
    return {
        "update-is-lost": float(wanted > 0.5),
        "turns-the-odds-around": 1 - wanted,
        "tosses-a-coin": 0.5,
        "always-toward-zero": 0.0,
        "always-away-from-zero": 1.0,
    }


SHARES_HINTS = {
    "update-is-lost": "That is rounding to nearest: the draws change nothing",
    "turns-the-odds-around": "The nearer neighbour should be the likelier one",
    "tosses-a-coin": "Half and half, wherever the sum lies between them",
    "always-toward-zero": "The draws change nothing: bits are cut off",
    "always-away-from-zero": "The draws change nothing: every sum goes outward",
}


STOCHASTIC = Exercise(
    id="stochastic-update",
    title="An update by chance",
    cases=stochastic_cases,
    run=stochastic_run,
    judge=stochastic_judge,
    forbidden=("stochastic_round", "course_lib.amp", "course_lib.masters", "accumulate", "running_sums"),
    misconceptions={
        "update-is-lost": "adding in BF16, or rounding to nearest, is good enough",
        "turns-the-odds-around": "the distance to a neighbour is its chance",
        "tosses-a-coin": "stochastic rounding is a coin toss",
        "always-toward-zero": "cutting bits off keeps the mean",
        "always-away-from-zero": "rounding up keeps the mean",
        "moves-what-is-exact": "a value of the format is rounded too",
        "adds-too-much-noise": "any noise will do",
        "chance-of-its-own": "any random numbers will do",
    },
)
