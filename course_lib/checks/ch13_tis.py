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
    if rule == "all-tokens-before":
        gap = np.cumsum(gap * mask, axis=1)
    with np.errstate(over="ignore"):
        ratio = 1 + gap if rule == "nearly-the-ratio" else np.exp(gap)
    weight = np.minimum(ratio, 2.0 if rule == "the-cap-is-2" else cap)
    if rule == "the-larger-of-two":
        weight = np.maximum(ratio, cap)
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
    if rule == "a-mean-over-sequences":
        share = mask / len(mask)
    sign = 1.0 if rule == "a-loss-is-a-reward" else -1.0
    loss = float((sign * share * weight * A * ours).sum())
    grad = sign * share * weight * A
    if rule == "weights-have-gradients":  # d/dx of min(e^(x - y), C) x
        grad = sign * share * A * np.where(ratio < cap, ratio * (1 + ours), cap)
    if rule == "the-ratio-is-the-objective":  # no p; the ratio has the gradient
        loss = float((sign * share * np.minimum(ratio, cap) * A).sum())
        grad = sign * share * A * np.where(ratio < cap, ratio, 0.0)
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
    "a-mean-over-sequences": "by how many is the sum divided: by the sequences or by the tokens?",
    "all-tokens-before": "a token's weight in yours is the product of all up to it. Here each token has its own",
    "the-larger-of-two": "a weight is never below the cap in yours. The smaller of which two is it to be?",
    "the-cap-is-2": "every cap has the same effect in yours. Where is `cap` used?",
    "the-ratio-is-the-objective": "yours adds weight x A, as PPO's loss does, and the weight has a gradient; "
    "the text's term has one factor more",
}


def tis_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1305])

    def case(name: str, mask: Array, spread: float, cap: float, *, garbage: bool = False) -> Case:
        """Drawn until some weights are truncated and some are not, where there is a spread."""
        while True:
            trainer: Array = np.asarray(-rng.exponential(1.5, size=mask.shape) - 0.05)
            sampler = np.minimum(trainer + spread * rng.normal(size=mask.shape), -0.01)
            ratio = np.exp(trainer - sampler)[mask]
            if spread == 0 or not mask.any():
                break
            if (ratio > 1.2 * cap).sum() >= 2 and (ratio < 0.8 / cap).sum() >= 2 and (np.abs(ratio - 1) < 0.3).any():
                break
        if garbage:
            sampler[~mask] = rng.choice([-np.inf, np.nan, 0.0], (~mask).sum())
            trainer[~mask] = rng.choice([-40.0, np.nan, -np.inf], (~mask).sum())
            if not mask.any():
                sampler[0, 0] = trainer[0, 0] = np.nan
        advantage = rng.uniform(0.5, 1.5, len(mask)) * np.where(np.arange(len(mask)) % 2, -1, 1)
        return {
            "name": name,
            "mask": mask,
            "cap": cap,
            "trainer": trainer.astype(np.float32),
            "sampler": sampler.astype(np.float32),
            "advantage": advantage.astype(np.float32),
        }

    cap = round(float(rng.uniform(1.5, 1.9)), 2)  # never 2
    unlike, ends, hollow = _lengths(9, 2, 5, 3), _lengths(7, 3, 6, 2), _lengths(6, 0, 5, 6)
    prompts = _lengths(9, 6, 8) & ~_lengths(3, 1, 5, width=9)
    prompts[0, 5] = prompts[2, 6] = False
    far = case("a sampler far off", _lengths(6, 6), 0.7, cap)
    far["sampler"][0, 2], far["trainer"][0, 2] = -95.0, -1.0  # a ratio that FP32 does not hold
    rare = case("tokens that are very rare to both", _lengths(6, 6), 0.7, cap)
    rare["sampler"][0, :3], rare["trainer"][0, :3] = [-20.5, -120.25, -1.0], [-20.25, -120.5, -8.0]
    rare["sampler"][1, :2], rare["trainer"][1, :2] = [-119.5, -18.5], [-119.25, -19.0]
    high = case("a high cap", _lengths(6, 6), 0.7, 1.5)
    high["cap"] = 300.0
    high["sampler"][0, 1], high["trainer"][0, 1] = -6.5, -1.0  # a ratio of 245
    high["sampler"][1, 3], high["trainer"][1, 3] = -8.0, -0.5  # one of 1,800
    return [
        case("trainer and sampler agree", _lengths(6, 6, 6), 0.0, cap),
        case("they differ, all tokens count", _lengths(8, 8, 8, 8), 0.7, cap),
        case("sequences of unlike lengths", unlike, 0.7, cap),
        case("behind the end stands anything", ends, 0.7, cap, garbage=True),
        case("a prompt before the text, and holes", prompts, 0.7, cap, garbage=True),
        far,
        rare,
        high,
        case("a sequence without tokens", hollow, 0.7, cap, garbage=True),
        case("no token at all", _lengths(0, 0), 0.7, cap, garbage=True),
    ]


def _lengths(*lengths: int, width: int = 6) -> Array:
    """A mask, True for as many positions of each row."""
    return np.asarray(np.arange(max(width, *lengths))[None, :] < np.array(lengths)[:, None])


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
    if returned["grad"] is not None and tuple(returned["grad"].shape) != tuple(case["trainer"].shape):
        return Wrong(f"the gradient has the shape {tuple(returned['grad'].shape)}, not that of the log-probabilities")
    if not case["mask"].any():
        if value == 0 and (returned["grad"] is None or not np.any(returned["grad"].numpy())):
            return None
        if value == 0:
            return Wrong("there is no token, and a gradient that is not 0", "zero-times-anything-is-zero")
        return Wrong(f"there is no token, and the loss is {value:g}; the text says what it is then", "empty-is-nan")
    grad = None if returned["grad"] is None else np.asarray(returned["grad"].numpy(), dtype=np.float64)
    if grad is None:
        return Wrong("no gradient reaches the trainer's log-probabilities. What was detached?", "nothing-to-learn")
    if not np.isfinite(value) or not np.isfinite(grad).all():
        what = "loss" if not np.isfinite(value) else "gradient"
        text = f"the {what} is not a finite number. What is 0 times NaN, and what stands where the mask is False?"
        if not case["mask"].all():
            return Wrong(text, "zero-times-anything-is-zero")
        return Wrong(
            f"the {what} is not a finite number. How large is the largest ratio before it is truncated, and how small "
            "is the smallest of the probabilities themselves?"
        )

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
        "a-mean-over-sequences": "a mean over a batch is one over its sequences",
        "all-tokens-before": "a token's weight is that of the text up to it",
        "the-larger-of-two": "truncation holds small weights up",
        "the-cap-is-2": "the cap is 2, always",
        "the-ratio-is-the-objective": "a weighted log-probability and a ratio are the same loss",
        "zero-times-anything-is-zero": "zero times anything is zero",
        "empty-is-nan": "a batch without a token has no loss",
        "nothing-to-learn": "everything that comes from the sampler's text is a constant",
    },
)
