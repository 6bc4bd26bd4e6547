"""What a tensor-parallel rank has in the place of a block's matrices, the embedding, the output layer and the loss."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.data import IGNORE
from course_lib.errors import ConfigError
from course_lib.model import Block
from course_lib.parallel.edges import copy_in, gather_columns, gather_in, gathered_linear, reduce_out, scatter_out

Sequence = Literal["keep", "regather"] | None
"""None: every rank has all positions everywhere. keep, regather: outside of the split matrices each has its own ones;
what is gathered for a matrix stays for its backward, or is gathered again."""


@dataclass(frozen=True)
class Edges:
    """How activations get into a column-split matrix and out of a row-split one."""

    group: dist.ProcessGroup | None = None
    sequence: Sequence = None

    @property
    def ranks(self) -> int:
        return dist.get_world_size(self.group)

    @property
    def rank(self) -> int:
        return dist.get_rank(self.group)

    def share(self, size: int) -> Tensor:
        """This rank's numbers of 0 .. size - 1, in one piece; the first ranks may have one more."""
        return torch.arange(size).tensor_split(self.ranks)[self.rank]

    def into(self, x: Tensor, weight: Tensor) -> Tensor:
        """x (B, T or own positions, D) times this rank's rows of a weight (rows, D) -> (B, T, rows)."""
        if self.sequence == "regather":
            return gathered_linear(x, weight, 1, self.group)
        return F.linear(gather_in(x, 1, self.group) if self.sequence else copy_in(x, self.group), weight)

    def out(self, partial: Tensor) -> Tensor:
        """Partial sums (B, T, D) -> their sum over ranks (B, T or own positions, D)."""
        return scatter_out(partial, 1, self.group) if self.sequence else reduce_out(partial, self.group)


@dataclass(frozen=True)
class Part:
    """Which entries of a parameter a rank has: those with these indices along this dimension."""

    dim: int
    index: Tensor

    def of(self, whole: Tensor) -> nn.Parameter:
        """A copy of these entries as a parameter."""
        return nn.Parameter(whole.detach().index_select(self.dim, self.index).contiguous())


class ColumnLinear(nn.Module):
    """Some outputs of a linear layer, so columns of its matrix (rows of `weight`, as PyTorch stores it)."""

    def __init__(self, whole: nn.Linear, part: Part, edges: Edges) -> None:
        super().__init__()
        self.weight, self.edges = part.of(whole.weight), edges

    def forward(self, x: Tensor) -> Tensor:
        return self.edges.into(x, self.weight)  # (B, T, D) -> (B, T, own outputs)


class RowLinear(nn.Module):
    """Some inputs of a linear layer; the outputs are partial sums, which `Edges.out` adds up over ranks."""

    def __init__(self, whole: nn.Linear, part: Part, edges: Edges) -> None:
        super().__init__()
        self.weight, self.edges = part.of(whole.weight), edges

    def forward(self, x: Tensor) -> Tensor:
        return self.edges.out(F.linear(x, self.weight))  # (B, T, own inputs) -> (B, T, D)


class VocabularyEmbedding(nn.Module):
    """Some tokens' rows. A rank gives 0 for the tokens of others, so that the sum over ranks is the embedding."""

    def __init__(self, whole: nn.Embedding, part: Part, edges: Edges) -> None:
        super().__init__()
        self.weight, self.edges, self.first = part.of(whole.weight), edges, int(part.index[0])

    def forward(self, tokens: Tensor) -> Tensor:
        at = tokens - self.first
        mine = (at >= 0) & (at < len(self.weight))
        return self.edges.out(F.embedding(at.where(mine, 0), self.weight) * mine[..., None])  # (B, T) -> (B, T, D)


class VocabularyHead(ColumnLinear):
    """Some tokens' logits. gathered: all of them, whole on every rank; else this rank's alone."""

    def __init__(self, whole: nn.Linear, part: Part, edges: Edges, gathered: bool) -> None:
        super().__init__(whole, part, edges)
        self.vocabulary = len(whole.weight) if gathered else None

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        return logits if self.vocabulary is None else gather_columns(logits, self.vocabulary, self.edges.group)


def block_parts(block: Block, edges: Edges) -> dict[str, Part]:
    """What this rank has of each matrix of a block, by name. Whole heads; gate and up of the same columns.

    `ConfigError` where the heads of keys and values cannot be shared out.
    """
    attention, ff = block.attention, block.feed_forward.down.in_features
    heads, kv_heads, width = attention.heads, attention.kv_heads, attention.width
    if kv_heads % edges.ranks:
        fits = max(n for n in range(1, kv_heads + 1) if kv_heads % n == 0 and n <= edges.ranks)
        raise ConfigError(
            f"n_kv_heads={kv_heads} cannot be shared out to {edges.ranks} tensor-parallel ranks; take {fits}, or a "
            f"model with n_kv_heads={edges.ranks}"
        )

    def columns(count: int) -> Tensor:  # of this rank's share of so many heads
        return (edges.share(count)[:, None] * width + torch.arange(width)).flatten()

    q, kv, own = columns(heads), columns(kv_heads), edges.share(ff)
    behind = heads * width, (heads + kv_heads) * width
    return {
        "attention.qkv.weight": Part(0, torch.cat([q, behind[0] + kv, behind[1] + kv])),
        "attention.out.weight": Part(1, q),
        "feed_forward.gate_up.weight": Part(0, torch.cat([own, ff + own])),
        "feed_forward.down.weight": Part(1, own),
    }


def split_block(block: Block, edges: Edges) -> dict[str, Part]:
    """Put this rank's part in the place of each matrix of a block, and say what it is."""
    parts = block_parts(block, edges)
    attention, ff = block.attention, block.feed_forward
    attention.heads //= edges.ranks
    attention.kv_heads //= edges.ranks
    replacements: tuple[tuple[nn.Module, str, Callable[..., nn.Module]], ...] = (
        (attention, "qkv", ColumnLinear),
        (attention, "out", RowLinear),
        (ff, "gate_up", ColumnLinear),
        (ff, "down", RowLinear),
    )
    for (module, name, kind), part in zip(replacements, parts.values(), strict=True):
        setattr(module, name, kind(getattr(module, name), part, edges))
    return parts


def split_cross_entropy(logits: Tensor, targets: Tensor, first: int, group: dist.ProcessGroup | None = None) -> Tensor:
    """Sum of the cross entropies over the valid tokens, from this rank's logits (n, own tokens) alone; -> ().

    targets (n,) number the whole vocabulary, of which this rank's part begins at `first`. Sent are three numbers a
    token: the largest logit, the sum of exponentials, the target's logit.
    """
    logits = logits.float()
    largest = logits.detach().amax(-1)
    dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    logits = logits - largest[:, None]
    at = targets - first
    mine = (at >= 0) & (at < logits.shape[-1])
    of_target = logits[torch.arange(len(at)), at.where(mine, 0)] * mine  # (`gather` would keep all logits)
    total, of_target = reduce_out(torch.stack([logits.exp().sum(-1), of_target]), group)
    return (total.log() - of_target)[targets != IGNORE].sum()
