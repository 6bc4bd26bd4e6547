"""Number formats against three oracles: ml_dtypes, torch, and exact rational arithmetic; and sums one by one."""

import itertools
import math
from bisect import bisect_left
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import torch

from course_lib.errors import ConfigError
from course_lib.precision import FORMATS, METHODS, Format, accumulate, running_sums

MILLION = 1_000_000
STORED = {
    "fp32": (np.float32, np.uint32),
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "fp16": (np.float16, np.uint16),
    "fp8_e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
    "fp8_e5m2": (ml_dtypes.float8_e5m2, np.uint8),
}
IN_TORCH = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
each_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=list(FORMATS))
each_stored = pytest.mark.parametrize("name", STORED)


def specials(fmt: Format) -> np.ndarray:
    """Zeros, infinities, NaN, and around every border of the format: the border, a hair and half a spacing away."""
    borders = [fmt.max, fmt.smallest_normal, fmt.smallest_subnormal, 1.0, 2.0, 448.0, 65504.0, 2.0**-126, 2.0**-149]
    gaps = [2.0**k for k in (-fmt.mantissa_bits - 1, -fmt.mantissa_bits, -fmt.mantissa_bits - 2, -23, -24)]
    near = [b * (1 + s * g) for b in borders for g in gaps for s in (-1, 1)] + [
        b * k for b in borders for k in (0.5, 2)
    ]
    around = [m * fmt.smallest_subnormal for m in (0.25, 0.5, 0.75, 1.5, 2.5, 3.5)]
    all_of_them = [0.0, math.inf, math.nan, *borders, *near, *around]
    return np.array(all_of_them + [-x for x in all_of_them])


def random_values(fmt: Format, count: int = MILLION, seed: int = 0) -> np.ndarray:
    """float32 values: half any bits at all, a quarter in the format's range, a quarter exactly between two values."""
    rng = np.random.default_rng([seed, fmt.width])
    bits = rng.integers(0, 2**32, count // 2, dtype=np.uint32).view(np.float32)
    bits[np.isnan(bits)] = np.nan  # a signalling NaN would make numpy warn
    low, high = math.log2(fmt.smallest_subnormal) - 2, math.log2(fmt.max) + 1
    signs = rng.choice([-1.0, 1.0], count // 4)
    spread = np.clip(signs * 2 ** rng.uniform(low, high, count // 4), -3.4e38, 3.4e38)
    exponents = rng.integers(1 - fmt.bias, fmt.bias, count // 4)
    halves = rng.integers(1, 2 ** (fmt.mantissa_bits + 2), count // 4) * 2.0 ** (exponents - fmt.mantissa_bits - 1)
    with np.errstate(over="ignore"):
        return np.concatenate([bits, spread.astype(np.float32), (signs * halves).astype(np.float32)])


def same(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal in value, in what is NaN, and in the sign of zero."""
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a)
    return bool((((a == b) | (np.isnan(a) & np.isnan(b))) & signs).all())


# ------------------------------------------------------------------------------------------------------- the oracles


def decode(fmt: Format, code: int) -> float | None:
    """The value of these bits by the definition of the format, as an exact rational; None for infinity and NaN."""
    hidden = 2**fmt.mantissa_bits
    exponent, mantissa = divmod(code % 2 ** (fmt.width - 1), hidden)
    top = exponent == 2**fmt.exponent_bits - 1
    if top and (fmt.infinities or mantissa == hidden - 1):
        return None
    significand = Fraction(mantissa, hidden) + (1 if exponent else 0)
    value = significand * Fraction(2) ** (max(exponent, 1) - (2 ** (fmt.exponent_bits - 1) - 1))
    return float(-value if code >= 2 ** (fmt.width - 1) else value)


def nearest_even(x: float, significant: int, lowest: int) -> float:
    """x to `significant` bits, no bit below 2**lowest, ties to even, in integers: n/d is x exactly."""
    n, d = abs(x).as_integer_ratio()
    exponent = n.bit_length() - d.bit_length()  # d is a power of two
    quantum = max(exponent - significant + 1, lowest)
    n, d = (n, d << quantum) if quantum >= 0 else (n << -quantum, d)
    whole, rest = divmod(n, d)
    whole += 2 * rest > d or (2 * rest == d and whole % 2 == 1)
    return math.copysign(math.ldexp(whole, quantum), x)


# ------------------------------------------------------------------------------------------------- rounding and bits


@each_stored
def test_a_million_values_round_as_in_ml_dtypes(name):
    fmt, (dtype, _) = FORMATS[name], STORED[name]
    with np.errstate(all="ignore"):
        for values in (random_values(fmt), specials(fmt).astype(np.float32)):
            assert same(fmt.round(values), values.astype(dtype))


@pytest.mark.parametrize("name", ["fp32", "fp16"])
def test_float64_is_rounded_once_as_in_numpy(name):
    rng, fmt = np.random.default_rng(1), FORMATS[name]
    values = rng.choice([-1.0, 1.0], MILLION) * 2 ** rng.uniform(-160, 130, MILLION)
    with np.errstate(all="ignore"):
        assert same(fmt.round(values), values.astype(STORED[name][0]))
        assert same(fmt.round(specials(fmt)), specials(fmt).astype(STORED[name][0]))


@pytest.mark.parametrize("name", IN_TORCH)
def test_a_million_values_round_as_in_torch(name):
    fmt = FORMATS[name]
    with np.errstate(over="ignore"):
        borders = specials(fmt).astype(np.float32)
    for values in (random_values(fmt, seed=2), borders):
        theirs = torch.from_numpy(values.copy()).to(IN_TORCH[name]).double().numpy()
        assert same(fmt.round(values, saturate=not fmt.infinities), theirs)


def test_a_million_values_round_to_tf32_as_rationals_do():
    fmt = FORMATS["tf32"]
    values = np.concatenate([random_values(fmt, seed=3).astype(np.float64), specials(fmt)])
    finite = values[np.isfinite(values) & (values != 0)]
    wanted = np.array([nearest_even(x, 11, -136) for x in finite.tolist()])
    wanted = np.where(np.abs(wanted) > fmt.max, np.copysign(math.inf, wanted), wanted)
    assert same(fmt.round(finite), wanted)
    rest = values[~np.isfinite(values) | (values == 0)]
    assert same(fmt.round(rest), rest)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_float64_values_that_float32_cannot_hold_round_once(name):
    """A hair off the middle of two values: by way of float32 it would be a tie."""
    fmt = FORMATS[name]
    middles = 1 + (np.arange(2**fmt.mantissa_bits) + 0.5) * 2.0**-fmt.mantissa_bits
    values = np.concatenate([middles * (1 + 2.0**-50), middles * (1 - 2.0**-50)])
    wanted = [nearest_even(x, fmt.mantissa_bits + 1, -2000) for x in values.tolist()]
    assert same(fmt.round(values), wanted)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_every_value_of_a_small_format_stands_still_with_its_bits_gap_and_neighbours(name):
    fmt, (dtype, word) = FORMATS[name], STORED[name]
    codes = range(2 ** (fmt.width - 1))
    finite = [v for v in (decode(fmt, code) for code in codes) if v is not None]
    assert finite == sorted(finite) and finite[-1] == fmt.max and finite[1] == fmt.smallest_subnormal
    assert same(fmt.round(finite), finite)
    assert finite == np.array(codes, dtype=word)[: len(finite)].view(dtype).astype(float).tolist()
    step = 1 if fmt.width == 8 else 37
    for code in itertools.chain(codes[: len(finite) : step], (len(finite) - 1,)):
        value = finite[code]
        assert int("".join(fmt.bits(value)), 2) == code
        assert int("".join(fmt.bits(-value)), 2) == code + 2 ** (fmt.width - 1)
        above = finite[code + 1] if code + 1 < len(finite) else math.inf
        below = finite[code - 1] if code else -finite[1]
        assert (fmt.up(value), fmt.down(value)) == (above, below)
        assert (fmt.down(-value), fmt.up(-value)) == (-above, -below)
        assert fmt.ulp(value) == fmt.ulp(-value) == (above - value if above != math.inf else value - below)


@each_stored
def test_bits_are_those_that_are_stored(name):
    fmt, (dtype, word) = FORMATS[name], STORED[name]
    values = np.concatenate([specials(fmt), random_values(fmt, 2000).astype(np.float64)])
    with np.errstate(all="ignore"):
        stored = fmt.round(values).astype(dtype).view(word)
    for x, code in zip(values.tolist(), stored.tolist(), strict=True):
        sign, exponent, mantissa = fmt.bits(x)
        assert (len(sign), len(exponent), len(mantissa)) == (1, fmt.exponent_bits, fmt.mantissa_bits)
        if not math.isnan(x):
            assert int(sign + exponent + mantissa, 2) == code, x
    with np.errstate(all="ignore"):
        assert int("".join(fmt.bits(math.nan)), 2) == int(np.array(math.nan).astype(dtype).view(word))


def test_bits_of_tf32_are_the_first_19_of_fp32():
    """TF32 is FP32 with 13 bits of mantissa less."""
    values = random_values(FORMATS["tf32"], 2000).astype(np.float64)
    for x in FORMATS["tf32"].round(values[np.isfinite(values)]).tolist():
        sign, exponent, mantissa = FORMATS["tf32"].bits(x)
        assert FORMATS["fp32"].bits(x) == (sign, exponent, mantissa + "0" * 13)


@pytest.mark.parametrize("name", ["fp32", "fp16", "bf16"])
def test_ulp_is_numpys_spacing(name):
    fmt, (dtype, _) = FORMATS[name], STORED[name]
    with np.errstate(all="ignore"):
        values = np.abs(random_values(fmt, 100_000)).astype(dtype)
        theirs = np.spacing(values).astype(np.float64)
    ours = fmt.ulp(values.astype(np.float64))
    at_max = values.astype(np.float64) == fmt.max
    assert same(ours[~at_max], np.where(np.isinf(theirs), math.nan, theirs)[~at_max])


@each_format
def test_ulp_at_the_borders(fmt):
    below_max = fmt.down(fmt.max)
    assert fmt.ulp(fmt.max) == fmt.ulp(-fmt.max) == fmt.max - below_max == fmt.ulp(below_max)
    assert fmt.ulp(0.0) == fmt.ulp(-0.0) == fmt.ulp(fmt.smallest_subnormal) == fmt.smallest_subnormal
    assert fmt.ulp(fmt.smallest_normal) == fmt.smallest_subnormal
    assert fmt.ulp(1.0) == 2.0**-fmt.mantissa_bits
    for x in (math.inf, -math.inf, math.nan, fmt.max * 2):
        assert math.isnan(fmt.ulp(x))


def test_known_numbers():
    fp16, bf16 = FORMATS["fp16"], FORMATS["bf16"]
    assert (fp16.max, fp16.smallest_normal, fp16.smallest_subnormal) == (65504, 2**-14, 2**-24)
    assert (bf16.max, bf16.smallest_normal) == (float.fromhex("0x1.FEp127"), 2**-126)
    assert FORMATS["fp8_e4m3"].max == 448 and FORMATS["fp8_e5m2"].max == 57344
    assert FORMATS["fp32"].max == np.finfo(np.float32).max
    assert (fp16.round(2049), fp16.round(2051), fp16.round(65519.9), fp16.round(65520)) == (2048, 2052, 65504, math.inf)
    assert fp16.bits(0.1) == ("0", "01011", "1001100110")
    assert fp16.round(1e-8) == 0 and bf16.round(1e-8) != 0
    values = FORMATS["fp8_e4m3"]
    assert math.isnan(values.round(465)) and values.round(464) == 448
    assert values.round(math.inf, saturate=True) == values.round(1e9, saturate=True) == 448
    assert math.isnan(values.round(math.nan, saturate=True))


@each_format
def test_what_lies_between_has_its_neighbours(fmt):
    rng = np.random.default_rng(4)
    for x in rng.choice([-1, 1], 500) * 2 ** rng.uniform(-20, 20, 500):
        below, above = fmt.neighbours(float(x))
        nearest = fmt.round(float(x))
        assert below < x < above
        assert nearest in (below, above) or math.isnan(nearest) or nearest == x
        for end in (below, above):
            assert math.isinf(end) or fmt.round(end) == end
        middle = (below + above) / 2
        assert math.isinf(middle) or nearest == x or fmt.round(middle) in (below, above)
    assert fmt.neighbours(1.0) == (1 - 2.0 ** -(fmt.mantissa_bits + 1), 1 + 2.0**-fmt.mantissa_bits)
    assert fmt.neighbours(0.0) == (-fmt.smallest_subnormal, fmt.smallest_subnormal)
    assert fmt.neighbours(2 * fmt.max) == (fmt.max, math.inf)
    assert fmt.neighbours(math.inf) == (fmt.max, math.inf)
    assert math.isnan(fmt.neighbours(math.nan)[0])


def test_the_nearest_value_is_the_nearest_of_all():
    """FP8 by looking at every value there is."""
    for name in ("fp8_e4m3", "fp8_e5m2"):
        fmt = FORMATS[name]
        table = [v for v in (decode(fmt, code) for code in range(128)) if v is not None]
        for x in np.random.default_rng(5).uniform(0, fmt.max, 3000).tolist():
            right = bisect_left(table, x)
            low, high = table[right - 1], table[right]
            if x - low != high - x:
                assert fmt.round(x) == (low if x - low < high - x else high)


def test_shapes_and_types():
    fmt = FORMATS["fp16"]
    assert isinstance(fmt.round(1), float) and isinstance(fmt.ulp(1), float)
    assert fmt.round([[1, 2], [3, 4]]).shape == fmt.ulp(np.ones((2, 2))).shape == (2, 2)
    assert fmt.round(np.float32(0.1)) == float(np.float16(0.1)) and fmt.round([]).shape == (0,)


# -------------------------------------------------------------------------------------------------------------- sums


def one_by_one(addend: float, count: int, name: str, start: float = 0.0) -> list[float]:
    """Rational sums, each rounded on its own."""
    fmt = FORMATS[name]
    lowest = 1 - fmt.bias - fmt.mantissa_bits
    to_format = lambda x: nearest_even(float(x), fmt.mantissa_bits + 1, lowest) if x else 0.0
    step, sums = to_format(addend), [to_format(start)]
    for _ in range(count):
        exact = Fraction(sums[-1]) + Fraction(step)
        assert Fraction(float(exact)) == exact, "the oracle needs sums that float64 holds"
        sums.append(to_format(float(exact)))
    return sums


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("addend", "start"), [(1.0, 0.0), (0.01, 0.0), (-0.1, 3.0), (0.5, 100.0), (1e-3, 1.0)])
def test_sums_are_those_of_rational_arithmetic(name, addend, start):
    count = 300
    assert running_sums(addend, count, name, start=start).tolist() == one_by_one(addend, count, name, start)


def test_known_sums():
    assert [accumulate(1.0, 4096, name) for name in ("fp32", "fp16", "bf16")] == [4096, 2048, 256]
    assert accumulate(1.0, 1, "fp16", start=1024) == 1025
    assert accumulate(0.5, 5000, "fp16") == 1024
    assert accumulate(0.01, 1000, "fp16") == pytest.approx(9.953, abs=1e-3)
    assert accumulate(0.01, 1000, "bf16") == 4.0
    assert accumulate(0.01, 1000, "fp32") == pytest.approx(10.0001, abs=5e-5)
    assert 1000 * FORMATS["fp16"].round(0.01) == pytest.approx(10.0021, abs=5e-5)
    assert accumulate(1e-3, 1000, FORMATS["bf16"], start=1.0) == 1.0
    assert accumulate(1e4, 10, "fp16") == math.inf and math.isnan(accumulate(100, 10, "fp8_e4m3"))
    assert accumulate(1.0, 0, "fp16", start=0.1) == float(np.float16(0.1))


def kahan_as_in_numpy(addend: float, count: int, start: float) -> list[float]:
    """Kahan's loop in np.float16 throughout."""
    total, lost, step = np.float16(start), np.float16(0), np.float16(addend)
    sums = [float(total)]
    for _ in range(count):
        wanted = np.float16(step - lost)
        new = np.float16(total + wanted)
        lost = np.float16(np.float16(new - total) - wanted)
        total = new
        sums.append(float(total))
    return sums


@pytest.mark.parametrize(("addend", "start"), [(1.0, 0.0), (0.01, 0.0), (-0.3, 2000.0), (1e-3, 1.0)])
def test_kahan_is_kahan_and_follows_the_exact_sum(addend, start):
    sums = running_sums(addend, 3000, "fp16", "kahan", start=start)
    assert sums.tolist() == kahan_as_in_numpy(addend, 3000, start)
    exact = FORMATS["fp16"].round(start) + FORMATS["fp16"].round(addend) * np.arange(3001)
    assert (np.abs(sums - exact) <= 1.01 * FORMATS["fp16"].ulp(exact)).all()


def test_stochastic_rounding_is_right_in_the_mean_and_between_two_neighbours():
    """200 sums of 0.1 from 2048 on: each addition goes up by 2 with probability 0.05 (0.1 in FP16, over the gap)."""
    fmt, count = FORMATS["fp16"], 400
    ends = [accumulate(0.1, count, "fp16", "stochastic", start=2048, seed=seed) for seed in range(200)]
    chance = fmt.round(0.1) / 2
    deviation = 2 * math.sqrt(count * chance * (1 - chance))
    assert abs(np.mean(ends) - 2048 - count * fmt.round(0.1)) < 4 * deviation / math.sqrt(200)
    assert np.std(ends) == pytest.approx(deviation, rel=0.25)
    assert same(fmt.round(ends), ends)
    sums = running_sums(0.3, 4000, "bf16", "stochastic", start=1.0, seed=1)
    for before, after in itertools.pairwise(sums.tolist()):
        exact = before + FORMATS["bf16"].round(0.3)
        assert after == exact or after in FORMATS["bf16"].neighbours(exact)
    assert accumulate(1.0, 100, "fp16", "stochastic") == 100, "what is exact is not rounded"


@pytest.mark.parametrize("method", METHODS)
@each_format
def test_no_sum_raises_or_warns(fmt, method):
    for addend, start in itertools.product(
        [0.0, 1e-45, 1.0, -1e39, math.inf, math.nan], [0.0, -1.0, fmt.max, -math.inf]
    ):
        sums = running_sums(addend, 5, fmt, method, start=start)
        assert sums.shape == (6,) and same(sums[0], fmt.round(start))


def test_same_seed_same_sum():
    a, b, c = (accumulate(0.01, 1000, "bf16", "stochastic", seed=seed) for seed in (1, 1, 2))
    assert a == b != c


def test_what_is_not_there_is_said():
    with pytest.raises(ConfigError, match=r"no number format 'fp12'.*fp32, tf32, bf16"):
        accumulate(1.0, 3, "fp12")
    with pytest.raises(ConfigError, match="no method"):
        accumulate(1.0, 3, "fp16", "pairwise")
    with pytest.raises(ConfigError, match="count=-1"):
        accumulate(1.0, -1, "fp16")
