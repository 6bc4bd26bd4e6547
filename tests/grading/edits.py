"""What is done to a right notebook before it is handed in: edits that leave every answer in it, drawn at random.

`edit(notebook, pick)` works on a notebook as JSON. `pick(n)` gives a number from 0 to n - 1: hypothesis draws it, or a
random.Random. Edits come in the order in which they cannot undo an answer: cells are moved before any is cut in two.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

Pick = Callable[[int], int]
Cell = dict[str, Any]


def text_of(cell: Cell) -> str:
    return "".join(cell["source"])


def edit(notebook: dict[str, Any], pick: Pick, keep: Callable[[Cell], bool], most: int = 4) -> list[str]:
    """Edit in place; what was done, in words. keep(cell): whether it holds something of the learner's."""
    done = []
    for phase in (MOVES, KINDS, CUTS, JOINS, NAMES, ENDS):
        for _ in range(pick(most)):
            name, change = phase[pick(len(phase))]
            if change(notebook, pick, keep):
                done.append(name)
    return done


def _cells(notebook: dict[str, Any]) -> list[Cell]:
    cells: list[Cell] = notebook["cells"]
    return cells


def shuffle(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    cells = _cells(notebook)
    for at in range(len(cells) - 1, 0, -1):
        other = pick(at + 1)
        cells[at], cells[other] = cells[other], cells[at]
    return True


def move(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    cells = _cells(notebook)
    cell = cells.pop(pick(len(cells)))
    cells.insert(pick(len(cells) + 1), cell)
    return True


def duplicate(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    """Copy and paste: a new id, the same metadata."""
    cells = _cells(notebook)
    copy = deepcopy(cells[pick(len(cells))])
    copy["id"] = f"copy-{pick(10**9)}"
    cells.insert(pick(len(cells) + 1), copy)
    return True


def delete(notebook: dict[str, Any], pick: Pick, keep: Callable[[Cell], bool]) -> bool:
    cells = _cells(notebook)
    at = pick(len(cells))
    if keep(cells[at]):
        return False
    del cells[at]
    return True


def add(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    sources = [
        "unrelated = 1",
        "import json",
        "# a remark",
        "",
        "%time 1 + 1",
        "print('x' * 10)",
        "!true",
        "this is no code (",
    ]
    kind = ["code", "markdown", "raw"][pick(3)]
    cell: Cell = {"cell_type": kind, "id": f"new-{pick(10**9)}", "metadata": {}, "source": sources[pick(len(sources))]}
    if kind == "code":
        cell |= {"outputs": [], "execution_count": None}
    _cells(notebook).insert(pick(len(_cells(notebook)) + 1), cell)
    return True


def split(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    """At the start of a line, also within a function: both halves keep the metadata, the lower one the id."""
    cells = _cells(notebook)
    at = pick(len(cells))
    lines = text_of(cells[at]).split("\n")
    if cells[at]["cell_type"] != "code" or len(lines) < 2:
        return False
    cut = 1 + pick(len(lines) - 1)
    upper = deepcopy(cells[at])
    upper |= {"id": f"upper-{pick(10**9)}", "source": "\n".join(lines[:cut])}
    cells[at]["source"] = "\n".join(lines[cut:])
    cells.insert(at, upper)
    return True


def merge(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    """With the cell below of the same kind: a new id, the metadata of the upper one alone."""
    cells = _cells(notebook)
    pairs = [at for at in range(len(cells) - 1) if cells[at]["cell_type"] == cells[at + 1]["cell_type"] == "code"]
    if not pairs:
        return False
    at = pairs[pick(len(pairs))]
    if any("no code" in text_of(cell) for cell in cells[at : at + 2]):
        return False  # a line that is no Python beside an answer breaks it, also for its author
    lower = cells.pop(at + 1)
    joint = ["\n", "\n\n"][pick(2)]
    cells[at] |= {"id": f"merged-{pick(10**9)}", "source": text_of(cells[at]) + joint + text_of(lower)}
    return True


def retype(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    """An answer becomes text, all of its pieces: half of it as text is a version that its author put aside."""
    answers = [cell for cell in _cells(notebook) if cell["metadata"].get("nbgrader", {}).get("solution")]
    answers = [cell for cell in answers if cell["cell_type"] == "code"]
    if not answers:
        return False
    name = answers[pick(len(answers))]["metadata"]["nbgrader"]["grade_id"]
    for cell in answers:
        if cell["metadata"]["nbgrader"]["grade_id"] == name:
            cell["cell_type"] = ["markdown", "raw"][pick(2)]
            cell.pop("outputs", None)
            cell.pop("execution_count", None)
    return True


def renumber(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    for number, cell in enumerate(_cells(notebook)):
        cell["id"] = str(number)
    return True


def drop_ids(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    notebook["nbformat_minor"] = 2
    for cell in _cells(notebook):
        cell.pop("id", None)
    return True


def drop_metadata(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    for cell in _cells(notebook):
        cell["metadata"] = {}
    return True


def drop_one(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    cells = _cells(notebook)
    cells[pick(len(cells))]["metadata"] = {}
    return True


def drop_all(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    notebook["metadata"] = {}
    return drop_ids(notebook, pick, keep) and drop_metadata(notebook, pick, keep)


def line_ends(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    end = ["\r\n", "\r"][pick(2)]
    for cell in _cells(notebook):
        cell["source"] = text_of(cell).replace("\r\n", "\n").replace("\r", "\n").replace("\n", end)
    return True


def as_lines(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    for cell in _cells(notebook):
        cell["source"] = text_of(cell).splitlines(keepends=True)
    return True


def pad(notebook: dict[str, Any], pick: Pick, keep: Any) -> bool:
    cells = _cells(notebook)
    cell = cells[pick(len(cells))]
    cell["source"] = ["\n\n", "# mine\n"][pick(2)] + text_of(cell) + ["\n", "  ", "\n# end\n"][pick(3)]
    return True


def _named(*changes: Callable[..., bool]) -> list[tuple[str, Callable[..., bool]]]:
    return [(change.__name__, change) for change in changes]


MOVES = _named(move, shuffle, duplicate, delete, add)
CUTS = _named(split)
JOINS = _named(merge)
KINDS = _named(retype)
NAMES = _named(renumber, drop_ids, drop_metadata, drop_one, drop_all)
ENDS = _named(line_ends, as_lines, pad)
