"""Check 06.5: an order of file operations that survives a power cut after each of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong

__all__ = ["CRASH"]

OPERATIONS = ("make", "write", "sync", "remove")
NEW, MARKER = "new", "COMPLETE"


def crash_cases(seed: int) -> list[Case]:
    """With and without an older checkpoint, few and many files."""
    rng = np.random.default_rng([seed, 605])
    names = ["model", "optimizer", "meta", "tokenizer", "masters"]
    some = [str(name) for name in rng.permutation(names)[:3]]
    return [
        {"name": "the first checkpoint of a run, one file", "files": ["model"], "old": None},
        {"name": "an older checkpoint, two files", "files": ["model", "optimizer"], "old": "step-000010"},
        {"name": "an older checkpoint, three files", "files": some, "old": "step-000400"},
        {"name": "the first checkpoint of a run, five files", "files": names, "old": None},
    ]


def crash_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    returned = answer(list(case["files"]), case["old"])
    if not isinstance(returned, (list, tuple)):
        return {"type": type(returned).__name__}
    rows = []
    for row in returned:
        if not (isinstance(row, (list, tuple)) and len(row) == 2 and all(isinstance(word, str) for word in row)):
            return {"row": repr(row)[:60]}
        rows.append([row[0], row[1].rstrip("/") or "."])
    return {"rows": rows}


@dataclass
class Disk:
    """What is certain about the disk if the power goes now. `old` stands for a whole older checkpoint."""

    files: Sequence[str]
    old: str | None
    made: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    bytes_safe: set[str] = field(default_factory=set)
    """Files whose bytes are on the disk."""
    names_safe: set[str] = field(default_factory=set)
    """Files and folders whose name is on the disk: their folder was synced after they were made."""
    old_touched: bool = False

    def do(self, operation: str, path: str) -> str:
        """Do one operation; what is impossible about it, or ""."""
        folder, _, name = path.rpartition("/")
        if operation == "make":
            if path in self.made or path == self.old:
                return f"`make {path}`: it is there already"
            if path != NEW:
                return f"`make {path}`: the only folder to make is `{NEW}`"
            self.made.add(path)
        elif operation == "write":
            if name == MARKER and folder != NEW:
                return f"`write {path}`: the marker stands in the folder that it vouches for"
            if folder not in self.made:
                return f"`write {path}`: there is no folder `{folder or '.'}` of yours yet"
            if name not in (*self.files, MARKER):
                return f"`write {path}`: the files are {', '.join(self.files)} and {MARKER}"
            if path in self.written:
                return f"`write {path}`: it has been written already"
            self.written.add(path)
        elif operation == "sync":
            if path == ".":
                self.names_safe |= self.made
            elif path in self.made:
                self.names_safe |= {one for one in self.written if one.rpartition("/")[0] == path}
            elif path in self.written:
                self.bytes_safe.add(path)
            elif self.old is None or not (path == self.old or path.startswith(f"{self.old}/")):
                return f"`sync {path}`: there is nothing of that name"
        else:
            if self.old is None or path != self.old:
                return (
                    f"`remove {path}`: only the older checkpoint, as a whole, may go"
                    if self.old
                    else (f"`remove {path}`: there is no older checkpoint here; `old` is None")
                )
            if self.old_touched:
                return f"`remove {path}`: it has been removed already"
            self.old_touched = True
        return ""

    def unsafe(self) -> list[str]:
        """What of the new checkpoint may be lost or cut short, in words: bytes, names, the folder."""
        paths = [f"{NEW}/{name}" for name in self.files]
        out = [f"{path} may be missing" for path in paths if path not in self.written]
        out += [f"{path} may be cut short" for path in paths if path in self.written - self.bytes_safe]
        return out + [
            f"the name of {path} may be lost" for path in paths if path in self.written and path not in self.names_safe
        ]

    def marker_unsafe(self) -> list[str]:
        """What of the marker and of the folder itself may not be on the disk, in words."""
        marker = f"{NEW}/{MARKER}"
        safe = {
            "the marker's bytes": marker in self.bytes_safe,
            "the marker's name": marker in self.names_safe,
            f"the name of the folder `{NEW}`": NEW in self.names_safe,
        }
        return [what for what, is_safe in safe.items() if not is_safe]


def crash_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact. After every operation the power goes, and whatever was not synced is lost, or not, as is worst."""
    if "type" in returned:
        return Wrong(f"return a list of (operation, path) pairs; yours is a {returned['type']}")
    if "row" in returned:
        return Wrong(f"every entry is a pair of two texts, (operation, path); {returned['row']} is not")
    disk = Disk(case["files"], case["old"])
    for number, (operation, path) in enumerate(returned["rows"], start=1):
        if operation not in OPERATIONS:
            return Wrong(f"`{operation}` is no operation; there are {', '.join(OPERATIONS)}")
        problem = disk.do(operation, path)
        if problem:
            return Wrong(f"operation {number}, {problem}")
        wrong = _power_cut(disk, f"the power goes after operation {number}, `{operation} {path}`: ")
        if wrong is not None:
            return wrong
    return _at_the_end(disk)


def _power_cut(disk: Disk, when: str) -> Wrong | None:
    marked = f"{NEW}/{MARKER}" in disk.written
    unsafe = disk.unsafe()
    if marked and unsafe:
        message = f"{when}the marker may be on the disk, and {unsafe[0]}. A reader would believe the marker."
        if "missing" in unsafe[0]:
            return Wrong(message, "the-marker-announces")
        return Wrong(message, "written-is-on-the-disk" if "cut short" in unsafe[0] else "a-synced-file-has-a-name")
    if disk.old_touched and not (marked and not unsafe and not disk.marker_unsafe()):
        if not marked or unsafe:
            return Wrong(f"{when}the old one is going, and the new one is not complete", "room-first")
        message = f"{when}the old one is going, and {disk.marker_unsafe()[0]} may not be on the disk yet"
        return Wrong(message, "the-marker-needs-no-sync")
    return None


def _at_the_end(disk: Disk) -> Wrong | None:
    marked = f"{NEW}/{MARKER}" in disk.written
    if not marked or disk.unsafe():
        what = disk.unsafe()[0] if disk.unsafe() else f"there is no {MARKER}, so no reader takes it"
        return Wrong(f"at the end the new checkpoint is not complete: {what}")
    if disk.marker_unsafe():
        what = " and ".join(disk.marker_unsafe())
        message = f"at the end the power goes, and no reader may find the new checkpoint: not yet safe: {what}"
        return Wrong(message, "the-marker-needs-no-sync")
    if disk.old is not None and not disk.old_touched:
        return Wrong("at the end both checkpoints are there; only the new one is to be kept")
    return None


CRASH = Exercise(
    id="crash-safe-order",
    title="An order that survives a power cut",
    cases=crash_cases,
    run=crash_run,
    judge=crash_judge,
    misconceptions={
        "the-marker-announces": "a marker may be written before what it marks",
        "written-is-on-the-disk": "what a program has written is on the disk",
        "a-synced-file-has-a-name": "syncing a file also keeps its name in its folder",
        "the-marker-needs-no-sync": "the last file needs no sync",
        "room-first": "the old checkpoint has to go before the new one comes",
    },
)
