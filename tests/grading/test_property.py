"""Random edits of a right notebook never lose an answer that is still there; random damage never crashes a reader."""

import ast
import contextlib
import io
import json
import linecache
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import nbformat
import pytest
from edits import Cell, edit, text_of
from grading_fixture import ANSWERS, PICKED, answer
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell

from course_lib.errors import HandInError
from course_lib.grading.assignment import Assignment, all_assignments
from course_lib.grading.grade import Grader, assignment_of
from course_lib.grading.handins import HandIn, read_handin
from course_lib.grading.release import release
from course_lib.grading.splice import Spliced, splice
from course_lib.machine import material_dir

ROOT = material_dir()
EASY = settings(deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])

# Answers that lean on cells of the learner's own, on the imports above and on each other's names.
OWN = {
    "double": 'def double(values):\n    """Each value twice."""\n    found = []\n    for value in values:\n'
    "        found.append(twice(value))\n    return found",
    "total": "start = 0\n\ndef total(values):\n    there = start\n    for value in values:\n        there += value\n"
    "    return there",
    "pick": f'number = {PICKED}\npicked = {{\n    "variant": 0,\n    "choice": number,\n}}',
    "largest": "def larger(one, two):\n    return one if one > two else two\n\n\ndef largest(values):\n"
    "    return reduce(larger, values)",
}
HELPERS = {"double": "def twice(x):\n    return math.floor(2 * x)", "largest": "from functools import reduce"}


@pytest.fixture(scope="session")
def right(material: Path) -> dict[str, Any]:
    """The released fixture with right answers and the learner's own helpers, as JSON."""
    notebook = nbformat.read(material / "exercises" / "90_fixture.ipynb", as_version=4)
    for name in ANSWERS:
        answer(notebook, name, OWN[name])
        if name in HELPERS:
            at = next(i for i, cell in enumerate(notebook.cells) if cell.source == OWN[name])
            notebook.cells.insert(at, new_code_cell(HELPERS[name]))
    return dict(json.loads(nbformat.writes(notebook)))


@pytest.fixture(scope="session")
def file(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Any], Path]:
    path = tmp_path_factory.mktemp("handins") / "handin.ipynb"

    def write(content: Any) -> Path:
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode("utf-8"))
        return path

    return write


def is_learners(cell: Cell) -> bool:
    return text_of(cell) in [*OWN.values(), *HELPERS.values()]


def run(notebook: Any) -> dict[str, str]:
    """Run the cells as a kernel does: an error ends its cell alone. What each check said."""
    room: dict[str, Any] = {"__name__": "__main__"}
    said = {}
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        facts, name = cell.metadata["course"]["graded"], f"<cell {number}>"
        source = _python(cell.source)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                exec(compile(source, name, "exec"), room)
            said |= {facts["item"]: "passed"} if facts["role"] == "check" else {}
        except Exception as error:
            said |= {facts["item"]: f"{type(error).__name__}: {error}"} if facts["role"] == "check" else {}
    return said


def _python(source: str) -> str:
    """Without the lines that only IPython reads."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in source.split("\n"))


def picker(data: st.DataObject) -> Callable[[int], int]:
    return lambda n: data.draw(st.integers(0, n - 1))


ALL_PASS = dict.fromkeys(ANSWERS, "passed")


def test_the_notebook_is_right_and_a_lost_answer_would_be_seen(
    right: dict[str, Any], fixture_assignment: Assignment, file: Callable[[Any], Path]
) -> None:
    assert run(splice(fixture_assignment, read_handin(file(right))).notebook) == ALL_PASS
    for gone in [*OWN.values(), *HELPERS.values()]:
        broken = deepcopy(right)
        broken["cells"] = [cell for cell in broken["cells"] if text_of(cell) != gone]
        assert run(splice(fixture_assignment, read_handin(file(broken))).notebook) != ALL_PASS


@settings(EASY, max_examples=400)
@given(data=st.data())
def test_edits_never_lose_an_answer(
    right: dict[str, Any], fixture_assignment: Assignment, file: Callable[[Any], Path], data: st.DataObject
) -> None:
    notebook = deepcopy(right)
    note(" ".join(edit(notebook, picker(data), is_learners)))
    note("\n-----\n".join(f"{cell['cell_type']}: {text_of(cell)}" for cell in notebook["cells"]))
    found = splice(fixture_assignment, read_handin(file(notebook)))
    assert run(found.notebook) == ALL_PASS, shown(found)
    assert not any(item.untouched for item in found.items.values())


def shown(found: Spliced) -> str:
    return "\n".join(
        f"--- {cell.metadata['course']['graded']['role']} {cell.metadata['course']['graded']['item']}\n{cell.source}"
        for cell in found.notebook.cells
    )


def test_edits_are_graded_alike_end_to_end(
    right: dict[str, Any], fixture_assignment: Assignment, file: Callable[[Any], Path]
) -> None:
    """The whole way, kernel and judge too, for a few of the same kind."""
    with Grader(timeout=30) as grader:
        for seed in range(4):
            notebook, rng = deepcopy(right), random.Random(seed)
            done = edit(notebook, rng.randrange, is_learners)
            found = grader.grade("edited", file(notebook))
            assert found.score == found.max_score == 10, (done, found)


@pytest.fixture(scope="session")
def chapters() -> list[tuple[Assignment, dict[str, Any], list[str]]]:
    """(assignment, released notebook with its solutions typed in, their sources) of every chapter."""
    found = []
    for assignment in all_assignments(ROOT):
        notebook, sources = release(assignment), []
        for item in assignment.items:
            lines = assignment.notebook.cells[item.answer].source.split("\n")
            sources.append("\n".join(line for line in lines if not line.strip().startswith("### ")))
            answer(notebook, item.id, sources[-1])
        found.append((assignment, dict(json.loads(nbformat.writes(notebook))), sources))
    return found


def bindings(source: str) -> dict[str, str]:
    """What each name of a cell's top level is bound to last, as a tree without places; imports left out."""
    found: dict[str, str] = {}
    for node in ast.parse(_python(source)).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found[node.name] = ast.dump(node)
        elif isinstance(node, ast.Assign):
            names = [name for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            found |= {name.id: ast.dump(node.value) for name in names}
    return found


@pytest.mark.slow
@settings(EASY, max_examples=100, print_blob=False)
@given(data=st.data())
def test_edits_of_every_chapter_leave_each_check_its_answer(
    chapters: list[tuple[Assignment, dict[str, Any], list[str]]], file: Callable[[Any], Path], data: st.DataObject
) -> None:
    """Nothing runs: at each check, whatever the right answer's cell binds is bound to that."""
    assignment, whole, sources = chapters[data.draw(st.integers(0, len(chapters) - 1))]
    notebook = deepcopy(whole)
    note(assignment.name + " " + " ".join(edit(notebook, picker(data), lambda cell: text_of(cell) in sources)))
    found = splice(assignment, read_handin(file(notebook)))
    assert lost(assignment, found, sources) == [], shown(found)


def lost(assignment: Assignment, found: Spliced, sources: list[str]) -> list[str]:
    """Exercises whose check would meet another answer than the right one."""
    wanted = {item.id: bindings(source) for item, source in zip(assignment.items, sources, strict=True)}
    bound: dict[str, str] = {}
    wrong = []
    for cell in found.notebook.cells:
        facts = cell.metadata["course"]["graded"]
        if facts["role"] == "check":
            want = wanted[facts["item"]]
            if {name: bound.get(name) for name in want} != want:
                wrong.append(facts["item"])
        else:
            with contextlib.suppress(SyntaxError):
                bound |= bindings(cell.source)
    return wrong


def test_a_lost_answer_of_a_chapter_would_be_seen(
    chapters: list[tuple[Assignment, dict[str, Any], list[str]]], file: Callable[[Any], Path]
) -> None:
    assignment, whole, sources = chapters[2]
    notebook = deepcopy(whole)
    notebook["cells"] = [cell for cell in notebook["cells"] if text_of(cell) != sources[1]]
    assert lost(assignment, splice(assignment, read_handin(file(notebook))), sources) == [assignment.items[1].id]


# ---------------------------------------------------------------- damage


def read(path: Path, assignment: Assignment) -> HandIn | None:
    """As the grader reads a hand-in: a notebook to run, or one line that says why there is none."""
    try:
        handin = read_handin(path)
        assignment_of(handin)
    except HandInError as error:
        assert str(error) and "\n" not in str(error).strip()
        return None
    nbformat.validate(splice(assignment, handin).notebook)
    return handin


@settings(EASY, max_examples=300)
@given(data=st.data())
def test_damaged_bytes_are_a_notebook_or_one_line(
    right: dict[str, Any], fixture_assignment: Assignment, file: Callable[[Any], Path], data: st.DataObject
) -> None:
    content = bytearray(json.dumps(right, indent=data.draw(st.sampled_from([None, 1]))).encode("utf-8"))
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, max(0, len(content) - 1)))
        kind = data.draw(st.sampled_from(["flip", "cut", "remove", "insert", "repeat", "swap"]))
        size = data.draw(st.integers(1, 40))
        if kind == "flip" and content:
            content[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == "cut" and data.draw(st.integers(0, 3)) == 0:
            del content[at:]
        elif kind == "remove":
            del content[at : at + size]
        elif kind == "insert":
            content[at:at] = data.draw(st.binary(min_size=1, max_size=40))
        elif kind == "repeat":
            content[at:at] = content[at : at + size]
        elif kind == "swap":
            content[at : at + size] = content[at : at + size][::-1]
    read(file(bytes(content)), fixture_assignment)


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=True),
    st.text(max_size=20),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    st.sampled_from(
        ["double", "check-double", "code", "\ud800", "### BEGIN SOLUTION", "x" * 5000, {"nbgrader": "double"}]
    ),
)


@settings(EASY, max_examples=300)
@given(data=st.data())
def test_damaged_json_is_a_notebook_or_one_line(
    right: dict[str, Any], fixture_assignment: Assignment, file: Callable[[Any], Path], data: st.DataObject
) -> None:
    """Any value at any place may be of any other kind."""
    notebook = deepcopy(right)
    for _ in range(data.draw(st.integers(1, 8))):
        node: Any = notebook
        while True:
            keys = list(node) if isinstance(node, dict) else list(range(len(node)))
            key = keys[data.draw(st.integers(0, len(keys) - 1))]
            if not isinstance(node[key], dict | list) or not node[key] or data.draw(st.integers(0, 3)) == 0:
                break
            node = node[key]
        if data.draw(st.booleans()):
            node[key] = deepcopy(data.draw(ODD))
        elif isinstance(node, dict) or len(node) > 1:
            del node[key]
        if not notebook:
            break
    read(file(notebook), fixture_assignment)


def test_damage_is_a_row_end_to_end(right: dict[str, Any], file: Callable[[Any], Path], material: Path) -> None:
    """The grader goes on after each: a status for every one, and the last, which is whole, has full marks."""
    whole = json.dumps(right).encode("utf-8")
    rng = random.Random(5)
    with Grader(timeout=30) as grader:
        for _ in range(6):
            content = bytearray(whole)
            for _ in range(rng.randint(1, 30)):
                content[rng.randrange(len(content))] = rng.randrange(256)
            found = grader.grade("damaged", file(bytes(content[: rng.randint(len(content) // 2, len(content))])))
            assert found.status in ("graded", "graded_with_problems", "unreadable")
        found = grader.grade("whole", file(whole))
        assert found.score == found.max_score == 10
