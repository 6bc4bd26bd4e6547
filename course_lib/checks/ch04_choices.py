"""Checks 04.1 and 04.6: a precision from probes, and an out-of-memory that another 16-bit format does not cure."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ACTIVATION_OOM", "POLICY", "activation_oom", "activation_oom_text"]

# --- 04.1 a policy from probes ----------------------------------------------------------------------------------------

Row = dict[str, Any]


def _row(stores: bool, multiplies: bool, autocast: bool, scaler: bool, speed: float | None) -> Row:
    return {"stores": stores, "multiplies": multiplies, "autocast": autocast, "scaler": scaler, "speed": speed}


def policy_cases(seed: int) -> list[Case]:
    """Probes of machines: each rule decides one of them alone."""
    rng = np.random.default_rng([seed, 41])
    fast, slow = (lambda: round(float(rng.uniform(1.6, 8)), 2)), (lambda: round(float(rng.uniform(0.02, 1.4)), 2))
    good = lambda: _row(True, True, True, True, fast())
    none = _row(False, False, False, False, None)

    def case(name: str, bf16: Row, fp16: Row) -> Case:
        return {"name": name, "rows": {"fp32": _row(True, True, False, True, 1.0), "bf16": bf16, "fp16": fp16}}

    return [
        case("BF16 runs fast, FP16 slowly", good(), _row(True, True, True, True, slow())),
        case("neither 16-bit format is there", none, none),
        case("only FP16 is there, and it trains", none, good()),
        case("only FP16 is there, and the scaler fails", none, _row(True, True, True, False, fast())),
        case("BF16 is stored and not multiplied", _row(True, False, False, False, None), none),
        case("BF16 runs, but slowly", _row(True, True, True, True, slow()), none),
        case("both run fast, FP16 faster", _row(True, True, True, True, 2.0), _row(True, True, True, True, 4.0)),
        case("BF16 multiplies, but autocast does not take it", _row(True, True, False, False, fast()), none),
        case("BF16 at exactly 1.5 times", _row(True, True, True, True, 1.5), none),
        case("BF16 works, its scaler does not", _row(True, True, True, False, fast()), none),
    ]


def policy_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    result = answer({name: dict(row) for name, row in case["rows"].items()})
    if not isinstance(result, tuple | list) or len(result) != 2:
        return {"form": f'return two things, such as ("fp32", False); yours is a {type(result).__name__}'}
    name, scaler = result
    if name not in ("fp32", "bf16", "fp16") or not isinstance(scaler, bool):
        return {"form": 'the first is "fp32", "bf16" or "fp16", the second True or False'}
    return {"name": name, "scaler": scaler}


def _policy(rows: dict[str, Row], rule: str = "right") -> tuple[str, bool]:
    def fits(name: str) -> bool:
        row = rows[name]
        if rule == "storing-is-enough":
            return bool(row["stores"])
        wanted = [row["multiplies"]] if rule == "forgets-autocast" else [row["multiplies"], row["autocast"]]
        if name == "fp16" and rule != "fp16-without-a-scaler":
            wanted.append(row["scaler"])
        if name == "bf16" and rule == "bf16-needs-a-scaler":
            wanted.append(row["scaler"])
        speed = row["speed"] or 0.0
        if rule != "fewer-bits-are-faster":
            wanted.append(speed > 1.5 if rule == "at-least-is-more-than" else speed >= 1.5)
        return all(wanted)

    order = ["bf16", "fp16"]
    if rule == "takes-the-fastest":
        order.sort(key=lambda name: -(rows[name]["speed"] or 0.0))
    chosen = next((name for name in order if fits(name)), "fp32")
    scaler = chosen == "fp16" if rule != "a-scaler-for-every-16-bits" else chosen != "fp32"
    return chosen, scaler and rule != "fp16-without-a-scaler"


POLICY_HINTS = {
    "a-scaler-for-every-16-bits": "which of the two 16-bit formats has FP32's range, and so no use for a scaler?",
    "fp16-without-a-scaler": "FP16 loses small gradients. What does it need, and what if that failed its probe?",
    "forgets-autocast": "it multiplies here, but would autocast ever use it?",
    "fewer-bits-are-faster": "fewer bits are not faster by themselves. Which number of the probe says so?",
    "takes-the-fastest": "the faster one is not the first choice: read the text once more",
    "at-least-is-more-than": "the text says at least 1.5 times",
    "bf16-needs-a-scaler": "the scaler's probe failed, but does this format need one?",
    "storing-is-enough": "a format that can be stored here cannot always be computed with, or not fast",
}


def policy_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: a choice. Oracle: the rules of the text, written down once more."""
    if "form" in returned:
        return Wrong(returned["form"], form=True)
    got, right = (returned["name"], returned["scaler"]), _policy(case["rows"])
    if got == right:
        return None
    for rule, message in POLICY_HINTS.items():
        if _policy(case["rows"], rule) == got:
            return Wrong(message, rule)
    scaler = "with" if got[1] else "without"
    return Wrong(f"{got[0]} {scaler} a scaler is not what these probes allow. Go through the rules one by one")


POLICY = Exercise(
    id="policy-from-probes",
    title="A policy from probes",
    cases=policy_cases,
    run=policy_run,
    judge=policy_judge,
    forbidden=("precision_policy", "course_lib.amp"),
    misconceptions={
        "a-scaler-for-every-16-bits": "every 16-bit format needs a loss scaler",
        "fp16-without-a-scaler": "FP16 trains without a loss scaler",
        "storing-is-enough": "a format that can be stored can be trained in",
        "forgets-autocast": "autocast takes every format that multiplies",
        "fewer-bits-are-faster": "fewer bits are always faster",
        "takes-the-fastest": "the fastest format is the best",
        "at-least-is-more-than": "a limit excludes its own value",
        "bf16-needs-a-scaler": "BF16 depends on the scaler",
    },
)

# --- 04.6 an out-of-memory --------------------------------------------------------------------------------------------

OPTIONS = {
    "format": "switch the autocast from FP16 to BF16, and drop the loss scaler",
    "weights": "keep weights and gradients in BF16, with FP32 master weights",
    "micro": "half as many sequences at a time, in two micro-batches",
    "moments": "an AdamW that keeps each of its two moments in 1 byte",
}
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
        "evidence: the GB that the run then holds"
    )


def activation_oom_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter is exact; the GB within 1%, since the question prints three digits."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    q = activation_oom(int(returned["variant"]))
    letter, got = returned["choice"], returned["evidence"]
    if letter is not None and (not isinstance(letter, str) or letter.strip().upper() not in set("ABCD")):
        return Wrong("`choice` is one letter, A to D, in quotes", form=True)
    near = lambda wanted: got is not None and math.isclose(got, wanted, rel_tol=0.01)
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
