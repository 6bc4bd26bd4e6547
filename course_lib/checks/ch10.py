"""Checks of chapter 10, tensor and context parallel.

`ch10_column` and `ch10_row` have the two split layers (what they share is in `ch10_linear`), `ch10_traffic` the
reasoning exercise, `ch10_softmax` the online softmax, `ch10_zigzag` the split of a sequence, `ch10_ring` ring
attention with what is in `ch10_blocks`. The ranks that talk without processes are in `ch10_group`.
"""

from course_lib.checks.ch10_blocks import Blocks
from course_lib.checks.ch10_column import COLUMN
from course_lib.checks.ch10_group import together
from course_lib.checks.ch10_ring import RING_ATTENTION
from course_lib.checks.ch10_row import ROW
from course_lib.checks.ch10_softmax import MERGE
from course_lib.checks.ch10_traffic import TENSOR_TRAFFIC, tensor_traffic_text
from course_lib.checks.ch10_zigzag import ZIGZAG
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "Blocks", "check", "question", "together"]


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of the reasoning exercise, `tensor-traffic`, for a variant."""
    ask({"tensor-traffic": tensor_traffic_text}, exercise, variant)


EXERCISES = [COLUMN, ROW, TENSOR_TRAFFIC, MERGE, ZIGZAG, RING_ATTENTION]

check = make_check("10", EXERCISES)
