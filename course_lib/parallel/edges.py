"""Where activations pass between what all ranks have and what each has a part of: collectives that autograd knows.

Each is one collective in forward and its mirror image in backward (Shoeybi et al. 2019, arXiv 1909.08053, section 3;
with the sequence split outside, Korthikanti et al. 2022, arXiv 2205.05198, section 4.2):

    copy_in       nothing          all-reduce        replicated input of column-split matrices
    reduce_out    all-reduce       nothing           partial sums of row-split matrices
    gather_in     all-gather       reduce-scatter    the same input, of which each rank has some positions
    scatter_out   reduce-scatter   all-gather        the same sums, of which each rank keeps some positions
"""

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

__all__ = [
    "copy_in",
    "gather",
    "gather_columns",
    "gather_in",
    "gathered_linear",
    "reduce_out",
    "scatter_out",
    "scatter_sum",
    "summed",
]

Group = dist.ProcessGroup | None


def summed(x: Tensor, group: Group) -> Tensor:
    """The sum over ranks, in a new tensor."""
    total = x.contiguous().clone()
    dist.all_reduce(total, group=group)
    return total


def gather(x: Tensor, dim: int, group: Group) -> Tensor:
    """All ranks' parts one after the other along `dim`; the parts are of one size."""
    part = x.movedim(dim, 0).contiguous()
    whole = part.new_empty((dist.get_world_size(group) * part.shape[0], *part.shape[1:]))
    dist.all_gather_single(whole, part, group=group)
    return whole.movedim(0, dim).contiguous()


def scatter_sum(x: Tensor, dim: int, group: Group) -> Tensor:
    """This rank's part along `dim` of the sum over ranks."""
    whole = x.movedim(dim, 0).contiguous()
    part = whole.new_empty((whole.shape[0] // dist.get_world_size(group), *whole.shape[1:]))
    dist.reduce_scatter_single(part, whole, group=group)
    return part.movedim(0, dim).contiguous()


class CopyIn(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return summed(gradient, ctx.group), None


class ReduceOut(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        return summed(x, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient, None


class GatherIn(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return gather(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return scatter_sum(gradient, ctx.dim, ctx.group), None, None


class ScatterOut(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, group: Group) -> Tensor:
        ctx.dim, ctx.group = dim, group
        return scatter_sum(x, dim, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gather(gradient, ctx.dim, ctx.group), None, None


class _GatheredLinear(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, dim: int, group: Group) -> Tensor:
        ctx.save_for_backward(x, weight)  # this rank's positions, not the gathered ones
        ctx.dim, ctx.group = dim, group
        return F.linear(gather(x, dim, group), weight)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        whole = gather(x, ctx.dim, ctx.group)
        to_weight = gradient.flatten(0, -2).T @ whole.flatten(0, -2)
        return scatter_sum(gradient @ weight, ctx.dim, ctx.group), to_weight, None, None


class _GatherColumns(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, size: int, group: Group) -> Tensor:
        ranks, rank = dist.get_world_size(group), dist.get_rank(group)
        sizes = [len(part) for part in torch.arange(size).tensor_split(ranks)]
        ctx.mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        padded = F.pad(x, (0, sizes[0] - x.shape[-1]))
        parts = gather(padded, -1, group).split(sizes[0], dim=-1)
        return torch.cat([part[..., :own] for part, own in zip(parts, sizes, strict=True)], -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient[..., ctx.mine], None, None


def copy_in(x: Tensor, group: Group = None) -> Tensor:
    """x as it is; in backward the sum of the gradients over ranks, each of which has used x for its part."""
    return CopyIn.apply(x, group)


def reduce_out(x: Tensor, group: Group = None) -> Tensor:
    """The sum of x over ranks; in backward the gradient as it is, since all ranks have the same."""
    return ReduceOut.apply(x, group)


def gather_in(x: Tensor, dim: int = 1, group: Group = None) -> Tensor:
    """All ranks' parts of x along `dim`; in backward this rank's part of the gradients' sum."""
    return GatherIn.apply(x, dim, group)


def scatter_out(x: Tensor, dim: int = 1, group: Group = None) -> Tensor:
    """This rank's part along `dim` of the sum of x over ranks; in backward all ranks' parts of the gradient."""
    return ScatterOut.apply(x, dim, group)


def gathered_linear(x: Tensor, weight: Tensor, dim: int = 1, group: Group = None) -> Tensor:
    """`F.linear(gather_in(x, dim), weight)` that keeps x and not what is gathered: backward gathers it again."""
    return _GatheredLinear.apply(x, weight, dim, group)


def gather_columns(x: Tensor, size: int, group: Group = None) -> Tensor:
    """(..., own columns) -> (..., size): the last dimension whole on every rank, also if `size` does not divide.

    Every rank then computes the same with it, so that backward takes this rank's columns of the gradient and sends
    nothing.
    """
    return _GatherColumns.apply(x, size, group)
