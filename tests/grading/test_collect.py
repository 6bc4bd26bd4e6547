"""Whose hand-in is it, and of which chapter: every layout that comes in; what is not sure is listed, never guessed."""

import csv
import io
import json
import os
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from grading_fixture import solution
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from course_lib.errors import CourseError
from course_lib.grading import places
from course_lib.grading.collect import Collected, collect
from course_lib.grading.roster import Learner, Names, fold, read_roster
from course_lib.grading.table import csv_text, read_rows, safe_cell

ONE, TWO = "90_fixture", "91_other"
CLASS = [
    Learner("u17", "Jane Doe", "jdoe2@uni.edu", ("100017",)),
    Learner("u18", "Doe, John", "john@uni.edu"),
    Learner("u19", "Zoë O'Brien-Łukasz", "zoe@uni.edu"),
    Learner("u20", "Ann Lee", "lee@uni.edu"),
    Learner("u21", "Ann", "ann@uni.edu"),
]


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two chapters, to be named by their files."""
    folder = tmp_path_factory.mktemp("course")
    (folder / "solutions").mkdir()
    for name in (ONE, TWO):
        notebook = solution()
        notebook.metadata["course"]["assignment"] = name
        if name == TWO:
            for cell in notebook.cells:
                grade = cell.metadata.get("nbgrader")
                if grade:
                    cell.id = grade["grade_id"] = grade["grade_id"] + "-two"
                    if "course" in cell.metadata:
                        cell.metadata["course"]["exercise"] += "-two"
                        cell.metadata["course"]["position"] = cell.metadata["course"]["position"].replace("90", "91")
                    cell.source = cell.source.replace('check("', 'check("').replace('", ', '-two", ')
                    for out in cell.get("outputs", []):
                        out.text = out.text.replace(": passed", "-two: passed")
        nbformat.write(notebook, folder / "solutions" / f"{name}.ipynb")
    return folder


def book(assignment: str | None = ONE, text: str = "1") -> bytes:
    """A notebook with an embedded id or without one."""
    cell = {"cell_type": "code", "source": text, "metadata": {}, "outputs": [], "execution_count": None}
    course = {"course": {"assignment": assignment}} if assignment else {}
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": course, "cells": [cell]}).encode()


def lay(folder: Path, files: dict[str, bytes]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def packed(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return out.getvalue()


def rows(found: Collected) -> list[tuple[str, str]]:
    return [(one.learner, one.assignment) for one in found.handins if not one.problem]


Look = Callable[..., Collected]


@pytest.fixture
def look(course: Path, tmp_path: Path) -> Look:
    def collected(files: dict[str, bytes], roster: list[Learner] | None = None) -> Collected:
        with collect(lay(tmp_path / "hw", files), roster, course) as found:
            for one in found.handins:
                assert one.problem or one.path.is_file()
            return found

    return collected


LAYOUTS = {
    "one file each": {"u17.ipynb": ONE, "u18.ipynb": ONE},
    "file names with the chapter": {"u17_90_fixture.ipynb": ONE, "90_fixture-u18.ipynb": ONE},
    "one folder each": {"u17/90_fixture.ipynb": ONE, "u18/my work/Untitled (1).ipynb": ONE},
    "nbgrader": {"submitted/u17/90_fixture/90_fixture.ipynb": ONE, "submitted/u18/90_fixture/90_fixture.ipynb": ONE},
    "chapter first": {"90_fixture/u17.ipynb": ONE, "90_fixture/u18.ipynb": ONE},
}
NAMED = {
    "canvas": {"doejane_LATE_551_9001_90_fixture-2.ipynb": ONE, "doejohn_552_9002_hw.ipynb": ONE},
    "moodle": {
        "Jane Doe_771_assignsubmission_file_/hw.ipynb": ONE,
        "John Doe_772_assignsubmission_file_90_fixture (1).ipynb": ONE,
    },
    "blackboard": {
        "Homework 1_u17_attempt_2026-09-18-14-05-33_90_fixture.ipynb": ONE,
        "Homework 1_u18_attempt_2026-09-18-14-06-33_x.ipynb": ONE,
    },
    "brightspace": {
        "123-456 - Jane Doe - Sep 18, 2026 1105 AM - hw.ipynb": ONE,
        "124-456 - John Doe - Sep 18, 2026 1106 AM/hw.ipynb": ONE,
    },
    "names among words": {"hw-jane_doe final.ipynb": ONE, "week2/DOE John/notebook.ipynb": ONE},
    "addresses": {"jdoe2@uni.edu.ipynb": ONE, "john@uni.edu_90_fixture.ipynb": ONE},
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("roster", [None, CLASS], ids=["no class list", "class list"])
def test_layouts(look: Look, layout: str, roster: list[Learner] | None) -> None:
    found = look({name: book(one) for name, one in LAYOUTS[layout].items()}, roster)
    assert rows(found) == [("u17", ONE), ("u18", ONE)] and found.ambiguous == []
    assert found.missing == ([(one.id, ONE) for one in CLASS[2:]] if roster else [])


@pytest.mark.parametrize("layout", NAMED)
@pytest.mark.parametrize("zipped", [False, True])
def test_names_that_platforms_give(look: Look, layout: str, zipped: bool) -> None:
    files = {name: book(one) for name, one in NAMED[layout].items()}
    files["__MACOSX/._x.ipynb"] = files[".ipynb_checkpoints/u19.ipynb"] = book()
    found = look({"submissions.zip": packed(files)} if zipped else files, CLASS)
    assert rows(found) == [("u17", ONE), ("u18", ONE)] and found.ambiguous == []


def test_platforms_names_are_learners_without_a_class_list(look: Look) -> None:
    names = [name for layout in ("canvas", "moodle", "blackboard", "brightspace") for name in NAMED[layout]]
    found = look({f"{number}/{name}": book() for number, name in enumerate(names) if "/" not in name}, None)
    assert {learner for learner, _ in rows(found)} == {"doejane", "doejohn", "John Doe", "u17", "u18", "Jane Doe"}


def test_two_people_of_one_name_are_told_apart_by_the_platforms_number(look: Look) -> None:
    found = look({"kimmin_551_9001_a.ipynb": book(ONE, "1"), "kimmin_552_9002_a.ipynb": book(ONE, "2")})
    assert rows(found) == [("kimmin (551)", ONE), ("kimmin (552)", ONE)]


def test_chapters_by_embedded_id_then_name_then_folder(look: Look) -> None:
    found = look(
        {
            "u17/90_fixture.ipynb": book(TWO),  # what the notebook says counts
            "u18/91_other (2).ipynb": book(None),
            "90_fixture/u19.ipynb": book(None),
            "u20/hw91/notebook.ipynb": book(None),
            "u20/hw90/notebook.ipynb": book(ONE),
        },
        CLASS,
    )
    assert set(rows(found)) == {("u17", TWO), ("u18", TWO), ("u19", ONE), ("u20", TWO), ("u20", ONE)}
    assert len(found.missing) == 2 * len(CLASS) - 5
    assert {one.learner: one.path.name for one in found.handins}["u19"] == f"{ONE}.ipynb"


def test_two_notebooks_for_one_chapter_are_listed(look: Look) -> None:
    found = look({"u17/a.ipynb": book(ONE, "1"), "u17/b.ipynb": book(ONE, "2"), "u18/a.ipynb": book()}, CLASS)
    assert rows(found) == [("u18", ONE)] and "u17/a.ipynb, u17/b.ipynb" in found.ambiguous[0]
    assert [one.learner for one in found.handins if one.problem] == ["u17"] and ("u17", ONE) not in found.missing


def test_the_same_file_twice_is_one(look: Look) -> None:
    found = look({"u17/a.ipynb": book(), "u17/a (1).ipynb": book()}, CLASS)
    assert rows(found) == [("u17", ONE)] and "2 times" in found.notes[0] and not found.ambiguous


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("u17/doe john.ipynb", "u17, u18"),
        ("Doe/x.ipynb", "nobody"),
        ("stranger.ipynb", "nobody"),
        ("17.ipynb", "nobody"),
        ("u17 and u18.ipynb", "u17, u18"),
    ],
)
def test_what_fits_two_or_nobody_is_listed(look: Look, name: str, what: str) -> None:
    found = look({name: book()}, CLASS)
    assert not found.handins and len(found.ambiguous) == 1 and what in found.ambiguous[0]


def test_names_within_names_and_of_two_people() -> None:
    names = Names([*CLASS, Learner("u22", "Jane Doe")])
    assert names.within("hw ann lee") == {"u20"} and names.within("hw ann") == {"u21"}
    assert names.exactly("doe_jane") == {"u17", "u22"}
    assert names.exactly("lukaszzoeobrien") == {"u19"} and names.exactly("Zoe\u0308 O’Brien Lukasz") == {"u19"}


def test_stray_notebooks_and_other_files(look: Look) -> None:
    found = look(
        {"u17/hw.ipynb": book(), "u17/notes.ipynb": book(None), "u17/a.py": b"", "u18/x.ipynb": book(None)}, CLASS
    )
    assert rows(found) == [("u17", ONE)]
    assert [one.learner for one in found.handins if "no exercise notebook" in one.problem] == ["u18"]
    assert any("notes.ipynb" in note for note in found.notes) and any("a.py" in note for note in found.notes)


def test_what_cannot_be_read_is_a_row_of_its_learner(look: Look) -> None:
    found = look({"u17.ipynb": b"", "u18.zip": b"PK\x03\x04 no", "u19.rar": b"Rar!", "u20.ipynb": book()}, CLASS)
    problems = {one.learner: one.problem for one in found.handins if one.problem}
    assert "empty file" in problems["u17"] and "damaged zip" in problems["u18"] and "archive" in problems["u19"]
    assert {one.assignment for one in found.handins} == {ONE}  # all that anybody handed in
    assert found.missing == [("u21", ONE)]


def test_an_unnamed_folder_of_chapters_is_its_owners(look: Look) -> None:
    found = look({"90_fixture.ipynb": book(ONE), "91_other.ipynb": book(TWO)})
    assert rows(found) == [("hw", ONE), ("hw", TWO)]
    more = look({"hw1 copy.ipynb": book(ONE, "2")})  # named by nothing, either: whose it is depends on the folder
    assert rows(more) == [("hw", TWO)] and "2 notebooks" in more.ambiguous[0]


# ---------------------------------------------------------------- archives


def test_links_and_ways_out_are_not_followed(course: Path, tmp_path: Path) -> None:
    secret = lay(tmp_path, {"secret/u19.ipynb": book(), "u19.ipynb": book()})
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        link = zipfile.ZipInfo("u18.ipynb")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, str(secret / "u19.ipynb"))
        for name in ("../u18.ipynb", "/etc/u18.ipynb", "x/../../u18.ipynb", "..\\u18.ipynb", "C:\\u18.ipynb"):
            archive.writestr(name, book())
        archive.writestr("u17.ipynb", book())
    folder = lay(tmp_path / "hw", {"class.zip": out.getvalue()})
    os.symlink(secret / "u19.ipynb", folder / "u19.ipynb")
    os.symlink(secret, folder / "u20")
    before = {path for path in tmp_path.rglob("*")}
    with collect(folder, CLASS, course) as found:
        assert rows(found) == [("u17", ONE)]
        room = found.handins[0].path.parent
        assert room.is_relative_to(tempfile.gettempdir())
    assert not room.exists() and before == {path for path in tmp_path.rglob("*")}
    assert len([note for note in found.notes if "link" in note]) == 3
    assert len([note for note in found.notes if "leads out" in note]) == 5


def test_archives_in_archives_end(look: Look) -> None:
    three = deep = packed({"a.ipynb": book()})
    for _ in range(6):
        deep = packed({"b.zip": deep})
    found = look({"class.zip": packed({"u17.zip": deep, "u18.zip": packed({"c.zip": three})})}, CLASS)
    assert rows(found) == [("u18", ONE)]
    assert "archives, one in another" in next(one.problem for one in found.handins if one.learner == "u17")


def test_a_bomb_is_stopped(look: Look, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is counted is what comes out: the size that an archive states may be a lie."""
    monkeypatch.setattr(places, "MAX_BYTES", 2**20)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u17.ipynb", b" " * 2**22)
        archive.writestr("u18.ipynb", book())
    content = out.getvalue()
    lied = content.replace(struct.pack("<I", 2**22), struct.pack("<I", 10))
    assert lied != content
    for bomb in (content, lied):
        found = look({"0.zip": bomb}, CLASS)
        assert ("u18", ONE) in rows(found) and [one.learner for one in found.handins if one.problem] == ["u17"]
    monkeypatch.setattr(places, "MAX_UNPACKED", 600)
    found = look(
        {
            "0.zip": packed({f"u{n}.ipynb": book(ONE, str(n)) for n in (17, 18, 19, 20)}),
            "1.zip": packed({"u21.ipynb": book()}),
        },
        CLASS,
    )
    assert any("all archives together" in one.problem for one in found.handins)
    monkeypatch.setattr(places, "MAX_MEMBERS", 3)
    with pytest.raises(CourseError, match="more than 3 files"):
        look({}, CLASS)


def test_a_password_and_a_name_in_another_code_page(look: Look) -> None:
    content = bytearray(packed({"u17.ipynb": book(), "Zoë O'Brien-Łukasz.ipynb": book()}))
    start = content.index(b"PK\x01\x02")
    content[6] |= 1
    content[start + 8] |= 1
    found = look({"class.zip": bytes(content)}, CLASS)
    assert "password" in next(one.problem for one in found.handins if one.learner == "u17")
    assert rows(found) == [("u19", ONE)]


def test_what_is_not_there_is_said_in_a_line(course: Path, tmp_path: Path) -> None:
    with pytest.raises(CourseError, match="no such file"):
        collect(tmp_path / "absent", None, course)
    with pytest.raises(CourseError, match="no notebooks"):
        collect(tmp_path, None, course)
    (tmp_path / "class.zip").write_bytes(b"PK\x03\x04")
    with pytest.raises(CourseError, match="damaged zip"):
        collect(tmp_path / "class.zip", None, course)


NAMES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0/"), min_size=1, max_size=30)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.dictionaries(NAMES, st.sampled_from([book(), book(None), b"", b"{"]), max_size=5), st.booleans())
def test_whatever_a_zip_holds_each_notebook_is_told_of_once(
    course: Path, files: dict[str, bytes], roster: bool
) -> None:
    """Nothing raises; every notebook that is not hidden is a row, an ambiguity or a note."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "class.zip"
        path.write_bytes(packed({f"{name}.ipynb": content for name, content in files.items()} | {"u17.ipynb": book()}))
        with collect(path, CLASS if roster else None, course) as found:
            told = " ".join([*found.ambiguous, *found.notes, *(one.place for one in found.handins)])
    assert "u17.ipynb" in told
    for one in found.handins:
        assert one.learner and one.place
    assert sorted(set(found.missing)) == sorted(found.missing)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_random_damage_of_a_zip_never_raises_but_a_line(course: Path, data: st.DataObject) -> None:
    content = bytearray(packed({"u17.ipynb": book(), "u18.zip": packed({"a.ipynb": book()})}))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    with tempfile.TemporaryDirectory() as folder:
        lay(Path(folder), {"hw/class.zip": bytes(content), "hw/u19.ipynb": book()})
        with collect(Path(folder) / "hw", CLASS, course) as found:
            assert ("u19", ONE) in rows(found)


# ---------------------------------------------------------------- the class list

SEPARATED = {
    "comma": 'Student ID,Full Name,E-Mail\nu17,"Doe, Jane",j@x.edu\nu18,John,\n',
    "semicolon": 'Student ID;Full Name;E-Mail\nu17;"Doe, Jane";j@x.edu\nu18;John;\n',
    "tab": "Student ID\tFull Name\tE-Mail\nu17\tDoe, Jane\tj@x.edu\nu18\tJohn\t\n",
    "excel": 'sep=;\r\nStudent ID;Full Name;E-Mail\r\nu17;"Doe, Jane";j@x.edu\r\n\r\nu18;John;\r\n',
    "no head": 'u17,"Doe, Jane",j@x.edu\nu18,John,\n',
    "extra": 'Group,E-Mail,Full Name,Student ID\nA,j@x.edu,"Doe, Jane",u17\nB,,John,u18\n',
}


@pytest.mark.parametrize("kind", SEPARATED)
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "cp1252"])
def test_class_lists(tmp_path: Path, kind: str, encoding: str) -> None:
    path = tmp_path / "class.csv"
    path.write_bytes(SEPARATED[kind].replace("Jane", "Zoë").encode(encoding))
    assert read_roster(path) == [Learner("u17", "Doe, Zoë", "j@x.edu"), Learner("u18", "John", "")]


def test_class_lists_of_platforms(tmp_path: Path) -> None:
    path = tmp_path / "class.csv"
    path.write_text(
        'Student,ID,SIS User ID,SIS Login ID,Section\n    Points Possible,,,,\n"Doe, Jane",551,100017,jdoe2,A\n',
        encoding="utf-8",
    )
    assert read_roster(path) == [Learner("551", "Doe, Jane", "", ("100017", "jdoe2"))]
    path.write_text("First name,Surname,ID number,Email address\nJane,Doe,17,j@x\n,,,only@x.edu\n", encoding="utf-8")
    assert read_roster(path) == [Learner("17", "Jane Doe", "j@x"), Learner("only", "", "only@x.edu")]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("id,name\nu1,A\nU1,B\n", "line 3 repeats the id 'U1' of line 2"),
        ("", "empty"),
        ("id,name\n", "nobody in it"),
        ("id,x\n,y\n", "line 2 has no id"),
    ],
)
def test_class_lists_that_are_wrong(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "class.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match=what):
        read_roster(path)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=30))
def test_folding_is_stable(text: str) -> None:
    assert fold(fold(text)) == fold(text)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.lists(st.one_of(st.text(st.characters(codec="utf-8"), max_size=8), st.integers()), min_size=2, max_size=4),
        max_size=4,
    )
)
def test_no_cell_that_is_written_is_a_formula(table: list[list[Any]]) -> None:
    """Read back by Python's own reader, every text is what it was, perhaps with an apostrophe in front."""
    back = list(csv.reader(io.StringIO(csv_text(table), newline="")))
    assert len(back) == len(table)
    for row, read in zip(table, back, strict=True):
        assert read == [str(safe_cell(cell)) for cell in row]
        for cell, text in zip(row, read, strict=True):
            if isinstance(cell, str):
                assert not text.lstrip(" ").startswith(("=", "+", "-", "@", "\t", "\r"))


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_any_bytes_are_read_as_a_table_or_refused_in_a_line(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "t.csv"
        path.write_bytes(content)
        try:
            read_rows(path)
        except CourseError as error:
            assert "t.csv" in str(error)
