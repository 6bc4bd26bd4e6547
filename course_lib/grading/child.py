"""A process of ours that answers one line of JSON for each line of JSON that it reads, and lives for many.

child = Child([sys.executable, "-m", MODULE], ready=120)
child.start()                                 # CourseError when it cannot be started
child.ask({"do": "it"}, patience)             # {} when it has gone, or took longer: then it is stopped
child.insist({"do": "it"}, patience)          # starts it anew when it has gone
child.stop()
"""

import contextlib
import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from course_lib.errors import CourseError

__all__ = ["Child"]


class Child:
    """One child at a time. Not for several threads at once.

    `ready`: seconds in which it has to say a line of its own accord, None when it says none. `patience_to_end`: seconds
    that it gets to end by itself, once it has nothing more to read. `sorry`: says that it could not be started. `more`:
    what `subprocess.Popen` is given besides.
    """

    def __init__(
        self,
        words: Sequence[str],
        ready: float | None = None,
        sorry: Callable[[], str] = lambda: "a process of the grader could not be started",
        patience_to_end: float = 0.0,
        **more: Any,
    ) -> None:
        self.words, self.ready, self.sorry, self.patience_to_end = list(words), ready, sorry, patience_to_end
        self._more = {"stderr": subprocess.DEVNULL} | more
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str] = queue.Queue()
        self._listener: threading.Thread | None = None

    @property
    def pid(self) -> int | None:
        """Of the child, None when there is none."""
        return None if self._process is None else self._process.pid

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, in place of one that has gone. CourseError when it cannot be started or is not ready in time."""
        self.stop()
        try:
            self._process = subprocess.Popen(
                self.words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                **self._more,
            )
        except OSError:
            raise CourseError(self.sorry()) from None
        self._lines = queue.Queue()
        self._listener = threading.Thread(target=_listen, args=(self._process, self._lines), daemon=True)
        self._listener.start()
        if self.ready is not None and not self._line(self.ready):
            self.stop()
            raise CourseError(self.sorry())

    def ask(self, request: dict[str, Any], patience: float) -> dict[str, Any]:
        """One request, one answer; {} when it has gone or took longer, and then it is stopped: no answer comes late."""
        if not self.running:
            return {}
        end = time.monotonic() + patience
        answer: Any = None
        if self._write(json.dumps(request) + "\n", patience):
            with contextlib.suppress(ValueError, RecursionError):
                answer = json.loads(self._line(max(0.0, end - time.monotonic())) or "null")
        if not isinstance(answer, dict) or not answer:
            self.stop()
            return {}
        return answer

    def insist(self, request: dict[str, Any], patience: float, tries: int = 2) -> dict[str, Any]:
        """As `ask`, but one that has gone is started again. {} when no try gave an answer, or one took longer."""
        for _ in range(tries):
            if not self.running:
                self.start()
            end = time.monotonic() + patience
            answer = self.ask(request, patience)
            if answer or time.monotonic() >= end:
                return answer
        return {}

    def stop(self) -> None:
        """End it, and close both pipes. It may be started again."""
        process, self._process = self._process, None
        listener, self._listener = self._listener, None
        if process is None:
            return
        if self.patience_to_end > 0:
            _close(process.stdin)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(self.patience_to_end)
        process.kill()
        process.wait()
        _close(process.stdin)
        if listener is not None:
            listener.join(1)  # it closes the other pipe, at once unless someone else has that open too

    def _write(self, text: str, patience: float) -> bool:
        """Whether it took the request. One that reads nothing is killed in time: no write waits for ever."""
        assert self._process is not None and self._process.stdin is not None
        alarm = threading.Timer(patience, self._process.kill)
        alarm.daemon = True
        alarm.start()
        try:
            self._process.stdin.write(text)
            self._process.stdin.flush()
        except OSError:
            return False
        finally:
            alarm.cancel()
        return True

    def _line(self, patience: float) -> str:
        """The next line, "" when it has gone or says none in time."""
        try:
            return self._lines.get(timeout=patience)
        except queue.Empty:
            return ""


def _listen(process: "subprocess.Popen[str]", lines: "queue.Queue[str]") -> None:
    """Whoever reads a pipe closes it: another thread would wait for the reader."""
    assert process.stdout is not None
    with process.stdout:
        for line in process.stdout:
            lines.put(line)
    lines.put("")


def _close(stream: Any) -> None:
    with contextlib.suppress(OSError):
        stream.close()
