"""Every file that could be a hand-in, in folders and in archives, archives within archives too.

Nothing is written but notebooks and inner archives out of archives, under numbers, into one folder that is given.
"""

import io
import os
import re
import shutil
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory

from course_lib.errors import CourseError
from course_lib.grading.handins import MAX_BYTES

__all__ = ["MAX_MEMBERS", "MAX_UNPACKED", "Candidate", "find_candidates", "unpacking_room"]

MAX_UNPACKED = 4 * 2**30
"""Bytes that all archives of one collection may hold together."""
MAX_MEMBERS = 100_000
MAX_DEPTH, MAX_FOLDERS = 3, 64
_ARCHIVES = (".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar")
_NOTEBOOK = re.compile(r".*\.ipynb(\.txt|\.json)?", re.IGNORECASE)
_SKIPPED = {"__macosx", "__pycache__", "node_modules", "autograded", "feedback"}


@dataclass(frozen=True)
class Candidate:
    """A file that could be a hand-in: the parts of its path under its root, archives' names among them."""

    parts: tuple[str, ...]
    path: Path
    place: str
    root: str
    problem: str = ""


class _Search:
    def __init__(self, room: Path, notes: list[str]) -> None:
        self.room, self.notes = room, notes
        self.found: list[Candidate] = []
        self.others: list[str] = []
        self.left, self.members, self.written = MAX_UNPACKED, 0, 0

    def folder(self, path: Path, parts: tuple[str, ...], root: Path) -> None:
        """Everything in a folder. Links are named in a note and never followed."""
        if len(parts) > MAX_FOLDERS:
            self.notes.append(f"{'/'.join(parts[:3])}/...: folders lie more than {MAX_FOLDERS} deep; not looked into")
            return
        try:
            entries = sorted(os.scandir(path), key=lambda entry: entry.name)
        except OSError as error:
            self.notes.append(f"{path}: cannot be opened: {error.strerror or error}")
            return
        for entry in entries:
            if _hidden(entry.name):
                continue
            inner = (*parts, _clean(entry.name))
            if entry.is_symlink():
                self.notes.append(f"{'/'.join(inner)}: is a link, and links are not followed")
            elif entry.is_dir(follow_symlinks=False):
                self.folder(Path(entry.path), inner, root)
            elif entry.is_file(follow_symlinks=False):
                self.file(Path(entry.path), inner, root)

    def file(self, path: Path, parts: tuple[str, ...], root: Path) -> None:
        place = "/".join(parts)
        if _NOTEBOOK.fullmatch(path.name):
            self.found.append(Candidate(parts, path, place, root.name))
        elif path.suffix.lower() == ".zip":
            try:
                with path.open("rb") as file:
                    self.archive(file, path, parts, root, 1)
            except OSError as error:
                self.bad(path, parts, root, f"cannot be opened: {error.strerror or error}")
        else:
            self.other(path, parts, root)

    def other(self, path: Path, parts: tuple[str, ...], root: Path) -> None:
        if path.suffix.lower() in _ARCHIVES:
            self.bad(path, parts, root, "is an archive of a kind that is not opened here; unpack it, or hand in a .zip")
        else:
            self.others.append("/".join(parts))

    def bad(self, path: Path, parts: tuple[str, ...], root: Path, reason: str) -> None:
        place = "/".join(parts)
        self.found.append(Candidate(parts, path, place, root.name, f"{place}: {reason}"))

    def archive(self, file: object, path: Path, parts: tuple[str, ...], root: Path, depth: int) -> None:
        """The notebooks of a zip. A damaged one is a candidate with a problem."""
        place = "/".join(parts)
        before = len(self.found)
        try:
            with zipfile.ZipFile(file) as archive:  # type: ignore[call-overload]
                for info in archive.infolist():
                    self.members += 1
                    if self.members > MAX_MEMBERS:
                        raise CourseError(f"{place}: there are more than {MAX_MEMBERS:,} files in the archives")
                    self.member(archive, info, path, parts, root, depth)
        except (
            zipfile.BadZipFile,
            zlib.error,
            EOFError,
            struct.error,
            ValueError,
            NotImplementedError,
            OSError,
        ) as error:
            self.bad(path, parts, root, f"is a damaged zip archive ({type(error).__name__}: {error})")
            return
        if depth > 1 or parts:
            inside = len(self.found) - before
            if not inside:
                self.bad(path, parts, root, "is a zip archive without a notebook")

    def member(
        self,
        archive: zipfile.ZipFile,
        info: zipfile.ZipInfo,
        path: Path,
        parts: tuple[str, ...],
        root: Path,
        depth: int,
    ) -> None:
        inner = _inside(_name(info))
        if info.is_dir() or (inner and any(map(_hidden, inner))):
            return
        if not inner:
            self.notes.append(
                f"{'/'.join(parts)}: holds a path that leads out of it ({_clean(info.filename)}); left out"
            )
            return
        whole = (*parts, *inner)
        place = "/".join(whole)
        if stat.S_ISLNK(info.external_attr >> 16):
            self.notes.append(f"{place}: is a link, and links are not followed")
            return
        notebook = bool(_NOTEBOOK.fullmatch(inner[-1]))
        if not notebook and not inner[-1].lower().endswith(".zip"):
            self.other(Path(inner[-1]), whole, root)
            return
        if info.flag_bits & 1:
            self.bad(path, whole, root, "is protected by a password")
            return
        self.written += 1
        target = self.room / f"{self.written:06d}" / (_safe(inner[-1]) if notebook else "inner.zip")
        target.parent.mkdir()
        try:
            large = self.unpack(archive, info, target)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError) as error:
            self.bad(path, whole, root, f"is damaged in its archive ({type(error).__name__}: {error})")
            return
        if large:
            target.unlink()
            self.bad(path, whole, root, f"is larger than {large} when it is unpacked")
        elif notebook:
            self.found.append(Candidate(whole, target, place, root.name))
        elif depth >= MAX_DEPTH:
            self.bad(target, whole, root, f"lies in more than {MAX_DEPTH} archives, one in another")
        else:
            with target.open("rb") as file:
                self.archive(file, target, whole, root, depth + 1)
            target.unlink()

    def unpack(self, archive: zipfile.ZipFile, info: zipfile.ZipInfo, target: Path) -> str:
        """Write a member, counting what comes and not what its head says; "" or the limit that it broke."""
        cap = min(MAX_BYTES, self.left)
        size = 0
        unpacked = archive.open
        with unpacked(info) as source, target.open("xb") as out:
            while block := source.read(io.DEFAULT_BUFFER_SIZE * 16):
                size += len(block)
                if size > cap:
                    return f"{MAX_BYTES >> 20} MiB" if cap == MAX_BYTES else "all archives together may be"
                out.write(block)
        self.left -= size
        return ""


def unpacking_room(results: Path | None) -> "TemporaryDirectory[str]":
    """Where archives are unpacked: a class's results (None: the system's temporary folder), cleared of killed runs.

    Its name begins with a dot: where the results lie among the hand-ins, it is none of them.
    """
    if results is None:
        return TemporaryDirectory(prefix="course-handins-")
    for old in results.glob(".unpacked-*"):
        shutil.rmtree(old, ignore_errors=True)
    try:
        return TemporaryDirectory(prefix=".unpacked-", dir=results)
    except OSError as error:
        raise CourseError(f"{results}: cannot be written: {error.strerror or error}") from None


def find_candidates(roots: list[Path], room: Path, notes: list[str]) -> list[Candidate]:
    """In the order of their paths. CourseError when a root is not there, or an archive that was named is none."""
    search = _Search(room, notes)
    for root in roots:
        named = Path(os.path.abspath(root))
        if not root.exists():
            raise CourseError(f"{root}: there is no such file or folder")
        if root.is_dir():
            search.folder(root, (), named)
        elif root.suffix.lower() == ".zip":
            before = len(search.found)
            with root.open("rb") as file:
                search.archive(file, root, (), named.with_suffix(""), 1)
            damaged = [one for one in search.found[before:] if one.path == root and not one.parts]
            if damaged:
                raise CourseError(f"{root}{damaged[0].problem}")
        else:
            search.found.append(Candidate((_clean(root.name),), root, str(root), named.parent.name))
    if search.others:
        some = ", ".join(search.others[:5]) + (", ..." if len(search.others) > 5 else "")
        notes.append(f"{len(search.others)} other files were left alone: {some}")
    return search.found


def _hidden(name: str) -> bool:
    """Checkpoints, what a Mac adds, anything with a dot in front, what nbgrader made itself."""
    return name.startswith(".") or name.casefold() in _SKIPPED


def _name(info: zipfile.ZipInfo) -> str:
    """A member's name; without its UTF-8 flag it often is UTF-8 all the same."""
    if not info.flag_bits & 0x800:
        try:
            return info.filename.encode("cp437").decode("utf-8")
        except UnicodeError:
            pass
    return info.filename


def _inside(name: str) -> tuple[str, ...]:
    """The parts of a member's path; () when it is absolute or leads upwards."""
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or re.match(r"[A-Za-z]:", name) or not path.parts:
        return ()
    return tuple(map(_clean, path.parts))


def _clean(text: str) -> str:
    """One line that can be printed and written."""
    text = text.encode("utf-8", "replace").decode("utf-8")
    return "".join(one if one.isprintable() else "?" for one in text)


def _safe(name: str) -> str:
    """A file name that any system takes, ending as a notebook does."""
    stem = re.sub(r"(?i)\.ipynb(\.txt|\.json)?$", "", name)
    return (re.sub(r"[^\w .()-]", "_", stem, flags=re.ASCII).strip(" .")[-100:] or "notebook") + ".ipynb"
