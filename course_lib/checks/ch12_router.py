"""Check 12.3: a router repaired. What counts is what its gates are, not who makes them: honest, even, choosing."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["ROUTER"]

B, T, MEASURED = 4, 64, 20
LENGTHS = (1, 13, 32, 50)
"""Sequences, tokens of each, batches of the end that are measured (5,120 tokens); lengths that are tried besides T."""
EVEN, TOTAL, CHOOSES, SLOW = 0.25, 0.1, 1.15, 0.9
"""An expert's load is this close to its share, the sum this close to top_k a token; what an expert takes scores this
many times the mean of what it could take; a router that is less than this part of as uneven as it was is on its way."""


def router_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1203])

    def batches(count: int, lift: np.ndarray, spread: np.ndarray) -> np.ndarray:
        logits = rng.normal(size=(count, B, T, len(lift))) * spread + lift
        scores = np.exp(logits)
        return np.asarray((scores / scores.sum(3, keepdims=True)).astype(np.float32))

    def case(name: str, experts: int, top_k: int, drifts: bool) -> Case:
        order = rng.permutation(experts)
        lift, spread = np.linspace(0.9, -0.9, experts)[order], np.linspace(0.6, 1.1, experts)[rng.permutation(experts)]
        parts = [batches(160, lift, spread)]
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

    measured, early = [], []
    for number, batch in enumerate(case["batches"]):
        scores = torch.from_numpy(batch)
        if number >= len(case["batches"]) - MEASURED:
            measured.append(route(scores))
        elif number < MEASURED:
            early.append(route(scores))
        given = scores.clone()
        state = answer["learn"](state, given)
        if not torch.equal(given, scores):
            raise WrongForm("learn changed the scores that it was given: work on a copy")
    last = torch.from_numpy(case["batches"][-1])
    shuffled = last.flatten(0, 1)[torch.from_numpy(case["other"])].view_as(last)
    others = shuffled.clone()
    others[0] = last[0]

    def future(cut: int) -> Any:
        """Row 0 of the gates, when its tokens from `cut` on are others."""
        changed = last.clone()
        changed[0, cut:] = shuffled[0, cut:]
        return route(changed)[0]

    return {
        "measured": torch.stack(measured),
        "early": torch.stack(early),
        "whole": route(last),
        "future": torch.stack([future(cut) for cut in range(1, T)]),
        "others": route(others),
        **{f"first {length}": route(last[:, :length]) for length in LENGTHS},
        "again": route(last),
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
    if many := moved(whole[0], found["others"][0]):
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
    uneven = _most(gates) > EVEN
    if uneven and len(case["batches"]) > 200:
        text = "the scores changed 140 batches ago. How long does your state remember?"
        return Wrong(f"{told}; {text}", "what-was-learned-stays-true")
    if uneven and _most(gates) < SLOW * _most(found["early"]):
        text = "it gets more even from batch to batch, and not in time. How far does a step move it?"
        return Wrong(f"{told}; {text}", "a-small-step-is-safe")
    if uneven and (taken.sum(3) == top_k).all():
        return Wrong(f"{told}. Each token visits {top_k}; who looks after the experts?", "tokens-spread-by-themselves")
    if uneven:
        return Wrong(f"{told}. Do all experts score alike, and does your router notice?", "one-line-for-all-experts")
    if abs(load.sum() / top_k - 1) > TOTAL:
        return Wrong(
            f"even, and a token visits {load.sum():.2f} experts; {top_k} are wanted on average", "even-is-enough"
        )
    gain = [scores[..., e][taken[..., e]].mean() / scores[..., e].mean() for e in range(experts)]
    if min(gain) < CHOOSES:
        text = f"what an expert takes scores {min(gain):.2f} times what it could take on average"
        return Wrong(f"each has its share ({share:.0%}), and {text}. Who chooses?", "even-is-all-that-counts")
    return None


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
        "tokens-spread-by-themselves": "what tokens choose is even on average",
        "one-line-for-all-experts": "the experts' scores are alike",
        "even-is-enough": "any even load is the right one",
        "even-is-all-that-counts": "a balanced router is a good router",
    },
)
