"""Two tests of a kernel: the usual one, which accepts wrong kernels, and one that does not.

`loose_test` has one friendly size, one draw and one tolerance. `kernel_test` has sizes around the edges of a block,
values chosen against a kind of bug each, an FP64 oracle that is written otherwise, and counts errors in units of what
rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from course_lib.errors import ConfigError
from course_lib.failures.kernels import BLOCK, Array, Kernel

__all__ = ["EPS", "Case", "KernelReport", "attention_oracle", "kernel_test", "loose_test", "sum_oracle"]

Kind: TypeAlias = Literal["sum", "attention"]

EPS = 2.0**-24
"""The largest relative error of one rounding to FP32: half a spacing at 1."""


# ---------------------------------------------------------------- oracles


def sum_oracle(x: Array) -> float:
    """The exact sum, rounded once to FP64."""
    return math.fsum(np.asarray(x, dtype=np.float64).tolist())


def attention_oracle(q: Array, k: Array, v: Array) -> Array:
    """Token by token in FP64, written as the definition: no matrix of scores, no mask."""
    q, k, v = (np.asarray(a, dtype=np.float64) for a in (q, k, v))
    out = np.zeros((len(q), v.shape[1]))
    for t in range(len(q)):
        scores = k[: t + 1] @ q[t] / math.sqrt(q.shape[1])
        weights = np.exp(scores - scores.max())
        out[t] = weights @ v[: t + 1] / weights.sum()
    return out


# ---------------------------------------------------------------- tests


@dataclass(frozen=True)
class Case:
    """One input of a test and what came back."""

    name: str
    size: int
    error: float
    """Largest error as a share of what is allowed: above 1 it fails. Infinity where nothing is allowed, for a wrong
    shape and for a value that is not finite."""
    relative: float
    """The same error as a share of the size of the terms (a sum) or of the values (attention)."""


@dataclass(frozen=True)
class KernelReport:
    """What a test found."""

    cases: tuple[Case, ...]

    @property
    def passed(self) -> bool:
        return all(case.error <= 1 for case in self.cases)

    @property
    def worst(self) -> Case:
        return max(self.cases, key=lambda case: case.error)

    def text(self) -> str:
        """One line."""
        worst = self.worst
        failed = sum(case.error > 1 for case in self.cases)
        end = f"worst: {worst.name}, size {worst.size}, error {worst.error:.3g} of what is allowed"
        return f"{'passed' if self.passed else 'FAILED'} ({failed} of {len(self.cases)} cases); {end}"


def loose_test(
    kernel: Kernel, kind: Kind = "sum", *, size: int = 1024, tolerance: float = 1e-2, seed: int = 0
) -> KernelReport:
    """The usual test: one size, one draw, errors up to `tolerance` of the largest output."""
    rng = np.random.default_rng(seed)
    q, k, v = _normal(rng, size, 16)
    inputs: tuple[Array, ...] = _uniform(rng, size) if kind == "sum" else (q, k, v)
    right, found = _both(kernel, kind, inputs)
    scale = np.abs(right).max() * tolerance
    return KernelReport((_case("one draw", size, right, found, scale, np.abs(right).max()),))


def kernel_test(kernel: Kernel, kind: Kind = "sum", *, block: int = BLOCK, seed: int = 0) -> KernelReport:
    """Sizes around the edges of a block, values that expose one bug each, errors in units of rounding.

    What is allowed is what n roundings explain: for values whose sums are exact, nothing; else 4 eps sqrt(n) (errors
    of both signs) times the sum of the sizes of the terms, with eps = 2^-24. The oracle is FP64 and written otherwise.
    """
    if kind not in ("sum", "attention"):
        raise ConfigError(f"kind={kind!r} must be 'sum' or 'attention'")
    rng = np.random.default_rng(seed)
    cases = []
    for name, inputs, exact in (_sum_inputs if kind == "sum" else _attention_inputs)(block, rng):
        right, found = _both(kernel, kind, inputs)
        size = len(inputs[0])
        if kind == "sum":
            scale = np.abs(inputs[0].astype(np.float64)).sum()
            allowed = 0.0 if exact else 4 * EPS * math.sqrt(size) * scale
        else:
            q, k, v = (np.abs(a.astype(np.float64)).max() for a in inputs)
            scale = v
            exponent = q * k * math.sqrt(inputs[0].shape[1])  # a score's rounding error is multiplied by its size
            allowed = 4 * EPS * (math.sqrt(size) + exponent) * v
        cases.append(_case(name, size, right, found, allowed, scale))
    return KernelReport(tuple(cases))


def _both(kernel: Kernel, kind: Kind, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
    right = np.asarray(sum_oracle(*inputs) if kind == "sum" else attention_oracle(*inputs))
    return right, np.asarray(kernel(*(a.copy() for a in inputs)), dtype=np.float64)


def _case(name: str, size: int, right: Array, found: Array, allowed: float, scale: float) -> Case:
    if found.shape != right.shape or not np.isfinite(found).all():
        return Case(name, size, math.inf, math.inf)
    error = float(np.abs(found - right).max())
    units = 0.0 if error == 0 else error / allowed if allowed else math.inf
    return Case(name, size, units, error / float(scale) if scale else error)


def _uniform(rng: np.random.Generator, n: int) -> tuple[Array]:
    return (rng.random(n, dtype=np.float32),)


def _normal(rng: np.random.Generator, n: int, d: int) -> tuple[Array, ...]:
    return tuple(rng.standard_normal((n, d), dtype=np.float32) for _ in range(3))


def _sizes(block: int) -> list[int]:
    return sorted({1, 2, block - 1, block, block + 1, 2 * block - 1, 2 * block + 1, 5 * block, 5 * block + 7})


def _sum_inputs(block: int, rng: np.random.Generator) -> Iterator[tuple[str, tuple[Array, ...], bool]]:
    for n in _sizes(block):
        # Whole numbers: every partial sum in every order is exact in FP32, so there is one right answer. Each element
        # is odd and the last one large: a missing, doubled or foreign one changes the sum.
        whole = 2 * rng.integers(0, 2**12, n).astype(np.float32) + 1
        whole[-1] = 2**16 + 1
        yield "whole numbers", (whole,), True
        yield "uniform", _uniform(rng, n), False
        signs = rng.standard_normal(n).astype(np.float32)
        yield "both signs", (signs,), False
    yield "small beside large", (np.r_[np.float32(2**20), np.full(8 * block, 2.0**-3, np.float32)],), True
    yield "beyond FP16", (np.full(block + 3, 60000, np.float32),), True


def _attention_inputs(block: int, rng: np.random.Generator) -> Iterator[tuple[str, tuple[Array, ...], bool]]:
    for n in _sizes(block):
        q, k, v = _normal(rng, n, 16)
        yield "normal", (q, k, v), False
        rising = np.linspace(-2, 2, n, dtype=np.float32)[:, None]  # the running maximum moves in every block
        yield "rising scores", (np.full((n, 16), 2, np.float32), np.repeat(rising, 16, 1), v), False
        yield "falling scores", (np.full((n, 16), 2, np.float32), np.repeat(-rising, 16, 1), v), False
        spoiled = v.copy()
        spoiled[-1] = 1e3  # nobody but the last token may see it
        yield "a loud last token", (q, k, spoiled), False
    k, v = (4 * a for a in _normal(rng, block + 5, 16)[1:])
    k[0] = 1.875  # every token sees a score of 120, and exp(120) is more than FP32 holds
    yield "large scores", (np.full((block + 5, 16), 16, np.float32), k, v), False
