"""`exercises/` from `solutions/`: stubs for answers, no hidden tests, no outputs but the lines that checks print."""

import hashlib
import json
from copy import deepcopy
from pathlib import Path

from nbformat import NotebookNode

from course_lib import __version__
from course_lib.errors import CourseError
from course_lib.grading.assignment import BEGIN, BEGIN_HIDDEN, END, END_HIDDEN, Assignment, all_assignments, is_release
from course_lib.grading.notebook import dump, grade_of, stable_ids, strip_metadata
from course_lib.machine import material_dir

__all__ = [
    "STUB",
    "differences",
    "nbgrader_checksum",
    "need_solutions",
    "release",
    "strip_hidden",
    "strip_solution",
    "write_release",
]

STUB = ("# YOUR CODE HERE", "raise NotImplementedError()")


def strip_solution(source: str) -> str:
    """Each solution region becomes the stub, at the indent of its first marker; the lines outside stay."""
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark == BEGIN:
            indent = line[: len(line) - len(line.lstrip())]
            kept += [indent + stub for stub in STUB]
        if mark in (BEGIN, END):
            inside = mark == BEGIN
        elif not inside:
            kept.append(line)
    return "\n".join(kept)


def strip_hidden(source: str) -> str:
    """Without its hidden tests; empty when there is nothing else."""
    kept: list[str] = []
    inside = False
    for line in source.split("\n"):
        mark = line.strip()
        if mark in (BEGIN_HIDDEN, END_HIDDEN):
            inside = mark == BEGIN_HIDDEN
        elif not inside:
            kept.append(line)
    return "\n".join(kept).strip("\n")


def nbgrader_checksum(cell: NotebookNode) -> str:
    """nbgrader's own rule (schema 3): md5 of source, type, the three flags, grade_id and, for a graded cell, points."""
    grade = grade_of(cell)
    parts = [cell.source, cell.cell_type, *(str(bool(grade[key])) for key in ("grade", "solution", "locked"))]
    parts.append(grade["grade_id"])
    if grade["grade"]:
        parts.append(str(float(grade["points"])))
    return hashlib.md5("".join(parts).encode("utf-8"), usedforsecurity=False).hexdigest()


def release(assignment: Assignment, hidden_tests: bool = False) -> NotebookNode:
    """The notebook that learners get; with `hidden_tests` the one that they are graded in.

    CourseError when a check cell has not been run (its expected line is missing). What was released stays as it is.
    """
    if is_release(assignment.notebook):
        return deepcopy(assignment.notebook)
    notebook = deepcopy(assignment.notebook)
    expected = {item.check: item.id for item in assignment.items}
    cells = []
    for index, cell in enumerate(notebook.cells):
        grade = grade_of(cell)
        hidden = BEGIN_HIDDEN in cell.source
        cell.source = strip_solution(cell.source)
        if not hidden_tests:
            cell.source = strip_hidden(cell.source)
        if hidden and not cell.source.strip():
            continue
        if cell.cell_type == "code":
            outputs = _expected(assignment, expected[index], cell) if index in expected else []
            cell.outputs, cell.execution_count = outputs, cell.execution_count if outputs else None
        if grade:
            cell.metadata.nbgrader["checksum"] = nbgrader_checksum(cell)
            cell.metadata.nbgrader["cell_type"] = cell.cell_type
            cell.metadata["deletable"] = False
            if not grade["solution"]:
                cell.metadata["editable"] = False
        cells.append(cell)
    notebook.cells = cells
    strip_metadata(notebook)
    stable_ids(notebook)
    notebook.metadata["course"] = {"assignment": assignment.name, "release": __version__}
    content = json.dumps(notebook, sort_keys=True, ensure_ascii=False)
    notebook.metadata["course"]["hash"] = hashlib.sha256(content.encode("utf-8")).hexdigest()[:16]
    return notebook


def _expected(assignment: Assignment, item: str, cell: NotebookNode) -> list[NotebookNode]:
    outputs = [out for out in cell.outputs if out.output_type == "stream" and out.name == "stdout"]
    if not cell.execution_count or len(outputs) != 1 or not str(outputs[0].text).startswith(f"{item}: passed"):
        raise CourseError(
            f"{assignment.path.name}: the check cell of {item} does not hold its expected line; "
            f"run `course execute {assignment.path.name}` first"
        )
    return outputs


def need_solutions(material: Path | None = None) -> None:
    """CourseError where there is nothing to release from."""
    if not ((material or material_dir()) / "solutions").is_dir():
        raise CourseError("there is no folder solutions/ here: exercises are released where their answers are")


def differences(material: Path | None = None) -> list[str]:
    """What `exercises/` has that a fresh release would not, one line a notebook; empty when they agree."""
    need_solutions(material)
    folder = (material or material_dir()) / "exercises"
    found, names = [], set()
    for assignment in all_assignments(material, with_checks=True):
        path = folder / assignment.path.name
        names.add(path.name)
        if not path.exists():
            found.append(f"exercises/{path.name} is missing")
        elif path.read_bytes().replace(b"\r\n", b"\n") != dump(release(assignment)):
            found.append(f"exercises/{path.name} differs from what solutions/{path.name} releases")
    extra = {path.name for path in folder.glob("*.ipynb")} - names
    return found + [f"exercises/{name} has no solution" for name in sorted(extra)]


def write_release(material: Path | None = None) -> list[Path]:
    """Write every exercise notebook; the paths of those that changed. CourseError for the first bad solution."""
    need_solutions(material)
    folder = (material or material_dir()) / "exercises"
    ready = [(folder / one.path.name, dump(release(one))) for one in all_assignments(material, with_checks=True)]
    folder.mkdir(parents=True, exist_ok=True)
    changed = [(path, content) for path, content in ready if not path.exists() or path.read_bytes() != content]
    for path, content in changed:
        path.write_bytes(content)
    for path in folder.glob("*.ipynb"):
        if path not in {known for known, _ in ready}:
            path.unlink()
    return [path for path, _ in changed]
