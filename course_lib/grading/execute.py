"""Run a notebook of ours from top to bottom and write it with outputs that are the same on every machine."""

import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.grading.notebook import dump, stable_ids, strip_metadata, tags_of
from course_lib.machine import material_dir

__all__ = ["MAX_BYTES", "Executed", "execute", "normalise"]

MAX_BYTES = 1_500_000
WIDGET = "application/vnd.jupyter.widget-view+json"
_PROGRESS = re.compile(r"^\s*(?:.*:\s*)?\d+%\|")
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


@dataclass(frozen=True)
class Executed:
    """A notebook after its run: the file's bytes, and what must be mended before it may be committed."""

    content: bytes
    problems: tuple[str, ...]


def execute(path: Path, timeout: float = 300) -> Executed:
    """Run every cell with a fresh kernel, in the notebook's own folder, and normalise what it shows.

    Errors, stderr, machine paths and memory addresses become problems, one line each. CourseError when the file cannot
    be read. The kernel gets an IPython folder of its own: nothing of the user's set-up reaches a committed page.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except Exception as error:
        raise CourseError(f"{path}: cannot be read as a notebook: {type(error).__name__}: {error}") from error
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    client = NotebookClient(
        notebook,
        timeout=timeout,
        kernel_name="python3",
        resources={"metadata": {"path": str(path.resolve().parent)}},
        extra_arguments=["--IPKernelApp.log_level=ERROR"],
        record_timing=False,
        store_widget_state=False,
        coalesce_streams=True,
    )
    failed: list[str] = []
    with tempfile.TemporaryDirectory(prefix="course-") as folder:
        environment = {**os.environ, "IPYTHONDIR": folder, "PYTHONHASHSEED": "0", "COURSE_CHECK_SEED": "0"}
        environment.pop("COURSE_GRADE_DIR", None)
        try:
            client.execute(env=environment)
        except CellExecutionError as error:
            failed.append(f"{_running(notebook)} raised {error.ename}: {_one_line(error.evalue)}")
        except CellTimeoutError:
            failed.append(f"{_running(notebook)} took more than {timeout:g} s")
        except DeadKernelError:
            failed.append(f"{_running(notebook)} ended the kernel")
    found = normalise(notebook)
    content = dump(notebook)
    if len(content) > MAX_BYTES:
        found.append(f"is {len(content) / 1e6:.2f} MB with its outputs; the limit is {MAX_BYTES / 1e6:.1f} MB")
    return Executed(content, tuple(failed or found))


def normalise(notebook: NotebookNode) -> list[str]:
    """Stable ids, counts 1..n, no widget state, no timings; returns what cannot be mended here. In place."""
    strip_metadata(notebook)
    stable_ids(notebook)
    found: list[str] = []
    count = models = 0
    for index, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        if any(tag.startswith("predict-") for tag in tags_of(cell)):
            cell.metadata["jupyter"] = {"source_hidden": True}  # the call holds the answer
        count += bool(cell.source.strip())
        cell.execution_count = count if cell.source.strip() else None
        where = f"cell {index} ({cell.id})"
        kept = []
        for output in cell.outputs:
            problem = None
            if output.output_type == "stream" and output.name == "stderr":
                problem = f"writes to stderr: {_one_line(output.text)}"
            elif output.output_type == "error" and "raises-exception" not in tags_of(cell):
                problem = f"raised {output.ename}: {_one_line(output.evalue)}"
            if output.output_type == "execute_result":
                output.execution_count = cell.execution_count
            if WIDGET in output.get("data", {}):
                if _is_progress_bar(output):
                    continue
                models += 1
                output.data[WIDGET] = {"model_id": f"{models:032x}", "version_major": 2, "version_minor": 0}
                if "text/html" not in output.data:
                    problem = "shows a widget without a static face (text/html)"
            problem = problem or _personal(output)
            if problem:
                found.append(f"{where} {problem}")
            kept.append(output)
        cell.outputs = kept
    return found


def _is_progress_bar(output: NotebookNode) -> bool:
    text = str(output.data.get("text/plain", ""))
    return "text/html" not in output.data and bool(_PROGRESS.match(text) or text.startswith("HBox("))


def _personal(output: NotebookNode) -> str | None:
    """A path or an address of this machine in what a reader would see."""
    texts = [output.text] if output.output_type == "stream" else []
    texts += [text for mime, text in output.get("data", {}).items() if mime.startswith("text/")]
    for text in map(str, texts):
        text = re.sub(r"data:image/[a-z+]+;base64,[A-Za-z0-9+/=\s]+", "", text)
        for root in _machine_roots():
            if root in text:
                return f"shows a path of this machine ({root})"
        if _ADDRESS.search(text):
            return "shows a memory address; print something that is the same in every run"
    return None


def _machine_roots() -> list[str]:
    roots = {str(Path.home()), str(material_dir()), tempfile.gettempdir(), sys.prefix, sys.base_prefix}
    return sorted(root for root in roots if len(Path(root).parts) > 1 and root not in ("/usr", "/usr/local"))


def _running(notebook: NotebookNode) -> str:
    ran = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.execution_count]
    codes = [index for index, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.source.strip()]
    index = next((index for index in codes if index not in ran), codes[-1] if codes else 0)
    errors = [index for index in ran if any(out.output_type == "error" for out in notebook.cells[index].outputs)]
    index = errors[-1] if errors else index
    words = " ".join(notebook.cells[index].source.split())[:60]
    return f"cell {index} ({words})"


def _one_line(text: str, limit: int = 300) -> str:
    text = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(text)).split())
    return text if len(text) <= limit else text[:limit] + " ..."
