"""Check 02.3, clipping by the global norm, and how a number that an answer returns is taken."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["CLIP", "no_number", "number"]


def number(value: Any) -> dict[str, Any]:
    """What an answer returned: {"number": float} for a number, a 0-d tensor or array too, else {"type": name}."""
    if isinstance(value, (Tensor, np.ndarray)) and value.ndim == 0:
        value = value.item()
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.number)):
        return {"type": type(value).__name__}
    return {"number": float(value)}


def no_number(returned: dict[str, Any], call: str = "") -> Wrong:
    """The message for `number`'s {"type": name}, with the call that gave it."""
    return Wrong(f"return a number; yours{' for ' + call if call else ''} is of type {returned['type']}")


# --- 02.3 clip by global norm -----------------------------------------------------------------------------------------


def clip_cases(seed: int) -> list[Case]:
    """Gradients as a list of tensors; an empty tensor list entry `None` stands for a parameter without a gradient."""
    g = torch.Generator().manual_seed(seed + 203)

    def case(name: str, grads: list[Tensor | None], max_norm: float = 1.0, once: bool = False) -> Case:
        return {"name": name, "grads": grads, "max_norm": max_norm, "generator": once}

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=g)

    broken = normal(3)
    broken[1] = math.inf
    holed = normal(4)
    holed[2] = math.nan
    return [
        case("three tensors, norm above the limit", [normal(4, 3) * 3, normal(5), normal(2, 2, 2)]),
        case("norm below the limit", [normal(4) * 0.01, normal(3, 2) * 0.01]),
        case("limit 0.25, one tensor much larger than the other", [normal(6) * 50, normal(6) * 0.01], 0.25),
        case("a parameter without a gradient", [normal(4, 4), None, normal(3) * 2]),
        case("parameters as a generator, as model.parameters() hands them over", [normal(4, 4), normal(8)], 0.5, True),
        case("every gradient is zero", [torch.zeros(3), torch.zeros(2, 2)]),
        case("one gradient is infinite", [broken, normal(2)]),
        case("one gradient is NaN", [normal(3) * 2, holed]),
    ]


def clip_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    parameters = []
    for grad in case["grads"]:
        p = nn.Parameter(torch.ones_like(grad) if grad is not None else torch.ones(2))
        p.grad = None if grad is None else grad.clone()
        parameters.append(p)
    before = [p.grad for p in parameters]
    handed: Iterable[nn.Parameter] = (p for p in parameters) if case["generator"] else list(parameters)
    norm = number(answer(handed, case["max_norm"]))
    return {
        **norm,
        "same": [p.grad is b for p, b in zip(parameters, before, strict=True)],
        "weights_moved": any(bool((p != 1).any()) for p in parameters),
        "grads": [None if p.grad is None else p.grad.detach().clone() for p in parameters],
        "held": [None if b is None else b.detach().clone() for b in before],
    }


def _flat(grads: list[Tensor | None]) -> Tensor:
    return torch.cat([g.double().flatten() for g in grads if g is not None])


def _clip_rules(grads: list[Tensor | None], limit: float) -> dict[str, Tensor]:
    """Misconception -> the gradients it would leave, flat, in float64."""
    present = [g.double() for g in grads if g is not None]
    norm = _flat(grads).norm()
    total = sum((g.norm() for g in present), torch.tensor(0.0, dtype=torch.float64))
    each = [g * min(1.0, limit / max(float(g.norm()), 1e-30)) for g in present]
    return {
        "untouched": _flat(grads),
        "each-tensor-alone": torch.cat([g.flatten() for g in each]),
        "clips-by-value": _flat(grads).clamp(-limit, limit),
        "scales-up": _flat(grads) * limit / norm,
        "sum-of-norms": _flat(grads) * min(1.0, limit / float(total)),
        "forgets-the-root": _flat(grads) * min(1.0, limit / float(norm) ** 2),
    }


CLIP_HINTS = {
    "each-tensor-alone": (
        "every tensor got its own factor, so the direction of the step has changed. How many factors has one step?"
    ),
    "clips-by-value": (
        "single numbers were cut off, so the direction of the step has changed. What should stay as it is?"
    ),
    "scales-up": "these gradients were small, and you made them larger. When is clipping to do nothing?",
    "sum-of-norms": "the gradients came out too small. Is the length of (3, 4) equal to 3 + 4?",
    "forgets-the-root": (
        "the gradients came out wrong by a factor that is itself a norm. Compare "
        "the unit of your number with that of a gradient."
    ),
}


def clip_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-5 relative: FP32 sums of a few dozen numbers, and torch's own 1e-6 in the denominator, fit in it."""
    grads, limit = case["grads"], case["max_norm"]
    norm = float(_flat(grads).norm())
    if returned["weights_moved"]:
        return Wrong("the weights have changed. Clipping works on p.grad; the optimizer moves the weights later.")
    if "number" not in returned:
        return no_number(returned)
    for grad, after in zip(grads, returned["grads"], strict=True):
        if (grad is None) != (after is None):
            return Wrong("a parameter without a gradient must stay without one: no gradient is not a zero gradient")
        if grad is not None and after is not None and after.shape != grad.shape:
            return Wrong(f"a gradient of shape {tuple(grad.shape)} has become one of shape {tuple(after.shape)}")
    if not math.isfinite(norm):
        return _clip_not_finite(case, returned)
    got, right = _flat(returned["grads"]), _flat(grads) * min(1.0, limit / max(norm, 1e-30))
    if not bool(torch.isfinite(got).all()):
        message = "finite gradients came in and NaN went out. What does your factor become at a norm of zero?"
        return Wrong(message, "divides-by-zero")
    if torch.allclose(got, right, rtol=1e-5, atol=1e-9):
        if not all(returned["same"]) and not torch.allclose(_flat(returned["held"]), right, rtol=1e-5, atol=1e-9):
            message = "p.grad is a new tensor now; the one that was there, which others still hold, has the old numbers"
            return Wrong(message, "not-in-place")
        return _clip_norm(case, returned, norm)
    rules = _clip_rules(grads, limit)
    if torch.allclose(got, rules["untouched"], rtol=1e-7):
        if case["generator"]:
            message = (
                "nothing was clipped here, though it was with a list. What is "
                "left of a generator after a first loop over it?"
            )
            return Wrong(message, "generator-used-twice")
        if not all(returned["same"]):
            return Wrong("p.grad is unchanged; did the scaled numbers go into a new tensor?", "not-in-place")
        return Wrong(
            f"the norm is {norm:.3g}, the limit {limit:g}, and the gradients came back unchanged", "not-in-place"
        )
    for rule, message in CLIP_HINTS.items():
        if torch.allclose(got, rules[rule], rtol=1e-5, atol=1e-9):
            return Wrong(message, rule)
    return Wrong(
        f"after clipping, the norm of all gradients together is {float(got.norm()):.3g}; the limit is {limit:g}"
    )


def _clip_norm(case: Case, returned: dict[str, Any], norm: float) -> Wrong | None:
    if math.isclose(returned["number"], norm, rel_tol=1e-5, abs_tol=1e-9):
        return None
    after = min(norm, case["max_norm"])
    if math.isclose(returned["number"], after, rel_tol=1e-4):
        message = (
            f"the gradients are right, but you returned {returned['number']:.3g}. "
            "Would a log of that number ever show a spike?"
        )
        return Wrong(message, "norm-after-clipping")
    return Wrong(f"the gradients are right, but {returned['number']:.3g} is not the norm that they had before clipping")


def _clip_not_finite(case: Case, returned: dict[str, Any]) -> Wrong | None:
    infinite = not any(g is not None and bool(torch.isnan(g).any()) for g in case["grads"])
    if math.isfinite(returned["number"]):
        what = "an infinite gradient" if infinite else "a gradient of NaN"
        return Wrong(f"{what} went in and you report a finite norm: nobody would notice", "hides-the-infinity")
    for grad, after in zip(case["grads"], returned["grads"], strict=True):
        if grad is not None and not torch.allclose(grad, after, rtol=0, atol=0, equal_nan=True):
            if infinite:
                message = (
                    "the norm is infinite and the gradients were scaled all the same. "
                    "What is max_norm / inf, and what is inf times that?"
                )
                return Wrong(message, "scales-by-infinity")
            message = "one number was NaN, and the others came back changed. Does your test for inf find NaN too?"
            return Wrong(message, "nan-is-no-infinity")
    return None


CLIP = Exercise(
    id="clip-by-global-norm",
    title="Clip by global norm",
    cases=clip_cases,
    run=clip_run,
    judge=clip_judge,
    forbidden=(
        *("clip_grad_norm_", "clip_grad_norm", "clip_grads_with_norm_", "clip_grad_value_"),
        *("get_total_norm", "clip_by_global_norm"),
    ),
    misconceptions={
        "each-tensor-alone": "every tensor is clipped by its own norm",
        "clips-by-value": "clipping cuts single numbers",
        "scales-up": "clipping sets the norm, in both directions",
        "sum-of-norms": "the norm of the whole is the sum of the norms",
        "forgets-the-root": "the sum of squares is the norm",
        "divides-by-zero": "a norm is never zero",
        "not-in-place": "a scaled copy is enough",
        "generator-used-twice": "model.parameters() is a list",
        "norm-after-clipping": "the norm after clipping is worth logging",
        "hides-the-infinity": "an infinite gradient can be counted as none",
        "nan-is-no-infinity": "a norm that is not infinite is a number",
        "scales-by-infinity": "clipping repairs infinite gradients",
    },
)
