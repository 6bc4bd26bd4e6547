"""Reasoning exercise 08.7: how many devices can pure FSDP give work, and what gives it to the others?"""

import math
from functools import partial
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["FLOOR", "floor", "floor_text"]

WANTED = "EDAED"
MICRO_BATCHES = (4, 1, 2, 8, 2)
"""The right letter and the micro-batches of a step, variant by variant."""


def floor(variant: int) -> dict[str, Any]:
    """The numbers of a variant, made from the sequences of one pass upwards."""
    rng = variant_rng("batch-floor", variant)
    wanted, micro_batches = WANTED[variant % 5], MICRO_BATCHES[variant % 5]
    sequence = int(rng.choice([4_000, 8_000, 10_000, 16_000, 32_000]))
    sequences = int(rng.choice([480, 600, 800, 1_000, 1_200]))  # of one pass over all devices
    need = 1 if wanted == "A" else int(rng.choice([n for n in (4, 6, 8) if n != micro_batches]))
    context, tensor = {"A": (2, 4), "D": (need, 2 * need), "E": (2, need)}[wanted]
    devices = sequences * need if need > 1 else sequences - 8 * int(rng.integers(1, 20))
    return {
        "batch": sequence * sequences * micro_batches,
        "sequence": sequence,
        "micro_batches": micro_batches,
        "devices": devices,
        "context": context,
        "tensor": tensor,
        "choice": wanted,
        "evidence": sequences,
    }


def floor_text(variant: int) -> str:
    """What `question` prints."""
    run = floor(variant)
    count = run["micro_batches"]
    how = "all at once" if count == 1 else f"in {count} micro-batches of equal size, one after the other"
    return (
        f"A recipe fixes a global batch of {run['batch']:,} tokens in sequences of {run['sequence']:,}.\n"
        f"A step takes it {how}.\n"
        "In every micro-batch a device computes at least one whole sequence, or has no work.\n"
        f"There are {run['devices']:,} devices, and pure FSDP shards the model over all of them.\n\n"
        "choice:   the first line, from the top, that gives every device work in every micro-batch\n"
        '          "A" pure FSDP as it is\n'
        '          "B" twice as many micro-batches, each of half the tokens\n'
        '          "C" hybrid sharding: shards within a node of 8 devices, replicas over the nodes\n'
        f'          "D" context parallel: each sequence is cut over {run["context"]} devices\n'
        f'          "E" tensor parallel: {run["tensor"]} devices compute one sequence together\n'
        "evidence: the largest number of devices that pure FSDP as it is could give work in every micro-batch,\n"
        "          however many devices there are"
    )


def floor_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Letter and number are exact: sequences are whole."""
    run = floor(int(returned["variant"]))
    choice, number = partial(_wrong_choice, run), partial(_wrong_number, run)
    return judge_choice(returned, run, "ABCDE", choice, number, rel_tol=1e-9)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    if given == "A":
        message = "how many sequences are there in a pass, and how many devices want one?"
        return Wrong(message, "fsdp-scales-without-end")
    if given == "B":
        message = "the batch is fixed. How many sequences does a pass have when there are twice as many passes?"
        return Wrong(message, "accumulation-makes-work")
    if given == "C":
        message = "hybrid sharding changes who holds which shard. Does it change who computes which sequence?"
        return Wrong(message, "hybrid-sharding-breaks-the-floor")
    if run["choice"] == "A":
        return Wrong("start at the top: do the devices outnumber the sequences of a pass?", "always-another-dimension")
    if given == "D":
        message = f"{run['context']} devices share each sequence then. How many devices have work?"
        return Wrong(message, "any-context-parallel-will-do")
    return Wrong("that is enough, and a line above it is too: how many devices have work with it?", "tensor-first")


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    tokens = run["batch"] / run["micro_batches"]
    guesses = {
        "the-step-is-one-pass": (
            run["batch"] / run["sequence"],
            "That is the sequences of the whole step. Are they all computed at the same time?",
        ),
        "a-token-is-enough": (tokens, "Those are tokens. What is the least that a device can compute in pure FSDP?"),
        "tokens of the step": (run["batch"], "Those are tokens, and of the whole step. How many sequences are there?"),
        "all-of-them" if run["devices"] > run["evidence"] else "all that there are": (
            run["devices"],
            "Those are all devices. Does each of them find a sequence?"
            if run["devices"] > run["evidence"]
            else "Those are the devices that are there, and all have work. With more devices, how many could have it?",
        ),
        "sequences-on-more": (
            run["evidence"] * (run["context"] if run["choice"] == "D" else run["tensor"]),
            "That is with the line that you chose; the number is asked for without it",
        ),
        "node": (run["evidence"] / 8, "Those are nodes of 8; devices are asked for"),
    }
    for rule, (guess, message) in guesses.items():
        if guess != run["evidence"] and math.isclose(value, guess, rel_tol=1e-6):
            known = rule if rule in FLOOR.misconceptions else None
            return Wrong(f"the choice is right. {message}", known, form=True)
    return Wrong("the choice is right, the number is not: how many sequences does one pass have?", form=True)


FLOOR = Exercise(
    id="batch-floor",
    title="More devices than sequences",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=floor_judge,
    misconceptions={
        "fsdp-scales-without-end": "FSDP uses as many devices as there are",
        "accumulation-makes-work": "more micro-batches give more devices work",
        "hybrid-sharding-breaks-the-floor": "hybrid sharding lets devices share a sequence",
        "always-another-dimension": "large runs always need another parallel dimension",
        "any-context-parallel-will-do": "context parallel removes the floor, whatever its size",
        "tensor-first": "the largest measure is the one to take",
        "the-step-is-one-pass": "all sequences of a step are computed at once",
        "a-token-is-enough": "a batch can be cut between any two tokens",
        "all-of-them": "FSDP uses as many devices as there are, and each finds a sequence",
    },
)
