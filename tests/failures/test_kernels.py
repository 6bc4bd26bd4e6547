"""Right kernels pass the good test and wrong ones do not; the loose test accepts wrong ones."""

import numpy as np
import pytest

from course_lib.errors import ConfigError
from course_lib.failures.kernel_test import EPS, attention_oracle, kernel_test, loose_test, sum_oracle
from course_lib.failures.kernels import ATTENTIONS, SUMS, WRONG_ATTENTIONS, WRONG_SUMS

RIGHT = [("sum", name) for name in SUMS] + [("attention", name) for name in ATTENTIONS]
WRONG = [("sum", name) for name in WRONG_SUMS] + [("attention", name) for name in WRONG_ATTENTIONS]
ALL = {"sum": SUMS | WRONG_SUMS, "attention": ATTENTIONS | WRONG_ATTENTIONS}


@pytest.mark.parametrize(("kind", "name"), RIGHT)
def test_right_kernels_pass_with_room(kind, name) -> None:
    for seed in range(3):
        report = kernel_test(ALL[kind][name], kind, seed=seed)
        assert report.passed and report.worst.error < 0.5, report.text()


@pytest.mark.parametrize(("kind", "name"), WRONG)
def test_wrong_kernels_fail_at_every_seed(kind, name) -> None:
    for seed in range(3):
        report = kernel_test(ALL[kind][name], kind, seed=seed)
        assert not report.passed and report.worst.error > 100, report.text()


def test_the_loose_test_accepts_wrong_ones() -> None:
    wrong = [(kind, ALL[kind][name]) for kind, name in WRONG]
    friendly = [loose_test(kernel, kind).passed for kind, kernel in wrong]
    assert sum(friendly) > len(wrong) / 2
    assert 0 < sum(loose_test(kernel, kind, size=1000).passed for kind, kernel in wrong) < sum(friendly)
    assert all(loose_test(ALL[kind][name], kind).passed for kind, name in RIGHT)
    assert not loose_test(lambda x: 0.0).passed  # it is not blind


def test_inputs_decide_before_the_limit_does() -> None:
    """One friendly draw with a limit from rounding still accepts six; good inputs with 1% accept none."""
    limit = 4 * EPS * 1024**0.5
    accepted = [loose_test(ALL[kind][name], kind, tolerance=limit).passed for kind, name in WRONG]
    assert sum(accepted) >= 5
    assert all(max(c.relative for c in kernel_test(ALL[kind][name], kind).cases) > 1e-2 for kind, name in WRONG)
    assert all(loose_test(ALL[kind][name], kind, tolerance=limit).passed for kind, name in RIGHT)


def test_equal_on_paper_and_different_in_bits() -> None:
    x = np.random.default_rng(0).random(1000, dtype=np.float32)
    assert len({float(kernel(x)) for kernel in SUMS.values()}) > 1
    inputs = [np.random.default_rng(i).standard_normal((200, 16)).astype(np.float32) for i in range(3)]
    assert len({kernel(*inputs).tobytes() for kernel in ATTENTIONS.values()}) > 1
    right = attention_oracle(*inputs)
    assert all(np.abs(kernel(*inputs) - right).max() < 1e-5 for kernel in ATTENTIONS.values())
    assert all(abs(float(kernel(x)) - sum_oracle(x)) < 1e-3 for kernel in SUMS.values())


def test_the_oracle_agrees_with_torch() -> None:
    import torch
    import torch.nn.functional as F

    q, k, v = (
        torch.randn(1, 1, 33, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(i)) for i in range(3)
    )
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True)[0, 0].numpy()
    np.testing.assert_allclose(attention_oracle(q[0, 0], k[0, 0], v[0, 0]), theirs, atol=1e-13)


def test_a_kernel_of_another_block_or_shape() -> None:
    def tail_of_32(x):
        return SUMS["blocked"](x[: len(x) // 32 * 32])

    assert not kernel_test(tail_of_32, block=32).passed
    assert kernel_test(lambda q, k, v: v[:, :3], "attention").worst.error == float("inf")
    with pytest.raises(ConfigError):
        kernel_test(SUMS["blocked"], "product")  # type: ignore[arg-type]


@pytest.mark.stress
def test_over_fifty_seeds() -> None:
    for seed in range(50):
        for kind, name in RIGHT:
            assert kernel_test(ALL[kind][name], kind, seed=seed).worst.error < 0.5, (name, seed)
        for kind, name in WRONG:
            assert not kernel_test(ALL[kind][name], kind, seed=seed).passed, (name, seed)
