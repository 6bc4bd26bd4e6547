"""A policy-gradient task small enough to be run ten times: a tiny GPT learns to write digits in rising order.

A sampler writes 64 texts, a text's reward is the share of its digits that are larger than the one before, and the
trainer raises the log-probability of what did better than the mean (REINFORCE, Williams 1992, with a batch mean as its
baseline). The sampler may compute in other numerics, or be given new weights in another way than all of them at every
update: that is a mismatch. The repair is truncated importance sampling (Yao et al. 2025; Ionides 2008): each token's
term times min(pi_trainer / pi_sampler, C).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.config import ModelConfig, stream_seed
from course_lib.errors import ConfigError
from course_lib.failures.offpolicy import NUMERICS, engine, sample
from course_lib.model import GPT
from course_lib.optim import clip_by_global_norm

__all__ = ["DIGITS", "LENGTH", "MISMATCHES", "Mismatch", "PolicyRun", "recorded", "reward", "run", "texts"]

DIGITS, LENGTH, TEXTS, STEPS = 10, 8, 64, 160
"""Token 10 begins a text, 0 to 9 are its eight digits. Texts a step, and steps a run."""
LEARNING_RATE, CAP, SCORED = 5e-3, 1.0, 256

Correction: TypeAlias = Literal["none", "tis"]


@dataclass(frozen=True)
class Mismatch:
    """How the sampler differs from the trainer."""

    title: str
    numerics: str = "fp32"
    """One of `offpolicy.NUMERICS`."""
    every: int = 1
    """The sampler is given the trainer's weights after so many updates."""
    increments: str = ""
    """A format: the sampler keeps its own weights in it, and to them each update is added, rounded to it."""


MISMATCHES: dict[str, Mismatch] = {
    "matched": Mismatch("the trainer's weights in FP32, at every update"),
    "fp16": Mismatch("in FP16", "fp16"),
    "bf16": Mismatch("in BF16", "bf16"),
    "fp8": Mismatch("matrices rounded to FP8 E4M3", "fp8"),
    "bf16 increments": Mismatch("its own BF16 weights, to which each update is added", increments="bf16"),
    "fp8 increments": Mismatch("its own FP8 weights, to which each update is added", increments="fp8"),
    "stale": Mismatch("the weights of up to 15 updates ago", every=16),
}
"""By name. matched keeps one difference, the KV cache against the full forward, of about 1e-6."""


@dataclass(frozen=True)
class PolicyRun:
    """One run. Each series has a number for each update."""

    mismatch: str
    correction: str
    seed: int
    reward: list[float]
    """Mean reward of the texts that the sampler wrote."""
    k3: list[float]
    """KL(sampler || trainer) per token by the k3 estimator, before the update."""
    largest: list[float]
    """Largest difference of a token's log-probability, trainer against sampler, nats."""
    entropy: list[float]
    """Of the trainer's distribution at the written places, mean, nats per token."""
    grad_norm: list[float]
    final: float
    """Mean reward of 256 texts that the trainer itself writes in FP32 at the end."""
    text: str
    """The first four of them."""

    @property
    def late(self) -> float:
        """Mean reward of what the sampler wrote in the second half of the run: a number for drift and collapse."""
        half = self.reward[len(self.reward) // 2 :]
        return sum(half) / len(half)


def reward(digits: Tensor) -> Tensor:
    """Share of the digits that are larger than the one before: (B, L) -> (B,). 1: strictly rising."""
    rising = (digits[:, 1:] > digits[:, :-1]) & (digits[:, 1:] < DIGITS)
    return rising.float().mean(1)


def texts(model: GPT, count: int, generator: torch.Generator) -> Tensor:
    """What the model writes: (count, LENGTH) tokens."""
    return sample(model, torch.full((count, 1), DIGITS), LENGTH, generator).tokens[:, 1:]


def run(
    mismatch: str = "matched",
    correction: Correction = "none",
    seed: int = 0,
    *,
    steps: int = STEPS,
    lr: float = LEARNING_RATE,
    cap: float = CAP,
    every: int | None = None,
) -> PolicyRun:
    """Train one policy. The seed decides the initial weights and the sampler's draws, for every mismatch alike.

    cap: the C of truncated importance sampling. every: instead of the mismatch's own.
    """
    if mismatch not in MISMATCHES:
        raise ConfigError(f"no mismatch {mismatch!r}; there are {', '.join(MISMATCHES)}")
    if correction not in ("none", "tis"):
        raise ConfigError(f"correction={correction!r} must be 'none' or 'tis'")
    how = MISMATCHES[mismatch]
    assert how.numerics in NUMERICS
    config = ModelConfig(vocab_size=DIGITS + 1, d_model=32, n_layers=1, n_heads=2, context=LENGTH + 1)
    model = GPT(config, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, betas=(0.9, 0.95))
    generator = torch.Generator().manual_seed(stream_seed(seed, "texts"))
    kept = _Increments(model, how.increments) if how.increments else None
    begin = torch.full((TEXTS, 1), DIGITS)
    series: dict[str, list[float]] = {name: [] for name in ("reward", "k3", "largest", "entropy", "grad_norm")}
    for step in range(steps):
        if kept is not None:
            sampler = kept.follow(model)
        elif step % (how.every if every is None else every) == 0:
            sampler = engine(model, how.numerics)
        drawn = sample(sampler, begin, LENGTH, generator)
        rewards = reward(drawn.tokens[:, 1:])
        advantage = (rewards - rewards.mean()) / (rewards.std() + 1e-4)  # (B,)
        every_log_prob = F.log_softmax(model(drawn.tokens[:, :-1]), -1)  # (B, L, V)
        log_probs = every_log_prob.gather(2, drawn.tokens[:, 1:, None]).squeeze(2)  # (B, L)
        difference = (log_probs - drawn.log_probs).detach()
        weight = difference.exp().clamp(max=cap) if correction == "tis" else torch.ones_like(difference)
        loss = -(weight * advantage[:, None] * log_probs).sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        norm = clip_by_global_norm(model.parameters(), 1.0)
        optimizer.step()
        found = every_log_prob.detach()
        for name, value in (
            ("reward", rewards.mean()),
            ("k3", (torch.expm1(difference) - difference).mean()),
            ("largest", difference.abs().max()),
            ("entropy", -(found.exp() * found).sum(2).mean()),
            ("grad_norm", norm),
        ):
            series[name].append(float(value))
    written = texts(model, SCORED, torch.Generator().manual_seed(stream_seed(seed, "scored texts")))
    shown = " ".join("".join(str(d) if d < DIGITS else "?" for d in row) for row in written[:4].tolist())
    return PolicyRun(mismatch, correction, seed, **series, final=float(reward(written).mean()), text=shown)


class _Increments:
    """A sampler with weights of its own in a narrow format, to which the trainer's updates are added one by one."""

    def __init__(self, model: GPT, fmt: str) -> None:
        self.fmt, self.sampler = fmt, engine(model, "fp32")
        self.seen = [p.detach().clone() for p in model.parameters()]
        # FP8: a scale for each tensor that leaves room to grow to twice its first largest entry.
        self.scales = [p.abs().max() / 224 for p in self.seen]
        self._store(self.seen)

    def follow(self, model: GPT) -> GPT:
        """Add to each weight what the trainer's has changed by since the last call, and round the sum."""
        new = [p.detach().clone() for p in model.parameters()]
        steps = [after - before for after, before in zip(new, self.seen, strict=True)]
        self._store([p + step for p, step in zip(self.sampler.parameters(), steps, strict=True)])
        self.seen = new
        return self.sampler

    def _store(self, values: Sequence[Tensor]) -> None:
        for p, value, scale in zip(self.sampler.parameters(), values, self.scales, strict=True):
            if self.fmt == "fp8":
                p.data = (value / scale).clamp(-448, 448).to(torch.float8_e4m3fn).float() * scale
            else:
                p.data = value.to(NUMERICS[self.fmt]).float()


def recorded(seeds: Sequence[int] = tuple(range(10))) -> dict[str, Any]:
    """Ten seeds of each mismatch, and of two with the repair, by "mismatch correction". The result "policy_task".

    reward: means over 16 updates each.
    """
    found: dict[str, Any] = {}
    for mismatch, correction in (*((name, "none") for name in MISMATCHES), ("stale", "tis"), ("fp8 increments", "tis")):
        runs = [run(mismatch, correction, seed) for seed in seeds]  # type: ignore[arg-type]
        found[f"{mismatch} {correction}"] = {
            "final": [round(one.final, 4) for one in runs],
            "late": [round(one.late, 4) for one in runs],
            "reward": [[round(sum(one.reward[i : i + 16]) / 16, 3) for i in range(0, STEPS, 16)] for one in runs],
            "largest": [float(f"{max(one.largest):.3g}") for one in runs],
            "k3": [float(f"{sum(one.k3) / len(one.k3):.3g}") for one in runs],
        }
    return found
