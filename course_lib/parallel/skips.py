"""A GPT with long skip connections, cut into a pipeline: what passes the stages between, and how many bytes that is.

    model = SkipGPT(config, skips=[(0, 7)])              # what block 0 gives is added to what block 7 takes
    Pipeline(model, make_optimizer, split=split_skips)   # runs as any other model does
    skip_traffic(ranks=4, skips=[(0, 7)])                # bytes over each boundary, counted on real ranks

A stage between the two ends has no use for the skipped tensor and receives, keeps and sends it all the same.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from course_lib.config import ModelConfig, preset
from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.parallel._pipeline_stages import Stage, split_model
from course_lib.parallel.equivalence import adamw
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.pipeline import Pipeline
from course_lib.parallel.strategy import rank_and_world
from course_lib.parallel.traffic import count_traffic
from course_lib.planning.communication import Boundary

__all__ = ["SkipGPT", "SkipStage", "skip_traffic", "split_skips"]


class SkipGPT(GPT):
    """The input of block `to` is what the block before it gives, plus what block `source` gave, for each skip."""

    def __init__(self, config: ModelConfig, skips: Sequence[tuple[int, int]], seed: int = 0) -> None:
        super().__init__(config, seed)
        for source, to in skips:
            if not 0 <= source < to < config.n_layers:
                raise ConfigError(f"skip ({source}, {to}) must go to a later block of 0 to {config.n_layers - 1}")
        self.skips = tuple(skips)

    def forward(self, tokens: Tensor) -> Tensor:
        T = tokens.shape[1]
        x, given = self.embedding(tokens), dict[int, Tensor]()
        for place, block in enumerate(self.blocks):
            x = sum((given[source] for source, to in self.skips if to == place), x)
            given[place] = x = block(x, self.cos[:T], self.sin[:T])
        return self.head(self.norm(x))  # (B, T, V)


class SkipStage(Stage):
    """Some blocks in a row. What crosses a boundary is one tensor (n, b, T, D): the stream, then what is skipped."""

    def __init__(self, model: SkipGPT, first: int, end: int) -> None:
        super().__init__(model, first, end)
        self.first, self.end, self.skips = first, end, model.skips

    def crossing(self, boundary: int) -> list[int]:
        """Blocks before block `boundary` whose outputs later ones want, and which the stream itself does not bring."""
        return sorted({source for source, to in self.skips if source < boundary - 1 and boundary <= to})

    def arrives(self, tokens: Tensor) -> Tensor:
        stream = super().arrives(tokens)  # (b, T, D)
        return stream.new_empty(1 + len(self.crossing(self.first)), *stream.shape)

    def forward(self, x: Tensor) -> Tensor:
        """Tokens (b, T) or (n, b, T, D) -> (n, b, T, D), or logits (b, T, V)."""
        given: dict[int, Tensor] = {}
        if self.embedding is not None:
            x = self.embedding(x)
        else:
            stream, *skipped = x.unbind()
            given = dict(zip(self.crossing(self.first), skipped, strict=True)) | {self.first - 1: stream}
            x = stream
        cos, sin = self.cos[: x.shape[-2]], self.sin[: x.shape[-2]]
        for place in range(self.first, self.end):
            x = sum((given[source] for source, to in self.skips if to == place), x)
            given[place] = x = self.blocks[str(place)](x, cos, sin)
        if self.norm is not None and self.head is not None:
            return self.head(self.norm(x))
        return torch.stack([x, *(given[source] for source in self.crossing(self.end))])


def split_skips(model: SkipGPT, stages: int, shares: Sequence[int] | None = None) -> list[nn.Module]:
    """`split_model` for a model with skips."""
    return split_model(model, stages, shares, SkipStage)


def skip_traffic(
    ranks: int = 2,
    skips: Sequence[tuple[int, int]] = (),
    *,
    micro_batches: int = 4,
    sequences: int = 2,
    shape: ModelConfig | None = None,
    length: int = 16,
    timeout: float = 60.0,
) -> list[Boundary]:
    """Bytes over each boundary of `ranks` pipeline ranks in one 1F1B step, counted as they are sent.

    sequences: of one micro-batch, with `length` tokens each.
    """
    job = partial(_sent, skips, micro_batches, sequences, shape or _shape(), length)
    found = run_ranks(job, ranks, timeout=timeout)
    return [Boundary(found[r].get(r + 1, 0), found[r + 1].get(r, 0)) for r in range(ranks - 1)]


def _shape() -> ModelConfig:
    """Eight narrow blocks. Tied embeddings would send their gradient past the boundaries."""
    return preset("mini", n_layers=8, d_model=32, n_heads=2, d_ff=64, vocab_size=64, tie_embeddings=False)


def _sent(
    skips: Sequence[tuple[int, int]], micro_batches: int, sequences: int, shape: ModelConfig, length: int
) -> dict[int, int]:
    """What this rank sends to each other one in a step, in bytes."""
    strategy = Pipeline(SkipGPT(shape, skips), adamw, split=split_skips)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, shape.vocab_size, (micro_batches * sequences, length + 1), generator=generator)
    sent: dict[int, int] = {}
    with count_traffic() as traffic:
        strategy.forward_backward(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:].numel(), micro_batches)
    for call in traffic.select("send"):
        if call.peer is not None and call.peer != rank_and_world()[0]:
            sent[call.peer] = sent.get(call.peer, 0) + call.bytes
    return sent
