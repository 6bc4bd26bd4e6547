"""Chapter 1's reasoning exercise (01.6): four runs on one language, one of which has seen what it should guess."""

import math
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, variant_rng
from course_lib.checks.smell import not_a_number, same

__all__ = ["WHICH_LEAKS", "leak_curves", "leak_question"]

KINDS = ("grammar", "fact", "noise")
STEPS = tuple(range(0, 2001, 100))
READ = 0.0051
"""Nats. A learner may round a logarithm to two decimals; honest losses are at least 0.012 above a floor."""

LEAK = {
    "lowest-total-leaks": "The run with the lowest loss is the one that cheats.",
    "a-sudden-drop-leaks": "A curve that falls off a cliff has seen its answers.",
    "slow-means-leak": "A run that is behind the others is the broken one.",
    "floor-in-bits": "Bits and nats are the same unit.",
    "floor-of-the-mixture": "Only the loss over all tokens has a floor.",
    "reads-the-loss": "The run's own loss is the floor.",
    "floor-of-another-kind": "Any floor of the language is evidence for any kind of token.",
}


def _language(variant: int) -> dict[str, Any]:
    """The numbers of one variant: shares of the kinds, equally likely choices a kind, and which run does what."""
    rng = variant_rng("which-leaks", variant)
    noise, fact = int(rng.choice([12, 16, 20, 24, 32])), int(rng.choice([2, 3, 4]))
    leaking = "noise" if variant % 2 == 0 else "fact"
    roles = [str(r) for r in rng.permutation(["fast", "slow", "sudden", "leak"])]
    return {
        "shares": {"grammar": 0.5, "fact": 0.3, "noise": 0.2},
        "choices": {"grammar": 1, "fact": fact, "noise": noise},
        "leaking": leaking,
        "runs": dict(zip("ABCD", roles, strict=True)),
    }


def _floors(language: dict[str, Any]) -> dict[str, float]:
    floors = {kind: math.log(language["choices"][kind]) for kind in KINDS}
    floors["all"] = sum(language["shares"][kind] * floors[kind] for kind in KINDS)
    return floors


def leak_curves(variant: int = 0) -> dict[str, dict[str, list[float]]]:
    """Run letter -> "steps", each kind and "all" -> mean nats per token of that kind, step by step.

    Made up from the exercise's numbers, not trained: each kind decays to where its run's story ends, a little above the
    floor, with some spread. The leak ends 0.08 below one floor; the poorest grammar is an honest run's.
    """
    language = _language(variant)
    rng = variant_rng("which-leaks/curves", variant)
    floors, shares, leaking = _floors(language), language["shares"], language["leaking"]
    stolen = 0.1
    steps, start = np.array(STEPS), math.log(60)
    out: dict[str, dict[str, list[float]]] = {}
    for run, role in language["runs"].items():
        pace = {"fast": 1.0, "slow": 2.8, "sudden": 1.5, "leak": 1.4}[role]
        curves = {}
        for kind, half_life in zip(KINDS, (60, 160, 60), strict=True):
            end = floors[kind] + (0.015 if role == "fast" else 0.025)
            curve = end + (start - end) * 0.5 ** (steps / (half_life * pace))
            if role == "sudden" and kind == "fact":
                curve = end + (start - end) * (0.62 + 0.38 * 0.5 ** (steps / 80)) / (1 + np.exp((steps - 1150) / 25))
            if role == "leak" and kind == leaking:
                curve = curve - stolen / (1 + np.exp((700 - steps) / 150))
            poor = {"slow": 0.26, "leak": (shares[leaking] * stolen + 0.05) / shares["grammar"]}.get(role, 0.0)
            if kind == "grammar":  # poor grammar keeps the leak's total above the best run's
                curve = curve + poor * (1 - 0.5 ** (steps / 300))
            curves[kind] = np.maximum(curve + 0.001 * rng.uniform(-3, 3, len(steps)), 0.0)
        total = sum(shares[kind] * curves[kind] for kind in KINDS)
        out[run] = {"steps": list(STEPS)}
        out[run] |= {kind: [round(float(v), 3) for v in curves[kind]] for kind in KINDS}
        out[run]["all"] = [round(float(v), 3) for v in np.asarray(total)]
    return out


def leak_question(variant: int = 0) -> str:
    """The question with the numbers of that variant, and each run's last measurement."""
    language, curves = _language(variant), leak_curves(variant)
    choices = language["choices"]
    lines = [
        f"Variant {variant}. A language of 60 words. Half of its tokens are grammar: the words before decide them.",
        f"30% are facts: once the name is known, {choices['fact']} words are equally likely. 20% are noise:",
        f"{choices['noise']} words are equally likely, whatever came before.",
        "Four runs, measured on text that is said to be fresh (spread 0.003). Nats per token of each kind, at the end:",
        "",
        "run      all   grammar     fact    noise",
    ]
    for run, curve in curves.items():
        lines.append(
            f"{run}    {curve['all'][-1]:7.3f} {curve['grammar'][-1]:9.3f} {curve['fact'][-1]:8.3f} "
            f"{curve['noise'][-1]:8.3f}"
        )
    return "\n".join(lines)


def leak_cases(seed: int) -> list[Case]:
    """One case: the learner's variant decides the numbers, not the seed."""
    return [{"name": "the four runs"}]


def run_leak(answer: Any, case: Case) -> Any:
    if not isinstance(answer, dict):
        return None
    return {str(key): value.item() if hasattr(value, "item") else value for key, value in answer.items()}


def judge_leak(case: Case, returned: Any) -> Wrong | None:
    """Choice and floor, recomputed for the variant in the answer."""
    if not isinstance(returned, dict) or not {"variant", "choice", "evidence"} <= set(returned):
        return Wrong('the answer is a dict with "variant", "choice" and "evidence"', form=True)
    variant, choice, evidence = returned["variant"], returned["choice"], returned["evidence"]
    if isinstance(variant, bool) or not isinstance(variant, int) or variant < 0:
        return Wrong("variant is a whole number from 0", form=True)
    for key in ("choice", "evidence"):
        if returned[key] is None or returned[key] is ...:
            return Wrong(f"{key} is still None", form=True)
    language = _language(variant)
    run = str(choice).strip().upper().removeprefix("RUN").strip()
    if run not in language["runs"]:
        return Wrong("choice is one of the letters A, B, C, D", form=True)
    if wrong := not_a_number(evidence):
        return Wrong(f"evidence: {wrong.message}", form=True)
    if not math.isfinite(evidence):
        return Wrong("evidence is not a finite number", form=True)
    floors, curves = _floors(language), leak_curves(variant)
    role = language["runs"][run]
    if role == "fast":
        says = "this run has the lowest loss, and each kind ends just above its floor. Is that more than can be known?"
        return Wrong(says, "lowest-total-leaks")
    if role == "sudden":
        says = "a loss may fall suddenly when a regularity is found. Where does this run's curve end?"
        return Wrong(says, "a-sudden-drop-leaks")
    if role == "slow":
        return Wrong("this run is above every floor: slow, but possible.", "slow-means-leak")
    leaking = language["leaking"]
    right = floors[leaking]
    if same(evidence, right, READ):
        return None
    others = [floors[kind] for kind in KINDS if kind != leaking]
    says, name = "which number must a loss not go below, and for which kind of token does this run do it?", None
    if same(evidence, right / math.log(2), READ):
        says, name = "that floor is in another unit. The table is in nats.", "floor-in-bits"
    elif same(evidence, floors["all"], READ):
        says = "that is the floor over all kinds, and this run is above it. Where is it below?"
        name = "floor-of-the-mixture"
    elif any(same(evidence, other, READ) for other in others):
        says, name = (
            "on that kind this run is above its floor. On which is it below?",
            "floor-of-another-kind",
        )
    elif any(same(evidence, curves[run][kind][-1], READ) for kind in (*KINDS, "all")):
        says, name = (
            "that is a loss of the run. The evidence is the number that it should not be below.",
            "reads-the-loss",
        )
    return Wrong(f"the run is right, the evidence {evidence:.4g} is not; {says}", name)


WHICH_LEAKS = Exercise(
    id="which-leaks",
    title="Which of four runs leaks",
    cases=leak_cases,
    run=run_leak,
    judge=judge_leak,
    misconceptions=LEAK,
)
