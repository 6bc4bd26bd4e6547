"""What chapter 13's exercises call right, against sums that are really made, autograd, and fresh runs of each law."""

import math

import numpy as np
import pytest
import torch

from course_lib.checks.ch04_formats import nearest_even
from course_lib.checks.ch13_cure import BITS, cure, error_of
from course_lib.checks.ch13_kahan import _bf16, _step
from course_lib.checks.ch13_kernel import RIGHT, WRONG, kernel_of
from course_lib.checks.ch13_stop import stop
from course_lib.checks.ch13_tis import TIS, _loss
from course_lib.checks.ch13_trace import LAST, ROWS, trace
from course_lib.failures.bias import stops_at
from course_lib.failures.kernel_test import kernel_test
from course_lib.precision import FORMATS, accumulate


@pytest.mark.parametrize("bits", [2, 3, 5, 7, 10])
def test_a_sum_that_is_made_stops_there(bits: int) -> None:
    """One by one in exact whole numbers, with addends of every mantissa (of some, where there are many)."""
    rng = np.random.default_rng(bits)
    mantissas = range(2**bits) if bits < 6 else [0, 1, 2**bits - 1, *rng.integers(0, 2**bits, 12).tolist()]
    for mantissa in mantissas:
        addend, total = 1 + mantissa / 2**bits, 0.0
        while (new := nearest_even(total + addend, bits + 1)) != total:
            total = new
        assert total == stop(addend, bits), (bits, addend, total)


def test_where_it_stops_is_the_librarys_place() -> None:
    rng = np.random.default_rng(0)
    for name in ("fp16", "bf16", "fp32"):
        for exponent in rng.uniform(-8, 2, 20):
            addend = FORMATS[name].round(float(2**exponent))
            assert stop(addend, FORMATS[name].mantissa_bits) == stops_at(addend, name)


def _fresh(kind: str, run: dict, steps: int, runs: int = 400) -> np.ndarray:
    """Runs step by step, with the law's numbers read off the trace's last row."""
    rng = np.random.default_rng(5)
    n, mean, std = LAST, float(run["mean"][-1]), float(run["spread"][-1])
    bias = mean / n if kind == "B" else 0.0
    return np.asarray(bias * steps + (std / math.sqrt(n)) * math.sqrt(steps) * rng.standard_normal(runs))


@pytest.mark.parametrize("variant", range(12))
def test_the_next_row_is_what_the_law_gives(variant: int) -> None:
    run = trace(variant)
    kind, mean, spread = run["choice"], run["mean"], run["spread"]
    if kind in "AB":
        x = _fresh(kind, run, 2 * LAST, 100_000)
        assert math.sqrt((x**2).mean()) == pytest.approx(run["evidence"], rel=0.02)
    if kind == "B":  # at least eleven standard errors, and not by one row
        assert abs(mean[-1]) / spread[-1] * math.sqrt(1024) > 11
        assert abs(mean[-1] / mean[-2]) == pytest.approx(2, rel=0.25)
    if kind == "A":
        assert np.abs(mean / spread).max() * math.sqrt(1024) < 2
    if kind == "D":
        assert run["evidence"] == pytest.approx(math.hypot(mean[-2], spread[-2]), rel=0.1)
    if kind == "C":  # x <- (1 + f) x + b, from 0: with f and b that give the last two rows
        growth = mean[-1] / mean[-2] - 1
        f = math.log(growth) / (LAST / 2)
        b = mean[-1] * f / math.expm1(f * LAST)
        x = 0.0
        for _ in range(2 * LAST):
            x = x + f * x + b
        assert x == pytest.approx(run["evidence"], rel=0.02)
        assert len(mean) == ROWS


@pytest.mark.parametrize("variant", range(9))
def test_errors_of_the_table_are_those_of_sums_that_are_made(variant: int) -> None:
    """Plain: exactly. By chance: 95 of a hundred sums are within it, about. Kahan: within it; FP32: far within."""
    run = cure(variant)
    name, n, a, start = run["format"].lower(), min(run["n"], 4096), run["a"], run["start"]
    run = run | {"n": n}
    end = start + n * a
    assert FORMATS[name].mantissa_bits == BITS[run["format"]]
    plain = accumulate(a, n, name, start=start)
    assert 100 * (end - plain) / end == pytest.approx(error_of(run, "A"), abs=1e-9)
    made = [accumulate(a, n, name, "stochastic", start=start, seed=seed) for seed in range(60)]
    off = 100 * np.abs(np.array(made) / end - 1)
    assert (off > error_of(run, "B")).mean() < 0.15
    assert 100 * abs(accumulate(a, n, name, "kahan", start=start) / end - 1) <= error_of(run, "C") * 1.001
    assert 100 * abs(accumulate(a, n, "fp32", start=start) / end - 1) <= error_of(run, "D") + 1e-9
    values = np.full(n, a)
    while len(values) > 1:
        values = np.append(values, 0.0) if len(values) % 2 else values
        values = FORMATS[name].round(values[0::2] + values[1::2])
    assert 100 * abs(values[0] / (n * a) - 1) <= error_of(run | {"start": 0.0}, "E")


def test_the_hand_rounding_is_torchs() -> None:
    x = np.random.default_rng(1).normal(size=2000).astype(np.float32)
    assert np.array_equal(_bf16(x), torch.from_numpy(x).bfloat16().float().numpy())
    w, lost, u = (torch.from_numpy(_bf16(x[i::3][:600] * 10.0**-i)) for i in range(3))
    wanted = u.bfloat16() - lost.bfloat16()
    new = w.bfloat16() + wanted
    one, two = _step(w.numpy(), lost.numpy(), u.numpy())
    assert np.array_equal(one, new.float().numpy())
    assert np.array_equal(two, ((new - w.bfloat16()) - wanted).float().numpy())


@pytest.mark.parametrize("seed", range(3))
def test_loss_and_gradient_are_autograds(seed: int) -> None:
    """Of the right rule, and of the one whose weights have gradients."""
    for case in TIS.cases(seed):
        mask = torch.tensor(case["mask"])
        for rule in ("", "weights-have-gradients"):
            x = torch.tensor(np.where(case["mask"], case["trainer"], 0), dtype=torch.float64, requires_grad=True)
            y = torch.tensor(np.where(case["mask"], case["sampler"], 0), dtype=torch.float64)
            ratio = ((x if rule else x.detach()) - y).exp()
            weight = torch.where(ratio < case["cap"], ratio, case["cap"])
            A = torch.tensor(case["advantage"], dtype=torch.float64)[:, None]
            loss = -(weight * A * x * mask).sum() / max(int(mask.sum()), 1)
            loss.backward()
            value, grad = _loss(case, rule)
            assert float(loss.detach()) == pytest.approx(value, rel=1e-9, abs=1e-12)
            if np.isfinite(np.exp(float((x - y).detach().max()))):
                assert x.grad is not None and np.allclose(x.grad.numpy(), grad, atol=1e-9)


@pytest.mark.parametrize("block", [33, 64, 100, 256])
def test_kernels_are_what_they_are_called(block: int) -> None:
    """By exact sums, and by the library's own test with the block's size."""
    rng = np.random.default_rng(block)
    bits = set()
    for name in RIGHT:
        kernel = kernel_of(name, block)
        for n in (1, 2, block - 1, block, block + 1, 5000, 100_000):
            for x in (rng.random(n), rng.normal(size=n)):
                x = x.astype(np.float32)
                allowed = n * 2.0**-24 * math.fsum(np.abs(x).tolist())
                assert abs(kernel(x) - math.fsum(x.tolist())) <= allowed
        assert math.isnan(kernel(np.array([1, math.nan, 2], dtype=np.float32)))
        fixed = np.random.default_rng(3).random(3001).astype(np.float32)
        bits.add(kernel(fixed))
        report = kernel_test(kernel, "sum", block=block)
        assert report.passed, (name, report.text())
    assert len(bits) >= 3, "right kernels differ in bits"
    for name in WRONG:
        kernel = kernel_of(name, block)
        worst = 0.0
        for n in (1, 3, block + 1, 2 * block, 2 * block + 3, 6001, 70_000):
            for x in (rng.random(n), rng.normal(size=n), -rng.random(n), 1e-9 * rng.random(n), 1e9 * rng.random(n)):
                x = x.astype(np.float32)
                allowed = n * 2.0**-24 * math.fsum(np.abs(x).tolist())
                worst = max(worst, abs(kernel(x) - math.fsum(x.tolist())) / allowed)
        silent = not math.isnan(kernel(np.array([1, math.nan], dtype=np.float32)))
        assert worst > 10 or (name == "no nan" and silent), (name, worst)
