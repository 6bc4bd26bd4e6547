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

__all__ = ["Slot", "Task", "Timeline", "simulate"]

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
    names = {task.name for task in tasks}
    if len(names) < len(tasks):
        raise ScheduleError(f"task {_repeated(tasks)!r} is there twice: give each its own name")
    starts: dict[str, float] = {}
    ends: dict[str, float] = {}
    free = dict.fromkeys(queues, 0.0)  # when a resource has ended all that it ran so far
    place = dict.fromkeys(queues, 0)  # how many tasks that are
    blocked: dict[str, list[str]] = {}  # by task: the resources whose next task waits for it
    awake = list(queues)
    while awake:
        resource = awake.pop()
        queue, now = queues[resource], free[resource]
        for index in range(place[resource], len(queue)):
            task = queue[index]
            start, missing = _earliest(task, now, ends)
            if missing is not None:
                if missing not in names:
                    raise ScheduleError(f"task {task.name!r} waits for {missing!r}, which is not in the schedule")
                blocked.setdefault(missing, []).append(resource)
                break
            starts[task.name] = start
            ends[task.name] = now = start + task.duration
            place[resource] = index + 1
            if task.name in blocked:
                awake += blocked.pop(task.name)
        free[resource] = now
    if len(ends) < len(tasks):
        heads = [queue[place[resource]] for resource, queue in queues.items() if place[resource] < len(queue)]
        raise ScheduleError(_deadlock(heads, tasks, ends))
    return Timeline(tasks, tuple([starts[task.name] for task in tasks]))


def _earliest(task: Task, now: float, ends: dict[str, float]) -> tuple[float, str | None]:
    """When a task can start on a resource that is free from `now` on, and the first task that it still waits for."""
    for wait in task.after:
        name, delay = (wait, 0.0) if isinstance(wait, str) else wait
        if not 0 <= delay < inf:
            raise ScheduleError(f"task {task.name!r} waits {delay} after {name!r}; a delay is a number, at least 0")
        if name not in ends:
            return now, name
        end = ends[name] + delay
        if end > now:
            now = end
    return now, None


def _repeated(tasks: Sequence[Task]) -> str:
    seen: set[str] = set()
    for task in tasks:
        if task.name in seen:
            break
        seen.add(task.name)
    return task.name


_SHOWN = 5


def _deadlock(heads: Sequence[Task], tasks: Sequence[Task], ends: dict[str, float]) -> str:
    """One circle of tasks that wait for each other, in words. `heads`: what each blocked resource would run next."""
    head = {task.resource: task for task in heads}
    home = {task.name: task.resource for task in tasks}
    path: list[Task] = [heads[0]]
    reasons: list[str] = []
    while True:
        wanted = str(_earliest(path[-1], 0.0, ends)[1])
        after = head[home[wanted]]  # nothing else runs on that resource before this task
        behind = "" if after.name == wanted else f", which comes after {after.name!r} on {after.resource!r}"
        reasons.append(f"{path[-1].name!r} waits for {wanted!r}{behind}")
        if after in path:
            circle = reasons[path.index(after) :]
            break
        path.append(after)
    if len(circle) > _SHOWN:
        circle = [*circle[: _SHOWN - 1], f"and so on over {len(circle) - _SHOWN} more", circle[-1]]
    return f"deadlock, {len(tasks) - len(ends)} of {len(tasks)} tasks never start: " + "; ".join(circle)
