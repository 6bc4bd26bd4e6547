"""What can go wrong with a planned run, worst first: each with its number, and the smallest change that mends it.

    for risk in plan(run).risks:
        risk.severity, risk.number, risk.text, risk.remedy

Severity has one scale: 1 and more, the run cannot be done like this; below, about the share of the device-hours that
the risk costs; below 0.02, it costs nothing yet. A remedy is computed, not a rule of thumb: it names the smallest
change for which the same formulas no longer see the risk, or says that no single one does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from course_lib.planning import _risks_run, _risks_step
from course_lib.planning._risk import LIMITS, Risk
from course_lib.planning.remedies import MOST_CHANGES, Near

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan

__all__ = ["LIMITS", "Risk", "risks"]


def risks(plan: Plan, *, changes: int = MOST_CHANGES) -> list[Risk]:
    """All that are seen, the worst first. `changes`: of the layout, that a remedy may have; 1 is quick."""
    near = Near(plan.run, changes)
    found = [risk for kind in (*_risks_step.KINDS, *_risks_run.KINDS) for risk in kind(plan, near)]
    return sorted(found, key=lambda risk: -risk.severity)
