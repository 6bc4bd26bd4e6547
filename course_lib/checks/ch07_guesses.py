"""What each misconception about data parallel would leave in p.grad, for check 07.3."""

import torch
from torch import Tensor

from course_lib.checks.ch03_accumulate import Pieces, Toy, gradient, summed_loss, valid

__all__ = ["HINTS", "guessed_gradients"]


def _sums(model: Toy, step: list[Pieces]) -> tuple[list[list[Tensor]], list[list[int]]]:
    """[rank][micro-batch]: the gradient of the summed loss, and the number of tokens that count."""
    sums = [[gradient(model, summed_loss(model, [one])) for one in rank] for rank in step]
    return sums, [[valid([one]) for one in rank] for rank in step]


def guessed_gradients(model: Toy, step: list[Pieces]) -> dict[str, list[Tensor]]:
    """What each misconception would leave in p.grad: rule -> one gradient a rank."""
    sums, counts = _sums(model, step)
    n, total = len(step), sum(map(sum, counts))
    mine = [sum(rank, torch.zeros_like(sums[0][0])) for rank in sums]
    whole = sum(mine, torch.zeros_like(mine[0]))
    of_rank = [s / max(sum(c), 1) for s, c in zip(mine, counts, strict=True)]
    of_micro = [
        torch.stack([s / max(c, 1) for s, c in zip(*pair, strict=True)]).mean(0)
        for pair in zip(sums, counts, strict=True)
    ]
    slots = sum(targets.numel() for rank in step for _, targets in rank)
    add = lambda parts: sum(parts, torch.zeros_like(parts[0]))
    same = {
        "mean-of-ranks": add(of_rank) / n,
        "mean-of-means-is-fine": add(of_micro) / n,
        "adds-up-means": add(of_rank),
        "adds-up-means ": add(of_micro),
        "divides-twice": whole / total / n,
        "divides-twice ": whole / total / len(step[0]),
        "sums-need-no-divisor": whole,
        "padding-counts": whole / slots,
        "one-rank-counts": whole / max(sum(counts[0]), 1),
        "mean-of-means-is-fine ": add(
            [add([rank[m] for rank in sums]) / max(sum(rank[m] for rank in counts), 1) for m in range(len(step[0]))]
        )
        / len(step[0]),
    }
    running = [torch.zeros_like(whole)] * n
    for m in range(len(step[0])):
        reduced = add([running[rank] + sums[rank][m] / total for rank in range(n)])
        running = [reduced] * n
    last = add([rank[-1] for rank in sums]) / total
    apart = {
        "never-synchronises": [g / total for g in mine],
        "never-synchronises ": of_rank,
        "one-micro-batch": [add(rank[:-1]) / total + last if len(rank) > 1 else last for rank in sums],
        "keeps-the-last-micro-batch": [last] * n,
        "reduces-the-running-sum": running,
    }
    return {**{rule: [g] * n for rule, g in same.items()}, **apart}


HINTS = {
    "mean-of-ranks": "who has one vote in your mean, a token or a rank?",
    "mean-of-means-is-fine": "who has one vote in your mean, a token or a micro-batch?",
    "adds-up-means": (
        "its length is that of several means added up. By what is their sum to be divided? (An all-reduce sums; DDP "
        "takes the mean.)"
    ),
    "divides-twice": "it points the right way and is too short: how often do you divide?",
    "sums-need-no-divisor": "it is the gradient of a sum. Of what is the mean wanted?",
    "padding-counts": "it is too short: is every position of `targets` a token that counts?",
    "one-rank-counts": "it is divided by the tokens of rank 0 alone",
    "never-synchronises": "each rank moves by its own gradient alone. Who tells it the others'?",
    "one-micro-batch": "only the last micro-batch's gradient is that of all ranks; those before it stay the rank's own",
    "keeps-the-last-micro-batch": "only the last micro-batch is in it. When are gradients cleared in your loop?",
    "reduces-the-running-sum": (
        "each p.grad is summed over the ranks after every micro-batch, and the earlier ones in it are summed already"
    ),
    "old-gradients-stay": "what was in p.grad before the first backward of this update?",
}
