"""A small catalogue of incidents whose runs are made at once: for the simulator, its widget and its command."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from course_lib.failures import diagnosis, incidents
from course_lib.failures.diagnosis import Cause, Row
from course_lib.failures.incidents import Check, Finding, Incident

STEPS = 12
KINDS = {"shifted": "data and mask", "doubled": "data and mask", "overflow": "numerics", "hot": "optimizer"}
KINDS |= {"straggler": "system"}
CHECKS = {"decode": ("data and mask", 5, ("shifted",)), "order": ("data and mask", 15, ("doubled",))}
CHECKS |= {"finite": ("numerics", 10, ("overflow",)), "rates": ("optimizer", 5, ("hot",))}
CHECKS |= {"ranks": ("system", 20, ("straggler",)), "disk": ("system", 25, ())}

_CAUSES = (Cause("data and mask", "wrong <data>"), Cause("system", "a slow node"))
ROWS = (
    Row("loss is NaN", "loss", _CAUSES, "read the log", ("decode", "finite"), "mend", "hide it", ("overflow",)),
    Row("it is slow", "step time", _CAUSES[1:], "time it", ("ranks", "disk"), "move it", "wait", ("straggler",)),
)
"""The table: an overflow is found on the way from `decode` to `finite`; the others have no row."""


def incident(name: str) -> Incident:
    checks = tuple(check for check, (_, _, shows) in CHECKS.items() if name in shows)
    given = {
        "name": name,
        "title": f"the {name} one",
        "symptom": "s",
        "category": KINDS[name],
        "root": "neither",
        "why": "w",
    }
    return Incident(**given, checks=checks, setup={"steps": STEPS}, fix=f"mend {name}", never=f"not so with {name}")  # type: ignore[arg-type]


def run(name: str | None, seed: int = 0, on_step: Any = None, *, fault: bool = True) -> SimpleNamespace:
    """Falls from 5 by 0.1 a step; an overflow has a NaN."""
    name = name if fault else None
    loss = [5 - 0.1 * step for step in range(STEPS)]
    if name == "overflow":
        loss[7] = math.nan
    for step in range(STEPS if on_step else 0):
        on_step(step)
    series = {"loss": loss, "grad_norm": [1.0 + seed] * STEPS, "step_seconds": [0.02] * STEPS}
    series["checksum_0"] = [float(step) for step in range(STEPS)]
    return SimpleNamespace(name=name, seed=seed, series=series, events=["step 6: resumed"], trainer=None)


def check(name: str) -> Check:
    kind, minutes, shows = CHECKS[name]

    def measure(run: Any) -> Finding:
        found = run.name in shows
        return Finding(numbers={"value": float(found)}, text=f"{name} measured {float(found)}", abnormal=found)

    return Check(name=name, title=f"look at {name}", category=kind, minutes=minutes, measure=measure)  # type: ignore[arg-type]


@pytest.fixture
def catalogue(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five incidents and six checks in the place of the real ones."""
    for module in (incidents, diagnosis):
        monkeypatch.setattr(module, "INCIDENTS", {name: incident(name) for name in KINDS})
    monkeypatch.setattr(incidents, "CHECKS", {name: check(name) for name in CHECKS})
    monkeypatch.setattr(incidents, "reproduce", run)
    monkeypatch.setattr(incidents, "RESTART_MINUTES", 120)
    monkeypatch.setattr(diagnosis, "table", lambda: ROWS)
