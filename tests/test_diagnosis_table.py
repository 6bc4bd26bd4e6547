"""The searchable diagnosis table: what is typed leaves the rows that have it; without a kernel it is all there."""

import re

import pytest
from incident_fake import ROWS, catalogue  # noqa: F401

from course_lib.widgets import diagnosis_table


@pytest.fixture
def made(catalogue):  # noqa: F811
    return diagnosis_table()


def shown(table):
    return [row for row in ROWS if f"<b>{row.symptom}</b>" in re.sub("</?mark>", "", table._table.value)]


def test_typing_leaves_the_rows_with_all_words(made):
    assert shown(made) == list(ROWS) and "2 rows." in made._count.value
    made.search("NaN")
    assert shown(made) == [ROWS[0]] == list(made.rows) and "1 of 2 rows" in made._count.value
    made.search("node slow  time")
    assert shown(made) == [ROWS[1]]
    made.search("nan slow wait")
    assert shown(made) == [] and "No row has all" in made._count.value and made._table.value == ""
    made.search("")
    assert shown(made) == list(ROWS)


def test_an_incidents_title_finds_its_row(made):
    made.search("straggler one")
    assert shown(made) == [ROWS[1]] and "the <mark>straggler</mark>" in made._table.value


def test_what_was_typed_is_marked_and_harmless(made):
    made.search("<data>")
    assert "wrong <mark>&lt;data&gt;</mark>" in made._table.value and "<data>" not in made._table.value
    for text in ("b", "mark", "(", "[", "\\", "**", "&", "<", "lt", "`"):
        made.search(text)
        assert made._table.value.count("<mark>") == made._table.value.count("</mark>")
        assert "<<mark>" not in made._table.value and "&<mark>lt" not in made._table.value


def test_every_cell_of_a_row_is_there(made):
    text = re.sub(r"<[^>]+>", " ", made._table.value)
    for row in ROWS:
        for part in (row.symptom, row.look, row.check, row.fix, row.never, *(cause.category for cause in row.causes)):
            assert part in text


def test_the_static_face_is_the_table(catalogue, monkeypatch):  # noqa: F811
    seen = []
    monkeypatch.setattr("course_lib.widgets.diagnosis.show_faces", lambda *given: seen.append(given))
    diagnosis_table()
    (_, face, text) = seen[0]
    assert face.count("<tr>") == 1 + len(ROWS) and "course-static" in face and "course-caption" in face
    assert "<script" not in face and "loss is NaN" in text
