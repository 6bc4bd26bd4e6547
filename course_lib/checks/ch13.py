"""Checks of chapter 13, accumulating bias.

Where a sum stops is in `ch13_stop`, bias and variance in `ch13_trace`, the choice of a cure in `ch13_cure`, Kahan's
update in `ch13_kahan`, truncated importance sampling in `ch13_tis`, the test of a kernel in `ch13_kernel`.
"""

from course_lib.checks.ch13_cure import CURE, cure_text
from course_lib.checks.ch13_kahan import KAHAN
from course_lib.checks.ch13_kernel import KERNEL
from course_lib.checks.ch13_stop import STOP
from course_lib.checks.ch13_tis import TIS
from course_lib.checks.ch13_trace import TRACE, trace_text
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "check", "question"]


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text (`bias-or-variance`, `choose-the-cure`)."""
    ask({"bias-or-variance": trace_text, "choose-the-cure": cure_text}, exercise, variant)


EXERCISES = [STOP, TRACE, CURE, KAHAN, TIS, KERNEL]

check = make_check("13", EXERCISES)
