"""Checks of chapter 4, mixed precision.

The policy is in `ch04_policy`, formats in `ch04_formats`, the scaler in `ch04_scaler`, stochastic rounding in
`ch04_chance`, the out-of-memory in `ch04_choices`.
"""

from course_lib.checks.ch04_chance import STOCHASTIC
from course_lib.checks.ch04_choices import ACTIVATION_OOM, activation_oom_text
from course_lib.checks.ch04_formats import LAST_EXACT, ROUND
from course_lib.checks.ch04_policy import POLICY
from course_lib.checks.ch04_scaler import SCALER
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "check", "question"]


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of a reasoning exercise (`activation-oom`) for a variant."""
    ask({"activation-oom": activation_oom_text}, exercise, variant)


EXERCISES = [POLICY, LAST_EXACT, ROUND, SCALER, STOCHASTIC, ACTIVATION_OOM]

check = make_check("04", EXERCISES)
