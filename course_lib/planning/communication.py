"""What splitting a step over devices sends, keeps, and takes: traffic, bytes a device, step time, crossover, the floor.

    sent_elements("fsdp", 7.5e9, ranks=64)               # elements that one rank sends in a step: 3 P (N-1)/N
    sent_by_kind("hsdp", 7.5e9, ranks=64, replicas=8)    # {"all_gather": ..., "reduce_scatter": ..., "all_reduce": ...}
    shard_bytes("zero2", 7.5e9, ranks=64)                # {"weights": ..., "gradients": ..., "optimizer": ...}
    step_time(layers=32, forward=f, backward=b, gather=g, scatter=s, prefetch=True)   # seconds, all layers alike
    crossover(flops, sent_bytes, device_flops, bandwidth)                             # devices
    batch_floor(10e6, 10e3)                                                           # 1000 devices at most
    boundary_bytes([2, 2, 2, 2], micro_batches=8, tokens=2048, width=1024, skips=[(0, 7)])   # between pipeline stages

Traffic is in elements and counts what *one* rank sends around a ring, as `traffic.Traffic.sent` does. Times come from a
model in which a device computes at one rate and sends at one rate; `parallel.overlap` is the same as events.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple

from course_lib.errors import ConfigError
from course_lib.planning.formulas import RECIPES, bytes_per_parameter

__all__ = [
    "STRATEGIES",
    "Boundary",
    "batch_floor",
    "boundary_bytes",
    "crossover",
    "expert_elements",
    "padded_elements",
    "ring_steps",
    "sent_by_kind",
    "sent_elements",
    "shard_bytes",
    "step_time",
]

Deferred = bool | Literal["all-reduce"]


@dataclass(frozen=True)
class _Strategy:
    """How often a step moves all parameters, or all gradients."""

    gathers: int = 0
    """All-gathers of the weights in each micro-batch."""
    updated: int = 0
    """All-gathers of the weights once a step."""
    reduce: str = "reduce_scatter"
    """How gradients are summed over ranks."""
    sharded: tuple[str, ...] = ()
    """What a rank keeps only its part of."""


_ALL = ("weights", "gradients", "optimizer")

STRATEGIES: dict[str, _Strategy] = {
    "ddp": _Strategy(reduce="all_reduce"),
    "zero1": _Strategy(updated=1, sharded=("optimizer",)),
    "zero2": _Strategy(updated=1, sharded=("gradients", "optimizer")),
    "zero3": _Strategy(gathers=2, sharded=_ALL),
    "fsdp": _Strategy(gathers=2, sharded=_ALL),
    "fsdp_no_reshard": _Strategy(gathers=1, sharded=_ALL),
    "fsdp_keep": _Strategy(updated=1, sharded=_ALL),
    "hsdp": _Strategy(gathers=2, sharded=_ALL),
}
"""Data parallel; ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054, section 7: 2 P for stages 1 and 2, 3 P for 3); FSDP
(Zhao et al. 2023, arXiv 2304.11277): "fsdp" drops a layer after its forward and gathers it again for its backward,
"fsdp_no_reshard" keeps it until its backward is over, "fsdp_keep" until the last micro-batch's backward is over; "hsdp"
shards inside each of `replicas` groups and sums gradients over them (section 3.2.2 there)."""


def _strategy(name: str) -> _Strategy:
    if name not in STRATEGIES:
        raise ConfigError(f"strategy={name!r} is unknown (there are: {', '.join(STRATEGIES)})")
    return STRATEGIES[name]


def _groups(name: str, ranks: int, replicas: int) -> int:
    """Ranks over which one copy of the model is sharded."""
    if ranks < 1 or replicas < 1 or ranks % replicas:
        raise ConfigError(f"ranks={ranks} cannot be cut into replicas={replicas} groups; try replicas=1")
    if replicas > 1 and name != "hsdp":
        raise ConfigError(f"replicas={replicas} is for strategy='hsdp', not {name!r}")
    return ranks // replicas


def ring_steps(ranks: int) -> int:
    """Steps of a ring all-reduce: N-1 that sum and N-1 that share the sums (Patarasuk & Yuan 2009,
    doi 10.1016/j.jpdc.2008.09.002)."""
    return 2 * (ranks - 1)


def sent_by_kind(
    strategy: str,
    parameters: float,
    ranks: int,
    micro_batches: int = 1,
    deferred: Deferred = False,
    replicas: int = 1,
) -> dict[str, float]:
    """Elements that one rank sends in one optimizer step, by kind of collective; a kind that is not used is left out.

    deferred: gradients are summed over ranks only after the last micro-batch (DDP's `no_sync`, FSDP2's
    `set_requires_gradient_sync(False)`), and stay whole on each rank until then, so that "zero2" keeps what "zero1"
    does. "all-reduce" (hsdp): summed inside a group in each micro-batch, over groups once. With `padded_elements` as
    the parameters it is what FSDP2 sends when a first dimension does not divide by the ranks.
    """
    how, size = _strategy(strategy), _groups(strategy, ranks, replicas)
    around, across = (size - 1) / size, (replicas - 1) / replicas
    sums = 1 if deferred is True else micro_batches
    out = {
        "all_gather": (how.gathers * micro_batches + how.updated) * parameters * around,
        "reduce_scatter": sums * parameters * around if how.reduce == "reduce_scatter" else 0.0,
        "all_reduce": 2 * sums * parameters * around if how.reduce == "all_reduce" else 0.0,
    }
    if replicas > 1:
        out["all_reduce"] = 2 * (1 if deferred else micro_batches) * parameters / size * across
    return {kind: sent for kind, sent in out.items() if sent}


def padded_elements(shapes: Iterable[tuple[int, ...]], ranks: int) -> int:
    """Elements of all parameters as FSDP2 sends them: the first dimension of each is padded to a multiple of the ranks.

    On 1,024 ranks a matrix of 128 x 128 is sent as 1,024 x 128: each rank holds one row or none, and sends one.
    """
    return sum(-(-first // ranks) * ranks * prod(rest) for first, *rest in shapes)


def sent_elements(
    strategy: str,
    parameters: float,
    ranks: int,
    micro_batches: int = 1,
    deferred: Deferred = False,
    replicas: int = 1,
) -> float:
    """Elements that one rank sends in one optimizer step: the sum of `sent_by_kind`.

    One micro-batch, N ranks, times (N-1)/N: 2 P for "ddp", "zero1", "zero2" and "fsdp_no_reshard", 3 P for "zero3" and
    "fsdp". Elements, not bytes: an all-reduce of FP32 gradients is 8 bytes a parameter, and so are two BF16 gathers
    with an FP32 reduce-scatter.
    """
    return sum(sent_by_kind(strategy, parameters, ranks, micro_batches, deferred, replicas).values())


def expert_elements(tokens: float, top_k: int, width: int, ranks: int, layers: int = 1) -> float:
    """Elements that one rank sends to other ranks in a forward and backward of expert-parallel layers.

    tokens: of this rank. Each of its tokens x top_k assignments is a row of `width`, sent to its expert and sent back,
    in forward and again in backward: four all-to-alls a layer (Lepikhin et al. 2020, GShard, arXiv 2006.16668). With
    tokens that go to all ranks alike, (N-1)/N of the rows leave. Neither the number of experts nor their size matters.
    """
    return 4 * layers * tokens * top_k * width * (ranks - 1) / ranks


def shard_bytes(
    strategy: str, parameters: float, ranks: int, recipe: str = "adamw-16bit", replicas: int = 1
) -> dict[str, float]:
    """Bytes that a rank keeps between steps: weights, gradients, optimizer (master weights and moments).

    Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054), figure 1 and table 1: 7.5 billion parameters on 64 ranks are 120,
    31.4, 16.6 and 1.9 GB. Activations, and layers that are whole for a while, come on top.
    """
    bytes_per_parameter(recipe)  # says which recipes there are
    how, size, kept = _strategy(strategy), _groups(strategy, ranks, replicas), RECIPES[recipe]
    whole = {"weights": kept.weights, "gradients": kept.gradients, "optimizer": kept.master + kept.moments}
    return {part: parameters * each / (size if part in how.sharded else 1) for part, each in whole.items()}


def step_time(
    layers: int,
    forward: float,
    backward: float,
    gather: float,
    scatter: float,
    *,
    prefetch: bool = True,
    reshard: bool = True,
) -> float:
    """Seconds of an FSDP step of equal layers, each with these durations, on one compute and one network lane.

    prefetch: the next layer is gathered while this one computes; without, each gather begins when it is needed.
    With g, s for gather and scatter, f, b for the computing and L layers:

        forward                       max(L f + g, L g + f)            without prefetch L (g + f)
        backward, gathering again     max(L b + g + s, L (g + s) + max(0, b - g) + max(0, b - s)); without L (g + b + s)
        backward, nothing to gather   max(L b + s, L s + b)

    It is exact for `overlap.fsdp_tasks` with prefetch 0 or 1, and tested to be.
    """
    _positive("layers", layers)
    g, s, f, b, n = gather, scatter, forward, backward, layers
    first = max(n * f + g, n * g + f) if prefetch else n * (g + f)
    if not reshard:
        return first + max(n * b + s, n * s + b)
    if n == 1 or not prefetch:
        return first + n * (g + b + s)
    return first + max(n * b + g + s, n * (g + s) + max(0.0, b - g) + max(0.0, b - s))


def crossover(flops: float, sent_bytes: float, device_flops: float, bandwidth: float) -> float:
    """Devices at which sending takes as long as computing; with more, a step is limited by the network.

    flops: of one step, over all devices. sent_bytes: what one rank sends when there are very many, such as 3 P elements
    for FSDP. device_flops (FLOP/s) and bandwidth (bytes/s that one rank sends): of each device.
    Computing takes C / (N F), sending V (N-1) / (N W): equal at N = 1 + C W / (V F). With C = 6 P x tokens the model's
    size cancels: what counts are the tokens of the global batch, and W / F. Latency is left out.
    """
    for name, value in (("sent_bytes", sent_bytes), ("device_flops", device_flops)):
        _positive(name, value)
    return 1 + flops * bandwidth / (sent_bytes * device_flops)


def batch_floor(global_batch_tokens: float, sequence: float) -> int:
    """Devices at most in pure data parallel or FSDP: each needs a whole sequence. 10e6 tokens of 10e3: 1000.

    Context and tensor parallelism go beyond, since several devices then share a sequence.
    """
    _positive("sequence", sequence)
    return int(global_batch_tokens // sequence)


class Boundary(NamedTuple):
    """Bytes of one step over the boundary between two pipeline stages."""

    forward: int
    """Activations, from the earlier stage to the later one."""
    backward: int
    """Their gradients, the other way."""


def boundary_bytes(
    stages: int | Sequence[int],
    micro_batches: int,
    tokens: int,
    width: int,
    bytes_per_value: int = 4,
    skips: Iterable[tuple[int, int]] = (),
) -> list[Boundary]:
    """Bytes over each boundary of a pipeline in one step, first boundary to last.

    stages: how many blocks each stage has; a number n stands for n stages of one block. tokens: of one micro-batch.
    skips: (from, to), each a connection that brings the output of block `from` to the input of block `to` as well.
    It has to pass every stage between the two, so each boundary that it crosses sends it once more. Two that begin at
    one block send the same, once. A skip to the next block is the usual way and adds nothing.
    """
    shares = [1] * stages if isinstance(stages, int) else [*stages]
    for name, value in (("micro_batches", micro_batches), ("tokens", tokens), ("width", width)):
        _positive(name, value)
    if not shares or min(shares) < 0:
        raise ConfigError(f"stages={stages} must be one number of blocks for each stage, at least 0")
    for source, to in (skips := [*skips]):
        if not 0 <= source < to < sum(shares):
            raise ConfigError(f"skip ({source}, {to}) must go from a block to a later one of 0 to {sum(shares) - 1}")
    ends = [sum(shares[: place + 1]) for place in range(len(shares) - 1)]
    crossing = [{source for source, to in skips if source < end - 1 and to >= end} for end in ends]
    each = micro_batches * tokens * width * bytes_per_value
    return [Boundary(each * (1 + len(extra)), each * (1 + len(extra))) for extra in crossing]


def _positive(name: str, value: float) -> None:
    if not value > 0:
        raise ConfigError(f"{name}={value} must be above 0")
