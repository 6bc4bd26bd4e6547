"""Routers, the mixture-of-experts layer, and what a router may know about later tokens."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError
from course_lib.moe import (
    ROUTERS,
    MoE,
    MoEConfig,
    auxiliary_loss,
    balance_loss,
    drop_in_order,
    expert_capacity,
    expert_choice,
    imbalance,
    moe_gpt,
    moe_layers,
    take_loads,
    token_choice,
    update_biases,
)

TINY = ModelConfig(vocab_size=16, d_model=32, n_layers=2, n_heads=2, context=8, tie_embeddings=False)


def scores(batch: int = 3, tokens: int = 8, experts: int = 4) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(batch, tokens, experts, generator=generator).softmax(2)


def test_token_choice_takes_each_tokens_best_experts() -> None:
    s = scores()
    gates = token_choice(s, 2)
    for row, gate in zip(s.flatten(0, 1), gates.flatten(0, 1), strict=True):
        best = sorted(range(4), key=lambda e: -row[e])[:2]
        assert gate.nonzero().flatten().tolist() == sorted(best)
        assert torch.equal(gate[best], row[best])


def test_token_choice_of_a_token_ignores_every_other_token() -> None:
    s = scores()
    changed = s.clone()
    changed[:, 1:] = 1 - s[:, 1:]
    assert torch.equal(token_choice(s, 2)[:, 0], token_choice(changed, 2)[:, 0])


def test_a_bias_changes_who_is_chosen_and_not_the_gates() -> None:
    s = scores()
    gates = token_choice(s, 2, torch.tensor([2.0, 0.0, 0.0, -2.0]))
    assert torch.equal(gates[..., 0], s[..., 0]) and not gates[..., 3].any()
    second = s[..., 1:3].amax(2)
    torch.testing.assert_close(gates[..., 1:3].sum(2), second, atol=0, rtol=0)


@pytest.mark.parametrize(("tokens", "top_k", "capacity"), [(8, 2, 4), (8, 1, 2), (7, 1, 2), (1, 1, 1), (8, 4, 8)])
def test_every_expert_takes_its_capacity_of_each_sequence(tokens: int, top_k: int, capacity: int) -> None:
    s = scores(tokens=tokens)
    gates = expert_choice(s, top_k)
    assert (gates != 0).sum(dim=1).unique().tolist() == [capacity]
    for b in range(3):
        for e in range(4):
            best = sorted(range(tokens), key=lambda t: -s[b, t, e])[:capacity]
            assert gates[b, :, e].nonzero().flatten().tolist() == sorted(best)


@pytest.mark.parametrize("routing", ROUTERS)
def test_the_layer_is_the_gated_sum_of_its_experts(routing: str) -> None:
    layer = MoE(6, MoEConfig(n_experts=4, top_k=2, d_expert=5, routing=routing)).double()
    x = torch.randn(2, 7, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    gates, out = layer.route(x), layer(x)
    for b in range(2):
        for t in range(7):
            each = [F.silu(x[b, t] @ layer.up[e]) @ layer.down[e] * gates[b, t, e] for e in range(4)]
            torch.testing.assert_close(out[b, t], torch.stack(each).sum(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("routing", ROUTERS)
def test_gradients_reach_the_router_and_the_experts(routing: str) -> None:
    layer = MoE(6, MoEConfig(n_experts=2, top_k=1, d_expert=5, routing=routing), torch.Generator().manual_seed(0))
    layer(torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(1))).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


def test_the_layer_runs_under_bf16_autocast() -> None:
    layer, x = MoE(8, MoEConfig(), torch.Generator().manual_seed(0)), torch.ones(2, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        low = layer(x)
    torch.testing.assert_close(low.float(), layer(x), atol=0.1, rtol=0.1)


def moved_logits(routing: str) -> int:
    """How many earlier positions of 64 sequences change (by more than float64 rounding) with the last token."""
    model = moe_gpt(TINY, MoEConfig(routing=routing)).double()
    tokens = torch.randint(16, (64, 8), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % 16
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(2)[:, :-1]
    return int((difference > 1e-9).sum())


def test_token_choice_is_causal_and_expert_choice_is_not() -> None:
    assert moved_logits("token_choice") == 0
    assert moved_logits("expert_choice") > 64


def train(routing: str, steps: int) -> float:
    """Mean loss in nats per token of the last 30 steps on uniform random tokens, all of them new."""
    model = moe_gpt(TINY, MoEConfig(routing=routing))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    generator, losses = torch.Generator().manual_seed(3), []
    for _ in range(steps):
        tokens = torch.randint(16, (128, 9), generator=generator)
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return sum(losses[-30:]) / 30


def test_only_expert_choice_trains_below_the_entropy_of_its_data() -> None:
    assert train("expert_choice", 150) < math.log(16) - 0.01
    assert train("token_choice", 100) > math.log(16) - 0.005


def test_the_seed_decides_the_weights_and_the_global_generator_is_left_alone() -> None:
    before = torch.get_rng_state()
    same, again, other = (moe_gpt(TINY, MoEConfig(), seed) for seed in (0, 0, 1))
    assert torch.equal(torch.get_rng_state(), before)
    for (name, a), b, c in zip(same.named_parameters(), again.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
        assert name.endswith("norm.weight") or not torch.equal(a, c), name


def test_the_balance_loss_is_switchs_and_pushes_down_what_is_busy() -> None:
    s = scores(experts=4).requires_grad_()
    chosen = token_choice(s, 2) != 0
    by_hand = 0.0
    for e in range(4):
        share = sum(bool(chosen[b, t, e]) for b in range(3) for t in range(8)) / (3 * 8 * 2)
        by_hand += 4 * share * sum(s[b, t, e].item() for b in range(3) for t in range(8)) / 24
    loss = balance_loss(s, chosen)
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    loss.backward()
    assert s.grad is not None
    by_load = chosen.sum((0, 1)).argsort()
    gradient = s.grad.sum((0, 1))[by_load]
    assert (gradient.diff() >= 0).all() and gradient[-1] > gradient[0]
    even = torch.full((3, 8, 4), 0.25)
    assert float(balance_loss(even, torch.ones(3, 8, 4, dtype=torch.bool))) == pytest.approx(1.0)
    assert float(balance_loss(even, torch.zeros(3, 8, 4, dtype=torch.bool))) == 0  # nothing chosen: not NaN


def test_loads_add_up_until_they_are_taken_and_evaluation_does_not_count() -> None:
    model = moe_gpt(TINY, MoEConfig(n_experts=4, top_k=2))
    tokens = torch.zeros(3, 8, dtype=torch.int64)
    model(tokens)
    model(tokens)
    model.eval()(tokens)
    loads = take_loads(model)
    assert loads.shape == (2, 4) and loads.sum(1).tolist() == [2 * 3 * 8 * 2] * 2
    assert not take_loads(model).any()
    assert imbalance(torch.tensor([[3, 1], [2, 2], [4, 0]])).tolist() == [1.5, 1, 2]


def test_biases_move_against_the_load_by_one_rate_each() -> None:
    model = moe_gpt(TINY, MoEConfig(n_experts=4, bias_rate=0.25))
    update_biases(model, torch.tensor([[9, 1, 5, 5], [0, 8, 4, 4]]))
    first, second = (layer.bias.tolist() for layer in moe_layers(model) if layer.bias is not None)
    assert first == [-0.25, 0.25, 0, 0] and second == [0.25, -0.25, 0, 0]
    assert [name for name in model.state_dict() if name.endswith("bias")] == [
        "blocks.0.feed_forward.bias",
        "blocks.1.feed_forward.bias",
    ]
    assert not any(name.endswith(("bias", "load")) for name in moe_gpt(TINY, MoEConfig()).state_dict())


def test_dropping_keeps_the_first_of_the_batch_and_counts_the_rest() -> None:
    gates = torch.rand(2, 3, 2, generator=torch.Generator().manual_seed(0)) + 0.1
    gates[0, 1, 0] = 0
    kept = drop_in_order(gates, 3)
    assert (kept != 0).flatten(0, 1)[:, 0].tolist() == [True, False, True, True, False, False]
    assert (kept != 0).flatten(0, 1)[:, 1].tolist() == [True, True, True, False, False, False]
    assert torch.equal(kept[kept != 0], gates[kept != 0])
    assert expert_capacity(512, 8, 2, 1.25) == 160 and expert_capacity(7, 4, 1, 1.0) == 2
    layer = MoE(6, MoEConfig(n_experts=4, top_k=2, d_expert=5, capacity_factor=1.0), torch.Generator().manual_seed(0))
    layer(torch.randn(4, 8, 6, generator=torch.Generator().manual_seed(1)))
    loads = layer.load.clone()  # what tokens asked for
    assert layer.dropped == int((loads - 16).clamp(min=0).sum()) > 0


def test_a_dropped_token_passes_the_layer_by() -> None:
    layer = MoE(6, MoEConfig(n_experts=1, top_k=1, capacity_factor=0.5), torch.Generator().manual_seed(0))
    out = layer(torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(1)))
    assert out[0, :4].abs().amax(1).all() and not out[0, 4:].any()


def test_dropping_in_order_does_not_see_later_tokens_and_does_see_other_sequences() -> None:
    model = moe_gpt(TINY, MoEConfig(n_experts=4, capacity_factor=0.5)).double()
    tokens = torch.randint(16, (16, 8), generator=torch.Generator().manual_seed(2))
    last, first = tokens.clone(), tokens.clone()
    last[-1, -1] = (tokens[-1, -1] + 1) % 16
    first[0] = (tokens[0] + 1) % 16
    with torch.no_grad():
        right, later, other = model(tokens), model(last), model(first)
    assert torch.equal(right[-1, :-1], later[-1, :-1]) and torch.equal(right[:-1], later[:-1])
    assert (right[1:] - other[1:]).abs().max() > 1e-6


def train_for_balance(seed: int, **balance: float) -> tuple[float, float]:
    """Loss of the last 20 of 100 steps on a skewed source, and the imbalance of its layers' loads over them."""
    model = moe_gpt(TINY, MoEConfig(n_experts=8, top_k=1, d_expert=16, **balance), seed)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0, fused=True)
    generator, losses, total = torch.Generator().manual_seed(seed), [], torch.zeros(2, 8, dtype=torch.int64)
    odds = 0.7 ** torch.arange(16)
    for step in range(100):
        tokens = torch.multinomial(odds.expand(32, 16), 9, replacement=True, generator=generator).sort(1).values
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        (loss + auxiliary_loss(model)).backward()
        optimizer.step()
        loads = take_loads(model)
        update_biases(model, loads)
        if step >= 80:
            losses.append(loss.item())
            total += loads
    return sum(losses) / 20, float(imbalance(total).mean())


def test_both_ways_of_balancing_balance_and_without_one_experts_are_unequal() -> None:
    none, auxiliary, bias = (train_for_balance(0, **how) for how in ({}, {"aux_weight": 0.1}, {"bias_rate": 0.02}))
    assert none[1] > 1.3 * max(auxiliary[1], bias[1]) > 1.3, (none, auxiliary, bias)
    assert max(auxiliary[0], bias[0]) < none[0] + 0.1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drop": "last"}, "drop='last' is unknown"),
        ({"aux_weight": -1.0}, "aux_weight=-1.0 must be 0 or more"),
        ({"capacity_factor": 0.0}, "capacity_factor=0.0 must be above 0"),
        ({"bias_rate": 0.1, "routing": "expert_choice"}, "bias_rate=0.1 is for routing='token_choice'"),
        ({"top_k": 9}, "top_k=9 is more than n_experts=8"),
        ({"n_experts": 0}, "n_experts=0 must be"),
        ({"routing": "random"}, "routing='random' is unknown"),
    ],
)
def test_a_bad_shape_says_which_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoEConfig(**fields)  # type: ignore[arg-type]
