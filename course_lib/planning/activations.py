"""Bytes a token that a block keeps for backward, and what comes beside them while its backward runs.

    block_bytes(model, 4096, width=2, tensor=8).kept["none"]          # a block, nothing computed again
    korthikanti_activation_bytes(sequence=2048, micro_batch=1, width=12288, heads=96, tensor=8)

`formulas.activation_bytes` counts the same for this course's GPT on a CPU; here are models of other shapes, and tensor
parallel. Every layout number may be a numpy array.
"""

from typing import Any, NamedTuple

import numpy as np

from course_lib.planning.sizes import ffn_width, head_width, key_value_heads
from course_lib.planning.spec import ModelSpec

__all__ = ["BlockBytes", "HeadBytes", "block_bytes", "head_bytes", "korthikanti_activation_bytes"]


class BlockBytes(NamedTuple):
    """Bytes a token. A block's backward goes through its feed-forward half first, then through its attention."""

    kept: dict[str, Any]
    """Kept from forward to backward, by what is recomputed: "none", "selective", "all"."""
    feed_forward: Any
    """The part of kept["none"] that is free again before attention's backward."""
    inside: Any
    """The part of it that is free again before the feed-forward half's norm runs backward."""
    at_down: Any
    """Gradients alive when the feed-forward half's last matrix has its gradient: of the stream, and of the product."""
    at_product: Any
    """Gradients alive behind that: of the stream, and of the product's factors."""
    at_entry: Any
    """Alive behind that: the input of gate and up, the stream's gradient twice, and theirs."""
    at_norm: Any
    """Gradients alive inside the backward of the feed-forward half's norm: the stream's, and what a norm makes."""
    at_scores: Any
    """Gradients alive when attention's kernel has run backward: of the stream, its output, queries, keys, values."""
    norm: Any
    """What a norm keeps, part of kept["none"]."""


class HeadBytes(NamedTuple):
    """Bytes a token of the last norm, the output layer and the loss."""

    kept: Any
    """Kept from forward to backward, without the logits."""
    loss: Any
    """The logits' log-softmax and two gradients of it, all FP32: what cross entropy's backward has at once; over a
    split vocabulary one more."""
    log_softmax: Any
    """The part of it that a loss keeps."""
    at_norm: Any
    """Inside the norm's backward, beside what blocks have kept: what it has kept, its gradients."""


class _Norm(NamedTuple):
    """Of one norm, in bytes a token."""

    kept: int
    made: int
    """In its backward, beside the gradient that comes in."""


def _norm(model: ModelSpec, width: int, fused: bool) -> _Norm:
    """One kernel keeps the stream and a number or two. RMSNorm in several operations, as torch 2.13 has it on a CPU,
    computes in FP32 and keeps the stream, its normalised form and one reciprocal; its backward makes four of the kind.
    """
    if fused or model.biases:
        return _Norm(width * model.width + 8, width * model.width)
    return _Norm(4 * (2 * model.width + 1), 4 * 4 * model.width)


def block_bytes(
    model: ModelSpec,
    sequence: int,
    *,
    mixture: bool = False,
    width: int = 2,
    tensor: Any = 1,
    sequence_parallel: bool = True,
    fused_attention: bool = True,
    fused_norm: bool = True,
) -> BlockBytes:
    """One block. width: bytes of a number; mixture: with experts in the place of the feed-forward block."""
    t, d, heads = tensor, model.width, model.heads
    across, values = heads * head_width(model), key_value_heads(model) * head_width(model)
    stream = 1 / t if sequence_parallel else 1 + 0 * t  # what every rank has of what lies between matrix products
    rotated = 0 if model.positions else across + values
    scores = 0 if fused_attention else width * heads * sequence / t  # the softmax's result
    # Queries, keys and values are one tensor, of which the values are a view; cut over ranks they are three.
    seen = np.where(np.asarray(t) > 1, values, across + 2 * values)
    attention = (width * (seen + rotated + across) + 4 * heads) / t + scores
    factors = 2 if model.gated else 1
    if mixture and model.experts:
        wide = (model.active_experts + model.shared_experts) * ffn_width(model, expert=True) / t
        # Rows taken, answers before and after their gate; scores and gates.
        more = width * 3 * d * model.active_experts + 12 * model.experts
    else:
        wide, more = ffn_width(model) / t, 0
    each, inside = _norm(model, width, fused_norm), width * (d + 2 * factors * wide)
    norm = each.kept * stream
    half = norm + inside + more
    block = norm + width * d + attention + half
    return BlockBytes(
        kept={"none": block, "selective": block - scores, "all": width * d * stream},
        feed_forward=half,
        inside=inside,
        at_down=width * (d * stream + wide),
        at_product=width * (d * stream + factors * wide),
        at_entry=width * (d + 2 * d * stream + factors * wide),
        at_norm=(2 * width * d + each.made) * stream,
        at_scores=width * (d * stream + (2 * across + 2 * values) / t),
        norm=norm,
    )


def head_bytes(
    model: ModelSpec,
    *,
    width: int = 2,
    tensor: Any = 1,
    sequence_parallel: bool = True,
    split_loss: bool = True,
    fused_norm: bool = True,
) -> HeadBytes:
    """The last norm, output layer and cross entropy. split_loss: tensor-parallel ranks share out the vocabulary."""
    stream, d = 1 / tensor if sequence_parallel else 1, model.width
    norm, scores = _norm(model, width, fused_norm), 4 * model.vocab / (tensor if split_loss else 1)
    at_norm = (norm.kept + width * d + norm.made) * stream
    copies = np.where(np.asarray(tensor) > 1, 4, 3) if split_loss else 3  # `loss_parallel` makes the softmax apart
    return HeadBytes(norm.kept * stream + width * d, copies * scores, scores, at_norm)


def korthikanti_activation_bytes(
    sequence: int,
    micro_batch: int,
    width: int,
    heads: int,
    *,
    tensor: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes that one layer keeps, of a GPT with 16-bit numbers, dropout, a GELU block of 4 x width and as many heads of
    keys and values as of queries, without fused attention: Korthikanti et al. 2022 (arXiv 2205.05198), table 2.

    recompute "selective": attention's inner values again; "all": the block keeps its input alone.
    """
    sbh = float(sequence) * micro_batch * width
    if recompute == "all":
        return 2 * sbh
    scores = 0.0 if recompute == "selective" else 5.0 * heads * sequence / width
    if sequence_parallel:
        return sbh / tensor * (34 + scores)
    return sbh * (10 + 24 / tensor + scores / tensor)
