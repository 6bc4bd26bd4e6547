"""A whole hand-in graded by a user without rights: each tier that works for them, and nothing left behind."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell

from course_lib.grading.isolation.tiers import TIERS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COURSE = Path(__file__).parents[2]
NOBODY = 65534
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]

GRADE = """
import json, sys
from pathlib import Path
from course_lib.grading.grade import Grader
from course_lib.grading.isolation.tiers import TIERS, works
tier = TIERS[sys.argv[1]]
if not works(tier.name):
    print(json.dumps(None))
    sys.exit()
with Grader(tier=tier, timeout=60) as grader:
    for path in sys.argv[2:]:
        found = grader.grade("x", Path(path))
        print(json.dumps([found.score, found.max_score, [one.status for one in found.items], found.flags]), flush=True)
"""

LEAVE = """
import os, subprocess, sys
os.makedirs('closed/in/it')
open('closed/in/it/file', 'w').close()
os.chmod('closed/in', 0); os.chmod('closed', 0)
there = os.environ['HOME']
os.makedirs(there + '/closed'); os.chmod(there + '/closed', 0); os.chmod(there, 0)
subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(613.5)'], start_new_session=True, env={})
"""


def run(words: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*AS_NOBODY, *words], capture_output=True, text=True, encoding="utf-8", check=False, cwd="/", **more
    )


@pytest.fixture(scope="module")
def home() -> Iterator[Path]:
    """A folder of theirs, with a Python of this version that finds this one's packages."""
    if os.name != "posix" or os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv")
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    known = [os.path.realpath(sys.executable), f"/usr/bin/{version}"]
    first = 'test -r "$0" && for p in "$@"; do test -x "$p" && echo "$p" && break; done'
    python = run(["sh", "-c", first, str(COURSE / "course_lib"), *known]).stdout.strip()
    packages = [one for one in sys.path if one.endswith("-packages")]
    if not python or run(["ls", *packages]).returncode:
        pytest.skip("others can read no Python of this version, or not this checkout")
    folder = Path(tempfile.mkdtemp(prefix="nobody-")).resolve()
    try:
        subprocess.run([python, "-m", "venv", "--without-pip", str(folder / "v")], check=True)
        own = folder / "v" / "lib" / version / "site-packages"
        (own / "course.pth").write_text("\n".join(packages) + "\n", encoding="utf-8")
        for name in ("home", "tmp"):
            (folder / name).mkdir()
            os.chown(folder / name, NOBODY, NOBODY)
        folder.chmod(0o755)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def theirs() -> dict[int, psutil.Process]:
    found = psutil.process_iter(["uids"])
    return {one.pid: one for one in found if one.info["uids"] and one.info["uids"].real == NOBODY}


TIERS_THERE = [name if name == "bwrap" else pytest.param(name, marks=pytest.mark.stress) for name in TIERS]


@pytest.mark.parametrize("tier", TIERS_THERE)
def test_a_whole_hand_in(home: Path, tier: str) -> None:
    """The solutions of a chapter have full marks, and once more behind a hand-in that leaves what it can."""
    paths = []
    for number, more in enumerate(["", LEAVE, ""]):
        solution = next(iter(sorted((COURSE / "solutions").glob("01_*.ipynb"))), None)
        if solution is None:
            pytest.skip("there are no solutions here")
        notebook = nbformat.read(solution, as_version=4)
        notebook.cells.append(new_code_cell(more))
        paths.append(home / "home" / f"{number}-{solution.name}")
        paths[-1].write_text(json.dumps(notebook), encoding="utf-8")
        paths[-1].chmod(0o644)
    own = {"PATH": "/usr/bin:/bin", "HOME": str(home / "home"), "TMPDIR": str(home / "tmp"), "PYTHONPATH": str(COURSE)}
    own |= {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    before = theirs()
    done = run([str(home / "v" / "bin" / "python"), "-c", GRADE, tier, *map(str, paths)], env=own, timeout=500)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    if lines == [None]:
        pytest.skip(f"{tier} does not work for a user without rights here")
    assert len(lines) == 3 and all(score == most > 0 for score, most, *_ in lines), lines
    ended = [one for pid, one in theirs().items() if pid not in before]
    _, left = psutil.wait_procs(ended, timeout=5)  # what has ended, the system's first process may not have seen yet
    for one in left:
        one.kill()
    assert list((home / "tmp").iterdir()) == []
    assert left == []
