"""The same schedules as `torch.distributed.pipelining` has them (torch 2.13)."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, schedules

from course_lib.errors import ScheduleError

__all__ = ["NAMES", "TorchPipeline"]

NAMES = {
    "gpipe": "ScheduleGPipe",
    "looped_bfs": "ScheduleLoopedBFS",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "interleaved_zb": "ScheduleInterleavedZeroBubble",
    "zbv": "ScheduleZBVZeroBubble",
    "dualpipev": "ScheduleDualPipeV",
}
"""Ours, and PyTorch's class. `gpipe` with several chunks is its LoopedBFS."""


class TorchPipeline:
    """PyTorch's schedule over these stages."""

    def __init__(
        self,
        name: str,
        stages: Mapping[int, nn.Module],
        count: int,
        micro_batches: int,
        loss_fn: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        """stages: this rank's, by id, of `count`. loss_fn: its sum over the micro-batches is the loss of the step."""
        if name == "gpipe" and len(stages) > 1:
            name = "looped_bfs"
        if name not in NAMES:
            raise ScheduleError(f"torch.distributed.pipelining has no {name}; it has {', '.join(NAMES)}")
        self.first, self.last = 0 in stages, count - 1 in stages
        device = next(p.device for stage in stages.values() for p in stage.parameters())
        parts = [PipelineStage(stage, place, count, device) for place, stage in stages.items()]
        kind = getattr(schedules, NAMES[name])
        given = parts if issubclass(kind, schedules.PipelineScheduleMulti) else parts[0]
        # PyTorch would divide the gradients by the number of micro-batches. Ours is a sum that is divided already.
        self.schedule = kind(given, micro_batches, loss_fn=loss_fn, scale_grads=False)

    def step(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Forward and backward of all micro-batches -> the sum of the losses computed here, ()."""
        losses: list[Tensor] = []
        given = (inputs,) if self.first else ()
        self.schedule.step(*given, target=targets if self.last else None, losses=losses, return_outputs=False)
        return torch.stack(losses).detach().sum() if losses else torch.zeros(())
