"""Attention over a sequence that no rank has whole: keys and values go round a ring, and a softmax builds up.

Liu, Zaharia & Abbeel 2023 (arXiv 2310.01889). The softmax in pieces: Milakov & Gimelshein 2018 (arXiv 1805.02867); its
backward from the stored logarithm of the sum: Dao et al. 2022 (FlashAttention, arXiv 2205.14135).

Shapes: B sequences, H heads of queries and G of keys and values, R = H / G, t tokens on this rank, K a head's width.
"""

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

__all__ = ["OnlineSoftmax", "ring_attention", "sees"]

Chunks = Sequence[tuple[int, ...]]
"""For each rank the numbers of its chunks, in the order in which it has them."""


class OnlineSoftmax:
    """softmax(scores) @ values, with scores (..., q, k) and values (..., k, K) that come in pieces along k.

    After each piece: the largest score so far, the sum of exp(score - largest), and the values weighted so. A larger
    score that comes later shrinks what is there.
    """

    def __init__(self) -> None:
        self.largest: Tensor | None = None

    def add(self, scores: Tensor, values: Tensor) -> None:
        """A row's first piece has to have a score above -inf."""
        if self.largest is None:
            self.largest = scores.amax(-1, keepdim=True)
            weights = torch.exp(scores - self.largest)
            self.total, self.weighted = weights.sum(-1, keepdim=True), weights @ values
            return
        larger = torch.maximum(self.largest, scores.amax(-1, keepdim=True))
        weights, shrink = torch.exp(scores - larger), torch.exp(self.largest - larger)
        self.total = self.total * shrink + weights.sum(-1, keepdim=True)
        self.weighted = self.weighted * shrink + weights @ values
        self.largest = larger

    def result(self) -> tuple[Tensor, Tensor]:
        """The weighted mean (..., q, K), and the logarithm of the sum of exponentials (..., q, 1)."""
        assert self.largest is not None
        return self.weighted / self.total, self.largest + self.total.log()


def sees(queries: int, keys: int) -> str:
    """What chunk number `queries` of the sequence attends to in chunk `keys`: "nothing", "all", or "triangle"."""
    return "nothing" if keys > queries else "triangle" if keys == queries else "all"


def pass_on(x: Tensor, tag: int, group: dist.ProcessGroup | None) -> Callable[[], Tensor]:
    """Start to send x to the next rank; calling what comes back waits for the previous rank's."""
    rank, ranks = dist.get_rank(group), dist.get_world_size(group)
    incoming = torch.empty_like(x)
    works = [
        dist.isend(x, group=group, tag=tag, group_dst=(rank + 1) % ranks),
        dist.irecv(incoming, group=group, tag=tag, group_src=(rank - 1) % ranks),
    ]

    def wait() -> Tensor:
        for work in works:
            assert work is not None
            work.wait()
        return incoming

    return wait


def _blocks(chunks: Chunks, rank: int, source: int) -> list[tuple[int, int, bool]]:
    """(place of a query chunk here, place of a key chunk of `source`, whether half of it is masked)."""
    pairs = product(enumerate(chunks[rank]), enumerate(chunks[source]))
    seen = [(q, k, sees(mine, theirs)) for (q, mine), (k, theirs) in pairs]
    blocks = [(q, k, what == "triangle") for q, k, what in seen if what != "nothing"]
    return sorted(blocks, key=lambda block: not block[2])  # a row's own key first: it is never masked


def _scores(q: Tensor, k: Tensor, triangle: bool) -> Tensor:
    """Scaled queries (B, G, R c, K), keys (B, G, c, K) -> (B, G, R c, c)."""
    scores = q @ k.mT
    if not triangle:
        return scores
    c = k.shape[-2]
    later = torch.ones(c, c, dtype=torch.bool, device=k.device).triu(1)
    return scores.masked_fill(later.repeat(q.shape[-2] // c, 1), -torch.inf)


def _cut(x: Tensor, pieces: int) -> list[Tensor]:
    """(B, H, t, ...) -> for each chunk (B, G, R c, ...): heads that share keys and values lie side by side."""
    return [piece.flatten(2, 3) for piece in x.chunk(pieces, dim=3)]


def _join(pieces: list[Tensor], heads: int) -> Tensor:
    """The way back: chunks (B, G, R c, K) -> (B, H, t, K)."""
    groups = pieces[0].shape[1]
    return torch.cat([piece.unflatten(2, (heads // groups, -1)) for piece in pieces], 3).flatten(1, 2)


class _Ring(Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, group: dist.ProcessGroup | None) -> Tensor:
        rank, ranks, pieces = dist.get_rank(group), dist.get_world_size(group), len(chunks[0])
        queries = _cut((q * q.shape[-1] ** -0.5).unflatten(1, (k.shape[1], -1)), pieces)
        softmax = [OnlineSoftmax() for _ in queries]
        travelling = torch.stack([k, v])
        for step in range(ranks):  # what is here now came from rank - step
            arriving = pass_on(travelling, 0, group) if step < ranks - 1 else None
            keys, values = (x.chunk(pieces, dim=2) for x in travelling)
            for mine, theirs, triangle in _blocks(chunks, rank, (rank - step) % ranks):
                softmax[mine].add(_scores(queries[mine], keys[theirs], triangle), values[theirs])
            if arriving is not None:
                travelling = arriving()
        outputs, logs = zip(*(one.result() for one in softmax), strict=True)
        out = _join(list(outputs), q.shape[1])
        ctx.save_for_backward(q, k, v, out, *logs)
        ctx.chunks, ctx.group = chunks, group
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        q, k, v, out, *logs = ctx.saved_tensors
        chunks, group = ctx.chunks, ctx.group
        rank, ranks, pieces = dist.get_rank(group), dist.get_world_size(group), len(chunks[0])
        groups, scale = k.shape[1], q.shape[-1] ** -0.5
        queries = _cut((q * scale).unflatten(1, (groups, -1)), pieces)
        gradients = _cut(gradient.unflatten(1, (groups, -1)), pieces)
        means = _cut((gradient * out).sum(-1, keepdim=True).unflatten(1, (groups, -1)), pieces)
        to_queries = [torch.zeros_like(one) for one in queries]

        def block_gradients(source: int, travelling: Tensor) -> Tensor:
            """This rank's part of the gradients of the keys and values that came from `source`."""
            keys, values = (x.chunk(pieces, dim=2) for x in travelling)
            sums = torch.zeros_like(travelling)
            to_keys, to_values = (x.chunk(pieces, dim=2) for x in sums)
            for mine, theirs, triangle in _blocks(chunks, rank, source):
                weights = torch.exp(_scores(queries[mine], keys[theirs], triangle) - logs[mine])
                to_values[theirs].add_(weights.mT @ gradients[mine])
                to_scores = weights * (gradients[mine] @ values[theirs].mT - means[mine])
                to_queries[mine] += to_scores @ keys[theirs]
                to_keys[theirs].add_(to_scores.mT @ queries[mine])
            return sums

        travelling = torch.stack([k, v])
        arriving = pass_on(travelling, 0, group) if ranks > 1 else None
        own, sums = block_gradients(rank, travelling), None
        for step in range(1, ranks):
            assert arriving is not None
            travelling = arriving()
            arriving = pass_on(travelling, 0, group) if step < ranks - 1 else None
            here = block_gradients((rank - step) % ranks, travelling)
            if sums is not None:
                here += sums()  # what the ranks before have found for these keys and values
            sums = pass_on(here, 1, group)
        if sums is not None:
            own += sums()  # home again
        to_q = _join([one * scale for one in to_queries], q.shape[1])
        return to_q, own[0], own[1], None, None


def ring_attention(q: Tensor, k: Tensor, v: Tensor, chunks: Chunks, group: dist.ProcessGroup | None = None) -> Tensor:
    """Causal attention of this rank's queries (B, H, t, K) to the whole sequence's keys and values -> (B, H, t, K).

    k and v (B, G, t, K) are this rank's as well. Forward passes them on N - 1 times; backward does so again, and passes
    on their gradients N - 1 times. No rank ever has more than two ranks' keys and values.
    """
    return _Ring.apply(q, k, v, chunks, group)
