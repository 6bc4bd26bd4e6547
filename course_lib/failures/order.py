"""What an order of checks costs: the minutes until the checks that name a fault have been made, fault by fault.

Arithmetic on the table of incidents; no run is trained. The minutes are those of the simulator's story, and every fault
counts alike.
"""

from collections.abc import Sequence

import numpy as np

from course_lib.failures.evidence import CATEGORIES, RESTART_MINUTES, Check
from course_lib.failures.incidents import CHECKS, INCIDENTS

__all__ = [
    "by_chance",
    "cheapest_first",
    "in_order_of_suspicion",
    "minutes_to_find",
    "other_way_round",
    "restart_first",
]


def minutes_to_find(order: Sequence[Check]) -> dict[str, float]:
    """Minutes of the checks in this order up to the last one that the fault needs, for each incident."""
    spent = np.cumsum([check.minutes for check in order])
    place = {check.name: number for number, check in enumerate(order)}
    return {name: float(spent[max(place[check] for check in one.checks)]) for name, one in INCIDENTS.items()}


def in_order_of_suspicion() -> dict[str, float]:
    """Data and mask, numerics, optimizer, system; within a kind the cheap checks first."""
    return minutes_to_find(_kinds(CATEGORIES))


def other_way_round() -> dict[str, float]:
    """System, optimizer, numerics, data and mask; within a kind the cheap checks first."""
    return minutes_to_find(_kinds(CATEGORIES[::-1]))


def cheapest_first() -> dict[str, float]:
    """Whatever kind it is, the cheapest check first."""
    return minutes_to_find(sorted(CHECKS.values(), key=lambda check: check.minutes))


def by_chance(draws: int = 200, seed: int = 0) -> dict[str, float]:
    """The mean over orders that are drawn."""
    rng, checks = np.random.default_rng(seed), list(CHECKS.values())
    every = [minutes_to_find([checks[k] for k in rng.permutation(len(checks))]) for _ in range(draws)]
    return {name: float(np.mean([one[name] for one in every])) for name in INCIDENTS}


def restart_first() -> dict[str, float]:
    """A restart, and then the order of suspicion: the fault is still there."""
    return {name: RESTART_MINUTES + minutes for name, minutes in in_order_of_suspicion().items()}


def _kinds(kinds: Sequence[str]) -> list[Check]:
    return sorted(CHECKS.values(), key=lambda check: (kinds.index(check.category), check.minutes))
