"""Every claim of a chapter that exists is shown, bounded and practised; the claims of other chapters are owed."""

from collections import Counter
from pathlib import Path

import nbformat
import pytest
from claim_coverage import claims, missing, owed, strangers
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from course_lib.machine import material_dir

CHAPTERS = {path.name[:2]: path for path in sorted((material_dir() / "notebooks").glob("[0-9][0-9]_*.ipynb"))}


def test_the_list_has_each_of_the_54_claims_once() -> None:
    counted = Counter(number for own in claims().values() for number in own)
    assert counted == Counter(range(1, 55))
    assert all(len(title.split()) >= 3 for own in claims().values() for title in own.values())


@pytest.mark.parametrize("path", CHAPTERS.values(), ids=lambda path: path.stem)
def test_chapter_covers_its_claims(path: Path) -> None:
    chapter = nbformat.read(path, as_version=4)
    practice = material_dir() / "solutions" / path.name
    exercises = nbformat.read(practice, as_version=4) if practice.exists() else None
    lines = missing(claims().get(path.name[:2], {}), chapter, exercises) + strangers(claims(), chapter)
    assert not lines, "\n".join(lines)


def test_what_is_owed_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    debts = owed(claims(), list(CHAPTERS))
    count = sum(len(numbers) for numbers in debts.values())
    with capsys.disabled():
        if debts:
            print(f"\nclaims owed by chapters that are not there yet: {count} of 54")
        for chapter, numbers in debts.items():
            print(f"  chapter {chapter}: {', '.join(map(str, numbers))}")
    assert count + sum(len(own) for chapter, own in claims().items() if chapter in CHAPTERS) == 54


# ------------------------------------------------------------------ the rules themselves


def chapter_with(*, show: bool = True, bound: bool = True, kind: str = "code") -> NotebookNode:
    make = new_code_cell if kind == "code" else new_markdown_cell
    cells = [make("1", metadata={"tags": ["claim-8", "other"]})] if show else []
    cells += [new_markdown_cell("text", metadata={"tags": ["bound-8"]})] if bound else []
    return new_notebook(cells=cells)


def exercises_with(*, graded: bool = True) -> NotebookNode:
    grade = {"grade": graded, "solution": False, "grade_id": "check-x", "locked": True, "schema_version": 3}
    return new_notebook(cells=[new_code_cell("check()", metadata={"tags": ["claim-8"], "nbgrader": grade})])


OWN = {8: "a claim of three words"}


def test_a_covered_claim_lacks_nothing() -> None:
    assert missing(OWN, chapter_with(), exercises_with()) == []
    assert strangers({"03": OWN}, chapter_with()) == []


@pytest.mark.parametrize(
    ("chapter", "exercises", "says"),
    [
        (chapter_with(show=False), exercises_with(), "not shown"),
        (chapter_with(kind="markdown"), exercises_with(), "not shown"),
        (chapter_with(bound=False), exercises_with(), "not bounded"),
        (chapter_with(), exercises_with(graded=False), "not practised"),
        (chapter_with(), None, "not practised"),
    ],
)
def test_each_lack_is_found(chapter: NotebookNode, exercises: NotebookNode | None, says: str) -> None:
    (line,) = missing(OWN, chapter, exercises)
    assert says in line and "claim 8" in line


def test_strange_tags_are_found() -> None:
    assert strangers({"03": {9: "another"}}, chapter_with()) == ["claim-8: there is no such claim"]
    assert strangers({"03": OWN}, chapter_with(show=False)) == ["bound-8 without a cell tagged claim-8"]


def test_chapters_that_do_not_exist_owe_their_claims() -> None:
    assert owed({"03": {9: "y", **OWN}, "04": {11: "x"}}, ["04"]) == {"03": [8, 9]}
