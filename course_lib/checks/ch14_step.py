"""Check 14.3: a check for steps that Adam cannot make, tried on steps of real runs, sound and broken ones.

The runs are of a softmax regression, 128 weights, with AdamW written out in numpy: no part of `course_lib` or torch.
"""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["STEP", "farthest", "most", "moves"]

Array = np.ndarray[Any, Any]
INPUTS, CLASSES, EXAMPLES = 16, 8, 32
USUAL, SLOW = (0.9, 0.95), (0.9, 0.999)
OTHER, DRAWN = "betas 0.8 and 0.99", "betas that are drawn"
FLIPPED = "one flipped bit"


@cache
def most(betas: tuple[float, float]) -> float:
    """The largest |m| / sqrt(v): the worst gradients grow by beta2 / beta1 a step, summed over 20,000 of them."""
    one, two = betas
    ages = np.arange(20_000)
    gradients = np.exp(-ages * math.log(two / one))  # the newest is 1
    m = (1 - one) * np.sum(one**ages * gradients)
    return float(m / math.sqrt((1 - two) * np.sum(np.exp(ages * math.log(two)) * gradients**2)))


def moves(step: dict[str, Any]) -> Array:
    """The step of each weight in learning rates, without the decay."""
    before, after = step["before"].astype(np.float64), step["after"].astype(np.float64)
    found: Array = (after - before * (1 - step["lr"] * step["weight_decay"])) / step["lr"]
    return found


def farthest(step: dict[str, Any]) -> float:
    """The step of the farthest weight, up or down. NaN where a weight is NaN."""
    return float(np.abs(moves(step)).max())


def _train(rng: Any, betas: tuple[float, float], lr: float, steps: int = 40, **how: Any) -> list[dict[str, Any]]:
    """Every step of a run. how: size (of weights), decay, grows, spike, scale, forgets, half, done (steps before)."""
    weights = (how.get("size", 0.3) * rng.normal(size=INPUTS * CLASSES)).astype(np.float32)
    truth = rng.normal(size=(INPUTS, CLASSES))
    m, v, decay, scale, made = np.zeros(weights.size), np.zeros(weights.size), how.get("decay", 0.0), 1.0, []
    if how.get("done"):  # far into a run: the moments are there
        v += 1e-2
    for t in range(1, steps + 1):
        x = rng.normal(size=(EXAMPLES, INPUTS))
        labels = (x @ truth + rng.gumbel(size=(EXAMPLES, CLASSES))).argmax(1)
        logits = x @ weights.reshape(INPUTS, CLASSES).astype(np.float64)
        chances = np.exp(logits - logits.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        chances[np.arange(EXAMPLES), labels] -= 1
        scale = how.get("scale", 1.0) * how.get("grows", 1.0) ** t * (1000 if t == how.get("spike") else 1)
        gradient = scale * (x.T @ chances / EXAMPLES).ravel()
        if "grows" in how:  # the examples stay the same, so that the gradient keeps its direction
            gradient = scale * np.sign(truth.ravel()) * (1 + 0.1 * rng.random(weights.size))
        if t == how.get("forgets"):
            v = np.zeros_like(v)
        m = betas[0] * m + (1 - betas[0]) * gradient
        v = betas[1] * v + (1 - betas[1]) * gradient**2
        if how.get("half"):
            v = v.astype(np.float16).astype(np.float64)
        count = t + how.get("done", 0)
        update = m / (1 - betas[0] ** count) / (np.sqrt(v / (1 - betas[1] ** count)) + 1e-8)
        before = weights
        weights = (before * (1 - lr * decay) - lr * update).astype(np.float32)
        made.append({"before": before, "after": weights, "lr": lr, "betas": betas, "weight_decay": decay})
    return made


def _other_rate(step: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's own learning rate is higher than the logged one: just as much that the step is out of reach."""
    far = 1.33 * most(step["betas"]) / farthest(step)
    return {**step, "after": (step["before"] + far * (step["after"] - step["before"])).astype(np.float32)}


def _without_decay(step: dict[str, Any]) -> dict[str, Any]:
    """The weights were not decayed: the larger ones moved less than they had to, and nothing in the move looks long."""
    given_back = step["before"].astype(np.float64) * step["lr"] * step["weight_decay"]
    return {**step, "after": (step["after"] + given_back).astype(np.float32)}


def _flip(rng: Any, step: dict[str, Any], sign: int) -> dict[str, Any]:
    """One bit of one weight flipped, which takes it 4 to 10 learning rates up or down: mean and norm do not show it."""
    bits = step["after"].view(np.uint32)
    for place in rng.permutation(len(bits)):
        for bit in range(16, 24):
            after = step["after"].copy()
            after.view(np.uint32)[place] = bits[place] ^ np.uint32(1 << bit)
            if 4 < sign * (after[place] - step["before"][place]) / step["lr"] < 10:
                return {**step, "after": after}
    raise AssertionError("no bit of any weight")


def step_cases(seed: int) -> list[Case]:
    """Steps of real runs; a broken run also has sound ones among them, in an order that the seed draws.

    No step is near the bound: sound ones stay below 99% of it, the others are above 130%.
    """
    rng = np.random.default_rng([seed, 1403])

    def picked(name: str, steps: list[dict[str, Any]], wanted: int, broken: int = 0, above: float = 0.0) -> Case:
        limits = [farthest(step) / most(step["betas"]) for step in steps]
        sound = [n for n, far in enumerate(limits) if above < far < 0.99]
        bad = [n for n, far in enumerate(limits) if far > 1.3 or math.isnan(far)]
        chosen = [*rng.choice(sound, min(wanted, len(sound)), replace=False), *bad[:broken]]
        return {"name": name, "steps": [steps[int(n)] for n in rng.permutation(chosen)]}

    plain = _train(rng, USUAL, 1e-2)
    slow = _train(rng, SLOW, 1e-4, 150, grows=SLOW[1] / SLOW[0], done=5000)
    heavy = _train(rng, USUAL, 2e-3, size=40.0, decay=0.1)
    betas = (
        float(rng.uniform(0.6, 0.8)),
        float(rng.uniform(0.94, 0.955)),
    )  # a bound of 1.4 to 2.4, far from the others
    others = {
        name: _train(rng, pair, 1e-4, 150, grows=pair[1] / pair[0], done=5000)
        for name, pair in ((OTHER, (0.8, 0.99)), (DRAWN, betas))
    }
    twice = [{**step, "after": 2 * step["after"] - step["before"]} for step in plain[:2]]
    flipped, lost = [_flip(rng, plain[20], -1), _flip(rng, plain[21], 1)], dict(plain[25])
    lost["after"] = np.where(np.arange(plain[0]["after"].size) == int(rng.integers(128)), np.nan, lost["after"]).astype(
        np.float32
    )
    return [
        {"name": "an ordinary run", "steps": [plain[0], *picked("", plain[1:], 4)["steps"]]},
        picked("gradients that grow", _train(rng, USUAL, 1e-2, grows=USUAL[1] / USUAL[0]), 5, above=0.93),
        picked(
            "one large gradient, betas 0.9 and 0.999", _train(rng, SLOW, 1e-2, 60, spike=40, done=5000), 4, above=0.25
        ),
        picked("gradients that grow, betas 0.9 and 0.999", slow, 4, above=0.93),
        picked("large weights that decay", heavy, 5),
        picked("a high learning rate", _train(rng, USUAL, 0.3), 5),
        picked("second moments lost at a resume", _train(rng, USUAL, 1e-2, forgets=25), 3, 1),
        picked("second moments lost, betas 0.9 and 0.999", _train(rng, SLOW, 1e-2, 60, forgets=45), 3, 1),
        picked("another learning rate, betas 0.9 and 0.999", [*slow, *map(_other_rate, slow[-2:])], 2, 2),
        picked("an update made twice", [*plain[30:], *twice], 2, 2),
        picked("squares in FP16", _train(rng, USUAL, 1e-3, half=True, scale=1e-4), 0, 4),
        picked("large weights, and a step without its decay", [*heavy[:35], *map(_without_decay, heavy[35:])], 3, 2),
        picked(FLIPPED, [*plain[5:10], *flipped], 3, 2),
        picked("one NaN", [*plain[10:15], lost], 3, 1),
        *(picked(f"gradients that grow, {name}", run, 4, above=0.93) for name, run in others.items()),
        *(
            picked(f"another learning rate, {name}", [*run, *map(_other_rate, run[-2:])], 2, 2)
            for name, run in others.items()
        ),
    ]


def step_run(answer: Callable[..., Any], case: Case) -> list[bool]:
    found = []
    for step in case["steps"]:
        said = answer(step["before"], step["after"], step["lr"], tuple(step["betas"]), step["weight_decay"])
        said = said.item() if getattr(said, "ndim", None) == 0 and hasattr(said, "item") else said
        if not isinstance(said, bool):
            what = "nothing came back" if said is None else f"yours returned {kind(said)}"
            raise WrongForm(f"`impossible` returns True or False; {what}")
        found.append(said)
    return found


ALARMS = {
    "an ordinary run": (
        "which step is not one of Adam's? Its first one moves every weight by one learning rate",
        "large-is-wrong",
    ),
    "gradients that grow": (
        "Adam may go a little further than the learning rate, when each gradient is larger than the one before",
        "at-most-one-learning-rate",
    ),
    "one large gradient, betas 0.9 and 0.999": (
        "how long does the second moment remember, with these betas, and how far may the first run ahead of it?",
        "one-bound-for-all-betas",
    ),
    **{
        f"gradients that grow, {name}": (
            "these betas have a bound of their own. Does your formula give 1.165 and 7.27 for the two printed pairs?",
            "one-bound-for-all-betas",
        )
        for name in (OTHER, DRAWN)
    },
    "gradients that grow, betas 0.9 and 0.999": (
        "how long does the second moment remember, with these betas, and how far may the first run ahead of it?",
        "one-bound-for-all-betas",
    ),
    "large weights that decay": (
        "what else moves a weight in a step of AdamW, in proportion to the weight, and how far in one step?",
        "decay-is-no-move",
    ),
    "a high learning rate": ("the steps are long, and legal: measured in learning rates", "large-is-wrong"),
}
MISSES = {
    FLIPPED: ("one weight of 128 went too far. What did you look at?", "the-mean-tells"),
    "large weights, and a step without its decay": (
        "the decay is known to the last digit. Where is each weight after it, and how far from there did it go?",
        "decay-is-slack",
    ),
    **{
        f"another learning rate, {name}": (
            "these betas have a bound of their own. Does your formula give 1.165 and 7.27 for the two printed pairs?",
            "one-bound-for-all-betas",
        )
        for name in (OTHER, DRAWN)
    },
    "one NaN": ("one weight is NaN. What does a comparison with NaN give?", "nan-compares"),
}


def step_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: no step is between 99% and 130% of the bound, and rounding is below 1% of it."""
    wrong = []
    if not all(isinstance(said, bool) for said in returned):
        return Wrong("`impossible` returns True or False for each step", form=True)
    for step, said in zip(case["steps"], returned, strict=True):
        far, bound = farthest(step), most(tuple(step["betas"]))
        if bool(said) != (math.isnan(far) or far > bound):
            wrong.append((far, bool(said)))
    if not wrong:
        return None
    far, said = wrong[0]
    missed = [
        step
        for step, found in zip(case["steps"], returned, strict=True)
        if farthest(step) > most(tuple(step["betas"])) and not found
    ]
    count = f"{len(wrong)} of {len(returned)} steps wrong. "
    if said:
        text, rule = ALARMS.get(case["name"], ("this step of the run is sound", "a-broken-run-has-only-broken-steps"))
        return Wrong(f"{count}A sound step is called impossible: {text}", rule)
    if case["name"] == FLIPPED and len(missed) == 1:
        where = "down" if moves(missed[0]).min() < -2 else "up"
        return Wrong(
            f"{count}A weight that went far {where} is called sound, one that went the other way is not", "one-sided"
        )
    text, rule = MISSES.get(
        case["name"],
        ("a weight went further than any gradients could take it. How far is that, with these betas?", "any-step-goes"),
    )
    return Wrong(f"{count}An impossible step is called sound: {text}", rule)


STEP = Exercise(
    id="impossible-step",
    title="A step that Adam cannot make",
    cases=step_cases,
    run=step_run,
    judge=step_judge,
    forbidden=("course_lib.failures",),
    misconceptions={
        "large-is-wrong": "an update that is large against the weights is a fault",
        "at-most-one-learning-rate": "Adam moves a weight by its learning rate at most",
        "one-bound-for-all-betas": "the bound is the same for all betas",
        "decay-is-no-move": "between two steps only Adam moves the weights",
        "decay-is-slack": "what the decay may do is added to what the gradients may do",
        "one-sided": "a step is too long only in one direction",
        "the-mean-tells": "a fault shows in the mean or in the norm",
        "nan-compares": "NaN is larger than any bound",
        "any-step-goes": "Adam's steps have no bound",
        "a-broken-run-has-only-broken-steps": "where a run is broken, each of its steps is",
    },
)
