"""The trainer on many ranks: how a model is wrapped for them, what they sum, and what they have to agree on.

`OneProcess` is the plain case, in which nothing is sent. On many ranks, `Replicated` (DDP) or `Sharded` (FSDP2) takes
its place; `course_lib.parallel.torchrun` says which. In both, a gradient is the SUM over ranks: each rank's loss is
already divided by the valid tokens of the global batch, so there is no mean to take.
"""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import TrainConfig, require
from course_lib.data import IGNORE
from course_lib.errors import ConfigError, CourseError

__all__ = ["OneProcess", "Ranks", "Replicated", "Sharded"]

T = TypeVar("T")


class OneProcess:
    """One process has everything. What many ranks would have to send, sum or agree on is already there."""

    parallel = "none"
    rank = 0
    world_size = 1
    sharded = False
    """Whether a rank holds only its part of weights and optimizer state."""
    signals: tuple[signal.Signals, ...] = (signal.SIGINT,)
    """What ends a run after its step: Ctrl-C, and SIGTERM in a rank of torchrun, which sends it. In a rank of
    `run_ranks` neither: its caller ends it."""

    def __init__(self, device: str) -> None:
        self.device = device
        """Of this process."""

    @property
    def first(self) -> bool:
        """Whether this is the rank that reports."""
        return self.rank == 0

    def gather(self, value: T) -> list[T]:
        """The value of every rank, in rank order."""
        return [value]

    def from_first(self, make: Callable[[], T]) -> T:
        """What `make` returns on rank 0, on every rank; a `CourseError` of rank 0 is raised on all."""
        return make()

    def together(self) -> AbstractContextManager[None]:
        """A `CourseError` of any rank inside becomes the same error on all, so that no rank waits for one that left."""
        return nullcontext()

    def require_same(self, what: Mapping[str, Any]) -> None:
        """`ConfigError` when a rank has another value than rank 0."""

    def micro_batches(self, config: TrainConfig) -> int:
        """Passes of a rank per optimizer step. `ConfigError` when the batch does not divide, with batches that do."""
        return config.micro_batches

    def micro_batch(self, inputs: Any, targets: Any, micro: int, micros: int) -> tuple[Any, Any]:
        """The rows of the global batch that this rank works on in pass `micro`: those of `BatchStream.slice`."""
        parts, part = self.world_size * micros, self.rank * micros + micro
        rows = slice(part * len(inputs) // parts, (part + 1) * len(inputs) // parts)
        return inputs[rows], targets[rows]

    def share(self, inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """This rank's rows of a batch to score."""
        return inputs, targets

    def wrap(self, model: nn.Module, weights: str) -> Callable[[Tensor], Tensor]:
        """What to call instead of the model. `weights`: as in the configuration."""
        return model

    def forward(self, last: bool) -> AbstractContextManager[object]:
        """Goes around one forward pass. last: the backward that follows synchronises the gradients."""
        return nullcontext()

    def drop_gathered(self) -> None:
        """Free whole weights that a forward pass without a backward has left behind."""

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """Norm of all gradients of the model together; gradients: those this rank holds (its parts of them)."""
        return nn.utils.get_total_norm(gradients)

    def sum(self, value: float) -> float:
        """Sum over the ranks."""
        return value

    def global_loss(self, loss: Tensor, asked: bool) -> float:
        """The global batch's loss from this rank's share. The wish to stop travels with it: see `stopping`."""
        return float(loss)

    def new_run(self) -> None:
        """Forget an earlier wish to stop."""

    def stopping(self, asked: bool) -> bool:
        """Whether to stop now; asked: this rank was asked to. Every rank gets the same answer after the same step."""
        return asked


class Ranks(OneProcess):
    """One of several processes, in the initialised default group."""

    def __init__(self, device: str, signals: tuple[signal.Signals, ...]) -> None:
        super().__init__(device)
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.signals = signals
        self._stop = False

    def gather(self, value: T) -> list[T]:
        found: list[Any] = [None] * self.world_size
        dist.all_gather_object(found, value)
        return found

    def from_first(self, make: Callable[[], T]) -> T:
        value: Any = None
        with self.together():
            value = make() if self.first else None
        box = [value]
        dist.broadcast_object_list(box, src=0)
        return box[0]

    @contextmanager
    def together(self) -> Iterator[None]:
        own: CourseError | None = None
        try:
            yield
        except CourseError as error:
            own = error
        told = self.gather(None if own is None else (type(own), str(own)))
        failed = [rank for rank, one in enumerate(told) if one is not None]
        if failed:
            kind, text = told[failed[0]] or (CourseError, "")
            raise kind(text if len(failed) == self.world_size else f"rank {failed[0]}: {text}") from own

    def require_same(self, what: Mapping[str, Any]) -> None:
        every = self.gather(dict(what))
        for rank, theirs in enumerate(every):
            for name, value in every[0].items():
                require(
                    theirs[name] == value,
                    f"{name} is {theirs[name]} on rank {rank} and {value} on rank 0; every rank has to have the same",
                )

    def micro_batches(self, config: TrainConfig) -> int:
        batch, micro, ranks = config.batch, config.micro_batch, self.world_size
        unit = ranks * (micro or 1)
        if batch % unit:
            low, high = batch // unit * unit, (batch // unit + 1) * unit
            near = f"batch={low} or batch={high}" if low else f"batch={high}"
            each = "" if micro is None else f" x micro_batch={micro}"
            fits = max((d for d in range(1, (micro or 1) + 1) if (batch // ranks) % d == 0), default=1)
            other = f", or micro_batch={fits}" if micro and batch % ranks == 0 and batch >= ranks else ""
            raise ConfigError(f"batch={batch} does not divide into {ranks} ranks{each}; try {near}{other}")
        return 1 if micro is None else batch // unit

    def share(self, inputs: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        low, high = (len(inputs) * rank // self.world_size for rank in (self.rank, self.rank + 1))
        if low == high:  # a sharded model is called on every rank or on none
            return inputs[:1], np.full_like(targets[:1], IGNORE)
        return inputs[low:high], targets[low:high]

    def sum(self, value: float) -> float:
        return self._sum([value])[0]

    def global_loss(self, loss: Tensor, asked: bool) -> float:
        total, wishes = self._sum([loss, float(asked)])
        self._stop = wishes > 0
        return total

    def new_run(self) -> None:
        self._stop = False

    def stopping(self, asked: bool) -> bool:
        return self._stop

    def _sum(self, values: Sequence[Tensor | float]) -> list[float]:
        numbers = torch.stack([torch.as_tensor(one, dtype=torch.float64, device=self.device) for one in values])
        dist.all_reduce(numbers)
        return numbers.tolist()

    def _equal_start(self, model: nn.Module) -> None:
        """Rank 0's weights and buffers on every rank."""
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._NormBase) and module.track_running_stats:
                raise ConfigError(
                    f"parallel={self.parallel!r}: {type(module).__name__} keeps statistics of its own rank's rows; use "
                    "a norm without running statistics, or parallel='none'"
                )
        for tensor in [*model.parameters(), *model.buffers()]:
            dist.broadcast(tensor.detach(), src=0)


class Replicated(Ranks):
    """DDP: a whole replica on each rank; its gradients are summed in buckets while backward still runs."""

    parallel = "ddp"

    def wrap(self, model: nn.Module, weights: str) -> Callable[[Tensor], Tensor]:
        self._equal_start(model)
        level = dist.get_debug_level()
        dist.set_debug_level(dist.DebugLevel.OFF)  # under DETAIL its constructor crashes (torch 2.13)
        try:
            self._ddp = nn.parallel.DistributedDataParallel(model, forward_sync_buffers=False, init_sync=False)
        finally:
            dist.set_debug_level(level)
        self._ddp.register_comm_hook(None, _summed)
        return self._ddp

    def forward(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else self._ddp.no_sync()  # DDP decides in forward, for the backward after it


def _summed(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
    """In place of DDP's own hook, which divides by the number of ranks."""
    done = dist.all_reduce(bucket.buffer(), async_op=True).get_future()
    return done.then(lambda future: future.value()[0])


class Sharded(Ranks):
    """FSDP2: each rank holds 1/N of every parameter, gradient and moment; a block's weights are gathered while it runs.

    Micro-batches before the last keep whole FP32 gradients on the rank: less is sent, more is held.
    """

    parallel = "fsdp"
    sharded = True

    def wrap(self, model: nn.Module, weights: str) -> Callable[[Tensor], Tensor]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        blocks = getattr(model, "blocks", None)
        blocks = blocks if isinstance(blocks, nn.ModuleList | nn.Sequential) else nn.ModuleList()
        self._can_shard(model, blocks)
        self._equal_start(model)
        # weights="bf16": the FP32 shards are the masters, and what is gathered and computed with is BF16.
        policy = MixedPrecisionPolicy(cast_forward_inputs=False)
        if weights == "bf16":
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        mesh = init_device_mesh(torch.device(self.device).type, (self.world_size,))
        for module in [*blocks, model]:
            fully_shard(module, mesh=mesh, mp_policy=policy)
        self._model: Any = model
        self._parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
        for part in self._parts:
            part.set_gradient_divide_factor(1.0)
            part.set_force_sum_reduction_for_comms(True)  # else it asks for PREMUL_SUM, which gloo does not have
        return model

    def _can_shard(self, model: nn.Module, blocks: nn.ModuleList | nn.Sequential) -> None:
        owner: dict[int, str] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            require(
                p.dtype == torch.float32,
                f"parallel='fsdp' shards FP32 weights, and {name} is {str(p.dtype).removeprefix('torch.')}; give the "
                "model in FP32 and set weights='bf16'",
            )
            parts = name.split(".")
            block = parts[1] if parts[0] == "blocks" and len(blocks) else ""
            require(
                owner.setdefault(id(p), block) == block,
                f"parallel='fsdp': {name} is shared between blocks, which are sharded one by one; use parallel='ddp'",
            )

    def forward(self, last: bool) -> AbstractContextManager[object]:
        self._model.set_requires_gradient_sync(last)  # holds for the backward after it, too
        return nullcontext()

    def drop_gathered(self) -> None:
        for module in self._parts:
            module.reshard()

    def total_norm(self, gradients: Sequence[Tensor]) -> Tensor:
        own = nn.utils.get_total_norm(gradients).to(self.device, torch.float64)
        square = own**2
        dist.all_reduce(square)
        return square.sqrt().float()
