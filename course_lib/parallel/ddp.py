"""Data parallel: a whole replica on every rank, other data on each, and the sum of the gradients on all.

`DataParallel` is the whole idea. `TorchDDP` is PyTorch's, which sends the gradients in buckets. The three suspects are
published bugs under the same interface: a few dozen steps' loss does not give them away, and `checksums`, asked for
after the update, does.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.strategy import MakeOptimizer, Strategy

__all__ = [
    "DataParallel",
    "FlagAfterForward",
    "HookOnParameter",
    "HookOnTensor",
    "TorchDDP",
    "checksums",
    "lineup",
    "parameter_checksum",
    "same_on_all_ranks",
]


class DataParallel(Strategy):
    """Each gradient is summed over the ranks as soon as backward has completed it, while backward goes on.

    Every rank has to run backward through the same parameters: one that gets no gradient on one rank leaves the others
    waiting for it.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        self.last = True
        self.pending: list[Any] = []
        for p in model.parameters():
            dist.broadcast(p.detach(), src=0)  # all replicas start as rank 0's
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, p: Tensor) -> None:
        """Called by backward when p.grad holds this rank's sum over all micro-batches so far."""
        if self.last:
            self.pending.append(dist.all_reduce(p.grad, async_op=True))

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.last = last
        yield
        for work in self.pending:
            work.wait()
        self.pending.clear()


class TorchDDP(Strategy):
    """PyTorch's DistributedDataParallel. It takes the mean over ranks, so the loss is multiplied by their number."""

    model: DistributedDataParallel

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer, **options: Any) -> None:
        super().__init__(model, make_optimizer)
        # the buffers (RoPE's table) are the same on all ranks: not to be sent again before every forward
        self.model = DistributedDataParallel(model, **{"forward_sync_buffers": False, **options})

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        with nullcontext() if last else self.model.no_sync():
            yield

    def backward(self, loss: Tensor) -> None:
        (loss * dist.get_world_size()).backward()

    def gradients(self) -> dict[str, Tensor]:
        return {name.removeprefix("module."): gradient for name, gradient in super().gradients().items()}

    def parameters(self) -> dict[str, Tensor]:
        return {name.removeprefix("module."): p for name, p in super().parameters().items()}


class FlagAfterForward(TorchDDP):
    """karpathy/build-nanogpt#30 (June 2024): the flag that says "synchronise now" is set between forward and backward.

    DDP decides in forward. So the micro-batch after the one that set the flag synchronises: the first of the next step.
    (In the very first step it is the first too: the flag's default is to synchronise.)
    """

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.last = last
        yield

    def backward(self, loss: Tensor) -> None:
        self.model.require_backward_grad_sync = self.last
        super().backward(loss)


class HookOnTensor(Strategy):
    """picotron's naive data parallel before d0efdcc, and its tutorial's steps 5 to 8: a hook on the parameter's tensor.

    Such a hook is given the gradient of this backward alone, before it is added to `p.grad`: the last micro-batch's.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        super().__init__(model, make_optimizer)
        self.last = True
        for p in model.parameters():
            p.register_hook(self.reduce)

    def reduce(self, gradient: Tensor) -> Tensor:
        if self.last:
            dist.all_reduce(gradient)
        return gradient

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.last = last
        yield


class HookOnParameter(HookOnTensor):
    """picotron d0efdcc: the hook now runs after the sum, but what it is given is the parameter, and its body was kept.

    So weights are averaged over the ranks, and gradients never. The replicas are equal before every update and differ
    after it.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        Strategy.__init__(self, model, make_optimizer)
        self.last = True
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(self.reduce)

    def reduce(self, gradient: Tensor) -> Tensor:  # the name says gradient; it is p
        if self.last:
            dist.all_reduce(gradient)
            gradient /= dist.get_world_size()
        return gradient


def lineup(seed: int) -> dict[str, type[Strategy]]:
    """The right one and the three suspects as A to D, in an order that the seed decides."""
    order: list[type[Strategy]] = [DataParallel, FlagAfterForward, HookOnTensor, HookOnParameter]
    random.Random(seed).shuffle(order)
    return dict(zip("ABCD", order, strict=True))


def parameter_checksum(model: nn.Module) -> int:
    """56 bits of SHA-256 over the bytes of all parameters, in the order of their names: another bit, another number."""
    digest = hashlib.sha256()
    for _, p in sorted(model.named_parameters()):
        digest.update(p.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return int.from_bytes(digest.digest()[:7], "big")


def checksums(model: nn.Module, group: dist.ProcessGroup | None = None) -> list[int]:
    """`parameter_checksum` of every rank of the group, in rank order, on every rank."""
    mine = torch.tensor([parameter_checksum(model)], device=next(model.parameters()).device)
    every = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(every, mine, group=group)
    return [int(one) for one in every]


def same_on_all_ranks(model: nn.Module, group: dist.ProcessGroup | None = None) -> bool:
    """Whether the replicas are equal bit for bit; every rank of the group has to ask. Sends 8 bytes a rank."""
    return len(set(checksums(model, group))) == 1
