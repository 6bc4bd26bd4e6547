"""Checks of chapter 12, broken causality.

A leak matrix is in `ch12_matrix`, the probe in `ch12_probe` with its models in `ch12_zoo`, the repaired router in
`ch12_router`, the drop rule in `ch12_drop`, a loss below the entropy in `ch12_entropy`.
"""

from course_lib.checks.ch12_drop import DROP
from course_lib.checks.ch12_entropy import ENTROPY, below_text
from course_lib.checks.ch12_matrix import MATRIX, matrix_text
from course_lib.checks.ch12_probe import PROBE
from course_lib.checks.ch12_router import ROUTER
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "check", "question"]


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text (`leak-matrix`, `below-entropy`)."""
    ask({"leak-matrix": matrix_text, "below-entropy": below_text}, exercise, variant)


EXERCISES = [MATRIX, PROBE, ROUTER, DROP, ENTROPY]

check = make_check("12", EXERCISES)
