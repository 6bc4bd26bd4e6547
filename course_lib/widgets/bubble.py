"""The explorer of the bubble: how long the ranks of a pipeline wait, what they hold meanwhile, and what decides it."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.figures.pipeline import timeline_figure
from course_lib.figures.pipeline_svg import no_timeline_svg, pipeline_svg, slot_text
from course_lib.parallel.schedule import FORMULAS, PipelineTimeline, bubble_formula, simulate
from course_lib.widgets.controls import ChoiceControl, FloatControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["bubble_explorer"]


class _Schedule(NamedTuple):
    name: str
    """As `simulate` knows it."""
    chunks: int
    """How many a rank holds; 0: as many as the control says."""


_SCHEDULES = {
    "naive": _Schedule("naive", 1),
    "GPipe": _Schedule("gpipe", 1),
    "looped BFS": _Schedule("gpipe", 0),
    "1F1B": _Schedule("1f1b", 1),
    "interleaved": _Schedule("interleaved", 0),
    "ZB-H1": _Schedule("zb_h1", 1),
    "ZB-V": _Schedule("zbv", 2),
    "DualPipeV": _Schedule("dualpipev", 2),
}
_PARTS = {"a forward": "F", "a backward": "BI", "a weight gradient": "WB"}
_NOTHING, _CRITICAL = "nothing", "the critical path"


def _chunks(values: Mapping[str, Any]) -> int:
    return _SCHEDULES[values["schedule"]].chunks or int(values["chunks"])


def _run(values: Mapping[str, Any], **changes: Any) -> PipelineTimeline:
    """The schedule asked for; `ScheduleError` where m has none. A rank's times are divided among its chunks."""
    values = {**values, **changes}
    name, ranks, chunks = _SCHEDULES[values["schedule"]].name, values["stages"], _chunks(values)
    folded = _SCHEDULES[values["schedule"]].chunks == 2
    homes = [min(s, 2 * ranks - 1 - s) if folded else s % ranks for s in range(ranks * chunks)]
    slow = np.array([values["slow_by"] if rank == _slow(values) else 1.0 for rank in homes])
    f, i, w = (slow * values[word] / chunks for word in ("forward", "backward_input", "backward_weight"))
    given = 1 if folded else chunks
    return simulate(name, ranks, values["microbatches"], given, f, i, w, values["send"])


def _slow(values: Mapping[str, Any]) -> int | None:
    return min(values["slow_rank"], values["stages"] - 1) if values["slow_by"] > 1 else None


def _formula(values: Mapping[str, Any], done: PipelineTimeline) -> tuple[str, str, str]:
    """The formula's idle / total, a word on whether it holds, and a sentence on both."""
    schedule, chunks = _SCHEDULES[values["schedule"]], _chunks(values)
    name, label, formula = schedule.name, values["schedule"], FORMULAS[schedule.name]
    costs = [values[word] / chunks for word in ("forward", "backward_input", "backward_weight")]
    given = 1 if schedule.chunks == 2 else chunks
    setting = (name, values["stages"], values["microbatches"], given, *costs)
    told, ideal = (bubble_formula(*setting, of=one, anywhere=True) for one in ("total", "ideal"))
    why = ""
    try:
        bubble_formula(*setting)
    except ScheduleError as error:
        why = str(error).partition("; simulate()")[0].replace(f"formula of {name} ", f"formula of {label} ") + "."
    if values["send"] > 0 and values["stages"] > 1:
        why = f"the formula of {label} knows of no time for sending."
    if _slow(values) is not None and values["stages"] > 1:
        works = np.bincount(done.table.rank, weights=done.durations)
        why = f"the formula of {label} is for ranks that are equally fast. However many micro-batches there are, "
        why += f"1 − mean / max of the ranks' times stays: {1 - works.mean() / works.max():.1%}."
    each = " (F, B, I, W: of one chunk)" if chunks > 1 else ""
    waits = f"Formula: each rank waits {formula.idle.replace('-', '−')}{each}"
    words = f"{waits}, which {'would make' if why else 'makes'} {told:.1%} of the total and {ideal:.1%} of the ideal."
    if why:
        return f"{told:.1%}", "formula, outside of its domain", f"{words} {why[0].upper()}{why[1:]}"
    same = abs(told - done.bubble_fraction) < 1e-9
    return f"{told:.1%}", "formula", words + " The simulation agrees." * same


def _chosen(values: Mapping[str, Any], done: PipelineTimeline) -> list[int]:
    """The chain of slots that leads to the one asked about, first to last; empty when none is."""
    if values["highlight"] == _NOTHING:
        return []
    ends = done.starts + done.durations
    place = int(ends.argmax())
    if values["highlight"] != _CRITICAL:
        stage = min(values["stage"], done.stages - 1)
        microbatch = min(values["microbatch"], done.microbatches - 1)
        of = (done.table.stage == stage) & (done.table.code % done.microbatches == microbatch)
        place = next(
            int(found[0])
            for letter in _PARTS[values["highlight"]]
            if (found := np.flatnonzero(of & (done.table.kind == "FBIW".index(letter)))).size
        )
    chain = [place]
    while (place := int(done.decided_by[place])) >= 0:
        chain.append(place)
    return chain[::-1]


def _of_it(values: Mapping[str, Any], done: PipelineTimeline, chain: list[int]) -> str:
    """What the chosen slot is, and what decides when it can begin."""
    if not chain:
        return ""
    told = slot_text(done, chain[-1])
    told = told[0].upper() + told[1:]
    if values["highlight"] == "a weight gradient" and done.table.kind[chain[-1]] == 1:
        told = f"In {values['schedule']} the weight gradient is part of the backward. {told}"
    if values["highlight"] == _CRITICAL:
        return f"{len(chain)} actions, each waiting for the one before, decide how long the batch takes. Last: {told}. "
    return f"{told}. A chain of {len(chain)} decides when it ends. "


def _words(values: Mapping[str, Any], done: PipelineTimeline) -> tuple[str, str]:
    """Title and subtitle."""
    ranks, batches = done.ranks, done.microbatches
    many = f"{ranks} rank{'s' * (ranks > 1)}, {batches} micro-batch{'es' * (batches > 1)}"
    title = f"{values['schedule']}: {done.bubble_fraction:.1%} of the time is idle"
    return title, f"{many}, {done.makespan:.4g} ms for the batch. Grey is idle time."


def _draw(**values: Any) -> View:
    try:
        done = _run(values)
    except ScheduleError as error:
        told = str(error).replace(_SCHEDULES[values["schedule"]].name, values["schedule"], 1)
        title = f"{values['schedule']} has no order for {values['microbatches']} micro-batches"
        nearest = f"The nearest that has one: {told.rpartition('the nearest that has one: ')[2]}."
        picture = no_timeline_svg(values["stages"], title=title, subtitle=nearest)
        return View(picture, alt=f"No timeline: {told}.", message=f"{told}.")
    title, subtitle = _words(values, done)
    chain = _chosen(values, done)
    told, holds, sentence = _formula(values, done)
    chunks, peaks = _chunks(values), done.peak_in_flight
    of_what = "most activations in flight on a rank" + f", each of 1/{chunks} of its layers" * (chunks > 1)
    row = [
        (f"{done.bubble_fraction:.1%}", "idle / total"),
        (f"{done.idle_over_ideal:.1%}", "idle / ideal"),
        (told, holds),
        (f"{max(peaks)}", of_what),
    ]
    hint = " Point at a slot or a gap, or take one at “select”: what it waits for."
    return View(
        pipeline_svg(done, title=title, subtitle=subtitle + hint, slow=_slow(values), framed=chain),
        alt=f"{title}. {subtitle} Activations in flight at most, by rank: {', '.join(map(str, peaks))}.",
        numbers=row,
        message=_of_it(values, done, chain) + sentence,
        data={"done": done, "chain": chain},
    )


def _still(**values: Any) -> Figure:
    done = _run(values)
    title, subtitle = _words(values, done)
    return timeline_figure(done, title=title, subtitle=subtitle, unit="ms", held=True)


def _fewest(values: Mapping[str, Any], view: View) -> bool:
    """Below 5% here, and not with the next smaller number of micro-batches that has an order."""
    done = view.data["done"]
    if values["stages"] < 4 or done.bubble_fraction >= 0.05:
        return False
    for fewer in count(values["microbatches"] - 1, -1):
        try:
            return fewer < 1 or _run(values, microbatches=fewer).bubble_fraction >= 0.05
        except ScheduleError:
            continue
    return False


def _a_quarter(values: Mapping[str, Any], view: View) -> bool:
    """GPipe's bubble at the same setting, and a quarter of the m micro-batches that a rank of it holds."""
    done = view.data["done"]
    if 4 * max(done.peak_in_flight) > values["microbatches"] * _chunks(values) or done.bubble_fraction < 1e-9:
        return False
    return abs(done.bubble_fraction - _run(values, schedule="GPipe").bubble_fraction) < 1e-9


def _in_vain(values: Mapping[str, Any], view: View) -> bool:
    if values["schedule"] != "interleaved":
        return False
    return bool(view.data["done"].makespan > _run(values, schedule="1F1B").makespan + 1e-9)


def _time(
    name: str, label: str, low: float, high: float, default: float, step: float, unit: str = "ms"
) -> FloatControl:
    return FloatControl(
        name=name, label=label, unit=unit, min=low, max=high, step=step, default=default, format=".2f", more=True
    )


def bubble_explorer() -> Explorer:
    """Display the explorer of chapter 9: a pipeline's timeline, both bubbles, the formula, and activations in flight.

    It opens with GPipe on 4 ranks and 8 micro-batches; every schedule of `parallel.schedule` is there.
    """
    return explorer(
        _draw,
        [
            IntControl(name="stages", label="ranks (stages), p", min=1, max=16, default=4),
            IntControl(name="microbatches", label="micro-batches, m", min=1, max=64, default=8),
            ChoiceControl(name="schedule", label="schedule", options=list(_SCHEDULES), default="GPipe"),
            IntControl(
                name="chunks",
                label="chunks of a rank, v",
                min=2,
                max=4,
                default=2,
                more=True,
                enabled=lambda values: _SCHEDULES[values["schedule"]].chunks == 0,
            ),
            _time("forward", "forward of a rank, F", 0.25, 4, 1, 0.25),
            _time("backward_input", "input gradient, I", 0, 4, 1, 0.25),
            _time("backward_weight", "weight gradient, W", 0, 4, 1, 0.25),
            FloatControl(
                name="send",
                label="sending to another rank",
                unit="ms",
                min=0,
                max=2,
                step=0.1,
                default=0,
                format=".1f",
                more=True,
                enabled=lambda values: values["stages"] > 1,
            ),
            _time("slow_by", "one slow rank takes", 1, 4, 1, 0.25, "times"),
            IntControl(
                name="slow_rank",
                label="which rank is slow",
                min=0,
                max=15,
                default=2,
                more=True,
                enabled=lambda values: values["slow_by"] > 1 and values["stages"] > 1,
            ),
            ChoiceControl(
                name="highlight",
                label="select",
                options=[_NOTHING, *_PARTS, _CRITICAL],
                default=_NOTHING,
                more=True,
            ),
            IntControl(
                name="stage",
                label="its stage",
                min=0,
                max=63,
                default=0,
                more=True,
                enabled=lambda values: values["highlight"] in _PARTS and values["stages"] * _chunks(values) > 1,
            ),
            IntControl(
                name="microbatch",
                label="its micro-batch",
                min=0,
                max=63,
                default=0,
                more=True,
                enabled=lambda values: values["highlight"] in _PARTS and values["microbatches"] > 1,
            ),
        ],
        presets=[
            Preset("twice the micro-batches, twice the batch", {"microbatches": 16}),
            Preset("1F1B has GPipe's bubble but not its memory", {"schedule": "1F1B"}),
            Preset("interleave", {"schedule": "interleaved"}),
            Preset("fill it with weight gradients", {"schedule": "ZB-H1"}),
            Preset("one slow rank", {"slow_by": 2}),
            Preset("sending takes half a forward", {"schedule": "1F1B", "send": 0.5}),
        ],
        goals=[
            Goal("The fewest micro-batches with less than 5% idle of the total, on 4 ranks or more", _fewest),
            Goal("GPipe's bubble with a quarter of its activations", _a_quarter),
            Goal("Interleaving that takes longer than 1F1B at the same times, sending included", _in_vain),
        ],
        still=_still,
        title="How long do the ranks wait, and what do they hold meanwhile?",
        caption=(
            "Simulated: each rank does its own list in order, each action as soon as what it needs is there. Times are "
            "those of all layers of a rank for one micro-batch; a chunk takes its share, and later chunks are paler."
        ),
    )
