"""The incident simulator and the diagnosis table in a browser: untrusted, alive and by keyboard; faults are found."""

import nbformat
import pytest
from nbclient import NotebookClient

CELL = "from course_lib.widgets import *\nsimulator = incident_simulator(seed=3)\ntable = diagnosis_table()"


@pytest.fixture(scope="module")
def played(tmp_path_factory):
    """A notebook with both widgets, run."""
    cell = nbformat.v4.new_code_cell(CELL, metadata={"tags": ["widget"]})
    spec = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": spec})
    NotebookClient(notebook, timeout=240, store_widget_state=False).execute()
    path = tmp_path_factory.mktemp("incident") / "incident.ipynb"
    nbformat.write(notebook, path)
    return path


@pytest.mark.timeout(600)
def test_untrusted_and_alive(played, open_notebook):
    page = open_notebook(played)
    assert page.trusted() is False
    assert page.pictures() + page.outputs() == []
    assert page.page.locator(".course-static:visible").count() == 2
    assert page.page.locator(".course-diagnosis tbody tr").count() >= 15
    page.run(page.tagged("widget"))
    assert page.live_explorers() == 2
    assert page.incidents() + page.tables() + page.outputs() == []
    box = page.page.locator(".course-incident")
    assert "points of 100" in box.locator(".course-incident-score").inner_text()
    assert box.locator(".course-incident-go").inner_text() == "Another case"
    field = page.page.locator(".course-diagnosis-search input")
    field.fill("nan")
    rows = page.page.locator(".course-diagnosis tbody tr")
    assert page._until(lambda: 0 < rows.count() < 15)
    assert all("nan" in text.lower() for text in rows.all_inner_texts())


FAULTS = [
    ("simulator.order = lambda name: None", "leaves no note"),
    ("simulator.answer = lambda name: None", "no score"),
    ("table._put = lambda text: None", "rows, and"),
    ("simulator._picture.value = ''", "no dashboards"),
]


@pytest.mark.timeout(600)
def test_faults_of_the_simulator_are_found(played, open_notebook):
    page = open_notebook(played, "faults.ipynb")
    for change, says in FAULTS:
        page.write("widget", f"{CELL}\n{change}")
        page.run(page.tagged("widget"))
        problems = page.incidents() + page.tables()
        assert any(says in problem for problem in problems), (says, problems)
