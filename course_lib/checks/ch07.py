"""Checks of chapter 7, data parallel.

`ch07_move` and `ch07_ring` have the ring, `ch07_parallel` a step on real ranks, `ch07_suspects` the diagnosis,
`ch07_traffic` and `ch07_devices` the reasoning exercises. How an answer gets to its ranks is in `ch07_ranks`, and
what is seen of its calls there in `ch07_watch`.
"""

from course_lib.checks.ch07_devices import DEVICES, devices_text
from course_lib.checks.ch07_move import MOVE
from course_lib.checks.ch07_parallel import PARALLEL
from course_lib.checks.ch07_ring import RING
from course_lib.checks.ch07_suspects import SUSPECTS
from course_lib.checks.ch07_traffic import TRAFFIC, traffic_text
from course_lib.checks.core import ask, make_check

__all__ = ["EXERCISES", "check", "question"]


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of a reasoning exercise (`count-the-traffic`, `one-device-is-not-enough`) for a variant."""
    ask({"count-the-traffic": traffic_text, "one-device-is-not-enough": devices_text}, exercise, variant)


EXERCISES = [MOVE, RING, PARALLEL, TRAFFIC, SUSPECTS, DEVICES]

check = make_check("07", EXERCISES)
