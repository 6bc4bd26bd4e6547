"""Hard cases at run time: what each exercise may do to its kernel, and that only this exercise pays for it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell

from course_lib.grading.assignment import Assignment
from course_lib.grading.grade import Grader, Submission
from course_lib.grading.isolation.warm import Limits

pytestmark = pytest.mark.slow

Grade = Callable[..., Submission]
BELOW = "\n\n"

SMALL = Limits(file=8 * 2**20, disk=24 * 2**20, resident=2**30, processes=24, memory=6 * 2**30)


@pytest.fixture(scope="module")
def grader(fixture_assignment: Assignment) -> Iterator[Grader]:
    with Grader(limits=SMALL, timeout=20) as found:
        yield found


@pytest.fixture
def graded(grader: Grader, hand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Grade:
    def grade(notebook: Any, timeout: float = 20) -> Submission:
        monkeypatch.setattr(grader, "timeout", timeout)
        path = hand_in(notebook)
        return grader.grade(str(path), path)

    return grade


def statuses(submission: Submission) -> list[str]:
    return [item.status for item in submission.items]


def says(submission: Submission, number: int) -> str:
    return submission.items[number].message


def inside(name: str, line: str) -> str:
    """A right answer that first does something, each time it is called."""
    return right(name).replace("    return", f"    {line}\n    return")


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
