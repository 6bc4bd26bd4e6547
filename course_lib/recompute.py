"""Activation checkpointing: blocks drop what they computed and compute it again in backward.

PyTorch's own `torch.utils.checkpoint` does the work (non-reentrant; it restores random state and autocast). Here are
the choices: which blocks, and what each of them keeps. Chen et al. 2016 (arXiv 1604.06174); selective: Korthikanti et
al. 2022 (arXiv 2205.05198).
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from course_lib.errors import ConfigError

__all__ = ["Recomputed", "kept_operators", "recompute_blocks", "recomputed_blocks"]

Model = TypeVar("Model", bound=nn.Module)

ATTENTION = (
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_attention_math_for_mps",
)
MATMULS = ("mm", "addmm", "bmm")


def kept_operators(mode: str) -> list[Any]:
    """Operators whose results a recomputed block keeps: none for "all", else attention or the matrix products."""
    names = {"all": (), "keep_attention": ATTENTION, "keep_matmuls": MATMULS}[mode]
    packets = [getattr(torch.ops.aten, name) for name in names if hasattr(torch.ops.aten, name)]
    return [packet.default for packet in packets]


class Recomputed:
    """A block's forward pass that keeps its inputs (and what `kept` names), and runs again when backward comes."""

    def __init__(self, forward: Callable[..., Any], kept: list[Any], restore_rng: bool = True) -> None:
        self.forward, self.kept, self.restore_rng = forward, kept, restore_rng

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():  # no backward will come
            return self.forward(*args, **kwargs)
        selective: dict[str, Any] = (
            {"context_fn": partial(create_selective_checkpoint_contexts, self.kept)} if self.kept else {}
        )
        return checkpoint(
            self.forward, *args, use_reentrant=False, preserve_rng_state=self.restore_rng, **selective, **kwargs
        )


def recompute_blocks(
    model: Model, mode: str = "all", every: int = 1, *, only: Sequence[int] | None = None, restore_rng: bool = True
) -> Model:
    """Make blocks of `model.blocks` recompute, in place; returns the model. What was set before is undone.

    mode "none", "all" (a block keeps its input alone), "keep_attention" or "keep_matmuls" (the results of these too).
    every k: blocks k - 1, 2k - 1, ... alone; `only`: the blocks with these numbers. Parameters keep their names.
    `restore_rng=False` is there to show what breaks: dropout then draws other masks. `ConfigError` for a model without
    a list of blocks.
    """
    if mode not in ("none", "all", "keep_attention", "keep_matmuls"):
        raise ConfigError(f"mode={mode!r} is unknown (there are: none, all, keep_attention, keep_matmuls)")
    blocks = getattr(model, "blocks", None)
    if not isinstance(blocks, nn.ModuleList | nn.Sequential):
        if mode == "none":
            return model
        raise ConfigError(
            f"activation_checkpointing={mode!r}: {type(model).__name__} has no `blocks` (an nn.ModuleList or "
            "nn.Sequential) to recompute; name yours so, or use activation_checkpointing='none'"
        )
    chosen = set(range(every - 1, len(blocks), every)) if only is None else set(only)
    for number, block in enumerate(blocks):
        earlier = block.__dict__.get("forward")
        if isinstance(earlier, Recomputed):
            del block.forward
            if block.forward != earlier.forward:  # a forward of the block's own, not its class's
                block.forward = earlier.forward
        if mode != "none" and number in chosen:
            block.forward = Recomputed(block.forward, kept_operators(mode), restore_rng)
    return model


def recomputed_blocks(model: nn.Module) -> list[int]:
    """Numbers of the blocks that recompute."""
    blocks = getattr(model, "blocks", [])
    return [i for i, block in enumerate(blocks) if isinstance(block.__dict__.get("forward"), Recomputed)]
