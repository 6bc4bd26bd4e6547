"""How long one step takes: predicted from shapes, layout and bandwidths, with one fitted number for each accelerator.

    step = predict(run)                     # step.seconds, step.parts, step.mfu, step.tokens_per_second, step.traffic
    step_seconds(model, data, hardware, assume, tensor=array([1, 2, 4]), ...)      # the same for many layouts at once

A device multiplies at peak x reached x efficiency, reads and writes its memory at the data sheet's rate between the
matrix products, and sends at the data sheet's rates: tensor parallelism waits for what it sends, data parallelism hides
it behind computing as far as there is computing left. The slowest pipeline stage sets the pace, and the schedule's
formula says how long ranks wait for the first and the last micro-batch.

Left out: kernels that get slower with few rows, how networks fall behind their data sheet, congestion, stragglers,
clocks that drop under load, data loading, launching kernels, garbage collection, checkpoints, experts of unequal load.
`course_lib.planning.published` says how far off this is for steps that others have timed.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.parallel.schedule import FORMULAS
from course_lib.planning.communication import batch_floor, crossover, expert_elements, sent_by_kind
from course_lib.planning.flops import step_flops
from course_lib.planning.formulas import RECIPES
from course_lib.planning.sizes import ffn_width, head_width, key_value_heads, mixture_layers, parameters
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, ModelSpec, RunSpec
from course_lib.planning.split_traffic import context_sent, tensor_sent

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Number = float | NDArray[np.float64]

__all__ = ["EFFICIENCY", "StepTime", "efficiency", "moved_bytes", "predict", "step_seconds"]

EFFICIENCY = {"A100": 0.73, "H100": 0.635}
"""Share of the best measured matrix product that a step's products reach, by chip. Fitted: `published.fit`."""

_SAME_CHIP = {"H200": "H100", "H800": "H100"}
_OTHERWISE = 0.68
"""For a device without a fitted number: between the two that have one."""


@dataclass(frozen=True)
class StepTime:
    """One optimizer step. Times are seconds of the slowest rank."""

    seconds: float
    parts: dict[str, float]
    """compute, recompute, memory (norms, activations, loss: limited by the device's memory), tensor_traffic,
    context_traffic, expert_traffic, bubble, sends (between pipeline stages), data_traffic (what is not hidden) and
    optimizer; the sum is `seconds`."""
    bubble: float
    """Share of a pipeline's time that a rank waits because of the schedule."""
    mfu: float
    """The model's FLOPs, attention's full square included, over what all devices could do at their peak."""
    hfu: float
    """The same with what is computed again."""
    tokens_per_second: float
    """Of all devices together."""
    traffic: dict[str, dict[str, float]]
    """Bytes that one rank sends in a step, by axis and kind, hidden or not."""
    crossover: float
    """Devices at which data-parallel traffic takes as long as computing, everything else as it is."""
    floor: int
    """Data-parallel ranks at most: each needs a whole sequence."""


def efficiency(device: str | None, assume: Assumptions | None = None) -> float:
    """Share of the best measured matrix product that a step's products reach: assumed, fitted, or in between."""
    if assume is not None and assume.efficiency is not None:
        return assume.efficiency
    chip = (device or "").split(" ")[0]
    return EFFICIENCY.get(_SAME_CHIP.get(chip, chip), _OTHERWISE)


def moved_bytes(model: ModelSpec, sequence: int, *, fused_attention: bool = True) -> dict[str, float]:
    """Bytes that a token moves through a device's memory between the matrix products, forward and backward, by place.

    "stream": the residual stream of all layers, which only sequence parallelism splits; "blocks", "scores" (of
    attention, unless it is fused) and "loss", which tensor parallelism splits. Each operation reads and writes 16-bit
    numbers, and only bias with activation is fused: a norm reads and writes the stream, an addition reads two and
    writes one, an activation reads its inputs and writes one, a rotation reads and writes queries and keys; a score is
    read and written by the softmax and by its dropout, and read again. Backward moves twice as much. The loss reads,
    writes and differentiates its logits, partly in 32 bits: 24 bytes each. Own count; compiled code moves less.
    """
    width, across = model.width, model.heads * head_width(model)
    both_ways, size = 3, 2
    mixtures = mixture_layers(model)
    visited = model.active_experts + model.shared_experts
    inner = (model.layers - mixtures) * ffn_width(model) + mixtures * visited * ffn_width(model, expert=True)
    inner *= 3 if model.gated else 2
    if not model.positions:
        inner += model.layers * 2 * (across + key_value_heads(model) * head_width(model))
    scores = 0 if fused_attention else model.layers * 5 * model.heads * sequence
    return {
        "stream": float(both_ways * size * model.layers * (2 * 2 + 2 * 3) * width),
        "blocks": float(both_ways * size * inner),
        "scores": float(both_ways * size * scores),
        "loss": 24.0 * model.vocab,
    }


def _repeated(recompute: str, place: str) -> float:
    """How often a place's bytes move: a forward that is done again is a third more."""
    return 4 / 3 if place != "loss" and (recompute == "all" or (recompute, place) == ("selective", "scores")) else 1.0


def _needed(hardware: HardwareSpec, name: str) -> float:
    value = getattr(hardware, name)
    if value is None:
        raise ConfigError(f"hardware.{name} is missing: give it, or a `device` that has it")
    return float(value)


def _units(strategy: str) -> tuple[dict[str, float], dict[str, float]]:
    """Of a strategy: what it sends once a step and in each micro-batch, in parameters, on very many ranks.

    What one of N ranks sends is (N - 1) / N times that: two ranks send half of it.
    """
    once = {kind: 2 * sent for kind, sent in sent_by_kind(strategy, 1.0, 2, 0).items()}
    each = {kind: 2 * sent for kind, sent in sent_by_kind(strategy, 1.0, 2, 1).items()}
    return once, {kind: sent - once.get(kind, 0.0) for kind, sent in each.items() if sent > once.get(kind, 0.0)}


def _around(ranks: "Number") -> "Number":
    return (ranks - 1) / ranks


def _step(
    model: ModelSpec,
    data: DataSpec,
    hardware: HardwareSpec,
    assume: Assumptions,
    *,
    sharding: str,
    schedule: str,
    recompute: str,
    recipe: str,
    sequence_parallel: bool,
    fused_attention: bool,
    context_form: str,
    data_ranks: "Number",
    replicas: "Number",
    tensor: "Number",
    pipeline: "Number",
    chunks: "Number",
    context: "Number",
    expert: "Number",
    micro_batch: "Number",
    global_batch: "Number",
) -> tuple[dict[str, Any], dict[str, dict[str, Any]], dict[str, Any]]:
    """Seconds by part, bytes by axis and kind, and what `predict` says besides. Numbers, or arrays of layouts."""
    layers, s = model.layers, data.sequence
    m = global_batch / (data_ranks * micro_batch)  # micro-batches of a rank
    devices = data_ranks * tensor * pipeline * context
    tokens = micro_batch * s / context  # of one micro-batch, on one rank
    rate = _needed(hardware, "peak_tflops") * 1e12 * (hardware.reached or 1.0) * efficiency(hardware.device, assume)
    inside, across = _needed(hardware, "inside_gb_per_s") * 1e9, _needed(hardware, "across_gb_per_s") * 1e9
    node = hardware.devices_per_node or 1
    memory = hardware.memory_tb_per_s * 1e12 if hardware.memory_tb_per_s else float("inf")

    # Computing, of one micro-batch on one of very many equal stages, then of the slowest stage.
    flops = step_flops(model, s, 1.0, recompute=recompute)
    head = flops.parts["head"] / s
    in_layers, again = flops.model / s - head, flops.recomputed / s
    share = layers / pipeline
    most, least = np.ceil(share), np.floor(share)  # the last stage has the head, and fewer layers where they are uneven
    per_layer = (in_layers + again) / layers
    slowest = np.maximum(most * per_layer, least * per_layer + head)
    uneven = slowest / ((in_layers + again + head) / pipeline)
    work = m * tokens / (tensor * pipeline) * uneven / rate
    compute, recomputed = (in_layers + head) * work, again * work
    attention = flops.parts["attention_scores"] / s * m * tokens / (tensor * pipeline) / rate

    moved = moved_bytes(model, s, fused_attention=fused_attention)
    moved = {place: size * _repeated(recompute, place) for place, size in moved.items()}
    split = tensor if sequence_parallel else 1.0
    local = moved["stream"] / split + (moved["blocks"] + moved["scores"] + moved["loss"]) / tensor
    in_memory = m * tokens / pipeline * local / memory

    # Tensor parallel: every rank of the group waits for it.
    unit = tensor_sent(
        layers, 1, model.width, model.vocab, 2, sequence="regather" if sequence_parallel else None, loss_parallel=True
    )
    repeated = (7 / 5 if sequence_parallel else 3 / 2) if recompute == "all" else 1.0
    of_tensor = {kind: 2 * sent * 2 * repeated * m * tokens / pipeline * _around(tensor) for kind, sent in unit.items()}
    tensor_traffic = sum(of_tensor.values()) / np.where(tensor <= node, inside, across)

    # Context parallel: a ring hides behind attention, a gather does not.
    kv_width = key_value_heads(model) * head_width(model)
    form = "ring" if context_form == "ring" else "all-gather"
    unit = context_sent(layers, 1, kv_width, 0, 2, form=form)  # type: ignore[arg-type]
    of_context = {
        kind: 2 * sent * 2 * m * (micro_batch * s) / (tensor * pipeline) * _around(context)
        for kind, sent in unit.items()
        if sent
    }
    near = np.where(tensor * context <= node, inside, across)
    context_traffic = sum(of_context.values()) / near
    if form == "ring":
        context_traffic = np.maximum(0.0, context_traffic - attention)

    # Expert parallel: what leaves the node goes at the network's rate, the rest inside.
    mixtures = mixture_layers(model)
    rows = expert_elements(1.0, model.active_experts, model.width, expert, mixtures)  # type: ignore[arg-type]
    of_expert = 2 * rows * m * tokens / pipeline
    at_home = np.minimum(expert, np.maximum(1, node / (tensor * context)))
    leaving = (expert - at_home) / np.maximum(expert - 1, 1)
    expert_traffic = of_expert * np.maximum(leaving / across, (1 - leaving) / inside)
    if schedule == "dualpipev":  # computes one micro-batch while another one is sent
        expert_traffic = np.maximum(0.0, expert_traffic - compute - recomputed)

    # The pipeline: what a rank waits for, and what it sends.
    busy = compute + recomputed + in_memory + tensor_traffic + context_traffic + expert_traffic
    again_share = 3 * flops.recomputed / flops.model
    idle = FORMULAS[schedule].takes(pipeline, m, chunks, 1.0, 1.0 + again_share, 1.0)  # type: ignore[arg-type]
    idle_over_ideal = idle / (m * chunks * (3 + again_share))
    boundary = tokens * model.width * 2 / tensor  # each tensor rank sends its part (Narayanan et al. 2021, section 4.1)
    of_pipeline = np.where(pipeline > 1, 2 * m * chunks * boundary, 0.0)
    sends = of_pipeline / np.where(devices <= node, inside, across)

    # Data parallel, over context ranks too: hidden as far as there is computing beside it.
    counts = parameters(model)
    experts = counts["experts"] * (model.experts / max(1, model.experts + model.shared_experts))
    held = (sum(counts.values()) - experts) / (tensor * pipeline), experts / (tensor * pipeline * expert)
    group = data_ranks * context
    once, each = _units("fsdp" if sharding == "hsdp" else sharding)
    times = np.where(pipeline > 1, 1.0, m) if sharding == "fsdp_no_reshard" else m
    if sharding in ("ddp", "zero1"):  # gradients are summed after the last micro-batch
        once, each = {kind: once.get(kind, 0) + each.get(kind, 0) for kind in once | each}, {}
    kept = RECIPES[recipe]
    size = {"all_gather": kept.weights, "reduce_scatter": min(kept.gradients, 4), "all_reduce": min(kept.gradients, 4)}
    of_data: dict[str, Any] = {}
    for count, ranks in zip(held, (group / replicas, group / expert / replicas), strict=True):
        for kind in once | each:
            repeats = once.get(kind, 0.0) + each.get(kind, 0.0) * (times if kind == "all_gather" else m)
            of_data[kind] = of_data.get(kind, 0.0) + repeats * count * size[kind] * _around(ranks)
    spread = np.minimum(group / replicas, np.maximum(1, node / tensor))  # ranks of a data group in one node
    data_rate = np.where(group / replicas * tensor <= node, inside, np.minimum(inside, across * spread))
    seconds = sum(of_data.values()) / data_rate
    if sharding == "hsdp":
        sums = 2 * m * sum(held) / (group / replicas) * _around(replicas) * size["all_reduce"]
        of_data["all_reduce"] = sums
        seconds = seconds + sums / across
    window = compute + recomputed + in_memory
    if not each:
        window = window / m
    first = seconds / np.maximum(share * (m if each else 1), 1)  # of one layer: nothing is computed beside it
    hidden = np.minimum(assume.hidden * seconds, window)
    data_traffic = np.maximum(seconds - hidden, np.minimum(first, seconds))

    shards = group / replicas if sharding != "ddp" else 1.0
    touched = 2 * kept.total - kept.gradients  # read all, write all but the gradients
    optimizer = sum(held) / shards * touched / memory

    parts = {
        "compute": compute,
        "recompute": recomputed,
        "memory": in_memory,
        "tensor_traffic": tensor_traffic,
        "context_traffic": context_traffic,
        "expert_traffic": expert_traffic,
        "bubble": busy * idle_over_ideal,
        "sends": sends,
        "data_traffic": data_traffic,
        "optimizer": optimizer,
    }
    traffic = {
        "data": of_data,
        "tensor": of_tensor,
        "context": of_context,
        "expert": {"all_to_all": of_expert},
        "pipeline": {"send": of_pipeline},
    }
    rest = {
        "flops": flops,
        "devices": devices,
        "idle": idle_over_ideal,
        "rate": rate,
        "data_rate": data_rate,
        "group": group,
    }
    return parts, traffic, rest


def step_seconds(
    model: ModelSpec,
    data: DataSpec,
    hardware: HardwareSpec,
    assume: Assumptions,
    *,
    sharding: str,
    schedule: str,
    recompute: str,
    recipe: str,
    sequence_parallel: bool,
    fused_attention: bool,
    context_form: str,
    data_ranks: "Number",
    replicas: "Number",
    tensor: "Number",
    pipeline: "Number",
    chunks: "Number",
    context: "Number",
    expert: "Number",
    micro_batch: "Number",
    global_batch: "Number",
) -> "Number":
    """Seconds of a step, for one layout or for arrays of them (equal lengths, or numbers). The hardware is filled in.

    Nothing is checked: a layout that cannot be gets a number too.
    """
    parts, _, _ = _step(
        model,
        data,
        hardware,
        assume,
        sharding=sharding,
        schedule=schedule,
        recompute=recompute,
        recipe=recipe,
        sequence_parallel=sequence_parallel,
        fused_attention=fused_attention,
        context_form=context_form,
        data_ranks=data_ranks,
        replicas=replicas,
        tensor=tensor,
        pipeline=pipeline,
        chunks=chunks,
        context=context,
        expert=expert,
        micro_batch=micro_batch,
        global_batch=global_batch,
    )
    total: Number = sum(parts.values())
    return total


def predict(run: RunSpec) -> StepTime:
    """The step of one run whose hardware is filled in. `ConfigError` where a figure of the hardware is missing."""
    layout, sequences = run.layout, run.data.global_batch
    parts, traffic, rest = _step(
        run.model,
        run.data,
        run.hardware,
        run.assume,
        sharding=layout.sharding,
        schedule=layout.schedule,
        recompute=layout.recompute,
        recipe=layout.recipe,
        sequence_parallel=layout.sequence_parallel,
        fused_attention=layout.fused_attention,
        context_form=layout.context_form,
        data_ranks=layout.data,
        replicas=layout.replicas,
        tensor=layout.tensor,
        pipeline=layout.pipeline,
        chunks=layout.chunks,
        context=layout.context,
        expert=layout.expert,
        micro_batch=layout.micro_batch,
        global_batch=sequences,
    )
    seconds = float(sum(parts.values()))
    peak = layout.devices * _needed(run.hardware, "peak_tflops") * 1e12
    flops = rest["flops"]
    sent = {axis: {kind: float(size) for kind, size in kinds.items() if size > 0} for axis, kinds in traffic.items()}
    of_data = sum(sent["data"].values())
    where = float("inf")
    if of_data:
        shared = layout.tensor * layout.pipeline
        many = of_data / float(_around(rest["group"])) * shared
        hardware_flops = flops.hardware * sequences
        where = crossover(hardware_flops, many, float(rest["rate"]), float(rest["data_rate"])) * shared
    return StepTime(
        seconds=seconds,
        parts={name: float(value) for name, value in parts.items()},
        bubble=float(rest["idle"] / (1 + rest["idle"])),
        mfu=flops.model * sequences / (seconds * peak),
        hfu=flops.hardware * sequences / (seconds * peak),
        tokens_per_second=run.batch_tokens / seconds,
        traffic={axis: kinds for axis, kinds in sent.items() if kinds},
        crossover=where,
        floor=batch_floor(run.batch_tokens, run.data.sequence),
    )
