"""Tensor parallel by hand: each rank has some heads and some of the feed-forward's width, and all of the tokens.

    h = x W1, y = act(h) W2        W1 by columns, W2 by rows: act works on each column alone, and the ranks' products
                                   with their rows of W2 add up to y

Shoeybi et al. 2019 (Megatron-LM, arXiv 1909.08053). `TensorParallel` is a strategy; `tensor_torch` has PyTorch's. A
block's own code stays as it is: a rank's linears are smaller, and send. With `sequence`, what lies between the halves
of a block (norms, residual stream) is split by position (Korthikanti et al. 2022, arXiv 2205.05198).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.errors import ConfigError
from course_lib.model import GPT, Block
from course_lib.parallel._tensor_layers import (
    ColumnLinear,
    Edges,
    Part,
    RowLinear,
    Sequence,
    VocabularyEmbedding,
    VocabularyHead,
    block_parts,
    split_block,
    split_cross_entropy,
)
from course_lib.parallel.strategy import MakeOptimizer, Strategy

__all__ = [
    "ColumnLinear",
    "Edges",
    "Part",
    "RowLinear",
    "TensorParallel",
    "VocabularyEmbedding",
    "VocabularyHead",
    "block_parts",
    "split_block",
    "split_cross_entropy",
]


class TensorParallel(Strategy):
    """Every rank computes its part of each matrix product, for all tokens of the batch.

    sequence: how what lies between the matrices is split (see `Sequence`); then T has to divide by the ranks, and the
    norms' gradients, which each rank has of its own positions, are summed once a step. loss_parallel: logits stay
    split over the vocabulary up to the loss. Dropout would need the same random numbers on every rank: it must be 0.
    """

    model: GPT

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        sequence: Sequence = None,
        loss_parallel: bool = False,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        assert isinstance(model, GPT)
        if model.config.dropout:
            raise ConfigError(f"dropout={model.config.dropout} under tensor parallel is not done here; set dropout=0")
        self.edges, self.loss_parallel = Edges(group, sequence), loss_parallel
        tied = model.head.weight is model.embedding.weight
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        self.parts: dict[str, Part] = {}
        for name, block in model.blocks.named_children():
            assert isinstance(block, Block)
            self.parts |= {f"blocks.{name}.{own}": part for own, part in split_block(block, self.edges).items()}
        rows = Part(0, self.edges.share(model.config.vocab_size))
        self.parts["embedding.weight"] = self.parts["head.weight"] = rows
        embedding = VocabularyEmbedding(model.embedding, rows, self.edges)
        head = VocabularyHead(model.head, rows, self.edges, gathered=not loss_parallel)
        if tied:
            head.weight = embedding.weight
        self.first = embedding.first
        model.embedding, model.head = embedding, head  # type: ignore[assignment]
        super().__init__(model, make_optimizer)

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        ranks, length = self.edges.ranks, inputs.shape[1]
        if self.edges.sequence and length % ranks:
            raise ConfigError(f"a sequence of {length} tokens does not divide by {ranks} ranks; cut or pad it")
        return inputs, targets

    def loss(self, logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        if not self.loss_parallel:
            return super().loss(logits, targets, valid)
        return split_cross_entropy(logits.flatten(0, 1), targets.flatten(), self.first, self.edges.group) / valid

    def forward_backward(self, *batch: Any, **named: Any) -> Tensor:
        total = super().forward_backward(*batch, **named)
        return total if self.edges.rank == 0 else torch.zeros_like(total)  # the others have the same

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        yield
        if last and self.edges.sequence:
            norms = [p.grad for name, p in self.model.named_parameters() if name not in self.parts]
            partial = [gradient for gradient in norms if gradient is not None]
            flat = torch.cat([gradient.flatten() for gradient in partial])
            dist.all_reduce(flat, group=self.edges.group)
            for gradient, whole in zip(partial, flat.split([g.numel() for g in partial]), strict=True):
                gradient.copy_(whole.view_as(gradient))

    def whole(self, name: str, tensor: Tensor) -> Tensor:
        """A parameter, or its gradient, put together from all ranks' parts."""
        if name not in self.parts:
            return tensor.detach().clone()
        part = self.parts[name]
        out = torch.zeros(self.shapes[name]).index_copy_(part.dim, part.index, tensor.detach())
        dist.all_reduce(out, group=self.edges.group)  # the others have 0 there
        return out

    def gradients(self) -> dict[str, Tensor]:
        return {name: self.whole(name, gradient) for name, gradient in super().gradients().items()}

    def parameters(self) -> dict[str, Tensor]:
        return {name: self.whole(name, p) for name, p in self.model.named_parameters()}
