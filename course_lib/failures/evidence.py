"""What a check is: a question to one run, what it costs, and an answer that is measured in that run.

A finding is abnormal by a threshold with a stated reason. A check does not know which fault there is, if any.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from course_lib.data import IGNORE
from course_lib.failures.runs import Kept, Run, put_back
from course_lib.trainer import Trainer

__all__ = ["CATEGORIES", "RESTART_MINUTES", "Check", "Finding", "replayed", "tensors_of"]

CATEGORIES = ("data and mask", "numerics", "optimizer", "system")
"""The order of suspicion."""
RESTART_MINUTES = 300
"""What starting the run again costs in the story, and it measures nothing: more than all checks together."""


@dataclass(frozen=True)
class Finding:
    """What one check measured in one run."""

    numbers: dict[str, float]
    text: str
    """One line of what was measured, without a verdict."""
    abnormal: bool
    """The numbers lie beyond the check's threshold."""


@dataclass(frozen=True)
class Check:
    """One thing to measure when a run looks wrong."""

    name: str
    title: str
    """What it does."""
    category: str
    """One of CATEGORIES: which kind of fault it looks for."""
    minutes: float
    """What it costs in the story of the simulator: reading a log is cheap, replaying a step is not."""
    measure: Callable[[Run], Finding]


@contextmanager
def replayed(run: Run, kept: Kept) -> Iterator[Trainer]:
    """The run's trainer, parts as they are, in a state that was kept; afterwards as it was before."""
    trainer = run.trainer
    assert trainer is not None
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    before = {number: dict(state) for number, state in _states(trainer).items()}
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    masters = {name: value.clone() for name, value in trainer.masters.state_dict().items()}
    try:
        put_back(trainer, kept)
        yield trainer
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        trainer.model.zero_grad(set_to_none=True)
        trainer.model.load_state_dict(weights)
        trainer.masters.load_state_dict(masters)
        for number, p in enumerate(_parameters(trainer)):
            trainer.optimizer.state[p] = before[number]
        for group, rate in zip(trainer.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate


def _parameters(trainer: Trainer) -> list[Tensor]:
    return [p for group in trainer.optimizer.param_groups for p in group["params"]]


def _states(trainer: Trainer) -> dict[int, dict[str, Tensor]]:
    return {number: trainer.optimizer.state[p] for number, p in enumerate(_parameters(trainer))}


def tensors_of(run: Run, step: int) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a step's whole batch, (B, T) int64 each, as they reached the model."""
    micro = run.batches[step]
    inputs = torch.cat([torch.from_numpy(one.inputs) for one in micro])
    return inputs, torch.cat([torch.from_numpy(one.targets) for one in micro])


def loss_of(trainer: Trainer, inputs: Tensor, targets: Tensor) -> Tensor:
    """The mean loss of these tokens, computed anew in the trainer's model, without the parts of its step."""
    with trainer.policy.autocast() if trainer.config.weights == "bf16" else torch.enable_grad():
        logits = trainer.model(inputs).float().flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE)
