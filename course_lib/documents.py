"""Where the text comes from: the default corpus, a file of your own, and the split into training and validation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from course_lib.config import stream_seed
from course_lib.errors import ConfigError, DataError

__all__ = ["Document", "default_corpus", "load_text", "split_documents"]

MIN_CHARACTERS = 2_000  # below this there is nothing to split into training and validation
SEPARATOR = "<|endoftext|>"


@dataclass(frozen=True)
class Document:
    """A text that belongs together; training and validation never share one."""

    name: str
    text: str

    @property
    def size(self) -> int:
        """UTF-8 bytes."""
        return len(self.text.encode("utf-8"))


def default_corpus() -> list[Document]:
    """The reference manual of Python that CPython carries: about 465,000 characters of English and code, by topic.

    The text differs between Python versions, so no exact number may depend on it.
    """
    from pydoc_data.topics import topics

    return [Document(name, topics[name]) for name in sorted(topics)]


def load_text(path: str | Path) -> list[Document]:
    r"""The documents of a UTF-8 text file, with or without BOM; `\r\n` becomes `\n`.

    Lines that hold only `<|endoftext|>` separate documents. A file without them is cut at blank lines (else line ends,
    else anywhere) into about sixty pieces, each of 200 to 8,000 characters or so: paragraphs stay whole, and there is
    something to split. DataError when the file is missing, a folder, empty, too short, or not UTF-8 text.
    """
    path = Path(path)
    text = _read_utf8(path).replace("\r\n", "\n").replace("\r", "\n")
    pieces = re.split(rf"^{re.escape(SEPARATOR)}[ \t]*$", text, flags=re.MULTILINE)
    pieces = [piece for piece in pieces if piece.strip()]
    if not pieces:
        raise DataError(f"{path}: the file is empty; give a text file of at least {MIN_CHARACTERS:,} characters")
    if len(text) < MIN_CHARACTERS:
        raise DataError(
            f"{path}: too short, {len(text):,} characters; give at least {MIN_CHARACTERS:,}, better 100,000 or more"
        )
    if len(pieces) > 1:
        pieces = [piece.strip("\n") for piece in pieces]
    else:
        pieces = _cut(pieces[0], min(8_000, max(200, len(text) // 60)))
    return [Document(f"{path.name}:{i}", piece) for i, piece in enumerate(pieces, 1)]


def _read_utf8(path: Path) -> str:
    """The file's text without BOM; DataError says why it cannot be read, and at which byte."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        missing = (
            "there is no such file; check the path"
            if isinstance(error, FileNotFoundError | NotADirectoryError)
            else None
        )
        folder = "this is a folder; give one text file" if path.is_dir() else None
        raise DataError(f"{path}: {folder or missing or error.strerror or error}") from error
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise DataError(f"{path}: this is UTF-16 text; save it as UTF-8")
    nul = raw.find(b"\0")
    if nul >= 0:
        raise DataError(f"{path}: not text, there is a NUL at byte {nul}; give a UTF-8 text file")
    try:
        return raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: not UTF-8, byte {error.start} is 0x{raw[error.start]:02X} ({error.reason}); save it as UTF-8"
        ) from error


def _cut(text: str, size: int) -> list[str]:
    """`text` in pieces of about `size` characters, cut after blank lines, else after a line, else anywhere."""
    pieces: list[str] = []
    start = 0
    while len(text) - start > 1.5 * size:
        window = text[start + size // 2 : start + 3 * size // 2]
        cut = next((at + len(mark) for mark in ("\n\n", "\n", " ") if (at := window.rfind(mark)) >= 0), size // 2)
        pieces.append(text[start : start + size // 2 + cut])
        start += size // 2 + cut
    pieces.append(text[start:])
    return [piece for piece in pieces if piece.strip()]


def split_documents(
    documents: Sequence[Document], val_fraction: float = 0.1, seed: int = 0
) -> tuple[list[Document], list[Document]]:
    """(training, validation) documents, about `val_fraction` of the bytes in the second; order kept, no document lost.

    Documents that repeat each other stay on one side, so that validation measures text that was not trained on: manuals
    quote themselves, and almost a fifth of the default corpus is copies. Where that leaves nothing near `val_fraction`
    to hold out (a text that repeats itself throughout), each document goes by itself. The same documents and seed give
    the same split. DataError when there are not two documents.
    """
    if not 0 < val_fraction < 1:
        raise ConfigError(f"val_fraction={val_fraction} must be above 0 and below 1; try val_fraction=0.1")
    if len(documents) < 2:
        raise DataError("one document cannot be split into training and validation; give at least two")
    wanted = val_fraction * sum(document.size for document in documents)
    val, held = _hold_out(documents, _related(documents), wanted, seed)
    if not 0.5 * wanted <= held <= 2 * wanted:
        val, held = _hold_out(documents, [[i] for i in range(len(documents))], wanted, seed)
    return [d for i, d in enumerate(documents) if i not in val], [documents[i] for i in sorted(val)]


def _hold_out(documents: Sequence[Document], groups: list[list[int]], wanted: float, seed: int) -> tuple[set[int], int]:
    """Indices of whole groups, taken in random order until there are about `wanted` bytes; and how many there are.

    What fits under 1.05 times `wanted` is taken; if that is not enough, also what comes closer than without it.
    """
    sizes = [sum(documents[i].size for i in group) for group in groups]
    order = np.random.default_rng(stream_seed(seed, "split")).permutation(len(groups)).tolist()
    chosen: set[int] = set()
    held = 0
    for last_resort in (False, True):
        for g in order:
            total = held + sizes[g]
            fits = abs(total - wanted) < abs(held - wanted) if last_resort else total <= 1.05 * wanted
            if fits and held < 0.9 * wanted and g not in chosen and len(chosen) < len(groups) - 1:
                chosen.add(g)
                held = total
    if not chosen:  # every group is more than twice the wanted size: the smallest has to do
        chosen, held = {sizes.index(min(sizes))}, min(sizes)
    return {i for g in chosen for i in groups[g]}, held


def _related(documents: Sequence[Document]) -> list[list[int]]:
    """Indices of documents in groups that repeat each other: paragraphs in common are a fifth of the smaller one."""
    paragraphs = [
        {p for p in map(str.strip, re.split(r"\n\s*\n", document.text)) if len(p) >= 80} for document in documents
    ]
    holders: dict[str, list[int]] = {}
    for i, own in enumerate(paragraphs):
        for paragraph in sorted(own):
            holders.setdefault(paragraph, []).append(i)
    common: dict[tuple[int, int], int] = {}
    for paragraph, where in holders.items():
        for second in where[1:]:
            pair = where[0], second
            common[pair] = common.get(pair, 0) + len(paragraph)
    parent = list(range(len(documents)))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    weights = [sum(map(len, own)) for own in paragraphs]
    for (first, second), shared in common.items():
        if shared >= 0.2 * min(weights[first], weights[second]):
            low, high = sorted((root(first), root(second)))
            parent[high] = low
    groups: dict[int, list[int]] = {}
    for i in range(len(documents)):
        groups.setdefault(root(i), []).append(i)
    return list(groups.values())
