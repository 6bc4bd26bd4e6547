"""How check 11.2 plays ranks that exchange rows, in this process, one after the other.

A rank runs until it needs an exchange whose answer is not there yet, is stopped, and is run again from its start when
all others have come to the same exchange. So nothing hangs, and what the ranks ask of each other is compared before
anything is handed over.
"""

import math
from typing import Any

from course_lib.checks.core import Case, kind

__all__ = ["Rank", "Stop", "play", "shape_of"]

MOST = 100
"""Exchanges of a rank. The reference has three; one that goes expert by expert and choice by choice has 54."""


GIVEN = ("tokens", "chosen", "gates")


class _Pause(BaseException):
    """Stops a rank that waits for an exchange. No Exception, so that an answer's `except` lets it pass."""


class Stop(Exception):
    """What an answer did that the ranks cannot go on with."""

    def __init__(self, text: str, rule: str | None = None) -> None:
        super().__init__(text)
        self.rule = rule


class Rank:
    """What an answer is given as `me`."""

    def __init__(self, case: Case, rank: int, replies: list[Any]) -> None:
        self.rank, self.ranks = rank, len(case["tokens"])
        self.n_experts = len(case["weights"])
        here = self.n_experts // self.ranks
        self.mine = range(rank * here, (rank + 1) * here)
        self._weights, self._replies, self._calls = case["weights"], replies, 0
        self._asked: tuple[Any, list[int], list[int]] | None = None

    def expert(self, number: int, rows: Any) -> Any:
        """Expert `number`, which this rank holds, applied to rows (n, D)."""
        import torch

        width = self._weights.shape[1]
        if not isinstance(rows, torch.Tensor) or rows.ndim != 2 or rows.shape[1] != width:
            raise Stop(f"me.expert takes a number and rows of shape (m, {width}); the rows were {shape_of(rows)}")
        if number not in self.mine:
            text = f"rank {self.rank} asked for expert {int(number)}, and holds {', '.join(map(str, self.mine))}"
            raise Stop(f"{text}. Who computes the others?", "experts-are-everywhere")
        return (rows @ torch.from_numpy(self._weights[int(number)])).tanh()

    def exchange(self, rows: Any, send: Any, receive: Any) -> Any:
        """The all-to-all."""
        import torch

        call, self._calls = self._calls, self._calls + 1
        if call < len(self._replies):
            return self._replies[call].clone()
        where = f"exchange {call + 1} of rank {self.rank}"
        if not isinstance(rows, torch.Tensor) or rows.ndim < 1:
            raise Stop(f"{where}: rows is a tensor with a first dimension; {_yours(rows)}")
        send, receive = (
            _whole(numbers, self.ranks, where, what) for numbers, what in ((send, "send"), (receive, "receive"))
        )
        if sum(send) != len(rows):
            tokens = rows.ndim == 2 and rows.shape[1] == self._weights.shape[1]
            rule = "a-token-is-a-row" if tokens and len(rows) * 2 <= sum(send) else None
            there = "there is 1 row" if len(rows) == 1 else f"there are {len(rows)} rows"
            text = f"{where}: send adds up to {sum(send)}, and {there}"
            if sum(receive) == len(rows):
                text, rule = f"{text}, as many as receive adds up to. Are the two exchanged?", None
            raise Stop(text, rule)
        self._asked = (rows.detach().clone(), send, receive)
        raise _Pause


def _yours(rows: Any) -> str:
    return "yours has none" if hasattr(rows, "shape") else f"yours is {kind(rows)}"


def _whole(numbers: Any, ranks: int, where: str, what: str) -> list[int]:
    numbers = numbers.tolist() if hasattr(numbers, "tolist") else numbers
    if not isinstance(numbers, list | tuple) or len(numbers) != ranks:
        raise Stop(f"{where}: `{what}` is a list with one number for each of {ranks} ranks; yours is {kind(numbers)}")
    found = [n.item() if hasattr(n, "item") else n for n in numbers]
    if any(isinstance(n, bool) or n != int(n) or n < 0 for n in found):
        raise Stop(f"{where}: `{what}` holds whole numbers from 0; yours is {found}")
    return [int(n) for n in found]


def play(layer: Any, case: Case) -> dict[str, Any]:
    """Outputs of all ranks, and for each rank the rows it sent of as many numbers as a token, or more.

    What the layer has changed of what it was given is left so in `case`.
    """
    import torch

    ranks, width = len(case["tokens"]), case["weights"].shape[1]
    replies: list[list[Any]] = [[] for _ in range(ranks)]
    moved = [0] * ranks
    for _ in range(MOST + 1):
        asked: list[Any] = []
        outputs: list[Any] = []
        left: list[dict[str, Any]] = []
        for rank in range(ranks):
            me = Rank(case, rank, replies[rank])
            left.append({key: torch.from_numpy(case[key][rank].copy()) for key in GIVEN})
            try:
                outputs.append(layer(*left[rank].values(), me))
                asked.append(None)
            except _Pause:
                outputs.append(None)
                asked.append(me._asked)
        if all(one is None for one in asked):
            for key in GIVEN:
                case[key] = [given[key].detach().numpy() for given in left]
            return {"outputs": outputs, "moved": moved}
        _agree(asked, len(replies[0]) + 1)
        for rank in range(ranks):
            parts = [rows.split(send)[rank] for rows, send, _ in asked]
            replies[rank].append(torch.cat(parts))
            rows = asked[rank][0]
            moved[rank] += len(rows) if math.prod(rows.shape[1:]) >= width else 0
    raise Stop(f"each rank has had {MOST} exchanges, and none has returned; three are enough. Does your loop end?")


def _agree(asked: list[Any], number: int) -> None:
    """Compare what the ranks ask for in the same exchange."""
    done = [rank for rank, one in enumerate(asked) if one is None]
    if done:
        waits = next(rank for rank, one in enumerate(asked) if one is not None)
        text = f"rank {done[0]} has returned, and rank {waits} waits for it in exchange {number}"
        raise Stop(f"{text}. Who has to call an all-to-all?", "nothing-to-send-nothing-to-call")
    kinds = {(str(rows.dtype), tuple(rows.shape[1:])) for rows, _, _ in asked}
    if len(kinds) > 1:
        told = "; ".join(f"rank {rank}: {rows.dtype} {shape_of(rows)}" for rank, (rows, _, _) in enumerate(asked))
        raise Stop(f"exchange {number}: the ranks' rows are of different kinds ({told})")
    for rank, (_, _, receive) in enumerate(asked):
        for source, (_, sent, _) in enumerate(asked):
            if receive[source] != sent[rank]:
                text = (
                    f"exchange {number}: rank {rank} waits for {receive[source]} rows of rank {source}, which sends it"
                )
                own = all(mine == theirs for _, mine, theirs in asked)
                rule = "receives-what-it-sends" if own else None
                raise Stop(f"{text} {sent[rank]}. How can a rank know what others send it?", rule)


def shape_of(value: Any) -> str:
    return str(tuple(value.shape)) if hasattr(value, "shape") else kind(value)
