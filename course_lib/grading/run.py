"""The grader's end of a worker: a process that lives for the whole run, and what came of each cell of a hand-in.

with Runner(tier, library) as runner:
    ran = runner.run(notebook, cases, seed, timeout)
    ran.cells, ran.records              # by cell id; the folder of what its checks recorded, until the next run
"""

import os
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.grading.child import Child
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
        self._child = Child(
            [sys.executable, "-m", "course_lib.grading.worker", tier.name, str(library)],
            ready=START_UP,
            sorry=lambda: f"no worker could be started with isolation {tier.name!r}; try another --isolation",
            patience_to_end=10,  # once its stdin has ended it ends its kernels and removes its folder
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )

    def __enter__(self) -> "Runner":
        self._child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    def run(
        self, notebook: NotebookNode, cases: Path | None, seed: int, timeout: float, total: float | None = None
    ) -> Ran:
        """Run every cell; `timeout`: seconds a cell may take, `total`: all of them. CourseError when no worker can.

        The worker keeps to both, and what was not reached is not in `cells`; our own patience is for one that hangs.
        """
        text = dump(notebook).decode("utf-8")
        wish: dict[str, Any] = {"notebook": text, "cases": str(cases) if cases else None, "seed": seed}
        wish |= {"timeout": timeout, "total": total, "limits": asdict(self.limits)}
        code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        longest = (timeout + 10) * len(code_cells)
        longest = longest if total is None else min(longest, total + timeout + 60)
        answer = self._child.insist(wish, START_UP + longest)
        if answer:
            return _ran(answer, code_cells)
        raise CourseError(
            "a worker of the grader hung, or ended twice, on one hand-in; run it again with --isolation process"
        )


def _ran(answer: dict[str, Any], code_cells: list[NotebookNode]) -> Ran:
    cells = {one["cell"]: CellResult(**one) for one in answer["cells"]}
    started = answer["started"]
    if started is not None and started not in cells:
        facts = {cell.id: cell.metadata["course"]["graded"] for cell in code_cells}[started]
        cells[started] = CellResult(started, facts["role"], facts["item"], "died", None, "the kernel ended")
    return Ran(cells, Path(answer["records"]), float(answer["seconds"]))
