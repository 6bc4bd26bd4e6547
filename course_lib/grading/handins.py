"""Hand-ins as they come: whatever the file holds, the learner's cells or one line that says why it cannot be read."""

import json
import stat
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course_lib.errors import HandInError

__all__ = ["MAX_BYTES", "HandIn", "HandInCell", "read_handin"]

MAX_BYTES = 200 * 2**20


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
        else:
            cells.append(cell)
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
    encoding = "utf-16" if content[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    text = content.decode(encoding, errors="replace")
    try:
        document = json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        if any(line.startswith("<<<<<<< ") for line in text.splitlines()):
            raise HandInError(f"{path}: holds git's conflict marks (<<<<<<<); resolve them first") from None
        where = f"line {error.lineno}, column {error.colno}"
        raise HandInError(f"{path}: is no notebook: {error.msg} at {where}; is it complete?") from None
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
    return HandInCell(
        index=index,
        kind=str(raw.get("cell_type")),
        source=source.replace("\0", ""),
        grade_id=_text(grade.get("grade_id")),
        cell_id=_text(raw.get("id")),
    )


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
