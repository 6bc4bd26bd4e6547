"""When every action of a pipeline ran: its slots, how long ranks waited, what they held, what each waited for."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_check import Action, Kind, Table, decode
from course_lib.parallel._schedule_orders import Grid
from course_lib.parallel.timeline import Task, Timeline

__all__ = ["PipelineSlot", "PipelineTimeline"]

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

    def in_flight(self, rank: int) -> tuple[list[float], list[int]]:
        """The times at which a rank begins or ends to hold an activation, from 0 on, and how many it holds then."""
        a, b = np.searchsorted(self.table.rank, [self._rank(rank), rank + 1]).tolist()
        change = np.array([1, -1, 0, -1])[self.table.kind[a:b]]
        times = np.where(change > 0, self.starts[a:b], (self.starts + self.durations)[a:b])[change != 0]
        held = change[change != 0].cumsum()
        last = np.append(times[1:] > times[:-1], True)  # of several changes at one time the last counts
        return [0.0, *times[last].tolist()], [0, *held[last].tolist()]

    @cached_property
    def decided_by(self) -> np.ndarray:
        """Of every action, by its place in `slots`, the place of `waits_for`'s answer; -1 where that is None."""
        ends = self.starts + self.durations
        before = np.append(-1, np.where(self.table.rank[1:] == self.table.rank[:-1], np.arange(ends.size - 1), -1))
        latest = np.where(before >= 0, ends[before], 0.0)
        decided = np.where(latest > 0, before, -1)
        for number in range(max(map(len, self.waits))):
            pairs = [waits[number] if len(waits) > number else (-1, 0.0) for waits in self.waits]
            other, delay = (np.array(column) for column in zip(*pairs, strict=True))
            when = ends[other] + delay
            later = (other >= 0) & (when > latest)
            latest, decided = np.where(later, when, latest), np.where(later, other, decided)
        return decided

    @cached_property
    def timeline(self) -> Timeline:
        """The same as tasks on resources: "F of stage 0, micro-batch 0" on "rank 0"."""
        return Timeline(tuple(self.tasks()), tuple(self.starts.tolist()))

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

    def tasks(self) -> list[Task]:
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
