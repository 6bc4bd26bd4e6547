"""Checks of chapter 4, mixed precision.

Formats are in `ch04_formats`, the scaler in `ch04_scaler`, stochastic rounding in `ch04_chance`, the policy and the
out-of-memory in `ch04_choices`.
"""

from course_lib.checks.ch04_chance import STOCHASTIC
from course_lib.checks.ch04_choices import ACTIVATION_OOM, POLICY, activation_oom_text
from course_lib.checks.ch04_formats import LAST_EXACT, ROUND
from course_lib.checks.ch04_scaler import SCALER
from course_lib.checks.core import make_check

__all__ = ["EXERCISES", "check", "question"]


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of a reasoning exercise (`activation-oom`) for a variant."""
    text = {"activation-oom": activation_oom_text}[exercise]
    print(f"variant {variant}\n\n{text(variant)}")


EXERCISES = [POLICY, LAST_EXACT, ROUND, SCALER, STOCHASTIC, ACTIVATION_OOM]

check = make_check("04", EXERCISES)
