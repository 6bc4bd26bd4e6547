"""Pipeline schedules: who does what when, how long ranks wait, and what they hold meanwhile.

    done = simulate("1f1b", stages=4, microbatches=8)         # four ranks; costs of 1 unless given
    done.makespan, done.bubble_fraction, done.idle_over_ideal # 33.0, 0.2727..., 0.375
    done.peak_in_flight                                       # (4, 3, 2, 1) micro-batches on each rank
    done.slots[0]                                             # rank 0, stage 0, micro-batch 0, "F", 0.0, 1.0
    done.waits_for(Action(0, 0, 0, "B"))                      # B of stage 1, micro-batch 0
    bubble_formula("1f1b", 4, 8)                              # 0.2727...: from p and m, nothing is run

    mine = actions("gpipe", 4, 8)                             # one list of actions for each rank
    mine[0][0], mine[0][1] = mine[0][1], mine[0][0]
    run(mine, forward=1.0, send=0.1)                          # runs it, or says which action cannot

The schedules: `naive`, `gpipe` (with chunks > 1: looped BFS), `1f1b`, `interleaved`, `zb_h1`, `zbv`, `dualpipev`.
A rank holds `chunks` stages: stage s is on rank s mod p, and for zbv and dualpipev (always two chunks) the second half
comes back up, so that rank 0 has the first stage and the last.

F waits for the F of the stage before; B and I for the gradient of the stage after, and their own F; W for its own I.
A result that goes to another rank arrives `send` later, which occupies nobody. B takes as long as I and W, and passes
its gradient on at its end. A pair of dualpipev (an F that is `paired`, and the B behind it) begins when both can,
takes the sum, and passes both results on at its end: what overlapping them gains is not counted.
`timeline.start_times` decides when each action starts. Time and memory grow as
ranks x micro-batches x chunks: 64 ranks with 1,024 micro-batches take less than a second, with 2,048 twice as long.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from math import inf
from typing import NamedTuple

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_bubble import FORMULAS, Formula, bubble_formula
from course_lib.parallel._schedule_check import Action, Kind, Table, check_order, decode, encode, grid_of, read
from course_lib.parallel._schedule_orders import ORDERS, Grid, plan
from course_lib.parallel.timeline import Task, Timeline, start_times
from course_lib.parallel.timeline import simulate as simulate_tasks

__all__ = [
    "FORMULAS",
    "SCHEDULES",
    "Action",
    "Formula",
    "PipelineSlot",
    "PipelineTimeline",
    "actions",
    "bubble_formula",
    "run",
    "simulate",
]

SCHEDULES = tuple(ORDERS)
"""The names, simplest first."""

Times = float | Sequence[float]
"""How long something takes: the same for every stage, or one number for each."""

WORDS = {"F": "forward", "B": "backward", "I": "backward input", "W": "backward weight"}


class PipelineSlot(NamedTuple):
    """When an action ran."""

    rank: int
    stage: int
    microbatch: int
    kind: Kind
    start: float
    end: float


@dataclass(frozen=True, repr=False, eq=False)
class PipelineTimeline:
    """When every action of a pipeline ran. Time 0 is the start of the schedule."""

    grid: Grid
    table: Table
    starts: np.ndarray
    """Of every action, rank after rank."""
    durations: np.ndarray
    waits: list[tuple[tuple[int, float], ...]]
    """Of every action where what it needs from other stages ends, and how long that is on its way."""

    def __repr__(self) -> str:
        """One line, whatever its length."""
        size = f"{self.ranks} ranks, {self.stages} stages, {self.microbatches} micro-batches"
        return f"<PipelineTimeline: {size}, ends at {self.makespan:g}, bubble {self.bubble_fraction:.4f}>"

    @property
    def ranks(self) -> int:
        """p."""
        return self.grid.ranks

    @property
    def stages(self) -> int:
        """Ranks x chunks."""
        return len(self.grid.homes)

    @property
    def microbatches(self) -> int:
        """m."""
        return self.grid.microbatches

    @cached_property
    def slots(self) -> tuple[PipelineSlot, ...]:
        """One for each action, rank after rank, in the order in which the rank ran them."""
        ends = (self.starts + self.durations).tolist()
        found = zip(self._flat, self.starts.tolist(), ends, strict=True)
        return tuple(PipelineSlot(*action[:4], start, end) for action, start, end in found)

    def lane(self, rank: int) -> tuple[PipelineSlot, ...]:
        """What a rank ran, in order."""
        a, b = np.searchsorted(self.table.rank, [self._rank(rank), rank + 1]).tolist()
        return self.slots[a:b]

    @cached_property
    def actions(self) -> list[list[Action]]:
        """What was run, one list for each rank."""
        lists: list[list[Action]] = [[] for _ in range(self.ranks)]
        for action in self._flat:
            lists[action.rank].append(action)
        return lists

    @cached_property
    def _flat(self) -> list[Action]:
        return [decode(self.grid, code) for code in self.table.code.tolist()]

    @cached_property
    def makespan(self) -> float:
        """When the last action ends."""
        return float((self.starts + self.durations).max())

    @cached_property
    def _busy(self) -> np.ndarray:
        return np.bincount(self.table.rank, self.durations, self.ranks)

    def busy(self, rank: int) -> float:
        """How long a rank computed."""
        return float(self._busy[self._rank(rank)])

    def idle(self, rank: int) -> float:
        """How long a rank waited, from time 0 to the makespan."""
        return self.makespan - self.busy(rank)

    @property
    def bubble_fraction(self) -> float:
        """The idle share of all ranks' time: idle / total. For GPipe and 1F1B (p - 1) / (m + p - 1)."""
        total = self.ranks * self.makespan
        return 1 - float(self._busy.sum()) / total if total else 0.0

    @property
    def idle_over_ideal(self) -> float:
        """Idle time over computing time, the other definition: (p - 1) / m for GPipe and 1F1B. Can be more than 1."""
        work = float(self._busy.sum())
        return self.ranks * self.makespan / work - 1 if work else 0.0

    @cached_property
    def peak_in_flight(self) -> tuple[int, ...]:
        """Of each rank the most activations it holds at once, counted in (micro-batch, chunk).

        One is held from the start of its F to the end of its B, or of its W where the backward is cut in two.
        """
        change = np.array([1, -1, 0, -1])[self.table.kind]
        edges = np.searchsorted(self.table.rank, np.arange(self.ranks + 1))
        return tuple(int(change[a:b].cumsum().max(initial=0)) for a, b in pairwise(edges))

    @cached_property
    def timeline(self) -> Timeline:
        """The same as tasks on resources: "F of stage 0, micro-batch 0" on "rank 0"."""
        return Timeline(tuple(self._tasks()), tuple(self.starts.tolist()))

    def waits_for(self, action: Action) -> Action | None:
        """The action whose end decided when this one started; None when it started at time 0."""
        name = self.timeline.waits_for(str(action))
        return None if name is None else self._named[name]

    def critical_path(self) -> tuple[Action, ...]:
        """The chain of actions that decides the makespan, first to last."""
        return tuple(self._named[name] for name in self.timeline.critical_path())

    @cached_property
    def _named(self) -> dict[str, Action]:
        return {str(action): action for action in self._flat}

    def _rank(self, rank: int) -> int:
        if rank not in range(self.ranks):
            raise ScheduleError(f"no rank {rank!r}; there are 0 to {self.ranks - 1}")
        return rank

    def _tasks(self) -> list[Task]:
        """Every action with all that it waits for."""
        names = [str(action) for action in self._flat]
        tasks = []
        for action, duration, own, others in zip(
            self._flat, self.durations.tolist(), self.table.own.tolist(), self.waits, strict=True
        ):
            after = [(names[own], 0.0)] if own >= 0 else []
            after += [(names[other], delay) for other, delay in others]
            label = str(action.microbatch)
            tasks.append(Task(str(action), f"rank {action.rank}", duration, tuple(after), WORDS[action.kind], label))
        return tasks


def actions(name: str, stages: int, microbatches: int, chunks: int = 1) -> list[list[Action]]:
    """What each of `stages` ranks does, in order. `ScheduleError` where there is no such schedule."""
    grid, orders = plan(name, stages, microbatches, chunks)
    return [[decode(grid, code) for code in order] for order in orders]


def simulate(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward: Times = 1.0,
    backward_input: Times = 1.0,
    backward_weight: Times = 1.0,
    send: float = 0.0,
) -> PipelineTimeline:
    """Run a schedule that has a name.

    stages: ranks p. Each holds `chunks` parts of the model; zbv and dualpipev hold two in any case.
    forward, backward_input, backward_weight: how long one part takes for one micro-batch, in any unit; a list has one
    number for each of the p x chunks stages.
    """
    grid, orders = plan(name, stages, microbatches, chunks)
    return _simulate(grid, orders, (forward, backward_input, backward_weight), send)


def run(
    actions: Sequence[Sequence[Action]],
    forward: Times = 1.0,
    backward_input: Times = 1.0,
    backward_weight: Times = 1.0,
    send: float = 0.0,
    *,
    microbatches: int | None = None,
    placement: Sequence[int] | None = None,
) -> PipelineTimeline:
    """Run a list of actions for each rank, also one of your own. `ScheduleError` names the action where it cannot run.

    microbatches: how many there should be; from the list unless given.
    placement: of each stage its rank; unless given s mod p, or the V of zbv and dualpipev if that fits better.
    """
    lists = read(actions)
    grid = grid_of(lists, microbatches, placement)
    orders = [[encode(grid, action) for action in items] for items in lists]
    return _simulate(grid, orders, (forward, backward_input, backward_weight), send)


def _simulate(grid: Grid, orders: list[list[int]], times: tuple[Times, Times, Times], send: float) -> PipelineTimeline:
    words = ("forward", "backward_input", "backward_weight")
    stages = len(grid.homes)
    f, i, w = (_each(word, time, stages) for word, time in zip(words, times, strict=True))
    if not isinstance(send, int | float) or not 0 <= send < inf:
        raise ScheduleError(f"send={send!r} must be a number, at least 0 and finite")
    table = check_order(grid, orders)
    durations = np.stack([f, i + w, i, w])[table.kind, table.stage]
    delays = np.where(table.rank[table.other] != table.rank, float(send), 0.0)
    ends = np.cumsum([len(order) for order in orders]).tolist()
    lanes = [range(end - len(order), end) for end, order in zip(ends, orders, strict=True)]
    # What a rank does itself has ended before, so only other stages decide; the first F waits for nothing.
    waits: list[tuple[tuple[int, float], ...]] = [
        (pair,) for pair in zip(table.other.tolist(), delays.tolist(), strict=True)
    ]
    for place in np.flatnonzero(table.other < 0).tolist():
        waits[place] = ()
    for place in np.flatnonzero(table.paired).tolist():
        waits[place] += waits[place + 1]
    starts = np.array(start_times(lanes, durations.tolist(), waits))
    done = PipelineTimeline(grid, table, starts, durations, waits)
    if starts.min() < 0:
        try:
            simulate_tasks(done._tasks())
        except ScheduleError as error:
            raise ScheduleError(f"{error}; on one of these ranks, put first what the other waits for") from None
    return done


def _each(word: str, times: Times, count: int) -> np.ndarray:
    """One number for each stage."""
    try:
        found = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{word}={times!r} must be a number, or one number for each stage") from None
    if found.ndim > 1 or (found.ndim == 1 and found.size != count):
        raise ScheduleError(f"{word} has {found.size} numbers; give one for all, or one for each of {count} stages")
    if not ((found >= 0) & (found < inf)).all():
        raise ScheduleError(f"{word}={times!r} must be at least 0 and finite")
    return np.broadcast_to(found, (count,))
