"""What a case of the incident simulator is worth: the answer, and the minutes against those of the table's own path.

Of 100 points, the right name gives 40 at once, and up to 60 more for how it was found: 60 * min(1, par / spent).
`spent` are the minutes of all that was ordered; `par` are those of the table's path: from a symptom of the fault
through that row's checks, in the order of suspicion, to those that show it. Without any check that shows the fault the
name is a guess and stays at 40. A wrong name of the right kind (data and mask, numerics, optimizer, system) gives 20,
any other 0. A restart costs more minutes than all checks together, so nothing costs more points; and the fault comes
back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from course_lib.failures import diagnosis, incidents
from course_lib.failures.incidents import Check, Finding

__all__ = [
    "HEALTHY",
    "RESTART",
    "Order",
    "Score",
    "faults",
    "par_path",
    "points",
    "restart_minutes",
    "score",
    "table_order",
]

HEALTHY = "healthy"
"""The answer for a run without a fault: one case in about twenty is a false alarm."""
RESTART = "restart"
"""The name of a restart among the orders."""
_NAME, _COST, _KIND = 40, 60, 20


@dataclass(frozen=True)
class Order:
    """One thing that was ordered, and what came back."""

    name: str
    title: str
    minutes: float
    finding: Finding


@dataclass(frozen=True)
class Score:
    """What a case came to."""

    points: int
    """0 to 100, by the formula of this module."""
    right: bool
    said: str
    truth: str
    """The name that was given, and the right one."""
    minutes: float
    """Spent on checks and restarts."""
    par: float
    """Minutes of the table's own path."""
    path: tuple[str, ...]
    """That path: names of checks."""
    shown: bool
    """Whether a check was ordered that shows this fault."""
    remarks: tuple[str, ...]
    """What could be done otherwise next time, or what was done well: a sentence each."""
    fix: str
    never: str
    """What mends this fault, and what not to do about it."""


def faults() -> dict[str, str]:
    """Every answer and its title: the incidents of the table, then that nothing is wrong."""
    return {name: one.title for name, one in incidents.INCIDENTS.items()} | {HEALTHY: "nothing is wrong"}


def table_order() -> list[Check]:
    """All checks in the order of suspicion; within a kind the cheap ones first."""
    return sorted(
        incidents.CHECKS.values(), key=lambda check: (incidents.CATEGORIES.index(check.category), check.minutes)
    )


def restart_minutes() -> float:
    """What a restart costs: more than all checks together."""
    return incidents.RESTART_MINUTES


def par_path(name: str) -> tuple[str, ...]:
    """The table's own path to a fault: names of checks, in order. For a run without a fault, all of them.

    A fault's path begins at a symptom of the table that it has: the checks of that row in the order of suspicion, up to
    those that show this fault. Of several such rows the longest path counts.
    """
    order = [check.name for check in table_order()]
    if name == HEALTHY:
        return tuple(order)
    own = incidents.INCIDENTS[name].checks
    last = max(order.index(one) for one in own)
    paths = [{*own, *(one for one in row.checks if order.index(one) < last)} for row in diagnosis.rows_of(name)]
    best = max([set(own), *paths], key=_minutes)
    return tuple(one for one in order if one in best)


def _minutes(checks: Iterable[str]) -> float:
    return sum(incidents.CHECKS[one].minutes for one in checks)


def points(right: bool, same_kind: bool, shown: bool, par: float, spent: float) -> int:
    """0 to 100; the formula stands at the top of this module."""
    if not right:
        return _KIND if same_kind else 0
    return round(_NAME + _COST * min(1.0, par / spent)) if shown and spent > 0 else _NAME


def score(said: str, truth: str, orders: Sequence[Order]) -> Score:
    """The score of an answer; `said` and `truth` are names out of `faults()`."""
    path, spent = par_path(truth), sum(order.minutes for order in orders)
    par = _minutes(path)
    right, shown = said == truth, _shown(truth, orders)
    same_kind = not right and _kind(said) == _kind(truth)
    fault = incidents.INCIDENTS.get(truth)
    return Score(
        points=points(right, same_kind, shown, par, spent),
        right=right,
        said=said,
        truth=truth,
        minutes=spent,
        par=par,
        path=path,
        shown=shown,
        remarks=tuple(_remarks(truth, path, right, same_kind, shown, par, orders)),
        fix=fault.fix if fault else "There is nothing to mend: let the run go on from where it was stopped.",
        never=fault.never if fault else "Do not change a setting because somebody was worried.",
    )


def _kind(name: str) -> str:
    return incidents.INCIDENTS[name].category if name in incidents.INCIDENTS else ""


def _shown(truth: str, orders: Sequence[Order]) -> bool:
    checks = [order for order in orders if order.name != RESTART]
    if truth == HEALTHY:  # nothing can show that nothing is wrong; one look into each kind of cause is asked for
        looked = {incidents.CHECKS[order.name].category for order in checks}
        return looked == {check.category for check in incidents.CHECKS.values()}
    wanted = incidents.INCIDENTS[truth].checks
    return any(order.name in wanted and order.finding.abnormal for order in checks)


def _remarks(
    truth: str, path: Sequence[str], right: bool, same_kind: bool, shown: bool, par: float, orders: Sequence[Order]
) -> Iterator[str]:
    names = [order.name for order in orders]
    checks = [name for name in names if name != RESTART]
    if same_kind:
        yield f"The right kind of cause ({_kind(truth)}), another fault of it."
    if names[:1] == [RESTART]:
        yield (
            f"You restarted before any check: {restart_minutes():g} minutes, more than all checks together, "
            "and the second run went like the first."
        )
    elif RESTART in names:
        yield f"The restart took {restart_minutes():g} minutes, and the second run went like the first."
    if right and not shown:
        where = "each kind of cause has a check" if truth == HEALTHY else f"what shows it: {_titles(path)}"
        yield f"Nothing that you ordered shows this, so the name was a guess ({where})."
    early = [] if truth == HEALTHY else _early(checks, path, _kind(truth))
    if early:
        yield f"Looked at before the likelier suspects of {_kind(truth)}: {_titles(early)}."
    spare = [name for name in checks if name not in path and name not in early]
    if spare and sum(order.minutes for order in orders) > par:
        yield f"Not needed for this fault, as it turned out: {_titles(spare)}."
    if right and shown and set(names) <= set(path):
        yield "Every check that you ordered is on the table's path."


def _early(checks: Sequence[str], path: Sequence[str], kind: str) -> list[str]:
    """Checks of a later kind of cause than the fault's that came before the first one on its path."""
    first = next((at for at, name in enumerate(checks) if name in path), len(checks))
    return [
        name
        for name in checks[:first]
        if incidents.CATEGORIES.index(incidents.CHECKS[name].category) > incidents.CATEGORIES.index(kind)
    ]


def _titles(names: Sequence[str]) -> str:
    return "; ".join(incidents.CHECKS[name].title for name in names)
