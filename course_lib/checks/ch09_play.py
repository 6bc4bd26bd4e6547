"""How checks of chapter 9 play a pipeline: each rank works through its list, and waits where it has to."""

from collections.abc import Callable, Iterable, Sequence

__all__ = ["Pass", "needs", "one_f_one_b", "play"]

Pass = tuple[str, int]
"""What a rank does, and for which micro-batch: ("F", 0), ("B", 0). "U": its update; "N": the next batch's forward."""
Named = tuple[int, str, int]
"""The same with its rank in front."""


def needs(rank: int, kind: str, k: int, ranks: int) -> list[Named]:
    """What has to be over before an action of one stage on each rank can start, besides what its rank does first."""
    if kind in "FN":
        return [(rank - 1, kind, k)] if rank else []
    if kind == "B":
        return [(rank, "F", k)] + ([(rank + 1, "B", k)] if rank < ranks - 1 else [])
    return []


def play(
    lists: Sequence[Sequence[Pass]], cost: dict[str, int], wait: Callable[..., Iterable[Named]] = needs
) -> tuple[dict[Named, int], dict[int, int]]:
    """When each action ends, and of each rank that comes to a stop the place in its list where it stands.

    Every rank in turn does as much as it can, until none can do more.
    """
    ends: dict[Named, int] = {}
    place, free = [0] * len(lists), [0] * len(lists)
    moved = True
    while moved:
        moved = False
        for rank, items in enumerate(lists):
            while place[rank] < len(items):
                kind, k = items[place[rank]]
                wanted = list(wait(rank, kind, k, len(lists)))
                if not all(name in ends for name in wanted):
                    break
                free[rank] = max([free[rank], *(ends[name] for name in wanted)]) + cost[kind]
                ends[rank, kind, k] = free[rank]
                place[rank] += 1
                moved = True
    return ends, {rank: at for rank, at in enumerate(place) if at < len(lists[rank])}


def one_f_one_b(ranks: int, count: int) -> list[list[Pass]]:
    """By its rule of memory: a rank runs a backward where it holds `ranks - rank` micro-batches, else a forward."""
    lists = []
    for rank in range(ranks):
        items: list[Pass] = []
        forward = backward = 0
        while backward < count:
            if forward < count and forward - backward < ranks - rank:
                items.append(("F", forward))
                forward += 1
            else:
                items.append(("B", backward))
                backward += 1
        lists.append(items)
    return lists
