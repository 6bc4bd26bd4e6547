"""A policy that learns from texts which another engine wrote: stable on-policy, biased otherwise, and two repairs.

The policy is a small GPT that has nearly learned to write four digits in reverse. It goes on with the plainest policy
gradient, reward times the gradient of log-probability (Williams 1992, without a baseline); the reward is the share of
digits that are right. On-policy the pushes on all texts cancel in the mean. With another sampler they do not: what is
left is about the reward times the difference of the two distributions, at every step in the same direction. Two ways
subtract the mean reward of the batch first, so that little is left: the control.

Repairs: truncated importance sampling (Ionides 2008; Yao et al. 2025), each token times min(pi_trainer / pi_sampler,
C), and matched numerics (Qi et al. 2025, arXiv 2510.26788): the trainer computes as the sampler does.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from course_lib.config import ModelConfig, stream_seed
from course_lib.errors import ConfigError
from course_lib.failures.offpolicy import engine, log_probs, sample
from course_lib.model import GPT

__all__ = ["DIGITS", "LENGTH", "WAYS", "PolicyDrift", "Way", "pretrained", "recorded", "run"]

DIGITS, LENGTH = 10, 4
"""Tokens 0 to 9 are digits, 10 stands between the digits that are asked and the answer of as many."""
UPDATES, TEXTS, LEARNING_RATE, LIMIT = 150, 128, 5e-4, 2.0


@dataclass(frozen=True)
class Way:
    """Who writes, and how the trainer deals with it."""

    sampler: str
    """One of `offpolicy.NUMERICS`."""
    truncated: bool = False
    matched: bool = False
    baseline: bool = False
    """Subtract the batch's mean reward, as nearly everybody does."""


WAYS: dict[str, Way] = {
    "FP32 sampler": Way("fp32"),
    "FP8 sampler": Way("fp8"),
    "FP8, truncated ratios": Way("fp8", truncated=True),
    "FP8, matched trainer": Way("fp8", matched=True),
    "FP32, baseline": Way("fp32", baseline=True),
    "FP8, baseline": Way("fp8", baseline=True),
}
"""The trainer computes in FP32, but for the matched one."""


@dataclass(frozen=True)
class PolicyDrift:
    """One run, a number an update."""

    way: str
    seed: int
    reward: list[float]
    """Mean reward of the texts that the sampler wrote."""
    kl: list[float]
    """KL(sampler || trainer), nats per token, estimated from the written texts (k3)."""

    @property
    def final(self) -> float:
        """Mean reward of the last fifth of the updates."""
        last = self.reward[-(len(self.reward) // 5) :]
        return sum(last) / len(last)


def _stream(seed: int, purpose: str) -> torch.Generator:
    return torch.Generator().manual_seed(stream_seed(seed, purpose))


def questions(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """What is asked, digits and a separator (count, LENGTH + 1), and the right answers (count, LENGTH)."""
    digits = torch.randint(0, DIGITS, (count, LENGTH), generator=generator)
    return torch.cat([digits, torch.full((count, 1), DIGITS)], 1), digits.flip(1)


def pretrained(seed: int, steps: int = 400) -> GPT:
    """The policy to begin with: a GPT of two layers after `steps` batches of questions with their right answers."""
    shape = ModelConfig(vocab_size=DIGITS + 1, d_model=32, n_layers=2, n_heads=2, context=2 * LENGTH + 2)
    model, generator = GPT(shape, seed=seed), _stream(seed, "right answers")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0)
    for _ in range(steps):
        asked, answer = questions(64, generator)
        loss = -log_probs(model, torch.cat([asked, answer], 1), LENGTH + 1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model


def _as_the_sampler(model: GPT) -> dict[str, Tensor]:
    """The parameters as `engine(model, "fp8")` has them, with gradients that reach the FP32 ones."""
    made = {}
    for name, p in model.named_parameters():
        value = p.detach()
        if p.dim() >= 2:
            scale = value.abs().max() / 448
            value = (value / scale).to(torch.float8_e4m3fn).float() * scale
        made[name] = (p + (value - p).detach()).to(torch.bfloat16)
    return made


def run(
    way: str = "FP8 sampler",
    seed: int = 0,
    *,
    start: GPT | None = None,
    updates: int = UPDATES,
    lr: float = LEARNING_RATE,
) -> PolicyDrift:
    """Go on from `start` (None: `pretrained(seed)`), which stays as it is. A seed asks every way the same questions."""
    if way not in WAYS:
        raise ConfigError(f"no way {way!r}; there are {', '.join(WAYS)}")
    how, model, draws = WAYS[way], copy.deepcopy(start or pretrained(seed)), _stream(seed, "texts")
    asking = _stream(seed, "questions")
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0)
    rewards, kls = [], []
    for _ in range(updates):
        asked, answer = questions(TEXTS, asking)
        texts = sample(engine(model, how.sampler), asked, LENGTH, draws)
        written = texts.tokens[:, LENGTH + 1 :]  # (B, L)
        reward = (written == answer).float().mean(1)  # (B,)
        gain = reward - reward.mean() if how.baseline else reward
        inputs = texts.tokens[:, :-1]
        logits = functional_call(model, _as_the_sampler(model), (inputs,)) if how.matched else model(inputs)
        ours = F.log_softmax(logits[:, LENGTH:].float(), -1).gather(2, written[:, :, None]).squeeze(2)
        gap = (ours - texts.log_probs).detach()
        weight = gap.exp().clamp(max=LIMIT) if how.truncated else torch.ones_like(gap)
        loss = -(weight * gain[:, None] * ours).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rewards.append(float(reward.mean()))
        kls.append(float((torch.expm1(gap) - gap).mean()))
    return PolicyDrift(way, seed, rewards, kls)


def recorded() -> dict[str, Any]:
    """Ten seeds of every way: reward at the end; KL, of all updates and of the first. Called "policy_drift"."""
    found: dict[str, dict[str, list[float]]] = {name: {"final": [], "kl": [], "kl_first": []} for name in WAYS}
    for seed in range(10):
        start = pretrained(seed)
        for name, kept in found.items():
            one = run(name, seed, start=start)
            kept["final"].append(round(one.final, 4))
            kept["kl"].append(float(f"{sum(one.kl) / len(one.kl):.3g}"))
            kept["kl_first"].append(float(f"{sum(one.kl[:5]) / 5:.3g}"))
    return {"updates": UPDATES, "ways": found}
