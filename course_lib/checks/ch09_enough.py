"""Reasoning exercise 09.2: the smallest number of micro-batches whose bubble is under a target."""

import math
from fractions import Fraction
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ENOUGH", "KINDS", "bubble", "enough", "enough_text"]

BOTH = ("the-other-bubble", "all-ranks-wait-for-p")
KINDS: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b", "of": "total", "rule": "any", "apart": BOTH},
    {"schedule": "interleaved", "of": "total", "rule": "ranks", "apart": (*BOTH, "any-number-will-do")},
    {"schedule": "gpipe", "of": "ideal", "rule": "any", "apart": (*BOTH, "under-is-at-most")},
    {"schedule": "1f1b", "of": "total", "rule": "batch", "apart": (*BOTH, "any-number-will-do")},
    {"schedule": "interleaved", "of": "ideal", "rule": "ranks", "apart": (*BOTH, "any-number-will-do")},
    {"schedule": "zb_h1", "of": "total", "rule": "any", "apart": BOTH},
)
"""Schedule, definition, which numbers of micro-batches are possible, and which mistakes give another number, variant
by variant."""

MOST = 4096


def bubble(run: dict[str, Any], m: int, **other: Any) -> Fraction:
    """The bubble with m micro-batches, exact: what each rank waits, over what it works or over both."""
    run = {**run, **other}
    p, v = run["ranks"], run["chunks"]
    waits = run.get("waiting", p - 1)
    work = Fraction(3 * m)  # a forward, and two halves of the backward, of the whole part of a rank
    idle = Fraction(waits * (1 if run["schedule"] == "zb_h1" else 3), v)
    return idle / (work + idle if run["of"] == "total" else work)


def legal(run: dict[str, Any], m: int) -> bool:
    if run["rule"] == "ranks":
        return m % run["ranks"] == 0
    return m >= run["ranks"] and (run["rule"] == "any" or run["batch"] % m == 0)


def smallest(run: dict[str, Any], at_most: bool = False, times: int = 1, **other: Any) -> int | None:
    """The first m, tried one by one, that is possible and has a bubble under the target; None: no m has."""
    run = {**run, **other}
    for m in range(1, MOST):
        found = bubble(run, m) / times
        if legal(run, m) and (found < run["target"] or (at_most and found == run["target"])):
            return m
    return None


def enough(variant: int) -> dict[str, Any]:
    """The numbers of a variant with the right m, and the bubble at the next smaller m that is possible."""
    rng = variant_rng("enough-micro-batches", variant)
    run: dict[str, Any] = dict(KINDS[variant % len(KINDS)])
    run["batch"] = 0
    while True:
        run["ranks"] = int(rng.choice([4, 6, 8, 12, 16]))
        run["chunks"] = int(rng.choice([2, 4])) if run["schedule"] == "interleaved" else 1
        run["target"] = Fraction(int(rng.choice([4, 5, 8, 10])), 100)
        run["sequences"] = int(rng.choice([480, 720, 1_440, 2_880]))
        if run["rule"] == "batch":
            run["batch"] = run["sequences"]
        m = smallest(run)
        fewer = [k for k in range(1, m or 1) if legal(run, k)]
        if not m or m <= 2 * run["ranks"] or not fewer or fewer[-1] < run["ranks"]:
            continue
        exact = bubble(run, fewer[-1]) == run["target"]
        apart = [guess for rule, (guess, _) in _others(run).items() if rule in run["apart"]]
        if m not in apart and exact == ("under-is-at-most" in run["apart"]):
            return {**run, "choice": m, "fewer": fewer[-1], "evidence": float(bubble(run, fewer[-1]))}


NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved": "interleaved 1F1B, with {chunks} chunks of the model on each rank",
    "zb_h1": "ZB-H1: F, I and W take equally long, and each rank waits (p - 1)(F + I - W) in a step",
}


def enough_text(variant: int) -> str:
    """What `question` prints."""
    run = enough(variant)
    rules = {
        "any": f"Any number of micro-batches from {run['ranks']} on is possible.",
        "ranks": f"The number of micro-batches has to be a multiple of the {run['ranks']} ranks.",
        "batch": f"A step has {run['sequences']:,} sequences. Micro-batches are equally large, of whole sequences, "
        f"and there are\nat least {run['ranks']} of them.",
    }
    return (
        f"{run['ranks']} ranks. All stages take equally long, a backward twice as long as a forward; sending takes\n"
        "no time.\n"
        f"Schedule: {NAMES[run['schedule']].format(**run)}.\n"
        f"{rules[run['rule']]}\n"
        f"The bubble, as idle / {run['of']}, has to be under {int(run['target'] * 100)}%.\n\n"
        "choice:   the smallest number of micro-batches for which it is\n"
        f"evidence: the bubble, as idle / {run['of']}, with the next smaller number of micro-batches\n"
        "          that is possible, as a fraction with four significant digits,\n"
        "          such as 0.1234 or 0.06543 (not 0.0654)"
    )


def enough_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The number is exact; the bubble within 0.051%: four significant digits, rounded."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    run, choice, value = enough(int(returned["variant"])), returned["choice"], returned["evidence"]
    if choice is not None and (isinstance(choice, bool) or not isinstance(choice, int | float) or choice % 1 != 0):
        return Wrong("`choice` is a whole number, without quotes", form=True)
    half = value is not None and math.isclose(value, run["evidence"], rel_tol=5.1e-4)
    if choice is None:
        return Wrong(f"`choice` is still empty{'; the evidence is right' if half else ''}", form=True)
    if choice != run["choice"]:
        return _wrong_choice(run, int(choice), value)
    if value is None:
        return Wrong("the choice is right; `evidence` is still empty", form=True)
    return None if half else _wrong_evidence(run, float(value))


def _others(run: dict[str, Any]) -> dict[str, tuple[int | None, str]]:
    """Misconception -> the m that it gives, and what to ask of it."""
    total = run["of"] == "total"
    other = "ideal" if total else "total"
    found = {
        "under-is-at-most": (smallest(run, at_most=True), "how large is the bubble then, to the last digit?"),
        "the-other-bubble": (
            smallest(run, of=other),
            f"that is the number for idle / {other}. What stands below idle / {run['of']}?",
        ),
        "all-ranks-wait-for-p": (
            smallest(run, waiting=run["ranks"]),
            "how many other stages does the first micro-batch pass before the last rank can start?",
        ),
        "any-number-will-do": (smallest(run, rule="any"), "is that number of micro-batches possible?"),
    }  # fmt: skip
    if run["schedule"] == "1f1b":
        found["1f1b-has-a-smaller-bubble"] = (
            smallest(run, times=2),
            "the bubble is still too large then. What is smaller in 1F1B than in GPipe: the bubble, or the memory?",
        )
    if run["schedule"] == "interleaved":
        message = "that is the number with one chunk on a rank. How long is a chunk's forward, and who waits for it?"
        found["interleaving-changes-nothing"] = (smallest(run, chunks=1), message)
        message = "that would make the bubble smaller than it is. How many times shorter is a wait with so many chunks?"
        found["chunks twice"] = (smallest(run, chunks=run["chunks"] ** 2), message)
    if run["schedule"] == "zb_h1":
        message = "that is the number for 1F1B. What do the weight gradients fill?"
        found["splitting-changes-nothing"] = (smallest(run, schedule="1f1b"), message)
    return found


def _wrong_choice(run: dict[str, Any], choice: int, value: float | None) -> Wrong:
    if choice < 1:
        return Wrong("there is at least one micro-batch", form=True)
    for rule, (guess, message) in _others(run).items():
        if guess == choice:
            return Wrong(f"{choice} micro-batches: {message}", rule if rule in ENOUGH.misconceptions else None)
    if not legal(run, choice):
        return Wrong(f"{choice} micro-batches: is that number of micro-batches possible?", "any-number-will-do")
    if choice > run["choice"]:
        return Wrong(f"{choice} micro-batches are enough, and fewer are too", "more-is-always-right")
    return Wrong(
        f"{choice} micro-batches: the bubble is not under the target then. How long does a rank wait, and work?"
    )


def _wrong_evidence(run: dict[str, Any], value: float) -> Wrong:
    before, fewer = "the choice is right. ", run["fewer"]
    other = "ideal" if run["of"] == "total" else "total"
    guesses = {
        "The evidence is in percent; write a fraction": 100 * run["evidence"],
        "That is the bubble with your own number; the next smaller possible one is asked for": bubble(
            run, run["choice"]
        ),
        f"That is idle / {other}": bubble(run, fewer, of=other),
        "Is one micro-batch fewer possible?": bubble(run, run["choice"] - 1),
    }
    for message, guess in guesses.items():
        if math.isclose(value, guess, rel_tol=5.1e-4) and not math.isclose(guess, run["evidence"], rel_tol=1e-3):
            return Wrong(before + message, form=True)
    if math.isclose(value, run["evidence"], rel_tol=1e-2):
        close = "The evidence is nearly right: four significant digits are asked for; zeros in front do not count"
        return Wrong(before + close, form=True)
    return Wrong(
        before + "The evidence is not: which number of micro-batches comes before it, and how long do ranks wait then?",
        form=True,
    )


ENOUGH = Exercise(
    id="enough-micro-batches",
    title="Enough micro-batches",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=enough_judge,
    misconceptions={
        "under-is-at-most": "a bubble that is the target is under it",
        "the-other-bubble": "idle / total and idle / ideal are the same number",
        "all-ranks-wait-for-p": "each rank waits for p stages",
        "any-number-will-do": "a schedule exists for every number of micro-batches",
        "1f1b-has-a-smaller-bubble": "1F1B has a smaller bubble than GPipe",
        "interleaving-changes-nothing": "more chunks on a rank leave the bubble as it is",
        "splitting-changes-nothing": "cutting the backward in two leaves the bubble as it is",
        "more-is-always-right": "more micro-batches cost nothing",
    },
)
