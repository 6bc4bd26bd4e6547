"""The file operations of a save, one method each, and a power cut to try them with, after any of them."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["Files", "PowerCut", "PowerLoss", "every_power_cut"]


class Files:
    """Every file operation of a save goes through one of these objects, so that a test can stop after any of them."""

    def make_folder(self, path: Path) -> None:
        """Make an empty folder; its parent is there."""
        os.mkdir(path)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file, piece after piece. The system may keep it in memory until `sync`."""
        with open(path, "xb", buffering=0) as file:
            for piece in pieces:
                left = memoryview(piece)
                while len(left):
                    left = left[file.write(left) :]

    def sync(self, path: Path) -> None:
        """Return when a file's bytes, or a folder's names, are on the disk (fsync)."""
        folder = path.is_dir()
        if folder and not hasattr(os, "O_DIRECTORY"):
            return  # Windows cannot sync a folder
        descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def rename(self, old: Path, new: Path) -> None:
        """Give a folder a new name beside the old one; nothing has that name yet."""
        os.rename(old, new)

    def remove(self, path: Path) -> None:
        """Remove a file, or an empty folder."""
        if path.is_dir():
            os.rmdir(path)
        else:
            os.unlink(path)


class PowerLoss(BaseException):
    """The power is gone: nothing after this happens, no clean-up either."""


class PowerCut(Files):
    """Does `after` operations, then raises `PowerLoss` in each further one. `lose` shows what may be left on the disk.

    Nothing is really synced: what was, is remembered. `bin` is an empty folder outside, for what is removed. `log` has
    the operations done, as text.
    """

    def __init__(self, bin: Path, after: int | None = None) -> None:
        self.bin, self.after = bin, after
        self.log: list[str] = []
        self._unsynced: list[Path] = []
        """Files whose bytes may be lost."""
        self._undo: list[tuple[Path, Callable[[], object]]] = []
        """(folder, how to undo) of each change of names that its folder was not yet synced for."""

    def _count(self, what: str, path: Path) -> None:
        if self.after is not None and len(self.log) >= self.after:
            raise PowerLoss
        self.log.append(f"{what} {path.name}")

    def make_folder(self, path: Path) -> None:
        """See `Files`."""
        self._count("make", path)
        super().make_folder(path)
        self._undo.append((path.parent, lambda: shutil.rmtree(path)))

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        """See `Files`."""
        self._count("write", path)
        super().write(path, pieces)
        self._unsynced.append(path)
        self._undo.append((path.parent, lambda: path.unlink(missing_ok=True)))

    def sync(self, path: Path) -> None:
        """See `Files`."""
        self._count("sync", path)
        if path.is_dir():
            self._undo = [(folder, undo) for folder, undo in self._undo if folder != path]
        else:
            self._unsynced = [one for one in self._unsynced if one != path]

    def rename(self, old: Path, new: Path) -> None:
        """See `Files`."""
        self._count("rename", old)
        super().rename(old, new)
        self._undo.append((new.parent, lambda: new.rename(old)))
        self._unsynced = [new / one.name if one.parent == old else one for one in self._unsynced]

    def remove(self, path: Path) -> None:
        """See `Files`."""
        self._count("remove", path)
        # Once a folder is gone for good, so is what was removed from it.
        self._undo = [(path.parent if folder == path else folder, undo) for folder, undo in self._undo]
        kept = self.bin / str(len(self.log))
        os.rename(path, kept)
        self._unsynced = [one for one in self._unsynced if one != path]
        self._undo.append((path.parent, lambda: kept.rename(path)))

    @property
    def uncertain(self) -> int:
        """Changes of names that may or may not have reached the disk."""
        return len(self._undo)

    def lose(self, names: int, keep: float) -> None:
        """The state after the cut: the last `names` uncertain changes of names are undone, a file that was not synced
        keeps this share of its bytes."""
        for path in self._unsynced:
            if path.exists():
                os.truncate(path, int(path.stat().st_size * keep))
        for _, undo in reversed(self._undo[len(self._undo) - names :]):
            undo()


def every_power_cut(
    before: Callable[[Path, Files], object], save: Callable[[Path, Files], object], look: Callable[[Path], str]
) -> list[list[str]]:
    """Cut the power after 0, 1, 2, ... operations of `save`, and look: for each stop, what is found in each state.

    What is tried: the last 0, 1, ... of the uncertain names lost, and of the files that were not synced nothing,
    half or all there. Before each, `before` fills a new folder, which all three are given. The last stop is the whole
    save. A real file system may lose more: an earlier name without a later one.
    """
    found: list[list[str]] = []
    finished = False
    while not finished:
        states: list[str] = []
        lost, uncertain = 0, 0
        while lost <= uncertain:
            for kept in (0.0, 0.5, 1.0):
                with tempfile.TemporaryDirectory() as name:
                    run, removed = Path(name) / "run", Path(name) / "removed"
                    run.mkdir()
                    removed.mkdir()
                    before(run, PowerCut(removed))
                    shutil.rmtree(removed)
                    removed.mkdir()
                    files = PowerCut(removed, after=len(found))
                    try:
                        save(run, files)
                        finished = True
                    except PowerLoss:
                        pass
                    uncertain = files.uncertain
                    files.lose(lost, kept)
                    states.append(look(run))
            lost += 1
        found.append(states)
    return found
