"""Parts that make a small GPT a specimen for `specimens.py`: ways to attend, and ways to mix positions.

Shapes: queries, keys, values (B, H, T, K); streams (B, T, D).
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.model import GPT
from course_lib.moe import MoE

__all__ = [
    "CausalConv",
    "Decoder",
    "Documents",
    "Last",
    "Mix",
    "NoisyExperts",
    "Recurrence",
    "Shifted",
    "attend",
    "attend_and_mask",
    "attend_over_queries",
    "batch_norm",
    "causal",
    "cumulative_mean",
    "fourier",
    "mean_of_all",
    "norm_over_time",
    "rounded",
    "window",
]

Allowed = Callable[[int], Tensor]


def causal(T: int) -> Tensor:
    """(T, T) bool: position t may see s <= t."""
    return torch.ones(T, T).tril().bool()


def window(T: int) -> Tensor:
    """(T, T) bool: position t sees itself and the three before it."""
    return causal(T) & torch.ones(T, T).triu(-3).bool()


def attend(allowed: Allowed, blocked: float = -math.inf) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """Attention whose scores are `blocked` where `allowed(T)` is not."""

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~allowed(q.shape[2]), blocked)
        return scores.softmax(-1) @ v

    return run


def attend_and_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Masked after the softmax: later positions have no weight, and are in the denominator."""
    weights = (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1)
    return (weights * causal(q.shape[2])) @ v


def attend_over_queries(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """A causal mask, and a softmax over the wrong axis: a key shares its weight out among later queries."""
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~causal(q.shape[2]), -math.inf)
    return scores.softmax(-2) @ v


class Mix(nn.Module):
    """Stands where a block's attention stood, or its feed-forward."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, *tables: Tensor) -> Tensor:
        return self.function(x)


class CausalConv(nn.Module):
    """Each position from the `taps` last ones up to itself, or from so many around it."""

    def __init__(self, width: int, taps: int, generator: torch.Generator, centred: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(width, 1, taps, generator=generator))
        self.pad = (taps // 2, taps // 2) if centred else (taps - 1, 0)

    def forward(self, x: Tensor, *tables: Tensor) -> Tensor:
        return F.conv1d(F.pad(x.mT, self.pad), self.weight, groups=x.shape[2]).mT


class Recurrence(nn.Module):
    """h_t = a h_(t-1) + (1 - a) x_t along the sequence; backwards; or with the state handed to the next sequence."""

    def __init__(self, backwards: bool = False, carried: bool = False) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.tensor(0.7))
        self.backwards, self.carried = backwards, carried

    def forward(self, x: Tensor, *tables: Tensor) -> Tensor:
        B, T, D = x.shape
        if self.carried:  # the whole batch as one long sequence
            return self.scan(x.view(1, B * T, D)).view(B, T, D)
        return self.scan(x.flip(1)).flip(1) if self.backwards else self.scan(x)

    def scan(self, x: Tensor) -> Tensor:
        state, out = torch.zeros_like(x[:, 0]), []
        for step in x.unbind(1):
            state = self.decay * state + (1 - self.decay) * step
            out.append(state)
        return torch.stack(out, 1)


def cumulative_mean(x: Tensor) -> Tensor:
    """The mean of all positions up to this one."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1)[:, None].to(x)


def mean_of_all(x: Tensor) -> Tensor:
    """Each position, and the mean of the sequence: a context vector."""
    return x + x.mean(1, keepdim=True)


def fourier(x: Tensor) -> Tensor:
    """Fourier transform over the sequence and the width, as in FNet (Lee-Thorp et al. 2021, arXiv 2105.03824)."""
    return torch.fft.fft2(x, norm="ortho").real


def norm_over_time(x: Tensor) -> Tensor:
    """Layer normalisation along the wrong axis."""
    return F.layer_norm(x.mT, (x.shape[1],)).mT


def rounded(x: Tensor) -> Tensor:
    """To 8 bits and back, with one scale for each sequence."""
    scale = x.abs().amax((1, 2), keepdim=True) / 127
    return (x / scale).round() * scale


def batch_norm(width: int) -> nn.Module:
    """BatchNorm over (B, T), on (B, T, D)."""

    class Norm(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.mT).mT

    return Norm(width)


class NoisyExperts(nn.Module):
    """A mixture of experts with noise on its router and dropout inside its experts, as some train it."""

    def __init__(self, layer: MoE) -> None:
        super().__init__()
        self.router, self.up, self.down = layer.router, layer.up, layer.down

    def forward(self, x: Tensor) -> Tensor:
        scores = (x @ self.router).softmax(-1)
        scores = scores + 0.1 * torch.rand(scores.shape, dtype=scores.dtype)
        best = scores.argmax(-1)  # (B, T)
        out = torch.zeros_like(x)
        for expert in range(len(self.up)):
            taken = best == expert
            hidden = F.dropout(F.silu(x[taken] @ self.up[expert]), 0.2, self.training)
            out[taken] = hidden @ self.down[expert]
        return out


class Documents(nn.Module):
    """A GPT on packed documents that end with token 0; it attends within a document, or across all of them."""

    def __init__(self, model: GPT, masked: bool) -> None:
        super().__init__()
        self.model, self.masked = model, masked

    def forward(self, tokens: Tensor) -> Tensor:
        ends = (tokens == 0).long()
        number = ends.cumsum(1) - ends  # (B, T)
        same = (number[:, :, None] == number[:, None, :])[:, None]  # (B, 1, T, T)
        block: Any
        for block in self.model.blocks:
            block.attention.attend = attend(lambda T: causal(T) & same if self.masked else causal(T))
        return self.model(tokens)


class Decoder(nn.Module):
    """One attention layer that reads a token at a time and keeps its keys and values, as generation does."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model
        self.cache: list[tuple[Tensor, Tensor]] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.cache, out = [], []
        block: Any = self.model.blocks[0]
        x = self.model.embedding(tokens)
        for step in x.unbind(1):
            q, k, v = block.attention.qkv(step).chunk(3, -1)  # (B, D) each
            self.cache.append((k, v))
            keys, values = (torch.stack(part, 1) for part in zip(*self.cache, strict=True))  # (B, t, D)
            weights = (keys @ q[..., None] / math.sqrt(q.shape[-1])).softmax(1)
            out.append(step + (weights * values).sum(1))
        return self.model.head(torch.stack(out, 1))


class Last(nn.Module):
    """A GPT that keeps what it saw last, counts its calls and returns (logits, state)."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model, self.calls = model, 0
        self.seen: Tensor | None = None

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.calls += 1
        x = self.model.embedding(tokens)
        self.seen = x.mean(1)
        with torch.autocast("cpu", torch.bfloat16):
            return self.model(tokens), self.seen


class Shifted(nn.Module):
    """A GPT whose position t is given token t + 1, its target: the shift was done to inputs and not to labels."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        return self.model(tokens.roll(-1, 1))
