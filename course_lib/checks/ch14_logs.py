"""Reasoning exercise 14.2: name the fault from a log alone. The logs are of real runs, kept in `failures/recorded`."""

import math
from functools import partial
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, CheckFailed, Exercise, Wrong
from course_lib.failures import records

__all__ = ["LOGS", "incident", "log", "logs_text"]

WANTED = (
    ("cursor_lost", "C"),
    ("memory_leak", "F"),
    ("scheduler_reset", "D"),
    ("rank_no_sync", "G"),
    ("bad_batch", "B"),
    ("fp16_overflow", "E"),
    ("padding_in_loss", "A"),
)
"""Fault and letter, variant by variant."""


def incident(variant: int) -> tuple[str, dict[str, Any]]:
    """The letter of the fault, and what was kept of its run."""
    name, letter = WANTED[variant % len(WANTED)]
    return letter, records.load("kept_logs")[name]


def log(variant: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """The log of a variant of `logs-alone`: an array for each dashboard, one number a step."""
    if isinstance(variant, bool) or not isinstance(variant, int) or variant < 0:
        raise CheckFailed(f"log: variant is a whole number from 0, such as log(1); yours is {variant!r}")
    return {name: np.array(values) for name, values in incident(variant)[1]["series"].items()}


def logs_text(variant: int) -> str:
    """What `question` prints: some rows, and what may be the matter."""
    _, run = incident(variant)
    series = run["series"]
    steps, names = len(series["loss"]), ("loss", "val_loss", "grad_norm", "lr", "tokens", "scale", "memory_bytes")
    shown = sorted({0, 1, 2, steps // 3, steps // 2, *range(steps - 3, steps), *range(9, steps, 30)})
    resumes = " and ".join(str(step) for step in run["resumes"])
    resumed = f"It was resumed from a checkpoint before steps {resumes}." if resumes else "It was never resumed."
    planned = f"{run['planned']} steps were planned, and the log has {steps}"
    lines = [
        f"The log of a run: {planned}. {resumed}",
        f"Some rows; `log({variant})` returns all of them, as a dict of arrays:",
        f"{', '.join(name for name in series if not name.startswith('checksum'))},",
        "and a checksum of the weights for each rank.",
        "",
        "step " + "".join(f"{name:>13}" for name in names),
        *(f"{step:4} " + "".join(f"{series[name][step]:13.7g}" for name in names) for step in shown),
        "",
        '  "A" padding counts in the loss             [held-out loss minus loss, both of the last step of the log]',
        '  "B" one batch of noise                     [its loss divided by that of the step before it]',
        '  "C" the data starts anew at a resume       [of the steps between the two resumes, how many have as many',
        "                                              tokens as the step that is as far from the start?]",
        '  "D" the schedule starts anew at a resume   [learning rate of the first step after the first resume,',
        "                                              divided by that of the step before it]",
        '  "E" activations outgrow FP16               [how many updates were skipped]',
        '  "F" something is kept of every step        [how many bytes a step]',
        '  "G" the ranks no longer have one model     [at how many steps the ranks\' checksums differ]',
        '  "H" the learning rate is too high          [largest learning rate]',
        "",
        "choice:   the letter",
        "evidence: the number in your line's brackets, within 1%",
    ]
    return "\n".join(lines)


def number(letter: str, run: dict[str, Any]) -> float:
    """The number in the brackets of a line, for this run."""
    series = {name: np.array(values) for name, values in run["series"].items()}
    loss, first = series["loss"], run["resumes"][0] if run["resumes"] else None
    if letter == "A":
        return float(series["val_loss"][-1] - loss[-1])
    if letter == "B":
        worst = int(np.nanargmax(loss[1:] / loss[:-1])) + 1
        return float(loss[worst] / loss[worst - 1])
    if letter == "C" and first:
        after = series["tokens"][first : run["resumes"][1]]
        return float((after == series["tokens"][: len(after)]).sum())
    if letter == "D" and first:
        return float(series["lr"][first] / series["lr"][first - 1])
    if letter == "E":
        return float(series["skipped"].sum())
    if letter == "F":
        return float(np.median(np.diff(series["memory_bytes"])))
    if letter == "G" and "checksum_1" in series:
        return float((series["checksum_0"] != series["checksum_1"]).sum())
    return math.nan


def logs_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The number within 1%: the log has four digits."""
    letter, run = incident(returned["variant"])
    right = {"choice": letter, "evidence": number(letter, run)}
    return judge_choice(
        returned,
        right,
        "ABCDEFGH",
        partial(_wrong_choice, letter, run),
        partial(_wrong_number, letter, run),
        rel_tol=0.01,
    )


DENIES = {
    "A": ("with padding in it, what would the count of tokens be at every step?", "a-gap-is-padding"),
    "B": ("is there one step whose loss stands out, and are those around it as before?", "noise-is-a-spike"),
    "C": ("compare the counts of tokens after a resume with those of the first steps", "a-resume-is-always-guilty"),
    "D": ("compare the learning rate before and after each resume", "a-resume-is-always-guilty"),
    "E": ("what does the loss scale do in this log?", "no-number-is-an-overflow"),
    "F": ("does the memory grow from step to step?", "a-run-that-ends-is-out-of-memory"),
    "G": ("are there two checksums, and are they the same?", "loss-shows-all"),
    "H": ("what is large in this log, and does it stay so?", "it-is-always-the-learning-rate"),
}


def _wrong_choice(right: str, run: dict[str, Any], given: str) -> Wrong:
    text, rule = DENIES[given]
    if given in "CD" and not run["resumes"]:
        text = "was this run resumed?"
    elif (right, given) == ("A", "C"):
        text = "which other steps have as many tokens as the first ones, before any resume?"
    return Wrong(f"{given}: {text}", rule)


def _wrong_number(letter: str, run: dict[str, Any], value: float) -> Wrong:
    series, right = {name: np.array(values) for name, values in run["series"].items()}, number(letter, run)
    guesses: dict[str, tuple[float, str]] = {"upside-down": (1 / right if right else math.nan, "divided by what?")}
    if letter == "A":
        guesses["the-other-sign"] = (-right, "which one minus which?")
    if letter == "B":
        worst = int(np.nanargmax(series["loss"]))
        guesses["where-for-how-much"] = (worst, "that is the step; the ratio is wanted")
        guesses["the-norm-is-the-loss"] = (
            series["grad_norm"][worst] / series["grad_norm"][worst - 1],
            "that is the ratio of the gradient norms",
        )
    if letter == "C":
        first, last = run["resumes"]
        every = (series["tokens"][first:] == series["tokens"][np.arange(first, len(series["loss"])) % first]).sum()
        guesses["any-resume"] = (every if last == 2 * first else math.nan, "those after the second resume are in it")
    if letter in "BD":
        ratio = "that is a difference. What is divided by what?"
        place = int(np.nanargmax(series["loss"])) if letter == "B" else run["resumes"][0]
        column = series["loss" if letter == "B" else "lr"]
        guesses["a-difference-is-a-ratio"] = (column[place] - column[place - 1], ratio)
    if letter == "D":
        last = run["resumes"][-1]
        guesses["any-resume"] = (series["lr"][last] / series["lr"][last - 1], "that is another resume")
    if letter == "E":
        guesses["where-for-how-much"] = (int(np.argmax(series["skipped"])), "that is the step of the first one")
        guesses["each-halving-is-a-skip-less-one"] = (right - 1, "the first skipped update counts as well")
    if letter == "F":
        memory = series["memory_bytes"]
        guesses["all-that-is-held"] = (memory[-1], "that is all that is held at the end")
        guesses["all-that-was-added"] = (memory[-1] - memory[0], "that is what all steps added together")
        guesses["as-many-gaps-as-rows"] = (
            (memory[-1] - memory[0]) / len(memory),
            "between how many rows is it, and how many times did it grow there?",
        )
        guesses["the-start-was-kept-too"] = (memory[-1] / len(memory), "weights and moments are held from the start on")
    if letter == "G":
        guesses["where-for-how-much"] = (0, "that is the first such step; their number is wanted")
    before = "the choice is right, the number is not: "
    for rule, (guess, text) in guesses.items():
        if math.isclose(value, guess, rel_tol=0.005) and not math.isclose(guess, right, rel_tol=0.02):
            return Wrong(before + text, rule, form=True)
    return Wrong(before + "take it from the arrays of `log`, by a line of code", form=True)


LOGS = Exercise(
    id="logs-alone",
    title="From the log alone",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=logs_judge,
    misconceptions={
        "a-gap-is-padding": "a loss that is lower or higher than it should be is a matter of counting",
        "noise-is-a-spike": "a loss that goes up and down has bad batches",
        "a-resume-is-always-guilty": "what is wrong after a resume was left out of the checkpoint",
        "no-number-is-an-overflow": "where something stops or is NaN, a number was too large",
        "a-run-that-ends-is-out-of-memory": "memory is what a run dies of",
        "loss-shows-all": "ranks and data are fine as long as the loss falls",
        "it-is-always-the-learning-rate": "the learning rate is too high",
        "upside-down": "a ratio is a ratio, either way",
        "the-other-sign": "a difference is a difference, either way",
        "where-for-how-much": "where it happens is how bad it is",
        "the-norm-is-the-loss": "loss and gradient norm jump by the same factor",
        "any-resume": "each resume does the same",
        "each-halving-is-a-skip-less-one": "the first skip is free",
        "a-difference-is-a-ratio": "by how much is as good as how many times",
        "all-that-was-added": "what was added in all is what is added each time",
        "as-many-gaps-as-rows": "between so many rows there are as many steps",
        "all-that-is-held": "all that is held is the leak",
        "the-start-was-kept-too": "at the start nothing is held",
    },
)
