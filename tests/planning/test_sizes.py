"""Parameters counted from shapes, against our own GPT and against published totals."""

import pytest

from course_lib.config import ModelConfig
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt
from course_lib.planning.formulas import model_params
from course_lib.planning.sizes import active, layer_parameters, parameters, total
from course_lib.planning.spec import ModelSpec

LLAMA_2_7B = ModelSpec(layers=32, width=4096, heads=32, ffn=11008, vocab=32000)
LLAMA_2_70B = ModelSpec(layers=80, width=8192, heads=64, kv_heads=8, ffn=28672, vocab=32000)
LLAMA_3_8B = ModelSpec(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
LLAMA_3_70B = ModelSpec(layers=80, width=8192, heads=64, kv_heads=8, ffn=28672, vocab=128256)
LLAMA_3_405B = ModelSpec(layers=126, width=16384, heads=128, kv_heads=8, ffn=53248, vocab=128256)
GPT_2 = ModelSpec(layers=12, width=768, heads=12, vocab=50257, positions=1024, gated=False, tied=True, biases=True)
GPT_3 = ModelSpec(layers=96, width=12288, heads=96, vocab=50257, positions=2048, gated=False, tied=True, biases=True)
BLOOM = ModelSpec(layers=70, width=14336, heads=112, vocab=250880, gated=False, tied=True, biases=True)
PALM = ModelSpec(layers=118, width=18432, heads=48, kv_heads=1, head_dim=256, ffn=73728, vocab=256000, tied=True)
MIXTRAL = ModelSpec(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336, vocab=32000, experts=8, active_experts=2)
LATENT = 7168 * 1536 + 1536 * 128 * 192 + 7168 * 576 + 512 * 128 * 256 + 128 * 128 * 7168
"""DeepSeek-V3's attention: queries and keys and values down and up, output (arXiv 2412.19437, section 2.1)."""
DEEPSEEK_V3 = ModelSpec(
    layers=61, width=7168, heads=128, head_dim=128, ffn=18432, vocab=129280, experts=256, active_experts=8,
    shared_experts=1, expert_ffn=2048, dense_layers=3, attention_parameters=LATENT,
)  # fmt: skip

PUBLISHED = {
    # The published count has 64 rotary frequencies a layer in it, which are no parameters.
    "Llama 2 7B": (LLAMA_2_7B, 6_738_417_664 - 32 * 64, 0),
    "Llama 2 70B": (LLAMA_2_70B, 68_976_653_312 - 80 * 64, 0),
    "Llama 3 8B": (LLAMA_3_8B, 8_030_261_248, 0),
    "Llama 3 70B": (LLAMA_3_70B, 70_553_706_496, 0),
    "Llama 3.1 405B": (LLAMA_3_405B, 405_853_388_800, 0),
    "GPT-2": (GPT_2, 124_439_808, 0),
    "GPT-3": (GPT_3, 174.6e9, 2e-4),  # as printed, four digits
    "BLOOM": (BLOOM, 176.247e9, 1e-5),  # a norm behind the embedding is left out
    "PaLM": (PALM, 540.35e9, 1e-4),
    "Mixtral 8x7B": (MIXTRAL, 46.7e9, 1e-3),
    "DeepSeek-V3": (DEEPSEEK_V3, 671e9, 1e-3),
}
"""Totals of shared/research/runs.md, A1, with their tolerance: the digits that are printed."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_totals(name: str) -> None:
    model, published, tolerance = PUBLISHED[name]
    assert total(model) == (published if not tolerance else pytest.approx(published, rel=tolerance))


def test_active_parameters() -> None:
    assert active(MIXTRAL) == pytest.approx(12.9e9, rel=2e-3)
    assert active(DEEPSEEK_V3) == pytest.approx(37e9, rel=0.02)  # 37.55: published without the embedding's 0.9
    assert active(LLAMA_3_8B) == total(LLAMA_3_8B)


SHAPES = {
    "plain": ModelConfig(),
    "grouped, untied": ModelConfig(n_kv_heads=2, tie_embeddings=False, n_layers=3, d_ff=100),
    "one head": ModelConfig(n_heads=1, n_layers=1, d_model=64, vocab_size=77),
}


def spec(config: ModelConfig) -> ModelSpec:
    return ModelSpec(
        layers=config.n_layers, width=config.d_model, heads=config.n_heads, kv_heads=config.kv_heads,
        ffn=config.ff, vocab=config.vocab_size, tied=config.tie_embeddings,
    )  # fmt: skip


@pytest.mark.parametrize("name", SHAPES)
def test_our_gpt(name: str) -> None:
    config = SHAPES[name]
    found = parameters(spec(config))
    assert {part: size for part, size in found.items() if size} == {
        part: size for part, size in model_params(config).items() if size
    }
    assert total(spec(config)) == GPT(config).num_params()


def test_our_mixture() -> None:
    """Two matrices an expert and a router; all layers have experts."""
    config = ModelConfig(n_layers=2, tie_embeddings=False)
    model = moe_gpt(config, MoEConfig(n_experts=4, d_expert=32))
    shape = ModelSpec(layers=2, width=128, heads=4, vocab=1024, gated=False, experts=4, active_experts=2, expert_ffn=32)
    assert total(shape) == sum(p.numel() for p in model.parameters())
    assert total(shape) - active(shape) == 2 * 2 * (2 * 128 * 32)  # two layers, two experts not visited


@pytest.mark.parametrize("name", PUBLISHED)
def test_layers_and_what_is_around_them_are_the_model(name: str) -> None:
    model = PUBLISHED[name][0]
    around = model.vocab * model.width * (1 if model.tied else 2) + model.positions * model.width
    norm = model.width * (2 if model.biases else 1)
    assert sum(layer_parameters(model, i) for i in range(model.layers)) + around + norm == total(model)


def test_dense_layers_come_first() -> None:
    sizes = [layer_parameters(DEEPSEEK_V3, i) for i in range(5)]
    assert sizes[0] == sizes[2] < sizes[3] == sizes[4]
