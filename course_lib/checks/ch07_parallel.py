"""Check 07.3: data parallel with accumulation on real ranks, with one synchronisation for each update.

The model is chapter 3's small one, in float64. SGD's move is the gradient times the rate, so that the weights tell with
which gradient each rank was moved. The oracle runs one backward over all tokens of all ranks, in one process.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
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
from course_lib.checks.ch07_guesses import HINTS, guessed_gradients
from course_lib.checks.ch07_ranks import on_ranks, stopped, waits
from course_lib.checks.ch07_watch import UNWAITED, unwaited, watched
from course_lib.checks.core import CHANGED, Case, Exercise, Wrong, came

__all__ = ["PARALLEL"]

RATE, STEPS, SPARE = 0.1, 2, 8
"""SGD's rate; updates in a case; numbers that may be sent for each update beside the gradients."""


def parallel_cases(seed: int) -> list[Case]:
    """Counts of tokens that count, as [rank][micro-batch][row]; the first case has equal ones."""
    g = torch.Generator().manual_seed(1000 * seed + 703)

    def case(name: str, counts: list[list[list[int]]]) -> Case:
        steps = [[[piece(g, rows) for rows in rank] for rank in counts] for _ in range(STEPS)]
        return {"name": name, "seed": seed, "steps": steps}

    return [
        case("two ranks, two micro-batches each, equal counts", [[[6], [6]], [[6], [6]]]),
        case("two ranks with 9 and 12 tokens that count", [[[8], [1]], [[5], [7]]]),
        case("three ranks, one without a token that counts", [[[4, 1]], [[0, 0]], [[8, 3]]]),
        case("one rank, three micro-batches", [[[7], [2], [4]]]),
    ]


def parallel_work(answer: Callable[..., Any], seed: int, steps: list[list[Pieces]]) -> dict[str, Any]:
    """What happens on each rank: `STEPS` calls of the answer, each with micro-batches of its own."""
    rank, model = dist.get_rank(), Toy(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    own = {p.data_ptr() for p in model.parameters()}
    watch, weights, losses, sent, begun, changed = Watch(model), [], [], [], [], False
    for step, pieces in enumerate(steps, start=1):
        mine = [(tokens.clone(), targets.clone()) for tokens, targets in pieces[rank]]
        given = list(mine)
        with watched(f"update {step}") as seen:
            loss = answer(model, optimizer, given)
        losses.append(_loss(loss))
        weights.append(flat(list(model.parameters())))
        begun.append(unwaited(seen) or next(iter(seen.dropped), ""))
        kept = len(given) == len(mine) and all(one is other for one, other in zip(given, mine, strict=True))
        changed |= not kept or any(
            not torch.equal(one, other)
            for pair in zip(mine, pieces[rank], strict=True)
            for one, other in zip(*pair, strict=True)
        )
        sent.append([[name, size, bool(own & set(places))] for name, size, _, places in seen])
    left = any(p.grad is not None and bool((p.grad != 0).any()) for p in model.parameters())
    told = {"weights": weights, "losses": losses, "sent": sent, "begun": begun, "changed": changed, "left": left}
    return {**told, **watch.seen()}


def _loss(returned: Any) -> dict[str, Any]:
    """A float, or a tensor with one number; of another tensor, its shape."""
    if not isinstance(returned, Tensor):
        return number(returned)
    if returned.numel() == 1:
        return number(returned.detach().reshape(()))
    return {"type": f"{type(returned).__name__} of shape {tuple(returned.shape)}"}


def parallel_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    return on_ranks(parallel_work, len(case["steps"][0]), answer, case["seed"], case["steps"])


def _start(case: Case, step: int) -> Toy:
    """The model as all ranks should have it before update `step`, moved there by the oracle."""
    model = Toy(case["seed"])
    for done in case["steps"][:step]:
        pieces = [one for rank in done for one in rank]
        move = gradient(model, summed_loss(model, pieces) / valid(pieces))
        at = 0
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(RATE * move[at : at + p.numel()].view_as(p))
                at += p.numel()
    return model


def parallel_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Weights and loss to a relative 1e-5, see TOLERANCE in `ch03_accumulate`: sums come in another order."""
    if "stopped" in returned:
        return _stands_still(returned["stopped"])
    ranks, old = returned["ranks"], None
    for step, data in enumerate(case["steps"]):
        model = _start(case, step)
        before = flat(list(model.parameters()))
        pieces = [one for rank in data for one in rank]
        right = gradient(model, summed_loss(model, pieces) / valid(pieces))
        for rank, one in enumerate(ranks):
            if one["begun"][step]:
                text, rule = UNWAITED[one["begun"][step]]
                known = rule if rule in PARALLEL.misconceptions else None
                return Wrong(f"update {step + 1}, rank {rank}: {text}", known)
        moved = [(before - one["weights"][step]) / RATE for one in ranks]
        wrong = _wrong_move(case, step, moved, right, old, ranks)
        if wrong is not None:
            return wrong
        wrong = _traffic(model, step, ranks) or _wrong_loss(model, data, step, ranks)
        if wrong is not None:
            return wrong
        old = right
    for rank, one in enumerate(ranks):
        wrong = one_at_a_time([piece for data in case["steps"] for piece in data[rank]], one)
        if wrong is not None:
            return wrong
    if any(one["changed"] for one in ranks):
        return Wrong(f"the updates are right. {_upper(CHANGED)}")
    if any(one["left"] for one in ranks):
        return Wrong("the updates are right; gradients are left behind for the next call. Who clears them?")
    return None


def _stands_still(told: dict[str, Any]) -> Wrong:
    waiting = "did not finish" not in told["first"] or any(map(waits, told["standing"]))
    wrong = stopped(told, "ranks-need-not-agree" if waiting else None)
    return wrong if wrong.misconception in PARALLEL.misconceptions else Wrong(wrong.message)


def _wrong_move(
    case: Case, step: int, moved: list[Tensor], right: Tensor, old: Tensor | None, ranks: list[dict[str, Any]]
) -> Wrong | None:
    if any(not bool(torch.isfinite(move).all()) for move in moved):
        return Wrong("a weight is NaN. What is the mean over no tokens at all?", "an-empty-mean-is-zero")
    if all(close(move, right) for move in moved):
        return None
    which = f"update {step + 1}: "
    if all(float(move.norm()) == 0 for move in moved):
        return Wrong(f"{which}no weight has moved: this function ends with the update")
    if any(own for one in ranks for _, _, own in one["sent"][step]):
        message = f"{which}the weights go wrong, and they themselves were handed to a collective. What is to be summed?"
        return Wrong(message, "reduces-the-weights")
    guesses = guessed_gradients(_start(case, step), case["steps"][step])
    if old is not None:
        guesses["old-gradients-stay"] = [right + old] * len(moved)
        guesses["old-gradients-stay "] = [right + old * len(moved)] * len(moved)  # summed over the ranks once more
    unequal = len({valid(rank) for rank in case["steps"][step]}) > 1
    still = [rank for rank, move in enumerate(moved) if float(move.norm()) == 0]
    if still:
        return Wrong(f"{which}the weights of rank {still[0]} have not moved. Who takes the step of each replica?")
    for rule, guess in guesses.items():
        fits = all(close(move, one) for move, one in zip(moved, guess, strict=True))
        if fits and not all(close(one, right) for one in guess):
            name = rule.strip()
            summed = sum(size for kind, size, _ in ranks[0]["sent"][step] if kind == "all_reduce")
            if name == "never-synchronises" and len(moved) > 1 and summed >= right.numel():
                message = (
                    "the gradients were summed, but the step did not use the sums. Where do they stand, and since when?"
                )
                return Wrong(f"{which}{message}")
            before = " With equal counts you are right." if name.startswith("mean-of") and unequal else ""
            return Wrong(f"{which}the gradient is wrong.{before} {_upper(HINTS[name])}", name)
    rank = next(rank for rank, move in enumerate(moved) if not close(move, right))
    far = float((moved[rank] - right).norm() / right.norm())
    same = all(close(move, moved[0]) for move in moved)
    who = "on all ranks alike" if same else f"on rank {rank}, and the ranks differ"
    return Wrong(f"{which}the gradient is off by {how_far(far)} of its length, {who}")


def _upper(text: str) -> str:
    return text[0].upper() + text[1:]


def _traffic(model: Toy, step: int, ranks: list[dict[str, Any]]) -> Wrong | None:
    """Refuse what is right and sends the gradients more than once for an update, or by something that is not seen."""
    size = sum(p.numel() for p in model.parameters())
    if len(ranks) == 1:
        return None
    for rank, one in enumerate(ranks):
        sent = one["sent"][step]
        reduced = sum(n if name == "all_reduce" else n / 2 for name, n, _ in sent)
        if reduced < size:
            text = f"the weights are right, but rank {rank} had {reduced:g} numbers reduced, for {size} gradients"
            return Wrong(f"{text}. What has summed them? Write it yourself")
        if reduced <= size + SPARE:
            continue
        message = (
            f"the weights are right, but rank {rank} sent as much in one update as an all-reduce of {reduced:g} "
            f"numbers does, for {size} gradients and at most {SPARE} more. "
        )
        if any(own for _, _, own in sent):
            return Wrong(f"{message}Weights were sent too. What keeps them equal without that?")
        if any(name != "all_reduce" for name, _, _ in sent):
            return Wrong(f"{message}Which collective sums, and sends least?")
        return Wrong(f"{message}When is a gradient complete?", "synchronises-every-micro-batch")
    return None


def _wrong_loss(model: Toy, data: list[Pieces], step: int, ranks: list[dict[str, Any]]) -> Wrong | None:
    pieces = [one for rank in data for one in rank]
    loss = float(summed_loss(model, pieces).detach()) / valid(pieces)
    mine = [float(summed_loss(model, rank).detach()) for rank in data]
    means = [s / max(valid(rank), 1) for s, rank in zip(mine, data, strict=True)]
    for rank, one in enumerate(ranks):
        value = one["losses"][step]
        if "number" not in value:
            return Wrong(f"the weights are right; {came(value['type'])} instead of the mean loss, a float", form=True)
        got = value["number"]
        if same_number(got, loss):
            continue
        if math.isnan(got):
            message = "the weights are right, the loss is NaN. What is the mean over no tokens at all?"
            return Wrong(message, "an-empty-mean-is-zero")
        if same_number(got, sum(means) / len(means)):
            return Wrong(
                "the weights are right; the loss that you return is a mean of the ranks' means", "mean-of-ranks"
            )
        if same_number(got, sum(means)):
            return Wrong(
                "the weights are right; the loss that you return is a sum of the ranks' means", "adds-up-means"
            )
        if any(same_number(got, own) for own in (means[rank], mine[rank] / valid(pieces))):
            message = f"the weights are right; the loss on rank {rank} is made of its own tokens alone"
            return Wrong(message, "logs-its-own-rank")
        return Wrong(f"the weights are right; {got:.4g} is not the mean loss of a token that counts, on rank {rank}")
    return None


PARALLEL = Exercise(
    id="data-parallel",
    title="Data parallel with accumulation",
    cases=parallel_cases,
    run=parallel_run,
    judge=parallel_judge,
    forbidden=(
        "DistributedDataParallel",
        "fully_shard",
        "torch.distributed.nn",
        "torch.distributed._functional_collectives",
        "course_lib.parallel",
        "course_lib.trainer",
    ),
    in_place=True,
    misconceptions={
        "mean-of-ranks": "the mean of the ranks' means is the mean of the batch",
        "mean-of-means-is-fine": "the mean of the micro-batches' means is the mean of the batch",
        "adds-up-means": "gradients of means add up to the gradient of the mean",
        "divides-twice": "a sum over the global count still has to be divided by the ranks or the steps",
        "sums-need-no-divisor": "the length of a gradient does not matter",
        "padding-counts": "a batch has as many tokens as positions",
        "one-rank-counts": "every rank has as many tokens as the first",
        "never-synchronises": "equal weights at the start stay equal",
        "one-micro-batch": "what is synchronised last is the whole gradient",
        "keeps-the-last-micro-batch": "gradients are cleared before each backward",
        "reduces-the-running-sum": "p.grad may be summed over the ranks more than once",
        "reduces-the-weights": "to average the weights is to sum the gradients",
        "synchronises-every-micro-batch": "every backward has to be followed by a synchronisation",
        "old-gradients-stay": "gradients start at zero",
        "an-empty-mean-is-zero": "the mean over no tokens is 0",
        "logs-its-own-rank": "a rank's loss is that of the step",
        "ranks-need-not-agree": "a rank may call a collective that the others do not call",
        "async-is-done": "a collective with `async_op=True` has reduced when it returns",
        "joins-the-micro-batches": "micro-batches are there for the arithmetic, not for the memory",
    },
)
