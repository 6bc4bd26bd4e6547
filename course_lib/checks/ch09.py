"""Checks of chapter 9, pipeline parallel: the two bubbles of a timeline.

How many micro-batches are enough is in `ch09_enough`, 1F1B as a list in `ch09_order`, a deadlock in `ch09_deadlock`,
the next batch in the bubble in `ch09_next`, long skips in `ch09_skip`, the loop of a stage in `ch09_stage`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch09_deadlock import DEADLOCK, deadlock_text
from course_lib.checks.ch09_enough import ENOUGH, enough_text
from course_lib.checks.ch09_next import NEXT, next_text
from course_lib.checks.ch09_order import ORDER
from course_lib.checks.ch09_play import one_f_one_b, play
from course_lib.checks.ch09_skip import SKIP
from course_lib.checks.ch09_stage import STAGE
from course_lib.checks.core import Case, Exercise, Wrong, ask, kind, make_check
from course_lib.checks.smell import nearly, plain, same

__all__ = ["EXERCISES", "check", "question"]

# --- 09.1 two bubbles -------------------------------------------------------------------------------------------------

Row = tuple[int, str, int, int]
"""Rank, kind, start, end."""


def bubbles_cases(seed: int) -> list[Case]:
    """Whole milliseconds. What each case is there for is fixed, its times follow the seed."""
    rng = np.random.default_rng([seed, 901])

    def lane(rank: int, first: int, passes: int, recv: bool = False) -> list[Row]:
        """F and B one after the other, with a gap before each, in which the rank may stand in a receive."""
        rows: list[Row] = []
        now = first
        for number in range(passes):
            gap, took = int(rng.integers(2, 9)) if number else 0, int(rng.integers(3, 20))
            if recv and gap:
                rows.append((rank, "recv", now, now + gap))
            rows.append((rank, "F" if number < passes // 2 else "B", now + gap, now + gap + took))
            now += gap + took
        return rows

    def mixed(rows: list[Row]) -> list[Row]:
        return [rows[index] for index in rng.permutation(len(rows))]

    f, b = (int(n) for n in rng.integers(4, 12, size=2))
    ends, _ = play(one_f_one_b(2, 2), {"F": f, "B": b})
    pair = [(rank, what, end - (f if what == "F" else b), end) for (rank, what, _), end in ends.items()]
    late = int(rng.integers(200, 900))
    waits = [*lane(0, 0, 4, True), *lane(1, int(rng.integers(5, 9)), 4, True), *lane(2, 9, 6, True)]
    inner = [*lane(0, 6, 4), *lane(1, 9, 4)]
    over = max(row[3] for row in inner)
    outer = [(1, "recv", 2, 9), *inner, (0, "recv", max(row[3] for row in inner if not row[0]), over + 5)]
    return [
        {"name": "two micro-batches on two ranks", "rows": pair, "ranks": 2},
        {"name": "three ranks that start one after the other", "rows": lane(0, 0, 6) + lane(1, 7, 5) + lane(2, 15, 4),
         "ranks": 3},
        {"name": "the first pass starts late", "rows": lane(0, late, 4) + lane(1, late + 9, 6), "ranks": 2},
        {"name": "rows in no order, one rank much busier", "rows": mixed(lane(0, 0, 3) + lane(1, 11, 14)), "ranks": 2},
        {"name": "ranks that stand in a receive", "rows": waits, "ranks": 3},
        {"name": "a receive begins first, and one ends last", "rows": mixed(outer), "ranks": 2},
        {"name": "a rank that has nothing to do", "rows": lane(0, 0, 6) + lane(2, 12, 4), "ranks": 4},
        {"name": "no bubble at all", "rows": [(0, "F", 3, 8), (0, "B", 8, 8 + b)], "ranks": 1},
    ]  # fmt: skip


def bubbles_run(answer: Callable[..., Any], case: Case) -> Any:
    returned = answer(case["rows"], case["ranks"])
    returned = returned.tolist() if hasattr(returned, "tolist") else returned
    return [plain(part) for part in returned] if isinstance(returned, (list, tuple)) else {"kind": kind(returned)}


def _pair(idle: float, work: float) -> tuple[float, float]:
    return idle / (idle + work), idle / work


def _guesses(rows: list[Row], ranks: int) -> dict[str, tuple[float, float]]:
    """What the right rule and each mistake give; every millisecond of every rank is looked at."""
    first, last = min(row[2] for row in rows), max(row[3] for row in rows)
    busy = [[row for row in rows if row[0] == rank and row[1] != "recv"] for rank in range(ranks)]

    def waits(start: int, end: int, rank: int, of: list[list[Row]] = busy) -> int:
        return sum(not any(row[2] <= now < row[3] for row in of[rank]) for now in range(start, end))

    everyone = range(ranks)
    work = sum(row[3] - row[2] for lane in busy for row in lane)
    idle = sum(waits(first, last, rank) for rank in everyone)
    full = [[row for row in rows if row[0] == rank] for rank in everyone]
    awake = sum(row[3] - row[2] for row in rows)
    own = sum(
        waits(min(row[2] for row in lane), max(row[3] for row in lane), rank) for rank, lane in enumerate(busy) if lane
    )
    seen = [rank for rank in everyone if full[rank]]
    computing = [row for lane in busy for row in lane]
    inside = min(row[2] for row in computing), max(row[3] for row in computing)
    total, ideal = _pair(idle, work)
    found = {
        "right": (total, ideal),
        "the-other-way-round": (ideal, total),
        "one-bubble-is-all": (total, total),
        "ideal twice": (ideal, ideal),
        "a-receive-is-work": _pair(sum(waits(first, last, rank, full) for rank in everyone), awake),
        "the-clock-starts-at-zero": _pair(sum(waits(0, last, rank) for rank in everyone), work),
        "the-clock-starts-with-each-rank": _pair(own, work),
        "ends-with-the-last-row": _pair(idle - ranks * (last - rows[-1][3]), work),
        "a-rank-without-work-is-no-rank": _pair(sum(waits(first, last, rank) for rank in seen), work),
        "no rank above the last with a row": _pair(
            sum(waits(first, last, rank) for rank in range(max(seen) + 1)), work
        ),
        "computing rows alone": _pair(sum(waits(*inside, rank) for rank in everyone), work),
        "busy": (1 - total, work / (idle + work)),
        "idle time": (float(idle), float(idle)),
        "times": (float(idle), float(work)),
    }
    if busy[0]:
        own_work = sum(row[3] - row[2] for row in busy[0])
        found["one-rank-stands-for-all"] = _pair(waits(first, last, 0), own_work)
        found["idle of all, time of one"] = (idle / (last - first), ideal)
        found["the-step-is-the-ideal"] = (total, idle / (last - first))
    if all(busy):
        works = [sum(row[3] - row[2] for row in lane) for lane in busy]
        found["a-mean-of-ratios"] = (total, sum((last - first - w) / w for w in works) / ranks)
    return found


BUBBLES_HINTS = {
    "the-other-way-round": "your two numbers are each other's. Which of the two can be more than 1?",
    "one-bubble-is-all": "both numbers are idle / total. What is `ideal` without the time in which ranks wait?",
    "ideal twice": "both numbers are idle / ideal. What does `total` hold besides?",
    "a-receive-is-work": "a rank that stands in a receive was counted as busy. What does it compute meanwhile?",
    "the-clock-starts-at-zero": "the time before the first row was counted. When does this step begin?",
    "the-clock-starts-with-each-rank": (
        "each rank's wait was counted between its own first and last row. What does it do before and after?"
    ),
    "ends-with-the-last-row": "the step was ended with the last row of the list. Are the rows in order?",
    "a-rank-without-work-is-no-rank": "a rank without a row was left out. What does its device do all the while?",
    "no rank above the last with a row": "a rank without a row was left out. What does its device do all the while?",
    "computing rows alone": "the step was measured over computing rows alone. Which rows does it last over?",
    "one-rank-stands-for-all": "those are the bubbles of rank 0 alone. Are the ranks alike here?",
    "idle of all, time of one": "the idle time of all ranks, over the time of one",
    "the-step-is-the-ideal": "the first is right. In the second, all ranks' idle time stands over the step of one rank",
    "a-mean-of-ratios": "the first is right. The second is a mean of ratios. How much do all ranks wait, and work?",
    "busy": "that is the share of time in which ranks compute; the bubble is the rest",
    "idle time": "that is the idle time; it wants to be divided",
    "times": "those are the idle time and the ideal, in ms. Which share of what is each bubble?",
}


def bubbles_judge(case: Case, returned: Any) -> Wrong | None:
    """Relative 1e-9: sums of whole milliseconds, one division. Oracle: every millisecond of every rank is counted."""
    if isinstance(returned, dict):
        what = "nothing came back. Does the function end in a `return`?"
        if returned["kind"] != "nothing":
            what = f"two numbers are wanted, `idle / total, idle / ideal`; {returned['kind']} came back"
        return Wrong(what, form=True)
    if len(returned) != 2 or any(isinstance(n, bool) or not isinstance(n, int | float) for n in returned):
        return Wrong("two numbers are wanted: return idle / total, idle / ideal", form=True)
    guesses = _guesses([tuple(row) for row in case["rows"]], case["ranks"])
    right = guesses.pop("right")
    if _equal(returned, right):
        return None
    if _equal([part / 100 for part in returned], right) and any(right):
        return Wrong("those are percent; a fraction is asked for, such as 0.25", form=True)
    for rule, guess in guesses.items():
        if not _equal(guess, right) and _equal(returned, guess):
            rule_of = {"no rank above the last with a row": "a-rank-without-work-is-no-rank"}.get(rule, rule)
            return Wrong(BUBBLES_HINTS[rule], rule_of if rule_of in BUBBLES.misconceptions else None)
    for which, got, want in zip(("idle / total", "idle / ideal"), returned, right, strict=True):
        close = nearly(got, want)
        if close:
            return Wrong(f"{which} is {close}")
        if got and got != want and got in (round(want, 1), round(want, 2), round(want, 3)):
            return Wrong(f"{which} is {got:.4g}, and that is rounded: return the fraction as it comes out")
        if not same(got, want, 1e-9):
            return Wrong(
                f"{which} is {got:.4g}, and that is not it. How long is the step, and how long does each rank compute?"
            )
    return None


def _equal(a: Any, b: Any) -> bool:
    return all(same(x, y, 1e-9) for x, y in zip(a, b, strict=True))


BUBBLES = Exercise(
    id="two-bubbles",
    title="Two bubbles of one timeline",
    cases=bubbles_cases,
    run=bubbles_run,
    judge=bubbles_judge,
    forbidden=("course_lib.parallel",),
    misconceptions={
        "the-other-way-round": "idle / total and idle / ideal are two words for one thing",
        "one-bubble-is-all": "there is one bubble, and it is idle / total",
        "a-receive-is-work": "a rank that is in a receive communicates, so it is not idle",
        "the-clock-starts-at-zero": "a step begins at time 0",
        "the-clock-starts-with-each-rank": "a rank is not idle before its first pass or after its last",
        "ends-with-the-last-row": "the row that is written last ends last",
        "a-rank-without-work-is-no-rank": "a device without work costs nothing",
        "one-rank-stands-for-all": "all ranks wait alike",
        "the-step-is-the-ideal": "the ideal is the time that the step took",
        "a-mean-of-ratios": "the mean of the ranks' ratios is the ratio of their sums",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text (`enough-micro-batches`, `find-the-deadlock`, `next-batch`)."""
    texts = {"enough-micro-batches": enough_text, "find-the-deadlock": deadlock_text, "next-batch": next_text}
    ask(texts, exercise, variant)


EXERCISES = [BUBBLES, ENOUGH, ORDER, DEADLOCK, NEXT, SKIP, STAGE]

check = make_check("09", EXERCISES)
