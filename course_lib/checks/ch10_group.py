"""Ranks in one process, for the checks of chapter 10: `together(work, ranks)` runs `work(group)` as every rank.

No process is started and nothing can hang. A rank runs until it calls a collective whose other parts are not there
yet; then the next rank runs. When all ranks stand at the same call, its result is known, and each runs once more from
the start, up to its next call. So `work` has to do the same each time, and what it prints is shown once, at its end.
"""

import io
import sys
import types
import weakref
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import kind
from course_lib.checks.guard import is_learners

__all__ = ["Apart", "Call", "Group", "ranks_here", "together", "untouched"]


class Apart(RuntimeError):
    """The ranks do not make the same calls: what each of them does instead."""


class _Waits(BaseException):
    """A rank cannot go on: the others' parts of its collective are not there yet. No `except Exception` catches it."""


@dataclass(frozen=True)
class Call:
    """One call of one rank: which, the numbers in the tensors that this rank hands over, and when."""

    kind: str
    elements: int
    stage: str


@dataclass
class Group:
    """What a rank knows of the others: its own number, how many there are, and ways to talk.

    stage: a word that the check sets, such as "backward"; it stands in every call.
    arrived: what `rotate` has returned, as long as somebody holds it.
    """

    rank: int
    size: int
    stage: str = ""
    calls: list[Call] = field(default_factory=list, repr=False)
    arrived: "list[weakref.ref[Tensor]]" = field(default_factory=list, repr=False)
    _results: list[list[Tensor]] = field(default_factory=list, repr=False)
    _pending: tuple[Any, ...] = field(default=(), repr=False)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sum of the ranks' tensors, all of one shape. Written into `tensor`, which is also returned."""
        (total,) = self._call("all_reduce", [tensor], lambda parts: [[_sum(parts)]] * self.size)
        with torch.no_grad():
            tensor.copy_(total)
        return tensor

    def all_gather(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """The ranks' tensors joined along `dim`, in the order of the ranks, on every rank."""
        join = lambda parts: [[torch.cat([one for (one,) in parts], dim)]] * self.size
        return self._call("all_gather", [tensor], join)[0]

    def reduce_scatter(self, tensor: Tensor, dim: int = -1) -> Tensor:
        """This rank's part, along `dim`, of the sum of the ranks' tensors. ValueError where the parts are not equal."""
        if isinstance(tensor, Tensor) and tensor.shape[dim] % self.size:
            raise ValueError(
                f"reduce_scatter: {self.size} ranks do not divide dimension {dim} of {tuple(tensor.shape)}"
            )
        cut = lambda parts: [[part.contiguous()] for part in _sum(parts).chunk(self.size, dim)]
        return self._call("reduce_scatter", [tensor], cut)[0]

    def rotate(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Send the tensors to the next rank, and return what the rank before this one sends."""
        turn = lambda parts: [parts[rank - 1] for rank in range(self.size)]
        arrived = self._call("rotate", list(tensors), turn)
        self.arrived += map(weakref.ref, arrived)
        return tuple(arrived)

    def _call(
        self, name: str, tensors: list[Tensor], finish: Callable[[list[list[Tensor]]], list[list[Tensor]]]
    ) -> list[Tensor]:
        for tensor in tensors:
            if not isinstance(tensor, Tensor):
                raise TypeError(f"`{name}` takes tensors; yours is {kind(tensor)}")
        number = len(self.calls)
        self.calls.append(Call(name, sum(t.numel() for t in tensors), self.stage))
        if number < len(self._results):
            return [result.clone() for result in self._results[number]]
        shapes = tuple((tuple(t.shape), t.dtype) for t in tensors)
        self._pending = (name, self.stage, shapes, [t.detach().clone() for t in tensors], finish, _line())
        raise _Waits


def _sum(parts: Sequence[Sequence[Tensor]]) -> Tensor:
    total = parts[0][0].clone()
    for (part,) in parts[1:]:
        total += part
    return total


def together(work: Callable[[Group], Any], ranks: int) -> list[Any]:
    """What `work(group)` returns on each of the ranks. Raises Apart when their calls do not go together."""
    results: list[list[list[Tensor]]] = [[] for _ in range(ranks)]
    ended: dict[int, Any] = {}
    while len(ended) < ranks:
        waiting: dict[int, tuple[Any, ...]] = {}
        for rank in range(ranks):
            if rank in ended:
                continue
            group, said = Group(rank, ranks, _results=results[rank]), io.StringIO()
            try:
                with redirect_stdout(said):
                    ended[rank] = work(group)
            except _Waits:
                waiting[rank] = group._pending
                continue
            except BaseException:
                print(said.getvalue(), end="")
                raise
            print(said.getvalue(), end="")
        if waiting:
            _refuse_apart(waiting, ranks)
            finish = waiting[0][4]
            for rank, result in enumerate(finish([waiting[rank][3] for rank in range(ranks)])):
                results[rank].append(result)
    return [ended[rank] for rank in range(ranks)]


def ranks_here(work: Callable[[Group], Any], ranks: int) -> dict[str, Any]:
    """{"ranks": what `together` returns}, or {"stopped": what the ranks did instead of going together}."""
    try:
        return {"ranks": together(work, ranks)}
    except Apart as apart:
        return {"stopped": str(apart)}


def untouched(given: Sequence[Tensor], copies: Sequence[Tensor]) -> bool:
    """Whether the tensors that an answer was given still hold what these copies of them hold."""
    return all(map(torch.equal, given, copies))


def _refuse_apart(waiting: dict[int, tuple[Any, ...]], ranks: int) -> None:
    """Raise Apart unless all ranks stand at the same call, of the same shapes, in the same stage."""
    gone = [rank for rank in range(ranks) if rank not in waiting]
    rank, mine = next(iter(waiting.items()))
    if gone:
        raise Apart(f"rank {rank} waits in {_told(mine)}, and rank {gone[0]} has ended without such a call")
    for other, theirs in waiting.items():
        if theirs[:3] != mine[:3]:
            raise Apart(f"rank {rank} calls {_told(mine)}, rank {other} {_told(theirs)}")


def _told(call: tuple[Any, ...]) -> str:
    shapes = ", ".join(str(shape) for shape, _ in call[2])
    return f"{call[0]} of {shapes or 'nothing'}{f' in {call[1]}' if call[1] else ''}{call[5]}"


def _line() -> str:
    """ " at line 9": where the learner's code stands."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return f" at line {frame.f_lineno}" if frame is not None else ""
