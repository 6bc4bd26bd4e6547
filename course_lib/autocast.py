"""What autocast really does in one training step, operation by operation, from a trace of the dispatcher."""

import copy
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.data import IGNORE

__all__ = ["TraceRow", "autocast_trace"]

SHORT = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.float64: "fp64"}


UNSEEN = ("detach", "_unsafe_view", "empty", "empty_like", "empty_strided")  # they compute nothing


class _Casts(Protocol):
    def autocast(self) -> Any:
        """A fresh context for one forward pass."""


@dataclass(frozen=True)
class TraceRow:
    """One operation that ran, with the dtypes that it really had. What computes nothing (views) is left out."""

    op: str
    """ATen name: mm, _to_copy (a cast, unless both dtypes are the same), native_layer_norm, ..."""
    inputs: tuple[str, ...]
    """dtype of every tensor that went in: fp32, bf16, fp16, int64, bool, ..."""
    output: str
    """dtype of the first tensor that came out; "" for none."""
    phase: str
    """forward, loss or backward."""
    module: str
    """Dotted name of the module whose forward it was; "" outside of all, and in loss and backward."""

    @property
    def casts(self) -> bool:
        """Whether it only turned one dtype into another."""
        return self.op == "_to_copy" and self.inputs[:1] != (self.output,)


class _Trace(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.rows: list[TraceRow] = []
        self.phase = "forward"
        self.modules: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in UNSEEN:
            inputs = tuple(_short(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor))
            outputs = [_short(leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]
            module = self.modules[-1] if self.modules else ""
            self.rows.append(
                TraceRow(func.overloadpacket.__name__, inputs, outputs[0] if outputs else "", self.phase, module)
            )
        return result


def _short(tensor: Tensor) -> str:
    return SHORT.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))


def autocast_trace(model: nn.Module, inputs: Tensor, targets: Tensor, policy: _Casts) -> list[TraceRow]:
    """Every operation of one forward pass, loss and backward pass under the policy's autocast, in order.

    model: any module tokens (B, T) -> logits (B, T, V); inputs, targets (B, T) int64 on its device. A copy of the model
    runs: its weights, gradients and buffers stay as they are, and so does the global random state.
    """
    clone = copy.deepcopy(model)
    trace = _Trace()

    def leave(*_: Any) -> None:
        trace.modules.pop()

    for name, module in clone.named_modules():
        module.register_forward_pre_hook(lambda *_, name=name: trace.modules.append(name))
        module.register_forward_hook(leave, always_call=True)
    devices = [inputs.device] if inputs.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), trace:
        with policy.autocast():
            logits = clone(inputs)
        trace.phase = "loss"
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE)
        trace.phase = "backward"
        loss.backward()
    return trace.rows
