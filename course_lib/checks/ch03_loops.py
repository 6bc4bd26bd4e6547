"""Checks 03.3 and 03.4: a loop whose loss looks fine, and the place of the clip.

Both update the small float64 model of 03.2 with SGD, whose move is the gradient times the rate, so that the weights
tell with which gradient they were moved.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.ch02_gradients import number
from course_lib.checks.ch03_accumulate import (
    Pieces,
    Toy,
    Watch,
    close,
    flat,
    gradient,
    how_far,
    one_at_a_time,
    piece,
    same_number,
    summed_loss,
    valid,
)
from course_lib.checks.core import Case, Exercise, Wrong, came

__all__ = ["CLIPPED", "QUIET"]

# --- 03.3 a loop whose loss looks fine --------------------------------------------------------------------------------

RATE = 0.1


def quiet_cases(seed: int) -> list[Case]:
    g = torch.Generator().manual_seed(1000 * seed + 303)

    def case(name: str, epochs: int, count: int, window: int) -> Case:
        pieces = [piece(g, [2 + (3 * i + seed) % 6, 1 + i % 4]) for i in range(count)]
        return {"name": name, "seed": seed, "pieces": pieces, "epochs": epochs, "window": window}

    return [
        case("one epoch of 6 micro-batches, windows of 3", 1, 6, 3),
        case("two epochs of 4 micro-batches, windows of 2", 2, 4, 2),
        case("three epochs of 5 micro-batches, windows of 4", 3, 5, 4),
        case("one epoch of 7 micro-batches, windows of 3", 1, 7, 3),
        case("two epochs of 2 micro-batches, windows of 3", 2, 2, 3),
    ]


def quiet_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    model = Toy(case["seed"])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    pieces = [(tokens.clone(), targets.clone()) for tokens, targets in case["pieces"]]
    watch = Watch(model)
    losses = answer(model, optimizer, pieces, case["epochs"], case["window"])
    if not isinstance(losses, list | tuple) or any("number" not in number(_item(x)) for x in losses):
        return {"type": type(losses).__name__}
    logged = [number(_item(x))["number"] for x in losses]
    return {"losses": logged, "weights": flat(list(model.parameters())), **watch.seen()}


def _item(value: Any) -> Any:
    return value.detach() if isinstance(value, Tensor) else value


def _groups(epoch: Pieces, window: int, rule: str) -> list[Pieces]:
    first = len(epoch) % window if rule == "the-short-one-first" else 0
    ordered = epoch[::-1] if rule == "backwards" else epoch
    groups = [ordered[:first]] if first else []
    return groups + [ordered[at : at + window] for at in range(first, len(ordered), window)]


def _train(case: Case, rule: str = "right") -> tuple[Tensor, list[float]]:
    """The oracle (its gradients come from one sum a window, by autograd.grad), and what each mistake would do."""
    model, window = Toy(case["seed"]), case["window"]
    pieces, losses = list(case["pieces"]), []
    left = torch.zeros(flat(list(model.parameters())).numel(), dtype=torch.float64)
    runs = [pieces] * case["epochs"]
    if rule == "windows-cross-epochs":
        runs = [pieces * case["epochs"]]
    for epoch in runs:
        for group in _groups(epoch, window, rule):
            short = len(group) < window
            total = summed_loss(model, group)
            grad = gradient(model, total / valid(group))
            if rule == "keeps-the-last-micro-batch":
                grad = gradient(model, summed_loss(model, group[-1:]) / valid(group))
            if rule == "mean-of-means-is-fine":
                means = [gradient(model, summed_loss(model, [one]) / valid([one])) for one in group]
                grad = torch.stack(means).mean(0)
            if rule == "the-rest-counts-as-a-whole-window" and short:
                grad = grad * len(group) / window
            if short and rule in ("the-rest-waits", "the-rest-may-be-dropped"):
                if rule == "the-rest-waits":
                    left = grad
                continue
            losses.append(float(total.detach()) / valid(group))
            with torch.no_grad():
                move = grad + left
                left, at = torch.zeros_like(left), 0
                for p in model.parameters():
                    p.sub_(RATE * move[at : at + p.numel()].view_as(p))
                    at += p.numel()
    return flat(list(model.parameters())), losses


QUIET_HINTS = {
    "the-rest-waits": "the micro-batches behind the last full window: when does their gradient reach the weights?",
    "the-rest-may-be-dropped": "the micro-batches behind the last full window never reach the weights",
    "windows-cross-epochs": "an update here mixes the end of an epoch with the start of the next",
    "the-rest-counts-as-a-whole-window": "the last update of an epoch is too small. Of what is it a mean?",
    "keeps-the-last-micro-batch": "each update has seen its last micro-batch only. When are gradients cleared?",
    "mean-of-means-is-fine": "who has one vote in a window, a micro-batch or a token?",
    "the-short-one-first": "the micro-batches are taken in their order, so which update of an epoch is the short one?",
    "backwards": "the micro-batches are taken in another order than they were given in",
}
ORDER = ("the-short-one-first", "backwards")


def quiet_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Weights to a relative 1e-5, see TOLERANCE in `ch03_accumulate`; as many losses as updates."""
    if "type" in returned:
        return Wrong(f"return a list with the loss of each update; {came(returned['type'])}", form=True)
    weights, losses = _train(case)
    got = returned["weights"]
    if not bool(torch.isfinite(got).all()):
        return Wrong("a weight is NaN or infinite after your loop")
    start = flat(list(Toy(case["seed"]).parameters()))
    if not close(got - start, weights - start):
        for rule, message in QUIET_HINTS.items():
            guess = _train(case, rule)[0]
            if close(got - start, guess - start) and not close(guess - start, weights - start):
                name = "the-order-is-free" if rule in ORDER else rule
                return Wrong(f"the weights go wrong: {message}", name)
        if float((got - start).norm()) == 0:
            return Wrong("no weight has moved: is optimizer.step() ever called in this case?")
        far = float((got - weights).norm() / (weights - start).norm())
        return Wrong(f"the weights end {how_far(far)} of the way beside where they should")
    logged = returned["losses"]
    if len(logged) != len(losses):
        return Wrong(f"the weights are right; {len(logged)} losses came back for {len(losses)} updates")
    if not all(same_number(a, b) for a, b in zip(logged, losses, strict=True)):
        return Wrong("the weights are right; the losses are not the mean over the tokens of each window")
    return one_at_a_time(case["pieces"], returned)


QUIET = Exercise(
    id="quiet-loop",
    title="A loop whose loss looks fine",
    cases=quiet_cases,
    run=quiet_run,
    judge=quiet_judge,
    forbidden=("__main__.quiet_train",),
    misconceptions={
        "the-rest-waits": "an epoch is a whole number of windows",
        "the-rest-may-be-dropped": "a window that is not full is no update",
        "windows-cross-epochs": "where an epoch ends makes no difference",
        "the-rest-counts-as-a-whole-window": "each window is divided by the same number",
        "keeps-the-last-micro-batch": "gradients are cleared before each backward",
        "mean-of-means-is-fine": "the mean of the micro-batches' means is the mean of the window",
        "the-order-is-free": "which micro-batches make an update does not matter",
        "joins-the-micro-batches": "micro-batches are there for the arithmetic, not for the memory",
    },
)

# --- 03.4 the place of the clip ---------------------------------------------------------------------------------------


def clipped_cases(seed: int) -> list[Case]:
    g = torch.Generator().manual_seed(1000 * seed + 304)
    pieces = [piece(g, [8, 8]) for _ in range(4)]
    model = Toy(seed)
    norm = float(gradient(model, summed_loss(model, pieces) / valid(pieces)).norm())

    def case(name: str, limit: float, count: int = 4) -> Case:
        return {"name": name, "seed": seed, "pieces": pieces[:count], "max_norm": limit}

    return [
        case("a limit far above the norm", 50 * norm),
        case("a limit of a third of the norm", norm / 3),
        case("a limit above the norm of the batch, below those of the pieces' sum", 1.2 * norm),
        case("a single micro-batch, a limit of a third", norm / 3, 1),
    ]


def clipped_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    model = Toy(case["seed"])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    pieces = [(tokens.clone(), targets.clone()) for tokens, targets in case["pieces"]]
    used: list[tuple[Tensor, Tensor]] = []  # the gradients that a step read, and what they were then

    def stepped(*_: Any) -> None:
        used.extend((p.grad, p.grad.clone()) for p in model.parameters() if p.grad is not None)

    optimizer.register_step_post_hook(stepped)
    watch = Watch(model)
    norm = answer(model, optimizer, pieces, case["max_norm"])
    left = any(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    cut_later = any(bool(grad.any()) and not torch.equal(grad, then) for grad, then in used)
    seen = {"weights": flat(list(model.parameters())), "left": left, "cut_later": cut_later}
    return {**number(_item(norm)), **seen, **watch.seen()}


def _clip(grad: Tensor, limit: float) -> Tensor:
    return grad * min(1.0, limit / max(float(grad.norm()), 1e-30))


def _moves(case: Case) -> tuple[dict[str, Tensor], float]:
    """The gradient with which each rule moves the weights, and the norm of the right one before clipping."""
    model, pieces, limit = Toy(case["seed"]), case["pieces"], case["max_norm"]
    parts = [gradient(model, summed_loss(model, [one]) / valid(pieces)) for one in pieces]
    whole = torch.stack(parts).sum(0)
    running = torch.zeros_like(whole)
    for part in parts:
        running = _clip(running + part, limit)
    undivided = whole * len(parts)
    return {
        "right": _clip(whole, limit),
        "clips-the-running-sum": running,
        "clips-each-micro-batch": torch.stack([_clip(part, limit) for part in parts]).sum(0),
        "clips-too-late": whole,
        "clips-before-dividing": _clip(undivided, limit) / len(parts),
        "forgets-to-divide": _clip(undivided, limit),
        "forgets-to-divide-too": undivided,
    }, float(whole.norm())


CLIPPED_HINTS = {
    "clips-the-running-sum": "the gradient was cut before it was complete. After which micro-batch is it?",
    "clips-each-micro-batch": "each micro-batch was cut by itself: does one long piece make the whole too long?",
    "clips-too-late": "the weights moved by the full gradient. Is it clipped, and before the optimizer reads it?",
    "clips-before-dividing": "a sum was clipped and divided afterwards. The limit is meant for the mean.",
    "forgets-to-divide": "what you clip is several times too long. Is it the gradient of a mean?",
    "forgets-to-divide-too": "the weights move several times too far. Is it the gradient of a mean?",
}


def clipped_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Relative 1e-5 for the move (torch's clip adds 1e-6 to the norm) and for the norm."""
    start = flat(list(Toy(case["seed"]).parameters()))
    moved = (start - returned["weights"]) / RATE
    moves, norm = _moves(case)
    right = moves["right"]
    if not close(moved, right):
        if float(moved.norm()) == 0:
            return Wrong("no weight has moved: this function ends with the update")
        for rule, message in CLIPPED_HINTS.items():
            if close(moved, moves[rule]) and not close(moves[rule], right):
                name = None if rule == "clips-too-late" and not returned["cut_later"] else rule.removesuffix("-too")
                return Wrong(f"the update is wrong: {message}", name)
        far = float((moved - right).norm() / right.norm())
        return Wrong(f"the update is off by {how_far(far)} of its length")
    if "number" not in returned:
        return Wrong(f"the update is right; {came(returned['type'])} instead of the norm, a float")
    if not same_number(returned["number"], norm):
        if same_number(returned["number"], min(norm, case["max_norm"])):
            message = "the update is right; you return the norm after clipping. Would that ever show a spike?"
            return Wrong(message, "norm-after-clipping")
        pieces = len(case["pieces"])
        if pieces > 1 and same_number(returned["number"], norm * pieces):
            message = "the update is right here; the norm is several times too large: of a mean, or of a sum?"
            return Wrong(message, "clips-before-dividing")
        return Wrong(f"the update is right; {returned['number']:.4g} is not the norm before clipping")
    if returned["left"]:
        return Wrong("the update is right; the next call would find its gradients still there", "old-gradients-stay")
    return one_at_a_time(case["pieces"], returned)


CLIPPED = Exercise(
    id="clip-once",
    title="The place of the clip",
    cases=clipped_cases,
    run=clipped_run,
    judge=clipped_judge,
    misconceptions={
        "clips-the-running-sum": "clipping belongs behind every backward",
        "clips-each-micro-batch": "what holds for the pieces holds for the whole",
        "clips-too-late": "clipping protects the weights even after the update",
        "clips-before-dividing": "clipping and dividing may change places",
        "forgets-to-divide": "gradients of means add up to the gradient of the mean",
        "norm-after-clipping": "the norm after clipping is worth logging",
        "old-gradients-stay": "somebody else clears the gradients",
        "joins-the-micro-batches": "micro-batches are there for the arithmetic, not for the memory",
    },
)
