"""Reasoning exercise 03.5, claim 30: the micro-batch fixed, the accumulation doubled. Three numbers are asked for."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["DOUBLED", "doubled", "doubled_text"]

KEYS = ("tokens", "updates", "evidence")


def doubled(variant: int) -> dict[str, Any]:
    """The run of a variant, before the accumulation is doubled; times in ms."""
    rng = variant_rng("accumulation-doubled", variant)
    data, tensor = int(rng.choice([2, 4, 8])), int(rng.choice([2, 4]))
    micro, steps = int(rng.choice([2, 3, 4, 6])), int(rng.choice([2, 3, 4, 5]))
    context = int(rng.choice([1024, 2048, 4096]))
    pass_ms = int(rng.integers(12, 30)) * 10
    run = {"data": data, "tensor": tensor, "micro": micro, "steps": steps, "context": context, "pass_ms": pass_ms}
    run["update_ms"] = int(round(pass_ms * steps * float(rng.uniform(0.5, 0.9)), -1))  # so that it cannot be left out
    run["data_tokens"] = int(rng.integers(20, 90)) * 10**8
    return run


def _numbers(run: dict[str, Any], factor: int) -> tuple[int, float, float]:
    """Tokens an update, updates an epoch (with the fraction), updates an hour, at `factor` times the accumulation."""
    steps = factor * run["steps"]
    tokens = run["data"] * run["micro"] * steps * run["context"]
    return tokens, run["data_tokens"] / tokens, 3.6e6 / (steps * run["pass_ms"] + run["update_ms"])


def doubled_text(variant: int) -> str:
    """What `question` prints."""
    run = doubled(variant)
    devices = run["data"] * run["tensor"]
    return (
        f"{devices} devices: data parallel {run['data']} x tensor parallel {run['tensor']}. Micro-batches of "
        f"{run['micro']} sequences of {run['context']:,} tokens,\n{run['steps']} accumulation steps. The data have "
        f"{run['data_tokens']:,} tokens.\n"
        f"Forward and backward of a micro-batch take {run['pass_ms']} ms. Once an update, all else together\n"
        f"(gradients sent, clipped, optimizer) takes {run['update_ms']} ms. Nothing overlaps.\n\n"
        f"Now the accumulation steps are doubled, to {2 * run['steps']}. The micro-batch and all else stay.\n\n"
        "tokens:   tokens an update, after that\n"
        "updates:  full updates in one pass over the data, after that (a whole number; what is left over makes none)\n"
        "evidence: updates an hour, after that, to three digits"
    )


def doubled_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Tokens and updates exact; updates an hour within one unit of the third digit: rounded or cut off there."""
    form = wrong_form(returned, KEYS)
    if form is not None:
        return form
    for key in KEYS[:2]:
        value = returned[key]
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            return Wrong(f"`{key}` is one number, without quotes", form=True)
    run = doubled(int(returned["variant"]))
    tokens, updates, hourly = _numbers(run, 2)
    good = {
        "tokens": returned["tokens"] == tokens,
        "updates": returned["updates"] == math.floor(updates),
        "evidence": returned["evidence"] is not None and abs(returned["evidence"] - hourly) <= _third_digit(hourly),
    }
    if all(good.values()):
        return None
    right = [key for key in KEYS if good[key]]
    said = f"right: {', '.join(right)}. " if right else ""
    for key, judge in zip(KEYS, (_wrong_tokens, _wrong_updates, _wrong_hourly), strict=True):
        if not good[key]:
            if returned[key] is None:
                return Wrong(f"{said}`{key}` is still empty", form=True)
            wrong = judge(run, returned[key])
            return Wrong(f"{said}`{key}`: {wrong.message}", wrong.misconception, form=bool(right) or wrong.form)
    return None


def _third_digit(value: float) -> float:
    """One unit of the third digit of a positive number: 10 for 1512.6."""
    return float(10.0 ** (math.floor(math.log10(value)) - 2)) * (1 + 1e-9)


def _wrong_tokens(run: dict[str, Any], got: float) -> Wrong:
    before, after = _numbers(run, 1)[0], _numbers(run, 2)[0]
    if got == before:
        return Wrong(
            "that many there were before. What is in a gradient that more micro-batches added to?", "as-before"
        )
    if got == after * run["tensor"]:
        return Wrong("two devices that share one matrix do not read two sequences", "every-device-multiplies")
    if got == after // run["data"]:
        return Wrong("that is what one data-parallel rank sees", "one-rank-only")
    if got == after // run["context"]:
        return Wrong("that is a number of sequences", form=True)
    return Wrong("micro-batch, steps, ranks that read, length of a sequence: which of them is not in it?")


def _wrong_updates(run: dict[str, Any], got: float) -> Wrong:
    before, after = _numbers(run, 1)[1], _numbers(run, 2)[1]
    if math.isclose(got, after, rel_tol=1e-3):
        return Wrong("nearly: a whole number, and what is left over makes no update", form=True)
    if abs(got - before) <= 1:
        return Wrong("that many there were before. How much of the data does an update use up now?", "as-before")
    if abs(got - 2 * before) <= 1:
        return Wrong("more tokens an update, and more updates, of the same data?", "twice-as-often")
    return Wrong("how often do your tokens an update go into the data?")


def _wrong_hourly(run: dict[str, Any], got: float) -> Wrong:
    before = _numbers(run, 1)[2]
    passes, once = 2 * run["steps"] * run["pass_ms"], run["update_ms"]
    rules = {
        "as-before": (before, "that is the pace of before"),
        "exactly-half": (before / 2, "exactly half of before: is every part of an update done twice as often?"),
        "the-update-is-free": (3.6e6 / passes, "what happens once an update takes time too"),
        "in-minutes": (6e4 / (passes + once), "that is the number in a minute"),
    }
    for rule, (value, message) in rules.items():
        if math.isclose(got, value, rel_tol=0.01):
            return Wrong(message, None if rule == "in-minutes" else rule, form=rule == "in-minutes")
    if math.isclose(got, _numbers(run, 2)[2], rel_tol=0.02):
        return Wrong("nearly: three digits are wanted", form=True)
    return Wrong("how many ms does one update take now, from its first micro-batch to its last line?")


DOUBLED = Exercise(
    id="accumulation-doubled",
    title="Twice the accumulation",
    cases=one_case("your three numbers"),
    run=answer_run,
    judge=doubled_judge,
    misconceptions={
        "as-before": "accumulation changes memory and nothing else",
        "every-device-multiplies": "the batch grows with every device",
        "one-rank-only": "the batch is what one device sees",
        "twice-as-often": "more steps of accumulation are more updates",
        "exactly-half": "half the updates an epoch is half the updates an hour",
        "the-update-is-free": "only micro-batches take time",
    },
)
