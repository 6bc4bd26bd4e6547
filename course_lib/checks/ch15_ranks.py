"""Reasoning exercise 15.5: the most data-parallel ranks that a batch has work for, and the devices that they fill."""

from fractions import Fraction
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import Number, judge_parts
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["RANKS", "most", "ranks", "ranks_text"]

KINDS = ("plain", "1f1b", "micro", "interleaved", "context")
"""What asks for more than a sequence a rank, variant by variant."""


def most(run: dict[str, Any], **other: Any) -> int:
    """The largest number of ranks, tried one by one, for which the batch divides and the schedule has what it needs.
    0: there is none."""
    run = {**run, **other}
    idle = run["pipeline"] - 1
    for n in range(run["sequences"] // run["micro"], 0, -1):
        m, rest = divmod(run["sequences"], n * run["micro"])
        if rest and not run.get("ranks may differ"):
            continue
        work = run["chunks"] * m  # in chunks; whole numbers, so that "at most" is exact
        whole = work + idle if run["of"] == "total" else work
        too_much = idle * run["target"].denominator > run["target"].numerator * whole
        if idle and (m < run["least"] or too_much or (run["whole rounds"] and m % run["pipeline"])):
            continue
        return n
    return 0


def ranks(variant: int) -> dict[str, Any]:
    """The numbers of a variant. Variant 0 is 10M tokens in sequences of 10k."""
    rng = variant_rng("most-ranks", variant)
    kind = KINDS[variant % len(KINDS)]
    run: dict[str, Any] = {"kind": kind, "micro": 1, "pipeline": 1, "chunks": 1, "context": 1, "tensor": 8}
    run |= {"target": Fraction(1), "of": "total", "least": 0, "whole rounds": False}
    if not variant:
        return {**run, "sequence": 10_000, "sequences": 1_000, "ranks": 1_000, "devices": 8_000}
    while True:
        run["sequence"] = int(rng.choice([4_096, 8_192, 10_000]))
        run["sequences"] = 240 * int(rng.integers(4, 16))
        run["tensor"] = int(rng.choice([2, 4, 8]))
        if kind == "plain":
            run["micro"] = 1
        if kind == "micro":
            run["micro"] = int(rng.choice([2, 4, 8, 16]))
        if kind == "context":
            run["sequence"], run["sequences"] = (
                int(rng.choice([65_536, 131_072, 100_000])),
                int(rng.choice([96, 120, 128])),
            )
            run["context"] = int(rng.choice([4, 8, 16]))
        if kind in ("1f1b", "interleaved"):
            run["micro"], run["pipeline"] = int(rng.choice([1, 2])), int(rng.choice([4, 8, 12]))
            run["least"], run["target"] = run["pipeline"], Fraction(int(rng.choice([4, 5, 8, 10, 20, 25])), 100)
        if kind == "interleaved":
            run["chunks"], run["whole rounds"] = int(rng.choice([2, 4])), True
        right = most(run)
        devices = right * run["tensor"] * run["pipeline"] * run["context"]
        if right > 1 and _apart(run, right, devices):
            return {**run, "ranks": right, "devices": devices}


def _apart(run: dict[str, Any], right: int, devices: int) -> bool:
    """Whether each rule of the text decides alone, and two mistakes are two numbers."""
    if run["kind"] in ("plain", "context"):
        return True
    full, uneven = most(run, micro=1), {"ranks may differ": True}
    if right == full or devices in (run["sequences"], full):
        return False
    if run["kind"] == "micro":
        return True
    other: dict[str, Any] = {"of": "ideal"} if run["kind"] == "1f1b" else {"whole rounds": False}
    if right in (most(run, **other), most(run, **uneven)) or (run["chunks"] > 1 and right == most(run, chunks=1)):
        return False
    guesses = [run["sequences"], run["sequences"] // run["micro"], full, most(run, target=Fraction(1)), devices]
    return right not in guesses and len(set(guesses)) == len(guesses)


def ranks_text(variant: int) -> str:
    """What `question` prints."""
    run = ranks(variant)
    tokens = run["sequence"] * run["sequences"]
    lines = [
        f"A recipe fixes a global batch of {tokens:,} tokens in sequences of {run['sequence']:,}.",
        f"Tensor parallel: {run['tensor']} devices compute one sequence together.",
    ]
    if run["context"] > 1:
        lines.append(f"Context parallel: each sequence is cut over {run['context']} such groups.")
    if run["micro"] > 1:
        lines.append(f"A micro-batch has {run['micro']} sequences; with fewer the products are too small to be fast.")
    if run["pipeline"] > 1:
        name = "1F1B" if run["chunks"] == 1 else f"interleaved 1F1B with {run['chunks']} chunks a rank"
        lines.append(
            f"Pipeline: {run['pipeline']} stages, {name}, backward twice as long as forward.\n"
            f"The bubble, idle / total, is to be at most {int(run['target'] * 100)}%."
        )
        if run["whole rounds"]:
            lines.append(f"The schedule needs micro-batches in multiples of {run['pipeline']}.")
    lines += [
        "Every data-parallel rank has the same number of micro-batches, all of the same number of sequences.",
        "",
        "ranks:   the most data-parallel ranks that this batch has work for, a whole number",
        "devices: how many devices the run then fills, a whole number",
    ]
    return "\n".join(lines)


def ranks_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Both exact: ranks and devices are whole."""
    run = ranks(returned["variant"])
    tokens = run["sequence"] * run["sequences"]
    other = "ideal" if run["of"] == "total" else "total"
    uneven = {"ranks may differ": True}
    one_each: dict[str, Any] = {"target": Fraction(1), "least": 1, "whole rounds": False}
    idle = Fraction(run["pipeline"] - 1, run["chunks"])
    real = idle / run["target"] - idle or Fraction(1)  # the bubble solved for m, which need not be whole
    equally = "has every rank the same number of micro-batches then?"
    return judge_parts(
        returned,
        [
            Number(
                "ranks",
                run["ranks"],
                0,
                (
                    ("a-token-is-enough", tokens, "those are tokens. What is the least that a rank computes?"),
                    ("micro-batches-are-sequences", most(run, micro=1), "how many sequences does a micro-batch have?"),
                    ("one-sequence-is-enough", run["sequences"], "those are sequences. Is one enough for a rank here?"),
                    (
                        "a-pipeline-needs-nothing",
                        most(run, **one_each),
                        "each rank has one micro-batch then. How much of the time does its pipeline wait?",
                    ),
                    (
                        "as-many-as-stages",
                        most(run, target=Fraction(1)),
                        "each rank has as many micro-batches as stages. How large is the bubble then?",
                    ),
                    ("idle-over-work", most(run, of=other), "what is the bubble a share of?"),
                    ("chunks-change-nothing", most(run, chunks=1), "what do chunks do to the wait?"),
                    ("any-number-will-do", most(run, **{"whole rounds": False}), "does the schedule take so many?"),
                    ("ranks-may-differ", most(run, **uneven), equally),
                    ("ranks-may-differ", most(run, **uneven, **{"whole rounds": False}), equally),
                    ("ranks-may-differ", run["sequences"] // run["micro"] // real, equally),
                    ("context-makes-ranks", run["ranks"] * run["context"], "a group shares a sequence. Who has its "
                        "own?"),
                    ("devices-are-ranks", run["devices"], "those are devices; how many of them have their own "
                        "sequences?"),
                ),
                "how many micro-batches has the batch, how many does a rank need, and does the batch divide?",
                units=False,
            ),
            Number(
                "devices",
                run["devices"],
                0,
                (
                    ("devices-are-ranks", run["ranks"], "how many devices is one rank?"),
                    (
                        "stages-share-devices" if run["pipeline"] > 1 else "a-rank-is-a-tensor-group",
                        run["ranks"] * run["tensor"],
                        "what else multiplies the devices?",
                    ),
                    ("", run["ranks"] * run["pipeline"], "what else multiplies the devices?"),
                    ("", run["ranks"] * run["context"], "what else multiplies the devices?"),
                    ("context-makes-ranks", run["devices"] * run["context"], "what is counted twice?"),
                    ("micro-batches-need-devices", run["devices"] * run["micro"], "a rank computes its micro-batch "
                        "alone"),
                ),
                "how many devices are one data-parallel rank?",
                units=False,
            ),
        ],
        RANKS.misconceptions,
    )  # fmt: skip


RANKS = Exercise(
    id="most-ranks",
    title="The most data-parallel ranks",
    cases=one_case("your two numbers"),
    run=answer_run,
    judge=ranks_judge,
    misconceptions={
        "a-token-is-enough": "a batch can be cut between any two tokens",
        "micro-batches-are-sequences": "a micro-batch is a sequence",
        "one-sequence-is-enough": "a sequence a rank is always enough",
        "a-pipeline-needs-nothing": "a pipeline is full with one micro-batch",
        "as-many-as-stages": "as many micro-batches as stages fill a pipeline",
        "idle-over-work": "idle / ideal and idle / total are the same",
        "chunks-change-nothing": "more chunks leave the bubble as it is",
        "any-number-will-do": "a schedule takes any number of micro-batches",
        "ranks-may-differ": "some ranks may have more micro-batches than others",
        "context-makes-ranks": "context parallel ranks have sequences of their own",
        "devices-are-ranks": "a data-parallel rank is a device",
        "a-rank-is-a-tensor-group": "only tensor parallel multiplies the devices",
        "stages-share-devices": "the stages of a pipeline are on the same devices",
        "micro-batches-need-devices": "each sequence of a micro-batch has a device",
    },
)
