"""Which claims a chapter and its exercises cover, by the tags of their cells, and what is owed."""

import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from nbformat import NotebookNode

LIST = Path(__file__).resolve().parent.parent / "claims.toml"

Claims = dict[str, dict[int, str]]


def claims(path: Path = LIST) -> Claims:
    """Chapter ("01") -> claim number -> short title."""
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    return {chapter: {int(number): title for number, title in own.items()} for chapter, own in content.items()}


def tagged(notebook: NotebookNode | None, word: str, kind: str, *, checks_only: bool = False) -> set[int]:
    """Numbers N of the tags `word-N` on cells of that kind ("code" or "markdown"); `checks_only`: on graded cells."""
    found: set[int] = set()
    for cell in notebook.cells if notebook is not None else []:
        if cell.cell_type != kind or (checks_only and not cell.metadata.get("nbgrader", {}).get("grade")):
            continue
        matches = (re.fullmatch(rf"{word}-(\d+)", tag) for tag in cell.metadata.get("tags", []))
        found |= {int(match[1]) for match in matches if match}
    return found


def missing(own: Mapping[int, str], chapter: NotebookNode, exercises: NotebookNode | None) -> list[str]:
    """What an existing chapter lacks of its claims, one line each."""
    shown, bounded = tagged(chapter, "claim", "code"), tagged(chapter, "bound", "markdown")
    practised = tagged(exercises, "claim", "code", checks_only=True)
    lines = []
    for number, title in own.items():
        for there, what in (
            (shown, f"no code cell tagged claim-{number}: it is not shown"),
            (bounded, f"no markdown cell tagged bound-{number}: it is not bounded"),
            (practised, f"no check cell of the exercises tagged claim-{number}: it is not practised"),
        ):
            if number not in there:
                lines.append(f"claim {number} ({title}): {what}")
    return lines


def strangers(all_claims: Claims, chapter: NotebookNode) -> list[str]:
    """Tags of claims that do not exist, and bounds of claims that the chapter does not show."""
    known = {number for own in all_claims.values() for number in own}
    shown, bounded = tagged(chapter, "claim", "code"), tagged(chapter, "bound", "markdown")
    lines = [f"claim-{number}: there is no such claim" for number in sorted((shown | bounded) - known)]
    return lines + [f"bound-{number} without a cell tagged claim-{number}" for number in sorted(bounded - shown)]


def owed(all_claims: Claims, existing: Sequence[str]) -> dict[str, list[int]]:
    """Chapter -> its claims, for the chapters that do not exist yet."""
    return {chapter: sorted(own) for chapter, own in all_claims.items() if chapter not in existing}
