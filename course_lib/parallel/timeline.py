"""When does each task of a schedule run? Tasks, the resources that run them, and what each one waits for.

A resource (a GPU's compute stream, its network link, a pipeline stage) runs its tasks one at a time, in the order in
which they are given, each as soon as the one before it and everything that it waits for have ended::

    tasks = [
        Task("gather 0", "network", 2.0, kind="communication"),
        Task("gather 1", "network", 2.0, kind="communication"),
        Task("forward 0", "compute", 3.0, after=("gather 0",), kind="forward"),
        Task("forward 1", "compute", 3.0, after=("forward 0", ("gather 1", 0.5)), kind="forward"),  # 0.5 later at least
    ]
    run = simulate(tasks)
    run.makespan                       # 8.0
    run.idle("compute")                # 2.0: it waited for the first gather
    run.slots[3].start                 # 5.0
    run.waits_for("forward 1")         # "forward 0": its end decided when this one could start
    run.critical_path()                # ("gather 0", "forward 0", "forward 1")

Units are the caller's: seconds, or multiples of a forward. A schedule in which tasks wait for each other in a circle is
a `ScheduleError` that names them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from course_lib.errors import ScheduleError

__all__ = ["Slot", "Task", "Timeline", "simulate", "start_times"]

Wait = str | tuple[str, float]


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of work."""

    name: str
    """Its own, not shared with another task."""
    resource: str
    """What runs it. A resource's tasks run in the order in which they are given."""
    duration: float
    """How long it takes, at least 0."""
    after: tuple[Wait, ...] = ()
    """Names of the tasks that end before it starts; (name, delay): the start comes at least `delay` after that end."""
    kind: str = "compute"
    """What a picture colours: forward, backward, weight, optimizer, communication ..."""
    label: str = ""
    """What a picture writes on it."""


class Slot(NamedTuple):
    """When a task ran."""

    name: str
    resource: str
    start: float
    end: float
    kind: str
    label: str


@dataclass(frozen=True, repr=False)
class Timeline:
    """When every task ran. Time 0 is the start of the schedule."""

    tasks: tuple[Task, ...]
    starts: tuple[float, ...]
    """Start of each task, in the order of `tasks`."""

    def __repr__(self) -> str:
        """One line, whatever its length."""
        return f"<Timeline: {len(self.tasks)} tasks on {len(self.resources)} resources, ends at {self.makespan:g}>"

    @cached_property
    def slots(self) -> tuple[Slot, ...]:
        """One for each task, in the order in which they were given."""
        return tuple(
            Slot(task.name, task.resource, start, start + task.duration, task.kind, task.label)
            for task, start in zip(self.tasks, self.starts, strict=True)
        )

    @cached_property
    def makespan(self) -> float:
        """When the last task ends; 0 without tasks."""
        return max((start + task.duration for task, start in zip(self.tasks, self.starts, strict=True)), default=0.0)

    @cached_property
    def resources(self) -> tuple[str, ...]:
        """Every resource, in the order of first use."""
        return tuple(dict.fromkeys(task.resource for task in self.tasks))

    def lane(self, resource: str) -> tuple[Slot, ...]:
        """What a resource ran, in order. `ScheduleError` where there is no such resource."""
        if resource not in self.resources:
            raise ScheduleError(f"no resource {resource!r}; there are {', '.join(self.resources)}")
        return tuple(slot for slot in self.slots if slot.resource == resource)

    def busy(self, resource: str) -> float:
        """How long a resource worked."""
        return sum(slot.end - slot.start for slot in self.lane(resource))

    def idle(self, resource: str) -> float:
        """How long a resource waited, from time 0 to the makespan."""
        return self.makespan - self.busy(resource)

    @cached_property
    def _places(self) -> dict[str, tuple[int, int]]:
        """Of each task its place, and that of the task before it on its resource (-1: none)."""
        last: dict[str, int] = {}
        places = {}
        for place, task in enumerate(self.tasks):
            places[task.name] = (place, last.get(task.resource, -1))
            last[task.resource] = place
        return places

    def waits_for(self, name: str) -> str | None:
        """The task whose end decided when this one started; None when it started at time 0.

        Of several that end alike: the one before it on its resource, then the first of its `after`.
        """
        if name not in self._places:
            raise ScheduleError(f"no task {name!r} in this schedule")
        place, before = self._places[name]
        latest, decided = 0.0, None
        waits: list[Wait] = [self.tasks[before].name] if before >= 0 else []
        for wait in (*waits, *self.tasks[place].after):
            other, delay = (wait, 0.0) if isinstance(wait, str) else wait
            index = self._places[other][0]
            end = self.starts[index] + self.tasks[index].duration + delay
            if end > latest:
                latest, decided = end, other
        return decided

    def critical_path(self) -> tuple[str, ...]:
        """The chain of tasks that decides the makespan, first to last; shorter tasks elsewhere would change nothing."""
        if not self.tasks:
            return ()
        name: str | None = max(self.slots, key=lambda slot: slot.end).name
        path = []
        while name is not None:
            path.append(name)
            name = self.waits_for(name)
        return tuple(reversed(path))


def simulate(tasks: Iterable[Task]) -> Timeline:
    """Run the tasks. `ScheduleError` names the task where a schedule cannot be run."""
    tasks = tuple(tasks)
    queues: dict[str, list[Task]] = {}
    for task in tasks:
        if not 0 <= task.duration < inf:
            raise ScheduleError(f"task {task.name!r} takes {task.duration}; a duration is a number, at least 0")
        if isinstance(task.after, str):
            raise ScheduleError(f"task {task.name!r}: after={task.after!r} is one text; write after=({task.after!r},)")
        if task.resource not in queues:
            queues[task.resource] = []
        queues[task.resource].append(task)
    places = {task.name: place for place, task in enumerate(tasks)}
    if len(places) < len(tasks):
        raise ScheduleError(f"task {_repeated(tasks)!r} is there twice: give each its own name")
    lanes = [[places[task.name] for task in queue] for queue in queues.values()]
    starts = start_times(lanes, [task.duration for task in tasks], [_waits(task, places) for task in tasks])
    if min(starts, default=0.0) < 0:
        raise ScheduleError(_deadlock(tasks, starts))
    return Timeline(tasks, tuple(starts))


def start_times(
    lanes: Sequence[Sequence[int]], durations: Sequence[float], waits: Sequence[Iterable[tuple[int, float]]]
) -> list[float]:
    """The same for tasks that are numbers: when each starts, -1.0 where a circle of waits keeps it from starting.

    lanes: what each resource runs, in order; waits: of each task what it waits for, with the delay.
    """
    starts = [-1.0] * len(durations)
    ends = [-1.0] * len(durations)
    free = [0.0] * len(lanes)  # when a resource has ended all that it ran so far
    place = [0] * len(lanes)  # how many tasks that are
    blocked: dict[int, list[int]] = {}  # by task: the resources whose next task waits for it
    awake = [*range(len(lanes))]
    while awake:
        lane = awake.pop()
        queue, now = lanes[lane], free[lane]
        for index in range(place[lane], len(queue)):
            task, start = queue[index], now
            for other, delay in waits[task]:
                end = ends[other]
                if end < 0:
                    blocked.setdefault(other, []).append(lane)
                    break
                if end + delay > start:
                    start = end + delay
            else:
                starts[task] = start
                ends[task] = now = start + durations[task]
                place[lane] = index + 1
                if task in blocked:
                    awake += blocked.pop(task)
                continue
            break
        free[lane] = now
    return starts


def _waits(task: Task, places: dict[str, int]) -> list[tuple[int, float]]:
    """What a task waits for, by place."""
    found = []
    for wait in task.after:
        name, delay = (wait, 0.0) if isinstance(wait, str) else wait
        if not 0 <= delay < inf:
            raise ScheduleError(f"task {task.name!r} waits {delay} after {name!r}; a delay is a number, at least 0")
        if name not in places:
            raise ScheduleError(f"task {task.name!r} waits for {name!r}, which is not in the schedule")
        found.append((places[name], delay))
    return found


def _repeated(tasks: Sequence[Task]) -> str:
    seen: set[str] = set()
    for task in tasks:
        if task.name in seen:
            break
        seen.add(task.name)
    return task.name


_SHOWN = 5


def _deadlock(tasks: Sequence[Task], starts: Sequence[float]) -> str:
    """One circle of tasks that wait for each other, in words."""
    blocked = {task.name: task for task, start in zip(tasks, starts, strict=True) if start < 0}
    head: dict[str, Task] = {}  # what each blocked resource would run next
    for task in blocked.values():
        head.setdefault(task.resource, task)
    path = [next(iter(head.values()))]
    reasons: list[str] = []
    while True:
        names = (wait if isinstance(wait, str) else wait[0] for wait in path[-1].after)
        wanted = next(name for name in names if name in blocked)
        after = head[blocked[wanted].resource]  # nothing else runs on that resource before this task
        behind = "" if after.name == wanted else f", which comes after {after.name!r} on {after.resource!r}"
        reasons.append(f"{path[-1].name!r} waits for {wanted!r}{behind}")
        if after in path:
            circle = reasons[path.index(after) :]
            break
        path.append(after)
    if len(circle) > _SHOWN:
        circle = [*circle[: _SHOWN - 1], f"and so on over {len(circle) - _SHOWN} more", circle[-1]]
    return f"deadlock, {len(blocked)} of {len(tasks)} tasks never start: " + "; ".join(circle)
