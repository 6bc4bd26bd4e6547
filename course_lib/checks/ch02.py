"""Checks of chapter 2, the training step: bytes a parameter and the learning rate at a step.

Clipping is in `ch02_gradients`, AdamW in `ch02_adamw`, the two reasoning exercises in `ch02_nine` and `ch02_published`.

Each exercise is three pure functions: `cases(seed)`, `run(answer, case)`, which alone runs learner code, and
`judge(case, returned)`. A judge recognises a wrong answer by working out what each named misconception would give.
"""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np

from course_lib.checks.ch02_adamw import ADAMW
from course_lib.checks.ch02_gradients import CLIP, no_number, number
from course_lib.checks.ch02_nine import NINE_PARTS, nine_parts_text
from course_lib.checks.ch02_published import PUBLISHED_RUN, published_run_text
from course_lib.checks.core import Case, Exercise, Wrong, ask, make_check

__all__ = ["EXERCISES", "check", "question"]

# --- 02.1 bytes a parameter -------------------------------------------------------------------------------------------

SIZES = {"fp32": 4, "bf16": 2, "fp16": 2}
MOMENTS = {"adamw": 2, "sgd-momentum": 1, "sgd": 0, None: 0}


def _recipe(name: str, weights: str, gradients: list[str], optimizer: str | None) -> Case:
    return {"name": name, "recipe": {"weights": weights, "gradients": gradients, "optimizer": optimizer}}


def bytes_cases(seed: int) -> list[Case]:
    """Ordered so that each mistake first shows where no other gives its number; claim 7's four are in."""
    low = str(np.random.default_rng(seed).choice(["bf16", "fp16"]))
    return [
        _recipe("16-bit weights and gradients, plain SGD", low, [low], "sgd"),
        _recipe("FP32 weights, plain SGD", "fp32", ["fp32"], "sgd"),
        _recipe("16-bit weights and gradients, SGD with momentum", low, [low], "sgd-momentum"),
        _recipe("FP32 weights under autocast, AdamW", "fp32", ["fp32"], "adamw"),
        _recipe("16-bit weights and gradients, AdamW", low, [low], "adamw"),
        _recipe("16-bit weights, gradients in FP32 only, AdamW", low, ["fp32"], "adamw"),
        _recipe("16-bit weights, gradients kept in 16 bits and in FP32, AdamW", low, [low, "fp32"], "adamw"),
        _recipe("16-bit weights that only serve", low, [], None),
    ]


def bytes_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    recipe = case["recipe"]
    return number(answer({**recipe, "gradients": list(recipe["gradients"])}))


def bytes_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: bytes are whole numbers. Oracle: a list of every stored number's size, added up."""
    if "number" not in returned:
        return no_number(returned)
    got, right = returned["number"], _bytes(case["recipe"])["right"]
    if got == right:
        return None
    if case["recipe"]["optimizer"] is None and got > right:
        message = f"{got:g} bytes for a model that never sees a gradient. What in it is there for training alone?"
        return Wrong(message, "serving-is-training")
    earlier = [c["recipe"] for c in takewhile(lambda c: c["name"] != case["name"], bytes_cases(0))]
    guesses = _bytes(case["recipe"])
    fits = [
        rule
        for rule in BYTES_HINTS
        if got == guesses[rule] and all(_bytes(recipe)[rule] == _bytes(recipe)["right"] for recipe in earlier)
    ]
    if len(fits) == 1:
        rule = fits[0]
        return Wrong(
            BYTES_HINTS[rule].format(missing=f"{right - got:g}"), rule if rule in BYTES.misconceptions else None
        )
    return Wrong(f"{got:g} bytes a parameter is not what this recipe holds. List what it keeps, one line each.")


def _bytes(recipe: dict[str, Any]) -> dict[str, float]:
    """What the right rule and each mistake give, in bytes."""
    w, optimizer = SIZES[recipe["weights"]], recipe["optimizer"]
    sizes = [SIZES[g] for g in recipe["gradients"]]
    master = 4 if w < 4 and optimizer is not None else 0
    g, m = sum(sizes), 4 * MOMENTS[optimizer]
    return {
        "right": w + g + m + master,
        "counts-weights-only": w,
        "forgets-the-master-copy": w + g + m,
        "a-master-for-every-recipe": w + g + m + (4 if optimizer is not None else 0),
        "moments-in-16-bit": w + g + m * w / 4 + master,
        "no-averages": w + g + master,
        "one-moment": w + g + min(m, 4) + master,
        "one-gradient-copy": w + sum(sizes[:1]) + m + master,
        "last-gradient-copy": w + sum(sizes[-1:]) + m + master,
    }


BYTES_HINTS = {
    "counts-weights-only": "you counted the weights. What else is there when the next step begins?",
    "forgets-the-master-copy": (
        "{missing} bytes are missing. An update may be a ten-thousandth of a weight: can 16 bits hold the sum?"
    ),
    "a-master-for-every-recipe": "4 bytes too many. Which two of your entries hold the same numbers in one format?",
    "moments-in-16-bit": "{missing} bytes are missing. In which format does the optimizer keep its running average?",
    "no-averages": "{missing} bytes are missing. What does momentum remember from step to step?",
    "one-moment": "{missing} bytes are missing. How many running averages does this optimizer keep, and of what?",
    "one-gradient-copy": "{missing} bytes are missing. How many entries does recipe['gradients'] have?",
    "last-gradient-copy": "{missing} bytes are missing. How many entries does recipe['gradients'] have?",
}


BYTES = Exercise(
    id="bytes-a-parameter",
    title="Bytes a parameter",
    cases=bytes_cases,
    run=bytes_run,
    judge=bytes_judge,
    forbidden=("course_lib.planning.formulas.bytes_per_parameter", "RECIPES"),
    misconceptions={
        "forgets-the-master-copy": "16-bit weights are all the weights there are",
        "a-master-for-every-recipe": "the optimizer always keeps a second copy of the weights",
        "serving-is-training": "a model that serves holds what a model in training holds",
        "counts-weights-only": "a model needs as much memory as its weights",
        "one-moment": "AdamW keeps one average",
        "moments-in-16-bit": "the averages have the format of the weights",
        "one-gradient-copy": "there is one copy of the gradients, whatever the recipe says",
    },
)

# --- 02.2 the learning rate at a step ---------------------------------------------------------------------------------


def rate_cases(seed: int) -> list[Case]:
    """Warm-up and cosine over a few shapes; each case asks for every step and two beyond the end."""
    rng = np.random.default_rng(seed)
    peak = float(rng.choice([3e-4, 1e-3, 6e-4]))
    warmup, steps = int(rng.integers(4, 9)), int(rng.integers(30, 60))

    def case(name: str, warmup: int, steps: int, floor: float) -> Case:
        return {"name": name, "peak": peak, "warmup": warmup, "steps": steps, "floor": floor}

    return [
        case("a warm-up, floor 0", warmup, steps, 0.0),
        case("a warm-up, floor a tenth of the peak", warmup, steps, peak / 10),
        case("no warm-up", 0, steps, peak / 10),
        case("one warm-up step", 1, steps, peak / 10),
        case("floor as high as the peak", warmup, steps, peak),
        case("warm-up is half of the run", steps // 2, steps, 0.0),
    ]


def rate_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    peak, warmup, steps, floor = case["peak"], case["warmup"], case["steps"], case["floor"]
    rates = []
    for s in range(steps + 3):
        found = number(answer(s, peak, warmup, steps, floor))
        if "number" not in found:
            return {**found, "step": s}
        rates.append(found["number"])
    return {"rates": rates}


def _rates(case: Case, rule: str = "right") -> np.ndarray:
    """The oracle (as a squared half-angle cosine, not the textbook's form), and what each misconception would give."""
    peak, warmup, steps, floor = case["peak"], case["warmup"], case["steps"], case["floor"]
    s = np.arange(steps + 3, dtype=np.float64)
    progress = (s - warmup) / (steps - 1 - warmup)
    if rule == "cosine-from-step-0":
        progress = s / (steps - 1)
    if rule == "never-arrives":
        progress = (s - warmup) / (steps - warmup)
    if rule != "runs-past-the-end":
        progress = np.clip(progress, 0.0, 1.0)
    low = 0.0 if rule == "floor-is-zero" else floor
    decay = low + (peak - low) * np.cos(np.pi * progress / 2) ** 2
    if rule == "half-a-cosine":
        decay = low + (peak - low) * np.cos(np.pi * progress / 2)
    if rule == "raw-cosine":
        decay = floor + (peak - floor) * np.cos(np.pi * progress)
    if rule == "straight-line":
        decay = floor + (peak - floor) * (1 - progress)
    if rule == "adds-the-floor":
        decay = floor + peak * np.cos(np.pi * progress / 2) ** 2
    first = 0.0 if rule == "first-step-at-zero" else 1.0
    ramp = peak * (s + first) / max(warmup, 1)
    return np.where(s < warmup, ramp, decay)


RATE_HINTS = {
    "first-step-at-zero": (
        "the step 0 of a run has a batch, a forward and a backward like "
        "every other. What does it change in your version?"
    ),
    "cosine-from-step-0": (
        "the rate jumps where warm-up ends. How far along the cosine is the first step after warm-up?"
    ),
    "never-arrives": (
        "nearly: the last step, steps - 1, is not at the floor. How many steps lie between the peak and the last one?"
    ),
    "floor-is-zero": "your rate falls below the floor. Between which two values should the cosine travel?",
    "half-a-cosine": (
        "start and end are right, the middle is not. How flat is a full cosine half-wave at its two ends, and yours?"
    ),
    "raw-cosine": "a cosine goes from 1 to -1. From where to where should `wave` go?",
    "straight-line": "your rate falls in a straight line. Where should it fall slowly, and where fast?",
    "adds-the-floor": "your rate is above the peak after warm-up. How long is the way from the peak to the floor?",
    "runs-past-the-end": (
        "until the last step you are right; after it your rate rises again. What does a cosine do past half a period?"
    ),
}


def rate_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 1e-6 of the peak: a float64 formula is good to 1e-15, and no schedule cares for less than 1e-6."""
    if "rates" not in returned:
        return no_number(returned, _call(case, returned["step"]))
    got, right = np.array(returned["rates"]), _rates(case)
    tolerance = 1e-6 * case["peak"]
    off = np.flatnonzero(~(np.abs(got - right) <= tolerance))
    if len(off) == 0:
        return None
    at = f"{_call(case, int(off[0]))} gives {got[off[0]]:.5g}"
    for rule, message in RATE_HINTS.items():
        guess = _rates(case, rule)
        if np.all(np.abs(got - guess) <= tolerance):
            return Wrong(f"{at}: {message}", rule)
    where = (
        "during warm-up" if off[0] < case["warmup"] else "after warm-up" if off[0] < case["steps"] else "past the end"
    )
    before = " The steps before it are right." if off[0] > 0 else ""
    return Wrong(f"{at}, and that is not the schedule described ({where}).{before}")


def _call(case: Case, step: int) -> str:
    settings = ", ".join(f"{key}={case[key]:.5g}" for key in ("peak", "warmup", "steps", "floor"))
    return f"`rate({step}, {settings})`"


RATE = Exercise(
    id="rate-at-a-step",
    title="The learning rate at a step",
    cases=rate_cases,
    run=rate_run,
    judge=rate_judge,
    forbidden=("lr_at", "make_scheduler", "torch.optim.lr_scheduler.LambdaLR", "lr_scheduler", "CosineAnnealingLR"),
    misconceptions={
        "first-step-at-zero": "warm-up starts at a rate of zero",
        "cosine-from-step-0": "the cosine runs from step 0, under the warm-up",
        "never-arrives": "the last step is numbered `steps`",
        "floor-is-zero": "a cosine schedule ends at zero",
        "half-a-cosine": "a quarter period of a cosine is the usual decay",
        "raw-cosine": "a cosine goes from 1 to 0",
        "straight-line": "a decay is a straight line",
        "adds-the-floor": "the floor is added on top of the decay from the peak",
        "runs-past-the-end": "nobody asks for a step after the last",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of a reasoning exercise (`nine-parts` or `published-run`) for a variant."""
    ask({"nine-parts": nine_parts_text, "published-run": published_run_text}, exercise, variant)


EXERCISES = [BYTES, RATE, CLIP, ADAMW, NINE_PARTS, PUBLISHED_RUN]

check = make_check("02", EXERCISES)
