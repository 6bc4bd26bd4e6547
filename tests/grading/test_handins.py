"""Files as they come: the learner's cells, or one line that says why not. No file raises anything else."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from course_lib.errors import HandInError
from course_lib.grading.handins import read_handin


def cell(source: Any, **more: Any) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source, **more}


NOTEBOOK = {"cells": [cell("x = 1")], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty file"),
        (b"  \n\0\0", "empty file"),
        (json.dumps(NOTEBOOK).encode()[:60], "line 1, column"),
        (b'{"cells": [\n<<<<<<< HEAD\n{}\n=======\n>>>>>>> other\n]}', "conflict marks"),
        (b"[]", "holds a list"),
        (b"5", "holds a int"),
        (b'"text"', "holds a str"),
        (b"{}", "no list of cells"),
        (b'{"cells": {"a": 1}}', "no list of cells"),
        (b"[" * 100_000, "Error while reading"),
        (b'{"cells": [], "x": ' + b"9" * 5000 + b"}", "Error while reading"),
        (b"PK\x03\x04\x00\x00", "no notebook"),
    ],
)
def test_unreadable(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "hand-in.ipynb"
    path.write_bytes(content)
    with pytest.raises(HandInError) as caught:
        read_handin(path)
    assert words in str(caught.value) and "\n" not in str(caught.value) and "hand-in.ipynb" in str(caught.value)


def test_a_folder_or_nothing_is_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.ipynb"):
        with pytest.raises(HandInError):
            read_handin(path)


def write(tmp_path: Path, document: Any, encoding: str = "utf-8") -> Path:
    path = tmp_path / "x.ipynb"
    path.write_bytes(json.dumps(document).encode(encoding))
    return path


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    assert read_handin(write(tmp_path, NOTEBOOK, encoding)).cells[0].source == "x = 1"


@pytest.mark.parametrize("source", ["x = 1\r\ny = 2", "x = 1\ry = 2", ["x = 1\n", "y = 2"], ["x = 1\r\n", "y = 2"]])
def test_line_ends_and_lists(tmp_path: Path, source: Any) -> None:
    assert read_handin(write(tmp_path, {"cells": [cell(source)]})).cells[0].source == "x = 1\ny = 2"


def test_cells_of_odd_shape_are_left_out_with_a_note(tmp_path: Path) -> None:
    odd = [5, None, [], cell(5), cell([1, 2]), cell("x", metadata=7), cell("y", metadata={"nbgrader": "no"}, id=3)]
    found = read_handin(write(tmp_path, {"cells": odd, "metadata": "no"}))
    assert [one.source for one in found.cells] == ["x", "y"] and len(found.notes) == 5
    assert found.cells[1].grade_id is None and found.cells[1].cell_id is None and found.assignment is None


def test_version_3_notebooks_are_read(tmp_path: Path) -> None:
    old = {"worksheets": [{"cells": [{"cell_type": "code", "input": ["a = 1\n", "b = 2"]}]}], "nbformat": 3}
    assert read_handin(write(tmp_path, old)).cells[0].source == "a = 1\nb = 2"


def test_widget_state_is_not_taken(tmp_path: Path) -> None:
    state = {"widgets": {"state": {"x" * 10: "y" * 2_000_000}}, "course": {"assignment": "90_fixture", "hash": "h"}}
    found = read_handin(write(tmp_path, {**NOTEBOOK, "metadata": state}))
    assert (found.assignment, found.release) == ("90_fixture", "h")


def test_random_damage_never_raises_anything_else(tmp_path: Path) -> None:
    rng = random.Random(0)
    whole = json.dumps({**NOTEBOOK, "cells": [cell("x = 1", id="a"), cell(["y\n", "z"])]}).encode()
    path = tmp_path / "x.ipynb"
    for _ in range(500):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            at = rng.randrange(len(content))
            if rng.random() < 0.3:
                del content[at : at + rng.randint(1, 20)]
            else:
                content[at] = rng.randrange(256)
            content = content or bytearray(b"x")
        path.write_bytes(content)
        try:
            for one in read_handin(path).cells:
                assert isinstance(one.source, str)
        except HandInError as error:
            assert "\n" not in str(error)
