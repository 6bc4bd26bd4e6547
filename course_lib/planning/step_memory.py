"""What one step reads and writes in a device's memory beside its matrix products: between them, and in the update.

    moved_bytes(model, sequence=2048, fused_attention=False)     # {"stream": ..., "blocks": ..., "scores": ..., ...}
    update_bytes("adamw-16bit")                                  # 30 a parameter

A matrix product of large matrices is limited by multiplying; everything else here is limited by the memory's rate. The
narrower a model, the larger this share: products grow with the square of the width, these with the width.
"""

from course_lib.planning.formulas import RECIPES
from course_lib.planning.sizes import ffn_width, head_width, key_value_heads, mixture_layers
from course_lib.planning.spec import ModelSpec

__all__ = ["moved_bytes", "update_bytes"]


def moved_bytes(
    model: ModelSpec, sequence: int, *, fused_attention: bool = True, recompute: str = "none"
) -> dict[str, float]:
    """Bytes that a token moves between the matrix products, forward and backward, by place.

    "stream": the residual stream of all layers, which only sequence parallelism splits; "blocks", "scores" (of
    attention, unless it is fused) and "loss", which tensor parallelism splits. Each operation reads and writes 16-bit
    numbers, and only bias with activation is fused: a norm reads and writes the stream, an addition reads two and
    writes one, an activation reads its inputs and writes one, a rotation reads and writes queries and keys; a score is
    read and written by the softmax and by its dropout, and read again. Backward moves twice as much, and a forward that
    is done again a third more. The loss reads, writes and differentiates its logits, partly in 32 bits: 24 bytes each.
    Our own count; compiled code moves less.
    """
    both_ways, size = 3, 2
    mixtures = mixture_layers(model)
    visited = model.active_experts + model.shared_experts
    inner = (model.layers - mixtures) * ffn_width(model) + mixtures * visited * ffn_width(model, expert=True)
    inner *= 3 if model.gated else 2
    if not model.positions:
        inner += model.layers * 2 * (model.heads + key_value_heads(model)) * head_width(model)
    scores = 0 if fused_attention else model.layers * 5 * model.heads * sequence
    again = 4 / 3 if recompute == "all" else 1.0
    scores_again = 4 / 3 if recompute != "none" else 1.0
    return {
        "stream": both_ways * size * again * model.layers * (2 * 2 + 2 * 3) * model.width,
        "blocks": both_ways * size * again * inner,
        "scores": both_ways * size * scores_again * scores,
        "loss": 24.0 * model.vocab,
    }


def update_bytes(recipe: str) -> int:
    """Bytes a parameter that the optimizer's update moves: it reads all that it keeps, and writes all but gradients."""
    kept = RECIPES[recipe]
    return 2 * kept.total - kept.gradients
