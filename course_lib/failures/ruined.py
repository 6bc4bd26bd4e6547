"""A training run that is ruined by one narrow accumulator, and its twin with everything else bit for bit the same.

`train` runs the course's own trainer with its optimizer step written out, so that each sum that lives from step to step
can be kept in 16 bits: the weights, Adam's second moment, or the gradient over micro-batches. A cure keeps 16 bits and
repairs the sum; "wider" is the healthy twin.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

from course_lib.amp import stochastic_round
from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig, stream_seed
from course_lib.errors import ConfigError
from course_lib.optim import lr_at
from course_lib.synthetic import SyntheticLanguage
from course_lib.trainer import Trainer, training_step

__all__ = ["ACCUMULATORS", "CURES", "Accumulator", "Ruined", "recorded", "train"]

Cure: TypeAlias = Literal["plain", "wider", "kahan", "stochastic"]
Part: TypeAlias = Literal["all", "gains", "matrices"]
"""Gains are the norms' parameters, vectors that begin at 1. The rest are matrices with small entries."""
CURES: tuple[Cure, ...] = ("plain", "wider", "kahan", "stochastic")
ACCUMULATORS = {
    "second_moment": "Adam's running mean of squared gradients",
    "weights": "the weights, to which every update is added",
    "gradients": "the gradient, to which every micro-batch adds",
}
"""What can be kept in 16 bits."""

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
SIZES = {"names": 16, "numbers": 16, "objects": 16}
STEPS = 240
"""Optimizer steps of a run."""


class Accumulator:
    """Values that are added to, kept in 16 bits: `value` is what was kept, as FP32.

    cure: plain rounds each sum to nearest; kahan keeps what the last sum lost in a second number of the format;
    stochastic rounds by chance; wider keeps FP32.
    """

    def __init__(self, start: Tensor, fmt: str, cure: Cure, generator: torch.Generator) -> None:
        self.dtype, self.cure, self.generator = DTYPES[fmt], cure, generator
        self.value = start.detach().float().clone()
        self.lost = torch.zeros_like(self.value)
        if cure != "wider":
            self.value = self._round(self.value)

    def add(self, change: Tensor) -> None:
        """value + change (FP32, the same shape), rounded as the cure says."""
        if self.cure == "kahan":
            wanted = self._round(change - self.lost)
            new = self._round(self.value + wanted)
            self.lost = self._round(self._round(new - self.value) - wanted)
            self.value = new
        elif self.cure == "stochastic":
            self.value = stochastic_round(self.value + change, self.dtype, self.generator).float()
        else:
            self.value = self.value + change if self.cure == "wider" else self._round(self.value + change)

    def clear(self) -> None:
        """Back to zero."""
        self.value, self.lost = torch.zeros_like(self.value), torch.zeros_like(self.value)

    def _round(self, x: Tensor) -> Tensor:
        return x.to(self.dtype).float()


@dataclass(frozen=True)
class Ruined:
    """One run."""

    accumulator: str
    format: str
    cure: str
    seed: int
    loss: list[float]
    """Training loss of each step, nats per token. The text is read once, so each is of tokens never seen before."""
    floor: float
    """The language's entropy: no model is better in the long run."""
    size: list[float]
    """Root mean square of the accumulator after each step, over all parameters."""
    still: list[float]
    """Share of its entries that a step did not move although its change was not 0."""
    still_gains: list[float]
    """The same share among the gains alone."""

    @property
    def final(self) -> float:
        """Mean loss of the last tenth of the steps; NaN when the run broke down."""
        return sum(self.loss[-(len(self.loss) // 10) :]) / (len(self.loss) // 10)


class _Optimizer:
    """AdamW in lines, as `torch.optim.AdamW` computes it, with each state in an accumulator of its own."""

    def __init__(self, trainer: Trainer, narrow: str, fmt: str, cure: Cure, part: Part, seed: int) -> None:
        self.trainer, self.narrow = trainer, narrow
        self.params: list[Tensor] = [p for group in trainer.optimizer.param_groups for p in group["params"]]
        generator = torch.Generator().manual_seed(stream_seed(seed, "rounding"))
        parts: dict[int, Part] = {1: "gains", 2: "matrices"}

        def made(name: str, start: Tensor) -> Accumulator:
            chosen = name == narrow and part in ("all", parts[start.dim()])
            return Accumulator(start, fmt, cure if chosen else "wider", generator)

        zeros = [torch.zeros_like(p) for p in self.params]
        self.first = [torch.zeros_like(p) for p in self.params]
        self.second = [made("second_moment", zero) for zero in zeros]
        self.weights = [made("weights", p) for p in self.params]
        self.gradients = [made("gradients", zero) for zero in zeros]
        self.measure = trainer.parts.clip
        self.count = 0
        self.size: list[float] = []
        self.still: list[float] = []
        self.still_gains: list[float] = []
        self._moves: list[tuple[bool, int, int]] = []
        self._write(zip(self.params, self.weights, strict=True))

    @torch.no_grad()
    def _write(self, pairs: Iterable[tuple[Tensor, Accumulator]]) -> None:
        for p, kept in pairs:
            p.copy_(kept.value)

    def backward(self, loss: Tensor) -> None:
        loss.backward()
        for p, kept in zip(self.params, self.gradients, strict=True):
            assert p.grad is not None
            self._add("gradients", kept, p.grad)
            p.grad = None

    def clip(self) -> Tensor:
        for p, kept in zip(self.params, self.gradients, strict=True):
            p.grad = kept.value.clone()
        return self.measure()

    @torch.no_grad()
    def step(self) -> None:
        lr = self.rate()
        self.count += 1
        states: dict[str, list[Accumulator]] = {
            "second_moment": self.second,
            "weights": self.weights,
            "gradients": self.gradients,
        }
        where = {id(p): i for i, p in enumerate(self.params)}
        for group in self.trainer.optimizer.param_groups:
            (beta1, beta2), eps, decay = (group[name] for name in ("betas", "eps", "weight_decay"))
            for p in group["params"]:
                i, g = where[id(p)], p.grad
                self.first[i].lerp_(g, 1 - beta1)
                self._add("second_moment", self.second[i], (1 - beta2) * (g * g - self.second[i].value))
                right = self.second[i].value.clamp(min=0) / (1 - beta2**self.count)
                update = self.first[i] / (1 - beta1**self.count) / (right.sqrt() + eps)
                self._add("weights", self.weights[i], -lr * (update + decay * p))
        squares = sum(float((kept.value**2).sum()) for kept in states[self.narrow])
        self.size.append(math.sqrt(squares / sum(p.numel() for p in self.params)))
        for shares, only in ((self.still, (False, True)), (self.still_gains, (True,))):
            asked = sum(move[2] for move in self._moves if move[0] in only)
            shares.append(sum(move[1] for move in self._moves if move[0] in only) / max(asked, 1))
        self._moves.clear()
        self._write(zip(self.params, self.weights, strict=True))
        for p, kept in zip(self.params, self.gradients, strict=True):
            p.grad = None
            kept.clear()

    def _add(self, name: str, kept: Accumulator, change: Tensor) -> None:
        before = kept.value
        kept.add(change)
        if name == self.narrow:
            asked = change != 0
            self._moves.append((change.dim() == 1, int((asked & (kept.value == before)).sum()), int(asked.sum())))

    def rate(self) -> float:
        """The learning rate of this update; the trainer's own scheduler would warn that torch's optimizer never ran."""
        return lr_at(self.count, self.trainer.config.optim, self.trainer.config.steps)

    def scheduler(self) -> float:
        return lr_at(self.count - 1, self.trainer.config.optim, self.trainer.config.steps)


def train(
    accumulator: str = "weights",
    fmt: str = "bf16",
    cure: Cure = "plain",
    seed: int = 0,
    *,
    steps: int = STEPS,
    micro_batches: int = 1,
    lr: float = 1e-3,
    beta2: float = 0.999,
    part: Part = "all",
) -> Ruined:
    """Train a small GPT on the synthetic language with one accumulator in 16 bits (cure "wider": in FP32).

    part: which parameters have it in 16 bits.

    The same seed gives the same initial weights, batches and schedule for every accumulator and cure.
    """
    if accumulator not in ACCUMULATORS:
        raise ConfigError(f"no accumulator {accumulator!r}; there are {', '.join(ACCUMULATORS)}")
    if fmt not in DTYPES:
        raise ConfigError(f"no format {fmt!r} of 16 bits; there are {', '.join(DTYPES)}")
    if cure not in CURES:
        raise ConfigError(f"no cure {cure!r}; there are {', '.join(CURES)}")
    language = SyntheticLanguage(seed, **SIZES)
    corpus = language.corpus(16 * 32 * steps + 64, 4_000, seed)
    config = TrainConfig(
        preset="mini",
        steps=steps,
        batch=16,
        micro_batch=16 // micro_batches,
        seed=seed,
        device="cpu",
        precision="fp32",
        val_every=0,
        data=DataConfig(tokenizer="bytes"),
        model=ModelOverrides(n_layers=2, d_model=48, n_heads=2, context=32),
        optim=OptimConfig(lr=lr, betas=(0.9, beta2), warmup_steps=20),
    )
    trainer = Trainer(config, corpus=corpus)
    written = _Optimizer(trainer, accumulator, fmt, cure, part, seed)
    parts = trainer.parts
    parts.backward, parts.clip = written.backward, written.clip
    parts.optimizer, parts.scheduler = written.step, written.scheduler
    trainer.model.train()
    loss: list[float] = []
    while len(loss) < steps and (not loss or math.isfinite(loss[-1])):
        loss.append(training_step(parts, len(loss)).loss)
    rest = [math.nan] * (steps - len(loss))  # nothing comes back from NaN
    floor = language.entropy()["all"]
    kept = (written.size + rest, written.still + rest, written.still_gains + rest)
    return Ruined(accumulator, fmt, cure, seed, loss + rest, floor, *kept)


RECORDED: tuple[tuple[str, str, Cure], ...] = (
    *(("weights", "bf16", cure) for cure in CURES),
    ("second_moment", "fp16", "plain"),
    ("second_moment", "fp16", "kahan"),
    ("second_moment", "fp16", "stochastic"),
    ("second_moment", "bf16", "plain"),
    ("gradients", "bf16", "plain"),
)


RATES = (1e-3, 3e-3, 1e-2)


def _beside_rates(seeds: range = range(3)) -> dict[str, dict[str, list[float]]]:
    """BF16 weights at three peak rates, and in a part of the parameters: how far behind FP32 at the end, in nats."""
    found: dict[str, dict[str, list[float]]] = {}
    cases: list[tuple[str, float, Part]] = [(f"lr {lr:g}", lr, "all") for lr in RATES]
    for name, lr, part in (*cases, ("gains", 1e-3, "gains"), ("matrices", 1e-3, "matrices")):
        runs = [train("weights", "bf16", "plain", seed, lr=lr, part=part) for seed in seeds]
        exact = [train("weights", "bf16", "wider", seed, lr=lr) for seed in seeds]
        found[name] = {
            "fp32": [round(run.final, 4) for run in exact],
            "behind": [round(run.final - other.final, 4) for run, other in zip(runs, exact, strict=True)],
            "still": [round(sum(run.still[-24:]) / 24, 3) for run in runs],
            "still_gains": [round(sum(run.still_gains[:20]) / 20, 3) for run in runs],
        }
    return found


def recorded() -> dict[str, Any]:
    """`final` of ten seeds, by "accumulator format cure"; None where the run broke down. The result called "ruined"."""
    found: dict[str, list[float | None]] = {}
    floors = [SyntheticLanguage(seed, **SIZES).entropy()["all"] for seed in range(10)]
    for name, fmt, cure in RECORDED:
        runs = [train(name, fmt, cure, seed, micro_batches=4 if name == "gradients" else 1) for seed in range(10)]
        found[f"{name} {fmt} {cure}"] = [round(run.final, 4) if math.isfinite(run.final) else None for run in runs]
    return {"steps": STEPS, "floor": [round(floor, 4) for floor in floors], "final": found, "beside": _beside_rates()}
