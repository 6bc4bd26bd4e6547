"""Number formats: rounding to nearest even, the bits of a value, its neighbours, and sums in a format (no torch).

Values are Python floats or float64 arrays, which hold every value of every format exactly::

    FORMATS["fp16"].round(2049)      # 2048.0: halfway between two neighbours, and 2048 has the even mantissa
    FORMATS["bf16"].ulp(1.0)         # 0.0078125
    FORMATS["fp16"].bits(0.1)        # ('0', '01011', '1001100110')
    accumulate(1.0, 3000, "fp16")    # 2048.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

import ml_dtypes
import numpy as np
import numpy.typing as npt

from course_lib.errors import ConfigError

__all__ = ["FORMATS", "METHODS", "Format", "Method", "accumulate", "format_named", "running_sums"]

Array: TypeAlias = npt.NDArray[np.float64]
Method: TypeAlias = Literal["plain", "kahan", "stochastic"]
METHODS: tuple[Method, ...] = ("plain", "kahan", "stochastic")
"""How a running sum is rounded: to nearest, to nearest with Kahan's compensation, or up and down by chance."""


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: one sign bit, an exponent, a mantissa whose leading 1 is not stored."""

    name: str
    """Its key in `FORMATS`."""
    label: str
    """As the text writes it."""
    exponent_bits: int
    mantissa_bits: int
    """Stored bits; a normal value has one more significant bit."""
    infinities: bool = True
    """Without them (E4M3) the highest exponent holds values too; only the last mantissa there is NaN."""

    @property
    def bias(self) -> int:
        """What is subtracted from the stored exponent."""
        return int(2 ** (self.exponent_bits - 1) - 1)

    @property
    def width(self) -> int:
        """Bits that hold information. TF32 has 19, kept in 32."""
        return 1 + self.exponent_bits + self.mantissa_bits

    @property
    def max(self) -> float:
        """The largest finite value."""
        if self.infinities:
            return math.ldexp(2.0 - 2.0**-self.mantissa_bits, self.bias)
        return math.ldexp(2.0 - 2.0 ** (1 - self.mantissa_bits), self.bias + 1)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive value with all its significant bits."""
        return math.ldexp(1.0, 1 - self.bias)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value."""
        return math.ldexp(1.0, 1 - self.bias - self.mantissa_bits)

    @overload
    def round(self, x: float, *, saturate: bool = False) -> float: ...
    @overload
    def round(self, x: npt.ArrayLike, *, saturate: bool = False) -> Any: ...
    def round(self, x: Any, *, saturate: bool = False) -> Any:
        """The nearest value of the format, ties to the even mantissa. A number gives a float, an array an array.

        Overflow gives infinity, or NaN where the format has none; with `saturate` it gives the largest value instead,
        also for infinity, as torch does for E4M3. The sign of zero and of NaN is kept. An array of any shape, float64.
        """
        values = np.asarray(x, dtype=np.float64)
        quantum = self._spacing(values)
        with np.errstate(invalid="ignore"):
            rounded = np.rint(values / quantum) * quantum  # both exact: a quantum is a power of two
        over = np.abs(rounded) > self.max
        limit = self.max if saturate else math.inf if self.infinities else math.nan
        rounded = np.where(over, np.copysign(limit, values), rounded)
        return float(rounded) if rounded.ndim == 0 else rounded

    def round_by_chance(self, x: npt.ArrayLike, draws: npt.ArrayLike) -> Array:
        """One of the two neighbours of each value, the nearer the likelier, so that the mean is right (to 2^-53).

        draws: uniform in [0, 1), one a value. What the format holds stays; overflow gives what `round` gives.
        """
        values = np.asarray(x, dtype=np.float64)
        quantum = self._spacing(values)
        with np.errstate(invalid="ignore"):
            chosen = np.floor(values / quantum + np.asarray(draws, dtype=np.float64)) * quantum
        return np.asarray(self.round(np.where(np.isfinite(values), chosen, values)))

    @overload
    def ulp(self, x: float) -> float: ...
    @overload
    def ulp(self, x: npt.ArrayLike) -> Any: ...
    def ulp(self, x: Any) -> Any:
        """The gap from `x`, rounded to the format, to the next value away from zero.

        At 0 the smallest subnormal, at the maximum the gap below it, NaN for what is or rounds to infinity or NaN.
        """
        values = np.asarray(self.round(np.asarray(x, dtype=np.float64)))
        gap = np.where(np.isfinite(values), self._spacing(values), math.nan)
        return float(gap) if gap.ndim == 0 else gap

    def bits(self, x: float) -> tuple[str, str, str]:
        """Sign, exponent and mantissa of `x`, rounded to the format, as strings of 0 and 1."""
        value = self.round(float(x))
        sign = "1" if math.copysign(1.0, value) < 0 else "0"
        top = 2**self.exponent_bits - 1
        if math.isnan(value):
            exponent, mantissa = (
                top,
                2**self.mantissa_bits - 1 if not self.infinities else 2 ** (self.mantissa_bits - 1),
            )
        elif math.isinf(value):
            exponent, mantissa = top, 0
        else:
            steps = int(abs(value) / float(self._spacing(np.float64(value))))
            hidden = 2**self.mantissa_bits
            exponent = 0 if steps < hidden else math.frexp(value)[1] - 1 + self.bias
            mantissa = steps if steps < hidden else steps - hidden
        return sign, format(exponent, f"0{self.exponent_bits}b"), format(mantissa, f"0{self.mantissa_bits}b")

    def up(self, value: float) -> float:
        """The next value above `value`, which is one of the format. Above the largest it is infinity."""
        if math.isnan(value) or value == math.inf:
            return value
        if value == -math.inf:
            return -self.max
        if value >= self.max:
            return math.inf
        gap = float(self._spacing(np.float64(value)))
        # Below a power of two the values lie closer: going up from -1 the step is the one under 1.
        toward_zero = value < 0 and math.frexp(value)[0] == -0.5 and -value > self.smallest_normal
        return value + (gap / 2 if toward_zero else gap)

    def down(self, value: float) -> float:
        """The next value below `value`, which is one of the format."""
        return -self.up(-value)

    def neighbours(self, x: float) -> tuple[float, float]:
        """The values next to `x` below and above; `x` itself is between them, also where the format holds it."""
        nearest = self.round(float(x))
        if math.isnan(x) or math.isinf(x):
            return self.down(x), self.up(x)
        if not math.isfinite(nearest):
            return (self.max, math.inf) if x > 0 else (-math.inf, -self.max)
        below = nearest if nearest < x else self.down(nearest)
        above = nearest if nearest > x else self.up(nearest)
        return below, above

    def _spacing(self, values: Any) -> Array:
        """Distance of the format's values around each of these, a power of two; 1 for what is not finite."""
        finite = np.where(np.isfinite(values), values, 1.0)
        exponent = np.frexp(finite)[1] - 1  # 2**exponent <= |value|; for 0 it is -1
        exponent = np.where(finite == 0, 1 - self.bias, exponent)
        highest = self.bias if self.infinities else self.bias + 1
        exponent = np.clip(exponent, 1 - self.bias, highest)
        return np.asarray(np.ldexp(1.0, exponent - self.mantissa_bits))


FORMATS: dict[str, Format] = {
    made.name: made
    for made in (
        Format("fp32", "FP32", 8, 23),
        Format("tf32", "TF32", 8, 10),
        Format("bf16", "BF16", 8, 7),
        Format("fp16", "FP16", 5, 10),
        Format("fp8_e4m3", "FP8 E4M3", 4, 3, infinities=False),
        Format("fp8_e5m2", "FP8 E5M2", 5, 2),
    )
}
"""Every format by its name. E4M3 is OCP's finite-only one. TF32 is rounded to nearest even; hardware may truncate."""

_DTYPES: dict[str, Any] = {
    "fp32": np.float32,
    "bf16": ml_dtypes.bfloat16,
    "fp16": np.float16,
    "fp8_e4m3": ml_dtypes.float8_e4m3fn,
    "fp8_e5m2": ml_dtypes.float8_e5m2,
}


def format_named(fmt: Format | str) -> Format:
    """A format, or the one of this name. `ConfigError` for a name that is not one."""
    if isinstance(fmt, Format):
        return fmt
    if fmt not in FORMATS:
        raise ConfigError(f"no number format {fmt!r}; there are {', '.join(FORMATS)}")
    return FORMATS[fmt]


def accumulate(
    addend: float, count: int, fmt: Format | str, method: Method = "plain", *, start: float = 0.0, seed: int = 0
) -> float:
    """Add `addend` to `start` `count` times, one by one, each sum rounded to the format. Both are rounded first."""
    return float(running_sums(addend, count, fmt, method, start=start, seed=seed)[-1])


def running_sums(
    addend: float, count: int, fmt: Format | str, method: Method = "plain", *, start: float = 0.0, seed: int = 0
) -> Array:
    """The sums of `accumulate` after 0, 1, ..., count additions: (count + 1,) float64.

    - plain: each sum goes to the nearest value of the format.
    - kahan: what the last addition lost is kept in a second number of the format and added next time.
    - stochastic: each sum goes up or down by chance, the nearer the likelier, so that the mean is right. Infinity and
      NaN stay. `seed` chooses the random numbers.
    """
    made = format_named(fmt)
    if count < 0:
        raise ConfigError(f"count={count} must be 0 or more")
    if method not in METHODS:
        raise ConfigError(f"no method {method!r}; there are {', '.join(METHODS)}")
    first, step = made.round(float(start)), made.round(float(addend))
    if method == "kahan":
        return _kahan(first, step, count, made)
    if method == "stochastic":
        return _stochastic(first, step, count, made, seed)
    if made.name in _DTYPES and made is FORMATS[made.name]:
        terms = np.full(count + 1, step).astype(_DTYPES[made.name])
        terms[0] = first
        with np.errstate(all="ignore"):
            return np.add.accumulate(terms, dtype=terms.dtype).astype(np.float64)
    return _one_by_one(first, step, count, made)


def _one_by_one(first: float, step: float, count: int, fmt: Format) -> Array:
    sums = np.full(count + 1, first)
    total = first
    for i in range(1, count + 1):
        total, before = _round_one(total + step, fmt), total
        sums[i] = total
        if total == before:
            sums[i:] = total
            break
    return sums


def _round_one(x: float, fmt: Format) -> float:
    """`fmt.round` of one float, without numpy: ten times faster, for loops that cannot be arrays."""
    if x != x or x in (math.inf, -math.inf) or x == 0:
        return x if fmt.infinities or x == 0 else math.nan
    shift = fmt.mantissa_bits + 1 - max(math.frexp(x)[1], 2 - fmt.bias)
    rounded = math.ldexp(round(math.ldexp(x, shift)), -shift)
    if abs(rounded) > fmt.max:
        return math.copysign(math.inf if fmt.infinities else math.nan, x)
    return math.copysign(rounded, x)


def _kahan(first: float, step: float, count: int, fmt: Format) -> Array:
    sums = np.empty(count + 1)
    sums[0] = total = first
    lost = 0.0
    for i in range(1, count + 1):
        wanted = _round_one(step - lost, fmt)
        new = _round_one(total + wanted, fmt)
        lost = _round_one(_round_one(new - total, fmt) - wanted, fmt)
        sums[i] = total = new
    return sums


def _stochastic(first: float, step: float, count: int, fmt: Format, seed: int) -> Array:
    sums = np.full(count + 1, first)
    chances = np.random.default_rng(seed).random(count)
    total = first
    for i, chance in enumerate(chances.tolist(), start=1):
        wanted = total + step
        if not math.isfinite(wanted):
            sums[i:] = _round_one(wanted, fmt)
            break
        shift = fmt.mantissa_bits + 1 - max(math.frexp(wanted)[1], 2 - fmt.bias)
        total = math.ldexp(math.floor(math.ldexp(wanted, shift) + chance), -shift)
        total = _round_one(total, fmt)  # only overflow changes it
        sums[i] = total
    return sums
