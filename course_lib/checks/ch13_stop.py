"""Check 13.1: where a running sum stops, for any addend and any number of mantissa bits."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong
from course_lib.checks.smell import not_a_number, plain

__all__ = ["STOP", "stop"]


def stop(addend: float, bits: int) -> float:
    """In whole numbers: the first power of two whose half spacing holds the addend, ties to the even power."""
    n, d = addend.as_integer_ratio()  # d is a power of two
    power = -d.bit_length()
    while True:  # at 2**power values are 2**(power - bits) apart
        half = power - bits - 1
        left, right = (n << -half, d) if half < 0 else (n, d << half)
        if left <= right:
            return math.ldexp(1.0, power)
        power += 1


def stop_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1301])

    def odd(bits: int, low: int, high: int) -> float:
        """A value with `bits` stored bits that is no power of two, and not next to one."""
        return math.ldexp(1 + int(rng.integers(2**bits // 4, 3 * 2**bits // 4)) / 2**bits, int(rng.integers(low, high)))

    wide = int(rng.integers(28, 45))
    return [
        {"name": "FP16, ones", "addend": 1.0, "bits": 10},
        {"name": "FP16, a small addend", "addend": odd(10, -12, -5), "bits": 10},
        {"name": "FP16, halves", "addend": 0.5, "bits": 10},
        {"name": "FP16, three quarters", "addend": 0.75, "bits": 10},
        {"name": "FP16, a little more than 4", "addend": 4 * (1 + 2.0**-10), "bits": 10},
        {"name": "BF16, a learning rate's worth", "addend": odd(7, -14, -6), "bits": 7},
        {"name": "BF16, a power of two", "addend": math.ldexp(1.0, int(rng.integers(-20, -3))), "bits": 7},
        {"name": "FP8 E4M3, its exponents without end", "addend": odd(3, -3, 6), "bits": 3},
        {"name": "FP32, a large number", "addend": odd(23, 3, 20), "bits": 23},
        {"name": "a wide format", "addend": odd(20, -9, 9), "bits": wide},
        {"name": "35 bits, a little more than 1,024", "addend": 1024 * (1 + 2.0**-35), "bits": 35},
        {"name": "a wide format, a power of two", "addend": math.ldexp(1.0, int(rng.integers(-9, 9))), "bits": wide},
    ]


def stop_run(answer: Callable[..., Any], case: Case) -> Any:
    return plain(answer(case["addend"], case["bits"]))


def stop_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: it is a power of two."""
    form = not_a_number(returned)
    if form is not None:
        return form
    addend, bits = case["addend"], case["bits"]
    right, power = stop(addend, bits), math.frexp(addend)[0] == 0.5
    if returned == right:
        return None
    guesses = {
        "ties-go-up": (
            right * 2 if power else None,
            "add the addend to half of it by hand: halfway between two values, which one is it rounded to?",
        ),
        "the-stop-is-a-multiple": (addend * 2 ** (bits + 1), "between which values does the spacing change?"),
        "the-addend-is-rounded-down": (
            right / 2 if not power else None,
            "the addend is no power of two, and more than half a spacing there. Is it lost?",
        ),
        "forgets-the-hidden-bit": (
            right / 2 if power else None,
            "there the addend is not lost yet. Of how much of a spacing is less lost?",
        ),
        "ones-stand-for-all": (2.0 ** (bits + 1), "that is where a sum of ones stops"),
        "only-under-a-quarter": (right * 4, "it stopped before. From which spacing on is the addend lost?"),
        "half-of-a-spacing-still-counts": (
            right * 2 if not power else None,
            "it stopped before: how large is the addend, in spacings, at half of that?",
        ),
    }
    found = {rule: text for rule, (guess, text) in guesses.items() if guess == returned}
    if found:
        rule = next(iter(found))
        return Wrong(f"{returned:.10g}: {' Or: '.join(found.values())}", rule if len(found) == 1 else None)
    return Wrong(
        f"{returned:.10g}: how far apart are the values there, and where does the sum with the addend round to?"
    )


STOP = Exercise(
    id="where-it-stops",
    title="Where a sum stops",
    cases=stop_cases,
    run=stop_run,
    judge=stop_judge,
    forbidden=("course_lib.precision", "course_lib.failures", "accumulate", "running_sums", "stops_at"),
    misconceptions={
        "ties-go-up": "halves are rounded up",
        "the-stop-is-a-multiple": "a sum stops at a multiple of its addend",
        "forgets-the-hidden-bit": "an addend is lost as soon as it is less than a spacing",
        "the-addend-is-rounded-down": "an addend counts as the power of two below it",
        "ones-stand-for-all": "a format stops at one number, whatever is added",
        "only-under-a-quarter": "what is half a spacing still counts",
        "half-of-a-spacing-still-counts": "an addend is lost when it is less than a quarter of a spacing",
    },
)
