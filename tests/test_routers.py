"""Routers and drop rules against slow ones written out, and what each of them knows of other tokens."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib import moe, routers
from course_lib.config import ModelConfig
from course_lib.errors import ConfigError
from course_lib.moe import MoE, MoEConfig, moe_gpt, moe_layers, take_loads, update_thresholds
from course_lib.routers import (
    DROPS,
    ROUTERS,
    expert_capacity,
    expert_choice,
    expert_choice_batch,
    expert_choice_chunks,
    new_thresholds,
    share_scores,
    threshold_choice,
    token_choice,
)

B, T, E = 3, 8, 4
TINY = ModelConfig(vocab_size=16, d_model=32, n_layers=2, n_heads=2, context=8, tie_embeddings=False)


def scores(batch: int = B, tokens: int = T, experts: int = E, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(batch, tokens, experts, generator=generator).softmax(2)


def test_moe_still_offers_what_moved() -> None:
    for name in ("ROUTERS", "DROPS", "token_choice", "expert_choice", "drop_in_order", "expert_capacity"):
        assert getattr(moe, name) is getattr(routers, name)


@pytest.mark.parametrize("shape", [(3, 8), (1, 1), (1, 5), (4, 1), (2, 7)])
@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_over_the_batch_every_expert_takes_its_best_of_all_tokens(shape: tuple[int, int], top_k: int) -> None:
    s = scores(*shape)
    gates, n = expert_choice_batch(s, top_k), shape[0] * shape[1]
    assert gates.shape == s.shape
    for e in range(E):
        column = s[..., e].flatten()
        best = sorted(range(n), key=lambda i: -column[i])[: math.ceil(n * top_k / E)]
        assert gates[..., e].flatten().nonzero().flatten().tolist() == sorted(best)
        assert torch.equal(gates[..., e].flatten()[best], column[best])


@pytest.mark.parametrize(("tokens", "chunk"), [(8, 4), (8, 3), (7, 5), (1, 3), (5, 1), (6, 6), (6, 100)])
def test_in_chunks_every_expert_takes_its_best_of_each_chunk(tokens: int, chunk: int) -> None:
    s = scores(tokens=tokens)
    gates = expert_choice_chunks(s, 2, chunk)
    for first in range(0, tokens, chunk):
        assert torch.equal(gates[:, first : first + chunk], expert_choice(s[:, first : first + chunk], 2))
    if chunk >= tokens:
        assert torch.equal(gates, expert_choice(s, 2))


def test_a_threshold_is_a_line_for_each_expert() -> None:
    s = scores()
    lines = torch.tensor([0.1, 0.3, 0.5, 1.1])
    gates = threshold_choice(s, lines)
    for e in range(E):
        assert torch.equal(gates[..., e] != 0, s[..., e] >= lines[e])
    assert torch.equal(gates[gates != 0], s[gates != 0])
    assert torch.equal(threshold_choice(s, s[1, 2])[1, 2], s[1, 2])  # at the line: taken


@pytest.mark.parametrize("top_k", [1, 2, 4])
def test_at_its_share_score_an_expert_takes_its_share(top_k: int) -> None:
    s = scores(5, 7)
    lines = share_scores(s, top_k)
    taken = (threshold_choice(s, lines) != 0).sum((0, 1))
    assert taken.tolist() == [math.ceil(35 * top_k / E)] * E
    assert torch.equal(new_thresholds(torch.zeros(E), s, top_k, 1.0), lines)
    torch.testing.assert_close(new_thresholds(torch.ones(E), s, top_k, 0.25), 0.75 + 0.25 * lines)


# ------------------------------------------------------------------------------------------------------- drop rules


def kept_by_hand(gates: Tensor, capacity: int, drop: str) -> Tensor:
    """Which assignments stay, one after the other, (B, T, E) bool."""
    batch, _, experts = gates.shape
    kept = torch.zeros_like(gates, dtype=torch.bool)
    groups = [[b] for b in range(batch)] if drop.endswith("sequence") else [list(range(batch))]
    room = math.ceil(capacity / batch) if drop.endswith("sequence") else capacity
    for e in range(experts):
        for rows in groups:
            asked = [(b, t) for b in rows for t in range(gates.shape[1]) if gates[b, t, e] != 0]
            if drop.startswith("by_score"):
                asked.sort(key=lambda at: -float(gates[*at, e]))
            for at in asked[:room]:
                kept[*at, e] = True
    return kept


@pytest.mark.parametrize("drop", DROPS)
@pytest.mark.parametrize("shape", [(3, 8), (1, 1), (1, 6), (5, 1), (2, 7)])
@pytest.mark.parametrize("factor", [0.01, 0.5, 1.0, 1.3, 9.0])
def test_a_full_expert_keeps_what_its_rule_says(drop: str, shape: tuple[int, int], factor: float) -> None:
    gates = token_choice(scores(*shape, seed=2), 2)
    capacity = expert_capacity(shape[0] * shape[1], E, 2, factor)
    kept = DROPS[drop](gates, capacity)
    assert torch.equal(kept != 0, kept_by_hand(gates, capacity, drop))
    assert torch.equal(kept[kept != 0], gates[kept != 0])
    if factor == 9.0:
        assert torch.equal(kept, gates)


@pytest.mark.parametrize("drop", ["by_score_in_sequence", "by_score_in_batch"])
def test_equal_scores_stay_in_order(drop: str) -> None:
    kept = DROPS[drop](torch.full((2, 4, 1), 0.5), 4)[..., 0] != 0
    first_two = [[True, True, False, False]] * 2
    assert kept.tolist() == (first_two if drop.endswith("sequence") else [[True] * 4, [False] * 4])


# -------------------------------------------------------------------------------------- who knows what of whom

KNOWS = {  # (later tokens of the sequence, other sequences)
    "token_choice": (False, False),
    "expert_choice": (True, False),
    "expert_choice_batch": (True, True),
    "expert_choice_chunks": (True, False),
    "threshold": (False, False),
    "in_order": (False, True),
    "in_order_in_sequence": (False, False),
    "by_score_in_sequence": (True, False),
    "by_score_in_batch": (True, True),
}


def route(name: str, s: Tensor) -> Tensor:
    if name in DROPS:
        return DROPS[name](token_choice(s, 2), expert_capacity(B * T, E, 2, 0.7))
    more = {"threshold": (torch.full((E,), 0.25),), "expert_choice_chunks": (2, 4)}.get(name, (2,))
    return ROUTERS[name](s, *more)


@pytest.mark.parametrize("name", [*ROUTERS, *DROPS])
def test_what_a_rule_knows(name: str) -> None:
    later = others = False
    for seed in range(30):
        s = scores(seed=seed)
        tail, rest = s.clone(), s.clone()
        tail[1, 5:] = scores(seed=seed + 100)[1, 5:]
        rest[[0, 2]] = scores(seed=seed + 200)[[0, 2]]
        before = route(name, s)
        later |= not torch.equal(route(name, tail)[1, :5], before[1, :5])
        others |= not torch.equal(route(name, rest)[1], before[1])
    assert (later, others) == KNOWS[name]


def test_a_chunk_knows_nothing_of_the_next() -> None:
    s = scores()
    changed = s.clone()
    changed[:, 4:] = scores(seed=9)[:, 4:]
    assert torch.equal(expert_choice_chunks(s, 2, 4)[:, :4], expert_choice_chunks(changed, 2, 4)[:, :4])


# ------------------------------------------------------------------------------------------------------- in the layer


def test_thresholds_of_a_model_come_to_equal_loads() -> None:
    model = moe_gpt(TINY, MoEConfig(n_experts=8, routing="threshold", threshold_rate=0.3))
    tokens = torch.randint(16, (40, 32, 8), generator=torch.Generator().manual_seed(0))
    for batch in tokens[:20]:
        model(batch)
        update_thresholds(model)
    first = take_loads(model)
    for batch in tokens[20:]:
        model(batch)
    share = take_loads(model) / (20 * 32 * 8 * 2 / 8)
    assert share.min() > 0.8 and share.max() < 1.25, share  # thresholds of the last few batches, 256 tokens each
    assert (share - 1).abs().mean() < (first / (20 * 32 * 8 * 2 / 8) - 1).abs().mean()


def test_thresholds_move_by_the_mean_of_the_passes_in_training_and_no_others() -> None:
    layer = MoE(6, MoEConfig(n_experts=4, routing="threshold", threshold_rate=0.5), torch.Generator().manual_seed(0))
    batches = torch.randn(2, 3, 8, 6, generator=torch.Generator().manual_seed(1))
    assert torch.equal(layer.thresholds, torch.full((4,), 0.25))
    for x in batches:
        layer(x)
    layer.eval()(100 * batches[0])
    wanted = torch.stack([share_scores((x @ layer.router).softmax(2), 2) for x in batches]).mean(0)
    update_thresholds(layer)
    torch.testing.assert_close(layer.thresholds, 0.125 + 0.5 * wanted.detach())
    kept = layer.thresholds.clone()
    update_thresholds(layer)  # no pass since
    assert torch.equal(layer.thresholds, kept) and not layer.thresholds.requires_grad
    assert [name for name in layer.state_dict() if "thresholds" in name] == ["thresholds"]
    assert "wanted" not in layer.state_dict() and "thresholds" not in MoE(6, MoEConfig()).state_dict()


def test_a_float64_layer_routes_in_float64() -> None:
    """Scores that differ by 1e-12 are no tie."""
    layer = MoE(2, MoEConfig(n_experts=2, top_k=1, d_expert=3), torch.Generator().manual_seed(0)).double()
    x = torch.tensor([[[1.0, 1e-12]]], dtype=torch.float64)
    for better in (0, 1):
        with torch.no_grad():
            layer.router.copy_(torch.tensor([[1.0, 1.0], [1.0 - better, float(better)]]))
        assert layer.route(x)[0, 0].argmax() == better


def test_chunks_and_capacity_of_a_model() -> None:
    layer = MoE(6, MoEConfig(n_experts=4, top_k=2, routing="expert_choice_chunks", chunk=3))
    x = torch.randn(2, 8, 6, generator=torch.Generator().manual_seed(1))
    assert (layer.route(x) != 0).sum(1).tolist() == [[2 + 2 + 1] * 4] * 2
    whole = MoE(6, MoEConfig(n_experts=4, top_k=2, routing="expert_choice_chunks"))
    assert (whole.route(x) != 0).sum(1).tolist() == [[4] * 4] * 2
    for drop in DROPS:
        layer = MoE(6, MoEConfig(n_experts=4, capacity_factor=0.5, drop=drop), torch.Generator().manual_seed(0))
        out = layer(x)
        assert layer.dropped > 0 and out.shape == x.shape
        F.mse_loss(out, x).backward()
        assert layer.router.grad is not None


def test_thresholds_follow_a_model_into_a_copy() -> None:
    first, second = (moe_gpt(TINY, MoEConfig(routing="threshold"), seed) for seed in (0, 1))
    first(torch.zeros(2, 8, dtype=torch.int64))
    update_thresholds(first)
    second.load_state_dict(first.state_dict())
    for a, b in zip(moe_layers(first), moe_layers(second), strict=True):
        assert a.thresholds is not None and torch.equal(a.thresholds, b.thresholds)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"routing": "expert_choise"}, "routing='expert_choise' is unknown; did you mean 'expert_choice'"),
        ({"drop": "by_score"}, "drop='by_score' is unknown; did you mean 'by_score_in_"),
        ({"routing": "expert_choice_chunks", "chunk": 0}, "chunk=0 must be a whole number of at least 1"),
        ({"routing": "expert_choice_chunks", "chunk": 2.5}, "chunk=2.5 must be a whole number"),
        ({"chunk": 4}, "chunk=4 is for routing='expert_choice_chunks'; try chunk=None"),
        ({"threshold_rate": 0.0}, "threshold_rate=0.0 must be above 0 and at most 1"),
        ({"threshold_rate": math.nan}, "threshold_rate=nan must be above 0"),
        ({"aux_weight": math.nan}, "aux_weight=nan must be 0 or more"),
        ({"bias_rate": 0.1, "routing": "threshold"}, "bias_rate=0.1 is for routing='token_choice'; try bias_rate=0"),
    ],
)
def test_a_bad_field_gets_one_line(fields: dict, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        MoEConfig(**fields)
    assert message in str(caught.value) and "\n" not in str(caught.value)
