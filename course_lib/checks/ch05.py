"""Checks of chapter 5, activation checkpointing: what a step costs with recomputation, and the bytes that it keeps.

A segment by hand is in `ch05_segment`, the choice under a budget in `ch05_choose`, the reasoning one in `ch05_fit`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch05_choose import CHOOSE
from course_lib.checks.ch05_fit import FIT, fit_text
from course_lib.checks.ch05_segment import SEGMENT
from course_lib.checks.core import Case, Exercise, Wrong, ask, kind, make_check
from course_lib.checks.smell import nearly, plain, same, smell

__all__ = ["EXERCISES", "check", "question"]


def _pair(returned: Any, first: str, second: str) -> Wrong | None:
    """Refuse what is not two numbers."""
    if returned is None:
        return Wrong("nothing came back. Does every path end in a `return`?", form=True)
    if not isinstance(returned, list | tuple) or len(returned) != 2:
        return Wrong(f"two numbers are wanted, ({first}, {second}); {kind(returned)} came back", form=True)
    for value in returned:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return Wrong(f"({first}, {second}) are two numbers; one of yours is {kind(value)}", form=True)
        if not math.isfinite(value):
            return Wrong(f"({first}, {second}) are finite numbers; one of yours is {value}")
    return None


def _plain_pair(value: Any) -> Any:
    return [plain(part) for part in value] if isinstance(value, list | tuple) else plain(value)


# --- 05.1 forwards of a step ------------------------------------------------------------------------------------------


def forwards_cases(seed: int) -> list[Case]:
    """Segments as (blocks, recompute): ordered so that each mistake first shows where no other gives its number."""
    rng = np.random.default_rng([seed, 501])
    a, b, c = (int(n) for n in rng.choice(np.arange(2, 9), size=3, replace=False))

    def case(name: str, segments: list[tuple[int, bool]], micro: int = 1) -> Case:
        return {"name": name, "segments": [list(pair) for pair in segments], "micro_batches": micro}

    return [
        case("nothing is recomputed", [(a, False), (b, False)]),
        case("one segment of several blocks, recomputed", [(a + 1, True)]),
        case("every block a segment of its own, all recomputed", [(1, True)] * (b + 2)),
        case("two of three segments recompute", [(a, True), (b, False), (c + 1, True)]),
        case("four micro-batches, half of the blocks", [(a, True), (a, False)], 4),
        case("three micro-batches, nothing recomputed", [(c, False)], 3),
    ]


def forwards_run(answer: Callable[..., Any], case: Case) -> Any:
    segments = [(int(n), bool(flag)) for n, flag in case["segments"]]
    return _plain_pair(answer(segments, case["micro_batches"]))


def _forwards(case: Case) -> dict[str, tuple[float, float]]:
    """What the right count and each mistake give: (forward runs, work relative to no recomputation)."""
    n = sum(size for size, _ in case["segments"])
    again = sum(size for size, flag in case["segments"] if flag)
    m = case["micro_batches"]
    right = (m * (n + again), (3 * n + again) / (3 * n))
    return {
        "right": right,
        "only-the-second-run": (m * again, right[1]),
        "a-segment-is-one-run": (m * (n + sum(1 for _, flag in case["segments"] if flag)), right[1]),
        "once-a-step": (n + again, right[1]),
        "backward-is-free": (right[0], (n + again) / n),
        "backward-costs-one-forward": (right[0], (2 * n + again) / (2 * n)),
        "work-in-forwards": (right[0], m * (3 * n + again)),
        "extra-work-only": (right[0], again / (3 * n)),
    }


FORWARDS_HINTS = {
    "only-the-second-run": "you counted the runs that backward asks for. Who ran those blocks before?",
    "a-segment-is-one-run": "a segment of several blocks added one run. How many blocks run when it is computed again?",
    "once-a-step": "one micro-batch is counted. How many go through the model before the optimizer moves?",
    "backward-is-free": (
        "the runs are right. The work is as if backward cost nothing, or as if it ran twice too. How often does each "
        "of the two run, and what does it cost?"
    ),
    "backward-costs-one-forward": "the runs are right. How many matrix products has backward for one of forward?",
    "work-in-forwards": "the runs are right. The second number is a ratio: 1.0 when nothing is recomputed",
    "extra-work-only": "the runs are right. The second number is the whole step's, 1.0 when nothing is recomputed",
}


def forwards_judge(case: Case, returned: Any) -> Wrong | None:
    """Runs are exact; the ratio within 1e-6, far above float64's rounding and far below 1/(3 x blocks)."""
    form = _pair(returned, "runs", "work")
    if form is not None:
        return form
    guesses = _forwards(case)
    right = guesses.pop("right")
    runs, work = (float(part) for part in returned)
    if runs == right[0] and same(work, right[1], 1e-6):
        return None
    if same(runs, right[1], 1e-6) and work == right[0]:
        return Wrong("both numbers are right, in the other order: (runs, work) is wanted", form=True)
    for rule, guess in guesses.items():
        both = runs == guess[0] and same(work, guess[1], 1e-6)
        one = runs == guess[0] != right[0] or (runs == right[0] and same(work, guess[1], 1e-6))
        if guess != right and (both or one):
            return Wrong(FORWARDS_HINTS[rule], rule if rule in FORWARDS.misconceptions else None)
    if runs != right[0]:
        return Wrong(f"{runs:g} forward runs of blocks are not what this step does. List them, segment by segment")
    return Wrong(f"the runs are right, a work of {work:.4g} is not. Count the work of one block, kept and recomputed")


FORWARDS = Exercise(
    id="forwards-of-a-step",
    title="Forwards of a step",
    cases=forwards_cases,
    run=forwards_run,
    judge=forwards_judge,
    misconceptions={
        "only-the-second-run": "recomputed blocks run once, in backward",
        "a-segment-is-one-run": "computing a segment again is one run, however many blocks it has",
        "once-a-step": "recomputation happens once a step, not once a micro-batch",
        "backward-is-free": "a step costs its forward passes",
        "backward-costs-one-forward": "backward costs as much as forward",
    },
)

# --- 05.2 bytes kept --------------------------------------------------------------------------------------------------


def bytes_cases(seed: int) -> list[Case]:
    """Sizes that keep the mistakes apart: no inside is a multiple of the edge, and depths do not divide."""
    rng = np.random.default_rng([seed, 502])
    tokens = int(rng.integers(2, 9)) * 512
    edge = 2 * int(rng.integers(5, 12)) * 256
    inside = int(edge * rng.integers(14, 20)) + 344

    def case(name: str, layers: int, every: int) -> Case:
        return {"name": name, "layers": layers, "tokens": tokens, "inside": inside, "edge": edge, "every": every}

    return [
        case("every block recomputes", 24, 1),
        case("every third of 24 blocks", 24, 3),
        case("every fourth of 26 blocks", 26, 4),
        case("every second of 5 blocks", 5, 2),
        case("one block, recomputed", 1, 1),
        case("every eighth of 6 blocks, so none", 6, 8),
    ]


def bytes_run(answer: Callable[..., Any], case: Case) -> Any:
    return _plain_pair(answer(case["layers"], case["tokens"], case["inside"], case["edge"], case["every"]))


def _kept(case: Case) -> dict[str, tuple[float, float]]:
    """(bytes kept between forward and backward, bytes at the worst moment), right and by mistake."""
    layers, tokens, every = case["layers"], case["tokens"], case["every"]
    inside, edge = case["inside"] * tokens, case["edge"] * tokens
    flags = [(number + 1) % every == 0 for number in range(layers)]

    def walk(flags: list[bool], held: float = edge) -> tuple[float, float]:
        sizes = [held if flag else inside for flag in flags]
        worst = total = sum(sizes)
        for number in reversed(range(layers)):  # backward: later blocks are gone
            if flags[number]:
                worst = max(worst, sum(sizes[:number]) + inside)
        return total, worst

    right = walk(flags)
    last = max((number for number in range(layers) if flags[number]), default=None)
    return {
        "right": right,
        "keeps-nothing": walk(flags, 0),
        "kept-and-recomputed-swapped": walk([not flag for flag in flags]),
        "rounds-up": walk([number % every == 0 for number in range(layers)]),
        "recomputed-for-free": (right[0], right[0]),
        "input-counted-twice": (right[0], right[0] + (inside if last is not None else 0)),
        "whole-model-comes-back": (right[0], inside * layers),
        "bytes-a-token": (right[0] / tokens, right[1] / tokens),
        "later-blocks-stay": (right[0], right[0] + (inside - edge if last is not None else 0)),
    }


BYTES_HINTS = {
    "keeps-nothing": "a recomputed block kept nothing in your count. From what does it start again?",
    "kept-and-recomputed-swapped": "you let every k-th block keep everything. Which blocks recompute?",
    "rounds-up": "with {layers} blocks and k = {every}, count the recomputed blocks on paper: which are they?",
    "recomputed-for-free": "the first number is right. In backward a block is computed again: where do its bytes go?",
    "input-counted-twice": "the first number is right. `inside` holds the block's input: is it there twice?",
    "whole-model-comes-back": "the first number is right. Do all blocks come back at once?",
    "bytes-a-token": "you gave bytes a token; the bytes of all tokens are wanted",
    "later-blocks-stay": (
        "the first number is right. When backward reaches a recomputed block, what is left of the blocks after it?"
    ),
}

WALK = "In which direction does backward walk, and which block of a group does it make whole again?"
"""Walked the wrong way, and the first block of each group taken for the last, give the same bytes."""


def bytes_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: bytes are whole numbers, and none here is above 2^53. Oracle: a walk through backward, block by block."""
    form = _pair(returned, "kept", "worst")
    if form is not None:
        return form
    guesses = _kept(case)
    right = guesses.pop("right")
    kept, worst = (float(part) for part in returned)
    if (kept, worst) == right:
        return None
    for rule, guess in guesses.items():
        if guess != right and ((kept, worst) == guess or (kept == guess[0] != right[0])):
            if rule == "rounds-up" and kept == right[0]:
                return Wrong(f"the first number is right. {WALK}")
            named = rule if rule in BYTES.misconceptions else None
            return Wrong(BYTES_HINTS[rule].format(**case), named)
    where = 0 if kept != right[0] else 1
    close = nearly(float(returned[where]), right[where])
    if close:
        return Wrong(close)
    if where == 0:
        return Wrong(f"{kept:,.0f} bytes kept is not right: how many blocks keep everything, how many their input?")
    rule_or_none = smell(worst, {name: guess[1] for name, guess in guesses.items()}, 0, right[1])
    if rule_or_none in BYTES.misconceptions:
        return Wrong(BYTES_HINTS[str(rule_or_none)].format(**case), rule_or_none)
    return Wrong(f"the first number is right; {worst:,.0f} bytes at the worst moment is not. Walk through backward")


BYTES = Exercise(
    id="bytes-kept",
    title="Bytes kept",
    cases=bytes_cases,
    run=bytes_run,
    judge=bytes_judge,
    forbidden=("activation_bytes", "predicted_ledger", "segmented_bytes"),
    misconceptions={
        "keeps-nothing": "a recomputed block keeps nothing",
        "kept-and-recomputed-swapped": "every k-th block is the one that keeps everything",
        "rounds-up": "the first block of every k recomputes",
        "recomputed-for-free": "what is computed again takes no memory",
        "input-counted-twice": "a block that is computed again comes on top of its own input",
        "whole-model-comes-back": "backward needs all activations at once",
        "later-blocks-stay": "activations stay until backward has ended",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of the reasoning exercise (`does-it-fit`) for a variant."""
    ask({"does-it-fit": fit_text}, exercise, variant)


EXERCISES = [FORWARDS, BYTES, SEGMENT, CHOOSE, FIT]

check = make_check("05", EXERCISES)
