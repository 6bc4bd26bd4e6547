"""Reasoning exercise 13.3: the cheapest cure for a sum that loses its addends, and how large its error is."""

import math
from dataclasses import replace
from functools import partial
from numbers import Real
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["CURE", "cure", "cure_text", "error_of"]

WANTED = "CBDEAC"
"""The right line, variant by variant."""
BITS = {"BF16": 7, "FP16": 10, "FP32": 23}
PLACES = {
    "weight": "weights near 1, {n:,} updates of {a}, one after the other",
    "accumulate": "a gradient of {n:,} micro-batches, {a} each, one after the other",
    "stored": "a mean over {n:,} values that are all in memory, {a} each",
}
BYTES = {
    "weight": {"A": 0, "B": 0, "C": 2, "D": 4},
    "accumulate": {"A": 0, "B": 0, "C": 2, "D": 2},
    "stored": {"A": 0, "B": 0, "C": 2, "D": 2, "E": 0},
}
"""More bytes for each number. A weight's FP32 master is beside the 16-bit one that the layers read."""
RIGHT_NUMBER = "the evidence is right, the choice is not"
OPERATIONS = {"A": 1, "E": 1, "D": 1, "B": 3, "C": 4}


def error_of(run: dict[str, Any], line: str) -> float:
    """The relative error of the sum that the text gives for a line, in per cent."""
    m, n, a, start = BITS[run["format"]], run["n"], run["a"], run["start"]
    end = start + n * a
    spacing = 2.0 ** (math.floor(math.log2(end)) - m)
    if line == "A":
        stop = max(start, 2.0 ** (m + 1) * a)
        reached = min(end, stop)
        return 100 * (end - reached) / end
    if line == "B":
        return 100 * 2 * math.sqrt(n * a * spacing) / end
    if line == "C":
        return 100 * spacing / 2 / end
    if line == "D":
        return 100 * math.sqrt(n) * 2.0**-24
    return 100 * math.log2(n) * 2.0 ** -(m + 1)


def _best(run: dict[str, Any]) -> str:
    """The line with the fewest bytes, then operations, of those that keep the limit."""
    cost = BYTES[run["place"]]
    lines = [line for line in cost if error_of(run, line) <= run["limit"]]
    return min(lines, key=lambda line: (cost[line], OPERATIONS[line]), default="")


def cure(variant: int) -> dict[str, Any]:
    """The numbers of a variant; every line's error is at least 1.5 times below or above the limit."""
    rng, wanted = variant_rng("choose-the-cure", variant), WANTED[variant % len(WANTED)]
    while True:
        place = {"C": "weight", "D": "accumulate", "E": "stored"}.get(wanted, str(rng.choice(["weight", "accumulate"])))
        power = int(rng.integers(6, 15))
        run: dict[str, Any] = {
            "place": place,
            "format": "BF16" if place == "weight" else str(rng.choice(["BF16", "FP16"])),
            "n": int(rng.integers(3, 12)) * 2**power // 4,
            "power": -int(rng.integers(10, 15)) if place == "weight" else -int(rng.integers(3, 9)),
            "start": 1.0 if place == "weight" else 0.0,
            "limit": float(rng.choice([0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15])),
        }
        run["a"] = 2.0 ** run["power"]
        total = run["start"] + run["n"] * run["a"]
        errors = {line: error_of(run, line) for line in BYTES[place]}
        clear = all(not run["limit"] / 1.5 < error < run["limit"] * 1.5 for error in errors.values())
        if not clear or _best(run) != wanted or total > 30_000 or (place == "weight" and total > 8):
            continue
        if wanted == "A" and (run["n"] < 100 or place == "weight"):
            continue
        if wanted != "A" and errors["A"] < 20:
            continue
        if errors[wanted] == 0 and wanted != "A":
            continue
        return run | {"choice": wanted, "evidence": errors["A"]}


def cure_text(variant: int) -> str:
    """What `question` prints."""
    run = cure(variant)
    place, fmt = run["place"], run["format"]
    cost = BYTES[place]
    a = f"2^{run['power']}"
    rows = {
        "A": ("a plain running sum", "(sum - where it stops) / sum; exact until there"),
        "B": (
            "stochastic rounding",
            "2 x sqrt(n x addend x spacing at the end) / sum: two standard deviations",
        ),
        "C": ("Kahan's compensation", "half the spacing at the end / sum"),
        "D": ("a sum in FP32", "sqrt(n) x 2^-24"),
        "E": ("pairwise, in the format", "log2(n) x 2^-(m+1), with m stored bits"),
    }
    lines = [
        f"{fmt} ({BITS[fmt]} stored mantissa bits): {PLACES[place].format(n=run['n'], a=a)}.",
        f"The sum is to be within {run['limit']:g}% of the exact one, for many numbers side by side.",
        "",
        "                                  more bytes    operations",
        "                                  a number      an addend     its error; `sum` is the exact one",
    ]
    for line, (what, error) in rows.items():
        if line in cost:
            lines.append(f'  "{line}" {what:27s} {cost[line]:>4}     {OPERATIONS[line]:>11}         {error}')
        else:
            lines.append(f'  "{line}" {what:27s}    not possible: the addends come one after the other')
    if place == "weight":
        lines += ["", "The FP32 weight of D is kept beside the 16-bit one that the layers read; the sums begin at 1."]
        lines += ["A sum that begins at 1 stops at 1 where an addend is lost at once."]
    else:
        lines += ["", "The sums begin at 0."]
    lines += [
        "",
        "choice:   of the lines that keep the limit the one with the fewest bytes; of several the fewest operations",
        'evidence: the error of "A" in per cent of the exact sum, whatever you choose;',
        "          within half a point of per cent",
    ]
    return "\n".join(lines)


def cure_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter exact; the per cents within half a point, as the text says. Errors are 1.5 times from the limit.

    The number is the same whatever the letter is, so a wrong letter beside it costs a try: no letters one by one.
    """
    run = cure(int(returned["variant"]))
    choice, number = partial(_wrong_choice, run), partial(_wrong_number, run)
    value = returned.get("evidence")
    if isinstance(value, Real) and abs(float(value) - run["evidence"]) <= 0.5:
        returned = {**returned, "evidence": run["evidence"]}
    wrong = judge_choice(returned, run, "ABCDE", choice, number, rel_tol=1e-9)
    if wrong is not None and wrong.message.startswith(RIGHT_NUMBER):
        return replace(wrong, form=False)
    return wrong


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    cost = BYTES[run["place"]]
    if given not in cost:
        return Wrong(f"{given}: when is the next addend there, and when the sum?", "any-order-is-possible")
    error = error_of(run, given)
    if error > run["limit"]:
        why = {
            "A": ("where does this sum stop, and where should it end?", "small-addends-make-small-errors"),
            "B": ("how large are two of its standard deviations here?", "unbiased-is-exact"),
        }.get(given, ("work out its error by the table", "a-cure-is-a-cure"))
        return Wrong(f"{given}: {why[0]}", why[1])
    right = run["choice"]
    if cost[given] > cost[right]:
        text = f"{given} keeps the limit, with {cost[given]} bytes more a number. Does another one with fewer?"
        return Wrong(text, "wider-is-the-cure" if given == "D" else "the-surest-is-the-best")
    return Wrong(
        f"{given} keeps the limit with as few bytes as any. Which other one does, with fewer operations?",
        "memory-is-the-only-cost",
    )


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    right, before = run["evidence"], "the choice is right, the number is not: "
    end = run["start"] + run["n"] * run["a"]
    m = BITS[run["format"]]
    stop = max(run["start"], 2.0 ** (m + 1) * run["a"])
    if run["start"] and math.isclose(value, 100 * (end - stop) / (end - run["start"]), abs_tol=0.05):
        text = "that is the share of the addends. In per cent of which sum?"
        return Wrong(before + text, "per-cent-of-the-wrong-sum", form=True)
    guesses = {
        "what-is-reached-is-the-error": (100 - right, "that is how much of it is there"),
        "per-cent-of-the-wrong-sum": (100 * (end - stop) / stop, "in per cent of which sum?"),
        "forgets-the-hidden-bit": (
            100 * (end - min(end, max(run["start"], 2.0**m * run["a"]))) / end,
            "the sum goes on there. How far apart are the values, and what is half of that?",
        ),
        "nothing-is-lost": (0.0, "does this sum reach its end? Where does one of these addends stop?"),
    }
    found = {
        rule: text for rule, (guess, text) in guesses.items() if abs(value - guess) <= 0.5 and abs(guess - right) > 1
    }
    if found:
        rule = next(iter(found))
        return Wrong(before + " Or: ".join(found.values()), rule if len(found) == 1 else None, form=True)
    if right and abs(100 * value - right) <= 0.5:  # as the text's half a point
        return Wrong(before + "it is in per cent", form=True)
    return Wrong(before + "where would the exact sum end, and where does this one stop?", form=True)


CURE = Exercise(
    id="choose-the-cure",
    title="Choose the cure",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=cure_judge,
    misconceptions={
        "any-order-is-possible": "a sum can be made in any order",
        "small-addends-make-small-errors": "small addends make small errors",
        "unbiased-is-exact": "what is right on average is right",
        "a-cure-is-a-cure": "any cure is good for any sum",
        "wider-is-the-cure": "the cure is a wider format",
        "the-surest-is-the-best": "the smallest error is the best choice",
        "memory-is-the-only-cost": "bytes are all that a cure costs",
        "what-is-reached-is-the-error": "what is reached is what is lost",
        "per-cent-of-the-wrong-sum": "an error is relative to what came out",
        "forgets-the-hidden-bit": "an addend is lost as soon as it is less than a spacing",
        "nothing-is-lost": "a sum reaches its end",
    },
)
