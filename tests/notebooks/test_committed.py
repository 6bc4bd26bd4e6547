"""Every committed chapter and solution keeps the rules of `notebook_rules`; each rule finds what it is for."""

import base64
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import notebook_rules as rules
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from notebook_rules import CHAPTER, COMMITTED, MAX_BYTES, Rule

from course_lib.chapters import chapters, read_chapter
from course_lib.errors import CourseError
from course_lib.grading.execute import normalise
from course_lib.grading.notebook import dump, stable_ids
from course_lib.machine import material_dir

CHAPTERS = sorted((material_dir() / "notebooks").glob("*.ipynb"))
SOLUTIONS = sorted((material_dir() / "solutions").glob("*.ipynb"))
name_of: Callable[[Path], str] = lambda path: f"{path.parent.name}-{path.stem}"
rule_of: Callable[[Rule], str] = lambda rule: rule.__name__


@pytest.mark.parametrize("rule", COMMITTED, ids=rule_of)
@pytest.mark.parametrize("path", CHAPTERS + SOLUTIONS, ids=name_of)
def test_committed_notebook(path: Path, rule: Rule) -> None:
    lines = rule(nbformat.read(path, as_version=4))
    assert not lines, f"{path.name}: {rule.__doc__ or rule.__name__}\n" + "\n".join(lines)


@pytest.mark.parametrize("rule", CHAPTER, ids=rule_of)
@pytest.mark.parametrize("path", CHAPTERS, ids=name_of)
def test_chapter(path: Path, rule: Rule) -> None:
    lines = rule(nbformat.read(path, as_version=4))
    assert not lines, f"{path.name}: {rule.__doc__ or rule.__name__}\n" + "\n".join(lines)


@pytest.mark.parametrize("path", CHAPTERS + SOLUTIONS, ids=name_of)
def test_file_is_small_and_as_execute_writes_it(path: Path) -> None:
    """Byte for byte: so running it again changes outputs and nothing else."""
    content = path.read_bytes()
    assert len(content) <= MAX_BYTES, f"{len(content) / 1e6:.2f} MB"
    notebook = nbformat.reads(content.decode("utf-8"), as_version=4)
    nbformat.validate(notebook)
    normalise(notebook)
    assert dump(notebook) == content, "run `course execute` on it"


def test_every_chapter_is_known_with_its_times() -> None:
    found = chapters()
    assert [chapter.path for chapter in found] == CHAPTERS
    assert [chapter.number for chapter in found] == list(range(len(found)))
    assert all(chapter.minutes > 0 and 0 < chapter.seconds <= 90 for chapter in found)


def test_a_chapter_without_times_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "07_x.ipynb"
    cell: dict[str, Any] = {"cell_type": "markdown", "source": ["# 7. Name: more\n", "\n", "**Time**: 20 minutes\n"]}
    path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    with pytest.raises(CourseError, match=r"07_x.ipynb: the first cell must have"):
        read_chapter(path)
    cell["source"] += ["of yours, in one part; 5 seconds\n"]
    path.write_text(json.dumps({"cells": [cell]}), encoding="utf-8")
    assert (read_chapter(path).title, read_chapter(path).minutes, read_chapter(path).seconds) == ("Name", 20, 5)


# ------------------------------------------------------------------ the rules themselves

OPENING = """# 2. A name

**After this chapter you can**

- measure one thing;
- predict another,
  on two lines;
- say a third.

**Time**: about 40 minutes of yours, in two parts;
about 30 seconds of machine time.
**Needs**: chapter 1.

**Recall**

1. What?
2. When?
3. Why?

<details><summary>Answers</summary>So.</details>"""
OWN = "**Before you read on**: why?\n\n<details><summary>Ours</summary>So.</details>"
ENDING = """## Summary

What surprised you? A transfer question: how much? Then exercises/02_name.ipynb.

**References**

- A. Name, *Title*, 2019, arXiv 1901.00001:
  on two lines.
- B. Name, *Other*, 1948."""
PNG = base64.b64encode(b"png").decode()
CAPTION = {"text/html": '<p class="course-caption">x</p>', "text/plain": "The curve falls to its floor."}
PICTURE = {"image/png": PNG, "text/plain": "[picture] The curve falls"}
FACE = f'<img src="data:image/png;base64,{PNG}" alt="the bubble shrinks with m">'


def display(data: dict[str, Any]) -> NotebookNode:
    return new_output("display_data", data=data)


def code(source: str, *tags: str, outs: tuple[NotebookNode, ...] = ()) -> NotebookNode:
    folded = {"jupyter": {"source_hidden": True}} if any(tag.startswith("predict-") for tag in tags) else {}
    return new_code_cell(source, metadata={"tags": list(tags), **folded}, outputs=list(outs))


def markdown(source: str, *tags: str) -> NotebookNode:
    return new_markdown_cell(source, metadata={"tags": list(tags)})


def good() -> NotebookNode:
    notebook = new_notebook(metadata={"kernelspec": {"name": "python3", "display_name": "x", "language": "python"}})
    notebook.cells = [
        markdown(OPENING),
        code("import math", "set-up"),
        markdown("## Part 1: one (about 20 minutes)\n\n### First\n\nText."),
        code('guess = predict("Which?", ["a", "b"], answer=1)', "predict-first"),
        code("show(picture)\nguess.reveal()", "claim-4", outs=(display(PICTURE), display(CAPTION))),
        code("print(1)", "nbval-check-output", outs=(new_output("stream", name="stdout", text="1\n"),)),
        markdown(OWN),
        markdown("**Where this stops being true.** There.", "bound-4"),
        markdown("A good stopping place.\n\n## Part 2: two (about 20 minutes)\n\n### Second\n\nText."),
        code("explorer()", "widget", outs=(display({rules.WIDGET: {}, "text/html": FACE, "text/plain": "e"}),)),
        markdown(OWN),
        markdown(OWN),
        markdown(ENDING),
    ]
    stable_ids(notebook)
    for count, cell in enumerate(rules.code_cells(notebook), start=1):
        cell.execution_count = count
    return notebook


@pytest.mark.parametrize("rule", COMMITTED + CHAPTER, ids=rule_of)
def test_the_good_notebook_keeps_the_rule(rule: Rule) -> None:
    assert rule(good()) == []


Break = Callable[[NotebookNode], object]


def source(place: int, old: str, new: str) -> Break:
    def change(notebook: NotebookNode) -> None:
        assert old in notebook.cells[place].source
        notebook.cells[place].source = notebook.cells[place].source.replace(old, new)

    return change


def shows(*outs: NotebookNode, place: int = 4) -> Break:
    return lambda notebook: notebook.cells[place].update(outputs=list(outs))


def without(place: int) -> Break:
    return lambda notebook: notebook.cells.pop(place)


def retag(place: int, *tags: str) -> Break:
    return lambda notebook: notebook.cells[place].metadata.update(tags=list(tags))


def text(stream: str, words: str) -> NotebookNode:
    return new_output("stream", name=stream, text=words)


BROKEN: list[tuple[Rule, Break, str]] = [
    (rules.kernel_is_python3, lambda nb: nb.metadata.kernelspec.update(name="mine"), "'mine'"),
    (rules.counts_run_from_1, lambda nb: nb.cells[3].update(execution_count=7), "not 1 to 5"),
    (rules.counts_run_from_1, lambda nb: nb.cells[3].update(execution_count=None), "not 1 to 5"),
    (rules.no_error_no_stderr, shows(new_output("error", ename="ValueError", evalue="", traceback=[])), "ValueError"),
    (rules.no_error_no_stderr, shows(text("stderr", "a warning")), "a warning"),
    (rules.no_widget_state, lambda nb: nb.metadata.update(widgets={}), "widget state"),
    (rules.nothing_of_a_machine, shows(text("stdout", "saved in " + "/ho" + "me/ann/x")), "ann"),
    (rules.nothing_of_a_machine, shows(text("stdout", "saved in C:\\Users\\ann")), "C:"),
    (rules.nothing_of_a_machine, shows(text("stdout", "<function f at 0x7f00deadbeef>")), "0x7f"),
    (rules.no_svg, shows(display({"image/svg+xml": "<svg/>"})), "SVG"),
    (rules.no_svg, shows(display({"text/html": "<div><svg></svg></div>"})), "SVG"),
    (rules.ids_are_stable, lambda nb: nb.cells[3].update(id=nb.cells[1].id), "two cells"),
    (rules.ids_are_stable, lambda nb: nb.cells[3].update(id="0a1b2c3d"), "0a1b2c3d"),
    (rules.pictures_have_captions, shows(display(PICTURE)), "without a caption"),
    (rules.pictures_have_captions, shows(display(CAPTION), display(PICTURE)), "without a caption"),
    (
        rules.pictures_have_captions,
        shows(display(PICTURE), display({**CAPTION, "text/plain": "One thing falls. Another does not."})),
        "not one sentence",
    ),
    (rules.pictures_have_captions, shows(display({"image/png": PNG}), display(CAPTION)), "says nothing"),
    (rules.widgets_have_two_faces, shows(display({rules.WIDGET: {}, "text/plain": "VBox()"})), "static face"),
    (rules.widgets_have_two_faces, shows(display({"text/html": FACE.replace("alt", "title")})), "alt text"),
    (
        rules.widgets_have_two_faces,
        shows(display({rules.WIDGET: {}, "text/html": "<p>five words and no picture</p>"}), place=9),
        "no picture",
    ),
    (rules.cells_are_short, source(5, "print(1)", "print(1)\n" * 26), "26 lines"),
    (rules.cells_are_short, source(5, "print(1)", " "), "empty"),
    (rules.no_trailing_semicolon, source(5, "print(1)", "plot(x);  # quiet"), "`;`"),
    (rules.no_magics, source(1, "import math", "%matplotlib inline"), "%matplotlib"),
    (rules.no_magics, source(1, "import math", "!pip install x"), "!pip"),
    (rules.compared_cells_print_text, shows(place=5), "[]"),
    (rules.compared_cells_print_text, shows(text("stdout", "1"), display(PICTURE), place=5), "display_data"),
    (rules.opening_says_what_and_how_long, source(0, "# 2. A name", "# A name"), "# N. Title"),
    (rules.opening_says_what_and_how_long, source(0, "- say a third.\n", ""), "three or more"),
    (rules.opening_says_what_and_how_long, source(0, "- measure", "- understand"), "begins with a verb"),
    (rules.opening_says_what_and_how_long, source(0, "30 seconds", "a while"), "**Time**"),
    (rules.opening_says_what_and_how_long, source(0, "**Needs**", "Needs"), "**Needs**"),
    (rules.parts_are_short, source(2, "about 20", "about 30"), "30 minutes; at most 25"),
    (rules.parts_are_short, source(2, "## Part 1", "## Section 1"), "numbered"),
    (rules.parts_are_short, source(0, "40 minutes", "90 minutes"), "the opening says 90"),
    (rules.parts_are_short, source(8, "stopping place", "place"), "stopping place"),
    (rules.recall_questions, source(0, "3. Why?\n", ""), "2 recall questions"),
    (rules.recall_questions, source(0, "<details><summary>Answers</summary>So.</details>", ""), "without answers"),
    (rules.ends_well, source(12, "## Summary", "Summary"), "Summary"),
    (rules.ends_well, source(12, "- B. Name, *Other*, 1948.", "- B. Name, *Other*."), "without a year"),
    (rules.ends_well, source(12, "**References**", "Read"), "no list of references"),
    (rules.ends_well, source(12, "surprised", "pleased"), "surprised"),
    (rules.ends_well, source(12, "transfer", "last"), "published"),
    (rules.claims_are_predicted_and_bounded, without(3), "no prediction"),
    (rules.claims_are_predicted_and_bounded, retag(7), "claim 4"),
    (rules.claims_are_predicted_and_bounded, source(7, "stops being", "is not"), "claim 4"),
    (rules.claims_are_predicted_and_bounded, lambda nb: nb.cells.insert(3, nb.cells.pop(7)), "claim 4"),
    (rules.predictions_are_compared, source(4, "guess.reveal()", "guess"), "reveal() is missing"),
    (rules.predictions_are_compared, retag(3), "without a tag"),
    (rules.predictions_are_compared, lambda nb: nb.cells[3].metadata.pop("jupyter"), "not folded"),
    (rules.predictions_are_compared, source(3, "guess = ", ""), "without a name"),
    (rules.own_explanation_first, without(6), "2 times"),
    (rules.own_explanation_first, source(6, "<details>", "<details open>"), "not in a closed"),
    (rules.own_explanation_first, source(6, "</details>", ""), "not closed"),
]


@pytest.mark.parametrize(("rule", "change", "says"), BROKEN, ids=[f"{r.__name__}-{s}" for r, _, s in BROKEN])
def test_the_rule_finds_it(rule: Rule, change: Break, says: str) -> None:
    notebook = copy.deepcopy(good())
    change(notebook)
    assert says in "\n".join(rule(notebook))


def test_every_rule_was_broken_once() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(COMMITTED + CHAPTER)
