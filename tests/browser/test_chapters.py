"""Every chapter in a real browser: as after a clone, and alive. A new chapter needs no new test here."""

from pathlib import Path

import pytest

CHAPTERS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
STRESS_OF = ("notebooks/*.ipynb", "course_lib/**/*.py", "course_lib/widgets/*.css", "tests/browser/*.py")
each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=[path.stem for path in CHAPTERS])


@each_chapter
def test_as_after_a_clone(chapter, open_notebook):
    """Untrusted and with nothing run, every picture and every widget's static face is there, with its caption."""
    page = open_notebook(chapter)
    assert page.trusted() is False
    assert page.pictures() + page.outputs() == []


@each_chapter
@pytest.mark.timeout(600)
def test_alive(chapter, open_notebook):
    """Set-up cells, predictions and widgets run without a word; every control is labelled and moves its picture."""
    page = open_notebook(chapter)
    page.run(page.tagged("set-up", "widget", "predict-"))
    assert page.outputs() == []
    assert page.explorers() + page.incidents() + page.tables() + page.predictions() + page.outputs() == []
    assert page.live_explorers() >= len(page.tagged("widget"))


@pytest.mark.stress
@each_chapter
@pytest.mark.timeout(900)
def test_every_cell(chapter, open_notebook):
    """All cells, in order."""
    page = open_notebook(chapter)
    page.run([index for index, cell in enumerate(page.cells) if cell["cell_type"] == "code"])
    assert page.pictures() + page.explorers() + page.incidents() + page.tables() + page.outputs() == []
