"""FSDP's computing and sending as tasks of `timeline`: what a prefetch hides, and what it cannot.

    layers = [LayerTimes(forward=1.0, backward=2.0, gather=0.8, scatter=0.8)] * 6      # or `measure.layer_times`
    late = simulate(fsdp_tasks(layers, prefetch=0))
    early = simulate(fsdp_tasks(layers, prefetch=1))
    exposed(late), exposed(early)       # how long computing waits for the network
    waits(early)                        # [(start, end), ...]: when

Two lanes, "compute" and "network". A device computes layers 0 to L-1, then back. A layer computes when it has been
gathered, and its gradients are scattered (summed over ranks, each keeps its part) when its backward has ended. What
is left out: embedding, loss and update; a device that computes more slowly while it sends; latency of issuing.

The order on the network is FSDP2's: before a backward, the gather of the next layer is issued, after it the scatter.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from statistics import mean

from course_lib.errors import ScheduleError
from course_lib.parallel.timeline import Task, Timeline

__all__ = ["COMPUTE", "NETWORK", "LayerTimes", "ddp_tasks", "exposed", "fsdp_tasks", "typical", "waited_for", "waits"]

COMPUTE, NETWORK = "compute", "network"


@dataclass(frozen=True)
class LayerTimes:
    """How long one layer takes, in any unit of time."""

    forward: float
    backward: float
    gather: float
    """All-gather of its weights."""
    scatter: float
    """Reduce-scatter of its gradients."""


def typical(layers: Sequence[LayerTimes]) -> LayerTimes:
    """The mean over layers: what one of them takes, where they only differ by the noise of measuring."""
    return LayerTimes(*(mean(column) for column in zip(*map(astuple, layers), strict=True)))


def fsdp_tasks(layers: Sequence[LayerTimes], *, prefetch: int = 1, reshard: bool = True) -> list[Task]:
    """One forward and backward of these layers as tasks: "gather 0", "forward 0", "gather again 0", "backward 0",
    "scatter 0" and so on, of the kinds gather, forward, backward, scatter.

    prefetch: how many layers are gathered ahead of the one that computes. 0: a gather begins when the layer before has
    ended; k: when the layer k + 1 before has ended, so that k + 1 layers are whole at most.
    reshard: a layer is dropped after its forward, and gathered again for its backward.
    """
    if prefetch < 0:
        raise ScheduleError(f"prefetch={prefetch} must be 0 or more layers")
    count = len(layers)
    network: list[Task] = []
    compute: list[Task] = []

    def add(lane: list[Task], kind: str, name: str, i: int, seconds: float, *after: str) -> None:
        lane.append(Task(name, COMPUTE if lane is compute else NETWORK, seconds, after, kind, str(i)))

    for i, layer in enumerate(layers):
        freed = i - 1 - prefetch
        add(network, "gather", f"gather {i}", i, layer.gather, *([f"forward {freed}"] if freed >= 0 else []))
        add(compute, "forward", f"forward {i}", i, layer.forward, f"gather {i}")

    def gather_again(i: int) -> None:
        freed = i + 1 + prefetch
        after = f"backward {freed}" if freed < count else f"forward {count - 1}"
        add(network, "gather", f"gather again {i}", i, layers[i].gather, after)

    ahead = list(reversed(range(count)))[: prefetch + 1] if reshard else []
    for i in ahead:
        gather_again(i)
    for i in reversed(range(count)):
        source = f"gather again {i}" if reshard else f"gather {i}"
        add(compute, "backward", f"backward {i}", i, layers[i].backward, source)
        add(network, "scatter", f"scatter {i}", i, layers[i].scatter, f"backward {i}")
        if reshard and i - 1 - prefetch >= 0:
            gather_again(i - 1 - prefetch)
    return [*network, *compute]


def ddp_tasks(layers: Sequence[LayerTimes]) -> list[Task]:
    """Data parallel with one bucket a layer: nothing is gathered, an all-reduce (a scatter, then a gather) follows each
    layer's backward: "forward 0", "backward 0", "all-reduce 0"."""
    tasks = [Task(f"forward {i}", COMPUTE, layer.forward, (), "forward", str(i)) for i, layer in enumerate(layers)]
    for i, layer in reversed(list(enumerate(layers))):
        tasks.append(Task(f"backward {i}", COMPUTE, layer.backward, (), "backward", str(i)))
        both = layer.gather + layer.scatter
        tasks.append(Task(f"all-reduce {i}", NETWORK, both, (f"backward {i}",), "all_reduce", str(i)))
    return tasks


def waits(run: Timeline) -> list[tuple[float, float]]:
    """When computing waits: (start, end) of each gap on the compute lane, also at the end."""
    now, gaps = 0.0, []
    for slot in run.lane(COMPUTE):
        if slot.start > now:
            gaps.append((now, slot.start))
        now = slot.end
    if run.makespan > now:
        gaps.append((now, run.makespan))
    return gaps


def exposed(run: Timeline) -> float:
    """How long computing waits for the network in all: the communication that nothing hides."""
    return run.idle(COMPUTE)


def waited_for(run: Timeline) -> dict[str, float]:
    """What the network does while computing waits: {kind of task: how long}. A scatter can stand before a gather."""
    found: dict[str, float] = {}
    for start, end in waits(run):
        for slot in run.lane(NETWORK):
            if (shared := min(end, slot.end) - max(start, slot.start)) > 0:
                found[slot.kind] = found.get(slot.kind, 0.0) + shared
    return found
