"""Saving the medium preset against writing and syncing the same bytes, and from a checkpoint to the first step.

    python benchmarks/checkpoint.py [--out FILE.json] [--rounds N] [--preset NAME] [--folder FOLDER]

Both run in turn in each round, so that other work on the disk hits both alike: a plain write and fsync of one file with
the checkpoint's bytes, and the trainer's own save (a new folder, four files and a marker, checksums, fsync of files and
folders, rename). Then the parts of a save, each alone. The folder is on the disk that is measured (default: a temporary
one in the working folder). Loading is measured with everything imported and the file in the system's memory.
"""

import argparse
import gc
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from course_lib.anatomy import contents
from course_lib.checkpoint import find
from course_lib.config import TrainConfig
from course_lib.files import Files
from course_lib.machine import probe
from course_lib.step import training_step
from course_lib.store import keep_last
from course_lib.trainer import Trainer

SAVE_LIMIT, LOAD_LIMIT = 2.5, 1.0


class Timed(Files):
    """Adds up the seconds of each kind of file operation."""

    def __init__(self) -> None:
        self.seconds = {"write": 0.0, "sync": 0.0, "names": 0.0}

    def _add(self, what: str, call: Callable[[], None]) -> None:
        began = time.perf_counter()
        call()
        self.seconds[what] += time.perf_counter() - began

    def make_folder(self, path: Path) -> None:
        self._add("names", lambda: super(Timed, self).make_folder(path))

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        self._add("write", lambda: super(Timed, self).write(path, pieces))

    def sync(self, path: Path) -> None:
        self._add("sync", lambda: super(Timed, self).sync(path))

    def rename(self, old: Path, new: Path) -> None:
        self._add("names", lambda: super(Timed, self).rename(old, new))

    def remove(self, path: Path) -> None:
        self._add("names", lambda: super(Timed, self).remove(path))


def seconds_of(call: Callable[[], object]) -> float:
    """Wall-clock seconds of one call."""
    began = time.perf_counter()
    call()
    return time.perf_counter() - began


def plain(path: Path, data: bytes) -> None:
    """The least that puts bytes on a disk."""
    with path.open("wb", buffering=0) as file:
        left = memoryview(data)
        while len(left):
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def measure_saves(folder: Path, preset: str, rounds: int) -> tuple[int, dict[str, list[float]]]:
    """Bytes of the checkpoint, and seconds of each round by name."""
    trainer = Trainer(TrainConfig(preset=preset, batch=2, device="cpu", precision="fp32"))
    trainer.model.train()
    training_step(trainer.parts, trainer.step)  # so that there are moments to save
    first = trainer.save(folder / "step-000000")
    size = sum(part.bytes for part in contents(first))
    data = b"".join(path.read_bytes() for path in sorted(first.iterdir()))
    rows: dict[str, list[float]] = {name: [] for name in ("plain", "save", "write", "sync", "names", "checksum")}
    for number in range(1, rounds + 1):
        (folder / "plain").unlink(missing_ok=True)
        rows["plain"].append(seconds_of(lambda: plain(folder / "plain", data)))
        trainer.files = Timed()
        there = folder / f"step-{number:06d}"
        rows["save"].append(seconds_of(lambda there=there: trainer.save(there)))
        for part, seconds in trainer.files.seconds.items():
            rows[part].append(seconds)
        rows["checksum"].append(seconds_of(lambda: hashlib.sha256(data).digest()))
        keep_last(there, 1)
    return size, rows


def measure_loads(folder: Path, rounds: int) -> dict[str, list[float]]:
    """Seconds of each round by name."""
    rows: dict[str, list[float]] = {
        name: [] for name in ("find and check", "resume", "first step", "load to first step")
    }
    Trainer.resume(folder)  # imports what the first optimizer of a process imports
    for _ in range(rounds):
        rows["find and check"].append(seconds_of(lambda: find(folder)))
        began = time.perf_counter()
        resumed = Trainer.resume(folder)
        rows["resume"].append(time.perf_counter() - began)
        resumed.model.train()
        rows["first step"].append(seconds_of(lambda one=resumed: training_step(one.parts, one.step)))
        rows["load to first step"].append(time.perf_counter() - began)
        del resumed
        gc.collect()
    return rows


def main() -> None:
    """Measure, print, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the numbers here as JSON")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--preset", default="medium")
    parser.add_argument("--folder", type=Path, default=Path.cwd(), help="where to write the temporary files")
    arguments = parser.parse_args()
    machine = probe()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        size, rows = measure_saves(Path(name), arguments.preset, arguments.rounds)
        gc.collect()
        rows |= measure_loads(Path(name), arguments.rounds)
    ratio = statistics.median(save / least for save, least in zip(rows["save"], rows["plain"], strict=True))
    load = statistics.median(rows["load to first step"])
    print(f"{machine.cpu}, torch {machine.torch}, {machine.threads} threads; {arguments.preset}, {size / 1e6:.1f} MB")
    print(f"{'':<20}{'median':>8} ms  (least, most)")
    for name, values in rows.items():
        middle, least, most = (1e3 * each for each in (statistics.median(values), min(values), max(values)))
        print(f"{name:<20}{middle:>8.0f} ms  ({least:.0f}, {most:.0f})")
    print(f"save / plain {ratio:.2f}: at most {SAVE_LIMIT}. Load to first step {load:.2f} s: under {LOAD_LIMIT:.0f} s")
    if arguments.out is not None:
        result = {
            "benchmark": "checkpoint",
            "machine": asdict(machine),
            "preset": arguments.preset,
            "bytes": size,
            "rounds": arguments.rounds,
            "save_to_plain": ratio,
            "load_to_first_step_seconds": load,
            "seconds": rows,
        }
        arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
