"""Checks 10.1 and 10.2: a linear layer split by its outputs (column-parallel) and by its inputs (row-parallel).

The ranks are those of `ch10_group`. The oracle is the whole layer under autograd, in float64.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch10_group import Group, ranks_here, untouched
from course_lib.checks.core import CHANGED, Case, Wrong, WrongForm, kind

__all__ = ["afterwards", "calls_in", "layer_cases", "layer_run", "near", "no_tensor", "off", "stopped_here", "whole"]

CLOSE = 1e-4
"""Of the largest number. FP32 sums of up to 30 terms are off by 1e-6, each stated mistake by over 1e-2."""


def layer_cases(seed: int, number: int, sizes: dict[str, tuple[int, int, int, int, int]]) -> list[Case]:
    """name -> (ranks, outputs, inputs, batch, length). The sizes are fixed, the numbers follow the seed."""
    rng = np.random.default_rng([seed, number])

    def numbers(*shape: int) -> Tensor:
        return torch.tensor(rng.normal(size=shape), dtype=torch.float32)

    return [
        {
            "name": name,
            "ranks": ranks,
            "weight": numbers(outputs, inputs),
            "bias": 1 + numbers(outputs).abs(),
            "x": numbers(batch, length, inputs),
            "pull": numbers(batch, length, outputs),
        }
        for name, (ranks, outputs, inputs, batch, length) in sizes.items()
    ]


def layer_run(answer: Any, case: Case, *, split: str) -> dict[str, Any]:
    """What each rank's layer holds and returns, and what a second pass leaves (`again`).

    split: "output" or "input", the side on which ranks have parts.
    """
    if not isinstance(answer, type):
        raise WrongForm(f"hand in the class itself, without brackets after it; yours is {kind(answer)}")
    outputs, inputs = case["weight"].shape
    n = case["ranks"]
    held = [outputs // n, inputs] if split == "output" else [outputs, inputs // n]
    biases = [outputs // n] if split == "output" else [outputs]

    def work(group: Group) -> dict[str, Any]:
        part = lambda t: t.chunk(n, -1)[group.rank]
        x = case["x"] if split == "output" else part(case["x"])
        pull = part(case["pull"]) if split == "output" else case["pull"]
        copies = [case["weight"], case["bias"], x, pull]
        given = [t.clone() for t in copies]
        layer = answer(*given[:2], group)
        weight, bias = (_tensor(getattr(layer, name, None)) for name in ("weight", "bias"))
        found = {"weight": weight, "bias": bias}
        shapes = [list(t.shape) if isinstance(t, Tensor) else None for t in (weight, bias)]
        if shapes != [held, biases]:  # forward would fail, and for another reason than it should
            return found
        group.stage = "forward"
        found["y"] = _tensor(layer.forward(given[2]))
        group.stage = "backward"
        found["x_grad"] = _tensor(layer.backward(given[3]))
        left = lambda: {name: _tensor(getattr(layer, name, None)) for name in ("weight_grad", "bias_grad")}
        found |= left() | {"changed": not untouched(given, copies)}
        group.stage = "a second pass"
        layer.forward(x.clone())
        layer.backward(pull.clone())
        found["again"] = left()
        found["calls"] = [[call.kind, call.elements, call.stage] for call in group.calls]
        return found

    return ranks_here(work, n)


def _tensor(value: Any) -> Any:
    """A copy of a tensor; of anything else, what it is."""
    return value.detach().clone() if isinstance(value, Tensor) else kind(value)


def whole(case: Case, split: str) -> dict[str, Tensor]:
    """The layer in one piece, float64: its output, its gradients, and `partial`, (ranks, ...): what each rank computes
    of the sum that has to be made (of the output, or of the input's gradient)."""
    n, pull = case["ranks"], case["pull"].double()
    x, weight, bias = (case[name].double().requires_grad_() for name in ("x", "weight", "bias"))
    y = torch.nn.functional.linear(x, weight, bias)
    y.backward(pull)
    with torch.no_grad():
        first, second = (x, weight.T) if split == "input" else (pull, weight)
        pairs = zip(first.chunk(n, -1), second.chunk(n, 0), strict=True)
        partial = torch.stack([a @ b for a, b in pairs])
    assert x.grad is not None and weight.grad is not None and bias.grad is not None
    return {"y": y.detach(), "x_grad": x.grad, "weight_grad": weight.grad, "bias_grad": bias.grad, "partial": partial}


def near(got: Any, wanted: Tensor) -> bool:
    """Whether every number is within CLOSE of the largest wanted one."""
    if not isinstance(got, Tensor) or got.shape != wanted.shape:
        return False
    return bool(((got.double() - wanted).abs() <= CLOSE * wanted.abs().max().clamp(min=1)).all())


def off(got: list[Any], wanted: list[Tensor]) -> bool:
    """Whether any rank's tensor is not near the wanted one."""
    return not all(near(a, b) for a, b in zip(got, wanted, strict=True))


def no_tensor(name: str, got: list[Any], wanted: list[Tensor]) -> Wrong | None:
    """A message where a rank gave no tensor, or one of another shape."""
    for rank, (value, right) in enumerate(zip(got, wanted, strict=True)):
        if not isinstance(value, Tensor):
            if value == "nothing" and name.startswith("`self."):
                return Wrong(f"{name} is not there after backward on rank {rank}. Which line sets it?", form=True)
            ask = ". Is there a `return`?" if value == "nothing" else ""
            return Wrong(f"{name}: a tensor is wanted, on rank {rank} {value} came back{ask}", form=True)
        if value.shape != right.shape:
            return Wrong(f"{name} has shape {tuple(value.shape)} on rank {rank}; {tuple(right.shape)} is wanted")
    return None


def afterwards(returned: dict[str, Any], wanted: dict[str, list[Tensor]]) -> Wrong | None:
    """For an answer that is right in one pass: what it was given, and the gradients that a second pass leaves."""
    if any(rank["changed"] for rank in returned["ranks"]):
        return Wrong(f"outputs and gradients are right, but {CHANGED}")
    for name, parts in wanted.items():
        if off([rank["again"][name] for rank in returned["ranks"]], parts):
            message = f"`self.{name}` is right once, and not after a second forward and backward. Of which is it then?"
            return Wrong(message, "adds-to-the-last-call")
    return None


def stopped_here(returned: dict[str, Any], rule: str) -> Wrong:
    """The message for ranks whose calls did not go together."""
    return Wrong(f"{returned['stopped']}. All ranks have to make the same calls, with tensors of one shape", rule)


def calls_in(returned: dict[str, Any], stage: str) -> list[tuple[str, int]]:
    """(kind, elements) of each call that rank 0 made in a stage; the others have made the same."""
    return [(name, elements) for name, elements, where in returned["ranks"][0]["calls"] if where == stage]
