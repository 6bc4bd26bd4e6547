"""Checks of chapter 14, diagnosis.

The order of checks is in `ch14_order`, logs of incidents in `ch14_logs`, Adam's bound in `ch14_step`, what was done
about a NaN step in `ch14_skip`, clipping by z-score in `ch14_clip`, rates and kinds in `ch14_kinds`, roots in
`ch14_roots`.
"""

from course_lib.checks.ch14_clip import CLIP
from course_lib.checks.ch14_kinds import KINDS, kinds_text
from course_lib.checks.ch14_logs import LOGS, log, logs_text
from course_lib.checks.ch14_order import ORDER, order_text
from course_lib.checks.ch14_roots import ROOTS, roots_text
from course_lib.checks.ch14_skip import SKIP, skip_text
from course_lib.checks.ch14_step import STEP
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "check", "log", "question"]

TEXTS = {
    "order-of-suspicion": order_text,
    "logs-alone": logs_text,
    "past-the-nan": skip_text,
    "rate-or-kind": kinds_text,
    "two-roots": roots_text,
}


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text, such as `question("logs-alone")`."""
    ask(TEXTS, exercise, variant)


EXERCISES = [ORDER, LOGS, STEP, SKIP, CLIP, KINDS, ROOTS]

check = make_check("14", EXERCISES)
