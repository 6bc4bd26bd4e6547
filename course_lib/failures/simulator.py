"""A case for the one on call: a run went wrong, every check costs minutes, and the fault has to be named.

The run is a real one with a fault injected (`failures.incidents`), and each check measures that run. Only the price of
a check is invented, in minutes of a large job. `failures.scoring` says what an answer is worth.
"""

from __future__ import annotations

import math
import re
import secrets
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.failures import incidents
from course_lib.failures.incidents import Check, Finding, Run
from course_lib.failures.runs import STEPS
from course_lib.failures.scoring import HEALTHY, RESTART, Order, Score, faults, restart_minutes, score, table_order
from course_lib.settings import nearest, stream_seed

__all__ = ["Case", "dealt", "headline", "spelled"]

RUN_SEEDS = 20  # with each of these seeds, a stress test says, every fault is found by the checks meant for it


class _Hidden:
    """Holds something and does not say what: neither its repr nor a listing of a case's attributes tells the fault."""

    def __init__(self, value: Any) -> None:
        self._open = lambda: value

    def __call__(self) -> Any:
        return self._open()

    def __repr__(self) -> str:
        return "<hidden until the answer>"


def dealt(seed: int) -> str:
    """The fault of the case with this seed. As many seeds in a row as there are answers deal each of them once."""
    names = [*incidents.INCIDENTS, HEALTHY]
    deck, place = divmod(seed, len(names))
    order = np.random.default_rng(stream_seed(deck, "incident")).permutation(len(names))
    return names[order[place]]


def headline(losses: Sequence[float]) -> str:
    """A run in one line, without a verdict: its steps, its first and last loss."""
    seen = [loss for loss in losses if math.isfinite(loss)]
    if not seen:
        return f"{len(losses)} steps, and no loss is finite"
    if not math.isfinite(losses[-1]):
        return f"{len(losses)} steps: loss {seen[0]:.2f} nats a token at first, and not finite at the end"
    return f"{len(losses)} steps: loss from {seen[0]:.2f} to {losses[-1]:.2f} nats a token"


class Case:
    """One run that went wrong, or perhaps did not. The same seed is the same case; None takes a new one.

    Making it trains the run, and one like it that is known to be good: some seconds; on_step(done, total) reports.
    `ConfigError` for a name that is no check or no fault (with the nearest), for a second answer, and for the trace
    before the answer.
    """

    def __init__(self, seed: int | None = None, *, on_step: Callable[[int, int], None] | None = None) -> None:
        self.seed = secrets.randbelow(10_000) if seed is None else int(seed)
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed} is negative; take 0 or more")
        self._on_step = on_step
        self._name = _Hidden(dealt(self.seed))
        self._run = _Hidden(self._make(self.seed, runs=2))
        self._good = self._make(self.seed + 1, fault=False, after=1, runs=2).series
        self._found: dict[str, Finding] = {}
        self.orders: list[Order] = []
        """What was ordered, in order."""
        self.score: Score | None = None
        """None before the answer."""

    def __repr__(self) -> str:
        state = "open" if self.score is None else f"{self.score.points} points"
        return f"Case(seed={self.seed}, {len(self.orders)} ordered, {self.minutes:g} minutes, {state})"

    def _make(self, seed: int, *, fault: bool = True, after: int = 0, runs: int = 1) -> Run:
        """Train a run of this case's set-up: it is the `after`-th of so many runs that are reported together."""
        name = self._name()
        if name == HEALTHY:  # the healthy twin of one of the incidents
            names = list(incidents.INCIDENTS)
            name, fault = names[stream_seed(self.seed, "twin") % len(names)], False
        steps = incidents.INCIDENTS[name].setup.get("steps", STEPS)
        told = self._on_step
        on_step = None if told is None else lambda step: told(after * steps + step + 1, runs * steps)
        return incidents.reproduce(name, seed % RUN_SEEDS, on_step, fault=fault)

    # ------------------------------------------------------------------------------------------ what is to be looked at

    @property
    def dashboards(self) -> dict[str, list[float]]:
        """What was recorded while the run went, one value a step: loss, grad_norm, lr, scale ... A copy."""
        return {name: list(values) for name, values in self._run().series.items()}

    @property
    def good(self) -> dict[str, list[float]]:
        """The dashboards of another run: the same set-up with another seed, and without a fault. A copy."""
        return {name: list(values) for name, values in self._good.items()}

    @property
    def events(self) -> list[tuple[int, str]]:
        """(steps done, what happened then): that it was resumed, for instance."""
        found = (re.match(r"step (\d+): (.*)", line) for line in self._run().events)
        return [(int(one[1]), one[2]) for one in found if one]

    @property
    def headline(self) -> str:
        """The run in one line, without a verdict."""
        return headline(self._run().series["loss"])

    @property
    def minutes(self) -> float:
        """Spent so far."""
        return sum(order.minutes for order in self.orders)

    # -------------------------------------------------------------------------------------------------- what is ordered

    def order(self, check: str) -> Finding:
        """Pay for a check, and get what it measured in this run. The same check again is in your notes, and free."""
        one = incidents.CHECKS[spelled(check, incidents.CHECKS, "check")]
        if one.name not in {order.name for order in self.orders}:
            self._require_open()
            self.orders.append(Order(one.name, one.title, one.minutes, self._measure(one)))
        return self._found[one.name]

    def restart(self) -> Finding:
        """Pay for a restart: the same run is trained once more, and compared with the first."""
        self._require_open()
        first, again = self._run().series["loss"], self._make(self.seed).series["loss"]
        pairs = [(a, b) for a, b in zip(first, again, strict=False) if math.isfinite(a) and math.isfinite(b)]
        apart = max((abs(a - b) for a, b in pairs), default=0.0)
        text = f"The second run, {headline(again)}. At no step is its loss more than {apart:.2g} from the first run's."
        found = Finding({"steps": len(again), "largest_difference": apart}, text, False)
        self.orders.append(Order(RESTART, "restart the run", restart_minutes(), found))
        return found

    def answer(self, name: str) -> Score:
        """Name the fault, once."""
        said = spelled(name, faults(), "fault")
        self._require_open()
        self.score = score(said, self._name(), self.orders)
        return self.score

    def trace(self) -> list[Order]:
        """After the answer: what each check says about this run, in the table's order, whether ordered or not."""
        if self.score is None:
            raise ConfigError("the trace tells the fault: name it first")
        return [Order(one.name, one.title, one.minutes, self._measure(one)) for one in table_order()]

    def _require_open(self) -> None:
        if self.score is not None:
            raise ConfigError("this case is closed, for the fault was named; take another seed")

    def _measure(self, check: Check) -> Finding:
        if check.name not in self._found:
            self._found[check.name] = check.measure(self._run())
        return self._found[check.name]


def spelled(name: str, names: Iterable[str], what: str) -> str:
    """The name itself, in our spelling; `ConfigError` with the nearest one when there is none such."""
    known = list(names)
    plain = "_".join(name.lower().replace("-", " ").split())
    if plain in known:
        return plain
    raise ConfigError(f"there is no {what} {name!r}{nearest(plain, known) or '; there are: ' + ', '.join(known)}")
