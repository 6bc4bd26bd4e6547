"""One test for every way of splitting a training step: the same model and data, against one process.

Three optimizer steps on a batch whose sequences have unequal numbers of valid tokens; after each, the whole gradients
of every rank are compared with those of one process that works on the whole batch at once, and so are the whole
parameters after the last. What may differ is the order of sums, and so are the tolerances.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer

from course_lib.config import ModelConfig
from course_lib.data import IGNORE
from course_lib.model import GPT
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import MakeOptimizer, Strategy

__all__ = ["TOLERANCE", "Equivalence", "MakeStrategy", "adamw", "equivalence", "uneven_batches", "uneven_model"]

MakeStrategy = Callable[[nn.Module, MakeOptimizer], Strategy]
"""Called on every rank with the model and a function that makes the optimizer; a subclass of `Strategy` will do."""

TOLERANCE = 5e-5
"""Of the largest entry of each tensor. Gradients: FP32 has 24 bits, 6e-8; a gradient here is a sum of a few hundred
products, cut into parts that are added in another order: 2e-7 to 2e-6 measured. Parameters, of what three steps
changed: a weight near 1 that moved by 1e-2 is rounded to 6e-8, which is 6e-6 of its change: 1e-5 measured. A lost rank,
a doubled micro-batch or a wrong factor is off by 1e-1 and more, sums in BF16 by 1e-3."""

REASON = "FP32 sums in another order: 1e-6 of the largest entry; a lost or doubled part is off by 1e-1"


@dataclass(frozen=True)
class Equivalence:
    """What `equivalence` found. Errors are relative to the largest entry of the tensor they are in."""

    ranks: int
    micro_batches: int
    steps: int
    gradient_error: float
    """Largest over ranks, steps and parameters."""
    parameter_error: float
    """Of the *change* since the start, so that a step that was not made counts as 1."""
    loss_error: float
    """Relative, of the sum over ranks and micro-batches; only where each rank reports a share of it."""
    worst: str
    """Parameter with the largest gradient error."""
    ranks_agree: bool
    """All ranks end with the same bits in every parameter."""
    bytes_held: tuple[dict[str, int], ...]
    """Of each rank, by category, between the last backward and the last update."""
    tolerance: float
    reason: str

    @property
    def equal(self) -> bool:
        """Gradients and parameters within the tolerance, and no two ranks apart."""
        errors = (self.gradient_error, self.parameter_error)
        return all(error <= self.tolerance for error in errors) and self.ranks_agree

    def __str__(self) -> str:
        agree = "ranks agree bitwise" if self.ranks_agree else "RANKS DISAGREE"
        verdict = "equal" if self.equal else f"NOT EQUAL ({self.worst})"
        return (
            f"{verdict}: gradients to {self.gradient_error:.0e}, parameters to {self.parameter_error:.0e} "
            f"(tolerance {self.tolerance:.0e}), {agree}"
        )


def uneven_model(tie_embeddings: bool = True) -> GPT:
    """A tiny GPT of which hardly a size divides by 2 or 4; one matrix has fewer rows than four ranks would need."""
    sizes = ModelConfig(
        vocab_size=27, d_model=10, n_layers=3, n_heads=1, d_ff=3, context=8, tie_embeddings=tie_embeddings
    )
    return GPT(sizes, seed=1)


def uneven_batches(
    ranks: int, micro_batches: int, steps: int, vocab: int = 27, length: int = 8
) -> list[tuple[Tensor, Tensor]]:
    """A global batch a step: inputs and targets (2 x ranks x micro_batches, length) int64.

    Targets are valid for 1 to `length` tokens of a sequence, so counts differ over ranks and micro-batches; the first
    rank's first micro-batch of the second step has none at all.
    """
    generator = torch.Generator().manual_seed(59)  # every rank has another count, in every step
    rows, batches = 2 * ranks * micro_batches, []
    for step in range(steps):
        tokens = torch.randint(0, vocab, (rows, length + 1), generator=generator)
        valid = torch.randint(1, length + 1, (rows, 1), generator=generator)
        if step == 1 and rows > 2:
            valid[:2] = 0
        targets = tokens[:, 1:].masked_fill(torch.arange(length) >= valid, IGNORE)
        batches.append((tokens[:, :-1].contiguous(), targets))
    return batches


def adamw(parameters: Iterable[nn.Parameter]) -> Optimizer:
    """AdamW with an eps that a rounding error stays far below.

    AdamW divides a gradient by its own size. Where that is nearly 0, a rounding error is a large part of it and becomes
    a large part of a step: with eps 1e-8, errors of the third step's gradients are ten times as large.
    """
    return AdamW(parameters, lr=1e-2, eps=1e-3, weight_decay=0.1, fused=True)


def equivalence(
    make_strategy: MakeStrategy,
    ranks: int,
    *,
    micro_batches: int = 1,
    steps: int = 3,
    make_model: Callable[[], nn.Module] = uneven_model,
    make_optimizer: MakeOptimizer = adamw,
    batches: list[tuple[Tensor, Tensor]] | None = None,
    tolerance: float = TOLERANCE,
    reason: str = REASON,
    timeout: float = 60.0,
) -> Equivalence:
    """Train `steps` steps with the strategy on `ranks` ranks, and in one process on whole batches; compare.

    make_strategy runs on each rank, on a model from `make_model` (the same on all). batches: a global batch (B, T) of
    inputs and targets a step, B a multiple of ranks x micro_batches. A strategy that changes the parameters' names or
    shapes is compared under what its `gradients` and `parameters` return. Errors on a rank are a `RankError`.
    """
    if batches is None:
        batches = uneven_batches(ranks, micro_batches, steps)
    start = {name: p.detach().clone() for name, p in make_model().named_parameters()}
    one = _train(Strategy, make_model, make_optimizer, batches, micro_batches=1)
    many = run_ranks(
        _train, ranks, make_strategy, make_model, make_optimizer, batches, micro_batches=micro_batches, timeout=timeout
    )
    errors = {name: 0.0 for name in start}
    for run in many:
        for found, wanted in zip(run.gradients, one.gradients, strict=True):
            errors = {name: max(error, _error(found[name], wanted[name])) for name, error in errors.items()}
    worst = max(errors, key=lambda name: errors[name])
    changes = {name: one.parameters[name] - p for name, p in start.items()}
    return Equivalence(
        ranks=ranks,
        micro_batches=micro_batches,
        steps=len(batches),
        gradient_error=errors[worst],
        parameter_error=max(_error(run.parameters[n] - start[n], changes[n]) for run in many for n in start),
        loss_error=float(_error(sum(run.losses for run in many), one.losses)),
        worst=worst,
        ranks_agree=all(torch.equal(run.parameters[n], many[0].parameters[n]) for run in many for n in start),
        bytes_held=tuple(run.bytes_held for run in many),
        tolerance=tolerance,
        reason=reason,
    )


@dataclass(frozen=True)
class _Run:
    """What one rank brings back: whole gradients of each step, whole parameters at the end, its share of each loss."""

    gradients: list[dict[str, Tensor]]
    parameters: dict[str, Tensor]
    losses: Tensor
    bytes_held: dict[str, int]


def _train(
    make_strategy: MakeStrategy,
    make_model: Callable[[], nn.Module],
    make_optimizer: MakeOptimizer,
    batches: list[tuple[Tensor, Tensor]],
    micro_batches: int,
) -> _Run:
    strategy = make_strategy(make_model(), make_optimizer)
    gradients, losses, held = [], torch.zeros(len(batches)), {}
    for step, (inputs, targets) in enumerate(batches):
        valid = int((targets != IGNORE).sum())  # of the global batch
        losses[step] = strategy.forward_backward(*strategy.share(inputs, targets), valid, micro_batches)
        held = strategy.bytes_held()
        gradients.append(strategy.gradients())
        strategy.step()
    return _Run(gradients, strategy.parameters(), losses, held)


def _error(found: Tensor, wanted: Tensor) -> float:
    """Largest difference, over the largest entry of `wanted` (or over 1); infinite where one is not finite."""
    size = float(wanted.abs().max()) or 1.0
    difference = float((found - wanted).abs().max()) / size
    return difference if math.isfinite(difference) else math.inf
