"""Check 04.4: the update rule of a loss scaler."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["SCALER"]

INF, NAN = math.inf, math.nan


def scaler_cases(seed: int) -> list[Case]:
    """Scaled gradients of several steps, two tensors each. A letter a step: g good, i infinity, n NaN, m -infinity."""
    g = torch.Generator().manual_seed(seed + 404)
    rng = np.random.default_rng([seed, 44])

    def case(name: str, fates: str, interval: int, first: bool = False, power: int | None = None) -> Case:
        scale = 2.0 ** (int(rng.integers(8, 15)) if power is None else power)
        steps = []
        for fate in fates:
            grads = [torch.randn(3, generator=g) * scale, torch.randn(2, 2, generator=g) * scale]
            if fate != "g":
                grads[0 if first else 1].flatten()[1] = {"i": INF, "n": NAN, "m": -INF}[fate]
            steps.append(grads)
        return {"name": name, "steps": steps, "scale": scale, "interval": interval}

    return [
        case("one good step", "g", 3),
        case("two good steps, interval 3", "gg", 3),
        case("three good steps, interval 3", "ggg", 3),
        case("an infinity in the first tensor", "i", 3, first=True),
        case("an infinity in the second tensor", "i", 3),
        case("a NaN", "n", 3),
        case("a negative infinity", "m", 3),
        case("seven good steps, interval 3", "ggggggg", 3),
        case("two good, an overflow, three good, interval 3", "ggiggg", 3),
        case("one good, two overflows, interval 1", "ginggg", 1),
        case("twelve mixed steps, interval 2", "ggnggigggmgg", 2),
        case("three overflows and a good step, from a scale of 2", "imng", 2, power=1),
        case("two good steps from a scale of 131,072, interval 1", "gg", 1, power=17),
    ]


def scaler_run(answer: Callable[..., Any], case: Case) -> list[dict[str, Any]]:
    scale: Any = case["scale"]
    good: Any = 0
    out: list[dict[str, Any]] = []
    for grads in case["steps"]:
        result = answer([t.clone() for t in grads], scale, good, case["interval"])
        if not isinstance(result, tuple | list) or len(result) != 3:
            return [{"form": f"return three things: gradients or None, scale, good; yours is {kind(result)}"}]
        usable, scale, good = result
        scale, good = (v.item() if isinstance(v, Tensor) else v for v in (scale, good))
        for value in (scale, good):
            if isinstance(value, bool) or not isinstance(value, int | float):
                return [{"form": f"`scale` and `good` are numbers, not {type(value).__name__}"}]
        if usable is not None and not (
            isinstance(usable, list | tuple)
            and len(usable) == len(grads)
            and all(isinstance(t, Tensor) for t in usable)
        ):
            return [{"form": "the gradients come back as a list of as many tensors, or as None for a step left out"}]
        out.append({"grads": None if usable is None else [t.detach() for t in usable], "scale": scale, "good": good})
    return out


def _right(case: Case) -> list[dict[str, Any]]:
    """PyTorch's own two kernels, which its GradScaler calls."""
    scale, good = torch.tensor(case["scale"]), torch.tensor(0, dtype=torch.int32)
    out = []
    for grads in case["steps"]:
        mine, found = [t.clone() for t in grads], torch.zeros(1)
        torch._amp_foreach_non_finite_check_and_unscale_(mine, found, scale.double().reciprocal().float())
        torch._amp_update_scale_(scale, good, found, 2.0, 0.5, case["interval"])
        out.append({"grads": None if bool(found) else mine, "scale": float(scale), "good": int(good)})
    return out


def _by_rule(case: Case, rule: str) -> list[dict[str, Any]]:
    """What a misconception gives."""
    scale, good, out = case["scale"], 0, []
    for grads in case["steps"]:
        looked = grads[:1] if rule == "looks-at-one-tensor" else grads
        bad = any(bool(t.isinf().any()) for t in looked)
        if rule == "infinity-has-one-sign":
            bad = any(bool((t == INF).any()) for t in looked)
        if rule != "nan-passes":
            bad = bad or any(bool(t.isnan().any()) for t in looked)
        old = scale
        if bad:
            scale = scale / 2 if rule != "overflow-keeps-the-scale" else scale
            good = good if rule == "count-survives-overflow" else 0
        else:
            good += 1
            if good >= case["interval"] or rule == "grows-every-step":
                scale = scale if rule == "never-grows" else scale * 2
                good = good if rule == "count-survives-growth" else 0
        if rule == "a-scale-has-a-floor":
            scale = max(scale, 1.0)
        if rule == "a-scale-has-a-ceiling":
            scale = min(scale, 65536.0)
        by = scale if rule == "divides-by-the-new-scale" else 1.0 if rule == "forgets-to-divide" else old
        kept = not bad or rule == "takes-the-step-anyway"
        out.append({"grads": [t / by for t in grads] if kept else None, "scale": scale, "good": good})
    return out


SCALER_HINTS = {
    "forgets-to-divide": "the gradients come back as they went in. What has the scale done to them?",
    "divides-by-the-new-scale": "these gradients were multiplied with the scale as it was. Which one do you divide by?",
    "grows-every-step": "the scale grows after every good step. What is the interval for?",
    "never-grows": "the interval is full, and the scale has not grown",
    "count-survives-growth": "after a doubling the count of good steps begins again. Where does yours begin?",
    "count-survives-overflow": "good steps have to come in a row. What does an overflow do to the count?",
    "overflow-keeps-the-scale": "an overflow, and the scale stays: the next step will overflow too",
    "takes-the-step-anyway": "a gradient that is not finite must reach no weight. What do you return for such a step?",
    "nan-passes": "a NaN went through. Infinity minus infinity gives one: what is finite?",
    "infinity-has-one-sign": "an overflow has two signs",
    "a-scale-has-a-floor": "an overflow, and the scale stays at 1. Does the text end the halving anywhere?",
    "a-scale-has-a-ceiling": "the scale stops growing, or falls, though every step is good. Does the text name an end?",
    "looks-at-one-tensor": "one of the tensors holds something that is not finite. Do you look at all of them?",
}


def _equal(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> bool:
    def same(x: dict[str, Any], y: dict[str, Any]) -> bool:
        if x["scale"] != y["scale"] or x["good"] != y["good"] or (x["grads"] is None) != (y["grads"] is None):
            return False
        return x["grads"] is None or all(
            s.shape == t.shape and torch.allclose(s.float(), t, rtol=1e-6, atol=0, equal_nan=True)
            for s, t in zip(x["grads"], y["grads"], strict=True)
        )

    return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))


def scaler_judge(case: Case, returned: Any) -> Wrong | None:
    """Scale and count exact; gradients within 1e-6, since dividing and multiplying by the reciprocal round alike here.

    Oracle: the two kernels behind torch.amp.GradScaler.
    """
    if returned and "form" in returned[0]:
        return Wrong(returned[0]["form"], form=True)
    right = _right(case)
    if _equal(returned, right):
        return None
    for rule, message in SCALER_HINTS.items():
        guess = _by_rule(case, rule)
        if not _equal(guess, right) and _equal(returned, guess):
            return Wrong(message, rule)
    at = next(i for i, (a, b) in enumerate(zip(returned, right, strict=True)) if not _equal([a], [b]))
    a, b = returned[at], right[at]
    if (a["grads"] is None) != (b["grads"] is None):
        did = "left out" if a["grads"] is None else "taken"
        return Wrong(f"step {at + 1} was {did}. Are all of its gradients finite?")
    if a["scale"] != b["scale"]:
        return Wrong(
            f"after step {at + 1} your scale is {a['scale']:g}: it halves, doubles or stays. Which is it here?"
        )
    if a["good"] != b["good"]:
        return Wrong(f"after step {at + 1} you count {a['good']:g} good steps in a row since the scale last changed")
    return Wrong(f"the gradients of step {at + 1} are off: which scale were they multiplied with?")


SCALER = Exercise(
    id="loss-scaler",
    title="The scaler's rule",
    cases=scaler_cases,
    run=scaler_run,
    judge=scaler_judge,
    forbidden=("GradScaler", "_amp_update_scale_", "_amp_foreach_non_finite_check_and_unscale_"),
    misconceptions={
        "forgets-to-divide": "scaled gradients can be used as they are",
        "divides-by-the-new-scale": "the scale may change before the division",
        "grows-every-step": "every good step doubles the scale",
        "never-grows": "a scale only falls",
        "count-survives-growth": "the count of good steps goes on after a doubling",
        "count-survives-overflow": "good steps need not come in a row",
        "overflow-keeps-the-scale": "leaving the step out is enough",
        "takes-the-step-anyway": "halving the scale repairs this step",
        "nan-passes": "an overflow is always an infinity",
        "infinity-has-one-sign": "an overflow is positive",
        "a-scale-has-a-floor": "a scale below 1 makes no sense",
        "a-scale-has-a-ceiling": "a scale is no larger than 65,536, FP16's limit",
        "looks-at-one-tensor": "if one tensor overflows, all do",
    },
)
