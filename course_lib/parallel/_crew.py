"""Rank processes as the caller sees them, forked by the fork server. Where there is no `fork`, see `_pool.py`."""

import atexit
import itertools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Protocol

from course_lib.errors import RankError

__all__: list[str] = []

START_LIMIT = 120.0  # seconds that a loaded machine may take to import torch
SCRIPT = Path(__file__).with_name("_server.py")
GONE = "the process that starts the ranks has ended; run the cell again"


@dataclass
class Process:
    """One rank's process."""

    pid: int
    connection: Connection
    bare: tuple[IO[bytes], IO[bytes]]
    """What went to the descriptors 1 and 2 past Python's streams."""
    code: int | None = None
    """Exit code, once it has ended; negative: the number of the signal."""

    def close(self) -> None:
        """Let go of the connection and the files; a rank that still runs ends by itself then."""
        self.connection.close()
        for file in self.bare:
            file.close()


class Starter(Protocol):
    """A way to get rank processes."""

    def start(self, ranks: int) -> list[Process]:
        """Ranks that wait for their set-up."""

    def look(self, processes: list[Process]) -> None:
        """Note the exit codes of those that have ended."""

    def kill(self, process: Process) -> None:
        """End it and what it has started."""

    def dump(self, process: Process) -> None:
        """Let it write where its Python stands to its bare stderr, whatever it is doing."""

    def release(self, processes: list[Process]) -> bool:
        """After a call without a fault: True when the processes stay for the next call."""

    def close(self) -> None:
        """Leave nothing running."""

    def alive(self) -> bool:
        """Whether it can start ranks, and is this process's own."""


@dataclass
class Crew:
    """The ranks of one call."""

    starter: Starter
    processes: list[Process] = field(default_factory=list)

    def dismiss(self, patience: float = 0.0) -> None:
        """Nothing is left after this: ranks get `patience` seconds to end by themselves, then they are killed."""
        begun = time.monotonic()
        killed = False
        try:
            while left := self._left():
                waited = time.monotonic() - begun
                if waited >= patience and not killed:
                    for process in left:
                        self.starter.kill(process)
                    killed = True
                if waited > patience + 5:
                    break
                time.sleep(0.002)
        finally:
            for process in self.processes:
                process.close()
            self.processes = []

    def _left(self) -> list[Process]:
        try:
            self.starter.look(self.processes)
        except RankError:  # the fork server has gone
            for process in self.processes:
                self.starter.kill(process)
            return []
        return [process for process in self.processes if process.code is None]


def search_path() -> list[str]:
    """`sys.path` as it is now, without relative parts."""
    path = []
    for part in sys.path:
        with suppress(OSError):  # the working directory may have been removed
            path.append(os.path.abspath(part or os.curdir))
    return path


def bare_files() -> tuple[IO[bytes], IO[bytes]]:
    return tempfile.TemporaryFile(), tempfile.TemporaryFile()


def one_thread() -> dict[str, str]:
    """The environment of a process that imports torch without starting threads, so that it can fork."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    return dict(os.environ) | dict.fromkeys(names, "1")


class ForkServer:
    """The caller's end of `_server.py`: one per caller, started at its first call."""

    def __init__(self) -> None:
        self.control, theirs = socket.socketpair()
        self.owner = os.getpid()
        self._rest, self._exits, self._requests = b"", {}, itertools.count()  # type: bytes, dict[int, int], Any
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        with theirs:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    str(SCRIPT),
                    "fork",
                    str(theirs.fileno()),
                    json.dumps(search_path()),
                ],
                pass_fds=[theirs.fileno()],
                env=one_thread(),
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                start_new_session=True,
            )
        self._ready = False
        atexit.register(self.close)

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def close(self) -> None:
        atexit.unregister(self.close)
        self.control.close()
        if self.owner != os.getpid():
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(2)
        self.process.kill()
        self.process.wait()

    def start(self, ranks: int) -> list[Process]:
        if not self._ready:
            self._wait_for("ready", True)
            self._ready = True
        number = next(self._requests)
        pairs = [socket.socketpair() for _ in range(ranks)]
        bare = [bare_files() for _ in range(ranks)]
        fds = []
        for (_, theirs), files in zip(pairs, bare, strict=True):
            fds += [theirs.fileno(), *(file.fileno() for file in files)]
        request = json.dumps({"fork": ranks, "number": number}).encode("ascii") + b"\n"
        try:
            socket.send_fds(self.control, [request], fds)
        except OSError:
            raise RankError(GONE) from None
        for _, theirs in pairs:
            theirs.close()
        pids = self._wait_for("forked", number)["pids"]
        return [
            Process(pid, Connection(ours.detach()), files)
            for pid, (ours, _), files in zip(pids, pairs, bare, strict=True)
        ]

    def look(self, processes: list[Process]) -> None:
        while self._answer(0) is not None:
            pass
        for process in processes:
            if process.code is None:
                process.code = self._exits.pop(process.pid, None)

    def kill(self, process: Process) -> None:
        if self.process.poll() is None:
            self._ask({"kill": process.pid})
        elif process.code is None:
            with suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)

    def dump(self, process: Process) -> None:
        self._ask({"dump": process.pid})

    def release(self, processes: list[Process]) -> bool:
        return False

    def _ask(self, what: dict[str, int]) -> None:
        with suppress(OSError):
            self.control.sendall(json.dumps(what).encode("ascii") + b"\n")

    def _answer(self, seconds: float) -> dict[str, Any] | None:
        """One line from the server; None when there was none in time."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            if not select.select([self.control], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            try:
                data = self.control.recv(65536)
            except OSError:
                data = b""
            if not data:
                raise RankError(GONE + self._last_words())
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "exit" in answer:
            self._exits[answer["exit"]] = answer["code"]
        return answer

    def _wait_for(self, key: str, value: Any) -> dict[str, Any]:
        end = time.monotonic() + START_LIMIT
        while True:
            answer = self._answer(max(0.0, end - time.monotonic()))
            if answer is None:
                raise RankError(f"the ranks could not be started within {START_LIMIT:.0f} s")
            if answer.get(key) == value:
                return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode("utf-8", "replace").strip().splitlines()
        return f" ({lines[-1]})" if lines else ""
