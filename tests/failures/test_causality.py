"""The leak probe: what it decides on, what it leaves alone, and what it says of bad input."""

import math
import random
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError, CourseError, DataError
from course_lib.failures import _specimen_parts as parts
from course_lib.failures.causality import leak_matrix, probe
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt, moe_layers

V, T = 19, 12
SHAPE = ModelConfig(vocab_size=V, d_model=16, n_layers=2, n_heads=2, context=T, init_std=0.1)
TOKENS = torch.randint(V, (3, T), generator=torch.Generator().manual_seed(5))


def gpt(attend: Any = None, layers: tuple[int, ...] = (0,)) -> GPT:
    model = GPT(SHAPE)
    for layer in layers if attend else ():
        model.blocks[layer].attention.attend = attend
    return model


def off_by_one(n: int) -> Tensor:
    return torch.ones(n, n).tril(1).bool()


class Called(nn.Module):
    """A model around a function of (model, tokens)."""

    def __init__(self, function: Any, model: nn.Module | None = None) -> None:
        super().__init__()
        self.function, self.model = function, model or gpt()

    def forward(self, tokens: Tensor) -> Any:
        return self.function(self.model, tokens)


# ------------------------------------------------------------------------------------------------- what it finds


def test_worst_is_true_of_the_model() -> None:
    """Changing the one token that it names moves the one position that it names."""
    for model in (gpt(parts.attend(off_by_one)), moe_gpt(SHAPE, MoEConfig(routing="expert_choice_chunks", chunk=4))):
        worst = probe(model, TOKENS, V).worst
        assert worst is not None
        double, moves = model.double(), []
        for new in range(V):
            changed = TOKENS.clone()
            changed[:, worst.saw] = new
            with torch.no_grad():
                moves.append(float((double(changed) - double(TOKENS)).abs()[:, worst.at].max()))
        assert max(moves) > 0.5 * worst.size
        assert worst.saw // 4 == worst.at // 4 or worst.saw == worst.at + 1


def test_a_leak_far_under_fp32_rounding_is_found_on_a_copy() -> None:
    """Weights of about exp(-20) = 2e-9 on later tokens."""
    model = gpt(parts.attend(parts.causal, blocked=-20.0), (0, 1))
    found = probe(model, TOKENS, V)
    assert found.leaks and found.worst is not None and found.worst.size < 1e-6, found
    assert not probe(lambda tokens: model(tokens), TOKENS, V).leaks  # it is noise to FP32


def test_the_noise_of_an_honest_model_is_no_leak() -> None:
    """An FP32 mixture of experts moves the past: how many tokens an expert has decides in which order it sums."""
    shape = ModelConfig(vocab_size=V, d_model=64, n_layers=2, n_heads=2, context=32, init_std=0.1)
    accused = 0
    for seed in range(4):
        model = moe_gpt(shape, MoEConfig(n_experts=4, top_k=2, d_expert=64), seed)
        tokens = torch.randint(V, (4, 32), generator=torch.Generator().manual_seed(seed))
        for forward in (model, lambda tokens, model=model: model(tokens)):
            accused += not probe(forward, tokens, V, seed=seed).clean
    assert accused == 0


def test_labels_that_are_the_inputs_and_a_model_for_them() -> None:
    assert probe(gpt(), TOKENS, V, predicts=0).leaks
    behind = Called(lambda model, tokens: model(F.pad(tokens, (1, 0))[:, :-1]))
    assert probe(behind, TOKENS, V, predicts=0).clean and probe(behind, TOKENS, V).clean


def test_documents_by_number() -> None:
    numbers = torch.tensor([0] * 5 + [1] * 4 + [2] * 3)
    same = numbers[:, None] == numbers[None]
    apart = gpt(parts.attend(lambda n: parts.causal(n) & same), (0, 1))
    assert probe(apart, TOKENS, V, documents=numbers).clean
    found = probe(gpt(), TOKENS, V, documents=numbers.expand(3, T))
    assert found.leaks_across_documents and not found.leaks and not found.leaks_across_batch
    assert "A document saw an earlier one" in found.text()


def test_the_matrix_is_the_mask() -> None:
    honest = leak_matrix(gpt(), TOKENS, V)
    assert honest.shape == (T, T) and (np.triu(honest, 1) == 0).all()
    assert (honest[np.tril_indices(T)] > 0).all()
    leaking = leak_matrix(gpt(parts.attend(off_by_one)), TOKENS, V)
    assert (np.triu(leaking, 2) == 0).all() and (np.diag(leaking, 1) > 0).all()
    chunks = leak_matrix(moe_gpt(SHAPE, MoEConfig(routing="expert_choice_chunks", chunk=5)), TOKENS, V)
    late = np.triu(chunks, 1)
    assert late[:5, 5:].max() == 0 == late[5:10, 10:].max() and late.max() > 0


def test_fraction_is_a_share_of_earlier_positions() -> None:
    everything = parts.attend(lambda n: torch.ones(n, n).bool())
    assert probe(gpt(everything, (0, 1)), TOKENS, V).fraction == 1
    assert 0 < probe(gpt(parts.attend(off_by_one)), TOKENS, V).fraction < 0.5


# ---------------------------------------------------------------------------------------------- what it leaves alone


def test_the_model_and_all_generators_are_left_as_they_were() -> None:
    model = moe_gpt(SHAPE, MoEConfig(aux_weight=0.1))
    model.blocks[0].attention_norm = parts.batch_norm(16)
    model(TOKENS).sum().backward()  # leaves gradients, and a balance with its graph
    model.blocks[1].eval()
    before = {name: value.clone() for name, value in [*model.named_parameters(), *model.named_buffers()]}
    modes, balance = [one.training for one in model.modules()], moe_layers(model)[0].balance
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    report = probe(model, TOKENS, V)
    assert "float64 copy in training mode" in report.how and report.leaks_across_batch
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        assert torch.equal(value, before[name]) and value.dtype == before[name].dtype, name
    assert [one.training for one in model.modules()] == modes and moe_layers(model)[0].balance is balance
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]
    assert (np.random.get_state()[1] == states[2]).all() and TOKENS.max() < V


class Stubborn(Called):
    """Cannot be copied."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("not this one")


def test_what_cannot_be_copied_is_asked_itself_and_keeps_its_buffers() -> None:
    model = Stubborn(lambda model, tokens: model(tokens))
    model.model.blocks[0].attention_norm = parts.batch_norm(16)
    before = {name: value.clone() for name, value in model.named_buffers()}
    report = probe(model, TOKENS, V)
    assert report.leaks and "on the module itself" in report.how and "100 times" in report.how
    assert all(torch.equal(value, before[name]) for name, value in model.named_buffers())


def test_what_does_not_run_in_float64_is_decided_above_its_noise() -> None:
    def narrow(model: GPT, tokens: Tensor) -> Tensor:
        return model.head(model.embedding(tokens) @ torch.eye(16))

    report = probe(Called(narrow), TOKENS, V)
    assert report.clean and "on a copy in training mode; a leak is 100 times" in report.how


def test_float64_that_is_rounded_inside_is_not_taken_for_exact() -> None:
    def rounds(model: GPT, tokens: Tensor) -> Tensor:
        return model.head(model.embedding(tokens).bfloat16().to(model.head.weight.dtype))

    report = probe(Called(rounds), TOKENS, V)
    assert report.clean and "float64 copy" in report.how and "100 times" in report.how


@pytest.mark.parametrize("training", [True, False])
def test_dropout_is_left_out_and_said(training: bool) -> None:
    class Usual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(V, 16), nn.Linear(16, V)
            self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.5, batch_first=True)

        def forward(self, tokens: Tensor, mask: bool = True) -> Tensor:
            mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], dtype=self.head.weight.dtype)
            return self.head(self.layer(self.embedding(tokens), src_mask=mask))

    report = probe(Usual().train(training), TOKENS, V)
    assert report.clean and ("dropout left out" in report.how) == training, report
    assert f"in {'training' if training else 'evaluation'} mode" in report.how


def test_batch_norm_leaks_in_training_and_not_in_evaluation() -> None:
    model = gpt()
    model.blocks[0].attention_norm = parts.batch_norm(16)
    assert probe(model, TOKENS, V).leaks and probe(model.eval(), TOKENS, V).clean


def test_a_model_that_remembers_is_asked_afresh() -> None:
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model, self.sum = gpt(), 0.0

        def forward(self, tokens: Tensor) -> Tensor:
            self.sum = self.sum + self.model(tokens)  # type: ignore[assignment]
            return self.sum  # type: ignore[return-value]

    report = probe(Remembers(), TOKENS, V)
    assert report.clean and "a fresh copy for each call" in report.how


def test_noise_of_the_global_generators_is_repeated() -> None:
    def noisy(model: GPT, tokens: Tensor) -> Tensor:
        return model(tokens) + torch.rand(()) + random.random() + np.random.rand()

    assert probe(Called(noisy), TOKENS, V).clean and probe(lambda tokens: noisy(gpt(), tokens), TOKENS, V).clean


def test_a_surrounding_autocast_does_not_reach_the_copy() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        report = probe(gpt(), TOKENS, V)
    assert report.clean and "100 times" not in report.how


# ------------------------------------------------------------------------------------------------- what it is given


@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: (torch.zeros(3), logits),
        lambda logits: {"logits": logits},
        lambda logits: SimpleNamespace(logits=logits),
        lambda logits: logits.numpy(),
        lambda logits: torch.cat([logits, torch.full_like(logits, -math.inf)], 2),
        lambda logits: torch.cat([logits, torch.full_like(logits, -1e9)], 2),
    ],
)
def test_answers_in_all_their_forms(wrap: Any) -> None:
    honest, leaking = gpt(), gpt(parts.attend(off_by_one))
    assert probe(lambda tokens: wrap(honest(tokens)), TOKENS, V).clean
    assert probe(lambda tokens: wrap(leaking(tokens)), TOKENS, V).leaks


@pytest.mark.filterwarnings("ignore")
def test_compiled_parts_are_asked_uncompiled() -> None:
    model = gpt(parts.attend(off_by_one))
    model.blocks[1] = torch.compile(model.blocks[1], backend="eager")
    assert "float64 copy in training mode; moves" in (report := probe(model, TOKENS, V)).how and report.leaks
    assert probe(torch.compile(gpt(), backend="eager"), TOKENS, V).clean


def test_a_method_and_a_compiled_model_are_the_module_behind_them() -> None:
    model = gpt()
    for forward in (model.forward, SimpleNamespace(_orig_mod=model)):
        assert "float64 copy" in probe(forward, TOKENS, V).how


def test_one_sequence_gets_a_second_beside_it_unless_it_fails() -> None:
    report = probe(gpt(), TOKENS[:1], V)
    assert report.leaks_across_batch is False and "a random second sequence" in report.how

    def single(model: GPT, tokens: Tensor) -> Tensor:
        return model(tokens.view(1, T))

    report = probe(Called(single), TOKENS[:1], V)
    assert report.leaks_across_batch is None and report.clean and "one sequence only" in report.how
    assert probe(lambda tokens: single(gpt(parts.attend(off_by_one)), tokens), TOKENS[:1], V).leaks


def test_int32_and_the_shortest_sequence() -> None:
    assert probe(gpt(), TOKENS[:, :2].int(), V).clean
    assert probe(gpt(parts.attend(off_by_one)), TOKENS[:1, :2], V).leaks
    assert probe(gpt(), TOKENS % 2, 2).clean
    assert probe(gpt(), torch.zeros_like(TOKENS), V, documents=torch.arange(T) // 4).leaks_across_documents


def test_logits_that_depend_on_nothing_are_said_to_show_nothing() -> None:
    model = gpt()
    nn.init.zeros_(model.head.weight)
    report = probe(model, TOKENS, V)
    assert report.clean and "depend on no token" in report.how


def draws(tokens: Tensor, generator: torch.Generator = torch.Generator()) -> Tensor:  # noqa: B008
    return torch.rand(*tokens.shape, V, generator=generator)


@pytest.mark.parametrize(
    ("forward", "tokens", "more", "error", "said"),
    [
        (gpt(), TOKENS[0], {}, DataError, "try tokens[None]"),
        (gpt(), TOKENS.float(), {}, DataError, "whole numbers"),
        (gpt(), [[1, 2]], {}, DataError, "not list"),
        (gpt(), TOKENS[:, :1], {}, DataError, "no past to look at"),
        (gpt(), TOKENS, {"vocab_size": 5}, DataError, "is not one of vocab_size=5"),
        (gpt(), TOKENS - 1, {}, DataError, "token -1 is not one of"),
        (gpt(), TOKENS, {"vocab_size": 1}, ConfigError, "vocab_size=1 leaves no other token"),
        (gpt(), TOKENS, {"vocab_size": 50_000}, ConfigError, "fails on a token below vocab_size=50000"),
        (gpt(), TOKENS, {"trials": 0}, ConfigError, "try trials=8"),
        (gpt(), TOKENS, {"predicts": -1}, ConfigError, "predicts=-1 must be"),
        (gpt(), TOKENS, {"documents": torch.zeros(5)}, DataError, "do not fit tokens (3, 12)"),
        (gpt(), TOKENS, {"documents": torch.zeros(T)}, DataError, "one document in each sequence"),
        (lambda tokens: gpt()(tokens)[:, -1], TOKENS, {}, ConfigError, "returned shape (3, 19)"),
        (lambda tokens: gpt()(tokens)[:, 1:], TOKENS, {}, ConfigError, "returned shape (3, 11, 19)"),
        (lambda tokens: None, TOKENS, {}, ConfigError, "returned NoneType"),
        (lambda tokens: gpt()(tokens) * math.nan, TOKENS, {}, DataError, "sequence 0, position 0 are NaN"),
        (Called(lambda model, tokens: model(tokens) * math.nan), TOKENS, {}, DataError, "position 0 are NaN"),
        (draws, TOKENS, {}, ConfigError, "answered differently from call to call"),
        (
            Called(lambda model, tokens: draws(tokens)),
            TOKENS,
            {},
            ConfigError,
            "answered differently from call to call",
        ),
        (
            Called(lambda model, tokens: model(tokens) + draws(tokens).double()),
            TOKENS,
            {},
            ConfigError,
            "answered differently from call to call",
        ),
    ],
)
def test_bad_input_gets_one_line(forward: Any, tokens: Any, more: dict, error: type, said: str) -> None:
    with pytest.raises(CourseError) as caught:
        probe(forward, tokens, **{"vocab_size": V, **more})
    assert type(caught.value) is error and said in str(caught.value) and "\n" not in str(caught.value), caught.value


def test_an_error_of_the_model_is_the_models_own() -> None:
    with pytest.raises(ZeroDivisionError):
        probe(Called(lambda model, tokens: 1 // 0), TOKENS, V)
