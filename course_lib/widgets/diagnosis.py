"""The diagnosis table, searchable: what is typed leaves the rows that have all of its words.

CSS classes: `course-diagnosis` (the whole), `course-diagnosis-title`, `course-diagnosis-search` (the field),
`course-diagnosis-count`, `course-diagnosis-rows` (the table), `course-diagnosis-caption`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import ipywidgets

from course_lib.widgets.faces import Shown, caption_html, rich, show_faces, styles

if TYPE_CHECKING:
    from course_lib.failures.diagnosis import Row

__all__ = ["Diagnosis", "diagnosis_table"]

TITLE = "From a symptom to its causes"
CAPTION = (
    "Each row: a symptom, its causes in the order of suspicion, the cheap check, what mends it and what not to do."
)
_HEAD = ("symptom", "causes, in this order", "the cheap check", "what mends it; what not to do")


class Diagnosis(Shown):
    """The table on the page. `search(text)` filters as typing does; `rows` are those that are left."""

    def __init__(self) -> None:
        from course_lib.failures.diagnosis import table

        self.all: tuple[Row, ...] = tuple(table())
        self.rows = self.all
        self._cells = [_cells(row) for row in self.all]
        self._plain = [" ".join(cells).casefold() for cells in self._cells]
        self.widget = self._build()
        self._put("")

    def search(self, text: str) -> None:
        """Leave the rows that hold every word of the text, in any order; "" brings all back."""
        self._field.value = text

    def _build(self) -> ipywidgets.VBox:
        title = ipywidgets.HTML(f'<div class="course-title course-diagnosis-title">{TITLE}</div>')
        self._field = ipywidgets.Text(description="Search", placeholder="loss nan, slow, resume ...")
        self._field.style.description_width = "initial"
        self._field.layout.width = "100%"
        self._field.layout.max_width = "420px"
        self._field.add_class("course-diagnosis-search")
        self._field.observe(lambda change: self._put(change["new"]), names="value")
        self._count, self._table = ipywidgets.HTML(), ipywidgets.HTML()
        self._count.add_class("course-diagnosis-count")
        self._table.add_class("course-diagnosis-rows")
        caption = ipywidgets.HTML(caption_html(CAPTION))
        caption.add_class("course-diagnosis-caption")
        box = ipywidgets.VBox([styles(), title, self._field, self._count, self._table, caption])
        for name in ("course-widget", "course-diagnosis"):
            box.add_class(name)
        return box

    def _put(self, text: str) -> None:
        words = text.casefold().split()
        left = [at for at, plain in enumerate(self._plain) if all(word in plain for word in words)]
        self.rows = tuple(self.all[at] for at in left)
        said = f"{len(left)} of {len(self.all)} rows" if words else f"{len(self.all)} rows"
        if not left:
            said = "No row has all of these words: fewer or shorter ones find more"
        self._count.value = f'<div role="status" class="course-muted">{said}.</div>'
        self._table.value = _table([self._cells[at] for at in left], words) if left else ""

    def _show(self) -> None:
        face = (
            f'<div class="course-diagnosis course-static"><p><b>{TITLE}</b></p>{_table(self._cells, ())}'
            f"{caption_html(CAPTION)}<p><i>Run this cell to search in it.</i></p></div>"
        )
        text = "\n".join("; ".join(cells) for cells in self._cells)
        show_faces(self.widget, face, f"{TITLE}\n{text}")


def _cells(row: Row) -> tuple[str, ...]:
    """The row's four cells as text; a line break stands between paragraphs."""
    causes = "\n".join(f"**{cause.category}**: {cause.text}" for cause in row.causes)
    return f"**{row.symptom}**\n{row.look}", causes, row.check, f"{row.fix}\n**Not:** {row.never}"


def _table(rows: Sequence[tuple[str, ...]], words: Sequence[str]) -> str:
    style = 'style="text-align: left; vertical-align: top; white-space: normal"'
    head = "".join(f'<th scope="col" {style}>{text}</th>' for text in _HEAD)
    body = ""
    for cells in rows:
        body += "<tr>" + "".join(f"<td {style}>{_cell(text, words)}</td>" for text in cells) + "</tr>"
    return f'<table class="course-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str, words: Sequence[str]) -> str:
    lines = [rich(line) for line in text.split("\n") if line]
    if words:
        found = re.compile("|".join(re.escape(html.escape(word, quote=False)) for word in words), re.IGNORECASE)
        lines = [
            re.sub(r"(^|>)([^<]+)", lambda part: part[1] + found.sub(r"<mark>\g<0></mark>", part[2]), line)
            for line in lines
        ]
    return "".join(f"<div>{line}</div>" for line in lines)


def diagnosis_table() -> Any:
    """Display the diagnosis table with a search field: typing leaves the rows that have all of its words."""
    made = Diagnosis()
    made.display()
    return made
