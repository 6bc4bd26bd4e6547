"""Several training steps of a pipeline, with the optimizer's step in the timeline: why a bubble waits for the update.

    train = training_timeline("1f1b", stages=4, microbatches=8, steps=3, update=1.0)
    train.slots[16]                                # rank, stage, micro-batch, kind, start, end, step; "O" is the update
    train.bubble_fraction                          # of all steps together
    training_timeline(..., sync=False)             # no update waits for another rank's gradients
    eager = training_timeline(..., flush=False)    # the next batch begins before the update
    eager.stale                                    # its forwards that had the weights of the step before

A step's forwards need the weights of the step before, so on each rank they come after its update. What a rank does not
wait for is another rank's update: without `sync` the early stages, which finish last, still hold the others up.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_check import Kind
from course_lib.parallel.schedule import Times
from course_lib.parallel.schedule import simulate as simulate_pipeline
from course_lib.parallel.timeline import Task, Timeline, simulate

__all__ = ["StepSlot", "TrainingTimeline", "training_timeline"]


class StepSlot(NamedTuple):
    """When an action of some step ran."""

    rank: int
    stage: int
    """-1 for an update, which is of all stages of its rank."""
    microbatch: int
    """In its own step, from 0; -1 for an update."""
    kind: Kind | Literal["O"]
    """O: the optimizer's step."""
    start: float
    end: float
    step: int


@dataclass(frozen=True, repr=False)
class TrainingTimeline:
    """When every action of several steps ran."""

    ranks: int
    steps: int
    timeline: Timeline
    """The same as tasks on resources."""
    slots: tuple[StepSlot, ...]
    """Rank after rank, in the order in which the rank ran them."""

    def __repr__(self) -> str:
        """One line, whatever its length."""
        size = f"{self.ranks} ranks, {self.steps} steps"
        return f"<TrainingTimeline: {size}, ends at {self.makespan:g}, bubble {self.bubble_fraction:.4f}>"

    @property
    def makespan(self) -> float:
        """When the last action ends."""
        return self.timeline.makespan

    @cached_property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which they neither compute nor update."""
        busy = sum(slot.end - slot.start for slot in self.slots)
        return 1 - busy / (self.ranks * self.makespan) if self.makespan else 0.0

    def lane(self, rank: int) -> tuple[StepSlot, ...]:
        """What a rank ran, in order."""
        return tuple(slot for slot in self.slots if slot.rank == rank)

    @cached_property
    def stale(self) -> tuple[StepSlot, ...]:
        """Forwards that ran before their rank's update of the step before: with weights that are one step old."""
        found = []
        for rank in range(self.ranks):
            updated = 0
            for slot in self.lane(rank):
                updated += slot.kind == "O"
                if slot.kind == "F" and slot.step > updated:
                    found.append(slot)
        return tuple(found)


def training_timeline(
    name: str,
    stages: int,
    microbatches: int,
    steps: int = 2,
    chunks: int = 1,
    forward: Times = 1.0,
    backward_input: Times = 1.0,
    backward_weight: Times = 1.0,
    send: float = 0.0,
    *,
    update: float = 1.0,
    sync: bool = True,
    flush: bool = True,
) -> TrainingTimeline:
    """Run `steps` steps of a schedule one after the other, each with its update.

    update: how long the optimizer's step of one rank takes. sync: an update begins when every rank has all of its
    gradients, as clipping by the global norm (and looking for NaN) asks for; without, when its own rank has.
    flush: a step begins on a rank after its update. Without, all steps' micro-batches run as one stream, and an update
    comes as soon as its own step's last backward is over: faster, and wrong (see `stale`).
    """
    if not isinstance(steps, int) or steps < 1:
        raise ScheduleError(f"steps={steps!r} must be a whole number, at least 1")
    count = microbatches if flush else steps * microbatches
    done = simulate_pipeline(name, stages, count, chunks, forward, backward_input, backward_weight, send)
    pieces = [*zip((action for lane in done.actions for action in lane), done.tasks(), strict=True)]
    lanes: list[list[Task]] = [[] for _ in range(stages)]
    known: dict[str, StepSlot] = {}  # by task, its times still 0
    last: dict[tuple[int, int], str] = {}  # by step and rank the task that brings the last gradient
    for turn in range(steps if flush else 1):
        prefix = f"step {turn}: " if flush else ""
        for (rank, stage, k, kind, _), task in pieces:
            step, k = (turn, k) if flush else divmod(k, microbatches)
            after = tuple((prefix + other, delay) for other, delay in map(_named, task.after))
            lanes[rank].append(replace(task, name=prefix + task.name, after=after))
            known[prefix + task.name] = StepSlot(rank, stage, k, kind, 0.0, 0.0, step)
            if kind != "F":
                last[step, rank] = prefix + task.name
    tasks = []
    for rank, lane in enumerate(lanes):
        for task in lane:
            tasks.append(task)
            step = known[task.name].step
            if last[step, rank] == task.name:
                norm = tuple((last[step, other], send * (other != rank)) for other in range(stages)) if sync else ()
                new = Task(f"update of rank {rank}, step {step}", task.resource, update, norm, "optimizer", "")
                known[new.name] = StepSlot(rank, -1, -1, "O", 0.0, 0.0, step)
                tasks.append(new)
    timeline = simulate(tasks)
    slots = tuple(known[slot.name]._replace(start=slot.start, end=slot.end) for slot in timeline.slots)
    return TrainingTimeline(stages, steps, timeline, slots)


def _named(wait: str | tuple[str, float]) -> tuple[str, float]:
    return (wait, 0.0) if isinstance(wait, str) else wait
