"""Check 05.3: a segment that recomputes, written by hand as a `torch.autograd.Function`.

The oracle is the same chain without any recomputation, run in the judge's process. Memory and calls are counted by the
check around the answer, not by the answer.
"""

from typing import Any

import torch
from torch import Tensor

from course_lib.checks.core import Case, Exercise, Wrong
from course_lib.memory import Peak

__all__ = ["SEGMENT"]

WIDE = 16  # the inside of a segment is this many times as wide as its input
RANDOM_STATES = 12 * 1024
"""Bytes a segment for what is small: torch's random state has 5,056. Less than a copy of the input."""


def segment_cases(seed: int) -> list[Case]:
    """Chains of segments; dropout in some, an input without gradient in one."""

    def case(name: str, segments: int, dropout: float, needs_grad: bool = True) -> Case:
        sizes = {"rows": 96, "width": 32}
        return {
            "name": name,
            "segments": segments,
            "dropout": dropout,
            "needs_grad": needs_grad,
            "seed": seed + 53,
            **sizes,
        }

    return [
        case("one segment without dropout", 1, 0.0),
        case("one segment with dropout", 1, 0.3),
        case("three segments with dropout, in a row", 3, 0.3),
        case("the first segment's input needs no gradient", 2, 0.0, needs_grad=False),
    ]


class _Chain:
    """The segments of a case, their weights and what is counted while they run."""

    def __init__(self, case: Case) -> None:
        generator = torch.Generator().manual_seed(case["seed"])
        rows, width, self.dropout = case["rows"], case["width"], case["dropout"]

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.needs_grad = case["needs_grad"]
        self.x = normal(rows, width).requires_grad_(self.needs_grad)
        self.weights = [
            [
                (normal(width, WIDE * width) / width**0.5).requires_grad_(),
                (normal(WIDE * width, width) / (WIDE * width) ** 0.5).requires_grad_(),
            ]
            for _ in range(case["segments"])
        ]
        self.pull = normal(rows, width)
        self.calls = [0] * case["segments"]
        self.with_graph = False

    def run(self, number: int, h: Tensor) -> Tensor:
        """Segment `number` of input h (rows, width)."""
        self.calls[number] += 1
        self.with_graph |= torch.is_grad_enabled()
        up, down = self.weights[number]
        inside = torch.nn.functional.dropout((h @ up).tanh(), self.dropout)
        return torch.nn.functional.dropout(inside @ down, self.dropout)

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """What comes back for x and each weight; `.grad` is left alone."""
        weights = [weight for pair in self.weights for weight in pair]
        if self.needs_grad:
            return list(torch.autograd.grad(loss, [self.x, *weights], allow_unused=True))
        return [None, *torch.autograd.grad(loss, weights, allow_unused=True)]


def _start(case: Case) -> None:
    """Put torch's random state where the case begins; whoever calls puts the old one back (`steady`, `fork_rng`)."""
    torch.set_rng_state(torch.Generator().manual_seed(case["seed"]).get_state())


def segment_run(answer: Any, case: Case) -> dict[str, Any]:
    """One forward and one backward through the answer, with random numbers drawn between them."""
    if not (isinstance(answer, type) and issubclass(answer, torch.autograd.Function)):
        return {"form": getattr(answer, "__name__", type(answer).__name__)}
    chain = _Chain(case)
    weights = [weight for pair in chain.weights for weight in pair]
    for weight in weights:  # as after an earlier micro-batch
        weight.grad = torch.ones_like(weight)
    _start(case)
    with Peak([chain.x, chain.pull, *weights]) as memory:
        before, h = memory.live, chain.x
        for number, pair in enumerate(chain.weights):
            h = answer.apply(lambda z, number=number: chain.run(number, z), h, *pair)
            if not isinstance(h, Tensor):
                return {"nothing": type(h).__name__}
        alive = memory.live - before
    forward_calls, outcome = list(chain.calls), h.detach().clone()
    torch.rand(7)  # whoever comes next draws too
    expected = torch.get_rng_state()
    gradients: list[Tensor | None] = [None] * (1 + len(weights))
    try:
        if h.requires_grad:
            gradients = chain.gradients((h * chain.pull).sum())
    except RuntimeError as error:
        if "number of gradients" not in str(error):
            raise
        return {"count": str(error)}
    return {
        "outcome": outcome,
        "attached": h.requires_grad,
        "alive": alive,
        "calls": [forward_calls, [after - first for after, first in zip(chain.calls, forward_calls, strict=True)]],
        "gradients": gradients,
        "added": any(weight.grad is None or bool((weight.grad != 1).any()) for weight in weights),
        "asks_for_x": chain.x.requires_grad and not case["needs_grad"],
        "random_kept": torch.equal(torch.get_rng_state(), expected),
    }


def _oracle(case: Case, *, unit_pull: bool = False) -> tuple[Tensor, list[Tensor | None]]:
    chain = _Chain(case)
    with torch.random.fork_rng(devices=[]):
        _start(case)
        h = chain.x
        for number in range(case["segments"]):
            h = chain.run(number, h)
        return h.detach(), chain.gradients((h if unit_pull else h * chain.pull).sum())


def _close(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    return first.shape == second.shape and bool(torch.allclose(first, second, rtol=1e-9, atol=1e-12))


def segment_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Relative 1e-9: float64, and the same operations in the same order as the oracle's, so that bits agree too."""
    if "form" in returned:
        return Wrong(f"hand in the class itself, a torch.autograd.Function; this is {returned['form']}", form=True)
    if "nothing" in returned:
        return Wrong(f"forward gave back a {returned['nothing']}, not the segment's output", form=True)
    if "count" in returned:
        message = (
            "backward returns one gradient for each argument of forward: None for `run`, one for x, one for each "
            "parameter. Yours gave back another number of them, or nothing: does it end in a `return`?"
        )
        return Wrong(message, form=True)
    outcome, right = _oracle(case)
    if not _close(returned["outcome"], outcome):
        message = "the output of the segment is not that of `run(x)`"
        if case["dropout"]:
            message += " with the random numbers that were due. Does forward draw or seed any before it calls `run`?"
        return Wrong(message)
    forward, backward = returned["calls"]
    if max(forward) > 1:
        return Wrong(f"`run` was called {max(forward)} times in forward. Once is enough")
    edge = 8 * case["rows"] * case["width"]
    edges, states = edge * case["segments"], RANDOM_STATES * case["segments"]
    if returned["alive"] > edges + states:
        message = (
            f"{returned['alive']:,} bytes are alive between forward and backward; the outputs of the segments have "
            f"{edges:,}, and a random state about 5,000. "
        )
        if returned["alive"] > edges + states + 2 * edges:
            return Wrong(f"{message}What else do you hold on to?", "keeps-the-graph")
        return Wrong(f"{message}Do you keep a copy, where the tensor itself is there?")
    if not returned["attached"]:
        return Wrong("the output has no graph, so that backward never comes. Was it detached, or made a new tensor?")
    if max(backward) == 0:
        return Wrong("`run` was not called in backward: where do the gradients of the weights come from?")
    if max(backward) > 1:
        return Wrong(f"`run` was called {max(backward)} times for one segment in backward. Once is enough")
    if returned["asks_for_x"]:
        return Wrong("the caller's x requires a gradient now, and it did not before. Whose tensor did you change?")
    got = returned["gradients"]
    if returned["added"]:
        if any(a is None for a in got[-2:]):
            message = "the weights' gradients went into `.grad` inside backward, and None came back for them"
            return Wrong(f"{message}. Who hands gradients on, and to whom?", "added-not-returned")
        return Wrong("gradients came back, and were also added to the weights' `.grad` in backward", "added-twice")
    if not case["needs_grad"]:
        got, right = got[1:], right[1:]
    if all(_close(a, b) for a, b in zip(got, right, strict=True)):
        if returned["random_kept"]:
            return None
        message = "the gradients are right, but after backward the global random state is not what it was before it"
        return Wrong(message, "random-state-left-behind")
    if any(a is None for a in got[-2:]):
        return Wrong("the weights got no gradient. What does backward return for each argument?", "only-the-input")
    if got[0] is None and case["needs_grad"]:
        return Wrong("the input got no gradient: the segments before this one would not learn")
    unit = _oracle(case, unit_pull=True)[1]
    if all(_close(a, b) for a, b in zip(got[-2:], unit[-2:], strict=True)):
        message = "the gradients are those of a plain sum of the outputs. What came into backward from above?"
        return Wrong(message, "ignores-what-comes-from-above")
    if case["dropout"]:
        message = "the gradients are those of other dropout masks. Which random numbers does the second run draw?"
        return Wrong(message, "draws-other-masks")
    return Wrong("the gradients are not those of `run`")


SEGMENT = Exercise(
    id="segment-by-hand",
    title="A segment by hand",
    cases=segment_cases,
    run=segment_run,
    judge=segment_judge,
    forbidden=(
        *(f"torch.utils.checkpoint.{name}" for name in ("checkpoint", "checkpoint_sequential", "CheckpointFunction")),
        *("recompute_blocks", "Recomputed"),
    ),
    misconceptions={
        "keeps-the-graph": "what is needed in backward has to be kept in forward",
        "draws-other-masks": "running the same code again gives the same dropout masks",
        "random-state-left-behind": "a random state that was put back for a moment disturbs nobody",
        "only-the-input": "backward returns the gradient of the input alone",
        "ignores-what-comes-from-above": "a segment's gradient does not depend on what follows",
        "added-twice": "a gradient is both returned and added",
        "added-not-returned": "backward puts the gradients of the weights into `.grad` itself",
    },
)
