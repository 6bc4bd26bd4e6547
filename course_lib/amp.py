"""Which precision this machine trains in: probed, not assumed. The door to all of mixed precision."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from course_lib.autocast import TraceRow, autocast_trace
from course_lib.errors import ConfigError
from course_lib.machine import bf16_speedup, runs
from course_lib.masters import MasterWeights, stochastic_round
from course_lib.probes import DTYPES, Capability, capabilities, casts, fp16_speedup, trains

__all__ = [
    "Capability",
    "MasterWeights",
    "Policy",
    "TraceRow",
    "autocast_trace",
    "capabilities",
    "precision_policy",
    "stochastic_round",
]

WORTH_IT = 1.5  # BF16 products must be this much faster: casting costs time too, and a margin keeps the choice stable


@dataclass(frozen=True)
class Policy:
    """A precision for the forward pass. bf16 and fp16 cast inside it (autocast) what can be computed in 16 bits."""

    name: str
    """fp32, bf16 or fp16."""
    device: str
    """Device type: cpu, cuda or mps."""
    reason: str
    """Why this one, in words."""

    def autocast(self) -> AbstractContextManager[object]:
        """A fresh context for one forward pass."""
        if self.name == "fp32":
            return nullcontext()
        return torch.amp.autocast(self.device, dtype=DTYPES[self.name])

    def scaler(self) -> torch.amp.GradScaler | None:
        """A new loss scaler for fp16, whose small gradients would be 0; None for the others, which have the range."""
        return torch.amp.GradScaler(self.device) if self.name == "fp16" else None


def precision_policy(device: str, wanted: str = "auto", weights: str = "fp32") -> Policy:
    """The policy for "fp32", "bf16", "fp16" or "auto". `ConfigError` where what was asked for does not run.

    auto on a CPU measures one matrix size in FP32 and BF16 for 50 ms and takes BF16 when it is 1.5 times as fast, never
    FP16; on a GPU it takes BF16 where the hardware has it, else FP16 with a scaler where that passes its probe.
    weights="bf16" makes auto BF16. The choice can differ between machines, so a checkpoint keeps it.
    """
    kind = device.split(":")[0]
    if wanted not in ("auto", "fp32", "bf16", "fp16"):
        raise ConfigError(f"precision={wanted!r} is unknown (there are: auto, fp32, bf16, fp16)")
    if wanted == "fp32":
        return Policy("fp32", kind, "asked for")
    if wanted == "fp16":
        if not trains(device, "fp16"):
            raise ConfigError(f"precision='fp16' does not train on {kind} here; use precision='fp32'")
        if kind == "cpu":
            return Policy(
                "fp16",
                kind,
                f"asked for, but slow: an FP16 matrix product runs at {fp16_speedup():.2g} times the FP32 rate here",
            )
        return Policy("fp16", kind, "asked for")
    if not (runs(device, "bf16") and casts(device, "bf16")):
        if wanted == "bf16" or weights == "bf16":
            field = "precision" if wanted == "bf16" else "weights"
            raise ConfigError(f"{field}='bf16' does not run on {kind} here; use {field}='fp32'")
        return Policy("fp32", kind, f"BF16 does not run on {kind}")
    if wanted == "bf16":
        return Policy("bf16", kind, "asked for")
    if weights == "bf16":
        return Policy("bf16", kind, "the weights are BF16")
    if kind == "cuda":
        if torch.cuda.is_bf16_supported(including_emulation=False):
            return Policy("bf16", kind, "the GPU has BF16")
        if trains(device, "fp16"):
            return Policy("fp16", kind, "the GPU has no BF16; FP16 with a loss scaler trains")
        return Policy("fp32", kind, "the GPU has no BF16, and FP16 does not train")
    if kind != "cpu":
        return Policy("fp32", kind, "BF16 was not measured on this device")
    ratio = bf16_speedup(kind)
    name = "bf16" if ratio >= WORTH_IT else "fp32"
    return Policy(name, kind, f"a BF16 matrix product runs at {ratio:.1f} times the FP32 rate here")
