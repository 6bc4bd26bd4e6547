"""Bias against variance: growth, thresholds by brute force, and the kind of error of each sum of training."""

import math

import numpy as np
import pytest

from course_lib.errors import ConfigError
from course_lib.failures import bias
from course_lib.failures.bias import CURES, PLACES, crossover, drift, exponent, measure, stops_at, vanishes_from
from course_lib.precision import FORMATS, Format, accumulate, running_sums

SMALL = Format("small", "S", 4, 3)


def positives(fmt: Format) -> list[float]:
    """Every positive value of the format, in order."""
    found = [fmt.smallest_subnormal]
    while found[-1] < fmt.max:
        found.append(fmt.up(found[-1]))
    return found


@pytest.mark.parametrize("fmt", [SMALL, FORMATS["fp8_e4m3"], FORMATS["fp8_e5m2"]], ids=lambda fmt: fmt.name)
def test_thresholds_by_trying_every_sum_and_every_addend(fmt: Format) -> None:
    values = positives(fmt)
    sums = np.array(values)
    for addend in values:
        same = fmt.round(sums + addend) == sums
        first = sums[same][0] if same.any() else math.inf
        assert stops_at(addend, fmt) == first == -stops_at(-addend, fmt)
        moved = sums[~same]  # all that is above the last sum that moves loses the addend
        last = math.inf if not len(moved) or moved[-1] == fmt.max else fmt.up(moved[-1])
        assert vanishes_from(addend, fmt) == last


@pytest.mark.parametrize("fmt", ["fp16", "bf16"])
def test_thresholds_by_trying_every_sum_of_sixteen_bits(fmt: str) -> None:
    made = FORMATS[fmt]
    sums = np.arange(1, 2**15, dtype=np.uint16)
    values = sums.view(np.float16).astype(np.float64) if fmt == "fp16" else (sums.astype(np.uint32) << 16).view("f4")
    values = np.sort(values[np.isfinite(values)].astype(np.float64))
    for addend in (1.0, 0.5, 0.01, 3.0, 1.5, 2.0**-14, 1000.0, 2.0**-20):
        step = made.round(addend)
        same = made.round(values + step) == values
        assert stops_at(addend, made) == (values[same][0] if same.any() else math.inf)
        assert not (made.round(values + step) == values)[values < stops_at(addend, made)].any()
        assert same[values >= vanishes_from(addend, made)].all()


@pytest.mark.parametrize(
    ("addend", "fmt"), [(1, "fp16"), (0.5, "fp16"), (0.01, "bf16"), (3, "bf16"), (0.3, "fp8_e4m3")]
)
def test_a_running_sum_ends_where_it_says(addend: float, fmt: str) -> None:
    end = stops_at(addend, fmt)
    assert accumulate(addend, int(2 * end / addend) + 10, fmt) == end


def test_known_thresholds() -> None:
    assert stops_at(1, "fp16") == 2048 and stops_at(0.5, "fp16") == 1024 and stops_at(1, "bf16") == 256
    assert stops_at(1, "fp32") == 2**24 and stops_at(0, "fp16") == 0
    assert stops_at(1000, "fp16") == math.inf  # overflows before it stops
    assert FORMATS["fp16"].round(1025 + 0.5) == 1026 and vanishes_from(0.5, "fp16") == 2048  # an odd mantissa moves


# ---------------------------------------------------------------- estimators


@pytest.mark.parametrize("seed", range(3))
def test_noise_grows_as_a_root_and_a_bias_in_proportion(seed: int) -> None:
    noise, both = (drift(share, 100_000, seed=seed) for share in (0.0, 1.0))
    assert 0.4 < noise.exponent < 0.6  # 32 runs: the spread over seeds is about 0.03
    assert abs(both.exponent - 1) < 1e-6
    assert noise.rms[0] == pytest.approx(1e-3, rel=0.5) and both.rms[0] == 1e-3  # equal at each step
    assert noise.rms[-1] == pytest.approx(1e-3 * 100_000**0.5, rel=0.5)


def test_a_small_bias_overtakes_where_the_formula_says() -> None:
    found = drift(0.1, 100_000, runs=64)
    ratio = np.abs(found.mean) / found.error.std(0)
    at = int(found.steps[np.argmax(ratio > 1)])
    assert crossover(0.1) == pytest.approx(99) and 50 < at < 200


def test_feedback_makes_a_snowball_and_forgetting_an_end() -> None:
    steps, share = 2000, 0.01
    snowball = drift(1.0, steps, feedback=share)
    exact = 1e-3 * ((1 + share) ** snowball.steps - 1) / share  # the geometric series
    np.testing.assert_allclose(snowball.mean, exact, rtol=1e-9)
    assert drift(1.0, steps, feedback=-share).mean[-1] == pytest.approx(1e-3 / share, rel=1e-6)
    assert drift(0.0, steps, feedback=share).rms[-1] > 1e4 * drift(0.0, steps).rms[-1]  # noise snowballs too


def test_exponent_of_known_powers() -> None:
    steps = np.arange(1, 100)
    assert exponent(steps, 3 * steps**1.5) == pytest.approx(1.5)
    assert math.isnan(exponent(steps, np.zeros(99)))


# ---------------------------------------------------------------- the sums of training


@pytest.mark.parametrize("cure", ["plain", "kahan"])
def test_sums_round_as_precision_does(cure: str) -> None:
    """Bit for bit, where both can: equal addends."""
    terms = np.full((500, 2), FORMATS["bf16"].round(0.01))
    ours = bias._SUMS[cure](terms, 0.0, 1.0, FORMATS["bf16"], np.random.default_rng(0))
    assert (ours[:, 0] == running_sums(0.01, 500, "bf16", cure)).all()  # type: ignore[arg-type]


def test_rounding_by_chance_is_right_on_average_and_never_leaves_the_neighbours() -> None:
    fmt = FORMATS["bf16"]
    for x in (1.003, -0.3, 3e-41, 7.77):
        draws = np.random.default_rng(0).random(20_000)
        found = fmt.round_by_chance(np.full(20_000, x), draws)
        below, above = fmt.neighbours(x)
        assert set(found.tolist()) == {below, above}
        assert abs(found.mean() - x) < 5 * (above - below) / 2 / math.sqrt(20_000)
    kept = fmt.round_by_chance([1.0, 0.0, -math.inf, 1e39], np.array([0.9, 0.9, 0.9, 0.0]))
    assert kept.tolist() == [1.0, 0.0, -math.inf, math.inf]


def test_the_oracle_is_exact() -> None:
    rng = np.random.default_rng(0)
    terms = rng.standard_normal((300, 3)) * 10.0 ** rng.integers(-12, 3, (300, 3))
    found = bias._exact(terms, 1.0, 1.0)
    for column in range(3):
        for n in (1, 17, 300):
            assert found[n, column] == pytest.approx(math.fsum([1.0, *terms[:n, column]]), rel=2e-16)


@pytest.mark.parametrize("place", list(PLACES))
def test_plain_bf16_is_biased_fp32_is_not_and_every_cure_helps(place: str) -> None:
    plain = measure(place, "bf16", width=32)
    assert plain.kind == "bias" and plain.lost > 0.9
    assert measure(place, "fp32", width=32).kind == "variance"
    for cure in CURES[1:]:
        if cure == "pairwise" and PLACES[place].in_time:
            with pytest.raises(ConfigError, match="one term after the other"):
                measure(place, "bf16", cure)
            continue
        cured = measure(place, "bf16", cure, width=32)
        assert cured.kind in ("variance", "exact") and cured.rms[-1] < plain.rms[-1] / 4


def test_no_digits_help_where_the_range_ends() -> None:
    """FP16 holds nothing as small as a second moment's increments: Kahan's second number is 0 too."""
    assert measure("second_moment", "fp16", "kahan", width=16).kind == "bias"
    assert measure("second_moment", "bf16", "kahan", width=16).kind == "variance"


def test_bad_input_says_what_to_do() -> None:
    for call in (lambda: drift(2), lambda: measure("x", "fp16"), lambda: measure("norm", "fp16", "x")):  # type: ignore
        with pytest.raises(ConfigError):
            call()


@pytest.mark.stress
def test_kinds_hold_over_twenty_seeds() -> None:
    for seed in range(20):
        for place in PLACES:
            assert measure(place, "bf16", seed=seed).kind == "bias", (place, seed)
            assert measure(place, "fp32", seed=seed).kind == "variance", (place, seed)
