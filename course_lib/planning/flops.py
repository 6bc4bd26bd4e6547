"""FLOPs of a training step: counted exactly from the shapes, beside the rule of thumb 6 N D.

    step = step_flops(model, sequence=4096, sequences=1024, recompute="all")
    step.model, step.recomputed, step.hardware      # forward and backward; computed again; both
    step.parts                                      # by matrix product, forward and backward
    six_nd(total(model), tokens)                    # the rule: Kaplan et al. 2020, arXiv 2001.08361

A multiply and an add are two. Backward takes twice the forward: one product for the input's gradient, one for the
weight's. Only matrix products count; softmax, norms and the optimizer are below 1% at the sizes where one plans. The
embedding is looked up: no FLOPs. What 6 N D has too much is the embedding; what it lacks is attention's scores.
"""

from dataclasses import dataclass

from course_lib.planning.formulas import train_flops
from course_lib.planning.sizes import (
    expert_parameters,
    ffn_width,
    head_width,
    key_value_heads,
    mixture_layers,
)
from course_lib.planning.spec import ModelSpec

__all__ = ["StepFlops", "exact_step_flops", "flops_per_token", "six_nd", "step_flops"]

six_nd = train_flops


@dataclass(frozen=True)
class StepFlops:
    """FLOPs of one step over the whole batch."""

    model: float
    """Forward and backward: what MFU counts."""
    recomputed: float
    """The forward products that are done a second time."""
    parts: dict[str, float]
    """Forward and backward by part; the sum is `model`."""

    @property
    def hardware(self) -> float:
        """Everything the devices multiply: what HFU counts."""
        return self.model + self.recomputed


def _forward(model: ModelSpec, sequence: int, sequences: float, causal: bool) -> dict[str, float]:
    """FLOPs of one forward pass by part."""
    tokens, mixtures = float(sequence) * sequences, mixture_layers(model)
    across = model.heads * head_width(model)
    projections = model.attention_parameters
    if projections is None:
        projections = 2 * model.width * (model.heads + key_value_heads(model)) * head_width(model)
    dense = (3 if model.gated else 2) * model.width * ffn_width(model)
    visited = (model.active_experts + model.shared_experts) * expert_parameters(model)
    square = 4.0 * model.layers * across * sequence * tokens  # queries times keys, weights times values
    return {
        "attention_projections": 2.0 * model.layers * projections * tokens,
        "attention_scores": square / 2 if causal else square,
        "feed_forward": 2.0 * (model.layers - mixtures) * dense * tokens,
        "experts": 2.0 * mixtures * visited * tokens,
        "router": 2.0 * mixtures * model.width * model.experts * tokens,
        "head": 2.0 * model.vocab * model.width * tokens,
    }


def step_flops(
    model: ModelSpec,
    sequence: int,
    sequences: float,
    *,
    recompute: str = "none",
    causal: bool = False,
    stops_early: bool = False,
) -> StepFlops:
    """FLOPs of forward and backward over `sequences` sequences of `sequence` tokens (a number, or an array of them).

    causal: attention's scores count half, the triangle that a causal kernel computes; else the whole square, as in
    PaLM's MFU (Chowdhery et al. 2022, arXiv 2204.02311, appendix B), which all published MFUs of the course's table
    use. Experts: what the tokens visit, none dropped.
    recompute: "selective" does attention's scores again, "all" each block's forward (Korthikanti et al. 2022, arXiv
    2205.05198). stops_early: as PyTorch does, which does not repeat the last product of a dense block, since nothing
    needs its result; published hardware FLOPs count it.
    """
    forward = _forward(model, sequence, sequences, causal)
    parts = {part: 3.0 * flops for part, flops in forward.items()}
    again = 0.0 * forward["head"]  # an array where `sequences` is one
    if recompute == "selective":
        again = forward["attention_scores"]
    elif recompute == "all":
        again = sum(flops for part, flops in forward.items() if part != "head")
        if stops_early:
            again = again - forward["feed_forward"] / (3 if model.gated else 2)
    return StepFlops(sum(parts.values()), again, parts)


exact_step_flops = step_flops


def flops_per_token(model: ModelSpec, sequence: int, *, causal: bool = False) -> float:
    """Forward and backward, of one token of a sequence of that length."""
    return step_flops(model, sequence, 1.0, causal=causal).model / sequence
