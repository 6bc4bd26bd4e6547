"""Starting and ending rank processes: through the fork server where there is `fork`, else from a pool."""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any

from course_lib.errors import RankError

__all__: list[str] = []

START_LIMIT = 120.0  # seconds that a loaded machine may take to import torch


@dataclass
class Process:
    """One rank's process as the caller sees it."""

    pid: int
    connection: Connection
    out: IO[bytes]
    """What went to the bare descriptors 1 and 2, past Python."""
    err: IO[bytes]
    code: int | None = None
    """Exit code, once it has ended; negative: the number of the signal."""


class ForkServer:
    """One per caller, started at the first call."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        path = json.dumps([os.path.abspath(part or os.curdir) for part in sys.path])
        script = Path(__file__).with_name("_server.py")
        self.log = tempfile.TemporaryFile()  # noqa: SIM115
        self.owner = os.getpid()
        self.process = subprocess.Popen(
            [sys.executable, "-P", str(script), str(theirs.fileno()), path],
            pass_fds=[theirs.fileno()],
            env=os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
            start_new_session=True,
        )
        theirs.close()
        self.control = ours
        self._rest = b""
        self.exits: dict[int, int] = {}

    def alive(self) -> bool:
        return self.owner == os.getpid() and self.process.poll() is None

    def next_answer(self, seconds: float) -> dict[str, Any] | None:
        """One line from the server; None when there was none in time. Exits are kept in `exits`."""
        end = time.monotonic() + seconds
        while b"\n" not in self._rest:
            ready = select.select([self.control], [], [], max(0.0, end - time.monotonic()))[0]
            if not ready:
                return None
            data = self.control.recv(65536)
            if not data:
                raise RankError("the process that starts the ranks has ended; call run_ranks again")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        if "exit" in answer:
            self.exits[answer["exit"]] = answer["code"]
        return answer

    def wait_for(self, key: str, seconds: float) -> Any:
        end = time.monotonic() + seconds
        while True:
            answer = self.next_answer(max(0.0, end - time.monotonic()))
            if answer is None:
                raise RankError(f"the ranks could not be started within {seconds:.0f} s")
            if key in answer:
                return answer[key]

    def fork(self, number: int) -> list[Process]:
        """Start ranks; each waits for its set-up on its connection."""
        pairs = [socket.socketpair() for _ in range(number)]
        files = [(tempfile.TemporaryFile(), tempfile.TemporaryFile()) for _ in range(number)]  # noqa: SIM115
        fds = [
            fd
            for (_, theirs), pair in zip(pairs, files, strict=True)
            for fd in (theirs.fileno(), *(file.fileno() for file in pair))
        ]
        socket.send_fds(self.control, [json.dumps({"fork": number}).encode("ascii") + b"\n"], fds)
        for _, theirs in pairs:
            theirs.close()
        pids = self.wait_for("forked", START_LIMIT)
        return [
            Process(pid, Connection(ours.detach()), *pair)
            for pid, (ours, _), pair in zip(pids, pairs, files, strict=True)
        ]

    def kill(self, pid: int) -> None:
        with suppress(OSError):
            self.control.sendall(json.dumps({"kill": pid}).encode("ascii") + b"\n")


@dataclass
class Crew:
    """The ranks of one call."""

    server: ForkServer
    processes: list[Process] = field(default_factory=list)

    def exits(self) -> None:
        """Note which ranks have ended."""
        while self.server.next_answer(0) is not None:
            pass
        for process in self.processes:
            if process.code is None:
                process.code = self.server.exits.pop(process.pid, None)

    def dismiss(self, seconds: float = 0.0) -> None:
        """Nothing is left after this: ranks get so many seconds to end by themselves, then they are killed."""
        end = time.monotonic() + seconds
        killed = False
        try:
            while True:
                self.exits()
                left = [process for process in self.processes if process.code is None]
                if not left:
                    break
                if time.monotonic() >= end and not killed:
                    for process in left:
                        self.server.kill(process.pid)
                    killed = True
                select.select([self.server.control], [], [], 0.02)
        except RankError:
            pass  # the server has gone and has taken its ranks along
        for process in self.processes:
            process.connection.close()
            process.out.close()
            process.err.close()


_lock = threading.Lock()
_server: ForkServer | None = None


def start(number: int) -> Crew:
    """Ranks that wait for their set-up."""
    global _server
    with _lock:
        if _server is None or not _server.alive():
            _server = ForkServer()
            _server.wait_for("ready", START_LIMIT)
        return Crew(_server, _server.fork(number))
