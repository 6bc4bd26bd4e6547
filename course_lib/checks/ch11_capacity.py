"""Check 11.4: which choices find a place when each expert has room for so many, and what a dropped token becomes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["CAPACITY"]


def capacity_cases(seed: int) -> list[Case]:
    """Each case is drawn until every mistake that it is there for gives something else, and no two the same."""
    rng = np.random.default_rng([seed, 1104])

    def case(name: str, shape: tuple[int, int, int], capacity: int, group: str, priority: str, against: str) -> Case:
        B, T, k = shape
        while True:
            likes = rng.dirichlet(np.full(4, 0.8), size=(B, T))
            chosen = np.array([[rng.choice(4, k, replace=False, p=0.05 + 0.8 * p) for p in row] for row in likes])
            found: Case = {
                "name": name,
                "experts": chosen.astype(np.int64),
                "n_experts": 4,
                "capacity": capacity,
                "group": group,
                "priority": priority,
            }
            right = _kept(found)
            seen = [right.tobytes(), *(_kept(found, rule).tobytes() for rule in against.split())]
            last = right[:, :, -1]  # of some tokens, not of all: each choice counts
            if len(set(seen)) == len(seen) and ((last.any() and (~last).sum() > 1) or capacity > T):
                break
        return found | {
            "x": rng.normal(size=(B, T, 3)).astype(np.float32),
            "answers": rng.normal(size=(B, T, k, 3)).astype(np.float32),
            "gates": rng.uniform(0.1, 0.9, (B, T, k)).astype(np.float32),
        }

    one, three, each = (1, 9, 3), (3, 6, 2), "places-for-each-choice one-too-many all-find-a-place"
    return [
        case("room for all", (2, 5, 2), 20, "batch", "token", ""),
        case(
            "one sequence, one choice", (1, 9, 1), 2, "sequence", "token", "the-last-stay one-too-many all-find-a-place"
        ),
        case(
            "one sequence, three choices, token by token",
            one,
            4,
            "sequence",
            "token",
            f"first-choices-first a-dropped-choice-drops-the-token and-drops-those-before {each}",
        ),
        case(
            "the same, first choices first",
            one,
            4,
            "sequence",
            "choice",
            f"token-by-token the-rest-token-by-token {each}",
        ),
        case("three sequences, each with places of its own", three, 2, "sequence", "token", f"per-batch {each}"),
        case(
            "each with places of its own, first choices first",
            three,
            2,
            "sequence",
            "choice",
            f"per-batch token-by-token {each}",
        ),
        case("three sequences that share the places", three, 3, "batch", "token", f"per-sequence {each}"),
        case(
            "places of the batch, first choices first",
            three,
            3,
            "batch",
            "choice",
            f"per-sequence token-by-token first-choices-of-a-sequence {each}",
        ),
    ]


def _kept(case: Case, rule: str = "") -> np.ndarray:
    """Which choices find a place, slot by slot from the front of the queue. `rule` makes one mistake."""
    chosen, capacity = case["experts"], case["capacity"]
    B, T, k = chosen.shape
    per_sequence = {"per-batch": False, "per-sequence": True}.get(rule, case["group"] == "sequence")
    by_token = {"token-by-token": True, "first-choices-first": False}.get(rule, case["priority"] == "token")
    capacity += {"one-too-many": 1, "one-too-few": -1, "all-find-a-place": 10**9}.get(rule, 0)
    slots = [(b, t, j) for b in range(B) for t in range(T) for j in range(k)]
    if not by_token:
        late = 1 if rule == "the-rest-token-by-token" else k
        slots.sort(key=lambda s: (s[0] if rule == "first-choices-of-a-sequence" else 0, min(s[2], late)))
    if rule == "the-last-stay":
        slots.reverse()
    taken: dict[Any, int] = {}
    kept = np.zeros(chosen.shape, dtype=bool)
    for b, t, j in slots:
        queue = (b if per_sequence else 0, chosen[b, t, j], j if rule == "places-for-each-choice" else 0)
        if rule == "one-queue":
            queue = (queue[0], 0, 0)
        kept[b, t, j] = taken.get(queue, 0) < capacity
        taken[queue] = taken.get(queue, 0) + 1
    if rule == "a-dropped-choice-drops-the-token":
        kept &= kept.all(2, keepdims=True)
    if rule == "and-drops-those-before":
        kept = np.logical_and.accumulate(kept[:, :, ::-1], axis=2)[:, :, ::-1]
    return kept


def _output(case: Case, rule: str = "") -> np.ndarray:
    """The layer's output, residual stream included, in float64."""
    kept, gates = _kept(case), case["gates"].astype(np.float64)
    if rule == "nothing-is-dropped":
        kept = np.ones_like(kept)
    weight = gates * kept
    if rule == "the-rest-takes-over":
        total = weight.sum(2, keepdims=True)
        weight = np.divide(weight * gates.sum(2, keepdims=True), total, out=np.zeros_like(weight), where=total > 0)
    if rule == "gates-add-up-to-one":
        total = weight.sum(2, keepdims=True)
        weight = np.divide(weight, total, out=np.zeros_like(weight), where=total > 0)
    if rule == "answers-without-gates":
        weight = kept.astype(np.float64)
    out = (weight[..., None] * case["answers"]).sum(2)
    if rule == "the-layer-replaces":
        return np.asarray(out)
    if rule == "a-dropped-token-is-zero":
        return np.asarray(np.where(kept.any(2, keepdims=True), case["x"] + out, 0.0))
    return np.asarray(case["x"] + out)


def capacity_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("kept", "output")):
        raise WrongForm(f'hand in {{"kept": kept, "output": output}}, two functions; yours is {kind(answer)}')
    import torch

    experts, x, answers, gates = (torch.from_numpy(case[key]) for key in ("experts", "x", "answers", "gates"))
    mask = answer["kept"](experts, case["n_experts"], case["capacity"], case["group"], case["priority"])
    mask = torch.tensor(mask) if isinstance(mask, list) else mask
    right = torch.from_numpy(_kept(case))  # so that a wrong mask is not told twice
    return {"kept": mask, "output": None if mask is None else answer["output"](x, answers, gates, right)}


KEPT_HINTS = {
    "all-find-a-place": "nothing is dropped. How many places has an expert?",
    "the-last-stay": "the last in the queue have the places. Who was there first?",
    "one-too-many": "an expert has one more than its capacity",
    "one-too-few": "a place stays empty: an expert has capacity - 1",
    "per-batch": "sequences share the places; here each sequence has places of its own",
    "per-sequence": "each sequence has places of its own; here the batch shares them",
    "token-by-token": "a second choice has a place that a later token's first choice should have",
    "first-choices-first": "a later token's first choice has a place that an earlier token's second choice should have",
    "first-choices-of-a-sequence": "first choices come first within each sequence; here the queue is that of the batch",
    "the-rest-token-by-token": (
        "first choices come first, and then a third choice has a place that a later token's second should have"
    ),
    "places-for-each-choice": "each choice has places of its own. How many has an expert in all?",
    "one-queue": "all experts share one queue",
    "a-dropped-choice-drops-the-token": "a token loses its other choices too",
    "and-drops-those-before": "a token loses the choices before the dropped one too",
}
OUTPUT_HINTS = {
    "nothing-is-dropped": "kept has no effect on the output",
    "the-rest-takes-over": "the gate of a dropped choice goes to the one that is left; the text leaves it out",
    "gates-add-up-to-one": "the gates of what is left are made to add up to 1; the text leaves them as they are",
    "answers-without-gates": "the answers are added without their gates",
    "the-layer-replaces": "that is what the experts add. To what is it added?",
    "a-dropped-token-is-zero": "a token that no expert took is 0 in yours. What does it still have?",
}


def capacity_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The mask exact; outputs within 1e-5 (FP32 sums of three numbers)."""
    mask, right = returned["kept"], _kept(case)
    if not hasattr(mask, "shape"):
        what = "nothing came back" if mask is None else f"{kind(mask)} came back"
        return Wrong(f"kept: a tensor of True and False is wanted; {what}", form=True)
    if tuple(mask.shape) != right.shape:
        return Wrong(f"kept has the shape {tuple(mask.shape)}; that of experts, {right.shape}, is wanted", form=True)
    found = np.asarray(mask.tolist())
    if not np.isin(found, (0, 1)).all():
        return Wrong("kept holds True and False", form=True)
    found = found.astype(bool)
    if (found != right).any():
        return _wrong_mask(case, found, right)
    out = returned["output"]
    if not hasattr(out, "shape") or tuple(out.shape) != case["x"].shape:
        what = str(tuple(out.shape)) if hasattr(out, "shape") else "nothing" if out is None else kind(out)
        return Wrong(
            f"kept is right. output: a tensor of shape {case['x'].shape} is wanted; yours is {what}", form=True
        )
    values = np.asarray(out.tolist(), dtype=np.float64)
    if np.allclose(values, _output(case), atol=1e-5):
        return None
    for rule, hint in OUTPUT_HINTS.items():
        guess = _output(case, rule)
        if np.allclose(values, guess, atol=1e-5) and not np.allclose(guess, _output(case), atol=1e-4):
            return Wrong(f"kept is right. output: {hint}", rule)
    return Wrong("kept is right. output: follow one token: what it was, and what each choice that was kept adds")


def _wrong_mask(case: Case, found: np.ndarray, right: np.ndarray) -> Wrong:
    rules = [rule for rule in KEPT_HINTS if (_kept(case, rule) != right).any()]
    fits = [rule for rule in rules if np.array_equal(found, _kept(case, rule))]
    if len(fits) == 1:
        rule = "a-dropped-choice-drops-the-token" if fits[0] == "and-drops-those-before" else fits[0]
        return Wrong(f"kept: {KEPT_HINTS[fits[0]]}", rule)
    if fits:
        return Wrong("kept: " + " Or: ".join(KEPT_HINTS[rule] for rule in fits))
    b, t, j = (int(n) for n in np.argwhere(found != right)[0])
    expert, what = case["experts"][b, t, j], "kept" if found[b, t, j] else "dropped"
    text = f"choice {j} of token {t} of sequence {b}, for expert {expert}, is {what}"
    return Wrong(f"kept: {text}. How many places were taken before it?")


CAPACITY = Exercise(
    id="capacity",
    title="More tokens than places",
    cases=capacity_cases,
    run=capacity_run,
    judge=capacity_judge,
    forbidden=("course_lib.moe", "course_lib.parallel"),
    misconceptions={
        "all-find-a-place": "a capacity is an average, not a limit",
        "the-last-stay": "a later token takes an earlier one's place",
        "one-too-many": "capacity is the place at which it is full",
        "one-too-few": "the last place is not used",
        "per-batch": "capacity is counted over the batch, always",
        "per-sequence": "capacity is counted in each sequence, always",
        "token-by-token": "tokens queue with all their choices, always",
        "first-choices-first": "first choices are placed before second ones, always",
        "first-choices-of-a-sequence": "a queue of the batch goes sequence by sequence, whatever the order",
        "the-rest-token-by-token": "after the first choices, tokens queue with all that is left",
        "places-for-each-choice": "an expert has places for first choices and others for second ones",
        "one-queue": "the capacity is that of all experts together",
        "a-dropped-choice-drops-the-token": "a token with a dropped choice is dropped",
        "nothing-is-dropped": "what does not fit is computed all the same",
        "the-rest-takes-over": "what is left of a token's gates takes over the dropped one's share",
        "gates-add-up-to-one": "gates add up to 1, always",
        "answers-without-gates": "answers are added as they are",
        "the-layer-replaces": "a layer's output replaces its input",
        "a-dropped-token-is-zero": "a dropped token is lost",
    },
)
