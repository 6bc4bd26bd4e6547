"""Reductions that are equal on paper and differ in bits, and kernels that are wrong in ways that one sees.

A kernel here is a function of float32 arrays. A sum takes (n,) and gives a number; an attention takes queries, keys and
values (T, d) and gives (T, d), causal. Each wrong one has one bug, and is right on many inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ATTENTIONS", "BLOCK", "SUMS", "WRONG_ATTENTIONS", "WRONG_SUMS", "Array", "Kernel"]

Array: TypeAlias = npt.NDArray[Any]
Kernel: TypeAlias = Callable[..., Any]

BLOCK = 64
"""Elements that a blocked kernel takes at once."""


# ---------------------------------------------------------------- sums


def one_by_one(x: Array) -> np.float32:
    """From left to right."""
    return np.float32(np.add.accumulate(x, dtype=np.float32)[-1]) if len(x) else np.float32(0)


def pairwise(x: Array) -> np.float32:
    """Neighbours, then their sums: a tree."""
    x = x.astype(np.float32)
    while len(x) > 1:
        tail = x[len(x) - len(x) % 2 :]
        x = np.concatenate([x[0 : len(x) - 1 : 2] + x[1::2], tail])
    return x[0] if len(x) else np.float32(0)


def blocked(x: Array) -> np.float32:
    """Each block to one partial sum, then the partial sums: what a GPU does with its thread blocks."""
    return one_by_one(np.array([one_by_one(x[i : i + BLOCK]) for i in range(0, len(x), BLOCK)], dtype=np.float32))


def _remainder_dropped(x: Array) -> np.float32:
    return blocked(x[: len(x) - len(x) % BLOCK])  # n // BLOCK blocks


def _tail_short(x: Array) -> np.float32:
    parts = []
    for i in range(0, len(x), BLOCK):
        stop = min(i + BLOCK, len(x) - 1) if i + BLOCK > len(x) else i + BLOCK  # the last index taken for a length
        parts.append(one_by_one(x[i:stop]))
    return one_by_one(np.array(parts, dtype=np.float32))


def _tail_unmasked(x: Array) -> np.float32:
    padded = np.zeros(-(-len(x) // BLOCK) * BLOCK, dtype=np.float32)
    padded[: len(x)] = x
    if len(x) > BLOCK and len(x) % BLOCK:  # a buffer that is used again and was not cleared behind the tail
        padded[len(x) :] = x[len(x) - len(x) % BLOCK - (len(padded) - len(x)) :][: len(padded) - len(x)]
    return blocked(padded)


def _edge_twice(x: Array) -> np.float32:
    parts = [one_by_one(x[i : i + BLOCK + 1]) for i in range(0, len(x), BLOCK)]  # <= for <
    return one_by_one(np.array(parts, dtype=np.float32))


def _half_partials(x: Array) -> np.float32:
    parts = [one_by_one(x[i : i + BLOCK]) for i in range(0, len(x), BLOCK)]
    with np.errstate(over="ignore"):
        return one_by_one(np.array(parts, dtype=np.float16).astype(np.float32))


def _half_inside(x: Array) -> np.float32:
    with np.errstate(over="ignore", invalid="ignore"):
        parts = [np.add.accumulate(x[i : i + BLOCK].astype(np.float16))[-1] for i in range(0, len(x), BLOCK)]
    return one_by_one(np.array(parts, dtype=np.float32))


SUMS: dict[str, Kernel] = {"one by one": one_by_one, "pairwise": pairwise, "blocked": blocked}
"""Three right ones."""
WRONG_SUMS: dict[str, Kernel] = {
    "the remainder is dropped": _remainder_dropped,
    "the last element of the tail is missing": _tail_short,
    "the tail block reads what was there before": _tail_unmasked,
    "each block reads one element too many": _edge_twice,
    "partial sums are kept in FP16": _half_partials,
    "the sum inside a block is FP16": _half_inside,
}


# ---------------------------------------------------------------- attention


def all_at_once(q: Array, k: Array, v: Array) -> Array:
    """The whole score matrix, its softmax, the product with the values."""
    scores = _scores(q, k)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray((weights / weights.sum(1, keepdims=True)) @ v)


def divided_last(q: Array, k: Array, v: Array) -> Array:
    """The same, divided by the weights' sum after the product: fewer divisions, other bits."""
    scores = _scores(q, k)
    weights = np.exp(scores - scores.max(1, keepdims=True))
    return np.asarray((weights @ v) / weights.sum(1, keepdims=True))


def online(q: Array, k: Array, v: Array) -> Array:
    """Block by block with a running maximum, no score matrix (Milakov & Gimelshein 2018, arXiv 1805.02867)."""
    return _online(q, k, v)


def _scores(q: Array, k: Array) -> Array:
    scores = (q @ k.T) / np.float32(math.sqrt(q.shape[1]))
    return np.where(np.arange(len(k))[None] <= np.arange(len(q))[:, None], scores, np.float32(-np.inf))


def _online(
    q: Array,
    k: Array,
    v: Array,
    *,
    rescale_sum: bool = True,
    rescale_out: bool = True,
    diagonal: int = 0,
    mask: Literal["all", "whole blocks", "first block"] = "all",
    tail: bool = True,
    maximum: bool = True,
) -> Array:
    T, d = q.shape
    out, total = np.zeros((T, v.shape[1]), np.float32), np.zeros((T, 1), np.float32)
    highest = np.full((T, 1), -np.inf if maximum else 0, np.float32)
    rows = np.arange(T)[:, None]
    for start in range(0, T if tail else T - T % BLOCK, BLOCK):
        cols = np.arange(start, min(start + BLOCK, T))[None]
        seen = cols <= rows + diagonal
        if mask == "whole blocks":  # a full block is told from the diagonal one by its block's index; the tail is not
            seen = seen | (np.full_like(cols, len(cols[0]) < BLOCK, dtype=bool))
        scores = np.where(seen, (q @ k[cols[0]].T) / np.float32(math.sqrt(d)), np.float32(-np.inf))
        new = np.maximum(highest, scores.max(1, keepdims=True)) if maximum else highest
        safe = np.where(np.isfinite(new), new, np.float32(0))
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(scores - safe)
            shrink = np.where(np.isfinite(highest), np.exp(highest - safe), np.float32(0))
            total = total * (shrink if rescale_sum else 1) + weights.sum(1, keepdims=True)
            out = out * (shrink if rescale_out else 1) + weights @ v[cols[0]]
        highest = new
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(out / total, dtype=np.float32)


ATTENTIONS: dict[str, Kernel] = {"all at once": all_at_once, "divided last": divided_last, "online": online}
"""Three right ones."""
WRONG_ATTENTIONS: dict[str, Kernel] = {
    "the sum is not rescaled": lambda q, k, v: _online(q, k, v, rescale_sum=False),
    "the output is not rescaled": lambda q, k, v: _online(q, k, v, rescale_out=False),
    "nothing is rescaled": lambda q, k, v: _online(q, k, v, rescale_sum=False, rescale_out=False),
    "the mask lets one future token through": lambda q, k, v: _online(q, k, v, diagonal=1),
    "the mask hides the token itself": lambda q, k, v: _online(q, k, v, diagonal=-1),
    "the tail block has no mask": lambda q, k, v: _online(q, k, v, mask="whole blocks"),
    "the tail block is dropped": lambda q, k, v: _online(q, k, v, tail=False),
    "no maximum is subtracted": lambda q, k, v: _online(q, k, v, maximum=False),
}
