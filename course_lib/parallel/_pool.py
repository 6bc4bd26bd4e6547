"""Ranks that stay alive between calls, for systems without `fork`. COURSE_RANKS=pool takes them anywhere.

A process that imports torch takes seconds to start, so the pool keeps its ranks for the next call. After a fault all of
them are replaced. Between calls a rank forgets the modules that are neither Python's nor installed, and gets torch's
default random state, dtype and thread count back; other changes that a function makes to torch stay.
"""

import atexit
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any

from course_lib.errors import RankError
from course_lib.machine import end_session, own_session
from course_lib.parallel._crew import SCRIPT, START_LIMIT, Process, bare_files, one_thread, search_path

__all__: list[str] = []


class Pool:
    """The caller's end of many `_server.py pool`."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._members: dict[int, subprocess.Popen[bytes]] = {}
        self._free: list[Process] = []
        atexit.register(self.close)

    def alive(self) -> bool:
        return self.owner == os.getpid()

    def close(self) -> None:
        atexit.unregister(self.close)
        if self.alive():
            for process in self._members.values():
                end_session(process)
                process.wait()
            self._members.clear()
            for member in self._free:
                member.close()
            self._free.clear()

    def start(self, ranks: int) -> list[Process]:
        """Those that are there, and new ones for what is missing."""
        self.look(self._free)
        self._free = [process for process in self._free if process.code is None]
        if (missing := ranks - len(self._free)) > 0:
            self._free += self._open(missing)
        taken, self._free = self._free[:ranks], self._free[ranks:]
        return taken

    def look(self, processes: list[Process]) -> None:
        for process in processes:
            member = self._members.get(process.pid)
            if process.code is None and member is not None and member.poll() is not None:
                process.code = member.returncode
                end_session(self._members.pop(process.pid))  # what it has started

    def kill(self, process: Process) -> None:
        if process.pid in self._members:
            end_session(self._members[process.pid])

    def dump(self, process: Process) -> None:
        if hasattr(signal, "SIGUSR2") and process.pid in self._members:
            self._members[process.pid].send_signal(signal.SIGUSR2)

    def release(self, processes: list[Process]) -> bool:
        self._free += processes
        return True

    def _open(self, number: int) -> list[Process]:
        """New members: they connect, show the token that they were given, and wait."""
        new: dict[bytes, tuple[subprocess.Popen[bytes], Any]] = {}
        found: list[Process] = []
        try:
            with socket.create_server(("127.0.0.1", 0), backlog=number) as server:
                port = server.getsockname()[1]
                for _ in range(number):
                    token, bare = secrets.token_bytes(32), bare_files()
                    process = subprocess.Popen(
                        [sys.executable, "-P", str(SCRIPT), "pool", str(port), json.dumps(search_path())],
                        env=one_thread(),
                        stdin=subprocess.PIPE,
                        stdout=bare[0],
                        stderr=bare[1],
                        **own_session(),
                    )
                    self._members[process.pid] = process
                    new[token] = (process, bare)
                    assert process.stdin is not None
                    with suppress(OSError):
                        process.stdin.write(token)
                        process.stdin.close()
                end = time.monotonic() + START_LIMIT
                server.settimeout(0.2)
                while len(found) < number:
                    self._check(new, end)
                    with suppress(TimeoutError):
                        connection = Connection(server.accept()[0].detach())
                        if connection.poll(5) and (known := new.pop(connection.recv_bytes(64), None)) is not None:
                            found.append(Process(known[0].pid, connection, known[1]))
        except BaseException:
            for pid in [*(process.pid for process in found), *(process.pid for process, _ in new.values())]:
                end_session(self._members.pop(pid))
            raise
        return found

    def _check(self, new: dict[bytes, tuple[subprocess.Popen[bytes], Any]], end: float) -> None:
        for process, bare in new.values():
            if process.poll() is not None:
                bare[1].seek(0)
                words = bare[1].read().decode("utf-8", "replace").strip().splitlines()
                text = (
                    f"a rank could not be started (exit code {process.returncode}){': ' + words[-1] if words else ''}"
                )
                raise RankError(text + "; on Windows, run this in WSL2")
        if time.monotonic() > end:
            raise RankError(f"the ranks could not be started within {START_LIMIT:.0f} s")
