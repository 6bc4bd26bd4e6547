"""nbval on a spliced notebook, in a process that lives for many: kernels from the nursery, one plain fact sheet a cell.

nbval's text, cell numbers and exit status are never read. Of a check cell only the lines `ID: ...` on stdout are
compared, so that what else a learner's code prints or warns changes nothing. A dead kernel is seen at once, a timeout
spares the cells after it, and a flood of output is cut off.
"""

import math
import time
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty
from typing import Any, Protocol

import nbval.plugin as nbval_plugin
import pytest
import zmq
from nbformat import NotebookNode
from nbval.kernel import RunningKernel

__all__ = ["CellReport", "Handle", "KernelDied", "run_cells"]

POLL = 0.1
WATCH = 0.5
OUTPUT_TIMEOUT = 30
AFTER_INTERRUPT = 5
START_UP = 30
MOST_PRINTED = 2 * 2**20
"""Bytes of output that a cell may print."""
SUBSCRIBED = 0.02
"""Seconds until a kernel that answered but was not heard to be idle is asked again: our ear was not there yet."""
A_MESSAGE = 64
"""What each message counts, however little it says."""
MOST_TOLD = 10_000
"""Characters of an exception, and of a line of its traceback."""

NOT_NEEDED = tuple(
    word
    for name in ("unraisableexception", "threadexception", "faulthandler", "junitxml", "doctest", "pastebin")
    for word in ("-p", f"no:{name}")
)
"""Parts of pytest that cost time for each hand-in: the first two collect garbage ten times, a fifth of a second."""


class Handle(Protocol):
    """A kernel and its client."""

    client: Any

    def alive(self) -> bool: ...
    def interrupt(self) -> None: ...
    def too_much(self) -> str | None: ...
    def end(self) -> None: ...


class KernelDied(Exception):
    """The kernel's process ended while a cell ran."""


@dataclass
class CellReport:
    """What came of a cell: passed, failed, timeout or died; `error`: the exception's name when it raised."""

    cell: str
    role: str
    item: str | None
    outcome: str
    error: str | None
    message: str
    seconds: float
    deaf: bool = False
    printed: str = ""


@dataclass
class _Run:
    """One notebook's run."""

    handle: Handle
    timeout: float
    deadline: float
    reports: list[CellReport] = field(default_factory=list)
    started: str | None = None


_now: list[_Run] = []
"""The run that nbval's classes are in: they are made by nbval, and take nothing of ours."""


class WatchedKernel(RunningKernel):  # type: ignore[misc]
    """nbval's kernel, which is there already: says when it has died, prints too much or takes too much."""

    def __init__(self, kernel_name: str, cwd: str | None = None, startup_timeout: float = 60) -> None:
        self.handle, self.kc = _now[-1].handle, _now[-1].handle.client
        self.stopped = ""
        shell, iopub = self.kc.shell_channel.socket, self.kc.iopub_channel.socket
        self._pollers = {"shell": zmq.Poller(), "iopub": zmq.Poller()}
        for stream, socket in (("shell", shell), ("shell", iopub), ("iopub", iopub)):
            self._pollers[stream].register(socket, zmq.POLLIN)
        self.replied: dict[str, Any] = {}
        self.forget()
        self._ensure_iopub_up()

    def _ensure_iopub_up(self) -> None:
        """Ask until what the kernel tells everybody reaches us too. nbval waits a whole second before it asks again."""
        deadline = time.monotonic() + START_UP
        while time.monotonic() < deadline:
            asked = self.kc.kernel_info()
            try:
                self.await_reply(asked, timeout=START_UP)
                self.await_idle(asked, SUBSCRIBED)
            except Empty:
                continue
            return
        raise RuntimeError(f"the kernel did not answer in {START_UP} seconds")

    def forget(self) -> None:
        """A new cell begins."""
        self.replied, self.interrupted, self.printed = {}, False, 0
        self._flooded: float | None = None
        self._kept: deque[Any] = deque()
        self._looked = time.monotonic()

    def is_alive(self) -> bool:
        return not self.stopped and self.handle.alive()

    def interrupt(self) -> None:
        self.interrupted = True
        self.handle.interrupt()

    def stop(self) -> None:
        self.stopped = self.stopped or "the kernel was stopped"
        self.handle.end()

    def restart(self) -> None:
        raise KernelDied("a graded kernel is not started again")

    def get_message(self, stream: str, timeout: float | None = None) -> Any:
        if self.interrupted and timeout is not None:
            timeout = min(timeout, AFTER_INTERRUPT)
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            found = self._next(stream, POLL if end is None else max(0.0, min(POLL, end - time.monotonic())))
            if found is not None:
                return found
            self._watch()
            if end is not None and time.monotonic() >= end:
                raise Empty

    def _next(self, stream: str, patience: float = POLL) -> Any:
        """The next message of a channel, waiting a moment; what the other one says in the meantime is kept."""
        if stream == "iopub" and self._kept:
            return self._kept.popleft()
        ready = dict(self._pollers[stream].poll(int(1000 * patience)))
        if self.kc.iopub_channel.socket in ready:
            self._kept.append(self._counted(self.kc.get_iopub_msg(timeout=0)))
        if stream == "shell" and self.kc.shell_channel.socket in ready:
            message = self.kc.get_shell_msg(timeout=0)
            self.replied = message["content"]
            return message
        return self._kept.popleft() if stream == "iopub" and self._kept else None

    def _counted(self, message: Any) -> Any:
        """Count what is printed, and keep no more of it than a cell may print."""
        content, kind = message["content"], message["msg_type"]
        room = max(0, MOST_PRINTED - self.printed)
        self.printed += A_MESSAGE
        if kind == "stream":
            self.printed += len(content["text"])
            content["text"] = content["text"][:room]
        elif "data" in content:
            self.printed += len(str(content["data"]))
            if self.printed > MOST_PRINTED:
                content["data"] = {}
        elif kind == "error":
            content["evalue"] = str(content["evalue"])[:MOST_TOLD]
            content["traceback"] = [str(line)[:MOST_TOLD] for line in content["traceback"][-50:]]
        if self.printed > MOST_PRINTED:
            self._stop_the_flood()
        return message

    def _stop_the_flood(self) -> None:
        if not self.interrupted:
            self._flooded = time.monotonic()
            self.interrupt()
        elif self._flooded is not None and time.monotonic() - self._flooded > AFTER_INTERRUPT:
            self.stopped = f"it printed more than {MOST_PRINTED >> 20} MiB and did not stop"
            self.handle.end()
            raise KernelDied(self.stopped)

    def _watch(self) -> None:
        if time.monotonic() - self._looked < WATCH:
            return
        self._looked = time.monotonic()
        if not self.is_alive():
            raise KernelDied(self.stopped or "the kernel ended") from None
        reason = self.handle.too_much()
        if reason:
            self.stopped = reason
            self.handle.end()
            raise KernelDied(reason)


nbval_plugin.RunningKernel = WatchedKernel
_compare = nbval_plugin.IPyNbCell.compare_outputs


def _compare_outputs(self: Any, test: Any, ref: Any, skip_compare: Any = None) -> Any:
    item = graded(self.cell).get("item")
    if graded(self.cell).get("role") == "check" and item:
        printed = "".join(out["text"] for out in test if out["output_type"] == "stream" and out["name"] == "stdout")
        lines = [line for line in printed.splitlines(keepends=True) if line.startswith(f"{item}: ")]
        test = [NotebookNode(output_type="stream", name="stdout", text="".join(lines))] if lines else []
    return _compare(self, test, ref, skip_compare)


nbval_plugin.IPyNbCell.compare_outputs = _compare_outputs


def graded(cell: Any) -> dict[str, Any]:
    return dict(cell.metadata.get("course", {}).get("graded", {}))


class _Plugin:
    """What pytest asks us while it runs the cells."""

    def pytest_runtest_setup(self, item: Any) -> None:
        """Forget an earlier timeout: the cells after it count (nbval would expect them to fail)."""
        item.parent.timed_out = False
        left = _now[-1].deadline - time.monotonic()
        item.config.option.nbval_cell_timeout = max(1.0, min(_now[-1].timeout, left))
        item.output_timeout = OUTPUT_TIMEOUT
        if item.parent.kernel is not None:
            item.parent.kernel.forget()
        _now[-1].started = item.cell.id

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: Any, call: Any) -> Generator[None, Any, Any]:
        report = yield
        if call.when == "call" or (call.when == "setup" and report.outcome != "passed"):
            _now[-1].reports.append(_outcome(item, call, report))
            if _now[-1].reports[-1].outcome == "died" or _now[-1].reports[-1].deaf:
                item.session.shouldstop = "the kernel ended"
            slow = {one.item for one in _now[-1].reports if one.outcome == "timeout" and one.item}
            if len(slow) > 1:  # it may no longer answer at all; what is left runs in kernels of its own
                item.session.shouldstop = "one exercise after the other takes too long"
            if time.monotonic() > _now[-1].deadline:
                item.session.shouldstop = "all cells together took too long"
        return report


def _outcome(item: Any, call: Any, report: Any) -> CellReport:
    error = call.excinfo.value if call.excinfo else None
    kernel = item.parent.kernel
    alive = kernel is not None and kernel.is_alive()
    reply = kernel.replied if kernel is not None else {}
    outcome = "passed" if report.outcome == "passed" and reply.get("status") == "ok" else "failed"
    kind, text = reply.get("ename"), reply.get("evalue")
    died = not alive or isinstance(error, KernelDied)
    died = died or any(part.get("source") == "ask_exit" for part in reply.get("payload", []))
    if kind == "StdinNotImplementedError":
        text = "input() cannot be used in graded code"
    flooded = kernel is not None and kernel.printed > MOST_PRINTED
    if flooded:
        outcome, kind, text = "failed", "TooMuchOutput", f"printed more than {MOST_PRINTED >> 20} MiB, and was stopped"
    elif item.parent.timed_out:
        outcome, died = "timeout", died and not str(error).startswith("Timeout")
    outputs = getattr(item, "test_outputs", None) or []
    printed = "".join(out.get("text", "") for out in outputs if out.get("output_type") == "stream")
    facts = graded(item.cell)
    return CellReport(
        cell=item.cell.id,
        role=facts.get("role", "ours"),
        item=facts.get("item"),
        outcome="died" if died else outcome,
        error=str(kind) if kind else None,
        message=str(text if kind else error or "")[:2000],
        seconds=call.duration,
        deaf=outcome == "timeout" and not alive,
        printed=printed[:4000],
    )


def run_cells(
    path: Path, handle: Handle, timeout: float, total: float = math.inf
) -> tuple[list[CellReport], str | None]:
    """Run the notebook's cells in this kernel; reports in order, and the id of the cell that was begun last.

    `timeout`: seconds that a cell may take; `total`: and all of them. What is not reached by then is in no report.
    """
    run = _Run(handle, timeout, time.monotonic() + total)
    _now.append(run)
    settings = path.with_name("pytest.ini")
    settings.write_text("[pytest]\n", encoding="utf-8", newline="\n")
    words = ["-c", str(settings), "--rootdir", str(path.parent), "-p", "no:cacheprovider"]
    words += ["-p", "nbval.plugin", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", str(timeout)]
    words += ["-W", "ignore", *NOT_NEEDED, str(path)]
    try:
        code = pytest.main(words, plugins=[_Plugin()])
        if code == pytest.ExitCode.USAGE_ERROR or code == pytest.ExitCode.INTERNAL_ERROR:
            raise RuntimeError(f"pytest could not run the notebook ({code!r})")
    finally:
        _now.pop()
        handle.end()
    return run.reports, run.started
