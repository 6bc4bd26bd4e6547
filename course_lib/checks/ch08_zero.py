"""Check 08.2, a ZeRO-1 step on real ranks: the parameters it ends at, the state each rank holds, what was sent."""

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.ch07_ranks import on_ranks, stopped
from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind
from course_lib.parallel.traffic import count_traffic

__all__ = ["ZERO"]

CLOSE = 2e-5
"""Of a parameter near 1. FP32 sums in another order differ by 1e-6; every stated mistake moves one by over 1e-3."""

RATE, BETAS, EPS, DECAY = 0.05, (0.9, 0.95), 0.3, 0.1


def zero_cases(seed: int) -> list[Case]:
    """Shapes are fixed: sizes that the ranks divide, and sizes that they do not; the numbers follow the seed."""
    g = torch.Generator().manual_seed(seed + 802)

    def case(name: str, ranks: int, shapes: list[tuple[int, ...]], steps: int) -> Case:
        return {
            "name": name,
            "ranks": ranks,
            "steps": steps,
            "parameters": [torch.randn(shape, generator=g) for shape in shapes],
            "pulls": [[torch.rand(s, generator=g) for s in shapes] for _ in range(ranks)],
            "pushes": [[[torch.randn(s, generator=g) for s in shapes] for _ in range(steps)] for _ in range(ranks)],
        }

    return [
        case("two ranks, 12 numbers, two steps", 2, [(4, 2), (4,)], 2),
        case("two ranks, 27 numbers, four steps", 2, [(5, 4), (2,), (5,)], 4),
        case("three ranks, 25 numbers, three steps", 3, [(3, 4), (1,), (2, 2, 3)], 3),
    ]


def _gradients(case: Case, rank: int, step: int, parameters: list[Tensor]) -> list[Tensor]:
    """This rank's gradients at `parameters`: each pulls toward a place of its own, which moves with the step."""
    terms = zip(case["pulls"][rank], case["pushes"][rank][step], parameters, strict=True)
    return [pull.to(p.dtype) * p + push.to(p.dtype) for pull, push, p in terms]


def _on_a_rank(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    """What one rank does; everything is measured here, nothing is asked of the answer."""
    parameters = [p.clone() for p in case["parameters"]]
    made: list[torch.optim.Optimizer] = []

    def make_optimizer(tensors: Any) -> torch.optim.Optimizer:
        made.append(torch.optim.AdamW(tensors, lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY))
        return made[-1]

    zero = answer(parameters, make_optimizer)
    with count_traffic() as traffic:
        for step in range(case["steps"]):
            zero.step(_gradients(case, dist.get_rank(), step, [p.detach().clone() for p in parameters]))
    moved: dict[str, int] = {}
    for call in traffic.calls:
        moved[call.kind] = moved.get(call.kind, 0) + call.elements
    states = [entry for optimizer in made for entry in optimizer.state.values()]
    return {
        "parameters": [p.detach().clone() for p in parameters],
        "optimizers": len(made),
        "state": sum(entry[key].numel() for entry in states for key in ("exp_avg", "exp_avg_sq") if key in entry),
        "moved": moved,
    }


def zero_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, type):
        raise WrongForm(f"hand in the class itself, without brackets after it; yours is {kind(answer)}")
    return on_ranks(_on_a_rank, case["ranks"], answer, case)


# What the judge compares with: one process, in float64, AdamW written out.


def _flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.double().flatten() for t in tensors])


def _trained(case: Case, mistake: str = "") -> Tensor:
    """Every rank's parameters at the end, (ranks, P): of the right step, or of one with a mistake."""
    count, shapes = case["ranks"], [p.shape for p in case["parameters"]]
    x = _flat(case["parameters"]).repeat(count, 1)
    m, v = torch.zeros_like(x), torch.zeros_like(x)
    size = x.shape[1]
    owner = torch.arange(size) // -(-size // count)
    held = x  # the shards, which the parameters follow
    grad, updates = torch.zeros_like(x), 0
    for step in range(case["steps"]):
        split = [[n.view(s) for n, s in zip(row.split([s.numel() for s in shapes]), shapes, strict=True)] for row in x]
        own = torch.stack([_flat(_gradients(case, rank, step, split[rank])) for rank in range(count)])
        g = own.sum(0).repeat(count, 1)
        if mistake == "averages-the-sum":
            g = g / count
        if mistake == "only-my-gradient":
            g = own[owner, torch.arange(size)].repeat(count, 1)
        g = grad = g + grad if mistake == "a-step-empties-grad" else g
        if mistake == "starts-anew-every-step":
            m, v, updates = torch.zeros_like(x), torch.zeros_like(x), 0
        new = held
        for _ in range(2 if mistake == "updates twice" else 1):
            updates += 1
            m, v = BETAS[0] * m + (1 - BETAS[0]) * g, BETAS[1] * v + (1 - BETAS[1]) * g * g
            first, second = m / (1 - BETAS[0] ** updates), v / (1 - BETAS[1] ** updates)
            new = new - RATE * DECAY * new - RATE * first / (second.sqrt() + EPS)
        if mistake == "the-ranks-divide-the-size":
            new[:, size - size % count :] = x[:, size - size % count :]
        x, held = held if mistake == "gathers-too-early" else new, new
    return x


ZERO_HINTS = {
    "averages-the-sum": (
        "each update is that of a gradient divided by the number of ranks. Their SUM is the gradient of the batch: "
        "AdamW hides a factor where its eps is small, and here eps is not"
    ),
    "only-my-gradient": "each rank updates its shard with its own gradient. Who has the gradients of the other ranks?",
    "starts-anew-every-step": "the first step is right, later ones begin again. What does AdamW keep between steps?",
    "gathers-too-early": "the parameters are one update behind. What is gathered, and when?",
    "a-step-empties-grad": "the first step is right, later ones are not. What is in `.grad` when a new sum comes?",
    "updates twice": "each step updates the shard twice with the same gradient",
    "the-ranks-divide-the-size": "the last numbers never change: the ranks do not divide the size, and a rest is left",
}


def zero_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Within 2e-5 (see CLOSE) of one process in float64, on every rank; numbers sent and kept are whole."""
    if "stopped" in returned:
        return _stopped(returned["stopped"])
    ranks, size = returned["ranks"], sum(p.numel() for p in case["parameters"])
    if any([p.shape for p in rank["parameters"]] != [p.shape for p in case["parameters"]] for rank in ranks):
        return Wrong("the parameters have another shape now. Write into them in place")
    got, right = torch.stack([_flat(rank["parameters"]) for rank in ranks]), _trained(case)
    if not _near(got, right):
        return _wrong_parameters(case, ranks, got)
    return _wrong_traffic(case, ranks[0]["moved"], size) or _wrong_state(case, ranks, size)


def _stopped(told: dict[str, Any]) -> Wrong:
    wrong = stopped(told, "a-collective-is-for-some")
    if "is less than the" in told["first"]:  # the notebook's `joined`
        return Wrong(f"the ranks do not divide every size. {wrong.message}", "the-ranks-divide-the-size")
    if any(words in told["first"] for words in ("invalid tensor size", "outputShape", "another shape")):
        message = "a collective wants parts of one size on all ranks. What if the ranks do not divide it? "
        return Wrong(message + wrong.message, "the-ranks-divide-the-size")
    return wrong


def _near(got: Tensor, wanted: Tensor) -> bool:
    return bool(((got - wanted).abs() <= CLOSE * wanted.abs().clamp(min=1)).all())


def _wrong_parameters(case: Case, ranks: list[dict[str, Any]], got: Tensor) -> Wrong:
    before, moved = _flat(case["parameters"]), ranks[0]["moved"]
    still = _near(got, before.repeat(len(ranks), 1))
    if still and not moved:
        message = "nothing was sent, and the parameters are as they were. How does a rank learn of the others?"
        return Wrong(message, "nobody-talks")
    if all(rank["optimizers"] and not rank["state"] for rank in ranks):
        return Wrong("no optimizer updated anything: which tensor has it, and what is that tensor's `.grad`?")
    if still:
        message = "the parameters that were handed over are as they were. Do you write into them, a copy, or nowhere?"
        return Wrong(message, "works-on-a-copy")
    if not any(rank["optimizers"] for rank in ranks):
        return Wrong("`make_optimizer` was not called: its AdamW has other settings than one that you make yourself")
    for rule, hint in ZERO_HINTS.items():
        if _near(got, _trained(case, rule)):
            return Wrong(hint, rule if rule in ZERO.misconceptions else None)
    if not _near(got, got[:1].repeat(len(ranks), 1)):
        which = int(((got - got[0]).abs() > CLOSE).any(0).sum())
        text = f"after {case['steps']} step{'s' if case['steps'] > 1 else ''} the ranks differ in {which} parameters"
        if not moved:
            return Wrong(f"{text}, and nothing was sent. How does a rank learn of the others?", "nobody-talks")
        if "all_gather" not in moved:
            return Wrong(f"{text}. How does a rank get the parameters that others updated?", "forgets-the-all-gather")
        return Wrong(f"{text}. Compare what each rank sends with where the others put it")
    if moved.get("reduce_scatter", 0) and moved.get("all_gather", 0):
        text = "the ranks agree, and are not where one process would be"
        return Wrong(
            f"{text}: does each rank update the numbers whose sum it got, and do they come back in their place?"
        )
    return Wrong("the ranks agree, and are not where one process would be")


def _wrong_traffic(case: Case, moved: dict[str, int], size: int) -> Wrong | None:
    most = case["steps"] * (size + len(case["parameters"]) * (case["ranks"] - 1))
    a_step = {name: count / case["steps"] for name, count in moved.items()}
    scattered, gathered = moved.get("reduce_scatter", 0), moved.get("all_gather", 0)
    others = {name: count for name, count in a_step.items() if name not in ("reduce_scatter", "all_gather")}
    if others.get("all_reduce", 0) >= size and scattered and not gathered:
        message = (
            "the parameters are right. The updated shards come together in an all-reduce: what is cheaper for that?"
        )
        return Wrong(message, "all-reduces-the-shards")
    if others.get("all_reduce", 0) >= size and not scattered:
        message = "the parameters are right. The gradients were all-reduced: what does a rank need of their sum?"
        return Wrong(message, "all-reduces")
    if gathered > most:
        message = (
            f"the parameters are right. {a_step['all_gather']:g} numbers a step were gathered, for {size} parameters. "
            "What else than updated parameters do you gather, or what twice?"
        )
        return Wrong(message, "all-gathers-gradients")
    if any(count > 8 for count in others.values()):
        named = ", ".join(sorted(others))
        return Wrong(f"the parameters are right, with {named}; use reduce-scatter and all-gather")
    if scattered > most:
        return Wrong(f"the parameters are right. {a_step['reduce_scatter']:g} numbers a step were reduced, for {size}")
    if scattered < case["steps"] * size or gathered < case["steps"] * size:
        return Wrong("the parameters are right, and not every number was reduce-scattered and gathered in each step")
    return None


def _wrong_state(case: Case, ranks: list[dict[str, Any]], size: int) -> Wrong | None:
    if not all(rank["optimizers"] for rank in ranks):
        return Wrong("the parameters are right. Let `make_optimizer` make the optimizer: the check looks at its state")
    share = math.ceil(size / case["ranks"])
    allowed = 2 * (share + len(case["parameters"]))
    most = max(rank["state"] for rank in ranks)
    if most > allowed:
        message = (
            f"the parameters are right. A rank's optimizer keeps {most} numbers for {size} parameters on "
            f"{case['ranks']} ranks. Of which parameters does it need averages?"
        )
        if max(rank["optimizers"] for rank in ranks) > 1:
            message += " `make_optimizer` was called more than once: are all of its optimizers needed?"
        return Wrong(message, "keeps-the-full-state")
    return None


ZERO = Exercise(
    id="zero-1-step",
    title="A ZeRO-1 step",
    cases=zero_cases,
    run=zero_run,
    judge=zero_judge,
    forbidden=("course_lib.parallel", "torch.distributed.optim", "torch.distributed.fsdp"),
    misconceptions={
        "keeps-the-full-state": "each rank keeps the averages of all parameters",
        "all-gathers-gradients": "every rank needs the gradients of all others",
        "all-reduces": "gradients have to be summed whole on every rank",
        "all-reduces-the-shards": "a vector that is zero elsewhere has to be summed to be put together",
        "a-step-empties-grad": "an optimizer's step empties `.grad`",
        "averages-the-sum": "the ranks' gradients are averaged, whatever the loss was divided by",
        "only-my-gradient": "a shard is updated with the rank's own gradient",
        "forgets-the-all-gather": "a parameter that one rank has updated is updated",
        "nobody-talks": "replicas that start alike stay alike",
        "starts-anew-every-step": "an optimizer can be made whenever it is needed",
        "the-ranks-divide-the-size": "the number of ranks divides every size",
        "gathers-too-early": "the order of update and gather does not matter",
        "works-on-a-copy": "changing a copy of a tensor changes the tensor",
        "a-collective-is-for-some": "only the ranks that have something to send call a collective",
    },
)
