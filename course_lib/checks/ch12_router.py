"""Check 12.3: a router repaired. What counts is what its gates are, not who makes them: honest, even, choosing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["ROUTER"]

B, T, MEASURED = 4, 64, 20
LENGTHS = (1, 13, 32, 50)
"""Sequences, tokens of each, batches of the end that are measured (5,120 tokens); lengths that are tried besides T."""
BEFORE, CHANGE = 60, 160
"""As many batches as are measured are looked at this long before them, and from where scores change for good."""
EVEN, TOTAL, CHOOSES, SLOW, JUMPS, OLD = 0.25, 0.1, 1.15, 0.85, 0.5, 0.5
"""An expert's load is this close to its share, the sum this close to top_k a token; what an expert takes scores this
many times the mean of what it could take; a router that is less than SLOW as uneven as it was is on its way; one whose
loads deviate by more than JUMPS of the mean from batch to batch moves too far; one that is more than OLD as uneven as
right after a change has not noticed it."""


def router_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1203])

    def batches(count: int, lift: np.ndarray, spread: np.ndarray) -> np.ndarray:
        logits = rng.normal(size=(count, B, T, len(lift))) * spread + lift
        scores = np.exp(logits)
        return np.asarray((scores / scores.sum(3, keepdims=True)).astype(np.float32))

    def case(name: str, experts: int, top_k: int, drifts: bool) -> Case:
        order = rng.permutation(experts)
        lift, spread = np.linspace(0.9, -0.9, experts)[order], np.linspace(0.6, 1.1, experts)[rng.permutation(experts)]
        parts = [batches(CHANGE, lift, spread)]
        if drifts:
            parts += [batches(140, -lift, spread[::-1])]
        return {"name": name, "top_k": top_k, "batches": np.concatenate(parts), "other": rng.permutation(B * T)}

    return [
        case("four experts, one a token", 4, 1, False),
        case("eight experts, two a token", 8, 2, False),
        case("scores that change on the way", 4, 1, True),
    ]


def router_run(answer: Any, case: Case) -> dict[str, Any]:
    names = ("start", "route", "learn")
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in names):
        text = '{"start": start, "route": route, "learn": learn}, three functions'
        raise WrongForm(f"hand in {text}; yours is {kind(answer)}")
    import torch

    experts = case["batches"].shape[3]
    state = answer["start"](experts, case["top_k"])

    def route(scores: Any) -> Any:
        given = scores.clone()
        gates = answer["route"](given, state)
        if not torch.equal(given, scores):
            raise WrongForm("route changed the scores that it was given: work on a copy")
        if not isinstance(gates, torch.Tensor) or gates.shape != scores.shape:
            what = "nothing came back" if gates is None else f"yours is {kind(gates)}"
            what = f"yours has {tuple(gates.shape)}" if isinstance(gates, torch.Tensor) else what
            raise WrongForm(f"route returns gates of the shape of its scores, {tuple(scores.shape)}; {what}")
        return gates.detach()

    last = len(case["batches"]) - MEASURED
    windows: dict[str, list[Any]] = {"measured": [], "earlier": [], "changed": []}
    starts = {"measured": last, "earlier": last - BEFORE, "changed": min(CHANGE, last)}
    for number, batch in enumerate(case["batches"]):
        scores = torch.from_numpy(batch)
        looked = [name for name, begin in starts.items() if begin <= number < begin + MEASURED]
        gates = route(scores) if looked else None
        for name in looked:
            windows[name].append(gates)
        given = scores.clone()
        state = answer["learn"](state, given)
        if not torch.equal(given, scores):
            raise WrongForm("learn changed the scores that it was given: work on a copy")
    scores = torch.from_numpy(case["batches"][-1])
    shuffled = scores.flatten(0, 1)[torch.from_numpy(case["other"])].view_as(scores)

    def future(cut: int) -> Any:
        """Row 0 of the gates, when its tokens from `cut` on are others."""
        changed = scores.clone()
        changed[0, cut:] = shuffled[0, cut:]
        return route(changed)[0]

    def among_others(row: int) -> Any:
        """The gates of a row, when all other rows are others."""
        changed = shuffled.clone()
        changed[row] = scores[row]
        return route(changed)[row]

    return {
        **{name: torch.stack(gates) for name, gates in windows.items()},
        "whole": route(scores),
        "future": torch.stack([future(cut) for cut in range(1, T)]),
        "others": torch.stack([among_others(row) for row in range(B)]),
        **{f"first {length}": route(scores[:, :length]) for length in LENGTHS},
        "again": route(scores),
    }


def router_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Gates within 1e-6 (they are scores, or 0). Loads within 25% of 640 and more: seven standard errors of chance."""
    found = {name: np.asarray(value.numpy(), dtype=np.float64) for name, value in returned.items()}
    scores = case["batches"][-MEASURED:].astype(np.float64)
    return _wrong_gates(found["measured"], scores) or _leaks(found) or _uneven(case, found, scores)


def _wrong_gates(gates: np.ndarray, scores: np.ndarray) -> Wrong | None:
    taken = gates != 0
    if np.isclose(gates, np.where(taken, scores, 0), atol=1e-6).all():
        return None
    if set(np.unique(gates)) <= {0.0, 1.0}:
        return Wrong("the gates are 0 and 1. What does the layer multiply an answer with?", "a-gate-is-a-switch")
    total = gates.sum(3)
    if np.isclose(total[total > 0], 1, atol=1e-5).all():
        return Wrong("the gates of a token add up to 1; here they are the scores themselves", "gates-add-up-to-one")
    return Wrong(
        "a gate is the score where an expert takes a token, and 0 where it does not; some of yours are neither"
    )


def _leaks(found: dict[str, np.ndarray]) -> Wrong | None:
    def moved(one: np.ndarray, other: np.ndarray) -> int:
        return int((~np.isclose(one, other, atol=1e-6)).any(-1).sum())

    whole = found["whole"]
    if moved(whole, found["again"]):
        return Wrong(
            "two calls of route with the same scores and state differ. Does it change the state, or draw by chance?",
            "routes-learn",
        )
    for cut, other in enumerate(found["future"], start=1):
        if many := moved(whole[0, :cut], other[:cut]):
            text = f"{many} of the first {cut} tokens are routed otherwise when only later tokens' scores change"
            return Wrong(f"{text}. From what does your router know where to draw the line?", "training-may-look-ahead")
    for row in range(B):  # each: of a queue over the batch the first row does not show it
        many = moved(whole[row], found["others"][row])
        if not many:
            continue
        text = f"{many} tokens of a sequence are routed otherwise when only the other sequences change"
        return Wrong(f"{text}. What of this batch may decide?", "a-batch-is-one-text")
    for length in LENGTHS:
        if many := moved(whole[:, :length], found[f"first {length}"]):
            text = f"{many} tokens are routed otherwise when each sequence ends after {length} tokens"
            return Wrong(f"{text}. Who tells a generating model how long its text will be?", "the-length-is-known")
    return None


def _most(gates: np.ndarray) -> float:
    """How far the farthest expert's load is from the mean load, relative to it."""
    load = (gates != 0).sum((0, 1, 2))
    return float(np.abs(load / max(load.mean(), 1e-9) - 1).max())


def _uneven(case: Case, found: dict[str, np.ndarray], scores: np.ndarray) -> Wrong | None:
    gates, top_k = found["measured"], case["top_k"]
    taken = gates != 0
    experts = scores.shape[3]
    load = taken.sum((0, 1, 2)) / taken[..., 0].size  # tokens of an expert, over all tokens
    share = top_k / experts
    if not taken.any():
        return Wrong("no expert takes any token")
    told = f"after {len(case['batches'])} batches an expert takes {load.min():.1%} to {load.max():.1%} of the tokens"
    if _most(gates) > EVEN:
        return _why_uneven(case, found, scores, told)
    if abs(load.sum() / top_k - 1) > TOTAL:
        return Wrong(
            f"even, and a token visits {load.sum():.2f} experts; {top_k} are wanted on average", "even-is-enough"
        )
    gain = [scores[..., e][taken[..., e]].mean() / scores[..., e].mean() for e in range(experts)]
    if min(gain) < CHOOSES:
        text = f"what an expert takes scores {min(gain):.2f} times what it could take on average"
        return Wrong(f"each has its share ({share:.0%}), and {text}. Who chooses?", "even-is-all-that-counts")
    return None


def _why_uneven(case: Case, found: dict[str, np.ndarray], scores: np.ndarray, told: str) -> Wrong:
    """What a router that is not even smells of: its loads now, a while ago, and right after the scores changed."""
    taken, top_k = found["measured"] != 0, case["top_k"]
    loads = taken.mean((1, 2))  # of each batch and expert
    if loads.std(0).max() > JUMPS * loads.mean():
        one = int(loads.std(0).argmax())
        least, most = loads[:, one].min(), loads[:, one].max()
        text = f"from one batch to the next it jumps: one expert took {least:.0%} to {most:.0%}"
        return Wrong(f"{told}; {text}. How far does a step move it?", "a-large-step-is-soon-there")
    now = _most(found["measured"])
    if now < SLOW * _most(found["earlier"]):
        text = "it gets more even from batch to batch, and not in time. How far does a step move it?"
        return Wrong(f"{told}; {text}", "a-small-step-is-safe")
    ago = len(case["batches"]) - CHANGE
    if ago and now > OLD * _most(found["changed"]):
        text = f"the scores changed {ago} batches ago. How long does your state remember?"
        return Wrong(f"{told}; {text}", "what-was-learned-stays-true")
    if (taken.sum(3) == top_k).all():
        own = scores >= np.sort(scores, axis=3)[..., -top_k, None]
        if (taken == own).mean() > 0.99:
            text = f"Each token visits the {top_k} that it scores highest; who looks after the experts?"
            return Wrong(f"{told}. {text}", "tokens-spread-by-themselves")
        text = "What your state changes does not make them even. Does it move by what each expert took, and which way?"
        return Wrong(f"{told}. {text}")
    return Wrong(f"{told}. Do all experts score alike, and does your router notice?", "one-line-for-all-experts")


ROUTER = Exercise(
    id="repair-router",
    title="Repair a router",
    cases=router_cases,
    run=router_run,
    judge=router_judge,
    forbidden=("course_lib.moe", "course_lib.routers", "course_lib.failures"),
    misconceptions={
        "a-gate-is-a-switch": "a router only says who computes",
        "gates-add-up-to-one": "gates add up to 1, always",
        "routes-learn": "a router may learn from what it routes while it routes",
        "training-may-look-ahead": "in training the future is there, so it may be used",
        "a-batch-is-one-text": "the sequences of a batch may compete for experts",
        "the-length-is-known": "the length of a sequence is no information about its future",
        "what-was-learned-stays-true": "scores stay as they are, so one look is enough",
        "a-small-step-is-safe": "a small step only takes longer",
        "a-large-step-is-soon-there": "a large step only gets there sooner",
        "tokens-spread-by-themselves": "what tokens choose is even on average",
        "one-line-for-all-experts": "the experts' scores are alike",
        "even-is-enough": "any even load is the right one",
        "even-is-all-that-counts": "a balanced router is a good router",
    },
)
