"""Stands around every part of a trainer's step, replaced or not, and writes down what goes through."""

from __future__ import annotations

import hashlib
import math
import time
import weakref
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from course_lib.data import IGNORE
from course_lib.step import Batch, training_step

if TYPE_CHECKING:
    from course_lib.failures.runs import Run
    from course_lib.trainer import Trainer

__all__: list[str] = []


class Watch:
    """The recorder of one trainer of a run: `step` does a step and adds its numbers to `run.series`."""

    def __init__(self, run: Run, trainer: Trainer) -> None:
        self.run, self.trainer = run, trainer
        self.loading = self.largest = self.moved = self.update = self.farthest = 0.0
        self.micro: list[Batch] = []
        self.storages: list[weakref.ref[Any]] = []
        parts = trainer.parts
        batch, forward, optimizer = parts.batch, parts.forward, parts.optimizer

        def watched_batch(step: int, micro: int) -> Batch:
            start = time.perf_counter()
            found = batch(step, micro)
            self.loading += time.perf_counter() - start
            self.micro.append(found)
            return found

        def watched_forward(inputs: Tensor) -> Tensor:
            logits = forward(inputs)
            self.see(logits)
            return logits

        def watched_optimizer() -> None:
            before = [p.detach().double().clone() for p in trainer.trained.values()]
            optimizer()
            self._compare(before)

        for module in trainer.model.modules():
            if isinstance(module, nn.Linear):
                module.register_forward_hook(self._hook)
        parts.batch, parts.forward, parts.optimizer = watched_batch, watched_forward, watched_optimizer

    def _hook(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if self.trainer.model.training:
            self._size(inputs[0])
            self.see(output)

    def _compare(self, before: list[Tensor]) -> None:
        """How far the update went: against the weights, against the learning rate, and how many weights it moved."""
        rates = {id(p): g for g in self.trainer.optimizer.param_groups for p in g["params"]}
        squares, largest, moved, count = torch.zeros(2).double(), 0.0, 0, 0
        for old, p in zip(before, self.trainer.trained.values(), strict=True):
            change, group = p.detach().double() - old, rates[id(p)]
            squares += torch.stack([change.square().sum(), old.square().sum()])
            own = change + group["lr"] * group["weight_decay"] * old  # without the decay
            largest = max(largest, float(own.abs().amax()) / group["lr"])
            moved, count = moved + int((change != 0).sum()), count + p.numel()
        self.update = float((squares[0] / squares[1]).sqrt())
        self.farthest, self.moved = largest, moved / count

    def see(self, output: Tensor) -> None:
        """The largest value of an activation, and that it lives."""
        self._size(output)
        self.storages.append(weakref.ref(output.untyped_storage()))

    def _size(self, values: Tensor) -> None:
        sizes = values.detach().nan_to_num(0.0, math.inf, -math.inf).abs()
        self.largest = max(self.largest, float(sizes.amax()))

    def put(self, **numbers: float) -> None:
        """Add a number to each of these series."""
        for name, number in numbers.items():
            self.run.series.setdefault(name, []).append(number)

    def step(self, step: int) -> None:
        """One step of the trainer, written down."""
        self.loading = self.largest = 0.0
        self.micro = []
        record = training_step(self.trainer.parts, step)
        self.run.batches.append(self.micro)
        scale = 1.0 if record.scale is None else record.scale
        self.put(loss=record.loss, grad_norm=record.grad_norm, lr=record.lr, tokens=float(record.tokens))
        self.put(scale=scale, skipped=float(record.skipped), activation=self.largest or math.nan)
        self.put(update_ratio=self.update, memory_bytes=float(self.live_bytes()), step_seconds=record.seconds)
        self.put(checksum_0=checksum(self.trainer.model))
        notes = {"loader_seconds": self.loading, "moved": self.moved, "farthest": self.farthest}
        for name, number in notes.items():
            self.run.notes.setdefault(name, []).append(number)

    def check_budget(self) -> None:
        """`OutOfMemoryError` when more is held than the device has."""
        held, budget = self.run.series["memory_bytes"][-1], self.run.setup.budget
        if held > budget:
            raise torch.OutOfMemoryError(
                f"out of memory: {held / 1e6:.1f} MB are held, and the device has {budget / 1e6:.1f} MB"
            )

    @torch.no_grad()
    def validate(self) -> float:
        """Loss on the held-out documents, with the right targets, in the model as it is: nats per token."""
        inputs, targets = (torch.from_numpy(part) for part in self.run.text.held_out)
        model = self.trainer.model.eval()
        logits = model(inputs).float().flatten(0, 1)
        model.train()
        return float(F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORE))

    def live_bytes(self) -> int:
        """Bytes of weights and optimizer state, and of the activations of earlier steps that are still held."""
        self.storages = [one for one in self.storages if one() is not None]
        held = {id(storage): storage.nbytes() for one in self.storages if (storage := one()) is not None}
        state = [value for own in self.trainer.optimizer.state.values() for value in own.values()]
        tensors = [*self.trainer.model.parameters(), *state]
        return sum(held.values()) + sum(t.numel() * t.element_size() for t in tensors)


def checksum(model: nn.Module) -> float:
    """48 bits of a hash of the weights' bits, as a number."""
    digest = hashlib.sha256()
    for p in model.parameters():
        digest.update(p.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return float(int.from_bytes(digest.digest()[:6], "big"))
