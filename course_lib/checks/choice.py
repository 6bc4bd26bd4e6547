"""Reasoning exercises whose answer is a letter, and a number that supports it: one order in which both are judged."""

import math
from collections.abc import Callable
from typing import Any

from course_lib.checks.ch02_nine import wrong_form
from course_lib.checks.core import Wrong

__all__ = ["judge_choice"]


def judge_choice(
    returned: dict[str, Any],
    right: dict[str, Any],
    letters: str,
    wrong_choice: Callable[[str], Wrong],
    wrong_number: Callable[[float], Wrong],
    *,
    rel_tol: float,
) -> Wrong | None:
    """None where both are right. right: {"choice": one of `letters`, "evidence": a number}, equal within rel_tol.

    Of an answer with one half empty, or a right number beside a wrong letter, only the form counts as wrong: it costs
    no variant. wrong_choice(letter) and wrong_number(number) say what is wrong with one that is filled in.
    """
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    choice, value = returned["choice"], returned["evidence"]
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in list(letters)):
        return Wrong(f'`choice` is one letter in quotes, "{letters[0]}" to "{letters[-1]}"', form=True)
    half = value is not None and math.isclose(value, right["evidence"], rel_tol=rel_tol)
    if choice is None:
        return Wrong(f"`choice` is still empty{'; the evidence is right' if half else ''}", form=True)
    given = choice.strip().upper()
    if given != right["choice"]:
        wrong = wrong_choice(given)
        before = "the evidence is right, the choice is not: " if half else ""
        return Wrong(before + wrong.message, wrong.misconception, form=half)
    if value is None:
        return Wrong("the choice is right; `evidence` is still empty", form=True)
    return None if half else wrong_number(float(value))
