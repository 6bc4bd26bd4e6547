"""Check 11.3: balancing experts with a bias that only chooses (DeepSeek-AI 2024, arXiv 2412.19437, section 2.1.2)."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind

__all__ = ["BALANCE"]

STEPS, RATE, LIMIT = 150, 0.01, 1.25
"""Of the last case: steps, size of a step of the bias, and the busiest expert's load over the mean, after them."""


def _scores(rng: np.random.Generator, n: int, experts: int, skew: float = 0.0) -> np.ndarray:
    """Sigmoids, of which the first experts' are larger with `skew`; rounded, and far enough apart for FP32."""
    lift = skew * np.linspace(1, -1, experts)
    return (1 / (1 + np.exp(-(rng.normal(size=(n, experts)) + lift)))).astype(np.float32)


def _rule(case: Case, rule: str = "") -> tuple[np.ndarray, np.ndarray]:
    """Gates as a table (n, E), 0 where an expert is not chosen, and what they mean for the gradient of the scores."""
    s, bias, k = case["scores"].astype(np.float64), case["bias"].astype(np.float64), case["top_k"]
    seen = {"ignores-the-bias": s, "the-bias-repels": s - bias, "multiplies": s * bias}.get(rule, s + bias)
    chosen = np.argsort(-seen, axis=1)[:, :k]
    mask = np.zeros_like(s)
    np.put_along_axis(mask, chosen, 1.0, axis=1)
    base = s + bias if rule == "bias-in-the-gate" else np.exp(s) if rule == "softmax-once-more" else s
    kept = base * mask
    if rule == "gates-of-all":
        return kept / base.sum(1, keepdims=True), mask
    return (kept if rule == "gates-as-they-are" else kept / kept.sum(1, keepdims=True)), mask


def _moved(case: Case, rule: str = "") -> np.ndarray:
    """The bias after one step. `rule` makes one mistake."""
    bias, counts, rate = case["bias"].astype(np.float64), case["counts"].astype(np.float64), case["rate"]
    mean = float(np.median(counts)) if rule == "median" else counts.mean()
    mean = counts[counts > 0].mean() if rule == "who-got-nothing-does-not-count" else mean
    step = np.sign(mean - counts)
    if rule == "feeds-the-busy":
        step = -step
    if rule == "the-more-the-further":
        step = mean - counts
    if rule == "the-share-decides":
        step = (mean - counts) / mean
    if rule == "equal-moves-too":
        step = np.where(counts > mean, -1.0, 1.0)
    if rule == "equal-moves-down":
        step = np.where(counts < mean, 1.0, -1.0)
    if rule == "only-the-busy-are-moved":
        step = np.minimum(step, 0)
    if rule == "only-the-idle-are-moved":
        step = np.maximum(step, 0)
    return bias * (0 if rule == "forgets-what-it-learned" else 1) + rate * step


def balance_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 1103])

    def gate(name: str, experts: int, top_k: int, wanted: Any) -> Case:
        while True:
            bias = rng.uniform(-0.5, 0.5, experts) if wanted else np.zeros(experts)
            case: Case = {
                "name": name,
                "scores": _scores(rng, 12, experts),
                "bias": bias.astype(np.float32),
                "top_k": top_k,
            }
            seen = np.sort(case["scores"].astype(np.float64) + bias, axis=1)
            apart = np.diff(seen, axis=1).min() > 1e-4
            gates = {rule: _rule(case, rule)[0] for rule in GATE_HINTS}
            if apart and (not wanted or not np.allclose(gates["ignores-the-bias"], _rule(case)[0])):
                return case

    def move(name: str, counts: list[int] | np.ndarray) -> Case:
        bias = rng.uniform(-0.3, 0.3, len(counts)).astype(np.float32)
        rate = float(rng.choice([0.001, 0.004, 0.02]))
        return {"name": name, "bias": bias, "counts": np.array(counts, dtype=np.int64), "rate": rate}

    a, b = int(rng.integers(2, 5)), int(rng.integers(10, 30))
    return [
        gate("choosing with a bias of zero", 6, 2, False),
        gate("choosing with a bias", 8, 2, True),
        gate("choosing four of eight with a bias", 8, 4, True),
        move("a step of the bias", [5 * b, b, b + 1, b + a + 1, 2]),
        move("a step, with one expert at the mean", [b + a, b - a, b, b + 2, b - 2]),
        move("a step, with an expert that got nothing", [0, b, b + a, 2 * b]),  # b + a: above the mean of all
        move("a step, all alike", [b] * 4),
        {
            "name": f"{STEPS} steps with a skewed router",
            "batches": np.stack([_scores(rng, 128, 8, 2.5) for _ in range(STEPS)]),
        },
    ]


def balance_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("route", "update")):
        raise WrongForm(f'hand in {{"route": route, "update": update}}, two functions; yours is {kind(answer)}')
    import torch

    def table(scores: Any, bias: Any, top_k: int) -> Any:
        found = answer["route"](scores, bias, top_k)
        if not isinstance(found, tuple | list) or len(found) != 2 or not all(hasattr(p, "shape") for p in found):
            raise WrongForm(f"route returns a pair of tensors, (chosen, gates); {kind(found)} came back")
        chosen, gates = found
        wanted = (len(scores), top_k)
        if tuple(chosen.shape) != wanted or tuple(gates.shape) != wanted:
            shapes = f"{tuple(chosen.shape)} and {tuple(gates.shape)}"
            raise WrongForm(f"chosen and gates have the shape {wanted}; yours are {shapes}")
        if chosen.dtype != torch.int64:
            raise WrongForm(f"chosen holds whole numbers (int64); yours is {chosen.dtype}")
        return chosen, torch.zeros_like(scores).scatter(1, chosen, gates)

    if "scores" in case:
        scores = torch.from_numpy(case["scores"]).requires_grad_()
        chosen, gates = table(scores, torch.from_numpy(case["bias"]), case["top_k"])
        weights = torch.linspace(-1, 1, gates.numel()).view_as(gates).cos()
        if gates.requires_grad:
            (gates * weights).sum().backward()
        return {"chosen": chosen, "gates": gates, "gradient": scores.grad}
    if "counts" in case:
        return {
            "bias": answer["update"](torch.from_numpy(case["bias"]), torch.from_numpy(case["counts"]), case["rate"])
        }
    bias, counts, last = torch.zeros(8), None, []
    for step, scores in enumerate(case["batches"]):
        chosen, _ = table(torch.from_numpy(scores), bias, 2)
        counts = torch.bincount(chosen.flatten(), minlength=8)
        if step >= STEPS - 20:
            last.append(counts)
        bias = answer["update"](bias, counts, RATE)
    return {"loads": torch.stack(last).sum(0)}


def _gradient(case: Case, rule: str = "") -> np.ndarray:
    """Gradient of the sum of gates x weights by the scores: that of s_i / sum of chosen s, written out."""
    gates, mask = _rule(case)
    s = case["scores"].astype(np.float64)
    weights = np.cos(np.linspace(-1, 1, s.size).reshape(s.shape))
    total = (s * mask).sum(1, keepdims=True)
    return np.asarray(mask * (weights - (gates * weights).sum(1, keepdims=True)) / total)


GATE_HINTS = {
    "ignores-the-bias": "the bias has no effect on who is chosen",
    "the-bias-repels": "an expert with a larger bias is to be chosen more often",
    "bias-in-the-gate": "the right experts, and gates that depend on the bias. What is the bias for?",
    "gates-as-they-are": "the right experts; what do the gates of a token add up to in yours?",
    "gates-of-all": "the right experts; over which of the scores does the text take the sum?",
    "softmax-once-more": "the right experts; the scores are shares already, and need no exponential",
}
MOVE_HINTS = {
    "feeds-the-busy": "an expert with much to do is chosen still more often after that",
    "the-more-the-further": "the bias moves further the larger the difference; how far does the text let it move?",
    "the-share-decides": "the bias moves in proportion to the difference; how far does the text let it move?",
    "equal-moves-too": "an expert at the mean is moved",
    "equal-moves-down": "an expert at the mean is moved",
    "only-the-busy-are-moved": "the experts with too little to do stay where they were",
    "only-the-idle-are-moved": "the experts with too much to do stay where they were",
    "forgets-what-it-learned": "the step is right. What was the bias before?",
    "who-got-nothing-does-not-count": "over how many experts is your mean?",
    "median": "compared with the median; the text compares with the mean",
}


def balance_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Chosen experts exact as sets; gates, gradients and biases within 1e-5 (FP32, numbers of size 1)."""
    if "scores" in case:
        return _wrong_gates(case, returned)
    if "counts" in case:
        return _wrong_step(case, returned["bias"])
    loads = np.asarray(returned["loads"].tolist(), dtype=np.float64)
    if loads.shape != (8,) or loads.sum() != sum(2 * len(batch) for batch in case["batches"][STEPS - 20 :]):
        return Wrong("the experts' tokens of the last steps do not add up: two of the experts 0 to 7 for each token")
    worst = loads.max() / loads.mean()
    if worst <= LIMIT:
        return None
    return Wrong(f"after {STEPS} steps the busiest expert still has {worst:.2f} times the mean", "never-settles")


def _wrong_gates(case: Case, returned: dict[str, Any]) -> Wrong | None:
    right, mask = _rule(case)
    gates = np.asarray(returned["gates"].tolist(), dtype=np.float64)
    chosen = np.zeros_like(mask)
    np.put_along_axis(chosen, np.asarray(returned["chosen"].tolist(), dtype=np.int64), 1.0, axis=1)
    if (chosen.sum(1) != case["top_k"]).any():
        return Wrong("a token has one of its experts twice")
    if not np.allclose(gates, right, atol=1e-5):
        for rule, hint in GATE_HINTS.items():
            guess, worn = _rule(case, rule)
            if np.array_equal(chosen, worn) and np.allclose(gates, guess, atol=1e-5):
                return Wrong(hint, rule)
        if not np.array_equal(chosen, mask):
            return Wrong(f"{int((chosen != mask).any(1).sum())} of {len(mask)} tokens have other experts")
        return Wrong("the right experts; their gates are not the scores over the sum of the chosen ones")
    gradient = returned["gradient"]
    if gradient is None:
        return Wrong("the gates are right, and no gradient goes from them to the scores", "routers-do-not-learn")
    if not np.allclose(np.asarray(gradient.tolist()), _gradient(case), atol=1e-4):
        return Wrong(
            "the gates are right; their gradient by the scores is not. What did you detach?", "routers-do-not-learn"
        )
    return None


def _wrong_step(case: Case, bias: Any) -> Wrong | None:
    if not hasattr(bias, "shape"):
        what = "nothing" if bias is None else kind(bias)
        return Wrong(f"update returned {what}; the new bias is wanted, a tensor like the old one", form=True)
    if tuple(bias.shape) != case["bias"].shape:
        return Wrong(f"the new bias is {tuple(bias.shape)}; the old one is {case['bias'].shape}", form=True)
    found, right = np.asarray(bias.tolist(), dtype=np.float64), _moved(case)
    if np.allclose(found, right, atol=1e-5):
        return None
    for rule, hint in MOVE_HINTS.items():
        guess = _moved(case, rule)
        if np.allclose(found, guess, atol=1e-5) and not np.allclose(guess, right, atol=1e-5):
            known = "equal-moves-too" if rule == "equal-moves-down" else rule
            return Wrong(hint, known if known in BALANCE.misconceptions else None)
    if np.allclose(found, case["bias"], atol=1e-6):
        return Wrong("the bias has not moved", None)
    return Wrong("the new bias is off. By how much may one expert's bias move, and which way?")


BALANCE = Exercise(
    id="balancing-bias",
    title="A balancing bias",
    cases=balance_cases,
    run=balance_run,
    judge=balance_judge,
    forbidden=("course_lib.moe", "course_lib.parallel"),
    misconceptions={
        "ignores-the-bias": "a bias changes the gates, and not the choice",
        "the-bias-repels": "a bias is subtracted",
        "bias-in-the-gate": "what chooses an expert also weighs its answer",
        "gates-as-they-are": "the gates of a token need not add up to 1",
        "gates-of-all": "the gates are shares of all experts' scores",
        "softmax-once-more": "shares are always made by a softmax",
        "routers-do-not-learn": "a router whose choice is made by a bias needs no gradient",
        "feeds-the-busy": "a busy expert is a good one, and gets more",
        "the-more-the-further": "the bias moves by what the load is off",
        "the-share-decides": "the bias moves by the share that the load is off",
        "equal-moves-too": "every expert moves in every step",
        "only-the-busy-are-moved": "only experts with too much to do need a correction",
        "only-the-idle-are-moved": "only experts with too little to do need a correction",
        "who-got-nothing-does-not-count": "the mean is over experts that got tokens",
        "forgets-what-it-learned": "each step sets the bias anew",
        "never-settles": "what is right in one step is right in many",
    },
)
