"""What one rank sends in a step, in bytes, by axis of the layout and kind of collective; for one layout or for many.

    cut = Cut(data_ranks=8, tensor=8, pipeline=4, micro_batch=1, global_batch=256, ...)
    tensor_bytes(model, 4096, cut, sequence_parallel=True, recompute="none")    # {"all_gather": ..., ...}
    data_bytes(model, cut, sharding="zero1", recipe="adamw-16bit")

The elements are those of `communication` and `split_traffic`, asked for two ranks: what one of N ranks of a ring sends
is (N - 1) / N of what it would send in an endless one, and two ranks send half of that. So the formulas stay in one
place, and the numbers of a layout may be arrays. Activations are sent in 16 bits, weights and gradients as the recipe
keeps them, but gradients in no more than 32 bits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from course_lib.planning.communication import expert_elements, sent_by_kind
from course_lib.planning.formulas import RECIPES
from course_lib.planning.sizes import head_width, key_value_heads, mixture_layers, parameters
from course_lib.planning.spec import ModelSpec
from course_lib.planning.split_traffic import context_sent, tensor_sent

__all__ = ["Cut", "Number", "around", "context_bytes", "data_bytes", "expert_bytes", "pipeline_bytes", "tensor_bytes"]

Number = Any
"""A number, or an array with one for each layout."""

_ACTIVATION = 2
"""Bytes of a number that is sent between layers."""


@dataclass(frozen=True, kw_only=True)
class Cut:
    """The numbers of a layout, as in `LayoutSpec`; arrays of one length are as many layouts."""

    data_ranks: Number
    replicas: Number
    tensor: Number
    pipeline: Number
    chunks: Number
    context: Number
    expert: Number
    micro_batch: Number
    global_batch: Number

    @property
    def micro_batches(self) -> Number:
        """Of one data-parallel rank and step: m."""
        return self.global_batch / (self.data_ranks * self.micro_batch)

    @property
    def devices(self) -> Number:
        """Of all axes."""
        return self.group * self.tensor * self.pipeline

    @property
    def group(self) -> Number:
        """Ranks that have the same weights to update: data-parallel ones, and those that share their sequences."""
        return self.data_ranks * self.context


def around(ranks: Number) -> Number:
    """Share of a ring's data that one rank sends on: (N - 1) / N."""
    return (ranks - 1) / ranks


def tensor_bytes(
    model: ModelSpec, sequence: int, cut: Cut, *, sequence_parallel: bool, recompute: str
) -> dict[str, Number]:
    """Of tensor parallelism. Recomputing all repeats what forward sends: 2 of 4 all-reduces, or 2 of 5 halves.

    With sequence parallelism the gradients of the norms are summed too: once a step, and so of no token.
    """
    regather = "regather" if sequence_parallel else None
    one, two = (
        tensor_sent(model.layers, tokens, model.width, model.vocab, 2, sequence=regather, loss_parallel=True)  # type: ignore[arg-type]
        for tokens in (1, 2)
    )
    repeated = (7 / 5 if sequence_parallel else 3 / 2) if recompute == "all" else 1.0
    tokens = cut.micro_batches * cut.micro_batch * sequence / cut.context
    sent: dict[str, Number] = {}
    for kind in one:
        of_token, of_step = two[kind] - one[kind], 2 * one[kind] - two[kind]
        elements = of_token * repeated * tokens + of_step
        sent[kind] = 2 * elements * _ACTIVATION / cut.pipeline * around(cut.tensor)
    return sent


def context_bytes(model: ModelSpec, sequence: int, cut: Cut, *, form: str) -> dict[str, Number]:
    """Of context parallelism: keys and values. The sums of gradients belong to `data_bytes`."""
    width = key_value_heads(model) * head_width(model)
    unit = context_sent(model.layers, 1, width, 0, 2, form=form)  # type: ignore[arg-type]
    tokens = cut.micro_batches * cut.micro_batch * sequence / (cut.tensor * cut.pipeline)
    return {kind: 2 * sent * _ACTIVATION * tokens * around(cut.context) for kind, sent in unit.items() if sent}


def expert_bytes(model: ModelSpec, sequence: int, cut: Cut) -> Number:
    """Of expert parallelism: each token to its experts and back, forward and backward, with experts of equal load."""
    rows = expert_elements(1.0, model.active_experts, model.width, cut.expert, mixture_layers(model))
    return rows * _ACTIVATION * cut.micro_batches * cut.micro_batch * sequence / (cut.context * cut.pipeline)


def pipeline_bytes(model: ModelSpec, sequence: int, cut: Cut) -> Number:
    """Between pipeline stages: forward and backward, each chunk's; each tensor rank sends its part only, which the
    receiving node puts together (Narayanan et al. 2021, arXiv 2104.04473, section 4.1)."""
    boundary = cut.micro_batch * sequence / cut.context * model.width * _ACTIVATION / cut.tensor
    return np.where(cut.pipeline > 1, 2 * cut.micro_batches * cut.chunks * boundary, 0.0)


def held(model: ModelSpec, cut: Cut) -> tuple[Number, Number]:
    """Parameters of one rank before data parallelism shares them out: outside of routed experts, and in them."""
    counts = parameters(model)
    routed = counts["experts"] * (model.experts / max(1, model.experts + model.shared_experts))
    stage = cut.tensor * cut.pipeline
    return (sum(counts.values()) - routed) / stage, routed / (stage * cut.expert)


def data_bytes(model: ModelSpec, cut: Cut, *, sharding: str, recipe: str) -> tuple[dict[str, Number], Number]:
    """Of data parallelism, by kind; and what of it replicas of hsdp send each other.

    "ddp" and "zero1" sum their gradients after the last micro-batch, the others after each. Layers that stay gathered
    (fsdp_no_reshard) are gathered in each micro-batch, but in a pipeline, where the next one is under way, once a step.
    """
    base = "fsdp" if sharding == "hsdp" else sharding
    once = {kind: 2 * sent for kind, sent in sent_by_kind(base, 1.0, 2, 0).items()}
    both = {kind: 2 * sent for kind, sent in sent_by_kind(base, 1.0, 2, 1).items()}
    kept, m = RECIPES[recipe], cut.micro_batches
    reduced = min(kept.gradients, 4)
    sent: dict[str, Number] = {}
    for count, ranks in zip(held(model, cut), (cut.group, cut.group / cut.expert), strict=True):
        for kind in both:
            each = both[kind] - once.get(kind, 0.0)
            repeats = 1.0 if sums_once(sharding) else m
            if kind == "all_gather" and sharding == "fsdp_no_reshard":
                repeats = np.where(cut.pipeline > 1, 1.0, m)
            size = kept.weights if kind == "all_gather" else reduced
            elements = (once.get(kind, 0.0) + each * repeats) * count
            sent[kind] = sent.get(kind, 0.0) + elements * size * around(ranks / cut.replicas)
    if sharding != "hsdp":
        return sent, 0.0
    between = 2 * m * sum(held(model, cut)) / (cut.group / cut.replicas) * around(cut.replicas) * reduced
    return sent | {"all_reduce": between}, between


def sums_once(sharding: str) -> bool:
    """Whether gradients are summed over ranks once a step, so that only the last micro-batch can hide it."""
    return sharding in ("ddp", "zero1")
