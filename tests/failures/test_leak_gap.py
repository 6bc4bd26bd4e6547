"""Twins that differ in one rule: the three ways to ask for a loss, the leak, the exchange of a router, and writing."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from course_lib.errors import ConfigError
from course_lib.failures import records
from course_lib.failures.leak_gap import (
    continuations,
    held_out,
    known_words,
    letters,
    losses_alone,
    losses_together,
    losses_with_another_future,
    switch_routing,
    text,
    train,
    write,
)
from course_lib.moe import moe_gpt, moe_layers

ASK = (losses_together, losses_alone, losses_with_another_future)


class Peek(nn.Module):
    """Is sure that the next token comes next, when it is in the window; else it knows nothing."""

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = torch.zeros(*tokens.shape, 16)
        coming = torch.nn.functional.one_hot(tokens[:, 1:], 16)
        logits[:, :-1] += 30.0 * coming
        return logits


def test_three_ways_to_ask_tell_a_reader_of_the_future_from_none() -> None:
    inputs, targets = held_out(letters(), 300)
    together, alone, other = (ask(Peek(), inputs, targets) for ask in ASK)
    assert together[:-1].max() < 1e-6 and together[-1] == pytest.approx(math.log(16))  # no future is left there
    assert alone.tolist() == pytest.approx([math.log(16)] * 8)
    assert other[:-1].min() > 20 and other[-1] == pytest.approx(math.log(16))  # sure of another's future


def test_an_honest_model_is_asked_the_same_in_all_three() -> None:
    setting = letters()
    model = moe_gpt(setting.shape, setting.routing(True)).eval()
    inputs, targets = held_out(setting, 64)
    together, alone, other = (ask(model, inputs, targets) for ask in ASK)
    # products of other shapes add up in another order: FP32 rounding of losses near 3
    assert alone.tolist() == pytest.approx(together.tolist(), abs=1e-5)
    assert other.tolist() == pytest.approx(together.tolist(), abs=1e-5)


def test_letters_are_chapter_zeros_and_no_window_is_used_twice() -> None:
    setting = letters()
    assert setting.corpus.train[:5].tolist() == np.random.default_rng(0).integers(16, size=320_000)[:5].tolist()
    assert setting.config.steps * setting.config.batch <= len(setting.corpus.train) // 8 - 1
    assert not np.array_equal(setting.corpus.train[:60_000], setting.corpus.val)


def test_a_few_steps_with_experts_that_choose_fall_below_the_entropy_and_alone_they_do_not() -> None:
    setting = letters()
    inputs, targets = held_out(setting, 2048)
    model, losses = train(setting, False, seed=3, steps=100)
    assert len(losses) == 100
    together, alone = (float(ask(model, inputs, targets).mean()) for ask in ASK[:2])
    # over ten seeds together lies 0.1 below after 300 steps; sampling error here is about 0.003
    assert together < math.log(16) - 0.015 and alone > math.log(16)


def test_going_on_starts_from_the_same_weights_and_leaves_the_old_model() -> None:
    setting = letters()
    start = moe_gpt(setting.shape, setting.routing(False))
    before = [p.clone() for p in start.parameters()]
    seen: list[int] = []
    model, losses = train(setting, True, model=start, steps=22, look=lambda step, _: seen.append(step))
    assert seen == [*range(1, 23)] and len(losses) == 22
    assert all(torch.equal(a, b) for a, b in zip(before, start.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert [layer.config.routing for layer in moe_layers(start)] == ["expert_choice"] * 2
    assert [layer.config.routing for layer in moe_layers(model)] == ["token_choice"] * 2


def test_another_router_is_another_answer_with_equal_weights() -> None:
    setting = letters()
    model = moe_gpt(setting.shape, setting.routing(False)).eval()
    honest = switch_routing(model, setting.routing(True))
    tokens, _ = held_out(setting, 4)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), honest.parameters(), strict=True))
    assert not torch.equal(model(tokens), honest(tokens))
    with pytest.raises(ConfigError, match="n_experts=4 does not fit"):
        switch_routing(model, replace(setting.routing(True), n_experts=4))


def test_held_out_windows_are_of_the_validation_text_and_few_enough() -> None:
    setting = text()
    inputs, targets = held_out(setting, 5)
    assert inputs.shape == targets.shape == (5, 64) and torch.equal(inputs[:, 1:], targets[:, :-1])
    assert len({tuple(row) for row in held_out(setting, 50)[0].tolist()}) == 50
    with pytest.raises(ConfigError, match="or fewer"):
        held_out(setting, 10**6)


def test_writing_is_the_same_for_the_same_seed_and_longer_by_what_was_asked() -> None:
    setting = text()
    model = moe_gpt(setting.shape, setting.routing(False)).eval()
    inputs, _ = held_out(setting, 3)
    once, again = (write(model, inputs[:, :12], 5, seed=1) for _ in range(2))
    assert once.shape == (3, 17) and torch.equal(once, again) and torch.equal(once[:, :12], inputs[:, :12])
    assert len(continuations(model, inputs[:, :20], setting.corpus)) == 3


def test_known_words_do_not_count_what_may_be_cut() -> None:
    corpus = text().corpus
    assert known_words(["xxq the value qqzzx xxq"], corpus) == pytest.approx(2 / 3)
    assert known_words(["xxq of is qqzz"], corpus) == 0 and known_words([""], corpus) == 0


def test_the_record_has_ten_seeds_of_all_measures() -> None:
    rows = records.load("leak_gap")
    assert len(rows) == 10 and all(set(row) == set(rows[0]) for row in rows)
    assert all(0 <= value < 5 for row in rows for value in row.values())
