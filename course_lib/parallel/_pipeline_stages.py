"""A GPT cut into stages that follow one another."""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.errors import ConfigError
from course_lib.model import GPT

__all__ = ["Stage", "even_shares", "split_model"]


class Stage(nn.Module):
    """Some blocks of a GPT in a row; the first stage embeds the tokens before, the last one makes logits behind.

    Its parameters are the model's own, under the model's names: "blocks.2.attention.qkv.weight" is so called in
    whatever stage it is.
    """

    cos: Tensor
    sin: Tensor
    embedding: nn.Module | None
    norm: nn.Module | None
    head: nn.Module | None

    def __init__(self, model: GPT, first: int, end: int) -> None:
        """Blocks `first` to `end` - 1."""
        super().__init__()
        self.width, self.context_dropout = model.config.d_model, model.config.dropout
        self.embedding = model.embedding if first == 0 else None
        self.blocks = nn.ModuleDict({str(place): model.blocks[place] for place in range(first, end)})
        is_last = end == len(model.blocks)
        self.norm = model.norm if is_last else None
        self.head = model.head if is_last else None
        self.register_buffer("cos", model.cos, persistent=False)
        self.register_buffer("sin", model.sin, persistent=False)

    def arrives(self, tokens: Tensor) -> Tensor:
        """What comes from the stage before for these tokens (b, T): an empty (b, T, D) to receive it in."""
        return torch.empty(*tokens.shape, self.width, device=self.cos.device)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (b, T) or what the stage before gave (b, T, D) -> (b, T, D), or logits (b, T, V)."""
        if self.embedding is not None:
            x = self.embedding(x)
            if self.context_dropout:
                x = F.dropout(x, self.context_dropout, self.training)
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        for block in self.blocks.values():
            x = block(x, cos, sin)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def even_shares(blocks: int, stages: int) -> list[int]:
    """Blocks of each stage, as even as they can be; with too few, the last stage has none, then the first neither.

    These two have something else to do: logits and embedding.
    """
    if stages < 1 or blocks < stages - 2:
        raise ConfigError(f"stages={stages} is too many for {blocks} blocks; at most {blocks + 2}, at least 1")
    inner = stages - max(0, stages - blocks)
    shares = [blocks // inner + (place < blocks % inner) for place in range(inner)] if inner else []
    return [*[0] * (stages - blocks == 2), *shares, *[0] * (stages > blocks)]


def split_model(
    model: GPT, stages: int, shares: Sequence[int] | None = None, kind: Callable[..., Stage] = Stage
) -> list[nn.Module]:
    """The model as `stages` modules: what the first gives is the second's input, and so on; the last gives logits.

    shares: blocks of each stage, in order; even unless given. kind: makes a stage of a model's blocks. Nothing is
    copied: the stages share their parameters with the model. With tied embeddings the first stage and the last hold the
    same matrix: in one process one tensor, on two ranks one on each, whose gradients have to be added (`Pipeline`
    does). `ConfigError` where shares do not add up.
    """
    count = len(model.blocks)
    shares = even_shares(count, stages) if shares is None else [*shares]
    if len(shares) != stages or sum(shares) != count or min(shares) < 0:
        raise ConfigError(
            f"shares={shares} must be {stages} numbers, at least 0, with the sum {count}: one for each stage, of the "
            f"model's {count} blocks; try {even_shares(count, stages)}"
        )
    ends = [sum(shares[: place + 1]) for place in range(stages)]
    parts = [kind(model, end - share, end) for share, end in zip(shares, ends, strict=True)]
    for stage in parts[1:]:
        stage.embedding = None  # a stage without blocks before it makes a second one begin with block 0
    for stage in parts[:-1]:
        stage.norm = stage.head = None
    return [*parts]
