"""The grader's end of a worker: a process that lives for the whole run, and what came of each cell of a hand-in.

with Runner(tier, library) as runner:
    ran = runner.run(notebook, cases, seed, timeout)
    ran.cells, ran.records              # by cell id; the folder of what its checks recorded, until the next run
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.grading.isolation.tiers import Tier
from course_lib.grading.isolation.warm import Limits
from course_lib.grading.notebook import dump

__all__ = ["CellResult", "Ran", "Runner"]

START_UP = 120.0


@dataclass(frozen=True)
class CellResult:
    """One cell: `outcome` is passed, failed, timeout or died; `error` the exception's name when it raised."""

    cell: str
    role: str
    item: str | None
    outcome: str
    error: str | None
    message: str
    seconds: float = 0.0
    deaf: bool = False
    printed: str = ""


@dataclass(frozen=True)
class Ran:
    """A notebook's run. A cell that was not reached is not in `cells`."""

    cells: dict[str, CellResult]
    records: Path
    seconds: float


class Runner:
    """A worker process. Use as a context manager; it is started at once, and again when it has gone."""

    def __init__(self, tier: Tier, library: Path, limits: Limits | None = None) -> None:
        self.tier, self.library, self.limits = tier, library, limits or Limits()
        self._answers: queue.Queue[str] = queue.Queue()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Runner":
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def run(self, notebook: NotebookNode, cases: Path | None, seed: int, timeout: float) -> Ran:
        """Run every cell; `timeout`: seconds a cell may take. CourseError when no worker can be started."""
        text = dump(notebook).decode("utf-8")
        wish: dict[str, Any] = {"notebook": text, "cases": str(cases) if cases else None, "seed": seed}
        wish |= {"timeout": timeout, "limits": asdict(self.limits)}
        code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        for _ in range(2):
            if self._process is None or self._process.poll() is not None:
                self._stop()
                self._start()
            answer = self._ask(wish, START_UP + (timeout + 10) * len(code_cells))
            if answer:
                return _ran(answer, code_cells)
            self._stop()
        raise CourseError("a worker of the grader ended twice on one hand-in; run it again with --isolation process")

    def _ask(self, wish: dict[str, Any], patience: float) -> dict[str, Any]:
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(wish) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=patience)
        except (OSError, queue.Empty):
            return {}
        return dict(json.loads(line)) if line else {}

    def _start(self) -> None:
        self._answers = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "course_lib.grading.worker", self.tier.name, str(self.library)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        threading.Thread(target=self._listen, args=(self._process, self._answers), daemon=True).start()
        try:
            ready = self._answers.get(timeout=START_UP)
        except queue.Empty:
            ready = ""
        if not ready:
            self._stop()
            raise CourseError(f"no worker could be started with isolation {self.tier.name!r}; try another --isolation")

    @staticmethod
    def _listen(process: "subprocess.Popen[str]", answers: "queue.Queue[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            answers.put(line)
        answers.put("")

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        try:
            process.wait(10)  # its stdin has ended: it ends its kernels and removes its folder
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _ran(answer: dict[str, Any], code_cells: list[NotebookNode]) -> Ran:
    cells = {one["cell"]: CellResult(**one) for one in answer["cells"]}
    started = answer["started"]
    if started is not None and started not in cells:
        facts = {cell.id: cell.metadata["course"]["graded"] for cell in code_cells}[started]
        cells[started] = CellResult(started, facts["role"], facts["item"], "died", None, "the kernel ended")
    return Ran(cells, Path(answer["records"]), float(answer["seconds"]))
