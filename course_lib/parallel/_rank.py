"""What happens inside a rank: join the group, run the function, report to the caller, end."""

import faulthandler
import linecache
import os
import random
import signal
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
import numpy as np
import torch
import torch.distributed as dist

from course_lib.parallel import _lines, _record
from course_lib.parallel._parcel import pack, reason

__all__: list[str] = []

TICK, STUCK = (
    0.2,
    3,
)  # seconds between two looks at the main thread, looks without a change
MEET = timedelta(seconds=60)
number: int | None = None
"""This process's rank while it is one of `run_ranks`."""


class Reporter:
    """The rank's end of the pipe. Several threads may write; messages stay whole."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self._next = 0  # the recorder's number of the first collective that was not told yet
        self._lock, self._record_lock = threading.Lock(), threading.RLock()

    def tell(self, kind: str, *content: Any, parcel: bytes | None = None) -> None:
        """Send (kind, seconds on the clock that all processes share, content), and a parcel behind it."""
        data = cloudpickle.dumps((kind, time.monotonic(), content))
        with self._lock:
            self.connection.send_bytes(data)
            if parcel is not None:
                self.connection.send_bytes(parcel)

    def tell_calls(self, kind: str, *content: Any, parcel: bytes | None = None) -> None:
        """`tell`, with `calls` as the end of the content. Those of two threads are told in the order of the calls."""
        with self._record_lock:
            self.tell(kind, *content, *self.calls(), parcel=parcel)

    def calls(self) -> tuple[list[_record.Operation], bool]:
        """What this rank has called since it was last asked, and whether the recorder has lost some of it.

        Nothing under DETAIL: there torch compares the calls itself, by calls that the recorder would take for the
        function's own.
        """
        if dist.get_debug_level() == dist.DebugLevel.DETAIL:
            return [], True
        with self._record_lock, suppress(Exception):  # the recorder is private to torch
            found, self._next, lost = _record.operations(self._next)
            return found, lost
        return [], True

    def failed(self, error: BaseException, doing: str = "") -> None:
        """Tell of an error: its kind, one line, a readable traceback."""
        told = _lines.in_one_line(error)
        if isinstance(error, SystemExit):
            doing, told = "left", f"sys.exit({'' if error.code is None else repr(error.code)})"
        self.tell_calls("failed", doing, told, _lines.readable(error), _record.is_communication(error))


class Lines:
    """A text stream whose whole lines go to the caller."""

    encoding, errors, newlines, closed = "utf-8", "strict", None, False

    def __init__(self, reporter: Reporter, name: str) -> None:
        self.name = f"<{name}>"
        self._reporter, self._kind, self._begun = reporter, name, ""
        self._lock = threading.RLock()

    def write(self, text: str) -> int:
        with self._lock:
            *lines, begun = (self._begun + text).split("\n")
            self._begun = begun.rpartition("\r")[2]  # a progress bar writes over its line
            if lines:
                self._reporter.tell(
                    self._kind,
                    [line.rstrip("\r").rpartition("\r")[2] for line in lines],
                )
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
        return 1 if self._kind == "stdout" else 2


def main(connection: Connection, setup: dict[str, Any]) -> None:
    """One call: `setup` says where and who, the connection's next message is the function with its arguments."""
    global number
    number = setup["rank"]
    reporter, leave = Reporter(connection), threading.Event()
    streams = [Lines(reporter, "stdout"), Lines(reporter, "stderr")]
    sys.stdout, sys.stderr = streams
    try:
        parcel = connection.recv_bytes()
        enter(setup)
        store = meet(reporter, setup)
        threading.Thread(target=watch, args=(reporter, leave), daemon=True, name="course-watch").start()
        if store is not None:
            work(reporter, setup, parcel, store)
        for stream in streams:
            stream.finish()
        reporter.tell("finished")
    except (EOFError, OSError):  # the caller is gone
        os._exit(1)
    leave.wait()
    with suppress(Exception):
        if dist.is_initialized():
            dist.destroy_process_group()
    number = None


def enter(setup: dict[str, Any]) -> None:
    """The caller's environment, working directory and cells; Ctrl-C is the caller's to answer."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable(file=2)
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR2, file=2, all_threads=False)
    os.environ.clear()
    os.environ.update(setup["environment"])
    if setup["folder"] is not None:
        with suppress(OSError):
            os.chdir(setup["folder"])
    for file, (name, text) in setup["sources"].items():
        _lines.names[file] = name
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float32)  # a rank of the pool may have served another call
    # As in a new process: every rank draws other numbers until it seeds.
    fresh = torch.Generator()
    fresh.seed()
    torch.set_rng_state(fresh.get_state())
    random.setstate(random.Random().getstate())
    np.random.set_state(np.random.RandomState().get_state())


def meet(reporter: Reporter, setup: dict[str, Any]) -> dist.Store | None:
    """The store through which ranks find each other: rank 0 opens it, the caller tells the others its port."""
    first = setup["rank"] == 0
    port = 0 if first else int(reporter.connection.recv_bytes())
    try:
        store = dist.TCPStore("127.0.0.1", port, is_master=first, wait_for_workers=False, timeout=MEET)
    except Exception as error:
        reporter.failed(error, "join")
        return None
    if first:
        reporter.tell("port", store.port)
    return store


def work(reporter: Reporter, setup: dict[str, Any], parcel: bytes, store: dist.Store) -> None:
    """Join, run, report. Every error of the learner's function is told, none is raised."""
    try:
        dist.init_process_group(
            "gloo",
            store=store,
            rank=setup["rank"],
            world_size=setup["ranks"],
            timeout=timedelta(seconds=setup["timeout"] + 60),
        )
        reporter.calls()  # those of joining, and of earlier calls
    except Exception as error:
        return reporter.failed(error, "join")
    try:
        fn, args, kwargs = cloudpickle.loads(parcel)
    except BaseException as error:
        return reporter.failed(error, "unpack")
    reporter.tell("ready")
    try:
        result = fn(*args, **kwargs)
    except BaseException as error:
        return reporter.failed(error)
    try:
        data, _ = pack(result)
    except BaseException as error:
        kind = type(result).__name__
        return reporter.tell_calls("failed", "return", f"{kind}: {reason(error)}", "", False)
    reporter.tell_calls("returned", parcel=data)


def watch(reporter: Reporter, leave: threading.Event) -> None:
    """Answer the caller, tell it when the main thread stands still; when the caller is gone, so is this rank."""
    seen: Any = None
    still = 0
    while True:
        try:
            if reporter.connection.poll(TICK):
                order = reporter.connection.recv_bytes()
                if order == b"leave":
                    leave.set()
                    return
                reporter.tell_calls("place", _record.place(_record.main_frame()))
                continue
            frame = _record.main_frame()
            now = (id(frame), frame.f_lasti) if frame is not None else None
            still = still + 1 if now == seen else 0
            seen = now
            if still == STUCK:
                reporter.tell_calls("place", _record.place(frame))
            del frame
        except (EOFError, OSError):
            os._exit(1)
