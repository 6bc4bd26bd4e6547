"""What learners get from a solution notebook, and what is said about one that is not in order."""

import json
import subprocess
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from grading_fixture import cell_of, solution

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, find_assignment, find_item, load_assignment, problems
from course_lib.grading.cli import hint_main, release_main, syllabus_main
from course_lib.grading.notebook import dump
from course_lib.grading.release import (
    differences,
    nbgrader_checksum,
    release,
    strip_hidden,
    strip_solution,
    write_release,
)


def test_answers_become_stubs_and_expected_lines_stay(fixture_assignment: Assignment) -> None:
    notebook = release(fixture_assignment)
    text = dump(notebook).decode()
    assert "BEGIN SOLUTION" not in text and "sum(values)" not in text
    double = cell_of(notebook, "double")
    assert double.source.endswith('"""Each value twice."""\n    # YOUR CODE HERE\n    raise NotImplementedError()')
    assert cell_of(notebook, "pick").source == (
        'picked = {"variant": 0, "choice": None}\n# YOUR CODE HERE\nraise NotImplementedError()'
    )
    check = cell_of(notebook, "check-double")
    assert check.outputs[0].text == "double: passed, 3 cases\n" and check.execution_count == 3
    assert not check.metadata.editable and not check.metadata.deletable
    with_outputs = [cell.id for cell in notebook.cells if cell.get("outputs")]
    assert with_outputs == [f"check-{item.id}" for item in fixture_assignment.items]
    nbformat.validate(notebook)


def test_a_release_is_the_same_bytes_every_time(fixture_assignment: Assignment, material: Path) -> None:
    assert dump(release(fixture_assignment)) == dump(release(fixture_assignment))
    assert dump(release(fixture_assignment)) == (material / "exercises" / "90_fixture.ipynb").read_bytes()
    course = release(fixture_assignment).metadata.course
    assert course.assignment == "90_fixture" and course.release and len(course["hash"]) == 16


def test_the_hash_is_of_the_content(fixture_assignment: Assignment) -> None:
    other = Assignment(
        "90_fixture", fixture_assignment.path, deepcopy(fixture_assignment.notebook), fixture_assignment.items
    )
    other.notebook.cells[0].source += " changed"
    assert release(other).metadata.course["hash"] != release(fixture_assignment).metadata.course["hash"]


def test_checksums_follow_nbgraders_rule() -> None:
    cell = nbformat.v4.new_code_cell("x = 1")
    cell.metadata["nbgrader"] = {"grade": True, "solution": False, "locked": True, "grade_id": "check-x", "points": 2}
    import hashlib

    assert nbgrader_checksum(cell) == hashlib.md5(b"x = 1codeTrueFalseTruecheck-x2.0").hexdigest()


def test_regions() -> None:
    assert strip_solution("a\n  ### BEGIN SOLUTION\n  b\n  ### END SOLUTION\nc") == (
        "a\n  # YOUR CODE HERE\n  raise NotImplementedError()\nc"
    )
    assert strip_hidden('check("x", y)\n### BEGIN HIDDEN TESTS\nassert 1\n### END HIDDEN TESTS') == 'check("x", y)'


def test_hidden_tests_are_not_released_but_are_graded(fixture_assignment: Assignment) -> None:
    hidden = deepcopy(fixture_assignment.notebook)
    cell_of(hidden, "check-total").source += "\n### BEGIN HIDDEN TESTS\nassert total([5]) == 5\n### END HIDDEN TESTS"
    other = Assignment("90_fixture", fixture_assignment.path, hidden, fixture_assignment.items)
    assert problems("90_fixture", hidden) == []
    assert "assert total" not in dump(release(other)).decode()
    assert "assert total" in dump(release(other, hidden_tests=True)).decode()


def test_check_says_what_differs(material: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert release_main(["--check"]) == 0
    path = material / "exercises" / "90_fixture.ipynb"
    content = path.read_bytes()
    try:
        path.write_bytes(content.replace(b"Each value twice", b"Each value thrice"))
        assert differences() == ["exercises/90_fixture.ipynb differs from what solutions/90_fixture.ipynb releases"]
        (material / "exercises" / "91_gone.ipynb").write_bytes(content)
        path.unlink()
        assert release_main(["--check"]) == 1
        out = capsys.readouterr().out
        assert "90_fixture.ipynb is missing" in out and "91_gone.ipynb has no solution" in out
        assert write_release() == [path] and differences() == []
    finally:
        path.write_bytes(content)


def edit(name: str, key: str, value: Any) -> Any:
    def change(notebook: Any) -> None:
        cell_of(notebook, name).metadata["nbgrader" if key in ("grade_id", "points") else "course"][key] = value

    return change


def drop_check(notebook: Any) -> None:
    notebook.cells.remove(cell_of(notebook, "check-total"))


def write_source(name: str, source: str) -> Any:
    def change(notebook: Any) -> None:
        cell_of(notebook, name).source = source

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("total", "grade_id", "double"), "grade_id 'double' is on cells"),
        (edit("double", "grade_id", "Two Words"), "not of the form"),
        (edit("double", "hints", ["one"]), "must be three texts"),
        (edit("double", "position", "90.3"), 'by its place it is "90.1"'),
        (edit("double", "exercise", "twice"), 'metadata.course.exercise must be "double"'),
        (edit("double", "minutes", 0), "minutes"),
        (edit("double", "misconceptions", ["no-such"]), "misconception 'no-such'"),
        (edit("double", "claims", [9, 10]), "claims"),
        (edit("check-double", "points", 0), "points"),
        (edit("check-double", "points", True), "points"),
        (edit("check-double", "grade_id", "check-twice"), "there is no check cell"),
        (drop_check, "there is no check cell with grade_id 'check-total'"),
        (write_source("double", "def double(values):\n    return 1"), "has no '### BEGIN SOLUTION' region"),
        (write_source("double", "### BEGIN SOLUTION\nx = 1"), "do not pair"),
        (write_source("check-double", 'check("total", double)'), "must be one call"),
        (write_source("check-double", 'check("double", double)\nprint(1)'), "must be one call"),
        (lambda notebook: notebook.cells.pop(2), None),
        (lambda notebook: notebook.metadata.course.update(assignment="91_other"), "metadata.course.assignment"),
        (lambda notebook: cell_of(notebook, "double").metadata.nbgrader.update(extra=1), "other keys: extra"),
        (lambda notebook: notebook.metadata.course.update(checks="no_such_module"), "cannot load no_such_module"),
        (lambda notebook: notebook.cells.__delitem__(slice(-3, None)), "has double, total, pick, largest"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(material: Path, tmp_path: Path, change: Any, words: str | None) -> None:
    notebook = solution()
    change(notebook)
    path = tmp_path / "90_fixture.ipynb"
    nbformat.write(notebook, path)
    if words is None:
        load_assignment(path, with_checks=True)
        return
    with pytest.raises(CourseError) as caught:
        load_assignment(path, with_checks=True)
    everything = str(caught.value) + " ".join(problems("90_fixture", notebook))
    assert words in everything and "\n" not in everything


def test_a_check_cell_that_was_not_run_is_named(material: Path, tmp_path: Path) -> None:
    notebook = solution()
    cell_of(notebook, "check-pick").outputs = []
    path = tmp_path / "90_fixture.ipynb"
    nbformat.write(notebook, path)
    with pytest.raises(CourseError, match="check cell of pick does not hold its expected line"):
        release(load_assignment(path))


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"cells": 5})])
def test_a_solution_that_is_no_notebook(tmp_path: Path, content: str) -> None:
    path = tmp_path / "90_fixture.ipynb"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CourseError, match="cannot be read as a notebook"):
        load_assignment(path)


def test_items_are_found_by_place_and_id(material: Path) -> None:
    assert find_item("90.2")[1].id == find_item("total")[1].id == "total"
    assert find_assignment("90").name == "90_fixture"
    for name in ("90.9", "nothing", "4.1"):
        with pytest.raises(CourseError):
            find_item(name)


def test_hints_are_told_one_by_one(material: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert hint_main(["90.2"]) == 0
    first = capsys.readouterr().out
    assert "hint 1 of 3: idea" in first and "where" not in first and "--level 2" in first
    assert hint_main(["total", "--level", "3"]) == 0
    assert "hint 3 of 3: code" in capsys.readouterr().out


def test_hints_and_grading_do_not_wait_for_torch() -> None:
    code = (
        "import sys, course_lib.grading.grade, course_lib.grading.assignment as a; "
        "a.all_assignments(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_the_syllabus_lists_points_minutes_and_claims(material: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert syllabus_main([]) == 0
    out = capsys.readouterr().out
    assert "90_fixture  (10 points, 4 minutes)" in out and "90.3" in out and "claims 9" in out
