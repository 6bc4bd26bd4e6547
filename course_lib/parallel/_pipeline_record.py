"""What a rank of a pipeline did and when: computing and waiting apart, and what it held meanwhile, both measured."""

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from course_lib.memory import storage_bytes
from course_lib.parallel._pipeline_later import Later
from course_lib.parallel.schedule import Action

__all__ = ["Clock", "Recorded"]


@dataclass(frozen=True)
class Recorded:
    """One action as a rank ran it. Times are in seconds by a clock that all processes of a machine share."""

    action: Action
    asked: float
    """When the rank came to it, and began to wait for what it needs."""
    start: float
    """When that had arrived, and computing began."""
    end: float
    held: int | None = None
    """After it: how many (micro-batch, stage) this rank holds activations of; None where nobody looked."""
    bytes: int | None = None
    """After it: the bytes of these activations."""

    @property
    def waited(self) -> float:
        """Seconds from coming to the action to starting it."""
        return self.start - self.asked


class Clock:
    """Told by the loop where it stands. Looks at memory only with `watch`, which takes time of its own."""

    def __init__(self, watch: bool = False) -> None:
        self.watch = watch
        self.records: list[Recorded] = []
        self._alive: weakref.WeakSet[_Kept] = weakref.WeakSet()
        self._later: weakref.WeakSet[Later] = weakref.WeakSet()
        self._names: weakref.WeakKeyDictionary[Later, tuple[int, int]] = weakref.WeakKeyDictionary()
        self._weights: set[int] = set()
        self._asked = self._start = 0.0

    def asks(self) -> None:
        """The rank has come to its next action."""
        self._asked = time.perf_counter()

    def begins(self) -> None:
        """What the action needs is there."""
        self._start = time.perf_counter()

    def ends(self, action: Action) -> None:
        """The action is over; what it made is not sent yet."""
        end = time.perf_counter()
        held = self.held() if self.watch else (None, None)
        self.records.append(Recorded(action, self._asked, self._start, end, *held))

    @contextmanager
    def follow(self, action: Action, stage: nn.Module, later: Later | None) -> Iterator[None]:
        """Around a forward: everything that autograd saves in it is followed for as long as it is kept."""
        if not self.watch:
            yield
            return
        self._weights |= {p.untyped_storage().data_ptr() for p in [*stage.parameters(), *stage.buffers()]}
        cell = (action.stage, action.microbatch)
        if later is not None:
            self._later.add(later)
            self._names[later] = cell

        def keep(tensor: Tensor) -> "_Kept":
            kept = _Kept(tensor.detach(), cell)
            self._alive.add(kept)
            return kept

        with saved_tensors_hooks(keep, lambda kept: kept.tensor):
            yield

    def held(self) -> tuple[int, int]:
        """How many (stage, micro-batch) autograd or a postponed W holds something of now, and the bytes of it."""
        kept = [*self._alive]
        waiting = [later for later in self._later if later.kept]
        tensors: list[Any] = [one.tensor for one in kept]
        tensors += [tensor for later in waiting for _, _, *pair in later.kept for tensor in pair]
        cells = {one.cell for one in kept} | {self._names[later] for later in waiting}
        return len(cells), storage_bytes(tensors, set(self._weights))


class _Kept:
    """A tensor that autograd saved; gone when autograd lets go of it."""

    def __init__(self, tensor: Tensor, cell: tuple[int, int]) -> None:
        self.tensor, self.cell = tensor, cell
