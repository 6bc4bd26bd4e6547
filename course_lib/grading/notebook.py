"""Notebooks as files: the same bytes for the same content, stable cell ids, nothing of the machine that ran them."""

import re
from typing import Any

import nbformat
from nbformat import NotebookNode

__all__ = ["KERNELSPEC", "LANGUAGE_INFO", "course_of", "dump", "grade_of", "stable_ids", "strip_metadata", "tags_of"]

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "codemirror_mode": {"name": "ipython", "version": 3},
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
_CELL_KEYS = ("tags", "nbgrader", "course", "deletable", "editable", "jupyter", "slideshow")


def dump(notebook: NotebookNode) -> bytes:
    """The file's bytes: sorted keys, one space of indent, `\\n`, UTF-8; the same for the same content."""
    text: str = nbformat.writes(notebook, version=4)
    return bytes((text.rstrip("\n") + "\n").encode("utf-8"))


def grade_of(cell: NotebookNode) -> dict[str, Any]:
    """A cell's nbgrader metadata, {} when it has none."""
    found = cell.get("metadata", {}).get("nbgrader", {})
    return dict(found) if isinstance(found, dict) else {}


def course_of(node: NotebookNode) -> dict[str, Any]:
    """Our own metadata of a cell or notebook, {} when it has none."""
    found = node.get("metadata", {}).get("course", {})
    return dict(found) if isinstance(found, dict) else {}


def tags_of(cell: NotebookNode) -> list[str]:
    found = cell.get("metadata", {}).get("tags", [])
    return [str(tag) for tag in found] if isinstance(found, list) else []


def strip_metadata(notebook: NotebookNode) -> None:
    """Keep what the course uses; drop timings, editors' marks, widget state and the machine's versions. In place."""
    kept = {key: notebook.metadata[key] for key in ("course",) if key in notebook.metadata}
    notebook.metadata = NotebookNode(kernelspec=KERNELSPEC, language_info=LANGUAGE_INFO, **kept)
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for cell in notebook.cells:
        cell.metadata = NotebookNode({key: cell.metadata[key] for key in _CELL_KEYS if key in cell.metadata})
        cell.pop("attachments", None) if not cell.get("attachments") else None


def stable_ids(notebook: NotebookNode) -> None:
    """Ids from what a cell is: its grade_id, else its first words; repeated ones get a counter. In place."""
    used = {str(grade_of(cell).get("grade_id")) for cell in notebook.cells}
    for cell in notebook.cells:
        grade_id = grade_of(cell).get("grade_id")
        if grade_id:
            cell.id = str(grade_id)
            continue
        slug, number = _slug(cell), 1
        name = slug
        while name in used:
            number += 1
            name = f"{slug}-{number}"
        used.add(name)
        cell.id = name


def _slug(cell: NotebookNode) -> str:
    lines = [line for line in cell.source.splitlines() if re.search(r"[A-Za-z]", line)]
    words = re.findall(r"[a-z0-9]+", re.sub(r"<[^>]*>", " ", lines[0]).lower()) if lines else []
    return ("-".join(words)[:40].strip("-")) or cell.cell_type
