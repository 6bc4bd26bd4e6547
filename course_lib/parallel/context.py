"""Context parallel: each rank has some positions of every sequence, the whole model, and all heads.

Only attention looks at other positions. `all_gather_attention` brings all keys and values to every rank (as Llama 3
did, Grattafiori et al. 2024, arXiv 2407.21783, section 3.3.2), `ring_attention` passes them round. For its weights
the strategy is data parallel: gradients are summed over ranks. PyTorch's `context_parallel` does not run on a CPU.

The sequence is cut into 2 N chunks, two for each rank, `contiguous` ones or the r-th from each end (`zigzag`).
"""

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.errors import ConfigError
from course_lib.model import GPT, Block
from course_lib.parallel._ring_attention import Chunks, OnlineSoftmax, ring_attention, sees
from course_lib.parallel.ddp import DataParallel
from course_lib.parallel.edges import gather_in
from course_lib.parallel.strategy import MakeOptimizer, rank_and_world

__all__ = [
    "ContextParallel",
    "OnlineSoftmax",
    "all_gather_attention",
    "chunk_positions",
    "contiguous",
    "contiguous_positions",
    "ring_attention",
    "ring_work",
    "zigzag",
    "zigzag_positions",
]


def contiguous(ranks: int) -> list[tuple[int, ...]]:
    """Chunk numbers of each rank: two neighbours."""
    return [(2 * rank, 2 * rank + 1) for rank in range(ranks)]


def zigzag(ranks: int) -> list[tuple[int, ...]]:
    """Chunk numbers of each rank: one from the front and its mirror image from the back."""
    return [(rank, 2 * ranks - 1 - rank) for rank in range(ranks)]


def chunk_positions(length: int, chunks: Chunks) -> list[Tensor]:
    """For each rank the positions (t,) of its chunks. `ConfigError` where the chunks would not be of one size."""
    number = sum(len(own) for own in chunks)
    if length % number:
        fits = max(1, round(length / number)) * number
        raise ConfigError(f"a sequence of {length} tokens does not divide into {number} chunks; take {fits} tokens")
    parts = torch.arange(length).chunk(number)
    return [torch.cat([parts[place] for place in own]) for own in chunks]


def zigzag_positions(length: int, ranks: int) -> list[Tensor]:
    """`chunk_positions` of `zigzag`."""
    return chunk_positions(length, zigzag(ranks))


def contiguous_positions(length: int, ranks: int) -> list[Tensor]:
    """`chunk_positions` of `contiguous`."""
    return chunk_positions(length, contiguous(ranks))


def ring_work(length: int, chunks: Chunks) -> list[list[int]]:
    """Pairs of a query and a key that it may see: a row for each rank, a number for each step of the ring."""
    size = length // sum(len(own) for own in chunks)
    pairs = {"nothing": 0, "all": size * size, "triangle": size * (size + 1) // 2}
    return [
        [
            sum(pairs[sees(q, k)] for q in own for k in chunks[(rank - step) % len(chunks)])
            for step in range(len(chunks))
        ]
        for rank, own in enumerate(chunks)
    ]


def all_gather_attention(
    q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, group: dist.ProcessGroup | None = None
) -> Tensor:
    """As `ring_attention`, with all keys and values on every rank; backward reduce-scatters their gradients.

    Each chunk of queries attends to the keys up to its own end, and no further.
    """
    mine = chunks[dist.get_rank(group)]
    size, order = q.shape[2] // len(mine), torch.tensor([place for own in chunks for place in own]).argsort()
    gathered = gather_in(torch.stack([k, v]), 3, group).unflatten(3, (-1, size))  # chunks in the order of the ranks
    k, v = gathered.index_select(3, order).flatten(3, 4)  # in the order of the sequence
    out = []
    for place, queries in zip(mine, q.chunk(len(mine), dim=2), strict=True):
        end = (place + 1) * size
        seen = torch.ones(size, end, dtype=torch.bool).tril(end - size)
        keys, values = k[:, :, :end], v[:, :, :end]
        grouped = q.shape[1] != k.shape[1]
        out.append(F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, enable_gqa=grouped))
    return torch.cat(out, dim=2)


class ContextParallel(DataParallel):
    """Every rank trains the whole model on its positions of each sequence.

    attention: `ring_attention` or `all_gather_attention`. layout: `zigzag` or `contiguous`. Targets have been shifted
    before the sequence is cut, so that the last token of a chunk still has its target.
    """

    model: GPT

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        attention: Callable[..., Tensor] = ring_attention,
        layout: Callable[[int], list[tuple[int, ...]]] = zigzag,
    ) -> None:
        assert isinstance(model, GPT)
        super().__init__(model, make_optimizer)
        rank, ranks = rank_and_world()
        self.rank, self.chunks, self.attention = rank, layout(ranks), attention
        self.cos, self.sin = model.cos, model.sin
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attention.attend = self.attend  # type: ignore[method-assign]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.attention(q.to(v.dtype), k.to(v.dtype), v, self.chunks)

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        own = chunk_positions(inputs.shape[1], self.chunks)[self.rank]
        self.model.cos, self.model.sin = self.cos[own], self.sin[own]  # a token is turned by its place in the sequence
        return inputs[:, own], targets[:, own]
