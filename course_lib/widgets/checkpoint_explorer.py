"""Walk through a real checkpoint on disk: pick a file and a part of it, see its bytes and what they say."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from course_lib.figures.checkpoint_bytes import KINDS, bytes_of_a_part, kind_of
from course_lib.widgets.controls import ChoiceControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from course_lib.anatomy import Part

__all__ = ["checkpoint_explorer"]

ROWS = 8
_DTYPES = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "U64": np.dtype("<u8"),
}


def _read_as(part: Part, data: bytes) -> list[str]:
    """What each row of 16 bytes says: numbers of a tensor, characters of a text."""
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    kind = _DTYPES.get(part.dtype)
    if kind is None:
        return ["".join(chr(byte) if 32 <= byte < 127 else "·" for byte in row) for row in rows]
    out = []
    form = _form(np.frombuffer(data[: len(data) // kind.itemsize * kind.itemsize], dtype=kind))
    for row in rows:
        values = np.frombuffer(row[: len(row) // kind.itemsize * kind.itemsize], dtype=kind)
        words = [format(v.item(), form) for v in values[:4].astype(values.dtype if kind.kind in "iu" else float)]
        out.append(" ".join(f"{word:>9}" for word in words) + ("  …" if len(values) > 4 else ""))
    return out


def _form(values: np.ndarray) -> str:
    """How numbers are written, the same way for all of a page, so that they stand in columns."""
    if values.dtype.kind in "iu":
        return ","
    size = np.abs(values.astype(float))
    size = size[np.isfinite(size) & (size > 0)]
    if not size.size:
        return ".3g"
    if size.max() >= 1e5 or size.max() < 1e-3 or size.min() < size.max() / 1e3:
        return ".2e"
    return f".{max(0, 2 - math.floor(math.log10(size.max())))}f"


def _size(count: int) -> str:
    return f"{count:,} byte{'' if count == 1 else 's'}"


@dataclass(frozen=True)
class _Look:
    """One place in a file."""

    parts: list[Part]
    number: int
    offset: int
    data: bytes
    read_as: list[str]

    @property
    def chosen(self) -> Part:
        return self.parts[self.number]

    @property
    def what(self) -> str:
        shape = " x ".join(map(str, self.chosen.shape))
        return f"{self.chosen.dtype}{', ' + shape if shape else ''}"

    @property
    def title(self) -> str:
        return f"{self.chosen.name or 'empty'}: {_size(self.chosen.bytes)} of {self.chosen.file}"

    @property
    def subtitle(self) -> str:
        last = len(self.parts) - 1
        return f"Part {self.number}, counted from 0 to {last}. Left: place in the file; right: what a row says."


class _Walk:
    """Draws one part of one file; headers are read once."""

    def __init__(self, folder: Path) -> None:
        from course_lib.anatomy import contents

        self.folder = folder
        self.files: dict[str, list[Part]] = {}
        for part in contents(folder):
            self.files.setdefault(part.file, []).append(part)

    def look(self, file: str, part: int, through: int) -> _Look:
        """What is at this place; a part beyond the last one is the last one."""
        parts = self.files[file]
        number = min(part, len(parts) - 1)
        chosen = parts[number]
        last = max(0, chosen.bytes - 16 * ROWS)
        skip = last if through == 100 else round(last * through / 100 / 16) * 16
        with (self.folder / file).open("rb") as stream:
            stream.seek(chosen.offset + skip)
            data = stream.read(min(16 * ROWS, chosen.bytes - skip))
        return _Look(parts, number, chosen.offset + skip, data, _read_as(chosen, data))

    def draw(self, file: str, part: int, through: int) -> View:
        look = self.look(file, part, through)
        chosen = look.chosen
        row = [
            (f"{chosen.bytes:,}", "bytes"),
            (f"{chosen.bytes / sum(one.bytes for one in look.parts):.1%}", "of this file"),
            (look.what, "type and shape"),
        ]
        data = {"file": file, "name": chosen.name}
        return View(_page(look), alt=f"{look.title}. {look.what}.", numbers=row, data=data)

    def still(self, file: str, part: int, through: int) -> Figure:
        look = self.look(file, part, through)
        kinds = [(kind_of(one.file, one.name), one.bytes) for one in look.parts]
        return bytes_of_a_part(
            kinds, look.number, look.offset, look.data, look.read_as, title=look.title, subtitle=look.subtitle
        )


def _page(look: _Look) -> str:
    """The same as `bytes_of_a_part`, as HTML: quicker, in the page's own colours, and its text can be copied."""
    total = max(1, sum(one.bytes for one in look.parts))
    spans = "".join(
        f'<span style="flex: {one.bytes / total:.6f} 1 0; background: {KINDS[kind_of(one.file, one.name)]}; '
        f'opacity: {1 if at == look.number else 0.35}; border-left: 1px solid var(--jp-layout-color0)"></span>'
        for at, one in enumerate(look.parts)
    )
    before = sum(one.bytes for one in look.parts[: look.number]) + look.chosen.bytes / 2
    mark = (
        f'<div style="margin-left: {100 * before / total:.2f}%; width: 0; line-height: 1">'
        '<span style="margin-left: -0.5em">▼</span></div>'
    )
    rows = [look.data[at : at + 16] for at in range(0, len(look.data), 16)]
    lines = [
        f"{look.offset + 16 * at:>9,}  {_hex(row):<51}  {text}"
        for at, (row, text) in enumerate(zip(rows, look.read_as, strict=True))
    ]
    page = html.escape("\n".join(lines))
    return (
        f'<div style="max-width: 800px"><div style="font-size: 17px; font-weight: 600; margin-top: 8px">'
        f'{html.escape(look.title)}</div><div class="course-muted">{html.escape(look.subtitle)}</div>'
        f'{mark}<div style="display: flex; height: 22px">{spans}</div>'
        '<pre style="font-family: var(--jp-code-font-family); font-size: 12px; line-height: 1.7; overflow-x: auto; '
        f'margin-top: 10px; min-height: {1.7 * ROWS}em">{page}</pre></div>'
    )


def _hex(row: bytes) -> str:
    return "  ".join(row[at : at + 4].hex(" ") for at in range(0, len(row), 4))


def _found(file: str, *names: str) -> Any:
    def reached(values: Mapping[str, Any], view: View) -> bool:
        return view.data["file"] == file and any(name in str(view.data["name"]) for name in names)

    return reached


def checkpoint_explorer(folder: Path) -> Explorer:
    """Display the explorer of chapter 6 on the checkpoint in `folder`; reads it again for every picture."""
    walk = _Walk(folder)
    files = list(walk.files)
    most = max(len(parts) for parts in walk.files.values()) - 1
    first = next(name for name in files if name.startswith("model"))
    counter = next(i for i, one in enumerate(walk.files["optimizer.safetensors"]) if one.name.endswith("/step"))
    return explorer(
        walk.draw,
        [
            ChoiceControl(name="file", label="file", options=files, default=first),
            IntControl(name="part", label="part of the file", min=0, max=most, default=2),
            IntControl(name="through", label="place in the part", unit="%", min=0, max=100, default=0),
        ],
        presets=[
            Preset("The first 8 bytes", {"part": 0}),
            Preset("The header", {"part": 1}),
            Preset("A step count of AdamW", {"file": "optimizer.safetensors", "part": counter}),
        ],
        goals=[
            Goal("What says which batch comes next", _found("meta.json", "stream")),
            Goal("What dropout's next mask is drawn from", _found("meta.json", "random")),
            Goal("The mean of squared gradients of some tensor", _found("optimizer.safetensors", "exp_avg_sq")),
        ],
        title="A real checkpoint, byte by byte",
        caption="Above, the file as a bar of its parts, the chosen one marked; below, its bytes and what they say.",
        still=walk.still,
    )
