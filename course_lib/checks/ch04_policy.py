"""Check 04.1: a precision from probes."""

from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["POLICY"]

Row = dict[str, Any]


def _row(stores: bool, multiplies: bool, autocast: bool, scaler: bool, speed: float | None) -> Row:
    return {"stores": stores, "multiplies": multiplies, "autocast": autocast, "scaler": scaler, "speed": speed}


def policy_cases(seed: int) -> list[Case]:
    """Probes of machines. Each rule decides some of them alone, for BF16 and, where that is absent, for FP16."""
    rng = np.random.default_rng([seed, 41])
    fast, slow = (lambda: round(float(rng.uniform(1.6, 8)), 2)), (lambda: round(float(rng.uniform(0.02, 0.9)), 2))
    none = _row(False, False, False, False, None)

    def fit(**changes: Any) -> Row:
        return {**_row(True, True, True, True, fast()), **changes}

    def case(name: str, bf16: Row, fp16: Row) -> Case:
        return {"name": name, "rows": {"fp32": _row(True, True, False, True, 1.0), "bf16": bf16, "fp16": fp16}}

    return [
        case("BF16 runs fast, FP16 slowly", fit(), fit(speed=slow())),
        case("neither 16-bit format is there", none, none),
        case("only FP16 is there, and it trains", none, fit()),
        case("BF16 is stored and not multiplied", _row(True, False, False, False, None), none),
        case("only FP16 is there, and the scaler fails", none, fit(scaler=False)),
        case("BF16 runs, but slowly", fit(speed=slow()), none),
        case("both run fast, FP16 faster", fit(speed=2.0), fit(speed=4.0)),
        case("BF16 multiplies, but autocast does not take it", fit(autocast=False), none),
        case("autocast takes BF16, but it does not multiply", fit(multiplies=False), none),
        case("BF16 at exactly 1.5 times", fit(speed=1.5), none),
        case("BF16 at 1.49 times", fit(speed=1.49), none),
        case("BF16 passes all, and its speed was not measured", fit(speed=None), none),
        case("BF16 works, its scaler does not", fit(scaler=False), none),
        case("BF16 runs slowly, FP16 fast", fit(speed=slow()), fit()),
        case("only FP16 is there, and it is slow", none, fit(speed=slow())),
        case("only FP16 is there, and autocast does not take it", none, fit(autocast=False)),
        case("only FP16 is there, and it does not multiply", none, fit(multiplies=False)),
        case("only FP16 is there, and its speed was not measured", none, fit(speed=None)),
        case("only FP16 is there, at exactly 1.5 times", none, fit(speed=1.5)),
        case("only FP16 is there, at 1.49 times", none, fit(speed=1.49)),
    ]


def policy_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    result = answer({name: dict(row) for name, row in case["rows"].items()})
    if not isinstance(result, tuple | list) or len(result) != 2:
        return {"form": f'return two things, such as ("fp32", False); yours is {kind(result)}'}
    name, scaler = result
    if name not in ("fp32", "bf16", "fp16") or not isinstance(scaler, bool):
        return {"form": 'the first is "fp32", "bf16" or "fp16", the second True or False'}
    return {"name": name, "scaler": scaler}


def _policy(rows: dict[str, Row], rule: str = "right") -> tuple[str, bool]:
    """The text's rules, or those of a misconception."""
    dropped = {"forgets-multiplies": "multiplies", "forgets-autocast": "autocast"}.get(rule)

    def fits(name: str) -> bool:
        row = rows[name]
        if rule == "storing-is-enough":
            return bool(row["stores"])
        wanted = [row[probe] for probe in ("multiplies", "autocast") if probe != dropped]
        if (name == "fp16" and rule not in NO_SCALER) or (name == "bf16" and rule == "bf16-needs-a-scaler"):
            wanted.append(row["scaler"])
        speed = row["speed"] or (9.0 if rule == "unmeasured-is-fast" else 0.0)
        if rule in ("at-least-is-more-than", "any-gain-is-enough"):
            wanted.append(speed > (1.5 if rule == "at-least-is-more-than" else 1.0))
        elif rule != "fewer-bits-are-faster":
            wanted.append(speed >= 1.5)
        return all(wanted)

    order = ["bf16", "fp16"]
    if rule == "takes-the-fastest":
        order.sort(key=lambda name: -(rows[name]["speed"] or 0.0))
    chosen = next((name for name in order if fits(name)), "fp32")
    scaler = chosen == "fp16" if rule != "a-scaler-for-every-16-bits" else chosen != "fp32"
    return chosen, scaler and rule != "fp16-without-a-scaler"


NO_SCALER = {"fp16-without-a-scaler", "skips-the-scaler's-probe"}
POLICY_HINTS = {
    "a-scaler-for-every-16-bits": "which of the two 16-bit formats has FP32's range, and so no use for a scaler?",
    "fp16-without-a-scaler": "FP16 loses small gradients. What does it need, and what if that failed its probe?",
    "skips-the-scaler's-probe": "which of FP16's probes failed here, and can it train without that?",
    "forgets-autocast": "it multiplies here, but would autocast ever use it?",
    "forgets-multiplies": "it passes other probes here, but not the one that asks for a product",
    "any-gain-is-enough": "it is faster here, but by how much, and which limit does the text name?",
    "unmeasured-is-fast": "no speed was measured here: read the text once more about `None`",
    "fewer-bits-are-faster": "fewer bits are not faster by themselves. Which number of the probe says so?",
    "takes-the-fastest": "the faster one is not the first choice: read the text once more",
    "at-least-is-more-than": "the text says at least 1.5 times",
    "bf16-needs-a-scaler": "the scaler's probe failed, but does this format need one?",
    "storing-is-enough": "a format that can be stored here cannot always be computed with, or not fast",
}
"""Asked in this order: the first rule that gives what came back names it."""


def policy_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: a choice. Oracle: the rules of the text, written down once more."""
    if "form" in returned:
        return Wrong(returned["form"], form=True)
    got, right = (returned["name"], returned["scaler"]), _policy(case["rows"])
    if got == right:
        return None
    for rule, message in POLICY_HINTS.items():
        if _policy(case["rows"], rule) == got:
            return Wrong(message, "fp16-without-a-scaler" if rule in NO_SCALER else rule)
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
        "forgets-multiplies": "what autocast takes can be multiplied",
        "any-gain-is-enough": "any gain in speed is worth 16 bits",
        "unmeasured-is-fast": "a speed that was not measured is a good one",
        "fewer-bits-are-faster": "fewer bits are always faster",
        "takes-the-fastest": "the fastest format is the best",
        "at-least-is-more-than": "a limit excludes its own value",
        "bf16-needs-a-scaler": "BF16 depends on the scaler",
    },
)
