"""Reasoning exercise 05.5: does a run fit, and what can recomputation not save? The numbers follow the variant."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng
from course_lib.checks.smell import nearly

__all__ = ["FIT", "fit", "fit_text"]

CARD = 80e9
SHAPES = [  # width, blocks
    (2048, 24),
    (2560, 32),
    (3072, 28),
    (4096, 32),
    (5120, 40),
]


def _sizes(width: int, blocks: int, tokens: int) -> dict[str, Any]:
    parameters = 12 * blocks * width**2
    state, edge, inside = 16 * parameters, 2 * width * tokens, 34 * width * tokens
    return {
        "width": width,
        "blocks": blocks,
        "tokens": tokens,
        "parameters": parameters,
        "state": state,
        "edge": edge,
        "inside": inside,
        "kept": state + blocks * inside,
        "recomputed": state + (blocks - 1) * edge + inside,
    }


def fit(variant: int) -> dict[str, Any]:
    """The numbers of a variant, with the right choice; at least 6% away from the card's memory on every side."""
    rng = variant_rng("does-it-fit", variant)
    wanted = "CBCAB"[variant % 5]
    while True:
        width, blocks = SHAPES[int(rng.integers(len(SHAPES)))]
        run = _sizes(width, blocks, int(rng.integers(2, 33)) * 1024)
        choice = "A" if run["kept"] <= CARD else "B" if run["recomputed"] <= CARD else "C"
        clear = all(abs(run[name] / CARD - 1) > 0.06 for name in ("kept", "recomputed"))
        if choice == wanted and clear:
            return {**run, "choice": choice, "evidence": run["recomputed"] / 1e9}


def fit_text(variant: int) -> str:
    """What `question` prints."""
    run = fit(variant)
    return (
        f"A GPT of {run['blocks']} blocks, width {run['width']:,}, {run['parameters']:,} parameters,\n"
        f"trained on {run['tokens']:,} tokens at once.\n"
        "AdamW with 16-bit weights and gradients, master weights and moments in FP32.\n"
        f"Per token, each block keeps {34 * run['width']:,} bytes for backward, its input included;\n"
        f"the input alone is {2 * run['width']:,} bytes. Logits and short-lived buffers are left out.\n"
        "One card has 80e9 bytes.\n\n"
        'choice:   "A" it fits with everything kept; "B" it fits only when blocks recompute;\n'
        '          "C" it does not fit even when all blocks recompute\n'
        "evidence: GB (1e9 bytes) at the worst moment when all blocks recompute, state included: every block's input\n"
        "          is held, and the last block is whole again; to four digits"
    )


def fit_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter is exact; the GB within 0.03%: four digits, and fine enough to see one input counted twice."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    run, choice, value = fit(int(returned["variant"])), returned["choice"], returned["evidence"]
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in ("A", "B", "C")):
        return Wrong('`choice` is one letter in quotes: "A", "B" or "C"', form=True)
    half = value is not None and math.isclose(value, run["evidence"], rel_tol=3e-4)
    if choice is None:
        return Wrong(f"`choice` is still empty{'; the evidence is right' if half else ''}", form=True)
    if choice.strip().upper() != run["choice"]:
        text = "the evidence is right, the choice is not: " if half else ""
        return _wrong_choice(run, choice.strip().upper(), text, half)
    if value is None:
        return Wrong("the choice is right; `evidence` is still empty", form=True)
    if half:
        return None
    for rule, (guess, message) in _guesses(run).items():
        if math.isclose(value, guess, rel_tol=3e-4):
            return Wrong(f"the choice is right. {message}", rule, form=True)
    close = nearly(float(value), run["evidence"])
    if close:
        return Wrong(f"the choice is right, the GB are {close}", form=True)
    return Wrong("the choice is right, the GB are not: list state, inputs and the one block, with units", form=True)


def _wrong_choice(run: dict[str, Any], choice: str, text: str, half: bool) -> Wrong:
    if half:
        message = f"{text}compare the card's bytes with it, and with what is held when everything is kept"
        return Wrong(message, form=True)
    if choice == "B" and run["choice"] == "C":
        message = "what does recomputation leave as it is, and how large is that here?"
        return Wrong(message, "recomputing-shrinks-the-state")
    if choice == "C":
        return Wrong("how much is held when each block keeps its input alone?", "activations-stay")
    if choice == "A":
        return Wrong("add the state to what all blocks keep", "counts-weights-only")
    return Wrong("does it need recomputation at all?", "always-recompute")


def _guesses(run: dict[str, Any]) -> dict[str, tuple[float, str]]:
    edges, once = run["blocks"] * run["edge"], run["inside"]
    state = run["state"]
    return {
        "counts-weights-only": (
            (state / 8 + edges - run["edge"] + once) / 1e9,
            "Your state is the weights. What else is there at the end of a step?",
        ),
        "no-master-weights": (
            (state * 12 / 16 + edges - run["edge"] + once) / 1e9,
            "4 bytes a parameter are missing: who holds the weights in FP32?",
        ),
        "state-left-out": ((edges - run["edge"] + once) / 1e9, "These are the activations. What else is on the card?"),
        "keeps-nothing": ((state + once) / 1e9, "From what do the other blocks start again?"),
        "forgets-the-block-that-comes-back": (
            (state + edges) / 1e9,
            "This is the moment between the passes. What happens at the start of backward?",
        ),
        "input-counted-twice": ((state + edges + once) / 1e9, "The last block's input is in there twice"),
        "everything-kept": ((state + run["blocks"] * once) / 1e9, "This is with everything kept"),
        "gibibytes": (run["evidence"] * 1e9 / 2**30, "Those are GiB; 1 GB is 1e9 bytes"),
    }


FIT = Exercise(
    id="does-it-fit",
    title="What it does not save",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=fit_judge,
    misconceptions={
        "recomputing-shrinks-the-state": "recomputation saves weights and optimizer state too",
        "activations-stay": "recomputation saves a little of the activations",
        "counts-weights-only": "a model in training needs as much memory as its weights",
        "no-master-weights": "16-bit weights are all the weights there are",
        "always-recompute": "large models have to recompute",
        "state-left-out": "an out-of-memory is always about activations",
        "keeps-nothing": "a recomputed block keeps nothing",
        "forgets-the-block-that-comes-back": "what is dropped is gone for good",
    },
)
