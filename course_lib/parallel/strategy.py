"""What every way of splitting a training step offers, so that one loop and one test serve them all.

`Strategy` itself is the plain case: one process, the whole model, the whole batch in one or several micro-batches.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from course_lib.data import IGNORE
from course_lib.memory import storage_bytes

__all__ = ["MakeOptimizer", "Strategy", "rank_and_world", "summed_loss"]

MakeOptimizer = Callable[[Iterable[nn.Parameter]], Optimizer]
"""From the parameters that this rank updates to their optimizer."""


def rank_and_world() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) where nothing is distributed."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def summed_loss(logits: Tensor, targets: Tensor, valid: int) -> Tensor:
    """Sum of the cross entropies over the valid tokens here, over the count of the *global* batch.

    logits (b, T, V), targets (b, T), `IGNORE` where there is nothing to predict -> (). Summed over ranks and
    micro-batches it is the mean over the global batch, however unequal their counts (chapter 3).
    """
    total = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / valid


class Strategy:
    """One process. A subclass says what it splits and when its ranks talk.

    A step of the training loop, on every rank alike::

        inputs, targets = strategy.share(*global_batch)
        strategy.forward_backward(inputs, targets, valid, micro_batches)
        strategy.step()

    Most strategies change only what happens around a micro-batch. One whose forward and backward are no two calls (a
    pipeline), or whose logits are nowhere whole, has a `forward_backward` of its own.
    """

    def __init__(self, model: nn.Module, make_optimizer: MakeOptimizer) -> None:
        self.model = model
        """Tokens (b, T) int64 -> logits (b, T, V)."""
        self.optimizer = make_optimizer(model.parameters())

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """The part of the global batch (B, T) that this rank works on: its rows. One that splits the model, not the
        data, takes all; one that splits the sequence, columns."""
        rank, world = rank_and_world()
        return inputs.tensor_split(world)[rank], targets.tensor_split(world)[rank]

    def forward_backward(
        self,
        inputs: Tensor,
        targets: Tensor,
        valid: int,
        micro_batches: int = 1,
        on_micro_batch: Callable[[], None] | None = None,
    ) -> Tensor:
        """This rank's `share` (b, T), forward and backward, in so many micro-batches of equal size or nearly.

        valid: the count of valid tokens in the global batch. on_micro_batch is called before each. Gives this rank's
        part of the loss, (): summed over ranks it is the global batch's. A rank that repeats another's gives 0.
        """
        total = torch.zeros(())
        pieces = zip(inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches), strict=True)
        for place, (x, y) in enumerate(pieces):
            if on_micro_batch is not None:
                on_micro_batch()
            with self.micro_batch(last=place == micro_batches - 1):
                loss = self.loss(self.model(x), y, valid)
                self.backward(loss)
            total += loss.detach()
            del loss
        return total

    @contextmanager
    def micro_batch(self, last: bool) -> Iterator[None]:
        """Goes around forward *and* backward of one micro-batch. After the last one, gradients are synchronised."""
        yield

    def loss(self, logits: Tensor, targets: Tensor, valid: int) -> Tensor:
        """What backward starts from, (): `summed_loss`, where logits are whole."""
        return summed_loss(logits, targets, valid)

    def backward(self, loss: Tensor) -> None:
        """loss: `summed_loss` of this micro-batch on this rank."""
        loss.backward()

    def step(self) -> None:
        """The optimizer's step; then the gradients are dropped."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def gradients(self) -> dict[str, Tensor]:
        """Whole gradients by parameter name, after the last micro-batch: gathered, for comparing."""
        return {n: torch.zeros_like(p) if p.grad is None else p.grad.clone() for n, p in self.model.named_parameters()}

    def parameters(self) -> dict[str, Tensor]:
        """Whole parameters by name."""
        return {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def tensors_held(self) -> dict[str, list[Tensor]]:
        """What this rank keeps, by category: weights, gradients, optimizer."""
        kept = [*self.model.parameters(), *(p for group in self.optimizer.param_groups for p in group["params"])]
        return {
            "weights": kept,
            "gradients": [p.grad for p in kept if p.grad is not None],
            "optimizer": [e for state in self.optimizer.state.values() for e in state.values() if torch.is_tensor(e)],
        }

    def bytes_held(self) -> dict[str, int]:
        """Bytes on this rank by category, measured: storages, each once (a view adds nothing)."""
        known: set[int] = set()
        return {kind: storage_bytes(tensors, known) for kind, tensors in self.tensors_held().items()}
