"""A third twin: experts choose among four tokens, as in the leaking one, but the four are of four sequences.

As many places, as many rivals for them, and no rival from the future: what this twin lacks against the honest one is
the price of the competition, and what the leaking one lacks besides is the price of the leak.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from course_lib.failures.leak_gap import Setting, held_out, losses_together, text
from course_lib.moe import moe_gpt
from course_lib.trainer import Trainer

__all__ = ["AcrossSequences", "over_seeds", "train_among_strangers"]


class AcrossSequences(nn.Module):
    """A layer that is given x (B, T, D) as (T, B, D): its neighbours are other sequences at the same position."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x.transpose(0, 1).contiguous())
        return out.transpose(0, 1)


def train_among_strangers(setting: Setting, seed: int = 0) -> nn.Module:
    """The leaking twin's weights, data and schedule; its experts choose among sequences instead of positions."""
    model = moe_gpt(setting.shape, setting.leaking, seed)
    block: Any
    for block in model.blocks:
        block.feed_forward = AcrossSequences(block.feed_forward)
    Trainer(replace(setting.config, seed=seed), model, setting.corpus).run()
    return model.eval()


def over_seeds(seeds: int = 10, report: Callable[[str], None] = print) -> list[dict[str, float]]:
    """For each seed of `leak_gap.over_seeds`, the losses of this twin on the same text: nats a token."""
    setting = text()
    inputs, targets = held_out(setting, 64)
    found = []
    for seed in range(seeds):
        losses = losses_together(train_among_strangers(setting, seed), inputs, targets)
        row = {"strangers": float(losses.mean()), "strangers, last of four": float(losses[3::4].mean())}
        report(f"seed {seed}: " + ", ".join(f"{key} {value:.3f}" for key, value in row.items()))
        found.append({key: round(value, 3) for key, value in row.items()})
    return found
