"""Pictures of chapter 14 from published tables: what stopped a run, how often with scale, which kinds; and roots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, ink, new_figure, numbers, text_on

__all__ = ["causes", "kinds", "rates", "roots"]


def causes(
    rows: Sequence[tuple[str, int, float, bool]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar for each cause: (name, count, printed percentage, is it hardware). Where count and percentage differ, both.

    Blue: hardware, grey: the rest. A yellow tick stands where the printed percentage would put the bar's end.
    """
    fig, ax = new_figure(title, subtitle, height=70 + 19 * len(rows))
    total = sum(count for _, count, _, _ in rows)
    for place, (_, count, printed, hard) in enumerate(rows):
        own = 100 * count / total
        ax.barh(place, count, height=0.72, color=COLORS["blue"] if hard else COLORS["grey"])
        words = f"{count}: {own:.1f}%"
        if abs(own - printed) > 0.06:
            at = printed / 100 * total
            ax.plot([at, at], [place - 0.36, place + 0.36], color=COLORS["yellow"], linewidth=2.4)
            words += f", printed: {printed}%"
        ax.text(count + total * 0.006, place, words, va="center", size=9.5, color=COLORS["ink"])
    ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, 1.65 * max(count for _, count, _, _ in rows))
    ax.grid(False, axis="y")
    ax.set_xlabel("interruptions; blue: hardware, confirmed or suspected")
    if row:
        numbers(fig, row)
    return fig


def rates(
    points: Sequence[tuple[int, float, str, str]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Hours between interruptions against devices, both axes in powers of ten: (devices, hours, how, short name).

    Filled: measured or counted; hollow: projected. The line is 1 / devices through the first point.
    """
    fig, ax = new_figure(title, subtitle, height=300)
    devices, hours, _, _ = points[0]
    line = np.array([devices, max(count for count, *_ in points)], dtype=float)
    ax.plot(line, hours * devices / line, color=COLORS["grey"], linewidth=1.4, linestyle=(0, (4, 3)))
    ax.annotate(
        "1 / devices",
        (line[0] * 12, hours / 12),
        xytext=(8, 8),
        textcoords="offset points",
        size=9.5,
        color=COLORS["muted"],
    )
    for count, value, how, name in points:
        hollow = how == "projected"
        color = COLORS["vermilion"] if hollow else COLORS["blue"]
        ax.plot(count, value, "o", markersize=9, color=color, markerfacecolor="none" if hollow else color)
        below = any(other > value and 1 / 3 < near / count < 3 for near, other, *_ in points)
        left = below and count < 10_000  # the line falls from left to right: names stand beside it
        ax.annotate(
            f"{name}: {_hours(value)}",
            (count, value),
            xytext=(-9 if left else 9, -12 if below else 9),
            textcoords="offset points",
            ha="right" if left else "left",
            size=9.5,
            color=ink(color),
        )
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xlim(4, 3_000_000)
    ax.minorticks_off()
    ax.set_xlabel("devices of the job")
    ax.set_ylabel("hours until something stops it")
    if row:
        numbers(fig, row)
    return fig


def _hours(value: float) -> str:
    if value >= 48:
        return f"{value / 24:.0f} days"
    return f"{value:.1f} h" if value >= 1 else f"{60 * value:.0f} min"


def kinds(
    table: Mapping[str, Mapping[str, bool]],
    runs: Sequence[str],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Kinds of trouble (rows) by run (columns, smallest first). Square: a trouble; ring: nothing had to be done."""
    fig, ax = new_figure(title, subtitle, height=80 + 30 * len(table))
    for place, (_, found) in enumerate(table.items()):
        for column, run in enumerate(runs):
            if run not in found:
                ax.text(column, place, "not mentioned", ha="center", va="center", size=9, color=COLORS["muted"])
            elif found[run]:
                ax.plot(column, place, "s", color=COLORS["vermilion"], markersize=13)
            else:
                ax.plot(column, place, "o", color=COLORS["green"], markersize=13, markerfacecolor="none", mew=2.2)
    ax.set_xticks(range(len(runs)), list(runs))
    ax.xaxis.tick_top()
    ax.set_yticks(range(len(table)), list(table))
    ax.tick_params(length=0, labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xlim(-0.6, len(runs) - 0.4)
    ax.set_ylim(len(table) - 0.4, -0.6)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if row:
        numbers(fig, row)
    return fig


def roots(
    incidents: Sequence[tuple[str, str, str]],
    kinds_in_order: Sequence[str],
    roots_in_order: Sequence[str],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Every incident in its box, by root (columns) and by kind of cause (rows): (title, kind, root)."""
    boxes = {
        (kind, root): [title for title, own, its in incidents if (own, its) == (kind, root)]
        for kind in kinds_in_order
        for root in roots_in_order
    }
    deep = [max(1, *(len(boxes[kind, root]) for root in roots_in_order)) for kind in kinds_in_order]
    fig, ax = new_figure(title, subtitle, height=76 + 19 * sum(deep) + 10 * len(deep))
    colors = [COLORS["vermilion"], COLORS["blue"], COLORS["grey"]]
    top, ticks = 0.0, []
    for kind, rows in zip(kinds_in_order, deep, strict=True):
        ticks.append(top + rows / 2)
        for column, root in enumerate(roots_in_order):
            for place, name in enumerate(boxes[kind, root]):
                color = colors[column % len(colors)]
                ax.barh(top + place + 0.5, 0.96, left=column + 0.02, height=0.84, color=color)
                ax.text(column + 0.05, top + place + 0.5, name, va="center", size=8.5, color=text_on(color))
        top += rows + 0.5
        ax.axhline(top - 0.25, color=COLORS["rule"], linewidth=0.8)
    ax.set_xticks([column + 0.5 for column in range(len(roots_in_order))], list(roots_in_order))
    ax.xaxis.tick_top()
    ax.set_yticks(ticks, list(kinds_in_order))
    ax.tick_params(length=0, labelsize=10, labelcolor=COLORS["ink"])
    ax.set_xlim(0, len(roots_in_order))
    ax.set_ylim(top - 0.2, 0)
    ax.grid(False)
    for spine in ax.spines.values():
        spine.set_visible(False)
    if row:
        numbers(fig, row)
    return fig
