"""A save that stops anywhere leaves the checkpoint before it or the new one, never half of one."""

import json
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from course_lib import store
from course_lib.errors import CheckpointError
from course_lib.files import Files, PowerCut, PowerLoss, every_power_cut
from course_lib.store import MARKER, keep_last, latest, problem, write_folder

OLD = {"model.safetensors": [b"old", b" weights" * 20], "meta.json": [b'{"format": 2, "is": "old"}']}
NEW = {"model.safetensors": [b"new", b" weights" * 30], "meta.json": [b'{"format": 2, "is": "new"}']}


def content_of(folder: Path) -> str:
    assert problem(folder) is None
    return str(json.loads((folder / "meta.json").read_text(encoding="utf-8"))["is"])


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_is_written_and_checked(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "deep" / "er" / "step-000001", OLD)
    assert names(folder) == [MARKER, "meta.json", "model.safetensors"] and names(folder.parent) == ["step-000001"]
    assert (folder / "model.safetensors").read_bytes() == b"old" + b" weights" * 20
    assert content_of(folder) == "old"


@pytest.mark.parametrize("name", ["model.safetensors", "meta.json", MARKER])
@pytest.mark.parametrize("how", ["gone", "cut", "empty", "one bit", "longer"])
def test_damage_is_found_and_skipped(name: str, how: str, tmp_path: Path) -> None:
    write_folder(tmp_path / "step-000001", OLD)
    path = write_folder(tmp_path / "step-000002", NEW) / name
    data = path.read_bytes()
    if how == "gone":
        path.unlink()
    else:
        flipped = data[:40] + bytes([data[40] ^ 1]) + data[41:] if len(data) > 40 else bytes([data[0] ^ 1]) + data[1:]
        changed = {"cut": data[:-1], "empty": b"", "one bit": flipped, "longer": data + b"x"}[how]
        path.write_bytes(changed)
    found = latest(tmp_path)
    assert found.path is not None and found.path.name == "step-000001"
    (skipped,) = found.skipped
    assert skipped.path.name == "step-000002"
    assert name in skipped.reason or (name, how) == (MARKER, "one bit")  # that one names a file that is not there


def test_the_newest_is_found_by_number(tmp_path: Path) -> None:
    for step in ("9", "000010", "1000000", "200000"):
        write_folder(tmp_path / f"step-{step}", OLD)
    (tmp_path / "step-new").mkdir()
    (tmp_path / "step-9000000").write_bytes(b"a file")
    found = latest(tmp_path)
    assert found.path == tmp_path / "step-1000000" and found.skipped == ()
    assert latest(tmp_path / "nothing").path is None


def test_an_old_format_is_named(tmp_path: Path) -> None:
    (tmp_path / "step-000001").mkdir()
    (tmp_path / "step-000001" / "meta.json").write_text('{"format": 1}', encoding="utf-8")
    assert "format 1, this version of the course reads format 2" in latest(tmp_path).skipped[0].reason
    marker = write_folder(tmp_path / "step-000002", OLD) / MARKER
    text = marker.read_text(encoding="utf-8")
    marker.write_text(text.replace('"format": 2', '"format": 3'), encoding="utf-8")
    assert "update the course" in latest(tmp_path).skipped[0].reason


# ------------------------------------------------------------------------------------------------------ power cuts


def start(out: Path, same: bool) -> Path:
    """A run with one checkpoint; the folder that the next save goes to."""
    shutil.rmtree(out, ignore_errors=True)
    write_folder(out / "step-000001", OLD)
    return out / ("step-000001" if same else "step-000002")


def operations(tmp_path: Path, same: bool, keep: int) -> list[str]:
    target = start(tmp_path / "out", same)
    (tmp_path / "bin").mkdir(exist_ok=True)
    files = PowerCut(tmp_path / "bin")
    write_folder(target, NEW, files)
    keep_last(target, keep, files)
    shutil.rmtree(tmp_path / "bin")
    return files.log


@pytest.mark.parametrize("same", [False, True], ids=["a new step", "the same step again"])
@pytest.mark.parametrize("keep", [0, 1])
def test_a_power_cut_after_each_operation(same: bool, keep: int, tmp_path: Path) -> None:
    """Every stop, with every number of changes of names lost, and the bytes that were not synced lost, cut or kept."""
    count = len(operations(tmp_path, same, keep))
    assert count >= 12
    seen = set()
    for after in range(count + 1):
        undone, uncertain = 0, 0
        while undone <= uncertain:
            for keep_bytes in (0.0, 0.5, 1.0):
                target = start(tmp_path / "out", same)
                files = PowerCut(tmp_path / "bin", after)
                files.bin.mkdir()
                finished = True
                try:
                    write_folder(target, NEW, files)
                    keep_last(target, keep, files)
                except PowerLoss:
                    finished = False
                assert finished == (after == count)
                uncertain = files.uncertain
                files.lose(undone, keep_bytes)
                found = latest(tmp_path / "out").path
                assert found is not None, (files.log, undone)
                content = content_of(found)
                assert content == "new" or not finished
                seen.add(content)
                # And the run goes on: the next save works, whatever was left behind.
                write_folder(target, NEW)
                found = latest(tmp_path / "out").path
                assert found == target and content_of(found) == "new"
                assert not (target.parent / (target.name + ".new")).exists()
                shutil.rmtree(files.bin)
            undone += 1
    assert seen == {"old", "new"}


def test_every_power_cut_finds_what_a_cut_can_leave() -> None:
    """Two files written in place: lost, half there, or there; unless the save syncs them."""

    def write(run: Path, files: Files) -> None:
        files.write(run / "a", [b"1234"])
        files.write(run / "b", [b"1234"])

    def write_and_sync(run: Path, files: Files) -> None:
        write(run, files)
        for path in (run / "a", run / "b", run):
            files.sync(path)

    def look(run: Path) -> str:
        return " ".join(f"{path.name}{path.stat().st_size}" for path in sorted(run.iterdir()))

    nothing = [""] * 3
    one = ["a0", "a2", "a4", *nothing]
    two = ["a0 b0", "a2 b2", "a4 b4", *one]
    assert every_power_cut(lambda run, files: None, write, look) == [nothing, one, two]
    found = every_power_cut(lambda run, files: None, write_and_sync, look)
    assert len(found) == 6 and found[:3] == [nothing, one, two]
    assert found[-1] == ["a4 b4"] * 3
    kept = every_power_cut(lambda run, files: write_and_sync(run, files), lambda run, files: None, look)
    assert kept == [["a4 b4"] * 3]


class Hasty(PowerCut):
    """A save that leaves some of its syncs out."""

    left_out: tuple[str, ...] = ()

    def sync(self, path: Path) -> None:
        if path.name in self.left_out or ("folder" in self.left_out and path.is_dir()):
            self.log.append("no sync")
        else:
            super().sync(path)


@pytest.mark.parametrize("left_out", [("model.safetensors",), (MARKER,), ("folder",)])
def test_each_sync_is_needed(left_out: tuple[str, ...], tmp_path: Path) -> None:
    """Without it some cut loses both checkpoints, or loses one that was said to be saved."""
    lost = 0
    for undone in range(12):
        for keep_bytes in (0.0, 1.0):
            target = start(tmp_path / "out", same=True)
            files = Hasty(tmp_path / "bin")
            files.left_out = left_out
            files.bin.mkdir()
            write_folder(target, NEW, files)
            if undone <= files.uncertain:
                files.lose(undone, keep_bytes)
                found = latest(tmp_path / "out").path
                lost += found is None or content_of(found) != "new"
            shutil.rmtree(files.bin)
    assert lost


def test_a_marker_that_is_written_first_is_found_out(tmp_path: Path) -> None:
    """The test of the cuts can fail: a folder that gets its name and marker before its bytes is taken for a whole."""
    whole = write_folder(tmp_path / "whole", NEW)
    folder = tmp_path / "out" / "step-000002"
    shutil.copytree(whole, folder)
    os.truncate(folder / "model.safetensors", 5)
    assert problem(folder) is not None and latest(folder.parent).path is None


# -------------------------------------------------------------------------------------------- disks that are full


class Full(Files):
    """The disk is full after so many operations."""

    def __init__(self, after: int, error: int) -> None:
        self.left, self.error = after, error

    def _use(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise OSError(self.error, os.strerror(self.error))

    def make_folder(self, path: Path) -> None:
        self._use()
        super().make_folder(path)

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        if self.left == 0:
            path.write_bytes(b"ha")  # as much as there was room for
        self._use()
        super().write(path, pieces)

    def sync(self, path: Path) -> None:
        self._use()

    def rename(self, old: Path, new: Path) -> None:
        self._use()
        super().rename(old, new)

    def remove(self, path: Path) -> None:
        self._use()
        super().remove(path)


@pytest.mark.parametrize("same", [False, True], ids=["a new step", "the same step again"])
def test_a_full_disk_leaves_a_whole_checkpoint(same: bool, tmp_path: Path) -> None:
    count = len(operations(tmp_path, same, 0))
    for after in range(count):
        target = start(tmp_path / "out", same)
        with pytest.raises(CheckpointError, match=r"could not be written \(No space left") as caught:
            write_folder(target, NEW, Full(after, 28))
        assert str(target) in str(caught.value) and "\n" not in str(caught.value)
        found = latest(tmp_path / "out").path
        assert found is not None and content_of(found) in ("old", "new")
        if after <= 6:  # before the marker: nothing is left of it
            assert names(tmp_path / "out") == ["step-000001"] and content_of(found) == "old"
        write_folder(target, NEW)
        assert content_of(target) == "new"


def test_a_real_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """The system refuses to write more, in a process of its own."""
    start(tmp_path, same=False)
    script = (
        "import resource, signal, sys; from pathlib import Path; from course_lib.store import write_folder\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "write_folder(Path(sys.argv[1]), {'meta.json': [b'1' * 50_000], 'model.safetensors': [b'1' * 200_000]})"
    )
    assert resource.RLIMIT_FSIZE is not None
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "step-000002")], capture_output=True, encoding="utf-8", timeout=60
    )
    assert done.returncode == 1 and "CheckpointError" in done.stderr and "File too large" in done.stderr
    assert names(tmp_path) == ["step-000001"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("here", encoding="utf-8")
    with pytest.raises(CheckpointError, match="could not be written"):
        write_folder(tmp_path / "a file" / "step-000001", OLD)
    with pytest.raises(CheckpointError, match="could not be written"):
        write_folder(tmp_path / "step-000002", OLD, Full(0, 13))


# ------------------------------------------------------------------------------------------------- what is removed


def test_the_last_ones_are_kept(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4, 30):
        folder = write_folder(tmp_path / f"step-{step:06d}", OLD)
    shutil.copytree(folder, tmp_path / "step-000002.new")
    (tmp_path / "step-000003" / MARKER).unlink()
    (tmp_path / "step-000001" / "notes.txt").write_text("mine", encoding="utf-8")
    removed = keep_last(tmp_path / "step-000004", 2)
    assert [path.name for path in removed] == ["step-000003", "step-000002"]
    assert names(tmp_path) == ["step-000001", "step-000002.new", "step-000004", "step-000030"]
    assert keep_last(tmp_path / "step-000004", 0) == [] and keep_last(tmp_path / "mine", 1) == []


def test_what_is_no_checkpoint_is_never_replaced(tmp_path: Path) -> None:
    for name, inside in (("package", "package.json"), ("notes", "notes.txt")):
        (tmp_path / name).mkdir()
        (tmp_path / name / inside).write_text("{}", encoding="utf-8")
        with pytest.raises(CheckpointError, match=inside):
            write_folder(tmp_path / name, OLD)
        assert names(tmp_path / name) == [inside]
    folder = write_folder(tmp_path / "step-000001", OLD)
    (folder / "notes.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"notes\.txt"):
        write_folder(folder, NEW)
    assert content_of(folder) == "old"


def test_ctrl_c_leaves_nothing_half(tmp_path: Path) -> None:
    class Stopped(Files):
        def sync(self, path: Path) -> None:
            raise KeyboardInterrupt

    start(tmp_path, same=False)
    with pytest.raises(KeyboardInterrupt):
        write_folder(tmp_path / "step-000002", NEW, Stopped())
    assert names(tmp_path) == ["step-000001"] and store.FORMAT == 2
