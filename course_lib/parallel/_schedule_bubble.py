"""The bubble by formula: from p, m and v, without running anything. `schedule.simulate` is what they are held against.

Two definitions are in use, and both are called "the bubble": idle / total, which is below 1, and idle / ideal, which
need not be. F, I and W are the times of one chunk, B = I + W, and sending takes no time.
"""

from collections.abc import Callable
from math import inf
from typing import Literal, NamedTuple

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_orders import chunks_of, legal, nearest

__all__ = ["FORMULAS", "Formula", "bubble_formula"]


class Formula(NamedTuple):
    """How long every rank waits, and where that is true."""

    idle: str
    """Of one rank, in the terms p, m, v, F, B, I, W."""
    domain: str
    """Where it is exact."""
    least: int
    """The domain begins at m = this many times p; 0: any m."""
    takes: Callable[[int, int, int, float, float, float], float]
    """The same as a function of p, m, v, F, I, W."""
    costs: Callable[[float, float, float], bool]
    """Whether it holds for such F, I, W."""


def _any(f: float, i: float, w: float) -> bool:
    return True


def _equal(f: float, i: float, w: float) -> bool:
    return f == i == w


FORMULAS = {
    "naive": Formula("(p - 1) m v (F + B)", "always", 0, lambda p, m, v, f, i, w: (p - 1) * m * v * (f + i + w), _any),
    "gpipe": Formula(
        "(p - 1) (F + B)", "one chunk: always; more: m >= p", 1, lambda p, m, v, f, i, w: (p - 1) * (f + i + w), _any
    ),
    "1f1b": Formula("(p - 1) (F + B)", "always", 0, lambda p, m, v, f, i, w: (p - 1) * (f + i + w), _any),
    "interleaved": Formula("(p - 1) (F + B)", "m >= p", 1, lambda p, m, v, f, i, w: (p - 1) * (f + i + w), _any),
    "zb_h1": Formula(
        "(p - 1) (F + I - W)",
        "m >= p, and W at most F and I",
        1,
        lambda p, m, v, f, i, w: (p - 1) * (f + i - w),
        lambda f, i, w: w <= min(f, i),
    ),
    "zbv": Formula("(p - 1) F", "m >= 2p, and F = I = W", 2, lambda p, m, v, f, i, w: (p - 1) * f, _equal),
    "dualpipev": Formula("2 (p - 1) F", "m >= 2p, and F = I = W", 2, lambda p, m, v, f, i, w: 2 * (p - 1) * f, _equal),
}


def bubble_formula(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward: float = 1.0,
    backward_input: float = 1.0,
    backward_weight: float = 1.0,
    *,
    of: Literal["total", "ideal"] = "total",
    anywhere: bool = False,
) -> float:
    """The bubble as a share of the total time, or over the ideal time. Every stage takes the same; sending takes none.

    `ScheduleError` where the formula is not exact, with the nearest m for which it is; with `anywhere` its number there
    all the same, to be compared with a simulation.
    """
    v = chunks_of(name, stages, microbatches, chunks)
    formula, p, m = FORMULAS[name], stages, microbatches
    f, i, w = forward, backward_input, backward_weight
    if not (min(f, i, w) >= 0 and 0 < f + i + w < inf):
        raise ScheduleError(f"F={f}, I={i}, W={w}: each time must be at least 0 and finite, and not all of them 0")
    least = 0 if name == "gpipe" and v == 1 else formula.least * p
    if not anywhere and m < least:
        wanted = nearest(m, lambda k: k >= least and legal(name, p, k))
        raise ScheduleError(
            f"the formula of {name} with {p} stages is wrong for {m} micro-batches ({formula.domain});"
            f" the nearest for which it holds: {wanted}; simulate() is right for any"
        )
    if not anywhere and not formula.costs(f, i, w):
        raise ScheduleError(
            f"the formula of {name} is wrong for F={f:g}, I={i:g}, W={w:g} ({formula.domain});"
            " simulate() is right for any"
        )
    idle, ideal = formula.takes(p, m, v, f, i, w), m * v * (f + i + w)
    return idle / (idle + ideal if of == "total" else ideal)
