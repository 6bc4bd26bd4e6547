"""Check 07.5: a diagnosis from what the ranks of a run wrote down, while its loss looks fine.

The runs are real ones of a small model in FP32, with their ranks one after the other in this process: every rank has
weights, data and gradients of its own, and what a fault leaves out is left out there.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch03_accumulate import Toy, flat, how_far, piece, summed_loss, valid
from course_lib.checks.core import Case, Exercise, Wrong, kind

__all__ = ["FAULTS", "SUSPECTS", "Run", "recorded"]

FAULTS = ("healthy", "never", "first", "last", "weights", "apart", "averaged")
RATE = 0.5

Run = list[dict[str, Any]]
"""One dict a rank: "loss", "before", "after", "own", "used", each a list over the steps."""


def _checksum(weights: Tensor) -> int:
    return int.from_bytes(hashlib.sha256(weights.numpy().tobytes()).digest()[:6], "big")


def _used(fault: str, own: list[list[Tensor]]) -> list[Tensor]:
    """What each rank's optimizer gets of own[rank][micro-batch], rank by rank."""
    n = len(own)
    total = lambda parts: torch.stack(list(parts)).sum(0)
    whole = total([total(rank) for rank in own][::-1])  # an all-reduce adds in an order of its own
    if fault in ("never", "weights"):
        return [total(rank) for rank in own]
    if fault == "averaged":
        return [whole / n] * n
    if fault in ("first", "last"):
        one = 0 if fault == "first" else -1
        shared = total([rank[one] for rank in own][::-1])
        return [total(rank) - rank[one] + shared for rank in own]
    return [whole] * n


def recorded(seed: int, counts: list[list[int]], steps: int, fault: str, at: Sequence[int], who: int) -> Run:
    """Train `steps` steps with a fault in those of them that are in `at`, and write down what each rank could.

    counts: [rank][micro-batch] -> tokens that count. who: the rank that starts apart.
    """
    g = torch.Generator().manual_seed(seed)
    models = [Toy(seed).float() for _ in counts]
    if fault == "apart":
        models[who] = Toy(seed + 1).float()
    run: Run = [{"loss": [], "before": [], "after": [], "own": [], "used": []} for _ in counts]
    for step in range(steps):
        data = [[piece(g, [count]) for count in rank] for rank in counts]
        tokens = sum(map(sum, counts))
        own = []
        for model, pieces, log in zip(models, data, run, strict=True):
            losses = [summed_loss(model, [one]) for one in pieces]
            grads = [torch.autograd.grad(loss / tokens, list(model.parameters())) for loss in losses]
            own.append([torch.cat([part.flatten() for part in grad]) for grad in grads])
            log["before"].append(_checksum(_weights(model)))
            log["loss"].append(sum(float(loss.detach()) for loss in losses) / max(valid(pieces), 1))
        now = fault if step in at else "healthy"
        if now == "weights":
            mean = torch.stack([_weights(model) for model in models]).mean(0)
            for model in models:
                _put(model, mean)
        for model, log, mine, used in zip(models, run, own, _used(now, own), strict=True):
            log["after"].append(_checksum(_weights(model)))
            log["own"].append(mine)
            log["used"].append(used.clone())
            _put(model, _weights(model) - RATE * used)
    return run


def _weights(model: Toy) -> Tensor:
    return flat(list(model.parameters())).float()


@torch.no_grad()
def _put(model: Toy, weights: Tensor) -> None:
    at = 0
    for p in model.parameters():
        p.copy_(weights[at : at + p.numel()].view_as(p))
        at += p.numel()


PLAIN = 7
"""Cases with the fault in every step, one of each kind, to begin with."""


def suspects_cases(seed: int) -> list[Case]:
    """Each rule of thumb is wrong in a case of its own; a fault is in every step, or in one that is not the first.

    "weights" is never in a single step: while all weights are equal, their mean changes nothing.
    """
    rng = np.random.default_rng([seed, 705])

    def case(fault: str, ranks: int, micro: int, steps: int = 3, only: int | None = None, who: int = 1) -> Case:
        counts = [[int(rng.integers(1, 9)) for _ in range(micro)] for _ in range(ranks)]
        at = list(range(steps)) if only is None else [only]
        run = recorded(int(rng.integers(10**6)), counts, steps, fault, at, who)
        return {"fault": fault, "at": at, "who": who, "run": run}

    cases = [
        case("healthy", 3, 3),
        case("never", 2, 2),
        case("first", 2, 3),
        case("last", 3, 3),
        case("weights", 2, 2),
        case("apart", 2, 3),
        case("averaged", 3, 2),
        case("apart", 3, 2, who=2),
        case("never", 2, 3, 4, only=2),
        case("averaged", 2, 2, 3, only=2),
        case("healthy", 4, 1, 2),
        case("last", 2, 2, 3, only=1),
        case("weights", 3, 1, 2),
        case("never", 4, 1),
        case("first", 4, 2, 3, only=2),
    ]
    # Another order for every seed, so that a count of the calls does not know the word; plain runs come first.
    order = [0, *rng.permutation(range(1, PLAIN)), *rng.permutation(range(PLAIN, len(cases)))]
    return [{"name": f"run {number}", **cases[index]} for number, index in enumerate(order, start=1)]


def _shape(run: Run) -> str:
    steps, micro = len(run[0]["loss"]), len(run[0]["own"][0])
    return f"{len(run)} ranks, {micro} micro-batch{'es' if micro > 1 else ''}, {steps} steps"


PROBES = ("never", "apart", "averaged")


def suspects_run(answer: Callable[..., Any], case: Case) -> Any:
    """The word; for a run that was called healthy, also the words for three plain faults on two ranks."""
    returned = answer(case["run"])
    if not isinstance(returned, str):
        return {"said": None, "what": kind(returned)}
    told: dict[str, Any] = {"said": returned, "probes": []}
    if returned.strip() == "healthy":
        for number, fault in enumerate(PROBES):
            word = answer(recorded(number, [[3, 5], [8, 2]], 3, fault, range(3), 1))
            told["probes"].append(word.strip() if isinstance(word, str) else "")
    return told


HINTS = {
    "a-falling-loss-is-healthy": "'healthy' it is not. What is not as it should be, while each loss looks fine?",
    "equal-checksums-are-healthy": "'healthy' it is not, though checksums agree. What can be wrong on all ranks alike?",
    "right-gradients-are-enough": "'healthy' it is not: the gradients are right, and what is it that they move?",
    "the-first-step-tells": "'healthy' it is not in every step. How many of them did you look at?",
    "two-ranks-tell": "'healthy' it is not on every rank. How many of them did you look at?",
    "healthy-ranks-are-equal-in-all": (
        "there is no fault in this run. What differs anyway? How equal are FP32 sums in another order?"
    ),
    "different-weights-started-so": "the weights of these ranks differ. Since when, and what came before?",
    "own-gradients-tell-all": "no gradient was sent in this run. Was nothing? Look at the weights around backward",
    "weights-changed-so-they-were-sent": "the weights change in every step. Do they change during backward?",
    "unequal-ranks-sent-nothing": "the ranks' gradients differ. Is there nothing in them that came from another rank?",
    "which-micro-batch": "one micro-batch was summed over the ranks. Was it this one?",
}


def suspects_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: a word. The faults change a gradient by far more than the 1e-5 that the text allows for rounding."""
    if returned["said"] is None:
        return Wrong(f"return one of the seven words of the text; {returned['what']} came back", form=True)
    said, truth, run = returned["said"].strip(), case["fault"], case["run"]
    if said not in FAULTS:
        return Wrong(f"{said[:40]!r} is none of the seven words: {', '.join(FAULTS)}", form=True)
    if said == truth:
        return None
    rule, shape = _belief(case, said, truth, returned["probes"]), _shape(run)
    if rule == "healthy-ranks-are-equal-in-all" and said in ("first", "last") and len(run[0]["own"][0]) == 1:
        both = f"{said!r} and 'healthy' predict the same gradient here"
        return Wrong(f"{shape}: {both}, and {said!r} does not occur with one micro-batch. Which do you try first?")
    if rule is not None:
        return Wrong(f"{shape}: {HINTS[rule]}", rule)
    if said == "healthy":
        step, rank, far = _off(run)
        off = f"in step {step} rank {rank} used a gradient that is {how_far(far)} of its length away from the whole sum"
        return Wrong(f"{shape}: 'healthy' it is not: {off}. Which of your predictions comes nearest, and how near?")
    step, rank = _contradicts(run, said)
    return Wrong(
        f"{shape}: {said!r} does not fit: with it, rank {rank} would have used another gradient in step {step}"
    )


def _belief(case: Case, said: str, truth: str, probes: list[str]) -> str | None:
    """probes: what was said of `PROBES`, where the run was called healthy."""
    if truth == "healthy":
        return "healthy-ranks-are-equal-in-all"
    if said == "healthy":
        if truth == "apart" and set(probes) != {"healthy"}:
            return "two-ranks-tell" if case["who"] > 1 and probes[1] == "apart" else "right-gradients-are-enough"
        if set(probes) == {"healthy"}:
            return "a-falling-loss-is-healthy"
        if truth == "averaged" and probes[2] == "healthy":
            return "equal-checksums-are-healthy"
        return "the-first-step-tells" if 0 not in case["at"] and probes[PROBES_OF.get(truth, 0)] != "healthy" else None
    if said == "apart":
        return "different-weights-started-so" if truth != "averaged" else None
    if said == "never":
        return {"weights": "own-gradients-tell-all", "first": "unequal-ranks-sent-nothing"}.get(
            truth, "unequal-ranks-sent-nothing" if truth == "last" else None
        )
    if {said, truth} == {"first", "last"}:
        return "which-micro-batch"
    return "weights-changed-so-they-were-sent" if said == "weights" and truth == "never" else None


PROBES_OF = {"averaged": 2}


def _off(run: Run) -> tuple[int, int, float]:
    """The first (step, rank) whose gradient is not the whole sum, and how far it is from that."""
    for step in range(len(run[0]["loss"])):
        own = [log["own"][step] for log in run]
        for rank, (log, whole) in enumerate(zip(run, _used("healthy", own), strict=True)):
            far = float((log["used"][step] - whole).norm() / whole.norm())
            if far > 1e-4:
                return step, rank, far
    return 0, 0, 0.0


def _contradicts(run: Run, said: str) -> tuple[int, int]:
    """The first (step, rank) whose gradient neither `said` nor health explains."""
    for step in range(len(run[0]["loss"])):
        own = [log["own"][step] for log in run]
        guesses = zip(_used(said, own), _used("healthy", own), strict=True)
        for rank, (log, pair) in enumerate(zip(run, guesses, strict=True)):
            used = log["used"][step]
            if all(float((used - guess).norm()) > 1e-4 * float(guess.norm()) for guess in pair):
                return step, rank
    return 0, 0


SUSPECTS = Exercise(
    id="silent-bug",
    title="Find the silent bug",
    cases=suspects_cases,
    run=suspects_run,
    judge=suspects_judge,
    of_judge=("fault", "at", "who"),
    misconceptions={
        "a-falling-loss-is-healthy": "a run whose loss falls on every rank is healthy",
        "equal-checksums-are-healthy": "when the ranks agree, they are right",
        "right-gradients-are-enough": "ranks that get the right gradient have the right weights",
        "the-first-step-tells": "a run that begins well is well",
        "two-ranks-tell": "to compare two ranks is to compare all",
        "healthy-ranks-are-equal-in-all": "ranks of a healthy run agree in losses and gradients, to the last bit",
        "different-weights-started-so": "ranks with different weights have started with different weights",
        "own-gradients-tell-all": "where no gradient was summed, nothing was",
        "weights-changed-so-they-were-sent": "weights that change have been averaged",
        "unequal-ranks-sent-nothing": "gradients that differ have not been summed",
        "which-micro-batch": "it does not matter which micro-batch was summed",
    },
)
