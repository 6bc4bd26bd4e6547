"""One training step in nine parts that you can point at.

The step: b sequences a micro-batch, T tokens each, V tokens in the vocabulary. The loss is the sum of the cross entropy
over the valid tokens, divided by the number of valid tokens of the *global* batch, so micro-batches may differ in both.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from course_lib.events import StepRecord

__all__ = ["Batch", "StepParts", "training_step"]


@dataclass(frozen=True)
class Batch:
    """One micro-batch as it leaves the data: inputs and targets (b, T) int64, numpy."""

    inputs: np.ndarray
    targets: np.ndarray
    valid: int
    """Valid targets (not IGNORE) in the whole global batch: what the loss divides by."""


@dataclass
class StepParts:
    """The nine parts of a training step, in their order. Replace one to show it, to check it or to break it."""

    batch: Callable[[int, int], Batch]
    """1. (step, micro) -> the micro-batch: a slice of the step's global batch."""
    input_ids: Callable[[Batch], tuple[Tensor, Tensor]]
    """2. -> input ids (b, T) and targets (b, T), int64 on the device; targets[t] is the token after inputs[t]."""
    forward: Callable[[Tensor], Tensor]
    """3. input ids (b, T) -> logits (b, T, V), in the precision of the policy."""
    loss: Callable[[Tensor, Tensor, int], Tensor]
    """4. (logits (b, T, V), targets (b, T), valid) -> summed cross entropy / valid, a 0-d FP32 tensor."""
    backward: Callable[[Tensor], None]
    """5. loss -> adds to `.grad` of every trainable parameter, in its own shape (FP16: times the loss scale)."""
    clip: Callable[[], Tensor]
    """6. -> norm of all gradients before clipping, a 0-d tensor; scales the gradients when the norm is too large. FP16:
    the loss scale is divided out first."""
    optimizer: Callable[[], None]
    """7. Updates the parameters from their gradients, then drops the gradients. FP16: no update when a gradient is not
    finite; sets the next loss scale."""
    scheduler: Callable[[], float]
    """8. -> learning rate of this update; sets the next one, except after a skipped update."""
    record: Callable[[int, Tensor, Tensor, float, int, float], StepRecord]
    """9. (step, loss, grad norm, lr, tokens, seconds) -> the step's numbers; only here does the host wait for them."""
    micro_batches: int = 1
    """How often parts 1 to 5 run before parts 6 to 9 run once."""


def training_step(parts: StepParts, step: int) -> StepRecord:
    """One optimizer step, from tokens to new weights."""
    start = time.perf_counter()
    total: Tensor | None = None
    for micro in range(parts.micro_batches):
        batch = parts.batch(step, micro)
        inputs, targets = parts.input_ids(batch)
        logits = parts.forward(inputs)
        loss = parts.loss(logits, targets, batch.valid)
        parts.backward(loss)
        total = loss.detach() if total is None else total + loss.detach()
    assert total is not None
    grad_norm = parts.clip()
    parts.optimizer()
    lr = parts.scheduler()
    return parts.record(step, total, grad_norm, lr, batch.valid, time.perf_counter() - start)
