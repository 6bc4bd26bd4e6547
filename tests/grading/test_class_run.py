"""A class graded: several at once, resumed, killed, regraded; one bad hand-in is one row."""

import _thread
import csv
import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import psutil
import pytest
from grading_fixture import answer
from hypothesis import given, settings
from hypothesis import strategies as st
from nbformat.v4 import new_code_cell, new_notebook

from course_lib.errors import CourseError
from course_lib.grading import class_run, team
from course_lib.grading import journal as journal_room
from course_lib.grading.class_cli import ProgressBar, results_folder
from course_lib.grading.class_run import Setting, run_class
from course_lib.grading.cli import grade_main
from course_lib.grading.collect import Collected, collect
from course_lib.grading.grade import GradedItem, Observer, Submission
from course_lib.grading.isolation.tiers import TIERS
from course_lib.grading.journal import Journal
from course_lib.grading.records import record_path
from course_lib.grading.run import CellResult, Ran

NAME = "90_fixture"
QUICK = Setting(jobs=2, tier=TIERS["plain"])


def note(word: str) -> None:
    with Fake.log.open("a", encoding="utf-8") as file:
        file.write(word + "\n")


def calls() -> list[str]:
    """The hand-ins that were graded since this was last asked, sorted."""
    found = Fake.log.read_text(encoding="utf-8").split() if Fake.log.exists() else []
    Fake.log.unlink(missing_ok=True)
    return sorted(one for one in found if one != "closed")


class Fake:
    """A grader without a kernel; it notes its calls in a file, for it runs in another process."""

    log = Path()
    points: ClassVar[dict[str, float]] = {}

    def __init__(self, *_: Any, observer: Observer, **__: Any) -> None:
        self.observer = observer

    def __enter__(self) -> "Fake":
        return self

    def __exit__(self, *_: Any) -> None:
        note("closed")

    def grade(self, name: str, path: Path) -> Submission:
        note(name)
        text = path.read_text(encoding="utf-8")
        if "end the grader" in text:
            os._exit(3)
        if "crash the grader" in text:
            raise ZeroDivisionError("oops")
        if "slow" in text:
            time.sleep(0.3)
        cell = new_code_cell("x = 1", id="one")
        ran = CellResult("one", "answer", "double", "passed", None, "", 0.5, printed="p" * 5000)
        self.observer(new_notebook(cells=[cell]), Ran({"one": ran}, path, 1.0))
        score = Fake.points.get(name, 1.0)
        items = (
            GradedItem("double", "90.1", "The double", "passed", score, 1, "fine"),
            GradedItem("total", "90.2", "The total", "kernel_died" if "dies" in text else "passed", 2, 2, "fine"),
        )
        status = "graded_with_problems" if "dies" in text else "graded"
        return Submission(name, status, items, (f"{path}: a flag",), NAME)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, material: Path, tmp_path: Path) -> type[Fake]:
    monkeypatch.setattr(team, "Grader", Fake)
    monkeypatch.setattr(journal_room, "library_digest", lambda: "the same while a test runs")
    Fake.log, Fake.points = tmp_path / "calls.txt", {}
    return Fake


@pytest.fixture
def handins(tmp_path: Path, released: Any) -> Callable[..., Path]:
    """Write hand-ins that differ by a comment: {learner: comment}."""

    def write(notes: dict[str, str]) -> Path:
        folder = tmp_path / "hw"
        folder.mkdir(exist_ok=True)
        for learner, note in notes.items():
            answer(released, "double", f"# {note}")
            (folder / f"{learner}.ipynb").write_text(json.dumps(released), encoding="utf-8")
        return folder

    return write


def graded(folder: Path, results: Path, setting: Setting = QUICK, **more: Any) -> dict[str, Submission]:
    with collect(folder) as found, Journal(results) as journal:
        return dict(run_class(found, journal, setting, **more))


# ---------------------------------------------------------------- rows


def test_one_bad_hand_in_is_one_row(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    folder = handins({"ann": "a", "bob": "crash the grader", "cy": "dies", "dee": "d", "fay": "end the grader"})
    (folder / "eve.ipynb").write_bytes(b"")
    threads = len(threading.enumerate())
    rows = graded(folder, tmp_path / "out")
    assert {name: one.status for name, one in rows.items()} == {
        "ann": "graded",
        "bob": "unreadable",
        "cy": "graded_with_problems",
        "dee": "graded",
        "eve": "unreadable",
        "fay": "unreadable",
    }
    assert "ended the grader (exit 3)" in rows["fay"].flags[0]
    assert "ZeroDivisionError: oops" in rows["bob"].flags[0] and rows["eve"].flags == ("eve.ipynb: is an empty file",)
    assert rows["ann"].flags == ("ann.ipynb: a flag",) and list(rows) == sorted(rows)
    (run,) = json.loads(record_path(tmp_path / "out", "ann", NAME).read_text(encoding="utf-8"))["runs"]
    cell = {"cell": "one", "role": "answer", "item": "double", "outcome": "passed", "seconds": 0.5}
    assert run == {"seconds": 1.0, "cells": [{**cell, "printed": "p" * 4000, "source": "x = 1"}]}
    assert not multiprocessing.active_children() and len(threading.enumerate()) == threads


def test_what_was_graded_is_not_graded_again(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    folder, out = handins({"ann": "a", "bob": "crash the grader", "cy": "c"}), tmp_path / "out"
    first = graded(folder, out)
    assert calls() == ["ann", "bob", "cy"]
    second = graded(folder, out)
    assert calls() == ["bob"] and second == first  # ours failed on it: it is tried again
    handins({"bob": "mended", "cy": "another"})
    graded(folder, out)
    assert calls() == ["bob", "cy"]
    for other in (replace(QUICK, seed=5), replace(QUICK, timeout=3), replace(QUICK, tier=TIERS["process"])):
        graded(folder, out, other)
        assert calls() == ["ann", "bob", "cy"]


def test_another_library_or_other_exercises_make_it_new(
    fake: type[Fake], handins: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = handins({"ann": "a"}), tmp_path / "out"
    graded(folder, out)
    assert calls() == ["ann"]
    for name in ("library_digest", "versions"):
        monkeypatch.setattr(f"course_lib.grading.journal.{name}", lambda name=name: {"of": name})
        graded(folder, out)
        assert calls() == ["ann"]
    monkeypatch.setattr(class_run, "assignment_digest", lambda one: "another")
    graded(folder, out)
    assert calls() == ["ann"]


def test_another_release_is_refused_in_a_line(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    folder = handins({"ann": "a", "bob": "b"})
    path = folder / "ann.ipynb"
    notebook = json.loads(path.read_text(encoding="utf-8"))
    notebook["metadata"]["course"]["hash"] = "0123456789abcdef"
    path.write_text(json.dumps(notebook), encoding="utf-8")
    rows = graded(folder, tmp_path / "out")
    assert rows["ann"].status == "unreadable" and "another release" in rows["ann"].flags[0] and calls() == ["bob"]
    rows = graded(folder, tmp_path / "out", replace(QUICK, any_release=True))
    assert rows["ann"].status == "graded"


def test_no_grader_at_all_is_one_line(
    handins: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, material: Path
) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise CourseError("no worker could be started")

    monkeypatch.setattr(team, "Grader", broken)
    with pytest.raises(CourseError, match="no worker"):
        graded(handins({"ann": "a", "bob": "b"}), tmp_path / "out")


def test_ctrl_c_keeps_what_is_done(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    folder, out = handins({f"l{n}": f"slow {n}" for n in range(6)}), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        graded(folder, out, tell=lambda done, total, who: _thread.interrupt_main() if done == 1 else None)
    assert not multiprocessing.active_children() and Fake.log.read_text(encoding="utf-8").count("closed") == 2
    before = calls()
    assert len(before) < 6
    assert len(graded(folder, out)) == 6 and calls() == sorted({f"l{n}" for n in range(6)} - set(before))


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(CourseError, match="another run"), Journal(tmp_path):
        pass


# ---------------------------------------------------------------- killed

KILLED = """
    import sys, time
    from pathlib import Path
    sys.path[:0] = [{tests!r}]
    import test_class_run as t
    from course_lib.grading import assignment, journal, team
    assignment.material_dir = lambda: Path({material!r})
    team.Grader = t.Fake
    journal.library_digest = lambda: "the same while a test runs"
    t.Fake.log = Path({log!r})
    t.graded(Path({folder!r}), Path({out!r}), tell=lambda *facts: print("done", *facts, flush=True))
"""


@pytest.mark.slow
def test_kill_at_any_moment_loses_only_what_is_in_progress(
    fake: type[Fake], handins: Callable[..., Path], tmp_path: Path, material: Path
) -> None:
    folder, out = handins({f"l{n}": f"slow {n}" for n in range(8)}), tmp_path / "out"
    places = {"tests": str(Path(__file__).parent), "material": str(material), "folder": str(folder), "out": str(out)}
    places["log"] = str(fake.log)
    script = textwrap.dedent(KILLED).format(**places)
    for wanted in (2, 5):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
            assert run.stdout is not None
            line = next(line for line in run.stdout if line.startswith("done") and int(line.split()[1]) >= wanted)
            os.kill(run.pid, signal.SIGKILL)
        done = int(line.split()[1])
        whole = [json.loads(one) for one in (out / "journal.jsonl").read_text(encoding="utf-8").splitlines() if one]
        assert done <= len(whole) <= done + 1
        late = time.monotonic() + 20
        while [one for one in psutil.process_iter(["cmdline"]) if script in (one.info["cmdline"] or [])]:
            assert time.monotonic() < late, "graders outlive their parent"
            time.sleep(0.1)
    calls()
    (out / "journal.jsonl").write_bytes((out / "journal.jsonl").read_bytes()[:-9])
    assert len(graded(folder, out)) == 8 and len(calls()) == 8 - len(whole) + 1
    assert len(graded(folder, out)) == 8 and calls() == []


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_damaged_journal_costs_only_its_damaged_lines(data: st.DataObject) -> None:
    one = Submission("ann", "graded", (GradedItem("double", "90.1", "é", "passed", 1, 1, "m"),), ("f",), NAME)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.jsonl"
        with Journal(Path(folder)) as journal:
            for n in range(4):
                journal.add(f"k{n}", f"l{n}", "d", one)
        content = bytearray(path.read_bytes())
        if data.draw(st.booleans()):
            cut = data.draw(st.integers(0, len(content)))
            content = content[:cut]
            whole = content.count(b"\n")
        else:
            at = data.draw(st.integers(0, len(content) - 1))
            content[at] = data.draw(st.sampled_from([0, 10, 34, 92, 123, 255]))
            whole = 2
        path.write_bytes(bytes(content))
        for turn in range(2):
            with Journal(Path(folder)) as journal:
                back = [journal.found(f"k{n}") for n in range(4)]
                journal.add(f"new{turn}", "new", "d", one)
        assert sum(found is not None for found in back) >= whole
        with Journal(Path(folder)) as journal:
            assert journal.found("new0") == one == journal.found("new1")


# ---------------------------------------------------------------- the command

ROSTER = "id;name;email\nann;=Ann;a@x\nbob;Bob;b@x\ncy;Cy;c@x\ndee;Dee;d@x\n"


@pytest.mark.slow
def test_the_command_for_a_class(
    material: Path, solved: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Behind real walls: a right hand-in, one that ends its kernel, an empty file, and one who handed in nothing."""
    folder, out = tmp_path / "hw", tmp_path / "out"
    folder.mkdir()
    (folder / "ann.ipynb").write_text(json.dumps(solved), encoding="utf-8")
    answer(solved, "double", "def double(values):\n    return [value + 2 for value in values]")
    answer(solved, "total", "print('hello')\nimport os\nos._exit(3)")
    (folder / "bob.ipynb").write_text(json.dumps(solved), encoding="utf-8")
    (folder / "cy.ipynb").write_bytes(b"{")
    (tmp_path / "class.csv").write_text(ROSTER, encoding="utf-8")
    words = [str(folder), "--roster", str(tmp_path / "class.csv"), "--jobs", "2", "--results", str(out)]
    words += ["--csv", str(tmp_path / "t.csv"), "--json", str(tmp_path / "t.json")]
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    rooms = set(Path(tempfile.gettempdir()).glob("course-*"))
    assert grade_main(words) == 1
    assert {one.pid for one in psutil.Process().children(recursive=True)} <= before
    assert not {one for one in Path(tempfile.gettempdir()).glob("course-handins-*")} - rooms
    text = capsys.readouterr().out
    assert "1 graded; 1 graded_with_problems; 1 unreadable; 1 missing" in text and "isolation: " in text
    table = list(csv.DictReader(io.StringIO((tmp_path / "t.csv").read_text(encoding="utf-8"))))
    found = {row["student"]: row for row in table}
    assert [found[name]["status"] for name in ("ann", "bob", "cy", "dee")] == [
        "graded",
        "graded_with_problems",
        "unreadable",
        "missing",
    ]
    assert float(found["ann"]["score"]) == 10 and float(found["bob"]["score"]) == 7
    assert float(found["bob"]["double"]) == 0 and not found["ann"]["name"].startswith("=")
    result = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert [(one["name"], one["assignment"], one["score"]) for one in result["submissions"]][:2] == [
        ("ann", NAME, 10),
        ("bob", NAME, 7),
    ]
    record = json.loads(record_path(out, "bob", NAME).read_text(encoding="utf-8"))
    cells = [cell for run in record["runs"] for cell in run["cells"]]
    assert any("os._exit(3)" in cell["source"] for cell in cells)
    assert record["versions"]["course"] and record["submission"]["seed"] and record["when"]

    start = time.monotonic()
    (out / "overrides.csv").write_text("student,item,points,reason\nBOB,90.1,0.5,half\nzed,x,1,\n", encoding="utf-8")
    assert grade_main(words) == 1
    assert time.monotonic() - start < 20
    text = capsys.readouterr().out
    assert "there is no hand-in of 'zed'" in text
    result = json.loads((tmp_path / "t.json").read_text(encoding="utf-8"))
    assert result["submissions"][1]["score"] == 7.5
    assert "double: 0.5 points by hand in place of 0: half" in result["submissions"][1]["flags"]


def test_a_regrade_is_shown_before_it_is_written(
    fake: type[Fake], handins: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, out, table = handins({"ann": "a", "bob": "b", "cy": "c"}), tmp_path / "out", tmp_path / "t.json"
    words = [str(folder), "--results", str(out), "--json", str(table)]

    def scores() -> dict[str, float]:
        return {one["name"]: one["score"] for one in json.loads(table.read_text(encoding="utf-8"))["submissions"]}

    with pytest.raises(CourseError, match="leave --regrade out"):
        grade_main([*words, "--regrade", "90.1"])
    assert grade_main(words) == 0 and scores() == {"ann": 3, "bob": 3, "cy": 3}
    (out / "overrides.csv").write_text("student,item,points,reason\ncy,double,4,kind\n", encoding="utf-8")
    fake.points = {"bob": 0.0, "cy": 0.5}
    capsys.readouterr()
    journal = (out / "journal.jsonl").read_bytes()
    assert grade_main([*words, "--regrade", "90.1"]) == 1
    text = capsys.readouterr().out
    assert "2 of 3 change" in text and "bob: 1 -> 0 of 1" in text and "cy: 1 -> 0.5 of 1 (4 set by hand stays)" in text
    assert "nothing was written" in text and (out / "journal.jsonl").read_bytes() == journal
    grade_main([*words, "--regrade", "double", "--yes"])
    assert scores() == {"ann": 3, "bob": 2, "cy": 6}
    calls()
    grade_main(words)
    assert scores() == {"ann": 3, "bob": 2, "cy": 6} and calls() == []


def test_what_cannot_be_is_said_in_a_line(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    folder = handins({"ann": "a"})
    for words, what in [
        ([str(folder), "--jobs", "0"], "1 or more"),
        ([str(folder), "--roster", str(tmp_path / "no.csv")], "cannot be opened"),
        ([str(tmp_path / "no"), "--jobs", "1"], "no such file"),
        ([str(folder), "--regrade", "nothing"], "no exercise"),
    ]:
        with pytest.raises(CourseError, match=what):
            grade_main(words)
    with pytest.raises(SystemExit):
        grade_main(["--jobs", "1"])


def test_results_lie_by_name_and_place(tmp_path: Path) -> None:
    one, two = (results_folder(tmp_path, [str(tmp_path / part / "hw 1")]) for part in "ab")
    assert one != two and one.parent == tmp_path / "grading" and one.name.startswith("hw_1-")


def test_the_bar_tells_the_time_left() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    bar = ProgressBar(out, start=time.monotonic() - 10)
    bar(50, 100, "")
    bar(51, 100, "an\x1bn")
    assert "] 51/100, 8 min left  an?n" in out.getvalue()
    bar.close()
    silent = io.StringIO()
    quiet = ProgressBar(silent, every=0.0)
    quiet(1, 2, "ann")
    assert silent.getvalue().startswith("1 of 2 graded")


def test_missing_ones_are_rows(fake: type[Fake], handins: Callable[..., Path], tmp_path: Path) -> None:
    handins({"ann": "a"})
    with Journal(tmp_path / "out") as journal:
        rows = run_class(Collected(missing=[("zoe", NAME)]), journal, QUICK)
    assert [(who, one.status, one.assignment) for who, one in rows] == [("zoe", "missing", NAME)]
