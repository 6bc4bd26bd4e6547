"""Hard cases at run time: what each exercise may do to its kernel, and that only this exercise pays for it."""

from collections.abc import Callable
from typing import Any

import psutil
import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell

from course_lib.grading.grade import Grader, Submission

pytestmark = pytest.mark.slow

Grade = Callable[..., Submission]
BELOW = "\n\n"


def statuses(submission: Submission) -> list[str]:
    return [item.status for item in submission.items]


def says(submission: Submission, number: int) -> str:
    return submission.items[number].message


def inside(name: str, line: str) -> str:
    """A right answer that first does something, each time it is called."""
    return right(name).replace("    return", f"    {line}\n    return")


NEED = {
    "walls": ("the disk, if there are walls", "os.kill(-1, 9)", "os.kill(os.getppid(), 9); time.sleep(2)"),
    "limits": ("files", "all memory at once", "one large file"),
}
"""What only walls stop (without them it would be done to this machine), and what only limits stop."""


def skip_unless(grader: Grader, what: str) -> None:
    if what in NEED["walls"] and not grader.tier.walls:
        pytest.skip("this tier has no walls")
    if what in NEED["limits"] and grader.tier.name == "plain":
        pytest.skip("this tier has no limits")


def below(name: str, lines: str) -> str:
    """A right answer, and lines that run with its cell."""
    return right(name) + BELOW + lines


DAMAGE = {
    "a rebound name": "list = sum = max = range = None",
    "a builtin replaced": "import builtins\nbuiltins.sum = lambda values: 0\nbuiltins.max = min",
    "builtins emptied": "import builtins\ndel builtins.sum, builtins.max, builtins.len",
    "the check replaced": "import fixture_checks\nfixture_checks.check.exercises.clear()",
    "pack replaced": "import course_lib.checks.core as c\nc.pack = c.unpack = None",
    "json replaced": "import json\njson.dumps = lambda *a, **k: 'null'",
    "open replaced": "import builtins\nbuiltins.open = None",
    "print replaced": "import builtins\nbuiltins.print = lambda *a, **k: None",
    "stdout closed": "import sys\nsys.stdout.close()",
    "warnings are errors": "import warnings\nwarnings.simplefilter('error')",
    "no recursion": "import sys\nsys.setrecursionlimit(60)",
    "exec of everything": "get_ipython().run_cell = lambda *a, **k: 1 / 0",
    "another transformer": "get_ipython().input_transformers_cleanup.append(lambda lines: ['pass\\n'])",
    "files gone": "import os, shutil\nshutil.rmtree(os.environ['COURSE_CASES_DIR'])",
    "environment gone": "import os\nos.environ.clear()",
    "all descriptors closed": "import os\nos.closerange(3, 200)",
    "a thread that ends it later": "import os, threading\nthreading.Timer(0.1, os._exit, (0,)).start()\nimport time\n"
    "time.sleep(0.05)",
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_of_one_exercise_does_not_sink_the_next(graded: Grade, solved: Any, what: str) -> None:
    """What an answer does to names, modules and the kernel itself costs, at most, that answer."""
    answer(solved, "double", below("double", DAMAGE[what]))
    found = graded(solved, timeout=6)
    assert statuses(found)[1:] == ["passed"] * 3, (found.items, found.flags)


def test_a_note_says_that_an_exercise_passed_alone(graded: Grade, solved: Any) -> None:
    answer(solved, "double", below("double", "sum = None"))
    found = graded(solved)
    assert statuses(found) == ["passed"] * 4
    assert [flag for flag in found.flags if flag.startswith("total: ") and "kernel of its own" in flag]


def test_alone_a_wrong_answer_stays_wrong_and_keeps_what_it_builds_on(graded: Grade, solved: Any) -> None:
    """`total` is wrong of itself. `largest` builds on `double`, through a helper cell, and both come along."""
    answer(solved, "double", below("double", "sum = None"))
    answer(solved, "total", "def total(values):\n    return sum(values) + 1")
    place = solved.cells.index(cell_of(solved, "largest"))
    solved.cells.insert(place, new_code_cell("def half(values):\n    return [v // 2 for v in double(values)]"))
    answer(solved, "largest", "def largest(values):\n    return max(half(values))")
    found = graded(solved)
    assert statuses(found) == ["passed", "failed", "passed", "passed"]


def test_stuck_threads_and_an_orphan_cost_nothing(graded: Grade, solved: Any) -> None:
    """A thread pool that never ends, a thread that is no daemon, and a process that left its session: all are ended."""
    orphan = (
        "import subprocess, sys, threading, time\n"
        "from concurrent.futures import ThreadPoolExecutor\n"
        "pool = ThreadPoolExecutor(8)\nfor _ in range(8): pool.submit(time.sleep, 600)\n"
        "threading.Thread(target=time.sleep, args=(600,)).start()\n"
        "subprocess.Popen([sys.executable, '-c', 'import os, time; os.fork(); time.sleep(611.25)'], env={}, "
        "start_new_session=True)"
    )
    answer(solved, "double", below("double", orphan))
    assert statuses(graded(solved)) == ["passed"] * 4
    left = running("611.25")
    for one in left:
        psutil.Process(one).kill()
    assert not left


def running(word: str) -> list[int]:
    found = psutil.process_iter(["pid", "cmdline"])
    return [one.info["pid"] for one in found if any(word in part for part in one.info["cmdline"] or [])]


DEAD = {
    "a segmentation fault": ("import ctypes; ctypes.string_at(0)", "ended the kernel"),
    "SIGKILL": ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "ended the kernel"),
    "its group killed": ("import os; os.killpg(0, 9)", "ended the kernel"),
    "abort": ("import os; os.abort()", "ended the kernel"),
    "a fork bomb": ("import os, time\n    [os.fork() for _ in range(6)]; time.sleep(5)", "processes at once"),
    "memory in steps": ("x = [bytearray(2**27) for _ in range(20)]; import time; time.sleep(4)", "GiB of memory"),
    "files": (
        "import os, time; d = os.environ['COURSE_GRADE_DIR']\n"
        "    for n in range(9): open(f'{d}/{n}', 'wb').write(b'x' * 2**22)"
        "\n    time.sleep(3)",
        "it wrote more than 24 MiB",
    ),
}


@pytest.mark.parametrize("what", DEAD)
def test_what_ends_the_kernel_is_one_exercise(tier_grader: Grader, graded: Grade, solved: Any, what: str) -> None:
    skip_unless(tier_grader, what)
    line, words = DEAD[what]
    answer(solved, "total", inside("total", line))
    found = graded(solved)
    assert statuses(found) == ["passed", "kernel_died", "passed", "passed"], (found.items, found.flags)
    assert words in says(found, 1)


RAISES = {
    "all memory at once": ("x = bytearray(2**40)", "MemoryError"),
    "one large file": ("open('x', 'wb').write(b'x' * 2**24)", "OSError"),
    "the disk, if there are walls": ("[open(str(n), 'wb').write(b'x' * 2**22) for n in range(9)]", ""),
    "input": ("input('?')", "input() cannot be used"),
    "getpass": ("import getpass; getpass.getpass()", "input() cannot be used"),
    "sys.exit": ("import sys; sys.exit(0)", ""),
    "exit in a helper": ("raise SystemExit", ""),
    "BaseException": ("raise GeneratorExit", ""),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", ""),
    "recursion": ("f = lambda: f(); f()", "RecursionError"),
    "an exception that cannot be shown": (
        "class E(Exception):\n        def __str__(self): raise SystemExit\n    raise E", ""),
    "an exception of 100 MB": ("raise ValueError('x' * 10**8)", "ValueError"),
    "a breakpoint": ("breakpoint()", ""),
}  # fmt: skip


@pytest.mark.parametrize("what", RAISES)
def test_what_raises_is_one_exercise_and_is_told(tier_grader: Grader, graded: Grade, solved: Any, what: str) -> None:
    skip_unless(tier_grader, what)
    line, words = RAISES[what]
    answer(solved, "total", inside("total", line))
    found = graded(solved)
    others = [*statuses(found)[:1], *statuses(found)[2:]]
    goes_on = what == "a breakpoint" and tier_grader.tier.name == "plain"  # a debugger that nobody joins
    assert others == ["passed"] * 3 and (goes_on or statuses(found)[1] != "passed"), (found.items, found.flags)
    if goes_on:
        return
    assert words in says(found, 1) and len(says(found, 1)) < 5000


@pytest.mark.parametrize("line", ["os.kill(-1, 9)", "os.kill(os.getppid(), 9); time.sleep(2)"])
def test_who_kills_all_it_can_reach_is_alone_in_it(tier_grader: Grader, graded: Grade, solved: Any, line: str) -> None:
    skip_unless(tier_grader, line)
    answer(solved, "total", inside("total", f"import os, time; {line}"))
    found = graded(solved)
    assert [*statuses(found)[:1], *statuses(found)[2:]] == ["passed"] * 3, (found.items, found.flags)


FLOODS = {
    "50 MB at once": "print('x' * 50_000_000)",
    "without end": "while True: print('x' * 1000)",
    "on stderr without end": "import sys\nwhile True: sys.stderr.write('x' * 1000)",
    "of a program": "!yes",
    "of pictures": "from IPython.display import display, HTML\nwhile True: display(HTML('x' * 10000))",
    "deaf": "while True:\n    try:\n        while True: print('x' * 1000)\n    except KeyboardInterrupt: pass",
}


@pytest.mark.parametrize("what", FLOODS)
def test_a_flood_is_stopped_and_costs_its_exercise_alone(graded: Grade, solved: Any, what: str) -> None:
    answer(solved, "total", right("total") + BELOW + FLOODS[what])
    found = graded(solved)
    assert [*statuses(found)[:1], *statuses(found)[2:]] == ["passed"] * 3, (found.items, found.flags)
    assert max(len(item.message) for item in found.items) < 5000


HARMLESS = {
    "its own modules": (
        "for name in ('torch', 'random', 'numpy', 'course_lib', 'statistics', 'safetensors', 'fixture_checks'):\n"
        "    open(name + '.py', 'w').write('1 / 0')\nimport statistics, random"
    ),
    "magics": "%cd /\n!pip install --no-index nothing\n%matplotlib inline",
    "reset": "%reset -f\nfrom fixture_checks import check\ndef double(values): return [2 * v for v in values]",
    "bash": "%%bash\necho hello; exit 0",
    "a folder that is gone": "import os, shutil\nd = os.getcwd(); os.chdir('/'); shutil.rmtree(d, ignore_errors=True)",
    "another dtype": "import torch\ntorch.set_default_dtype(torch.float64); torch.set_num_threads(3)",
    "another device": "import torch\ntorch.set_default_device('meta')",
    "deep folders and no rights": (
        "import os\nos.chdir(os.environ['COURSE_GRADE_DIR'])\nfor _ in range(1500):\n"
        "    os.mkdir('d'); os.chdir('d')\nos.chdir(os.environ['COURSE_GRADE_DIR'])\n"
        "os.makedirs('closed/in'); os.chmod('closed', 0)"
    ),
}


@pytest.mark.parametrize("what", HARMLESS)
def test_what_a_notebook_has_besides_changes_nothing(graded: Grade, solved: Any, what: str) -> None:
    solved.cells.insert(solved.cells.index(cell_of(solved, "double")), new_code_cell(HARMLESS[what]))
    found = graded(solved)
    assert statuses(found) == ["passed"] * 4, (found.items, found.flags)


def test_two_hand_ins_after_the_worst_are_as_ever(tier_grader: Grader, graded: Grade, solved: Any) -> None:
    """No trace of an earlier hand-in is found, and the worker is the same."""
    if not tier_grader.tier.walls:
        pytest.skip("this tier has no walls")
    look = "import math, os\nassert not os.path.exists('trace') and not os.path.exists('/tmp' + '/trace'), 'a trace'\n"
    look += "assert 'TRACE' not in os.environ and not hasattr(math, 'trace')"
    leave = "import math, os\nopen('trace', 'w').close(); os.makedirs('/tmp' + '/trace')\n"
    leave += "os.environ['TRACE'] = '1'; math.trace = 1"
    solved.cells.append(new_code_cell(leave))
    assert graded(solved).score == 10
    solved.cells.pop()
    answer(solved, "pick", look + "\n" + right("pick"))
    assert graded(solved).score == 10
