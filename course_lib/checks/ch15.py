"""Checks of chapter 15, scale and the runbook.

FLOPs and hours by hand are in `ch15_hand`, counted FLOPs in `ch15_flops`, state on a device in `ch15_state`, ranks of a
batch in `ch15_ranks`, the cadence of checkpoints in `ch15_cadence`, the cheapest layout in `ch15_layout`, the two parts
of the capstone in `ch15_estimate` and `ch15_diagnose`, the runbook in `ch15_runbook`.
"""

from hashlib import sha256

from course_lib.checks.ch15_cadence import CADENCE
from course_lib.checks.ch15_diagnose import DIAGNOSE, diagnose_text
from course_lib.checks.ch15_estimate import ESTIMATE, estimate_text
from course_lib.checks.ch15_flops import FLOPS
from course_lib.checks.ch15_hand import HAND, HOURS, hand_text, hours_text
from course_lib.checks.ch15_layout import LAYOUT, cluster, layout_text, look
from course_lib.checks.ch15_ranks import RANKS, ranks_text
from course_lib.checks.ch15_runbook import RUNBOOK, runbook_text
from course_lib.checks.ch15_state import STATE
from course_lib.checks.core import CheckFailed, ask, make_check

__all__ = ["EXERCISES", "check", "cluster", "look", "own_variant", "question"]

TEXTS = {
    "one-billion-by-hand": hand_text,
    "hours-of-devices": hours_text,
    "most-ranks": ranks_text,
    "cheapest-layout": layout_text,
    "capstone-estimate": estimate_text,
    "capstone-diagnose": diagnose_text,
    "my-runbook": runbook_text,
}


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text, such as `question("capstone-estimate")`."""
    ask(TEXTS, exercise, variant)


def own_variant(name: str) -> int:
    """A variant made of a name, from 100 to 9,999: numbers that no neighbour has. The same name gives the same one."""
    if not isinstance(name, str) or not name.strip():
        raise CheckFailed('own_variant: a name in quotes is wanted, such as own_variant("Ada Lovelace")')
    return 100 + int(sha256(" ".join(name.lower().split()).encode()).hexdigest(), 16) % 9_900


EXERCISES = [HAND, FLOPS, HOURS, STATE, RANKS, CADENCE, LAYOUT, ESTIMATE, DIAGNOSE, RUNBOOK]

check = make_check("15", EXERCISES)
