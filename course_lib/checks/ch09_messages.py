"""Lists of passes, sends and receives for each rank, run with sends that end when they are received."""

from typing import NamedTuple

from course_lib.checks.ch09_play import one_f_one_b

__all__ = ["Lists", "Step", "in_order", "mends", "moved", "pipeline", "run_lists"]


class Step(NamedTuple):
    """One entry of a rank's list: it computes, sends or receives."""

    verb: str
    """"", "send" or "recv"."""
    what: str
    """F or B: a forward or its activation, a backward or its gradient."""
    k: int
    other: int
    """The rank at the other end; -1 where it computes."""

    def __str__(self) -> str:
        if not self.verb:
            return f"{self.what}{self.k}"
        return f"{self.verb} {self.what}{self.k} {'to' if self.verb == 'send' else 'from'} {self.other}"


Lists = list[list[Step]]


def run_lists(lists: Lists, buffered: bool = False) -> list[int | None]:
    """Of each rank the number of the entry at which it stands in the end; None: it came to its end.

    A send and its receive end together; `buffered`: a send ends at once, whoever receives.
    """
    place, sent = [0] * len(lists), set()
    here = lambda rank: lists[rank][place[rank]] if place[rank] < len(lists[rank]) else None
    moving = True
    while moving:
        moving = False
        for rank in range(len(lists)):
            step = here(rank)
            while step is not None and (not step.verb or (buffered and step.verb == "send")):
                sent.add((step.what, step.k, rank))
                place[rank] += 1
                moving, step = True, here(rank)
            if step is None:
                continue
            other = here(step.other)
            if buffered and (step.what, step.k, step.other) in sent:
                place[rank] += 1
                moving = True
            elif not buffered and _meet(rank, step, other):
                place[rank] += 1
                place[step.other] += 1
                moving = True
    return [at if at < len(items) else None for at, items in zip(place, lists, strict=True)]


def _meet(rank: int, step: Step, other: Step | None) -> bool:
    """Whether one of the two entries sends what the other receives."""
    if other is None or other.other != rank or {step.verb, other.verb} != {"send", "recv"}:
        return False
    return (other.what, other.k) == (step.what, step.k)


def in_order(items: list[Step]) -> bool:
    """Whether a rank has what it computes with, and what it sends."""
    at = {step[:3]: place for place, step in enumerate(items)}
    for (verb, what, k), place in at.items():
        before = (
            [("recv", what, k), ("", "F", k)] if (verb, what) == ("", "B") else [("recv", what, k)] if not verb else []
        )
        before += [("", what, k)] if verb == "send" else []
        if any(at.get(name, -1) > place for name in before):
            return False
    return True


def moved(lists: Lists, rank: int, item: int, place: int) -> Lists:
    """A copy in which an entry of a rank was taken out and put in again as number `place`."""
    copy = [list(items) for items in lists]
    copy[rank].insert(place, copy[rank].pop(item))
    return copy


def mends(lists: Lists) -> list[tuple[int, int, int]]:
    """Every single move after which all ranks come to their end."""
    return [
        (rank, item, place)
        for rank, items in enumerate(lists)
        for item in range(len(items))
        for place in range(len(items))
        if item != place
        and in_order((new := moved(lists, rank, item, place))[rank])
        and all(at is None for at in run_lists(new))
    ]


def pipeline(ranks: int, count: int, gpipe: bool) -> Lists:
    """Lists that run: each message right before or after its pass; in 1F1B a rank takes the next activation first."""
    lists: Lists = []
    order = one_f_one_b(ranks, count)
    if gpipe:
        order = [[(name, k) for name in "FB" for k in range(count)]] * ranks
    for rank, passes in enumerate(order):
        items: list[Step] = []
        for number, (what, k) in enumerate(passes):
            source, sink = (rank - 1, rank + 1) if what == "F" else (rank + 1, rank - 1)
            if source in range(ranks) and Step("recv", what, k, source) not in items:
                items.append(Step("recv", what, k, source))
            items.append(Step("", what, k, -1))
            following = passes[number + 1] if number + 1 < len(passes) else None
            if what == "B" and following and following[0] == "F" and rank:
                items.append(Step("recv", "F", following[1], rank - 1))
            if sink in range(ranks):
                items.append(Step("send", what, k, sink))
        lists.append(items)
    return lists
