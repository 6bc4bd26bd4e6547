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
from typing import Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.parallel.schedule import FORMULAS
from course_lib.planning.communication import batch_floor, crossover
from course_lib.planning.flops import step_flops
from course_lib.planning.in_flight import V_SHAPED, layers_on
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, ModelSpec, RunSpec
from course_lib.planning.step_memory import moved_bytes, update_bytes
from course_lib.planning.step_traffic import (
    Cut,
    Number,
    around,
    context_bytes,
    data_bytes,
    expert_bytes,
    held,
    pipeline_bytes,
    sums_once,
    tensor_bytes,
)

__all__ = ["EFFICIENCY", "StepTime", "efficiency", "predict", "step_seconds"]

EFFICIENCY = {"A100": 0.71, "H100": 0.595}
"""Share of the best measured matrix product that a step's products reach, by chip. Fitted by `published.fit`, on every
second row of the published tables of that chip; which rows, by which rule and how far off the others are is there."""

_SAME_CHIP = {"H200": "H100", "H800": "H100"}
_OTHERWISE = 0.65
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


def _needed(hardware: HardwareSpec, name: str) -> float:
    value = getattr(hardware, name)
    if value is None:
        raise ConfigError(f"hardware.{name} is missing: give it, or a `device` that has it")
    return float(value)


@dataclass(frozen=True)
class _Rates:
    """What one device can do, in FLOP/s and bytes/s."""

    products: float
    memory: float
    inside: float
    across: float
    node: int

    def reaching(self, ranks: Number) -> Number:
        """Bytes a second in a group of so many neighbouring ranks."""
        return np.where(ranks <= self.node, self.inside, self.across)


def _rates(hardware: HardwareSpec, assume: Assumptions) -> _Rates:
    share = (1.0 if hardware.reached is None else hardware.reached) * efficiency(hardware.device, assume)
    return _Rates(
        products=_needed(hardware, "peak_tflops") * 1e12 * share,
        memory=_needed(hardware, "memory_tb_per_s") * 1e12,
        inside=_needed(hardware, "inside_gb_per_s") * 1e9,
        across=_needed(hardware, "across_gb_per_s") * 1e9,
        node=hardware.devices_per_node or 1,
    )


def _exposed(seconds: Number, hidden: float, beside: Number) -> Number:
    """What is left to wait for when a share of it hides behind so much computing."""
    return seconds - np.minimum(hidden * seconds, beside)


def _slowest(layers: int, cut: Cut, schedule: str, per_layer: float, head: float) -> Number:
    """Work of the slowest stage over a stage's fair share. The first rank has the most layers, one has the head too;
    the embedding costs nothing."""
    words: dict[str, Any] = {"pipeline": cut.pipeline, "chunks": cut.chunks, "schedule": schedule}
    most = layers_on(layers, rank=0, **words)
    last = most if schedule in V_SHAPED else layers_on(layers, rank=cut.pipeline - 1, **words)
    return np.maximum(most * per_layer, last * per_layer + head) * cut.pipeline / (layers * per_layer + head)


def _data_seconds(
    cut: Cut, rates: _Rates, sent: dict[str, Number], between: Number, window: Number, hidden: float, layers: Number
) -> Number:
    """What data parallelism makes a rank wait. Ranks of a group that share a node use all of their network cards."""
    ranks = cut.group / cut.replicas
    members = np.maximum(1, rates.node / cut.tensor)
    rate = np.where(ranks <= members, rates.inside, np.minimum(rates.inside, rates.across * members))
    seconds = (sum(sent.values()) - between) / rate + between / rates.across
    first = seconds / np.maximum(layers, 1)  # of one layer: nothing is computed beside it
    return np.maximum(_exposed(seconds, hidden, window), np.minimum(first, seconds))


def _step(
    model: ModelSpec,
    data: DataSpec,
    hardware: HardwareSpec,
    assume: Assumptions,
    cut: Cut,
    *,
    sharding: str,
    schedule: str,
    recompute: str,
    recipe: str,
    sequence_parallel: bool,
    fused_attention: bool,
    context_form: str,
) -> tuple[dict[str, Number], dict[str, dict[str, Number]], Number]:
    """Seconds by part, bytes by axis and kind, and idle over ideal time of the pipeline. Numbers or arrays."""
    s, m, rates, tensor, pipeline = data.sequence, cut.micro_batches, _rates(hardware, assume), cut.tensor, cut.pipeline
    tokens = m * cut.micro_batch * s / (cut.context * pipeline)  # that one rank computes a layer's share for

    flops = step_flops(model, s, 1.0, recompute=recompute, stops_early=assume.recompute_stops_early)
    head, again = flops.parts["head"] / s, flops.recomputed / s
    in_layers = flops.model / s - head
    slowest = _slowest(model.layers, cut, schedule, (in_layers + again) / model.layers, head)
    work = tokens / tensor / rates.products
    compute, recomputed = (in_layers + head) * work * slowest, again * work * slowest

    moved = moved_bytes(model, s, fused_attention=fused_attention, recompute=recompute)
    stream = moved["stream"] / (tensor if sequence_parallel else 1.0)
    memory = tokens * (stream + (moved["blocks"] + moved["scores"] + moved["loss"]) / tensor) / rates.memory

    of_tensor = tensor_bytes(model, s, cut, sequence_parallel=sequence_parallel, recompute=recompute)
    tensor_traffic = sum(of_tensor.values()) / rates.reaching(tensor)
    tensor_traffic = _exposed(tensor_traffic, assume.hidden_tensor, compute + recomputed)

    of_context = context_bytes(model, s, cut, form=context_form)
    attention = flops.parts["attention_scores"] / s * work  # a ring sends beside it, a gather before it
    context_traffic = sum(of_context.values()) / rates.reaching(tensor * cut.context)
    context_traffic = _exposed(context_traffic, 1.0 if context_form == "ring" else 0.0, attention)

    of_expert = expert_bytes(model, s, cut)
    at_home = np.minimum(cut.expert, np.maximum(1, rates.node / (tensor * cut.context)))
    leaving = (cut.expert - at_home) / np.maximum(cut.expert - 1, 1)
    expert_traffic = of_expert * np.maximum(leaving / rates.across, (1 - leaving) / rates.inside)
    overlaps = 1.0 if schedule == "dualpipev" else 0.0  # computes one micro-batch while another one is sent
    expert_traffic = _exposed(expert_traffic, overlaps, compute + recomputed)

    of_pipeline = pipeline_bytes(model, s, cut)
    sends = _exposed(of_pipeline / rates.reaching(cut.devices), assume.hidden_tensor, compute + recomputed)
    repeated = 3 * flops.recomputed / flops.model  # beside F = I = W = 1, in the backward of each micro-batch
    idle = FORMULAS[schedule].takes(pipeline, m, cut.chunks, 1.0, 1.0 + repeated, 1.0)
    idle_over_ideal = idle / (m * cut.chunks * (3 + repeated))
    busy = compute + recomputed + memory + tensor_traffic + context_traffic + expert_traffic

    of_data, between = data_bytes(model, cut, sharding=sharding, recipe=recipe)
    times = 1.0 if sums_once(sharding) else m  # that gradients are summed, each beside one micro-batch
    window = (compute + recomputed + memory) * times / m
    layers = model.layers / pipeline * times
    data_traffic = _data_seconds(cut, rates, of_data, between, window, assume.hidden, layers)
    shards = 1.0 if sharding == "ddp" else cut.group / cut.replicas

    parts = {
        "compute": compute,
        "recompute": recomputed,
        "memory": memory,
        "tensor_traffic": tensor_traffic,
        "context_traffic": context_traffic,
        "expert_traffic": expert_traffic,
        "bubble": busy * idle_over_ideal,
        "sends": sends,
        "data_traffic": data_traffic,
        "optimizer": sum(held(model, cut)) / shards * update_bytes(recipe) / rates.memory,
    }
    traffic = {
        "data": of_data,
        "tensor": of_tensor,
        "context": of_context,
        "expert": {"all_to_all": of_expert},
        "pipeline": {"send": of_pipeline},
    }
    return parts, traffic, idle_over_ideal


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
    **numbers: Number,
) -> Number:
    """Seconds of a step, for one layout or for arrays of them (equal lengths, or numbers).

    numbers: data_ranks, replicas, tensor, pipeline, chunks, context, expert, micro_batch and global_batch. The hardware
    is filled in (`devices.fill`). Nothing is checked: a layout that cannot be gets a number too.
    """
    parts, _, _ = _step(
        model,
        data,
        hardware,
        assume,
        Cut(**numbers),
        sharding=sharding,
        schedule=schedule,
        recompute=recompute,
        recipe=recipe,
        sequence_parallel=sequence_parallel,
        fused_attention=fused_attention,
        context_form=context_form,
    )
    return sum(parts.values())


def predict(run: RunSpec) -> StepTime:
    """The step of one run whose hardware is filled in. `ConfigError` where a figure of the hardware is missing."""
    layout, sequences = run.layout, run.data.global_batch
    cut = Cut(
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
    parts, traffic, idle = _step(
        run.model,
        run.data,
        run.hardware,
        run.assume,
        cut,
        sharding=layout.sharding,
        schedule=layout.schedule,
        recompute=layout.recompute,
        recipe=layout.recipe,
        sequence_parallel=layout.sequence_parallel,
        fused_attention=layout.fused_attention,
        context_form=layout.context_form,
    )
    seconds = float(sum(parts.values()))
    peak = layout.devices * _needed(run.hardware, "peak_tflops") * 1e12
    stops = run.assume.recompute_stops_early
    flops = step_flops(run.model, run.data.sequence, sequences, recompute=layout.recompute, stops_early=stops)
    sent = {axis: {kind: float(size) for kind, size in kinds.items() if size > 0} for axis, kinds in traffic.items()}
    return StepTime(
        seconds=seconds,
        parts={name: float(value) for name, value in parts.items()},
        bubble=float(idle / (1 + idle)),
        mfu=flops.model / (seconds * peak),
        hfu=flops.hardware / (seconds * peak),
        tokens_per_second=run.batch_tokens / seconds,
        traffic={axis: kinds for axis, kinds in sent.items() if kinds},
        crossover=_crossover(cut, _rates(run.hardware, run.assume), flops.hardware, sum(sent["data"].values())),
        floor=batch_floor(run.batch_tokens, run.data.sequence),
    )


def _crossover(cut: Cut, rates: _Rates, flops: float, sent: float) -> float:
    """Devices at which data-parallel traffic takes as long as computing, with tensor and pipeline ranks as they are."""
    if not sent:
        return float("inf")
    shared = cut.tensor * cut.pipeline
    many = sent / around(cut.group) * shared  # of a rank that has all layers to itself, among very many
    rate = min(rates.inside, rates.across * max(1, rates.node / cut.tensor))
    return float(crossover(flops, many, rates.products, rate) * shared)
