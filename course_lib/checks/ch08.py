"""Checks of chapter 8, FSDP: the bytes that each rank holds.

A ZeRO-1 step is in `ch08_zero`, the traffic of a configuration in `ch08_traffic`, the order of gathers and drops in
`ch08_order`, overlap in `ch08_overlap`, the crossover in `ch08_crossover`, the batch-size floor in `ch08_floor`.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np

from course_lib.checks.ch08_crossover import CROSSOVER
from course_lib.checks.ch08_floor import FLOOR, floor_text
from course_lib.checks.ch08_order import ORDER
from course_lib.checks.ch08_overlap import OVERLAP
from course_lib.checks.ch08_traffic import TRAFFIC, traffic_text
from course_lib.checks.ch08_zero import ZERO
from course_lib.checks.core import Case, Exercise, Wrong, ask, make_check
from course_lib.checks.smell import nearly, not_a_number, plain, same

__all__ = ["EXERCISES", "check", "question"]

# --- 08.1 bytes per rank ----------------------------------------------------------------------------------------------


def bytes_cases(seed: int) -> list[Case]:
    """The example of the ZeRO paper (Rajbhandari et al., 2020) at every stage, then other sizes at every stage."""
    rng = np.random.default_rng([seed, 801])

    def case(name: str, parameters: int, ranks: int, stage: int) -> Case:
        return {"name": name, "parameters": parameters, "ranks": ranks, "stage": stage}

    paper = [case(f"7.5e9 parameters, 64 ranks, stage {stage}", 7_500_000_000, 64, stage) for stage in range(4)]
    other = []
    for stage in range(4):
        ranks = int(rng.integers(3, 40))
        other.append(case(f"another model, stage {stage}", ranks * int(rng.integers(10**6, 10**9)), ranks, stage))
    return [*paper, *other, case("one rank, stage 3", int(rng.integers(10**8, 10**9)), 1, 3)]


def bytes_run(answer: Callable[..., Any], case: Case) -> Any:
    return plain(answer(case["parameters"], case["ranks"], case["stage"]))


def _held(case: Case) -> dict[str, float]:
    """What the right rule and each mistake give, in GB: bytes of weights, gradients, master and moments, added up."""
    parameters, ranks, stage = case["parameters"], case["ranks"], case["stage"]

    def total(weights: int, gradients: int, master: int = 1, moments: int = 1, at: int = stage, four: int = 4) -> float:
        """Each number is the stage from which that category is sharded."""
        cuts = ((2, weights), (2, gradients), (four, master), (8, moments))
        return sum(size * parameters / (ranks if at >= first else 1) for size, first in cuts) / 1e9

    return {
        "right": total(3, 2),
        "forgets-the-master": total(3, 2, four=0),
        "moments-in-16-bit": total(3, 2) - 4 * parameters / (ranks if stage >= 1 else 1) / 1e9,
        "stages-start-at-one": total(3, 2, at=stage + 1),
        "shards-everything": total(1, 1),
        "two-at-once": total(3, 1),  # or the weights: at stage 1 that is the same number
        "eight-bytes-whole": total(3, 2, master=4),  # or FP32 weights and gradients, two averages: the same number
        "gradients-stay-whole": total(3, 4),
        "weights-stay-whole": total(4, 2),
        "weights first": total(1, 2, 3, 3),
        "gradients alone": total(4, 2, 4, 4) if stage == 2 else total(3, 2),
        "weights alone": total(3, 4, 4, 4) if stage == 3 else total(3, 2),
        "all at stage 0": total(0, 0, 0, 0),
        "gibibytes": total(3, 2) * 1e9 / 2**30,
        "bytes": total(3, 2) * 1e9,
        "all ranks": total(3, 2) * ranks,
    }


BYTES_HINTS = {
    "forgets-the-master": "4 bytes a parameter are missing. Weights have 16 bits: what does Adam add its update to?",
    "moments-in-16-bit": "in which format does Adam keep its two averages?",
    "stages-start-at-one": "that is what the next stage would hold. Stage 0 is plain data parallel",
    "shards-everything": "at stage 1 not everything is in shards. What does each rank still need whole for backward?",
    "two-at-once": "two categories are in shards here. How many does stage 1 shard, and which?",
    "eight-bytes-whole": (
        "8 bytes a parameter are whole here. Of the text's bytes stage 1 leaves 2 + 2 whole: what are your other 4?"
    ),
    "weights first": "2 bytes a parameter are in shards here. Which bytes does stage 1 shard, and which the others?",
    "gradients alone": "only the gradients are in shards here. Each stage shards what the one before it did, and more",
    "weights alone": "only the weights are in shards here. Each stage shards what the one before it did, and more",
    "all at stage 0": "everything is in shards here. Stage 0 is plain data parallel: what does each rank hold?",
    "gradients-stay-whole": "the gradients are whole here. What does stage 2 add to stage 1?",
    "weights-stay-whole": "the 16-bit weights are whole here. What does stage 3 add to stage 2?",
    "gibibytes": "those are GiB; 1 GB is 1e9 bytes",
    "bytes": "those are bytes; 1 GB is 1e9 bytes",
    "all ranks": "that is what all ranks hold together",
}


def bytes_judge(case: Case, returned: Any) -> Wrong | None:
    """Relative 1e-6, far above float64's rounding and far below any byte a parameter."""
    form = not_a_number(returned)
    if form is not None:
        return Wrong(form.message, form=True)
    guesses = _held(case)
    right = guesses.pop("right")
    if _equal(returned, right):
        return None
    earlier = [_held(other) for other in takewhile(lambda other: other["name"] != case["name"], bytes_cases(0))]
    for rule, guess in guesses.items():  # a mistake that would have shown in an earlier case is another one
        unseen = all(_equal(book[rule], book["right"]) for book in earlier)
        if unseen and _equal(returned, guess) and not _equal(guess, right):
            return Wrong(f"{returned:.4g} GB: {BYTES_HINTS[rule]}", rule if rule in BYTES.misconceptions else None)
    close = nearly(returned, right)
    if close:
        return Wrong(close)
    return Wrong(f"{returned:.4g} GB: list weights, gradients, master and averages, and which of them are in shards")


def _equal(a: float, b: float) -> bool:
    return same(a / b, 1.0, 1e-6)


BYTES = Exercise(
    id="bytes-per-rank",
    title="Bytes on each rank",
    cases=bytes_cases,
    run=bytes_run,
    judge=bytes_judge,
    forbidden=("course_lib.planning",),
    misconceptions={
        "forgets-the-master": "16-bit weights are all the weights there are",
        "moments-in-16-bit": "the averages have the format of the weights",
        "stages-start-at-one": "stage 0 shards the optimizer's state",
        "shards-everything": "every stage divides everything by the number of ranks",
        "two-at-once": "stage 1 shards the gradients or the weights besides the optimizer's state",
        "eight-bytes-whole": "weights and gradients have 4 bytes, or the master weights are no part of the optimizer",
        "gradients-stay-whole": "the gradients are never sharded",
        "weights-stay-whole": "the weights are never sharded",
        "gibibytes": "a GB is 2^30 bytes",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print a reasoning exercise's text (`added-traffic`, `batch-floor`)."""
    ask({"added-traffic": traffic_text, "batch-floor": floor_text}, exercise, variant)


EXERCISES = [BYTES, ZERO, TRAFFIC, ORDER, OVERLAP, CROSSOVER, FLOOR]

check = make_check("08", EXERCISES)
