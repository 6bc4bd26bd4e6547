"""Bytes a device, by category, at each pipeline stage; the peak, when it is and what fills it.

    for stage in stages(run):
        print(stage.stage, stage.peak / 2**30, stage.at, stage.filled_by, stage.parts)
    peak_bytes(run.model, run.data, run.hardware, ..., data_ranks=array, tensor=array, ...)   # many layouts at once
    device_limit(80)                                  # what of 80 GiB a plan may fill

`stage_memory` has the formulas, and says of what they are true.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.planning.in_flight import layers_on
from course_lib.planning.spec import DataSpec, HardwareSpec, ModelSpec, RunSpec
from course_lib.planning.stage_memory import stage_bytes

__all__ = ["USABLE", "StageMemory", "device_limit", "peak_bytes", "stage_bytes", "stages"]

USABLE = 0.94
"""Share of a device's memory that a plan's tensors may fill. The rest goes to the CUDA context and NCCL's buffers (1 to
2 GiB of 80) and to what the allocator cannot use because it lies in pieces. An assumption, and a narrow one:
torchtitan's published rows reserve a quarter more than their tensors' bytes by this count (test_capacity.py)."""


@dataclass(frozen=True)
class StageMemory:
    """One device of a pipeline rank."""

    stage: int
    """The pipeline rank."""
    layers: int
    parts: dict[str, float]
    """Bytes by category at the worst moment; the sum is `peak`."""
    peak: float
    at: str
    """The worst moment: "loss", "backward", "end of backward" or "optimizer"."""
    filled_by: str
    """The largest category then."""


def device_limit(memory_gib: float) -> float:
    """Bytes of a device that a plan may fill."""
    return USABLE * memory_gib * 2**30


def layout_keywords(run: RunSpec) -> dict[str, Any]:
    """A run's layout as the keywords of `peak_bytes` and `stage_bytes`."""
    names = (
        "sharding schedule recompute recipe sequence_parallel fused_attention replicas tensor pipeline chunks context "
        "expert micro_batch"
    )
    layout = {name: getattr(run.layout, name) for name in names.split()}
    return layout | {"data_ranks": run.layout.data, "global_batch": run.data.global_batch}


def stages(run: RunSpec) -> list[StageMemory]:
    """Every pipeline rank of a run. `ConfigError` for an unknown recipe, sharding or schedule."""
    found, layout = [], run.layout
    for rank in range(layout.pipeline):
        moments = stage_bytes(run.model, run.data, rank=rank, **layout_keywords(run))
        at = max(moments, key=lambda moment: float(sum(moments[moment].values())))
        parts = {part: float(size) for part, size in moments[at].items()}
        layers = layers_on(
            run.model.layers, rank=rank, pipeline=layout.pipeline, chunks=layout.chunks, schedule=layout.schedule
        )
        largest = max(parts, key=lambda part: parts[part])
        found.append(StageMemory(rank, int(layers), parts, sum(parts.values()), at, largest))
    return found


def peak_bytes(
    model: ModelSpec, data: DataSpec, hardware: HardwareSpec | None = None, *, pipeline: Any, **layout: Any
) -> Any:
    """The largest stage's peak; the keywords are those of `stage_bytes` without `rank`, numbers or arrays.

    The largest is the first stage (embedding, most activations in flight), the first without dense layers where there
    are experts, or the last (logits).
    """
    last = pipeline - 1
    ranks = [0 * last, last]
    if model.experts and model.dense_layers:
        per_stage = np.maximum(1, model.layers // pipeline)
        ranks.append(np.minimum(-(-model.dense_layers // per_stage), last))
    peak: Any = 0.0
    for rank in ranks:
        for moment in stage_bytes(model, data, rank=rank, pipeline=pipeline, **layout).values():
            peak = np.maximum(peak, sum(moment.values()))
    return peak
