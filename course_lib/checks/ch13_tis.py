"""Check 13.5: the loss of a policy gradient with truncated importance sampling, its value and its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["TIS"]

Array = np.ndarray[Any, Any]


def _loss(case: Case, rule: str = "") -> tuple[float, Array]:
    """Loss and gradient to the trainer's log-probabilities, in FP64, worked out by hand. `rule` makes one mistake."""
    mask, cap = case["mask"], case["cap"]
    ours = np.where(mask, case["trainer"], 0.0).astype(np.float64)
    theirs = np.where(mask, case["sampler"], 0.0).astype(np.float64)
    gap = theirs - ours if rule == "the-other-way-round" else ours - theirs
    if rule == "one-weight-a-sequence":
        gap = np.repeat((gap * mask).sum(1, keepdims=True), mask.shape[1], axis=1)
    if rule == "the-mean-of-the-sequence":
        gap = np.repeat(
            (gap * mask).sum(1, keepdims=True) / np.maximum(mask.sum(1, keepdims=True), 1), mask.shape[1], 1
        )
    with np.errstate(over="ignore"):
        ratio = 1 + gap if rule == "nearly-the-ratio" else np.exp(gap)
    weight = np.minimum(ratio, cap)
    if rule == "never-truncated":
        weight = ratio
    if rule == "both-ends":
        weight = np.clip(ratio, 1 / cap, cap)
    if rule == "what-is-above-is-dropped":
        weight = np.where(ratio > cap, 0.0, ratio)
    if rule == "no-weights":
        weight = np.ones_like(ratio)
    if rule == "weights-add-up":
        weight = weight / max((weight * mask).sum(), 1e-30) * mask.sum()
    A = np.repeat(case["advantage"].astype(np.float64)[:, None], mask.shape[1], axis=1)
    if rule == "the-smaller-of-two":  # PPO's clipped objective
        inside = np.clip(ratio, 1 / cap, cap)
        weight = np.where(ratio * A <= inside * A, ratio, inside)
    counted = np.repeat(mask.sum(1, keepdims=True), mask.shape[1], axis=1)
    share = mask / max(int(mask.sum()), 1)
    if rule == "padding-counts":
        share = mask / mask.size
    if rule == "a-mean-of-means":
        share = mask / np.maximum(counted, 1) / len(mask)
    if rule == "a-sum":
        share = mask.astype(np.float64)
    sign = 1.0 if rule == "a-loss-is-a-reward" else -1.0
    loss = float((sign * share * weight * A * ours).sum())
    grad = sign * share * weight * A
    if rule == "weights-have-gradients":  # d/dx of min(e^(x - y), C) x
        grad = sign * share * A * np.where(ratio < cap, ratio * (1 + ours), cap)
    return loss, grad


HINTS = {
    "a-loss-is-a-reward": "an optimizer makes the loss smaller. Is that what the reward is to become?",
    "weights-have-gradients": "the value is right, the gradient is not: it flows through the weights too",
    "the-other-way-round": "from whom were the tokens drawn, and for whom is the mean to hold?",
    "nearly-the-ratio": "the difference of two logarithms is the logarithm of what?",
    "never-truncated": "a weight is above the cap",
    "both-ends": "weights are held up from below too. The text truncates them on one side",
    "what-is-above-is-dropped": "a token above the cap has no weight at all in yours",
    "no-weights": "the weights make no difference",
    "weights-add-up": "the weights are divided by their mean; here they stay as they are",
    "one-weight-a-sequence": "all tokens of a sequence have one weight, the product. Here each token has its own",
    "the-mean-of-the-sequence": "all tokens of a sequence have one weight, the geometric mean. Here each has its own",
    "the-smaller-of-two": "the sign of the advantage decides in yours who is truncated, as in PPO. Here it does not",
    "padding-counts": "by how many tokens is the sum divided: by those that there are?",
    "a-mean-of-means": "a token of a short sequence counts more than one of a long one",
    "a-sum": "the mean over the tokens is wanted",
}


def tis_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1305])

    def case(name: str, lengths: list[int], spread: float, cap: float, *, garbage: bool = False) -> Case:
        """Drawn until some weights are truncated and some are not, where there is a spread."""
        B, T = len(lengths), max([6, *lengths])
        mask = np.arange(T)[None, :] < np.array(lengths)[:, None]
        while True:
            trainer = -rng.exponential(1.5, (B, T)) - 0.05
            sampler = trainer + spread * rng.normal(size=(B, T))
            sampler = np.minimum(sampler, -0.01)
            ratio = np.exp(trainer - sampler)[mask]
            if spread == 0 or not mask.any():
                break
            if (ratio > 1.2 * cap).sum() >= 2 and (ratio < 0.8 / cap).sum() >= 2 and (np.abs(ratio - 1) < 0.3).any():
                break
        advantage = rng.uniform(0.5, 1.5, B) * np.where(np.arange(B) % 2, -1, 1)
        if garbage:
            sampler[~mask] = rng.choice([-np.inf, np.nan, 0.0], (~mask).sum())
            trainer[~mask] = -40.0 - rng.uniform(size=(~mask).sum())
        found = {"trainer": trainer, "sampler": sampler, "advantage": advantage}
        return {
            "name": name,
            "mask": mask,
            "cap": cap,
            **{key: value.astype(np.float32) for key, value in found.items()},
        }

    cap = round(float(rng.uniform(1.5, 2.5)), 2)
    far = case("a sampler far off", [6, 6], 0.7, cap)
    far["sampler"][0, 2], far["trainer"][0, 2] = -95.0, -1.0  # a ratio that FP32 does not hold
    return [
        case("trainer and sampler agree", [6, 6, 6], 0.0, cap),
        case("they differ, all tokens count", [8, 8, 8, 8], 0.7, cap),
        case("sequences of unlike lengths", [9, 2, 5, 3], 0.7, cap),
        case("behind the end stands anything", [7, 3, 6, 2], 0.7, cap, garbage=True),
        far,
        case("a sequence without tokens", [6, 0, 5, 6], 0.7, cap, garbage=True),
        case("no token at all", [0, 0], 0.7, cap, garbage=True),
    ]


def tis_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    import torch

    trainer = torch.from_numpy(case["trainer"]).requires_grad_()
    given = (torch.from_numpy(case[key]) for key in ("sampler", "advantage", "mask"))
    loss = answer(trainer, *given, case["cap"])
    if isinstance(loss, torch.Tensor) and loss.requires_grad and loss.numel() == 1:
        loss.sum().backward()
    return {"loss": loss, "grad": trainer.grad}


def tis_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Relative 1e-4 of the sum of the sizes of the terms: FP32 exponentials of log-probabilities down to -10."""
    loss = returned["loss"]
    if loss is None or not hasattr(loss, "shape"):
        return Wrong(f"a tensor of one number is wanted; {kind(loss)} came back", form=True)
    if loss.numel() != 1:
        return Wrong(f"one number is wanted; yours has the shape {tuple(loss.shape)}", form=True)
    value = float(loss)
    if not case["mask"].any():
        if value == 0:
            return None
        return Wrong(f"there is no token, and the loss is {value:g}; the text says what it is then", "empty-is-nan")
    grad = None if returned["grad"] is None else np.asarray(returned["grad"].numpy(), dtype=np.float64)
    if grad is None:
        return Wrong("no gradient reaches the trainer's log-probabilities. What was detached?", "nothing-to-learn")
    if not np.isfinite(value) or not np.isfinite(grad).all():
        what = "loss" if not np.isfinite(value) else "gradient"
        text = f"the {what} is not a finite number. What is 0 times NaN, and what stands where the mask is False?"
        if not case["mask"].all():
            return Wrong(text, "zero-times-anything-is-zero")
        return Wrong(f"the {what} is not a finite number. How large is the largest ratio, before it is truncated?")

    def same(rule: str, with_gradient: bool) -> bool:
        one, two = _loss(case, rule)
        scale = np.abs(two * np.where(case["mask"], case["trainer"], 0)).sum() + 1e-6
        close = abs(one - value) <= 1e-4 * scale
        return bool(close and (not with_gradient or np.allclose(two, grad, atol=1e-4 * np.abs(two).max(), rtol=1e-4)))

    if same("", True):
        return None
    for rule, text in HINTS.items():
        if same(rule, True):
            return Wrong(text, rule)
    if grad[~case["mask"]].any():
        return Wrong("a gradient reaches tokens that are not there", "padding-counts")
    if same("", False):
        return Wrong("the value is right, the gradient is not. What of your loss should be a constant?")
    return Wrong(
        f"the loss is {value:.5g}: one line each for ratio, weight, term and mean, and compare with a token by hand"
    )


TIS = Exercise(
    id="truncated-sampling",
    title="Truncated importance sampling",
    cases=tis_cases,
    run=tis_run,
    judge=tis_judge,
    forbidden=("course_lib.failures",),
    misconceptions={
        "a-loss-is-a-reward": "what is good is added to a loss",
        "weights-have-gradients": "importance weights are learned too",
        "the-other-way-round": "the ratio is sampler over trainer",
        "nearly-the-ratio": "a log-ratio is a ratio",
        "never-truncated": "an unbiased estimate is worth any noise",
        "both-ends": "to truncate is to clip on both sides",
        "what-is-above-is-dropped": "what is above the cap is thrown away",
        "no-weights": "the tokens were drawn by the trainer, nearly",
        "weights-add-up": "importance weights are normalised, always",
        "one-weight-a-sequence": "an importance weight is that of a sequence, always",
        "the-mean-of-the-sequence": "an importance weight is that of a sequence, by its mean",
        "the-smaller-of-two": "truncation is PPO's clipping",
        "padding-counts": "positions that are masked count in a mean",
        "a-mean-of-means": "the mean of the sequences' means is the mean of the tokens",
        "a-sum": "a larger batch may have a larger loss",
        "zero-times-anything-is-zero": "zero times anything is zero",
        "empty-is-nan": "a batch without a token has no loss",
        "nothing-to-learn": "everything that comes from the sampler's text is a constant",
    },
)
