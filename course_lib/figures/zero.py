"""Pictures of chapter 8: which bytes are touched when, what each rung holds and sends, whole weights over a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from course_lib.figures.ledger import BYTE_COLORS, readable
from course_lib.figures.style import COLORS, ink, new_figure, new_panels, numbers, panel_title, text_on, tint

__all__ = ["rungs", "step_memory", "touched", "trades"]

SENT_COLORS = {
    "all-reduce": COLORS["communication"],
    "reduce-scatter": COLORS["backward"],
    "all-gather": COLORS["forward"],
    "again in backward": COLORS["sky"],
    "all-to-all": COLORS["weight"],
    "one to one": COLORS["grey"],
}
"""Colour of each collective in `rungs`."""


def touched(
    rows: Sequence[tuple[str, str, float]],
    marks: Sequence[Sequence[bool]],
    phases: Sequence[tuple[str, int]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A raster: x operators, y the bytes of a training state, piled up; marked where an operator reads or writes.

    rows: (category, unit, bytes), from the bottom up. marks[i][j]: whether operator j touches row i. phases: name and
    first operator.
    """
    fig, ax = new_figure(title, subtitle, height=330)
    count, bottom = len(marks[0]), 0.0
    centers: dict[str, list[float]] = {}
    for (category, _, size), line in zip(rows, marks, strict=True):
        color, height = BYTE_COLORS[category], size / 1e6
        ax.broken_barh([(0, count)], (bottom, height), color=tint(color, 0.12), linewidth=0)
        spans, place = [], 0
        for mark, run in groupby(line):
            length = len(list(run))
            if mark:
                spans.append((place, max(length, count / 400)))
            place += length
        ax.broken_barh(spans, (bottom, height), color=color, linewidth=0)
        ax.axhline(bottom, color=COLORS["paper"], linewidth=0.8)
        centers.setdefault(category, []).append(bottom + height / 2)
        bottom += height
    ax.set_yticks([float(np.mean(middle)) for middle in centers.values()], list(centers))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    _phases(ax, phases, count, bottom)
    ax.set_ylim(0, bottom * 1.09)
    ax.set_xlabel("operators, in the order in which they run")
    ax.set_ylabel("height: bytes")
    ax.grid(False)
    if row:
        numbers(fig, row)
    return fig


def _phases(ax: Axes, phases: Sequence[tuple[str, int]], count: int, top: float) -> None:
    """Names over the plot, a line where each begins."""
    ends = [first for _, first in phases[1:]] + [count]
    for (name, first), end in zip(phases, ends, strict=True):
        if end - first < 0.08 * count:  # no room for its name
            continue
        if first:
            ax.axvline(first, color=COLORS["grey"], linewidth=1, linestyle=(0, (4, 3)))
        ax.annotate(
            name,
            ((first + end) / 2, top),
            xytext=(0, 4),
            textcoords="offset points",
            ha="center",
            size=9.5,
            color=COLORS["muted"],
        )
    ax.set_xlim(0, count)


def rungs(
    held: Mapping[str, Mapping[str, float]],
    sent: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A row a strategy. Left: bytes a parameter by category; right: elements sent a step by collective, in P."""
    fig, (left, right) = new_panels(title, subtitle, height=124 + 40 * len(held), cols=2, width_ratios=[1.2, 1])
    for ax, table, colors, form in (
        (left, held, BYTE_COLORS, "{:.3g}"),
        (right, sent, SENT_COLORS, "{:.2g} P"),
    ):
        longest = max(sum(entry.values()) for entry in table.values())
        for place, entry in enumerate(table.values()):
            start = 0.0
            for name, size in entry.items():
                color = colors[name]
                ax.barh(place, size, left=start, height=0.6, color=color, edgecolor=COLORS["paper"], linewidth=1)
                if size > 0.06 * longest:
                    at = (start + size / 2, place)
                    ax.annotate(f"{size:.2g}", at, ha="center", va="center", size=9, color=text_on(color))
                start += size
            ax.annotate(
                form.format(start), (start, place), xytext=(6, 0), textcoords="offset points", va="center", size=9.5
            )
        ax.set_xlim(0, longest * 1.16)
        ax.set_ylim(len(table) + 0.8, -0.6)
        ax.spines["bottom"].set_visible(False)
        ax.set_xticks([])
        ax.grid(False)
        used = [name for name in colors if any(entry.get(name) for entry in table.values())]
        _key_below(ax, [(name, colors[name]) for name in used])
    left.set_yticks(range(len(held)), list(held))
    left.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    right.set_yticks([])
    panel_title(left, "held: bytes a parameter")
    panel_title(right, "sent in a step: elements, in P")
    if row:
        numbers(fig, row)
    return fig


def _key_below(ax: Axes, entries: Sequence[tuple[str, str]]) -> None:
    """Small squares with names under a panel, two or three in a line."""
    legend = ax.legend(
        handles=[Patch(facecolor=color, label=name) for name, color in entries],
        loc="upper left",
        bbox_to_anchor=(-0.02, 0.2),
        ncols=3 if len(entries) == 3 else 2,
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.2,
    )
    legend.set_in_layout(False)


_WHOLE, _STAYS, _COMES = COLORS["forward"], tint(COLORS["optimizer"], 0.6), tint(COLORS["grey"], 0.35)
_GRADIENTS = COLORS["backward"]


def step_memory(
    panels: Mapping[str, Sequence[tuple[str, float, float, float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes alive over a step, a panel a strategy, one scale.

    panels: {name: [(phase, whole weights, gradients, total) an operator]}. From below: weights that are whole; what
    else is there when the step begins, and so stays (moments, shards of weights); gradients; what comes and goes.
    """
    fig, axes = new_panels(title, subtitle, height=290, cols=len(panels), share_y=True)
    top = max(total for moments in panels.values() for *_, total in moments) / 1e6
    for ax, (name, moments) in zip(axes, panels.items(), strict=True):
        whole = np.array([entry[1] for entry in moments]) / 1e6
        gradients = np.array([entry[2] for entry in moments]) / 1e6
        total = np.array([entry[3] for entry in moments]) / 1e6
        places = np.arange(len(moments))
        stays = whole + total[0] - whole[0]
        summed = np.minimum(stays + gradients, total)
        layers = ((whole, _WHOLE), (stays, _STAYS), (summed, _GRADIENTS), (total, _COMES))
        low = 0 * whole
        for high, color in layers:
            ax.fill_between(places, low, high, color=color, linewidth=0, step="post")
            low = high
        first, phases = 0, []
        for phase, run in groupby(moments, key=lambda entry: entry[0]):
            phases.append((phase, first))
            first += len(list(run))
        _phases(ax, phases, len(moments), top * 1.06)
        peak = int(np.argmax(total))
        text = f"{readable(float(total[peak]))} MB"
        side = "right" if peak > 0.9 * len(moments) else "center"
        ax.annotate(
            text, (peak, total[peak]), xytext=(0, 3), textcoords="offset points", ha=side, size=9.5, weight="bold"
        )
        panel_title(ax, name)
        ax.set_xlabel("operators, in the order in which they run")
        ax.set_ylim(0, top * 1.16)
    axes[0].set_ylabel("MB alive on a rank")
    entries = [
        ("activations, buffers", _COMES),
        ("gradients", _GRADIENTS),
        ("other state, stays", _STAYS),
        ("whole weights", _WHOLE),
    ]
    axes[-1].legend(
        handles=[Patch(facecolor=color, label=name) for name, color in entries],
        loc="upper right",
        bbox_to_anchor=(1, 0.9),
        ncols=2,
        columnspacing=1.0,
        framealpha=1,
        edgecolor="none",
        fontsize=9,
        handlelength=1,
    )
    if row:
        numbers(fig, row)
    return fig


def trades(
    points: Mapping[str, tuple[float, float]],
    *,
    title: str,
    subtitle: str | None = None,
    offsets: Mapping[str, tuple[float, float]] | None = None,
    bottom: float = 0.0,
) -> Figure:
    """A labelled point a strategy: {name: (elements sent in P, bytes a parameter at the peak)}. bottom: of the y axis,
    for points that lie together."""
    fig, ax = new_figure(title, subtitle, height=300)
    for name, (sent, peak) in points.items():
        ax.plot([sent], [peak], "o", color=COLORS["communication"], markersize=8, clip_on=False, zorder=5)
        dx, dy = (offsets or {}).get(name, (10, 0))
        ax.annotate(
            f"{name}: {peak:.1f}",
            (sent, peak),
            xytext=(dx, dy),
            textcoords="offset points",
            ha="left" if dx > 0 else "right",
            va="center",
            size=9.5,
            color=ink(COLORS["ink"]),
            path_effects=[withStroke(linewidth=3, foreground=COLORS["paper"])],
        )
    ax.set_xlim(0, max(sent for sent, _ in points.values()) * 1.2)
    ax.grid(False, axis="x")
    ax.set_ylim(bottom, bottom + (max(peak for _, peak in points.values()) - bottom) * 1.15)
    ax.set_xlabel("elements that a rank sends in a step, in parameters P")
    ax.set_ylabel("bytes a parameter at the peak")
    return fig
