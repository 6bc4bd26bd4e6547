"""A notebook run by `course execute`: the same bytes every time, nothing of this machine, one line a problem."""

import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from course_lib.grading.cli import execute_main
from course_lib.grading.execute import WIDGET, execute, normalise

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
FACES = f"""
from IPython.display import display
face = {{"text/html": '<img alt="a dot" src="data:image/png;base64,{PICTURE}">', "text/plain": "a widget"}}
display({{"{WIDGET}": {{"model_id": str(id(face)), "version_major": 2, "version_minor": 0}}, **face}}, raw=True)
"""
CELLS = [
    new_markdown_cell("# A title, <b>bold</b>"),
    new_code_cell("from tqdm.auto import tqdm\nfor _ in tqdm(range(3)):\n    pass", metadata={"tags": ["set-up"]}),
    new_code_cell("print('a')\nprint('b')"),
    new_code_cell(FACES.strip()),
    new_code_cell("handle = display({'text/plain': '0 of 2'}, raw=True, display_id='x')"),
    new_code_cell("display({'text/plain': '2 of 2'}, raw=True, display_id='x', update=True)\n1 + 1"),
    new_code_cell(""),
    new_code_cell("print('a')\nprint('b')"),
    new_code_cell("import os\nopen('beside.txt').read(), 'COURSE_GRADE_DIR' in os.environ"),
]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    """The same notebook run twice, in two folders."""
    contents = []
    for number in range(2):
        folder = tmp_path_factory.mktemp(f"run{number}")
        (folder / "beside.txt").write_text("beside", encoding="utf-8")
        notebook = new_notebook(
            cells=CELLS, metadata={"widgets": {"state": {}}, "course": {"chapter": "90"}, "vscode": 1}
        )
        nbformat.write(notebook, folder / "x.ipynb")
        found = execute(folder / "x.ipynb")
        assert found.problems == ()
        contents.append(found.content)
    return contents


def test_two_runs_are_the_same_bytes(done: list[bytes]) -> None:
    assert done[0] == done[1]


def test_what_is_written(done: list[bytes]) -> None:
    notebook = nbformat.reads(done[0].decode(), as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"course", "kernelspec", "language_info"}
    assert notebook.metadata.kernelspec.name == "python3" and "version" not in notebook.metadata.language_info
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [1, 2, 3, 4, 5, None, 6, 7]
    assert [cell.id for cell in notebook.cells][:4] == [
        "a-title-bold",
        "from-tqdm-auto-import-tqdm",
        "print-a",
        "from-ipython-display-import-display",
    ]
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    assert code[0].outputs == [] and code[0].metadata == {"tags": ["set-up"]}, "a progress bar leaves nothing behind"
    assert [out.text for out in code[1].outputs] == ["a\nb\n"]
    assert code[2].outputs[0].data[WIDGET]["model_id"] == "0" * 31 + "1" and "text/html" in code[2].outputs[0].data
    assert code[3].outputs[0].data["text/plain"] == "2 of 2", "an updated display is stored as it ended"
    assert code[4].outputs[-1].execution_count == 5
    assert code[7].outputs[0].data["text/plain"] == "('beside', False)", "cells run in the notebook's own folder"
    assert done[0].endswith(b"}\n") and b"\r" not in done[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("import sys\nprint('oops', file=sys.stderr)", "writes to stderr: oops"),
        ("import warnings\nwarnings.warn('old')", "writes to stderr"),
        ("import os\nprint(os.getcwd())", "shows a path of this machine"),
        ("import os\nos.path.expanduser('~') + '/x'", "shows a path of this machine"),
        ("object()", "memory address"),
        ("1 / 0", "cell 0 (1 / 0) raised ZeroDivisionError: division by zero"),
        ("import os\nos._exit(1)", "ended the kernel"),
        ("import time\ntime.sleep(60)", "took more than 2 s"),
        ("import ipywidgets\nipywidgets.IntSlider()", "without a static face"),
        ("display({'text/plain': 'x' * 1_600_000}, raw=True)", "the limit is 1.5 MB"),
    ],
)
def test_what_must_be_mended(tmp_path: Path, source: str, words: str) -> None:
    path = tmp_path / "x.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell(source)]), path)
    found = execute(path, timeout=2 if "sleep" in source else 60)
    assert words in " ".join(found.problems) and all("\n" not in line for line in found.problems)


def test_an_expected_exception_is_fine() -> None:
    error = new_output("error", ename="E", evalue="v", traceback=[])
    cell = new_code_cell("raise E", outputs=[error], metadata={"tags": ["raises-exception"]})
    assert normalise(new_notebook(cells=[cell])) == []


def test_the_command_writes_only_what_is_in_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.ipynb"
    nbformat.write(new_notebook(cells=[new_code_cell("print(1)"), new_code_cell("object()")]), path)
    before = path.read_bytes()
    assert execute_main([str(path)]) == 1
    captured = capsys.readouterr()
    assert path.read_bytes() == before and "memory address" in captured.out and "[1/1]" in captured.err
    assert execute_main([str(path), "--draft"]) == 1 and path.read_bytes() != before
    found: Any = json.loads(path.read_text(encoding="utf-8"))
    assert found["cells"][0]["execution_count"] == 1
    with pytest.raises(SystemExit):
        execute_main([])
