"""The GPT against formulas written down a second time."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.config import ModelConfig, preset
from course_lib.model import GPT, Attention, FeedForward, RMSNorm, generate, rope_tables

CONFIG = ModelConfig(vocab_size=50, d_model=32, n_layers=2, n_heads=4, context=16)


def tokens(config: ModelConfig, rows: int = 3, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, config.vocab_size, (rows, config.context), generator=generator)


def noise(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 2}, {"tie_embeddings": False}, {"dropout": 0.2}])
def test_later_tokens_never_move_earlier_logits(changes: dict[str, object]) -> None:
    config = preset("mini", vocab_size=50, d_model=32, n_layers=2, n_heads=4, context=16, **changes)
    model = GPT(config).eval()
    first = tokens(config)
    second = first.clone()
    second[:, 9:] = (second[:, 9:] + 1) % config.vocab_size
    before, after = model(first), model(second)
    assert before.shape == (3, 16, 50)
    assert torch.allclose(before[:, :9], after[:, :9], atol=1e-6)
    assert not torch.allclose(before[:, 9:], after[:, 9:], atol=1e-3)


def test_rms_norm() -> None:
    norm = RMSNorm(32, 1e-5)
    with torch.no_grad():
        norm.weight.copy_(noise(32))
    x = noise(2, 5, 32, seed=3)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * norm.weight
    assert torch.allclose(norm(x), expected, atol=1e-6)


def test_swiglu() -> None:
    part = FeedForward(CONFIG)
    x = noise(2, 5, 32)
    gate, up = part.gate_up.weight.split(CONFIG.ff)
    a = x @ gate.T
    assert torch.allclose(part(x), (a * torch.sigmoid(a) * (x @ up.T)) @ part.down.weight.T, atol=1e-6)


def turned(x: Tensor, base: float) -> Tensor:
    """Rotary positions as complex numbers, for x (T, K)."""
    half = x.shape[1] // 2
    angles = torch.arange(len(x))[:, None] * base ** (-torch.arange(half) * 2 / x.shape[1])
    z = torch.complex(x[:, :half], x[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([z.real, z.imag], 1)


def test_rotary_tables_turn_pairs_and_see_only_distances() -> None:
    cos, sin = rope_tables(16, 8, 100.0)
    x = noise(16, 8)
    ours = x * cos[:, 0] + x.roll(4, -1) * sin[:, 0]
    assert torch.allclose(ours, turned(x, 100.0), atol=1e-5)
    same = noise(1, 8).expand(16, 8)  # one vector at every position: the product depends on the distance alone
    turned_same = same * cos[:, 0] + same.roll(4, -1) * sin[:, 0]
    products = turned_same @ turned_same.T
    assert torch.allclose(products[:-3].diagonal(3), products[0, 3].expand(13), atol=1e-4)


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_attention_head_by_head(kv_heads: int) -> None:
    config = ModelConfig(vocab_size=50, d_model=32, n_layers=1, n_heads=4, n_kv_heads=kv_heads, context=16)
    part = Attention(config)
    x = noise(1, 16, 32)
    cos, sin = rope_tables(16, 8, 10000.0)
    qkv = (x[0] @ part.qkv.weight.T).split(8, dim=1)  # 4 + 2 G pieces (T, K)
    heads = []
    for head in range(4):
        group = head // (4 // kv_heads)
        q, k = turned(qkv[head], 10000.0), turned(qkv[4 + group], 10000.0)
        scores = (q @ k.T) / math.sqrt(8)
        scores = scores.masked_fill(torch.ones(16, 16).triu(1).bool(), -math.inf)
        heads.append(scores.softmax(-1) @ qkv[4 + kv_heads + group])
    expected = torch.cat(heads, 1) @ part.out.weight.T
    assert torch.allclose(part(x, cos, sin)[0], expected, atol=1e-5)


def test_parameters_are_counted_as_said() -> None:
    tied, untied = GPT(CONFIG), GPT(ModelConfig(**{**vars(CONFIG), "tie_embeddings": False}))
    assert untied.num_params() - tied.num_params() == 50 * 32
    assert tied.num_params(non_embedding=True) == untied.num_params(non_embedding=True)
    assert tied.num_params() == sum(p.numel() for p in tied.parameters())
    assert tied.head.weight is tied.embedding.weight


def test_weights_come_from_the_seed_and_leave_the_global_stream_alone() -> None:
    before = torch.get_rng_state()
    first = GPT(CONFIG, seed=1)
    assert torch.equal(before, torch.get_rng_state())
    torch.rand(3)
    second, other = GPT(CONFIG, seed=1), GPT(CONFIG, seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding.weight, other.embedding.weight)


def test_a_fresh_model_is_close_to_uniform() -> None:
    model = GPT(preset("mini"))
    ids = tokens(model.config)
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    assert abs(loss.item() - math.log(1024)) < 0.1


def test_bf16_is_close_and_gradients_stay_fp32() -> None:
    model = GPT(CONFIG)
    ids = tokens(CONFIG)
    exact = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(ids)
    assert rough.dtype == torch.bfloat16
    assert 0 < (exact - rough.float()).abs().max().item() < 0.05
    rough.float().sum().backward()
    assert {p.grad.dtype for p in model.parameters() if p.grad is not None} == {torch.float32}


def test_dropout_is_off_in_eval() -> None:
    config = ModelConfig(**{**vars(CONFIG), "dropout": 0.5})
    model = GPT(config)
    ids = tokens(config)
    with torch.random.fork_rng():
        assert not torch.equal(model(ids), model(ids))
    model.eval()
    assert torch.equal(model(ids), model(ids))


def test_sampling() -> None:
    model = GPT(CONFIG)
    prompt = torch.tensor([1, 2, 3])

    def draw(seed: int, temperature: float = 1.0, top_k: int | None = None) -> Tensor:
        return model.generate(prompt, 30, temperature, top_k, torch.Generator().manual_seed(seed))

    assert draw(0).shape == (33,) and torch.equal(draw(0)[:3], prompt)
    assert torch.equal(draw(0), draw(0)) and not torch.equal(draw(0), draw(1))
    assert torch.equal(draw(0, temperature=0), draw(1, temperature=0))
    assert torch.equal(draw(0, top_k=1), draw(0, temperature=0))
    assert model.training
    greedy = draw(0, temperature=0)
    window = greedy[-1 - CONFIG.context : -1]
    assert int(model.eval()(window[None])[0, -1].argmax()) == int(greedy[-1])


def test_sampling_follows_the_distribution() -> None:
    table = torch.nn.Embedding(3, 3)
    with torch.no_grad():
        table.weight.copy_(torch.tensor([[0.7, 0.2, 0.1]] * 3).log())
    new = generate(table, torch.tensor([0]), 3000, 4, generator=torch.Generator().manual_seed(0))[1:]
    shares = torch.bincount(new, minlength=3) / len(new)
    assert torch.allclose(shares, torch.tensor([0.7, 0.2, 0.1]), atol=0.03)  # about 3.5 standard errors
