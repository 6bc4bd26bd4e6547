"""The one look of every picture: the finding as title, few colours that always mean the same, labels beside the lines.

A picture is a `matplotlib.figure.Figure` that belongs to nobody's global state. It is 800 px wide at 100 dpi, so that
one point is 1.39 px; `png` renders it at a multiple of that. Use it like this::

    fig, ax = new_figure("The loss stops at the noise", "Each curve is one kind of token.", height=300)
    lines = [ax.plot(steps, loss, **series(i))[0] for i, loss in enumerate(losses)]
    end_labels(ax, zip(lines, names))
    numbers(fig, [("1.39", "nats a token, grammar"), ("0", "nats a token, facts")])
"""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Annotation, Text

__all__ = [
    "COLORS",
    "WIDTH",
    "Picture",
    "close",
    "contrast",
    "end_labels",
    "ink",
    "key",
    "label_line",
    "new_figure",
    "new_panels",
    "note",
    "numbers",
    "panel_title",
    "png",
    "series",
    "style_axes",
    "text_on",
    "tint",
    "title_of",
]

WIDTH = 800
"""Width of every picture in px at 100 dpi."""

_DPI = 100
_EDGE = 16  # px between the border of the picture and anything drawn
_TITLE, _SUBTITLE, _TEXT, _SMALL, _NUMBER = 14.0, 10.0, 9.5, 9.0, 16.0  # points

COLORS: dict[str, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight": "#009E73",
    "optimizer": "#CC79A7",
    "communication": "#D55E00",
    "idle": "#ECECEC",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "grey": "#9A9A9A",
    "ink": "#1A1A1A",
    "muted": "#5F6368",
    "rule": "#C8C8C8",
    "paper": "#FFFFFF",
}
"""Colour by meaning (forward, backward, weight gradient, optimizer, communication, idle) and by name (Okabe-Ito)."""

_SERIES = [
    ("blue", "-"),
    ("vermilion", (0, (5, 1.5))),
    ("green", (0, (1.2, 1.2))),
    ("purple", (0, (5, 1.5, 1.2, 1.5))),
    ("orange", (0, (8, 2))),
    ("ink", (0, (3, 1, 1, 1, 1, 1))),
]


def series(index: int) -> dict[str, Any]:
    """Keyword arguments of `ax.plot` for the index-th curve: a colour, and dashes that greyscale tells apart."""
    name, dashes = _SERIES[index % len(_SERIES)]
    return {"color": COLORS[name], "linestyle": dashes, "linewidth": 2.0}


# ---------------------------------------------------------------------------------------------------------- colours


def _luminance(color: str) -> float:
    rgb = np.asarray(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as the Web Content Accessibility Guidelines 2 define it."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def text_on(color: str) -> str:
    """The colour for text on a filled shape: near-black or white, whichever is easier to read."""
    return max((COLORS["ink"], COLORS["paper"]), key=lambda text: contrast(text, color))


def ink(color: str, background: str = "#FFFFFF") -> str:
    """The same hue, darkened until text in it reads well on the background (contrast at least 4.5)."""
    rgb = np.asarray(to_rgb(color))
    for share in np.linspace(1.0, 0.0, 41):
        candidate = to_hex(tuple(rgb * share))
        if contrast(candidate, background) >= 4.5:
            return candidate
    return COLORS["ink"]


def tint(color: str, share: float = 0.25) -> str:
    """A pale version for backgrounds: `share` of the colour, the rest white."""
    return to_hex(tuple(1 - share * (1 - np.asarray(to_rgb(color)))))


# ----------------------------------------------------------------------------------------------------------- layout


@dataclass
class _Layout:
    """Heights in px of what stands around the axes, and what has to be arranged before rendering."""

    body: float
    header: float
    title: str = ""
    footer: float = 0.0
    headings: list[tuple[Text, float]] = field(default_factory=list)  # text, px from the top
    footings: list[tuple[Text, float]] = field(default_factory=list)  # text, px from the bottom
    ends: dict[Axes, list[Annotation]] = field(default_factory=dict)


_LAYOUTS: WeakKeyDictionary[Figure, _Layout] = WeakKeyDictionary()


def new_figure(title: str, subtitle: str | None = None, *, height: int = 280) -> tuple[Figure, Axes]:
    """A picture with one set of axes. `title` states the finding; `subtitle` says what was measured.

    `height` is that of the plot with its labels, in px; title and `numbers` come on top. Margins fit themselves.
    """
    fig, axes = new_panels(title, subtitle, height=height, cols=1)
    return fig, axes[0]


def new_panels(
    title: str,
    subtitle: str | None = None,
    *,
    height: int = 280,
    cols: int = 2,
    rows: int = 1,
    share_y: bool = False,
    share_x: bool = False,
    width_ratios: Sequence[float] | None = None,
    height_ratios: Sequence[float] | None = None,
) -> tuple[Figure, list[Axes]]:
    """Like `new_figure` with rows x cols sets of axes, row by row."""
    fig = Figure(figsize=(WIDTH / _DPI, 1), dpi=_DPI, facecolor=COLORS["paper"])
    FigureCanvasAgg(fig)
    layout = _LAYOUTS[fig] = _Layout(body=height, header=_EDGE, title=title)
    for text, size, weight, color, leading, after in (
        (title, _TITLE, "bold", COLORS["ink"], 23, 3),
        (subtitle or "", _SUBTITLE, "normal", COLORS["muted"], 18, 6),
    ):
        for line in _wrap(fig, text, size, weight):
            artist = fig.text(_EDGE / WIDTH, 1, line, size=size, weight=weight, color=color, va="top", in_layout=False)
            artist.set_parse_math(False)
            layout.headings.append((artist, layout.header))
            layout.header += leading
        layout.header += after if text else 0
    grid = fig.subplots(
        rows,
        cols,
        squeeze=False,
        sharex=share_x,
        sharey=share_y,
        width_ratios=width_ratios,
        height_ratios=height_ratios,
    )
    axes = [ax for row in grid for ax in row]
    for ax in axes:
        style_axes(ax)
    _place(fig)
    return fig, axes


def _width(fig: Figure, text: str, size: float, weight: str) -> float:
    renderer = FigureCanvasAgg.get_renderer(fig.canvas)  # type: ignore[arg-type]
    return float(renderer.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)[0])


def _wrap(fig: Figure, text: str, size: float, weight: str) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and _width(fig, joined, size, weight) <= WIDTH - 2 * _EDGE:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def _place(fig: Figure) -> None:
    layout = _LAYOUTS[fig]
    total = layout.header + layout.body + layout.footer + _EDGE
    fig.set_size_inches(WIDTH / _DPI, total / _DPI)
    for text, top in layout.headings:
        text.set_y(1 - top / total)
    for text, bottom in layout.footings:
        text.set_y(bottom / total)
    edge = _EDGE / WIDTH
    rect = (edge, (layout.footer + _EDGE) / total, 1 - 2 * edge, layout.body / total)
    fig.set_layout_engine("constrained", rect=rect, w_pad=0, h_pad=0.02, wspace=0.06, hspace=0.08)


def style_axes(ax: Axes, *, grid: str = "y") -> Axes:
    """Plain axes: no box, a faint grid along `grid` ("x", "y", "both" or ""), small grey ticks."""
    ax.set_facecolor(COLORS["paper"])
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color(COLORS["rule"])
    ax.tick_params(length=0, labelsize=_SMALL, labelcolor=COLORS["muted"], pad=5)
    ax.tick_params(which="minor", length=0, labelsize=_SMALL, labelcolor=COLORS["muted"])
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set_fontsize(_TEXT)
        label.set_color(COLORS["muted"])
    ax.grid(False)
    if grid:
        ax.grid(True, axis=grid, color="#E4E4E4", linewidth=0.8)  # type: ignore[arg-type]
    ax.set_axisbelow(True)
    ax.margins(x=0.01)
    return ax


def panel_title(ax: Axes, text: str) -> None:
    """A small bold title over one panel, at its left."""
    ax.set_title(text, loc="left", size=_SUBTITLE, weight="bold", color=COLORS["ink"], pad=8)


# ----------------------------------------------------------------------------------------------------------- labels


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
    placed = _LAYOUTS[_figure(ax)].ends.setdefault(ax, [])
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


def key(ax: Axes, entries: Iterable[tuple[str, str]]) -> None:
    """Small squares with names over the axes, at the right: (name, colour). For where direct labels have no room."""
    patches = [Patch(facecolor=COLORS.get(color, color), label=name) for name, color in entries]
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
    """A row of big numbers under the plot, each with what it is: (value, label) or (value, label, colour)."""
    layout = _LAYOUTS[fig]
    entries = [(value, label, rest[0] if rest else "ink") for value, label, *rest in row]
    layout.footer = 66
    layout.footings.clear()
    step = (WIDTH - 2 * _EDGE) / max(len(entries), 1)
    for index, (value, label, color) in enumerate(entries):
        x = (_EDGE + index * step) / WIDTH
        shade = ink(COLORS.get(color, color))
        big = fig.text(x, 0, value, size=_NUMBER, weight="bold", color=shade, va="baseline", in_layout=False)
        small = fig.text(x, 0, label, size=_SMALL, color=COLORS["muted"], va="baseline", in_layout=False)
        for text in (big, small):
            text.set_parse_math(False)
        layout.footings += [(big, _EDGE + 24), (small, _EDGE + 4)]
    _place(fig)


def _figure(ax: Axes) -> Figure:
    fig = ax.get_figure(root=True)
    assert fig is not None
    return fig


def _points(line: Line2D) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    finite = np.isfinite(x) & np.isfinite(y)
    return x[finite], y[finite]


def _spread(positions: np.ndarray, gap: float, low: float, high: float) -> np.ndarray:
    """Move sorted positions apart to at least `gap`, inside low..high: groups that touch share their mean shift."""
    groups: list[list[float]] = []  # [sum of (position - own offset in the group), count]
    for position in positions:
        groups.append([float(position), 1])
        while len(groups) > 1 and _top(groups[-2], gap) + gap > _bottom(groups[-1]):
            total, count = groups.pop()
            groups[-1][0] += total - count * groups[-1][1] * gap
            groups[-1][1] += count
    out = np.array([_bottom(group) + index * gap for group in groups for index in range(int(group[1]))])
    steps = gap * np.arange(len(out))
    out = np.minimum(out, high - steps[::-1])
    return np.maximum(out, low + steps)


def _bottom(group: list[float]) -> float:
    return group[0] / group[1]


def _top(group: list[float], gap: float) -> float:
    return group[0] / group[1] + (group[1] - 1) * gap


def _arrange(fig: Figure) -> None:
    """Lay the figure out once, and then move the labels at the ends of lines apart."""
    layout = _LAYOUTS.get(fig)
    if layout is None:
        return
    _place(fig)
    for label in itertools.chain.from_iterable(layout.ends.values()):
        label.set_position((7, 0))
    for ax in fig.axes:  # start where the first layout started: the same figure gives the same bytes again
        spec = ax.get_subplotspec()
        if spec is not None:
            ax.set_position(spec.get_position(fig))
            ax.set_in_layout(True)
    engine = fig.get_layout_engine()
    assert engine is not None
    engine.execute(fig)
    fig.set_layout_engine("none")
    px = fig.dpi / _DPI
    for ax, labels in layout.ends.items():
        at = np.array([ax.transData.transform(ax.convert_xunits(label.xy))[1] for label in labels])
        order = np.argsort(at, kind="stable")
        moved = np.empty_like(at)
        moved[order] = _spread(at[order], gap=15.5 * px, low=ax.bbox.y0 + 7 * px, high=ax.bbox.y1)
        for label, shift in zip(labels, moved - at, strict=True):
            label.set_position((7, shift * 72 / fig.dpi))


# -------------------------------------------------------------------------------------------------------- rendering


@dataclass(frozen=True)
class Picture:
    """A rendered picture: PNG bytes, and the size in px at which it is meant to be seen."""

    data: bytes
    width: int
    height: int


def png(fig: Figure, *, scale: float = 2.0, colors: int | None = 128) -> Picture:
    """Render a figure: `scale` device px per px (2 is crisp on every screen), at most `colors` colours (None: all).

    The same figure gives the same bytes: no time, no software name.
    """
    from PIL import Image

    _arrange(fig)
    canvas = FigureCanvasAgg(fig)
    width, height = (round(inches * _DPI) for inches in fig.get_size_inches())
    before = fig.dpi
    try:
        fig.set_dpi(_DPI * scale)
        canvas.draw()
        image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    finally:
        fig.set_dpi(before)
    if colors:
        image = image.quantize(colors, method=Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
    out = io.BytesIO()
    image.save(out, format="PNG", optimize=bool(colors))
    return Picture(out.getvalue(), width, height)


def title_of(fig: Figure) -> str:
    """The title that the figure was made with; empty for figures from elsewhere."""
    layout = _LAYOUTS.get(fig)
    return layout.title if layout else ""


def close(fig: Figure) -> None:
    """Forget a figure that pyplot may hold, so that a notebook does not display it once more."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is not None:
        pyplot.close(fig)
