"""Answers of several numbers and letters: each part with its tolerance, and what its mistakes would give."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from course_lib.checks.core import Wrong, kind

__all__ = ["Letter", "Number", "close", "judge_parts", "keys_of"]

FACTORS = {1e3: "1,000", 1e6: "a million", 1e9: "1e9", 1e12: "1e12", 3600.0: "3,600", 24.0: "24", 60.0: "60"}
FACTORS |= {100.0: "100", 86400.0: "86,400", 1440.0: "1,440"}


@dataclass(frozen=True)
class Number:
    """One number of an answer."""

    key: str
    right: float
    tolerance: float
    """Relative; 0 for a whole number that has to be exact."""
    guesses: Sequence[tuple[str, float, str]] = ()
    """(misconception, what it would give, the question that it meets)."""
    ask: str = "go through it once more"
    """What is asked when no guess fits."""
    units: bool = True
    """Whether a factor such as 1,000 is told as a slip in the unit, which costs nothing."""


@dataclass(frozen=True)
class Letter:
    """One letter of an answer, out of `letters`."""

    key: str
    right: str
    letters: str
    wrong: Callable[[str], Wrong] = field(default=lambda given: Wrong(f"{given} is not it"))


def close(value: float, right: float, tolerance: float) -> bool:
    """Equal up to a relative tolerance; 0 stands for float rounding alone."""
    return math.isclose(value, right, rel_tol=max(tolerance, 1e-9))


def keys_of(returned: Mapping[str, Any], keys: Sequence[str]) -> Wrong | None:
    """Keys that are missing or strange, as a slip in the form."""
    expected = ("variant", *keys)
    for key in (*returned, *expected):
        if key not in expected or key not in returned:
            what = "is not one of them" if key not in expected else "is missing"
            return Wrong(f"the answer has the keys {', '.join(expected)}; `{key}` {what}", form=True)
    return None


def judge_parts(
    returned: Mapping[str, Any], parts: Sequence[Number | Letter], known: Mapping[str, str]
) -> Wrong | None:
    """None where all are right; else what is wrong with the first that is not, in the order of `parts`.

    A wrong form, an empty part, a slip in a unit, and an answer of which half is right cost no variant. A letter that
    is wrong, with no number that is, costs one: letters can be tried out.
    known: the exercise's misconceptions; a guess that is not among them has a message and no name.
    """
    form = keys_of(returned, [part.key for part in parts]) or _forms(returned, parts)
    if form is not None:
        return form
    fits = [_fits(part, returned[part.key]) for part in parts]
    off = [part for part, right in zip(parts, fits, strict=True) if not right and returned[part.key] is not None]
    half = 2 * sum(fits) >= len(parts) and any(isinstance(part, Number) for part in off)
    for part, right in zip(parts, fits, strict=True):
        value = returned[part.key]
        if right or value is None:
            continue
        wrong = part.wrong(_letter(value)) if isinstance(part, Letter) else _wrong_number(part, float(value), known)
        return Wrong(f"`{part.key}`: {wrong.message}", wrong.misconception, form=wrong.form or half)
    empty = [part.key for part in parts if returned[part.key] is None]
    if empty:
        return Wrong(f"what there is, is right; still empty: {', '.join(empty)}", form=True)
    return None


def _letter(value: Any) -> str:
    return str(value).strip().upper()


def _forms(returned: Mapping[str, Any], parts: Sequence[Number | Letter]) -> Wrong | None:
    for part in parts:
        value = returned[part.key]
        if value is None or value is ...:
            continue
        if isinstance(part, Letter):
            if not isinstance(value, str) or _letter(value) not in list(part.letters):
                text = f'one letter in quotes, "{part.letters[0]}" to "{part.letters[-1]}"'
                return Wrong(f"`{part.key}` is {text}", form=True)
        elif isinstance(value, bool) or not isinstance(value, int | float):
            return Wrong(f"`{part.key}` is one number, without quotes; yours is {kind(value)}", form=True)
        elif not -1e300 < value < 1e300:  # NaN, too, and a whole number that no float holds
            told = f"is {value}" if isinstance(value, float) else "has hundreds of digits"
            return Wrong(f"`{part.key}` {told}: a finite number is wanted", form=True)
        elif not part.units and not part.tolerance and value != int(value):
            return Wrong(f"`{part.key}` is a whole number; yours has a fraction: {value:.6g}", form=True)
    return None


def _fits(part: Number | Letter, value: Any) -> bool:
    if value is None:
        return False
    if isinstance(part, Letter):
        return _letter(value) == part.right
    return close(float(value), part.right, part.tolerance)


def _wrong_number(part: Number, value: float, known: Mapping[str, str]) -> Wrong:
    """The guess or the slip in a unit that comes nearest, of those that come near enough; a guess before a slip."""
    found: list[tuple[float, Wrong]] = []
    for rule, guess, text in part.guesses:
        told_apart = not math.isclose(guess, part.right, rel_tol=2 * part.tolerance + 1e-6)
        if told_apart and math.isclose(value, guess, rel_tol=max(part.tolerance, 1e-6)):
            found.append((_apart(value, guess), Wrong(f"{value:.4g}: {text}", rule if rule in known else None)))
    for factor, text in _slips(part):
        for slip in (part.right * factor, part.right / factor):
            if close(value, slip, part.tolerance):
                found.append((_apart(value, slip), Wrong(f"{value:.4g} is off by a factor of {text}", form=True)))
    if found:
        return min(found, key=lambda one: one[0])[1]
    if math.isclose(value, part.right, rel_tol=4 * part.tolerance):
        return Wrong(f"{value:.4g} is nearly right, and further off than rounding: {part.ask}", form=True)
    return Wrong(f"{value:.4g}: {part.ask}")


def _apart(value: float, guess: float) -> float:
    """How far apart, relatively; what rounding to four digits can do counts as nothing."""
    return max(0.0, abs(value / guess - 1) - 5e-4) if guess else abs(value)


def _slips(part: Number) -> list[tuple[float, str]]:
    if not part.units:
        return []
    slips = [(factor, f"{words}: which unit is asked for?") for factor, words in FACTORS.items()]
    if part.key.endswith("_gb"):
        slips.append((2**30 / 1e9, "1.07: a GB is 1e9 bytes here, a GiB is 2^30"))
    return [*slips, (10.0, "ten: count the zeros")]
