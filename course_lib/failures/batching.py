"""Whether a row of a matrix product depends on how many rows stand beside it, and products in which it does not.

A library chooses its kernel by shape, and another kernel adds in another order. Then an answer depends on what else was
in the batch (He et al. 2025, Thinking Machines, "Defeating Nondeterminism in LLM Inference").
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.model import GPT

__all__ = ["PRODUCTS", "batch_gaps", "invariant", "product", "row_by_row", "serial"]


def product(x: Tensor, w: Tensor) -> Tensor:
    """The library's: x (n, D), w (D, F) -> (n, F)."""
    return x @ w


def row_by_row(x: Tensor, w: Tensor) -> Tensor:
    """One product a row, each of the same shape and from memory of its own: what stands beside a row cannot matter."""
    return torch.cat([row.clone()[None] @ w for row in x])


def serial(x: Tensor, w: Tensor) -> Tensor:
    """Adds x[:, d] w[d] one d after the other, elementwise: an order that is ours, for every shape. Slow."""
    out = torch.zeros(len(x), w.shape[1], dtype=x.dtype)
    for d in range(len(w)):
        out = out + x[:, d, None] * w[d]
    return out


PRODUCTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "the library's": product,
    "row by row": row_by_row,
    "one order for all": serial,
}
"""Three matrix products that are equal on paper."""


def batch_gaps(
    multiply: Callable[[Tensor, Tensor], Tensor], x: Tensor, w: Tensor, sizes: Sequence[int]
) -> dict[int, float]:
    """For each batch size n: the largest difference of x's first n rows multiplied alone from the same rows among all.

    0.0 is bitwise equal. Which sizes differ is a matter of the library and the processor.
    """
    whole = multiply(x, w)
    return {n: float((multiply(x[:n].clone(), w) - whole[:n]).abs().max()) for n in sizes}


class _RowLinear(nn.Module):
    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.flatten(0, -2)
        return torch.cat([F.linear(row.clone()[None], self.weight) for row in rows]).view(*x.shape[:-1], -1)


def invariant(model: GPT) -> GPT:
    """A copy whose linear layers work row by row, for scoring and writing: no text depends on those beside it."""
    made = copy.deepcopy(model).eval()
    for module in list(made.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear):
                setattr(module, name, _RowLinear(child.weight.detach()))
    return made
