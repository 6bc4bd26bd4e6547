"""The models of check 12.2: tokens (B, T) -> logits (B, T, V), made from a kind and a seed. What is wrong with each is
written into it here, and `tests/checks/test_ch12_oracles.py` finds it again by trying every change of a token."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["FUTURE", "KINDS", "OTHERS", "forward_of", "shows"]

Array = np.ndarray[Any, Any]
KINDS = {
    "plain": (False, False),
    "rounding": (False, False),
    "dropout": (False, False),
    "queue": (False, False),
    "next": (True, False),
    "far": (True, False),
    "rare": (True, False),
    "row": (True, False),
    "chunk": (True, False),
    "small": (True, False),
    "statistics": (False, True),
    "queue-batch": (False, True),
    "pick-batch": (True, True),
}
"""Kind -> does the past see the future of its sequence, does a sequence see another."""
FUTURE = [kind for kind, (future, _) in KINDS.items() if future]
OTHERS = [kind for kind, (_, others) in KINDS.items() if others]
WIDTH, EXPERTS, CHUNK = 8, 3, 4


def _weights(seed: int, vocab_size: int, T: int) -> dict[str, Array]:
    rng = np.random.default_rng([seed, 1212])
    return {
        "embedding": rng.normal(size=(vocab_size, WIDTH)),
        "position": rng.normal(size=(T, WIDTH)),
        "query": rng.normal(size=(WIDTH, WIDTH)) / 3,
        "value": rng.normal(size=(WIDTH, WIDTH)) / 3,
        "router": rng.normal(size=(WIDTH, EXPERTS)),
        "head": rng.normal(size=(WIDTH, vocab_size)),
        "note": rng.normal(size=WIDTH),
        "rare": np.array(seed % vocab_size),
    }


def _softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return np.asarray(e / e.sum(-1, keepdims=True))


def _first(taken: Array, places: int) -> Array:
    """Of what is taken (n, E), the first `places` of each expert."""
    return np.asarray(taken & (taken.cumsum(0) <= places))


def _best(scores: Array, places: int) -> Array:
    """The `places` highest of each expert: scores (n, E) -> bool (n, E)."""
    taken = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(taken, np.argsort(-scores, axis=0)[:places], True, axis=0)
    return taken


def _taken(kind: str, scores: Array) -> Array:
    """Who is taken by which expert: scores (B, T, E) -> bool (B, T, E)."""
    B, T, E = scores.shape
    top = scores == scores.max(2, keepdims=True)
    if kind == "queue":
        return np.stack([_first(one, math.ceil(T / E)) for one in top])
    if kind == "queue-batch":
        return _first(top.reshape(B * T, E), math.ceil(B * T / E / 2)).reshape(top.shape)
    if kind == "pick-batch":
        return _best(scores.reshape(B * T, E), B * T // E).reshape(top.shape)
    if kind == "chunk":
        for b in range(B):
            for t in range(0, T, CHUNK):
                part = scores[b, t : t + CHUNK]
                top[b, t : t + CHUNK] = _best(part, -(-len(part) // E))
    return np.asarray(top)


def _forward(kind: str, w: dict[str, Array], tokens: Array, keep: Array | None) -> Array:
    """Logits (B, T, V) in FP32. keep: what dropout leaves of the stream (B, T, D)."""
    B, T = tokens.shape
    x = w["embedding"][tokens] + w["position"]  # (B, T, D), float64
    ahead = np.arange(T)[None, :] - np.arange(T)[:, None]  # [t, s] = s - t
    seen = np.repeat((ahead <= (1 if kind == "next" else 0))[None], B, axis=0)
    if kind == "row":
        seen[-1] = True
    scores = np.where(seen, x @ w["query"] @ x.transpose(0, 2, 1), -np.inf)
    h = x + _softmax(scores) @ x @ w["value"]
    if kind == "far":
        h[:, : T // 3] += x[:, -1:] / 4
    if kind == "rare":
        there = (tokens == w["rare"]).astype(float)
        h = h + (there.sum(1, keepdims=True) - there.cumsum(1))[..., None] * w["note"] / 8
    if kind == "statistics":
        h = (h - h.mean(0)) / np.sqrt(h.var(0) + 1)
    if keep is not None:
        h = h * keep
    route = _softmax(h @ w["router"])
    load = route * _taken(kind, route) @ np.arange(1, EXPERTS + 1)  # (B, T)
    logits = (h + load[..., None] * np.tanh(h)) @ w["head"]
    if kind == "small":
        logits[:, :, 1] += x.mean((1, 2))[:, None] / 8
    logits = logits.astype(np.float32)
    if kind == "rounding":  # a kernel that subtracts the batch's maximum, and adds it again
        shift = np.float32(8 + logits.max())
        logits = (logits - shift) + shift
    return np.asarray(logits)


def forward_of(
    kind: str,
    seed: int,
    shape: tuple[int, int],
    vocab_size: int,
    inside: Callable[[Tensor], Tensor] | None = None,
) -> Callable[[Tensor], Tensor]:
    """The model, as a learner's probe gets it. It takes tokens of one shape alone, and its weights stay as they are.

    `inside`: a model that is not of KINDS, behind the same door.
    """
    w = {} if inside is not None else _weights(seed, vocab_size, shape[1])

    def forward(tokens: Tensor) -> Tensor:
        if not isinstance(tokens, torch.Tensor) or tuple(tokens.shape) != tuple(shape) or tokens.dtype != torch.int64:
            got = (
                f"{tuple(tokens.shape)}, {tokens.dtype}" if isinstance(tokens, torch.Tensor) else type(tokens).__name__
            )
            raise ValueError(f"this model takes tokens of the shape {tuple(shape)}, int64; yours were {got}")
        given = tokens.numpy()
        if given.min() < 0 or given.max() >= vocab_size:
            raise ValueError(f"this model knows the tokens 0 to {vocab_size - 1}; yours go to {given.max()}")
        if inside is not None:
            return inside(tokens)
        keep = None
        if kind == "dropout":
            keep = (torch.rand(*shape, WIDTH) >= 0.3).numpy() / 0.7
        return torch.from_numpy(_forward(kind, w, given, keep))

    return forward


def shows(kind: str, seed: int, tokens: Array, vocab_size: int, *, size: float = 1e-3) -> bool:
    """Whether what is wrong with a model that picks tokens shows with these tokens, by changing one at a time."""
    w, found = _weights(seed, vocab_size, tokens.shape[1]), [False, False]
    before = _forward(kind, w, tokens, None)
    for b in range(tokens.shape[0]):
        for s in range(tokens.shape[1]):
            for token in range(vocab_size):
                other = tokens.copy()
                other[b, s] = token
                moved = np.abs(_forward(kind, w, other, None) - before).max(2) > size
                found[0] |= bool(moved[b, :s].any())
                moved[b] = False
                found[1] |= bool(moved.any())
                if tuple(found) == KINDS[kind] == (True, True):
                    return True
    return tuple(found) == KINDS[kind]
