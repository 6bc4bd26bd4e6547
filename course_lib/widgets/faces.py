"""One output, two faces: what a widget shows while its kernel runs, and what the page shows without one.

JupyterLab draws the live view (`application/vnd.jupyter.widget-view+json`) in a trusted cell and falls back on
`text/html` in a notebook that nobody has run yet, which is what every fresh clone is. There it keeps `<img>` with a
data URI, classes and simple inline styles, and drops `<svg>`, `<style>` and scripts.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

import ipywidgets
from IPython import get_ipython
from IPython.display import display

from course_lib.figures.style import Picture

__all__ = [
    "Shown",
    "caption_html",
    "display_html",
    "image_html",
    "in_notebook",
    "numbers_html",
    "rich",
    "show_faces",
    "styles",
]

_CSS = resources.files("course_lib.widgets").joinpath("style.css").read_text(encoding="utf-8")


# Run by the style sheet's load event. ipywidgets gives sliders and groups of buttons no accessible name: it copies the
# seen one. And JupyterLab takes the arrow keys of a drop-down list to move between cells: it keeps them in the list.
_NAMES = """
const name = () => document.querySelectorAll('.course-widget .widget-label').forEach(label => {
  const text = label.innerText.trim(), box = label.parentElement;
  if (!text) return;
  box.querySelectorAll('[role=slider]').forEach(handle => handle.setAttribute('aria-label', text));
  box.querySelectorAll('.widget-readout').forEach(field => {
    field.setAttribute('role', 'textbox'); field.setAttribute('aria-label', text + ', typed'); });
  box.querySelectorAll(':scope > div:has(> button, > label)').forEach(group => {
    group.setAttribute('role', 'group'); group.setAttribute('aria-label', text); });
  box.querySelectorAll('select').forEach(list => { list.onkeydown = event => event.stopPropagation(); });
});
for (const wait of [50, 500, 2000]) setTimeout(name, wait);
"""


def styles() -> ipywidgets.HTML:
    """A widget without height that carries the style sheet of every widget of the course."""
    sheet = f'<style onload="{html.escape(_NAMES)}">{_CSS}</style>'
    return ipywidgets.HTML(sheet, layout={"display": "block", "height": "0px", "margin": "0"})


def rich(text: str) -> str:
    """Escape text for HTML; `code` between backticks becomes code, **bold** bold."""
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    return re.sub(r"\*\*([^*]+)\*\*", r"<b>\1</b>", escaped)


def image_html(picture: Picture, alt: str) -> str:
    """An `<img>` of a picture, with its alternative text."""
    data = base64.b64encode(picture.data).decode("ascii")
    return (
        f'<img class="course-picture" src="data:image/png;base64,{data}" alt="{html.escape(alt)}" '
        f'width="{picture.width}" height="{picture.height}" style="max-width: 100%; height: auto">'
    )


def caption_html(caption: str) -> str:
    """The line under a picture."""
    style = "max-width: 770px; margin: 2px 0 14px 0; padding-left: 16px; color: var(--jp-content-font-color2, #5f6368)"
    return f'<p class="course-caption" style="{style}">{rich(caption)}</p>'


def numbers_html(row: Sequence[tuple[str, str]]) -> str:
    """A row of big numbers, each over what it is."""
    cells = "".join(
        f'<div class="course-number"><b>{rich(value)}</b><span>{rich(label)}</span></div>' for value, label in row
    )
    return f'<div class="course-numbers">{cells}</div>' if row else ""


def in_notebook() -> bool:
    """Whether this Python is a notebook's kernel (a terminal IPython is not)."""
    return hasattr(get_ipython(), "kernel")


def display_html(face: str, text: str) -> None:
    """Show HTML in a notebook; where there is none, print the text."""
    if in_notebook():
        display({"text/html": face, "text/plain": text}, raw=True)
    else:
        print(text)


def show_faces(widget: ipywidgets.Widget, face: str, text: str) -> None:
    """Display a widget as one output: the live view, `face` where it cannot live, `text` where there is no HTML."""
    view = {"version_major": 2, "version_minor": 0, "model_id": widget.model_id}
    bundle: dict[str, Any] = {"application/vnd.jupyter.widget-view+json": view, "text/html": face, "text/plain": text}
    if in_notebook():
        display(bundle, raw=True)
    else:
        print(text)


class Shown:
    """Base of what displays itself when made: as the last line of the same cell it is not displayed twice."""

    _shown_in: int | None = None

    def display(self) -> None:
        """Display it here."""
        shell = get_ipython()
        self._shown_in = shell.execution_count if shell is not None else None
        self._show()

    def _show(self) -> None:
        raise NotImplementedError

    def _ipython_display_(self) -> None:
        shell = get_ipython()
        if shell is None or shell.execution_count != self._shown_in:
            self.display()
