"""What a hidden test says stays with the grader: no message for a learner holds a line of it, or its words."""

from pathlib import Path
from typing import Any

import nbformat
import pytest
from grading_fixture import ANSWERS, answer, cell_of, right, solution

from course_lib.grading.assignment import BEGIN_HIDDEN, END_HIDDEN, Item
from course_lib.grading.grade import Grader
from course_lib.grading.report import as_json, text_report
from course_lib.grading.run import CellResult
from course_lib.grading.splice import SplicedItem
from course_lib.grading.verdict import contradiction, decide, hidden_lines

HIDDEN = [
    'assert double([7, -7]) == [14, -14], "the secret is minus seven"',
    "assert sorted(double([3])) == [6]",
    'check("double", lambda values: secret_helper(double)(values))',
]
SOURCE = "\n".join(['check("double", double)', BEGIN_HIDDEN, *HIDDEN, END_HIDDEN])
ITEM = Item("double", "90.1", "The double", 1, 1, (), (), (), 1, 2)


def test_what_lies_between_the_marks() -> None:
    assert hidden_lines(SOURCE) == sorted(HIDDEN, key=len, reverse=True)
    assert hidden_lines('check("double", double)') == []


def cell(role: str, error: str | None, message: str, printed: str = "") -> CellResult:
    return CellResult("c", role, "double", "failed" if error else "passed", error, message, printed=printed)


@pytest.mark.parametrize("record", [True, False])
@pytest.mark.parametrize("status", ["passed", "failed"])
def test_no_message_holds_it(record: bool, status: str) -> None:
    one = SplicedItem(ITEM, ["def double(values):\n    return values"])
    verdict = {"status": status, "line": f"case 1: KeyError\n    line 4 of your cell: {HIDDEN[2]}", "record": record}
    verdict |= {"misconception": None, "case": 1, "ran": record}
    failed = cell("check", "AssertionError", "the secret is minus seven")
    for result in (failed, cell("check", "KeyError", HIDDEN[0]), cell("check", None, "")):
        _, message, _ = decide(one, [result], None, verdict, hidden_lines(SOURCE), 60)
        assert message and "secret" not in message and "[14" not in message, message
    _, message, _ = decide(one, [failed], None, verdict | {"status": "passed"}, [], 60)
    assert "secret" in message, "a check that hides nothing is quoted"


@pytest.mark.slow
def test_neither_does_a_report(material: Path, hand_in: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    notebook = solution()
    check = cell_of(notebook, "check-double")
    check.source = "\n".join([check.source, BEGIN_HIDDEN, *HIDDEN[:2], END_HIDDEN])
    (tmp_path / "solutions").mkdir()
    nbformat.write(notebook, tmp_path / "solutions" / "90_fixture.ipynb")
    monkeypatch.setattr("course_lib.grading.assignment.material_dir", lambda: tmp_path)
    handed = nbformat.read(material / "exercises" / "90_fixture.ipynb", as_version=4)
    for name in ANSWERS:
        answer(handed, name, right(name))
    answer(handed, "double", "def double(values):\n    return [2 * abs(value) for value in values]")
    with Grader() as grader:
        found = grader.grade("ann", hand_in(handed))
    assert [item.status for item in found.items] == ["failed", "passed", "passed", "passed"], found
    for text in (text_report(found), str(as_json([found])), str(found)):
        assert "secret" not in text and "[14" not in text and "assert double" not in text
    assert "AssertionError in its check" in found.items[0].message


def test_a_contradiction_needs_two_that_disagree() -> None:
    one = SplicedItem(ITEM, ["x"])
    said = {line: [cell("check", None, "", line)] for line in ("", "double: ran 3 cases\n", "other: ran 3 cases\n")}
    for ran, record in ((True, True), (False, True), (None, True), (False, False)):
        for line, mine in said.items():
            found = contradiction(one, mine, {"ran": ran, "record": record})
            fits = (ran is None) or (line.startswith("double") == bool(ran))
            assert (found is None) == fits, (ran, record, line, found)
    died = CellResult("c", "check", "double", "died", None, "")
    assert contradiction(one, [died], {"ran": True, "record": True}) is None
    assert contradiction(one, [], {"ran": True, "record": True}) is None
