"""A real pipeline step as a timeline: recorded on this machine's ranks, and replayed for more ranks than it has.

    runs = record("1f1b", micro_batches=8)        # two ranks; one Recording for each step after the first
    best = quickest(runs)
    best.timeline                                 # a `PipelineTimeline` in seconds, drawn like a simulated one
    best.waits                                    # of each action, how long its rank waited for it
    record("1f1b", watch=True)[0].peak_held       # activations held at the worst moment, seen in memory: (2, 1)

    costs = costs_of(runs)                        # medians by stage and kind, and how long a message takes
    replay(costs, "1f1b", 2, 8)                   # what the simulator makes of them, to be held against `best`
    replay(costs, "1f1b", 8, 32)                  # virtual time: eight ranks that this machine does not have

    core_share(ranks=2)                           # near 1 if each rank has a core: only then are times fair

A slot is computing only. While a rank waits for a receive to return it does nothing else: that is bubble, however much
a profiler calls it communication.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from statistics import median

import numpy as np
import torch
import torch.distributed as dist

from course_lib.config import ModelConfig, preset
from course_lib.errors import ScheduleError
from course_lib.model import GPT
from course_lib.parallel._pipeline_record import Recorded
from course_lib.parallel.equivalence import adamw
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.pipeline import Pipeline, Schedule
from course_lib.parallel.schedule import PipelineTimeline, run, simulate

__all__ = ["Costs", "Recording", "core_share", "costs_of", "quickest", "record", "recorded_timeline", "replay"]


@dataclass(frozen=True, repr=False)
class Recording:
    """One step of a pipeline as its ranks ran it. Seconds; 0 is the start of the first action of all."""

    timeline: PipelineTimeline
    """The schedule with measured starts and durations."""
    waits: tuple[float, ...]
    """Of each of its slots, how long the rank waited for what the action needs before it started."""
    held: tuple[int, ...]
    """After each of its slots, how many (micro-batch, stage) its rank held activations of; empty if not watched."""
    bytes: tuple[int, ...]
    """After each of its slots, the bytes of these activations; empty if not watched."""

    def __repr__(self) -> str:
        """One line."""
        return (
            f"<Recording: {self.timeline.ranks} ranks, {self.makespan * 1e3:.1f} ms, bubble {self.bubble_fraction:.4f}>"
        )

    @property
    def makespan(self) -> float:
        """Seconds from the first start to the last end."""
        return self.timeline.makespan

    @property
    def bubble_fraction(self) -> float:
        """The share of all ranks' time in which they do not compute."""
        return self.timeline.bubble_fraction

    def waited(self, rank: int) -> float:
        """Seconds that a rank waited for receives. Its other idle time is before and after its actions, and between."""
        return sum(self.of_rank(rank, self.waits))

    def of_rank(self, rank: int, values: Sequence[float]) -> list[float]:
        """The part of `waits`, `held` or `bytes` that belongs to a rank's slots."""
        return [value for slot, value in zip(self.timeline.slots, values, strict=True) if slot.rank == rank]

    @cached_property
    def peak_held(self) -> tuple[int, ...]:
        """Of each rank the most (micro-batch, stage) that it held activations of: `peak_in_flight`, measured."""
        return tuple(int(max(self.of_rank(rank, self.held), default=0)) for rank in range(self.timeline.ranks))

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """Of each rank the most bytes of activations."""
        return tuple(int(max(self.of_rank(rank, self.bytes), default=0)) for rank in range(self.timeline.ranks))


def recorded_timeline(plan: PipelineTimeline, ranks: Sequence[Sequence[Recorded]]) -> Recording:
    """What the ranks recorded, over the plan that they ran.

    plan: what `schedule.simulate` or `schedule.run` gave for these actions; ranks: each one's `Pipeline.recorded`.
    """
    records = [record for own in ranks for record in own]
    wanted = [action for lane in plan.actions for action in lane]
    if [record.action for record in records] != wanted:
        raise ScheduleError("these are records of another schedule than the plan: give the plan that the ranks ran")
    starts = np.array([record.start for record in records])
    durations = np.array([record.end for record in records]) - starts
    zero = starts.min()  # a rank that came to its first action before that has only then begun to wait
    waits = tuple(float(record.start - max(record.asked, zero)) for record in records)
    watched = [(record.held, record.bytes) for record in records if record.held is not None]
    return Recording(
        replace(plan, starts=starts - zero, durations=durations),
        waits,
        tuple(held for held, _ in watched if held is not None),
        tuple(size for _, size in watched if size is not None),
    )


def record(
    schedule: Schedule = "1f1b",
    ranks: int = 2,
    *,
    micro_batches: int = 8,
    chunks: int = 1,
    steps: int = 3,
    watch: bool = False,
    shape: ModelConfig | None = None,
    shares: Sequence[int] | None = None,
    sequences: int = 1,
    length: int = 128,
    timeout: float = 60.0,
) -> list[Recording]:
    """Train `steps` steps and one before them on real ranks, and record each but that first one.

    sequences: of one micro-batch, with `length` tokens each. shares: blocks of each stage. Computing on more ranks than
    the machine has cores is no measure of time; what is held (`watch`) is.
    """
    job = partial(_steps, schedule, micro_batches, chunks, steps, watch, shape or _shape(), shares, sequences, length)
    if isinstance(schedule, str):
        plan = simulate(schedule, ranks, micro_batches, chunks)
    else:
        plan = run(schedule, microbatches=micro_batches)
    found = run_ranks(job, ranks, timeout=timeout)
    return [recorded_timeline(plan, step) for step in zip(*found, strict=True)]


def _shape() -> ModelConfig:
    """Eight blocks, so that stages are alike; a small vocabulary, so that the logits of the last are no stage more."""
    sizes = {"n_layers": 8, "d_model": 192, "n_heads": 4, "d_ff": 512, "vocab_size": 256, "context": 512}
    return preset("mini", **sizes, tie_embeddings=False)


def _steps(
    schedule: Schedule,
    micro_batches: int,
    chunks: int,
    steps: int,
    watch: bool,
    shape: ModelConfig,
    shares: Sequence[int] | None,
    sequences: int,
    length: int,
) -> list[list[Recorded]]:
    model = GPT(shape)
    strategy = Pipeline(model, adamw, schedule=schedule, chunks=chunks, shares=shares, record=True, watch=watch)
    generator = torch.Generator().manual_seed(0)
    found = []
    for _ in range(1 + steps):
        tokens = torch.randint(0, shape.vocab_size, (micro_batches * sequences, length + 1), generator=generator)
        x, y = strategy.share(tokens[:, :-1], tokens[:, 1:])
        strategy.forward_backward(x, y, y.numel(), micro_batches)
        strategy.step()
        found.append(strategy.recorded)
    return found[1:]


def core_share(ranks: int = 2, seconds: float = 0.25) -> float:
    """The smallest share of a core that one of `ranks` gets while all of them compute: 1 at best."""
    return min(run_ranks(partial(_spin, seconds), ranks))


def _spin(seconds: float) -> float:
    dist.barrier()
    start, used = time.perf_counter(), time.process_time()
    while time.perf_counter() - start < seconds:
        pass
    return (time.process_time() - used) / (time.perf_counter() - start)


def quickest(runs: Iterable[Recording]) -> Recording:
    """The one that took the shortest time: the least disturbed by what else the machine does."""
    return min(runs, key=lambda done: done.makespan)


@dataclass(frozen=True)
class Costs:
    """Measured seconds of one micro-batch, by stage: the medians over micro-batches and steps."""

    forward: tuple[float, ...]
    backward_input: tuple[float, ...]
    """Of a whole backward where it was not cut in two."""
    backward_weight: tuple[float, ...]
    """0 where it was not."""
    send: float
    """From the end of an action to the start of one that waited for it on another rank."""

    @property
    def cut(self) -> bool:
        """Whether the two halves of the backward were measured apart."""
        return any(self.backward_weight)

    def over(self, stages: int) -> "Costs":
        """The same for another number of stages: the first and the last as measured, between them the others' median.

        Where only two stages were measured, the ones between are as the first, whose embedding takes next to no time.
        """

        def stretch(values: tuple[float, ...]) -> tuple[float, ...]:
            if stages == len(values):
                return values
            if stages < 2 or len(values) < 2:
                raise ScheduleError(f"costs of {len(values)} stages cannot become those of {stages}: two at least")
            return (values[0], *[median(values[1:-1] or values[:1])] * (stages - 2), values[-1])

        return Costs(stretch(self.forward), stretch(self.backward_input), stretch(self.backward_weight), self.send)


def costs_of(runs: Sequence[Recording]) -> Costs:
    """Medians over the steps of one schedule."""
    times: dict[tuple[str, int], list[float]] = {}
    on_the_way: list[float] = []
    for done in runs:
        ends = done.timeline.starts + done.timeline.durations
        for place, slot in enumerate(done.timeline.slots):
            times.setdefault((slot.kind, slot.stage), []).append(slot.end - slot.start)
            for other, _ in done.timeline.waits[place]:
                if slot.start - done.waits[place] < ends[other] <= slot.start:  # it was already waiting
                    on_the_way.append(slot.start - float(ends[other]))
    stages = range(runs[0].timeline.stages)
    cut = any(kind == "W" for kind, _ in times)

    def of(kind: str) -> tuple[float, ...]:
        return tuple(median(times[kind, stage]) for stage in stages)

    halves = (of("I"), of("W")) if cut else (of("B"), (0.0,) * len(stages))
    return Costs(of("F"), *halves, median(on_the_way) if on_the_way else 0.0)


def replay(costs: Costs, name: str, stages: int, microbatches: int, chunks: int = 1) -> PipelineTimeline:
    """Run a schedule in virtual time with measured costs. Each stage has as much to do as a measured one.

    stages: ranks, also more than were measured. `ScheduleError` where the schedule cuts the backward in two and the
    costs are of one that does not.
    """
    plan = simulate(name, stages, microbatches, chunks)
    if not costs.cut and any(slot.kind == "W" for slot in plan.slots):
        raise ScheduleError(f"{name} cuts the backward in two, and these costs do not: take costs_of(record('zb_h1'))")
    fit = costs.over(plan.stages)
    return simulate(
        name, stages, microbatches, chunks, fit.forward, fit.backward_input, fit.backward_weight, costs.send
    )
