"""What an order of checks costs: the minutes until the checks that name a fault have been made, fault by fault.

Arithmetic on the tables of incidents and symptoms; no run is trained. The minutes are those of the simulator's story,
and every fault counts alike.
"""

from collections.abc import Callable, Sequence

import numpy as np

from course_lib.failures.diagnosis import rows_of
from course_lib.failures.evidence import CATEGORIES, RESTART_MINUTES, Check
from course_lib.failures.incidents import CHECKS, INCIDENTS

__all__ = ["ORDERS", "blindly", "by_chance", "dashboard", "minutes_to_find", "with_dashboards"]


def _in_order(check: Check) -> tuple[float, ...]:
    return CATEGORIES.index(check.category), check.minutes


def _other_way(check: Check) -> tuple[float, ...]:
    return -CATEGORIES.index(check.category), check.minutes


def _cheapest(check: Check) -> tuple[float, ...]:
    return (check.minutes,)


ORDERS: dict[str, Callable[[Check], tuple[float, ...]]] = {
    "order of suspicion": _in_order,
    "cheapest check first": _cheapest,
    "the other way round": _other_way,
}
"""Keys to sort checks by. Within a kind the cheap checks come first."""


def dashboard(incident: str) -> str:
    """The dashboard that shows the fault first, by its row of the diagnosis table; the two losses are one."""
    first = rows_of(incident)[0].look.split()[0].strip(":,")
    return {"val_loss": "loss", "every": "no more steps"}.get(first, first)


def minutes_to_find(order: Sequence[Check]) -> dict[str, float]:
    """Minutes of the checks in this order up to the last one that the fault needs, for each fault that it can find."""
    spent = np.cumsum([check.minutes for check in order])
    place = {check.name: number for number, check in enumerate(order)}
    named = {name: one.checks for name, one in INCIDENTS.items() if set(one.checks) <= set(place)}
    return {name: float(spent[max(place[check] for check in checks)]) for name, checks in named.items()}


def blindly(order: str) -> dict[str, float]:
    """All checks in this order, whatever the dashboards show."""
    return minutes_to_find(sorted(CHECKS.values(), key=ORDERS[order]))


def by_chance(draws: int = 200, seed: int = 0) -> dict[str, float]:
    """All checks, the mean over orders that are drawn."""
    rng, checks = np.random.default_rng(seed), list(CHECKS.values())
    every = [minutes_to_find([checks[k] for k in rng.permutation(len(checks))]) for _ in range(draws)]
    return {name: float(np.mean([one[name] for one in every])) for name in INCIDENTS}


def with_dashboards(order: str, restart: bool = False) -> dict[str, float]:
    """Only checks of faults that show first on the same dashboard, in this order. restart: after a restart."""
    out = {}
    for name in INCIDENTS:
        alike = [one for one in INCIDENTS.values() if dashboard(one.name) == dashboard(name)]
        checks = {check for one in alike for check in one.checks}
        own = sorted((check for check in CHECKS.values() if check.name in checks), key=ORDERS[order])
        out[name] = minutes_to_find(own)[name] + (RESTART_MINUTES if restart else 0)
    return out
