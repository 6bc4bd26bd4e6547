"""nbval on a spliced notebook, in a process and a room of its own; what came of each cell."""

import json
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from course_lib.grading.notebook import dump
from course_lib.grading.sandbox import Room, run_group

__all__ = ["CellResult", "run_notebook"]

START_UP = 90.0


@dataclass(frozen=True)
class CellResult:
    """One cell: `outcome` is passed, failed, timeout or died; `error` the exception's name when it raised."""

    cell: str
    role: str
    item: str | None
    outcome: str
    error: str | None
    message: str
    deaf: bool = False


def run_notebook(notebook: NotebookNode, where: Room, timeout: float) -> dict[str, CellResult]:
    """Run every cell; results by cell id, none for a cell that was not reached. `timeout`: seconds a cell may take."""
    _empty(where.records)
    report = where.folder / "report.jsonl"
    report.unlink(missing_ok=True)
    path = where.folder / "notebook.ipynb"
    path.write_bytes(dump(notebook))
    settings = where.folder / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), "--rootdir", str(where.folder)]
    command += ["-p", "no:cacheprovider", "-p", "nbval.plugin", "-p", "course_lib.grading.nbval_plugin", "--color=no"]
    command += ["--nbval", "--nbval-current-env", "--nbval-cell-timeout", str(timeout), "--tb=no", str(path)]
    code_cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    run_group(
        command,
        where,
        START_UP + (timeout + 5) * len(code_cells),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        COURSE_NBVAL_REPORT=str(report),
        COURSE_NBVAL_DESK=str(where.desk),
    )
    results: dict[str, CellResult] = {}
    started: str | None = None
    for line in _lines(report):
        started = line.get("started", started)
        if "cell" in line:
            results[line["cell"]] = CellResult(
                line["cell"],
                line.get("role", "ours"),
                line.get("item"),
                line["outcome"],
                line.get("error"),
                line["message"],
                bool(line.get("deaf")),
            )
    by_id = {cell.id: cell.metadata["course"]["graded"] for cell in code_cells}
    if started is not None and started not in results:
        facts = by_id[started]
        results[started] = CellResult(started, facts["role"], facts["item"], "died", None, "the kernel ended")
    return results


def _empty(folder: Path) -> None:
    if folder.is_symlink() or not folder.is_dir():
        os.unlink(folder)
    else:
        shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(exist_ok=True)


def _lines(report: Path) -> list[dict[str, Any]]:
    if not report.exists():
        return []
    found = []
    for line in report.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            found.append(value)
    return found
