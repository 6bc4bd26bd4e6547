"""What an answer to 10.6 is given: `Blocks` computes and counts, `Processes` rotates tensors between processes.

Blocks of other ranks are watched by weak references: what nobody holds any more is not counted.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.ch10_group import Call, Group, untouched
from course_lib.checks.ch10_softmax import partial_of
from course_lib.checks.core import Case, kind

__all__ = ["Blocks", "Partial", "Processes", "ring_work"]

Partial = tuple[Tensor, Tensor, Tensor]


@dataclass
class Blocks:
    """What an answer is given to compute with: `attend`, `merge`, `finish`. Counts what it is asked for."""

    asked: list[list[int]] = field(default_factory=list)
    """For each `attend`: queries, keys, and pairs that are allowed."""
    finished: int = 0
    """Calls of `finish`."""
    arrived: "list[weakref.ref[Tensor]]" = field(default_factory=list, repr=False)
    """What `rotate` has returned."""
    visitors: int = 0
    """Numbers of what has arrived that are there at once, at most, when a block is computed or the output made."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Partial:
        """Partial result of queries (H, T, D) over keys and values (H, S, D); allowed (T, S), True where seen."""
        if not isinstance(allowed, Tensor) or allowed.dtype != torch.bool:
            raise TypeError("`allowed` is a tensor of True and False")
        allowed = allowed.expand(q.shape[-2], k.shape[-2])
        self._look()
        self.asked.append([q.shape[-2], k.shape[-2], int(allowed.sum())])
        logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~allowed, -torch.inf)
        return partial_of(logits, v)

    def merge(self, first: Partial, second: Partial) -> Partial:
        """The partial result of the keys of both."""
        m = torch.maximum(first[0], second[0])
        safe = torch.where(torch.isneginf(m), torch.zeros_like(m), m)
        a, b = (first[0] - safe).exp(), (second[0] - safe).exp()
        o = a.unsqueeze(-1) * first[2] + b.unsqueeze(-1) * second[2]
        return m, a * first[1] + b * second[1], o

    def finish(self, result: Partial) -> Tensor:
        """The output (H, T, D)."""
        self._look()
        self.finished += 1
        return result[2] / result[1].unsqueeze(-1)

    def _look(self) -> None:
        here = [one for one in (seen() for seen in self.arrived) if one is not None]
        self.visitors = max(self.visitors, sum(t.numel() for t in here))


@dataclass
class Processes:
    """The same `rank`, `size` and `rotate` as a Group has, between processes."""

    rank: int
    size: int
    calls: list[Call] = field(default_factory=list)
    arrived: "list[weakref.ref[Tensor]]" = field(default_factory=list)

    def rotate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        self.calls.append(Call("rotate", sum(t.numel() for t in tensors), ""))
        arrived = [torch.empty_like(t, memory_format=torch.contiguous_format) for t in tensors]
        ops = [dist.P2POp(dist.isend, t.contiguous(), (self.rank + 1) % self.size) for t in tensors]
        ops += [dist.P2POp(dist.irecv, t, (self.rank - 1) % self.size) for t in arrived]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        self.arrived += map(weakref.ref, arrived)
        return tuple(arrived)


def ring_work(answer: Callable[..., Any], case: Case, group: Group | Processes) -> dict[str, Any]:
    """One rank's part of a case: its output, and what it asked, sent, held and changed."""
    rows, blocks = case["rows"][group.rank], Blocks(arrived=group.arrived)
    copies = [*(case[name][:, rows] for name in ("q", "k", "v")), rows]
    given = [t.clone() for t in copies]
    back = answer(*given, group, blocks)
    return {
        "out": back.detach().clone() if isinstance(back, Tensor) else kind(back),
        "asked": blocks.asked,
        "finished": blocks.finished,
        "visitors": blocks.visitors,
        "changed": not untouched(given, copies),
        "calls": [[call.kind, call.elements] for call in group.calls],
    }
