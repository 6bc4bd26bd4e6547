"""All layouts of a run for its devices, as arrays: which there are, which are legal, what each needs and takes.

    for group in groups(run, Space()):               # one sharding, schedule and recomputation each
        group.columns["tensor"], group.size          # integer arrays of one length
        peaks, seconds = price(run, group)
        group.layout(run, 17)                        # the 18th as a LayoutSpec

What cannot be is left out already: see `_splits`. The rules are those of `rules.check`, and a test holds every layout
of a small case against it. Left out too is where the formula of a schedule's bubble is not exact (`parallel.schedule`),
mostly few micro-batches for many stages: nothing there would be worth its price, and the price would be wrong.
How many there are: n devices can be split over four axes in as many ways as their number has ordered factors (220 for
512), times micro-batches, chunks, shardings and recomputations.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.parallel.schedule import FORMULAS
from course_lib.planning.capacity import peak_bytes
from course_lib.planning.in_flight import V_SHAPED
from course_lib.planning.rules import divisors
from course_lib.planning.sizes import ffn_width, key_value_heads
from course_lib.planning.spec import LayoutSpec, RunSpec
from course_lib.planning.steptime import step_seconds

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Column = NDArray[np.int64]

__all__ = ["COLUMNS", "Group", "Space", "groups", "price"]

COLUMNS = ("data", "replicas", "tensor", "pipeline", "chunks", "context", "expert", "micro_batch")
"""What is a number of a layout."""

BLOCK = 32_768
"""Layouts that are priced at once: enough for numpy, and few enough to be asked to stop in between."""


@dataclass(frozen=True)
class Space:
    """What may be chosen. Everything else of the layout stays as it is in the run."""

    shardings: tuple[str, ...] = ("ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard", "hsdp")
    schedules: tuple[str, ...] = ("gpipe", "1f1b", "interleaved", "zb_h1", "zbv", "dualpipev")
    recompute: tuple[str, ...] = ("none", "selective", "all")
    chunks: tuple[int, ...] = (2, 3, 4, 5, 6, 8)
    """Of interleaved; gpipe takes one."""
    most_tensor: int | None = None
    """None: any."""
    most_pipeline: int | None = None
    most_context: int | None = None


@dataclass(frozen=True)
class Group:
    """Layouts that differ in numbers only."""

    sharding: str
    schedule: str
    recompute: str
    columns: "dict[str, Column]"
    """As `COLUMNS` has them, all of one length."""

    @property
    def size(self) -> int:
        """How many layouts."""
        return len(self.columns["data"])

    def blocks(self, size: int = BLOCK) -> "Iterator[Group]":
        """The same in pieces."""
        for start in range(0, self.size, size):
            yield replace(self, columns={name: each[start : start + size] for name, each in self.columns.items()})

    def layout(self, run: RunSpec, place: int) -> LayoutSpec:
        """One of them, with all else as in `run`."""
        numbers: dict[str, Any] = {name: int(each[place]) for name, each in self.columns.items()}
        words: dict[str, Any] = {name: getattr(self, name) for name in ("sharding", "schedule", "recompute")}
        return replace(run.layout, **words, **numbers)


def price(run: RunSpec, group: Group) -> "tuple[NDArray[np.float64], NDArray[np.float64]]":
    """(bytes of the fullest device, seconds a step) of each layout, by the closed forms of the plan."""
    columns = dict(group.columns)
    words: dict[str, Any] = {
        "sharding": group.sharding,
        "schedule": group.schedule,
        "recompute": group.recompute,
        "recipe": run.layout.recipe,
        "sequence_parallel": run.layout.sequence_parallel,
        "fused_attention": run.layout.fused_attention,
        "data_ranks": columns.pop("data"),
        "global_batch": run.data.global_batch,
        **columns,
    }
    peaks = peak_bytes(run.model, run.data, run.hardware, **words)
    seconds = step_seconds(run.model, run.data, run.hardware, run.assume, context_form=run.layout.context_form, **words)
    shape = group.columns["data"].shape
    return np.broadcast_to(peaks, shape), np.broadcast_to(seconds, shape)


def groups(run: RunSpec, space: Space | None = None, changes: int | None = None) -> Iterator[Group]:
    """Every legal layout for `run.hardware.devices`, once; with `changes`, those near `run.layout`: no more changes.

    A change is another sharding (with its replicas), schedule (with its chunks), recomputation, or another number of
    tensor, pipeline, context or expert ranks or of sequences in a micro-batch. The data-parallel ranks follow.
    """
    space, here = space or Space(), run.layout
    splits = _splits(run, space, changes)
    for schedule in space.schedules:
        scheduled = _with_schedule(run, splits, schedule, space)
        for sharding in space.shardings:
            columns = _with_replicas(scheduled, sharding)
            for recompute in space.recompute:
                if recompute != "none" and schedule in V_SHAPED:  # their formula wants F = I = W
                    continue
                near = columns
                if changes is not None:
                    other = (columns["replicas"] != here.replicas) | (sharding != here.sharding)
                    several = here.pipeline > 1 and columns["pipeline"] > 1  # else a schedule is none, or has to be new
                    order = several & ((columns["chunks"] != here.chunks) | (schedule != here.schedule))
                    made = _changed(columns, here) + other + order + (recompute != here.recompute)
                    near = _pick(columns, (made <= changes) & (made > 0))
                if len(near["data"]):
                    yield Group(sharding, schedule, recompute, near)


def _changed(columns: "dict[str, Column]", here: LayoutSpec) -> "Column":
    """How many of the split's numbers are others; the data-parallel ranks follow from them."""
    names = ("tensor", "pipeline", "context", "expert", "micro_batch")
    return np.sum([columns[name] != getattr(here, name) for name in names], axis=0)  # type: ignore[no-any-return]


def _splits(run: RunSpec, space: Space, changes: int | None) -> "dict[str, Column]":
    """Ways to split the devices and the batch that no schedule or sharding forbids, within so many changes."""
    here, most = run.layout, inf if changes is None else changes
    model, data, devices = run.model, run.data, run.hardware.devices
    kv_heads, split = key_value_heads(model), [model.heads]
    if not model.experts or model.dense_layers or model.expert_ffn is None:
        split.append(ffn_width(model))
    if model.expert_ffn is not None:
        split.append(model.expert_ffn)
    rows = []
    for tensor in divisors(devices):
        if any(each % tensor for each in split) or (kv_heads % tensor and tensor % kv_heads):
            continue
        if tensor > (space.most_tensor or tensor):
            break
        for pipeline in divisors(devices // tensor):
            if pipeline > min(model.layers, space.most_pipeline or pipeline):
                break
            for context in divisors(devices // tensor // pipeline):
                if context > (space.most_context or context):
                    break
                moved = (tensor != here.tensor) + (pipeline != here.pipeline) + (context != here.context)
                if moved > most or not _sequence_fits(run, tensor, context):
                    continue
                ranks = devices // (tensor * pipeline * context)
                if data.global_batch % ranks:
                    continue
                experts = [each for each in divisors(ranks) if model.experts and model.experts % each == 0] or [1]
                rows += [
                    (ranks, tensor, pipeline, context, expert, micro)
                    for expert in experts
                    for micro in divisors(data.global_batch // ranks)
                    if moved + (expert != here.expert) + (micro != here.micro_batch) <= most
                ]
    table = np.array(rows, dtype=np.int64).reshape(-1, 6)
    return dict(zip(("data", "tensor", "pipeline", "context", "expert", "micro_batch"), table.T, strict=True))


def _sequence_fits(run: RunSpec, tensor: int, context: int) -> bool:
    sequence = run.data.sequence
    if context > 1 and sequence % (2 * context):
        return False
    return not (run.layout.sequence_parallel and tensor > 1) or sequence // context % tensor == 0


def _pick(columns: "dict[str, Column]", where: "NDArray[Any]") -> "dict[str, Column]":
    return {name: each[where] for name, each in columns.items()}


def _with_schedule(run: RunSpec, splits: "dict[str, Column]", schedule: str, space: Space) -> "dict[str, Column]":
    """Splits that a schedule can run, each with its chunks. One stage has no schedule: it stands under 1f1b, or the
    first of the space if that is not in it."""
    alone = "1f1b" if "1f1b" in space.schedules else space.schedules[0]
    p = splits["pipeline"]
    m = run.data.global_batch // (splits["data"] * splits["micro_batch"])
    found = []
    if schedule == "interleaved":
        legal = (m % np.maximum(1, m // p) == 0) & (m >= FORMULAS[schedule].least * p)
        candidates = [(chunks, legal) for chunks in space.chunks if chunks > 1]
    elif schedule in V_SHAPED:
        candidates = [(2, m >= FORMULAS[schedule].least * p)]
    else:
        candidates = [(1, m >= (0 if schedule == "gpipe" else FORMULAS[schedule].least * p))]
    for chunks, legal in candidates:
        picked = _pick(splits, legal & (p > 1) & (p * chunks <= run.model.layers))
        found.append(picked | {"chunks": np.full(len(picked["data"]), chunks)})
    if schedule == alone:
        picked = _pick(splits, p == 1)
        found.append(picked | {"chunks": np.ones(len(picked["data"]), dtype=np.int64)})
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]} if found else {}


def _with_replicas(columns: "dict[str, Column]", sharding: str) -> "dict[str, Column]":
    """hsdp: every number of groups from 2 that leaves at least two ranks to each."""
    if sharding != "hsdp":
        return columns | {"replicas": np.ones_like(columns["data"])}
    found = []
    for replicas in divisors(int(columns["data"].max(initial=1)))[1:]:
        whole = columns["data"] % (replicas * columns["expert"]) == 0  # each group has every expert
        picked = _pick(columns, whole & (columns["data"] > replicas))
        found.append(picked | {"replicas": np.full(len(picked["data"]), replicas)})
    if not found:
        return _pick(columns, columns["data"] < 0) | {"replicas": columns["data"][:0]}
    return {name: np.concatenate([each[name] for each in found]) for name in found[0]}
