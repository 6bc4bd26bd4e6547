"""Check 03.2, accumulation over unequal tokens; and the small model that checks 03.3 and 03.4 use too.

The model is small and in float64, so that an answer in another order of sums is right to 1e-12. Oracles run one
backward over all the tokens together; they share no line with the trainer.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from course_lib.checks.ch02_gradients import number
from course_lib.checks.core import Case, Exercise, Wrong, came

__all__ = [
    "UNEQUAL",
    "Pieces",
    "Toy",
    "Watch",
    "close",
    "flat",
    "gradient",
    "how_far",
    "one_at_a_time",
    "piece",
    "same_number",
    "summed_loss",
    "valid",
]

VOCAB, WIDTH, LENGTH = 11, 6, 8
TOLERANCE = 1e-5
"""Relative. FP32 sums of some dozen terms are good to 1e-6, the smallest mistake asked about is off by 1e-2."""


class Toy(nn.Module):
    """Tokens (B, T) -> logits (B, T, 11): an embedding, a bend, and a matrix."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.randn(VOCAB, WIDTH, generator=g, dtype=torch.float64))
        self.head = nn.Parameter(torch.randn(WIDTH, VOCAB, generator=g, dtype=torch.float64))

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.embedding[tokens]) @ self.head


Pieces = Sequence[tuple[Tensor, Tensor]]


def summed_loss(model: nn.Module, pieces: Pieces) -> Tensor:
    """-log p of every target that counts, added up, over all pieces in one pass each."""
    total = torch.zeros((), dtype=torch.float64)
    for tokens, targets in pieces:
        logp = model(tokens).log_softmax(-1)
        counts = targets >= 0
        total = total - logp[counts].gather(-1, targets[counts][:, None]).sum()
    return total


def valid(pieces: Pieces) -> int:
    return sum(int((targets >= 0).sum()) for _, targets in pieces)


def flat(tensors: Sequence[Tensor | None]) -> Tensor:
    return torch.cat([t.detach().double().flatten() for t in tensors if t is not None])


def gradient(model: nn.Module, loss: Tensor) -> Tensor:
    return flat(torch.autograd.grad(loss, list(model.parameters())))


def piece(g: torch.Generator, counts: Sequence[int]) -> tuple[Tensor, Tensor]:
    """One micro-batch of len(counts) rows, the first counts[i] targets of row i count."""
    tokens = torch.randint(VOCAB, (len(counts), LENGTH), generator=g)
    targets = torch.randint(VOCAB, (len(counts), LENGTH), generator=g)
    for row, count in enumerate(counts):
        targets[row, count:] = -100
    return tokens, targets


def close(got: Tensor, right: Tensor) -> bool:
    same = got.shape == right.shape and bool(torch.isfinite(got).all())
    return same and float((got - right).norm()) <= TOLERANCE * max(float(right.norm()), 1e-12)


def same_number(a: float, b: float) -> bool:
    """Equal within TOLERANCE."""
    return math.isclose(a, b, rel_tol=TOLERANCE)


def how_far(part: float) -> str:
    """A share in percent, as a message says it: never 0%."""
    return f"{part:.0%}" if part >= 0.01 else f"{100 * part:.1g}%"


class Watch:
    """What a model had to hold while an answer ran: tokens of the largest forward, and graphs that waited.

    largest: tokens in one forward. late: whether some forward's backward came after a later forward, so that both
    graphs were there at once. backwards: how many forwards a backward reached.
    """

    def __init__(self, model: nn.Module) -> None:
        self.largest, self.forwards, self.backwards, self.late = 0, 0, 0, False
        inner = model.forward

        def forward(*args: Any, **kwargs: Any) -> Tensor:
            logits: Tensor = inner(*args, **kwargs)
            self._seen_forward(logits)
            return logits

        model.__dict__["forward"] = forward  # a hook would miss a call of model.forward itself

    def _seen_forward(self, logits: Tensor) -> None:
        self.largest = max(self.largest, logits[..., 0].numel())
        if not logits.requires_grad:
            return
        self.forwards += 1
        mine = self.forwards

        def backward(grad: Tensor) -> None:
            self.backwards += 1
            self.late = self.late or mine < self.forwards

        logits.register_hook(backward)

    def seen(self) -> dict[str, Any]:
        return {"largest": self.largest, "late": self.late, "backwards": self.backwards}


def one_at_a_time(pieces: Pieces, returned: dict[str, Any]) -> Wrong | None:
    """Refuse what is right and needs the memory of more than one micro-batch; `returned` holds `Watch.seen()`."""
    allowed = max(tokens.numel() for tokens, _ in pieces)
    if returned["largest"] > allowed:
        message = (
            f"the numbers are right, but one forward had {returned['largest']} tokens at once, and the largest "
            f"micro-batch has {allowed}: would that have fitted?"
        )
        return Wrong(message, "joins-the-micro-batches")
    if returned["late"]:
        message = (
            "the numbers are right, but the graph of one micro-batch was still there in the forward of the next. "
            "Which call frees it?"
        )
        return Wrong(message, "joins-the-micro-batches")
    return None


# --- 03.2 unequal tokens ----------------------------------------------------------------------------------------------


def unequal_cases(seed: int) -> list[Case]:
    """Equal counts first: there most mistakes are right, and the message of the next case says so."""
    g = torch.Generator().manual_seed(1000 * seed + 302)

    def case(name: str, counts: list[list[int]], old: bool = False) -> Case:
        return {"name": name, "seed": seed, "pieces": [piece(g, rows) for rows in counts], "old": old}

    return [
        case("equal counts, 8 tokens each", [[8], [8], [8]]),
        case("micro-batches with 7 and 3 tokens that count", [[7], [3]]),
        case("five micro-batches, two rows each", [[8, 2], [1, 1], [5, 5], [8, 8], [3, 0]]),
        case("one micro-batch without a token that counts", [[6], [0], [2]]),
        case("a single micro-batch", [[4, 2]]),
        case("the gradients of an earlier step are still there", [[5], [2]], old=True),
    ]


def unequal_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    model = Toy(case["seed"])
    watch = Watch(model)
    before = flat(list(model.parameters()))
    if case["old"]:
        for p in model.parameters():
            p.grad = torch.ones_like(p)
    loss = answer(model, [(tokens.clone(), targets.clone()) for tokens, targets in case["pieces"]])
    grads = [p.grad for p in model.parameters()]
    return {
        **number(loss.detach() if isinstance(loss, Tensor) else loss),
        "grads": None if any(grad is None for grad in grads) else flat(grads),
        "moved": bool((flat(list(model.parameters())) != before).any()),
        **watch.seen(),
    }


def _unequal(case: Case) -> tuple[Tensor, float, dict[str, Tensor]]:
    """The right gradient and loss; what each misconception would leave in p.grad."""
    model, pieces = Toy(case["seed"]), case["pieces"]
    sums = torch.stack([gradient(model, summed_loss(model, [one])) for one in pieces])
    counts = [valid([one]) for one in pieces]
    slots = [targets.numel() for _, targets in pieces]
    total, k = sum(counts), len(pieces)
    right = sums.sum(0) / total
    means = torch.stack([s / max(c, 1) for s, c in zip(sums, counts, strict=True)])
    full = sum(c > 0 for c in counts)
    guesses = {
        "mean-of-means-is-fine": means.sum(0) / k,
        "skips-the-empty-one": means.sum(0) / full,
        "forgets-to-divide": means.sum(0),
        "padding-counts": sums.sum(0) / sum(slots),
        "sums-need-no-divisor": sums.sum(0),
        "divides-twice": right / k,
        "keeps-the-last-micro-batch": sums[-1] / total,
        "old-gradients-stay": right + 1 if case["old"] else right,
    }
    return right, float(summed_loss(model, pieces).detach()) / total, guesses


UNEQUAL_HINTS = {
    "mean-of-means-is-fine": "What does a token's weight depend on in your code?",
    "skips-the-empty-one": "What does a token's weight depend on in your code, and who has a vote in it?",
    "forgets-to-divide": "It has the length of several means added up. By what is each of them to be divided?",
    "padding-counts": "It is too short: is every position of `targets` a token that counts?",
    "sums-need-no-divisor": "It is the gradient of a sum. Of what is the mean wanted?",
    "divides-twice": "It points the right way and is too short: how often do you divide?",
    "keeps-the-last-micro-batch": "Only one micro-batch is in it. When are gradients cleared in your loop?",
    "old-gradients-stay": "What was in p.grad before your first backward?",
}


def unequal_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Relative 1e-5 for the gradient, see TOLERANCE; the same for the loss."""
    if returned["moved"]:
        return Wrong("the weights have changed. This function fills p.grad; the optimizer moves the weights later.")
    right, loss, guesses = _unequal(case)
    got = returned["grads"]
    if got is None or float(got.norm()) == 0:
        filled = (
            "It was filled once: what clears it, and when?" if returned["backwards"] else "Which call fills p.grad?"
        )
        what = "a parameter has no gradient" if got is None else "every gradient is zero"
        return Wrong(f"{what} after your function. {filled}")
    if not bool(torch.isfinite(got).all()):
        return Wrong("a gradient is NaN. What is the mean over no tokens at all?", "an-empty-mean-is-zero")
    if close(got, right):
        return _unequal_loss(case, returned, loss) or one_at_a_time(case["pieces"], returned)
    off = float((got - right).norm() / right.norm())
    before = " With equal counts you are right." if len({valid([one]) for one in case["pieces"]}) > 1 else ""
    for rule, message in UNEQUAL_HINTS.items():
        if close(got, guesses[rule]) and not close(guesses[rule], right):
            first = f"the gradient is off by {how_far(off)} of its length."
            tail = before if rule in ("mean-of-means-is-fine", "skips-the-empty-one") else ""
            return Wrong(f"{first}{tail} {message}", rule)
    if off < 1e-3:
        return Wrong(f"nearly right (off by {off:.0e} of its length): a rounding, in which number format?")
    return Wrong(f"the gradient is off by {how_far(off)} of its length")


def _unequal_loss(case: Case, returned: dict[str, Any], loss: float) -> Wrong | None:
    if "number" not in returned:
        return Wrong(f"the gradients are right; {came(returned['type'])} instead of the mean loss, a float")
    if same_number(returned["number"], loss):
        return None
    if math.isnan(returned["number"]):
        message = "the gradients are right, the loss is NaN. What is the mean over no tokens at all?"
        return Wrong(message, "an-empty-mean-is-zero")
    model, pieces = Toy(case["seed"]), case["pieces"]
    means = [float(summed_loss(model, [one]).detach()) / max(valid([one]), 1) for one in pieces]
    parts = [float(summed_loss(model, [one]).detach()) / valid(pieces) for one in pieces]
    if same_number(returned["number"], parts[-1]):
        return Wrong("the gradients are right; the loss is that of the last micro-batch alone", "logs-the-last")
    if same_number(returned["number"], sum(means) / len(means)):
        message = "the gradients are right; the loss that you return is still a mean of means"
        return Wrong(message, "mean-of-means-is-fine")
    return Wrong(f"the gradients are right; {returned['number']:.4g} is not the mean loss of a token that counts")


UNEQUAL = Exercise(
    id="unequal-tokens",
    title="Unequal tokens",
    cases=unequal_cases,
    run=unequal_run,
    judge=unequal_judge,
    misconceptions={
        "mean-of-means-is-fine": "the mean of the micro-batches' means is the mean of the batch",
        "skips-the-empty-one": "the mean of means is right once empty micro-batches are left out",
        "forgets-to-divide": "gradients of means add up to the gradient of the mean",
        "padding-counts": "a batch has as many tokens as positions",
        "sums-need-no-divisor": "the length of a gradient does not matter",
        "divides-twice": "a sum over the global count still has to be divided by the steps",
        "keeps-the-last-micro-batch": "gradients are cleared before each backward",
        "old-gradients-stay": "gradients start at zero",
        "an-empty-mean-is-zero": "the mean over no tokens is 0",
        "logs-the-last": "the last micro-batch's loss is that of the step",
        "joins-the-micro-batches": "micro-batches are there for the arithmetic, not for the memory",
    },
)
