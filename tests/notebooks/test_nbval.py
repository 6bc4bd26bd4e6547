"""Every chapter and every solution runs from top to bottom with nbval, far from the checkout and without stderr.

nbval runs in a process of its own on a copy in a folder whose name has a space; it compares the cells tagged
`nbval-check-output`. Its verdict is taken from a plugin's record of each cell, not from its text. The time that each
notebook took is printed at the end.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_notebook, new_output

from course_lib.machine import material_dir

NOTEBOOKS = [path for room in ("notebooks", "solutions") for path in sorted((material_dir() / room).glob("*.ipynb"))]
CELL_SECONDS = 150
CEILING = 180
"""Seconds for a whole notebook; a chapter aims at 30 to 60 on two idle cores."""

TIMES: dict[str, float] = {}


def run_nbval(notebook: Path, folder: Path, ceiling: float = CEILING) -> tuple[list[str], float]:
    """(one line for each cell that is not as committed, seconds). The copy and nbval's files live in `folder`."""
    room = folder / "a folder" / notebook.parent.name
    room.mkdir(parents=True)
    copy = room / notebook.name
    copy.write_bytes(notebook.read_bytes())
    report, settings = folder / "report.jsonl", folder / "pytest.ini"
    settings.write_text("[pytest]\n", encoding="utf-8", newline="\n")
    command = [sys.executable, "-m", "pytest", "-q", "-c", str(settings), "--rootdir", str(folder), "--color=no"]
    command += ["-p", "no:cacheprovider", "-p", "nbval.plugin", "-p", "nbval_strict"]
    command += ["-p", "nbval_watch", "--nbval-lax", "--nbval-current-env"]
    command += ["--nbval-cell-timeout", str(min(CELL_SECONDS, ceiling)), str(copy)]
    environment = os.environ | {
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]).rstrip(
            os.pathsep
        ),
        "COURSE_NBVAL_REPORT": str(report),
        "COURSE_CHECK_SEED": "0",
        "IPYTHONDIR": str(folder / "ipython"),
    }
    environment.pop("COURSE_GRADE_DIR", None)
    start = time.perf_counter()
    try:
        done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", timeout=ceiling)
        said, late = done.stdout[-3000:] + done.stderr[-1000:], []
    except subprocess.TimeoutExpired:
        said, late = "", [f"not done after {ceiling:g} s"]
    seconds = time.perf_counter() - start
    records = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()] if report.exists() else []
    outcomes = {record["cell"]: record for record in records if "cell" in record}
    lines = [f"{record['stderr_of']}: on stderr: {record['text']}" for record in records if "stderr_of" in record]
    for cell in nbformat.read(notebook, as_version=4).cells:
        if cell.cell_type == "code":
            record = outcomes.get(cell.id, {"outcome": "not reached", "error": None, "message": ""})
            if record["outcome"] != "passed":
                lines.append(f"{cell.id}: {record['outcome']} {record['error'] or ''} {record['message']}")
    lines += late
    if lines:
        lines.append(said)
    left = sorted(path.name for path in room.iterdir() if path.name != notebook.name)
    return lines + ([f"the run leaves files beside the notebook: {left}"] if left else []), seconds


@pytest.fixture(scope="module", autouse=True)
def times_are_printed(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    manager = request.config.pluginmanager.getplugin("capturemanager")
    with manager.global_and_fixture_disabled():
        for name, seconds in TIMES.items():
            print(f"\nnbval {name}: {seconds:.1f} s", end="")
        print()


@pytest.mark.slow
@pytest.mark.timeout(CEILING + 60)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    lines, TIMES[f"{path.parent.name}/{path.name}"] = run_nbval(path, tmp_path)
    assert not lines, "\n".join(lines)


# ------------------------------------------------------------------ the run itself


def written(folder: Path, *cells: NotebookNode) -> Path:
    notebook = new_notebook(cells=list(cells))
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    for count, cell in enumerate(cells, start=1):
        cell.id, cell.execution_count = f"cell-{count}", count
    path = folder / "made.ipynb"
    path.write_text(nbformat.writes(notebook), encoding="utf-8", newline="\n")
    return path


def compared(source: str, printed: str) -> NotebookNode:
    out = new_output("stream", name="stdout", text=printed)
    return new_code_cell(source, metadata={"tags": ["nbval-check-output"]}, outputs=[out])


def test_a_notebook_in_order_passes_and_other_outputs_are_not_compared(tmp_path: Path) -> None:
    other = new_code_cell("print(2)", outputs=[new_output("stream", name="stdout", text="3\n")])
    lines, seconds = run_nbval(written(tmp_path, compared("print(1)", "1\n"), other), tmp_path / "run")
    assert lines == [] and seconds > 0


@pytest.mark.parametrize(
    ("cell", "says"),
    [
        (compared("print(1)", "2\n"), "cell-1: failed"),
        (new_code_cell("1 / 0"), "cell-1: failed ZeroDivisionError"),
        (new_code_cell("import sys\nprint('careful', file=sys.stderr)"), "on stderr: careful"),
        (new_code_cell("import warnings\nwarnings.warn('old')"), "UserWarning: old"),
        (new_code_cell("import os\nos._exit(1)"), "cell-1: died"),
        (new_code_cell("open('left.txt', 'w').close()"), "leaves files beside the notebook: ['left.txt']"),
    ],
    ids=["other-output", "error", "stderr", "warning", "death", "litter"],
)
def test_what_is_wrong_is_found(cell: NotebookNode, says: str, tmp_path: Path) -> None:
    lines, _ = run_nbval(written(tmp_path, cell, new_code_cell("print('after')")), tmp_path / "run")
    assert any(says in line for line in lines), lines


def test_a_notebook_that_takes_too_long_is_stopped(tmp_path: Path) -> None:
    path = written(tmp_path, new_code_cell("import time\ntime.sleep(600)"))
    lines, seconds = run_nbval(path, tmp_path / "run", ceiling=6)
    assert "not done after 6 s" in lines and seconds < 30
