"""Check 10.1: the column-parallel linear layer. Each rank has some of the outputs."""

from functools import partial
from typing import Any

import torch
from torch import Tensor

from course_lib.checks.ch10_linear import (
    afterwards,
    calls_in,
    layer_cases,
    layer_run,
    near,
    no_tensor,
    off,
    stopped_here,
    whole,
)
from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["COLUMN"]

SIZES = {
    "two ranks, six inputs, four outputs": (2, 4, 6, 3, 5),
    "two ranks, a square weight": (2, 6, 6, 3, 5),
    "three ranks, four inputs, nine outputs": (3, 9, 4, 1, 4),
    "four ranks, eight outputs": (4, 8, 5, 3, 2),
    "one rank": (1, 4, 3, 2, 2),
}


def column_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Numbers within 1e-4 of the largest, see CLOSE; shapes and calls exact. Oracle: autograd over the whole layer."""
    if "stopped" in returned:
        return stopped_here(returned, "a-collective-is-for-some")
    n, ranks, right = case["ranks"], returned["ranks"], whole(case, "output")
    wrong = _wrong_slice(case, ranks)
    if wrong is not None:
        return wrong
    if n > 1 and calls_in(returned, ""):
        return Wrong("a collective is called when the layer is made. What has to travel then?")
    ys = list(right["y"].chunk(n, -1))
    if n > 1 and calls_in(returned, "forward"):
        return Wrong("forward calls a collective. Which output of a rank needs numbers of another?", "gathers-forward")
    got = [rank["y"] for rank in ranks]
    wrong = no_tensor("what forward returned", got, ys)
    if wrong is not None:
        return wrong
    if off(got, ys):
        return Wrong("the output is not this rank's part of the whole layer's output. Were the given lines changed?")
    return _wrong_backward(case, returned, right)


def _wrong_slice(case: Case, ranks: list[dict[str, Any]]) -> Wrong | None:
    n, weight, bias = case["ranks"], case["weight"], case["bias"]
    (outputs, inputs), share = weight.shape, weight.shape[0] // case["ranks"]
    for rank, one in enumerate(ranks):
        for name, wanted, whole_shape in (
            ("weight", (share, inputs), (outputs, inputs)),
            ("bias", (share,), (outputs,)),
        ):
            held = one[name]
            if not isinstance(held, Tensor):
                return Wrong(f"`self.{name}` is to be a tensor; yours is {held}", form=True)
            shape = tuple(held.shape)
            if shape == wanted:
                continue
            where = f"`self.{name}` has shape {shape} on rank {rank} of {n}"
            if name == "bias" and shape == whole_shape:
                message = f"{where}. To how many outputs is it added here?"
                return Wrong(message, "whole-bias")
            if shape == whole_shape:
                return Wrong(f"{where}: that is all of it. What is split?", "keeps-the-whole")
            if shape == (outputs, inputs // n):
                message = f"{where}. Which of the two numbers is the outputs, and which one is split?"
                return Wrong(message, "cuts-the-inputs")
            return Wrong(f"{where}; the whole has {whole_shape}")
    for name, full in (("weight", weight), ("bias", bias)):
        got = [one[name] for one in ranks]
        if all(torch.equal(a, b) for a, b in zip(got, full.chunk(n), strict=True)):
            continue
        if all(torch.equal(a, full[rank::n]) for rank, a in enumerate(got)):
            message = f"`self.{name}`: rank 0 has every {n}-th output in yours. Which ones are next to each other?"
            return Wrong(message, "every-nth")
        if all(torch.equal(a, got[0]) for a in got):
            return Wrong(f"`self.{name}` is the same on all ranks. Who has the other outputs?", "the-same-everywhere")
        return Wrong(f"`self.{name}` is not part number `group.rank` of the whole, in the order of the ranks")
    return None


def _wrong_backward(case: Case, returned: dict[str, Any], right: dict[str, Tensor]) -> Wrong | None:
    n, ranks = case["ranks"], returned["ranks"]
    wanted = [right["x_grad"]] * n
    got, calls = [rank["x_grad"] for rank in ranks], calls_in(returned, "backward")
    wide = {tuple(one.shape) for one in got if isinstance(one, Tensor)}
    *lead, inputs = case["x"].shape
    if n > 1 and wide == {(*lead, n * inputs)}:
        message = f"backward returns {n} gradients side by side. Is each of them of a part of x, or a part of each sum?"
        return Wrong(message, "gathers-what-adds-up")
    if n > 1 and wide == {(*lead, inputs // n)}:
        message = "backward returns a part of the gradient of x on each rank. Who needs the whole, and where is it?"
        return Wrong(message, "a-part-will-do")
    wrong = no_tensor("what backward returned", got, wanted)
    if wrong is not None:
        return wrong
    if off(got, wanted):
        if not off(got, list(right["partial"])):
            message = (
                "backward returns what comes through this rank's outputs alone, and the ranks return different "
                "gradients. Through whose outputs does x reach the loss?"
            )
            return Wrong(message, "my-outputs-are-all")
        if not off(got, [right["x_grad"] / n] * n):
            message = f"the gradient of x is {n} times too small. Do the ranks' parts stand for each other, or add up?"
            return Wrong(message, "averages")
        if not off(got, [right["x_grad"] * n] * n):
            return Wrong(f"the gradient of x is {n} times too large. How often is it added up?", "adds-up-twice")
        added = sum(case["pull"].double().chunk(n, -1))
        mixed = [added @ part for part in case["weight"].double().chunk(n)]
        if not off(got, mixed) or not off(got, [sum(mixed[1:], mixed[0])] * n):
            message = (
                "the ranks' `grad` are added up before each is multiplied by its weight. Of which outputs are they?"
            )
            return Wrong(message, "adds-before-it-multiplies")
        if all(near(a, got[0].double()) for a in got):
            return Wrong("all ranks return the same gradient of x, but not that of the whole layer")
        return Wrong("the gradient of x is not that of the whole layer")
    left = {name: list(right[name].chunk(n)) for name in ("weight_grad", "bias_grad")}
    for name, parts in left.items():
        held = [rank[name] for rank in ranks]
        wrong = no_tensor(f"`self.{name}`", held, parts)
        if wrong is not None:
            return wrong
        if off(held, parts):
            total = sum(parts[1:], parts[0])
            if n > 1 and not off(held, [total] * n):
                message = f"`self.{name}` is summed over the ranks. Is it of the same outputs on each of them?"
                return Wrong(message, "every-gradient-is-reduced")
            return Wrong(f"`self.{name}` is not the gradient of this rank's part. Were the given lines changed?")
    most = case["x"].numel()
    if n > 1 and calls not in ([("all_reduce", most)], [("reduce_scatter", most), ("all_gather", most // n)]):
        told = ", ".join(f"{name} of {elements} numbers" for name, elements in calls)
        if calls == [("all_gather", case["pull"].numel() // n)]:
            message = (
                "the gradients are right; `grad` alone was gathered. Which weight is it multiplied with, and whose?"
            )
            return Wrong(message, "keeps-the-whole")
        message = f"the gradients are right, with {told}. One collective of {most} numbers is enough: of which?"
        return Wrong(message, "travels-too-much")
    return afterwards(returned, left)


COLUMN = Exercise(
    id="column-parallel",
    title="A column-parallel layer",
    cases=partial(layer_cases, number=1001, sizes=SIZES),
    run=partial(layer_run, split="output"),
    judge=column_judge,
    forbidden=("course_lib.parallel", "torch.distributed"),
    misconceptions={
        "cuts-the-inputs": "the columns of the split are the columns of PyTorch's weight, (outputs, inputs)",
        "keeps-the-whole": "a rank computes a part and holds the whole",
        "whole-bias": "a bias is small, so that every rank adds all of it",
        "every-nth": "parts of a tensor are dealt out like cards",
        "the-same-everywhere": "all ranks hold the same part",
        "gathers-forward": "after every split layer the ranks put their outputs together",
        "my-outputs-are-all": "what every rank has whole in forward is right on every rank in backward",
        "gathers-what-adds-up": "what several ranks computed is put side by side",
        "a-part-will-do": "after backward each rank needs its part of the gradient of x",
        "adds-before-it-multiplies": "gradients of different outputs can be added up",
        "averages": "gradients of several ranks are averaged",
        "adds-up-twice": "to add up more often does no harm",
        "every-gradient-is-reduced": "every gradient is summed over the ranks, as in data parallel",
        "travels-too-much": "what is not there has to be sent whole",
        "adds-to-the-last-call": "what a backward leaves is added to what the last one left",
        "a-collective-is-for-some": "only the ranks that need a result call a collective",
    },
)
