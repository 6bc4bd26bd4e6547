"""A pytest plugin around nbval: one JSON line a cell, kernel death seen at once, timeouts that spare the cells after.

nbval's text, cell numbers and exit status are never read. `test_nbval.py` loads it with `-p`, in a process of its own.
"""

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from queue import Empty
from typing import Any

import nbval.plugin as nbval_plugin
import pytest
from nbval.kernel import RunningKernel

__all__ = ["KernelDied", "WatchedKernel"]

REPORT = "COURSE_NBVAL_REPORT"
POLL = 0.25
OUTPUT_TIMEOUT = 30
AFTER_INTERRUPT = 5


class KernelDied(Exception):
    """The kernel's process ended while a cell ran."""


def _wait(get: Any, kernel: RunningKernel, timeout: float | None) -> Any:
    """`get(timeout)` in slices, so that a dead kernel is noticed within a second."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        left = POLL if end is None else min(POLL, end - time.monotonic())
        try:
            return get(max(left, 0.01))
        except Empty:
            if not kernel.is_alive():
                raise KernelDied("the kernel ended") from None
            if end is not None and time.monotonic() >= end:
                raise


class WatchedKernel(RunningKernel):  # type: ignore[misc]
    """nbval's kernel: says when it has died and how the last cell was answered."""

    def __init__(self, kernel_name: str, cwd: str | None = None, startup_timeout: float = 60) -> None:
        self.replied: dict[str, Any] = {}
        self.interrupted = False
        super().__init__(kernel_name, cwd=cwd, startup_timeout=startup_timeout)

    def interrupt(self) -> None:
        self.interrupted = True
        super().interrupt()

    def get_message(self, stream: str, timeout: float | None = None) -> Any:
        channel = self.kc.get_iopub_msg if stream == "iopub" else self.kc.get_shell_msg
        if self.interrupted and timeout is not None:
            timeout = min(timeout, AFTER_INTERRUPT)
        message = _wait(lambda wait: channel(timeout=wait), self, timeout)
        if stream == "shell":
            self.replied = message["content"]
        return message


nbval_plugin.RunningKernel = WatchedKernel


def graded(cell: Any) -> dict[str, Any]:
    return dict(cell.metadata.get("course", {}).get("graded", {}))


def write(line: dict[str, Any]) -> None:
    with Path(os.environ[REPORT]).open("a", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps(line) + "\n")


def pytest_runtest_setup(item: Any) -> None:
    """Forget an earlier timeout: the cells after it count (nbval would expect them to fail)."""
    item.parent.timed_out = False
    item.output_timeout = OUTPUT_TIMEOUT
    if item.parent.kernel is not None:
        item.parent.kernel.replied, item.parent.kernel.interrupted = {}, False
    write({"started": item.cell.id})


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Generator[None, Any, Any]:
    report = yield
    if call.when == "call" or (call.when == "setup" and report.outcome != "passed"):
        write({"cell": item.cell.id, **graded(item.cell), **_outcome(item, call, report), "seconds": call.duration})
    return report


def _outcome(item: Any, call: Any, report: Any) -> dict[str, Any]:
    error = call.excinfo.value if call.excinfo else None
    kernel = item.parent.kernel
    died = isinstance(error, KernelDied) or kernel is None or not kernel.is_alive()
    reply = kernel.replied if kernel is not None else {}
    outcome = "passed" if report.outcome == "passed" and reply.get("status") == "ok" else "failed"
    kind, text = reply.get("ename"), reply.get("evalue")
    died = died or any(part.get("source") == "ask_exit" for part in reply.get("payload", []))
    if kind == "StdinNotImplementedError":
        text = "input() cannot be used in graded code"
    if item.parent.timed_out:
        outcome, died = "timeout", died and not str(error).startswith("Timeout")
    return {
        "outcome": "died" if died else outcome,
        "error": str(kind) if kind else None,
        "message": str(text if kind else error or "")[:2000],
        "deaf": outcome == "timeout" and (kernel is None or not kernel.is_alive()),
    }
