"""The capacity explorer's settings: its controls, the run that they ask for, and the nearest one that is possible.

values = {control.name: control.default for control in controls()}
run_of(values)                                   # RunSpec, checked; ConfigError where it cannot be laid out
nearest({**values, "devices": 2048})             # [("devices", [1024]), ("tensor", [2]), ...]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import log10
from typing import Any, NamedTuple

from course_lib.errors import ConfigError
from course_lib.planning import rules
from course_lib.planning.devices import DEVICES, fill
from course_lib.planning.presets import preset
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.widgets.controls import ChoiceControl, Control, FloatControl, IntControl

__all__ = ["controls", "nearest", "run_of", "sequences_of", "together"]


class _Schedule(NamedTuple):
    name: str
    chunks: int
    """That a rank holds; 0: as many as the control says."""


_MODELS = {
    "this course's medium": "laptop",
    "1B": "1b-on-8-h100",
    "Llama 2 7B": "7b-on-64-a100",
    "Llama 2 70B": "llama-2-70b",
    "BLOOM 176B": "bloom-176b",
    "Llama 3 405B": "llama-3-405b",
    "Mixtral 8x7B": "moe-8x7b-on-128-h100",
    "DeepSeek-V3": "deepseek-v3",
}
_SHARDING = {"DDP": "ddp", "ZeRO-1": "zero1", "ZeRO-2": "zero2", "FSDP": "fsdp", "HSDP": "hsdp"}
_SCHEDULES = {
    "GPipe": _Schedule("gpipe", 1),
    "1F1B": _Schedule("1f1b", 1),
    "interleaved": _Schedule("interleaved", 0),
    "ZB-H1": _Schedule("zb_h1", 1),
    "ZB-V": _Schedule("zbv", 2),
    "DualPipeV": _Schedule("dualpipev", 2),
}
_RECOMPUTE = {"nothing": "none", "attention": "selective", "all blocks": "all"}
_DOUBLE = log10(2)


@lru_cache
def _model(name: str) -> ModelSpec:
    return preset(_MODELS[name]).model


def sequences_of(values: Mapping[str, Any]) -> int:
    """Of a step."""
    return max(1, round(values["batch"] / round(values["sequence"])))


def run_of(values: Mapping[str, Any]) -> RunSpec:
    """The run asked for, checked. `ConfigError` where it is impossible."""
    sizes = {name: round(values[name]) for name in ("devices", "tensor", "context", "expert", "sequence")}
    model, tensor, pipeline, context = _model(values["model"]), sizes["tensor"], values["pipeline"], sizes["context"]
    split = tensor * pipeline * context
    if sizes["devices"] % split:
        axes = {"tensor": tensor, "pipeline": pipeline, "context": context}
        product = " × ".join(f"{name} {size:,}" for name, size in axes.items() if size > 1)
        raise ConfigError(f"{sizes['devices']:,} devices are no multiple of {product} = {split:,}")
    hardware = fill(HardwareSpec(devices=sizes["devices"], device=values["machine"]))
    data, node = sizes["devices"] // split, hardware.devices_per_node or 1
    schedule = _SCHEDULES[values["schedule"] if pipeline > 1 else "1F1B"]
    sharding, replicas = _SHARDING[values["sharding"]], 1
    if sharding == "hsdp":  # shared out inside a node, copied over nodes
        replicas = data // max(1, node // (tensor * context))
        if replicas < 2:
            raise ConfigError(
                f"HSDP copies the model over nodes, and {data:,} data-parallel ranks lie in one of {node:,}"
            )
    layout = LayoutSpec(
        data=data,
        sharding=sharding,  # type: ignore[arg-type]
        replicas=replicas,
        tensor=tensor,
        pipeline=pipeline,
        schedule=schedule.name,
        chunks=schedule.chunks or values["chunks"],
        context=context,
        expert=sizes["expert"] if model.experts else 1,
        micro_batch=values["micro_batch"],
        recompute=_RECOMPUTE[values["recompute"]],  # type: ignore[arg-type]
    )
    hardware = replace(
        hardware,
        across_gb_per_s=(hardware.across_gb_per_s or 1.0) * values["network"],
        price_per_device_hour=values["price"],
    )
    amount = DataSpec(tokens=values["tokens"], sequence=sizes["sequence"], global_batch=sequences_of(values))
    return rules.check(RunSpec(name="explorer", model=model, data=amount, hardware=hardware, layout=layout))


def controls() -> list[Control]:
    def doubling(name: str, label: str, low: float, high: float, default: float, **more: Any) -> FloatControl:
        settings = {"format": ",.0f", "step": _DOUBLE, "log": True, **more}
        return FloatControl(name=name, label=label, min=low, max=high, default=default, **settings)

    def choice(name: str, label: str, options: Any, default: str, **more: Any) -> ChoiceControl:
        return ChoiceControl(name=name, label=label, options=list(options), default=default, **more)

    def pipelined(values: Mapping[str, Any]) -> bool:
        return bool(values["pipeline"] > 1)

    def several_nodes(values: Mapping[str, Any]) -> bool:
        return bool(round(values["devices"]) > DEVICES[values["machine"]].devices_per_node)

    return [
        choice("model", "model", _MODELS, "Llama 2 7B"),
        doubling("devices", "devices", 1, 2**15, 64),
        choice("sharding", "shared out over data ranks", _SHARDING, "FSDP"),
        doubling("tensor", "tensor parallel", 1, 64, 1, more=True),
        IntControl(name="pipeline", label="pipeline stages", min=1, max=32, default=1, more=True),
        choice("schedule", "schedule", _SCHEDULES, "1F1B", enabled=pipelined, more=True),
        IntControl(
            name="chunks",
            label="chunks a rank",
            min=2,
            max=8,
            default=2,
            enabled=lambda values: pipelined(values) and not _SCHEDULES[values["schedule"]].chunks,
            more=True,
        ),
        IntControl(name="micro_batch", label="micro-batch", unit="sequences", min=1, max=16, default=1, more=True),
        choice("recompute", "computed again", _RECOMPUTE, "nothing", more=True),
        doubling("context", "context parallel", 1, 64, 1, more=True),
        doubling(
            "expert",
            "expert parallel",
            1,
            64,
            1,
            enabled=lambda values: bool(_model(values["model"]).experts),
            more=True,
        ),
        doubling("batch", "global batch", 2**14, 2**26, 2**22, unit="tokens", more=True),
        doubling("sequence", "sequence length", 512, 2**17, 4096, unit="tokens", more=True),
        FloatControl(
            name="tokens",
            label="tokens of the run",
            min=1e9,
            max=2e13,
            step=log10(2) / 2,
            log=True,
            default=1e12,
            format=",.2e",
            more=True,
        ),
        choice("machine", "kind of device", DEVICES, "H100 SXM", more=True),
        doubling("network", "network, times theirs", 1 / 64, 4, 1, format=".3g", enabled=several_nodes, more=True),
        FloatControl(
            name="price", label="an hour of a device", unit="$", min=0.1, max=10, step=0.1, default=2, more=True
        ),
    ]


# ---------------------------------------------------------------------------------------------- the nearest possible


def _possible(values: Mapping[str, Any]) -> bool:
    try:
        run_of(values)
    except ConfigError:
        return False
    return True


def nearest(values: Mapping[str, Any]) -> list[tuple[str, list[Any]]]:
    """Controls that make it possible alone, each with the nearest such values, below and above."""
    found = []
    for control in controls():
        if control.name not in _ONE:
            continue
        grid, now = _grid(control), values[control.name]
        if isinstance(control, ChoiceControl):
            here = grid.index(now)
            below, above = grid[:here], grid[here + 1 :]
        else:
            below, above = [one for one in grid if one < now], [one for one in grid if one > now]
        sides = (
            next((one for one in side if _possible({**values, control.name: one})), None)
            for side in (below[::-1], above)
        )
        near = [one for one in sides if one is not None]
        if near:
            found.append((control.name, near))
    return found


def together(values: Mapping[str, Any]) -> dict[str, Any]:
    """Where one control is not enough: a few that are. None is changed in vain, and each no further than it has to."""
    changed: dict[str, Any] = {}
    smaller = [2**power for power in range(20, -1, -1) if 2**power < values["devices"]]
    for name, harmless in (*_HARMLESS, *(("devices", devices) for devices in smaller)):
        if _possible({**values, **changed}):
            break
        changed[name] = harmless
    changed = _needed(values, changed)
    grids = {control.name: _grid(control) for control in controls() if not isinstance(control, ChoiceControl)}
    for name in [name for name in changed if name in grids]:
        nearer = sorted(grids[name], key=lambda one, name=name: abs(one - values[name]))  # type: ignore[misc]
        changed[name] = next(one for one in nearer if _possible({**values, **changed, name: one}))
    return _needed(values, changed)


def _needed(values: Mapping[str, Any], changed: dict[str, Any]) -> dict[str, Any]:
    """Those changes without which it stays impossible."""
    for name in list(changed):
        fewer = {other: value for other, value in changed.items() if other != name}
        if _possible({**values, **fewer}):
            changed = fewer
    return changed


_ONE = ("devices", "sharding", "tensor", "pipeline", "schedule", "chunks", "micro_batch", "context", "expert", "batch")
_HARMLESS: tuple[tuple[str, Any], ...] = (
    ("micro_batch", 1),
    ("context", 1),
    ("expert", 1),
    ("schedule", "1F1B"),
    ("pipeline", 1),
    ("tensor", 1),
    ("sharding", "FSDP"),
)


def _grid(control: Control) -> list[Any]:
    """Where a control can stand, by powers of two where it doubles."""
    if isinstance(control, ChoiceControl):
        return list(control.options)
    assert isinstance(control, IntControl | FloatControl)
    if isinstance(control, IntControl):
        return list(range(control.min, control.max + 1))
    return [2**power for power in range(40) if control.min <= 2**power <= control.max]
