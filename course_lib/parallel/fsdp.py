"""PyTorch's `fully_shard` (FSDP2) as a strategy: ZeRO-3 with every parameter a DTensor that knows its shard.

Zhao et al. 2023 (PyTorch FSDP, arXiv 2304.11277); Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world
from course_lib.parallel.zero import units

__all__ = ["FullyShard", "local"]


def local(tensor: Tensor) -> Tensor:
    """What this rank holds of a tensor: a DTensor's shard, anything else as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Tensor) -> Tensor:
    """A DTensor gathered (all ranks of its mesh have to call), anything else a copy."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


class FullyShard(Strategy):
    """Each block is sharded, and the rest of the model as one more unit.

    reshard: whole weights are dropped after a unit's forward and gathered again for its backward (3 P elements a step);
    without, they stay until its backward is over (2 P), and the peak holds the whole model. None is PyTorch's default:
    the blocks are resharded, the outermost unit is not.
    replicas: hybrid sharding; the ranks form that many groups, each of which holds the whole model in shards.
    deferred: which communication of gradients waits for the last micro-batch. "all": gradients stay whole on each rank
    until then. "all-reduce": shards are summed inside a group at once, over groups in the end. "none": nothing waits.
    keep: whole weights also stay from one micro-batch to the next, until the last backward is over.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        reshard: bool | None = True,
        replicas: int = 1,
        deferred: Literal["all", "all-reduce", "none"] = "all",
        keep: bool = False,
        precision: MixedPrecisionPolicy | None = None,
    ) -> None:
        device = next(model.parameters()).device.type
        world = rank_and_world()[1]
        shape, names = (
            ((world,), ("shard",)) if replicas == 1 else ((replicas, world // replicas), ("replica", "shard"))
        )
        mesh = init_device_mesh(device, shape, mesh_dim_names=names)
        self.deferred, self.keep = deferred, keep
        policy = precision or MixedPrecisionPolicy()
        for module in units(model).values():  # the model last: its unit is what no block has taken
            self.root: FSDPModule = fully_shard(
                module, mesh=mesh, reshard_after_forward=False if keep else reshard, mp_policy=policy
            )
            # The sum over ranks, not their mean. (A factor alone asks for an operation that gloo does not have.)
            self.root.set_gradient_divide_factor(1.0)
            self.root.set_force_sum_reduction_for_comms(True)
        super().__init__(model, make_optimizer)

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        self.root.set_requires_gradient_sync(last or self.deferred != "all")
        self.root.set_requires_all_reduce(last or self.deferred == "none")
        self.root.set_reshard_after_backward(last or not self.keep)
        yield

    def gradients(self) -> dict[str, Tensor]:
        pairs = self.model.named_parameters()
        return {name: torch.zeros(p.shape) if p.grad is None else whole(p.grad) for name, p in pairs}

    def parameters(self) -> dict[str, Tensor]:
        return {name: whole(p.detach()) for name, p in self.model.named_parameters()}

    def tensors_held(self) -> dict[str, list[Tensor]]:
        return {kind: [local(tensor) for tensor in held] for kind, held in super().tensors_held().items()}
