"""Where the bytes go, measured: tensors are found and counted by storage, each once, none predicted.

`planning.formulas.predicted_ledger` has the same categories, from shapes alone.
"""

import weakref
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.data import IGNORE
from course_lib.masters import MasterWeights

__all__ = ["Peak", "ledger", "storage_bytes"]


def storage_bytes(tensors: Iterable[Tensor], known: set[int] | None = None) -> int:
    """Bytes of the tensors' storages: views and tied tensors once, none of `known`, which the new ones are added to."""
    seen = set() if known is None else known
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen and storage.nbytes():
            seen.add(storage.data_ptr())
            total += storage.nbytes()
    return total


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean cross entropy over the valid tokens: logits (B, T, V), targets (B, T) -> ()."""
    return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE)


def ledger(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    masters: MasterWeights | None = None,
    autocast: Callable[[], AbstractContextManager[object]] = nullcontext,
    loss: Callable[[Tensor, Tensor], Tensor] = token_loss,
) -> dict[str, int]:
    """Bytes by category in one training step, or in one inference pass when there is no optimizer.

    inputs, targets (B, T) int64. Categories: weights, gradients, optimizer, activations (what is alive between forward
    and backward and in no other: whatever autograd or a recomputed block keeps), logits (not saved, but alive until the
    loss is known), buffers, data. What a recomputed block makes again lives and dies in backward: `Peak` sees it.
    With `masters` that are not empty, whose tensors the optimizer then holds, "masters" is a category too.
    A real step is taken, at learning rate 0: weights are the same after it, gradients and a state that was not there
    before are dropped again. Kernels' short-lived buffers are in none of these; `Peak` sees them.
    """
    known: set[int] = set()
    out = {
        "weights": storage_bytes(model.parameters(), known),
        "gradients": 0,
        "optimizer": 0,
        "activations": 0,
        "logits": 0,
        "buffers": storage_bytes(model.buffers(), known),
        "data": storage_bytes([inputs, targets], known),
    }
    if masters is not None and masters.masters:
        out["masters"] = storage_bytes(masters.masters.values(), known)
    if optimizer is None:
        with torch.inference_mode(), autocast():
            out["logits"] = storage_bytes([model(inputs)], known)
        return out

    resident = [*model.parameters(), *model.buffers(), inputs, targets]
    with Peak([*resident, *(p.grad for p in model.parameters() if p.grad is not None)]) as memory:
        before = memory.live
        with autocast():
            logits = model(inputs)
        value = loss(logits, targets)
        alive = memory.live - before
    out["logits"] = storage_bytes([logits], known)
    out["activations"] = alive - out["logits"] - storage_bytes([value], known)
    value.backward()
    out["gradients"] = storage_bytes(p.grad for p in model.parameters() if p.grad is not None)
    fresh = not optimizer.state
    rates = [group["lr"] for group in optimizer.param_groups]
    if fresh:
        for group in optimizer.param_groups:
            group["lr"] = 0.0
        if masters is not None:
            masters.take_gradients()
        optimizer.step()
    out["optimizer"] = storage_bytes(
        entry for state in optimizer.state.values() for entry in state.values() if isinstance(entry, Tensor)
    )
    if fresh:
        optimizer.state.clear()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
    optimizer.zero_grad(set_to_none=True)
    model.zero_grad(set_to_none=True)
    return out


class Peak(TorchDispatchMode):
    """Inside the block, follows every tensor that is made: `live` bytes now, `peak` bytes at the worst moment, and
    `trace`, the live bytes after each operator.

    `resident` tensors (the weights, say) count from the start. Slow, Python sees each operator: for one step.
    """

    def __init__(self, resident: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.live = 0
        self.peak = 0
        self.trace: list[int] = []
        self._alive: set[int] = set()
        for tensor in resident:
            self._follow(tensor)

    def _follow(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._alive or not storage.nbytes():
            return
        self._alive.add(key)
        size = storage.nbytes()
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor):
                self._follow(leaf)
        self.trace.append(self.live)
        return result
