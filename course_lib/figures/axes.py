"""The closing table as a picture: what each way of splitting keeps on a rank, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.figures.style import COLORS, new_panels, numbers, panel_title, tint

__all__ = ["axes"]

AXIS_COLORS = {
    "all-reduce": COLORS["communication"],
    "reduce-scatter": COLORS["backward"],
    "all-gather": COLORS["forward"],
    "send": COLORS["weight"],
    "all-to-all": COLORS["optimizer"],
}
"""Colour of each collective in `axes`; what is not here is grey."""


def axes(
    rows: Sequence[tuple[str, float, float, Mapping[str, float], float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """The closing table. Left: bytes a parameter, at rest and on top of it at the peak. Right: MB sent, by collective.

    rows: (name, state, peak, {collective: bytes sent}, bytes sent with twice the tokens); the last is a mark.
    """
    fig, (left, right) = new_panels(title, subtitle, height=110 + 30 * len(rows), cols=2, width_ratios=[1, 1.15])
    for place, (_, state, peak, sent, more) in enumerate(rows):
        left.barh(place, peak, height=0.62, color=tint(COLORS["forward"], 0.3))
        left.barh(place, state, height=0.62, color=COLORS["forward"])
        _at_end(left, peak, place, f"{state:.1f}, {peak:.1f}")
        start = 0.0
        for kind, size in sent.items():
            color = AXIS_COLORS.get(kind, COLORS["grey"])
            right.barh(
                place, size / 1e6, left=start, height=0.62, color=color, edgecolor=COLORS["paper"], linewidth=0.6
            )
            start += size / 1e6
        right.plot([more / 1e6] * 2, [place - 0.4, place + 0.4], color=COLORS["ink"], linewidth=2.2, zorder=4)
        _at_end(right, max(start, more / 1e6), place, f"{start:.1f}, {more / 1e6:.1f}")
    for ax, longest in ((left, max(entry[2] for entry in rows)), (right, _longest(rows))):
        ax.set_xlim(0, longest * 1.25)
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xticks([])
        ax.spines["bottom"].set_visible(False)
        ax.grid(False)
    left.set_yticks(range(len(rows)), [name for name, *_ in rows])
    left.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    right.set_yticks([])
    panel_title(left, "bytes a parameter: state, peak")
    panel_title(right, "MB sent; with twice the tokens")
    used = {kind for entry in rows for kind, size in entry[3].items() if size > 0.002 * 1e6 * _longest(rows)}
    _key_under(right, [(kind, color) for kind, color in AXIS_COLORS.items() if kind in used])
    if row:
        numbers(fig, row)
    return fig


def _longest(rows: Sequence[tuple[str, float, float, Mapping[str, float], float]]) -> float:
    return max(max(sum(sent.values()), more) for *_, sent, more in rows) / 1e6


def _at_end(ax: Axes, x: float, y: float, text: str) -> None:
    ax.annotate(text, (x, y), xytext=(7, 0), textcoords="offset points", va="center", size=9, color=COLORS["ink"])


def _key_under(ax: Axes, entries: Sequence[tuple[str, str]]) -> None:
    legend = ax.legend(
        handles=[Patch(facecolor=color, label=name) for name, color in entries],
        loc="upper right",
        bbox_to_anchor=(1.0, 0.0),
        ncols=3,
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.2,
    )
    for text in legend.get_texts():
        text.set_color(COLORS["ink"])
