"""Check 09.3: 1F1B as a list of passes for each rank, played back: does it run, how long, what is held meanwhile?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch09_play import Named, Pass, needs, play
from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import plain

__all__ = ["COST", "ORDER", "held"]

COST = {"F": 1, "B": 2}


def order_cases(seed: int) -> list[Case]:
    """More and fewer micro-batches than ranks, and as many; one rank; one micro-batch. Large sizes follow the seed."""
    rng = np.random.default_rng([seed, 903])
    sizes = {
        "3 ranks, 5 micro-batches": (3, 5),
        "4 ranks, 8 micro-batches": (4, 8),
        "one rank": (1, int(rng.integers(2, 6))),
        "2 ranks, 2 micro-batches": (2, 2),
        "5 ranks, 2 micro-batches": (5, 2),
        "4 ranks, one micro-batch": (4, 1),
        "more ranks": (int(rng.integers(6, 9)), int(rng.integers(9, 15))),
        "fewer micro-batches than ranks": (int(rng.integers(6, 9)), int(rng.integers(3, 6))),
    }
    return [{"name": name, "ranks": ranks, "count": count} for name, (ranks, count) in sizes.items()]


def order_run(answer: Callable[..., Any], case: Case) -> Any:
    lists = answer(case["ranks"], case["count"])
    if not isinstance(lists, (list, tuple)):
        return {"kind": kind(lists)}
    return [
        [[plain(part) for part in item] if isinstance(item, (list, tuple)) else kind(item) for item in items]
        if isinstance(items, (list, tuple))
        else kind(items)
        for items in lists
    ]


def held(items: list[Pass]) -> int:
    """The most micro-batches whose forward has begun on a rank and whose backward has not ended."""
    now = most = 0
    for name, _ in items:
        now += 1 if name == "F" else -1
        most = max(most, now)
    return most


def order_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact. Oracle: the lists are played; the makespan is that of ranks that wait for the first and last pass alone,
    and rank r holds at most as many micro-batches as there are stages from it on."""
    ranks, count = case["ranks"], case["count"]
    form = _form(returned, ranks, count)
    if form is not None:
        return form
    lists: list[list[Pass]] = [[(str(name), int(k)) for name, k in items] for items in returned]
    wrong = _complete(lists, count)
    if wrong is not None:
        return wrong
    ends, stuck = play(lists, COST)
    if stuck:
        return _stuck(lists, ends, stuck)
    span, least = max(ends.values()), (count + ranks - 1) * sum(COST.values())
    peaks = [held(items) for items in lists]
    if span > least:
        return _slow(lists, ends, peaks, count)
    return _heavy(peaks, ranks, count)


def _form(returned: Any, ranks: int, count: int) -> Wrong | None:
    if isinstance(returned, dict):
        if returned["kind"] == "nothing":
            return Wrong("nothing came back. Does the function end in a `return`?", form=True)
        return Wrong(f"a list of lists is wanted, one for each rank; {returned['kind']} came back", form=True)
    if len(returned) != ranks:
        return Wrong(f"there are {ranks} ranks, and {len(returned)} lists came back", form=True)
    for rank, items in enumerate(returned):
        if isinstance(items, str):
            return Wrong(f"rank {rank} has {items}; give each rank a list of pairs", form=True)
        for item in items:
            if not isinstance(item, list) or len(item) != 2 or item[0] not in ("F", "B"):
                has = item if isinstance(item, str) else repr(item)
                return Wrong(f'each entry is a pair such as ("F", 0) or ("B", 0); rank {rank} has {has}', form=True)
            if isinstance(item[1], bool) or not isinstance(item[1], (int, float)) or item[1] not in range(count):
                return _not_a_micro_batch(rank, item, items, ranks, count)
    return None


def _not_a_micro_batch(rank: int, item: list[Any], items: list[Any], ranks: int, count: int) -> Wrong:
    numbers = f"they are numbered from 0 to {count - 1}"
    message = f"rank {rank} has {item[0]} of micro-batch {item[1]!r}; {numbers}"
    beyond = isinstance(item[1], int | float) and item[1] >= count
    if beyond and ranks > count:
        return Wrong(f"{message}, and there are more ranks", "the-warm-up-always-fits")
    if beyond and sum(other[0] == "F" for other in items) > count:
        return Wrong(f"{message}. What does rank {rank} do when the forwards run out?")
    if beyond and rank == ranks - 1:
        return Wrong(message, "the-last-rank-counts-from-one")
    return Wrong(message, form=not beyond)


def _complete(lists: list[list[Pass]], count: int) -> Wrong | None:
    for rank, items in enumerate(lists):
        twice = next((item for place, item in enumerate(items) if item in items[:place]), None)
        if twice:
            return Wrong(f"rank {rank} has {twice} twice")
        missing = [(name, k) for name in "FB" for k in range(count) if (name, k) not in items]
        if missing:
            name, k = missing[0]
            message = f"rank {rank} has no {name} of micro-batch {k}"
            if all(which == "B" for which, _ in missing) and len(missing) < count:
                message = f"rank {rank} ends with {len(missing)} backward{'s' * (len(missing) > 1)} missing. "
                return Wrong(message + "What is left when the last forward is done?", "steady-to-the-end")
            if len(lists) > count:
                return Wrong(f"{message}. There are fewer micro-batches than ranks here", "the-warm-up-always-fits")
            return Wrong(message)
        early = next((k for k in range(count) if items.index(("B", k)) < items.index(("F", k))), None)
        if early is not None:
            return Wrong(f"rank {rank} has the backward of micro-batch {early} before its forward")
    return None


def _stuck(lists: list[list[Pass]], ends: dict[Named, int], stuck: dict[int, int]) -> Wrong:
    told = []
    for rank, at in list(stuck.items())[:3]:
        name, k = lists[rank][at]
        other = next(need for need in needs(rank, name, k, len(lists)) if need not in ends)
        told.append(f"rank {rank} stands at {name} of micro-batch {k}, and waits for the {other[1]} of rank {other[0]}")
    message = (
        f"the ranks wait for each other: {'; '.join(told)}. How many forwards does each need before its first backward?"
    )
    firsts = [_warm_up(items) for items in lists]
    grows = firsts[0] < firsts[-1]
    return Wrong(message, "later-ranks-warm-up-longer" if grows else None)


def _warm_up(items: list[Pass]) -> int:
    return next(place for place, (name, _) in enumerate(items) if name == "B")


def _slow(lists: list[list[Pass]], ends: dict[Named, int], peaks: list[int], count: int) -> Wrong:
    """The makespan is too long: which rank waits in the middle for what it could have had?"""
    span = max(ends.values())
    if max(peaks) == 1 and count > 1 and len(lists) > 1:
        message = f"it takes {span} ms. How many micro-batches are on their way at the same time?"
        return Wrong(message, "one-micro-batch-at-a-time")
    short = [rank for rank, items in enumerate(lists) if _warm_up(items) < min(len(lists) - rank, count)]
    message = f"it takes {span} ms, and less is possible"
    if short:
        rank, first = short[0], _warm_up(lists[short[0]])
        message += f": rank {rank} does {first} forward{'s' * (first > 1)} before its first backward."
        message += " What does it do while that backward is on its way?"
        return Wrong(message, "the-warm-up-is-too-short")
    firsts = {_warm_up(items) for items in lists}
    if len(firsts) == 1 and len(lists) > 1:
        message += (
            f": every rank does {firsts.pop()} forwards before its first backward. How far is each from the last?"
        )
        return Wrong(message, "all-ranks-warm-up-alike")
    backwards = [[k for name, k in items if name == "B"] for items in lists]
    if any(row != backwards[0] for row in backwards) or any(row[0] for row in backwards):
        message += ". Which micro-batch comes back first from the last rank?"
        return Wrong(message, "the-last-in-is-the-first-out" if any(map(_newest_first, lists)) else None)
    return Wrong(f"{message}. Which rank waits where, between its first pass and its last?")


def _newest_first(items: list[Pass]) -> bool:
    """Whether the first backward of a rank that is not of its oldest micro-batch is of its newest."""
    held: list[int] = []
    for name, k in items:
        if name == "F":
            held.append(k)
        elif k != held[0]:
            return k == held[-1]
        else:
            held.remove(k)
    return False


def _heavy(peaks: list[int], ranks: int, count: int) -> Wrong | None:
    """The makespan is right: does a rank hold more than it has to?"""
    least = [min(ranks - rank, count) for rank in range(ranks)]
    over = [rank for rank in range(ranks) if peaks[rank] > least[rank]]
    if not over:
        return None
    rank = over[0]
    message = f"the makespan is right. Rank {rank} holds {peaks[rank]} micro-batches at once, and fewer are enough"
    if all(peak == count for peak in peaks):
        return Wrong(f"{message}: when could its first backward run?", "all-forwards-come-first")
    if all(peak == peaks[0] for peak in peaks):
        return Wrong(
            f"{message}: every rank holds the same here. How far is each from the last?", "all-ranks-warm-up-alike"
        )
    if all(peaks[rank] == min(least[rank] + 1, count) for rank in range(ranks)):
        return Wrong(
            f"{message}. Which forward need not be there yet when its first backward can run?", "one-forward-too-many"
        )
    return Wrong(message)


ORDER = Exercise(
    id="one-f-one-b",
    title="1F1B, rank by rank",
    cases=order_cases,
    run=order_run,
    judge=order_judge,
    forbidden=("course_lib.parallel", "torch.distributed.pipelining"),
    misconceptions={
        "all-forwards-come-first": "a batch's backwards begin when its forwards are over",
        "all-ranks-warm-up-alike": "every rank does the same number of forwards first",
        "one-forward-too-many": "a rank does one forward more for safety, and that costs nothing",
        "the-warm-up-is-too-short": "a rank does a backward after its first forward, or soon after",
        "later-ranks-warm-up-longer": "the further down a rank is, the more forwards it does first",
        "one-micro-batch-at-a-time": "a micro-batch comes back before the next one starts",
        "the-warm-up-always-fits": "there are at least as many micro-batches as ranks",
        "steady-to-the-end": "forward and backward alternate until the end",
        "the-last-rank-counts-from-one": "a rank without a warm-up begins with micro-batch 1",
        "the-last-in-is-the-first-out": "micro-batches come back in the opposite order",
    },
)
