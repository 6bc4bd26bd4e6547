"""Weights in 16 bits and what keeps their small updates from being lost: FP32 masters, or stochastic rounding."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from course_lib.errors import ConfigError

__all__ = ["MasterWeights", "stochastic_round"]

HALF = (torch.bfloat16, torch.float16)
_BITS = {1: torch.uint8, 2: torch.int16}


class MasterWeights:
    """FP32 copies (masters) of a model's trainable 16-bit parameters. The optimizer holds the masters in their place.

    dtype: also turns the trainable FP32 parameters into that 16-bit type, in place; their masters keep the FP32 values.
    Parameters of BatchNorm and its kin stay FP32, as their running statistics are. None: only what is 16-bit already.

    Bytes a parameter with AdamW in BF16: 2 (weight) + 2 (gradient) + 12 (master, two moments). During the update the
    gradient is FP32: `take_gradients` frees each 16-bit one as it goes, so these bytes are 18 then, with no activations
    left. Micro-batches add up in the 16-bit gradient.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype | None = None) -> None:
        if dtype is not None and dtype not in HALF:
            raise ConfigError(f"masters are for 16-bit weights, not {dtype}; use torch.bfloat16 or torch.float16")
        kept = {id(p) for module in model.modules() if _is_batch_norm(module) for p in module.parameters(recurse=False)}
        self.parameters: dict[str, nn.Parameter] = {}
        """The 16-bit parameters by name, a tied one once."""
        self.masters: dict[str, Tensor] = {}
        """Their masters, by the same names."""
        self._all = {name: p for name, p in model.named_parameters() if p.requires_grad}
        for name, p in self._all.items():
            turned = dtype is not None and p.dtype == torch.float32 and id(p) not in kept
            if turned or p.dtype in HALF:
                self.parameters[name] = p
                self.masters[name] = p.detach().float().clone().requires_grad_()
                if dtype is not None and turned:
                    p.data = p.data.to(dtype)

    def trained(self) -> dict[str, Tensor]:
        """What the optimizer updates, by the model's names: the master of a 16-bit parameter, else the parameter."""
        return {name: self.masters.get(name, p) for name, p in self._all.items()}

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Move every 16-bit gradient to its master, as FP32. A parameter without a gradient changes nothing."""
        for name, p in self.parameters.items():
            if p.grad is not None:
                self.masters[name].grad = p.grad.float()
                p.grad = None

    @torch.no_grad()
    def copy_back(self) -> None:
        """Round every master to its 16-bit parameter (to nearest even)."""
        if self.parameters:
            torch._foreach_copy_(list(self.parameters.values()), list(self.masters.values()))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take the masters from the parameters, after weights of your own were put into the model."""
        for name, p in self.parameters.items():
            self.masters[name].copy_(p)

    def state_dict(self) -> dict[str, Tensor]:
        """The masters by name, FP32."""
        return {name: master.detach() for name, master in self.masters.items()}

    @torch.no_grad()
    def load_state_dict(self, saved: Mapping[str, Tensor]) -> None:
        """Take over saved masters. `ConfigError` when names or shapes differ, before anything is changed."""
        for name in sorted(self.masters.keys() | saved.keys()):
            here, there = self.masters.get(name), saved.get(name)
            if here is None or there is None or here.shape != there.shape:
                sizes = [tuple(one.shape) if one is not None else "nothing" for one in (there, here)]
                raise ConfigError(f"the master of {name} is {sizes[0]} there and {sizes[1]} here")
        for name, master in self.masters.items():
            master.copy_(saved[name])


def _is_batch_norm(module: nn.Module) -> bool:
    return isinstance(module, nn.modules.batchnorm._NormBase)


def stochastic_round(x: Tensor, dtype: torch.dtype, generator: torch.Generator | None = None) -> Tensor:
    """Round FP32 `x` to one of its two neighbours in `dtype` (BF16, FP16 or FP8), the nearer one more often.

    The chance of each neighbour is such that the mean is x (to 2^-24 of the gap between them); a value of the format
    stays as it is. Beyond the largest finite value there is no upper neighbour: there, and for infinity and NaN, the
    result is what `x.to(dtype)` gives. Same shape; `ConfigError` for another x or dtype.
    """
    if x.dtype != torch.float32 or not dtype.is_floating_point or dtype.itemsize not in _BITS:
        raise ConfigError(f"stochastic_round takes float32 to a format of 16 or 8 bits, not {x.dtype} to {dtype}")
    size = x.abs()
    inside = size <= torch.finfo(dtype).max
    size = torch.where(inside, size, 0.0)
    nearest = size.to(dtype)
    bits = nearest.view(_BITS[dtype.itemsize])
    low = bits - (nearest.float() > size).to(bits.dtype)  # bits of the neighbour toward zero; the next value is low + 1
    below, above = low.view(dtype).float(), (low + 1).view(dtype).float()
    chance = torch.where(below < size, (size - below) / (above - below), 0.0)
    draw = torch.rand(size.shape, generator=generator, device=x.device)
    magnitude = torch.where(draw < chance, above, below)
    return torch.where(inside, torch.copysign(magnitude, x), x).to(dtype)
