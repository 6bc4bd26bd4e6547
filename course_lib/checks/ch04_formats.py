"""Checks 04.2 and 04.3: where a format stops counting, and rounding to a format by hand."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch02_gradients import no_number, number
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["LAST_EXACT", "ROUND"]

CALLS = 2000


def nearest_even(x: float, significant: int, lowest: float = -math.inf) -> float:
    """x to `significant` bits and to no bit below 2**lowest, ties to even, in whole numbers: n / d is x exactly."""
    if x == 0 or not math.isfinite(x):
        return x
    n, d = abs(x).as_integer_ratio()
    quantum = int(max(n.bit_length() - d.bit_length() - significant + 1, lowest))  # d is a power of two
    n, d = (n, d << quantum) if quantum >= 0 else (n << -quantum, d)
    whole, rest = divmod(n, d)
    whole += 2 * rest > d or (2 * rest == d and whole % 2 == 1)
    return math.copysign(math.ldexp(whole, quantum), x)


# --- 04.2 the last exact count ----------------------------------------------------------------------------------------


class _TooMany(Exception):
    pass


def last_cases(seed: int) -> list[Case]:
    """Formats by stored mantissa bits; wide ones, where counting one by one would take hours."""
    rng = np.random.default_rng([seed, 42])
    others = rng.choice([4, 5, 6, 8, 9, 11, 12], 2, replace=False)
    wide = int(rng.integers(28, 45))
    known = [("FP16", 10), ("BF16", 7), ("FP8 E4M3", 3), ("FP8 E5M2", 2)]
    rest = [(f"a format of {bits} stored mantissa bits", int(bits)) for bits in others]
    late = [("FP32", 23), ("a wide format", wide)]
    cases = [{"name": name, "bits": bits} for name, bits in (*known, *rest, *late)]
    cases[4]["name"], cases[5]["name"] = "a narrow format", "another narrow format"
    return cases


def last_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    calls = 0

    def round_to(x: float) -> float:
        nonlocal calls
        calls += 1
        if calls > CALLS:
            raise _TooMany
        return nearest_even(float(x), case["bits"] + 1)

    try:
        return number(answer(round_to))
    except _TooMany:
        return {"stopped": CALLS}


def last_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact. Oracle: 2**(m + 1) is the first whole number after which the spacing is 2."""
    if "stopped" in returned:
        message = (
            f"after {CALLS:,} calls you were not done. FP32 counts to 16 million: which numbers can you leave out?"
        )
        return Wrong(message, "counts-one-by-one")
    if "number" not in returned:
        return no_number(returned)
    got, stop = returned["number"], 2 ** (case["bits"] + 1)
    if got == stop - 1:
        return None
    if got == stop:
        return Wrong(
            f"add 1 to {got:,.0f} in this format: what comes out? Look at the text for n", "n-is-where-it-stops"
        )
    if got in (stop // 2, stop // 2 - 1):
        message = f"from {got:,.0f} on it counts further. How many significant bits has a format that stores m?"
        return Wrong(message, "forgets-the-hidden-bit")
    if got > stop:
        message = f"n + 1 may be a value again at {got:,.0f}, but the count 1, 2, 3, ... never gets there"
        return Wrong(message, "any-exact-sum-will-do")
    return Wrong(f"{got:,.0f} is not where the count stops being exact. Try the four numbers around it")


LAST_EXACT = Exercise(
    id="last-exact-count",
    title="The last exact count",
    cases=last_cases,
    run=last_run,
    judge=last_judge,
    forbidden=("FORMATS", "course_lib.precision", "finfo"),
    misconceptions={
        "counts-one-by-one": "a format is small enough to be counted through",
        "n-is-where-it-stops": "n is the number at which the count stands still",
        "forgets-the-hidden-bit": "a format has as many significant bits as it stores",
        "any-exact-sum-will-do": "the largest exact sum is where the count ends",
    },
)


# --- 04.3 rounding by hand --------------------------------------------------------------------------------------------


def round_cases(seed: int) -> list[Case]:
    """Ordered so that each mistake first shows where it is alone."""
    rng = np.random.default_rng([seed, 43])
    spread = lambda low, high, n: (2.0 ** rng.uniform(low, high, n) * rng.choice([-1.0, 1.0], n)).tolist()

    def case(name: str, exponent: int, mantissa: int, values: list[float]) -> Case:
        return {
            "name": name,
            "exponent_bits": exponent,
            "mantissa_bits": mantissa,
            "values": [float(v) for v in values],
        }

    odd = int(rng.integers(100, 400))
    ties = [2049.0, 2051.0, -2049.0, 1024.5, 1025.5, (2 * odd + 1) / 2 + 1024, (2 * odd + 3) / 2 + 1024]
    tiny = [k * 2.0**-24 for k in (0.3, 0.5, 0.75, 1.5, 2.5, 3.25, 100.5, 101.5, 700.3)] + [0.0, 2.0**-14 * 0.9999]
    edge = [65504.0, 65519.0, 65519.99, 65520.0, -65520.0, 70000.0, -1e6, 65503.0]
    near = [1 + 2.0**-11 + 2.0**-30, 1 + 3 * 2.0**-11 - 2.0**-30, -(2049 + 2.0**-28), 2.0**-25 * (1 + 2.0**-40)]
    small = [0.01, 0.017, 0.3, 1.06, 1.0625, 1.1875, 200.0, 239.0, 248.0, 300.0, -0.0146, 0.0009, 0.001]
    return [
        case("FP16, values between two neighbours", 5, 10, [1 / 3, *spread(-8, 12, 8)]),
        case("FP16, exactly halfway", 5, 10, ties),
        case("FP16, below the smallest normal value", 5, 10, tiny),
        case("FP16, around the largest value", 5, 10, edge),
        case("FP16, a hair from halfway", 5, 10, near),
        case("BF16", 8, 7, [*spread(-30, 30, 6), 257.0, 3.4e38, 1e-40, 1e39, -1e100]),
        case("a format with 4 exponent bits and 3 mantissa bits", 4, 3, small),
        case("a format with 6 exponent bits and 9 mantissa bits", 6, 9, [*spread(-40, 31, 8), 4.3e9, -4.3e9, 4e9]),
    ]


def round_run(answer: Callable[..., Any], case: Case) -> list[Any]:
    return [number(answer(x, case["exponent_bits"], case["mantissa_bits"])) for x in case["values"]]


def _round(x: float, exponent_bits: int, mantissa_bits: int, rule: str) -> float:
    """What each misconception would give; "right" is the oracle, in whole numbers."""
    if rule == "rounds-twice":
        with np.errstate(over="ignore"):
            x = float(np.float32(x))
    bias = 2 ** (exponent_bits - 1) - 1
    lowest: float = 1 - bias - mantissa_bits
    largest = (2 - 2.0**-mantissa_bits) * 2.0**bias
    if rule == "subnormals-keep-their-bits":
        lowest = -math.inf
    if rule == "no-subnormals" and abs(x) < 2.0 ** (1 - bias):
        return 0.0
    if rule in ("truncates", "ties-away", "ties-up", "ties-toward-zero") and x:
        quantum = 2.0 ** max(math.frexp(x)[1] - 1 - mantissa_bits, lowest)
        steps = x / quantum
        whole, rest = math.floor(abs(steps)), abs(steps) % 1
        up = {"truncates": False, "ties-away": rest >= 0.5, "ties-toward-zero": rest > 0.5}.get(
            rule, rest > 0.5 or (rest == 0.5 and x > 0)
        )
        value = math.copysign((whole + up) * quantum, x)
    else:
        bits = mantissa_bits if rule == "forgets-the-hidden-bit" else mantissa_bits + 1
        value = nearest_even(x, bits, lowest)
    if rule == "never-overflows":
        return value
    if rule == "overflows-at-the-largest" and abs(x) > largest:
        return math.copysign(math.inf, x)
    if abs(value) > largest:
        return math.copysign(largest if rule == "saturates" else math.inf, x)
    return value


ROUND_HINTS = {
    "ties-away": "ties go to the neighbour that is larger in size; here they go to the one with an even mantissa",
    "ties-up": "ties go up; here they go to the neighbour with an even mantissa",
    "ties-toward-zero": "ties go toward zero; here they go to the neighbour with an even mantissa",
    "truncates": "you cut the bits off. Which of the two neighbours is nearer?",
    "forgets-the-hidden-bit": "one bit of precision is missing. How many significant bits has a format that stores m?",
    "no-subnormals": "below the smallest normal value all is 0. What lies between it and 0 in this format?",
    "subnormals-keep-their-bits": "your spacing goes on shrinking below the smallest normal value. Where does it stop?",
    "saturates": "past the largest value you return the largest. What do formats with infinities do?",
    "overflows-at-the-largest": "a little above the largest value is nearer to it than to the next that there would be",
    "never-overflows": "you return a value that the format has no exponent for",
    "rounds-twice": "it looks rounded to FP32 first, and that tie rounded again. x has more bits than FP32 keeps",
}


def round_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: a value of a format is a float64 without rounding. Oracle: division of whole numbers."""
    shape = case["exponent_bits"], case["mantissa_bits"]
    for entry in returned:
        if "number" not in entry:
            return no_number(entry)
    got = [entry["number"] for entry in returned]
    right = [_round(x, *shape, "right") for x in case["values"]]
    if got == right:
        return None
    fits = [rule for rule in ROUND_HINTS if [_round(x, *shape, rule) for x in case["values"]] == got]
    at = next(i for i, (a, b) in enumerate(zip(got, right, strict=True)) if a != b)
    said = f"{case['values'][at]:.9g} became {got[at]:.9g}"
    if fits:
        return Wrong(f"{said}: {ROUND_HINTS[fits[0]]}", fits[0])
    if any(math.isnan(x) for x in got):
        return Wrong(f"{said}; no value here gives NaN")
    if [abs(x) for x in got] == [abs(x) for x in right]:
        return Wrong(f"{said}: the size is right, the sign is not")
    if all(x < 0 for x, a, b in zip(case["values"], got, right, strict=True) if a != b):
        return Wrong(f"{said}. Only values below 0 go wrong here: what does your code do with a sign?")
    return Wrong(f"{said}, which is not the nearest value of this format. Write down its spacing there")


ROUND = Exercise(
    id="round-by-hand",
    title="Rounding by hand",
    cases=round_cases,
    run=round_run,
    judge=round_judge,
    forbidden=(
        "FORMATS", "course_lib.precision", "float16", "half", "bfloat16", "ml_dtypes", "astype", "struct", "float8_e4m3"
    ),
    misconceptions={
        "truncates": "rounding is cutting bits off",
        "ties-away": "a tie goes to the larger size, as in school",
        "ties-up": "a tie goes up",
        "ties-toward-zero": "a tie goes toward zero",
        "forgets-the-hidden-bit": "a format has as many significant bits as it stores",
        "no-subnormals": "below the smallest normal value there is only 0",
        "subnormals-keep-their-bits": "subnormals are as precise as other values",
        "saturates": "what is too large becomes the largest value",
        "overflows-at-the-largest": "everything above the largest value is infinity",
        "never-overflows": "a format has no largest value",
        "rounds-twice": "rounding in two steps is rounding in one",
    },
)  # fmt: skip
