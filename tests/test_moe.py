"""Routers, the mixture-of-experts layer, and what a router may know about later tokens."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError
from course_lib.moe import ROUTERS, MoE, MoEConfig, expert_choice, moe_gpt, token_choice

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


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"top_k": 9}, "top_k=9 is more than n_experts=8"),
        ({"n_experts": 0}, "n_experts=0 must be"),
        ({"routing": "random"}, "routing='random' is unknown"),
    ],
)
def test_a_bad_shape_says_which_field(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MoEConfig(**fields)  # type: ignore[arg-type]
