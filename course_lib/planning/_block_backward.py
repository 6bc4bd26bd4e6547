"""What one block's backward needs beside what the block has kept: temporary activations and fresh gradients."""

from typing import Any, NamedTuple

import numpy as np

from course_lib.planning.activations import BlockBytes
from course_lib.planning.sizes import expert_parameters, ffn_width, head_width, layer_parameters, replicated_in_layer
from course_lib.planning.spec import ModelSpec

__all__ = ["BlockSize", "block_size", "working"]


class BlockSize(NamedTuple):
    """Parameters of one block on one rank, whole over data-parallel ranks: in all, and of some matrices."""

    all: Any
    down: Any
    feed_forward: Any
    out: Any


def block_size(model: ModelSpec, mixture: bool, tensor: Any, expert: Any) -> BlockSize:
    count = layer_parameters(model, model.layers if mixture else -1)
    replicated = replicated_in_layer(model, mixture=mixture)
    routed = model.experts * expert_parameters(model) if mixture else 0
    everything = replicated + (count - replicated - routed) / tensor + routed / (tensor * expert)
    matrices = 3 if model.gated else 2
    ff = matrices * model.width * ffn_width(model) / tensor
    if mixture:
        ff = (model.experts / expert + model.shared_experts) * expert_parameters(model) / tensor
    return BlockSize(everything, ff / matrices, ff, model.heads * head_width(model) * model.width / tensor)


def working(
    block: BlockBytes, size: BlockSize, recompute: str, tokens: Any, *, each: int, adding: Any, sent: Any
) -> tuple[Any, Any]:
    """Bytes of one block's backward beside what it has kept, at its worst moment: of activations, and of gradients.

    each: bytes of a gradient's number. adding: gradients of earlier micro-batches are there, so that a matrix' new one
    lives until it is added; else it stays. sent: bytes that come when the block's gradients are sent.
    """
    again = block.kept["none"] - block.kept[recompute]
    gate = size.feed_forward - size.down
    fresh = np.where(adding, 0, 1)
    moments = (
        (block.at_down, size.down),
        (block.at_product, fresh * size.down),
        (block.at_entry - block.inside, gate + fresh * size.down),
        (block.at_norm - block.inside, fresh * size.feed_forward),
        (block.at_scores - block.feed_forward, size.out + fresh * size.feed_forward),
        (block.at_norm + block.norm - block.kept["none"], fresh * size.all),
    )
    made, own = 0.0 * tokens, 0.0 * tokens + fresh * size.all * each + sent
    best = own - tokens * block.kept["none"]
    own_best = own
    made = made - tokens * block.kept["none"]
    for temporary, parameters in moments:
        total = tokens * temporary + parameters * each
        larger = total > best
        best = np.where(larger, total, best)
        made = np.where(larger, tokens * temporary, made)
        own_best = np.where(larger, parameters * each, own_best)
    return made + tokens * again, own_best
