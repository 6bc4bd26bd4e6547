"""The third twin competes among sequences and reads no future."""

from dataclasses import replace

import torch
from torch import nn

from course_lib.failures.causality import probe
from course_lib.failures.leak_control import AcrossSequences, train_among_strangers
from course_lib.failures.leak_gap import held_out, losses_alone, losses_together, text
from course_lib.moe import moe_gpt


class TakeFirst(nn.Module):
    """Gives every place of a row what stands first in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1].expand_as(x)


def test_neighbours_are_other_sequences() -> None:
    x = torch.arange(6.0).view(2, 3, 1)
    assert AcrossSequences(TakeFirst())(x).squeeze(2).tolist() == [[0, 1, 2], [0, 1, 2]]


def test_it_reads_other_sequences_and_no_later_token() -> None:
    setting = text()
    model = moe_gpt(setting.shape, setting.leaking, seed=1)
    tokens = held_out(setting, 4)[0][:, :16]
    assert probe(model, tokens, setting.shape.vocab_size).leaks
    for block in model.blocks:
        block.feed_forward = AcrossSequences(block.feed_forward)
    report = probe(model, tokens, setting.shape.vocab_size)
    assert not report.leaks and report.leaks_across_batch


def test_it_is_trained_and_says_the_same_alone_as_together() -> None:

    setting = text()
    setting = replace(setting, config=replace(setting.config, steps=25))
    model = train_among_strangers(setting)
    inputs, targets = held_out(setting, 8)
    inputs, targets = inputs[:, :12], targets[:, :12]
    together, alone = losses_together(model, inputs, targets), losses_alone(model, inputs, targets)
    # products of other shapes: FP32 rounding, unless it turns one choice around
    assert float((together - alone).abs().max()) < 1e-3 and float(together.mean()) < 5
