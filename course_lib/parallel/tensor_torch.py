"""Tensor parallel by PyTorch: `parallelize_module` turns each matrix into a DTensor, which knows its part and sends.

PyTorch's styles cut a matrix into runs of rows or columns. A run of our fused matrices (queries, keys and values in
one, gate and up in one) would hold the wrong ones, so `unfuse` takes them apart first; `TorchTensorParallel` compares
under the old names.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from course_lib.errors import ConfigError
from course_lib.model import GPT, Attention, FeedForward
from course_lib.parallel.fsdp import local, whole
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world

__all__ = ["TorchTensorParallel", "parallelize", "unfuse"]


class SeparateAttention(Attention):
    """`Attention` with a matrix each for queries, keys and values. How many heads it has, it reads from their width."""

    def __init__(self, fused: Attention) -> None:
        nn.Module.__init__(self)
        self.heads, self.kv_heads, self.width = fused.heads, fused.kv_heads, fused.width
        sizes = [heads * self.width for heads in (self.heads, self.kv_heads, self.kv_heads)]
        self.q, self.k, self.v = (_linear(rows) for rows in fused.qkv.weight.split(sizes))
        self.out = fused.out

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (linear(x).unflatten(-1, (-1, self.width)) for linear in (self.q, self.k, self.v))
        q, k = (heads * cos + heads.roll(self.width // 2, -1) * sin for heads in (q, k))  # (B, T, H, K)
        y = self.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(y.transpose(1, 2).flatten(2))


class SeparateFeedForward(FeedForward):
    """`FeedForward` with a matrix each for gate and up."""

    def __init__(self, fused: FeedForward) -> None:
        nn.Module.__init__(self)
        self.gate, self.up = (_linear(rows) for rows in fused.gate_up.weight.chunk(2))
        self.down = fused.down

    def forward(self, x: Tensor) -> Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


def _linear(weight: Tensor) -> nn.Linear:
    out = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    out.weight = nn.Parameter(weight.detach().clone())
    return out


FUSED = {"attention.qkv.weight": ("q", "k", "v"), "feed_forward.gate_up.weight": ("gate", "up")}
"""What `unfuse` takes apart, in the order of the rows."""


def unfuse(model: GPT) -> GPT:
    """The same model, in place, with a matrix each for q, k, v, gate and up."""
    for block in model.blocks:
        block.attention = SeparateAttention(block.attention)  # type: ignore[arg-type]
        block.feed_forward = SeparateFeedForward(block.feed_forward)  # type: ignore[arg-type]
    return model


def parallelize(
    model: GPT, mesh: DeviceMesh, *, sequence: bool = False, split_loss: bool = False, once: bool = True
) -> GPT:
    """An unfused model, in place, over a mesh of one dimension.

    sequence: norms and the residual stream are split by position. split_loss: logits stay a DTensor, split over the
    vocabulary. once: q, k and v (gate and up) share one DTensor as their input, so that its gradient is summed over
    ranks once; without, each of them sends its own.
    """
    heads, ranks, ff = model.config.kv_heads, mesh.size(), model.config.ff
    if heads % ranks or ff % ranks:
        raise ConfigError(f"n_kv_heads={heads} and d_ff={ff} must both divide by {ranks} tensor-parallel ranks")
    tied = model.head.weight is model.embedding.weight
    outside = Shard(1) if sequence else Replicate()
    shared = once or sequence
    entry = PrepareModuleInput(input_layouts=(outside,), desired_input_layouts=(Replicate(),))
    attention_entry = PrepareModuleInput(
        input_layouts=(outside, None, None), desired_input_layouts=(Replicate(), None, None)
    )
    leave = RowwiseParallel(output_layouts=outside)
    plan: dict[str, ParallelStyle] = {
        **{f"attention.{name}": ColwiseParallel() for name in ("q", "k", "v")},
        **{f"feed_forward.{name}": ColwiseParallel() for name in ("gate", "up")},
        **({"attention": attention_entry, "feed_forward": entry} if shared else {}),
        "attention.out": leave,
        "feed_forward.down": leave,
        **({"attention_norm": SequenceParallel(), "feed_forward_norm": SequenceParallel()} if sequence else {}),
    }
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    logits = Shard(-1) if split_loss else Replicate()
    outer: dict[str, ParallelStyle] = {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=outside),
        "head": ColwiseParallel(input_layouts=outside, output_layouts=logits, use_local_output=not split_loss),
        **({"norm": SequenceParallel()} if sequence else {}),
    }
    parallelize_module(model, mesh, outer)
    if tied:  # each of the two styles has made a parameter of its own
        model.head.weight = model.embedding.weight
    return model


class TorchTensorParallel(Strategy):
    """`TensorParallel` with PyTorch's DTensor; the options are those of `parallelize`."""

    model: GPT

    def __init__(
        self, model: nn.Module, make_optimizer: MakeOptimizer, *, split_loss: bool = False, **options: Any
    ) -> None:
        assert isinstance(model, GPT)
        mesh = init_device_mesh(next(model.parameters()).device.type, (rank_and_world()[1],), mesh_dim_names=("tp",))
        self.split_loss = split_loss
        self.names = [name for name, _ in model.named_parameters()]
        self.model = parallelize(unfuse(model), mesh, split_loss=split_loss, **options)
        kinds: dict[bool, list[nn.Parameter]] = {
            True: [],
            False: [],
        }  # an operator takes only one
        for p in model.parameters():
            kinds[isinstance(p, DTensor)].append(p)
        self.optimizer = make_optimizer([{"params": kind} for kind in kinds.values() if kind])  # type: ignore[misc]

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        return inputs, targets

    def forward_backward(self, *batch: Any, **named: Any) -> Tensor:
        total = super().forward_backward(*batch, **named)
        return total if rank_and_world()[0] == 0 else torch.zeros_like(total)  # the others have the same

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        with loss_parallel() if self.split_loss else nullcontext():
            yield

    def loss(self, logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        return local(super().loss(logits, targets, valid))

    def _whole(self, tensors: dict[str, Tensor | None]) -> dict[str, Tensor]:
        found = {name: whole(t) for name, t in tensors.items() if t is not None}
        for name in self.names:
            for end, pieces in FUSED.items():
                if name.endswith(end):
                    start = name.removesuffix(end) + end.split(".")[0]
                    found[name] = torch.cat([found.pop(f"{start}.{piece}.weight") for piece in pieces])
        return {name: found[name] for name in self.names}

    def gradients(self) -> dict[str, Tensor]:
        return self._whole({name: p.grad for name, p in self.model.named_parameters()})

    def parameters(self) -> dict[str, Tensor]:
        return self._whole({name: p.detach() for name, p in self.model.named_parameters()})

    def tensors_held(self) -> dict[str, list[Tensor]]:
        return {kind: [local(tensor) for tensor in held] for kind, held in super().tensors_held().items()}
