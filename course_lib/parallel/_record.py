"""What a rank has called and where it stands: torch's flight recorder and the main thread's stack, in plain data.

The recorder (`TORCH_FR_BUFFER_SIZE`, set by `launch`) notes each collective with its shape and the lines that called
it, in C++, also those of DDP and FSDP. It is private to torch: this is the one place that reads it.
"""

import os
import sys
import threading
import types
from dataclasses import dataclass
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

from course_lib.parallel._lines import Line, best_line, in_one_line, is_library

__all__: list[str] = []

DISTRIBUTED = os.path.join(os.path.dirname(torch.__file__), "distributed")
SHAPES_MAY_DIFFER = ("all_to_all", "gather", "scatter", "barrier")
# As the recorder calls them.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "int": "int32",
    "long": "int64",
    "byte": "uint8",
}
DTYPES |= {"char": "int8"}


@dataclass(frozen=True)
class Operation:
    """One collective as a rank called it."""

    group: str
    ranks: tuple[int, ...]
    """Global ranks of the group; empty: no longer known."""
    number: int
    """Counts the collectives of this group, from 1."""
    kind: str
    dtype: str
    shape: tuple[int, ...]
    line: Line | None

    def __str__(self) -> str:
        what = f" of {self.dtype} {self.shape}" if self.dtype else ""
        return self.kind + what

    def agrees(self, other: "Operation") -> bool:
        """Whether two ranks' calls belong together."""
        if self.kind != other.kind or self.kind in SHAPES_MAY_DIFFER:
            return self.kind == other.kind
        return (self.dtype, self.shape) == (other.dtype, other.shape)


@dataclass(frozen=True)
class Place:
    """Where a rank stands."""

    line: Line | None
    waits_in: str
    """The communication call it is in, "" for none."""


def operations(after: int) -> tuple[list[Operation], int, bool]:
    """The collectives that were called since number `after` of the recorder, the next number, and whether some of
    them are no longer in it (it keeps the last 1024)."""
    dump = _distributed_c10d._dump_fr_trace(True, True, False)  # type: ignore[attr-defined]
    entries = cloudpickle.loads(dump)["entries"]
    world = dist.distributed_c10d._world
    # A group that this rank is not in has no name here, and other threads may make groups meanwhile.
    mine = [(world.pg_names.get(group), found) for group, found in list(world.pg_group_ranks.items())]
    ranks = {name: tuple(sorted(found)) for name, found in mine if name is not None}
    newest = max((entry["record_id"] + 1 for entry in entries), default=after)
    lost = min((entry["record_id"] for entry in entries), default=after) > after
    found = []
    for entry in entries:
        if entry["record_id"] >= after and not entry["is_p2p"]:
            group, sizes, dtypes = (
                entry["process_group"][0],
                entry["input_sizes"],
                entry["input_dtypes"],
            )
            frames = [(frame["filename"], frame["line"], frame["name"]) for frame in entry["frames"]]
            found.append(
                Operation(
                    group=group,
                    ranks=ranks.get(group, ()),
                    number=entry["collective_seq_id"],
                    kind=kind_of(
                        entry["profiling_name"], [name for file, _, name in frames if file.startswith(DISTRIBUTED)]
                    ),
                    dtype=DTYPES.get(dtypes[0].lower(), dtypes[0].lower()) if dtypes else "",
                    shape=tuple(sizes[0]) if sizes else (),
                    line=best_line(frames),
                )
            )
    return found, newest, lost


def kind_of(profiled: str, functions: list[str]) -> str:
    """What was called, in the caller's words: gloo runs a reduce-scatter as an all-reduce, and notes that."""
    kind = profiled.rpartition(":")[2]
    called = next((name for name in functions if name.startswith(("all_reduce", "reduce_scatter"))), "")
    return "reduce_scatter" if kind == "all_reduce" and called.startswith("reduce_scatter") else kind


def main_frame() -> types.FrameType | None:
    return sys._current_frames().get(threading.main_thread().ident or 0)


def place(frame: types.FrameType | None) -> Place:
    """Where the main thread stands, seen from another thread."""
    frames, waits_in, in_library = [], "", True
    while frame is not None:
        file = frame.f_code.co_filename
        in_library = in_library and is_library(file)
        if in_library and file.startswith(DISTRIBUTED) and not frame.f_code.co_name.startswith(("_", "wrapper")):
            waits_in = frame.f_code.co_name + peer(frame)
        frames.append((file, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return Place(best_line(frames), waits_in)


def peer(frame: types.FrameType) -> str:
    """ " from rank 1" for a receive, " to rank 1" for a send."""
    name = frame.f_code.co_name
    for kind, word in (("src", "from"), ("dst", "to")):
        rank: Any = frame.f_locals.get(kind)
        if name in ("send", "recv", "isend", "irecv") and isinstance(rank, int):
            return f" {word} rank {rank}"
    return ""


def is_communication(error: BaseException | None) -> bool:
    """Whether an error, or what led to it, is torch.distributed's own: often a sign of another rank's fault."""
    while error is not None:
        text = in_one_line(error).lower()
        if isinstance(error, dist.DistError) or (
            isinstance(error, RuntimeError) and ("gloo" in text or "connection" in text)
        ):
            return True
        error = error.__cause__ or error.__context__
    return False
