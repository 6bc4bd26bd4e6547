"""Faults injected into real training runs: what goes wrong, what the dashboards show, and which checks name it.

`reproduce(name, seed)` trains a small model with one fault, `CHECKS` are what can be measured in such a run, and
`diagnose(run)` ranks the faults by what the checks found, in the order of suspicion.
"""

from collections.abc import Callable

from course_lib.errors import ConfigError
from course_lib.failures import _checks_data, _checks_system, _checks_training, _ranks
from course_lib.failures._incident_list import ALL, Incident
from course_lib.failures.evidence import CATEGORIES, RESTART_MINUTES, Check, Finding
from course_lib.failures.runs import Run, Setup, go, text
from course_lib.settings import nearest

__all__ = [
    "CATEGORIES",
    "CHECKS",
    "INCIDENTS",
    "RESTART_MINUTES",
    "Check",
    "Finding",
    "Incident",
    "Run",
    "diagnose",
    "reproduce",
]

CHECKS: dict[str, Check] = {
    check.name: check for check in (*_checks_data.CHECKS, *_checks_training.CHECKS, *_checks_system.CHECKS)
}
"""What can be measured, in the order of suspicion."""


INCIDENTS: dict[str, Incident] = {one.name: one for category in CATEGORIES for one in ALL if one.category == category}
"""Every fault, in the order of suspicion."""


def reproduce(
    name: str | None, seed: int = 0, on_step: Callable[[int], None] | None = None, *, fault: bool = True
) -> Run:
    """Train with the fault called `name`; None: the usual run, without one. Some seconds; the same seed, the same bits.

    fault=False: the set-up of that incident without its fault, which is its healthy twin. on_step is called with each
    step. `ConfigError` for an unknown name.
    """
    if name is not None and name not in INCIDENTS:
        raise ConfigError(f"there is no incident {name!r}{nearest(name, INCIDENTS)}")
    one = None if name is None else INCIDENTS[name]
    changes = {} if one is None else {**one.setup, **(one.fault if fault else {})}
    run = Run(name if fault else None, seed, Setup(seed, **changes), text(seed))
    return (go if run.setup.ranks == 1 else _ranks.go_on_ranks)(run, on_step)


def diagnose(run: Run) -> list[str]:
    """Names of the faults that the checks speak for, likeliest first; [] when no check found anything.

    A fault comes before another when more of its own checks are abnormal, then when fewer are that it does not explain,
    then by the order of suspicion, and within a kind when its checks cost less: a log that says it outright before a
    run that may have other reasons.
    """
    found = {name for name, check in CHECKS.items() if check.measure(run).abnormal}

    def rank(one: Incident) -> tuple[float, int, int, float]:
        own = set(one.checks)
        minutes = sum(CHECKS[name].minutes for name in own)
        return -len(own & found) / len(own), len(found - own), CATEGORIES.index(one.category), minutes

    fitting = [one for one in INCIDENTS.values() if found & set(one.checks)]
    return [one.name for one in sorted(fitting, key=rank)]
