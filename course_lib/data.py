"""Text -> documents -> tokens -> batches that can be resumed: where a run's data comes from, and the cursor in it.

A split is one stream of tokens, `eos doc eos doc eos ... doc eos`. The first eos is there so that every token of every
document is a target once: the bytes behind a stream's targets are exactly the UTF-8 bytes of its documents. An eos is
predicted too: it adds to the loss, but no bytes. That is the convention of bits per byte everywhere in this library.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from course_lib.config import stream_seed
from course_lib.documents import Document, default_corpus, load_text, split_documents
from course_lib.errors import CheckpointError, ConfigError, DataError
from course_lib.tokenizer import BPETokenizer, BytesTokenizer, Tokenizer

if TYPE_CHECKING:
    from course_lib.config import DataConfig

__all__ = [
    "IGNORE",
    "BatchStream",
    "Corpus",
    "Document",
    "default_corpus",
    "eval_batches",
    "load_text",
    "pack",
    "prepare",
    "shift",
    "split_documents",
    "target_bytes",
]

IGNORE = -100
"""A target that is not predicted: it adds to neither the loss nor the count of tokens."""

TOKENIZER_CHARACTERS = 4_000_000  # a tokenizer learns little from more, and the time grows

Row = TypeVar("Row", bound=Any)


@dataclass(frozen=True)
class Corpus:
    """Documents, split and turned into tokens. Streams are int32; bytes are those of the documents, eos counts none."""

    tokenizer: Tokenizer
    train: np.ndarray
    """The training stream, (n,) int32."""
    val: np.ndarray
    """The validation stream, (n,) int32."""
    train_bytes: int
    val_bytes: int
    train_documents: tuple[Document, ...] = ()
    val_documents: tuple[Document, ...] = ()

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, those for training first."""
        return self.train_documents + self.val_documents


def pack(tokenizer: Tokenizer, documents: Sequence[Document]) -> np.ndarray:
    """One stream of tokens, (n,) int32: eos, then each document followed by eos."""
    eos = np.array([tokenizer.eos], dtype=np.int32)
    parts = [eos]
    for document in documents:
        parts += [tokenizer.encode(document.text), eos]
    return np.concatenate(parts)


def prepare(config: DataConfig, tokenizer: Tokenizer | None = None) -> Corpus:
    """Documents, split, tokenizer and streams, as `config` says.

    tokenizer: that of a checkpoint; None: one that is trained on the training documents only.
    """
    documents = default_corpus() if config.text is None else load_text(config.text)
    train, val = split_documents(documents, config.val_fraction, config.split_seed)
    if tokenizer is None:
        tokenizer = (
            BytesTokenizer()
            if config.tokenizer == "bytes"
            else BPETokenizer.train(_first(train, TOKENIZER_CHARACTERS), config.vocab_size)
        )
    return Corpus(
        tokenizer=tokenizer,
        train=pack(tokenizer, train),
        val=pack(tokenizer, val),
        train_bytes=sum(document.size for document in train),
        val_bytes=sum(document.size for document in val),
        train_documents=tuple(train),
        val_documents=tuple(val),
    )


def _first(documents: Sequence[Document], characters: int) -> Iterator[str]:
    """Texts of the documents until there were `characters`."""
    for document in documents:
        if characters <= 0:
            return
        yield document.text[:characters]
        characters -= len(document.text)


def shift(tokens: Row, labels: Row | None = None) -> tuple[Row, Row]:
    """Inputs and targets of next-token prediction: tokens (..., T + 1) -> (..., T), (..., T), numpy or torch, views.

    `targets[t]` is the token after `inputs[t]`. `labels`, of the same shape as tokens, says which targets are IGNORE.
    """
    return tokens[..., :-1], (tokens if labels is None else labels)[..., 1:]


def eval_batches(tokens: np.ndarray, context: int, batch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Every target of the stream exactly once, in order: (inputs, targets), (b, T) int64 each, b <= batch.

    Windows do not overlap. The last one is filled with token 0 and targets IGNORE. Token 0 of the stream is no target.
    """
    count = -(-(len(tokens) - 1) // context)
    for first in range(0, count, batch):
        rows = min(batch, count - first)
        piece = tokens[first * context : (first + rows) * context + 1].astype(np.int64)
        missing = rows * context + 1 - len(piece)
        inputs = np.concatenate([piece[:-1], np.zeros(missing, np.int64)]).reshape(rows, context)
        targets = np.concatenate([piece[1:], np.full(missing, IGNORE, np.int64)]).reshape(rows, context)
        yield inputs, targets


def target_bytes(tokenizer: Tokenizer, targets: np.ndarray) -> int:
    """UTF-8 bytes that the targets stand for, to divide by in bits per byte; eos and IGNORE count none."""
    return int(tokenizer.byte_lengths[targets[targets != IGNORE]].sum())


class BatchStream:
    """Batches whose content is a pure function of (seed, step), so that a run's place in the data is a number.

    An epoch cuts the stream into windows of `context` + 1 tokens, no target in two of them, and takes each once, in an
    order that depends on (seed, epoch). Where the first window starts also depends on the epoch, so the cuts move (and
    what one epoch leaves out at either end, fewer than 2 `context` tokens, another takes in). Batch `step` is windows
    step * batch to (step + 1) * batch - 1 of that endless order; it may hold the end of one epoch and the start of the
    next. Ranks and micro-batches take slices of it: how many they are never changes the batch.
    """

    def __init__(
        self,
        tokens: np.ndarray,
        context: int,
        batch: int,
        seed: int = 0,
        start_step: int = 0,
        *,
        labels: np.ndarray | None = None,
    ) -> None:
        """`tokens` (n,), `labels` the same with IGNORE at what is not predicted; `batch` counts sequences.

        ConfigError when the data has fewer windows than the batch.
        """
        for name, value in (("context", context), ("batch", batch)):
            if value < 1:
                raise ConfigError(f"{name}={value} must be a whole number of at least 1")
        if labels is not None and labels.shape != tokens.shape:
            raise DataError(f"labels have shape {labels.shape}, tokens {tokens.shape}: they must be the same")
        if len(tokens) < context + 1:
            raise ConfigError(
                f"context={context} is too long: the data has {len(tokens):,} tokens and a window takes context + 1; "
                f"set context={max(1, (len(tokens) - 1) // 8)} or less, or give more text"
            )
        self.tokens, self.labels = tokens, labels
        self.context, self.batch, self.seed = context, batch, seed
        self.windows = max(1, (len(tokens) - context) // context)
        """Windows in an epoch."""
        self._offsets = min(context - 1, len(tokens) - 1 - self.windows * context) + 1
        if batch > self.windows:
            raise ConfigError(
                f"batch={batch} is larger than the data: {len(tokens):,} tokens make {self.windows} windows of context "
                f"{context}; set batch={self.windows} or less, or a shorter context, or give more text"
            )
        self.step = start_step
        self._epochs: dict[int, np.ndarray] = {}

    def _starts(self, epoch: int) -> np.ndarray:
        """Where the windows of an epoch start, in the order in which they are taken; the last two epochs are kept."""
        if epoch not in self._epochs:
            rng = np.random.default_rng(stream_seed(self.seed, f"epoch {epoch}"))
            offset = int(rng.integers(self._offsets))
            while len(self._epochs) >= 2:
                del self._epochs[next(iter(self._epochs))]
            self._epochs[epoch] = offset + self.context * rng.permutation(self.windows)
        return self._epochs[epoch]

    def _rows(self, step: int, low: int, high: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows low to high - 1 of the global batch of `step`."""
        place = step * self.batch + np.arange(low, high)
        starts = np.empty(len(place), dtype=np.int64)
        epochs = place // self.windows
        for epoch in range(int(epochs[0]), int(epochs[-1]) + 1):
            starts[epochs == epoch] = self._starts(epoch)[place[epochs == epoch] % self.windows]
        at = starts[:, None] + np.arange(self.context + 1)
        window = self.tokens[at].astype(np.int64)
        return shift(window, None if self.labels is None else self.labels[at].astype(np.int64))

    def global_batch(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(inputs, targets) of a step, (batch, context) int64 each: the same whoever asks, and in whatever order."""
        return self.slice(step)

    def slice(
        self, step: int, rank: int = 0, world_size: int = 1, micro: int = 0, micros: int = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the global batch for micro-batch `micro` of `micros` on `rank` of `world_size`.

        Slices are consecutive rows; together they are the batch, and their sizes differ by one row at most.
        """
        parts = world_size * micros
        if step < 0 or not (0 <= rank < world_size and 0 <= micro < micros):
            raise ConfigError(f"no slice for step {step}, rank {rank} of {world_size}, micro-batch {micro} of {micros}")
        if parts > self.batch:
            raise ConfigError(
                f"batch={self.batch} is too small for {world_size} ranks x {micros} micro-batches; set batch={parts}"
            )
        part = rank * micros + micro
        return self._rows(step, part * self.batch // parts, (part + 1) * self.batch // parts)

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """The global batch of the current step; moves on by one step."""
        batch = self.global_batch(self.step)
        self.step += 1
        return batch

    @property
    def epoch(self) -> float:
        """Epochs taken so far."""
        return self.step * self.batch / self.windows

    def state_dict(self) -> dict[str, int]:
        """The cursor: the step, and what has to be the same for the step to mean the same data."""
        return {"step": self.step, **self._fixed()}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on where `state` was taken; CheckpointError when the data or the batches are not the same."""
        for key, own in self._fixed().items():
            if state.get(key) != own:
                raise CheckpointError(
                    f"the data cursor was saved with {key}={state.get(key)}, this run has {key}={own}: batches would "
                    f"repeat or be skipped; resume with the saved {key}"
                )
        self.step = int(state["step"])

    def _fixed(self) -> dict[str, int]:
        return {"seed": self.seed, "batch": self.batch, "context": self.context, "tokens": len(self.tokens)}
