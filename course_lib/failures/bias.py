"""Variance against bias: errors that average out, errors that add up, and the sums of training in which they do.

`drift` adds up the errors of two estimators that are equally wrong at each step. `PLACES` are sums that training makes;
`measure` makes one in a number format with or without a cure, beside an exact oracle, and says which kind of error it
has. `stops_at` is where a running sum ends. Rounding is that of `course_lib.precision`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from course_lib.errors import ConfigError
from course_lib.precision import FORMATS, Format, format_named

__all__ = [
    "CURES",
    "PLACES",
    "Cure",
    "Drift",
    "Measured",
    "Place",
    "crossover",
    "drift",
    "exponent",
    "measure",
    "stops_at",
    "vanishes_from",
]

Array: TypeAlias = npt.NDArray[np.float64]
Cure: TypeAlias = Literal["plain", "wider", "kahan", "pairwise", "stochastic"]
CURES: tuple[Cure, ...] = ("plain", "wider", "kahan", "pairwise", "stochastic")
"""plain: none. wider: the running sum in FP32 (of FP32: in FP64). pairwise: neighbours first, then their sums."""


def exponent(steps: npt.ArrayLike, sizes: npt.ArrayLike) -> float:
    """The p of sizes ~ steps^p: the slope of a straight line through their logarithms. Zeros are left out."""
    x, y = np.asarray(steps, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    used = (x > 0) & (y > 0) & np.isfinite(y)
    if used.sum() < 2:
        return math.nan
    return float(np.polyfit(np.log(x[used]), np.log(y[used]), 1)[0])


# ---------------------------------------------------------------- two estimators


@dataclass(frozen=True)
class Drift:
    """Summed errors of an estimator, in several independent runs."""

    steps: npt.NDArray[np.int64]
    """After how many steps, (k,), evenly spread on a log scale."""
    error: Array
    """The sum of the errors up to there, (runs, k)."""

    @property
    def rms(self) -> Array:
        """Root mean square over the runs, (k,)."""
        return np.sqrt((self.error**2).mean(0))

    @property
    def mean(self) -> Array:
        """Mean over the runs, (k,): what no averaging over runs removes."""
        return np.asarray(self.error.mean(0))

    @property
    def exponent(self) -> float:
        """How the RMS grows with the steps: about 0.5 for noise alone, 1 for a bias."""
        return exponent(self.steps, self.rms)


def drift(
    bias_share: float,
    steps: int = 1_000_000,
    error: float = 1e-3,
    *,
    feedback: float = 0.0,
    runs: int = 32,
    seed: int = 0,
) -> Drift:
    """Add up the errors of an estimator whose error has the same root mean square, `error`, at every step.

    bias_share: which part of that RMS is a bias, from 0 (noise alone) to 1 (the same error each time); the rest is
    noise. feedback: the sum also grows by this share of itself at each step, the way an error does that changes what
    comes next; below 0 it is forgotten by that share, as in a moving average.
    """
    if not 0 <= bias_share <= 1:
        raise ConfigError(f"bias_share={bias_share} must be from 0 to 1; try 0.1")
    if steps < 1 or runs < 1:
        raise ConfigError(f"steps={steps} and runs={runs} must be at least 1")
    at = np.unique(np.geomspace(1, steps, 61).astype(np.int64))
    bias, noise = bias_share * error, math.sqrt(1 - bias_share**2) * error
    rng = np.random.default_rng(seed)
    if feedback == 0:
        walks = [np.cumsum(bias + noise * rng.standard_normal(steps))[at - 1] for _ in range(runs)]
        return Drift(at, np.array(walks))
    total, kept, wanted = np.zeros(runs), [], set(at.tolist())
    for start in range(0, steps, 1024):
        for i, draw in enumerate(rng.standard_normal((min(1024, steps - start), runs)), start=start + 1):
            total = total * (1 + feedback) + (bias + noise * draw)
            if i in wanted:
                kept.append(total)
    return Drift(at, np.array(kept).T)


def crossover(bias_share: float) -> float:
    """After how many steps the summed bias is as large as the summed noise: (1 - b^2) / b^2 for a share b."""
    return math.inf if bias_share == 0 else (1 - bias_share**2) / bias_share**2


# ---------------------------------------------------------------- where a sum ends


def stops_at(addend: float, fmt: Format | str) -> float:
    """Where a running sum of `addend`, begun at 0, ends: the smallest S of the format with S + addend = S.

    It is the power of two above which half a spacing is at least the addend: 2^(m + 1) times the addend, rounded up to
    a power of two, for m stored bits of mantissa. The tie, an addend of half a spacing, goes to the even neighbour, and
    a power of two is even. It has the addend's sign. Infinity where the format ends first; 0 for an addend that the
    format holds as 0.
    """
    made = format_named(fmt)
    step = made.round(float(addend))
    if step == 0 or not math.isfinite(step):
        return 0.0 if step == 0 else math.nan
    mantissa, power = math.frexp(abs(step))  # |step| = mantissa 2^power, mantissa in [0.5, 1)
    stop = math.ldexp(1.0, made.mantissa_bits + 1 + power - (mantissa == 0.5))
    return math.copysign(stop if stop <= made.max else math.inf, step)


def vanishes_from(addend: float, fmt: Format | str) -> float:
    """The smallest S from which on every sum of the format, odd or even, loses `addend`: half a spacing is more.

    For an addend that is a power of two it is twice `stops_at` (between the two, odd sums go up a spacing and then
    stop), for all others the same. Infinity where the format ends first.
    """
    made = format_named(fmt)
    stop = stops_at(addend, made)
    power_of_two = math.frexp(abs(made.round(float(addend))))[0] == 0.5
    size = abs(stop) * (2 if power_of_two else 1)
    if size > made.max >= abs(stop) and made.round(made.max + size / 2**made.mantissa_bits / 4) == made.max:
        size = made.max  # E4M3's largest value is even, and keeps the tie
    return math.copysign(size if size <= made.max else math.inf, stop) if stop == stop else stop


# ---------------------------------------------------------------- where training adds up


@dataclass(frozen=True)
class Place:
    """A sum that training makes: `width` of them side by side, each of its own numbers."""

    title: str
    terms: Callable[[int, int, np.random.Generator], Array]
    """(steps, width, generator) -> what comes in, (steps, width)."""
    start: float = 0.0
    decay: float = 1.0
    """A moving mean's beta: the sum takes up (1 - beta) of the difference to what comes in. 1: a plain sum."""
    in_time: bool = True
    """The next term is not there before this sum is: no pairwise order."""


def _squares(rng: np.random.Generator, steps: int, width: int) -> Array:
    return np.asarray(rng.standard_normal((steps, width)) ** 2)


PLACES: dict[str, Place] = {
    "gradient_accumulation": Place(
        "micro-batch gradients added into one",
        lambda n, w, rng: 1e-3 * (1 + rng.standard_normal((n, w))),
        in_time=False,  # by default it is; whoever keeps the gradients may add them pairwise
    ),
    "second_moment": Place(
        "Adam's second moment, beta 0.999", lambda n, w, rng: 1e-6 * _squares(rng, n, w), start=2e-6, decay=0.999
    ),
    "weight_updates": Place(
        "small updates to a weight near 1", lambda n, w, rng: 3e-4 * (1 + rng.standard_normal((n, w))), start=1.0
    ),
    "ranks": Place("a reduction over ranks", lambda n, w, rng: 1 + 0.1 * rng.standard_normal((n, w)), in_time=False),
    "norm": Place("the squares of a norm", lambda n, w, rng: _squares(rng, n, w), in_time=False),
}
"""By name. Gradient entries are a mean with noise as large as it; the norm's are independent."""


@dataclass(frozen=True)
class Measured:
    """A place's sum in a format, against an oracle with twice FP64's digits, fed with the same stored terms."""

    place: str
    format: str
    cure: str
    steps: npt.NDArray[np.int64]
    """After how many terms, (k,)."""
    error: Array
    """(sum - oracle) / oracle then, (k, width)."""
    lost: float
    """Share of the last quarter's steps in which the sum stayed although a term came."""

    @property
    def rms(self) -> Array:
        """Root mean square of the relative error over the sums side by side, (k,)."""
        return np.sqrt((self.error**2).mean(1))

    @property
    def bias(self) -> float:
        """Mean relative error at the end, with its sign: below 0 the sum is too small."""
        return float(self.error[-1].mean())

    @property
    def noise(self) -> float:
        """Standard deviation of the relative error at the end, over the sums side by side."""
        return float(self.error[-1].std())

    @property
    def exponent(self) -> float:
        """How the RMS grows over the last half of the (log-spaced) steps."""
        half = len(self.steps) // 2
        return exponent(self.steps[half:], self.rms[half:])

    @property
    def kind(self) -> str:
        """bias: the mean is larger than the spread and clear of chance; variance: not so; exact: no error at all."""
        if not self.error[-1].any():
            return "exact"
        chance = self.noise / math.sqrt(self.error.shape[1])
        return "bias" if abs(self.bias) > max(self.noise, 4 * chance) else "variance"


def measure(
    place: str, fmt: Format | str, cure: Cure = "plain", *, steps: int = 4096, width: int = 64, seed: int = 0
) -> Measured:
    """Make one of `PLACES` in a format, with a cure. The terms are stored in the format first, for the oracle too."""
    if place not in PLACES:
        raise ConfigError(f"no place {place!r}; there are {', '.join(PLACES)}")
    if cure not in CURES:
        raise ConfigError(f"no cure {cure!r}; there are {', '.join(CURES)}")
    here, made = PLACES[place], format_named(fmt)
    if cure == "pairwise" and here.in_time:
        raise ConfigError(f"{place} goes on in time, one term after the other: pairwise needs all terms at once")
    rng = np.random.default_rng(seed)
    stored = made.round(here.terms(steps, width, rng))
    at = np.unique(np.geomspace(1, steps, 49).astype(np.int64))
    start = made.round(here.start)
    right = _exact(stored, start, here.decay)[at]
    if cure == "pairwise":
        sums = np.array([_pairwise(stored[:n], made) for n in at])
        lost = 0.0
    else:
        every = _SUMS[cure](stored, start, here.decay, made, rng)
        sums = every[at]
        last = every[-(steps // 4) - 1 :]
        lost = float((np.diff(last, axis=0) == 0).mean())
    return Measured(place, made.name, cure, at, (sums - right) / right, lost)


def _change(state: Array, term: Array, decay: float) -> Array:
    return term if decay == 1 else (1 - decay) * (term - state)


def _exact(terms: Array, start: float, decay: float) -> Array:
    """Sums after 0, 1, ... terms with a second FP64 number for what the first one loses (Knuth's two-sum)."""
    sums = np.full((len(terms) + 1, terms.shape[1]), start)
    low = np.zeros(terms.shape[1])
    for i, term in enumerate(terms):
        high = sums[i]
        step = _change(high + low, term, decay)
        new = high + step
        back = new - high
        low = low + ((high - (new - back)) + (step - back))
        sums[i + 1] = new + low
        low = low - (sums[i + 1] - new)
    return sums


def _plain(terms: Array, start: float, decay: float, fmt: Format, rng: np.random.Generator) -> Array:
    sums = np.full((len(terms) + 1, terms.shape[1]), start)
    for i, term in enumerate(terms):
        sums[i + 1] = fmt.round(sums[i] + _change(sums[i], term, decay))
    return sums


def _wider(terms: Array, start: float, decay: float, fmt: Format, rng: np.random.Generator) -> Array:
    if fmt.mantissa_bits < FORMATS["fp32"].mantissa_bits:
        return _plain(terms, start, decay, FORMATS["fp32"], rng)
    sums = np.full((len(terms) + 1, terms.shape[1]), start)
    for i, term in enumerate(terms):
        sums[i + 1] = sums[i] + _change(sums[i], term, decay)
    return sums


def _kahan(terms: Array, start: float, decay: float, fmt: Format, rng: np.random.Generator) -> Array:
    sums = np.full((len(terms) + 1, terms.shape[1]), start)
    lost = np.zeros(terms.shape[1])
    for i, term in enumerate(terms):
        wanted = fmt.round(_change(sums[i], term, decay) - lost)
        sums[i + 1] = fmt.round(sums[i] + wanted)
        lost = fmt.round(fmt.round(sums[i + 1] - sums[i]) - wanted)
    return sums


def _stochastic(terms: Array, start: float, decay: float, fmt: Format, rng: np.random.Generator) -> Array:
    sums = np.full((len(terms) + 1, terms.shape[1]), start)
    for i, term in enumerate(terms):
        sums[i + 1] = fmt.round_by_chance(sums[i] + _change(sums[i], term, decay), rng.random(terms.shape[1]))
    return sums


def _pairwise(terms: Array, fmt: Format) -> Array:
    """Neighbours are added, then their sums, until one is left: (n, width) -> (width,)."""
    while len(terms) > 1:
        tail = terms[len(terms) - len(terms) % 2 :]
        terms = np.concatenate([fmt.round(terms[0 : len(terms) - 1 : 2] + terms[1::2]), tail])
    return terms[0]


_SUMS: dict[str, Callable[[Array, float, float, Format, np.random.Generator], Array]] = {
    "plain": _plain,
    "wider": _wider,
    "kahan": _kahan,
    "stochastic": _stochastic,
}
