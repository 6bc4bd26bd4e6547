"""Reasoning exercise 10.3: what tensor parallel sends in a step, with and without sequence parallel."""

import math
from collections.abc import Iterator
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng
from course_lib.checks.smell import nearly, plain

__all__ = ["TENSOR_TRAFFIC", "tensor_traffic", "tensor_traffic_text"]

KINDS: list[dict[str, Any]] = [  # what the variants turn on, one after the other
    {"recompute": (True, False), "again": True, "side_by_side": False, "micro_batches": 4},
    {"recompute": (False, False), "again": True, "side_by_side": False, "micro_batches": 2},
    {"recompute": (False, False), "again": False, "side_by_side": False, "micro_batches": 8},
    {"recompute": (False, False), "again": True, "side_by_side": True, "micro_batches": 2},
    {"recompute": (True, True), "again": False, "side_by_side": False, "micro_batches": 4},
]
"""recompute: whether tensor parallel alone, and with sequence parallel, runs each block's forward once more before its
backward. again: whether backward gathers a pair's input once more. side_by_side: attention and MLP are one pair."""


def calls(run: dict[str, Any], *, sequence: bool, **changes: Any) -> Iterator[str]:
    """The collectives of one block's forward and backward, one by one. `changes` make it another run."""
    run = {"forward_only": False, **run, **changes}
    pairs = 1 if run["side_by_side"] else 2
    for _ in range(pairs * (2 if run["recompute"][sequence] else 1)):
        yield from ("all-gather", "reduce-scatter") if sequence else ("all-reduce",)
    for _ in range(0 if run["forward_only"] else pairs):
        if sequence:
            yield "all-gather"  # of the output's gradient
            if run["again"]:
                yield "all-gather"  # of the input, which was not kept
            yield "reduce-scatter"  # of the input's gradient
        else:
            yield "all-reduce"


def sent(run: dict[str, Any], *, sequence: bool = True, **changes: Any) -> float:
    """Bytes that one device sends in a step, call by call and ring step by ring step."""
    run = {**run, **changes}
    activation = run["batch"] * run["length"] * run["width"] * 2
    total = 0.0
    for name in calls(run, sequence=sequence):
        for _ in range((run["ranks"] - 1) * (2 if name == "all-reduce" else 1)):
            total += activation / run["ranks"]
    return total * run["blocks"] * run["micro_batches"]


def tensor_traffic(variant: int) -> dict[str, Any]:
    """The configuration of a variant, with the right choice, number of collectives and evidence."""
    rng = variant_rng("tensor-traffic", variant)
    run = dict(KINDS[variant % len(KINDS)])
    run["blocks"] = int(rng.choice([24, 32, 40, 48, 80]))
    run["width"] = int(rng.choice([4096, 5120, 6144, 8192]))
    run["length"] = int(rng.choice([2048, 4096, 8192]))
    run["batch"] = int(rng.choice([1, 2, 3]))
    run["ranks"] = int(rng.choice([4, 8]))
    ratio = sent(run) / sent(run, sequence=False)
    run["choice"] = "B" if abs(ratio - 1) < 1e-9 else "A" if ratio < 1 else "C"
    run["collectives"] = len(list(calls(run, sequence=True)))
    run["evidence"] = sent(run) / 1e9
    return run


def tensor_traffic_text(variant: int) -> str:
    """What `question` prints."""
    run = tensor_traffic(variant)
    alone, with_sequence = run["recompute"]
    shape = ["A block is attention, then MLP; each of them is a pair of a column-parallel and a row-parallel product."]
    if run["side_by_side"]:
        shape = [
            "A block is attention and MLP side by side: both read the same input, and their outputs are added.",
            "Together they are one pair of a column-parallel and a row-parallel product.",
        ]
    kept = "is kept for its backward" if not run["again"] else "is not kept; backward gathers it once more"
    again = "Before its backward a block's forward runs once more, whole, with all its collectives."
    lines = [
        f"A model of {run['blocks']} blocks, width {run['width']:,}, on {run['ranks']} devices. A step has "
        f"{run['micro_batches']} micro-batches of {run['batch']} x {run['length']:,} tokens.",
        *shape,
        "What travels is BF16, 2 bytes a number. What lies outside the blocks, and the norms' gradients, are left out.",
        "",
        "Tensor parallel alone:",
        "  The input of a pair and its gradient are whole on every device.",
        f"  {again if alone else 'Forward runs once.'}",
        "With sequence parallel:",
        "  Between pairs each device has its part of the positions. The input is gathered before a pair, its output",
        f"  is reduce-scattered after it. The gathered input {kept}.",
        f"  {again if with_sequence else 'Forward runs once.'}",
        "",
        "All are rings: in a gather or a reduce-scatter of a tensor among n devices, each sends (n-1)/n of the whole",
        "tensor; in an all-reduce, twice that.",
        "",
        'choice:      with sequence parallel one device sends "A" fewer bytes than with tensor parallel alone; "B" as',
        '             many; "C" more',
        "collectives: how many collectives one block calls with sequence parallel, in one micro-batch, in all passes",
        "evidence:    GB (1e9 bytes) that one device sends in the step with sequence parallel, to four digits",
    ]
    return "\n".join(lines)


def traffic_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Letter and count exact, the GB within 0.051%: four digits, rounded."""
    form = wrong_form(returned, ("choice", "collectives", "evidence"))
    if form is not None:
        return form
    run, count = tensor_traffic(int(returned["variant"])), plain(returned["collectives"])
    choice, value = returned["choice"], returned["evidence"]
    if count is not None and (isinstance(count, bool) or not isinstance(count, int | float)):
        return Wrong(f"`collectives` is one number, without quotes; yours is {kind(count)}", form=True)
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in ("A", "B", "C")):
        return Wrong('`choice` is one letter in quotes: "A", "B" or "C"', form=True)
    choice = None if choice is None else choice.strip().upper()
    right = {
        "choice": choice == run["choice"],
        "collectives": count == run["collectives"],
        "evidence": value is not None and math.isclose(value, run["evidence"], rel_tol=5.1e-4),
    }
    if all(right.values()):
        return None
    done = [f"`{key}`" for key, ok in right.items() if ok]
    before = f"{' and '.join(done)} {'is' if len(done) == 1 else 'are'} right. " if done else ""
    if value is not None and math.isclose(value, run["evidence"] * 1e9, rel_tol=5.1e-4):
        return Wrong(f"{before}`evidence` is in bytes: 1 GB is 1e9 bytes", form=True)
    for key in right:
        if not right[key] and returned[key] is None:
            return Wrong(f"{before}`{key}` is still empty", form=True)
    wrong = _first_wrong(run, choice, count, value, right)
    return Wrong(before + wrong.message, wrong.misconception, form=len(done) == 2)  # two of three right cost no variant


def _first_wrong(run: dict[str, Any], choice: Any, count: Any, value: Any, right: dict[str, bool]) -> Wrong:
    if not right["collectives"]:
        return _wrong_count(run, float(count))
    if not right["evidence"]:
        return _wrong_evidence(run, float(value))
    if choice == "C":
        message = "`choice`: more calls are not more bytes. How much of a tensor does each collective send?"
        return Wrong(message, "more-calls-are-more-bytes")
    if choice == "A":
        message = "`choice`: each device holds less between the pairs. Does less travel, too?"
        return Wrong(message, "less-memory-is-less-traffic")
    message = "`choice`: count both sides for this step. Which passes does each of them run, and what does each gather?"
    return Wrong(message, "equal-bytes-always")


def _wrong_count(run: dict[str, Any], count: float) -> Wrong:
    number = lambda sequence=True, **changes: len(list(calls({**run, **changes}, sequence=sequence)))
    forward = number(forward_only=True)
    guesses = {
        "forward-only": (forward, "that is forward alone"),
        "gathers-again-always": (number(again=True), "the gathered input is still there in backward"),
        "keeps-always": (number(again=False), "the gathered input is not kept: what does backward need it for?"),
        "once through": (number(recompute=(False, False)), "forward runs more often than once here"),
        "runs-forward-again": (number(recompute=(True, True)), "forward runs once with sequence parallel here"),
        "a-pair-is-a-block": (number(side_by_side=True), "that is for one pair. How many pairs has a block?"),
        "two-pairs-always": (number(side_by_side=False), "how many pairs has a block here?"),
        "still-all-reduces": (number(sequence=False), "those are the all-reduces of tensor parallel alone"),
        "backward-twice": (forward + 2 * (number() - forward), "backward computes twice as much. Does it send so?"),
    }
    return _matching("collectives", {key: (float(a), text) for key, (a, text) in guesses.items()}, count, run)


def _wrong_evidence(run: dict[str, Any], value: float) -> Wrong:
    n, right = run["ranks"], run["evidence"]
    guesses = {
        "everything-travels": (right * n / (n - 1), "a device does not send all of a tensor round a ring"),
        "parts-are-smaller": (right / (n - 1), "a device sends one part in yours. How often does it pass parts on?"),
        "only a part": (right / n, "of which tensor is (n-1)/n sent? Not of a device's part of it"),
        "each-call-is-an-all-reduce": (right * 2, "twice is for an all-reduce"),
        "numbers": (right / 2, "is that in bytes? A BF16 number has two"),
        "one micro-batch": (right / run["micro_batches"], "that is of one micro-batch"),
        "one block": (right / run["blocks"], "that is of one block"),
        "one of each": (right / run["micro_batches"] / run["blocks"], "that is of one block in one micro-batch"),
        "one sequence": (right / run["batch"], "that is of one sequence of each micro-batch"),
        "all devices": (right * n, "that is what all devices send together"),
        "the-other-side": (sent(run, sequence=False) / 1e9, "that is tensor parallel alone"),
        "megabytes": (right * 1e3, "that is in MB; 1 GB is 1e9 bytes"),
        "gibibytes": (right * 1e9 / 2**30, "those are GiB; 1 GB is 1e9 bytes"),
    }
    return _matching("evidence", guesses, value, run)


def _matching(key: str, guesses: dict[str, tuple[float, str]], value: float, run: dict[str, Any]) -> Wrong:
    right = float(run[key])
    found = {
        rule: text
        for rule, (guess, text) in guesses.items()
        if math.isclose(value, guess, rel_tol=5.1e-4) and not math.isclose(guess, right, rel_tol=1e-3)
    }
    if found:  # two that give the same number cannot be told apart
        rule = next(iter(found))
        known = rule if len(found) == 1 and rule in TENSOR_TRAFFIC.misconceptions else None
        return Wrong(f"`{key}`: {'. Or: '.join(found.values())}", known)
    close = nearly(value, right)
    if close:
        return Wrong(f"`{key}` is {close}", form=True)
    if key == "collectives":
        return Wrong("`collectives`: walk through one pair, forward and backward, and write down every call")
    return Wrong("`evidence`: one line for each collective of a block: bytes of the whole tensor, and the share sent")


TENSOR_TRAFFIC = Exercise(
    id="tensor-traffic",
    title="What tensor parallel sends",
    cases=one_case("your choice, collectives and evidence"),
    run=answer_run,
    judge=traffic_judge,
    misconceptions={
        "forward-only": "collectives are a matter of forward",
        "gathers-again-always": "backward gathers the input once more, always",
        "keeps-always": "what was gathered in forward is there in backward",
        "runs-forward-again": "every run recomputes",
        "a-pair-is-a-block": "a block has one pair of products",
        "two-pairs-always": "attention and MLP are one after the other in every block",
        "still-all-reduces": "sequence parallel all-reduces as well",
        "backward-twice": "backward sends twice as much as forward",
        "everything-travels": "each device sends the whole tensor",
        "parts-are-smaller": "a device sends its part once",
        "each-call-is-an-all-reduce": "a gather sends as much as an all-reduce",
        "the-other-side": "tensor parallel alone and with sequence parallel always send the same",
        "gibibytes": "a GB is 2^30 bytes",
        "more-calls-are-more-bytes": "more collectives are more bytes",
        "less-memory-is-less-traffic": "what saves memory saves traffic",
        "equal-bytes-always": "an all-reduce is a reduce-scatter and a gather, so that both always send the same",
    },
)
