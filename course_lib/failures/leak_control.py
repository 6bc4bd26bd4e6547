"""Twins that compete for experts and read no future: what they lack is the price of the competition, not of the leak.

In the leaking twin an expert takes the best of four neighbouring tokens. `train_among_predecessors`: it takes a token
that is the best of itself and the three before it, so the rivals are tokens that the position knows.
`train_among_strangers`: the four are of four sequences, so the rivals are tokens that the position cannot see.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.failures.leak_gap import Setting, held_out, losses_together, text
from course_lib.moe import MoE, moe_gpt
from course_lib.routers import expert_capacity
from course_lib.trainer import Trainer

__all__ = [
    "AcrossSequences",
    "AmongPredecessors",
    "among_predecessors",
    "over_seeds",
    "train_among_predecessors",
    "train_among_strangers",
]


def among_predecessors(scores: Tensor, top_k: int, chunk: int) -> Tensor:
    """Each expert takes a token that is among the best of itself and the chunk - 1 before it.

    As many of `chunk` as `expert_choice` takes, over many tokens. scores (B, T, E) -> gates (B, T, E).
    """
    rivals = F.pad(scores, (0, 0, chunk - 1, 0), value=-1.0).unfold(1, chunk, 1)  # (B, T, E, chunk)
    better = (rivals > scores[..., None]).sum(-1)
    return scores * (better < expert_capacity(chunk, scores.shape[2], top_k, 1.0))


class AmongPredecessors(MoE):
    """A layer whose experts choose with `among_predecessors`."""

    def choose(self, scores: Tensor) -> Tensor:
        return among_predecessors(scores, self.config.top_k, self.config.chunk or scores.shape[1])


class AcrossSequences(nn.Module):
    """A layer that is given x (B, T, D) as (T, B, D): its neighbours are other sequences at the same position."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.transpose(0, 1).contiguous())
        return out.transpose(0, 1)


def train_among_predecessors(setting: Setting, seed: int = 0) -> nn.Module:
    """The leaking twin's weights, data and schedule; its experts choose among a token and those before it."""

    def other(layer: MoE) -> nn.Module:
        new = AmongPredecessors(layer.router.shape[0], layer.config)
        new.load_state_dict(layer.state_dict())
        return new

    return _train(setting, seed, other)


def train_among_strangers(setting: Setting, seed: int = 0) -> nn.Module:
    """The leaking twin's weights, data and schedule; its experts choose among sequences instead of positions."""
    return _train(setting, seed, AcrossSequences)


def _train(setting: Setting, seed: int, other: Callable[[MoE], nn.Module]) -> nn.Module:
    model = moe_gpt(setting.shape, setting.leaking, seed)
    block: Any
    for block in model.blocks:
        block.feed_forward = other(block.feed_forward)
    Trainer(replace(setting.config, seed=seed), model, setting.corpus).run()
    return model.eval()


def over_seeds(seeds: int = 10, report: Callable[[str], None] = print) -> list[dict[str, float]]:
    """For each seed of `leak_gap.over_seeds`, the losses of both twins on the same text: nats a token.

    "strangers, one at a time": the same windows in batches of one. Each expert then chooses among one token and takes
    it, as it does for the first token of a prefix in the leaking twin.
    """
    setting = text()
    inputs, targets = held_out(setting, 64)
    found = []
    for seed in range(seeds):
        row: dict[str, float] = {}
        strangers = train_among_strangers(setting, seed)
        for name, model in (("predecessors", train_among_predecessors(setting, seed)), ("strangers", strangers)):
            losses = losses_together(model, inputs, targets)
            row |= {name: float(losses.mean()), f"{name}, last of four": float(losses[3::4].mean())}
        single = [losses_together(strangers, x, y) for x, y in zip(inputs.split(1), targets.split(1), strict=True)]
        row["strangers, one at a time"] = float(torch.stack(single).mean())
        report(f"seed {seed}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))
        found.append({key: round(value, 3) for key, value in row.items()})
    return found
