"""Bytes a device, by category, at each pipeline stage; the peak, when it is and what fills it.

    for stage in stages(run):
        print(stage.stage, stage.peak / 2**30, stage.at, stage.filled_by, stage.parts)
    peak_bytes(run.model, run.data, run.hardware, ..., data_ranks=array, tensor=array, ...)   # many layouts at once
    device_limit(80)                                  # what of 80 GiB a plan may fill

Three moments can be the worst: when backward begins (all activations, and the logits several times), when it ends (all
gradients), and the optimizer's step. The numbers are those of the training loop that this course has: GPT of
`course_lib.model`, `fully_shard` by block, AdamW fused. Layout numbers may be numpy arrays of one length.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.planning.activations import block_bytes, head_bytes
from course_lib.planning.communication import STRATEGIES
from course_lib.planning.formulas import RECIPES
from course_lib.planning.in_flight import V_SHAPED, in_flight, layers_on
from course_lib.planning.sizes import expert_parameters, layer_parameters, replicated_in_layer
from course_lib.planning.spec import DataSpec, HardwareSpec, ModelSpec, RunSpec

__all__ = ["USABLE", "StageMemory", "device_limit", "peak_bytes", "stage_bytes", "stages"]

USABLE = 0.94
"""Share of a device's memory that a plan may fill. The rest goes to the CUDA context and NCCL's buffers (1 to 2 GiB of
80) and to what the allocator cannot use because it lies in pieces. An assumption, not a measurement."""


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
    """forward and backward meet ("backward"), "end of backward", or "optimizer"."""
    filled_by: str
    """The largest category then."""


def device_limit(memory_gib: float) -> float:
    """Bytes of a device that a plan may fill."""
    return USABLE * memory_gib * 2**30


def stages(run: RunSpec) -> list[StageMemory]:
    """Every pipeline rank of a run."""
    found = []
    for rank in range(run.layout.pipeline):
        moments = stage_bytes(run.model, run.data, rank=rank, **_keywords(run))
        at = max(moments, key=lambda moment: float(sum(moments[moment].values())))
        parts = {part: float(size) for part, size in moments[at].items()}
        layers = layers_on(
            run.model.layers,
            rank=rank,
            pipeline=run.layout.pipeline,
            chunks=run.layout.chunks,
            schedule=run.layout.schedule,
        )
        largest = max(parts, key=lambda part: parts[part])
        found.append(StageMemory(rank, int(layers), parts, sum(parts.values()), at, largest))
    return found


def _keywords(run: RunSpec) -> dict[str, Any]:
    layout = run.layout
    names = (
        "sharding schedule recompute recipe sequence_parallel fused_attention replicas tensor pipeline chunks context "
        "expert micro_batch"
    )
    return {name: getattr(layout, name) for name in names.split()} | {
        "data_ranks": layout.data,
        "global_batch": run.data.global_batch,
    }


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


def stage_bytes(
    model: ModelSpec,
    data: DataSpec,
    *,
    rank: Any,
    sharding: str,
    schedule: str,
    recompute: str,
    recipe: str,
    sequence_parallel: bool,
    fused_attention: bool,
    data_ranks: Any,
    replicas: Any,
    tensor: Any,
    pipeline: Any,
    chunks: Any,
    context: Any,
    expert: Any,
    micro_batch: Any,
    global_batch: Any,
    compute_bytes: int | None = None,
) -> dict[str, dict[str, Any]]:
    """Bytes by moment ("backward", "end of backward", "optimizer") and category, of pipeline rank `rank`.

    data_ranks: those that share out the model (with the context's ranks), replicas: of hsdp. compute_bytes: of a number
    in the matrix products; None: as the recipe's weights. `ConfigError` for unknown names.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"recipe={recipe!r} is unknown (there are: {', '.join(RECIPES)})")
    if sharding not in STRATEGIES:
        raise ConfigError(f"sharding={sharding!r} is unknown (there are: {', '.join(STRATEGIES)})")
    kind, form = RECIPES[recipe], STRATEGIES[sharding]
    width = compute_bytes or kind.weights
    p, t, v = pipeline, tensor, 2 if schedule in V_SHAPED else chunks
    first, last = rank == 0, rank == (0 * p if schedule in V_SHAPED else p - 1)
    m = global_batch // (data_ranks * micro_batch)
    tokens = micro_batch * data.sequence / context

    # Parameters of this rank, after tensor and expert parallel: blocks and the unit around them.
    mine = layers_on(model.layers, rank=rank, pipeline=p, chunks=v, schedule=schedule)
    dense = mine
    if model.experts:
        dense = layers_on(model.layers, rank=rank, pipeline=p, chunks=v, schedule=schedule, before=model.dense_layers)
    plain = _block(model, False, t, expert)
    mixed = _block(model, True, t, expert) if model.experts else 0.0
    blocks = dense * plain + (mine - dense) * mixed
    table = model.vocab * model.width / t
    shared = np.logical_and(first, last) if model.tied else False
    outside = first * (table + model.positions * model.width) + last * (table * (1 - 1 * shared) + model.width)
    held = blocks + outside
    largest = np.maximum(np.where(dense > 0, plain, 0), np.where(mine > dense, mixed, 0))

    # What stays: each category whole, or shared out over data and context ranks.
    group = data_ranks * context / (replicas if sharding == "hsdp" else 1)

    def stays(name: str, bytes_each: float) -> Any:
        return held * bytes_each / (group if name in form.sharded else 1)

    weights = stays("weights", kind.weights)
    gradients = stays("gradients", kind.gradients)
    optimizer = stays("optimizer", kind.master + kind.moments)
    whole = "weights" in form.sharded
    gathered: Any = 0.0
    if whole:  # the unit around the blocks, the block at work and the one that is fetched, before and after copying out
        units = mine if form.gathers == 1 else np.minimum(mine, 2)
        gathered = width * (outside + units * largest + largest) + kind.gradients * (outside + largest)

    # Activations.
    settings: dict[str, Any] = dict(
        width=width, tensor=t, sequence_parallel=sequence_parallel, fused_attention=fused_attention
    )
    block = {mixture: block_bytes(model, data.sequence, mixture=mixture, **settings) for mixture in (False, True)}
    kept = {mixture: found.kept[recompute] for mixture, found in block.items()}
    held_at_once = in_flight(schedule, rank=rank, pipeline=p, micro_batches=m, chunks=v)
    activations = tokens * held_at_once / v * (dense * kept[False] + (mine - dense) * kept[True])
    again = np.maximum(
        np.where(dense > 0, block[False].kept["none"] - kept[False] + block[False].backward, 0),
        np.where(mine > dense, block[True].kept["none"] - kept[True] + block[True].backward, 0),
    )
    head = head_bytes(model, width=width, tensor=t, sequence_parallel=sequence_parallel)
    # The last stage's loss is of one micro-batch, whatever else is in flight.
    logits = tokens * last * head.loss
    activations = activations + tokens * last * head.kept
    working = tokens * again
    there = m > 1  # gradients of earlier micro-batches

    at_rest = {"weights": weights, "optimizer": optimizer}
    return {
        "backward": {
            **at_rest,
            "gradients": gradients * there,
            "activations": activations,
            "logits": np.where(logits > working, logits, 0.0),
            "recomputed": np.where(logits > working, 0.0, working),
            "gathered": gathered,
        },
        "end of backward": {**at_rest, "gradients": gradients, "recomputed": working, "gathered": gathered},
        "optimizer": {**at_rest, "gradients": gradients, "update": stays("optimizer", _update(kind.gradients, recipe))},
    }


def _block(model: ModelSpec, mixture: bool, tensor: Any, expert: Any) -> Any:
    """Parameters of one block on one rank, whole over data-parallel ranks."""
    count = layer_parameters(model, model.layers if mixture else -1)
    replicated = replicated_in_layer(model, mixture=mixture)
    routed = model.experts * expert_parameters(model) if mixture else 0
    return replicated + (count - replicated - routed) / tensor + routed / (tensor * expert)


def _update(gradients: int, recipe: str) -> int:
    """Bytes a parameter that the update adds: 16-bit gradients become FP32 for it (`masters.MasterWeights`)."""
    return 2 if recipe == "adamw-16bit" else 0
