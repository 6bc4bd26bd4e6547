"""Check 11.2: an MoE layer with its experts on several ranks, tokens sent there and back by all-to-all."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.checks.ch11_ranks import Stop, play, shape_of
from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["EXCHANGE"]

WIDTH = 5


def exchange_cases(seed: int) -> list[Case]:
    """Which experts are chosen is hard in each case by its name; the choices themselves follow the seed."""
    rng = np.random.default_rng([seed, 1102])

    def case(name: str, sizes: list[int], experts: int, top_k: int, allowed: list[int] | None = None) -> Case:
        """`sizes`: tokens on each rank; `allowed`: the experts that tokens choose of. Every rank's counts differ."""
        choices = np.array(allowed if allowed is not None else range(experts))
        while True:
            chosen = [
                np.array([rng.permutation(choices)[:top_k] for _ in range(n)], dtype=np.int64).reshape(n, top_k)
                for n in sizes
            ]
            here = experts // len(sizes)
            sent = np.array([np.bincount(c.ravel() // here, minlength=len(sizes)) for c in chosen])
            seen = {int(e) for c in chosen for e in c.ravel()}
            if (sent != sent.T).any() and seen == set(choices.tolist()) and _tells(chosen, experts):
                break
        gates = [rng.uniform(0.1, 0.9, (n, top_k)).astype(np.float32) for n in sizes]
        return {
            "name": name,
            "tokens": [rng.normal(size=(n, WIDTH)).astype(np.float32) for n in sizes],
            "chosen": chosen,
            "gates": gates,
            "weights": rng.normal(size=(experts, WIDTH, WIDTH)).astype(np.float32),
        }

    return [
        case("two ranks, one expert each, one choice", [6, 5], 2, 1),
        case("two ranks, two experts each, one choice", [7, 9], 4, 1),
        case("two ranks, two experts each, two choices", [6, 8], 4, 2),
        case("three ranks, three choices", [5, 9, 7], 6, 3),
        case("an expert that nobody chooses", [6, 7], 6, 2, [0, 1, 2, 4]),
        case("a rank whose experts nobody chooses", [6, 5, 7], 6, 2, [0, 1, 4, 5]),
        case("a rank without tokens", [7, 0, 6], 6, 2),
    ]


def _tells(chosen: list[np.ndarray], experts: int) -> bool:
    """Whether slots are out of order on each rank that has any."""
    return all(c.size == 0 or (np.argsort(c.ravel(), kind="stable") != np.arange(c.size)).any() for c in chosen)


def exchange_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("counts", "layer")):
        raise WrongForm(f'hand in {{"counts": counts, "layer": layer}}, two functions; yours is {kind(answer)}')
    import torch

    counted = []
    for chosen in case["chosen"]:
        found = answer["counts"](torch.from_numpy(chosen), len(case["weights"]))
        counted.append([_listed(part) for part in found] if isinstance(found, tuple | list) else found)
    if any(found is None for found in counted):
        return {"counted": counted}
    try:
        return {"counted": counted, **play(answer["layer"], case)}
    except Stop as stop:
        return {"counted": counted, "stopped": [str(stop), stop.rule]}


def _listed(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value


# What is right, in float64 and token by token.


def _outputs(case: Case, rule: str = "") -> list[np.ndarray]:
    """The layer's output on each rank. `rule` makes one mistake."""
    weights = case["weights"].astype(np.float64)
    ranks, experts = len(case["tokens"]), len(weights)
    here = experts // ranks
    worn = [c.ravel().copy() for c in case["chosen"]]  # the expert that each slot is computed by
    if rule in ("received-rows-are-sorted", "one-expert-a-rank"):
        for rank in range(ranks):
            slots = [(s, i) for s in range(ranks) for i in _order(case["chosen"][s]) if worn[s][i] // here == rank]
            labels = sorted(int(case["chosen"][s].ravel()[i]) for s, i in slots)
            for (s, i), label in zip(slots, labels, strict=True):
                worn[s][i] = label if rule == "received-rows-are-sorted" else -1 - rank * here
        worn = [np.where(w < 0, -1 - w, w) for w in worn]
    results = []
    for x, chosen, gates, by in zip(case["tokens"], case["chosen"], case["gates"], worn, strict=True):
        n, k = chosen.shape
        order, weight = _order(chosen), gates.astype(np.float64).ravel()
        token = np.arange(n * k) % max(n, 1) if rule == "a-slot-is-a-token" else np.arange(n * k) // k
        token = np.argsort(order) // k if rule == "rows-as-they-are" else token
        answers = np.array([np.tanh(x[t].astype(np.float64) @ weights[e]) for t, e in zip(token, by, strict=True)])
        answers = answers.reshape(n * k, WIDTH)
        if rule == "gates-change-nothing":
            weight = np.ones_like(weight)
        if rule == "averages-the-choices":
            weight = weight / k
        if rule == "gates-stay-behind":
            weight = weight[np.argsort(order)]
        if rule == "gates-are-sorted":
            weight = weight[order]
        if rule == "an-index-twice-adds-twice":  # of a token's answers the last one in the order is left
            weight = weight * (chosen == chosen.max(1, keepdims=True, initial=0)).ravel()
        if rule == "stays-sorted":
            answers = answers[order]
        if rule == "puts-back-by-order":
            answers = answers[order][order]
        total = (answers * weight[:, None]).reshape(n, k, WIDTH)
        results.append((total[:, :1] if rule == "only-the-first-choice" else total).sum(1))
    return results


def _order(chosen: np.ndarray) -> np.ndarray:
    return np.argsort(chosen.ravel(), kind="stable")


LAYER_HINTS = {
    "stays-sorted": "the answers are right, and not yet in the order of the tokens",
    "puts-back-by-order": "order says where a row comes from. Where does the row at place i have to go?",
    "an-index-twice-adds-twice": (
        "of a token's answers one is left. What does `out[index] += ...` do with a number that is in index twice?"
    ),
    "gates-stay-behind": "each answer has another slot's gate: one of the two is sorted, and the other is not",
    "gates-are-sorted": "each answer has another slot's gate: one of the two is sorted, and the other is not",
    "received-rows-are-sorted": (
        "rows were computed by another expert of the right rank. They come rank by rank: in which order of experts?"
    ),
    "one-expert-a-rank": "a rank's first expert has computed all that the rank received",
    "rows-as-they-are": "the rows are sent in the order of the tokens. For which rank are the first of them?",
    "a-slot-is-a-token": "with two choices, which token does slot 1 belong to?",
    "gates-change-nothing": "the gates change nothing. Are they left out, or divided by their sum?",
    "averages-the-choices": "the choices are averaged. What do the gates do already?",
    "only-the-first-choice": "only the first choice of each token has come back",
}


def exchange_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Counts exact; outputs within 1e-4 (FP32 products of 5 numbers), against float64, token by token."""
    for rank, found in enumerate(returned["counted"]):
        wrong = _wrong_counts(case["chosen"][rank], len(case["weights"]), found)
        if wrong is not None:
            return Wrong(f"counts on rank {rank}: {wrong.message}", wrong.misconception, form=wrong.form)
    before = "counts is right. "
    if "stopped" in returned:
        text, rule = returned["stopped"]
        return Wrong(before + text, rule)
    outputs = []
    for rank, out in enumerate(returned["outputs"]):
        shape = case["tokens"][rank].shape
        if not hasattr(out, "shape"):
            text = "layer returned nothing" if out is None else f"layer returned {kind(out)}"
            return Wrong(f"{before}On rank {rank} {text}; a tensor of shape {shape} is wanted", form=True)
        if tuple(out.shape) != shape:
            return Wrong(f"{before}On rank {rank} the output is {shape_of(out)}; the tokens are {shape}", form=True)
        outputs.append(np.asarray(out.tolist(), dtype=np.float64).reshape(shape))
    if not _equal(outputs, _outputs(case)):
        for rule, hint in LAYER_HINTS.items():
            if _equal(outputs, _outputs(case, rule)):
                return Wrong(f"{before}{hint}", "gates-stay-behind" if rule == "gates-are-sorted" else rule)
        off = [rank for rank, pair in enumerate(zip(outputs, _outputs(case), strict=True)) if not _close(*pair)]
        where = ", ".join(map(str, off))
        return Wrong(
            f"{before}The outputs of rank {where} are off. Follow one token: out, to its expert, back, its gate"
        )
    return _sent_too_much(case, returned["moved"])


def _wrong_counts(chosen: np.ndarray, experts: int, found: Any) -> Wrong | None:
    flat = chosen.ravel()
    if not isinstance(found, list) or len(found) != 2 or not all(isinstance(part, list) for part in found):
        return Wrong(f"a pair (order, per_expert) of tensors or lists is wanted; {kind(found)} came back", form=True)
    order, per_expert = found
    if len(per_expert) < experts and per_expert == np.bincount(flat).tolist():
        return Wrong("per_expert stops at the largest expert that is chosen", "who-is-not-chosen-is-not-there")
    if per_expert != np.bincount(flat, minlength=experts).tolist():
        if len(chosen) and per_expert == np.bincount(chosen[:, 0], minlength=experts).tolist():
            return Wrong("per_expert counts the first choice of each token", "only-the-first-choice")
        return Wrong(f"per_expert has {experts} numbers, one for each expert: in how many slots is it chosen?")
    if sorted(order) != list(range(flat.size)):
        if len(order) == len(chosen) != flat.size:
            return Wrong("order has one entry for each token. How many slots are there?", "a-token-is-a-row")
        return Wrong(f"order holds each of the {flat.size} slots once, counted from 0")
    walked = flat[order]
    if (np.diff(walked) < 0).any():
        inverse = np.argsort(order)
        if (np.diff(flat[inverse]) >= 0).all():
            return Wrong("order says where each slot goes; which slot comes at each place is asked for", "the-inverse")
        return Wrong(f"in your order the experts come as {walked.tolist()[:12]}; sorted is wanted")
    return None


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.allclose(a, b, rtol=1e-4, atol=1e-4))


def _equal(a: list[np.ndarray], b: list[np.ndarray]) -> bool:
    return all(_close(x, y) for x, y in zip(a, b, strict=True))


def _sent_too_much(case: Case, moved: list[int]) -> Wrong | None:
    ranks = len(moved)
    here = len(case["weights"]) // ranks
    for rank, sent in enumerate(moved):
        slots = case["chosen"][rank].size
        received = sum(int((c.ravel() // here == rank).sum()) for c in case["chosen"])
        if sent > slots + received:
            text = f"the outputs are right. Rank {rank} sent {sent} rows, for {slots} slots of its own"
            return Wrong(
                f"{text} and {received} that came to it. Which rows does a rank need?", "everything-to-everybody"
            )
    return None


EXCHANGE = Exercise(
    id="all-to-all",
    title="There and back by all-to-all",
    cases=exchange_cases,
    run=exchange_run,
    judge=exchange_judge,
    forbidden=("course_lib.moe", "course_lib.parallel", "torch.distributed"),
    misconceptions={
        "receives-what-it-sends": "a rank receives from another as many rows as it sends it",
        "nothing-to-send-nothing-to-call": "a rank that has nothing to send need not call the all-to-all",
        "experts-are-everywhere": "every rank can compute every expert",
        "who-is-not-chosen-is-not-there": "an expert that nobody chooses needs no count",
        "a-token-is-a-row": "a token is sent once, however many experts it has",
        "the-inverse": "a sorting order and its inverse are the same",
        "only-the-first-choice": "a token goes to one expert",
        "stays-sorted": "what comes back is in the order of the tokens",
        "puts-back-by-order": "sorting twice undoes sorting",
        "gates-stay-behind": "rows can be sorted without their gates",
        "received-rows-are-sorted": "what a rank receives is sorted by expert",
        "rows-as-they-are": "an exchange finds out by itself which row is for whom",
        "one-expert-a-rank": "a rank holds one expert",
        "a-slot-is-a-token": "slots of the second choice come after all of the first",
        "gates-change-nothing": "an answer counts in full, whatever its gate",
        "an-index-twice-adds-twice": "`out[index] += rows` adds up the rows of one index",
        "averages-the-choices": "the answers of a token's experts are averaged",
        "everything-to-everybody": "a rank needs all tokens to find those for its experts",
    },
)
