"""Reasoning exercise 13.2: bias, variance, or something that feeds back or is forgotten, told from summed errors."""

import math
from functools import partial
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["TRACE", "next_rms", "trace", "trace_text"]

WANTED = "BADCBA"
"""The right line, variant by variant. The first B's bias is still less than its noise."""
RUNS, ROWS = 1024, 7
FIRST, LAST = 1000, 64_000


def _walk(rng: Any, bias: float, noise: float, growth: float) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation over RUNS runs of x <- (1 + growth) x + bias + noise, drawn exactly at each row."""
    x, means, spreads, done = np.zeros(RUNS), [], [], 0
    for row in range(ROWS):
        n = FIRST * 2**row - done
        done += n
        if growth:
            power = (1 + growth) ** n
            mean, variance = bias * (power - 1) / growth, noise**2 * (power**2 - 1) / ((1 + growth) ** 2 - 1)
        else:
            power, mean, variance = 1.0, n * bias, n * noise**2
        x = power * x + mean + math.sqrt(variance) * rng.standard_normal(RUNS)
        means.append(float(x.mean()))
        spreads.append(float(x.std()))
    return np.array(means), np.array(spreads)


def next_rms(kind: str, mean: np.ndarray, spread: np.ndarray) -> float:
    """The root mean square at twice the last row's steps, by the law of each line, from the last rows."""
    last, std = float(mean[-1]), float(spread[-1])
    if kind == "A":
        return math.sqrt(2) * math.hypot(last, std)
    if kind == "B":
        return math.hypot(2 * last, math.sqrt(2) * std)
    if kind == "C":
        growth = last / float(mean[-2]) - 1  # e^(f n) of the row before: x(2n) / x(n) = 1 + e^(f n)
        return math.hypot(last, std) * (1 + growth**2)
    return math.hypot(last, std)


def trace(variant: int) -> dict[str, Any]:
    """The rows of a variant, its line, and the root mean square to expect at 128,000 steps."""
    rng, kind = variant_rng("bias-or-variance", variant), WANTED[variant % len(WANTED)]
    hidden = variant % len(WANTED) == 0
    while True:
        noise = 10 ** float(rng.uniform(-4, -2))
        if kind == "A":
            mean, spread = _walk(rng, 0.0, noise, 0.0)
            off = mean / spread * math.sqrt(RUNS)
            fine = np.abs(off).max() < 2 and (np.sign(mean) == np.sign(mean[-1])).all() and abs(off[-1]) > 0.7
        elif kind == "B":
            share = float(rng.uniform(0.5, 0.7) if hidden else rng.uniform(2, 4)) / math.sqrt(LAST)
            mean, spread = _walk(rng, share * noise * rng.choice([-1, 1]), noise, 0.0)
            fine = abs(mean[-1] / spread[-1]) > 0.4
        elif kind == "C":
            mean, spread = _walk(rng, 0.02 * noise, noise / 20, float(rng.uniform(0.9, 1.3)) / (LAST / 2))
            fine = spread[-1] < 0.1 * mean[-1]
        else:
            mean, spread = _walk(
                rng, float(rng.uniform(0.01, 0.02)) * noise, noise, -1 / float(rng.uniform(1200, 2500))
            )
            fine = abs(mean[-1] / mean[-2] - 1) < 0.05
        mean, spread = (np.array([float(f"{x:.4g}") for x in row]) for row in (mean, spread))
        answers = {line: next_rms(line, mean, spread) for line in "ABCD"}
        apart = all(abs(answers[line] / answers[kind] - 1) > 0.06 for line in "ABCD" if line != kind)
        if fine and (apart or kind in "AD"):
            return {"mean": mean, "spread": spread, "choice": kind, "evidence": answers[kind]}


def trace_text(variant: int) -> str:
    """What `question` prints."""
    run = trace(variant)
    rows = [
        f"  {FIRST * 2**row:8,}   {mean:12.4g}   {spread:12.4g}"
        for row, (mean, spread) in enumerate(zip(run["mean"], run["spread"], strict=True))
    ]
    lines = [
        f"A number is off by a little more or less at each step of a run. {RUNS:,} runs with other seeds were made.",
        "How far the number is off after n steps, as mean and standard deviation over the runs:",
        "",
        "         n           mean      deviation",
        *rows,
        "",
        '  "A" variance alone: what is wrong at a step is as often above as below 0',
        '  "B" bias and variance: it is wrong by the same amount at each step, beside the noise',
        '  "C" bias that feeds back: being off makes the next step more wrong',
        '  "D" bias and variance that are forgotten: a share of what it is off by vanishes at each step',
        "",
        "choice:   the letter",
        f"evidence: the root mean square over the runs, sqrt(mean^2 + deviation^2), to expect after {2 * LAST:,}",
        '          steps, carried on by the law of your line from the last row. For "C" that law is',
        "          x <- (1 + f) x + b at each step, from x = 0, with f and b from the last two rows' means;",
        '          the deviation grows with the mean. Within 3%, for "C" 5%',
    ]
    return "\n".join(lines)


def trace_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter exact. The number within 3%: whoever fits all rows instead of the last one is that close; the lines'
    own numbers are 6% and more apart where they can be taken for each other."""
    run = trace(int(returned["variant"]))
    tolerance = 0.05 if run["choice"] == "C" else 0.03  # 1 + g^2 is 7% and more away from g^2, g = 2.5 to 3.7
    choice, number = partial(_wrong_choice, run), partial(_wrong_number, run)
    return judge_choice(returned, run, "ABCD", choice, number, rel_tol=tolerance)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    right = run["choice"]
    why = {
        ("A", "B"): (
            "B: how far from 0 may the mean of so many runs be by chance? And one row holds the one before",
            "a-mean-that-is-not-0-is-a-bias",
        ),
        ("B", "A"): (
            f"A: how far from 0 may the mean of {RUNS:,} runs be by chance? Compare the last mean with that",
            "less-than-the-noise-is-no-bias",
        ),
        ("B", "C"): ("C: by what is the mean multiplied when n doubles, and the next time?", "growth-is-a-snowball"),
        ("C", "B"): ("B: by what is the mean multiplied when n doubles, and the next time?", "bias-is-always-linear"),
    }
    if (right, given) in why:
        return Wrong(*why[right, given])
    if right == "D":
        text = f"{given}: what do mean and deviation do in the last rows, when n doubles?"
        return Wrong(text, "errors-always-add-up")
    if given == "D":
        return Wrong("D: does it settle? By what are the last rows larger than those before?", "what-is-small-settles")
    return Wrong(f"{given}: by what are mean and deviation multiplied when n doubles?", "growth-is-a-snowball")


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    mean, spread, right = run["mean"], run["spread"], run["evidence"]
    before, last, std = "the choice is right, the number is not: ", abs(float(mean[-1])), float(spread[-1])
    guesses = {
        "errors-always-add-up": (2 * math.hypot(last, std), "does all of it double?"),
        "noise-is-all": (math.sqrt(2) * math.hypot(last, std), "does the mean grow as the noise does?"),
        "nothing-grows": (math.hypot(last, std), "that is the last row's"),
        "bias-is-all": (2 * last, "the noise is left out"),
        "bias-does-not-matter": (math.sqrt(2) * std, "the mean is left out"),
        "they-add-up": (2 * last + math.sqrt(2) * std, "how do a mean and a deviation make a root mean square?"),
        "bias-is-always-linear": (
            math.hypot(2 * last, math.sqrt(2) * std),
            "does it go on as it would without feedback?",
        ),
    }
    if run["choice"] == "C":
        factor = last / abs(float(mean[-2]))
        guesses["the-same-factor-again"] = (
            math.hypot(last, std) * factor,
            "that is the factor from the row before to the last one, once more. Does it stay the same, by the law?",
        )
        guesses["what-is-there-is-forgotten"] = (
            math.hypot(last, std) * (factor - 1) ** 2,
            "that is what the next steps add. What is there already?",
        )
    if run["choice"] == "D":
        forgets = "is there still as much to come as the rows before show? Look at the last two"
        guesses = {"errors-always-add-up": (value, forgets)} if value > 1.1 * right else {}
    found = {
        rule: text
        for rule, (guess, text) in guesses.items()
        if (run["choice"] != "C" or rule not in ("noise-is-all", "errors-always-add-up", "bias-is-all", "they-add-up"))
        and math.isclose(value, guess, rel_tol=0.01)
        and not math.isclose(guess, right, rel_tol=0.04)
    }
    if found:
        rule = next(iter(found))
        return Wrong(before + " Or: ".join(found.values()), rule if len(found) == 1 else None, form=True)
    return Wrong(before + "by what does each of the two grow when n doubles once more?", form=True)


TRACE = Exercise(
    id="bias-or-variance",
    title="Bias or variance",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=trace_judge,
    misconceptions={
        "a-mean-that-is-not-0-is-a-bias": "whatever is not 0 is a bias",
        "less-than-the-noise-is-no-bias": "a bias that is less than the noise is not there",
        "growth-is-a-snowball": "an error that grows feeds back",
        "bias-is-always-linear": "a bias grows in proportion to the steps, always",
        "errors-always-add-up": "what is wrong at each step adds up for ever",
        "what-is-small-settles": "small errors settle",
        "noise-is-all": "all errors grow as the square root of the steps",
        "nothing-grows": "an error stays as it is",
        "bias-is-all": "beside a bias the noise does not count",
        "bias-does-not-matter": "noise is all that there is",
        "they-add-up": "a mean and a deviation are added",
        "the-same-factor-again": "what feeds back grows by one factor at each doubling",
        "what-is-there-is-forgotten": "what comes next is all that there is",
    },
)
