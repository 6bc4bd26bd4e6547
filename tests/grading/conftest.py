"""An assignment of the tests' own, in a temporary folder, its checks on PYTHONPATH."""

import contextlib
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from grading_fixture import ANSWERS, CHECKS, answer, right, solution

from course_lib.grading import assignment as assignment_room
from course_lib.grading import bundle, cli, grade, release, syllabus
from course_lib.grading.assignment import Assignment, load_assignment
from course_lib.grading.grade import Grader, Submission
from course_lib.grading.isolation.tiers import TIERS, best_tier, works
from course_lib.grading.isolation.warm import Limits
from course_lib.grading.release import write_release

SMALL = Limits(file=8 * 2**20, disk=24 * 2**20, resident=2**30, processes=24, memory=6 * 2**30)
EVERY_TIER = ["best", *(pytest.param(name, marks=pytest.mark.stress) for name in TIERS)]
"""The best tier of this machine in every run; the others with the large counts, with a sample of them in `test`."""


@pytest.fixture(scope="session")
def material(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with solutions/ and exercises/ of the fixture; its checks can be imported, also by child processes."""
    folder = tmp_path_factory.mktemp("material")
    (folder / "fixture_checks.py").write_text(CHECKS, encoding="utf-8")
    (folder / "solutions").mkdir()
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(str(folder))
    patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH")])))
    for module in (assignment_room, release, bundle, syllabus, cli):
        patch.setattr(module, "material_dir", lambda: folder)
    for module in (grade, cli):
        patch.setattr(module, "work_dir", lambda: folder / "work")
    nbformat.write(solution(), folder / "solutions" / "90_fixture.ipynb")
    write_release(folder)
    yield folder
    patch.undo()
    sys.modules.pop("fixture_checks", None)


@pytest.fixture(scope="session")
def fixture_assignment(material: Path) -> Assignment:
    return load_assignment(material / "solutions" / "90_fixture.ipynb")


@pytest.fixture
def released(material: Path) -> Any:
    """The exercise notebook, to be edited."""
    return nbformat.read(material / "exercises" / "90_fixture.ipynb", as_version=4)


@pytest.fixture
def solved(material: Path) -> Any:
    """The released notebook with every answer right, as a learner hands it in."""
    notebook = nbformat.read(material / "exercises" / "90_fixture.ipynb", as_version=4)
    for name in ANSWERS:
        answer(notebook, name, right(name))
    return notebook


@pytest.fixture
def hand_in(tmp_path: Path) -> Callable[[Any], Path]:
    """Write a notebook as a hand-in and say where it is."""

    def write(notebook: Any, name: str = "90_fixture.ipynb") -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(notebook), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module", params=EVERY_TIER)
def tier_grader(request: pytest.FixtureRequest, fixture_assignment: Assignment) -> Iterator[Grader]:
    """One grader a module and tier, with limits that are soon reached. When it has gone, nothing is left of it."""
    best = best_tier().name
    name = best if request.param == "best" else request.param
    if request.param == best:
        pytest.skip("this is the best tier, which ran already")
    if not works(name):
        pytest.skip(f"{name} does not work on this machine")
    threads, processes = set(threading.enumerate()), set(below())
    with tempfile.TemporaryDirectory(prefix="t-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", folder)
        patch.setenv("TMPDIR", folder)
        with Grader(tier=TIERS[name], limits=SMALL, timeout=20) as grader:
            yield grader
        left = os.listdir(folder)
    soon(lambda: set(threading.enumerate()) <= threads and set(below()) <= processes)
    assert left == []


@pytest.fixture
def graded(
    tier_grader: Grader, hand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Submission]]:
    """Grade a notebook. After the case the grader has as many processes, threads and folders as before."""
    threads, processes, folders = set(threading.enumerate()), len(below()), os.listdir(tempfile.gettempdir())

    def grade(notebook: Any, timeout: float = 20) -> Submission:
        monkeypatch.setattr(tier_grader, "timeout", timeout)
        path = hand_in(notebook)
        return tier_grader.grade(str(path), path)

    yield grade
    soon(lambda: len(below()) <= processes)
    soon(lambda: len(set(threading.enumerate()) - threads) <= 2)  # who listens to a worker or judge that is new
    assert len(os.listdir(tempfile.gettempdir())) <= len(folders)


def below() -> list[psutil.Process]:
    """All processes below this one, but for judges: one is started when its chapter is first met."""
    found = []
    for one in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if one.status() != psutil.STATUS_ZOMBIE and "course_lib.grading.judge" not in one.cmdline():
                found.append(one)
    return found


def soon(holds: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"left: {below()} {threading.enumerate()}"
        time.sleep(0.1)
