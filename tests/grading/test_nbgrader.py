"""nbgrader itself takes `solutions/` as they are: its own commands give right answers full marks and stubs none."""

import os
import shutil
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbgrader import utils
from nbgrader.api import Gradebook
from nbgrader.nbgraderformat import MetadataValidator
from nbgrader.preprocessors import (
    CheckCellMetadata,
    ClearHiddenTests,
    ClearOutput,
    ClearSolutions,
    ComputeChecksums,
    LockCells,
)

from course_lib.grading.assignment import Assignment, load_assignment
from course_lib.grading.bundle import write_nbgrader
from course_lib.grading.notebook import dump, grade_of
from course_lib.grading.release import nbgrader_checksum, release
from course_lib.machine import material_dir

ROOT = material_dir()
SOLUTIONS = sorted((ROOT / "solutions").glob("*.ipynb"))
STRESS_OF = ("solutions/*.ipynb",)
SAMPLE = ("01_", "07_", "13_")
"""One process, ranks, many checks: each run has these through nbgrader's commands, and `stress` has all."""
STEPS = (LockCells, ClearSolutions, ClearOutput, CheckCellMetadata, ComputeChecksums, ClearHiddenTests)
STEPS += (ComputeChecksums, CheckCellMetadata)


def released_by_nbgrader(notebook: Any) -> Any:
    """The steps of its `generate_assignment` that need no database."""
    notebook, resources = deepcopy(notebook), {}
    for step in STEPS:
        notebook, resources = step().preprocess(notebook, resources)
    return notebook


@pytest.mark.parametrize("path", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
def test_our_release_is_what_nbgrader_would_release(path: Path) -> None:
    """Sources, checksums and locks of every cell with a grade_id; beyond that we keep the lines that checks print."""
    assignment = load_assignment(path)
    ours, theirs = release(assignment), released_by_nbgrader(assignment.notebook)
    assert [cell.source for cell in ours.cells] == [cell.source for cell in theirs.cells]
    for one, two in zip(ours.cells, theirs.cells, strict=True):
        assert grade_of(one) == grade_of(two)
        if grade_of(one):
            assert nbgrader_checksum(one) == utils.compute_checksum(one)
            assert [one.metadata.get(key) for key in ("deletable", "editable")] == [
                two.metadata.get(key) for key in ("deletable", "editable")
            ]
    MetadataValidator().validate_nb(ours)


def test_hidden_tests_are_left_out_as_nbgrader_would(fixture_assignment: Assignment) -> None:
    notebook = deepcopy(fixture_assignment.notebook)
    check = next(cell for cell in notebook.cells if grade_of(cell).get("grade_id") == "check-total")
    check.source += "\n### BEGIN HIDDEN TESTS\nassert total([5]) == 5\n### END HIDDEN TESTS"
    hidden = Assignment("90_fixture", fixture_assignment.path, notebook, fixture_assignment.items)
    ours, theirs = release(hidden), released_by_nbgrader(notebook)
    assert [cell.source for cell in ours.cells] == [cell.source for cell in theirs.cells]
    assert "assert total" not in dump(theirs).decode()


def nbgrader(folder: Path, *words: str) -> str:
    """One of its commands in a course's folder, in a home of its own; what it wrote."""
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "HOME": str(home),
        "IPYTHONDIR": str(home / "ipython"),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "MPLCONFIGDIR": str(home / "mpl"),
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),  # it calls `alembic`
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    done = subprocess.run(
        [sys.executable, "-m", "nbgrader", *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        encoding="utf-8",
        timeout=900,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def submit(folder: Path, student: str, name: str, source: Path) -> None:
    target = folder / "submitted" / student / name / f"{name}.ipynb"
    target.parent.mkdir(parents=True)
    shutil.copyfile(source, target)


def scores(folder: Path, student: str, name: str) -> dict[str, float]:
    """Points by check, as nbgrader's database has them."""
    with Gradebook(f"sqlite:///{folder / 'gradebook.db'}") as book:
        grades = book.find_submission_notebook(name, name, student).grades
        return {grade.name.removeprefix("check-"): float(grade.auto_score) for grade in grades}


def grade_in_nbgrader(folder: Path, assignment: Assignment) -> dict[str, dict[str, float]]:
    """Release a chapter, hand in its solution as it is and its stubs as they are, and autograde both."""
    name = assignment.name
    nbgrader(folder, "generate_assignment", name, "--create")
    submit(folder, "solved", name, assignment.path)
    submit(folder, "untouched", name, folder / "release" / name / f"{name}.ipynb")
    nbgrader(folder, "autograde", name, "--create")
    return {student: scores(folder, student, name) for student in ("solved", "untouched")}


@pytest.mark.slow
def test_the_fixture_in_nbgrader(material: Path, fixture_assignment: Assignment, tmp_path: Path) -> None:
    """The whole way, without torch: also one answer wrong, and its points alone are lost."""
    source = tmp_path / "source" / "90_fixture" / "90_fixture.ipynb"
    source.parent.mkdir(parents=True)
    shutil.copyfile(fixture_assignment.path, source)
    wrong = nbformat.read(fixture_assignment.path, 4)
    cell = next(cell for cell in wrong.cells if grade_of(cell).get("grade_id") == "double")
    cell.source = "def double(values):\n    return values"
    half = tmp_path / "half.ipynb"
    nbformat.write(wrong, half)
    submit(tmp_path, "half", "90_fixture", half)
    found = grade_in_nbgrader(tmp_path, fixture_assignment)
    points = {item.id: item.points for item in fixture_assignment.items}
    assert found["solved"] == points and set(found["untouched"].values()) == {0.0}
    assert scores(tmp_path, "half", "90_fixture") == {**points, "double": 0.0}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, id=path.stem, marks=[] if path.name.startswith(SAMPLE) else pytest.mark.stress)
        for path in SOLUTIONS
    ],
)
def test_solutions_get_full_marks_in_nbgrader_and_stubs_none(path: Path, tmp_path: Path) -> None:
    """`course release --nbgrader`, then nbgrader's own commands, on the cases of its configuration's seed."""
    assignment = load_assignment(path)
    write_nbgrader(tmp_path, hints=True, chapters=[int(assignment.chapter)], material=ROOT)
    laid = tmp_path / "source" / assignment.name / path.name
    assert laid.read_bytes() == path.read_bytes(), "with its hints, a solution is laid out as it is"
    found = grade_in_nbgrader(tmp_path, assignment)
    assert found["solved"] == {item.id: item.points for item in assignment.items}
    assert found["untouched"] == {item.id: 0.0 for item in assignment.items}
