"""The cases of a class: made once, whole or not at all, and again when anything about them has changed."""

import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course_lib.checks.core import Case
from course_lib.grading import cases as cases_room
from course_lib.grading import class_run
from course_lib.grading.assignment import Assignment
from course_lib.grading.cases import cases_file, lay_out
from course_lib.grading.class_run import Setting, run_class
from course_lib.grading.collect import Collected, Found
from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import TIERS
from course_lib.grading.journal import Journal
from course_lib.grading.judge import Judge, _made_once

CONTENT = {"double.json": b"{}", "double.safetensors": bytes(range(256)), "total.json": b""}
COUNTS = {"double": 3, "total": 1}


def maker(folder: Path, log: list[str], wait: float = 0.0) -> Callable[[], dict[str, int]]:
    def make() -> dict[str, int]:
        log.append("made")
        time.sleep(wait)
        for name, content in CONTENT.items():
            (folder / name).write_bytes(content)
        return COUNTS

    return make


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_it_is_made_once_also_for_several_at_once(tmp_path: Path) -> None:
    log: list[str] = []
    folders = [tmp_path / str(number) for number in range(4)]

    def work(folder: Path) -> None:
        assert lay_out(tmp_path / "cache" / "a.cases", folder, maker(folder, log, 0.3)) == COUNTS

    threads = [threading.Thread(target=work, args=(folder,)) for folder in folders]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert log == ["made"] and all(content(folder) == CONTENT for folder in folders)


def test_two_graders_of_a_class_have_one_lay_out(
    fixture_assignment: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[int] = []
    usual = Judge.lay_out

    def noted(self: Judge, seed: int, folder: Path) -> dict[str, int]:
        log.append(seed)
        return usual(self, seed, folder)

    monkeypatch.setattr(Judge, "lay_out", noted)
    found = []
    for seed, cache in ((5, tmp_path / "c"), (5, tmp_path / "c"), (6, tmp_path / "c"), (5, None)):
        with Grader(seed, tier=TIERS["plain"], cache=cache) as grader:
            folder, counts = grader.cases(fixture_assignment)
            found.append((content(folder), counts))
    assert log == [5, 6, 5], "for another seed again, and where there is no cache"
    assert found[0] == found[1] == found[3] and found[2] != found[0]
    assert set(found[0][1]) == {"double", "total", "pick", "largest"}


def test_what_makes_other_cases_makes_another_name(
    fixture_assignment: Assignment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [cases_file(tmp_path, fixture_assignment, 0), cases_file(tmp_path, fixture_assignment, 1)]
    other = tmp_path / "other.ipynb"
    other.write_bytes(fixture_assignment.path.read_bytes() + b" ")
    names.append(cases_file(tmp_path, replace(fixture_assignment, path=other), 0))
    monkeypatch.setattr(cases_room, "library_digest", lambda: "another")
    names.append(cases_file(tmp_path, fixture_assignment, 0))
    monkeypatch.setattr(cases_room, "versions", lambda: {"torch": "9.9"})
    names.append(cases_file(tmp_path, fixture_assignment, 0))
    assert len(set(names)) == len(names)


def flipped(path: Path) -> None:
    text = bytearray(path.read_bytes())
    text[-1] ^= 1
    path.write_bytes(text)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def a_link(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "a bit": flipped,
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-7]),
    "longer": lambda path: path.write_bytes(path.read_bytes() + b"x"),
    "empty": lambda path: path.write_bytes(b""),
    "other text": lambda path: path.write_bytes(b"\xff\n\n"),
    "a folder": a_folder,
    "a link": a_link,
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_cache_is_made_again(tmp_path: Path, damage: str) -> None:
    log: list[str] = []
    kept = tmp_path / "cache" / "a.cases"
    folder, again = tmp_path / "one", tmp_path / "two"
    lay_out(kept, folder, maker(folder, log))
    try:
        DAMAGES[damage](kept)
    except OSError:
        pytest.skip("no links here")
    assert lay_out(kept, again, maker(again, log)) == COUNTS and content(again) == CONTENT and len(log) == 2
    third = tmp_path / "three"
    lay_out(kept, third, maker(third, log))
    assert content(third) == CONTENT and (len(log) == 2 or damage == "a folder")


def test_a_name_that_leads_elsewhere_is_not_written(tmp_path: Path) -> None:
    kept, folder = tmp_path / "a.cases", tmp_path / "in" / "one"
    body = b'{"counts": {"a": 1}, "files": {"../out.txt": 3}}\nabc'
    kept.write_bytes(cases_room._digest(body) + b"\n" + body)
    assert lay_out(kept, folder, maker(folder, [])) == COUNTS
    assert content(folder) == CONTENT and not (tmp_path / "in" / "out.txt").exists()


def _killed(kept: Path, folder: Path, where: str) -> None:
    """Lay out, and end at once in the middle, as `kill -9` does."""
    make = maker(folder, [])

    def half() -> dict[str, int]:
        (folder / "double.json").write_bytes(b"{")
        os._exit(9)

    room: Any = os
    if where in ("fsync", "replace"):
        setattr(room, where, lambda *_: os._exit(9))
    lay_out(kept, folder, half if where == "make" else make)
    os._exit(9)


@pytest.mark.parametrize("where", ["make", "fsync", "replace", "after"])
def test_a_grader_that_is_killed_leaves_no_half_cache(tmp_path: Path, where: str) -> None:
    if "fork" not in multiprocessing.get_all_start_methods():
        pytest.skip("nothing is forked here")
    kept, log = tmp_path / "cache" / "a.cases", list[str]()
    process = multiprocessing.get_context("fork").Process(target=_killed, args=(kept, tmp_path / "one", where))
    process.start()
    process.join()
    assert process.exitcode == 9 and kept.exists() == (where == "after")
    folder = tmp_path / "two"
    assert lay_out(kept, folder, maker(folder, log)) == COUNTS and content(folder) == CONTENT
    assert log == ([] if where == "after" else ["made"])
    assert sorted(path.name for path in kept.parent.iterdir()) == ["a.cases", "a.lock"], "nothing is left beside it"


def test_a_cache_that_cannot_be_written_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    folder = tmp_path / "one"
    assert lay_out(tmp_path / "file" / "a.cases", folder, maker(folder, [])) == COUNTS and content(folder) == CONTENT


def test_no_cache_is_taken_from_where_hand_ins_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Path | None] = []

    def graded(todo: Any, setting: Setting, *_: Any) -> Iterator[Any]:
        seen.append(setting.cache)
        yield from ()

    monkeypatch.setattr(class_run, "graded", graded)
    monkeypatch.setattr(class_run, "_prepare", lambda *_: ([], []))

    def used(results: str, *places: str) -> bool:
        found = Collected([Found("x", "90_fixture", tmp_path / place, "name") for place in places])
        with Journal(tmp_path / results) as journal:
            assert run_class(found, journal, Setting(tier=TIERS["plain"])) == []
        assert seen[-1] is None or seen[-1] == (tmp_path / results).resolve() / "cases"
        return seen[-1] is not None

    assert used("results", "hw/ann.ipynb", "hw/bob/03.ipynb")
    assert not used("hw/results", "hw/ann.ipynb")
    assert not used("hw/deep/results", "hw/ann.ipynb", "other/bob.ipynb")
    assert not used("hw", "hw/cases/03.ipynb", "other/bob.ipynb")


def test_a_judge_makes_its_cases_once_and_gives_copies() -> None:
    log: list[int] = []

    def cases(seed: int) -> list[Case]:
        log.append(seed)
        return [{"name": "one", "values": [seed]}]

    copies = _made_once(cases)
    copies(1)[0]["values"].append("spoilt")
    assert copies(1) == [{"name": "one", "values": [1]}] and copies(2)[0]["values"] == [2] and log == [1, 2]
