"""From what the ranks told to the lines a learner reads: which rank, what happened, where, what to do."""

import re
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from course_lib.errors import RankError

if TYPE_CHECKING:
    from course_lib.parallel._lines import Line
    from course_lib.parallel._record import Operation, Place

__all__: list[str] = []

SAME_CALLS = "All ranks of a group must call the same collectives in the same order, with the same shape and dtype."
SAME_SIZES = "What is received needs as much room as what is sent: the same shape and dtype on both sides."
LIKELY = {
    "SIGKILL": "killed from outside; often the system ran out of memory",
    "SIGSEGV": "a crash in compiled code",
    "SIGABRT": "compiled code gave up",
    "SIGTERM": "asked to end from outside",
}


@dataclass
class Failure:
    """An error that a rank told of."""

    time: float
    doing: str
    """ "" in the function; "join", "unpack", "return", "left" around it."""
    text: str
    traceback: str
    communication: bool


@dataclass
class Rank:
    """What is known of one rank."""

    ready: bool = False
    returned: bool = False
    finished: bool = False
    failure: Failure | None = None
    death: tuple[float, int | None] | None = None
    """When it was seen, and its exit code."""
    place: "Place | None" = None
    calls: "dict[tuple[str, int], Operation]" = field(default_factory=dict)
    """By group and number."""
    last: dict[str, int] = field(default_factory=dict)
    """Number of its last collective in each group."""
    lost: bool = False
    """Whether some of its calls are unknown."""
    followed: set[str] = field(default_factory=set)
    """Groups of which a call is known that came after those that are unknown: so is what came after it."""
    crash: "Line | None" = None
    """Where Python stood when it crashed, or when it could not answer."""
    last_words: str = ""
    """The end of what compiled code wrote to its stderr."""
    unexpected: tuple[int, int] | None = None
    """(bytes that another rank sent, bytes that this one expected), when gloo ended it for that."""

    def note(self, calls: "Iterable[Operation]", lost: bool) -> None:
        """More of what it has called; `lost`: with a gap before it."""
        if lost:
            self.lost, self.followed = True, set()
        for call in calls:
            self.calls[call.group, call.number] = call
            self.last[call.group] = max(call.number, self.last.get(call.group, 0))
            self.followed.add(call.group)

    def may_have_called(self, group: str, number: int) -> bool:
        """One that has called a later one of the group has called this one; or it may be in a gap."""
        return self.last.get(group, 0) >= number or (self.lost and group not in self.followed)


def some(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0 and 2"."""
    *most, last = (str(rank) for rank in ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"


def died(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None:
        return "ended"
    if code >= 0:
        return f"ended with exit code {code} before its function returned (os._exit does that; use return)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"was ended by signal {-code}"
    return f"was ended by {name}" + (f" ({LIKELY[name]})" if name in LIKELY else "")


def of_failure(rank: int, ranks: Sequence[Rank], failed: tuple[int, ...]) -> RankError:
    """One rank's Python error."""
    failure = ranks[rank].failure
    assert failure is not None
    what = {
        "": f"failed: {failure.text}",
        "left": f"left early: it called {failure.text}; use return",
        "join": f"could not join the others: {failure.text}",
        "unpack": f"could not read the function or its arguments: {failure.text}",
        "return": f"returned something that cannot be sent back: {failure.text}",
    }[failure.doing]
    lines = [f"rank {rank} of {len(ranks)} {what}"]
    if failure.doing == "unpack":
        lines.append("A module that the function needs has to be importable from a new Python process too.")
    if failure.doing == "return":
        lines.append("Return numbers, strings, lists, dicts or tensors (of a DTensor: its full_tensor()).")
    if failure.doing in ("", "left", "join", "unpack") and failure.traceback:
        lines += ["", f"On rank {rank}:", failure.traceback]
    others = [(other, ranks[other]) for other in failed if other != rank]
    if others:
        lines += [
            "",
            *(f"Rank {other} failed too: {fate(known)}" for other, known in others[:3]),
        ]
        lines += [f"... and {some(other for other, _ in others[3:])}"] if others[3:] else []
    return RankError("\n".join(lines), rank=rank, ranks=failed)


def fate(rank: Rank) -> str:
    return rank.failure.text if rank.failure is not None else died(rank.death[1] if rank.death else None)


def of_death(rank: int, ranks: Sequence[Rank], failed: tuple[int, ...]) -> RankError:
    """A process that ended by a signal or by itself."""
    known = ranks[rank]
    lines = [f"rank {rank} of {len(ranks)} {died(known.death[1] if known.death else None)}"]
    if known.crash is not None:
        lines.append(f"  at {known.crash}")
    if known.last_words:
        lines += ["It wrote:", known.last_words]
    if known.unexpected is not None:
        sent, expected = known.unexpected
        lines.append(f"Another rank sent it {sent} bytes where it expected {expected}.")
        groups = [(other, one.last.get("0")) for other, one in enumerate(ranks) if other != rank]
        calls = [in_words(other, ranks[other].calls["0", number]) for other, number in groups if number]
        lines += ["The others' last collectives:", *calls, SAME_CALLS] if calls else [SAME_SIZES]
    elif known.crash is not None and ("send" in known.crash.text or "recv" in known.crash.text):
        lines.append(f"There are ranks 0 to {len(ranks) - 1}. To which does it send, or from which does it receive?")
    return RankError("\n".join(lines), rank=rank, ranks=failed)


def disagreement(ranks: Sequence[Rank], over: bool = False) -> RankError | None:
    """The first collective in which the ranks of a group called different things, if there is one.

    A rank that has returned will call nothing more; when the call is `over`, so has every rank.
    """
    groups = members(ranks)
    for group, number in sorted({key for rank in ranks for key in rank.calls}, key=lambda key: (key[1], key[0])):
        calls = {place: rank.calls[group, number] for place, rank in enumerate(ranks) if (group, number) in rank.calls}
        first = next(iter(calls.values()))
        if not all(first.agrees(call) for call in calls.values()):
            return different(groups[group], calls, len(ranks))
        left = [one for one in groups[group] if one not in calls and (over or ranks[one].returned)]
        left = [one for one in left if not ranks[one].may_have_called(group, number)]
        if left:
            return missing(left, calls, ranks)
    return None


def members(ranks: Sequence[Rank]) -> dict[str, tuple[int, ...]]:
    """The global ranks of each group; () for a group that is gone, when nobody knows."""
    found: dict[str, tuple[int, ...]] = {}
    for rank in ranks:
        for call in rank.calls.values():
            if len(call.ranks) >= len(found.get(call.group, ())):
                found[call.group] = call.ranks
    if not found.get("0", ("any",)):
        found["0"] = tuple(range(len(ranks)))
    return found


def different(group: tuple[int, ...], calls: "dict[int, Operation]", ranks: int) -> RankError:
    """The odd ones out are named: those of the smallest set that agrees, and of equal ones the last."""
    sets: list[list[int]] = []
    for rank, call in calls.items():
        home = next((one for one in sets if calls[one[0]].agrees(call)), None)
        if home is None:
            sets.append([rank])
        else:
            home.append(rank)
    odd = min(reversed(sets), key=len)
    rest = [rank for rank in calls if rank not in odd]
    mine, other = calls[odd[0]], calls[rest[0]]
    what = "used another dtype" if mine.dtype != other.dtype else "used another shape"
    what = what if mine.kind == other.kind else "called another collective"
    where = f"collective {mine.number}" + (f" of the group of {some(group)}" if 0 < len(group) < ranks else "")
    lines = [f"{some(odd)} of {ranks} {what} than {some(rest)} ({where})"]
    lines += [in_words(rank, call) for rank, call in calls.items()] + [SAME_CALLS]
    return RankError("\n".join(lines), rank=odd[0], ranks=tuple(sorted(calls)))


def in_words(rank: int, call: "Operation") -> str:
    return f"  rank {rank}: {call}" + (f"  at {call.line}" if call.line is not None else "")


def missing(left: list[int], calls: "dict[int, Operation]", ranks: Sequence[Rank]) -> RankError:
    """Ranks that returned without a collective which others of their group called."""
    others = [rank for rank in calls if rank not in left]
    call = calls[others[0]]
    lines = [f"{some(left)} of {len(ranks)} returned without the {call.kind} that {some(others)} called"]
    lines += [in_words(rank, calls[rank]) for rank in others]
    lines += [f"  rank {rank}: has returned" for rank in left] + [SAME_CALLS]
    return RankError("\n".join(lines), rank=left[0], ranks=tuple(left))


def of_hang(ranks: Sequence[Rank], timeout: float) -> RankError:
    """Time is up. A rank that is in no communication call keeps the others waiting: it is named first."""
    slow = [number for number, rank in enumerate(ranks) if not rank.finished]
    busy = [number for number in slow if (place := ranks[number].place) is None or not place.waits_in]
    lines = [f"{some(slow)} of {len(ranks)} did not finish within {timeout:g} s"]
    lines += [f"  rank {number}: {standing(rank)}" for number, rank in enumerate(ranks)]
    stray = [number for number in slow if stranger(ranks[number], len(ranks))]
    if stray:
        lines.append(f"There are ranks 0 to {len(ranks) - 1}: {some(stray)} will wait for ever.")
    elif busy:
        waiting = f"The others wait for {some(busy)}. " if len(busy) < len(slow) else ""
        lines.append(f"{waiting}If it only needs more time: run_ranks(..., timeout={2 * timeout:g})")
    elif len(slow) == 1:
        lines.append("It waits for a call that no other rank makes.")
    else:
        lines.append("Each waits for another: look for a call that one rank makes and its partner does not.")
    return RankError("\n".join(lines), rank=(busy or slow)[0], ranks=tuple(slow))


def stranger(rank: Rank, ranks: int) -> bool:
    """Whether it waits for a rank that does not exist."""
    found = re.search(r"rank (-?\d+)$", rank.place.waits_in) if rank.place is not None else None
    return found is not None and not 0 <= int(found[1]) < ranks


def of_start(ranks: Sequence[Rank], limit: float) -> RankError:
    """Not every rank was ready to call the function."""
    slow = tuple(number for number, rank in enumerate(ranks) if not rank.ready)
    text = f"{some(slow)} of {len(ranks)} could not be made ready within {limit:g} s; the machine may be too busy"
    return RankError(text, rank=slow[0], ranks=slow)


def standing(rank: Rank) -> str:
    """Where one rank stands, in one line."""
    if rank.finished or rank.returned:
        return "has returned"
    if rank.place is None:
        return "is in compiled code that does not answer" + (f", called at {rank.crash}" if rank.crash else "")
    line = str(rank.place.line) if rank.place.line is not None else "a line of a library"
    return f"waits in {rank.place.waits_in} at {line}" if rank.place.waits_in else f"is at {line}"
