"""The simulator and the diagnosis table on the page: alive, and as a picture or a table where no kernel runs."""

import base64
import re

import nbformat
import pytest
from incident_fake import CHECKS, KINDS, catalogue  # noqa: F401
from nbclient import NotebookClient

from course_lib.failures.scoring import HEALTHY
from course_lib.failures.simulator import dealt
from course_lib.figures.style import Picture, title_of
from course_lib.widgets import incident as module
from course_lib.widgets import incident_simulator

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def quick(monkeypatch):
    """Pictures of one pixel: drawing is not what most of these tests are about."""
    monkeypatch.setattr(module, "png", lambda figure, **_: Picture(b"\x89PNG " + title_of(figure).encode(), 1, 1))


@pytest.fixture
def made(catalogue):  # noqa: F811
    """made("hot") -> the simulator with a case of that fault."""
    return lambda name="overflow": incident_simulator(next(seed for seed in range(100) if dealt(seed) == name))


def words(html):
    return " ".join(re.sub(r"<[^>]+>", " ", html).split())


def faces(simulator):
    return simulator._faces()


def test_nothing_on_the_page_tells_the_fault(made, quick):
    """The list of faults holds every name, once; nothing else does."""
    for name in (*KINDS, HEALTHY):
        simulator = made(name)
        simulator.order("disk")
        parts = [simulator._title, simulator._picture, simulator._notes, simulator._error, simulator._score]
        said = " ".join(part.value for part in parts) + faces(simulator)["text/html"] + faces(simulator)["text/plain"]
        assert name not in re.sub(r'base64,[^"]+', "", said)
        assert [value for _, value in simulator._fault.options] == ["", *KINDS, HEALTHY]


def test_a_case_is_played_with_the_buttons(made, quick):
    simulator = made("overflow")
    assert "0 minutes" in simulator._notes.value and simulator._score.value == ""
    simulator._checks["decode"].click()
    simulator._checks["finite"].click()
    simulator._checks["finite"].click()
    assert simulator.case.minutes == 15 and "15 minutes" in words(simulator._notes.value)
    assert simulator._notes.value.count("<li>") == 2 and 'role="status"' in simulator._notes.value
    assert simulator._checks["finite"].description == "✓ look at finite (10 min)"
    assert simulator._checks["ranks"].description == "look at ranks (20 min)"
    simulator._button.click()
    assert simulator.error == "Choose a fault first." and 'role="alert"' in simulator._error.value
    simulator._fault.value = "overflow"
    simulator._button.click()
    assert simulator.case.score.points == 100 and simulator.error == ""
    said = words(simulator._score.value)
    assert "✓ Right: “the overflow one”" in said and "100 points of 100" in said and "ranks measured 0.0" in said
    assert simulator._score.value.count("<tr") == 1 + len(CHECKS)
    assert simulator._score.value.count("course-incident-abnormal") == 1
    assert simulator._desk.layout.display == "none" and simulator._fault.disabled
    assert simulator._button.description == "Another case"


def test_another_case_starts_afresh(made, quick):
    simulator = made("hot")
    before = simulator._picture.value
    simulator.order("rates")
    simulator.answer("hot")
    simulator._fault.value = "hot"
    simulator._button.click()
    assert simulator.case.orders == [] and simulator._score.value == "" and simulator._fault.value == ""
    assert not simulator._fault.disabled and simulator._button.description == "Name it"
    assert simulator._desk.layout.display == "flex"
    assert not any(button.description.startswith("✓") for button in simulator._checks.values())
    assert simulator.case.seed != next(s for s in range(100) if dealt(s) == "hot") or simulator._picture.value == before


def test_a_restart_is_in_the_notes(made, quick):
    simulator = made("hot")
    simulator.restart()
    assert simulator.case.minutes == 120 and "At no step is its loss more than 0" in simulator._notes.value
    assert simulator._progress.value == ""


def test_an_error_is_one_line_and_the_page_lives_on(made, quick, monkeypatch):
    simulator = made("hot")
    simulator.order("ratse")
    assert "did you mean 'rates'" in simulator.error
    monkeypatch.setattr(simulator.case, "order", lambda name: 1 / 0)
    simulator.order("rates")
    assert simulator.error == "This did not work: ZeroDivisionError: division by zero"
    simulator.restart()
    assert simulator.error == "" and simulator.case.minutes == 120
    simulator.answer("hot")
    monkeypatch.setattr(simulator, "_make", lambda *given, **more: 1 / 0)
    simulator._button.click()
    assert simulator.error.startswith("No run could be made: ZeroDivisionError") and simulator._progress.value == ""


def test_progress_is_drawn_while_a_run_is_made(made, quick, monkeypatch):
    seen = []
    monkeypatch.setattr(module, "_bar", lambda done, total: seen.append((done, total)) or "bar")
    made("hot")
    assert seen == [(0, 1), (10, 24), (20, 24)]


def test_the_static_face_is_a_picture_with_words(made):
    face = faces(made())["text/html"]
    (data,) = re.findall(r'src="data:image/png;base64,([^"]+)"', face)
    assert base64.b64decode(data)[:4] == b"\x89PNG" and 'alt="12 steps: loss from 5.00 to 3.90' in face
    assert "not finite at step 7" in face and "course-caption" in face and "course-static" in face
    assert "course incident --seed" in face and "<style" not in face and "<svg" not in face


def test_colours_are_the_themes_own(made, quick):
    simulator = made()
    simulator.order("finite")
    simulator.answer("overflow")
    for part in (simulator._notes, simulator._score, simulator._error):
        assert not re.search(r"color\s*:", part.value)


def test_each_button_says_what_it_costs(made, quick):
    simulator = made()
    assert all(re.search(r" min\)$", button.description) for button in simulator._checks.values())
    assert len({button.description for button in simulator._checks.values()}) == len(CHECKS)


def test_in_a_terminal_it_prints_the_dashboards(made, quick, capsys):
    simulator = made()
    said = capsys.readouterr().out
    assert "▁" in said and f"course incident --seed {simulator.case.seed}" in said


@pytest.mark.slow
def test_in_a_notebook_it_is_one_output_with_two_faces():
    cell = "from course_lib.widgets import incident_simulator\nincident_simulator(seed=4)"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell)])
    NotebookClient(notebook, timeout=180, store_widget_state=False).execute()
    (output,) = notebook.cells[0].outputs
    assert {VIEW, "text/html", "text/plain"} == set(output.data) and "<img" in output.data["text/html"]
