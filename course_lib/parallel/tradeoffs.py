"""The table that grows through chapters 7 to 11: what each strategy removes, what it brings, measured in one step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from course_lib.config import ModelConfig, preset
from course_lib.model import GPT
from course_lib.moe import MoEConfig, moe_gpt
from course_lib.parallel import ddp, zero
from course_lib.parallel.alive import Alive, Moment
from course_lib.parallel.context import ContextParallel
from course_lib.parallel.equivalence import MakeStrategy, adamw
from course_lib.parallel.expert import ExpertParallel
from course_lib.parallel.fsdp import FullyShard
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.pipeline import Pipeline
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world
from course_lib.parallel.tensor import TensorParallel
from course_lib.parallel.traffic import Traffic, count_traffic

__all__ = ["ROWS", "Measured", "Row", "closing", "lines", "measure", "measure_here", "measure_rows"]


@dataclass(frozen=True)
class Row:
    """One strategy in words. Its numbers are measured: see `measure`."""

    strategy: str
    make: MakeStrategy
    removes: str
    """The bottleneck that it takes away."""
    brings: str
    """The one that comes in its place."""
    splits: str = ""
    """What is cut into parts, one for each rank."""
    model: Callable[[ModelConfig], nn.Module] = GPT
    """What is trained, where it is not the GPT of all other rows."""
    micro_batches: int = 1
    """For a strategy that is nothing without several."""


def sparse(shape: ModelConfig) -> GPT:
    """The shape with 8 experts in each block, of which a token visits 2: as many FLOPs a token as without."""
    return moe_gpt(shape, MoEConfig(n_experts=8, top_k=2, d_expert=2 * shape.d_model))


ROWS: tuple[Row, ...] = (
    Row("one device", Strategy, "nothing", "all of the time, all of the bytes", splits="nothing"),
    Row(
        "data parallel",
        ddp.DataParallel,
        "time: each rank reads its own part",
        "every byte of state on every rank",
        splits="sequences",
    ),
    Row(
        "ZeRO-1",
        zero.Zero1,
        "copies of the optimizer state",
        "an update that waits for the others' weights",
        splits="sequences; moments",
    ),
    Row(
        "ZeRO-2",
        zero.Zero2,
        "copies of the gradients",
        "gradients that are sent for every micro-batch",
        splits="sequences; moments, gradients",
    ),
    Row(
        "FSDP, no reshard",
        partial(FullyShard, reshard=False),
        "weights whole between steps",
        "a peak with all of them",
        splits="sequences; all state",
    ),
    Row(
        "FSDP",
        FullyShard,
        "whole weights, all but one or two blocks",
        "a gather before each block, twice",
        splits="sequences; all state",
    ),
    Row(
        "HSDP, 2 replicas",
        partial(FullyShard, replicas=2),
        "gathers over all ranks",
        "every byte of state twice",
        splits="sequences; all state, inside a group",
    ),
    Row(
        "pipeline",
        partial(Pipeline, micro_batches=4),
        "layers that a rank never computes, and gathers",
        "a bubble, and stages that have to take equally long",
        splits="layers",
    ),
    Row(
        "tensor",
        partial(TensorParallel, loss_parallel=True),
        "whole matrices, and the time of their products",
        "two sums a block each way that all wait for",
        splits="heads, width of the feed-forward, vocabulary",
    ),
    Row(
        "tensor, sequence",
        partial(TensorParallel, sequence="keep", loss_parallel=True),
        "tensor's copies of what lies between the matrices",
        "twice as many collectives, norms' gradients to sum",
        splits="the same, and positions between the matrices",
    ),
    Row(
        "context",
        ContextParallel,
        "activations of a long sequence, the batch-size floor",
        "keys and values that travel, and every byte of state",
        splits="positions",
    ),
    Row(
        "expert",
        ExpertParallel,
        "copies of the experts, and sums of their gradients",
        "all-to-alls that wait for the busiest expert",
        splits="sequences; experts",
        model=sparse,
    ),
)
"""In the order in which the chapters come to them. Chapters 9 to 11 add theirs."""


@dataclass(frozen=True)
class Measured:
    """One training step, the second (when the optimizer has its state), as rank 0 sees it.

    No rank holds more, but in a pipeline, whose stages differ.
    """

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
        """`sent` by collective; what backward gathers is "again in backward", sends to one rank are "one to one"."""
        ring = (self.ranks - 1) / self.ranks or 1.0
        kinds = {
            "all-reduce": self.traffic.sent(kind="all_reduce"),
            "reduce-scatter": self.traffic.sent(kind="reduce_scatter"),
            "all-gather": self.traffic.sent(kind="all_gather", backward=False),
            "again in backward": self.traffic.sent(kind="all_gather", backward=True),
            "all-to-all": self.traffic.sent(kind="all_to_all"),
            "one to one": self.traffic.sent(kind="send"),
        }
        return {kind: sent / self.parameters / ring for kind, sent in kinds.items() if sent}

    @property
    def sent_bytes(self) -> dict[str, float]:
        """Bytes that this rank sends in the step, by kind of collective, as `traffic` counts them (rings; sends as they
        are). Not in parameters: activations and tokens do not grow with the model alone."""
        kinds = dict.fromkeys(call.kind for call in self.traffic.calls)
        sent = {kind.replace("_", "-"): self.traffic.sent("bytes", kind=kind) for kind in kinds}
        return {kind: size for kind, size in sent.items() if size}

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


def measure_rows(
    rows: Sequence[Row],
    ranks: int,
    *,
    shape: ModelConfig | None = None,
    sequences: int = 4,
    length: int = 16,
    watch: bool = True,
    timeout: float = 120.0,
) -> list[Measured]:
    """`measure` of several rows, one after the other, on the same ranks: each with its own model and micro-batches."""
    return run_ranks(_rows_here, ranks, rows, shape or small(), sequences, length, watch, timeout=timeout)[0]


def _rows_here(rows: Sequence[Row], shape: ModelConfig, sequences: int, length: int, watch: bool) -> list[Measured]:
    return [
        measure_here(row.make, row.micro_batches, shape, sequences, length, watch=watch, make_model=row.model)
        for row in rows
    ]


def measure_here(
    make_strategy: MakeStrategy,
    micro_batches: int,
    shape: ModelConfig,
    sequences: int,
    length: int,
    make_optimizer: MakeOptimizer = adamw,
    watch: bool = True,
    make_model: Callable[[ModelConfig], nn.Module] = GPT,
) -> Measured:
    """What every rank of `measure` runs. Under `fake_ranks`, one process alone (then without `watch`, to be quick)."""
    rank, world = rank_and_world()
    model = make_model(shape)
    parameters = sum(p.numel() for p in model.parameters())
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


def closing(rows: Sequence[Row], found: Sequence[Measured], more: Sequence[Measured]) -> list[str]:
    """The closing table as text: what `lines` has, what is split, and bytes by collective.

    more: the same rows, measured with twice the tokens.
    """
    out = [f"{'':20} million P   bytes a parameter: state, peak   sent, MB a step   with twice the tokens"]
    for row, one, two in zip(rows, found, more, strict=True):
        state, peak = sum(one.held.values()) / one.parameters, one.peak / one.parameters
        sent, grown = sum(one.sent_bytes.values()) / 1e6, sum(two.sent_bytes.values()) / 1e6
        kinds = ", ".join(f"{kind} {size / 1e6:.2f}" for kind, size in one.sent_bytes.items() if size > 5e3)
        count = f"{row.strategy:20} {one.parameters / 1e6:9.2f}"
        out.append(f"{count} {state:26.1f} {peak:6.1f} {sent:17.2f} {grown:23.2f}")
        out += [f"    splits:  {row.splits}", f"    sends:   {kinds or 'nothing'}"]
        out += [f"    removes: {row.removes}", f"    brings:  {row.brings}"]
    return out
