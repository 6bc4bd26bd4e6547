"""The one look of every picture: the finding as title, few colours that always mean the same, labels beside the lines.

A picture is a `matplotlib.figure.Figure` that belongs to nobody's global state. It is 800 px wide at 100 dpi, so that
one point is 1.39 px; `png` renders it at a multiple of that. Use it like this::

    fig, ax = new_figure("The loss stops at the noise", "Each curve is one kind of token.", height=300)
    lines = [ax.plot(steps, loss, **series(i))[0] for i, loss in enumerate(losses)]
    end_labels(ax, zip(lines, names))
    numbers(fig, [("1.39", "nats a token, grammar"), ("0", "nats a token, facts")])
"""

from course_lib.figures.colors import COLORS, contrast, ink, series, text_on, tint
from course_lib.figures.labels import end_labels, key, label_line, note, numbers, panel_title
from course_lib.figures.layout import (
    WIDTH,
    Picture,
    close,
    new_figure,
    new_panels,
    png,
    style_axes,
    title_of,
)

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
