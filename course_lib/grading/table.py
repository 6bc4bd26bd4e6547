"""Tables as spreadsheets and learning platforms write and read them: any encoding and separator in, safe CSV out."""

import csv
import io
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from course_lib.errors import CourseError

__all__ = ["csv_text", "read_rows", "safe_cell", "write_file"]

MAX_BYTES = 64 * 2**20
_SEPARATORS = (",", ";", "\t", "|")
# Full-width signs too: some spreadsheets take them for the plain ones.
_FORMULA = re.compile(r"(^|[;\t\r\n])([\s\u200b\ufeff]*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """(line, cells) of every row that is not empty, cells stripped. CourseError when it cannot be read.

    Read are UTF-8 and UTF-16 with or without a mark, else Windows-1252; commas, semicolons, tabs or bars between cells.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CourseError(f"{path}: is larger than {MAX_BYTES >> 20} MiB")
        text = _decode(path.read_bytes())
    except OSError as error:
        raise CourseError(f"{path}: cannot be opened: {error.strerror or error}") from None
    first = next((line for line in text.splitlines() if line.strip()), "")
    if first.lower().startswith("sep=") and len(first.strip()) == 5:
        separator, text = first.strip()[4], text.partition(first)[2]
    else:
        separator = max(_SEPARATORS, key=lambda one: len(next(csv.reader([first], delimiter=one), [])))
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    found = []
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if any(cells):
                found.append((reader.line_num, cells))
    except csv.Error as error:
        raise CourseError(f"{path}: line {reader.line_num} is no row of a table: {error}") from None
    return found


def _decode(content: bytes) -> str:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return content.decode("utf-16", errors="replace")
    if b"\0" in content[:400]:
        little = content[1:2] == b"\0"
        return content.decode("utf-16-le" if little else "utf-16-be", errors="replace")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = content.decode("cp1252", errors="replace")
    return text.replace("\0", "")


def safe_cell(value: object) -> object:
    """A text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers.

    Also behind a semicolon, a tab or a line end: a spreadsheet that takes those for the separator would cut there.
    """
    if not isinstance(value, str):
        return value
    text = _FORMULA.sub(r"\1'\2", value.replace("\0", ""))
    return "'" + text if text.lstrip(" ")[:1] in ("\t", "\r", "\n") else text


def csv_text(rows: Iterable[Sequence[object]]) -> str:
    """Rows as CSV: every text in quotes, every number bare, no formula."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\r\n")
    for row in rows:
        writer.writerow([safe_cell(value) for value in row])
    return out.getvalue()


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all; its folder is made. CourseError when that cannot be done.

    What is no file (a pipe, a terminal, /dev/stdout) is written to as it stands: nothing may take its place.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_text(text, encoding="utf-8", errors="replace", newline="")
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with beside.open("w", encoding="utf-8", errors="replace", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CourseError(f"{path}: cannot be written: {error.strerror or error}") from None
