"""Where things stand in a picture: title and subtitle over the axes, numbers under them; and its PNG."""

from __future__ import annotations

import io
import itertools
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Annotation, Text

from course_lib.figures.colors import COLORS

__all__ = [
    "EDGE",
    "WIDTH",
    "Layout",
    "Picture",
    "close",
    "layout_of",
    "new_figure",
    "new_panels",
    "place",
    "png",
    "style_axes",
    "text_width",
    "title_of",
]

WIDTH = 800
"""Width of every picture in px at 100 dpi."""

_DPI = 100
EDGE = 16
"""px between the border of a picture and anything in it."""
_TITLE, _SUBTITLE, _TEXT, _SMALL = 14.0, 10.0, 9.5, 9.0  # points


@dataclass
class Layout:
    """Heights in px of what stands around the axes, and what has to be arranged before rendering."""

    body: float
    header: float
    title: str = ""
    footer: float = 0.0
    headings: list[tuple[Text, float]] = field(default_factory=list)  # text, px from the top
    footings: list[tuple[Text, float]] = field(default_factory=list)  # text, px from the bottom
    ends: dict[Axes, list[Annotation]] = field(default_factory=dict)


_LAYOUTS: WeakKeyDictionary[Figure, Layout] = WeakKeyDictionary()


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
    layout = _LAYOUTS[fig] = Layout(body=height, header=EDGE, title=title)
    for text, size, weight, color, leading, after in (
        (title, _TITLE, "bold", COLORS["ink"], 23, 3),
        (subtitle or "", _SUBTITLE, "normal", COLORS["muted"], 18, 6),
    ):
        for line in _wrap(fig, text, size, weight):
            artist = fig.text(EDGE / WIDTH, 1, line, size=size, weight=weight, color=color, va="top", in_layout=False)
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
    place(fig)
    return fig, axes


def text_width(fig: Figure, text: str, size: float, weight: str) -> float:
    """Width in px at 100 dpi of one line of text; `size` in points."""
    renderer = FigureCanvasAgg.get_renderer(fig.canvas)  # type: ignore[arg-type]
    return float(renderer.get_text_width_height_descent(text, FontProperties(size=size, weight=weight), False)[0])


def _wrap(fig: Figure, text: str, size: float, weight: str) -> list[str]:
    lines: list[str] = []
    for word in text.split():
        joined = f"{lines[-1]} {word}" if lines else word
        if lines and text_width(fig, joined, size, weight) <= WIDTH - 2 * EDGE:
            lines[-1] = joined
        else:
            lines.append(word)
    return lines


def layout_of(fig: Figure) -> Layout:
    """The layout of a figure that `new_figure` or `new_panels` made; KeyError for others."""
    return _LAYOUTS[fig]


def place(fig: Figure) -> None:
    """Set the height and put header, axes and footer in their places; margins follow when it is rendered."""
    layout = _LAYOUTS[fig]
    total = layout.header + layout.body + layout.footer + EDGE
    fig.set_size_inches(WIDTH / _DPI, total / _DPI)
    for text, top in layout.headings:
        text.set_y(1 - top / total)
    for text, bottom in layout.footings:
        text.set_y(bottom / total)
    edge = EDGE / WIDTH
    rect = (edge, (layout.footer + EDGE) / total, 1 - 2 * edge, layout.body / total)
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
    return np.asarray(np.maximum(out, low + steps))


def _bottom(group: list[float]) -> float:
    return group[0] / group[1]


def _top(group: list[float], gap: float) -> float:
    return group[0] / group[1] + (group[1] - 1) * gap


def _arrange(fig: Figure) -> None:
    """Lay the figure out once, and then move the labels at the ends of lines apart."""
    layout = _LAYOUTS.get(fig)
    if layout is None:
        return
    place(fig)
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


@dataclass(frozen=True)
class Picture:
    """A rendered picture: PNG bytes, and the size in px at which it is meant to be seen."""

    data: bytes
    width: int
    height: int


def png(fig: Figure, *, scale: float = 2.0, colors: int | None = 128) -> Picture:
    """Render a figure: `scale` device px per px (2 is crisp on every screen), at most `colors` colours (None: all).

    The same figure gives the same picture, but for a pixel at a line's edge: no time, no software name in it.
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
