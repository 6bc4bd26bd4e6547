"""Check 07.2: the ring all-reduce on real ranks, with send and receive alone.

The oracle adds the buffers up. Their numbers are whole and small, so that FP32 sums are exact in every order.
"""

import re
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from course_lib.checks.ch07_ranks import COLLECTIVES, on_ranks, stopped, waits
from course_lib.checks.ch07_watch import EARLY, UNWAITED, unwaited, watched
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["RING"]


def ring_cases(seed: int) -> list[Case]:
    """Whole numbers, other ones on every rank and at every place, so that each mistake gives sums of its own."""
    rng = np.random.default_rng([seed, 702])

    def case(name: str, ranks: int, elements: int) -> Case:
        buffers = [rng.integers(1, 1000, size=elements).astype(np.float32) for _ in range(ranks)]
        return {"name": name, "buffers": buffers}

    return [
        case("four ranks, eight numbers", 4, 8),
        case("two ranks, six numbers", 2, 6),
        case("three ranks, eight numbers", 3, 8),
        case("three ranks, two numbers", 3, 2),
        case("one rank, five numbers", 1, 5),
    ]


def ring_work(answer: Callable[..., Any], buffers: list[np.ndarray]) -> dict[str, Any]:
    """What happens on each rank."""
    buffer = torch.tensor(buffers[dist.get_rank()])
    with watched() as seen:
        returned = answer(buffer)
    back = returned.detach().clone() if isinstance(returned, torch.Tensor) and returned is not buffer else None
    return {"buffer": buffer.detach(), "back": back, "sent": [entry[:3] for entry in seen], "unwaited": unwaited(seen)}


def ring_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    return on_ranks(ring_work, len(case["buffers"]), answer, case["buffers"])


def _ring(
    case: Case, rule: str, start: int, turn: int, short: tuple[int, int] = (0, 0), late: int = 0, shift: int = 0
) -> np.ndarray:
    """(rank, element): what a ring with one mistake leaves. In step 0 rank r sends chunk r + start to rank r + turn.

    short: steps that the first and the second half lack. late: chunks by which the second half begins too far on.
    shift: chunks by which a rank puts what arrives too far on; its own chunks then run with the ring's direction.
    """
    n = len(case["buffers"])
    parts = [[part.copy() for part in np.array_split(buffer, n)] for buffer in case["buffers"]]
    held = [[part.copy() for part in row] for row in parts]  # what arrived last, for "hands-on-what-came"
    second = 0 if rule == "forgets-the-second-half" else n - 1 - short[1]
    steps = [(step, True) for step in range(n - 1 - short[0])]
    steps += [(step + n - 1 + late, False) for step in range(second)]
    for step, adds in steps:
        out = [(rank + start + (turn if shift else -turn) * step) % n for rank in range(n)]
        source = held if rule == "hands-on-what-came" and adds else parts
        wire = [source[rank][out[rank]].copy() for rank in range(n)]
        for rank in range(n):
            chunk, came = out[(rank - turn) % n], wire[(rank - turn) % n]
            chunk = (chunk + shift) % n
            held[rank][chunk] = came
            add = (adds or rule == "adds-in-both-halves") and rule != "nothing-is-added"
            parts[rank][chunk] = parts[rank][chunk] + came if add else came
    return np.stack([np.concatenate(row) for row in parts])


def _ring_guesses(case: Case) -> Iterator[tuple[str, np.ndarray]]:
    buffers = np.stack(case["buffers"])
    n, elements = buffers.shape
    total = np.broadcast_to(buffers.sum(0), buffers.shape)
    yield "a-sum-is-a-mean", total / np.float32(n)
    yield "does-nothing", buffers
    whole = elements // n * n
    yield "ranks-divide-the-buffer", np.concatenate([total[:, :whole], buffers[:, whole:]], axis=1)
    for turn in (-1, 1):
        yield "one-neighbour-is-enough", buffers + np.roll(buffers, turn, axis=0)
    for rule, turn, start in product(RING_HINTS, (-1, 1), range(n)):
        for short in [(1, 0), (0, 1), (1, 1)] if rule == "one-step-too-few" and n > 1 else [(0, 0)]:
            for late in range(1, n) if rule == "starts-with-an-incomplete-chunk" else [0]:
                yield rule, _ring(case, rule, start, turn, short, late)


def _misplaced(case: Case, got: np.ndarray) -> Wrong | None:
    """A ring whose ranks put what arrives at another place than it came from; told of the first step."""
    n, elements = len(case["buffers"]), len(case["buffers"][0])
    if elements % n:  # with chunks of other lengths it would not fit
        return None
    for shift, turn, start in product(range(1, n), (-1, 1), range(n)):
        if np.array_equal(got, _ring(case, "", start, turn, shift=shift)):
            source = -turn % n
            sent = (source + start) % n
            message = (
                f"on every rank the sum is wrong. In step 0 rank {source} sends its chunk {sent} to rank 0, which adds "
                f"it to its own chunk {(sent + shift) % n}. Which chunks does a rank's neighbour send, step by step?"
            )
            return Wrong(message, "chunks-meet-by-themselves")
    return None


RING_HINTS = {
    "forgets-the-second-half": (
        "on every rank one chunk is the sum, the others hold a part of it. How does a complete chunk reach the others?"
    ),
    "nothing-is-added": (
        "no number is a sum. Does what arrives in the first half replace what was there? Or does the second half send "
        "round chunks to which nothing was added?"
    ),
    "adds-in-both-halves": "some sums are too large: in the second half yours still adds what arrives",
    "hands-on-what-came": "in the first half yours hands on what arrived, without what the rank has to add to it",
    "starts-with-an-incomplete-chunk": (
        "all ranks agree, on sums that lack some rank's part. Which chunk is complete on a rank after the first half?"
    ),
    "one-step-too-few": "the ring stops a step early: how many links are there from a rank round to the one before it?",
}
WHOLE_HINTS = {
    "a-sum-is-a-mean": "every number is the mean over the ranks; the sum is wanted",
    "ranks-divide-the-buffer": "the numbers at the end are not summed: {elements} numbers, {n} ranks",
    "one-neighbour-is-enough": "each rank has added the buffer of one neighbour. Where are the others'?",
}


def ring_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: sums of whole numbers below 2^24 are exact in FP32, in whatever order."""
    if "stopped" in returned:
        return _stands_still(returned["stopped"], len(case["buffers"]))
    buffers = np.stack(case["buffers"])
    n, elements = buffers.shape
    right = np.broadcast_to(buffers.sum(0), buffers.shape)
    rows, back = [one["buffer"] for one in returned["ranks"]], [one["back"] for one in returned["ranks"]]
    if any(tuple(row.shape) != (elements,) for row in rows):
        return Wrong("a buffer has another shape than it had: change its numbers, not its shape")
    got = torch.stack(rows).double().numpy()
    for rank, one in enumerate(returned["ranks"]):
        if one["unwaited"]:
            text, rule = UNWAITED[one["unwaited"]]
            return Wrong(f"on rank {rank}: {text}", rule if rule in RING.misconceptions else None)
    if bool((np.abs(got) > EARLY / 4).any()):
        return Wrong(
            "a number was used before it had arrived: `irecv` returns at once, and its `wait()` fills the tensor",
            "irecv-has-received",
        )
    if np.array_equal(got, right):
        return _ring_traffic(case, returned["ranks"])
    whole = all(one is not None and tuple(one.shape) == (elements,) for one in back)
    if whole and np.array_equal(torch.stack(back).double().numpy(), right):
        return Wrong("the sum came back as another tensor; the buffer itself is to hold it", form=True)
    for rule, guess in _ring_guesses(case):
        if np.array_equal(got, guess) and not np.array_equal(guess, right):
            if rule == "does-nothing":
                return Wrong("no number has changed. Does the sum reach the buffer itself?")
            hint = {**RING_HINTS, **WHOLE_HINTS}[rule].format(n=n, elements=elements)
            return Wrong(hint, rule)
    misplaced = _misplaced(case, got)
    if misplaced is not None:
        return misplaced
    bad = (got != right).any(1)
    rank = int(np.flatnonzero(bad)[0])
    places = np.flatnonzero(got[rank] != right[rank]).tolist()
    who = "every rank" if bad.all() else f"rank {rank}"
    return Wrong(f"on {who} the sum is wrong, on rank {rank} at the places {places} of {elements}")


def _stands_still(told: dict[str, Any], n: int) -> Wrong:
    if "rule" in told:
        wrong = stopped(told, None)
        return wrong if wrong.misconception in RING.misconceptions else Wrong(wrong.message)
    places = [line for line in told["standing"] if waits(line)]
    if not places:
        return stopped(told, None)
    for line in places:
        found = re.match(r"rank (\d+): waits in (send to|recv from) rank (\d+)", line)
        if found is None:
            continue
        rank, way, other = int(found[1]), found[2], int(found[3])
        if other != (rank - 1 if way == "send to" else rank + 1) % n:
            does = "sends to" if way == "send to" else "waits for a message from"
            return stopped(told, None, f"Rank {rank} {does} rank {other}. Which are its neighbours, of {n} ranks?")
    if len(places) == n and all("waits in send" in line for line in places):
        return stopped(told, "send-returns-at-once")
    if len(places) == n and all("waits in recv" in line for line in places):
        return stopped(told, "a-message-is-there-already", "Who is to send?")
    if all(".wait(" in line and "waits in" not in line for line in places):
        return stopped(told, None, "What does a rank's neighbour have to begin before this wait can end?")
    return stopped(told, None)


def _ring_traffic(case: Case, ranks: list[dict[str, Any]]) -> Wrong | None:
    """Refuse what is right and sends too much, to others than the next rank, or lets a collective do it."""
    n, elements = len(ranks), len(case["buffers"][0])
    most = -(-elements // n)
    for rank, one in enumerate(ranks):
        sent = [entry for entry in one["sent"] if entry[0] == "send"]
        if len(sent) < len(one["sent"]):
            name = next(entry[0] for entry in one["sent"] if entry[0] != "send")
            return Wrong(f"the sums are right; `{name}` did it, and `send` and `recv` alone are to: write it yourself")
        others = {peer for _, size, peer in sent if size} - {(rank - 1) % n}
        if others:
            return _not_a_ring(rank, sorted(others), ranks)
        if n > 1 and not any(size for _, size, _ in sent):
            return Wrong(f"the sums are right, but rank {rank} sent nothing: they are to go round by `send` and `recv`")
        total, messages = sum(size for _, size, _ in sent), sum(size > 0 for _, size, _ in sent)
        if total > 2 * (n - 1) * most:
            message = (
                f"the sums are right; rank {rank} sent {total} numbers, {2 * (n - 1) * most} are enough for {elements}"
            )
            whole = max(size for _, size, _ in sent) == elements > most
            return Wrong(message, "whole-buffers-go-round" if whole else None)
        longest = max((size for _, size, _ in sent), default=0)
        if longest > most:
            message = (
                f"the sums are right; rank {rank} sent a message of {longest} numbers. A chunk of {elements} numbers "
                f"on {n} ranks has at most {most}: how large are your chunks?"
            )
            return Wrong(message, "the-last-chunk-takes-the-rest")
        if messages > 2 * (n - 1):
            return Wrong(f"the sums are right; rank {rank} sent {messages} messages, {2 * (n - 1)} are enough")
    return None


def _not_a_ring(rank: int, others: list[int], ranks: list[dict[str, Any]]) -> Wrong:
    n = len(ranks)
    to = [{peer for _, size, peer in one["sent"] if size} for one in ranks]
    if all(peers == {(number + 1) % n} for number, peers in enumerate(to)):
        return Wrong(
            "the sums are right, but your ring turns the other way: each rank is to send to the rank before it"
        )
    if any(all(peers == {root} for number, peers in enumerate(to) if number != root) for root in range(n)):
        return Wrong(
            "the sums are right; one rank receives from all others and sends to all. In a ring?", "one-rank-adds"
        )
    return Wrong(
        f"the sums are right; rank {rank} sent to {others}, and the rank before it, of {n}, is {(rank - 1) % n}"
    )


RING = Exercise(
    id="ring-all-reduce",
    title="Ring all-reduce",
    cases=ring_cases,
    run=ring_run,
    judge=ring_judge,
    forbidden=(*COLLECTIVES, "course_lib.parallel"),
    in_place=True,
    misconceptions={
        "send-returns-at-once": "all ranks may send first and receive then",
        "a-message-is-there-already": "what a rank receives has been sent before",
        "isend-has-sent": "what `isend` was given is sent, waited for or not",
        "irecv-has-received": "after `irecv` the tensor is filled",
        "a-ring-has-ends": "the rank after the last one is one more",
        "forgets-the-second-half": "when every chunk is complete somewhere, the all-reduce is done",
        "nothing-is-added": "what arrives may be received into the chunk that it has to be added to",
        "adds-in-both-halves": "what arrives is always added",
        "hands-on-what-came": "a rank hands on what arrived, and adds its part for itself",
        "starts-with-an-incomplete-chunk": "the second half may begin with any chunk",
        "chunks-meet-by-themselves": "what arrives belongs where this rank's own loop stands",
        "the-last-chunk-takes-the-rest": "chunks have length // N numbers, and the last one what is left over",
        "one-step-too-few": "with N ranks a chunk passes N - 2 links",
        "a-sum-is-a-mean": "all-reduce takes the mean",
        "ranks-divide-the-buffer": "a buffer's length is a multiple of the ranks",
        "one-neighbour-is-enough": "to exchange with a neighbour is to reduce over all ranks",
        "whole-buffers-go-round": "a ring sends the whole buffer in every step",
        "one-rank-adds": "one rank collects, adds and hands out",
    },
)
