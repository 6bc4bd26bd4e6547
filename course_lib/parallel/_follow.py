"""Follow the ranks of one call: pass on what they print, collect what they return, find out what went wrong."""

import os
import re
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import IO, Any

import cloudpickle

from course_lib.errors import RankError
from course_lib.parallel import _report
from course_lib.parallel._crew import START_LIMIT, Crew
from course_lib.parallel._lines import dumped_line

__all__: list[str] = []

GRACE = 0.5  # seconds in which the other ranks say what they know of a fault
AFTERMATH = 0.1  # seconds in which others may fail too, and are then named
ANSWER = 1.0  # seconds in which a rank has to say where it stands
UNEXPECTED = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
"""Gloo's last words in a rank that was sent more than it expected."""
# What gloo and c10d write to the bare descriptors: connections made and lost.
NOISE = re.compile(
    rb"\[(rank\d+\]:\[)?[IWEFVC]\d{4} |\[Gloo\]|\[c10d\]|frame #\d+: |Exception raised from |[IWEF]\d{4} "
)


class Follower:
    """One call from the set-up to the results or the `RankError`."""

    def __init__(self, crew: Crew, timeout: float) -> None:
        self.crew, self.timeout = crew, timeout
        self.ranks = [_report.Rank() for _ in crew.processes]
        self.parcels: dict[int, bytes] = {}
        self.listening = {process.connection: number for number, process in enumerate(crew.processes)}
        self.written = [False] * len(crew.processes)  # whether its bare stderr holds a report of where it stood
        self.news = False  # whether more is known of what the ranks have called
        self.read = [[0, 0] for _ in crew.processes]

    def results(self) -> list[Any]:
        """What each rank returned. Raises the `RankError` of the first fault."""
        limit, started, running = START_LIMIT, time.monotonic(), False
        while not all(rank.finished for rank in self.ranks):
            if not running and all(rank.ready for rank in self.ranks):
                limit, started, running = self.timeout, time.monotonic(), True
            self.listen(min(0.25, max(0.0, started + limit - time.monotonic())))
            self.crew.starter.look(self.crew.processes)  # raises when what started the ranks has gone
            self.show_bare()
            if any(rank.failure or rank.death for rank in self.ranks):
                raise self.fault()
            if self.news and _report.disagreement(self.ranks) is not None:
                self.ask(GRACE)  # so that it is told of all ranks
                if (problem := _report.disagreement(self.ranks)) is not None:
                    raise problem
            self.news = False
            if time.monotonic() >= started + limit and not all(rank.finished for rank in self.ranks):
                self.ask(ANSWER)
                if not running:
                    raise _report.of_start(self.ranks, limit)
                raise _report.disagreement(self.ranks) or _report.of_hang(self.ranks, limit)
        self.show_bare()
        if (problem := _report.disagreement(self.ranks, over=True)) is not None:
            raise problem
        return [self.unpack(number) for number in range(len(self.ranks))]

    def unpack(self, number: int) -> Any:
        try:
            return cloudpickle.loads(self.parcels.pop(number))
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
            text = f"rank {number} returned something that cannot be read here: {why}"
            raise RankError(text, rank=number, ranks=(number,)) from None

    def listen(self, seconds: float) -> None:
        """Take what has come, waiting at most so long for it."""
        for connection in wait(list(self.listening), seconds):
            number = self.listening[connection]  # type: ignore[index]
            try:
                self.hear(number, *cloudpickle.loads(connection.recv_bytes()))  # type: ignore[union-attr]
            except (EOFError, OSError):
                del self.listening[connection]  # type: ignore[arg-type]
                self.ranks[number].death = (time.monotonic(), self.exit_code(number))

    def exit_code(self, number: int) -> int | None:
        """The code of a rank whose pipe has closed."""
        process, end = self.crew.processes[number], time.monotonic() + 1.0
        while process.code is None and time.monotonic() < end:
            self.crew.starter.look(self.crew.processes)
            time.sleep(0.002)
        return process.code

    def hear(self, number: int, kind: str, when: float, content: tuple[Any, ...]) -> None:
        """Take in one message of a rank."""
        rank = self.ranks[number]
        self.news = self.news or kind in ("place", "returned")
        if kind in ("stdout", "stderr"):
            say(number, content[0], kind)
        elif kind == "ready":
            rank.ready = True
        elif kind == "port":
            for process in self.crew.processes[1:]:
                with suppress(OSError):
                    process.connection.send_bytes(str(content[0]).encode("ascii"))
        elif kind == "place":
            rank.place = content[0]
            rank.note(*content[1:])
        elif kind == "returned":
            self.parcels[number] = self.crew.processes[number].connection.recv_bytes()
            rank.returned = True
            rank.note(*content)
        elif kind == "failed":
            rank.failure = _report.Failure(when, *content[:4])
            rank.note(*content[4:])
        elif kind == "finished":
            rank.finished = True

    def ask(self, seconds: float) -> None:
        """Where does each rank stand, what has it called? Those that do not answer are made to write it."""
        asked = []
        for connection, number in self.listening.items():
            if self.ranks[number].ready and not self.ranks[number].finished and self.ranks[number].failure is None:
                self.ranks[number].place = None
                with suppress(OSError):
                    connection.send_bytes(b"place")
                    asked.append(number)
        self.listen_until(seconds, lambda: not any(self.is_silent(number) for number in asked))
        silent = [number for number in asked if self.is_silent(number)]
        for number in silent:
            self.written[number] = True
            self.crew.starter.dump(self.crew.processes[number])
        if silent:
            time.sleep(0.1)
            for number in silent:
                self.ranks[number].crash = dumped_line(self.bare_stderr(number))

    def is_silent(self, number: int) -> bool:
        rank = self.ranks[number]
        return not (rank.place or rank.failure or rank.death or rank.finished)

    def listen_until(self, seconds: float, enough: Callable[[], bool]) -> None:
        """Listen at most so long."""
        end = time.monotonic() + seconds
        while not enough() and (left := end - time.monotonic()) > 0:
            self.listen(left)

    def fault(self) -> RankError:
        """Which rank failed first. An error of communication is often another rank's fault: wait a moment for that."""
        self.ask(GRACE)
        self.listen_until(
            GRACE,
            lambda: bool(self.causes()) or _report.disagreement(self.ranks) is not None,
        )
        self.listen_until(AFTERMATH, lambda: len(self.causes()) == len(self.ranks))
        self.show_bare()
        causes = sorted(self.causes())
        if not causes and (problem := _report.disagreement(self.ranks)) is not None:
            return problem
        if not causes:  # errors of communication alone
            causes = sorted((rank.failure.time, one) for one, rank in enumerate(self.ranks) if rank.failure is not None)
        first, failed = causes[0][1], tuple(sorted(number for _, number in causes))
        if self.ranks[first].failure is not None:
            return _report.of_failure(first, self.ranks, failed)
        dump = self.bare_stderr(first)
        self.ranks[first].crash = dumped_line(dump)
        if (sizes := UNEXPECTED.search(dump)) is not None:
            self.ranks[first].unexpected = int(sizes[1]), int(sizes[2])
        if self.ranks[first].crash is None:
            self.ranks[first].last_words = "\n".join(dump.splitlines()[-8:])
        return _report.of_death(first, self.ranks, failed)

    def causes(self) -> list[tuple[float, int]]:
        """Deaths, and errors that are not of communication: when, and on which rank."""
        found = []
        for number, rank in enumerate(self.ranks):
            if rank.failure is not None and not rank.failure.communication:
                found.append((rank.failure.time, number))
            elif rank.failure is None and rank.death is not None:
                found.append((rank.death[0], number))
        return found

    def show_bare(self) -> None:
        """Pass on whole lines that were written past Python's streams: by a program that a rank started, or by C."""
        for number, process in enumerate(self.crew.processes):
            for stream, kind in enumerate(("stdout", "stderr")):
                if kind == "stderr" and (self.written[number] or self.ranks[number].death):
                    continue  # what is there goes into the error instead
                *lines, _ = tail(process.bare[stream], self.read[number][stream])
                if kind == "stderr" and any(line.startswith(b"Fatal Python error") for line in lines):
                    self.written[number] = True
                    continue
                self.read[number][stream] += sum(len(line) + 1 for line in lines)
                heard = [line.decode("utf-8", "replace") for line in lines if line and not NOISE.match(line)]
                if heard:
                    say(number, heard, kind)

    def bare_stderr(self, number: int) -> str:
        """What compiled code wrote there, without the network library's own notes."""
        lines = [line for line in tail(self.crew.processes[number].bare[1], 0) if line and not NOISE.match(line)]
        return b"\n".join(lines).decode("utf-8", "replace")


def tail(file: IO[bytes], begin: int) -> list[bytes]:
    """The lines of a file from a place on; the last one may be unfinished."""
    if os.fstat(file.fileno()).st_size <= begin:
        return [b""]
    if hasattr(os, "pread"):  # the rank writes with the same file position
        return os.pread(file.fileno(), 2**20, begin).split(b"\n")
    with suppress(OSError), open(file.name, "rb") as copy:
        copy.seek(begin)
        return copy.read(2**20).split(b"\n")
    return [b""]


def say(number: int, lines: list[str], kind: str) -> None:
    """Print a rank's lines with its mark."""
    stream = sys.stdout if kind == "stdout" else sys.stderr
    stream.write("".join(f"[rank {number}] {line}\n" for line in lines))
