"""What each device of this machine does with each number format: tried, not looked up."""

import functools
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch

from course_lib.machine import speedup

__all__ = ["DTYPES", "Capability", "capabilities", "casts", "fp16_speedup", "trains"]

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
REFUSALS = (RuntimeError, TypeError, NotImplementedError, ValueError, AssertionError)  # torch, of what it cannot do


@functools.lru_cache(maxsize=1)
def fp16_speedup() -> float:
    """Rate of an FP16 matrix product on this CPU as a multiple of FP32's, measured (under 0.1 s)."""
    return speedup("fp16", size=128, rounds=2, seconds=0.004)  # a larger one would take seconds on most CPUs


@dataclass(frozen=True)
class Capability:
    """What one device does with one number format; every field was tried. None: the device is not on this machine."""

    device: str
    """cpu, cuda or mps."""
    dtype: str
    """fp64, fp32, bf16, fp16, fp8_e4m3 or fp8_e5m2."""
    stores: bool | None = None
    """A tensor of it can be made there and comes back unchanged."""
    multiplies: bool | None = None
    """A matrix product and its gradient run in it, with the right result."""
    autocast: bool | None = None
    """Under autocast to it, a product of FP32 tensors comes out in it."""
    scaler: bool | None = None
    """A training step with FP32 weights under autocast to it, with GradScaler, gives the right gradient, and an
    overflow is skipped with the scale halved. (fp32: without autocast.)"""
    speed: float | None = None
    """Rate of a matrix product as a multiple of FP32's. None where it was not measured."""
    note: str = ""
    """What torch said against it first, one line; "" where it said nothing."""


def capabilities(speed: bool = True) -> list[Capability]:
    """The capability table of this machine: cpu, cuda and mps by number format, each cell probed (about a second)."""
    here = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    return [
        _probe(device, name, speed) if present else Capability(device, name, note=f"no {device} device on this machine")
        for device, present in here.items()
        for name in DTYPES
    ]


def _probe(device: str, name: str, speed: bool) -> Capability:
    notes: list[str] = []

    def tried(test: Callable[[str, str], bool]) -> bool:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return test(device, name)
            except REFUSALS as error:
                notes.append(str(error))
                return False
            finally:
                notes.extend(str(one.message) for one in caught)

    stores, multiplies = tried(_stores), tried(_multiplies)
    casts, scales = tried(_casts), tried(_trains)
    rate = None
    if speed and multiplies and name in ("fp32", "bf16", "fp16"):
        slow = device == "cpu" and name == "fp16"
        size = 384 if device == "cpu" else 2048
        rate = 1.0 if name == "fp32" else fp16_speedup() if slow else speedup(name, device, size=size)
    return Capability(device, name, stores, multiplies, casts, scales, rate, notes[0].split("\n")[0] if notes else "")


def _stores(device: str, name: str) -> bool:
    there = torch.tensor([1.0, -0.5, 1.5]).to(DTYPES[name]).to(device)
    return there.dtype == DTYPES[name] and there.float().tolist() == [1.0, -0.5, 1.5]


def _multiplies(device: str, name: str) -> bool:
    a = torch.ones(16, 16, device=device).to(DTYPES[name]).requires_grad_()
    product = a @ torch.ones(16, 16, device=device).to(DTYPES[name])
    product.float().sum().backward()
    assert a.grad is not None
    return product.dtype == a.dtype and bool((product.float() == 16).all()) and bool((a.grad.float() == 16).all())


def _casts(device: str, name: str) -> bool:
    kind = device.split(":")[0]
    a = torch.ones(16, 16, device=device)
    with torch.amp.autocast(kind, dtype=DTYPES[name]):
        return torch.is_autocast_enabled(kind) and (a @ a).dtype == DTYPES[name]


def casts(device: str, name: str) -> bool:
    """Whether autocast to this format works there: some devices only warn and go on in FP32."""
    return _answer(_casts, device, name)


def trains(device: str, name: str) -> bool:
    """Whether a step with FP32 weights, autocast to this format and a loss scaler runs right, overflow included."""
    return _answer(_trains, device, name)


def _answer(test: Callable[[str, str], bool], device: str, name: str) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return test(device, name)
        except REFUSALS:
            return False


def _trains(device: str, name: str) -> bool:
    kind = device.split(":")[0]
    weight = torch.ones(16, 16, device=device, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(kind, init_scale=64.0)
    x = torch.ones(16, 16, device=device)
    context: AbstractContextManager[object] = nullcontext()
    if name != "fp32":
        context = torch.amp.autocast(kind, dtype=DTYPES[name])
    with context:
        if name != "fp32" and not torch.is_autocast_enabled(kind):
            return False
        out = x @ weight
    scaler.scale(out.float().sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    stepped = bool((weight == -15).all())  # 1 - 16: the scale was divided out
    optimizer.zero_grad()
    scaler.scale((weight * torch.inf).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    return stepped and bool((weight == -15).all()) and scaler.get_scale() == 32.0
