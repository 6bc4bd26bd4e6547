"""What happens inside a rank: join the group, run the function, report to the caller, end."""

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle

__all__: list[str] = []


class Reporter:
    """The rank's end of the pipe. Several threads may write; messages stay whole."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()

    def tell(self, kind: str, *content: Any) -> None:
        """Send (kind, seconds on the clock that all processes share, content)."""
        data = cloudpickle.dumps((kind, time.monotonic(), content))
        with self._lock:
            self.connection.send_bytes(data)


class Lines:
    """A text stream whose whole lines go to the caller."""

    encoding = "utf-8"
    errors = "strict"

    def __init__(self, reporter: Reporter, name: str) -> None:
        self._reporter, self._name, self._begun = reporter, name, ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
            if lines:
                self._reporter.tell(self._name, "\n".join(lines))
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """A line that has only begun waits for its end, so that lines of two ranks are never mixed."""

    def finish(self) -> None:
        """The last line, if it has no line end."""
        if self._begun:
            self.write("\n")

    def isatty(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def fileno(self) -> int:
        return 1 if self._name == "stdout" else 2


def main(connection: Connection, setup: dict[str, Any]) -> None:
    """One call: `setup` says where and who, the connection's next message is the function with its arguments."""
    reporter = Reporter(connection)
    enter(setup)
    streams = [Lines(reporter, "stdout"), Lines(reporter, "stderr")]
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    parcel = connection.recv_bytes()
    threading.Thread(target=watch, args=(connection,), daemon=True, name="course-watch").start()
    work(reporter, setup, parcel)
    for stream in streams:
        stream.finish()
    reporter.tell("finished")
    leave.wait()
    with suppress(Exception):
        import torch.distributed as dist

        dist.destroy_process_group()


leave = threading.Event()


def watch(connection: Connection) -> None:
    """Listen to the caller; when it is gone, so is this rank."""
    while True:
        try:
            order = connection.recv_bytes()
        except (EOFError, OSError):
            os._exit(1)
        if order == b"leave":
            leave.set()
            return


def enter(setup: dict[str, Any]) -> None:
    """The caller's environment and working directory; Ctrl-C is the caller's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ.clear()
    os.environ.update(setup["environment"])
    with suppress(OSError):
        os.chdir(setup["folder"])


def work(reporter: Reporter, setup: dict[str, Any], parcel: bytes) -> None:
    """Join, run, report. Every error of the learner's function is told, none is raised."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    rank, ranks = setup["rank"], setup["ranks"]
    try:
        store = dist.TCPStore("127.0.0.1", setup["port"], is_master=False, timeout=timedelta(seconds=60))
        dist.init_process_group(
            "gloo",
            store=dist.PrefixStore(setup["call"], store),
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=setup["timeout"] + 60),
        )
        fn, args, kwargs = cloudpickle.loads(parcel)
    except BaseException as error:
        reporter.tell("failed", type(error).__name__, str(error), traceback.format_exc())
        return
    reporter.tell("ready")
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        reporter.tell("failed", type(error).__name__, str(error), traceback.format_exc())
        return
    reporter.tell("returned", cloudpickle.dumps(result))
