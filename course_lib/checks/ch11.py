"""Checks of chapter 11, mixture of experts: what a token costs.

The all-to-all is in `ch11_exchange`, the balancing bias in `ch11_balance`, capacity in `ch11_capacity`, a 70B model on
64 devices in `ch11_place`, the next axis in `ch11_next`.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from course_lib.checks.ch11_balance import BALANCE
from course_lib.checks.ch11_capacity import CAPACITY
from course_lib.checks.ch11_exchange import EXCHANGE
from course_lib.checks.ch11_next import NEXT, next_text
from course_lib.checks.ch11_place import PLACE, place_text
from course_lib.checks.core import Case, Exercise, Wrong, ask, kind, make_check
from course_lib.checks.smell import nearly, not_a_number, plain, same

__all__ = ["EXERCISES", "check", "question"]

# --- 11.1 what a token costs ------------------------------------------------------------------------------------------

KEYS = ("total", "active", "flops")

MIXTRAL = {
    "layers": 32,
    "width": 4096,
    "expert_width": 14_336,
    "experts": 8,
    "top_k": 2,
    "shared": 0,
    "rest": 1_604_587_520,
}
"""The sizes of Jiang et al. 2024 (arXiv 2401.04088); `rest`: attention, norms, embedding and head."""


def cost_cases(seed: int) -> list[Case]:
    """Mixtral, then sizes that follow the seed: with shared experts, with every expert chosen, with one layer."""
    rng = np.random.default_rng([seed, 1101])

    def model(layers: int, experts: int, top_k: int, shared: int) -> dict[str, int]:
        width, inside = (128 * int(n) for n in rng.integers(8, 60, 2))
        inside = inside if shared == 0 else inside // 8  # else what a router adds is lost in what experts have
        return {
            "layers": layers,
            "width": width,
            "expert_width": inside,
            "experts": experts,
            "top_k": top_k,
            "shared": shared,
            "rest": int(rng.integers(2, 90)) * 10**7,
        }

    cases = {
        "sizes of Mixtral 8x7B": MIXTRAL,
        "one layer, each token to one expert": model(1, int(rng.integers(5, 40)), 1, 0),
        "many small experts": model(int(rng.integers(5, 30)), int(rng.integers(60, 160)), int(rng.integers(3, 8)), 0),
        "two shared experts": model(int(rng.integers(5, 30)), int(rng.integers(60, 160)), int(rng.integers(4, 8)), 2),
        "every expert for every token": model(int(rng.integers(5, 30)), 6, 6, 0),
    }
    return [{"name": name, "model": sizes} for name, sizes in cases.items()]


def cost_run(answer: Callable[..., Any], case: Case) -> Any:
    found = answer(case["model"])
    return {str(key): plain(value) for key, value in found.items()} if isinstance(found, Mapping) else found


def _cost(model: dict[str, int], rule: str = "") -> dict[str, float]:
    """Parameters that there are, that one token uses, and its training FLOPs, added up layer by layer."""
    expert = (2 if rule == "two-matrices" else 3) * model["width"] * model["expert_width"]
    shared, chosen = model["shared"], 1 if rule == "one-expert-a-token" else model["top_k"]
    total = active = float(model["rest"])
    for _ in range(1 if rule == "one-layer" else model["layers"]):
        scored = model["experts"] + (shared if rule == "the-router-scores-all" else 0)
        router = 0 if rule == "nobody-routes" else model["width"] * scored
        total += router + (model["experts"] + (0 if rule == "no-shared-experts" else shared)) * expert
        active += router + (chosen + (0 if rule in ("shared-experts-rest", "no-shared-experts") else shared)) * expert
        if rule == "the-router-is-chosen-too":
            active += model["width"] * chosen - router
    if rule == "each-layer-has-the-rest":
        total, active = (sum_ + (model["layers"] - 1) * model["rest"] for sum_ in (total, active))
    if rule == "the-rest-is-idle":
        active -= model["rest"]
    if rule == "all-experts-work":
        active = total
    if rule == "a-share-of-everything":
        active = total * model["top_k"] / model["experts"]
    factor = {"forward-only": 2, "backward-costs-one-forward": 4}.get(rule, 6)
    return {"total": total, "active": active, "flops": factor * (total if rule == "flops-of-all" else active)}


COST_HINTS = {
    "all-experts-work": "which experts does one token visit?",
    "a-share-of-everything": "attention and router are in your share too. What of the model does every token use?",
    "the-router-is-chosen-too": "how many scores does the router make for a token?",
    "nobody-routes": "who scores the experts?",
    "the-router-scores-all": "does the router score what every token visits anyway?",
    "each-layer-has-the-rest": "how often is `rest` in the model?",
    "the-rest-is-idle": "which tokens use what is not in the experts?",
    "shared-experts-rest": "who decides whether a token goes to a shared expert?",
    "no-shared-experts": "the shared experts are missing",
    "one-expert-a-token": "how many experts does a token visit?",
    "two-matrices": "how many matrices has an expert here?",
    "one-layer": "how many layers have experts?",
    "flops-of-all": "does a token pay for matrices that it is not multiplied with?",
    "forward-only": "training has a backward pass too",
    "backward-costs-one-forward": "how many matrix products has backward for one of forward?",
}


def cost_judge(case: Case, returned: Any) -> Wrong | None:
    """Relative 1e-6: counts are whole, and float64 holds them."""
    if not isinstance(returned, dict) or not set(KEYS) <= set(returned):
        what = f"one with {', '.join(map(repr, returned))}" if isinstance(returned, dict) else kind(returned)
        return Wrong(f"a dict with the keys 'total', 'active' and 'flops' is wanted; yours is {what}", form=True)
    right = _cost(case["model"])
    for key in KEYS:
        form = not_a_number(returned[key])
        if form is not None:
            return Wrong(f"`{key}`: {form.message}", form=True)
    for key in KEYS:
        if _same(returned[key], right[key]):
            continue
        for rule, hint in COST_HINTS.items():
            guess = _cost(case["model"], rule)
            if any(not _same(guess[done], right[done]) for done in KEYS[: KEYS.index(key)]):
                continue  # this mistake would have shown there
            if not _same(guess[key], right[key]) and _same(returned[key], guess[key]):
                return Wrong(f"`{key}` is {returned[key]:.6g}: {hint}", rule)
        if _same(returned[key] * 1e9, right[key]):
            return Wrong(f"`{key}` is {returned[key]:.6g}: the number itself is wanted, not in billions", form=True)
        close = nearly(returned[key], right[key])
        if close:
            return Wrong(f"`{key}` is {close}")
        return Wrong(
            f"`{key}` is {returned[key]:.6g}: one line each for experts, router and rest, and by what each counts"
        )
    return None


def _same(a: float, b: float) -> bool:
    return same(a / b, 1.0, 1e-6)


COST = Exercise(
    id="active-and-total",
    title="What a token costs",
    cases=cost_cases,
    run=cost_run,
    judge=cost_judge,
    misconceptions={
        "all-experts-work": "a token uses all parameters of the model",
        "a-share-of-everything": "a token uses top_k / experts of the whole model",
        "the-router-is-chosen-too": "a token is scored by the experts that it visits, and by no other",
        "nobody-routes": "the router has no parameters",
        "the-router-scores-all": "a shared expert is scored too",
        "each-layer-has-the-rest": "all that is counted is counted in each layer",
        "the-rest-is-idle": "a token uses its experts, and nothing else",
        "shared-experts-rest": "a shared expert is one of those that are chosen",
        "no-shared-experts": "a shared expert is no expert of its own",
        "one-expert-a-token": "a token visits one expert",
        "two-matrices": "a feed-forward has two matrices, always",
        "one-layer": "the experts of a model are in one layer",
        "flops-of-all": "FLOPs go with all parameters, used or not",
        "forward-only": "a token costs 2N",
        "backward-costs-one-forward": "backward costs as much as forward",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text (`place-70b`, `next-axis`)."""
    ask({"place-70b": place_text, "next-axis": next_text}, exercise, variant)


EXERCISES = [COST, EXCHANGE, BALANCE, CAPACITY, PLACE, NEXT]

check = make_check("11", EXERCISES)
