"""Lines of code as a learner knows them: in which cell or file, in which function. No torch."""

import linecache
import os
import re
import sysconfig
import traceback
from contextlib import suppress
from dataclasses import dataclass

__all__: list[str] = []

HERE = os.path.dirname(os.path.abspath(__file__))
COURSE = os.path.dirname(HERE)
MACHINERY = (os.path.join(HERE, "_"), os.path.join(HERE, "launch.py"))
LIBRARIES = ("<frozen", *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")})
names: dict[str, str] = {}
"""What a reader calls a cell, by the file name that its code has."""


@dataclass(frozen=True)
class Line:
    """A line of somebody's code."""

    file: str
    number: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}, line {self.number}, in {self.function}" + (f": {self.text}" if self.text else "")


def is_library(file: str) -> bool:
    """Python's own code and what was installed."""
    return file.startswith(LIBRARIES)


def label(file: str) -> str:
    """A file as a learner knows it: its cell, else its path from the working directory."""
    if file in names:
        return names[file]
    with suppress(OSError, ValueError):
        near = os.path.relpath(file)
        if not near.startswith(os.pardir):
            return near
    return file


def best_line(frames: list[tuple[str, int, str]]) -> Line | None:
    """Of (file, line, function), innermost first: the learner's innermost line, else the course's."""
    own = [frame for frame in frames if not is_library(frame[0]) and not frame[0].startswith(MACHINERY)]
    outside = [frame for frame in own if not frame[0].startswith(COURSE + os.sep)]
    for file, number, function in (outside or own)[:1]:
        return Line(label(file), number, function, linecache.getline(file, number).strip())
    return None


def dumped_line(dump: str) -> Line | None:
    """The learner's innermost line in what `faulthandler` wrote."""
    found = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', dump, re.MULTILINE)
    return best_line([(file, int(number), function) for file, number, function in found])


def readable(error: BaseException) -> str:
    """A traceback without the launcher's and torch's wrapping frames, with cells by their names."""
    whole = traceback.TracebackException.from_exception(error)
    clean(whole)
    return "".join(whole.format()).rstrip()


def in_one_line(error: BaseException) -> str:
    """ "ValueError: what it says"."""
    return " ".join(traceback.format_exception_only(error)[-1].split())[:500]


def clean(whole: traceback.TracebackException) -> None:
    """Drop frames, rename files; in the errors that led to this one too."""
    kept = []
    for frame in whole.stack:
        if not frame.filename.startswith(MACHINERY) and not frame.filename.endswith("c10d_logger.py"):
            _ = frame.line  # read while the file name is still the real one
            frame.filename = label(frame.filename)
            kept.append(frame)
    whole.stack[:] = kept
    for other in (
        whole.__cause__,
        whole.__context__,
        *(getattr(whole, "exceptions", None) or ()),
    ):
        if other is not None:
            clean(other)
