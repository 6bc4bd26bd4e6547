"""Pictures of chapter 9: lanes of real and simulated runs, the bubble by micro-batches, what is held and what is sent.

runs = {"recorded": [Bar(0, "F", 0.0, 0.010, "0"), ...], "simulated": bars_of(timeline)}
show(run_lanes(runs, title="..."), "...")
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from course_lib.figures.ledger import readable
from course_lib.figures.style import COLORS, end_labels, ink, key, new_figure, note, numbers, series, text_on, tint
from course_lib.parallel.updates import TrainingTimeline

__all__ = [
    "Bar",
    "bars_of",
    "boundary_bars",
    "bubble_by_micro_batches",
    "held_by_rank",
    "receives",
    "run_lanes",
    "share_lines",
    "step_bars",
]

_KINDS = {
    "F": ("forward", COLORS["forward"]),
    "B": ("backward", COLORS["backward"]),
    "I": ("backward, inputs", COLORS["backward"]),
    "W": ("backward, weights", COLORS["weight"]),
    "U": ("update", COLORS["optimizer"]),
    "F2": ("forward on old weights", COLORS["vermilion"]),
    "R": ("in a receive", tint(COLORS["communication"], 0.35)),
}
_IDLE = ("idle", COLORS["idle"])
_HIGH = 0.8  # of a bar, in lanes


class Bar(NamedTuple):
    """What a rank does for a while."""

    rank: int
    kind: str
    """F, B, I, W (as in a schedule), U: update, F2: a forward before the update that it needs, R: inside a receive."""
    start: float
    end: float
    label: str = ""


_Slot = tuple[int, int, int, str, float, float]
"""Rank, stage, micro-batch, kind, start, end."""


def bars_of(slots: Iterable[_Slot]) -> list[Bar]:
    """Slots of a simulation or a recording, labelled by micro-batch."""
    return [Bar(rank, kind, start, end, str(microbatch)) for rank, _, microbatch, kind, start, end in slots]


def receives(slots: Iterable[_Slot], waits: Iterable[float]) -> list[Bar]:
    """The times inside receives: before each action that needs another stage's result, as long as `waits` says."""
    slots = list(slots)
    last = max(slot[1] for slot in slots)
    return [
        Bar(slot[0], "R", slot[4] - wait, slot[4])
        for slot, wait in zip(slots, waits, strict=True)
        if (slot[3] == "F" and slot[1] > 0) or (slot[3] in "BI" and slot[1] < last)
    ]


def step_bars(train: TrainingTimeline) -> list[Bar]:
    """Several steps with their updates; forwards that run on old weights are kind F2."""
    stale = set(train.stale)
    return [
        Bar(slot.rank, "U", slot.start, slot.end)
        if slot.kind == "O"
        else Bar(slot.rank, "F2" if slot in stale else slot.kind, slot.start, slot.end, str(slot.microbatch))
        for slot in train.slots
    ]


def run_lanes(
    runs: Mapping[str, Sequence[Bar]],
    *,
    title: str,
    subtitle: str | None = None,
    unit: str = "ms",
    scale: float = 1e3,
    row: Sequence[tuple[str, str]] = (),
    marks: Mapping[str, Sequence[tuple[float, str]]] | None = None,
    spans: Mapping[str, tuple[float, float]] | None = None,
    remarks: Mapping[str, str] | None = None,
) -> Figure:
    """A lane a rank, run under run, all on one time axis. Grey is idle: from 0, or over `spans`, to the run's end.

    Times x `scale` are shown in `unit`. marks: vertical lines (time, text) in a run. remarks: text at a run's end.
    """
    ranks = {name: max(bar.rank for bar in bars) + 1 for name, bars in runs.items()}
    fig, ax = new_figure(title, subtitle, height=66 + sum(24 * count + 38 for count in ranks.values()))
    last = max(bar.end for bars in runs.values() for bar in bars) * scale
    spans = dict(spans or {})
    top, ticks, used = 0.0, [], set()
    for name, bars in runs.items():
        start, end = spans.get(name, (0.0, max(bar.end for bar in bars)))
        ax.annotate(name, (0, top - 0.78), size=10, weight="bold", va="center", annotation_clip=False)
        for rank in range(ranks[name]):
            ticks.append((top + rank, f"rank {rank}"))
        grey = [_box(start * scale, end * scale, top + rank) for rank in range(ranks[name])]
        ax.add_collection(PolyCollection(grey, facecolors=_IDLE[1], linewidths=0))
        _draw(ax, bars, top, scale, last)
        used |= {bar.kind for bar in bars}
        text = (remarks or {}).get(name, f"{readable(end * scale)} {unit}")
        middle = top + (ranks[name] - 1) / 2
        ax.annotate(text, (end * scale, middle), xytext=(7, 0), textcoords="offset points", size=9.5, va="center")
        for at, said in (marks or {}).get(name, ()):
            ax.plot([at * scale] * 2, [top - 0.5, top + ranks[name] - 0.5], color=COLORS["ink"], linewidth=1.2)
            ax.annotate(said, (at * scale, top - 0.78), size=9, va="center", ha="center", color=COLORS["muted"])
        top += ranks[name] + 1.5
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", labelcolor=COLORS["ink"])
    ax.set_ylim(top - 1.5 - 0.4, -1.2)
    ax.set_xlim(0, last * 1.13)
    ax.set_xlabel(f"time ({unit})")
    ax.grid(False)
    _key(ax, used)
    if row:
        numbers(fig, row)
    return fig


def _box(start: float, end: float, y: float) -> list[tuple[float, float]]:
    low, high = y - _HIGH / 2, y + _HIGH / 2
    return [(start, low), (end, low), (end, high), (start, high)]


def _draw(ax: Axes, bars: Sequence[Bar], top: float, scale: float, last: float) -> None:
    """Bars of one run: a collection a kind, and the labels that have room."""
    for kind in dict.fromkeys(bar.kind for bar in bars):
        color = _KINDS[kind][1]
        boxes = [_box(bar.start * scale, bar.end * scale, top + bar.rank) for bar in bars if bar.kind == kind]
        edge = COLORS["paper"] if kind != "R" else COLORS["communication"]
        ax.add_collection(PolyCollection(boxes, facecolors=color, edgecolors=edge, linewidths=0.7))
        for bar in bars:
            if (
                bar.kind == kind
                and bar.label
                and (bar.end - bar.start) * scale / last > 0.005 + 0.0085 * len(bar.label)
            ):
                middle = (bar.start + bar.end) / 2 * scale
                ax.text(
                    middle, top + bar.rank, bar.label, size=8, ha="center", va="center_baseline", color=text_on(color)
                )


def _key(ax: Axes, used: set[str]) -> None:
    kinds = [(*_KINDS[kind], "communication" if kind == "R" else "rule") for kind in _KINDS if kind in used]
    key(ax, [*kinds, (*_IDLE, "rule")])


def bubble_by_micro_batches(
    curves: Mapping[int, Sequence[tuple[int, float]]],
    simulated: Mapping[int, Sequence[tuple[int, float]]],
    measured: Sequence[tuple[int, float, float, float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Idle / total over micro-batches m: a curve for each number of ranks (the formula), dots (simulated), and what
    real runs on 2 ranks gave: (m, median, lowest, highest)."""
    fig, ax = new_figure(title, subtitle, height=310)
    named = []
    for place, (ranks, points) in enumerate(curves.items()):
        x, y = np.array(points).T
        (line,) = ax.plot(x, 100 * y, **series(place))
        named.append((line, f"{ranks} ranks"))
        dots = np.array(simulated[ranks]).T
        ax.plot(dots[0], 100 * dots[1], "o", color=COLORS["paper"], markeredgecolor=line.get_color(), markersize=5)
    for at, middle, low, high in measured:
        ax.plot([at, at], [100 * low, 100 * high], color=COLORS["ink"], linewidth=1.4, zorder=4)
        ax.plot([at], [100 * middle], "D", color=COLORS["ink"], markersize=6.5, zorder=5)
    if measured:
        at, middle, *_ = measured[len(measured) // 2]
        note(ax, "two real ranks, median (line: lowest to highest)", (at, 100 * middle), offset=(38, 74), color="ink")
    ax.set_xscale("log", base=2)
    ticks = sorted({m for points in simulated.values() for m, _ in points})
    ax.set_xticks(ticks, [str(m) for m in ticks])
    ax.set_ylim(0, None)
    ax.set_xlabel("micro-batches m (each step doubles)")
    ax.set_ylabel("idle / total (%)")
    end_labels(ax, named)
    if row:
        numbers(fig, row)
    return fig


def held_by_rank(
    held: Mapping[str, Sequence[float]],
    counts: Mapping[str, Sequence[int]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes of activations that each rank held at its peak, a bar for each schedule; on it: how many micro-batches."""
    fig, ax = new_figure(title, subtitle, height=270)
    ranks = len(next(iter(held.values())))
    width = 0.8 / len(held)
    colors = (COLORS["grey"], COLORS["blue"], COLORS["green"])
    for place, (name, sizes) in enumerate(held.items()):
        for rank, (size, count) in enumerate(zip(sizes, counts[name], strict=True)):
            x = rank + (place - (len(held) - 1) / 2) * width
            ax.bar(x, size / 1e6, width * 0.92, color=colors[place], label=name if rank == 0 else None)
            ax.annotate(
                str(count),
                (x, size / 1e6),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                size=10,
                weight="bold",
            )
    ax.set_xticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(axis="x", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylabel("activations at the peak (MB)")
    ax.margins(y=0.12)
    ax.legend(frameon=False, fontsize=9.5, ncols=len(held), loc="lower right", bbox_to_anchor=(1, 1.0), borderaxespad=0)
    if row:
        numbers(fig, row)
    return fig


def share_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    subtitle: str | None = None,
    x: str,
    y: str = "idle / total (%)",
    ticks: Sequence[float] = (),
    row: Sequence[tuple[str, str]] = (),
    percent: bool = True,
) -> Figure:
    """A line for each name through its points (x, y), named at its right end."""
    fig, ax = new_figure(title, subtitle, height=290)
    named = []
    for place, (name, points) in enumerate(lines.items()):
        across, up = np.array(points, dtype=float).T
        (line,) = ax.plot(across, up * (100 if percent else 1), marker="o", markersize=4.5, **series(place))
        named.append((line, name))
    if ticks:
        ax.set_xscale("log", base=2)
        ax.set_xticks(list(ticks), [f"{tick:g}" for tick in ticks])
    ax.set_ylim(0, None)
    ax.set_xlabel(x)
    ax.set_ylabel(y)
    end_labels(ax, named)
    if row:
        numbers(fig, row)
    return fig


def boundary_bars(
    models: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
    unit: str = "KiB",
    scale: float = 1 / 1024,
) -> Figure:
    """Bytes over each boundary between stages, a panel-wide group for each boundary and a bar for each model."""
    fig, ax = new_figure(title, subtitle, height=280)
    boundaries = len(next(iter(models.values())))
    width = 0.82 / len(models)
    colors = (COLORS["grey"], COLORS["blue"], COLORS["vermilion"])
    largest = max(max(sizes) for sizes in models.values()) * scale
    for place, (name, sizes) in enumerate(models.items()):
        for boundary, size in enumerate(sizes):
            at = boundary + (place - (len(models) - 1) / 2) * width
            ax.bar(at, size * scale, width * 0.92, color=colors[place], label=name if boundary == 0 else None)
            ax.annotate(
                f"{size * scale:,.0f}",
                (at, size * scale),
                xytext=(0, 3),
                textcoords="offset points",
                ha="center",
                size=8.5,
                color=ink(colors[place]),
            )
    ax.set_xticks(range(boundaries), [f"{b} | {b + 1}" for b in range(boundaries)])
    ax.tick_params(axis="x", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_xlabel("boundary between stages")
    ax.set_ylabel(f"sent in a step, both ways ({unit})")
    ax.set_ylim(0, largest * 1.12)
    ax.legend(
        frameon=False, fontsize=9.5, ncols=len(models), loc="lower right", bbox_to_anchor=(1, 1.0), borderaxespad=0
    )
    if row:
        numbers(fig, row)
    return fig
