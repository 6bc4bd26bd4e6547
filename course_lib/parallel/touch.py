"""Which part of a training state an operator works on: most of it lies still for most of a step."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from course_lib.config import ModelConfig
from course_lib.model import GPT
from course_lib.parallel.strategy import summed_loss
from course_lib.parallel.zero import units

__all__ = ["StepTouches", "Touched", "touches"]


class Touched(TorchDispatchMode):
    """Inside the block, `names` grows after every operator by the names of the tensors that it read or wrote."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names: list[frozenset[str]] = []
        self._known = {tensor.untyped_storage()._cdata: name for name, tensor in tensors.items()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves = tree_leaves((args, kwargs, result))
        keys = {leaf.untyped_storage()._cdata for leaf in leaves if isinstance(leaf, Tensor)}
        self.names.append(frozenset(self._known[key] for key in keys & self._known.keys()))
        return result


@dataclass(frozen=True)
class StepTouches:
    """One step of one process: weights, gradients and moments of each unit, and the operators that touch them."""

    rows: tuple[tuple[str, str, int], ...]
    """(category, unit, bytes): the model's own unit first, then the blocks."""
    marks: tuple[tuple[bool, ...], ...]
    """marks[row][operator]."""
    phases: tuple[tuple[str, int], ...]
    """forward, backward, update, each with its first operator."""
    largest: float
    """The largest share of all bytes that one operator of forward or backward touches."""


def touches(shape: ModelConfig, sequences: int = 4, length: int = 16) -> StepTouches:
    """The second step of a GPT. AdamW takes one parameter after the other (`foreach=False`); the fused one is a single
    operator that touches everything."""
    model = GPT(shape)
    optimizer = AdamW(model.parameters(), lr=1e-3, foreach=False)
    tokens = torch.randint(0, shape.vocab_size, (sequences, length + 1), generator=torch.Generator().manual_seed(0))

    def forward() -> Tensor:
        return summed_loss(model(tokens[:, :-1]), tokens[:, 1:], sequences * length)

    forward().backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)  # gradients stay allocated: backward adds to them
    order = ["", *filter(None, units(model))]
    state: dict[str, tuple[str, str, Tensor]] = {}
    for name, p in model.named_parameters():
        unit = next((unit for unit in order if unit and name.startswith(unit + ".")), "")
        state[f"weights {name}"] = ("weights", unit, p)
        assert p.grad is not None
        state[f"gradients {name}"] = ("gradients", unit, p.grad)
        for moment in ("exp_avg", "exp_avg_sq"):
            state[f"{moment} {name}"] = ("moments", unit, optimizer.state[p][moment])
    sizes = {name: tensor.nbytes for name, (_, _, tensor) in state.items()}
    with Touched({name: tensor for name, (_, _, tensor) in state.items()}) as watch:
        loss = forward()
        turn = len(watch.names)
        loss.backward()
        update = len(watch.names)
        optimizer.step()
    groups = [(category, unit) for category in ("weights", "gradients", "moments") for unit in order]
    members = [{name for name, entry in state.items() if entry[:2] == group} for group in groups]
    return StepTouches(
        rows=tuple((*group, sum(sizes[name] for name in of)) for group, of in zip(groups, members, strict=True)),
        marks=tuple(tuple(not of.isdisjoint(names) for names in watch.names) for of in members),
        phases=(("forward", 0), ("backward", turn), ("update", update)),
        largest=max(sum(sizes[name] for name in names) for names in watch.names[:update]) / sum(sizes.values()),
    )
