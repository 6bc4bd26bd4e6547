"""`kill -9` of a real grader, at any moment: nothing that it started goes on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
import pytest
from nbformat.v4 import new_code_cell

from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import TIERS, best_tier, works

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="who dies with its parent is Linux'"),
]

GRADE = """
import sys
from pathlib import Path
from course_lib.grading import assignment
from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import TIERS
assignment.material_dir = lambda: Path(sys.argv[3])
with Grader(tier=TIERS[sys.argv[1]], timeout=120) as grader:
    print("begun", flush=True)
    grader.grade("x", Path(sys.argv[2]))
"""
ASLEEP = "import subprocess, sys, time\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(614.5)'])\n"
ASLEEP += "import os\nopen(os.environ['COURSE_GRADE_DIR'] + '/asleep', 'w').close()\ntime.sleep(100)"
MOMENTS = [("best", "as it begins"), ("best", "in a cell")]
MOMENTS += [(name, moment) for name in TIERS for moment in ("before it begins", "as it begins", "in a cell")]
PARAMS = [one if one[0] == "best" else pytest.param(*one, marks=pytest.mark.stress) for one in MOMENTS]


@pytest.mark.parametrize(("tier", "moment"), PARAMS)
def test_nothing_goes_on(
    hand_in: Callable[..., Path], solved: Any, material: Path, room: Path, tier: str, moment: str
) -> None:
    name = best_tier().name if tier == "best" else tier
    if not works(name):
        pytest.skip(f"{name} does not work on this machine")
    solved.cells.insert(2, new_code_cell(ASLEEP))
    words = [sys.executable, "-c", GRADE, name, str(hand_in(solved)), str(material)]
    with subprocess.Popen(words, env={**os.environ, "TMPDIR": str(room)}, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        if moment == "before it begins":
            time.sleep(2)
        else:
            assert run.stdout.readline() == "begun\n"
        if moment == "in a cell":
            end = time.monotonic() + 100
            while not list(room.glob("course-*/room/records/asleep")):
                assert time.monotonic() < end and run.poll() is None
                time.sleep(0.1)
        began = psutil.Process(run.pid).children(recursive=True)
        os.kill(run.pid, signal.SIGKILL)
    _, left = psutil.wait_procs([one for one in began if is_ours(one)], timeout=20)
    for one in left:
        one.kill()
    assert not left
    end = time.monotonic() + 20
    while moment != "before it begins" and list(room.glob("course-*")) and time.monotonic() < end:
        time.sleep(0.1)
    assert moment == "before it begins" or not list(room.iterdir())


@pytest.fixture
def room() -> Iterator[Path]:
    """A folder for temporary files, with a short path: there are sockets in it."""
    with TemporaryDirectory(prefix="k") as name:
        yield Path(name)


def test_a_long_path_for_temporary_files_is_no_hindrance(
    hand_in: Callable[..., Path], solved: Any, monkeypatch: pytest.MonkeyPatch, room: Path
) -> None:
    place = room / ("long" * 25) / ("longer" * 15)
    place.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(place))
    monkeypatch.setenv("TMPDIR", str(place))
    with Grader() as grader:
        found = grader.grade("x", hand_in(solved))
    assert found.score == found.max_score > 0
    assert not list(place.iterdir())


def is_ours(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
