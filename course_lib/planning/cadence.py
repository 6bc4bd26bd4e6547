"""Checkpoints against failures: how large, how long to write, how often, and what a failure costs.

    mtbf = mtbf_hours(16_384, 0.173) * 3600          # seconds between interruptions: 3.09 hours
    young(60, mtbf), daly(60, mtbf)                  # seconds of training between checkpoints: 1156, 1116
    expected_lost(1116, 60, mtbf)                    # seconds of training done again after a failure, on average
    goodput(1116, 60, mtbf, restart=600)             # share of the time that is training which stays
    goodput_first_order(1116, 60, mtbf, restart=600) # the same to first order

The model: failures come at random with a mean time between them, a checkpoint stops all devices while it is written,
what was trained since the last whole one is done again. `every` is training between two checkpoints, without writing.
Times are in one unit, whichever. Checkpoints that are written beside the training have a small `write`.
"""

from math import exp, expm1, inf, sqrt

from course_lib.errors import ConfigError
from course_lib.planning.formulas import RECIPES, bytes_per_parameter

__all__ = [
    "HOURS_A_YEAR",
    "checkpoint_bytes",
    "daly",
    "daly_first_order",
    "expected_lost",
    "goodput",
    "goodput_first_order",
    "independent_hours",
    "interruptions",
    "mtbf_hours",
    "write_seconds",
    "young",
]

HOURS_A_YEAR = 24 * 365.25


def independent_hours(devices: int, hours_per_device: float) -> float:
    """Mean time between interruptions if devices fail independently, all at one rate: it falls as 1 / devices."""
    return hours_per_device / devices if devices > 0 else inf


def mtbf_hours(devices: int, per_device_year: float) -> float:
    """Mean hours between interruptions of a run, from how many one device causes in a year. No failures: infinite.

    Llama 3 (arXiv 2407.21783, 2024): 419 in 54 days of 16,384 devices are 0.173 a device and year.
    """
    _number("per_device_year", per_device_year)
    return independent_hours(devices, HOURS_A_YEAR / per_device_year) if per_device_year else inf


def interruptions(devices: int, per_device_year: float, hours: float) -> float:
    """How many to expect in so many hours."""
    _number("hours", hours)
    return hours / mtbf_hours(devices, per_device_year)


def checkpoint_bytes(parameters: float, recipe: str) -> float:
    """Bytes of a checkpoint from which training goes on: all that stays between steps, without the gradients.

    14 a parameter for AdamW with 16-bit weights: BLOOM's 176.2 billion are then 2.24 TiB, and 2.3 were published.
    """
    bytes_per_parameter(recipe)  # says which recipes there are
    kept = RECIPES[recipe]
    return parameters * (kept.weights + kept.master + kept.moments)


def write_seconds(size: float, gb_per_s: float) -> float:
    """Seconds to write `size` bytes at so many GB/s, of all devices together."""
    _positive("gb_per_s", gb_per_s)
    return size / (gb_per_s * 1e9)


def young(write: float, mtbf: float) -> float:
    """Training between checkpoints that loses least, to first order: sqrt(2 d M).

    Young 1974 (doi 10.1145/361147.361115). It is where writing, d / t, costs as much as what is done again, t / 2M.
    """
    _positive("write", write)
    _positive("mtbf", mtbf)
    return sqrt(2 * write * mtbf)


def daly_first_order(write: float, mtbf: float, restart: float = 0.0) -> float:
    """sqrt(2 d (M + R)) (Daly 2006, doi 10.1016/j.future.2004.11.016): close to `young` unless restarts take long."""
    _number("restart", restart)
    return young(write, mtbf + restart)


def daly(write: float, mtbf: float) -> float:
    """Training between checkpoints that loses least, in the exponential model, nearly (Daly 2006, as above).

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for d < 2M, else M. Restarts drop out. Within 0.04% of the
    optimum at d = 0.1 M, and 6% low near d = 2M, where nothing helps any more.
    """
    first = young(write, mtbf)
    if not write < 2 * mtbf:
        return mtbf
    if first == inf:
        return inf
    share = write / (2 * mtbf)
    return first * (1 + sqrt(share) / 3 + share / 9) - write


def expected_lost(every: float, write: float, mtbf: float) -> float:
    """Training since the last whole checkpoint that a failure undoes, on average: about half of `every`.

    Exponential failures, given that one falls between two checkpoints: the mean of min(t, every), t < every + write. A
    failure while the next one is written undoes all of `every`; early failures are a little likelier than late ones.
    """
    _check(every, write, mtbf)
    if every == inf:
        return mtbf
    if every + write < 1e-6 * mtbf:  # both sides of the quotient vanish
        return every * (every / 2 + write) / (every + write)
    return (-mtbf * expm1(-every / mtbf) - every * exp(-(every + write) / mtbf)) / -expm1(-(every + write) / mtbf)


def goodput(every: float, write: float, mtbf: float, restart: float = 0.0) -> float:
    """Share of the time that is training which stays, in the exponential model, exactly.

    t / (M e^(R/M) (e^((t + d)/M) - 1)): failures come at all times, while writing and restarting too (Daly 2006).
    """
    _check(every, write, mtbf)
    _number("restart", restart)
    if mtbf == inf:
        return 1.0 if every == inf else every / (every + write)
    spans = (every + write) / mtbf
    if every == inf or spans + restart / mtbf > 700:  # e^700 is near the largest number: nothing is ever finished
        return 0.0
    return every / (mtbf * exp(restart / mtbf) * expm1(spans))


def goodput_first_order(every: float, write: float, mtbf: float, restart: float = 0.0) -> float:
    """The same for rare failures: (1 - (R + t/2) / M) / (1 + d/t) (Kokolis et al. 2024, arXiv 2410.21680).

    At least 0. Failures while writing are left out, and so are two close to each other.
    """
    _check(every, write, mtbf)
    _number("restart", restart)
    if mtbf == inf:
        return 1.0 if every == inf else every / (every + write)
    return max(0.0, 1 - (restart + every / 2) / mtbf) / (1 + write / every)


def _check(every: float, write: float, mtbf: float) -> None:
    _positive("every", every)
    _number("write", write)
    _positive("mtbf", mtbf)


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name}={value} must be above 0")


def _number(name: str, value: float) -> None:
    if not value >= 0:
        raise ConfigError(f"{name}={value} must be at least 0")
