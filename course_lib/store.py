"""A folder that is either complete or not there: how a checkpoint survives a power cut, a full disk and a `kill -9`.

A save goes into a new folder, `step-000020.new`. Every file is synced, then the folder, and only then is the marker
`COMPLETE.json` written, with the size and SHA-256 of each file; it is synced too, and the folder's name in its parent.
Last it gets its own name. So a folder with a marker has all its files, and one without was not finished. An older
folder of the same name is removed when the new one is safe, its own marker first. No torch in here.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.errors import CheckpointError
from course_lib.files import Files

__all__ = [
    "FORMAT",
    "MARKER",
    "META",
    "Latest",
    "Skipped",
    "begin",
    "file_row",
    "finish",
    "give_up",
    "keep_last",
    "latest",
    "problem",
    "steps",
    "write_folder",
]

FORMAT = 2
"""Of the whole folder. 1: no marker, no checksums, no scaler."""
MARKER = "COMPLETE.json"
META = "meta.json"
_STEP = re.compile(r"step-(\d+)(\.new)?")
_OURS = (".json", ".safetensors")

Content = Mapping[str, Sequence[bytes | memoryview]]
Rows = Mapping[str, tuple[int, str]]
"""Of the marker: file name -> size in bytes, SHA-256."""


@dataclass(frozen=True)
class Skipped:
    """A folder that looks like a checkpoint and cannot be used."""

    path: Path
    reason: str
    """What is wrong with it, in words."""


@dataclass(frozen=True)
class Latest:
    """The newest complete checkpoint, and what was passed over on the way to it."""

    path: Path | None
    skipped: tuple[Skipped, ...]


# Writing.


def write_folder(folder: Path, content: Content, files: Files | None = None) -> Path:
    """Write `content` (file name -> pieces) to `folder`, replacing a checkpoint of that name, and return the folder.

    `CheckpointError` when the disk is full or the folder cannot be written: what was there before is as it was.
    """
    folder, files = Path(folder).absolute(), files or Files()
    new = _new(folder)
    _make_room(folder, files)
    with _finished_or_gone(folder, files):
        _make_new(folder, files)
        with ThreadPoolExecutor(1) as beside:  # checksums, while the bytes are written
            sums = {name: beside.submit(_digest, pieces) for name, pieces in content.items()}
            for name, pieces in content.items():
                files.write(new / name, pieces)
            for name in content:
                files.sync(new / name)
        sizes = {name: sum(len(piece) for piece in pieces) for name, pieces in content.items()}
        _mark(new, {name: (size, sums[name].result()) for name, size in sizes.items()}, files)
    return folder


def begin(folder: Path, files: Files | None = None) -> Path:
    """The first half of a save whose files others write (the ranks of a run): the new, empty folder for them."""
    folder, files = Path(folder).absolute(), files or Files()
    _make_room(folder, files)
    with _told(folder):
        _make_new(folder, files)
    return _new(folder)


def finish(folder: Path, rows: Rows, content: Content, files: Files | None = None) -> Path:
    """The second half: write `content` beside the files of `rows`, which are there and synced, mark, and give the name.

    `CheckpointError` when one of those files cannot be seen from here, in its size.
    """
    folder, files = Path(folder).absolute(), files or Files()
    new = _new(folder)
    with _finished_or_gone(folder, files):
        for name, (size, _) in rows.items():
            path = new / name
            if not path.exists() or path.stat().st_size != size:
                raise CheckpointError(
                    f"{path}: not there, or not in the size in which its rank wrote it; all nodes have to share the "
                    "file system of `out`"
                )
        for name, pieces in content.items():
            files.write(new / name, pieces)
            files.sync(new / name)
        own = {name: (sum(len(piece) for piece in pieces), _digest(pieces)) for name, pieces in content.items()}
        _mark(new, {**rows, **own}, files)
    return folder


@contextmanager
def _finished_or_gone(folder: Path, files: Files) -> Iterator[None]:
    """What is written inside gets its name at the end; after an error it is removed, as far as that works."""
    new = _new(folder)
    try:
        with _told(folder):
            yield
    except (CheckpointError, KeyboardInterrupt):
        give_up(new)
        raise
    with _told(folder):
        _publish(new, folder, files)


def _make_room(folder: Path, files: Files) -> None:
    with _told(folder):
        _may_replace(folder)
        _settle(folder, files)


def _make_new(folder: Path, files: Files) -> None:
    new = _new(folder)
    for parent in [path for path in reversed(new.parents) if not path.exists()]:
        files.make_folder(parent)
        files.sync(parent.parent)
    files.make_folder(new)


def _mark(new: Path, rows: Rows, files: Files) -> None:
    """All files are synced; only then the marker."""
    files.sync(new)
    files.write(new / MARKER, [_marker(rows)])
    files.sync(new / MARKER)
    files.sync(new)
    files.sync(new.parent)


def _new(folder: Path) -> Path:
    return folder.with_name(folder.name + ".new")


def _digest(pieces: Sequence[bytes | memoryview]) -> str:
    total = hashlib.sha256()
    for piece in pieces:
        total.update(piece)
    return total.hexdigest()


def file_row(path: Path) -> tuple[int, str]:
    """Size and SHA-256 of a file."""
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()


def _marker(rows: Rows) -> bytes:
    files = {name: {"bytes": size, "sha256": digest} for name, (size, digest) in rows.items()}
    return json.dumps({"format": FORMAT, "files": files}, indent=1).encode("utf-8")


@contextmanager
def _told(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(
            f"{folder}: the checkpoint could not be written ({why}); earlier ones are as they were: free some space or "
            "give another folder"
        ) from error


def _may_replace(folder: Path) -> None:
    """A folder that is no checkpoint is not ours to remove."""
    for path in (folder, _new(folder)):
        if not path.exists():
            continue
        names = sorted(one.name for one in path.iterdir()) if path.is_dir() else [path.name]
        strange = [name for name in names if not name.endswith(_OURS)]
        if names and path == folder and MARKER not in names and META not in names:
            strange = names
        if strange:
            raise CheckpointError(
                f"{path}: holds {strange[0]}, no part of a checkpoint, and is not replaced; give another folder"
            )


def _settle(folder: Path, files: Files) -> None:
    """What an earlier save left behind: a complete one is given its name, an incomplete one is removed."""
    new = _new(folder)
    if new.exists():
        if problem(new) is None:
            _publish(new, folder, files)
        else:
            _erase(new, files)


def _publish(new: Path, folder: Path, files: Files) -> None:
    if folder.exists():
        _erase(folder, files)
    files.rename(new, folder)
    files.sync(folder.parent)


def _erase(folder: Path, files: Files) -> None:
    """Remove a checkpoint: the marker first, so that half of it is never taken for a whole."""
    marker, meta = folder / MARKER, folder / META
    if marker.exists():
        files.remove(marker)
        files.sync(folder)
    for path in sorted(folder.iterdir(), key=lambda path: (path == meta, path.name)):
        files.remove(path)
    files.remove(folder)


def give_up(new: Path) -> None:
    """Make room after a save that failed, as far as that works: an incomplete folder does no harm."""
    try:
        if new.is_dir() and problem(new) is not None:
            _erase(new, Files())
    except OSError:
        pass


# Reading.


def problem(folder: Path, deep: bool = True) -> str | None:
    """Why a folder is no complete checkpoint, in words, or None. deep: also compare checksums (reads every byte)."""
    marker = folder / MARKER
    try:
        content = json.loads(marker.read_text(encoding="utf-8"))
        form, rows = content["format"], content["files"].items()
        wanted = {str(name): (int(row["bytes"]), str(row["sha256"])) for name, row in rows}
    except FileNotFoundError:
        return _old(folder) or f"incomplete: no {MARKER}, so the save did not finish"
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return f"corrupt: {MARKER} cannot be read"
    if form != FORMAT:
        return _other_format(form)
    for name, (size, digest) in wanted.items():
        path = folder / Path(name).name
        try:
            real = path.stat().st_size
            if real != size:
                return f"corrupt: {name} has {real:,} bytes, {size:,} were saved"
            if deep:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        return f"corrupt: {name} is not what was saved (its checksum differs)"
        except OSError:
            return f"corrupt: {name} is missing or cannot be read"
    return None


def _old(folder: Path) -> str | None:
    try:
        meta: Any = json.loads((folder / META).read_text(encoding="utf-8"))
        form = meta["format"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return None if form == FORMAT else _other_format(form)


def _other_format(form: object) -> str:
    newer = isinstance(form, int) and form > FORMAT
    return f"written in format {form}, this version of the course reads format {FORMAT}: " + (
        "update the course" if newer else "go on with the version that wrote it, or start a new run"
    )


def steps(out: Path) -> list[tuple[int, Path]]:
    """(step, folder) of everything in `out` that is named like a checkpoint, the newest first."""
    found = []
    try:
        for path in Path(out).iterdir():
            match = _STEP.fullmatch(path.name)
            if match and path.is_dir():
                found.append((int(match[1]), bool(match[2]), path))
    except OSError:
        return []
    return [(step, path) for step, _, path in sorted(found, reverse=True)]


def latest(out: Path) -> Latest:
    """The newest complete checkpoint in `out`. Incomplete and corrupt ones are skipped, and listed with a reason."""
    skipped: list[Skipped] = []
    for _, path in steps(out):
        reason = problem(path)
        if reason is None:
            return Latest(path, tuple(skipped))
        skipped.append(Skipped(path, reason))
    return Latest(None, tuple(skipped))


def keep_last(folder: Path, count: int, files: Files | None = None) -> list[Path]:
    """Of the checkpoints up to `folder`'s step, keep the `count` newest complete ones, `folder` among them.

    Returns what was removed. 0 keeps all. Later steps belong to another branch of the run and stay, and so does a
    folder with a file in it that no checkpoint has.
    """
    folder, files = Path(folder).absolute(), files or Files()
    match = _STEP.fullmatch(folder.name)
    if not count or not match:
        return []
    kept, removed = 0, []
    with _told(folder):
        for step, path in steps(folder.parent):
            if step > int(match[1]):
                continue
            if kept < count and problem(path, deep=False) is None:
                kept += 1
            elif path != folder and all(one.name.endswith(_OURS) for one in path.iterdir()):
                _erase(path, files)
                removed.append(path)
    return removed
