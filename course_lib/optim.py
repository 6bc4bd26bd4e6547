"""AdamW with decay on matrices only, warm-up and cosine through a torch LR scheduler, clipping by the global norm."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from course_lib.config import OptimConfig

__all__ = ["clip_by_global_norm", "lr_at", "make_optimizer", "make_scheduler", "param_groups"]


def param_groups(model: nn.Module | Iterable[Tensor], weight_decay: float) -> list[dict[str, Any]]:
    """Two groups of the trainable parameters: matrices and more (decayed), vectors (gains, biases: not decayed).

    model: a module, or the tensors to train themselves (FP32 masters, say).
    """
    trainable = [p for p in (model.parameters() if isinstance(model, nn.Module) else model) if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_optimizer(model: nn.Module | Iterable[Tensor], config: OptimConfig, device: str = "cpu") -> torch.optim.AdamW:
    """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101); fused: one kernel, no Python loop over parameters."""
    groups = param_groups(model, config.weight_decay)
    fused = torch.device(device).type in ("cpu", "cuda", "mps")
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)


def lr_at(step: int, config: OptimConfig, steps: int) -> float:
    """Learning rate of `step` (0-based): a straight rise, then half a cosine down to lr x min_lr_ratio."""
    return config.lr * _factor(step, config, steps)


def _factor(step: int, config: OptimConfig, steps: int) -> float:
    warmup = config.warmup(steps)
    if step < warmup:
        return (step + 1) / warmup
    done = min(1.0, (step - warmup) / max(1, steps - 1 - warmup))  # 0 at the end of the warm-up, 1 at the last step
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * 0.5 * (1 + math.cos(math.pi * done))


def make_scheduler(optimizer: torch.optim.Optimizer, config: OptimConfig, steps: int) -> LambdaLR:
    """The torch scheduler that follows `lr_at`; its state belongs in a checkpoint."""
    return LambdaLR(optimizer, lambda step: _factor(step, config, steps))


@torch.no_grad()
def clip_by_global_norm(
    params: Iterable[Tensor],
    max_norm: float | None,
    total_norm: Callable[[Sequence[Tensor]], Tensor] = nn.utils.get_total_norm,
) -> Tensor:
    """Scale all gradients by one factor so that their joint norm is at most `max_norm`; None only measures.

    A norm that is not finite changes nothing: max_norm / inf is 0, and 0 x inf would make NaN of it.
    Of a sharded gradient (DTensor) this rank's part is taken; `total_norm` then makes one norm of all ranks' parts.
    Returns the norm before clipping, a 0-d tensor that stays on its device (no wait for it).
    """
    gradients = [g.to_local() if hasattr(g, "to_local") else g for p in params if (g := p.grad) is not None]
    norm = total_norm(gradients)
    if max_norm is None or not gradients:
        return norm
    if norm.device.type != "cpu" or max_norm < norm < math.inf:  # a CPU's number can be looked at without waiting
        factor = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        factor = torch.where(norm.isfinite(), factor, 1.0)
        torch._foreach_mul_(gradients, factor)
    return norm
