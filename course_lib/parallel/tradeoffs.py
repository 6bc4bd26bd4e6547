"""The table that grows through chapters 7 to 11: what each strategy removes, what it brings, measured in one step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from course_lib.config import ModelConfig, preset
from course_lib.model import GPT
from course_lib.parallel import ddp, zero
from course_lib.parallel.alive import Alive, Moment
from course_lib.parallel.equivalence import MakeStrategy, adamw
from course_lib.parallel.fsdp import FullyShard
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world
from course_lib.parallel.traffic import Traffic, count_traffic

__all__ = ["ROWS", "Measured", "Row", "lines", "measure", "measure_here"]


@dataclass(frozen=True)
class Row:
    """One strategy in words. Its numbers are measured: see `measure`."""

    strategy: str
    make: MakeStrategy
    removes: str
    """The bottleneck that it takes away."""
    brings: str
    """The one that comes in its place."""


ROWS: tuple[Row, ...] = (
    Row("one device", Strategy, "nothing", "all of the time, all of the bytes"),
    Row("data parallel", ddp.DataParallel, "time: each rank reads its own part", "every byte of state on every rank"),
    Row("ZeRO-1", zero.Zero1, "copies of the optimizer state", "an update that waits for the others' weights"),
    Row("ZeRO-2", zero.Zero2, "copies of the gradients", "gradients that are sent for every micro-batch"),
    Row(
        "FSDP, no reshard", partial(FullyShard, reshard=False), "weights whole between steps", "a peak with all of them"
    ),
    Row("FSDP", FullyShard, "whole weights, all but one or two blocks", "a gather before each block, twice"),
    Row("HSDP, 2 replicas", partial(FullyShard, replicas=2), "gathers over all ranks", "every byte of state twice"),
)
"""In the order in which the chapters come to them. Chapters 9 to 11 add theirs."""


@dataclass(frozen=True)
class Measured:
    """One training step, the second (when the optimizer has its state), as rank 0 sees it: no rank holds more."""

    ranks: int
    parameters: int
    held: dict[str, int]
    """Bytes of weights, gradients and optimizer between the last backward and the update."""
    peak: int
    """Bytes at the worst moment, activations and buffers included."""
    traffic: Traffic
    """What this rank takes part in."""
    moments: tuple[Moment, ...]
    """Bytes after every operator."""

    @property
    def sent(self) -> float:
        """Elements that one rank sends, in parameters of the model, times N/(N-1): 2 for a ring all-reduce of all."""
        return sum(self.sent_by.values())

    @property
    def sent_by(self) -> dict[str, float]:
        """`sent` by collective; what backward gathers is "again in backward"."""
        ring = (self.ranks - 1) / self.ranks or 1.0
        kinds = {
            "all-reduce": self.traffic.sent(kind="all_reduce"),
            "reduce-scatter": self.traffic.sent(kind="reduce_scatter"),
            "all-gather": self.traffic.sent(kind="all_gather", backward=False),
            "again in backward": self.traffic.sent(kind="all_gather", backward=True),
        }
        return {kind: sent / self.parameters / ring for kind, sent in kinds.items()}

    @property
    def held_a_parameter(self) -> dict[str, float]:
        """`held` in bytes a parameter."""
        return {kind: size / self.parameters for kind, size in self.held.items()}


def small() -> ModelConfig:
    """Eight blocks of width 128: 1.7 million parameters, most of them in the blocks."""
    return preset("mini", n_layers=8)


def measure(
    make_strategy: MakeStrategy,
    ranks: int,
    *,
    micro_batches: int = 1,
    shape: ModelConfig | None = None,
    sequences: int = 4,
    length: int = 16,
    make_optimizer: MakeOptimizer = adamw,
    timeout: float = 60.0,
) -> Measured:
    """Two steps on real ranks; the second is watched. The global batch is sequences x length, whatever the ranks."""
    job = partial(measure_here, make_strategy, micro_batches, shape or small(), sequences, length, make_optimizer)
    return run_ranks(job, ranks, timeout=timeout)[0]


def measure_here(
    make_strategy: MakeStrategy,
    micro_batches: int,
    shape: ModelConfig,
    sequences: int,
    length: int,
    make_optimizer: MakeOptimizer = adamw,
    watch: bool = True,
) -> Measured:
    """What every rank of `measure` runs. Under `fake_ranks`, one process alone (then without `watch`, to be quick)."""
    rank, world = rank_and_world()
    model = GPT(shape)
    parameters = model.num_params()
    strategy = make_strategy(model, make_optimizer)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, shape.vocab_size, (sequences, length + 1), generator=generator)
    x, y = strategy.share(tokens[:, :-1], tokens[:, 1:])
    held: dict[str, int] = {}

    def step(phase: Callable[[str, str], None]) -> None:
        strategy.forward_backward(x, y, tokens[:, 1:].numel(), micro_batches, lambda: phase("", "forward"))
        phase("", "")  # what looks at the bytes is no part of the step
        held.update(strategy.bytes_held())
        phase("update", "update")
        strategy.step()

    step(lambda unit, name: None)
    moments: tuple[Moment, ...] = ()
    with count_traffic() as traffic:
        if watch and rank == 0:  # it slows its rank down
            with Alive(strategy) as alive:
                step(alive.enter)
            moments = tuple(alive.moments)
        else:
            step(lambda unit, name: None)
    peak = max((moment.total for moment in moments), default=0)
    return Measured(world, parameters, dict(held), peak, traffic, moments)


def lines(rows: Sequence[tuple[Row, Measured]]) -> list[str]:
    """The table as text: bytes a parameter (state, and at the worst moment), elements sent in P, and the words."""
    out = [f"{'':18}ranks state  peak   sent"]
    for row, found in rows:
        state, peak = sum(found.held.values()) / found.parameters, found.peak / found.parameters
        out.append(f"{row.strategy:17} {found.ranks:5} {state:5.1f} {peak:5.1f} {found.sent:4.1f} P")
        out.append(f"    removes: {row.removes}")
        out.append(f"    brings:  {row.brings}")
    return out
