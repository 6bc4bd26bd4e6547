"""What a learner has done is kept whole whatever happens to its file, and the map of the course is drawn from it."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course_lib import cli
from course_lib.errors import CourseError
from course_lib.grading import cli as grading_cli
from course_lib.grading import grade as grade_room
from course_lib.grading import progress as progress_room
from course_lib.grading.assignment import Assignment
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.progress import Done, Progress, is_own, read_progress, record
from course_lib.grading.progress_cli import as_json, as_lines, course_map, next_place, progress_main
from course_lib.grading.syllabus import Row

ROOT = Path(__file__).resolve().parents[2]


def graded(status: str, name: str = "double", score: float | None = None, most: float = 1.0) -> Submission:
    points = (most if status == "passed" else 0.0) if score is None else score
    item = GradedItem(name, "90.1", "The double", status, points, most, "")
    return Submission("x", "graded", (item,), assignment="90_fixture")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "work" / "progress.json"


def test_what_was_passed_once_stays_passed(path: Path) -> None:
    record([graded("not_attempted")], path, "2026-01-01")
    assert read_progress(path).exercises == {"double": Done("not_attempted", 0.0, 1.0, "", 0)}
    record([graded("failed")], path, "2026-01-02")
    record([graded("passed")], path, "2026-01-03")
    record([graded("timeout")], path, "2026-01-04")
    record([graded("passed", "total", most=2)], path, "2026-01-05")
    record([graded("missing")], path, "2026-01-06")
    assert read_progress(path).exercises == {
        "double": Done("missing", 1.0, 1.0, "2026-01-03", 3),
        "total": Done("passed", 2.0, 2.0, "2026-01-05", 1),
    }
    assert sorted(os.listdir(path.parent)) == ["progress.json"], "nothing is left beside it"


def test_a_hand_in_that_was_not_graded_changes_nothing(path: Path) -> None:
    assert record([Submission("x", "unreadable"), Submission("y", "missing")], path) == Progress()
    assert not path.exists()
    record([graded("passed")], path)
    before = path.read_bytes()
    record([Submission("x", "unreadable")], path)
    assert path.read_bytes() == before


def test_what_the_file_holds_beside_it_is_kept(path: Path) -> None:
    record([graded("passed")], path)
    document = json.loads(path.read_text(encoding="utf-8"))
    other = {"status": "passed", "best": 4, "max_score": 4, "passed": "2025-12-31"}
    document["exercises"]["of-an-older-release"] = other
    path.write_text(json.dumps(document | {"note": "mine"}), encoding="utf-8")
    record([graded("passed", "total")], path)
    after = json.loads(path.read_text(encoding="utf-8"))
    assert after["note"] == "mine" and after["exercises"]["of-an-older-release"]["best"] == 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 40,
        b"{",
        b"[]",
        b"\xff\xfe\x00",
        b'{"version": 1}',
        b'{"version": "1", "exercises": {}}',
        b'{"version": 1, "exercises": {"a": {"status": "passed", "best": NaN, "max_score": 1}}}',
        b'{"version": 1, "exercises": {"a": {"status": "won", "best": 1, "max_score": 1}}}',
        b"[" * 5000,
    ],
)
def test_a_damaged_file_is_kept_aside_and_never_ends_a_grading(path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(CourseError, match="damaged"):
        read_progress(path)
    record([graded("passed")], path)
    assert read_progress(path).exercises["double"].done
    assert path.with_name("progress.json.damaged-1").read_bytes() == content
    path.write_bytes(b"again")
    record([graded("passed")], path)
    assert path.with_name("progress.json.damaged-2").read_bytes() == b"again"
    assert path.with_name("progress.json.damaged-1").read_bytes() == content


def test_of_a_damaged_file_the_whole_entries_go_on(path: Path) -> None:
    record([graded("passed", "total", most=2)], path, "2026-01-03")
    document = json.loads(path.read_text(encoding="utf-8"))
    document["exercises"]["double"] = {"status": "passed", "best": "many"}
    path.write_text(json.dumps(document), encoding="utf-8")
    after = record([graded("failed", "pick")], path)
    assert after.exercises["total"] == Done("passed", 2.0, 2.0, "2026-01-03", 1) and "double" not in after.exercises


def test_a_file_of_a_newer_course_is_left_alone(path: Path) -> None:
    path.parent.mkdir()
    path.write_text('{"version": 2, "exercises": []}', encoding="utf-8")
    with pytest.raises(CourseError, match="newer version"):
        record([graded("passed")], path)
    assert os.listdir(path.parent) == ["progress.json"]


def test_a_write_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record([graded("passed")], path)
    before = path.read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(CourseError, match="No space left"):
        record([graded("passed", "total")], path)
    assert path.read_bytes() == before and os.listdir(path.parent) == ["progress.json"]


WRITE = """
import sys
from pathlib import Path
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.progress import record
for number in range(int(sys.argv[3])):
    item = GradedItem(f"{sys.argv[2]}{number}", "90.1", "", "passed", 1, 1, "")
    record([Submission("x", "graded", (item,))], Path(sys.argv[1]))
    print(number, flush=True)
"""


def writer(path: Path, name: str, count: int) -> "subprocess.Popen[str]":
    words = [sys.executable, "-c", WRITE, str(path), name, str(count)]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, encoding="utf-8")


def test_gradings_at_once_lose_nothing(path: Path) -> None:
    processes = [writer(path, name, 25) for name in ("a", "b")]
    assert [process.communicate(timeout=120)[0].count("\n") for process in processes] == [25, 25]
    assert len(read_progress(path).exercises) == 50


def test_a_killed_grading_loses_nothing_that_was_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = writer(path, "a", 100_000)
    assert process.stdout is not None
    seen = 0
    while seen < 20:
        seen = int(process.stdout.readline())
    process.kill()
    rest = process.communicate()[0].split()
    written = int(rest[-1]) if rest else seen
    assert len(read_progress(path).exercises) >= written + 1
    monkeypatch.setattr(progress_room, "STALE", 0.05)
    time.sleep(0.1)
    record([graded("passed")], path)
    assert read_progress(path).exercises["double"].done


def test_a_lock_that_nobody_holds_goes_and_a_held_one_is_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    lock = path.with_name(".progress.json.lock")
    lock.write_bytes(b"")
    old = time.time() - 3600
    os.utime(lock, (old, old))
    record([graded("passed")], path)
    assert not lock.exists()
    lock.write_bytes(b"")
    with (
        pytest.raises(CourseError, match=r"delete \.progress\.json\.lock"),
        progress_room._alone(path, wait=0.1),
    ):
        pass
    assert lock.exists()


def test_own_notebooks_lie_in_the_work_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_WORK", str(tmp_path / "work"))
    assert is_own(tmp_path / "work" / "exercises" / "03.ipynb")
    assert not is_own(tmp_path / "work" / ".." / "class" / "03.ipynb") and not is_own(tmp_path / "workshop.ipynb")


# ---------------------------------------------------------------- the map


def places(fixture_assignment: Assignment, **done: Done) -> Any:
    later = Assignment("91_later", fixture_assignment.path, fixture_assignment.notebook, ())
    rows = [
        Row(0, "Start here", 35, None),
        Row(90, "The fixture", 60, fixture_assignment),
        Row(91, "What comes later", 50, later),
    ]
    return course_map(rows, Progress(done))


def test_the_map_counts_what_is_done_and_what_is_left(fixture_assignment: Assignment) -> None:
    """Reading counts as left until an exercise of the chapter was tried, or a later one passed; so does chapter 0."""
    first, fixture, later = places(fixture_assignment)
    assert (first.minutes_left, fixture.minutes_left, later.minutes_left) == (35, 64, 50)
    wrong, right = Done("failed", 0, 1), Done("passed", 2, 2, "2026-01-01")
    first, fixture, _ = places(fixture_assignment, double=wrong)
    assert (first.minutes_left, fixture.minutes_left, fixture.done, fixture.points) == (35, 4, 0, 0)
    first, fixture, _ = places(fixture_assignment, double=wrong, total=right)
    assert (first.minutes_left, fixture.minutes_left, fixture.done, fixture.points) == (0, 3, 1, 2)
    _, fixture, _ = places(fixture_assignment, total=Done("passed", 9, 9, "2026-01-01"))
    assert fixture.points == 2, "of an older release with more points no more than it has now"


def test_what_comes_next(fixture_assignment: Assignment) -> None:
    def ahead(**done: Done) -> tuple[int, str | None]:
        found = next_place(places(fixture_assignment, **done))
        assert found is not None
        return found[0].row.number, found[1].id if found[1] else None

    passed = Done("passed", 1, 1, "2026-01-01")
    item = replace(fixture_assignment.items[0], id="other", position="91.1")
    other = replace(fixture_assignment, name="91_other", items=(item,))
    assert ahead() == (0, None)
    assert ahead(double=Done("failed", 0, 1)) == (90, "double")
    assert ahead(double=passed) == (90, "total")
    assert ahead(double=passed, pick=Done("failed", 0, 3)) == (90, "pick"), "what was tried before what was not"
    assert ahead(double=passed, total=passed, pick=passed, largest=passed) == (91, None)
    skipped = course_map(
        [Row(90, "One", 60, fixture_assignment), Row(91, "Two", 5, other), Row(92, "Three", 5, None)],
        Progress({"other": passed}),
    )
    assert [one.read for one in skipped] == [True, True, False]
    found = next_place(skipped)
    assert found is not None and (found[0].row.number, found[1]) == (92, None), "on, not back to what was passed over"
    found = next_place(skipped[:2])
    assert found is not None and found[1] is not None and found[1].id == "double", "in the end, back"


def test_the_map_in_the_terminal(fixture_assignment: Assignment) -> None:
    passed, lost = Done("passed", 1, 1, "2026-01-01"), Done("timeout", 2, 2, "2026-01-01")
    lines = as_lines(places(fixture_assignment, double=passed, total=lost, pick=Done("failed", 0, 3)))
    text = "\n".join(lines)
    assert lines[0] == "2 of 4 exercises, 3 of 10 points, about 52 minutes left"
    assert "■■□□" in text and "2 of 4" in text and "3 of 10 points" in text and "2 min left" in text
    assert "[✓] 90.1  The double (1 point, 1 min)" in text
    assert "[✓] 90.2  The total (2 points, 1 min; passed before, last time too long)" in text
    assert "[ ] 90.3  The pick (3 points, 1 min; last time wrong)" in text
    assert "next: 90.3 The pick; a hint: course hint 90.3" in text and "or read on: chapter 91" in text
    assert "course grade 90 marks it here; a check in the notebook does not" in text
    assert max(map(len, lines)) <= 80
    assert "\n".join(as_lines(places(fixture_assignment, double=passed), fancy=False)).isascii()


def test_a_course_that_is_done(fixture_assignment: Assignment) -> None:
    names = ("double", "total", "pick", "largest")
    done = {name: Done("passed", 9, 9, "2026-01-01") for name in names}
    lines = as_lines(places(fixture_assignment, **done)[:2])
    assert lines[0] == "4 of 4 exercises, 10 of 10 points, all done" and "nothing is left" in lines[-1]


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COURSE_WORK", str(tmp_path))
    return tmp_path


def test_the_command(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert progress_main([]) == 0
    assert "nothing has been graded yet" in capsys.readouterr().out
    record([graded("passed")])
    assert (work / "progress.json").exists()
    assert progress_main(["90"]) == 0
    out = capsys.readouterr().out
    assert "1 of 4 exercises" in out and "90.4" in out and "nothing has been graded" not in out
    assert progress_main(["--json"]) == 0
    chapters = json.loads(capsys.readouterr().out)["chapters"]
    exercises = next(one for one in chapters if one["chapter"] == 90)["exercises"]
    assert [one["done"] for one in exercises] == [True, False, False, False]


def test_the_command_says_in_a_line_what_is_wrong(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["progress", "77"]) == 2 and "there is no chapter 77" in capsys.readouterr().err
    (work / "progress.json").write_text("{", encoding="utf-8")
    assert cli.main(["progress"]) == 2 and "damaged" in capsys.readouterr().err


class MadeUp:
    """A Grader whose verdicts are made up: the chapter passed."""

    def __init__(self, *_: Any) -> None:
        pass

    def __enter__(self) -> "MadeUp":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def grade(self, name: str, path: Path) -> Submission:
        return graded("passed") if path.exists() else Submission(name, "missing", flags=(f"{path}: is not there",))


def test_grading_ones_own_chapter_is_progress_and_a_page(
    work: Path, material: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for room in (grade_room, grading_cli):
        monkeypatch.setattr(room, "work_dir", lambda: work)
    monkeypatch.setattr(grade_room, "Grader", MadeUp)
    strange = work.parent / f"{work.name}-elsewhere"
    for folder in (work / "exercises", strange):
        folder.mkdir()
        (folder / "90_fixture.ipynb").write_text("{}", encoding="utf-8")
    assert grading_cli.grade_main([str(strange / "90_fixture.ipynb")]) == 0
    assert read_progress() == Progress(), "somebody else's notebook is no progress of mine"
    out = work / "out"
    assert grading_cli.grade_main(["90", "--html", str(out), "--gradescope", str(out / "r.json")]) == 0
    assert read_progress().exercises["double"].done
    assert "Your exercises" in (out / "index.html").read_text(encoding="utf-8")
    assert json.loads((out / "r.json").read_text(encoding="utf-8"))["score"] == 1
    printed = capsys.readouterr().out
    assert f"wrote {out / 'index.html'}" in printed and f"wrote {out / 'r.json'}" in printed
    (work / "progress.json").write_text('{"version": 9, "exercises": {}}', encoding="utf-8")
    assert grading_cli.grade_main(["90"]) == 0, "progress that cannot be kept ends no grading"
    assert "note: " in capsys.readouterr().out


def test_json_has_every_chapter(fixture_assignment: Assignment) -> None:
    found: Any = as_json(places(fixture_assignment, double=Done("passed", 1, 1, "2026-01-01")))
    assert [one["chapter"] for one in found["chapters"]] == [0, 90, 91]
