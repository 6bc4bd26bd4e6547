"""Pictures of the batch: runs that accumulate more and more, and tokens an update beside published runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.curve import smoothed
from course_lib.figures.style import COLORS, end_labels, ink, new_figure, new_panels, numbers, panel_title, series

__all__ = ["batch_scale", "doublings"]


def doublings(
    losses: Mapping[str, Sequence[float]],
    tokens: Mapping[str, int],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Smoothed training loss of runs with other batches: left against tokens read, right against updates made.

    losses: {run: loss of each update}; tokens: {run: tokens an update}.
    """
    fig, (left, right) = new_panels(title, subtitle, height=280, cols=2, share_y=True)
    ends, again_ends = [], []
    for index, (name, values) in enumerate(losses.items()):
        curve = smoothed(values, max(4, len(values) // 8))
        updates = np.arange(1, len(values) + 1)
        (line,) = left.plot(updates * tokens[name] / 1e3, curve, **series(index))
        (again,) = right.plot(updates, curve, **series(index))
        ends.append((line, name))
        again_ends.append((again, name))
    end_labels(left, ends)
    end_labels(right, again_ends)
    panel_title(left, "after so many tokens")
    panel_title(right, "after so many updates")
    left.set_xlabel("thousand tokens read")
    right.set_xlabel("updates made")
    left.set_ylabel("nats a token")
    if row:
        numbers(fig, row)
    return fig


def batch_scale(tokens: float, published: Mapping[str, float], *, title: str, subtitle: str | None = None) -> Figure:
    """Tokens an update as a bar on a log axis, under dots for published runs: {run: tokens an update}."""
    fig, ax = new_figure(title, subtitle, height=58 + 24 * len(published))
    ax.set_xscale("log")
    low, high = 1e2, 1e11
    rows = len(published)
    for place, (name, size) in enumerate(published.items()):
        ax.plot([low, size], [place, place], color=COLORS["rule"], linewidth=1.0)
        ax.plot(size, place, "o", color=COLORS["grey"], markersize=7)
        if size > tokens:  # where its own line would cross the end of the bar
            ax.plot([tokens, tokens], [place - 0.22, place + 0.22], color=COLORS["blue"], linewidth=1.6)
        ax.annotate(
            name,
            (size, place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            size=9.5,
            color=COLORS["ink"],
            bbox={"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1.0},
        )
    ax.barh(rows, tokens, height=0.55, color=COLORS["blue"])
    right = tokens < 1e8
    ax.annotate(
        "yours",
        (tokens, rows),
        xytext=(9 if right else -9, 0),
        textcoords="offset points",
        ha="left" if right else "right",
        va="center",
        size=9.5,
        weight="bold",
        color=ink(COLORS["blue"]) if right else COLORS["paper"],
    )
    ax.set_yticks([])
    ax.set_ylim(rows + 0.6, -0.6)
    ax.set_xlim(low, high)
    ax.set_xticks([10.0**k for k in range(3, 12, 2)], ["1,000", "100,000", "10 million", "1 billion", "100 billion"])
    ax.minorticks_off()
    ax.grid(False)
    ax.set_xlabel("tokens an update")
    return fig
