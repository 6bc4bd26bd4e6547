"""Reasoning exercise 15.10: eight lines of a runbook for a given plan, each with its number and its check, in order."""

import math
from dataclasses import dataclass
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import close, keys_of
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng
from course_lib.checks.smell import plain

__all__ = ["RUNBOOK", "book", "runbook_text"]

KINDS = ("data and mask", "numerics", "optimizer", "system")


@dataclass(frozen=True)
class Row:
    """One line: what is asked, what it should give, and how it is checked."""

    kind: int
    question: str
    right: float
    tolerance: float
    check: str
    guesses: tuple[tuple[str, float, str], ...]
    """(misconception, what it would give, the question that it meets); a slip in a unit has no misconception."""


def _plan(rng: Any) -> dict[str, Any]:
    plan: dict[str, Any] = {"parameters": float(rng.choice([1.3, 3.0, 7.0, 13.0])) * 1e9}
    plan |= {"sequence": int(rng.choice([2_048, 4_096])), "ranks": int(rng.choice([32, 64, 128]))}
    plan |= {
        "each": int(rng.choice([4, 8, 16])),
        "padding": int(rng.choice([2, 4, 5])),
        "every": int(rng.choice([200, 250, 400, 600])),
    }
    plan |= {
        "peak_rate": float(rng.choice([1.5, 2.0, 3.0, 4.5])) * 1e-4,
        "warm_up": int(rng.choice([1_000, 2_000, 4_000])),
    }
    plan |= {
        "early": int(plan["warm_up"] * float(rng.choice([0.1, 0.15, 0.35]))),
        "two": float(rng.choice([0.95, 0.99, 0.999])),
    }
    plan |= {
        "format": str(rng.choice(["FP16", "BF16"])),
        "fsdp": bool(rng.integers(2)),
        "mfu": int(rng.choice([35, 40, 45])),
    }
    plan |= {"resume": plan["every"] * int(rng.integers(8, 40))}
    return plan


def _rows(plan: dict[str, Any]) -> list[Row]:
    n, ranks, each, s = plan["parameters"], plan["ranks"], plan["each"], plan["sequence"]
    sequences, kept = ranks * each, 1 - plan["padding"] / 100
    bound = 0.1 / math.sqrt((1 - plan["two"]) * (1 - 0.81 / plan["two"]))
    stops = {"FP16": 2048, "BF16": 256}
    state = 18 * n / ranks if plan["fsdp"] else 6 * n + 12 * n / ranks
    seconds = 6 * n * sequences * s / (ranks * 312e12 * plan["mfu"] / 100)
    return [
        Row(0, "How many targets does one update average over?", sequences * s * kept, 0.005,
            "count, over all ranks and micro-batches of a step, the targets that are not ignored", (
            ("padding-counts", sequences * s, "does padding count?"),
            ("one-rank-is-the-batch", each * s * kept, "that is one rank"))),
        Row(0, "How many sequences has the run read when it resumes?", plan["resume"] * sequences, 1e-9,
            "look up the first sequence after a resume in the plan, by its hash", (
            ("one-rank-is-the-batch", plan["resume"] * each, "that is one rank"),
            ("a-step-is-a-sequence", plan["resume"], "those are steps"),
            ("a-token-is-a-sequence", plan["resume"] * sequences * s, "those are tokens"))),
        Row(0, "By how much may a logit move when a later token changes?", 0.0, 0.0,
            "run a sequence twice, with another token at its end", (
            ("a-little-leak-is-none", 1e-3, "a little of the future is the future"),)),
        Row(1, f"Where does a sum of ones stop in {plan['format']}?", stops[plan["format"]], 1e-9,
            "add up as many ones as a gradient has addends, in the code's own format and order", (
            ("one-format-for-all", stops["BF16" if plan["format"] == "FP16" else "FP16"], "that is the other 16-bit "
                "format"),
            ("range-is-precision", 65504, "that is a range. From where on is the spacing more than one?"),
            ("half-a-spacing-counts", stops[plan["format"]] / 2, "there the spacing is still 1"))),
        Row(1, "How large may an activation be in FP16?", 65504, 1e-9,
            "log the largest absolute value that goes into each product", (
            ("range-is-precision", 2048, "that is where ones vanish"),
            ("a-range-is-a-power-of-two", 65536, "is that number one of the format's?"))),
        Row(2, f"What is the learning rate of step "
            f"{plan['early']:,}?", plan["peak_rate"] * plan["early"] / plan["warm_up"], 0.005,
            "read the learning rate in the log of that step, and after a resume again", (
            ("the-peak-is-the-rate", plan["peak_rate"], "is the warm-up over at that step?"),)),
        Row(2, f"How far can Adam move one weight in a step, in learning rates (betas 0.9 and "
            f"{plan['two']:g})?", bound, 0.01,
            "find the farthest step of a single weight, the decay taken away", (
            ("at-most-one-learning-rate", 1.0, "14.3 has the bound for any betas"),
            ("one-bound-for-all-betas", 1.165, "that is another beta2"),
            ("one-bound-for-all-betas", 7.27, "that is another beta2"),
            ("", bound * plan["peak_rate"], "asked is in learning rates"))),
        Row(3, "How many GB (1e9 bytes) of state does a device hold?", state / 1e9, 0.01,
            "read the allocated memory of each device after the second step, before the third's forward", (
            ("", state, "those are bytes"),
            ("", state / 2**30, "that is GiB"),
            ("nothing-is-shared", 18 * n / 1e9, "what do the ranks share out?"),
            ("everything-is-shared", 18 * n / ranks / 1e9, "which bytes are whole on every rank?"),
            ("gradients-in-16-bit", state / 1e9 - 2 * n / (ranks if plan["fsdp"] else 1) / 1e9, "how many bytes has a "
                "gradient?"))),
        Row(3, "How many seconds does a step take?", seconds, 0.02,
            "time the steps that do not save, on every rank", (
            ("peak-is-reached", seconds * plan["mfu"] / 100, "that is at the peak"),
            ("one-rank-is-the-batch", seconds * ranks, "that is with one device"),
            ("forward-is-all", seconds / 3, "that is the forward pass"))),
        Row(3, "How many steps does a stop undo, on average?", plan["every"] / 2, 0.01,
            "take the newest usable checkpoint's step from the last one in the log", (
            ("all-work-is-lost", plan["every"], "does every stop come just before a save?"),)),
    ]  # fmt: skip


def book(variant: int) -> dict[str, Any]:
    """A plan, two lines of each kind under letters, their checks under numbers from 1, and one right order."""
    rng = variant_rng("my-runbook", variant)
    plan = _plan(rng)
    rows = _rows(plan)
    chosen = [
        rows[int(k)] for group in ((0, 1, 2), (3, 4), (5, 6), (7, 8, 9)) for k in rng.choice(group, 2, replace=False)
    ]
    questions = {"ABCDEFGH"[place]: chosen[int(k)] for place, k in enumerate(rng.permutation(8))}
    checks = {place + 1: chosen[int(k)] for place, k in enumerate(rng.permutation(8))}
    number_of = {row.check: number for number, row in checks.items()}
    lines = sorted(questions, key=lambda letter: questions[letter].kind)
    right = [(letter, questions[letter].right, number_of[questions[letter].check]) for letter in lines]
    return {"plan": plan, "questions": questions, "checks": checks, "lines": right}


def runbook_text(variant: int) -> str:
    """What `question` prints."""
    run = book(variant)
    p = run["plan"]
    sharing = "weights, gradients and optimizer (FSDP)" if p["fsdp"] else "the optimizer (ZeRO-1)"
    return "\n".join(
        [
            f"The plan: {p['parameters'] / 1e9:g}B parameters, dense; {p['ranks']} data-parallel ranks, one device "
            "each (A100, "
            f"peak 312 TFLOP/s), MFU {p['mfu']}%.",
            f"An update: {p['each']} sequences of {p['sequence']:,} tokens on every rank, {p['padding']}% of the "
            "targets are "
            "padding, which is ignored.",
            "State: 2 bytes of weight, 4 of gradient, 12 of optimizer a parameter; the ranks share out",
            f"{sharing}. Sums are added up in {p['format']} somewhere; weight decay is decoupled.",
            f"Learning rate: from 0 at step 0 up to {p['peak_rate']:g} at step {p['warm_up']:,}, in equal steps.",
            f"Saved every {p['every']} steps; resumed once, after {p['resume']:,} steps.",
            "",
            *(f'  "{letter}" {row.question}' for letter, row in run["questions"].items()),
            "",
            *(f"  {number} {row.check}" for number, row in run["checks"].items()),
            "",
            "lines: a list of eight (letter of the question, what it should give, number of its check), such as",
            '       [("H", 0.25, 7), ...], in the order of suspicion: data and mask, numerics, optimizer, system;',
            "       within a kind in any order. Numbers within 0.5%, whole ones exact; 6ND is enough for FLOPs",
        ]
    )


def _form(lines: Any, run: dict[str, Any]) -> Wrong | list[tuple[str, float, int]]:
    if lines is None:
        return Wrong("`lines` is still empty", form=True)
    if not isinstance(lines, list | tuple) or not all(isinstance(one, list | tuple) and len(one) == 3 for one in lines):
        return Wrong(f"`lines` is a list of (letter, number, number of the check); yours is {kind(lines)}", form=True)
    found: list[tuple[str, float, int]] = []
    for place, (letter, value, check) in enumerate(lines, start=1):
        value, check = plain(value), plain(check)
        if not isinstance(letter, str) or letter.strip().upper() not in run["questions"]:
            return Wrong(f"line {place} begins with {letter!r}: one letter in quotes, A to H", form=True)
        for what in (value, check):
            if isinstance(what, bool) or not isinstance(what, int | float) or not math.isfinite(what):
                return Wrong(f"line {place} holds {what!r} where a number is wanted", form=True)
        if check not in run["checks"]:
            return Wrong(f"line {place}: checks have the numbers 1 to 8", form=True)
        found.append((letter.strip().upper(), float(value), int(check)))
    letters = [letter for letter, _, _ in found]
    if sorted(letters) != list("ABCDEFGH"):
        return Wrong(f"each question has one line: yours are {''.join(letters) or 'none'}", form=True)
    return found


def runbook_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Order by kinds, checks exact; numbers within 0.5% or what four digits give. One wrong line costs no variant."""
    form = keys_of(returned, ("lines",))
    if form is not None:
        return form
    run = book(returned["variant"])
    lines = _form(returned["lines"], run)
    if isinstance(lines, Wrong):
        return lines
    wrongs = [wrong for line in lines if (wrong := _wrong_line(run, *line)) is not None]
    if wrongs:
        first = wrongs[0]
        return Wrong(first.message, first.misconception, form=first.form or len(wrongs) == 1)
    kinds = [run["questions"][letter].kind for letter, _, _ in lines]
    place = next((n for n in range(1, 8) if kinds[n] < kinds[n - 1]), None)
    if place is None:
        return None
    late, early = lines[place][0], lines[place - 1][0]
    text = f"all lines are right, the order is not: {late} is about {KINDS[kinds[place]]}, {early} before it"
    if kinds == sorted(kinds, reverse=True):
        return Wrong(f"{text} is not. You begin with the machine", "from-the-machine-up")
    return Wrong(f"{text} lies downstream", "any-order-will-do")


def _wrong_line(run: dict[str, Any], letter: str, value: float, check: int) -> Wrong | None:
    row, made = run["questions"][letter], run["checks"][check]
    if made is not row:
        return Wrong(
            f"{letter}, check {check}: would that measurement give the number of your line?", "any-check-will-do"
        )
    if row.right == 0:
        if value == 0:
            return None
        if abs(value) <= 1:
            return Wrong(f"{letter}: {value:.4g}: a little of the future is the future", "a-little-leak-is-none")
        return Wrong(f"{letter}: {value:.4g}: may a position know anything of what comes after it?")
    if close(value, row.right, row.tolerance):
        return None
    for rule, guess, text in row.guesses:
        if close(value, guess, max(row.tolerance, 1e-4)) and not close(guess, row.right, 3 * row.tolerance + 1e-6):
            return Wrong(f"{letter}: {value:.4g}: {text}", rule or None)
    if close(value, row.right, 4 * row.tolerance):
        return Wrong(f"{letter}: {value:.5g} is nearly right, and further off than rounding", form=True)
    if KINDS[row.kind] == "numerics":
        return Wrong(f"{letter}: {value:.5g}: what has that format for the exponent, and what for the fraction?")
    return Wrong(f"{letter}: {value:.4g}: which numbers of the plan does it follow from?")


RUNBOOK = Exercise(
    id="my-runbook",
    title="Your runbook, completed",
    cases=one_case("your lines"),
    run=answer_run,
    judge=runbook_judge,
    misconceptions={
        "padding-counts": "every position is a target",
        "one-rank-is-the-batch": "what one rank does is what the run does",
        "a-step-is-a-sequence": "a step reads one sequence",
        "a-token-is-a-sequence": "tokens and sequences are one number",
        "a-little-leak-is-none": "a small leak is rounding",
        "one-format-for-all": "all 16-bit formats are alike",
        "range-is-precision": "a format stops adding where it overflows",
        "half-a-spacing-counts": "sums stop before the spacing exceeds the addend",
        "a-range-is-a-power-of-two": "a range ends at a power of two",
        "the-peak-is-the-rate": "the learning rate is the number in the configuration",
        "at-most-one-learning-rate": "Adam moves a weight by at most one learning rate",
        "one-bound-for-all-betas": "the bound is one number, whatever the betas",
        "nothing-is-shared": "sharding changes who computes, not what is held",
        "everything-is-shared": "every stage of ZeRO shares out everything",
        "gradients-in-16-bit": "gradients have the format of the weights",
        "peak-is-reached": "devices compute at their peak",
        "forward-is-all": "training costs one forward pass a token",
        "all-work-is-lost": "each failure loses a whole interval",
        "any-check-will-do": "a line of a runbook is a question, whatever answers it",
        "from-the-machine-up": "the machine is to be cleared before what runs on it",
        "any-order-will-do": "as long as all are made, the order does not matter",
    },
)
