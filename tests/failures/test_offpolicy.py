"""A trainer and a sampler of one set of weights: equal in FP64, apart in 16 bits, and equal again in one shape."""

from itertools import pairwise

import pytest
import torch

from course_lib.config import preset
from course_lib.errors import ConfigError
from course_lib.failures.batching import PRODUCTS, batch_gaps, invariant
from course_lib.failures.offpolicy import (
    NUMERICS,
    Decoder,
    Gap,
    all_log_probs,
    compare,
    engine,
    log_probs,
    sample,
    sample_padded,
)
from course_lib.model import GPT
from course_lib.precision import FORMATS


def sharp(seed: int = 0, kv_heads: int = 2) -> GPT:
    """A model whose predictions are not uniform: its initial matrices, four times as large."""
    shape = preset("mini", vocab_size=40, n_layers=2, d_model=48, n_heads=4, n_kv_heads=kv_heads, context=40)
    model = GPT(shape, seed)
    with torch.no_grad():
        for p in model.parameters():
            if p.dim() >= 2:
                p.mul_(4)
    return model


def prompts(count: int = 12) -> torch.Tensor:
    return torch.randint(0, 40, (count, 5), generator=torch.Generator().manual_seed(3))


def written(model: GPT, how=sample, seed: int = 1):
    return how(model, prompts(), 24, torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_the_cache_equals_the_full_forward_in_float64(kv_heads: int) -> None:
    model = engine(sharp(kv_heads=kv_heads), "fp64")
    tokens = torch.randint(0, 40, (3, 30), generator=torch.Generator().manual_seed(0))
    whole = model(tokens)
    for first in (1, 7):
        decoder = Decoder(model)
        found = [decoder.step(tokens[:, :first])]
        found += [decoder.step(tokens[:, t : t + 1]) for t in range(first, 30)]
        assert (torch.stack(found, 1) - whole[:, first - 1 :]).abs().max() < 1e-12


def test_a_decoder_says_what_it_cannot() -> None:
    decoder = Decoder(sharp())
    decoder.step(torch.zeros(1, 39, dtype=torch.int64))
    with pytest.raises(ConfigError, match="one token at a time"):
        decoder.step(torch.zeros(1, 2, dtype=torch.int64))
    decoder.step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ConfigError, match="do not fit"):
        decoder.step(torch.zeros(1, 1, dtype=torch.int64))
    with pytest.raises(ConfigError, match="no numerics"):
        engine(sharp(), "fp12")


def test_an_engine_leaves_the_model_and_rounds_as_the_format_does() -> None:
    model = sharp()
    before = {name: p.clone() for name, p in model.named_parameters()}
    made = engine(model, "fp8")
    assert all((before[name] == p).all() for name, p in model.named_parameters())
    weight = before["embedding.weight"].detach()
    scale = float(weight.abs().max() / 448)
    wanted = torch.tensor(FORMATS["fp8_e4m3"].round((weight / scale).double().numpy())) * scale
    error = made.head.weight.double() - wanted
    assert (error.abs() <= wanted.abs() * 2**-8).all()  # stored in BF16 after that
    assert made.cos.dtype == torch.float32


def test_gaps_order_themselves_by_digits() -> None:
    model = sharp()
    gaps = {name: compare(model, written(engine(model, name))) for name in NUMERICS}
    sizes = [gaps[name].largest for name in ("fp32", "fp16", "bf16", "fp8")]
    assert sizes[0] < 1e-4 and all(2 * small < large for small, large in pairwise(sizes))
    assert gaps["fp32"].effective > 0.999999 and gaps["fp8"].effective < gaps["bf16"].effective


def test_equal_precision_is_not_equal_numerics_but_equal_shapes_are() -> None:
    model = engine(sharp(), "bf16")
    assert compare(model, written(model)).largest > 0
    for name in NUMERICS:
        made = engine(sharp(), name)
        assert (compare(made, written(made, sample_padded)).difference == 0).all(), name


def test_estimators_of_kl_against_the_exact_one() -> None:
    """k1 and k3 are means over tokens that were drawn: right on average. The exact one needs both distributions."""
    model, other = sharp(0), engine(sharp(0), "fp8")
    found = [compare(model, sample(other, prompts(200), 20, torch.Generator().manual_seed(s))) for s in range(4)]
    exact, k1, k3 = (sum(getattr(gap, name) for gap in found) / 4 for name in ("exact", "k1", "k3"))
    assert exact > 0 and k3 == pytest.approx(exact, rel=0.15)
    assert abs(k1 - exact) < 0.02  # far noisier: the terms are as large as the gaps themselves


def test_ratios_of_tokens_multiply_to_those_of_sequences() -> None:
    gap = Gap(torch.tensor([[0.1, -0.2], [0.0, 0.0]], dtype=torch.float64), 0.0)
    torch.testing.assert_close(gap.sequence_ratios, gap.token_ratios.prod(1))
    assert gap.k3 == pytest.approx(((0.1).__rpow__(2.718281828459045) - 1.1 + 2.718281828459045**-0.2 - 0.8) / 4)


def test_log_probs_are_those_of_the_tokens_and_have_gradients() -> None:
    model, tokens = sharp(), written(sharp()).tokens
    found = log_probs(model, tokens, 5)
    everything = all_log_probs(model, tokens, 5)
    assert found.requires_grad and found.shape == (12, 24)
    assert found[3, 7] == everything[3, 7, tokens[3, 12]]
    alone = torch.log_softmax(model(tokens[3:4, :12])[0, -1], -1)[tokens[3, 12]]
    assert abs(float((found[3, 7] - alone).detach())) < 1e-4


# ---------------------------------------------------------------- batches


def test_rows_of_our_own_products_do_not_depend_on_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)
    x, w = torch.randn(64, 96, generator=generator), torch.randn(96, 160, generator=generator)
    for name in ("row by row", "one order for all"):
        for dtype in (torch.float32, torch.bfloat16):
            gaps = batch_gaps(PRODUCTS[name], x.to(dtype), w.to(dtype), (1, 2, 3, 5, 8, 31, 64))
            assert set(gaps.values()) == {0.0}, (name, dtype)
    for multiply in PRODUCTS.values():
        torch.testing.assert_close(multiply(x, w), x @ w, atol=1e-4, rtol=1e-5)


def test_the_measure_sees_a_product_that_depends_on_the_batch() -> None:
    def uneven(x, w):
        return x @ w if len(x) > 4 else (x.double() @ w.double()).float() + 1e-5

    gaps = batch_gaps(uneven, torch.ones(8, 4), torch.ones(4, 4), (2, 8))
    assert gaps[2] > 0 and gaps[8] == 0


def test_a_model_that_works_row_by_row_gives_a_text_the_same_in_any_batch() -> None:
    tokens = torch.randint(0, 40, (16, 20), generator=torch.Generator().manual_seed(0))
    for numerics in ("fp32", "bf16"):
        model = engine(sharp(), numerics)
        own = invariant(model)
        with torch.no_grad():
            for rows in (1, 3, 7):
                assert torch.equal(own(tokens)[:rows], own(tokens[:rows])), (numerics, rows)
            gap = (own(tokens).float() - model(tokens).float()).abs().max()
        assert gap < (1e-4 if numerics == "fp32" else 0.2)
