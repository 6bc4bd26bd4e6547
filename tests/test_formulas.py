"""Every formula against a count made another way."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from course_lib.config import ModelConfig, preset
from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.planning.formulas import (
    RECIPES,
    adamw_state_bytes,
    bytes_per_parameter,
    effective_batch,
    matmul_flops,
    mfu,
    model_params,
    train_flops,
    updates_per_epoch,
    world_size,
)


@st.composite
def shapes(draw: st.DrawFn) -> ModelConfig:
    heads = draw(st.sampled_from([1, 2, 4]))
    return ModelConfig(
        vocab_size=draw(st.integers(3, 60)),
        d_model=heads * draw(st.sampled_from([4, 8])),
        n_layers=draw(st.integers(1, 3)),
        n_heads=heads,
        n_kv_heads=draw(st.sampled_from([k for k in (1, 2, 4) if heads % k == 0])),
        d_ff=draw(st.one_of(st.none(), st.integers(1, 40))),
        context=draw(st.integers(2, 12)),
        tie_embeddings=draw(st.booleans()),
    )


@settings(max_examples=25, deadline=None, database=None)
@given(shapes())
def test_parameters_by_part_are_the_models(config: ModelConfig) -> None:
    model = GPT(config)
    parts = model_params(config)
    assert sum(parts.values()) == model.num_params()
    assert parts["embedding"] == model.embedding.weight.numel()
    assert parts["attention"] == sum(p.numel() for b in model.blocks for p in b.attention.parameters())
    assert parts["feed_forward"] == sum(p.numel() for b in model.blocks for p in b.feed_forward.parameters())
    assert sum(parts.values()) - parts["embedding"] - parts["head"] == model.num_params(non_embedding=True)


@settings(max_examples=10, deadline=None, database=None)
@given(shapes(), st.integers(1, 3))
def test_matrix_products_are_counted_exactly(config: ModelConfig, batch: int) -> None:
    model = GPT(config)
    tokens = torch.zeros(batch, config.context, dtype=torch.int64)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):  # on a CPU the counter sees nothing of the fused kernel
        logits = model(tokens)
    assert counter.get_total_flops() == matmul_flops(config, batch, config.context, backward=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens).sum().backward()
    del logits
    assert counter.get_total_flops() == matmul_flops(config, batch, config.context)


def test_six_n_d() -> None:
    assert train_flops(1e9, 100e9) == 6e20
    config = preset("mini")
    n, tokens = sum(model_params(config).values()), 12 * 64
    exact = matmul_flops(config, 12, 64)
    assert train_flops(n, tokens) == pytest.approx(exact, rel=0.1)  # tied: the head is as large as the embedding
    assert train_flops(n, tokens) < exact  # attention scores are left out


def test_recipes_of_claim_7() -> None:
    assert bytes_per_parameter("adamw-16bit") == 2 + 2 + 12 == 16
    assert bytes_per_parameter("adamw-16bit-fp32-gradients") == 2 + 4 + 12 == 18
    assert bytes_per_parameter("adamw-16bit-both-gradients") == 20
    assert bytes_per_parameter("adamw-fp32") == 4 + 4 + 8 == 16
    assert bytes_per_parameter("inference-16bit") == 2
    assert all(recipe.what for recipe in RECIPES.values())
    with pytest.raises(ConfigError, match="adamw-fp32"):
        bytes_per_parameter("adam")


def test_small_formulas() -> None:
    assert adamw_state_bytes(1000) == 8000 and adamw_state_bytes(1000, 2) == 4000
    assert effective_batch(4, 8, 16) == 512 and effective_batch(4, 8, 16, context=2048) == 1_048_576
    assert mfu(1e9, 1000, 6e12) == 1.0


def test_batch_devices_and_updates() -> None:
    """The three rows of Llama 3's table 4 (arXiv 2407.21783): other devices, other contexts, one batch in tokens."""
    rows = [(64, 1, 32, 8192, 8192), (128, 1, 16, 8192, 16384), (8, 16, 16, 131072, 16384)]
    for data, context_parallel, sequences, context, devices in rows:
        assert world_size(data, tensor=8, pipeline=16, context_parallel=context_parallel) == devices
        assert effective_batch(1, sequences, data, context) == 2**24
    assert updates_per_epoch(1_000_000, effective_batch(4, 8, 2, 64)) == pytest.approx(244.14, abs=0.01)
    assert updates_per_epoch(10, 20) == 0.5
    with pytest.raises(ConfigError, match="tokens_per_update=0"):
        updates_per_epoch(10, 0)
