"""When does the network limit a run? Devices, batch and sequence decide what a step computes and what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import log10
from typing import TYPE_CHECKING, Any

from course_lib.figures.crossover import LARGEST, crossover_curves, crossover_svg, devices_to_draw, seconds_text
from course_lib.planning.clusters import CLUSTERS, MODELS, Cluster, FsdpStep, fsdp_step
from course_lib.widgets.controls import ChoiceControl, FloatControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["crossover_explorer"]

_SENT = {"BF16, gradients FP32": (2, 4), "all BF16": (2, 2), "all FP32": (4, 4)}
_AHEAD = {"yes": True, "no": False}
_H100 = CLUSTERS["H100 nodes"]


def _cluster(values: Mapping[str, Any]) -> Cluster:
    gathered, reduced = _SENT[values["sent"]]
    return replace(
        _H100,
        peak=values["peak"] * 1e12,
        reached=values["reached"] / 100,
        bandwidth=values["bandwidth"] * 1e9,
        bytes_gathered=gathered,
        bytes_reduced=reduced,
    )


def _steps(values: Mapping[str, Any]) -> tuple[dict[int, FsdpStep], int]:
    """The step on every number of devices that is drawn, and the number that is asked for."""
    model, cluster, here = MODELS[values["model"]], _cluster(values), round(values["devices"])
    sequence, tokens = round(values["sequence"]), round(values["batch"])

    def step(devices: int) -> FsdpStep:
        return fsdp_step(
            model,
            sequence,
            tokens,
            devices,
            cluster,
            prefetch=_AHEAD[values["ahead"]],
            latency=values["latency"] * 1e-6,
        )

    now = step(here)
    return {n: step(n) for n in sorted({*devices_to_draw(now.crossover, now.floor), here})}, here


def _finding(step: FsdpStep, here: int) -> tuple[str, str]:
    """Title and subtitle: what limits this step."""
    computing, sending = seconds_text(step.computing), seconds_text(step.sending)
    devices = f"{here:,} device{'s' * (here > 1)}"
    if here > step.floor:
        return (
            f"{step.floor:,} of {devices} have a sequence, the others nothing",
            f"Computing {computing}, sending {sending}. Beyond the wall, a sequence itself has to be split.",
        )
    if step.sending > step.computing:
        return (
            f"The network limits {devices}: MFU {step.mfu:.0%}",
            f"Computing {computing}, sending {sending}: more devices have less to compute, and as much to send.",
        )
    return (
        f"Computing limits {devices}: MFU {step.mfu:.0%}",
        f"Computing {computing}, sending {sending}" + (": nothing to hide." if here == 1 else ", most of it hidden."),
    )


def _draw(**values: Any) -> View:
    steps, here = _steps(values)
    step = steps[here]
    half = steps.get(here // 2) or _steps({**values, "devices": max(here // 2, 1)})[0][max(here // 2, 1)]
    title, subtitle = _finding(step, here)
    if values["ahead"] == "no" and here > 1:
        subtitle = (
            f"Computing {seconds_text(step.computing)}, sending {seconds_text(step.sending)}, one after the other."
        )
    row = [
        (seconds_text(step.seconds), "a step"),
        (f"{step.mfu:.0%}", "MFU"),
        (f"{step.crossover:,.0f}" if step.crossover < 1e7 else f"{step.crossover:.1e}", "devices at the crossover"),
        (f"{step.floor:,}", "devices at most, batch / sequence"),
    ]
    data = {
        "step": step,
        "devices": here,
        "faster": half.seconds / step.seconds if here > 1 else 1.0,
    }
    return View(
        crossover_svg(steps, here, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle} Crossover at {step.crossover:,.0f} devices, wall at {step.floor:,}.",
        numbers=row,
        data=data,
    )


def _still(**values: Any) -> Figure:
    steps, here = _steps(values)
    title, subtitle = _finding(steps[here], here)
    return crossover_curves(steps, here, title=title, subtitle=subtitle)


def _in_vain(values: Mapping[str, Any], view: View) -> bool:
    step = view.data["step"]
    return bool(1024 <= view.data["devices"] <= step.floor and view.data["faster"] < 1.1)


def _many_and_busy(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["devices"] >= 16_384 and view.data["step"].mfu >= 0.5)


def _wall_first(values: Mapping[str, Any], view: View) -> bool:
    step = view.data["step"]
    return bool(step.floor < step.crossover and view.data["devices"] > step.floor)


def _preset(name: str, **values: Any) -> dict[str, Any]:
    """A cluster's figures as settings."""
    cluster = CLUSTERS[name]
    sizes = (cluster.bytes_gathered, cluster.bytes_reduced)
    return {
        "bandwidth": cluster.bandwidth / 1e9,
        "peak": cluster.peak / 1e12,
        "reached": round(100 * cluster.reached),
        "sent": next(name for name, pair in _SENT.items() if pair == sizes),
        **values,
    }


def crossover_explorer() -> Explorer:
    """Display the explorer of chapter 8: an FSDP step over 1 to 65,536 devices, with the crossover and the wall.

    It opens with Llama 2 70B on 256 H100s, 4 Mi tokens in sequences of 2,048.
    """
    half = log10(2) / 2
    return explorer(
        _draw,
        [
            FloatControl(
                name="devices", label="devices", min=1, max=LARGEST, step=half, log=True, default=256, format=",.0f"
            ),
            FloatControl(
                name="batch",
                label="global batch",
                unit="tokens",
                min=2**11,
                max=2**28,
                step=half,
                log=True,
                default=2**22,
                format=",.0f",
            ),
            FloatControl(
                name="sequence",
                label="sequence length",
                unit="tokens",
                min=128,
                max=2**18,
                step=2 * half,
                log=True,
                default=2048,
                format=",.0f",
            ),
            FloatControl(
                name="bandwidth",
                label="sent by a rank in a ring",
                unit="GB/s",
                min=400 / 2**15,
                max=3200,
                step=half / 2,
                log=True,
                default=400,
                format=".3g",
                more=True,
            ),
            FloatControl(
                name="peak",
                label="peak of a device",
                unit="TFLOP/s",
                min=989 / 2**14,
                max=989 * 4,
                step=half / 2,
                log=True,
                default=989,
                format=".3g",
                more=True,
            ),
            FloatControl(
                name="reached",
                label="of it in matrix products",
                unit="%",
                min=5,
                max=100,
                step=1,
                default=80,
                format=".0f",
                more=True,
            ),
            ChoiceControl(name="model", label="model", options=list(MODELS), default="Llama 2 70B", more=True),
            ChoiceControl(name="sent", label="sent as", options=list(_SENT), default="BF16, gradients FP32", more=True),
            ChoiceControl(
                name="ahead", label="next layer gathered ahead", options=list(_AHEAD), default="yes", more=True
            ),
            FloatControl(
                name="latency",
                label="latency of a ring's step",
                unit="µs",
                min=0,
                max=20,
                step=0.5,
                default=0,
                format=".1f",
                more=True,
            ),
        ],
        presets=[
            Preset(
                "Eight laptops", _preset("laptops", model="this course's medium", devices=8, batch=2**13, sequence=256)
            ),
            Preset("A100 nodes", _preset("A100 nodes", devices=512)),
            Preset("H100 nodes", _preset("H100 nodes")),
            Preset(
                "Llama 3 405B's batch",
                _preset("H100 nodes", model="Llama 3 405B", devices=2048, batch=2**24, sequence=8192),
            ),
        ],
        goals=[
            Goal("1,024 devices or more, all with a sequence, not 1.1 times as fast as half of them", _in_vain),
            Goal("At least 50% MFU on 16,384 devices", _many_and_busy),
            Goal("Devices without a sequence, where the network would not limit yet", _wall_first),
        ],
        still=_still,
        title="When does the network limit the run?",
        caption=(
            "One FSDP step that gathers again in backward. Peaks and network rates are the makers' data sheets, the "
            "share reached is measured on single GPUs; the laptops are an example."
        ),
    )
