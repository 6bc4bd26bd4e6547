"""Check 12.4: a drop rule whose past depends on nothing that comes later, and on no other sequence."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["DROP"]

AT_LEAST_ONE = ", one at least"
"""Behind a rule's name: the same mistake, with a place from the start."""


def _places(t: int, case: Case, rule: str, T: int) -> int:
    """How many places an expert has for the tokens up to t."""
    rule, one, _ = rule.partition(AT_LEAST_ONE)
    tokens = T if rule == "all-places-from-the-start" else t if rule == "without-the-token-itself" else t + 1
    top_k = int((case["gates"] != 0).sum(2).max()) if rule == "choices-are-counted" else case["top_k"]
    share = tokens * top_k / case["gates"].shape[2] * case["factor"]
    return max(1 if one else 0, math.floor(share) if rule == "rounds-down" else math.ceil(share))


def _cut(gates: np.ndarray, top_k: int, rule: str) -> np.ndarray:
    """The gates that a mistaken rule looks at."""
    if rule == "the-best-choices-alone":
        rank = np.argsort(np.argsort(-gates, axis=2, kind="stable"), axis=2)
        return np.where(rank < top_k, gates, 0)
    if rule == "who-chooses-more-is-out":
        return np.where((gates != 0).sum(2, keepdims=True) > top_k, 0, gates)
    return np.where(gates > 0.05, gates, 0) if rule == "a-small-gate-is-none" else gates


def _drop(gates: np.ndarray, case: Case, rule: str = "") -> np.ndarray:
    """What is left of gates (B, T, E), token by token. `rule` makes one mistake."""
    B, T, E = gates.shape
    gates = _cut(gates, case["top_k"], rule)
    out = np.zeros_like(gates)
    taken = np.zeros((B, E), dtype=int)
    for b in range(B):
        for t in range(T):
            row = 0 if rule == "one-queue-for-the-batch" else b
            came = gates[b, t] != 0
            kept = np.zeros(E, dtype=bool)
            for e in np.flatnonzero(came).tolist():
                queue = 0 if rule == "experts-share-the-places" else e
                room = taken[row, queue] < _places(t + (b * T if row != b else 0), case, rule, T)
                kept[e] = room
                taken[row, queue] += room or rule == "who-is-dropped-takes-a-place"
            if rule == "a-dropped-choice-drops-the-token" and not kept[came].all():
                kept[:] = False
            out[b, t] = np.where(kept, gates[b, t], 0)
            if rule == "the-rest-takes-over" and kept.any():
                out[b, t] *= gates[b, t].sum() / out[b, t].sum()
    if rule == "the-weakest-go":
        for b in range(B):
            for expert in range(E):
                best = np.argsort(-gates[b, :, expert], kind="stable")[: _places(T - 1, case, "", T)]
                out[b, :, expert] = 0
                out[b, best, expert] = gates[b, best, expert]
    return out


RULES = {
    "all-places-from-the-start": (
        "a token has a place that it would not have if the sequence ended with it. What does your capacity depend on?"
    ),
    "one-queue-for-the-batch": "sequences share a queue. Would another batch give the same for this sequence?",
    "the-weakest-go": "a later token with a higher gate takes an earlier one's place. What does that tell the past?",
    "who-is-dropped-takes-a-place": "a dropped choice has used up a place. Which choices count?",
    "without-the-token-itself": "the places are counted up to the token before. The text counts the token itself",
    "rounds-down": "a fraction of a place is a place in the text, and none in yours",
    "experts-share-the-places": "all experts share one counter",
    "a-dropped-choice-drops-the-token": "a token loses its other choices too",
    "the-rest-takes-over": "the gate of a dropped choice goes to those that are left; the text leaves them as they are",
    "choices-are-counted": "is `top_k` counted from the gates? It is what the caller says it is",
    "the-best-choices-alone": "a token with more than `top_k` choices loses some before the queue. Who says so?",
    "who-chooses-more-is-out": "a token with more than `top_k` choices is dropped. What does the text say of it?",
    "a-small-gate-is-none": "a choice with a small gate is dropped. What is a choice?",
}
FREE = ("choices-are-counted", "the-best-choices-alone", "who-chooses-more-is-out", "a-small-gate-is-none")
"""Mistakes that only tokens with more or fewer than top_k choices show, or small gates."""
MANY = (0.1, 0.1, 0.15, 0.3, 0.35)
"""Where tokens choose freely: how many of them have 0, 1, 2, 3, 4 choices."""
SAME = {f"{rule}{AT_LEAST_ONE}": rule for rule in ("without-the-token-itself", "rounds-down")}
"""The same mistakes with a place from the start."""


def drop_cases(seed: int) -> list[Case]:
    """Each case is drawn until every mistake of RULES gives something else, and no two of them the same."""
    rng = np.random.default_rng([seed, 1204])

    def case(
        name: str, B: int, T: int, E: int, top_k: int, factor: float, against: tuple[str, ...], free: bool = False
    ) -> Case:
        """`free`: tokens have 0 to 4 choices, whatever top_k is, and some gates are small."""
        while True:
            likes = rng.dirichlet(np.full(E, 0.7), size=(B, 1)) + 0.1
            scores = likes * rng.uniform(0.2, 1.0, (B, T, E))
            if free:
                scores *= np.where(rng.random(scores.shape) < 0.2, 0.05, 1.0)
            gates = scores / scores.sum(2, keepdims=True)
            choices = rng.choice(5, (B, T, 1), p=MANY) if free else np.full((B, T, 1), top_k)
            gates[np.argsort(np.argsort(-gates, axis=2), axis=2) >= choices] = 0
            found: Case = {"name": name, "gates": gates.astype(np.float32), "top_k": top_k, "factor": factor}
            seen = [_drop(found["gates"], found, rule).tobytes() for rule in ("", *against)]
            tells = (choices[:, 0] == top_k).any() or round(choices.mean()) == top_k  # top_k, to who counts choices
            if len(set(seen)) == len(seen) and not (free and tells):
                return found

    some = (*(rule for rule in RULES if rule not in FREE), *SAME)
    alone = tuple(rule for rule in some if rule != "one-queue-for-the-batch")
    first = tuple(rule for rule in alone if rule not in ("a-dropped-choice-drops-the-token", "the-rest-takes-over"))
    return [
        {**case("room for all", 2, 6, 4, 2, 1.0, ()), "factor": 4.0},
        case("one sequence, one choice", 1, 12, 4, 1, 1.0, first),
        case("one sequence, two choices", 1, 14, 4, 2, 0.75, alone),
        case("three sequences", 3, 12, 4, 2, 1.25, some),
        case("three choices, eight experts", 2, 16, 8, 3, 1.5, some),
        case("as many choices as it likes", 2, 16, 4, 2, 0.75, (*some, *FREE), free=True),
    ]


def drop_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    """With all tokens, with the first part of them, and with one sequence alone: what a leak would tell apart."""
    import torch

    gates = torch.from_numpy(case["gates"])
    half = case["gates"].shape[1] // 2
    given = {"whole": gates, "half": gates[:, :half].clone(), "alone": gates[-1:].clone()}
    return {name: answer(one, case["top_k"], case["factor"]) for name, one in given.items()}


def drop_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact up to 1e-6: gates are kept as they are, or are 0."""
    gates = case["gates"]
    half = gates.shape[1] // 2
    parts = {"whole": gates, "half": gates[:, :half], "alone": gates[-1:]}
    told = {"whole": "", "half": f"with the first {half} tokens alone: ", "alone": "with one sequence alone: "}
    for part, given in parts.items():
        found = returned[part]
        if not hasattr(found, "shape") or tuple(found.shape) != given.shape:
            what = "nothing" if found is None else str(tuple(found.shape)) if hasattr(found, "shape") else kind(found)
            return Wrong(f"{told[part]}a tensor of the shape {given.shape} is wanted; yours is {what}", form=True)
        values = np.asarray(found.tolist(), dtype=np.float64)
        if set(np.unique(values)) <= {0.0, 1.0} and not np.isin(given, (0.0, 1.0)).all() and values.any():
            return Wrong("the gates that are left are wanted, not a mask", form=True)
        right = _drop(given, case)
        if np.allclose(values, right, atol=1e-6):
            continue
        guesses = {rule: _drop(given, case, rule) for rule in (*RULES, *SAME)}
        fits = [
            rule
            for rule, guess in guesses.items()
            if np.allclose(values, guess, atol=1e-6) and not np.allclose(guess, right, atol=1e-6)
        ]
        if fits:
            fits = sorted({SAME.get(rule, rule) for rule in fits}, key=list(RULES).index)
            text = " Or: ".join(RULES[rule] for rule in fits)
            return Wrong(told[part] + text, fits[0] if len(fits) == 1 else None)
        b, t, e = (int(n) for n in np.argwhere(~np.isclose(values, right, atol=1e-6))[0])
        if values[b, t, e] != 0 and right[b, t, e] != 0:
            return Wrong(f"{told[part]}the gate of expert {e} for token {t} of sequence {b} stays as another number")
        what = "drops" if values[b, t, e] == 0 else "keeps"
        text = f"expert {e} {what} token {t} of sequence {b}"
        return Wrong(f"{told[part]}{text}. How many places are there up to this token, and how many are taken?")
    return None


DROP = Exercise(
    id="drop-rule",
    title="A drop rule that does not leak",
    cases=drop_cases,
    run=drop_run,
    judge=drop_judge,
    forbidden=("course_lib.moe", "course_lib.routers", "course_lib.failures"),
    misconceptions={
        "all-places-from-the-start": "the length of a sequence is no information about its future",
        "one-queue-for-the-batch": "the rest of a batch comes before a sequence, so it may matter",
        "the-weakest-go": "to drop the lowest gates is the best for all",
        "who-is-dropped-takes-a-place": "the queue counts who came, not who was taken",
        "without-the-token-itself": "a token's own place is not counted",
        "rounds-down": "half a place is no place",
        "experts-share-the-places": "the capacity is that of all experts together",
        "a-dropped-choice-drops-the-token": "a token with a dropped choice is dropped",
        "choices-are-counted": "every token has as many choices as the first one",
        "the-best-choices-alone": "a token never has more than `top_k` choices",
        "who-chooses-more-is-out": "a token with more than `top_k` choices is a mistake",
        "a-small-gate-is-none": "a gate that is nearly 0 is 0",
        "the-rest-takes-over": "what is left of a token's gates takes over the dropped one's share",
    },
)
