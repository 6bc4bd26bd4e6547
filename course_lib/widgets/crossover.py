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

_HALF = log10(2) / 2  # two steps of a slider double
_AHEAD = {"yes": True, "no": False}


def _cluster(values: Mapping[str, Any]) -> Cluster:
    """The machines asked for, with their network and their devices made faster or slower."""
    made = CLUSTERS[values["machines"]]
    return replace(made, bandwidth=made.bandwidth * values["bandwidth"], peak=made.peak * values["speed"])


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
    cluster = _cluster(values)
    peak, reached = cluster.peak / 1e12, cluster.peak * cluster.reached / 1e12
    words = f"{peak:.3g} TFLOP/s at the peak, {reached:.3g} reached" if cluster.reached < 1 else f"{peak:.3g} TFLOP/s"
    words += f" by a device, {_rate(cluster.bandwidth)} in a ring"
    return View(
        crossover_svg(steps, here, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle} Crossover at {step.crossover:,.0f} devices, wall at {step.floor:,}.",
        numbers=row,
        message=f"{values['model']} on {values['machines']}: {words}. {CLUSTERS[values['machines']].source}.",
        data=data,
    )


def _rate(bandwidth: float) -> str:
    return f"{bandwidth / 1e9:.3g} GB/s" if bandwidth >= 1e8 else f"{bandwidth / 1e6:.3g} MB/s"


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


def _log(
    name: str, label: str, low: float, high: float, default: float, step: float = _HALF, **more: Any
) -> FloatControl:
    """A slider whose steps are factors."""
    settings = {"format": ",.0f", **more}
    return FloatControl(name=name, label=label, min=low, max=high, step=step, log=True, default=default, **settings)


def crossover_explorer() -> Explorer:
    """Display the explorer of chapter 8: an FSDP step over 1 to 65,536 devices, with the crossover and the wall.

    It opens with Llama 2 70B on 256 H100s, 4 Mi tokens in sequences of 2,048.
    """
    machines = list(CLUSTERS)
    factor: dict[str, Any] = {"format": ".3g", "more": True}
    laptops = {"machines": "laptops", "model": "this course's medium", "devices": 8, "batch": 2**13, "sequence": 256}
    return explorer(
        _draw,
        [
            _log("devices", "devices", 1, LARGEST, 256),
            _log("batch", "global batch", 2**11, 2**28, 2**22, unit="tokens"),
            _log("sequence", "sequence length", 128, 2**18, 2048, 2 * _HALF, unit="tokens"),
            ChoiceControl(name="machines", label="machines", options=machines, default="H100 nodes", more=True),
            _log("bandwidth", "network, times theirs", 1 / 64, 64, 1, **factor),
            _log("speed", "FLOP/s, times theirs", 1 / 64, 64, 1, **factor),
            ChoiceControl(name="model", label="model", options=list(MODELS), default="Llama 2 70B", more=True),
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
            Preset("Eight laptops", laptops),
            Preset("A100 nodes", {"machines": "A100 nodes", "devices": 512}),
            Preset("H100 nodes", {"devices": 1024}),
            Preset(
                "Llama 3 405B's batch", {"model": "Llama 3 405B", "devices": 2048, "batch": 2**24, "sequence": 8192}
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
            "share reached is measured on single GPUs; the laptops are an example. Real runs stay below this MFU "
            "(Llama 3 405B: 38 to 43%), and whether the shards fit into a device is not asked."
        ),
    )
