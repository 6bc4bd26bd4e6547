"""Steps left out as a habit: by one rank alone, and under a loss scaler that takes every NaN for an overflow.

And infinite gradients made finite under PyTorch's own clipping, which hides them.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.config import OptimConfig, require
from course_lib.data import IGNORE
from course_lib.failures import skipped_step
from course_lib.failures.runs import Setup, make_trainer, text
from course_lib.failures.skipped_step import Past, held_out_loss, own_mean
from course_lib.parallel.launch import run_ranks
from course_lib.step import Batch, StepParts, training_step
from course_lib.trainer import Trainer

__all__ = ["RANK_STEP", "Apart", "Scaled", "on_one_rank", "torch_clip", "under_a_scaler", "without_a_scaler"]

RANK_STEPS, RANK_STEP = 50, 20
SCALE_STEPS = 60


@dataclass(frozen=True)
class Apart:
    """Two data-parallel replicas, one of which left out an update."""

    losses: list[float]
    """The global loss, as rank 0 logs it."""
    apart: list[float]
    """Distance between the two ranks' weights after each step."""
    moved: list[float]
    """How far rank 0's weights moved in each step."""


def on_one_rank(together: bool = False, seed: int = 0) -> Apart:
    """Data parallel on two ranks; at step 20 rank 1's half of the batch holds no target, so its loss is not finite.

    Rank 1 sends zeros in place of its gradients, and then looks at its own loss and leaves its update out. together:
    the ranks agree first, and both leave it out.
    """
    first = run_ranks(_rank, 2, together, seed, timeout=120)[0]
    return Apart(**first)


def _rank(together: bool, seed: int) -> dict[str, list[float]]:
    trainer = make_trainer(Setup(seed, RANK_STEPS, micro_batches=2), text(seed), parallel="ddp")  # one for each rank
    trainer.model.train()
    parts, rank = trainer.parts, dist.get_rank()
    batch, update = parts.batch, parts.optimizer
    bad = torch.zeros(())

    def emptied(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        if step != RANK_STEP or rank == 0:
            return own
        return Batch(own.inputs, np.full_like(own.targets, IGNORE), own.valid)

    def loss(logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        own = own_mean(logits, targets, 0) / dist.get_world_size()  # the ranks' gradients are summed
        bad.copy_(~own.isfinite())
        return 0.0 * logits.sum() if bad else own

    def guarded() -> None:
        if together:
            dist.all_reduce(bad, op=dist.ReduceOp.MAX)
        if bad:
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer._passes = 0
        else:
            update()

    parts.batch, parts.loss, parts.optimizer = emptied, loss, guarded
    found: dict[str, list[float]] = {"losses": [], "apart": [], "moved": []}
    for _ in range(RANK_STEPS):
        before = _flat(trainer)
        found["losses"].append(training_step(parts, trainer.step).loss)
        after = _flat(trainer)
        both = [torch.empty_like(after) for _ in range(2)]
        dist.all_gather(both, after)
        found["apart"].append(float((both[0] - both[1]).norm()))
        found["moved"].append(float((after - before).norm()))
    return found


def _flat(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])


@dataclass(frozen=True)
class Scaled:
    """A run in FP16 with a loss scaler, in which every few steps one batch makes NaN."""

    scales: list[float]
    """What the loss was multiplied by, each step."""
    lost: list[float]
    """Share of the gradient's numbers that are exactly 0, each step that was not skipped; NaN for one that was."""
    losses: list[float]
    skipped: int
    val_loss: float


def under_a_scaler(every: int | None = 3, seed: int = 0) -> Scaled:
    """FP16 with PyTorch's scaler as it comes: 2^16, halved at each step that is not finite, doubled after 2,000 others.

    every: at each such step one batch holds no target, and the loss is 0 / 0. None: never.
    """
    optim = OptimConfig(lr=1e-2, warmup_steps=6, weight_decay=0.1)
    source = text(seed)
    trainer = make_trainer(Setup(seed, SCALE_STEPS, optim, precision="fp16"), source)
    trainer.model.train()
    lost: list[float] = []
    _emptied(trainer.parts, every)
    clip = trainer.parts.clip

    def counted() -> Tensor:
        norm = clip()
        zeros = sum(int((p.grad == 0).sum()) for p in trainer.model.parameters() if p.grad is not None)
        lost.append(zeros / trainer.parameters if norm.isfinite() else math.nan)
        return norm

    trainer.parts.clip = counted
    records = [training_step(trainer.parts, trainer.step) for _ in range(SCALE_STEPS)]
    return Scaled(
        [record.scale or 1.0 for record in records],
        lost,
        [record.loss for record in records],
        sum(record.skipped for record in records),
        held_out_loss(trainer, source),
    )


def without_a_scaler(every: int, seed: int = 0) -> float:
    """The control: the same steps left out in FP32, the schedule waiting for them as it does for a scaler.

    Returns the held-out loss. What it lacks against a run without NaN is missing updates alone.
    """
    optim = OptimConfig(lr=1e-2, warmup_steps=6, weight_decay=0.1)
    source = text(seed)
    trainer = make_trainer(Setup(seed, SCALE_STEPS, optim), source)
    trainer.model.train()
    parts = trainer.parts
    _emptied(parts, every)
    clip, update, schedule = parts.clip, parts.optimizer, parts.scheduler
    finite = True

    def looked() -> Tensor:
        nonlocal finite
        norm = clip()
        finite = bool(norm.isfinite())
        return norm

    def guarded() -> None:
        if finite:
            update()
        else:
            trainer.optimizer.zero_grad(set_to_none=True)
            trainer._passes = 0

    parts.clip, parts.optimizer = looked, guarded
    parts.scheduler = lambda: schedule() if finite else float(trainer.scheduler.get_last_lr()[0])
    for step in range(SCALE_STEPS):
        training_step(parts, step)
    return held_out_loss(trainer, source)


def torch_clip(seed: int = 0) -> Past:
    """`skipped_step`'s gradients that are made finite after an overflow, with torch.nn.utils.clip_grad_norm_.

    It multiplies by norm limit / infinity = 0, where the course's clipping leaves the gradients alone.
    """
    run = skipped_step._Run(text(seed), "overflow", "gradients made finite", seed, None)
    most = run.trainer.config.optim.clip_norm
    require(most is not None, "this run has no clipping")
    weights = list(run.trainer.model.parameters())
    run._clip = lambda: torch.nn.utils.clip_grad_norm_(weights, float(most or 0))
    run.mended = True  # no FP16 on the way before the checkpoint, as in the runs that this is compared with
    run.steps(skipped_step.SAVED_AT)
    run.mended = False
    run.steps(skipped_step.STEPS)
    return run.past()


def _emptied(parts: StepParts, every: int | None) -> None:
    batch = parts.batch

    def emptied(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        if every is None or step % every != every - 1:
            return own
        return Batch(own.inputs, np.full_like(own.targets, IGNORE), own.valid)

    parts.batch = emptied
    parts.loss = lambda logits, targets, valid: own_mean(logits, targets, 0)
