"""Which precision this machine trains in: probed, not assumed."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from course_lib.errors import ConfigError
from course_lib.machine import bf16_speedup, runs

__all__ = ["Policy", "precision_policy"]

WORTH_IT = 1.5  # BF16 products must be this much faster: casting costs time too, and a margin keeps the choice stable


@dataclass(frozen=True)
class Policy:
    """A precision. Weights, gradients and optimizer state stay FP32; bf16 casts inside the forward pass (autocast)."""

    name: str
    """fp32 or bf16."""
    device: str
    """Device type: cpu, cuda or mps."""
    reason: str
    """Why this one, in words."""

    def autocast(self) -> AbstractContextManager[object]:
        """A fresh context for one forward pass."""
        if self.name == "fp32":
            return nullcontext()
        return torch.autocast(self.device, dtype=torch.bfloat16)


def precision_policy(device: str, wanted: str = "auto") -> Policy:
    """The policy for "fp32", "bf16" or "auto". `ConfigError` where BF16 does not run.

    auto on a CPU measures one matrix size in both precisions for 50 ms and takes BF16 when it is 1.5 times as fast;
    elsewhere it takes BF16 where the hardware has it. The choice can differ between machines, so a checkpoint keeps it.
    """
    kind = device.split(":")[0]
    if wanted == "fp32":
        return Policy("fp32", kind, "asked for")
    if not runs(device, "bf16"):
        if wanted == "bf16":
            raise ConfigError(f"precision='bf16' does not run on {kind} here; use precision='fp32'")
        return Policy("fp32", kind, f"BF16 does not run on {kind}")
    if wanted == "bf16":
        return Policy("bf16", kind, "asked for")
    if wanted != "auto":
        raise ConfigError(f"precision={wanted!r} is unknown (there are: auto, fp32, bf16)")
    if kind == "cuda":
        native = torch.cuda.is_bf16_supported(including_emulation=False)
        return Policy("bf16" if native else "fp32", kind, f"the GPU has {'' if native else 'no '}BF16")
    if kind != "cpu":
        return Policy("fp32", kind, "BF16 was not measured on this device")
    ratio = bf16_speedup(kind)
    name = "bf16" if ratio >= WORTH_IT else "fp32"
    return Policy(name, kind, f"a BF16 matrix product runs at {ratio:.1f} times the FP32 rate here")
