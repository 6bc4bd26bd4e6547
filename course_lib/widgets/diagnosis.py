"""The diagnosis table, searchable: what is typed leaves the rows with all of it, each at the start of a word.

CSS classes: `course-diagnosis` (the whole), `course-diagnosis-title`, `course-diagnosis-search` (the field),
`course-diagnosis-count`, `course-diagnosis-rows` (the table), `course-diagnosis-caption`.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
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
_WIDTHS = (25, 32, 19, 24)


class Diagnosis(Shown):
    """The table on the page. `search(text)` filters as typing does; `rows` are those that are left."""

    def __init__(self) -> None:
        from course_lib.failures import diagnosis, incidents

        self._search = diagnosis.search
        self.rows = self._all = diagnosis.search("")
        titles = {name: one.title for name, one in incidents.INCIDENTS.items()}
        self._cells = {row.symptom: _cells(row, titles) for row in self._all}
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
        self.rows = self._search(text)
        count, words = len(self._all), text.split()
        said = f"{len(self.rows)} of {count} rows" if words else f"{count} rows"
        if not self.rows:
            said = "No row has all of these words: fewer or shorter ones find more"
        self._count.value = f'<div role="status" class="course-muted">{said}.</div>'
        self._table.value = self._html(words) if self.rows else ""

    def _html(self, words: Sequence[str]) -> str:
        table = _table([self._cells[row.symptom] for row in self.rows], words)
        return f'<div class="course-scroll" role="region" aria-label="{TITLE}" tabindex="0">{table}</div>'

    def _show(self) -> None:
        face = (
            f'<div class="course-diagnosis course-static"><p><b>{TITLE}</b></p>{_table(list(self._cells.values()), ())}'
            f"{caption_html(CAPTION)}<p><i>Run this cell to search in it.</i></p></div>"
        )
        text = "\n".join("; ".join(cells) for cells in self._cells.values())
        show_faces(self.widget, face, f"{TITLE}\n{text}")


def _cells(row: Row, titles: Mapping[str, str]) -> tuple[str, ...]:
    """The row's four cells as text, a line for each paragraph."""
    kinds: dict[str, list[str]] = {}
    for cause in row.causes:
        kinds.setdefault(cause.category, []).append(cause.text)
    causes = "\n".join(f"**{kind}**: {'; '.join(texts)}" for kind, texts in kinds.items())
    seen = "; ".join(titles[name] for name in row.incidents)
    return f"**{row.symptom}**\n{row.look}\n**In a run**: {seen}", causes, row.check, f"{row.fix}\n**Not**: {row.never}"


def _table(rows: Sequence[tuple[str, ...]], words: Sequence[str]) -> str:
    style = 'style="text-align: left; vertical-align: top; white-space: normal"'
    widths = [style.replace("left;", f"left; width: {share}%;") for share in _WIDTHS]
    head = "".join(f'<th scope="col" {own}>{text}</th>' for text, own in zip(_HEAD, widths, strict=True))
    body = ""
    for cells in rows:
        body += "<tr>" + "".join(f"<td {style}>{_cell(text, words)}</td>" for text in cells) + "</tr>"
    return f'<table class="course-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _cell(text: str, words: Sequence[str]) -> str:
    lines = [_marked(rich(line), words) for line in text.split("\n") if line]
    return "".join(f"<div>{line}</div>" for line in lines)


def _marked(line: str, words: Sequence[str]) -> str:
    """HTML with the words marked, in its text alone."""
    if not words:
        return line
    either = "|".join(re.escape(word) for word in sorted(words, key=len, reverse=True))
    found = re.compile(rf"(?<!\w)({either})", re.I)
    out = ""
    for part in re.split(r"(<[^>]+>)", line):
        if part.startswith("<"):
            out += part
            continue
        for number, piece in enumerate(found.split(html.unescape(part))):
            escaped = html.escape(piece, quote=False)
            out += f"<mark>{escaped}</mark>" if number % 2 else escaped
    return out


def diagnosis_table() -> Any:
    """Display the diagnosis table with a search field: typing leaves the rows that have all of its words."""
    made = Diagnosis()
    made.display()
    return made
