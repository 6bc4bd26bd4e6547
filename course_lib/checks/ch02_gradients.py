"""Checks of chapter 2 on gradients and updates: clipping by the global norm, and AdamW by hand."""

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["ADAMW", "CLIP"]

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
    return [
        case("three tensors, norm above the limit", [normal(4, 3) * 3, normal(5), normal(2, 2, 2)]),
        case("norm below the limit", [normal(4) * 0.01, normal(3, 2) * 0.01]),
        case("limit 0.25, one tensor much larger than the other", [normal(6) * 50, normal(6) * 0.01], 0.25),
        case("a parameter without a gradient", [normal(4, 4), None, normal(3) * 2]),
        case("parameters as a generator, as model.parameters() hands them over", [normal(4, 4), normal(8)], 0.5, True),
        case("every gradient is zero", [torch.zeros(3), torch.zeros(2, 2)]),
        case("one gradient is infinite", [broken, normal(2)]),
    ]


def clip_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    parameters = []
    for grad in case["grads"]:
        p = nn.Parameter(torch.ones_like(grad) if grad is not None else torch.ones(2))
        p.grad = None if grad is None else grad.clone()
        parameters.append(p)
    before = [p.grad for p in parameters]
    handed: Iterable[nn.Parameter] = (p for p in parameters) if case["generator"] else list(parameters)
    norm = answer(handed, case["max_norm"])
    result: dict[str, Any] = {
        "norm": None if norm is None else float(norm),
        "same": [p.grad is b for p, b in zip(parameters, before, strict=True)],
        "weights_moved": any(bool((p != 1).any()) for p in parameters),
        "grads": [None if p.grad is None else p.grad.detach().clone() for p in parameters],
    }
    return result


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
    if returned["norm"] is None:
        return Wrong("nothing was returned; the trainer wants to log the norm that it had before clipping")
    for grad, after in zip(grads, returned["grads"], strict=True):
        if (grad is None) != (after is None):
            return Wrong("a parameter without a gradient must stay without one: no gradient is not a zero gradient")
    if not math.isfinite(norm):
        return _clip_not_finite(case, returned)
    got, right = _flat(returned["grads"]), _flat(grads) * min(1.0, limit / max(norm, 1e-30))
    if not bool(torch.isfinite(got).all()):
        message = "finite gradients came in and NaN went out. What does your factor become at a norm of zero?"
        return Wrong(message, "divides-by-zero")
    if torch.allclose(got, right, rtol=1e-5, atol=1e-9):
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
    if math.isclose(returned["norm"], norm, rel_tol=1e-5, abs_tol=1e-9):
        return None
    after = min(norm, case["max_norm"])
    if math.isclose(returned["norm"], after, rel_tol=1e-4):
        message = (
            f"the gradients are right, but you returned {returned['norm']:.3g}. "
            "Would a log of that number ever show a spike?"
        )
        return Wrong(message, "norm-after-clipping")
    return Wrong(f"the gradients are right, but {returned['norm']:.3g} is not the norm that they had before clipping")


def _clip_not_finite(case: Case, returned: dict[str, Any]) -> Wrong | None:
    if math.isfinite(returned["norm"]):
        return Wrong(
            "an infinite gradient went in and you report a finite norm: nobody would notice", "hides-the-infinity"
        )
    for grad, after in zip(case["grads"], returned["grads"], strict=True):
        if grad is not None and not torch.equal(grad, after):
            message = (
                "the norm is not finite and the gradients were scaled all the same. "
                "What is inf times your factor, and x times it?"
            )
            return Wrong(message, "scales-by-infinity")
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
        "scales-by-infinity": "clipping repairs infinite gradients",
    },
)

# --- 02.4 AdamW by hand -----------------------------------------------------------------------------------------------


def adamw_cases(seed: int) -> list[Case]:
    """Gradients for one to six steps; the learner's state starts as an empty dict."""
    g = torch.Generator().manual_seed(seed + 204)

    def case(name: str, shapes: list[tuple[int, ...]], steps: int, **changes: float) -> Case:
        settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, **changes}
        weights = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
        grads = [[torch.randn(s, generator=g, dtype=torch.float64) for s in shapes] for _ in range(steps)]
        return {"name": name, "weights": weights, "grads": grads, **settings}

    quiet = case("no gradient at all, only decay", [(3,)], 2, lr=0.1, weight_decay=0.5)
    quiet["grads"] = [[torch.zeros_like(t) for t in step] for step in quiet["grads"]]
    tiny = case("gradients as small as eps", [(4,)], 3, eps=1e-3, weight_decay=0.0)
    tiny["grads"] = [[t * 1e-3 for t in step] for step in tiny["grads"]]
    return [
        case("one step, no decay", [(4, 3)], 1, weight_decay=0.0),
        case("six steps, no decay", [(4, 3)], 6, weight_decay=0.0),
        case("six steps with decay", [(4, 3)], 6),
        case("several tensors, one of them a scalar", [(2, 3), (5,), ()], 4, lr=0.003),
        quiet,
        tiny,
        case("beta2 0.999, large decay", [(6,)], 5, beta2=0.999, lr=0.05, weight_decay=1.0),
    ]


SETTINGS = ("lr", "beta1", "beta2", "eps", "weight_decay")


def adamw_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    weights = [w.clone() for w in case["weights"]]
    state: dict[Any, Any] = {}
    path = []
    for grads in case["grads"]:
        handed = [t.clone() for t in grads]
        answer(weights, handed, state, **{key: case[key] for key in SETTINGS})
        path.append([w.detach().clone() for w in weights])
    return {"path": path}


def _adamw(case: Case, rule: str) -> list[list[Tensor]]:
    """What a misconception would give, step by step. The oracle is torch's own AdamW, in `_adamw_right`."""
    lr, b1, b2, eps, wd = (case[key] for key in SETTINGS)
    weights = [w.clone() for w in case["weights"]]
    first, second = [torch.zeros_like(w) for w in weights], [torch.zeros_like(w) for w in weights]
    path = []
    for t, grads in enumerate(case["grads"], start=1):
        for i, grad in enumerate(grads):
            w = weights[i]
            if rule == "decay-through-the-gradient":
                grad = grad + wd * w
            elif rule == "decay-without-lr":
                w *= 1 - wd
            elif rule not in ("decay-after-the-update", "no-decay"):
                w *= 1 - lr * wd
            first[i] = b1 * first[i] + (1 - b1) * grad
            second[i] = b2 * second[i] + (1 - b2) * grad**2
            fix1, fix2 = 1 - b1**t, 1 - b2**t
            if rule == "no-bias-correction":
                fix1 = fix2 = 1.0
            m, v = first[i] / fix1, second[i] / fix2
            w -= lr * m / ((v + eps).sqrt() if rule == "eps-inside-the-root" else v.sqrt() + eps)
            if rule == "decay-after-the-update":
                w *= 1 - lr * wd
        path.append([w.clone() for w in weights])
    return path


def _adamw_right(case: Case) -> list[list[Tensor]]:
    weights = [nn.Parameter(w.clone()) for w in case["weights"]]
    betas = (case["beta1"], case["beta2"])
    optimizer = torch.optim.AdamW(
        weights, lr=case["lr"], betas=betas, eps=case["eps"], weight_decay=case["weight_decay"], foreach=False
    )
    path = []
    for grads in case["grads"]:
        for p, grad in zip(weights, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        path.append([p.detach().clone() for p in weights])
    return path


ADAMW_HINTS = {
    "decay-through-the-gradient": (
        "your decay travels through the two averages, so it is divided by their root again. That is "
        "Adam with an L2 penalty. What does the W in AdamW stand apart from?"
    ),
    "no-bias-correction": (
        "the first steps have the wrong length. Both averages start at zero: "
        "how far from the gradient are they after one step?"
    ),
    "eps-inside-the-root": "you are right where gradients are large. Near eps it matters what eps is added to.",
    "decay-without-lr": "your decay is too strong: it must fade together with the schedule. What multiplies it?",
    "decay-after-the-update": (
        "nearly: off by lr x lr. On which weights does the decay act, those before this step's update or after?"
    ),
    "no-decay": "without decay you are right; here the weights should also shrink a little",
}


def _close(a: list[list[Tensor]], b: list[list[Tensor]]) -> bool:
    return all(
        torch.allclose(x, y, rtol=1e-9, atol=1e-12)
        for s, t in zip(a, b, strict=True)
        for x, y in zip(s, t, strict=True)
    )


def adamw_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-9 relative in float64: another order of the same operations differs by about 1e-15 a step."""
    path, right = returned["path"], _adamw_right(case)
    for step, (got, want) in enumerate(zip(path, right, strict=True), start=1):
        for x, y in zip(got, want, strict=True):
            if x.shape != y.shape or x.dtype != y.dtype:
                return Wrong(
                    f"after step {step} a weight of shape {tuple(y.shape)} has become {tuple(x.shape)}, {x.dtype}"
                )
    if _close(path, right):
        return None
    if all(torch.equal(x, w) for x, w in zip(path[0], case["weights"], strict=True)):
        return Wrong("the weights have not moved: change the tensors that you were given, in place", "not-in-place")
    if not all(bool(torch.isfinite(x).all()) for x in path[0]):
        message = "the first step gives NaN or infinity. What is your step count when the first correction is computed?"
        return Wrong(message, "counts-steps-from-zero")
    for rule, message in ADAMW_HINTS.items():
        if _close(path, _adamw(case, rule)):
            return Wrong(message, rule)
    wrong = next(s for s, (g, w) in enumerate(zip(path, right, strict=True), start=1) if not _close([g], [w]))
    if wrong > 1:
        message = (
            f"{wrong - 1} of {len(path)} steps are right, step {wrong} is not. What "
            "has to outlive a call, and for each tensor by itself?"
        )
        return Wrong(message, "state-is-lost-or-shared")
    return Wrong(
        "the very first step is off. Work it out on paper for one weight, one gradient and both averages at zero."
    )


ADAMW = Exercise(
    id="adamw-by-hand",
    title="AdamW's update by hand",
    cases=adamw_cases,
    run=adamw_run,
    judge=adamw_judge,
    forbidden=("AdamW", "Adam", "NAdam", "torch.optim", "torch._fused_adamw_", "make_optimizer"),
    misconceptions={
        "decay-through-the-gradient": "weight decay is an L2 penalty in the gradient",
        "no-bias-correction": "averages that start at zero need no correction",
        "eps-inside-the-root": "eps is added under the root",
        "decay-without-lr": "decay does not depend on the learning rate",
        "decay-after-the-update": "decay acts on the weights after the update",
        "no-decay": "AdamW is Adam",
        "not-in-place": "new tensors with the right numbers are enough",
        "counts-steps-from-zero": "the first step is step 0 in the bias correction",
        "state-is-lost-or-shared": "a local variable, or one average for all tensors, will do",
    },
)
