"""Pipeline parallel: a rank holds some of the layers, and micro-batches flow through.

    Pipeline(model, make_optimizer, schedule="1f1b")           # a strategy like any other: `equivalence`, `measure`
    Pipeline(..., schedule="interleaved", chunks=2)            # every schedule of `schedule.py`
    Pipeline(..., schedule=mine)                               # or lists of actions of your own, one for each rank
    Pipeline(..., by_torch=True)                               # the same by torch.distributed.pipelining
    Pipeline(..., record=True).recorded                        # when each action waited and ran: see `recording`

`run_actions` is the whole idea: a rank goes through its list of actions, whatever the schedule; it receives what an
action needs, computes, and sends what comes out. Receives block, sends do not.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.errors import ScheduleError
from course_lib.parallel._pipeline_loop import Mail, gradient_of, run_actions
from course_lib.parallel._pipeline_record import Clock, Recorded
from course_lib.parallel._pipeline_stages import Stage, split_model
from course_lib.parallel.schedule import Action, run, simulate
from course_lib.parallel.strategy import MakeOptimizer, Strategy, rank_and_world, summed_loss

__all__ = ["Clock", "Mail", "Pipeline", "Recorded", "Stage", "run_actions", "split_model"]

Schedule = str | Sequence[Sequence[Action]]
"""A name, or one list of actions for each rank."""


class Pipeline(Strategy):
    """A rank holds the stages that the schedule puts on it, reads the whole batch, and passes micro-batches on.

    schedule: a name of `schedule.SCHEDULES`, or one list of actions for each rank.
    micro_batches: of a step; what `forward_backward` is asked for unless given.
    shares: blocks of each stage; even unless given. split: cuts a model that is no GPT into stages.
    by_torch: PyTorch's schedule of that name does the work, also "interleaved_zb", which we do not have.
    record: `recorded` has when each action of the last step waited, started and ended. watch: and what was held after
    it, which takes time of its own.
    Tied embeddings are on the first stage and on the last; where these are two ranks, they add their gradients.
    """

    def __init__(
        self,
        model: nn.Module,
        make_optimizer: MakeOptimizer,
        *,
        schedule: Schedule = "1f1b",
        chunks: int = 1,
        micro_batches: int | None = None,
        shares: Sequence[int] | None = None,
        split: Callable[..., list[nn.Module]] = split_model,
        by_torch: bool = False,
        record: bool = False,
        watch: bool = False,
    ) -> None:
        self.rank, self.world = rank_and_world()
        self.schedule, self.chunks, self.micro_batches = schedule, chunks, micro_batches
        self.by_torch, self.valid = by_torch, 1
        self.clock = Clock(watch) if record or watch else None
        if by_torch and self.clock is not None:
            raise ScheduleError("record and watch look into our own loop: leave out by_torch=True")
        self.home = _homes(schedule, self.world, chunks, by_torch)
        parts = split(model, len(self.home)) if shares is None else split(model, len(self.home), shares)
        self.shapes = {name: p.shape for name, p in model.named_parameters()}
        placed = [*zip(self.home, parts, strict=True)]
        self.owner = {name: home for home, part in reversed(placed) for name, _ in part.named_parameters()}
        self.stages = {stage: part for stage, (home, part) in enumerate(placed) if home == self.rank}
        self.running: dict[int, Callable[..., Tensor]] = {}  # by micro-batches
        super().__init__(nn.ModuleList(self.stages.values()), make_optimizer)
        self.tied = self._tied(parts[0], parts[-1])

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """All of it: what is split is the model."""
        return inputs, targets

    def forward_backward(
        self,
        inputs: Tensor,
        targets: Tensor,
        valid: int,
        micro_batches: int = 1,
        on_micro_batch: Callable[[], None] | None = None,
    ) -> Tensor:
        if on_micro_batch is not None:
            on_micro_batch()
        self.valid = valid
        m = self.micro_batches or micro_batches
        if m not in self.running:
            self.running[m] = self._by_torch(m) if self.by_torch else self._by_hand(m)
        loss = self.running[m](inputs, targets)
        if self.tied is not None:
            self._add(*self.tied)
        return loss

    @property
    def recorded(self) -> list[Recorded]:
        """What this rank did in the last step, in order; empty unless `record` or `watch`."""
        return [*self.clock.records] if self.clock is not None else []

    def _by_hand(self, micro_batches: int) -> Callable[[Tensor, Tensor], Tensor]:
        if isinstance(self.schedule, str):
            plan = simulate(self.schedule, self.world, micro_batches, self.chunks)
        else:
            plan = run(self.schedule, microbatches=micro_batches)

        def step(inputs: Tensor, targets: Tensor) -> Tensor:
            x, y = inputs.tensor_split(micro_batches), targets.tensor_split(micro_batches)
            if self.clock is not None:
                self.clock.records.clear()
                dist.barrier()  # so that the time before a rank's first action is the schedule's
            return run_actions(plan, self.stages, x, y, partial(summed_loss, valid=self.valid), self.clock)

        return step

    def _by_torch(self, micro_batches: int) -> Callable[[Tensor, Tensor], Tensor]:
        from course_lib.parallel._pipeline_torch import TorchPipeline

        def loss(logits: Tensor, targets: Tensor) -> Tensor:
            return summed_loss(logits, targets, self.valid)

        return TorchPipeline(str(self.schedule), self.stages, len(self.home), micro_batches, loss).step

    def _tied(self, first: nn.Module, last: nn.Module) -> tuple[nn.Parameter, int] | None:
        """This rank's copy of a matrix that the first stage and the last have in common, and the other copy's rank."""
        ends = (self.home[0], self.home[-1])
        both = {*first.parameters()} & {*last.parameters()}
        if not both or ends[0] == ends[1] or self.rank not in ends:
            return None
        (matrix,) = both
        return matrix, ends[self.rank == ends[0]]

    def _add(self, matrix: nn.Parameter, other: int) -> None:
        """Both ranks end with the same sum of their two gradients, and so with the same matrix after the update."""
        mine = gradient_of(matrix)
        theirs = torch.empty_like(mine)
        for work in dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, mine, other), dist.P2POp(dist.irecv, theirs, other)]
        ):
            work.wait()
        mine.add_(theirs)

    def _whole(self, mine: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Every rank gets what the owner of each name has."""
        out = {}
        for name, shape in self.shapes.items():
            out[name] = mine[name].clone() if self.owner[name] == self.rank else torch.empty(shape)
            dist.broadcast(out[name], src=self.owner[name])
        return out

    def _own(self) -> dict[str, nn.Parameter]:
        return {name: p for stage in self.stages.values() for name, p in stage.named_parameters()}

    def gradients(self) -> dict[str, Tensor]:
        return self._whole({n: torch.zeros_like(p) if p.grad is None else p.grad for n, p in self._own().items()})

    def parameters(self) -> dict[str, Tensor]:
        return self._whole({name: p.detach() for name, p in self._own().items()})


def _homes(schedule: Schedule, ranks: int, chunks: int, by_torch: bool) -> tuple[int, ...]:
    """Of each stage its rank."""
    if not isinstance(schedule, str):
        if by_torch:
            raise ScheduleError("by_torch=True takes the name of a schedule; run lists of actions without it")
        if len(schedule) != ranks:
            raise ScheduleError(
                f"the schedule has lists for {len(schedule)} ranks, and there are {ranks}: give each one"
            )
        return run(schedule).grid.homes
    if by_torch and schedule == "interleaved_zb":
        return (*range(ranks),) * max(chunks, 2)
    return simulate(schedule, ranks, 2 * ranks, chunks).grid.homes
