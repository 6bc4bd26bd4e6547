"""A pipeline's timeline: a lane for each rank, a bar for each action, grey where a rank waits.

    done = simulate("1f1b", stages=4, microbatches=8)
    show(timeline_figure(done, title="1F1B: 27% of the time is idle", held=True), "...")
    show(timeline_figure({"simulated": done, "two real ranks": recorded}, title="...", unit="ms", scale=1e3), "...")

Anything with `slots` can be drawn, simulated or recorded: each slot has rank, stage, microbatch, kind, start and end.
`pipeline_svg` is the same picture as HTML in the page's own colours, for the live explorer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Protocol

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, key, new_panels, text_on, tint

__all__ = ["Drawable", "SlotLike", "chunk_color", "held_over_time", "legend", "timeline_figure"]

KINDS: dict[str, tuple[str, str]] = {
    "F": ("forward", COLORS["forward"]),
    "B": ("backward", COLORS["backward"]),
    "I": ("input gradient", COLORS["backward"]),
    "W": ("weight gradient", COLORS["weight"]),
    "U": ("optimizer step", COLORS["optimizer"]),
}
"""Of each kind its name and colour. U: what follows when all gradients are there."""

_LANE, _HEAD, _GAP = 1.0, 0.85, 0.55  # in lanes: from lane to lane, a run's name, between runs
_HIGH = 0.8
_LETTER = 6.2  # px that a digit takes


class SlotLike(Protocol):
    """When a rank did what."""

    @property
    def rank(self) -> int: ...
    @property
    def stage(self) -> int: ...
    @property
    def microbatch(self) -> int: ...
    @property
    def kind(self) -> Literal["F", "B", "I", "W", "U"]: ...
    @property
    def start(self) -> float: ...
    @property
    def end(self) -> float: ...


class Drawable(Protocol):
    """A run of a pipeline."""

    @property
    def slots(self) -> Sequence[Any]:
        """`SlotLike`s, in any order."""
        ...


def chunk_color(kind: str, chunk: int, chunks: int) -> str:
    """The colour of an action on a rank's chunk: the first has the full colour, later ones are paler."""
    color = KINDS[kind][1]
    return color if chunk == 0 else tint(color, 1 - 0.55 * chunk / max(chunks - 1, 1))


def legend(used: Iterable[str], chunks: int = 1) -> list[tuple[str, str]]:
    """(name, colour) for the kinds that a picture has, for the paler colours of later chunks, and for idle time."""
    kinds = set(used)
    entries = [KINDS[kind] for kind in KINDS if kind in kinds and not (kind == "I" and "B" in kinds)]
    if {"B", "I"} <= kinds:  # they share a colour
        entries[entries.index(KINDS["B"])] = ("backward, input gradient", KINDS["B"][1])
    if chunks > 1:
        entries.append(("paler: later chunk", chunk_color("F", 1, 2)))
    return [*entries, ("idle", COLORS["idle"])]


def held_over_time(slots: Iterable[SlotLike]) -> tuple[list[float], list[int]]:
    """Of one rank's slots: the times at which it begins or ends to hold an activation, and how many it then holds.

    One is held from the start of its F to the end of its B, or of its W where the backward is cut in two.
    """
    slots = list(slots)
    changes = [(slot.start, 1) for slot in slots if slot.kind == "F"]
    changes += [(slot.end, -1) for slot in slots if slot.kind in "BW"]
    changes.sort()
    return [0.0, *(time for time, _ in changes)], np.cumsum([0, *(step for _, step in changes)]).tolist()


def timeline_figure(
    runs: Drawable | Mapping[str, Drawable],
    *,
    title: str,
    subtitle: str | None = None,
    unit: str = "in units of one forward",
    scale: float = 1.0,
    held: bool = False,
    update: float = 0.0,
    framed: Iterable[tuple[int, int, int, str]] = (),
) -> Figure:
    """One run, or several with their names under each other on one time axis.

    In a bar: its micro-batch. A rank's second chunk is paler than its first. Times x `scale` are shown in `unit`.

    held: a second panel with the activations that each rank holds, for one run.
    update: so long an optimizer step follows on every rank when the last one has ended.
    framed: (rank, stage, microbatch, kind) of actions with a dark frame: a critical path, say.
    """
    named = dict(runs) if isinstance(runs, Mapping) else {"": runs}
    if held and len(named) > 1:
        raise ValueError("held=True draws what one run holds: give one timeline")
    lanes = [1 + max((slot.rank for slot in run.slots), default=0) for run in named.values()]
    rows = sum(lanes) * _LANE + (len(named) * _HEAD if "" not in named else 0) + (len(named) - 1) * _GAP
    row = 34.0 if max(lanes) <= 4 else 26.0 if max(lanes) <= 8 else 20.0
    below = 130 if held else 0
    fig, axes = new_panels(
        title,
        subtitle,
        height=round(62 + rows * row + below),
        rows=1 + held,
        cols=1,
        share_x=True,
        height_ratios=[rows * row, 90] if held else None,
    )
    ax = axes[0]
    end = scale * max((slot.end for run in named.values() for slot in run.slots), default=0.0)
    longest = (end + update * scale) or 1.0
    frames = set(framed)
    used: list[str] = []
    ticks: list[tuple[float, str]] = []
    top = 0.0
    for (name, run), count in zip(named.items(), lanes, strict=True):
        if name:
            ax.text(0, top + 0.3, name, size=10, weight="bold", color=COLORS["ink"], va="center")
            top += _HEAD
        used += _lanes(ax, run, top, count, scale, update, longest, frames)
        ticks += [(top + rank * _LANE + _HIGH / 2, f"rank {rank}") for rank in range(count)]
        top += count * _LANE + _GAP
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", labelcolor=COLORS["ink"])
    ax.set_ylim(top - _GAP, -0.15)
    ax.set_xlim(0, longest)
    ax.grid(False)
    key(ax, legend(used, max(map(_chunks, named.values()))))
    if held:
        _held(axes[1], next(iter(named.values())).slots, lanes[0], scale)
    axes[-1].set_xlabel(f"time ({unit})")
    return fig


def _lanes(
    ax: Axes,
    run: Drawable,
    top: float,
    count: int,
    scale: float,
    update: float,
    longest: float,
    frames: set[tuple[int, int, int, str]],
) -> list[str]:
    """Draw one run; the kinds that were used."""
    slots = list(run.slots)
    last = max((slot.end for slot in slots), default=0.0)
    stages = _stages(run, count)
    chunks = max(map(len, stages), default=1)
    ends = {(slot.rank, slot.stage, slot.microbatch, slot.kind): slot for slot in slots}
    bars = [
        (slot.rank, slot.start, slot.end, slot.kind, _chunk(stages[slot.rank], slot), str(slot.microbatch))
        for slot in slots
    ]
    if update > 0:
        bars += [(rank, last, last + update, "U", 0, "") for rank in range(count)]
        last += update
    back = [_box(0.0, last * scale, top + rank * _LANE) for rank in range(count)]
    ax.add_collection(PolyCollection(back, facecolors=COLORS["idle"], edgecolors="none"))
    px = 640 / longest
    wide = min((bar[2] - bar[1] for bar in bars if bar[2] > bar[1]), default=1.0) * scale * px
    boxes = [_box(a * scale, b * scale, top + rank * _LANE) for rank, a, b, *_ in bars]
    colors = [chunk_color(kind, chunk, chunks) for _, _, _, kind, chunk, _ in bars]
    edge = 0.8 if wide > 5 else 0.3
    ax.add_collection(PolyCollection(boxes, facecolors=colors, edgecolors=COLORS["paper"], linewidths=edge))
    framed = [ends[frame] for frame in frames if frame in ends]
    if framed:
        outline = [_box(slot.start * scale, slot.end * scale, top + slot.rank * _LANE) for slot in framed]
        ax.add_collection(PolyCollection(outline, facecolors="none", edgecolors=COLORS["ink"], linewidths=1.8))
    for (rank, a, b, _, _, words), color in zip(bars, colors, strict=True):
        if words and (b - a) * scale * px > 2.5 + _LETTER * len(words):
            middle = (a + b) / 2 * scale
            place = top + rank * _LANE + _HIGH / 2
            ax.text(middle, place, words, size=8.5, ha="center", va="center_baseline", color=text_on(color))
    return [kind for kind in KINDS if any(bar[3] == kind for bar in bars)]


def _stages(run: Drawable, ranks: int) -> list[list[int]]:
    """Of each rank its stages, in order."""
    return [
        sorted({slot.stage for slot in run.slots if slot.rank == rank and slot.kind != "U"}) for rank in range(ranks)
    ]


def _chunks(run: Drawable) -> int:
    """The most stages that a rank holds."""
    return max(map(len, _stages(run, 1 + max((slot.rank for slot in run.slots), default=0))), default=1)


def _chunk(stages: Sequence[int], slot: SlotLike) -> int:
    return stages.index(slot.stage) if slot.stage in stages else 0


def _box(left: float, right: float, top: float) -> list[tuple[float, float]]:
    return [(left, top), (right, top), (right, top + _HIGH), (left, top + _HIGH)]


def _held(ax: Axes, slots: Sequence[SlotLike], ranks: int, scale: float) -> None:
    """Steps of what each rank holds; the first and the last are named, with their peaks."""
    found = [held_over_time([slot for slot in slots if slot.rank == rank]) for rank in range(ranks)]
    for rank in reversed(range(ranks)):
        times, counts = found[rank]
        color, wide = (COLORS["blue"], 2.2) if rank == 0 else (COLORS["grey"], 1.1 if ranks <= 8 else 0.4)
        style: Any = "-"
        if rank == ranks - 1 > 0:
            color, wide, style = COLORS["vermilion"], 2.0, (0, (5, 1.5))
        drawn = [time * scale for time in times]
        ax.plot(drawn, counts, drawstyle="steps-post", color=color, linewidth=wide, linestyle=style)
    most = max(max(counts) for _, counts in found)
    ax.set_ylim(0, most * 1.15 + 0.2)
    ax.set_yticks(sorted({0, most, *([] if most < 4 else [most // 2])}))
    ax.set_ylabel("activations\nheld")
    names = [f"rank {rank}: at most {max(found[rank][1])}" for rank in sorted({0, ranks - 1})]
    shades = [COLORS["blue"], COLORS["vermilion"]]
    between = [("ranks between", COLORS["grey"])] if ranks > 2 else []
    key(ax, [*zip(names, shades, strict=False), *between])
