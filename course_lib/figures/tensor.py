"""Pictures of chapter 10, first half: how two matrices are cut, what each way sends and keeps, where it stops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.figures.style import COLORS, end_labels, ink, key, new_figure, numbers, series, text_on, tint
from course_lib.figures.zero import SENT_COLORS

__all__ = ["RANK_COLORS", "column_then_row", "kept", "sending_shares", "sent_bars"]

RANK_COLORS = (COLORS["blue"], COLORS["orange"], COLORS["green"], COLORS["purple"])
"""Colour of each of four ranks."""


def _matrix(ax: Axes, left: float, wide: float, high: float, name: str, cut: str | None, ranks: int) -> float:
    """A rectangle centred on y = 0, cut into the ranks' columns or rows; None: whole on all. Gives its right edge."""
    bottom = -high / 2
    for rank in range(ranks if cut else 1):
        box = {
            None: (left, bottom, wide, high),
            "columns": (left + rank * wide / ranks, bottom, wide / ranks, high),
            "rows": (left, bottom + (ranks - 1 - rank) * high / ranks, wide, high / ranks),
        }[cut]
        color = RANK_COLORS[rank] if cut else COLORS["idle"]
        ax.add_patch(Rectangle(box[:2], *box[2:], facecolor=color, edgecolor=COLORS["paper"], linewidth=1.5))
        if cut:
            center = (box[0] + box[2] / 2, box[1] + box[3] / 2)
            ax.annotate(str(rank), center, ha="center", va="center", size=10, color=text_on(color))
    ax.annotate(name, (left + wide / 2, high / 2), xytext=(0, 6), textcoords="offset points", ha="center", size=10)
    return left + wide


def column_then_row(ranks: int, *, title: str, subtitle: str | None = None) -> Figure:
    """x W1 -> h -> h W2 -> y: which part of each matrix a rank has, and where ranks talk."""
    fig, ax = new_figure(title, subtitle, height=230)
    middle: dict[str, Any] = {"ha": "center", "va": "center", "size": 13, "color": COLORS["muted"]}
    edge = _matrix(ax, 0, 2, 3, "x, all tokens", None, ranks)
    ax.annotate("×", (edge + 0.4, 0), **middle)
    edge = _matrix(ax, edge + 0.8, 4, 2, "W1, columns", "columns", ranks)
    ax.annotate("=", (edge + 0.4, 0), **middle)
    edge = _matrix(ax, edge + 0.8, 4, 3, "h, then silu(h)", "columns", ranks)
    ax.annotate("×", (edge + 0.4, 0), **middle)
    edge = _matrix(ax, edge + 0.8, 2, 4, "W2, rows", "rows", ranks)
    for rank in range(ranks):
        left = edge + 1.4 + rank * 0.5
        lower = -1.5 - 0.25 * (rank - (ranks - 1) / 2)
        face = tint(RANK_COLORS[rank], 0.65)
        ax.add_patch(Rectangle((left, lower), 2, 3, facecolor=face, edgecolor=COLORS["paper"], linewidth=1.5))
    ax.annotate("=", (edge + 0.7, 0), **middle)
    sums = edge + 1.4
    edge = sums + 2 + (ranks - 1) * 0.5
    ax.annotate(
        "partial sums", ((sums + edge) / 2, 1.7), xytext=(0, 6), textcoords="offset points", ha="center", size=10
    )
    vermilion = COLORS["communication"]
    ax.add_patch(
        FancyArrowPatch((edge + 0.2, 0), (edge + 2.2, 0), arrowstyle="-|>", mutation_scale=14, color=vermilion)
    )
    ax.annotate("all-reduce", (edge + 1.2, 0.3), ha="center", size=10, color=ink(vermilion))
    _matrix(ax, edge + 2.4, 2, 3, "y, on every rank", None, ranks)
    ax.set_xlim(-0.4, edge + 5.2)
    ax.set_ylim(-2.4, 2.9)
    ax.set_aspect("equal")
    ax.axis("off")
    return fig


def sent_bars(
    rows: Mapping[str, Mapping[str, float]],
    *,
    unit: str,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar a way: {way: {collective: amount}}, in the colours of `figures.zero`."""
    fig, ax = new_figure(title, subtitle, height=70 + 36 * len(rows))
    longest = max(sum(parts.values()) for parts in rows.values())
    for place, parts in enumerate(rows.values()):
        start = 0.0
        for name, size in parts.items():
            color = SENT_COLORS[name]
            ax.barh(place, size, left=start, height=0.6, color=color, edgecolor=COLORS["paper"], linewidth=1)
            start += size
        ax.annotate(f"{start:.3g}", (start, place), xytext=(6, 0), textcoords="offset points", va="center", size=9.5)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, longest * 1.1)
    ax.set_xlabel(unit)
    ax.grid(False, axis="y")
    used = [name for name in SENT_COLORS if any(parts.get(name) for parts in rows.values())]
    key(ax, [(name, SENT_COLORS[name]) for name in used])
    if row:
        numbers(fig, row)
    return fig


def kept(
    ranks: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """MB that forward leaves for backward on one rank, against the number of ranks; thin and grey: an equal share."""
    fig, ax = new_figure(title, subtitle, height=290)
    whole = next(iter(lines.values()))[0]
    ax.plot(ranks, [whole / n for n in ranks], color=COLORS["grey"], linewidth=1, zorder=5)
    drawn = [
        (ax.plot(ranks, values, marker="o", markersize=4, **series(place))[0], name)
        for place, (name, values) in enumerate(lines.items())
    ]
    end_labels(ax, drawn)
    ax.set_xscale("log", base=2)
    ax.set_xticks(list(ranks), [str(n) for n in ranks])
    ax.set_ylim(0, whole * 1.08)
    ax.set_xlabel("tensor-parallel ranks (thin grey line: one device's, divided by them)")
    ax.set_ylabel("MB kept for backward on one rank")
    if row:
        numbers(fig, row)
    return fig


def sending_shares(
    ranks: Sequence[int],
    lines: Mapping[str, Sequence[float]],
    node: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Seconds of sending for each second of computing, against ranks; a line each, and the size of a node."""
    fig, ax = new_figure(title, subtitle, height=300)
    drawn = [
        (ax.plot(ranks, values, marker="o", markersize=4, **series(place))[0], name)
        for place, (name, values) in enumerate(lines.items())
    ]
    end_labels(ax, drawn)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.axhline(1, color=COLORS["grey"], linewidth=1)
    ax.axvline(node, color=COLORS["rule"], linewidth=1)
    low = min(float(np.min(values)) for values in lines.values())
    ax.annotate("a node", (node, low), xytext=(4, 0), textcoords="offset points", size=9, color=COLORS["muted"])
    ax.set_xticks(list(ranks), [str(n) for n in ranks])
    ax.set_xlabel("tensor-parallel ranks (grey line at 1: it sends for as long as it computes)")
    ax.set_ylabel("seconds sent a second computed")
    ax.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    ax.minorticks_off()
    if row:
        numbers(fig, row)
    return fig
