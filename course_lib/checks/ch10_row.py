"""Check 10.2: the row-parallel linear layer. Each rank has some of the inputs, and a part of every sum."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.ch10_linear import (
    afterwards,
    calls_in,
    layer_cases,
    layer_run,
    no_tensor,
    off,
    stopped_here,
    whole,
)
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["ROW"]

SIZES = {
    "two ranks, a square weight": (2, 6, 6, 3, 5),
    "two ranks, eight inputs, three outputs": (2, 3, 8, 3, 5),
    "three ranks, six inputs, nine outputs": (3, 9, 6, 1, 4),
    "four ranks, eight inputs": (4, 5, 8, 3, 1),
    "one rank": (1, 3, 4, 2, 2),
}


def row_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Numbers within 1e-4 of the largest, see CLOSE; shapes and calls exact. Oracle: autograd over the whole layer."""
    if "stopped" in returned:
        return stopped_here(returned, "a-collective-is-for-some")
    right = whole(case, "input")
    return (
        _wrong_slice(case, returned["ranks"])
        or _wrong_forward(case, returned, right)
        or _wrong_backward(case, returned, right)
    )


def _wrong_slice(case: Case, ranks: list[dict[str, Any]]) -> Wrong | None:
    n, weight, bias = case["ranks"], case["weight"], case["bias"]
    outputs, inputs = weight.shape
    for rank, one in enumerate(ranks):
        for name in ("weight", "bias"):
            if not isinstance(one[name], Tensor):
                message = f"`self.{name}` is to be a tensor on every rank; on rank {rank} yours is {one[name]}"
                return Wrong(message, form=True)
        shape = tuple(one["weight"].shape)
        where = f"`self.weight` has shape {shape} on rank {rank} of {n}"
        if shape != (outputs, inputs // n):
            if shape == (outputs, inputs):
                return Wrong(f"{where}: that is all of it. What is split?", "keeps-the-whole")
            if shape == (outputs // n, inputs):
                return Wrong(f"{where}. Which of the two numbers is the inputs?", "cuts-the-outputs")
            return Wrong(f"{where}; the whole has {(outputs, inputs)}")
        shape = tuple(one["bias"].shape)
        if shape != (outputs,):
            message = f"`self.bias` has shape {shape} on rank {rank} of {n}. How many outputs does this rank return?"
            return Wrong(message, "cuts-the-bias")
    got = [one["weight"] for one in ranks]
    if not all(torch.equal(a, b) for a, b in zip(got, weight.chunk(n, 1), strict=True)):
        if all(torch.equal(a, weight[:, rank::n]) for rank, a in enumerate(got)):
            message = f"`self.weight`: rank 0 has the weights of every {n}-th input. Which inputs does it get?"
            return Wrong(message, "every-nth")
        if outputs == inputs and all(torch.equal(a, b.T) for a, b in zip(got, weight.chunk(n, 0), strict=True)):
            return Wrong("`self.weight` is cut from the outputs, and turned. Which inputs meet it?", "cuts-the-outputs")
        if all(torch.equal(a, got[0]) for a in got):
            return Wrong("`self.weight` is the same on all ranks. Who has the other inputs' weights?")
        return Wrong("`self.weight` is not part number `group.rank` of the whole, in the order of the ranks")
    if not all(torch.equal(one["bias"], bias) for one in ranks):
        message = "`self.bias` is not the whole bias on every rank. Each rank keeps it as it is, and updates it alike"
        return Wrong(message)
    return None


def _wrong_forward(case: Case, returned: dict[str, Any], right: dict[str, Tensor]) -> Wrong | None:
    n, y, bias, calls = case["ranks"], right["y"], case["bias"].double(), calls_in(returned, "forward")
    if n > 1 and calls_in(returned, ""):
        return Wrong("a collective is called when the layer is made. What has to travel then?")
    got, wanted = [rank["y"] for rank in returned["ranks"]], [y] * n
    wrong = no_tensor("what forward returned", got, wanted)
    if wrong is not None:
        return wrong
    if off(got, wanted):
        own = list(right["partial"])
        if not off(got, [y + (n - 1) * bias] * n):
            return Wrong(f"the output is off by {n - 1} times the bias. How often is it added?", "every-rank-adds-it")
        if not off(got, own) or not off(got, [part + bias for part in own]):
            message = "each rank returns the sum over its own inputs. Where are the others'?"
            return Wrong(message, "a-part-is-the-sum")
        for shift in (0, 1):
            if not off(got, [(y - bias) / n + shift * bias] * n):
                message = f"the ranks' parts are averaged: the sum over the inputs is {n} times too small"
                return Wrong(message, "averages")
        if not off(got, [y - bias] * n):
            return Wrong("the sum is right, and the bias is missing on every rank", "forgets-the-bias")
        if not off(got, [y - bias + bias / n] * n):
            return Wrong(f"the sum is right, and the bias is {n} times too small")
        if not off(got, [y - (0 if rank == 0 else 1) * bias for rank in range(n)]):
            message = "rank 0 returns the right output, on the others the bias is missing"
            return Wrong(message, "rank-0-adds-it-for-itself")
        return Wrong("the output is not that of the whole layer")
    return _wrong_calls(n, calls, y.numel(), case["x"].numel())


def _wrong_calls(n: int, calls: list[tuple[str, int]], most: int, inputs: int) -> Wrong | None:
    """Refuse a forward that is right and sends too much."""
    if n == 1 or calls in ([("all_reduce", most)], [("reduce_scatter", most), ("all_gather", most // n)]):
        return None
    told = ", ".join(f"{name} of {elements} numbers" for name, elements in calls)
    message = f"the output is right, and forward called {told}. "
    if ("all_gather", inputs // n) in calls or any(name == "all_gather" and size > most for name, size in calls):
        return Wrong(f"{message}What is gathered, and what is split for then?", "gathers-the-inputs")
    if ("all_gather", most) in calls:
        return Wrong(f"{message}Every rank gets every part, and adds them up. What does a sum need?", "gathers-to-add")
    return Wrong(f"{message}One all-reduce of {most} numbers is enough")


def _wrong_backward(case: Case, returned: dict[str, Any], right: dict[str, Tensor]) -> Wrong | None:
    n, ranks = case["ranks"], returned["ranks"]
    wanted = {
        "x_grad": list(right["x_grad"].chunk(n, -1)),
        "weight_grad": list(right["weight_grad"].chunk(n, 1)),
        "bias_grad": [right["bias_grad"]] * n,
    }
    names = {"x_grad": "the gradient of x", "weight_grad": "`self.weight_grad`", "bias_grad": "`self.bias_grad`"}
    got = {name: [rank[name] for rank in ranks] for name in wanted}
    times = {name: not off(got[name], [n * part for part in parts]) for name, parts in wanted.items()}
    if n > 1 and all(times.values()):
        message = f"all three gradients are {n} times too large. Every rank was given the gradient of the output, whole"
        return Wrong(message, "a-sum-backward-is-a-sum")
    for name, parts in wanted.items():
        wrong = _wrong_gradient(names[name], got[name], parts, right["x_grad"] if name == "x_grad" else None)
        if wrong is not None:
            return wrong
    if n > 1 and calls_in(returned, "backward"):
        told = ", ".join(name for name, _ in calls_in(returned, "backward"))
        message = f"the gradients are right, and backward called {told}. What does a rank lack for its own part?"
        return Wrong(message, "every-pass-talks")
    return afterwards(returned, {name: wanted[name] for name in ("weight_grad", "bias_grad")})


def _wrong_gradient(name: str, got: list[Any], parts: list[Tensor], full: Tensor | None) -> Wrong | None:
    n = len(parts)
    if n > 1 and full is not None and not off(got, [full] * n):
        message = f"{name} came back whole on every rank. Which part of x does a rank have?"
        return Wrong(message, "every-pass-talks")
    if n > 1 and isinstance(got[0], Tensor) and not off(got[:1], parts[:1]):
        missing = all(not isinstance(one, Tensor) or not bool(one.any()) for one in got[1:])
        if missing:
            message = f"{name} is there on rank 0 alone. What do the other ranks' optimizers do with their copy?"
            return Wrong(message, "rank-0-adds-it-for-itself")
    wrong = no_tensor(name, got, parts)
    if wrong is not None or not off(got, parts):
        return wrong
    total = sum(parts[1:], parts[0])
    if n > 1 and not off(got, [total] * n):
        rule = "every-gradient-is-reduced"
        if not off(parts, [parts[0]] * n):  # the bias: every rank has the same already
            return Wrong(f"{name} is {n} times too large: it was the same on every rank before it was summed", rule)
        return Wrong(f"{name} is summed over the ranks. Is it of the same inputs on each of them?", rule)
    if n > 1 and not off(got, [total / n] * n):
        message = f"{name} is averaged over the ranks. Is it of the same inputs on each of them?"
        return Wrong(message, "averages")
    if n > 1 and not off(got, [part / n for part in parts]):
        return Wrong(f"{name} is {n} times too small. Of how many layers is this one gradient?", "averages")
    ask = ". Over which of B and T is it a sum?" if full is None else ""
    return Wrong(f"{name} is not that of the whole layer{ask}")


ROW = Exercise(
    id="row-parallel",
    title="A row-parallel layer",
    cases=partial(layer_cases, number=1002, sizes=SIZES),
    run=partial(layer_run, split="input"),
    judge=row_judge,
    forbidden=(
        "course_lib.parallel",
        "torch.distributed",
        "torch.autograd",
        "torch.func",
        "requires_grad_",
        "requires_grad",
        "enable_grad",
    ),
    misconceptions={
        "cuts-the-outputs": "the rows of the split are the rows of PyTorch's weight, (outputs, inputs)",
        "keeps-the-whole": "a rank computes a part and holds the whole",
        "cuts-the-bias": "what belongs to a split layer is split",
        "every-nth": "parts of a tensor are dealt out like cards",
        "every-rank-adds-it": "every rank adds the bias to its part before the parts are summed",
        "a-part-is-the-sum": "a rank's product with its own inputs is the output",
        "averages": "what comes from several ranks is averaged",
        "forgets-the-bias": "a layer in parts needs no bias",
        "rank-0-adds-it-for-itself": "what only one rank adds is added on all of them",
        "gathers-the-inputs": "to compute, a rank needs the whole input",
        "gathers-to-add": "to add up parts, every rank has to see each of them",
        "a-sum-backward-is-a-sum": "where forward all-reduces, backward all-reduces",
        "every-gradient-is-reduced": "every gradient is summed over the ranks, as in data parallel",
        "every-pass-talks": "a split layer talks in both passes",
        "adds-to-the-last-call": "what a backward leaves is added to what the last one left",
        "a-collective-is-for-some": "only the ranks that need a result call a collective",
    },
)
