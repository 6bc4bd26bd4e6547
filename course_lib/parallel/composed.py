"""Two ways of splitting at once: tensor parallel inside a group of ranks, FSDP over the groups, on a 2D mesh of ranks.

    FullyShardTensor(model, make_optimizer, dp=2, tp=2)      # 4 ranks: 0 and 1 share each matrix, and so do 2 and 3

                    tp 0                 tp 1
    dp 0      rank 0, rows 0       rank 1, rows 0      the two ranks of a row work on the same sequences, each with its
    dp 1      rank 2, rows 1       rank 3, rows 1      half of each matrix; of that half those of a column keep half

The order matters: a matrix is first cut for the computing (tp), and then what a rank computes with is cut for keeping
(dp): gathered over dp before a block, dropped after it. `mesh.RankGrid(dp=2, tp=2)` is the same grid without torch.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Placement, Shard

from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world
from course_lib.parallel.tensor_torch import TorchTensorParallel, parallelize, unfuse
from course_lib.parallel.zero import units

__all__ = ["FullyShardTensor"]


class FullyShardTensor(TorchTensorParallel):
    """FSDP over `dp` groups of `tp` ranks. Gradients are summed over dp after the last micro-batch.

    options: those of `tensor_torch.parallelize`. `ConfigError` where dp x tp is not the number of ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        dp: int = 2,
        tp: int = 2,
        split_loss: bool = False,
        **options: Any,
    ) -> None:
        assert isinstance(model, GPT)
        world = rank_and_world()[1]
        if dp * tp != world:
            raise ConfigError(f"dp={dp} times tp={tp} must be the number of ranks, {world}; try dp={world // tp}")
        device = next(model.parameters()).device.type
        self.mesh: DeviceMesh = init_device_mesh(device, (dp, tp), mesh_dim_names=("dp", "tp"))
        self.split_loss = split_loss
        self.names = [name for name, _ in model.named_parameters()]
        self.model = parallelize(unfuse(model), self.mesh["tp"], split_loss=split_loss, **options)
        if not split_loss:  # they are a view of a DTensor, and fully_shard wants a tensor of its own
            self.model.head.register_forward_hook(lambda module, inputs, logits: logits.clone())
        for module in units(self.model).values():  # the model last: its unit is what no block has taken
            self.root: FSDPModule = fully_shard(module, mesh=self.mesh["dp"], reshard_after_forward=True)
            self.root.set_gradient_divide_factor(1.0)  # the sum over ranks, not their mean
            self.root.set_force_sum_reduction_for_comms(True)
        meshes: dict[DeviceMesh, list[nn.Parameter]] = {}  # an operator takes those of one mesh at a time
        for p in self.model.parameters():
            assert isinstance(p, DTensor)
            meshes.setdefault(p.device_mesh, []).append(p)
        self.optimizer = make_optimizer([{"params": group} for group in meshes.values()])  # type: ignore[misc]

    def place(self) -> tuple[int, int]:
        """This rank's coordinates, (dp, tp)."""
        return self.mesh.get_local_rank("dp"), self.mesh.get_local_rank("tp")

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Rows by the dp coordinate: ranks that share their matrices read the same sequences."""
        parts = self.mesh["dp"].size()
        return inputs.tensor_split(parts)[self.place()[0]], targets.tensor_split(parts)[self.place()[0]]

    def forward_backward(self, *batch: Any, **named: Any) -> Tensor:
        total = Strategy.forward_backward(self, *batch, **named)
        return total if self.place()[1] == 0 else torch.zeros_like(total)  # the others of its tp group have the same

    def micro_batch(self, last: bool) -> AbstractContextManager[None]:  # type: ignore[override]
        self.root.set_requires_gradient_sync(last)
        return super().micro_batch(last)

    def _whole(self, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
        return super()._whole({name: None if t is None else self._gather(t) for name, t in tensors.items()})

    def _gather(self, tensor: Tensor) -> Tensor:
        """A DTensor of both dimensions, gathered over dp, then over tp: the reverse of how it was cut."""
        assert isinstance(tensor, DTensor)
        if tensor.device_mesh.ndim == 1:
            return tensor.full_tensor()
        shape, by_tp = list(tensor.shape), tensor.placements[1]
        if isinstance(by_tp, Shard):
            shape[by_tp.dim] //= self.mesh["tp"].size()
        part = _join(tensor.to_local(), self.mesh["dp"], Shard(0), shape)
        return _join(part, self.mesh["tp"], by_tp, tensor.shape)


def _join(mine: Tensor, mesh: DeviceMesh, placement: Placement, shape: Sequence[int]) -> Tensor:
    """Every rank's part -> the tensor of this shape."""
    size = torch.Size(shape)
    stride = torch.empty(size, device="meta").stride()
    return DTensor.from_local(mine, mesh, [placement], shape=size, stride=stride).full_tensor()
