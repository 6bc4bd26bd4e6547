"""A picture and the sentence under it."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from IPython.display import display

from course_lib.figures.style import close, png, title_of
from course_lib.widgets.faces import caption_html, display_html, in_notebook

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["show"]


def show(fig: Figure, caption: str, alt: str | None = None) -> None:
    """Display a figure as PNG, 800 px wide and sharp, then its caption: one sentence that says what it shows.

    `alt` says the same to those who read the file as text; by default the figure's title. The same figure gives the
    same bytes. The figure is closed: a pyplot figure is not displayed a second time.
    """
    picture = png(fig)
    text = f"[picture] {alt or title_of(fig) or caption}"
    if in_notebook():
        size = {"width": picture.width, "height": picture.height}
        data = base64.b64encode(picture.data).decode("ascii")
        display({"image/png": data, "text/plain": text}, metadata={"image/png": size}, raw=True)
    else:
        print(text)
    close(fig)
    display_html(caption_html(caption), caption)
