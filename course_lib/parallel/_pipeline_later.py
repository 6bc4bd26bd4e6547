"""A backward in two halves: the gradient for a stage's input now (I), the weights' when they are asked for (W).

A linear layer y = x A^T has two gradients, dx = dy A and dA = dy^T x. The stage before waits for dx; nobody but the
optimizer waits for dA, so it can be put off (Qi et al. 2023, zero bubble, arXiv 2401.10241). Until then x and dy of
each linear layer are kept; everything else that the forward saved is free after I. Gains and embeddings, which cost
next to nothing, have their gradients with I.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["Later"]


class Later(TorchFunctionMode):
    """The linear layers of a forward that runs inside: their weights' gradients wait for `run`."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[Tensor, Tensor | None, Tensor, Tensor]] = []
        """Of each linear layer, once backward has been there: weight (out, in), bias, x (..., in), dy (..., out)."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear:
            return _Linear.apply(self, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def run(self) -> None:
        """W: add what was put off to the weights' `.grad`."""
        for weight, bias, x, dy in self.kept:
            flat = dy.flatten(0, -2)
            _add(weight, flat.t() @ x.flatten(0, -2))
            if bias is not None:
                _add(bias, flat.sum(0))
        self.kept.clear()


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, later: Later, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.later = later
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        x, weight, bias = ctx.saved_tensors
        ctx.later.kept.append((weight, bias, x.detach(), dy))
        return None, dy @ weight, None, None


def _add(parameter: Tensor, gradient: Tensor) -> None:
    parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
