"""FLOPs from shapes against torch's own count of what runs, and against published formulas.

`FlopCounterMode` counts 0 for a CPU's fused attention, so that attention runs as matrix products (the MATH backend).
"""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.config import ModelConfig
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt
from course_lib.planning.flops import exact_step_flops, flops_per_token, six_nd, step_flops
from course_lib.planning.formulas import matmul_flops, recomputed_flops
from course_lib.planning.sizes import active, parameters, total
from course_lib.planning.spec import ModelSpec
from course_lib.recompute import recompute_blocks

SHAPES = {
    "plain": ModelConfig(context=64),
    "grouped": ModelConfig(context=64, n_kv_heads=2),
    "untied": ModelConfig(context=96, tie_embeddings=False, d_ff=100, n_layers=2),
    "long": ModelConfig(context=512, n_layers=1, vocab_size=64),
}


def spec(config: ModelConfig) -> ModelSpec:
    return ModelSpec(
        layers=config.n_layers, width=config.d_model, heads=config.n_heads, kv_heads=config.kv_heads,
        ffn=config.ff, vocab=config.vocab_size, tied=config.tie_embeddings,
    )  # fmt: skip


def counted(model: nn.Module, vocab: int, batch: int, length: int) -> int:
    """What forward and backward multiply, as torch counts it."""
    tokens = torch.randint(0, vocab, (2, batch, length), generator=torch.Generator().manual_seed(0))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        nn.functional.cross_entropy(model(tokens[0]).flatten(0, 1), tokens[1].flatten()).backward()
    return int(counter.get_total_flops())


# 0.5% is what the issue asks for. Torch counts the same products, so that the numbers are equal.
@pytest.mark.parametrize("recompute", ["none", "all"])
@pytest.mark.parametrize("shape", SHAPES)
def test_counted_by_torch(shape: str, recompute: str) -> None:
    config = SHAPES[shape]
    model = recompute_blocks(GPT(config), recompute)
    found = step_flops(spec(config), config.context, 3, recompute=recompute, stops_early=True)
    assert counted(model, config.vocab_size, 3, config.context) == found.hardware
    assert found.model == matmul_flops(config, 3, config.context)
    assert found.recomputed == recomputed_flops(config, 3, config.context, recompute)


def test_a_mixture_counted_by_torch() -> None:
    """Each token visits two of four experts. 0.5%: torch also counts the gates' gradient, a product with the router."""
    config = ModelConfig(n_layers=2, context=64)
    model = moe_gpt(config, MoEConfig(n_experts=4, top_k=2, d_expert=96))
    shape = ModelSpec(
        layers=2, width=128, heads=4, vocab=1024, gated=False, tied=True, experts=4, active_experts=2, expert_ffn=96
    )
    found = step_flops(shape, 64, 4)
    assert counted(model, 1024, 4, 64) == pytest.approx(found.model, rel=0.005)
    assert found.parts["experts"] > 0 == found.parts["feed_forward"]


def test_two_matrices_counted_by_torch() -> None:
    d, ff, tokens = 32, 128, 60
    block = nn.Sequential(nn.Linear(d, ff), nn.GELU(), nn.Linear(ff, d))
    with FlopCounterMode(display=False) as counter:
        block(torch.randn(tokens, d, requires_grad=True)).sum().backward()
    shape = ModelSpec(layers=1, width=d, heads=1, vocab=1, gated=False)
    assert counter.get_total_flops() == step_flops(shape, tokens, 1).parts["feed_forward"]


def test_parts_are_the_sum_and_arrays_are_taken() -> None:
    model = spec(SHAPES["grouped"])
    many = step_flops(model, 64, np.array([1.0, 5.0]), recompute="selective")
    one = exact_step_flops(model, 64, 5, recompute="selective")
    assert many.hardware[1] == one.hardware == one.model + one.recomputed
    assert one.model == sum(one.parts.values())
    assert one.recomputed == one.parts["attention_scores"] / 3
    assert flops_per_token(model, 64) == pytest.approx(one.model / (5 * 64))


def test_against_six_nd_and_palms_attention_term() -> None:
    """6 x matrix elements a token, and 12 L H Q T for attention: PaLM (arXiv 2204.02311), appendix B."""
    model = ModelSpec(layers=48, width=6144, heads=48, ffn=16384, vocab=50000)
    found = step_flops(model, 2048, 1)
    sizes = parameters(model)
    matrices = total(model) - sizes["embedding"] - sizes["norms"]
    assert found.model == pytest.approx(six_nd(matrices, 2048) + 12 * 48 * 6144 * 2048 * 2048, rel=1e-12)
    half = step_flops(model, 2048, 1, causal=True)
    assert found.model - half.model == pytest.approx(6 * 48 * 6144 * 2048 * 2048, rel=1e-12)


def test_against_megatrons_formula() -> None:
    """72 B s l h^2 (1 + s / 6h + V / 12 l h), 96 ... V / 16 l h with the forward again: Narayanan et al. 2021 (arXiv
    2104.04473), equation 3. The head is not computed again."""
    layers, h, s, vocab, batch = 80, 12288, 2048, 51200, 64
    model = ModelSpec(layers=layers, width=h, heads=96, vocab=vocab, gated=False)
    found = step_flops(model, s, batch, recompute="all")
    expected = 72 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (12 * layers * h))
    assert found.model == pytest.approx(expected, rel=1e-12)
    again = 96 * batch * s * layers * h**2 * (1 + s / (6 * h) + vocab / (16 * layers * h))
    assert found.hardware == pytest.approx(again, rel=1e-12)


def test_experts_cost_what_tokens_visit() -> None:
    """Within 1%: beside active parameters only attention's scores, and the embedding that is not multiplied."""
    model = ModelSpec(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, experts=8, active_experts=2)
    scores = step_flops(model, 4096, 1).parts["attention_scores"]
    table = parameters(model)["embedding"]
    assert step_flops(model, 4096, 1).model - scores == pytest.approx(six_nd(active(model) - table, 4096), rel=0.01)
