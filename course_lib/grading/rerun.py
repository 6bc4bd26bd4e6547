"""A notebook run so often that what ends its kernel costs its own exercise alone, and within the time of a hand-in."""

import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path

from nbformat import NotebookNode

from course_lib.grading.alone import facts
from course_lib.grading.run import CellResult, Ran
from course_lib.grading.splice import Spliced

__all__ = ["Run", "run_all"]


@dataclass(frozen=True)
class Run:
    """What came of a notebook's cells, which exercises ended its kernel and how, and the folder of records.

    `problems`: a line for each cell that belongs to no exercise and ended the kernel; `left_out`: the ids of those.
    `late`: the exercises that were not reached in the time of the hand-in.
    """

    cells: dict[str, CellResult]
    ended: dict[str, tuple[str, str]]
    records: Path
    problems: list[str]
    left_out: set[str]
    late: frozenset[str] = frozenset()


def run_all(spliced: Spliced, once: Callable[[NotebookNode, float], Ran], timeout: float, deadline: float) -> Run:
    """Run; when a cell ends the kernel, run again without what did it, so that the other exercises still count.

    Not when what is left until the deadline would not do for what ran now: it would be lost. `once`: runs a notebook,
    in so many seconds; `timeout`: what a cell may take.
    """
    notebook = deepcopy(spliced.notebook)
    ended: dict[str, tuple[str, str]] = {}
    problems: list[str] = []
    left_out: set[str] = set()
    while True:
        done = once(notebook, max(1.0, deadline - time.monotonic()))
        run = Run(done.cells, ended, done.records, problems, left_out)
        fatal = [one for one in done.cells.values() if one.outcome == "died" or one.deaf]
        if not fatal:
            return run if time.monotonic() < deadline else replace(run, late=_unreached(spliced, run, timeout))
        culprit = fatal[0]
        status = "timeout" if culprit.deaf else "kernel_died"
        if culprit.role == "extra":
            problems.append(f"one of its own cells ended the kernel and was left out ({status})")
            left_out.add(culprit.cell)
        elif culprit.item is not None and culprit.item not in ended:
            ended[culprit.item] = status, culprit.message
            if ended.keys() == spliced.items.keys():
                return run
        else:
            problems.append("a cell of ours ended the kernel")
            return replace(run, ended={**dict.fromkeys(spliced.items, (status, "")), **ended})
        if deadline - time.monotonic() < done.seconds:
            return replace(run, late=_unreached(spliced, run, timeout))
        for cell in notebook.cells:
            about = facts(cell)
            if cell.id == culprit.cell or (culprit.item is not None and about["item"] == culprit.item):
                cell.source, cell.outputs, cell.execution_count = "", [], None


def _unreached(spliced: Spliced, run: Run, timeout: float) -> frozenset[str]:
    """The exercises whose check was not run, or which got less than the time of a cell."""
    checked = {one.item for one in run.cells.values() if one.role == "check"}
    cut = [one for one in run.cells.values() if one.outcome == "timeout" and one.seconds < timeout]
    return frozenset((spliced.items.keys() - checked) | {one.item for one in cut if one.item})
