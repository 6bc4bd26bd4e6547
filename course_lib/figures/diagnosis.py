"""Pictures of chapter 14: what an order of checks costs, what a skipped step leaves behind, ways out of a spike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    tint,
)

__all__ = ["apart", "orders", "past", "replayed", "ways_out"]


def orders(
    costs: Mapping[str, Mapping[str, float]],
    kinds: Mapping[str, str],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A line of dots for each order of checks, one dot a fault at its minutes, and a bar at the mean.

    costs: {order: {fault: minutes}}. kinds: {fault: its kind}; the first kind named has blue dots, the others grey.
    """
    fig, ax = new_figure(title, subtitle, height=64 + 46 * len(costs))
    first = next(iter(kinds.values()))
    for place, minutes in enumerate(costs.values()):
        for fault, value in minutes.items():
            color = COLORS["blue"] if kinds[fault] == first else COLORS["grey"]
            ax.plot(value, place + 0.12, "o", color=color, markersize=6, alpha=0.75, zorder=3)
        mean = float(np.mean(list(minutes.values())))
        ax.plot([mean, mean], [place - 0.3, place + 0.3], color=COLORS["ink"], linewidth=2.2, zorder=4)
        ax.text(mean, place - 0.34, f"mean {mean:.0f}", ha="center", va="bottom", size=9, color=COLORS["ink"])
    ax.set_yticks(range(len(costs)), list(costs))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(costs) - 0.45, -0.75)
    ax.set_xlim(0, None)
    ax.grid(False, axis="y")
    ax.set_xlabel(f"minutes until the fault is named; blue: faults in {first}")
    if row:
        numbers(fig, row)
    return fig


def past(
    losses: Mapping[str, Sequence[float]],
    moved: Mapping[str, Sequence[float]],
    first: int,
    bad: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: the loss as the log shows it, right: how far each step moved the weights; a line for each way.

    The sequences begin at step `first`; the step `bad` has a mark. What is not finite is a cross at the top.
    """
    fig, axes = new_panels(title, subtitle, height=320, cols=2)
    for ax, table, heading in (
        (axes[0], losses, "loss in the log, nats a token"),
        (axes[1], moved, "how far the step moved the weights"),
    ):
        panel_title(ax, heading)
        _lines(ax, table, first)
        ax.axvline(bad, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
        ax.set_xlabel("step")
        ax.set_ylim(0, 1.3 * max(float(np.nanmax(values)) for values in table.values() if np.isfinite(values).any()))
    if row:
        numbers(fig, row)
    return fig


def _lines(ax: Axes, table: Mapping[str, Sequence[float]], first: int) -> None:
    labelled = []
    for place, (name, values) in enumerate(table.items()):
        line = np.asarray(values, dtype=float)
        at = first + np.arange(len(line))
        look = series(place) | {"linewidth": 1.4 + 1.3 * (len(table) - 1 - place)}  # one that lies below shows beside
        seen = np.isfinite(line)
        [drawn] = ax.plot(at, line, **look)
        if (~seen).any():
            marks = at[~seen]
            ax.plot(
                marks[:: max(1, len(marks) // 12)],
                np.full(len(marks[:: max(1, len(marks) // 12)]), 0.97 - 0.05 * place),
                "x",
                transform=ax.get_xaxis_transform(),
                color=look["color"],
                markersize=6,
                markeredgewidth=1.8,
                zorder=5,
            )
        if seen.any():
            labelled.append((drawn, name if seen[-1] else f"{name} (not finite)"))
    end_labels(ax, labelled)


def apart(
    distances: Mapping[str, Sequence[float]],
    step: int,
    scales: Mapping[str, Sequence[float]],
    lost: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Three panels over the step: how far the ranks' weights are apart, the loss scale, the share of zero gradients."""
    fig, axes = new_panels(title, subtitle, height=280, cols=3)
    for ax, table, heading in (
        (axes[0], distances, "distance between the ranks"),
        (axes[1], scales, "loss scale"),
        (axes[2], lost, "gradients that are 0, %"),
    ):
        panel_title(ax, heading)
        labelled = []
        for place, (name, values) in enumerate(table.items()):
            line = np.asarray(values, dtype=float)
            seen = np.isfinite(line)
            [drawn] = ax.plot(np.flatnonzero(seen), line[seen], **(series(place) | {"linewidth": 1.8}))
            labelled.append((drawn, name))
        end_labels(ax, labelled)
        ax.set_xlabel("step")
    axes[0].axvline(step, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
    axes[1].set_yscale("log", base=2)
    axes[1].yaxis.set_minor_locator(NullLocator())
    axes[2].set_ylim(0, None)
    if row:
        numbers(fig, row)
    return fig


def ways_out(
    ways: Mapping[str, Mapping[str, Sequence[float]]],
    struck: int,
    noticed: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Two panels in a row, one a way out: held-out loss over the passes, a line for each cause.

    struck, noticed: passes at which the cause strikes and the spike is noticed, marked in all panels.
    """
    rows = -(-len(ways) // 2)
    fig, axes = new_panels(title, subtitle, height=118 * rows + 30, cols=2, rows=rows, share_x=True, share_y=True)
    for number, ax in enumerate(axes):
        ax.set_visible(number < len(ways))
    for ax, (way, curves) in zip(axes, ways.items(), strict=False):
        panel_title(ax, way)
        for place, (cause, values) in enumerate(curves.items()):
            ax.plot(np.arange(1, len(values) + 1), values, **(series(place) | {"linewidth": 1.7}), label=cause)
        for mark in (struck, noticed):
            ax.axvline(mark, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
    key(axes[1], [(cause, str(series(place)["color"])) for place, cause in enumerate(next(iter(ways.values())))])
    for ax in axes[-2:]:
        ax.set_xlabel("passes from the checkpoint")
    if row:
        numbers(fig, row)
    return fig


def replayed(
    rises: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A panel for each cause; in it a line of dots for each state, one dot a seed, at the rise of the loss."""
    fig, axes = new_panels(title, subtitle, height=210, cols=len(rises), share_y=True)
    for ax, (cause, states) in zip(axes, rises.items(), strict=True):
        panel_title(ax, cause)
        for place, values in enumerate(states.values()):
            color = series(place)["color"]
            ax.plot(values, [place] * len(values), "o", color=color, markersize=6, alpha=0.6, clip_on=False)
            middle = float(np.median(values))
            ax.text(middle, place - 0.26, f"{middle:.2f}", ha="center", va="bottom", size=9.5, color=ink(color))
        ax.axvline(0, color=tint(COLORS["grey"], 0.8), linewidth=1)
        ax.set_yticks(range(len(states)), list(states))
        ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
        ax.set_ylim(len(states) - 0.5, -0.75)
        ax.grid(False, axis="y")
        ax.set_xlabel("rise of the held-out loss, nats a token")
    if row:
        numbers(fig, row)
    return fig
