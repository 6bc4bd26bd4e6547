"""What lies beside a class's results (its seed, what a person decided) and what a large class is told and given."""

import csv
import io
import json
import os
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from course_lib.errors import CourseError
from course_lib.grading import class_cli
from course_lib.grading.class_cli import LISTED, class_lines
from course_lib.grading.class_run import Change, Setting
from course_lib.grading.class_seed import SEED_FILE, class_seed
from course_lib.grading.cli import grade_main
from course_lib.grading.collect import Collected, Found, collect
from course_lib.grading.decisions import Decision, read_decisions
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.gradebook import write_csv, write_gradebook
from course_lib.grading.journal import Journal
from course_lib.grading.lms import lms_rows, write_lms
from course_lib.grading.roster import Learner, read_roster
from course_lib.grading.sheets import Course

NAME = "90_fixture"
ROSTER = "id,name,email\nu1,Ann Lee,lee@uni.edu\nu2,Bo Ng,bo@uni.edu\nu3,Cy Roe,cy@uni.edu\n"


def book(note: str = "", name: str | None = NAME) -> str:
    cell = {"cell_type": "markdown", "metadata": {}, "source": note, "id": "a"}
    course = {"course": {"assignment": name}} if name else {}
    return json.dumps({"cells": [cell], "metadata": course, "nbformat": 4, "nbformat_minor": 5})


def row(name: str = NAME, passed: int = 2, status: str = "graded", seed: int = 7) -> Submission:
    number = name[:2]
    items = tuple(
        GradedItem(
            f"item-{number}-{n}",
            f"{number}.{n}",
            f"Exercise {n}",
            "passed" if n <= passed else "failed",
            2.0 * (n <= passed),
            2.0,
            f"case {n} of 5: what came back is not what a step gives, by {n} in the last place",
            None if n <= passed else "adds-instead",
        )
        for n in range(1, 7)
    )
    return Submission("x", status, items, (), name, seed=seed)


@pytest.fixture
def seeds(material: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the runs, which grade nothing: each hand-in has two right answers."""
    found: list[int] = []

    def run(handins: Collected, journal: Journal, setting: Setting, *_: Any, **__: Any) -> list[tuple[str, Submission]]:
        found.append(setting.seed)
        rows = []
        for one in handins.handins:
            graded = row(one.assignment, seed=setting.seed)
            if one.problem:
                graded = Submission(one.learner, "unreadable", (), (one.problem,), one.assignment)
            else:
                journal.add(f"{one.learner} {setting.seed}", one.learner, "digest", graded)
            rows.append((one.learner, graded))
        return rows + [(who, Submission(who, "missing", (), ("nothing",), name)) for who, name in handins.missing]

    monkeypatch.setattr(class_cli, "run_class", run)
    return found


@pytest.fixture
def handins(tmp_path: Path) -> Path:
    folder = tmp_path / "hand ins"
    folder.mkdir()
    for name in ("u1", "u2"):
        (folder / f"{name}.ipynb").write_text(book(name), encoding="utf-8")
    return folder


# ---------------------------------------------------------------- the seed


def test_a_seed_is_drawn_once_and_kept(
    seeds: list[int], handins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(handins), "--results", str(tmp_path / "out")]
    grade_main(words)
    assert f"seed: {seeds[0]} (drawn for this class and kept in" in capsys.readouterr().out
    assert seeds[0] >= 10**8 and (tmp_path / "out" / SEED_FILE).read_text(encoding="utf-8") == f"{seeds[0]}\n"
    grade_main(words)
    assert f"seed: {seeds[0]} (kept in" in capsys.readouterr().out
    grade_main([str(handins), "--results", str(tmp_path / "other")])
    assert seeds[0] == seeds[1] != seeds[2], "another class has another one"


def test_a_seed_that_is_given_is_kept_from_then_on(
    seeds: list[int], handins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(handins), "--results", str(tmp_path / "out")]
    for more in (["--seed", "4711"], [], ["--seed", "5"], []):
        grade_main([*words, *more])
    assert seeds == [4711, 4711, 5, 5]
    assert "in place of 4711: what was graded on other cases is graded again" in capsys.readouterr().out


def test_a_regrade_takes_the_kept_seed(
    seeds: list[int], handins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(handins), "--results", str(tmp_path / "out")]
    grade_main([*words, "--seed", "4711"])
    again: list[int] = []

    def regrade(found: Collected, journal: Journal, setting: Setting, *_: Any) -> list[Change]:
        again.append(setting.seed)
        return []

    monkeypatch.setattr(class_cli, "grade_again", regrade)
    grade_main([*words, "--regrade", "90.1", "--yes"])
    assert again == [4711]


def test_results_of_before_keep_the_seed_of_their_rows(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.add("a", "ann", "digest", row(seed=20_611))
    with (tmp_path / "journal.jsonl").open("ab") as file:
        file.write(b'{"half a line')
    assert class_seed(tmp_path, None)[0] == 20_611
    (tmp_path / SEED_FILE).write_text("many\n", encoding="utf-8")
    with pytest.raises(CourseError, match="holds no whole number"):
        class_seed(tmp_path, None)


# ---------------------------------------------------------------- what a person decides


def test_what_is_ambiguous_is_settled_in_a_file(
    seeds: list[int], handins: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (handins / "u1").mkdir()
    (handins / "u1" / "second try.ipynb").write_text(book("other"), encoding="utf-8")
    (handins / "mine.ipynb").write_text(book("whose?"), encoding="utf-8")
    (tmp_path / "class.csv").write_text(ROSTER, encoding="utf-8")
    out = tmp_path / "out"
    words = [str(handins), "--roster", str(tmp_path / "class.csv"), "--results", str(out)]
    assert grade_main(words) == 1
    text = capsys.readouterr().out
    assert text.count("ambiguous: ") == 3 and f"write {out / 'files.csv'}" in text, "twice in a line and once in a row"
    (out / "files.csv").write_text('file,student\nu1.ipynb,\nmine.ipynb,"Roe, Cy"\ngone.ipynb,u2\n', encoding="utf-8")
    grade_main(words)
    text = capsys.readouterr().out
    assert (
        "ambiguous: " not in text and "3 graded" in text and "files.csv, line 4: there is no file 'gone.ipynb'" in text
    )
    (out / "files.csv").write_text("file,student\nmine.ipynb,Zed\n", encoding="utf-8")
    with pytest.raises(CourseError, match="line 2: nobody in the class list is called 'Zed'"):
        grade_main(words)


def test_decisions_without_a_class_list(material: Path, handins: Path) -> None:
    with collect(handins, None, material, decisions=[Decision("u1.ipynb", "ann"), Decision("u2.ipynb", "")]) as found:
        assert [(one.learner, one.how) for one in found.handins] == [
            ("ann", "learner by files.csv, chapter by embedded id")
        ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("student,file\na,b\n", "must name the columns"),
        ("file,student\n,b\n", "needs a file"),
        ("file,student\na,b\na,c\n", "line 3 repeats"),
    ],
)
def test_decisions_that_are_not_clear(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "files.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(CourseError, match=what):
        read_decisions(path)


# ---------------------------------------------------------------- where archives are unpacked


def test_archives_are_unpacked_beside_the_results_and_what_was_left_goes(material: Path, tmp_path: Path) -> None:
    results = tmp_path / "hw" / "results"
    results.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "hw" / "u1.zip", "w") as archive:
        archive.writestr("hw.ipynb", book("1"))
    left = results / ".unpacked-of-a-killed-run"
    left.mkdir()
    (left / "u9.ipynb").write_text(book("9"), encoding="utf-8")
    with collect(tmp_path / "hw", None, material, results=results) as found:
        assert [one.learner for one in found.handins] == ["u1"] and not left.exists()
        assert found.handins[0].path.is_relative_to(results) and found.handins[0].path.is_file()
    assert list(results.iterdir()) == []


def test_a_killed_run_leaves_nothing_that_the_next_one_does_not_remove(material: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("u1.ipynb", book("1"))
    script = (
        "import os, sys\nfrom pathlib import Path\nfrom course_lib.grading.collect import collect\n"
        "found = collect(sys.argv[1], None, Path(sys.argv[2]), results=Path(sys.argv[3]))\nos.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "out").mkdir()
    words = [sys.executable, "-c", script, str(tmp_path / "all.zip"), str(material), str(tmp_path / "out")]
    subprocess.run(words, check=False, timeout=120, env=os.environ)
    assert len(list((tmp_path / "out").glob(".unpacked-*/*/u1.ipynb"))) == 1
    with collect(tmp_path / "all.zip", None, material, results=tmp_path / "out"):
        assert len(list((tmp_path / "out").glob(".unpacked-*"))) == 1
    assert list((tmp_path / "out").iterdir()) == []


# ---------------------------------------------------------------- what it says


def test_options_that_mean_nothing_are_refused_before_anything_is_written(handins: Path, tmp_path: Path) -> None:
    for more, what in [
        (["--bom"], "--bom goes with --csv"),
        (["--yes"], "--yes goes with --regrade"),
        (["--overrides", str(tmp_path / "no.csv")], "no such file"),
        ([str(tmp_path / "no")], "no such file"),
    ]:
        with pytest.raises(CourseError, match=what):
            grade_main([str(handins), *more, "--results", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stopped", ["run_class", "grade_again"])
def test_a_run_that_is_stopped_says_what_is_kept(
    seeds: list[int],
    handins: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    stopped: str,
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(class_cli, stopped, stop)
    more = ["--regrade", "90.1"] if stopped == "grade_again" else []
    with pytest.raises(KeyboardInterrupt):
        grade_main([str(handins), "--results", str(tmp_path / "out"), *more])
    said = "nothing was written" if more else f"what was graded is kept in {tmp_path / 'out'}"
    assert said in capsys.readouterr().out


def test_another_release_is_refused_with_what_to_do(
    handins: Path, tmp_path: Path, material: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (handins / "u2.ipynb").unlink()
    old = json.loads(book())
    old["metadata"]["course"]["hash"] = "an older one"
    (handins / "u1.ipynb").write_text(json.dumps(old), encoding="utf-8")
    assert grade_main([str(handins), "--results", str(tmp_path / "out"), "--isolation", "plain"]) == 2
    (line,) = [one for one in capsys.readouterr().out.splitlines() if one.startswith("u1")]
    assert "unreadable" in line and "another release" in line
    assert "grade it with that copy of the course, or say --any-release" in line


def test_a_large_class_lists_what_a_person_has_to_look_at() -> None:
    fine = [(f"u{n}", row()) for n in range(LISTED)]
    odd = [("x1", Submission("x1", "unreadable", (), ("is an empty file",), NAME))]
    noted = [("x2", Submission("x2", "graded", row().items, ("a flag",), NAME))]
    away = [("x3", Submission("x3", "missing", (), ("nothing was handed in",), NAME))]
    assert len(class_lines(fine, {})) == LISTED
    lines = class_lines([*fine, *odd, *noted, *away], {"x2": Learner("x2", "Ann Lee")})
    assert [line.split()[0] for line in lines] == ["x1", "x2", str(LISTED + 1)]
    assert "x2 Ann Lee" in lines[1] and "1 note" in lines[1] and "--csv and --html have all" in lines[2]


# ---------------------------------------------------------------- for a learning platform


def test_a_canvas_gradebook_comes_back_with_a_column_a_chapter(tmp_path: Path) -> None:
    """Its own five columns in their order, its line of points, and nothing of the marks that it held."""
    path = tmp_path / "canvas.csv"
    path.write_text(
        "Student,ID,SIS User ID,SIS Login ID,Section,Old quiz (55)\n    Points Possible,,,,,10\n"
        '"Lee, Ann",1001,S1,alee,Sec 1,7\n"Ng, Bo",1002,S2,bng,Sec 1,8\n"Student, Test",1003,,x,Sec 1,\n',
        encoding="utf-8-sig",
    )
    half = Submission("x", "graded", row().items[:1], (), NAME)
    rows = [("1001", row()), ("1002", half), ("1003", Submission("x", "missing", (), ("nothing",), NAME))]
    write_lms(tmp_path / "back.csv", rows, read_roster(path))
    assert list(csv.reader(io.StringIO((tmp_path / "back.csv").read_text(encoding="utf-8")))) == [
        ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", NAME],
        ["    Points Possible", "", "", "", "", "12"],
        ["Lee, Ann", "1001", "S1", "alee", "Sec 1", "4"],
        ["Ng, Bo", "1002", "S2", "bng", "Sec 1", "2"],
        ["Student, Test", "1003", "", "x", "Sec 1", ""],
    ]


def test_other_platforms_know_their_people_by_their_own_columns(tmp_path: Path) -> None:
    path = tmp_path / "moodle.csv"
    path.write_text("First name;Last name;ID number;Email address\nAnn;Lee;M1;lee@uni.edu\n", encoding="utf-16")
    unread = Submission("x", "unreadable", (), ("is an empty file",), "91_other")
    table = lms_rows([("M1", row()), ("M1", unread), ("stranger", row(passed=6))], read_roster(path))
    assert table == [
        ["First name", "Last name", "ID number", "Email address", NAME],
        ["Ann", "Lee", "M1", "lee@uni.edu", 4],
        ["stranger", "", "", "", 12],
    ]
    assert lms_rows([("ann", row())], []) == [["student", NAME], ["ann", 4]]


# ---------------------------------------------------------------- a large class


def test_three_hundred_learners_and_three_chapters_take_seconds(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Collecting, and every report, of 900 hand-ins that are not run. What it takes is far below these bounds."""
    learners, chapters = 300, ("01_objective", "03_gradient_accumulation", "04_mixed_precision")
    names = [f"u{1000 + n}" for n in range(learners)]
    (tmp_path / "material" / "solutions").mkdir(parents=True)
    for chapter in chapters:
        (tmp_path / "material" / "solutions" / f"{chapter}.ipynb").write_text("{}", encoding="utf-8")
    for name in names:
        (tmp_path / "hw" / name).mkdir(parents=True)
        for chapter in chapters:
            (tmp_path / "hw" / name / f"{chapter}.ipynb").write_text(
                book(name + 50_000 * "x", chapter), encoding="utf-8"
            )
    roster = [Learner(name, f"First{name} Last{name}", f"{name}@uni.edu") for name in names]
    start = time.process_time()
    with collect(tmp_path / "hw", roster, tmp_path / "material") as found:
        assert len(found.handins) == 900 and not found.ambiguous
        assert isinstance(found.handins[0], Found)
    collecting = time.process_time() - start
    rows = [(name, row(chapter, passed=index % 7)) for index, name in enumerate(names) for chapter in chapters]
    start = time.process_time()
    people = {one.id: one for one in roster}
    write_csv(tmp_path / "t.csv", rows, people)
    write_lms(tmp_path / "l.csv", rows, roster)
    page = write_gradebook(tmp_path / "book", rows, Course(), people)
    reporting = time.process_time() - start
    record_property("collecting", collecting)
    record_property("reporting", reporting)
    assert collecting < 30 and reporting < 60
    assert page.stat().st_size < 3 * 2**20 and len(list((tmp_path / "book" / "feedback").iterdir())) == learners
    print(f"collecting {collecting:.1f} s, reporting {reporting:.1f} s, page {page.stat().st_size / 2**20:.2f} MiB")
