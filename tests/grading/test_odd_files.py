"""Odd files, odd cells and odd texts: several of each kind, as other programs and accidents make them."""

import json
import os
import socket
import stat
import time
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.errors import HandInError
from course_lib.grading import handins
from course_lib.grading.assignment import Assignment
from course_lib.grading.grade import assignment_of
from course_lib.grading.handins import read_handin
from course_lib.grading.sources import clean, defined, parses
from course_lib.grading.splice import Spliced, splice

Splice = Callable[[Any], Spliced]


@pytest.fixture
def spliced(fixture_assignment: Assignment, hand_in: Callable[..., Path]) -> Splice:
    return lambda notebook: splice(fixture_assignment, read_handin(hand_in(notebook)))


def own(found: Spliced, name: str) -> str:
    return "\n".join(found.items[name].sources)


def cell(source: Any, **more: Any) -> dict[str, Any]:
    return {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None, "source": source, **more}


def write(path: Path, cells: Any, **more: Any) -> Path:
    path.write_text(json.dumps({"cells": cells, "metadata": {}, **more}), encoding="utf-8")
    return path


# ---------------------------------------------------------------- files

CODE = "x = 'é'"


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le", "latin-1", "cp1252"]
)
def test_every_encoding_gives_the_cells(tmp_path: Path, encoding: str) -> None:
    """In the one-byte ones a letter beyond ASCII is lost, and nothing else."""
    path = tmp_path / "x.ipynb"
    path.write_bytes(json.dumps({"cells": [cell(CODE)]}, ensure_ascii=False).encode(encoding))
    found = read_handin(path).cells[0].source
    assert found == CODE if "utf" in encoding else found.startswith("x = '") and parses(found)


def test_numbers_that_json_has_not_are_read_over(tmp_path: Path) -> None:
    odd = '{"cells": [{"cell_type": "code", "source": "x = 1", "execution_count": NaN, "metadata": {"a": -Infinity}}], '
    (tmp_path / "x.ipynb").write_text(odd + '"nbformat": 1e999, "nbformat_minor": -7}', encoding="utf-8")
    assert read_handin(tmp_path / "x.ipynb").cells[0].source == "x = 1"


@pytest.mark.skipif(os.name != "posix", reason="Windows has none of these")
@pytest.mark.parametrize("kind", ["fifo", "socket", "folder", "device", "dangling", "loop", "link to a device"])
def test_what_is_no_file_is_a_line_at_once(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x.ipynb"
    with socket.socket(socket.AF_UNIX) as server:
        if kind == "fifo":
            os.mkfifo(path)
        elif kind == "socket":
            server.bind(str(path))
        elif kind == "folder":
            path.mkdir()
        elif kind == "device":
            path = Path("/dev/zero")
        elif kind == "dangling":
            path.symlink_to("nowhere")
        elif kind == "loop":
            path.symlink_to(path)
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(HandInError) as caught:
            read_handin(path)
    assert "\n" not in str(caught.value)


def test_what_would_take_all_memory_or_time_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.ipynb"
    path.write_bytes(b'{"cells": [' + b"[]," * 4_000_000 + b"[]]}")
    with pytest.raises(HandInError, match="values"):
        read_handin(path)
    with pytest.raises(HandInError, match="3,001 cells"):
        read_handin(write(path, [5] * 3001))
    with pytest.raises(HandInError, match="KiB of code"):
        read_handin(write(path, [cell("x = 1\n" * 30_000)] * 7))
    monkeypatch.setattr(handins, "MAX_BYTES", 1000)
    with pytest.raises(HandInError, match="is larger"):
        read_handin(write(path, [cell("x" * 1000)]))


def test_a_cell_of_megabytes_is_left_out_and_a_picture_in_a_text_says_nothing(tmp_path: Path) -> None:
    cells = [cell("x = 1\n" * 2_000_000), cell("y = 1"), cell("![](data:" + "A" * 10**7, cell_type="markdown")]
    found = read_handin(write(tmp_path / "x.ipynb", cells))
    assert [one.source for one in found.cells] == ["y = 1"] and len(found.notes) == 1


def test_thousands_of_cells_take_seconds_and_a_thousand_odd_ones_a_few_lines(
    spliced: Splice, solved: Any, tmp_path: Path
) -> None:
    """Each of them uses the one above it, which is the worst for who looks where a name comes from."""
    solved.cells += [new_code_cell(f"a{n} = a{n - 1}" if n else "a0 = 0") for n in range(2900)]
    start = time.perf_counter()
    assert len(spliced(solved).extras) == 2900
    assert time.perf_counter() - start < 60
    assert len(read_handin(write(tmp_path / "x.ipynb", [None] * 1000)).notes) <= 6


ODD_SHAPES: dict[str, dict[str, Any]] = {
    "source is a list of lists": {"source": [["x = 1"]]},
    "source is a number": {"source": 10**30},
    "source is missing": {},
    "source is null": {"source": None},
    "source is a dict": {"source": {"0": "x = 1"}},
    "metadata is a list": {"source": "x = 1", "metadata": [1]},
    "metadata is a text": {"source": "x = 1", "metadata": "nbgrader"},
    "nbgrader is a list": {"source": "x = 1", "metadata": {"nbgrader": [{"grade_id": "double"}]}},
    "an id is a number": {"source": "x = 1", "id": 7, "metadata": {"nbgrader": {"grade_id": 7}}},
    "an id is a list": {"source": "x = 1", "id": ["a"], "metadata": {"nbgrader": {"grade_id": ["double"]}}},
    "an id is a megabyte": {"source": "x = 1", "id": "a" * 10**6, "metadata": {"nbgrader": {"grade_id": "b" * 10**6}}},
    "an id is half a letter": {"source": "x = 1", "id": "\ud800", "metadata": {"nbgrader": {"grade_id": "\udfff"}}},
    "a kind that is none": {"source": "x = 1", "cell_type": "sql"},
    "a kind that is a number": {"source": "x = 1", "cell_type": 3},
    "tags are a number": {"source": "x = 1", "metadata": {"tags": 5, "course": 5}},
    "outputs are a text": {"source": "x = 1", "outputs": "none"},
    "half a letter": {"source": "x = '\ud800'"},
    "a null byte": {"source": "x = '\0'"},
}


@pytest.mark.parametrize("what", ODD_SHAPES)
def test_a_cell_of_odd_shape_costs_no_other(spliced: Splice, solved: Any, what: str) -> None:
    raw = json.loads(json.dumps(solved))
    raw["cells"].insert(4, {"cell_type": "code", **ODD_SHAPES[what]})
    found = spliced(raw)
    assert all(own(found, name).strip() == right(name).strip() for name in found.items)
    json.dumps([one.source for one in found.notebook.cells], ensure_ascii=False).encode("utf-8")


@pytest.mark.parametrize("value", ["\ud800", "x" * 10**6, 5, None, ["a"], {"a": 1}, "", "../../etc/passwd", "a\nb"])
def test_the_notebooks_own_ids_may_be_anything(spliced: Splice, solved: Any, hand_in: Any, value: Any) -> None:
    solved.metadata["course"] = {"assignment": value, "hash": value}
    path = hand_in(solved)
    handin = read_handin(path)
    assert assignment_of(handin).name == "90_fixture"
    for one in (handin.assignment, handin.release):
        assert one is None or (len(one) <= 200 and one.encode("utf-8"))


def test_worksheets_of_old_are_read_with_headings_and_inputs(tmp_path: Path) -> None:
    cells = [
        {"cell_type": "heading", "level": 1, "source": ["A title"]},
        {"cell_type": "code", "input": "x = 1", "language": "python", "prompt_number": 1, "collapsed": False},
    ]
    path = tmp_path / "x.ipynb"
    path.write_text(json.dumps({"nbformat": 3, "worksheets": [{"cells": cells}, 5, {"cells": 5}]}), encoding="utf-8")
    assert [(one.kind, one.source) for one in read_handin(path).cells] == [("heading", "A title"), ("code", "x = 1")]


def test_a_file_nobody_may_read_is_a_line(tmp_path: Path) -> None:
    if os.name != "posix" or os.getuid() == 0:
        pytest.skip("root reads everything")
    path = write(tmp_path / "x.ipynb", [])
    path.chmod(stat.S_IWUSR)
    with pytest.raises(HandInError, match="cannot be opened"):
        read_handin(path)


# ---------------------------------------------------------------- texts

MARKS = [
    "# NBVAL_SKIP",
    "#NBVAL_SKIP",
    "   #   NBVAL_SKIP   ",
    "\t#\tNBVAL_SKIP\t",
    "### NBVAL_RAISES_EXCEPTION",
    "\x0c# NBVAL_SKIP",
    "\u00a0# NBVAL_SKIP",
    "y = 1  # \x0b# NBVAL_IGNORE_OUTPUT",
    "# a\x0c# NBVAL_CHECK_OUTPUT\x85# NBVAL_SKIP",
    "#\u2003NBVAL_SKIP\u2028",
    "# PYTEST_VALIDATE_IGNORE_OUTPUT",
]


@pytest.mark.parametrize("mark", MARKS)
def test_no_spelling_of_a_comment_reaches_nbval(mark: str) -> None:
    from nbval.plugin import find_comment_markers

    source = f"x = 1\n\n\n{mark}\nz = 2"
    assert list(find_comment_markers(source)), "nbval hears it"
    assert not list(find_comment_markers(clean(source)))
    assert clean(source).split("\n")[4] == "z = 2", "line numbers stay"


def test_cleaning_takes_no_longer_than_reading() -> None:
    start = time.perf_counter()
    for source in ("\n" * 300_000, " \n" * 150_000, "#" * 300_000, "# " * 150_000, "a" * 300_000 + "=", "x\n" * 20_000):
        clean(source), defined(source + "(")
    assert time.perf_counter() - start < 30


FORMS: dict[str, Callable[[str], str]] = {
    "Windows line ends": lambda text: text.replace("\n", "\r\n"),
    "old line ends": lambda text: text.replace("\n", "\r"),
    "tabs": lambda text: text.replace("    ", "\t"),
    "form feeds": lambda text: "\x0c" + text.replace("\n    return", "\n\x0c\n    return"),
    "a magic above": lambda text: "%%time\n" + text,
    "a magic with words": lambda text: "%%timeit -n 1 -r 1\n" + text,
    "a line magic": lambda text: "%matplotlib inline\n" + text,
    "a question": lambda text: "len?\n?len\n" + text + "\nlen??",
    "a shell's words": lambda text: "files = !ls\nif files:\n    !ls\n" + text,
    "a timed assignment": lambda text: "seconds = %time 1 + 1\n" + text,
    "an awaited line": lambda text: text + "\nimport asyncio\nawait asyncio.sleep(0)",
    "a percent sign ahead of a line": lambda text: "rest = (7\n% 4)\nname = '''\n% done\n!'''\n" + text,
    "a lonely half of a letter": lambda text: text + "\n# \ud83d",
    "letters of all scripts": lambda text: "größe = 'ж漢🙂'\n" + text,
    "comments alone above": lambda text: "# mine\n" * 3 + text,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stripped", [False, True])
def test_an_answer_is_found_in_every_form(spliced: Splice, solved: Any, form: str, stripped: bool) -> None:
    raw = json.loads(json.dumps(solved))
    target = next(one for one in raw["cells"] if one["source"] == right("double"))
    target["source"] = FORMS[form](right("double"))
    if stripped:
        raw["metadata"] = {}
        for number, one in enumerate(raw["cells"]):
            one |= {"metadata": {}, "id": f"n{number}"}
    found = spliced(raw)
    assert "return [2 * value" in own(found, "double") and not found.items["double"].untouched
    assert "double" in defined(own(found, "double"))


FENCED = "My answer:\n\n```python\n{}\n```\n\nIt doubles `each` value."


@pytest.mark.parametrize("stripped", [False, True])
def test_an_answer_in_a_text_cell_between_fences_is_run(spliced: Splice, solved: Any, stripped: bool) -> None:
    at = solved.cells.index(cell_of(solved, "double"))
    metadata = {} if stripped else deepcopy(solved.cells[at].metadata)
    solved.cells[at] = new_markdown_cell(FENCED.format(right("double")), metadata=metadata)
    found = spliced(solved)
    assert own(found, "double").strip() == right("double").strip() and found.items["double"].notes


def test_a_text_that_shows_a_snippet_takes_no_answers_place(spliced: Splice, solved: Any, released: Any) -> None:
    wrong = FENCED.format("def double(values):\n    return 'an idea that I gave up'")
    solved.cells.insert(3, new_markdown_cell(wrong))
    assert "gave up" not in own(spliced(solved), "double")


def test_of_two_attempts_the_lower_one_counts_and_both_are_told(spliced: Splice, solved: Any) -> None:
    """As when the notebook is run from the top, whether the second was a copy, or typed into a new cell."""
    at = solved.cells.index(cell_of(solved, "double"))
    second = deepcopy(solved.cells[at])
    second.id, second.source = "second", "def double(values):\n    return 'second'"
    solved.cells.insert(at + 1, second)
    found = spliced(solved)
    assert [("second" in one) for one in found.items["double"].sources] == [False, True] and found.items["double"].notes
    second.metadata = {}
    found = spliced(solved)
    code = "\n".join(one.source for one in found.notebook.cells)
    assert code.index("return [2 * value") < code.index("'second'") < code.index('check("double"')


def test_other_programs_cells_define_nothing() -> None:
    for magic in ("%%bash", "%%html", "%%writefile x.py", "%%javascript", "  %%sh", "%%!"):
        assert defined(f"{magic}\ndouble = 1") == set()
    assert defined("%%time\ndouble = 1") == {"double"}


def test_tags_and_kernels_of_a_hand_in_say_nothing(spliced: Splice, solved: Any) -> None:
    for one in solved.cells:
        one.metadata["tags"] = ["nbval-skip", "raises-exception", "nbval-raises-exception", "skip-execution"]
        one.metadata["jupyter"] = {"source_hidden": True}
    solved.metadata["kernelspec"] = {"name": "ir", "language": "R", "display_name": "Python [root]"}
    solved.metadata["language_info"] = {"name": "R"}
    found = spliced(solved)
    assert found.notebook.metadata.kernelspec.name == "python3"
    assert not [one for one in found.notebook.cells if "skip" in " ".join(one.metadata.get("tags", []))]
    answer(solved, "double", right("double"))
    assert own(found, "double").strip() == right("double").strip()
