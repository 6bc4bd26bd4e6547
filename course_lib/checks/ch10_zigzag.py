"""Check 10.5: which positions of a sequence a rank gets in a zig-zag split, and the way back.

The oracle folds a strip of 2N chunks in the middle: the chunks that lie on each other go to one rank.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["ZIGZAG"]

Split = list[list[int]]
"""[rank] -> positions, in the rank's own order."""


def zigzag_cases(seed: int) -> list[Case]:
    """Ranks and chunk lengths are fixed where they matter (one rank, chunks of one position), the rest is random."""
    rng = np.random.default_rng([seed, 1005])

    def case(name: str, ranks: int, chunk: int, extra: int = 0) -> Case:
        length = 2 * ranks * chunk + extra
        whole = torch.tensor(rng.permutation(10 * length)[: 3 * length].reshape(length, 3), dtype=torch.float32)
        parts = [] if extra else [whole[row] for row in _folded(length, ranks)]
        return {"name": name, "ranks": ranks, "length": length, "whole": whole, "parts": parts}

    return [
        case("two ranks, a sequence of eight", 2, 2),
        case("three ranks", 3, int(rng.integers(2, 5))),
        case("four ranks, chunks of one position", 4, 1),
        case("one rank", 1, int(rng.integers(2, 5))),
        case("a larger number of ranks", int(rng.integers(5, 9)), int(rng.integers(2, 6))),
        case("four ranks, a length that four divides and eight does not", 4, 3, 4),
        case("three ranks, an even length that three does not divide", 3, 2, 2),
        case("two ranks, an odd length", 2, 3, 1),
    ]


def zigzag_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("positions", "restore")):
        raise WrongForm(
            f'hand in {{"positions": positions, "restore": restore}}, two functions; yours is {kind(answer)}'
        )
    ranks, length = case["ranks"], case["length"]
    split: list[Any] = []
    for rank in range(ranks):
        try:
            split.append(_numbers(answer["positions"](length, rank, ranks)))
        except ValueError as error:
            split.append({"refused": True, "says": str(error).strip()})
    if split != _folded(length, ranks):  # refused, or wrong: `restore` is tried where `positions` is right
        return {"split": split}
    back = answer["restore"](case["parts"])
    return {"split": split, "back": back.detach().clone() if isinstance(back, Tensor) else kind(back)}


def _numbers(value: Any) -> Any:
    """A list of ints of a list, range, tuple, array or tensor; else what it is."""
    if isinstance(value, Tensor | np.ndarray):
        value = value.tolist()
    if not isinstance(value, list | tuple | range):
        return kind(value)
    numbers = [one.item() if hasattr(one, "item") and np.size(one) == 1 else one for one in value]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
    return numbers if whole else "a list that holds something else than whole numbers"


def _folded(length: int, ranks: int) -> Split:
    """The right split: chunks are taken off both ends of the strip, a pair for each rank."""
    strip = [list(chunk) for chunk in np.array_split(np.arange(length), 2 * ranks)]
    split = []
    while strip:
        split.append([int(p) for p in strip.pop(0) + strip.pop(-1)])
    return split


def _guesses(length: int, ranks: int) -> dict[str, Split]:
    """What each misconception gives each rank."""
    chunk = lambda number, count: [int(p) for p in np.array_split(np.arange(length), count)[number % count]]
    two, size = 2 * ranks, length // (2 * ranks)
    pair = lambda first, second, count=two: [chunk(first(r), count) + chunk(second(r), count) for r in range(ranks)]
    return {
        "contiguous": [chunk(r, ranks) for r in range(ranks)],
        "neighbours": pair(lambda r: 2 * r, lambda r: 2 * r + 1),
        "striped": [list(range(r, length, ranks)) for r in range(ranks)],
        "second-round-in-order": pair(lambda r: r, lambda r: r + ranks),
        "one-chunk-off": pair(lambda r: r, lambda r: two - r),
        "past-the-end": [[*chunk(r, two), *range((two - r) * size, (two - r + 1) * size)] for r in range(ranks)],
        "n-chunks": pair(lambda r: r, lambda r: ranks - 1 - r, ranks),
        "late-chunk-first": pair(lambda r: two - 1 - r, lambda r: r),
        "late-chunk-backwards": [chunk(r, two) + chunk(two - 1 - r, two)[::-1] for r in range(ranks)],
        "back-and-forth": [
            [p for p in range(length) if p % two in (r, two - 1 - r)] for r in range(ranks)
        ],  # chunks of one position
        "early-chunk-alone": [chunk(r, two) for r in range(ranks)],
    }


ZIGZAG_HINTS = {
    "contiguous": "each rank has one piece in a row, and the last rank does {most} of {all} pairs. Who has early ones?",
    "neighbours": "each rank has two chunks next to each other: that is one piece, and the last rank does most",
    "striped": "every {n}-th position goes to one rank. Into how many chunks is the sequence cut here?",
    "second-round-in-order": "late chunks are dealt out in the order of early ones: rank {last} does {most} of {all}",
    "one-chunk-off": "what is the number of the last of {two} chunks? With yours, rank 0 does not get it",
    "past-the-end": "what is the number of the last of {two} chunks? With yours, rank 0 gets one after it",
    "n-chunks": "the sequence is cut into {n} chunks, and each is on two ranks, or twice on one. How many are needed?",
    "late-chunk-first": "the positions are the right ones; each rank's are wanted in increasing order",
    "late-chunk-backwards": "the chunks are the right ones, and the late one runs backwards. Which order is wanted?",
    "back-and-forth": "your ranks are dealt single positions. How long is a chunk of {length} positions here?",
    "early-chunk-alone": "half of the positions are on no rank. How many chunks does each rank have?",
}
SAME_BELIEF = {
    "neighbours": "contiguous",
    "past-the-end": "one-chunk-off",
    "late-chunk-first": None,
    "early-chunk-alone": None,
}


def zigzag_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: positions are whole numbers, and `restore` moves rows without computing."""
    split, length, ranks = returned["split"], case["length"], case["ranks"]
    refused = [isinstance(row, dict) for row in split]
    if length % (2 * ranks):
        if not all(refused):
            message = (
                f"{length} positions on {ranks} ranks: some chunks would be longer than others. "
                "The text asks for a ValueError, whichever rank asks"
            )
            return Wrong(message, "ranks-divide-the-length" if length % ranks == 0 else "any-length-will-do")
        if not all(row["says"] for row in split):
            return Wrong("the ValueError says nothing: what is wrong?")
        if not all(str(length) in row["says"] for row in split):
            return Wrong(f"the ValueError says {split[0]['says']!r:.60}. The text wants the length in it")
        return None
    if any(refused):
        return Wrong(f"a ValueError, though {2 * ranks} chunks of {length // (2 * ranks)} positions are possible")
    for rank, row in enumerate(split):
        if isinstance(row, str):
            return Wrong(f"positions({length}, {rank}, {ranks}): whole numbers are wanted, {row} came back", form=True)
    return _wrong_split(length, ranks, split) or _wrong_back(case, returned["back"])


def _work(positions: list[int]) -> int:
    """(query, key) pairs that these queries see in causal attention."""
    return sum(p + 1 for p in positions)


def _wrong_split(length: int, ranks: int, split: Split) -> Wrong | None:
    right = _folded(length, ranks)
    if split == right:
        return None
    names = {
        "n": ranks,
        "two": 2 * ranks,
        "last": ranks - 1,
        "length": length,
        "most": max(map(_work, split)),
        "all": _work(list(range(length))),
    }
    for rule, guess in _guesses(length, ranks).items():
        if split == guess:
            return Wrong(ZIGZAG_HINTS[rule].format(**names), SAME_BELIEF.get(rule, rule))
    counts = np.bincount([p for row in split for p in row if 0 <= p < length], minlength=length)
    outside = [p for row in split for p in row if not 0 <= p < length]
    if outside:
        return Wrong(f"position {outside[0]} does not exist: {length} positions are numbered from 0")
    if (counts != 1).any():
        place = int(np.flatnonzero(counts != 1)[0])
        where = "on no rank" if counts[place] == 0 else f"there {counts[place]} times"
        return Wrong(f"over all ranks, position {place} is {where}")
    work = [_work(row) for row in split]
    if len(set(work)) > 1:
        return Wrong(f"the ranks do {work} pairs of causal attention. Which chunk goes with an early one?")
    rank = next(rank for rank, row in enumerate(split) if row != right[rank])
    return Wrong(f"every position is there once, and the work is even; rank {rank} has others than the text gives it")


def _wrong_back(case: Case, back: Any) -> Wrong | None:
    whole, ranks = case["whole"], case["ranks"]
    if not isinstance(back, Tensor):
        return Wrong(f"`restore` returns a tensor; yours returns {back}", form=True)
    if back.shape != whole.shape:
        return Wrong(f"`restore` gives shape {tuple(back.shape)}; {tuple(whole.shape)} is wanted", form=True)
    if torch.equal(back, whole):
        return None
    order = torch.tensor([p for row in _folded(case["length"], ranks) for p in row])
    joined = whole[order]
    if torch.equal(back, joined):
        message = "the positions are right. `restore` joins the parts, rank by rank: where does rank 0's late half go?"
        return Wrong(message, "joining-restores")
    if torch.equal(back, joined[order]):
        message = "the positions are right. `restore` splits once more. Where does row i of the joined parts go?"
        return Wrong(message, "twice-is-back")
    early, late = zip(*(part.chunk(2) for part in (whole[row] for row in _folded(case["length"], ranks))), strict=True)
    if torch.equal(back, torch.cat([*early, *late])):
        message = "the positions are right. In `restore` the late chunks stand in the order of the ranks"
        return Wrong(message, "late-chunks-in-order")
    return Wrong("the positions are right, and `restore` does not put each row where it came from")


ZIGZAG = Exercise(
    id="zig-zag",
    title="A zig-zag split",
    cases=zigzag_cases,
    run=zigzag_run,
    judge=zigzag_judge,
    of_judge=("whole",),
    forbidden=("course_lib.parallel",),
    misconceptions={
        "contiguous": "equal pieces are equal work",
        "striped": "any split that mixes early and late positions is this one",
        "second-round-in-order": "two chunks a rank are even, whichever they are",
        "one-chunk-off": "2N chunks are numbered up to 2N",
        "n-chunks": "as many chunks are needed as there are ranks",
        "late-chunk-backwards": "a strip that is folded is read backwards",
        "back-and-forth": "a chunk is one position",
        "ranks-divide-the-length": "what the ranks divide can be split",
        "any-length-will-do": "a split that does not come out even has nobody to complain",
        "joining-restores": "the parts in the order of the ranks are the sequence",
        "twice-is-back": "to split once more undoes a split",
        "late-chunks-in-order": "late chunks come back in the order of the ranks",
    },
)
