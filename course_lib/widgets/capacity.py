"""Does it fit, when is it done, what breaks first? One plan of a run, live while model and layout change."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TYPE_CHECKING, Any

from course_lib.errors import ConfigError
from course_lib.figures.capacity import capacity_figure, gib, said
from course_lib.figures.capacity_svg import capacity_svg, impossible_svg
from course_lib.figures.crossover import seconds_text
from course_lib.figures.ledger import readable
from course_lib.planning.capacity import stages
from course_lib.planning.plan import Plan, plan_unchecked
from course_lib.planning.spec import RunSpec
from course_lib.planning.steptime import predict
from course_lib.widgets.capacity_settings import controls, nearest, run_of, sequences_of, together
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["capacity_explorer"]


# ------------------------------------------------------------------------------------------------------- what it says


def _days(hours: float) -> str:
    if not isfinite(hours):
        return "never"
    days = hours / 24
    if days >= 730:
        return f"{readable(days / 365.25)} years"
    return (
        f"{readable(days)} days" if days >= 2 else f"{hours:.3g} hours" if hours >= 2 else f"{60 * hours:.3g} minutes"
    )


def _money(cost: float) -> str:
    if not isfinite(cost):
        return "no end"
    for size, unit in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million")):
        if cost >= size:
            return f"${readable(cost / size)} {unit}"
    return f"${cost:,.0f}" if cost >= 100 else f"${cost:.2f}"


def _many(count: float, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 'es' if what.endswith('ch') else 's'}"


def _layout(run: RunSpec) -> str:
    layout = run.layout
    sizes = {"data": layout.data, "tensor": layout.tensor, "pipeline": layout.pipeline, "context": layout.context}
    return " × ".join(f"{name} {size:,}" for name, size in sizes.items() if size > 1 or name == "data")


def _who(made: Plan, place: int) -> str:
    return f"stage {place}" if made.run.layout.pipeline > 1 else "a device"


def _words(values: Mapping[str, Any], made: Plan) -> tuple[str, str]:
    """Title and subtitle."""
    memory, stage = made.memory, made.memory.stages[made.memory.worst]
    if not memory.fits:
        title = f"Does not fit: {_who(made, memory.worst)} needs {gib(memory.peak)}, {gib(memory.limit)} are usable"
    else:
        title = f"Fits, with {gib(memory.limit - memory.peak)} to spare; done in {_days(made.time.hours)}"
        title = title.replace("done in never", "never done")
    fullest = f"The fullest is stage {memory.worst}" if made.run.layout.pipeline > 1 else "Fullest"
    return title, (
        f"{values['model']} on {made.run.hardware.devices:,} {values['machine']}: {_layout(made.run)}. "
        f"{fullest} {_AT.get(stage.at, stage.at)}; most of it: {said(stage.filled_by)}."
    )


_AT = {
    "forward": "when forward ends",
    "loss": "at the loss",
    "last norm": "when the last norm runs backward",
    "backward": "when backward begins",
    "end of backward": "when backward ends",
    "optimizer": "in the optimizer's step",
}


def _bars(made: Plan) -> dict[str, dict[str, float]]:
    alone = made.run.layout.pipeline == 1
    return {"a device" if alone else f"stage {one.stage}": one.parts for one in made.memory.stages}


def _numbers(made: Plan) -> list[tuple[str, str]]:
    time, fits = made.time, made.memory.fits
    return [
        (gib(made.memory.peak), "the fullest device"),
        (_days(time.hours), "with failures and saving" if fits else "if it fitted"),
        (f"{time.mfu:.1%}", "MFU"),
        (seconds_text(time.step_seconds), "a step"),
        (_money(time.cost or 0.0), f"for {readable(time.device_hours)} device-hours"),
    ]


def _draw(**values: Any) -> View:
    try:
        made = plan_unchecked(run_of(values), changes=1)
    except ConfigError as error:
        return _impossible(values, str(error))
    title, subtitle = _words(values, made)
    memory, amount, often = made.memory, made.amount, made.cadence.interruptions
    parts = ", ".join(f"{said(name)} {seconds_text(size)}" for name, size in made.step.parts.items() if size > 0)
    peaks = ", ".join(gib(stage.peak) for stage in memory.stages)
    risks = [(_sentence(risk.text), risk.remedy) for risk in made.risks]
    worst = f"Breaks first: {risks[0][0]}" if risks else "Nothing breaks that the plan knows of."
    return View(
        capacity_svg(_bars(made), memory.limit, _memory(made), made.step.parts, risks, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle} Peaks by stage: {peaks}. A step: {parts}. {worst}",
        numbers=_numbers(made),
        message=(
            f"{made.parameters.total / 1e9:.3g} billion parameters. {_many(amount.steps, 'step')} of "
            f"{_many(amount.sequences, 'sequence')}, {_many(amount.micro_batches, 'micro-batch')} a data rank. "
            + (f"Interruptions expected: {readable(often)}." if isfinite(often) else "It never ends.")
        ),
        data={"plan": made},
    )


def _memory(made: Plan) -> float:
    """Bytes of a device, usable or not."""
    return (made.run.hardware.memory_gib or 0.0) * 2**30


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "." * (not text.endswith("."))


def _still(**values: Any) -> Figure:
    made = plan_unchecked(run_of(values), changes=1)
    title, subtitle = _words(values, made)
    risks = [f"{_sentence(risk.text)} {risk.remedy}" for risk in made.risks]
    limits = made.memory.limit, _memory(made)
    return capacity_figure(_bars(made), *limits, made.step.parts, risks, title=title, subtitle=subtitle)


# ---------------------------------------------------------------------------------------------- what cannot be laid out


def _impossible(values: Mapping[str, Any], error: str) -> View:
    """What is impossible, in a line, and the nearest values at which it is not."""
    texts = {control.name: control.text for control in controls()}
    alone: dict[str, list[Any]] = dict(nearest(values))
    few: dict[str, Any] = {} if alone else together(values)
    lines = [(texts[name], " or ".join(map(_shown, near))) for name, near in alone.items()]
    told = "Possible with one of these, the other controls as they are:"
    if not alone:
        lines = [(texts[name], _shown(value)) for name, value in few.items()]
        told = "No control alone makes it possible; these together do:"
    title, subtitle = _why(values, error, alone)
    return View(
        impossible_svg(values["pipeline"], lines, told, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle} {told} {'; '.join(f'{name} {value}' for name, value in lines)}.",
        data={"why": subtitle, "nearest": alone, "together": few},
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:,}"


def _why(values: Mapping[str, Any], error: str, alone: Mapping[str, list[Any]]) -> tuple[str, str]:
    """Title and subtitle of an impossible setting."""
    devices, sequences = round(values["devices"]), sequences_of(values)
    split = round(values["tensor"]) * values["pipeline"] * round(values["context"])
    ranks = devices // split
    if devices % split or ranks <= sequences:
        return "This cannot be laid out", _plainly(error)
    title = f"{sequences:,} of {ranks:,} data-parallel ranks have a sequence, the others nothing"
    below = [one for one in alone.get("devices", []) if one < devices]
    if not below:
        return title, f"A batch of {_many(sequences, 'sequence')} has no work for more ranks."
    seconds = seconds_text(predict(run_of({**values, "devices": below[0]})).seconds)
    return title, f"With {below[0]:,} devices a step takes {seconds}; more cannot make it shorter."


def _plainly(error: str) -> str:
    """The rule that is broken, without a file's sections and what it would say instead: the controls say it better."""
    text = error.partition(";")[0].partition(": try")[0]
    for section in ("layout.", "model.", "data."):
        text = text.replace(section, "")
    return text + "."


# ------------------------------------------------------------------------------------------------------------- explorer


def _fits_and_works(values: Mapping[str, Any], view: View) -> bool:
    made = view.data["plan"]
    return bool(values["model"] == "Llama 2 70B" and made.memory.fits and made.time.mfu > 0.4)


def _for_nothing(values: Mapping[str, Any], view: View) -> bool:
    """It would not fit without computing blocks again, and would hardly be faster."""
    made = view.data["plan"]
    if values["recompute"] != "all blocks" or not made.memory.fits:
        return False
    kept = run_of({**values, "recompute": "nothing"})
    too_much = max(stage.peak for stage in stages(kept)) > made.memory.limit
    return bool(too_much and made.step.seconds < 1.05 * predict(kept).seconds)


def _not_the_first(values: Mapping[str, Any], view: View) -> bool:
    memory = view.data["plan"].memory
    return bool(len(memory.stages) >= 4 and memory.fits and memory.peak > memory.stages[0].peak)


def capacity_explorer() -> Explorer:
    """Display the explorer of chapter 15: memory by stage, a step's time, days, cost and risks of a planned run.

    It opens with Llama 2 7B on 64 H100s, fully sharded.
    """
    return explorer(
        _draw,
        controls(),
        presets=[
            Preset("a whole copy on each device", {"sharding": "DDP"}),
            Preset("70B in eight stages", _STAGES),
            Preset("the same, blocks computed again", {**_STAGES, "recompute": "all blocks"}),
            Preset("2,048 devices, the same batch", {"devices": 2048}),
            Preset("1,024 devices, an eighth of the network", {"devices": 1024, "network": 1 / 8}),
            Preset("405B on 16,384 devices", _LARGE),
        ],
        goals=[
            Goal("Llama 2 70B in every device's memory, at an MFU above 40%", _fits_and_works),
            Goal("A run that fits only because blocks are computed again, for less than 5% more time", _for_nothing),
            Goal("Four stages or more that all fit, and the first is not the fullest", _not_the_first),
        ],
        still=_still,
        title="What breaks first?",
        caption=(
            "Bars: a device of each pipeline stage when it is fullest, and one step of the slowest rank. Closed forms, "
            "data-sheet rates and one fitted number a chip: published steps say how far off that is. Congestion, "
            "stragglers and experts of unequal load are left out; failure rates and the usable share are assumed, and "
            "the price is yours."
        ),
    )


_STAGES = {"model": "Llama 2 70B", "devices": 256, "sharding": "ZeRO-1", "tensor": 4, "pipeline": 8, "micro_batch": 2}
_LARGE = {
    "model": "Llama 3 405B",
    "devices": 2**14,
    "sharding": "ZeRO-1",
    "tensor": 8,
    "pipeline": 16,
    "schedule": "interleaved",
    "chunks": 4,
    "recompute": "all blocks",
    "batch": 2**24,
    "sequence": 8192,
    "tokens": 15.6e12,
}
