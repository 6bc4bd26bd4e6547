"""What a learner sees below a check cell: one line, as an error, and the own line of code where it came from."""

from typing import Any

import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.checks.core import NOT_ATTEMPTED

SET_UP = """
from course_lib.checks.core import Exercise, Wrong, make_check
judge = lambda case, returned: None if returned == 2 * case["value"] else Wrong("it is not twice the value", "adds")
cases = lambda seed: [{"name": "a one", "value": 1}, {"name": "a two", "value": 2}]
check = make_check("99", [Exercise("double", "t", cases, lambda f, case: f(case["value"]), judge, ("numpy.multiply",))])
"""
ANSWERS = {
    "def double(x):\n    return 2 * x": "double: passed, 2 cases\n",
    "def double(x):\n    return x + 1": "double: case 2 of 2 (a two): it is not twice the value [adds]",
    "def double(x):\n    raise NotImplementedError()": f"double: {NOT_ATTEMPTED}",
    "def double(x):\n    y = x\n    return y.twice": (
        "double: case 1 of 2 (a one): AttributeError: 'int' object has no attribute 'twice'\n"
        "    line 3 of your cell, in double: return y.twice"
    ),
    "import numpy as n\ndef double(x):\n    return n.multiply(2, x)": (
        "double: `numpy.multiply` does this exercise's work: write it yourself"
    ),
    "def helper(x):\n    from numpy import multiply as m\n    return m(2, x)\ndef double(x):\n    return helper(x)": (
        "double: `numpy.multiply` does this exercise's work: write it yourself"
    ),
}


@pytest.fixture(scope="module")
def outputs() -> list[Any]:
    cells = [new_code_cell(SET_UP.strip())]
    for source in ANSWERS:
        cells += [new_code_cell(source), new_code_cell('check("double", double)')]
    notebook = new_notebook(cells=cells)
    NotebookClient(notebook, timeout=60, kernel_name="python3", allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells[2::2]]


@pytest.mark.parametrize(("number", "expected"), list(enumerate(ANSWERS.values())))
def test_one_output(outputs: list[Any], number: int, expected: str) -> None:
    assert len(outputs[number]) == 1, "nothing on stderr"
    found = outputs[number][0]
    if found.output_type == "stream":
        assert (found.name, found.text) == ("stdout", expected)
    else:
        assert found.output_type == "error" and found.ename == "CheckFailed"
        assert found.traceback == [expected] and found.evalue == expected
