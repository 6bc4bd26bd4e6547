"""What is written in a picture: names at lines, remarks, keys, and the big numbers under it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course_lib.figures.colors import COLORS, ink
from course_lib.figures.layout import EDGE, WIDTH, layout_of, place, text_width

__all__ = ["end_labels", "key", "label_line", "note", "numbers", "panel_title"]

_TEXT, _HEAD, _SMALL, _NUMBER = 9.5, 10.0, 9.0, 16.0  # points


def panel_title(ax: Axes, text: str) -> None:
    """A small bold title over one panel, at its left."""
    ax.set_title(text, loc="left", size=_HEAD, weight="bold", color=COLORS["ink"], pad=8)


def label_line(
    ax: Axes, line: Line2D, text: str, *, at: float | None = None, offset: tuple[float, float] = (0, 7)
) -> None:
    """Write `text` at the point of `line` where x is nearest `at` (default: its middle), in the line's own hue.

    `offset` is in points from that point. For labels at the right end take `end_labels`.
    """
    x, y = _points(line)
    index = len(x) // 2 if at is None else int(np.argmin(np.abs(x - at)))
    ax.annotate(
        text,
        (x[index], y[index]),
        xytext=offset,
        textcoords="offset points",
        ha="center",
        va="center",
        size=_TEXT,
        color=ink(to_hex(line.get_color())),
    )


def end_labels(ax: Axes, labelled: Iterable[tuple[Line2D, str]]) -> None:
    """Write each line's name at its right end, in its own hue. Names that would overlap move apart in `png`."""
    placed = layout_of(_figure(ax)).ends.setdefault(ax, [])
    for line, text in labelled:
        x, y = _points(line)
        placed.append(
            ax.annotate(
                text,
                (x[-1], y[-1]),
                xytext=(7, 0),
                textcoords="offset points",
                ha="left",
                va="center",
                size=_TEXT,
                color=ink(to_hex(line.get_color())),
                annotation_clip=False,
            )
        )


def note(
    ax: Axes, text: str, xy: tuple[float, float], *, offset: tuple[float, float] = (24, 18), color: str = "muted"
) -> None:
    """A remark with a thin arrow to the data point `xy`; `offset` of the text in points."""
    shade = ink(COLORS.get(color, color))
    ax.annotate(
        text,
        xy,
        xytext=offset,
        textcoords="offset points",
        size=_TEXT,
        color=shade,
        ha="left" if offset[0] > 0 else "right" if offset[0] < 0 else "center",
        va="center",
        arrowprops={"arrowstyle": "-|>", "color": shade, "linewidth": 1.0, "shrinkA": 2, "shrinkB": 4},
    )


def key(ax: Axes, entries: Iterable[tuple[str, str] | tuple[str, str, str]]) -> None:
    """Small squares with names over the axes, at the right: (name, colour), or with the colour of the square's edge.

    For where direct labels have no room.
    """
    patches = [
        Patch(
            facecolor=COLORS.get(color, color), edgecolor=COLORS[edge[0]] if edge else None, linewidth=0.6, label=name
        )
        for name, color, *edge in entries
    ]
    legend = ax.legend(
        handles=patches,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=len(patches),
        frameon=False,
        fontsize=_SMALL,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.2,
        borderaxespad=0.2,
    )
    for text in legend.get_texts():
        text.set_color(COLORS["ink"])


def numbers(fig: Figure, row: Iterable[tuple[str, str] | tuple[str, str, str]]) -> None:
    """A row of big numbers under the plot, each with what it is: (value, label) or (value, label, colour).

    Columns are equally wide where that fits, else as wide as their text; a row too wide for that is written smaller.
    """
    layout = layout_of(fig)
    entries = [(value, label, rest[0] if rest else "ink") for value, label, *rest in row]
    layout.footer = 66
    layout.footings.clear()
    wanted = [
        max(text_width(fig, value, _NUMBER, "bold"), text_width(fig, label, _SMALL, "normal")) + EDGE
        for value, label, _ in entries
    ]
    room = WIDTH - EDGE
    shrink = min(1.0, room / max(sum(wanted), 1))
    steps = [room / len(entries)] * len(entries)
    if any(want > step for want, step in zip(wanted, steps, strict=True)):
        spare = max(0.0, room - sum(wanted)) / len(entries)
        steps = [want * shrink + spare for want in wanted]
    left = float(EDGE)
    for (value, label, color), step in zip(entries, steps, strict=True):
        shade = ink(COLORS.get(color, color))
        big, small = (
            fig.text(left / WIDTH, 0, text, size=size * shrink, weight=weight, color=tone, in_layout=False)
            for text, size, weight, tone in (
                (value, _NUMBER, "bold", shade),
                (label, _SMALL, "normal", COLORS["muted"]),
            )
        )
        for text in (big, small):
            text.set_parse_math(False)
        layout.footings += [(big, EDGE + 24), (small, EDGE + 4)]
        left += step
    place(fig)


def _figure(ax: Axes) -> Figure:
    fig = ax.get_figure(root=True)
    assert fig is not None
    return fig


def _points(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]
