"""Reasoning exercise 09.4: where do ranks stand that wait for each other, and which single move mends it?"""

from functools import lru_cache
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch09_messages import Lists, in_order, moved, pipeline, run_lists
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng

__all__ = ["DEADLOCK", "SHAPES", "deadlock", "deadlock_text"]


SHAPES = ((2, 4, False, True), (3, 3, False, False), (3, 2, True, False), (3, 3, False, True))
"""Ranks, micro-batches, whether it is GPipe, and whether two ranks stand at sends to each other, variant by variant."""


@lru_cache(maxsize=8)
def deadlock(variant: int) -> Lists:
    """Lists in which one entry was moved, so that all ranks wait. Variants of one shape stand in different places."""
    shape = variant % len(SHAPES)
    found = _faults(shape)
    return found[variant // len(SHAPES) % len(found)]


@lru_cache(maxsize=len(SHAPES))
def _faults(shape: int) -> list[Lists]:
    """One for each way of standing, of two sizes, in an order of chance. Buffered sends would stop elsewhere."""
    rng = variant_rng("find-the-deadlock", shape)
    ranks, count, gpipe, facing = SHAPES[shape]
    found: dict[tuple[int | None, ...], Lists] = {}
    for size in (count, count + 1):
        base = pipeline(ranks, size, gpipe)
        places = [(r, a, b) for r, items in enumerate(base) for a in range(len(items)) for b in range(len(items))]
        for index in rng.permutation(len(places)):
            rank, item, place = places[index]
            lists = moved(base, rank, item, place)
            if item == place or not base[rank][item].verb or not in_order(lists[rank]):
                continue
            stuck = run_lists(lists)
            if None in stuck or min(at or 0 for at in stuck) < 2 or stuck == run_lists(lists, buffered=True):
                continue
            stand = [items[at or 0] for items, at in zip(lists, stuck, strict=True)]
            sends = [step.other if step.verb == "send" else -1 for step in stand]
            both = any(other >= 0 and sends[other] == rank for rank, other in enumerate(sends))
            if both == facing:
                found.setdefault(tuple(stuck), lists)
    return list(found.values())


def deadlock_text(variant: int) -> str:
    """What `question` prints."""
    lists = deadlock(variant)
    width = max(len(str(step)) for items in lists for step in items) + 3
    rows = ["number  " + "".join(f"rank {rank}".ljust(width) for rank in range(len(lists))).rstrip()]
    for number in range(max(map(len, lists))):
        cells = [str(items[number]) if number < len(items) else "" for items in lists]
        rows.append(f"{number:6}  " + "".join(cell.ljust(width) for cell in cells).rstrip())
    return (
        "Each rank works through its list from the top, one entry after the other:\n\n" + "\n".join(rows) + "\n\n"
        "F2 is the forward of micro-batch 2, B2 its backward. A send ends when the other rank stands at the\n"
        "receive of the same message: the two end together, and until then whoever came first stands there.\n"
        "Nothing is buffered.\n\n"
        "stuck: a list, for each rank the number of the entry at which it stands for ever; None: it comes to its end\n"
        "mend:  (rank, number, new): take the entry with that number out of the rank's list, put it in again so\n"
        "       that its number is new. After this one move all ranks come to their end, and no rank sends or uses\n"
        "       what it does not have yet"
    )


def deadlock_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: numbers of entries. Any move that mends is right; the lists are run with it. One of two right is free."""
    form = _form(returned)
    if form is not None:
        return form
    lists = deadlock(int(returned["variant"]))
    stuck, mend = returned["stuck"], returned["mend"]
    found = _wrong_stuck(lists, stuck) if stuck is not None else Wrong("`stuck` is still empty", form=True)
    move = _wrong_mend(lists, mend) if mend is not None else Wrong("`mend` is still empty", form=True)
    if found is not None:
        before = "the move is right. " if move is None else ""
        return Wrong(before + found.message, found.misconception, found.form or (move is None))
    if move is not None:
        return Wrong("`stuck` is right. " + move.message, move.misconception, form=True)
    return None


def _form(returned: dict[str, Any]) -> Wrong | None:
    keys = ("variant", "stuck", "mend")
    for key in (*returned, *keys):
        if key not in keys or key not in returned:
            what = "is not one of them" if key not in keys else "is missing"
            return Wrong(f"the answer has the keys {', '.join(keys)}; `{key}` {what}", form=True)
    for key in keys[1:]:
        value = returned[key]
        if value is None:
            continue
        if not isinstance(value, list | tuple):
            return Wrong(f"`{key}` is a list of numbers, in brackets; yours is {kind(value)}", form=True)
        for number in value:
            if number is None and key == "stuck":
                continue
            if isinstance(number, bool) or not isinstance(number, int | float) or number % 1 != 0:
                return Wrong(f"`{key}` has whole numbers; one of yours is {number!r}", form=True)
    return None


def _wrong_stuck(lists: Lists, stuck: Any) -> Wrong | None:
    if len(stuck) != len(lists):
        return Wrong(f"`stuck` has one entry for each of {len(lists)} ranks; yours has {len(stuck)}", form=True)
    given, right = [None if at is None else int(at) for at in stuck], run_lists(lists)
    if given == right:
        return None
    for rank, at in enumerate(given):
        if at is not None and at not in range(len(lists[rank])):
            return Wrong(f"rank {rank} has entries 0 to {len(lists[rank]) - 1}; `stuck` says {at}", form=True)
    if given == run_lists(lists, buffered=True):
        told = "they would stand there, or come to their end, if a send ended at once. When does it end here?"
        return Wrong(f"`stuck`: {told}", "a-send-ends-at-once")
    if given == [None if at is None else at + 1 for at in right]:
        return Wrong("`stuck`: the numbers are one too large. What is the number of the first entry?", form=True)
    if all(at is None for at in given):
        return Wrong(
            "`stuck`: not every rank comes to its end. Go through the lists with a finger on each", "order-by-itself"
        )
    for rank, (at, want) in enumerate(zip(given, right, strict=True)):
        if want is not None and (at is None or at > want):
            step = lists[rank][want]
            if step.verb == "send" or at is None:
                return Wrong(
                    f"`stuck`: rank {rank} does not come so far. Who takes what it sends before that?",
                    "a-send-ends-at-once" if step.verb == "send" else None,
                )
            return Wrong(f"`stuck`: rank {rank} does not come so far. From whom does it get what it needs before that?")
    rank = next(rank for rank, pair in enumerate(zip(given, right, strict=True)) if pair[0] != pair[1])
    if not lists[rank][given[rank] or 0].verb:
        return Wrong(
            f"`stuck`: rank {rank} stands at a pass in your answer. What does a pass wait for?", "a-pass-waits"
        )
    message = f"`stuck`: rank {rank} waits at that entry, but not for ever: the other rank comes to it"
    return Wrong(message, "the-first-wait-is-the-last")


def _wrong_mend(lists: Lists, mend: Any) -> Wrong | None:
    if len(mend) != 3 or any(number is None for number in mend):
        return Wrong("`mend` has three numbers: (rank, number, new)", form=True)
    rank, item, place = (int(number) for number in mend)
    if rank not in range(len(lists)):
        return Wrong(f"there are ranks 0 to {len(lists) - 1}; `mend` says {rank}", form=True)
    if item not in range(len(lists[rank])) or place not in range(len(lists[rank])):
        return Wrong(f"rank {rank} has entries 0 to {len(lists[rank]) - 1}; `mend` says {item} and {place}", form=True)
    if item == place:
        return Wrong("`mend` leaves the entry where it is", form=True)
    new = moved(lists, rank, item, place)
    if not in_order(new[rank]):
        message = f"after that move rank {rank} sends or uses something before it has it"
        return Wrong(f"`mend`: {message}", "a-message-before-its-pass")
    stuck = run_lists(new)
    if all(at is None for at in stuck):
        return None
    where = "; ".join(f"rank {r} at its entry {at}" for r, at in enumerate(stuck) if at is not None)
    if stuck == run_lists(lists):
        message = "after that move the ranks stand where they stood. Is that entry part of the circle?"
        return Wrong(f"`mend`: {message}", "any-move-will-do")
    if all(at is None for at in run_lists(new, buffered=True)):
        message = f"after that move ranks still wait: {where}. They would not, if a send ended at once"
        return Wrong(
            f"`mend`: {message}",
            "a-send-ends-at-once"
            if all(at is None for at in run_lists(lists, buffered=True)) is False
            else "the-circle-moves-on",
        )
    return Wrong(f"`mend`: after that move ranks still wait: {where}", "the-circle-moves-on")


DEADLOCK = Exercise(
    id="find-the-deadlock",
    title="Find the deadlock",
    cases=one_case("your answer"),
    run=answer_run,
    judge=deadlock_judge,
    misconceptions={
        "a-send-ends-at-once": "a rank that has sent goes on, whether anybody receives or not",
        "order-by-itself": "if every message is sent and received somewhere, all of them arrive",
        "a-pass-waits": "a rank that has its input can still have to wait before it computes",
        "the-first-wait-is-the-last": "the first place where a rank has to wait is where it stands for ever",
        "a-message-before-its-pass": "a message can be moved anywhere in a list",
        "any-move-will-do": "a deadlock is mended wherever something is moved",
        "the-circle-moves-on": "once the first circle is gone, there is none",
    },
)
