"""Bytes of one device at the moments of a step that can be the worst: the formulas behind `capacity`.

    forward           its end: all activations of this rank, and what is gathered of a sharded model
    loss              cross entropy runs backward: all activations, and the logits three times
    last norm         it runs backward: what a norm makes beside the activations of all blocks
    backward          the first block runs backward: all activations, and what its backward makes beside them
    end of backward   the last block runs backward: nearly all gradients
    optimizer         the update

True of the training loop that this course has: the GPT of `course_lib.model`, `fully_shard` by block with gradients
summed over ranks in every micro-batch, AdamW in one kernel, gradients dropped after the update. Norms are one kernel
too, as on a GPU; on a CPU they are several (`fused_norm=False`) and keep more. Layout numbers may be numpy arrays of
one length.
"""

from typing import Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.planning._block_backward import block_size, working
from course_lib.planning.activations import block_bytes, head_bytes
from course_lib.planning.communication import STRATEGIES
from course_lib.planning.formulas import RECIPES
from course_lib.planning.in_flight import V_SHAPED, in_flight, layers_on
from course_lib.planning.spec import DataSpec, ModelSpec

__all__ = ["stage_bytes"]

Moments = dict[str, dict[str, Any]]


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
    split_loss: bool = True,
    fused_norm: bool = True,
    optimizer: str = "fused",
) -> Moments:
    """Bytes by moment and category, of pipeline rank `rank`.

    data_ranks: data-parallel ranks; the model is sharded over them and the context's. replicas: of hsdp.
    compute_bytes: of a number in the matrix products; None: as the recipe's weights. split_loss: tensor-parallel ranks
    share out the vocabulary of the loss. fused_norm: norms in one kernel, as on a GPU. optimizer: "fused" needs nothing
    beside its state, "foreach" an FP32 copy of all this rank's parameters, "loop" two of the largest. `ConfigError` for
    unknown names.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"recipe={recipe!r} is unknown (there are: {', '.join(RECIPES)})")
    if sharding not in STRATEGIES:
        raise ConfigError(f"sharding={sharding!r} is unknown (there are: {', '.join(STRATEGIES)})")
    if optimizer not in ("fused", "foreach", "loop"):
        raise ConfigError(f"optimizer={optimizer!r} is unknown (there are: fused, foreach, loop)")
    kind, form = RECIPES[recipe], STRATEGIES[sharding]
    width = compute_bytes or kind.weights
    p, v = pipeline, 2 if schedule in V_SHAPED else chunks
    first, last = rank == 0, rank == (0 * p if schedule in V_SHAPED else p - 1)
    m = global_batch // (data_ranks * micro_batch)
    tokens = micro_batch * data.sequence / context

    # Parameters of this rank after tensor and expert parallel: its blocks, and the unit around them.
    mine = layers_on(model.layers, rank=rank, pipeline=p, chunks=v, schedule=schedule)
    dense = mine
    if model.experts:
        dense = layers_on(model.layers, rank=rank, pipeline=p, chunks=v, schedule=schedule, before=model.dense_layers)
    sizes = {mixture: block_size(model, mixture, tensor, expert) for mixture in (False, True)}
    table = model.vocab * model.width / tensor
    shared = 1 * np.logical_and(first, last) if model.tied else 0
    head = last * (table + model.width)
    start = first * (table * (1 - shared) + model.positions * model.width)
    outside = head + start
    held = dense * sizes[False].all + (mine - dense) * sizes[True].all + outside
    largest = np.maximum(np.where(dense > 0, sizes[False].all, 0), np.where(mine > dense, sizes[True].all, 0))

    fused = np.where(np.asarray(tensor) > 1, 1, 2) if model.gated else 1  # gate and up are one matrix unless cut
    matrix = np.maximum(fused * sizes[False].down, table * np.logical_or(first, last))

    # What stays, each category whole or shared out.
    group = data_ranks * context / (replicas if sharding == "hsdp" else 1)

    def stays(name: str, parameters: Any, each: float) -> Any:
        return parameters * each / (group if name in form.sharded else 1)

    rest: dict[str, Any] = {
        "weights": stays("weights", held, kind.weights),
        "optimizer": stays("optimizer", held, kind.master + kind.moments),
    }
    gradients = stays("gradients", held, kind.gradients)

    # What comes and goes where the model is sharded.
    whole, cut = "weights" in form.sharded, "gradients" in form.sharded
    keeps = whole and form.gathers == 1  # gathered once, dropped in backward
    each = width if cut or kind.gradients != 4 else 4
    sending = min(4, kind.gradients) * cut  # bytes of a number in the buffer of a reduce-scatter
    unit, around = width * largest * whole, width * outside * whole
    several = mine > 1
    next_one = np.where(several, largest, 0)
    buffer = sending * next_one  # of the block before, on its way
    fetched = 0 * next_one if keeps else width * next_one * whole  # what will be needed next
    not_dropped = width * (held - outside - largest) * whole if keeps else 0

    # Activations.
    settings: dict[str, Any] = dict(
        width=width, tensor=tensor, sequence_parallel=sequence_parallel, fused_norm=fused_norm
    )
    blocks = {
        mixture: block_bytes(model, data.sequence, mixture=mixture, fused_attention=fused_attention, **settings)
        for mixture in (False, True)
    }
    kept = {mixture: tokens * block.kept[recompute] for mixture, block in blocks.items()}
    at_once = in_flight(schedule, rank=rank, pipeline=p, micro_batches=m, chunks=v)
    edge = width * model.width * tokens * (1 / tensor if sequence_parallel else 1)  # what a stage gives on, and keeps
    pair = (dense * kept[False] + (mine - dense) * kept[True]) / v  # one micro-batch in one chunk
    top = head_bytes(model, split_loss=split_loss, **settings)
    others = last * (np.where(schedule == "gpipe", m, 1) - 1) * tokens  # whose loss waits for its backward as well
    # Are gradients of earlier micro-batches there when most activations are? Where a rank holds all at once they are
    # not; then the second backward is the worse moment if gradients are more than what the first one has freed.
    late = (at_once == m * v) & (m > 1) & (gradients > pair + edge)
    there = (at_once < m * v) | late
    activations = (at_once - late) * pair + edge * (at_once - late - last) * (p * v > 1) + others * top.kept

    adding = there & (not cut)
    work = {
        mixture: working(
            blocks[mixture], sizes[mixture], recompute, tokens, each=each, adding=adding, sent=sending * largest - unit
        )
        for mixture in (False, True)
    }
    plain = np.logical_or(
        mine == dense, (work[False][0] + work[False][1] > work[True][0] + work[True][1]) & (dense > 0)
    )
    made, own = (np.where(plain, a, b) for a, b in zip(work[False], work[True], strict=True))
    kept_by_one = np.where(plain, kept[False], kept[True])
    freed = several * (kept_by_one + (unit if keeps else 0))
    of_head = each * head * np.where(adding, 0, 1)  # the output layer's gradient comes first
    activations_there = {
        "backward": activations + np.maximum(0, buffer - freed),  # of the first block, or the second
        "end of backward": kept_by_one
        * (1 + several * cut),  # of the last block; sharded: the one before, with buffers
    }
    done = {
        "backward": stays("gradients", next_one, kind.gradients) * cut,
        "end of backward": stays("gradients", held - largest - (outside + next_one if cut else start), kind.gradients),
    }
    beside = {"backward": fetched + not_dropped, "end of backward": fetched + buffer}
    backward: Moments = {
        moment: {
            **rest,
            "gradients": np.where(there, gradients, done[moment]) + own + of_head * (cut or moment == "backward"),
            "activations": activations_there[moment] + np.minimum(0, made),
            "logits": others * top.log_softmax * (moment == "backward"),
            "working": np.maximum(0, made),
            "gathered": around + unit + beside[moment],
        }
        for moment in done
    }
    before = {**rest, "gradients": gradients * there, "activations": activations + tokens * last * top.kept}
    return {
        "forward": {
            **before,
            "logits": tokens
            * last
            * width
            * (model.vocab / tensor + (0 if split_loss else 2 * model.vocab * (tensor > 1)))
            + others * top.log_softmax,
            "gathered": around + unit + (not_dropped + unit if keeps else 0),
        },
        "loss": {
            **before,
            "logits": tokens * last * top.loss + others * top.log_softmax,
            "gathered": around + unit + not_dropped if keeps else 0 * unit,
        },
        "last norm": {
            **rest,
            "gradients": gradients * there + of_head,
            "activations": activations,
            "logits": others * top.log_softmax,
            "working": tokens * last * top.at_norm,
            "gathered": around + unit + not_dropped,
        },
        **backward,
        "optimizer": {
            **rest,
            "gradients": gradients,
            # 16-bit gradients become FP32 (`masters.MasterWeights`), and the optimizer's own temporaries.
            "update": stays("optimizer", held, 2 if recipe == "adamw-16bit" else 0)
            + stays("optimizer", {"fused": 0, "foreach": held, "loop": 2 * matrix}[optimizer], 4),
        },
    }
