"""Reasoning exercise 02.6: memory and FLOPs of a published run, on paper.

Parameters, tokens and device-hours are the published ones (the sources stand beside them); peaks are the makers'
figures for dense 16-bit products. The recipe of the training state is the exercise's, not the publication's.
"""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["PUBLISHED_RUN", "published_run", "published_run_text"]

RUNS: list[tuple[str, float, float, float, float, str, float]] = [
    # model, parameters, tokens, device-hours, peak FLOP/s (dense 16-bit), device, memory of the card asked about
    ("Llama 2 7B (arXiv 2307.09288)", 6.738e9, 2.0e12, 184_320, 312e12, "A100", 12e9),
    ("LLaMA 65B (arXiv 2302.13971)", 65.2e9, 1.4e12, 1_022_362, 312e12, "A100", 80e9),
    ("Llama 2 70B (arXiv 2307.09288)", 68.98e9, 2.0e12, 1_720_320, 312e12, "A100", 80e9),
    ("LLaMA 7B (arXiv 2302.13971)", 6.738e9, 1.0e12, 82_432, 312e12, "A100", 8e9),
    ("BLOOM 176B (arXiv 2211.05100)", 176.2e9, 366e9, 1_082_990, 312e12, "A100", 80e9),
    ("Pythia 12B (arXiv 2304.01373)", 11.85e9, 299.9e9, 72_300, 312e12, "A100", 24e9),
]
STATES = {
    "BF16 weights and BF16 gradients": 16,
    "BF16 weights, gradients in FP32 only": 18,
    "BF16 weights, gradients kept in BF16 and in FP32": 20,
}


def published_run(variant: int) -> dict[str, Any]:
    """The numbers of a variant: a published run, a recipe for its training state and the right answers."""
    rng = variant_rng("published-run", variant)
    name, parameters, tokens, hours, peak, device, memory = RUNS[variant % len(RUNS)]
    recipe = list(STATES)[int(rng.integers(len(STATES)))]
    return {
        "name": name,
        "parameters": parameters,
        "tokens": tokens,
        "hours": hours,
        "peak": peak,
        "device": device,
        "memory": memory,
        "recipe": recipe,
        "bytes": STATES[recipe],
        "mfu": 6 * parameters * tokens / (hours * 3600 * peak),
        "cards": math.ceil(STATES[recipe] * parameters / memory),
    }


def published_run_text(variant: int) -> str:
    """What `question` prints."""
    run = published_run(variant)
    return (
        f"{run['name']}: {run['parameters'] / 1e9:.4g}e9 parameters, {run['tokens'] / 1e12:.3g}e12 tokens.\n"
        f"It took {run['hours']:,} device-hours, summed over all devices: {run['device']}, with a peak of\n"
        f"{run['peak'] / 1e12:.0f}e12 FLOP/s in 16 bits. Say that it was trained with AdamW,\n{run['recipe']}.\n\n"
        f"choice:   the smallest number of cards of {run['memory'] / 1e9:.0f}e9 bytes whose memory, taken together,\n"
        "          holds the training state (weights, gradients, all that the optimizer keeps; no activations);\n"
        "          a whole number\n"
        "evidence: the model FLOPs utilisation (MFU) of the whole run by 6ND, as a fraction between 0 and 1"
    )


def published_run_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The number of cards is exact; the MFU within 1%, since the question prints three to four digits."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    run = published_run(int(returned["variant"]))
    cards, mfu = returned["choice"], returned["evidence"]
    if cards is not None and (isinstance(cards, bool) or not isinstance(cards, (int, float))):
        return Wrong("`choice` is one whole number, without quotes", form=True)
    half = mfu is not None and math.isclose(mfu, run["mfu"], rel_tol=0.01)  # one of two right costs no variant
    if cards is None:
        return Wrong(f"`choice` is still empty{'; the MFU is right' if half else ''}", form=True)
    if cards != run["cards"]:
        wrong = _wrong_cards(run, cards)
        return Wrong(
            ("the MFU is right, the cards are not: " if half else "") + wrong.message,
            wrong.misconception,
            wrong.form or half,
        )
    if mfu is None:
        return Wrong("the cards are right; `evidence` is still empty", form=True)
    if half:
        return None
    ratios = {
        "forward-only": (
            1 / 3,
            "the cards are right. Your FLOPs are those of the forward pass. What else runs in a step?",
        ),
        "backward-only": (2 / 3, "the cards are right. Your FLOPs leave one of the two passes out"),
        "counts-recomputation": (
            4 / 3,
            "the cards are right. 8ND counts a forward that is run twice; MFU does not pay for it",
        ),
        "hours-as-seconds": (3600, "the cards are right. Compare the units: FLOP/s times hours gives what?"),
        "percent": (100, "the cards are right. Give the utilisation as a fraction, not in percent"),
    }
    for rule, (ratio, message) in ratios.items():
        if math.isclose(mfu, run["mfu"] * ratio, rel_tol=0.01):
            return Wrong(message, rule, form=True)
    message = "the cards are right, the MFU is not. Write down FLOPs done and FLOPs possible, with units"
    return Wrong(message, form=True)


def _wrong_cards(run: dict[str, Any], cards: float) -> Wrong:
    """In no variant do two of these numbers agree (`tests/exercises`), nor one of them with the right one."""
    need = run["parameters"] / run["memory"]
    if not float(cards).is_integer():
        exact = math.isclose(cards, run["bytes"] * need, rel_tol=0.01)
        return Wrong("cards come whole" + (": how many do you need for that much?" if exact else ""), form=True)
    if cards == math.ceil(2 * need):
        return Wrong("your cards hold the weights. What else is there when a step has ended?", "counts-weights-only")
    if cards == math.ceil((run["bytes"] - 12) * need):
        return Wrong("your cards hold weights and gradients. Who keeps the averages?", "no-optimizer-state")
    if cards == math.floor(run["bytes"] * need):
        return Wrong("that many cards are filled to the brim, and a rest is left over", "rounds-down")
    if cards == math.ceil((run["bytes"] - 4) * need):
        return Wrong("4 bytes a parameter are missing: list all that is kept, one line each")
    return Wrong("the number of cards is off: bytes a parameter, times parameters, over the memory of one")


PUBLISHED_RUN = Exercise(
    id="published-run",
    title="A published run on paper",
    cases=one_case("your cards and MFU"),
    run=answer_run,
    judge=published_run_judge,
    misconceptions={
        "counts-weights-only": "a model needs as much memory as its weights",
        "no-optimizer-state": "the optimizer keeps nothing",
        "rounds-down": "a rest of the state needs no card",
        "forward-only": "a training step costs one forward pass",
        "backward-only": "backward costs as much as forward",
        "counts-recomputation": "recomputed FLOPs are useful FLOPs",
        "hours-as-seconds": "hours and seconds need no conversion",
        "percent": "a fraction and a percentage are the same number",
    },
)
