"""The twins of the leaking one compete for experts and read no future."""

from dataclasses import replace

import torch
from torch import nn

from course_lib.failures.causality import probe
from course_lib.failures.leak_control import (
    AcrossSequences,
    among_predecessors,
    train_among_predecessors,
    train_among_strangers,
)
from course_lib.failures.leak_gap import held_out, losses_alone, losses_together, text
from course_lib.moe import moe_gpt
from course_lib.routers import expert_choice_chunks


class TakeFirst(nn.Module):
    """Gives every place of a row what stands first in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x[:, :1].expand_as(x)


def test_the_best_of_a_token_and_those_before_it_is_taken() -> None:
    scores = torch.rand((2, 9, 8), generator=torch.Generator().manual_seed(0)).softmax(2)
    for top_k, takes in ((2, 1), (4, 2)):  # of four tokens
        gates = among_predecessors(scores, top_k, 4)
        for b, t, e in torch.cartesian_prod(*(torch.arange(size) for size in scores.shape)).tolist():
            best = sorted(scores[b, max(0, t - 3) : t + 1, e].tolist())[-takes:]
            expected = float(scores[b, t, e]) if float(scores[b, t, e]) in best else 0.0
            assert float(gates[b, t, e]) == expected


def test_the_fourth_of_a_chunk_has_the_rivals_of_the_leaking_router() -> None:
    scores = torch.rand((2, 16, 8), generator=torch.Generator().manual_seed(1)).softmax(2)
    own, leaking = among_predecessors(scores, 2, 4), expert_choice_chunks(scores, 2, 4)
    assert torch.equal(own[:, 3::4], leaking[:, 3::4]) and not torch.equal(own, leaking)


def test_among_predecessors_it_reads_no_later_token_and_no_other_sequence() -> None:
    setting = text()
    setting = replace(setting, config=replace(setting.config, steps=22))
    model = train_among_predecessors(setting, seed=1)
    report = probe(model, held_out(setting, 4)[0][:, :16], setting.shape.vocab_size)
    assert report.clean
    weights = {name for name, _ in moe_gpt(setting.shape, setting.leaking, 1).named_parameters()}
    assert {name for name, _ in model.named_parameters()} == weights


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
