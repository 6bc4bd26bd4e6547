"""What a program sends: every collective with its kind, group and size, on real ranks and on 1024 pretended ones.

On real ranks, each counts its own::

    with count_traffic() as traffic:
        loss.backward()                       # DDP's reducer, FSDP's gathers, functional collectives: all are seen
    traffic.count("all_reduce")               # how many
    traffic.sent()                            # elements that this rank sends in a ring
    traffic.sent("bytes", kind="all_gather")
    for row in traffic.table():
        print(row.kind, row.ranks, row.dtype, row.calls, row.elements)

In one process, as one rank of many (shapes are right, values are not: nothing is exchanged)::

    with fake_ranks(1024), count_traffic() as traffic:
        mesh = init_device_mesh("cpu", (1024,))
        ...

A collective counts when it is issued, once: not again when it is waited for, nor when a functional collective runs a
c10d one inside. What `torch.distributed` sends of its own accord is listed like everything else: DDP's check of the
shapes and its broadcast of buffers, the two gathers of `all_gather_object`, `barrier`. Not seen: other threads of the
program, and what goes past `torch.distributed`.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.errors import CourseError
from course_lib.parallel._c10d import Issued, start_fake, watch

__all__ = ["Collective", "Row", "Traffic", "answer_at_once", "count_traffic", "fake_ranks"]

Unit = Literal["elements", "bytes"]


@dataclass(frozen=True, repr=False)
class Collective:
    """One collective, as this rank issued it."""

    kind: str
    """all_reduce, all_gather, reduce_scatter, broadcast, all_to_all, reduce, gather, scatter, send, recv or barrier."""
    group: tuple[int, ...]
    """Global ranks of its group."""
    elements: int
    """The whole tensor: all_gather's output, reduce_scatter's input, what this rank puts into an all_to_all."""
    bytes: int
    """The same in bytes."""
    dtype: str
    """float32, bfloat16 ...; several are joined by a plus."""
    backward: bool = False
    """Whether autograd's backward issued it."""
    peer: int | None = None
    """Global rank at the other end of send and recv (None: any), or the root."""
    stays: float = 0
    """Elements of an all_to_all that this rank keeps for itself."""

    @property
    def ranks(self) -> int:
        """Size of the group, N."""
        return len(self.group)

    @property
    def sent(self) -> float:
        """Elements that one rank sends when the collective runs around a ring of N ranks.

        all_gather and reduce_scatter (N-1)/N of the whole, all_reduce twice that (Patarasuk & Yuan 2009,
        doi 10.1016/j.jpdc.2008.09.002), all_to_all what does not stay. broadcast and reduce pass the whole along:
        (N-1)/N on the average over the ranks. gather and scatter: N-1 pieces of 1/N, as an average. send all, recv and
        barrier nothing. What a library really does (gloo, NCCL) may differ.
        """
        n = self.ranks
        if self.kind == "all_to_all":
            return self.elements - self.stays
        return self.elements * _SHARES[self.kind](n)

    @property
    def sent_bytes(self) -> float:
        """`sent` in bytes."""
        return self.sent * self.bytes / self.elements if self.elements else 0.0

    def __repr__(self) -> str:
        """One line: a group of 1024 is not spelled out."""
        where = "" if self.peer is None else f", peer {self.peer}"
        phase = ", backward" if self.backward else ""
        return f"<{self.kind}: {self.elements:,} {self.dtype}, {self.ranks} ranks{where}{phase}>"


def _around(n: int) -> float:
    return (n - 1) / n


_SHARES: dict[str, Callable[[int], float]] = {
    "all_reduce": lambda n: 2 * _around(n),
    "all_gather": _around,
    "reduce_scatter": _around,
    "broadcast": _around,
    "reduce": _around,
    "gather": lambda n: _around(n) / n,
    "scatter": lambda n: _around(n) / n,
    "send": lambda n: 1.0,
    "recv": lambda n: 0.0,
    "barrier": lambda n: 0.0,
}


@dataclass(frozen=True)
class Row:
    """Collectives of one kind, group size and dtype, summed."""

    kind: str
    ranks: int
    """Size of their group."""
    dtype: str
    calls: int
    elements: int
    bytes: int
    sent: float
    """Elements that one rank sends."""


@dataclass
class Traffic:
    """The collectives of one rank, in the order in which they were issued. Fills while its block runs."""

    _calls: list[Collective] = field(default_factory=list)

    @property
    def calls(self) -> tuple[Collective, ...]:
        """Every collective so far."""
        return tuple(self._calls)

    def select(self, kind: str | None = None, backward: bool | None = None) -> tuple[Collective, ...]:
        """Those of a kind, and of backward (True) or of everything else (False)."""
        return tuple(
            call
            for call in self._calls
            if kind in (None, call.kind) and (backward is None or call.backward == backward)
        )

    def count(self, kind: str | None = None, backward: bool | None = None) -> int:
        """How many."""
        return len(self.select(kind, backward))

    def sent(self, unit: Unit = "elements", kind: str | None = None, backward: bool | None = None) -> float:
        """What one rank sends under the ring convention of `Collective.sent`, in elements or bytes."""
        return sum(call.sent if unit == "elements" else call.sent_bytes for call in self.select(kind, backward))

    def table(self) -> list[Row]:
        """One row for each kind, group size and dtype, in the order of first use."""
        groups: dict[tuple[str, int, str], list[Collective]] = {}
        for call in self._calls:
            groups.setdefault((call.kind, call.ranks, call.dtype), []).append(call)
        return [
            Row(*key, len(of), sum(c.elements for c in of), sum(c.bytes for c in of), sum(c.sent for c in of))
            for key, of in groups.items()
        ]


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count this rank's collectives while the block runs; the `Traffic` is read in it or after it."""
    traffic = Traffic()

    def note(call: Issued) -> None:
        traffic._calls.append(Collective(**call))

    with watch(note):
        yield traffic


@contextmanager
def fake_ranks(world_size: int, rank: int = 0) -> Iterator[None]:
    """Be rank `rank` of `world_size` in this process: collectives return at once, with the right shapes and no values.

    `CourseError` where a process group exists already, or when there is no such rank. DDP asks for a collective's
    result and needs `ddp.register_comm_hook(None, answer_at_once)` here.
    """
    if not 0 <= rank < world_size:
        raise CourseError(f"fake_ranks: rank={rank} is not one of {world_size} ranks; try rank=0")
    if dist.is_initialized():
        raise CourseError("fake_ranks: a process group exists here; call dist.destroy_process_group() first")
    start_fake(world_size, rank)
    try:
        yield
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def answer_at_once(group: dist.ProcessGroup | None, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """DDP's communication hook for fake ranks: the all-reduce that DDP would issue, and the bucket as its answer."""
    dist.all_reduce(bucket.buffer(), group=group)
    future: torch.futures.Future[Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future
