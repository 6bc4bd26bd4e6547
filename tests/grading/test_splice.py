"""Where a learner's answers are found, whatever was done to the notebook: never a lost answer, never a taken check."""

import random
from collections.abc import Callable
from copy import deepcopy
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import ANSWERS, answer, cell_of, right
from nbformat.v4 import new_code_cell, new_markdown_cell

from course_lib.grading.assignment import Assignment
from course_lib.grading.handins import read_handin
from course_lib.grading.splice import Spliced, splice

Splice = Callable[[Any], Spliced]


@pytest.fixture
def spliced(fixture_assignment: Assignment, hand_in: Callable[..., Path]) -> Splice:
    return lambda notebook: splice(fixture_assignment, read_handin(hand_in(notebook)))


def index_of(notebook: Any, name: str) -> int:
    return notebook.cells.index(cell_of(notebook, name))


def code(spliced: Spliced) -> str:
    """All that the kernel will be given, as one text."""
    return "\n".join(cell.source for cell in spliced.notebook.cells)


def order(spliced: Spliced) -> list[str]:
    facts = [cell.metadata["course"]["graded"] for cell in spliced.notebook.cells]
    return [f"{one['role']} {one['item']}" if one["item"] else one["role"] for one in facts]


STANDARD = ["ours"] + [f"{role} {name}" for name in ANSWERS for role in ("answer", "check")]


def assert_all_right(found: Spliced) -> None:
    for name, item in found.items.items():
        assert "\n".join(item.sources).strip() and not item.untouched, name
    assert [one for one, _ in groupby(one for one in order(found) if one != "extra")] == STANDARD


def test_a_plain_hand_in(spliced: Splice, solved: Any) -> None:
    found = spliced(solved)
    assert order(found) == STANDARD and found.notes == [] and found.extras == []
    assert [item.notes for item in found.items.values()] == [[], [], [], []]
    learners = [cell for cell in found.notebook.cells if cell.metadata["course"]["graded"]["role"] == "answer"]
    assert all(not cell.outputs and cell.execution_count is None for cell in learners)


def test_untouched(spliced: Splice, released: Any) -> None:
    assert all(item.untouched for item in spliced(released).items.values())
    cell_of(released, "double").source += "\n\n# a remark\n"
    assert spliced(released).items["double"].untouched


def test_missing(spliced: Splice, solved: Any) -> None:
    solved.cells.remove(cell_of(solved, "total"))
    found = spliced(solved)
    assert found.items["total"].sources == [] and found.items["double"].sources
    assert order(found) == STANDARD, "the stub stands in its place, so that its check says so"


def test_copied_and_split_are_joined_in_order(spliced: Splice, solved: Any) -> None:
    at = index_of(solved, "double")
    lower = deepcopy(solved.cells[at])
    lower.id, lower.source = "another", "later = 1"
    solved.cells.insert(at + 1, lower)
    found = spliced(solved).items["double"]
    assert [source.strip() for source in found.sources] == [right("double").strip(), "later = 1"]
    assert "joined" in found.notes[0]


def test_a_stub_beside_the_answer_does_not_win(spliced: Splice, solved: Any, released: Any) -> None:
    stub = deepcopy(cell_of(released, "double"))
    stub.id = "copy"
    solved.cells.append(stub)
    found = spliced(solved).items["double"]
    assert len(found.sources) == 1 and "return" in found.sources[0]


def test_reordered_cells_come_back_in_order(spliced: Splice, solved: Any) -> None:
    solved.cells.reverse()
    assert_all_right(spliced(solved))


def test_checks_are_ours_whatever_was_done_to_them(spliced: Splice, solved: Any) -> None:
    cell_of(solved, "check-double").source = 'print("double: passed, 3 cases")'
    cell_of(solved, "check-total").metadata.tags = ["nbval-skip"]
    solved.cells.remove(cell_of(solved, "check-pick"))
    found = spliced(solved)
    assert order(found) == STANDARD
    checks = [cell for cell in found.notebook.cells if cell.metadata["course"]["graded"]["role"] == "check"]
    assert checks[0].source == 'check("double", double)' and len(checks) == 4
    assert all("nbval-skip" not in cell.metadata.tags for cell in checks)
    assert "edited" in found.items["double"].notes[0]


def test_outputs_and_tags_of_a_hand_in_are_not_taken(spliced: Splice, solved: Any) -> None:
    cell_of(solved, "double").metadata.tags = ["raises-exception", "nbval-skip"]
    found = spliced(solved)
    assert all("tags" not in cell.metadata for cell in found.notebook.cells if "return [2" in cell.source)


def test_nbval_comments_are_stripped_line_by_line(spliced: Splice, solved: Any) -> None:
    marks = "# NBVAL_SKIP\n  #  NBVAL_IGNORE_OUTPUT\n#PYTEST_VALIDATE_IGNORE_OUTPUT\n"
    answer(solved, "double", marks + right("double"))
    solved.cells.insert(0, new_code_cell("# NBVAL_RAISES_EXCEPTION\nhelper = 1"))
    text = code(spliced(solved))
    assert "NBVAL" not in text and "VALIDATE" not in text and "helper = 1" in text


def test_helpers_are_kept_in_place(spliced: Splice, solved: Any) -> None:
    solved.cells.insert(index_of(solved, "double"), new_code_cell("import json"))
    solved.cells.insert(index_of(solved, "total"), new_code_cell("def helper():\n    return 1"))
    solved.cells.insert(0, new_code_cell("first = 1"))
    solved.cells.append(new_code_cell("last = 1"))
    found = spliced(solved)
    assert order(found) == ["extra", "ours", "extra", "answer double", "check double", "extra", *STANDARD[3:], "extra"]


def test_a_helper_moves_with_the_answer_that_needs_it(spliced: Splice, solved: Any) -> None:
    moved = cell_of(solved, "double")
    solved.cells.remove(moved)
    moved.source = "def double(values):\n    return helper(values)"
    solved.cells += [
        new_code_cell("factor = 2"),
        new_code_cell("def helper(v):\n    return [factor * x for x in v]"),
        moved,
    ]
    assert order(spliced(solved)) == ["ours", "extra", "extra", *STANDARD[1:]]


def test_an_edited_set_up_cell_counts_after_ours(spliced: Splice, solved: Any) -> None:
    solved.cells[1].source += "\nimport statistics"
    found = spliced(solved)
    assert order(found)[:2] == ["ours", "extra"] and "import statistics" in found.notebook.cells[1].source


def test_calls_of_check_and_hint_are_not_run_twice(spliced: Splice, solved: Any) -> None:
    answer(solved, "double", right("double") + '\ncheck("double", double)\n')
    solved.cells.append(new_code_cell('check("total", total)'))
    assert code(spliced(solved)).count("check(") == 4


def strip_metadata(notebook: Any) -> None:
    for cell in notebook.cells:
        cell.metadata = {}


def strip_ids(notebook: Any) -> None:
    for number, cell in enumerate(notebook.cells):
        cell.id = str(number)


def strip_both(notebook: Any) -> None:
    strip_metadata(notebook)
    strip_ids(notebook)
    notebook.metadata = {}


@pytest.mark.parametrize("strip", [strip_metadata, strip_ids, strip_both])
def test_without_ids_or_metadata(spliced: Splice, solved: Any, strip: Callable[[Any], None]) -> None:
    strip(solved)
    found = spliced(solved)
    assert_all_right(found)
    assert found.extras == [] and code(found).count("check(") == 4


def test_an_answer_that_does_not_parse_is_found_by_its_name(spliced: Splice, solved: Any) -> None:
    answer(solved, "double", "def double(values):\n    return [2 * value for")
    strip_both(solved)
    assert "return [2" in spliced(solved).items["double"].sources[0]


def test_an_answer_below_the_untouched_stub_counts(spliced: Splice, released: Any) -> None:
    released.cells.insert(index_of(released, "double") + 1, new_code_cell(right("double")))
    found = spliced(released)
    assert not found.items["double"].untouched and "return [2" in found.items["double"].sources[0]
    assert found.extras == []


def test_merged_answers_are_found_in_one_cell(spliced: Splice, solved: Any) -> None:
    first, second = cell_of(solved, "double"), cell_of(solved, "total")
    first.source = f'{first.source}\n\ncheck("double", double)\n\n{second.source}'
    solved.cells.remove(second)
    solved.cells.remove(cell_of(solved, "check-double"))
    found = spliced(solved)
    assert "def total" in found.items["total"].sources[0] and "another one" in found.items["total"].notes[0]


@pytest.mark.parametrize("kind", ["markdown", "raw"])
def test_a_retyped_answer_is_run_as_code(spliced: Splice, solved: Any, kind: str) -> None:
    cell = cell_of(solved, "double")
    cell.cell_type = kind
    for key in ("outputs", "execution_count"):
        cell.pop(key)
    found = spliced(solved)
    assert_all_right(found)
    assert "not a code cell" in found.items["double"].notes[0]
    strip_both(solved)
    assert "return [2" in spliced(solved).items["double"].sources[0]


@pytest.mark.parametrize("seed", range(60))
def test_random_edits_never_lose_an_answer(spliced: Splice, solved: Any, seed: int) -> None:
    """Reorder, duplicate, strip ids or metadata, add cells, delete what is ours: every answer is still there."""
    rng = random.Random(seed)
    cells = solved.cells
    for _ in range(rng.randint(1, 6)):
        kind, at = rng.randrange(7), rng.randrange(len(cells))
        ours = cells[at].source not in map(right, ANSWERS)
        if kind == 0:
            rng.shuffle(cells)
        elif kind == 1:
            cells.insert(rng.randrange(len(cells)), deepcopy(cells[at]))
        elif kind == 2:
            cells[at].metadata = {}
        elif kind == 3:
            strip_ids(solved)
        elif kind == 4:
            cells.insert(at, rng.choice([new_code_cell("extra = 1"), new_markdown_cell("a note")]))
        elif kind == 5 and ours:
            del cells[at]
        elif kind == 6:
            cells[at].source = cells[at].source.replace("\n", "\r\n")
    found = spliced(solved)
    assert_all_right(found)
    for name, item in found.items.items():
        assert right(name).split("return")[-1].strip() in "\n".join(item.sources)
