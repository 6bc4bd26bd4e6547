"""The leak probe: changes later tokens and sees whether earlier logits move. Works on any model from tokens to logits.

    report = probe(model, tokens, vocab_size=1024)
    report.leaks, report.leaks_across_batch, report.worst

Logits at position t predict token t + 1 and may depend on tokens 0 to t. If a later token moves them, training saw what
generation will not have. Shapes: tokens (B, T), logits (B, T, V).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from course_lib.config import stream_seed
from course_lib.errors import ConfigError
from course_lib.failures._asking import Asked, moved, spread_of
from course_lib.failures._changes import Change, Changes

__all__ = ["LeakReport", "Seen", "leak_matrix", "probe"]

ROUNDING = 1e-9
"""Of a float64 copy what counts, as a share of the logits' spread: rounding is 1e-16, times a million to be safe."""
ABOVE_NOISE = 100.0
"""Elsewhere: how many times the measured noise a move has to be."""
AT_LEAST = 4.0
"""And how many rounding steps of the coarsest format, where no noise was measured."""
NOISE_ENDS = 1000.0
"""A move by more rounding steps than this (or a tenth of the spread) is never taken for noise."""


class Seen(NamedTuple):
    """Position `at` saw the token at `saw`: its logits moved by up to `size`."""

    at: int
    saw: int
    size: float


@dataclass(frozen=True)
class LeakReport:
    """What moved when something changed that a position may not see."""

    leaks: bool
    """Earlier positions of a sequence moved with its later tokens."""
    leaks_across_batch: bool | None
    """A sequence moved with the tokens of another. None: it could not be tried."""
    leaks_across_documents: bool | None
    """A document moved with the tokens of an earlier one of its sequence. None: no `documents` were given."""
    worst: Seen | None
    """The largest move of an earlier position."""
    fraction: float
    """Share of the (earlier position, trial) pairs that moved."""
    trials: int
    bar: float
    """The smallest move that counts."""
    spread: float
    """How much logits differ from position to position (standard deviation, of the most different one)."""
    how: str
    """On what it was decided."""

    @property
    def clean(self) -> bool:
        """Nothing moved that may not move."""
        return not (self.leaks or self.leaks_across_batch or self.leaks_across_documents)

    def text(self) -> str:
        """The report as one paragraph."""
        said = []
        if self.worst is not None:
            said.append(
                f"Leak: position {self.worst.at} saw token {self.worst.saw}; its logits moved by "
                f"{self.worst.size:.2g}. {self.fraction:.1%} of the earlier positions moved in {self.trials} trials."
            )
        else:
            said.append(f"No earlier position moved in {self.trials} trials.")
        across, documents = self.leaks_across_batch, self.leaks_across_documents
        if across is not None:
            said.append("Sequences move each other." if across else "No sequence moved another.")
        if documents is not None:
            said.append("A document saw an earlier one." if documents else "No document saw an earlier one.")
        return " ".join([*said, self.how])


def probe(
    forward: nn.Module | Callable[[Tensor], Any],
    tokens: Tensor,
    vocab_size: int,
    trials: int = 8,
    *,
    seed: int = 0,
    documents: Tensor | int | None = None,
    predicts: int = 1,
) -> LeakReport:
    """Whether logits at a position depend on later tokens, or on other sequences of the batch.

    forward: a module, or any callable from tokens (B, T) to logits (B, T, V). It is asked in its present mode, training
    or evaluation, always with the same shape and random state, and with dropout left out. A module is decided on a
    copy in float64: what moves by more than rounding is a leak. Else a move has to be 100 times the noise, which is
    measured by changes that can only touch the order of its sums: a callable is called as it is.
    documents: the document of each token, (T,) or (B, T), or the id of the token that ends one; then also whether a
    document sees an earlier one. predicts: which token logits at t are for, t + predicts; 0 where labels are the
    inputs, which makes seeing the own token a leak.
    """
    return _Probe(forward, Changes(tokens, vocab_size, seed, documents, predicts), trials, seed).report()


def leak_matrix(
    forward: nn.Module | Callable[[Tensor], Any], tokens: Tensor, vocab_size: int, *, seed: int = 0
) -> np.ndarray:
    """[t, s]: by how much logits at t move when token s alone of the first sequence changes, (T, T); below the bar: 0.

    Above the diagonal (s > t) is what a position may not see.
    """
    run = _Probe(forward, Changes(tokens, vocab_size, seed, None, 1), 8, seed)
    bar = run.report().bar
    columns = [run.ask(run.changes.token(0, s))[0] for s in range(tokens.shape[1])]
    matrix = torch.stack(columns, dim=1)
    return torch.where(matrix > bar, matrix, 0.0).numpy()


class _Probe:
    """One model under test."""

    def __init__(self, forward: Any, changes: Changes, trials: int, seed: int) -> None:
        if trials < 1:
            raise ConfigError(f"trials={trials} tries nothing; try trials=8")
        self.changes, self.trials, self.given = changes, trials, len(changes.tokens)
        self.asked = self._asked(forward, stream_seed(seed, "calls"))
        self.B = len(changes.tokens)

    def _asked(self, forward: Any, seed: int) -> Asked:
        """Beside one sequence a second is put, so that there is a batch to look across; unless that fails."""
        before = self.changes.tokens, self.changes.documents
        if self.given == 1:
            self.changes.one_more()
            try:
                return Asked(forward, self.changes.tokens, seed)
            except Exception:  # it takes one sequence only; or it fails on one as well, and says so below
                self.changes.tokens, self.changes.documents = before
        return Asked(forward, self.changes.tokens, seed)

    def answer(self, tokens: Tensor) -> Tensor:
        """Logits (B, T, V) of changed tokens."""
        try:
            return self.asked(tokens)
        except IndexError as error:
            size = self.changes.vocab_size
            raise ConfigError(f"the model fails on a token below vocab_size={size} ({error}); give its own") from error

    def ask(self, change: Change) -> Tensor:
        """How far each position moves from the answer to the given tokens, (B, T)."""
        return moved(self.answer(change.tokens), self.asked.first)

    def past(self, change: Change) -> Tensor:
        """How far each position moves that comes before all changes of its sequence, (B, T); 0 elsewhere."""
        return torch.where(change.past(self.changes.predicts), self.ask(change), 0.0)

    def report(self) -> LeakReport:
        changes, rows = self.changes, torch.randperm(self.B, generator=self.changes.generator).tolist()
        other = self.answer(changes.anything())
        spread, answers = spread_of(torch.cat([self.asked.first, other])), bool(moved(other, self.asked.first).any())
        later = [changes.later(trial) for trial in range(self.trials)]  # in every sequence at once
        together = [self.past(change) for change in later]
        others = rows[: max(2, self.trials // 2)] if self.B > 1 else []
        across = [self.ask(changes.others(row))[row] for row in others]
        between = [self.ask(change)[where] for change, where in changes.earlier_documents(self.trials)]
        bars = self._bars(spread, _top(together), _top(across), _top(between))
        crossed = _top(across) > bars.across
        worst, fraction = None, 0.0
        if _top(together) > bars.within:  # seen in an own later token, or in another sequence?
            found, fraction = self._alone(later, together, rows, bars.within, crossed)
            worst = found and self._which(*found, bars.within)
            crossed = crossed or worst is None
        return LeakReport(
            leaks=worst is not None,
            leaks_across_batch=crossed if self.B > 1 else None,
            leaks_across_documents=_top(between) > bars.between if between else None,
            worst=worst,
            fraction=fraction,
            trials=self.trials,
            bar=bars.within,
            spread=spread,
            how=self._how(spread, bars.within, answers),
        )

    def _alone(
        self, later: list[Change], together: list[Tensor], rows: list[int], bar: float, crossed: bool
    ) -> tuple[tuple[Change, int] | None, float]:
        """The same with one sequence changed and the others as they were: largest move, and the share that moved."""
        most, best, pairs = bar, None, []
        tries = [(change, rows[number % self.B]) for number, change in enumerate(later)]
        tries += [(change, int(moves.amax(1).argmax())) for change, moves in zip(later, together, strict=True)]
        if crossed:  # what moved may all have come from there: look harder
            tries += [(self.changes.later(number), rows[number % self.B]) for number in range(2 * self.trials)]
        for number, (change, row) in enumerate(tries):
            if number >= self.trials and best is not None:
                break
            only = self.changes.only(change, row)
            moves = self.past(only)[row]
            pairs.append(moves[only.past(self.changes.predicts)[row]] > bar)
            if float(moves.max()) > most:
                most, best = float(moves.max()), (only, row)
        return best, float(torch.cat(pairs).double().mean())

    def _which(self, change: Change, row: int, bar: float) -> Seen:
        """The position that moved most, and which token it saw: one half of the changes is put back after the other."""
        moves = self.past(change)[row]
        at = int(moves.argmax())
        size, places = float(moves[at]), change.where[row].nonzero().flatten().tolist()
        while len(places) > 1:
            halves = places[: len(places) // 2], places[len(places) // 2 :]
            sizes = [float(self.ask(self.changes.only(change, row, half))[row, at]) for half in halves]
            if max(sizes) <= bar:
                break  # it takes both halves
            size, places = max(sizes), halves[int(np.argmax(sizes))]
        return Seen(at, places[0], size)

    def _bars(self, spread: float, within: float, across: float, between: float) -> "_Bars":
        """The smallest moves that count. One kind of change is the other's measure of noise, where it is small."""
        eps, repeats, exact = self.asked.eps, self.asked.repeats, self.asked.exact
        ends = (ROUNDING if exact else min(NOISE_ENDS * eps, 0.1)) * spread
        if repeats > ends:
            raise ConfigError(
                f"the same tokens are answered differently from call to call (by {repeats:.2g}): it remembers, or "
                "draws from a generator of its own; pass a callable that starts anew each time"
            )
        if exact:
            return _Bars(ends, ends, ends)
        swapped = 0.0
        if self.B > 1:
            order = torch.arange(self.B).roll(1)
            swapped = float(moved(self.answer(self.changes.tokens[order]), self.asked.first[order]).max())

        def bar(*others: float) -> float:
            small = [size for size in others if size <= ends]
            blind = self.B == 1 or len(small) < len(others)  # no noise was measured but that of another order
            noise = max([repeats, *small, swapped if swapped <= ends else 0.0])
            return max(ABOVE_NOISE * noise, (min(ABOVE_NOISE * eps, 0.1) if blind else AT_LEAST * eps) * spread)

        return _Bars(bar(across), bar(within), bar(within, across))

    def _how(self, spread: float, bar: float, answers: bool) -> str:
        asked = self.asked
        parts = ["Decided " + ", ".join(asked.notes or ["on the callable as it is"])]
        if not asked.exact:
            parts.append(f"a leak is {ABOVE_NOISE:.0f} times the measured noise or more")
        parts.append(f"moves above {bar:.1g} count, where logits differ by {spread:.2g}")
        if self.given < self.B:
            parts.append("a random second sequence lay beside the one given")
        elif self.B == 1:
            parts.append("nothing was tried across the batch: it takes one sequence only")
        if not answers:
            parts.append("but these logits depend on no token at all, so nothing could be seen")
        return "; ".join(parts) + "."


class _Bars(NamedTuple):
    within: float
    across: float
    between: float


def _top(moves: list[Tensor]) -> float:
    return max((float(one.max()) for one in moves if one.numel()), default=0.0)
