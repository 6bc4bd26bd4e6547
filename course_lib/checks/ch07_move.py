"""Check 07.1: which chunk a rank of a ring sends in which step, and whether it is added where it arrives.

The oracle has no formula: every rank hands on what it was handed.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import plain

__all__ = ["MOVE"]

Table = list[list[tuple[int, bool]]]
"""[step][rank] -> (number of the chunk that the rank sends, whether it is added where it arrives)."""


def move_cases(seed: int) -> list[Case]:
    """Every rank and step of a ring is asked for, so that a formula which is right on one line of it is not enough."""
    large = int(np.random.default_rng([seed, 701]).integers(5, 9))
    names = {3: "a ring of three", 2: "a ring of two", 4: "a ring of four", large: "a larger ring"}
    return [{"name": name, "ranks": ranks} for ranks, name in names.items()]


def move_run(answer: Callable[..., Any], case: Case) -> list[list[Any]]:
    ranks = case["ranks"]
    return [[_move(answer(rank, step, ranks)) for rank in range(ranks)] for step in range(2 * ranks - 2)]


def _move(returned: Any) -> Any:
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        return kind(returned)
    chunk, adds = returned
    tensor = isinstance(adds, Tensor) and adds.dtype == torch.bool and adds.numel() == 1
    adds = bool(adds) if tensor or isinstance(adds, bool | np.bool_) else kind(adds)
    chunk = plain(chunk)
    whole = isinstance(chunk, int | float) and not isinstance(chunk, bool) and chunk == int(chunk)
    return [int(chunk) if whole else kind(chunk), adds]


def _handed_on(ranks: int) -> Table:
    """What a ring does: what arrives goes on in the next step, and is added until it holds every rank's part."""
    hand = [(rank, {rank}) for rank in range(ranks)]  # (chunk, whose parts are in it)
    table: Table = []
    for _ in range(2 * ranks - 2):
        table.append([(chunk, len(parts) < ranks) for chunk, parts in hand])
        hand = [(chunk, parts | {(rank - 1) % ranks}) for rank, (chunk, parts) in enumerate(hand)]
        hand = [*hand[1:], hand[0]]  # each rank's goes to the rank before it
    return table


def _moves(ranks: int, chunk: Callable[[int, int], int], adds: Callable[[int], bool]) -> Table:
    return [[(chunk(rank, step) % ranks, adds(step)) for rank in range(ranks)] for step in range(2 * ranks - 2)]


def _wrong_moves(n: int) -> dict[str, Table]:
    """What each misconception sends."""
    adding = lambda step: step < n - 1
    chunk = lambda rank, step: rank + step
    return {
        "always-the-same-chunk": _moves(n, lambda rank, step: rank, adding),
        "turns-the-other-way": _moves(n, lambda rank, step: rank - step, adding),
        "the-chapter-s-ring": _moves(n, lambda rank, step: rank - 1 - step, adding),
        "starts-with-another": _moves(n, lambda rank, step: rank - 1 + step, adding),
        "one-chunk-at-a-time": _moves(n, lambda rank, step: step, adding),
        "starts-over": _moves(n, lambda rank, step: rank + (step if adding(step) else step - n + 1), adding),
        "names-what-arrives": _moves(n, lambda rank, step: rank + 1 + step, adding),
        "adds-to-the-end": _moves(n, chunk, lambda step: True),
        "adds-once-too-often": _moves(n, chunk, lambda step: step < n),
        "adds-once-too-few": _moves(n, chunk, lambda step: step < n - 2),
        "adding-comes-last": _moves(n, chunk, lambda step: not adding(step)),
    }


MOVE_HINTS = {
    "always-the-same-chunk": "each rank sends one and the same chunk in every step. What has arrived meanwhile?",
    "turns-the-other-way": "these chunks are of a ring that turns the other way. From which rank does one arrive here?",
    "the-chapter-s-ring": "this is the chapter's ring. Which way does this one turn? With which chunk does it begin?",
    "starts-with-another": "in your step 0 a rank sends the chunk before its own. Which one does the text ask for?",
    "one-chunk-at-a-time": "in each of your steps all ranks send the same chunk. Does each hand on what arrived?",
    "starts-over": "from step {half} on your ring begins anew with the chunk of step 0. Which one is complete by then?",
    "names-what-arrives": "this is the chunk that the rank receives in that step; asked is the one it sends",
    "adds-to-the-end": "the chunks are right. In the last step yours still adds: what is in a complete chunk already?",
    "adds-once-too-often": "the chunks are right. How many steps does a chunk take until every rank has added to it?",
    "adds-once-too-few": "the chunks are right. How many steps does a chunk take until every rank has added to it?",
    "adding-comes-last": "the chunks are right. Which comes first, a sum or its copies?",
}
SAME_BELIEF = {
    "adds-once-too-few": None,
    "the-chapter-s-ring": "turns-the-other-way",
    "starts-with-another": "starts-with-any-chunk",
}


def move_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: chunk numbers and yes or no, for every rank and step."""
    ranks = case["ranks"]
    for step, row in enumerate(returned):
        for rank, given in enumerate(row):
            where = f"rank {rank}, step {step} of {ranks} ranks"
            if isinstance(given, str):
                return Wrong(f"{where}: two values are wanted, (chunk, adds); {given} came back", form=True)
            if isinstance(given[0], str):
                return Wrong(f"{where}: the chunk is a whole number; yours is {given[0]}", form=True)
            if isinstance(given[1], str):
                return Wrong(f"{where}: `adds` is True or False; yours is {given[1]}", form=True)
    got: Table = [[(int(chunk), bool(adds)) for chunk, adds in row] for row in returned]
    right = _handed_on(ranks)
    if got == right:
        return None
    for rule, guess in _wrong_moves(ranks).items():
        if got == guess != right:
            return Wrong(MOVE_HINTS[rule].format(half=ranks - 1), SAME_BELIEF.get(rule, rule))
    for step, (mine, theirs) in enumerate(zip(got, right, strict=True)):
        for rank, (given, wanted) in enumerate(zip(mine, theirs, strict=True)):
            if not 0 <= given[0] < ranks:
                return Wrong(
                    f"rank {rank}, step {step}: {ranks} ranks have chunks 0 to {ranks - 1}; yours is {given[0]}"
                )
            if given[0] != wanted[0]:
                ask = "What arrived in the step before?" if step else "With which chunk does each rank begin?"
                return Wrong(f"rank {rank} does not send chunk {given[0]} in step {step}. {ask}")
            if given[1] != wanted[1]:
                what = "adds" if given[1] else "overwrites"
                return Wrong(
                    f"the chunk is right. In step {step} of {ranks} ranks yours {what}: is it complete by then?"
                )
    return None


MOVE = Exercise(
    id="which-chunk",
    title="Which chunk",
    cases=move_cases,
    run=move_run,
    judge=move_judge,
    forbidden=("course_lib.parallel",),
    misconceptions={
        "always-the-same-chunk": "each rank sends its own chunk until everybody has it",
        "turns-the-other-way": "chunks are sent in the same order, whichever way a ring turns",
        "starts-with-any-chunk": "with which chunk a rank begins makes no difference",
        "one-chunk-at-a-time": "the ring works on one chunk after the other",
        "starts-over": "the second half repeats the first one's order from its start",
        "names-what-arrives": "what a rank sends and what it receives in a step is the same chunk",
        "adds-to-the-end": "what arrives is always added",
        "adds-once-too-often": "with N ranks a chunk is added to N times",
        "adding-comes-last": "chunks are first collected and then added",
    },
)
