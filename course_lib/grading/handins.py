"""Hand-ins as they come: whatever the file holds, the learner's cells or one line that says why it cannot be read."""

import json
import re
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.errors import HandInError

__all__ = ["MAX_BYTES", "HandIn", "HandInCell", "read_handin"]

MAX_BYTES = 200 * 2**20
MAX_PARTS = 20_000_000
"""Values in a file; a list or dict counts for five. Each takes some 50 bytes of memory when the file is read."""
MAX_CELLS = 3000
MAX_SOURCE = 2**19
"""Characters of a cell. Python takes some 600 bytes of memory, and microseconds, for each."""
MAX_CODE = 2 * MAX_SOURCE
"""Characters of all code cells."""
MAX_NAME = 200
TOLD = 5
"""Of cells that were left out, how many are told one by one."""


@dataclass(frozen=True)
class HandInCell:
    """One cell of a hand-in: its place, kind (`code`, `markdown`, `raw`), source with `\\n`, and what names it."""

    index: int
    kind: str
    source: str
    grade_id: str | None
    cell_id: str | None


@dataclass(frozen=True)
class HandIn:
    """What is taken from a hand-in. Its outputs, tags, kernel and widget state are not."""

    path: Path
    cells: tuple[HandInCell, ...]
    assignment: str | None
    release: str | None
    notes: tuple[str, ...] = field(default=())


def read_handin(path: Path) -> HandIn:
    """HandInError with the reason, one line, when the file holds no notebook."""
    document = _parse(path, _bytes(path))
    notes: list[str] = []
    cells = []
    for index, raw in enumerate(_raw_cells(path, document)):
        cell = _cell(index, raw)
        if cell is None:
            notes.append(f"cell {index} has a shape that no notebook has; it was left out")
        elif len(cell.source) <= MAX_SOURCE:
            cells.append(cell)
        elif cell.kind == "code" or cell.grade_id:  # in a text, it is a picture
            notes.append(f"cell {index} has more than {MAX_SOURCE >> 10} KiB of code; it was left out")
    if sum(len(cell.source) for cell in cells if cell.kind == "code") > MAX_CODE:
        raise HandInError(f"{path}: has more than {MAX_CODE >> 10} KiB of code; data belong in a file")
    if len(notes) > TOLD:
        notes[TOLD:] = [f"so it was with {len(notes) - TOLD} more of its cells"]
    course = _mapping(_mapping(document.get("metadata")).get("course"))
    return HandIn(path, tuple(cells), _text(course.get("assignment")), _text(course.get("hash")), tuple(notes))


def _bytes(path: Path) -> bytes:
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise HandInError(f"{path}: is not a file")
        if facts.st_size > MAX_BYTES:
            raise HandInError(f"{path}: is larger than {MAX_BYTES >> 20} MiB")
        return path.read_bytes()
    except OSError as error:
        raise HandInError(f"{path}: cannot be opened: {error.strerror or error}") from None


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    if not content.strip(b"\0 \t\r\n"):
        raise HandInError(f"{path}: is an empty file")
    if content.count(b",") + 5 * (content.count(b"[") + content.count(b"{")) > MAX_PARTS:
        raise HandInError(f"{path}: holds more than {MAX_PARTS:,} values; clear its outputs first")
    text = content.decode(json.detect_encoding(content), errors="replace")
    try:
        document = json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
            raise HandInError(f"{path}: holds git's conflict marks (<<<<<<<); resolve them first") from None
        where = f"line {error.lineno}, column {error.colno}"
        raise HandInError(
            f"{path}: is no notebook: {error.msg.removesuffix(' at')} at {where}; is it complete?"
        ) from None
    except (RecursionError, ValueError, MemoryError) as error:
        raise HandInError(f"{path}: is no notebook: {type(error).__name__} while reading it") from None
    if not isinstance(document, dict):
        raise HandInError(f"{path}: is JSON, but no notebook: it holds a {type(document).__name__}")
    return document


def _raw_cells(path: Path, document: dict[str, Any]) -> list[Any]:
    cells = document.get("cells")
    if cells is None and isinstance(document.get("worksheets"), list):
        sheets = [_mapping(sheet).get("cells") for sheet in document["worksheets"]]
        cells = [cell for sheet in sheets if isinstance(sheet, list) for cell in sheet]
    if not isinstance(cells, list):
        raise HandInError(f"{path}: is JSON, but no notebook: it has no list of cells")
    if len(cells) > MAX_CELLS:
        raise HandInError(f"{path}: has {len(cells):,} cells; more than {MAX_CELLS:,} are not graded")
    return cells


def _cell(index: int, raw: Any) -> HandInCell | None:
    if not isinstance(raw, dict):
        return None
    source = raw.get("source", raw.get("input", ""))
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        source = "".join(source)
    if not isinstance(source, str):
        return None
    source = source.replace("\r\n", "\n").replace("\r", "\n").encode("utf-8", "replace").decode("utf-8")
    grade = _mapping(_mapping(raw.get("metadata")).get("nbgrader"))
    source, kind = source.replace("\0", ""), str(raw.get("cell_type"))
    return HandInCell(
        index=index,
        kind=kind,
        source=source if kind == "code" else _unfenced(source),
        grade_id=_text(grade.get("grade_id")),
        cell_id=_text(raw.get("id")),
    )


_FENCED = re.compile(r"^ {0,3}(```+|~~~+)[^\n`]*\n(.*?)^ {0,3}\1[ \t]*$", re.MULTILINE | re.DOTALL)


def _unfenced(text: str) -> str:
    """Of a text cell the code that stands in it between fences; all of it where there is none."""
    return "\n".join(code for _, code in _FENCED.findall(text)) or text


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    """An id: what is none, or too long for one, is none. It is printed and written, so it can be encoded."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_NAME:
        return None
    return value.encode("utf-8", "replace").decode("utf-8")
