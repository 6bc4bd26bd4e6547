"""The browser checks themselves: they pass on a page that is right, and each fault is found."""

import base64
import json

import nbformat
import pytest
from nbclient import NotebookClient

SETUP = """
from course_lib.figures.style import new_figure
from course_lib.widgets import *
def draw(m, kind, text, rate, size):
    fig, ax = new_figure(f"{m} {kind}", height=120)
    ax.barh([0], [m])
    return View(fig, alt=f"{m} {kind}", numbers=[(f"{m}", "of 9")], message=f"{text} {rate:.2f} {size}")
def controls():
    return [
        IntControl(name="m", label="micro-batches", min=1, max=9, default=3),
        ChoiceControl(name="kind", label="schedule", options=["GPipe", "1F1B"], default="GPipe"),
        TextControl(name="text", label="note", default="a", enabled=lambda v: v["kind"] == "GPipe"),
        FloatControl(name="rate", label="rate", unit="per step", min=0.01, max=1, default=0.1, log=True),
        ChoiceControl(name="size", label="model", options=["S", "M", "L", "XL", "XXL"], default="S"),  # a list
    ]
"""
CELLS = {
    "set-up": SETUP,
    "predict-one": "guess = predict('Which one?', ['this', 'that'], answer=1)",
    "picture": "fig, ax = new_figure('A finding'); _ = ax.plot([0, 1]); show(fig, 'What it shows.')\nguess.reveal()",
    "widget": "e = explorer(draw, controls(), presets=[Preset('all', {'m': 9})], title='Try it', caption='Bars.')",
}


@pytest.fixture(scope="module")
def right(tmp_path_factory):
    """A notebook that is as it should be, run."""
    cells = [nbformat.v4.new_code_cell(source, metadata={"tags": [tag]}) for tag, source in CELLS.items()]
    spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})
    folder = tmp_path_factory.mktemp("fixture")
    NotebookClient(notebook, timeout=120, store_widget_state=False).execute()
    path = folder / "right.ipynb"
    nbformat.write(notebook, path)
    return path


def changed(right, name, changes):
    """A copy with faults: each of `changes` gets the cells by their tag."""
    notebook = json.loads(right.read_text(encoding="utf-8"))
    for change in changes:
        change({cell["metadata"]["tags"][0]: cell for cell in notebook["cells"]})
    path = right.with_name(name)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    return path


def test_a_right_page_passes_untrusted_and_alive(right, open_notebook):
    page = open_notebook(right)
    assert page.trusted() is False
    assert page.pictures() + page.outputs() == []
    page.run(page.tagged("set-up", "widget", "predict-"))
    assert page.live_explorers() == 1
    assert page.explorers() + page.predictions() + page.outputs() == []
    page.run(page.tagged("predict-one", "picture"))
    assert "Locked in: that (certain)" in page.page.locator(".course-predict-status").inner_text()
    assert "The experiment agrees" in page.page.locator(".course-reveal").inner_text()
    assert page.pictures() + page.outputs() == []


def test_a_saved_page_comes_back_with_its_static_faces(right, open_notebook, lab):
    """What a learner has run is trusted: the live view, without its kernel, would be an error."""
    page = open_notebook(right, "mine.ipynb")
    page.run(page.tagged("set-up", "widget", "predict-", "picture"))
    page.save()
    again = open_notebook(lab.folder / "mine.ipynb")
    assert again.trusted() is True
    assert again.page.locator(".course-static:visible").count() == 2
    assert again.pictures() + again.outputs() == []


def broken_picture(cells):
    cells["picture"]["outputs"][0]["data"]["image/png"] = base64.b64encode(b"no picture").decode()


def no_caption(cells):
    del cells["picture"]["outputs"][1]


def no_static_face(cells):
    del cells["widget"]["outputs"][0]["data"]["text/html"]


def svg_picture(cells):
    svg = '<svg xmlns="http://www.w3.org/2000/svg" width="100" height="100"><rect width="9" height="9"/></svg>'
    cells["widget"]["outputs"][0]["data"]["text/html"] = svg


def an_error(cells):
    error = {"output_type": "error", "ename": "ValueError", "evalue": "no", "traceback": ["ValueError: no"]}
    cells["picture"]["outputs"].append(error)


def stderr(cells):
    cells["picture"]["outputs"].append({"output_type": "stream", "name": "stderr", "text": ["a warning"]})


@pytest.mark.parametrize(
    "faults",
    [
        {broken_picture: "not drawn", no_static_face: "faces on the page", an_error: "ValueError"},
        {no_caption: "without caption", svg_picture: "faces on the page", stderr: "a warning"},
    ],
)
def test_faults_of_the_committed_page_are_found(right, open_notebook, faults):
    page = open_notebook(changed(right, f"{next(iter(faults)).__name__}.ipynb", faults))
    problems = page.pictures() + page.outputs()
    for says in faults.values():
        assert any(says in problem for problem in problems), (says, problems)


FAULTS = [
    ('label="micro-batches"', 'label=""', "control 1 has no label"),
    ("{text} {rate:.2f}", "{text}", "does not answer 'rate (per step)'"),
    ("    fig, ax", "    if m == 9: raise RuntimeError('too much')\n    fig, ax", "'micro-batches' at end"),
    ("caption='Bars.'", "caption=' '", "no caption"),
    ("def draw", "import sys; print('a warning', file=sys.stderr)\ndef draw", "a warning"),
]


def test_faults_of_live_widgets_are_found(right, open_notebook):
    """One page for all, since each page costs a kernel: the sources are changed, run and checked in turn."""
    page = open_notebook(right, "faults.ipynb")
    for old, new, says in FAULTS:
        assert old in SETUP + CELLS["widget"]
        for tag in ("set-up", "widget"):
            page.write(tag, CELLS[tag].replace(old, new))
        page.run(page.tagged("set-up", "widget"))
        problems = page.explorers() + page.outputs()
        assert any(says in problem for problem in problems), (says, problems)
