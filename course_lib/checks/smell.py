"""What judges share: is it a number, are two numbers the same, and which misconception gives exactly what came back."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from course_lib.checks.core import Wrong, kind

__all__ = ["nearly", "not_a_number", "plain", "same", "smell"]

NEAR = 1e-3
"""Relative. What is off by less is more likely an inexact right answer than a wrong one."""


def plain(value: Any) -> Any:
    """A Python float of a numpy or torch scalar or a fraction; anything else as it is."""
    if isinstance(value, Fraction):
        return float(value)
    size = getattr(value, "numel", None)
    one = size() == 1 if callable(size) else getattr(value, "size", None) == 1
    return float(value.item()) if one and hasattr(value, "item") else value


def not_a_number(returned: Any) -> Wrong | None:
    """Refuse what is no number; NaN and the infinities are left to the judge."""
    if returned is None:
        return Wrong("nothing came back. Does every path end in a `return`?")
    if isinstance(returned, bool) or not isinstance(returned, int | float):
        return Wrong(f"a number is wanted; {kind(returned)} came back")
    return None


def same(a: float, b: float, tolerance: float) -> bool:
    """Equal up to `tolerance`, relative above 1 and absolute below; an infinity equals itself, NaN equals nothing."""
    return a == b or (math.isfinite(b) and abs(a - b) <= tolerance * max(1.0, abs(b)))


def nearly(returned: float, right: float) -> str | None:
    """The message for what is wrong by little: no misconception is behind it. None where it is off by more."""
    if not 0 < abs(returned - right) <= NEAR * abs(right):
        return None
    return f"nearly right (off by {abs(returned - right):.2g}): FP32, rounding, or an approximation?"


def smell(returned: float, values: Mapping[str, float], tolerance: float, right: float) -> str | None:
    """The first misconception of `values` (id -> what it would give) whose arithmetic gives what came back.

    Never one that gives the right answer here: what came back is then wrong for another reason.
    """
    wrong = {name: value for name, value in values.items() if not same(value, right, tolerance)}
    return next((name for name, value in wrong.items() if same(returned, value, tolerance)), None)
