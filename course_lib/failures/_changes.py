"""The changes that the leak probe makes: other tokens in places that a position may not see. See `causality.py`."""

from typing import NamedTuple

import torch
from torch import Tensor

from course_lib.config import stream_seed
from course_lib.errors import ConfigError, DataError

__all__ = ["Change", "Changes"]


class Change(NamedTuple):
    """Tokens (B, T) of which some have changed, and (B, T) bool: which."""

    tokens: Tensor
    where: Tensor

    def past(self, predicts: int) -> Tensor:
        """(B, T) bool: positions before every change of their own sequence, which may not move; where none: none."""
        T = self.where.shape[1]
        first = torch.where(self.where.any(1), self.where.int().argmax(1), -T)
        return torch.arange(T) <= first[:, None] - predicts


class Changes:
    """Draws changes of the given tokens from a seed. Bad input is said in one line."""

    def __init__(
        self, tokens: Tensor, vocab_size: int, seed: int, documents: Tensor | int | None, predicts: int
    ) -> None:
        _check(tokens, vocab_size, predicts)
        self.tokens, self.vocab_size, self.predicts = tokens, vocab_size, predicts
        self.generator = torch.Generator().manual_seed(stream_seed(seed, "probe"))
        self.eos = documents if isinstance(documents, int) else None
        self.documents = None if documents is None else _documents(documents, tokens)

    def anything(self) -> Tensor:
        """Random tokens of the same shape."""
        shape = self.tokens.shape
        return torch.randint(self.vocab_size, shape, generator=self.generator).to(self.tokens)

    def one_more(self) -> None:
        """Put a random sequence beside the given ones, the documents of the first to it."""
        self.tokens = torch.cat([self.tokens, self.anything()[:1]])
        if self.documents is not None:
            self.documents = torch.cat([self.documents, self.documents[:1]])

    def pick(self, high: int, low: int = 0) -> int:
        """A whole number from low to high - 1."""
        return int(torch.randint(low, high, (), generator=self.generator))

    def change(self, where: Tensor, eos: int | None = None) -> Change:
        """Other tokens at these places (B, T), each unlike what was there; `eos` neither comes nor goes."""
        old, V = self.tokens, self.vocab_size
        step = torch.randint(1, V, old.shape, generator=self.generator).to(old)
        new = (old + step) % V
        if eos is not None:
            where = where & (old != eos).to(where.device)
            new = torch.where(new == eos, (new + 1) % V, new)
            new = torch.where(new == old, (new + 1) % V, new)
            new = torch.where(new == eos, (new + 1) % V, new)
        return Change(torch.where(where.to(old.device), new, old), where)

    def later(self, kind: int) -> Change:
        """In every sequence some later tokens: in turn the last one, all but the first, all from a place on, one."""
        B, T = self.tokens.shape
        where = torch.zeros(B, T, dtype=torch.bool)
        first = min(self.predicts, T - 1)  # nothing is earlier than token 0, unless labels are inputs
        for row in range(B):
            place = (slice(T - 1, T), slice(first, T), slice(self.pick(T, first), T))[kind % 4 - 3]
            if kind % 4 == 3:
                one = self.pick(T, first)
                place = slice(one, one + 1)
            where[row, place] = True
        return self.change(where)

    def token(self, row: int, position: int) -> Change:
        """One token."""
        where = torch.zeros(self.tokens.shape, dtype=torch.bool)
        where[row, position] = True
        return self.change(where)

    def only(self, change: Change, row: int, places: list[int] | None = None) -> Change:
        """Of a change that of one sequence, or of some of its places; everything else as it was."""
        where = torch.zeros_like(change.where)
        where[row, slice(None) if places is None else places] = True
        where = where & change.where
        return Change(torch.where(where.to(self.tokens.device), change.tokens, self.tokens), where)

    def others(self, row: int) -> Change:
        """Every sequence but this one, all of it."""
        where = torch.ones(self.tokens.shape, dtype=torch.bool)
        where[row] = False
        return self.change(where)

    def earlier_documents(self, trials: int) -> list[tuple[Change, Tensor]]:
        """Each with one document changed, and (B, T) bool: the later ones of its sequence, which may not move."""
        if self.documents is None:
            return []
        all_of = self.documents
        known = [(row, d) for row, of in enumerate(all_of) for d in of.unique().tolist() if d != int(of[-1])]
        found = []
        for number in torch.randperm(len(known), generator=self.generator)[:trials].tolist():
            row, document = known[number]
            where = torch.zeros(self.tokens.shape, dtype=torch.bool)
            where[row] = all_of[row] == document
            later = torch.zeros_like(where)
            later[row, int(where[row].nonzero()[-1]) + 1 :] = True
            found.append((self.change(where, self.eos), later))
        return found


def _check(tokens: Tensor, vocab_size: int, predicts: int) -> None:
    if not isinstance(tokens, Tensor) or tokens.is_floating_point() or tokens.dim() != 2 or tokens.numel() == 0:
        what = f"{tokens.dtype} {tuple(tokens.shape)}" if isinstance(tokens, Tensor) else type(tokens).__name__
        raise DataError(f"tokens have to be whole numbers (B, T), not {what}; for one sequence try tokens[None]")
    if tokens.shape[1] < 2:
        raise DataError("with one token a sequence there is no past to look at; give tokens (B, T) with T of 2 or more")
    if vocab_size < 2:
        raise ConfigError(f"vocab_size={vocab_size} leaves no other token to change to; give the model's vocabulary")
    low, high = int(tokens.min()), int(tokens.max())
    if low < 0 or high >= vocab_size:
        wrong = low if low < 0 else high
        raise DataError(f"token {wrong} is not one of vocab_size={vocab_size}; give the model's own vocabulary size")
    if not 0 <= predicts < tokens.shape[1]:
        raise ConfigError(
            f"predicts={predicts} must be 0 (labels are the inputs) or 1 (the next tokens); try predicts=1"
        )


def _documents(documents: Tensor | int, tokens: Tensor) -> Tensor:
    """(B, T): the number of each token's document."""
    if isinstance(documents, int):
        ended = (tokens == documents).long()
        documents = ended.cumsum(1) - ended  # the token that ends a document is its last
    elif documents.shape not in (tokens.shape, tokens.shape[1:]):
        shape = tuple(tokens.shape)
        raise DataError(f"documents {tuple(documents.shape)} do not fit tokens {shape}; give (T,) or (B, T)")
    found = documents.cpu().expand(tokens.shape)
    if not (found[:, 1:] != found[:, :-1]).any():
        raise DataError("there is one document in each sequence; give tokens with at least two to look between them")
    return found
