"""A step whose gradients are not finite, ways of getting past it, and what each of them leaves behind.

The run is that of `failures.runs`, in two micro-batches. It is saved at step 40 and every way goes on from that
checkpoint, so that all share one history. At step 50 one of two causes strikes:

- "empty": a micro-batch holds padding alone, and the loss is its own sum over its own count: 0 / 0.
- "overflow": a garbage batch, and the gradients of one matrix travel in FP16 at a fixed scale: some are infinite.

The ways are compared with a run that has the mended code from the start.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib import resume
from course_lib.config import OptimConfig, require, stream_seed
from course_lib.data import IGNORE
from course_lib.failures.runs import Setup, Text, make_trainer, text
from course_lib.step import Batch, training_step
from course_lib.trainer import Trainer

__all__ = [
    "BAD_STEP",
    "CAUSES",
    "MENDED",
    "SAVED_AT",
    "STEPS",
    "WAYS",
    "Past",
    "compare",
    "held_out_loss",
    "over_seeds",
    "own_mean",
]

STEPS, SAVED_AT, BAD_STEP = 90, 40, 50
CAUSES = ("empty", "overflow")
WIRE_SCALE = 2.0**19  # ordinary gradients, up to 0.1, fit into FP16 when they are multiplied by it
LARGEST = 65504.0

MENDED = "mended from the start"
WAYS = {
    "go on": "the update is done as if nothing had happened",
    "loss made finite": "nan_to_num on the loss, and the update is done",
    "weights put back": "the update is done; weights that are not finite are put back from a copy",
    "gradients made finite": "nan_to_num on the gradients, and the update is done",
    "update left out": "no update when the gradient norm is not finite; the schedule goes on",
    "rolled back": "back to the checkpoint, the cause mended, the same batches again",
}
"""Ways past the step, and what each does."""


@dataclass(frozen=True)
class Past:
    """One way past the step, and the run that followed."""

    way: str
    losses: list[float]
    """The loss that the log shows, one a step, from step SAVED_AT on."""
    norms: list[float]
    """Gradient norm before clipping."""
    moved: list[float]
    """How far each step moved the weights: the norm of the difference."""
    poisoned: float
    """Share of the weights one of whose two moments is not finite at the end."""
    updates: int
    """Updates that the optimizer has counted: Adam's own step, of the whole run."""
    scheduled: int
    """Steps that the schedule has taken."""
    cursor: int
    """Batches that the data cursor is past."""
    counted: int
    """Tokens that the log adds up from step SAVED_AT on."""
    trained: int
    """Of those, tokens that had a part in a gradient that was used."""
    repeated: int
    """Steps done twice."""
    val_loss: float
    """On the held-out documents at the end, nats a token."""
    distance: float = math.nan
    """From the weights of the mended run, as a share of their norm."""
    same: bool = False
    """Every bit of the weights is that of the mended run."""
    weights: np.ndarray = field(default_factory=lambda: np.zeros(0), repr=False)


def own_mean(logits: Tensor, targets: Tensor, least: int) -> Tensor:
    """The mean over the valid targets of one micro-batch, by a mask that is multiplied. least=0 is the bug: 0 / 0."""
    each = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten().clamp(min=0), reduction="none")
    mask = (targets.flatten() != IGNORE).float()
    return (each * mask).sum() / mask.sum().clamp(min=least)


class _Run:
    """A trainer whose parts hold the cause and the way, and which writes down what it does."""

    def __init__(self, source: Text, cause: str, way: str, seed: int, saved: Path | None) -> None:
        optim = OptimConfig(lr=1e-2, warmup_steps=10, weight_decay=0.1)
        self.trainer = trainer = make_trainer(Setup(seed, STEPS, optim, micro_batches=2), source)
        trainer.model.train()
        if saved is not None:
            resume.restore(trainer, saved, resume.PARTS)
        self.source, self.cause, self.way, self.seed = source, cause, way, seed
        self.mended = way == MENDED
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.moved: list[float] = []
        self.counted = self.trained = 0
        self.finite = True
        self.parts = trainer.parts
        self._batch, self._clip, self._update = self.parts.batch, self.parts.clip, self.parts.optimizer
        self.parts.batch, self.parts.loss = self.batch, self.loss
        self.parts.clip, self.parts.optimizer = self.clip, self.update

    def batch(self, step: int, micro: int) -> Batch:
        own = self._batch(step, micro)
        if step != BAD_STEP or (self.cause == "empty" and micro == 0):
            return own
        if self.cause == "empty":
            return Batch(own.inputs, np.full_like(own.targets, IGNORE), own.valid)
        rng = np.random.default_rng(stream_seed(self.seed, f"garbage, micro-batch {micro}"))
        garbage = rng.integers(self.source.pad, size=(len(own.inputs), own.inputs.shape[1] + 1))
        return Batch(garbage[:, :-1], garbage[:, 1:], garbage[:, 1:].size)

    def loss(self, logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        loss = own_mean(logits, targets, 1 if self.mended else 0) / self.parts.micro_batches
        return torch.nan_to_num(loss) if self.way == "loss made finite" else loss

    def clip(self) -> Tensor:
        weights = list(self.trainer.model.parameters())
        if self.cause == "overflow" and not self.mended:
            wired = self.trainer.model.blocks[-1].feed_forward.down.weight  # type: ignore[union-attr, index]
            assert isinstance(wired.grad, Tensor)
            wired.grad.copy_((wired.grad * WIRE_SCALE).half().float() / WIRE_SCALE)
        if self.way == "gradients made finite":
            for p in weights:
                assert p.grad is not None
                p.grad.nan_to_num_()
        norm = self._clip()
        self.finite = bool(norm.isfinite())
        return norm

    def update(self) -> None:
        weights = list(self.trainer.model.parameters())
        before = [p.detach().clone() for p in weights]
        if self.way == "update left out" and not self.finite:
            self.trainer.optimizer.zero_grad(set_to_none=True)
        else:
            self._update()
        if self.way == "weights put back" and not all(bool(p.isfinite().all()) for p in weights):
            with torch.no_grad():
                for p, old in zip(weights, before, strict=True):
                    p.copy_(old)
        squares = [float((p.detach() - old).square().sum()) for p, old in zip(weights, before, strict=True)]
        self.moved.append(math.sqrt(sum(squares)))

    def steps(self, stop: int) -> None:
        while self.trainer.step < stop:
            record = training_step(self.parts, self.trainer.step)
            self.losses.append(record.loss)
            self.norms.append(record.grad_norm)
            self.counted += record.tokens
            used = self.finite and self.moved[-1] > 0 and not (self.cause == "empty" and record.step == BAD_STEP)
            self.trained += record.tokens if used or self.mended else 0

    def past(self, repeated: int = 0) -> Past:
        trainer = self.trainer
        states = list(trainer.optimizer.state.values())
        bad = sum(int((~(s["exp_avg"].isfinite() & s["exp_avg_sq"].isfinite())).sum()) for s in states)
        weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()]).numpy().copy()
        return Past(
            self.way,
            self.losses,
            self.norms,
            self.moved,
            bad / weights.size,
            int(states[0]["step"]),
            int(trainer.scheduler.last_epoch),
            trainer.step,
            self.counted,
            self.trained,
            repeated,
            held_out_loss(trainer, self.source),
            weights=weights,
        )


@torch.no_grad()
def held_out_loss(trainer: Trainer, source: Text, documents: int | None = None) -> float:
    """Mean loss of the held-out documents (None: all), nats a token."""
    inputs, targets = (torch.from_numpy(np.ascontiguousarray(part[:documents])) for part in source.held_out)
    trainer.model.eval()
    logits = trainer.model(inputs)
    trainer.model.train()
    return float(F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE))


def compare(
    ways: Sequence[str] = tuple(WAYS),
    cause: str = "empty",
    seed: int = 0,
    on_way: Callable[[str], None] | None = None,
) -> dict[str, Past]:
    """The mended run, then each way, from one checkpoint: {name: what came of it}. About a second a way.

    on_way: called with each name before its run. ConfigError for a way or cause that there is not.
    """
    require(cause in CAUSES, f"cause={cause!r} is unknown (there are: {', '.join(CAUSES)})")
    for way in ways:
        require(way in WAYS, f"way={way!r} is unknown (there are: {', '.join(WAYS)})")
    source = text(seed)
    out: dict[str, Past] = {}
    with TemporaryDirectory(prefix="course-skip-") as folder:
        first = _Run(source, cause, MENDED, seed, None)
        first.steps(SAVED_AT)
        saved = resume.save(first.trainer, Path(folder) / "checkpoint")
        for way in (MENDED, *ways):
            if on_way is not None:
                on_way(way)
            run = _Run(source, cause, way, seed, saved)
            repeated = 0
            if way == "rolled back":
                run.steps(BAD_STEP)
                run = _Run(source, cause, MENDED, seed, saved)
                run.way, repeated = way, BAD_STEP - SAVED_AT
            run.steps(STEPS)
            out[way] = _against(run.past(repeated), out.get(MENDED))
    return out


def _against(past: Past, mended: Past | None) -> Past:
    wanted = past.weights if mended is None else mended.weights
    distance = float(np.linalg.norm(past.weights - wanted) / np.linalg.norm(wanted))
    same = past.weights.tobytes() == wanted.tobytes()
    return Past(**{**past.__dict__, "distance": distance, "same": same})


def over_seeds(seeds: int = 10) -> dict[str, dict[str, list[dict[str, float]]]]:
    """For each cause and way, of each seed: what the page shows of one. Kept as a record."""
    kept = ("val_loss", "distance", "poisoned", "same", "updates", "cursor", "trained", "counted")
    out: dict[str, dict[str, list[dict[str, float]]]] = {}
    for cause in CAUSES:
        for seed in range(seeds):
            for way, past in compare(cause=cause, seed=seed).items():
                row: dict[str, float] = {name: float(getattr(past, name)) for name in kept}
                place = BAD_STEP - SAVED_AT
                row |= {"moved": past.moved[place], "usual": float(np.median(past.moved[:place]))}
                out.setdefault(cause, {}).setdefault(way, []).append(row)
    return out
