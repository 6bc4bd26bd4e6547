"""Checks of numerics and optimizer: ranges, norms, what an update moves, and the learning rate against its plan."""

import math

import numpy as np
import torch

from course_lib.failures.evidence import Check, Finding, loss_of, replayed, tensors_of
from course_lib.failures.runs import Kept, Run
from course_lib.optim import clip_by_global_norm, lr_at

__all__: list[str] = []

NUMERICS, OPTIMIZER = "numerics", "optimizer"


def first_nonfinite(run: Run) -> Finding:
    """A loss or a weight that is not finite; a gradient that a scaler caught is its daily work."""
    bad = {}
    for name in ("loss", "activation", "update_ratio"):
        found = [k for k, value in enumerate(run.series[name]) if not math.isfinite(value)]
        if found:
            bad[name] = found[0]
    total = sum(not math.isfinite(value) for value in run.series["loss"])
    text = f"{total} of {run.steps} losses are not finite"
    if bad:
        text += "; first: " + ", ".join(f"{name} at step {step}" for name, step in bad.items())
    return Finding({"losses": total, **{f"first_{name}": step for name, step in bad.items()}}, text, bool(bad))


def scale_log(run: Run) -> Finding:
    """A scaler that seeks its scale skips one step in 100, or three at the start; more than 1 in 10 is no search."""
    skipped, scale = sum(run.series["skipped"]), run.series["scale"]
    text = f"loss scale from {scale[0]:g} to {scale[-1]:g}; {skipped:.0f} of {run.steps} updates were skipped"
    if len(set(scale)) == 1 and not skipped:
        text = f"loss scale {scale[0]:g} throughout; no update was skipped"
    return Finding({"first": scale[0], "last": scale[-1], "skipped": skipped}, text, skipped > 0.1 * run.steps)


def activation_range(run: Run) -> Finding:
    """FP16 ends at 65,504. Within a factor of 8 of it the next growth is an overflow."""
    largest = [value for value in run.series["activation"] if not math.isnan(value)]
    first, most = largest[0], max(largest)
    text = f"the largest activation is {first:.3g} at the first step and {most:.3g} at most; FP16 ends at 65504"
    return Finding({"first": first, "most": most}, text, most > 65504 / 8)


def norm_ratio(run: Run) -> Finding:
    """The logged gradient norm over that of the same batch, computed anew in FP32: 1; a factor of 2 is for rounding."""
    ratios = []
    for kept in run.kept[:: max(1, len(run.kept) // 4)]:
        logged = run.series["grad_norm"][kept.step] if kept.step < run.steps else math.nan
        if not math.isfinite(logged) or logged == 0:
            continue
        with replayed(run, kept) as trainer:
            trainer.model.zero_grad(set_to_none=True)
            loss_of(trainer, *tensors_of(run, kept.step)).backward()
            grads = [p.grad.float() for p in trainer.model.parameters() if p.grad is not None]
            own = float(torch.nn.utils.get_total_norm(grads))
        if math.isfinite(own) and own > 0:
            ratios.append(logged / own)
    ratio = float(np.median(ratios)) if ratios else 1.0
    text = f"the logged gradient norm is {ratio:.4g} times that of the batch in FP32 (median of {len(ratios)} steps)"
    return Finding({"ratio": ratio, "steps": len(ratios)}, text, not 0.5 < ratio < 2)


def weights_moving(run: Run) -> Finding:
    """Share of the weights that an update changes, over the last steps with one: all, where no rounding swallows it."""
    pairs = zip(run.notes["moved"], run.series["skipped"], run.series["update_ratio"], strict=True)
    moved = [share for share, skipped, ratio in pairs if not skipped and math.isfinite(ratio)][-10:]
    share = float(np.mean(moved)) if moved else 1.0
    text = f"an update changes {share:.1%} of the weights that the optimizer holds (the last {len(moved)} updates)"
    return Finding({"share": share}, text, share < 0.9)


def adam_bound(run: Run) -> Finding:
    """Adam moves no weight by more than 1.17 learning rates at betas 0.9, 0.95 (Cauchy-Schwarz); 3 times that here."""
    b1, b2 = run.setup.optim.betas
    bound = (1 - b1) / math.sqrt((1 - b2) * (1 - b1**2 / b2))
    far = np.array(run.notes["farthest"])
    step = int(np.argmax(np.where(np.isfinite(far), far, -1)))
    text = (
        f"the farthest step of a weight is {far[step]:.3g} learning rates, at step {step}; Adam's bound is {bound:.2f}"
    )
    return Finding({"farthest": float(far[step]), "bound": bound, "step": step}, text, bool(far[step] > 3 * bound))


def update_sizes(run: Run) -> Finding:
    """Norm of an update over norm of the weights. Beyond 0.3 a step replaces a third of what was learned."""
    sizes = [value for value in run.series["update_ratio"] if math.isfinite(value)]
    text = f"an update is {np.median(sizes):.2g} of the weights at the median, {max(sizes):.2g} at most"
    return Finding({"median": float(np.median(sizes)), "most": max(sizes)}, text, max(sizes) > 0.3)


def step_probe(run: Run) -> Finding:
    """The first steps once more, at the run's learning rate and at a tenth of it, and the held-out loss after.

    Usually a tenth has learned less by then. Where it is 0.25 nats ahead, the steps are too long.
    """
    steps = range(min(25, run.steps))
    full, tenth = (_trained_on(run, run.kept[0], steps, factor) for factor in (1.0, 0.1))
    text = (
        f"after the first {len(steps)} steps once more the held-out loss is {full:.2f} at the run's learning rate and "
        f"{tenth:.2f} at a tenth of it"
    )
    return Finding({"full": full, "tenth": tenth, "steps": len(steps)}, text, not full - tenth <= 0.25)


def _trained_on(run: Run, kept: Kept, steps: range, factor: float) -> float:
    """Held-out loss after these steps from a kept state, at `factor` times the run's learning rates."""
    with replayed(run, kept) as trainer:
        for step in steps:
            trainer.model.zero_grad(set_to_none=True)
            loss_of(trainer, *tensors_of(run, step)).backward()
            trainer.masters.take_gradients()
            clip_by_global_norm(trainer.trained.values(), trainer.config.optim.clip_norm)
            for group in trainer.optimizer.param_groups:
                group["lr"] = run.series["lr"][step] * factor
            trainer.optimizer.step()
            trainer.masters.copy_back()
            trainer.optimizer.zero_grad(set_to_none=True)
        with torch.no_grad():
            return float(loss_of(trainer, *map(torch.from_numpy, run.text.held_out)))


def lr_start(run: Run) -> Finding:
    """The first learning rate against the highest: a warm-up starts far below; above half there is none."""
    rates = run.series["lr"]
    share = rates[0] / max(rates)
    text = f"the first update has {share:.0%} of the highest learning rate, which comes at step {int(np.argmax(rates))}"
    return Finding({"share": share, "peak_step": int(np.argmax(rates))}, text, share > 0.5)


def lr_resume(run: Run) -> Finding:
    """The learning rate after each resume against the schedule at that many updates: the same to 1 in 100."""
    setup, worst, parts = run.setup, 0.0, []
    for step in setup.resumes:
        if step < run.steps:
            updates = step - int(sum(run.series["skipped"][:step]))
            plan, used = lr_at(updates, setup.optim, setup.steps), run.series["lr"][step]
            worst = max(worst, abs(used / plan - 1))
            parts.append(f"{used:.2g} at step {step}, where the schedule has {plan:.2g}")
    text = "learning rate after a resume: " + "; ".join(parts) if parts else "the run was not resumed"
    return Finding({"worst": worst, "resumes": len(parts)}, text, worst > 0.01)


CHECKS = (
    Check("first_nonfinite", "Find the first number that is not finite", NUMERICS, 3, first_nonfinite),
    Check("scale_log", "Read the log of the loss scale", NUMERICS, 3, scale_log),
    Check("activation_range", "Compare the largest activation with the range of FP16", NUMERICS, 5, activation_range),
    Check("weights_moving", "Count the weights that an update changes", NUMERICS, 15, weights_moving),
    Check("norm_ratio", "Compute a logged gradient norm anew in FP32", NUMERICS, 20, norm_ratio),
    Check("lr_start", "Read the learning rate of the first steps", OPTIMIZER, 3, lr_start),
    Check("lr_resume", "Compare the learning rate after each resume with the schedule", OPTIMIZER, 3, lr_resume),
    Check("update_sizes", "Compare the size of the updates with that of the weights", OPTIMIZER, 5, update_sizes),
    Check("adam_bound", "Find the farthest step of a single weight, in learning rates", OPTIMIZER, 15, adam_bound),
    Check("step_probe", "Train the first steps again, at a tenth of the learning rate", OPTIMIZER, 30, step_probe),
)
