"""Reasoning exercise 14.6: another rate, or another kind? A job's stops by cause, beside a published table."""

import math
from functools import partial
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["KINDS", "expected", "kinds_text", "tables"]

PUBLISHED = (
    ("faulty GPU", 148),
    ("GPU HBM3 memory", 72),
    ("software bug", 54),
    ("network switch or cable", 35),
    ("host maintenance", 32),
    ("GPU SRAM memory", 19),
    ("GPU system processor", 17),
    ("network card", 7),
    ("silent data corruption", 6),
)
"""Unexpected stops of Llama 3's pre-training, 54 days on 16,384 devices (2024, arXiv 2407.21783, table 5)."""
DEVICES, DAYS = 16_384, 54
GONE, NEW = "gone", "new"
ODD = (NEW, GONE, GONE, NEW, GONE, NEW, NEW)
"""Whether the odd row is empty on the left, or fuller than it should be: variant by variant, in no rhythm."""


def expected(count: int, devices: float, days: float) -> float:
    """Stops to expect in a job of this size, at the published job's rate for each device and day."""
    return count * devices * days / (DEVICES * DAYS)


def tables(variant: int) -> dict[str, Any]:
    """The job's size, its stops by cause, the row that no rate explains, and what was to be expected there."""
    rng, odd_kind = variant_rng("rate-or-kind", variant), ODD[variant % len(ODD)]
    while True:
        devices, days = int(rng.choice([512, 1024, 2048])), int(rng.integers(8, 28) * 10)
        rows = [PUBLISHED[int(k)] for k in sorted(rng.choice(len(PUBLISHED), 5, replace=False))]
        means = [expected(count, devices, days) for _, count in rows]
        if odd_kind == NEW:
            fitting = [k for k, mean in enumerate(means) if 7.5 < mean < 25]
        else:
            fitting = [k for k, mean in enumerate(means) if 0.4 < mean < 3]
        rare = [k for k, mean in enumerate(means) if mean < 1.2]
        if not fitting or not rare or (odd_kind == GONE and len(rare) < 2):
            continue
        odd = int(rng.choice(fitting))
        counts = [int(rng.poisson(mean)) for mean in means]
        counts[odd] = 0 if odd_kind == NEW else int(rng.integers(12, 18))
        others = [k for k in range(5) if k != odd]
        usual = all(abs(counts[k] - means[k]) <= 1.6 * math.sqrt(means[k]) + 0.5 for k in others)
        unseen = any(counts[k] == 0 for k in others)
        growth = [rows[k][1] / max(counts[k], 0.5) for k in others]
        if usual and unseen and max(growth) > 4:
            shown = [int(k) for k in rng.permutation(5)]  # by count, the odd row would often be the first
            return {
                "devices": devices,
                "days": days,
                "rows": [(*rows[k], counts[k]) for k in shown],
                "means": [means[k] for k in shown],
                "kind": odd_kind,
                "choice": "ABCDE"[shown.index(odd)],
                "evidence": means[odd],
            }


def kinds_text(variant: int) -> str:
    """What `question` prints."""
    run = tables(variant)
    lines = [
        "Unexpected stops by cause. Left a colleague's job, made up for this question; right Llama 3's",
        "pre-training, as published (2024, arXiv 2407.21783, table 5). The rows are in no order.",
        "",
        f"                               {run['devices']:>6,} devices    {DEVICES:,} devices",
        f"                               {run['days']:>6} days       {DAYS} days",
        *(
            f'  "{letter}" {name:<25} {found:6}         {count:6}'
            for letter, (name, count, found) in zip("ABCDE", run["rows"], strict=True)
        ),
        "",
        "In which row can the two jobs not have had the same rate for each device and day?",
        "",
        "choice:   the letter of that row: the one whose count on the left is the least likely at the right job's rate",
        "evidence: the stops of that row to be expected on the left, at the right job's rate. Within 2%",
    ]
    return "\n".join(lines)


def kinds_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The number within 2%: rounded on the way. At the right rate the row asked for has a chance below 1 in 1,000."""
    run = tables(returned["variant"])
    choice, number = partial(_wrong_choice, run), partial(_wrong_number, run)
    return judge_choice(returned, run, "ABCDE", choice, number, rel_tol=0.02)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    _, count, found = run["rows"]["ABCDE".index(given)]
    if found == 0:
        text = f"{given}: nothing was seen on the left. How many were to be expected there? Is 0 a surprise?"
        return Wrong(text, "unseen-is-new")
    if count == max(row[1] for row in run["rows"]):
        text = f"{given}: {count} against {found}. How many devices, for how many days, on each side?"
        return Wrong(text, "more-stops-are-another-kind")
    text = f"{given}: {found} were seen on the left. How many were to be expected, and how far off is that by chance?"
    return Wrong(text, "any-difference-counts")


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    _, count, found = run["rows"]["ABCDE".index(run["choice"])]
    devices, days = run["devices"] / DEVICES, run["days"] / DAYS
    guesses = {
        "what-was-seen-was-expected": (found, "that is the count on the left. What was to be expected there?"),
        "devices-alone": (count * devices, "for how many days did each job run?"),
        "days-alone": (count * days, "on how many devices did each job run?"),
        "the-other-way-round": (found / devices / days, "that is what the left job's rate gives on the right"),
        "counts-compare": (count, "that is the count on the right"),
        "longer-is-rarer": (count * devices / days, "does a longer job have fewer stops?"),
    }
    before = "the choice is right, the number is not: "
    for rule, (guess, text) in guesses.items():
        if math.isclose(value, guess, rel_tol=0.01) and not math.isclose(guess, run["evidence"], rel_tol=0.05):
            return Wrong(before + text, rule, form=True)
    return Wrong(before + "a rate for each device and day, times devices and days", form=True)


KINDS = Exercise(
    id="rate-or-kind",
    title="Another rate, or another kind",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=kinds_judge,
    misconceptions={
        "unseen-is-new": "what was never seen in a small job is a new kind in a large one",
        "more-stops-are-another-kind": "many more stops mean that something new is going on",
        "any-difference-counts": "counts that differ from what was expected are no chance",
        "what-was-seen-was-expected": "a row's own count says what was to be expected of it",
        "devices-alone": "stops grow with the devices, whatever the days",
        "days-alone": "stops grow with the days, whatever the devices",
        "the-other-way-round": "a ratio is a ratio, either way",
        "counts-compare": "counts of two jobs can be compared as they are",
        "longer-is-rarer": "the longer a job runs, the rarer its stops",
    },
)
