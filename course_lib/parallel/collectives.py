"""Collectives by hand: reduce-scatter, all-gather and all-reduce as a ring, on send and receive alone.

Each rank calls the same function; all work in place and in the current process group. Next rank: rank + 1, the last
one's next is rank 0. `dist.all_reduce` and its kin are what you use; these show what they do.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.errors import ConfigError

__all__ = [
    "Step",
    "chunks",
    "exchange",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "root_all_reduce",
]


@dataclass(frozen=True)
class Step:
    """One step of the ring, as one rank saw it."""

    phase: str
    """"reduce-scatter" or "all-gather"."""
    sent: int
    """Number of the chunk that it sent to the next rank."""
    received: int
    """Number of the chunk that came from the rank before."""
    chunks: tuple[tuple[float, ...], ...]
    """Its whole buffer after the step, chunk by chunk."""


def chunks(buffer: Tensor, ranks: int) -> list[Tensor]:
    """The buffer's elements in `ranks` pieces that share its memory; the first ones may have one element more."""
    if not buffer.is_contiguous():
        raise ConfigError("the buffer is not contiguous: pass `buffer.contiguous()`, and copy the result back")
    return list(buffer.view(-1).tensor_split(ranks))


def exchange(outgoing: Tensor, incoming: Tensor) -> None:
    """Send `outgoing` to the next rank while the one before fills `incoming`. Both at once, or all would wait."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    arriving = dist.irecv(incoming, (rank - 1) % ranks) if incoming.numel() else None
    leaving = dist.isend(outgoing, (rank + 1) % ranks) if outgoing.numel() else None
    for work in (arriving, leaving):
        if work is not None:
            work.wait()


def ring_reduce_scatter(parts: list[Tensor], trace: list[Step] | None = None) -> Tensor:
    """After N - 1 steps this rank's own part is the sum over all ranks, and is returned; the others hold a part."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        send, receive = (rank - step - 1) % ranks, (rank - step - 2) % ranks
        arrived = torch.empty_like(parts[receive])
        exchange(parts[send], arrived)
        parts[receive] += arrived
        _record(trace, "reduce-scatter", send, receive, parts)
    return parts[rank]


def ring_all_gather(parts: list[Tensor], trace: list[Step] | None = None) -> None:
    """Each rank starts with its own part right; after N - 1 steps all of them are, on every rank."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    for step in range(ranks - 1):
        send, receive = (rank - step) % ranks, (rank - step - 1) % ranks
        exchange(parts[send], parts[receive])
        _record(trace, "all-gather", send, receive, parts)


def ring_all_reduce(buffer: Tensor, trace: list[Step] | None = None) -> None:
    """Replace the buffer on every rank by the sum over ranks, in 2 (N - 1) steps. `trace` collects each of them."""
    parts = chunks(buffer, dist.get_world_size())
    ring_reduce_scatter(parts, trace)
    ring_all_gather(parts, trace)


def root_all_reduce(buffer: Tensor) -> None:
    """The same sum without a ring: all send their buffer to rank 0, which adds and sends the sum back to each."""
    if dist.get_rank():
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
        return
    others, arrived = range(1, dist.get_world_size()), torch.empty_like(buffer)
    for other in others:
        dist.recv(arrived, other)
        buffer += arrived
    for other in others:
        dist.send(buffer, other)


def _record(trace: list[Step] | None, phase: str, sent: int, received: int, parts: list[Tensor]) -> None:
    if trace is not None:
        trace.append(Step(phase, sent, received, tuple(tuple(part.tolist()) for part in parts)))
