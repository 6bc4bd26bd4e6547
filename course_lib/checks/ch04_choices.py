"""Check 04.6: an out-of-memory that another 16-bit format does not cure."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ACTIVATION_OOM", "activation_oom", "activation_oom_text"]

OPTIONS = {
    "format": "switch the autocast from FP16 to BF16, and drop the loss scaler",
    "weights": "keep weights and gradients in BF16, with FP32 master weights",
    "micro": "half as many sequences at a time, in two micro-batches",
    "moments": "an AdamW that keeps each of its two moments in 1 byte",
}
UNITS = {"bytes": 1e-9, "MB": 1e-3, "GiB of 2^30 bytes": 1.024**3, "TB": 1e3}
"""Units that the evidence may be given in by mistake -> GB."""
SIZES = [
    ("0.76 billion", 0.76),
    ("1.3 billion", 1.3),
    ("0.35 billion", 0.35),
    ("2.7 billion", 2.7),
    ("6.7 billion", 6.7),
]


def activation_oom(variant: int) -> dict[str, Any]:
    """The numbers of a variant, in GB. In every other variant the state is the larger part."""
    rng = variant_rng("activation-oom", variant)
    heavy = variant % 2 == 0  # activations outweigh the state
    while True:
        words, billions = SIZES[int(rng.integers(len(SIZES)))]
        sequences = int(rng.choice([8, 16, 32]))
        share = float(rng.uniform(1.1, 2.0) if heavy else rng.uniform(0.25, 0.5))
        each = round(16 * billions * share / sequences, 2)
        activations = each * sequences
        totals = {
            "format": 16 * billions + activations,
            "weights": 16 * billions + activations,
            "micro": 16 * billions + activations / 2,
            "moments": 10 * billions + activations,
        }
        best, second, *_ = sorted(totals.values())
        others = [second, activations, activations / 2, 16 * billions, 10 * billions]
        if all(abs(other - best) > 0.05 * best for other in others):  # no wrong number passes for the right one
            break
    order = [str(name) for name in rng.permutation(list(OPTIONS))]
    right = min(totals, key=lambda name: totals[name])
    return {
        "words": words,
        "sequences": sequences,
        "each": each,
        "activations": activations,
        "billions": billions,
        "limit": round((best + second) / 2, 1),
        "totals": totals,
        "order": order,
        "right": right,
        "letter": "ABCD"[order.index(right)],
    }


def activation_oom_text(variant: int) -> str:
    """What `question` prints."""
    q = activation_oom(variant)
    options = "\n".join(f"  {letter}  {OPTIONS[name]}" for letter, name in zip("ABCD", q["order"], strict=True))
    return (
        f"A model of {q['words']} parameters, FP32 weights, AdamW, autocast to FP16 with a loss scaler.\n"
        f"One forward pass has {q['sequences']} sequences; each keeps {q['each']:.2f} GB of activations for backward.\n"
        f"The device has {q['limit']:.1f} GB, and the run is out of memory. (GB: 1e9 bytes. Count the state,\n"
        "activations in proportion to the sequences, and nothing else.) One single change:\n\n"
        f"{options}\n\n"
        "choice:   the letter of the one change after which it fits, as a text\n"
        "evidence: the GB that the run then holds, to three digits"
    )


def _three_digits(got: float, wanted: float) -> bool:
    """Whether `got` is `wanted` to three digits or more."""
    return abs(got - wanted) <= 0.501 * 10.0 ** (math.floor(math.log10(wanted)) - 2)


def activation_oom_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter is exact; the GB within half a unit of the third digit, since the question wants three."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    q = activation_oom(int(returned["variant"]))
    letter, got = returned["choice"], returned["evidence"]
    if letter is not None and (not isinstance(letter, str) or letter.strip().upper() not in set("ABCD")):
        return Wrong("`choice` is one letter, A to D, in quotes", form=True)
    near = lambda wanted: got is not None and _three_digits(got, wanted)
    half = near(q["totals"][q["right"]])
    if letter is None:
        return Wrong(f"`choice` is still empty{'; the GB are right' if half else ''}", form=True)
    name = q["order"]["ABCD".index(letter.strip().upper())]
    if name != q["right"]:
        message, misconception = {
            "format": ("both formats have two bytes. What does your change shrink?", "bf16-is-smaller-than-fp16"),
            "weights": ("add up the bytes a parameter, before and after", "half-the-weights-halves-the-state"),
            "micro": ("half of the activations is not enough here", "activations-are-always-the-reason"),
            "moments": ("6 bytes a parameter are not enough here", "the-state-is-always-the-reason"),
        }[name]
        return Wrong(("the GB are right, the letter is not: " if half else "") + message, misconception, form=half)
    if got is None:
        return Wrong("the letter is right; `evidence` is still empty", form=True)
    if half:
        return None
    guesses = {
        "forgets-the-state": (q["totals"][q["right"]] - (10 if name == "moments" else 16) * q["billions"], "the state"),
        "forgets-the-activations": ((10 if name == "moments" else 16) * q["billions"], "the activations"),
    }
    for rule, (value, what) in guesses.items():
        if near(value):
            return Wrong(f"the letter is right; your GB leave out {what}", rule, form=True)
    if near(q["totals"]["format"]):
        return Wrong("the letter is right; your GB are those from before the change", form=True)
    for unit, size in UNITS.items():
        if math.isclose(got * size, q["totals"][q["right"]], rel_tol=0.005):
            return Wrong(f"the letter is right; your number looks like {unit}. GB of 1e9 bytes are wanted", form=True)
    if math.isclose(got, q["totals"][q["right"]], rel_tol=0.01):
        return Wrong("the letter is right; the GB are nearly right. Three digits of them are wanted", form=True)
    return Wrong(
        "the letter is right, the GB are not: bytes a parameter, line by line, plus the activations", form=True
    )


ACTIVATION_OOM = Exercise(
    id="activation-oom",
    title="An OOM that stays",
    cases=one_case("your change and its GB"),
    run=answer_run,
    judge=activation_oom_judge,
    misconceptions={
        "bf16-is-smaller-than-fp16": "BF16 takes less memory than FP16",
        "half-the-weights-halves-the-state": "16-bit weights halve the training state",
        "activations-are-always-the-reason": "an OOM is always cured by smaller micro-batches",
        "the-state-is-always-the-reason": "an OOM is always cured at the optimizer",
        "forgets-the-state": "a run holds its activations and nothing else",
        "forgets-the-activations": "a run holds its state and nothing else",
    },
)
