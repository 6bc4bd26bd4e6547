"""Reasoning exercises 06.4, which part was left out, and 06.6, an update after a resume from the weights alone."""

import math
from functools import lru_cache
from typing import Any

from torch import Tensor

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.ch06_run import PARTS, SmallRun, restore, snapshot, weights
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["WEIGHTS_ONLY", "WHICH_PART", "left_out", "left_out_text", "weights_only", "weights_only_text"]

# --- 06.4 which part was left out -------------------------------------------------------------------------------------

LETTERS = "ABCDE"
ASKED = ("optimizer", "scheduler", "scaler", "generator", "cursor")
CALLED = {"generator": "random state", "cursor": "data cursor"}
PEAKS = (0.02, 0.01, 0.03, 0.025)


@lru_cache(maxsize=8)
def left_out(variant: int) -> dict[str, Any]:
    """A table that five real resumes of `SmallRun` gave, each without one part, under shuffled letters.

    The stop is one at which the scaler shows later than the schedule, and no update around it is skipped.
    """
    rng = variant_rng("left-out", variant)
    peak, warmup = PEAKS[variant % len(PEAKS)], int(rng.integers(6, 10))
    while True:
        seed, stop = int(rng.integers(10**6)), int(rng.integers(14, 25))
        rows = {part: _row(seed, peak, warmup, stop, part) for part in ASKED}
        loss = {part: rows[part]["loss"] for part in ASKED}
        late = loss["scaler"] is None or loss["scaler"] > stop + 3
        usual = (loss["optimizer"], loss["scheduler"]) == (stop + 1, stop + 2)
        if late and usual and loss["generator"] == loss["cursor"] == stop:
            break
    order = [str(part) for part in rng.permutation(ASKED)]
    letters = dict(zip(order, LETTERS, strict=True))
    return {
        "stop": stop,
        "peak": peak,
        "warmup": warmup,
        "rows": rows,
        "letters": letters,
        "choice": "".join(letters[part] for part in ASKED),
        "evidence": 2 * peak / warmup,
    }


def _row(seed: int, peak: float, warmup: int, stop: int, left: str, more: int = 12) -> dict[str, int | None]:
    """First step whose batch and loss differ, and after which the weights differ, for a resume without `left`."""
    make = lambda: SmallRun(seed, peak, warmup)
    whole, resumed = _steps(make(), stop + more), make()
    first = make()
    _steps(first, stop)
    restore(resumed, snapshot(first), [part for part in PARTS if part != left])
    if left == "cursor":
        resumed.cursor = stop + 1
    after = _steps(resumed, more)
    pairs = list(enumerate(zip(whole[stop:], after, strict=True), start=stop))
    return {
        "batch": next((s for s, (a, b) in pairs if a[0] != b[0]), None),
        "loss": next((s for s, (a, b) in pairs if a[1] != b[1]), None),
        "weights": next((s for s, (a, b) in pairs if not bool((a[2] == b[2]).all())), None),
    }


def _steps(run: SmallRun, steps: int) -> list[tuple[int, float, Tensor]]:
    return [(run.cursor, run.step(), weights(run)) for _ in range(steps)]


def left_out_text(variant: int) -> str:
    """What `question` prints."""
    book = left_out(variant)
    stop, warmup = book["stop"], book["warmup"]
    lines = [
        f"Steps count from 0. A run was saved after {stop} steps, so that step {stop} is the next one. Five resumes",
        "each left out one part; the one without its cursor reads one batch too far. For 12 steps they were",
        "compared with the run that was never stopped. Never: in none of these 12 steps.",
        "",
        "            first step whose     first step whose     first step after which",
        "   resume   batch differs        loss differs         the weights differ",
    ]
    by_letter = {letter: part for part, letter in book["letters"].items()}
    for letter in LETTERS:
        row = book["rows"][by_letter[letter]]
        words = ["never" if row[key] is None else f"step {row[key]}" for key in ("batch", "loss", "weights")]
        lines.append(f"   {letter}        {words[0]:<20} {words[1]:<20} {words[2]}".rstrip())
    lines += [
        "",
        f"The schedule: the rate of step s is {book['peak']:g} x (s + 1) / {warmup} in {warmup} steps of warm-up, then",
        "it falls by 3% a step. A restarted schedule counts its steps from 0 again. The optimizer's saved state",
        "holds the rate of the next step too, and was restored.",
        "",
        "choice:   five letters: the resume without the optimizer's state, without the scheduler's, without the",
        "          scaler's, without the random state, with the cursor off by one; in this order",
        f"evidence: the learning rate of step {stop + 1} in the resume without the scheduler's state",
    ]
    return "\n".join(lines)


def left_out_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Letters exact, the rate within 1%: the schedule is given in two to three digits."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    book = left_out(int(returned["variant"]))
    given = returned["choice"]
    given = "".join(map(str, given)) if isinstance(given, (list, tuple)) else str(given or "")
    letters = [c for c in given.upper() if c.isalnum()]
    fits = returned["evidence"] is not None and math.isclose(returned["evidence"], book["evidence"], rel_tol=0.01)
    if sorted(letters) != list(LETTERS):
        return Wrong("`choice` has each of the letters A to E once, in the order that the question names", form=True)
    wrong = _wrong_letters(book, dict(zip(ASKED, letters, strict=True)))
    if wrong is not None:
        return Wrong(wrong.message, wrong.misconception, form=fits)
    if returned["evidence"] is None:
        return Wrong("the letters are right; `evidence` is still empty", form=True)
    if fits:
        return None
    return _wrong_rate(book, returned["evidence"])


def _wrong_letters(book: dict[str, Any], given: dict[str, str]) -> Wrong | None:
    right = book["letters"]
    off = {part for part in ASKED if given[part] != right[part]}
    if not off:
        return None
    if off == {"generator", "cursor"}:
        message = "two letters are exchanged: both show at once, but which of the two changes what the model reads?"
        return Wrong(message, "random-and-data-are-one")
    if off == {"optimizer", "scheduler"}:
        message = (
            "two letters are exchanged: one lost part changes the very first update, the other waits one step longer. "
            "Which of them is asked in the first update?"
        )
        return Wrong(message, "the-rate-is-lost-at-once")
    if given["scaler"] != right["scaler"]:
        what = {part: letter for part, letter in right.items()}
        named = next(part for part, letter in what.items() if letter == given["scaler"])
        message = (
            f"you say that resume {given['scaler']} lost its scaler, and its loss differs at step "
            f"{book['rows'][named]['loss']}. A scale is multiplied in and divided out again: when does it matter?"
        )
        return Wrong(message, "the-scale-changes-every-step")
    if given["optimizer"] in (right["generator"], right["cursor"]):
        message = (
            f"resume {given['optimizer']} has another loss at step {book['stop']}, before any update was taken. "
            "What does the optimizer have to do with that loss?"
        )
        return Wrong(message, "the-optimizer-shows-at-once")
    return Wrong(f"resume {given['scheduler']} did not lose its schedule: when is a restarted schedule first asked?")


def _wrong_rate(book: dict[str, Any], rate: float) -> Wrong:
    peak, warmup, stop = book["peak"], book["warmup"], book["stop"]
    if math.isclose(rate, peak / warmup, rel_tol=0.01):
        message = "the letters are right; that is the rate of a step 0. How far has the restarted schedule counted?"
        return Wrong(message, "counts-from-the-resume", form=True)
    exact = peak * 0.97 ** (stop + 1 - warmup)
    if any(math.isclose(rate, exact * factor, rel_tol=0.01) for factor in (1.0, 1 / 0.97)):
        message = "the letters are right; that rate is the uninterrupted run's. Which has the restarted schedule?"
        return Wrong(message, "the-optimizer-knows-the-rate", form=True)
    return Wrong("the letters are right, the rate is not: count the restarted schedule's steps", form=True)


WHICH_PART = Exercise(
    id="which-part",
    title="Which part was left out?",
    cases=one_case("your letters and rate"),
    run=answer_run,
    judge=left_out_judge,
    misconceptions={
        "random-and-data-are-one": "what is random is the order of the data",
        "the-rate-is-lost-at-once": "a restarted schedule spoils the first update",
        "the-scale-changes-every-step": "another loss scale gives other gradients",
        "the-optimizer-shows-at-once": "without the optimizer's state the first loss differs",
        "counts-from-the-resume": "the step after the first is the restarted schedule's step 0",
        "the-optimizer-knows-the-rate": "the rate comes back with the optimizer, for good",
    },
)

# --- 06.6 weights only ------------------------------------------------------------------------------------------------

WARMUP, BETA1, BETA2 = 10, 0.9, 0.95


def weights_only(variant: int) -> dict[str, Any]:
    """One weight with its averages after `stop` steps: the next update as it should be, and from the weights alone."""
    rng = variant_rng("weights-only", variant)
    stop, peak = int(rng.integers(20, 41)), float(rng.choice([4e-3, 3e-3, 6e-3]))
    opposed = variant % 2 == 0
    mean = round(float(rng.uniform(0.02, 0.05)), 3)
    square = round(float(rng.uniform(0.004, 0.009)), 4)
    gradient = round(float(rng.uniform(0.005, 0.02)) * (-1 if opposed else 1), 3)
    m, v = BETA1 * mean + (1 - BETA1) * gradient, BETA2 * square + (1 - BETA2) * gradient**2
    t = stop + 1
    exact = peak * (m / (1 - BETA1**t)) / math.sqrt(v / (1 - BETA2**t))
    alone = peak / WARMUP * math.copysign(1.0, gradient)
    return {
        **{"stop": stop, "peak": peak, "mean": mean, "square": square, "gradient": gradient},
        "choice": "B" if opposed else "A",
        "evidence": abs(alone / exact),
        "no warm-up": abs(alone * WARMUP / exact),
        "raw": abs(peak / WARMUP * (1 - BETA1) / math.sqrt(1 - BETA2) / exact),
        "old raw": abs(alone / (peak * m / math.sqrt(v))),
        "inverse": abs(exact / alone),
        "old averages": 1 / WARMUP,
        "by the gradient": abs(gradient) / mean,
    }


def weights_only_text(variant: int) -> str:
    """What `question` prints."""
    book = weights_only(variant)
    stop, peak, mean, square = (book[key] for key in ("stop", "peak", "mean", "square"))
    return (
        f"A run trains with AdamW: beta1 = {BETA1}, beta2 = {BETA2}, no decay, eps = 0. Its rate rises\n"
        f"in {WARMUP} steps to {peak:g} and stays there; the rate of a run's very first step is a {WARMUP}th of\n"
        f"that. After {stop} steps it is saved. One of its weights has m = {mean:g} and v = {square:g} at that\n"
        "moment (as AdamW stores them, not yet corrected for their start at zero), and in the next step its\n"
        f"gradient is g = {book['gradient']:g}.\n\n"
        "Somebody has kept the weights alone and starts a new run from them: new optimizer, new schedule, the\n"
        "same batch. Compare how that weight moves in the new run's first step with how it should have moved.\n\n"
        "choice:   A: in the same direction   B: in the opposite direction\n"
        "evidence: the length of the new run's move, divided by the length of the move as it should have been"
    )


def weights_only_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The direction exact, the ratio within 2%: whether eps and corrections near 1 are counted does not matter."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    book, ratio = weights_only(int(returned["variant"])), returned["evidence"]
    choice = str(returned["choice"] or "").strip().upper()
    if choice not in ("", "A", "B"):
        return Wrong("`choice` is A or B", form=True)
    if ratio is not None and ratio < 0:
        return Wrong(
            "`evidence` is a length divided by a length, which is not negative; the direction is in `choice`", form=True
        )
    fits = ratio is not None and math.isclose(ratio, book["evidence"], rel_tol=0.02)
    if not choice:
        return Wrong("`choice` is still empty", form=True)
    if choice != book["choice"]:
        message = (
            "the direction is not right. Whose sign does the first update of a new AdamW have, and whose sign has an "
            "update after many steps?"
        )
        return Wrong(message, "an-update-follows-its-gradient", form=fits)
    if ratio is None:
        return Wrong("the direction is right; `evidence` is still empty", form=True)
    if fits:
        return None
    for rule, key, message in WEIGHTS_ONLY_HINTS:
        if math.isclose(ratio, book[key], rel_tol=0.02):
            return Wrong("the direction is right. " + message, rule or None, form=True)
    message = "write down both moves, rate x m / root of v, with the corrections of each"
    return Wrong(f"the direction is right, the ratio is not: {message}", form=True)


WEIGHTS_ONLY_HINTS = (
    ("the-schedule-is-in-the-weights", "no warm-up", "At which rate does a new run take its first step?"),
    ("no-bias-correction", "raw", "After one gradient, what do AdamW's corrections make of m and v?"),
    (
        "",
        "old raw",
        "The old run's m and v start at zero too. How near to 1 are their corrections after that many steps?",
    ),
    ("upside-down", "inverse", "Which of the two moves is asked for above the line?"),
    ("the-averages-are-in-the-weights", "old averages", "What are m and v of a new optimizer before its first step?"),
    ("updates-follow-gradients", "by the gradient", "Is the length of AdamW's first move that of the gradient?"),
)


WEIGHTS_ONLY = Exercise(
    id="weights-only",
    title="From the weights alone",
    cases=one_case("your direction and ratio"),
    run=answer_run,
    judge=weights_only_judge,
    misconceptions={
        "an-update-follows-its-gradient": "every update goes against its own gradient",
        "the-schedule-is-in-the-weights": "a new run goes on at the old rate",
        "no-bias-correction": "a first update is small, because the averages start at zero",
        "upside-down": "which move is divided by which does not matter",
        "the-averages-are-in-the-weights": "AdamW's averages come with the weights",
        "updates-follow-gradients": "a first update is as long as its gradient",
    },
)
