"""What somebody who works alone sees of grading: names that lead somewhere, lines that fit, progress that is kept."""

import io
import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from grading_fixture import answer, right

from course_lib import cli
from course_lib.grading import cli as grading_cli
from course_lib.grading import grade as grade_room
from course_lib.grading import own as own_room
from course_lib.grading.assignment import Assignment, all_assignments
from course_lib.grading.grade import GRADING_SEED, GradedItem, Grader, Submission
from course_lib.grading.own import Alive, not_begun
from course_lib.grading.progress import read_progress, record
from course_lib.grading.progress_cli import as_lines, course_map
from course_lib.grading.report import text_report, to_type
from course_lib.grading.syllabus import read_syllabus

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def work(material: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner's own folder with the exercise notebook as it is copied there, called from the folder above."""
    place = tmp_path / "my course" / "work"
    (place / "exercises").mkdir(parents=True)
    shutil.copyfile(material / "exercises" / "90_fixture.ipynb", place / "exercises" / "90_fixture.ipynb")
    monkeypatch.setenv("COURSE_WORK", str(place))
    for room in (grade_room, grading_cli):
        monkeypatch.setattr(room, "work_dir", lambda: place)
    monkeypatch.setattr(own_room, "material_dir", lambda: material)
    monkeypatch.chdir(place.parent)
    return place


def refuse(*_: Any, **__: Any) -> Any:
    raise AssertionError("a grader was started")


@pytest.fixture
def no_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grade_room, "Grader", refuse)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    status = cli.main(words)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


# ---------------------------------------------------------------- names


@pytest.mark.usefixtures("no_grader")
@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("16", "there is no chapter 16; course syllabus lists the chapters"),
        ("90.2", "90.2: 90.2 (total) is graded with its chapter: course grade 90"),
        ("total", "total: 90.2 (total) is graded with its chapter: course grade 90"),
        ("90_fixtur", "there is no such file or chapter; did you mean course grade 90 (90_fixture)?"),
        ("chapter90", "did you mean course grade 90 (90_fixture)?"),
        ("fixtures", "did you mean course grade 90 (90_fixture)?"),
        ("wrok/exercises", "wrok/exercises: there is no such file or chapter; course syllabus lists the chapters"),
    ],
)
def test_a_mistyped_name_is_one_line_at_once(
    work: Path, capsys: pytest.CaptureFixture[str], name: str, line: str
) -> None:
    status, out, err = said(capsys, "grade", "90", name)
    assert status == 2 and line in err and err.count("\n") == 1 and out == ""


@pytest.mark.usefixtures("no_grader")
def test_a_chapter_without_exercises_is_named_so(
    work: Path, material: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = material / "notebooks" / "00_start.ipynb"
    page.parent.mkdir(exist_ok=True)
    page.write_text("{}", encoding="utf-8")
    try:
        assert "chapter 0 has no exercises to grade" in said(capsys, "grade", "0")[2]
    finally:
        shutil.rmtree(page.parent)


@pytest.mark.usefixtures("no_grader")
def test_the_chapter_that_is_read_is_not_graded(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It has the name of its exercises, and its own functions would be taken for answers."""
    page = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("def double(x):\n    return x")])
    nbformat.write(page, work / "90_fixture.ipynb")
    status, _, err = said(capsys, "grade", "work/90_fixture.ipynb")
    place = Path("work", "exercises", "90_fixture.ipynb")
    assert status == 2 and f"is the chapter itself; its exercises are in {place}: course grade 90" in err
    (work / "exercises" / "90_fixture.ipynb").unlink()
    status, out, _ = said(capsys, "grade", "90")
    assert status == 2 and "there is no" in out, "and not in place of exercises that are not there"


@pytest.mark.usefixtures("no_grader")
def test_a_file_that_is_not_there_says_what_to_do(
    work: Path, material: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, out, _ = said(capsys, "grade", "work/exercises/90_fxture.ipynb")
    there = Path("work", "exercises", "90_fixture.ipynb")
    assert status == 2 and f"did you mean {there}?" in " ".join(out.split())
    (work / "exercises" / "90_fixture.ipynb").unlink()
    (work / "exercises" / "91_other.ipynb").write_text("{}", encoding="utf-8")
    status, out, _ = said(capsys, "grade", "90")
    told = " ".join(out.split())
    assert status == 2 and f"there is no {there}; copy it there from {material / 'exercises'}" in told
    (work / "exercises" / "91_other.ipynb").unlink()
    assert f"there are no exercises yet; copy them there from {material / 'exercises'}" in said(capsys, "grade")[2]
    monkeypatch.setattr(own_room, "material_dir", lambda: ROOT)
    assert "there are no exercises yet; `python3 start.py lab` copies them there" in said(capsys, "grade")[2]


@pytest.mark.usefixtures("no_grader")
@pytest.mark.parametrize("words", [[], ["work"], ["work/exercises"], ["90"], ["90", "090", "work", "90_fixture"]])
def test_what_was_not_begun_is_said_without_a_run(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    """The learner's own folder is no class; a notebook that is named twice is graded once."""
    status, out, _ = said(capsys, "grade", *words)
    assert status == 1 and out.count("90_fixture: 0 of 10 points, nothing attempted yet") == 1
    assert out.count("not attempted    ") == 4 and "next: 90.1" in out and "0 exercises passed so far" in out
    assert not (work / "grading").exists() and read_progress().exercises["double"].times == 0


def test_not_begun_is_what_a_run_says_too(
    work: Path, released: Any, hand_in: Callable[..., Path], material: Path
) -> None:
    path = work / "exercises" / "90_fixture.ipynb"
    with Grader(timeout=30) as grader:
        ran = grader.grade("x", path)
        quick = not_begun("x", path, GRADING_SEED, grader.tier.name)
    assert quick is not None and [one.id for one in quick.items] == [one.id for one in ran.items]
    for mine, theirs in zip(quick.items, ran.items, strict=True):
        assert (mine.status, mine.score, mine.max_score, mine.message) == (
            theirs.status,
            theirs.score,
            theirs.max_score,
            theirs.message,
        )
    assert (quick.status, quick.assignment, quick.release) == (ran.status, ran.assignment, ran.release)
    answer(released, "double", right("double"))
    assert not_begun("x", hand_in(released), 0, "") is None
    released = nbformat.read(path, as_version=4)
    released.cells.append(nbformat.v4.new_code_cell("helper = 1"))
    assert not_begun("x", hand_in(released), 0, "") is None
    (broken := work / "broken.ipynb").write_text("{", encoding="utf-8")
    assert not_begun("x", broken, 0, "") is None


def test_hints_for_wrong_names(material: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, line in {
        "totl": "there is no exercise 'totl'; did you mean total?",
        "Total": "did you mean total?",
        "zzz": "course progress --all lists them",
        "90": "a hint is for one exercise of the chapter: 90.1 double, 90.2 total",
        "90.9": "chapter 90 has 90.1 double",
        "16.1": "chapter 16 has no exercises",
    }.items():
        status, _, err = said(capsys, "hint", name)
        assert status == 2 and line in err and len(err) < 200, err
    status, out, _ = said(capsys, "hint", "90.2")
    assert status == 0 and "More: course hint 90.2 --level 2" in out


def test_an_own_notebook_that_is_broken_says_the_way_out(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(grade_room, "Grader", Unreadable)
    path = work / "exercises" / "90_fixture.ipynb"
    path.write_text('{"cells": [', encoding="utf-8")
    status, out, _ = said(capsys, "grade", "90")
    assert status == 2 and "to begin it anew, move it away" in out
    kept = path.parent / ".ipynb_checkpoints" / "90_fixture-checkpoint.ipynb"
    kept.parent.mkdir()
    kept.write_text("{}", encoding="utf-8")
    place = Path("work", "exercises", ".ipynb_checkpoints", kept.name)
    assert f"Jupyter kept an earlier save: {place}" in said(capsys, "grade", "90")[1]
    (tmp_path / "90_fixture.ipynb").write_text("{", encoding="utf-8")
    assert "Jupyter kept" not in said(capsys, "grade", str(tmp_path / "90_fixture.ipynb"))[1]


class Unreadable:
    """A Grader that can read nothing."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> "Unreadable":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def grade(self, name: str, path: Path) -> Submission:
        return Submission(name, "unreadable", flags=(f"{path}: is no notebook",))


# ---------------------------------------------------------------- lines


def test_every_line_fits_into_80_columns() -> None:
    long = "case 2 of 5 (a name): " + "the mean is off by 33%, and what does its weight depend on? " * 5
    item = GradedItem("accumulation-doubled-twice", "03.5", "A title " * 12, "failed", 0, 3, f"{long}\n  line 2: x = 1")
    other = GradedItem("double", "03.6", "Other", "passed", 3, 3, "")
    one = Submission("03_gradient_accumulation", "graded", (item, other), (long,), "03_x", seed=GRADING_SEED)
    shown = text_report(one, 1200, 80)
    assert max(map(len, shown.splitlines())) <= 80
    assert " ".join(long.split()) in " ".join(shown.split()), "nothing is lost"
    assert f"(seed {GRADING_SEED}; --seed 0: those of your notebook)" in shown
    missing = Submission("work/x.ipynb", "unreadable", flags=(long,))
    assert max(map(len, text_report(missing, 1200, 80).splitlines())) <= 80
    assert "a hint" not in text_report(one, hints=False)


def test_next_is_what_was_tried_before_what_was_not() -> None:
    items = made_up("not_attempted", "passed", "missing", "failed")
    assert "next: 90.4 T" in text_report(Submission("x", "graded", items))
    assert "next: 90.1 T" in text_report(Submission("x", "graded", items[:3]))


def test_a_command_is_said_as_it_can_be_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/.venv/bin/course"])
    assert to_type("hint 03.2") == "course hint 03.2"
    monkeypatch.setattr(sys, "argv", [str(ROOT / "course_lib" / "__main__.py")])
    assert to_type("hint 03.2") == "python3 start.py hint 03.2"
    monkeypatch.setattr("course_lib.grading.report.material_dir", lambda: ROOT / "nowhere")
    assert to_type("hint 03.2") == "course hint 03.2", "an installed package has no start.py"


def test_the_map_of_the_whole_course_fits(tmp_path: Path) -> None:
    """The real chapters: in the longest state that each exercise can have."""
    done = {"status": "kernel_died", "best": 99.0, "max_score": 99.0, "passed": "2026-01-01"}
    ids = [item.id for one in all_assignments(ROOT) for item in one.items]
    path = tmp_path / "progress.json"
    path.write_text(json.dumps({"version": 1, "exercises": dict.fromkeys(ids, done)}), encoding="utf-8")
    rows = read_syllabus(material=ROOT)
    for progress in (read_progress(path), read_progress(tmp_path / "none.json")):
        lines = "\n".join(as_lines(course_map(rows, progress), everything=True)).splitlines()
        assert [line for line in lines if len(line) > 80] == []


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_sign_of_life_is_there_and_goes() -> None:
    screen = Terminal()
    with Alive("grading 03", screen, every=0.01):
        deadline = time.monotonic() + 10
        while screen.getvalue().count("\r") < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    parts = screen.getvalue().split("\r")
    assert parts[1].startswith("grading 03 ...") and len(parts) > 4
    assert parts[-2:] == [" " * 79, ""], "what follows begins on an empty line"
    assert not re.search(r"\x1b", screen.getvalue())
    with Alive("grading 03", plain := io.StringIO()):
        pass
    assert plain.getvalue() == ""


# ---------------------------------------------------------------- progress


def made_up(*statuses: str) -> tuple[GradedItem, ...]:
    names = ("double", "total", "pick", "largest")
    return tuple(
        GradedItem(name, f"90.{number}", "T", status, float(status == "passed"), 1.0, "")
        for number, (name, status) in enumerate(zip(names, statuses, strict=True), 1)
    )


def test_a_chapter_counts_though_the_next_one_is_stopped(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Stopped:
        def __init__(self, *_: Any) -> None:
            self.calls = 0

        def __enter__(self) -> "Stopped":
            return self

        def __exit__(self, *_: Any) -> None:
            pass

        def grade(self, name: str, path: Path) -> Submission:
            self.calls += 1
            if self.calls == 2:
                raise KeyboardInterrupt
            return Submission(name, "graded", made_up("passed", "failed", "passed", "failed"))

    monkeypatch.setattr(grade_room, "Grader", Stopped)
    for name in ("a.ipynb", "b.ipynb"):
        (work / "exercises" / name).write_text("{}", encoding="utf-8")
    assert cli.main(["grade", "work/exercises/a.ipynb", "work/exercises/b.ipynb"]) == 130
    assert read_progress().exercises["double"].done and "stopped" in capsys.readouterr().err


def test_of_a_file_that_was_cut_off_every_whole_entry_is_kept(
    work: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = work / "progress.json"
    record([Submission("x", "graded", made_up("passed", "failed", "passed", "passed"))], path, "2026-01-02")
    whole = path.read_bytes()
    cut = whole[: whole.index(b'"largest"') + 30]
    path.write_bytes(cut)
    status, _, err = said(capsys, "progress")
    assert status == 2 and "damaged" in err and "the next grading puts it aside" in err
    assert said(capsys, "grade", "90")[0] == 1
    found = read_progress().exercises
    assert {name for name, one in found.items() if one.done} == {"double", "pick"}
    assert found["double"].passed == "2026-01-02" and found["total"].status == "not_attempted"
    assert (work / "progress.json.damaged-1").read_bytes() == cut
    for length in range(0, len(whole), 7):
        path.write_bytes(whole[:length])
        record([Submission("x", "graded", made_up(*["not_attempted"] * 4))], path)
        assert sum(one.done for one in read_progress().exercises.values()) <= 3


def test_a_damaged_file_is_told_of_once(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (work / "progress.json").write_text("{", encoding="utf-8")
    _, out, _ = said(capsys, "grade", "90")
    assert "note: progress.json was damaged" in out and "progress.json.damaged-1" in out
    assert "note:" not in said(capsys, "grade", "90")[1]


def test_a_worse_later_result_takes_nothing_away(work: Path, fixture_assignment: Assignment) -> None:
    record([Submission("x", "graded", made_up(*["passed"] * 4))])
    record([Submission("x", "graded", made_up("failed", "timeout", "not_attempted", "missing"))])
    found = read_progress().exercises
    assert all(one.done and one.best == 1 for one in found.values())
    assert [one.times for one in found.values()] == [2, 2, 1, 1]


def test_json_goes_into_a_new_folder(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = work / "new" / "result.json"
    assert said(capsys, "grade", "90", "--json", str(out))[0] == 1
    assert json.loads(out.read_text(encoding="utf-8"))["submissions"][0]["max_score"] == 10
    assert [name for name in os.listdir(work / "new") if name != "result.json"] == []
    assert said(capsys, "grade", "90", "--json", str(work))[2].count("\n") == 1
