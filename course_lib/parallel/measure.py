"""How long a layer computes and sends on this machine's ranks, to feed `overlap`; and a real FSDP2 step beside it.

    times = layer_times(preset("small"), ranks=2)                  # one LayerTimes a block, in seconds
    simulate(fsdp_tasks(times, prefetch=1)).makespan               # what the event model makes of them
    step_seconds(preset("small"), ranks=2)                         # {"late": s, "early": s}: FSDP2 itself, both ways

Two ranks with one thread each are as many as two cores can time honestly. gloo copies with the same cores that
compute, so what is sent meanwhile slows computing down: on a GPU a copy engine does that work.
"""

import statistics
import time
from functools import partial
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from course_lib.config import ModelConfig
from course_lib.model import GPT
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.overlap import LayerTimes

__all__ = ["gather_ahead", "layer_times", "step_rounds", "step_seconds"]


def layer_times(
    shape: ModelConfig, ranks: int = 2, *, batch: int = 4, length: int | None = None, rounds: int = 7
) -> list[LayerTimes]:
    """Seconds of each block's forward, backward, all-gather and reduce-scatter, each measured alone.

    Medians over the rounds; of the ranks, the slowest, since a collective waits for it. Each rank computes on (batch,
    length) tokens; without a length, the model's context.
    """
    job = partial(_times_here, shape, batch, length or shape.context, rounds)
    slowest = [max(rank_values) for rank_values in zip(*run_ranks(job, ranks, timeout=120), strict=True)]
    return [LayerTimes(*slowest[start : start + 4]) for start in range(0, len(slowest), 4)]


def _times_here(shape: ModelConfig, batch: int, length: int, rounds: int) -> list[float]:
    """Four numbers a block, in the order of `LayerTimes`."""
    model, ranks = GPT(shape), dist.get_world_size()
    x = torch.randn(batch, length, shape.d_model, generator=torch.Generator().manual_seed(0), requires_grad=True)
    cos, sin = model.cos[:length], model.sin[:length]
    out: list[float] = []
    for block in model.blocks:
        part = torch.ones(-(-sum(p.numel() for p in block.parameters()) // ranks))
        whole = torch.ones(len(part) * ranks)
        found: list[tuple[float, ...]] = []
        for _ in range(rounds + 1):
            dist.barrier()
            marks = [time.perf_counter()]
            y = block(x, cos, sin)
            marks.append(time.perf_counter())
            y.backward(torch.ones_like(y))
            marks.append(time.perf_counter())
            dist.barrier()
            begin = time.perf_counter()
            dist.all_gather_single(whole, part)
            gathered = time.perf_counter()
            dist.barrier()
            middle = time.perf_counter()
            dist.reduce_scatter_single(part, whole)
            scattered = time.perf_counter() - middle
            found.append((marks[1] - marks[0], marks[2] - marks[1], gathered - begin, scattered))
        out += [statistics.median(column) for column in zip(*found[1:], strict=True)]  # the first is the warm-up
    return out


def gather_ahead(blocks: nn.ModuleList) -> None:
    """Let each sharded block gather the next one while it computes, in forward and in backward.

    On a GPU, FSDP2 does so by itself: it gathers on a stream of its own. With gloo it waits for each gather, unless it
    is told to issue them asynchronously (a private switch of torch 2.13) and which block comes next.
    """
    for block, following in pairwise(blocks):
        assert isinstance(block, FSDPModule) and isinstance(following, FSDPModule)
        block.set_modules_to_forward_prefetch([following])
        following.set_modules_to_backward_prefetch([block])
    for block in blocks:
        assert isinstance(block, FSDPModule)
        block._set_unshard_async_op(True)


def step_seconds(
    shape: ModelConfig, ranks: int = 2, *, batch: int = 4, length: int | None = None, rounds: int = 9
) -> dict[str, float]:
    """The medians of `step_rounds`."""
    found = step_rounds(shape, ranks, batch=batch, length=length, rounds=rounds)
    return {name: statistics.median(seconds) for name, seconds in found.items()}


def step_rounds(
    shape: ModelConfig, ranks: int = 2, *, batch: int = 4, length: int | None = None, rounds: int = 9
) -> dict[str, list[float]]:
    """Seconds of forward and backward through FSDP2's blocks, in each round: {"late": without, "early": with prefetch}.

    Both models take turns in one run, so that other work on the machine hits both.
    """
    job = partial(_steps_here, shape, batch, length or shape.context, rounds)
    found = run_ranks(job, ranks, timeout=120)
    return {name: list(map(max, *(one[name] for one in found))) for name in found[0]}  # the slowest rank's


class _Trunk(nn.Module):
    """The blocks of a GPT, one after the other: (B, T, D) -> (B, T, D)."""

    def __init__(self, model: GPT) -> None:
        super().__init__()
        self.blocks, self.cos, self.sin = model.blocks, model.cos, model.sin

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x, self.cos[: x.shape[1]], self.sin[: x.shape[1]])
        return x


def _steps_here(shape: ModelConfig, batch: int, length: int, rounds: int) -> dict[str, list[float]]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    x = torch.randn(batch, length, shape.d_model, generator=torch.Generator().manual_seed(0))
    trunks = {"late": _Trunk(GPT(shape)), "early": _Trunk(GPT(shape))}
    for trunk in trunks.values():
        for block in trunk.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=True)
        fully_shard(trunk, mesh=mesh, reshard_after_forward=True)
    gather_ahead(trunks["early"].blocks)
    seconds: dict[str, list[float]] = {name: [] for name in trunks}
    for place in range(rounds + 1):
        for name, trunk in trunks.items():
            dist.barrier()
            begin = time.perf_counter()
            trunk(x).sum().backward()
            if place:  # the first is the warm-up
                seconds[name].append(time.perf_counter() - begin)
    return seconds
