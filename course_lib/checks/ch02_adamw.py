"""Check 02.4: one update of AdamW, written by hand, in place, with its own state."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["ADAMW"]

Path = list[list[Tensor]]
"""The weights after every step."""


def adamw_cases(seed: int) -> list[Case]:
    """Gradients for one to six steps, and a learning rate for each; the learner's state starts as an empty dict."""
    g = torch.Generator().manual_seed(seed + 204)

    def case(name: str, shapes: list[tuple[int, ...]], steps: int, fall: float = 1.0, **changes: float) -> Case:
        settings = {"lr": 0.01, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, **changes}
        weights = [torch.randn(s, generator=g, dtype=torch.float64) for s in shapes]
        grads = [[torch.randn(s, generator=g, dtype=torch.float64) for s in shapes] for _ in range(steps)]
        rates = [settings["lr"] * fall**step for step in range(steps)]
        return {"name": name, "weights": weights, "grads": grads, **settings, "rates": rates}

    quiet = case("no gradient at all, only decay", [(3,)], 2, lr=0.1, weight_decay=0.5)
    quiet["grads"] = [[torch.zeros_like(t) for t in step] for step in quiet["grads"]]
    tiny = case("gradients as small as eps", [(4,)], 3, eps=1e-3, weight_decay=0.0)
    tiny["grads"] = [[t * 1e-3 for t in step] for step in tiny["grads"]]
    return [
        case("one step, no decay", [(4, 3)], 1, weight_decay=0.0),
        case("six steps, no decay", [(4, 3)], 6, weight_decay=0.0),
        case("six steps with decay", [(4, 3)], 6),
        case("four tensors, two of one shape, one a scalar", [(2, 3), (5,), (2, 3), ()], 4, lr=0.003),
        quiet,
        tiny,
        case("the learning rate halves at every step", [(3, 2)], 4, fall=0.5, lr=0.1),
        case("beta2 0.999, large decay", [(6,)], 5, beta2=0.999, lr=0.05, weight_decay=1.0),
    ]


SETTINGS = ("beta1", "beta2", "eps", "weight_decay")


def adamw_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    """The path of the tensors handed over, whatever the answer puts into its list, and what else it changed."""
    held = [w.clone() for w in case["weights"]]
    listed: list[Any] = held
    state: dict[Any, Any] = {}
    path, grads_changed, replaced = [], 0, False
    for step, (grads, lr) in enumerate(zip(case["grads"], case["rates"], strict=True), start=1):
        listed, handed = list(held), [t.clone() for t in grads]
        kept = list(handed)
        answer(listed, handed, state, lr=lr, **{key: case[key] for key in SETTINGS})
        path.append([w.detach().clone() for w in held])
        replaced = replaced or len(listed) != len(held) or any(x is not w for x, w in zip(listed, held, strict=True))
        same = all(torch.equal(x, g) and y is x for x, y, g in zip(kept, handed, grads, strict=True))
        grads_changed = grads_changed or (0 if same else step)
    return {"path": path, "grads_changed": grads_changed, "replaced": replaced}


def _adamw(case: Case, rule: str) -> Path:
    """What a misconception would give, step by step. The oracle is torch's own AdamW, in `_adamw_right`."""
    b1, b2, eps, wd = (case[key] for key in SETTINGS)
    weights = [w.clone() for w in case["weights"]]
    state: dict[Any, list[Any]] = {}
    path = []
    for calls, (grads, rate) in enumerate(zip(case["grads"], case["rates"], strict=True), start=1):
        lr = case["rates"][0] if rule == "keeps-the-first-rate" else rate
        for i, (w, grad) in enumerate(zip(weights, grads, strict=True)):
            by_shape = rule in ("one-state-a-shape", "one-average-a-shape")
            first, second, seen = state.get(tuple(w.shape) if by_shape else i, (w * 0, w * 0, 0))
            t = {"one-state-a-shape": seen + 1, "counts-every-tensor": (calls - 1) * len(grads) + i + 1}.get(
                rule, calls
            )
            if rule in ("forgets-averages", "forgets-everything"):
                first, second = w * 0, w * 0
            if rule in ("forgets-the-count", "forgets-everything"):
                t = 1
            if rule == "decay-through-the-gradient":
                grad = grad + wd * w
            elif rule not in ("decay-after-the-update", "no-decay"):
                w *= {"decay-without-lr": 1 - wd, "decay-grows": 1 + lr * wd}.get(rule, 1 - lr * wd)
            first = b1 * first + (1 - b1) * grad
            second = b2 * second + (1 - b2) * grad**2
            state[tuple(w.shape) if by_shape else i] = [first, second, seen + 1]
            raw = rule == "no-bias-correction"
            m, v = (first, second) if raw else (first / (1 - b1**t), second / (1 - b2**t))
            w -= lr * m / ((v + eps).sqrt() if rule == "eps-inside-the-root" else v.sqrt() + eps)
            if rule == "decay-after-the-update":
                w *= 1 - lr * wd
        path.append([w.clone() for w in weights])
    return path


def _adamw_right(case: Case) -> Path:
    weights = [nn.Parameter(w.clone()) for w in case["weights"]]
    betas = (case["beta1"], case["beta2"])
    optimizer = torch.optim.AdamW(
        weights, lr=case["lr"], betas=betas, eps=case["eps"], weight_decay=case["weight_decay"], foreach=False
    )
    path = []
    for grads, lr in zip(case["grads"], case["rates"], strict=True):
        optimizer.param_groups[0]["lr"] = lr
        for p, grad in zip(weights, grads, strict=True):
            p.grad = grad.clone()
        optimizer.step()
        path.append([p.detach().clone() for p in weights])
    return path


LOST = "the first step is right, the second is not: what do your averages and your step count hold when call 2 begins?"

ADAMW_HINTS = {
    "decay-through-the-gradient": (
        "your decay travels through the two averages, so it is divided by their root again. That is "
        "Adam with an L2 penalty. What does the W in AdamW stand apart from?"
    ),
    "no-bias-correction": (
        "the first steps have the wrong length. Both averages start at zero: "
        "how far from the gradient are they after one step?"
    ),
    "eps-inside-the-root": "nearly, and the smaller the gradients, the worse. What is eps added to?",
    "decay-without-lr": "your decay is too strong: it must fade together with the schedule. What multiplies it?",
    "decay-grows": "without decay you are right; with it the weights should shrink. Which way do yours go?",
    "decay-after-the-update": (
        "nearly: off by lr x lr. On which weights does the decay act, those before this step's update or after?"
    ),
    "no-decay": "without decay you are right; here the weights should also shrink a little",
    "counts-every-tensor": (
        "with one tensor you are right, with several the first step is off: "
        "how often does your step count grow in one call?"
    ),
    "one-state-a-shape": "two tensors of one shape disturb each other: by what does your state tell tensors apart?",
    "one-average-a-shape": "two tensors of one shape disturb each other: by what does your state tell tensors apart?",
    "keeps-the-first-rate": "with a constant rate you are right. Which rate does your second step use, and from where?",
    "forgets-averages": LOST,
    "forgets-the-count": LOST,
    "forgets-everything": LOST,
}
NAMED = {rule: "state-is-lost-or-shared" for rule in ADAMW_HINTS if rule.startswith(("forgets-", "one-"))}


def _close(a: Path, b: Path, tolerance: float = 1e-11) -> bool:
    return all(
        torch.allclose(x, y, rtol=tolerance, atol=tolerance / 100)
        for s, t in zip(a, b, strict=True)
        for x, y in zip(s, t, strict=True)
    )


def adamw_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-11 relative in float64: another order of the same operations differs by about 1e-15 a step, averages
    in float32 by 1e-10 and more."""
    path, right = returned["path"], _adamw_right(case)
    for step, (got, want) in enumerate(zip(path, right, strict=True), start=1):
        for x, y in zip(got, want, strict=True):
            if x.shape != y.shape or x.dtype != y.dtype:
                return Wrong(
                    f"after step {step} a weight of shape {tuple(y.shape)} has become {tuple(x.shape)}, {x.dtype}"
                )
    if _close(path, right):
        if returned["grads_changed"]:
            return Wrong("the weights are right, but your code changed `grads`: the caller still wants to log them")
        return None
    return _adamw_smell(case, returned, path, right)


def _adamw_smell(case: Case, returned: dict[str, Any], path: Path, right: Path) -> Wrong:
    quiet = not any(bool(g.any()) for g in case["grads"][0])
    if all(torch.equal(x, w) for x, w in zip(path[0], case["weights"], strict=True)):
        if returned["replaced"]:
            message = "you put new tensors into the list; the model still holds the old ones, and they have not moved"
            return Wrong(message, "not-in-place")
        if quiet:
            return Wrong("no gradient, but decay still acts: your weights have not moved", "decay-needs-a-gradient")
        return Wrong("the weights have not moved: change the tensors that you were given, in place", "not-in-place")
    if not all(bool(torch.isfinite(x).all()) for x in path[0]):
        if quiet:
            return Wrong("no gradient, and NaN or infinity comes out. What stands under your fraction?")
        message = "the first step gives NaN or infinity. What is your step count when the first correction is computed?"
        return Wrong(message, "counts-steps-from-zero")
    for rule, message in ADAMW_HINTS.items():
        if _close(path, _adamw(case, rule)):
            return Wrong(message, NAMED.get(rule, rule))
    off = max(float((x - y).abs().max()) for s, t in zip(path, right, strict=True) for x, y in zip(s, t, strict=True))
    if off < 1e-7 * case["lr"] * len(path) * 10:
        return Wrong(f"off by about {off:.0e}, as in float32: which dtype have your averages?")
    wrong = next(s for s, (g, w) in enumerate(zip(path, right, strict=True), start=1) if not _close([g], [w]))
    if wrong == 2:
        return Wrong(LOST)
    if wrong > 2:
        return Wrong(f"{wrong - 1} of {len(path)} steps are right, step {wrong} is not. What is new in it?")
    if len(case["weights"]) > 1:
        return Wrong("with one tensor you are right, with several the first step is off: what do the tensors share?")
    return Wrong(
        "the very first step is off. Work it out on paper for one weight, one gradient and both averages at zero."
    )


ADAMW = Exercise(
    id="adamw-by-hand",
    title="AdamW's update by hand",
    cases=adamw_cases,
    run=adamw_run,
    judge=adamw_judge,
    of_judge=("lr",),
    forbidden=("AdamW", "Adam", "NAdam", "torch.optim", "torch._fused_adamw_", "make_optimizer"),
    misconceptions={
        "decay-through-the-gradient": "weight decay is an L2 penalty in the gradient",
        "no-bias-correction": "averages that start at zero need no correction",
        "eps-inside-the-root": "eps is added under the root",
        "decay-without-lr": "decay does not depend on the learning rate",
        "decay-grows": "decay is added to the weights",
        "decay-after-the-update": "decay acts on the weights after the update",
        "decay-needs-a-gradient": "weights without a gradient do not decay",
        "no-decay": "AdamW is Adam",
        "not-in-place": "new tensors with the right numbers are enough",
        "counts-steps-from-zero": "the first step is step 0 in the bias correction",
        "counts-every-tensor": "each tensor is a step of its own",
        "keeps-the-first-rate": "the learning rate is set once",
        "state-is-lost-or-shared": "a local variable, or one average for tensors of one shape, will do",
    },
)
