"""What learner code sees behind each kind of walls, and that none of it is needed to be root."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import answer, right
from nbformat.v4 import new_code_cell

from course_lib.grading.assignment import Assignment
from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import TIERS, works

pytestmark = pytest.mark.slow

LOOK = """
import os, pathlib, socket
found = []
for name in SECRET_PLACES:
    if os.path.exists(name):
        found.append(name)
if any("TELL_NOBODY" in part for part in os.environ.values()) or "COURSE_SECRET" in os.environ:
    found.append("environment")
for place in pathlib.Path("/proc").glob("[0-9]*/environ"):
    try:
        if b"TELL_NOBODY" in place.read_bytes():
            found.append(str(place))
    except OSError:
        pass
names = [name for _, name in socket.if_nameindex()]
if names != ["lo"]:
    found.append(f"network {names}")
import importlib.util
for name in ("course_lib.grading.judge", "course_lib.grading.grade", "course_lib.grading.splice"):
    if importlib.util.find_spec(name):
        found.append(name)
import fixture_checks
for one in fixture_checks.EXERCISES:
    if one.judge.__name__ != "withheld" or one.cases.__name__ != "withheld":
        found.append("a judge")
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 5).close()
assert not found, found
"""


@pytest.fixture(scope="module", params=list(TIERS))
def grader(request: pytest.FixtureRequest, fixture_assignment: Assignment) -> Iterator[Grader]:
    if not works(request.param):
        pytest.skip(f"{request.param} does not work on this machine")
    patch = pytest.MonkeyPatch()
    patch.setenv("COURSE_SECRET", "TELL_NOBODY")
    with Grader(tier=TIERS[request.param], timeout=30) as found:
        yield found
    patch.undo()


def test_what_is_none_of_its_business_is_out_of_sight(
    grader: Grader, solved: Any, hand_in: Callable[..., Path], material: Path, tmp_path: Path
) -> None:
    """Solutions, tests, other hand-ins, judges, cases in the making, the grader's environment, the network."""
    other = tmp_path / "other" / "90_fixture.ipynb"
    other.parent.mkdir()
    other.write_text("{}", encoding="utf-8")
    course = Path(__file__).parents[2]
    places = [material / "solutions", course / "solutions", course / "tests", other, tmp_path, Path("/etc/passwd")]
    look = LOOK.replace("SECRET_PLACES", repr([str(place) for place in places]))
    if not grader.tier.walls:  # it keeps nothing from the eyes, and says so; only its own environment is clean
        look = "import os\nassert 'COURSE_SECRET' not in os.environ and 'course' in os.environ['HOME']\n"
    answer(solved, "double", look + right("double"))
    found = grader.grade("x", hand_in(solved))
    assert [item.status for item in found.items] == ["passed"] * 4, (found.items, found.flags)


def test_orphans_without_a_mark_are_ended_in_every_tier(
    grader: Grader, solved: Any, hand_in: Callable[..., Path]
) -> None:
    import psutil

    number = f"{612 + os.getpid() / 10**7:.7f}"
    orphan = (
        "\n\nimport subprocess, sys\n"
        "subprocess.Popen([sys.executable, '-c', 'import os, time; os.fork() and os._exit(0); "
        f"os.setsid(); time.sleep({number})'], env={{}}, start_new_session=True).wait()"
    )
    answer(solved, "double", right("double") + orphan)
    found = grader.grade("x", hand_in(solved))
    assert [item.status for item in found.items] == ["passed"] * 4
    left = [one.info["cmdline"] or [] for one in psutil.process_iter(["cmdline"])]
    assert not [line for line in left if any(number in word for word in line)]


def test_ranks_start_in_every_tier(grader: Grader, solved: Any, hand_in: Callable[..., Path]) -> None:
    """Two processes that find each other over loopback."""
    ranks = (
        "import torch\nimport torch.distributed as dist\nfrom course_lib.parallel.launch import run_ranks\n"
        "def _one():\n    x = torch.ones(1) + dist.get_rank()\n    dist.all_reduce(x)\n    return float(x)\n"
        "assert run_ranks(_one, 2) == [3.0, 3.0]\n"
    )
    answer(solved, "double", ranks + right("double"))
    found = grader.grade("x", hand_in(solved))
    assert [item.status for item in found.items] == ["passed"] * 4, (found.items, found.flags)


def test_the_read_only_stays_so(grader: Grader, solved: Any, hand_in: Callable[..., Path]) -> None:
    if not grader.tier.walls:
        pytest.skip("this tier has no walls")
    write = (
        "import course_lib, os, sys\n"
        "for place in (os.path.dirname(course_lib.__file__), sys.prefix, '/usr', '/'):\n"
        "    try:\n        open(os.path.join(place, 'written'), 'w').close()\n    except OSError:\n        continue\n"
        "    raise RuntimeError(place)\n"
    )
    solved.cells.insert(0, new_code_cell("x = 1"))
    answer(solved, "double", write + right("double"))
    found = grader.grade("x", hand_in(solved))
    assert [item.status for item in found.items] == ["passed"] * 4, found.items


def test_no_folder_of_the_warm_process_comes_to_light(
    grader: Grader, solved: Any, hand_in: Callable[..., Path]
) -> None:
    """Under a hand-in's own /tmp lies the warm process', which the next hand-in could look into too."""
    if not grader.tier.walls:
        pytest.skip("this tier has no walls")
    lift = (
        "import ctypes\nlibc = ctypes.CDLL(None)\n"
        "done = [place for place in (b'/tmp', b'/dev/shm', b'/var/tmp', b'/proc') if libc.umount2(place, 2) == 0]\n"
        "assert not done, done\n"
    )
    answer(solved, "double", lift + right("double"))
    found = grader.grade("x", hand_in(solved))
    assert [item.status for item in found.items] == ["passed"] * 4, found.items


def test_walls_stand_for_an_unprivileged_user_too() -> None:
    """The probe of each tier as user `nobody`, where we are root and can become it."""
    if os.name != "posix" or os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    course = Path(__file__).parents[2]
    nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    first = 'test -r "$0" && for p in "$@"; do test -x "$p" && echo "$p" && break; done'
    ask = [*nobody, "sh", "-c", first, str(course), os.path.realpath(sys.executable), "/usr/bin/python3"]
    python = subprocess.run(ask, capture_output=True, text=True, encoding="utf-8", check=False).stdout.strip()
    if not python:
        pytest.skip("others can read no Python or not this checkout")
    here = [name for name in ("bwrap", "unshare") if works(name)]
    asked = "from course_lib.grading.isolation.tiers import works; print([n for n in ('bwrap', 'unshare') if works(n)])"
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(course)}
    done = subprocess.run(
        [*nobody, python, "-c", asked],
        capture_output=True,
        text=True,
        encoding="utf-8",
        cwd="/",
        env=environment,
        check=False,
    )
    assert done.stdout.strip() == str(here), done.stderr[-500:]
