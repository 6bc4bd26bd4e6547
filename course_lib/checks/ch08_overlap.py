"""Check 08.5: when gathers and forwards start on two streams, against a simulation millisecond by millisecond."""

from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import plain

__all__ = ["OVERLAP"]

Starts = list[tuple[int, int]]


def overlap_cases(seed: int) -> list[Case]:
    """Whole milliseconds. The shape of each case is fixed, so that each rule decides one of them at every seed."""
    rng = np.random.default_rng([seed, 805])

    def some(count: int, low: int, high: int) -> list[int]:
        return [int(n) for n in rng.integers(low, high, size=count)]

    def case(name: str, compute: list[int], gather: list[int], ahead: int) -> Case:
        return {"name": name, "compute": compute, "gather": gather, "ahead": ahead}

    short, long = some(6, 2, 6), some(6, 12, 20)
    mixed = [1 + 15 * (n % 3 == 0) for n in range(8)]
    return [
        case("no layer ahead", some(4, 5, 9), some(4, 2, 5), 0),
        case("two ahead, computing takes longer", some(7, 12, 20), some(7, 2, 6), 2),
        case("one ahead, computing takes longer", long, short, 1),
        case("one ahead, gathering takes longer", short, long, 1),
        case("two ahead, a long layer now and then", [n + int(rng.integers(0, 3)) for n in mixed], some(8, 4, 9), 2),
        case("more ahead than there are layers", some(3, 3, 9), some(3, 3, 9), 5),
        case("one layer", some(1, 3, 9), some(1, 3, 9), 1),
    ]


def overlap_run(answer: Callable[..., Any], case: Case) -> Any:
    rows = answer(case["compute"], case["gather"], case["ahead"])
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    if not isinstance(rows, (list, tuple)):
        return {"kind": "nothing" if rows is None else kind(rows)}
    return [[plain(part) for part in row] if isinstance(row, (list, tuple)) else kind(row) for row in rows]


def simulate(
    compute: list[int], gather: list[int], rooms: int, *, many: bool = False, waits: bool = True,
) -> Starts:  # fmt: skip
    """What happens in each millisecond. The options break one rule each, for the messages of the judge."""
    count, now = len(compute), 0
    asked: list[int] = []  # start of each gather, so far
    begun: list[int] = []  # start of each forward, so far
    while len(begun) < count:
        for _ in range(2 * count):  # until nothing more can start in this millisecond
            free = rooms - len(asked) + sum(t + compute[n] <= now for n, t in enumerate(begun))
            wire = many or all(t + gather[n] <= now for n, t in enumerate(asked))
            core = all(t + compute[n] <= now for n, t in enumerate(begun))
            there = [t + gather[n] <= now for n, t in enumerate(asked)]
            following = len(begun)
            able = core and following < len(asked) and (there[following] or not waits)
            if able and following < count:
                begun.append(now)
            elif wire and free > 0 and len(asked) < count:
                asked.append(now)
            else:
                break
        now += 1
    return list(zip(asked, begun, strict=True))


def overlap_judge(case: Case, returned: Any) -> Wrong | None:
    """Within 1e-6 ms: sums of whole milliseconds, in float too. Oracle: `simulate`."""
    count = len(case["compute"])
    form = _form(returned, count)
    if form is not None:
        return form
    compute, gather, rooms = case["compute"], case["gather"], case["ahead"] + 1
    right = simulate(compute, gather, rooms)
    if _equal(returned, right):
        return None
    for rule, guess in _mistakes(compute, gather, rooms).items():
        if guess != right and _equal(returned, guess):
            return Wrong(OVERLAP_HINTS[rule], rule if rule in OVERLAP.misconceptions else None)
    if _equal([[b, a] for a, b in returned], right):
        return Wrong("the times are right, the pairs are the wrong way round", form=True)
    if _equal([[1000 * part for part in pair] for pair in returned], right):
        return Wrong("those are seconds; times are in ms", form=True)
    if _equal([[a - g, b - c] for (a, b), g, c in zip(returned, gather, compute, strict=True)], right):
        return Wrong("those are the moments at which gathers and forwards end; their starts are asked for", form=True)
    if count > 1 and all(a[0] <= b[0] for a, b in zip(returned[1:], returned, strict=False)):
        return Wrong("the gathers start all at once or backwards. In which order does their stream take them?")
    return _first(case, returned, right)


def _first(case: Case, returned: list[list[float]], right: Starts) -> Wrong:
    """The first time that is off: in the order of the layers, gather before forward."""
    compute, gather, ahead = case["compute"], case["gather"], case["ahead"]
    for layer, (got, want) in enumerate(zip(returned, right, strict=True)):
        if abs(got[0] - want[0]) > 1e-6:
            if got[0] > want[0]:
                return Wrong(f"the gather of layer {layer} could start earlier than at {got[0]:g} ms", "waits-too-long")
            if layer and got[0] < returned[layer - 1][0] + gather[layer - 1] - 1e-6:
                message = (
                    f"at {got[0]:g} ms, when you start the gather of layer {layer}, the gather before it is not done"
                )
                return Wrong(message, "two-gathers-at-once")
            if layer > ahead and got[0] < returned[layer - ahead - 1][1] + compute[layer - ahead - 1] - 1e-6:
                message = f"at {got[0]:g} ms, when you start the gather of layer {layer}, there is no room for it"
                return Wrong(message, "there-is-always-room")
            return Wrong(f"the gather of layer {layer} cannot start at {got[0]:g} ms. What has to be over?")
        if abs(got[1] - want[1]) > 1e-6:
            if got[1] > want[1]:
                message = f"the forward of layer {layer} could start earlier than at {got[1]:g} ms"
                return Wrong(message, "waits-too-long")
            if got[1] < got[0] + gather[layer] - 1e-6:
                message = f"the forward of layer {layer} starts at {got[1]:g} ms, before its weights are there"
                return Wrong(message, "computes-without-weights")
            return Wrong(f"the forward of layer {layer} starts at {got[1]:g} ms, before the one before it has ended")
    raise AssertionError("equal")


def _mistakes(compute: list[int], gather: list[int], rooms: int) -> dict[str, Starts]:
    out = {
        "there-is-always-room": simulate(compute, gather, len(compute) + 1),
        "two-gathers-at-once": simulate(compute, gather, rooms, many=True),
        "nothing-ahead": simulate(compute, gather, 1),
        "computes-without-weights": simulate(compute, gather, rooms, waits=False),
        "one-room-too-many": simulate(compute, gather, rooms + 1),
    }
    if rooms > 1:
        out["one-room-too-few"] = simulate(compute, gather, rooms - 1)
    return out


OVERLAP_HINTS = {
    "there-is-always-room": "the gathers never wait for room. How many layers may be held, or on their way, at a time?",
    "two-gathers-at-once": "two gathers run at the same time. How many streams are there for them?",
    "nothing-ahead": "each gather waits for the forward before it, as if one stream did everything",
    "computes-without-weights": "a forward starts before its weights are there",
    "one-room-too-many": "one layer more is held than fits. Does the layer that computes need no room?",
    "one-room-too-few": "there is room for one layer more than you use. What does `ahead` count?",
}


def _form(returned: Any, count: int) -> Wrong | None:
    if isinstance(returned, dict):
        if returned["kind"] == "nothing":
            return Wrong("nothing came back. Does the function end in a `return`?", form=True)
        return Wrong(f"a list of pairs is wanted; {returned['kind']} came back", form=True)
    for row in returned:
        if not isinstance(row, list) or len(row) != 2:
            return Wrong(f"each layer has a pair (gather starts, forward starts); one of yours is {row!r}", form=True)
        if any(isinstance(part, bool) or not isinstance(part, (int, float)) or not isfinite(part) for part in row):
            return Wrong(f"times are numbers, in ms; one pair of yours is {row!r}", form=True)
    if len(returned) != count:
        return Wrong(f"{count} layers need {count} pairs; {len(returned)} came back", form=True)
    return None


def _equal(returned: list[list[float]], starts: Starts) -> bool:
    return all(abs(a - c) <= 1e-6 and abs(b - d) <= 1e-6 for (a, b), (c, d) in zip(returned, starts, strict=True))


OVERLAP = Exercise(
    id="gather-ahead",
    title="Which gather can start when",
    cases=overlap_cases,
    run=overlap_run,
    judge=overlap_judge,
    forbidden=("course_lib.parallel",),
    misconceptions={
        "there-is-always-room": "gathers can run ahead as far as they like",
        "two-gathers-at-once": "gathers do not wait for each other",
        "nothing-ahead": "a device either computes or communicates",
        "computes-without-weights": "computing does not wait for a gather",
        "one-room-too-many": "a layer's room is free as soon as its forward has started",
        "one-room-too-few": "the layer that computes is one of those ahead",
        "waits-too-long": "a stream waits for more than what it needs",
    },
)
