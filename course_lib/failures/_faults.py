"""The faults of one process: each takes a trainer that is ready and replaces a part of it, as a bug would."""

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from course_lib.config import stream_seed
from course_lib.data import IGNORE
from course_lib.failures.runs import STEPS, Text
from course_lib.model import Attention, Block
from course_lib.optim import clip_by_global_norm
from course_lib.step import Batch
from course_lib.trainer import Trainer

__all__: list[str] = []

BAD_STEP = STEPS // 2 + 5
"""Where one bad batch comes: half-way between two kept states, and in no step near a resume."""


def shift_twice(trainer: Trainer, _: Text) -> None:
    """The data set shifts the labels, and the model's wrapper shifts them once more."""
    batch = trainer.parts.batch

    def shifted(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        again = np.concatenate([own.targets[:, 1:], np.full((len(own.targets), 1), IGNORE)], axis=1)
        return Batch(own.inputs, again, int((again != IGNORE).sum()))

    trainer.parts.batch = shifted


def count_padding(trainer: Trainer, source: Text) -> None:
    """Padding keeps its own id as a target, and is not ignored."""
    batch = trainer.parts.batch

    def padded(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        targets = np.where(own.targets == IGNORE, source.pad, own.targets)
        return Batch(own.inputs, targets, targets.size)

    trainer.parts.batch = padded


def one_shard(trainer: Trainer, _: Text, steps: int = 3) -> None:
    """The list of shards names the first shard again and again: the same batches come every `steps` steps."""
    batch = trainer.parts.batch
    trainer.parts.batch = lambda step, micro: batch(step % steps, micro)


def see_ahead(trainer: Trainer, _: Text) -> None:
    """The causal mask is left out in the first block's attention."""
    attention = trainer.model.blocks[0].attention  # type: ignore[union-attr, index]
    assert isinstance(attention, Attention)
    attention.attend = lambda q, k, v: F.scaled_dot_product_attention(q, k, v)  # type: ignore[method-assign]


def bad_batch(trainer: Trainer, source: Text) -> None:
    """A broken file: the batch of one step is words drawn at random."""
    batch, seed = trainer.parts.batch, trainer.config.seed

    def broken(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        if step != BAD_STEP:
            return own
        rng = np.random.default_rng(stream_seed(seed, "bad batch"))
        garbage = rng.integers(source.pad, size=(len(own.inputs), own.inputs.shape[1] + 1))
        return Batch(garbage[:, :-1], garbage[:, 1:], garbage[:, 1:].size)

    trainer.parts.batch = broken


def nothing_to_predict(trainer: Trainer, source: Text) -> None:
    """One batch holds padding alone, and the mean over its targets divides 0 by 0."""
    batch = trainer.parts.batch

    def emptied(step: int, micro: int) -> Batch:
        own = batch(step, micro)
        if step != BAD_STEP:
            return own
        return Batch(np.full_like(own.inputs, source.pad), np.full_like(own.targets, IGNORE), 0)

    def masked_mean(logits: Tensor, targets: Tensor, _: int) -> Tensor:
        mask = (targets != IGNORE).flatten()
        each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().clamp(min=0), reduction="none")
        return (each * mask).sum() / mask.sum()

    trainer.parts.batch, trainer.parts.loss = emptied, masked_mean


def no_norm(trainer: Trainer, _: Text) -> None:
    """The norm before each feed-forward became a constant factor: nothing holds its products back as they grow."""
    for module in trainer.model.modules():
        if isinstance(module, Block):
            module.feed_forward_norm.forward = lambda x: 64 * x  # type: ignore[method-assign]


def clip_before_unscale(trainer: Trainer, _: Text) -> None:
    """The gradients are clipped while they are still multiplied by the loss scale."""

    def clip() -> Tensor:
        return clip_by_global_norm(trainer.trained.values(), trainer.config.optim.clip_norm)

    trainer.parts.clip = clip


def without_masters(trainer: Trainer, _: Text) -> None:
    """The updates are added to the BF16 weights themselves: no FP32 copy keeps what is rounded away."""
    optimizer = trainer.parts.optimizer

    def rounded() -> None:
        optimizer()
        trainer.masters.refresh()

    trainer.masters.refresh()
    trainer.parts.optimizer = rounded


def half_moments(trainer: Trainer, _: Text) -> None:
    """Adam's moments are kept in FP16 between steps, to save memory, and epsilon stays at 1e-8."""
    optimizer = trainer.parts.optimizer

    def stored() -> None:
        optimizer()
        for state in trainer.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                state[name].copy_(state[name].half().float())

    trainer.parts.optimizer = stored


def hold_logits(trainer: Trainer, _: Text) -> None:
    """The logits of every step are put into a list, for a metric at the end."""
    forward, kept = trainer.parts.forward, list[Tensor]()

    def remembered(inputs: Tensor) -> Tensor:
        kept.append(forward(inputs))
        return kept[-1]

    trainer.parts.forward = remembered


def sorted_documents(trainer: Trainer, source: Text) -> None:
    """The windows of the text are taken in the order of their subject, journeys last."""
    stream, micros = trainer.stream, trainer.parts.micro_batches
    count = trainer.config.steps * stream.batch
    starts = stream.context * np.arange(count)
    windows = source.corpus.train[starts[:, None] + np.arange(stream.context)]
    places = (windows >= source.pad - 16) & (windows < source.pad)  # the last words of the language
    order = np.argsort(places.sum(1), kind="stable")
    at = starts[order][:, None] + np.arange(stream.context + 1)

    def in_order(step: int, micro: int) -> Batch:
        rows = at[step * stream.batch : (step + 1) * stream.batch]
        targets = source.labels[rows][:, 1:].astype(np.int64)
        mine = slice(micro * len(rows) // micros, (micro + 1) * len(rows) // micros)
        return Batch(
            source.corpus.train[rows][mine, :-1].astype(np.int64), targets[mine], int((targets != IGNORE).sum())
        )

    trainer.parts.batch = in_order
