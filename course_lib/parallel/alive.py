"""What a rank holds at every moment of a step: whole weights, and everything else, after each operator."""

import time
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.memory import Peak
from course_lib.parallel.strategy import Strategy
from course_lib.parallel.zero import units

__all__ = ["Alive", "Moment", "kept_for_backward"]


@dataclass(frozen=True)
class Moment:
    """After one operator."""

    unit: str
    """The block that was entered last, "" for the rest of the model, "update" in the optimizer's step."""
    phase: str
    """forward, backward or update."""
    whole: int
    """Bytes of the parameters that are whole on this rank now."""
    gradients: int
    """Bytes of their `.grad`, whole or sharded."""
    total: int
    """Bytes of all tensors that are alive."""


class Alive(TorchDispatchMode):
    """Inside the block, `moments` grows by one after every operator.

    Storages are looked at again each time, not booked when they are made: sharding frees and refills the storage of
    tensors that live on (`resize_(0)`), which `memory.Peak` does not see. Storages under 256 bytes are left out.
    Slow: for one step of a small model.
    """

    def __init__(self, strategy: Strategy) -> None:
        super().__init__()
        self.moments: list[Moment] = []
        self.model = strategy.model
        self.unit, self.phase = "", "forward"
        self._slots = [(module._parameters, name) for module in self.model.modules() for name in module._parameters]
        self._storages: dict[int, weakref.ref[Any]] = {}
        held = [*self.model.parameters(), *self.model.buffers(), *chain(*strategy.tensors_held().values())]
        self.follow(held)
        for name, module in units(self.model).items():
            module.register_forward_pre_hook(lambda *_, name=name: self.enter(name, "forward"), prepend=True)
            module.register_forward_hook(lambda _, __, output, name=name: self.wait(output, name))

    def enter(self, unit: str, phase: str) -> None:
        """From here on, operators belong to this unit and phase. Phase "": they are ours, and are not recorded."""
        self.unit, self.phase = unit, phase

    def wait(self, output: Tensor, name: str) -> None:
        if output.requires_grad:
            output.register_hook(lambda _: self.enter(name, "backward"))
        if name:
            self.unit = ""

    def follow(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = _storage(tensor)
            key = storage._cdata
            known = self._storages.get(key)
            if (known is None or known() is None) and not 0 < storage.nbytes() < 256:
                self._storages[key] = weakref.ref(storage)

    def now(self) -> Moment:
        alive = {key: storage for key, ref in self._storages.items() if (storage := ref()) is not None}
        self._storages = {key: self._storages[key] for key in alive}
        found = [slots[name] for slots, name in self._slots]
        plain = [p.untyped_storage() for p in found if p is not None and not isinstance(p, DTensor)]
        whole = {storage._cdata: storage.nbytes() for storage in plain}
        grads = [_storage(p.grad) for p in found if p is not None and p.grad is not None]
        summed = {storage._cdata: storage.nbytes() for storage in grads}
        total = sum(storage.nbytes() for storage in alive.values())
        return Moment(self.unit, self.phase, sum(whole.values()), sum(summed.values()), total)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not self.phase:
            return result
        self.follow(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        self.moments.append(self.now())
        return result


def _storage(tensor: Tensor) -> Any:
    return (tensor._local_tensor if isinstance(tensor, DTensor) else tensor).untyped_storage()


def kept_for_backward(strategy: Strategy, inputs: Tensor, targets: Tensor) -> int:
    """Bytes that are alive on this rank between forward and backward and were not before: what autograd has saved.

    inputs, targets: this rank's share. Not for models of DTensors.
    """
    model = strategy.model
    with Peak([*model.parameters(), *model.buffers(), inputs, targets]) as memory:
        before = memory.live
        loss = strategy.loss(model(inputs), targets, targets.numel())
        kept = _settled(memory) - before
        del loss
    return kept


def _settled(memory: Peak, still: float = 0.1) -> int:
    """`live` once it has not changed for `still` seconds: gloo's own thread lets go of what it has reduced or gathered
    a moment after the call has returned."""
    seen, since = memory.live, time.monotonic()
    while time.monotonic() - since < still:
        time.sleep(still / 10)
        if memory.live != seen:
            seen, since = memory.live, time.monotonic()
    return seen
