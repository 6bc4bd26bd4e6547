"""Hand-ins graded end to end: nbval in a process of its own, the verdict in another."""

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell, new_output

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment
from course_lib.grading.cli import grade_main
from course_lib.grading.grade import STATUSES, Grader, Submission

Grade = Callable[..., Submission]


@pytest.fixture(scope="module")
def grader(fixture_assignment: Assignment) -> Iterator[Grader]:
    with Grader() as found:
        yield found


@pytest.fixture
def graded(grader: Grader, hand_in: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Grade:
    def grade(notebook: Any, timeout: float = 60) -> Submission:
        monkeypatch.setattr(grader, "timeout", timeout)
        path = hand_in(notebook)
        return grader.grade(str(path), path)

    return grade


def statuses(submission: Submission) -> list[str]:
    return [item.status for item in submission.items]


def message(submission: Submission, name: str) -> str:
    return next(item.message for item in submission.items if item.id == name)


def test_right_answers_get_full_marks_whatever_else_they_do(graded: Grade, solved: Any, tmp_path: Path) -> None:
    """Prints, warnings, a progress bar, a display, another folder, a renamed builtin: none of it changes a grade."""
    noise = (
        "\n    import os, random, sys, warnings\n    from IPython.display import display\n"
        "    print('double: failed'); print('x', file=sys.stderr)\n"
        "    warnings.warn('w'); os.system('echo fd; echo e >&2')\n"
        "    display({'text/html': '<b>x</b>'}, raw=True); os.chdir('/'); random.seed(1)\n"
    )
    answer(solved, "double", right("double").replace("    return", noise + "    return"))
    answer(solved, "total", "import sys\nfrom tqdm import tqdm\ntqdm.write('w', file=sys.stderr)\n" + right("total"))
    answer(
        solved,
        "largest",
        "list(map(print, range(3)))\nhelper = max\ndef largest(values):\n    return helper(values)\n5",
    )
    solved.cells.insert(0, new_code_cell("import warnings\nwarnings.warn('early')"))
    solved.cells.append(new_code_cell("1 / 0"))
    found = graded(solved)
    assert statuses(found) == ["passed"] * 4 and (found.score, found.max_score) == (10, 10)
    assert found.flags == () and found.status == "graded"


def test_untouched_is_not_attempted(graded: Grade, released: Any) -> None:
    found = graded(released)
    assert statuses(found) == ["not_attempted"] * 4 and found.score == 0 and found.flags == ()


def test_wrong_raising_and_missing_ones_do_not_sink_the_others(graded: Grade, solved: Any) -> None:
    answer(solved, "double", "def double(values):\n    return [value + 2 for value in values]")
    answer(solved, "total", "def total(values):\n    return sum(values")
    answer(solved, "pick", "picked = {'variant': 0, 'choice': int('many')}")
    found = graded(solved)
    assert statuses(found) == ["failed", "failed", "failed", "passed"] and found.score == 4
    assert "not what the values ask for [adds-instead]" in message(found, "double")
    assert found.items[0].misconception == "adds-instead"
    assert re.search(r"SyntaxError: .*\(line 2 of your cell\)$", message(found, "total"))
    assert "ValueError" in message(found, "pick")


@pytest.mark.slow
def test_an_exception_names_the_case_and_the_line(graded: Grade, solved: Any) -> None:
    answer(solved, "double", "def double(values):\n    return values[99]")
    answer(solved, "total", "import math\ndef total(values):\n    return int(math.fsum(values))")
    answer(solved, "pick", 'picked = {"variant": 0, "choice": None}')
    solved.cells.remove(cell_of(solved, "largest"))
    found = graded(solved)
    assert statuses(found) == ["failed", "failed", "not_attempted", "missing"]
    assert "case 1 of 3" in message(found, "double") and "return values[99]" in message(found, "double")
    assert "math.fsum" in message(found, "total") and "write it yourself" in message(found, "total")


@pytest.mark.slow
def test_a_forbidden_name_counts_where_the_answer_uses_it(graded: Grade, solved: Any) -> None:
    """`total` may not call math.fsum: a helper that it does not use may, one that it uses may not."""
    solved.cells.insert(0, new_code_cell("def other(values):\n    return int(math.fsum(values))"))
    assert statuses(graded(solved)) == ["passed"] * 4
    answer(solved, "total", "def total(values):\n    return other(values)")
    found = graded(solved)
    assert statuses(found) == ["passed", "failed", "passed", "passed"] and "math.fsum" in message(found, "total")


@pytest.mark.slow
def test_endless_loop_and_dead_kernel_are_their_own_exercises_alone(graded: Grade, solved: Any) -> None:
    answer(solved, "double", "def double(values):\n    while True:\n        pass")
    answer(solved, "total", "import os\ndef total(values):\n    os._exit(0)")
    start = time.monotonic()
    found = graded(solved, timeout=3)
    assert statuses(found) == ["timeout", "kernel_died", "passed", "passed"]
    assert found.status == "graded_with_problems"
    assert time.monotonic() - start < 120


@pytest.mark.slow
def test_a_loop_that_does_not_hear_interrupts(graded: Grade, solved: Any) -> None:
    deaf = "def double(values):\n    while True:\n        try:\n            sum(range(10**6))\n"
    answer(solved, "double", deaf + "        except KeyboardInterrupt:\n            pass")
    answer(solved, "total", "raise SystemExit(0)")
    found = graded(solved, timeout=3)
    assert statuses(found)[0] == "timeout" and statuses(found)[2:] == ["passed", "passed"]
    assert statuses(found)[1] == "failed"


@pytest.mark.slow
def test_quit_is_its_own_cells_alone_and_input_is_explained(graded: Grade, solved: Any) -> None:
    answer(solved, "double", "quit()\n" + right("double"))
    answer(solved, "total", "x = input()\n" + right("total"))
    solved.cells.insert(solved.cells.index(cell_of(solved, "pick")), new_code_cell("exit()"))
    solved.cells.insert(0, new_code_cell("!echo hi\n%reset -f\nwhile True:\n    print('x' * 1000)"))
    found = graded(solved, timeout=3)
    assert statuses(found) == ["kernel_died", "failed", "passed", "passed"]
    assert "input() cannot be used" in message(found, "total")
    assert "one of its own cells ended the kernel" in " ".join(found.flags) and found.status == "graded_with_problems"


def merged(notebook: Any) -> None:
    cell_of(notebook, "double").source += "\n\n" + cell_of(notebook, "total").source
    notebook.cells.remove(cell_of(notebook, "total"))


def retyped(notebook: Any) -> None:
    cell = cell_of(notebook, "double")
    cell.cell_type, cell.metadata, cell.id = "markdown", {}, "other"


def with_a_cell_that_is_none(notebook: Any) -> None:
    notebook.cells.append(5)


def of_another_release(notebook: Any) -> None:
    notebook.metadata["course"]["hash"] = "0" * 12


def in_two_cells(notebook: Any) -> None:
    at = notebook.cells.index(cell_of(notebook, "double"))
    notebook.cells.insert(at, new_code_cell("helper = 1", metadata=dict(cell_of(notebook, "double").metadata)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "status", "flag"),
    [
        (merged, "graded_with_problems", "in the cell of another one"),
        (retyped, "graded_with_problems", "by its likeness"),
        (with_a_cell_that_is_none, "graded_with_problems", "was left out"),
        (of_another_release, "graded_with_problems", "of another release"),
        (in_two_cells, "graded", "stood in 2 cells"),
    ],
)
def test_a_problem_is_told_from_a_note(
    graded: Grade, solved: Any, edit: Callable[[Any], None], status: str, flag: str
) -> None:
    """All of them keep their points; where a person should look, the row says so."""
    edit(solved)
    found = graded(solved)
    assert found.score == 10 and found.status == status and flag in " ".join(found.flags), found.flags


@pytest.mark.slow
def test_a_hand_in_has_a_time_of_its_own_and_keeps_what_was_reached(
    graded: Grade, solved: Any, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cells that take long, each within its own time, before the last exercise but one."""
    at = solved.cells.index(cell_of(solved, "pick"))
    solved.cells[at:at] = [new_code_cell("import time\ntime.sleep(9)") for _ in range(30)]
    monkeypatch.setattr(grader, "total", 25.0)
    start = time.monotonic()
    found = graded(solved, timeout=10)
    assert time.monotonic() - start < 90
    assert statuses(found) == ["passed", "passed", "timeout", "timeout"] and found.score == 3
    assert message(found, "pick") == "your notebook took more than 25 s in all; this was not reached"
    assert found.status == "graded_with_problems" and "more than 25 s in all, and" in " ".join(found.flags)
    solved.cells = [cell for cell in solved.cells if "sleep" not in cell.source]
    assert statuses(graded(solved)) == ["passed"] * 4, "the next hand-in has its own"


@pytest.mark.slow
def test_the_time_of_a_hand_in_is_not_begun_anew_when_a_kernel_dies(
    graded: Grade, solved: Any, released: Any, grader: Grader, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer(solved, "double", "import time\ntime.sleep(9)\n" + right("double"))
    answer(solved, "total", "import os\nos._exit(0)")
    answer(solved, "pick", "time.sleep(9)\n" + right("pick"))
    answer(solved, "largest", cell_of(released, "largest").source)
    monkeypatch.setattr(grader, "total", 12.0)
    found = graded(solved, timeout=10)
    assert statuses(found) == ["passed", "kernel_died", "timeout", "not_attempted"] and found.score == 1
    assert "not reached" in message(found, "pick")


@pytest.mark.slow
def test_nothing_is_left_running(graded: Grade, solved: Any) -> None:
    orphan = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600.25)'], "
    answer(solved, "double", orphan + "start_new_session=True)\n" + right("double"))
    assert statuses(graded(solved)) == ["passed"] * 4
    commands = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in commands if any("600.25" in word for word in line)]


@pytest.mark.slow
def test_stored_outputs_and_edited_checks_prove_nothing(graded: Grade, released: Any) -> None:
    for name in ("double", "total", "pick", "largest"):
        check = cell_of(released, f"check-{name}")
        check.source = f'print("{name}: passed, 3 cases")'
        check.outputs = [new_output("stream", name="stdout", text=f"{name}: passed, 3 cases\n")]
        check.metadata.tags = ["nbval-skip"]
    found = graded(released)
    assert statuses(found) == ["not_attempted"] * 4 and found.score == 0
    assert len([flag for flag in found.flags if "check cell was edited" in flag]) == 4


FORGERIES = {
    "skip": "# NBVAL_SKIP\ndef double(values):\n    return 0",
    "print": "print('double: passed, 3 cases')\ndef double(values):\n    return 0",
    "rebound check": "check = lambda name, answer: print(f'{name}: passed, 3 cases')",
    "patched judge": (
        "import fixture_checks as f\nfor e in f.EXERCISES:\n    object.__setattr__(e, 'judge', lambda c, r: None)"
    ),
    "always equal": (
        "class Yes(list):\n    def __eq__(self, other):\n        return True\ndef double(values):\n    return Yes([0])"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("trick", FORGERIES)
def test_a_forged_pass_is_no_points(graded: Grade, released: Any, trick: str) -> None:
    answer(released, "double", FORGERIES[trick] + "\n")
    if "def double" not in FORGERIES[trick]:
        cell_of(released, "double").source += "\ndef double(values):\n    return [0]"
    found = graded(released)
    assert statuses(found) == ["failed", *statuses(found)[1:]] and found.score == 0, found


RUN_OUT = "\nimport os, json\nfrom pathlib import Path\nroom = Path(os.environ['COURSE_GRADE_DIR'])\n"
CONTRADICTIONS = {
    "printed 'double: passed' and recorded nothing": FORGERIES["rebound check"],
    "printed 'double: ran' and recorded nothing": (
        "usual = check\ndef check(name, answer):\n    usual(name, answer)"
        + RUN_OUT.replace("\n", "\n    ")
        + "(room / f'{name}.json').unlink()"
    ),
    "printed 'double: ran' and recorded something else": (
        "usual = check\ndef check(name, answer):\n    usual(name, answer)"
        + RUN_OUT.replace("\n", "\n    ")
        + "(room / f'{name}.json').write_text('[')"
    ),
    "recorded that it ran to its end, and did not print so": (
        "import contextlib, io\nusual = check\ndef check(name, answer):\n"
        "    with contextlib.redirect_stdout(io.StringIO()):\n        usual(name, answer)"
    ),
    "printed 'double: passed', which no check does": (
        "usual = check\ndef check(name, answer):\n    print(f'{name}: passed, 3 cases')\n    usual(name, answer)"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("flag", CONTRADICTIONS)
def test_a_check_that_prints_and_records_two_things_is_flagged(graded: Grade, solved: Any, flag: str) -> None:
    """A flag for a person, in plain words; no other exercise has one that did not do so."""
    answer(
        solved,
        "double",
        "if 'usual' not in dir():\n"
        + "\n".join("    " + line for line in CONTRADICTIONS[flag].splitlines())
        + "\n"
        + right("double"),
    )
    found = graded(solved)
    assert any(one.startswith("double: its check ") and flag in one for one in found.flags), found.flags


@pytest.mark.slow
def test_identification(grader: Grader, solved: Any, hand_in: Callable[..., Path]) -> None:
    solved.metadata = {}
    path = hand_in(solved, "smith_late_1234_90_fixture-2 (1).ipynb")
    assert grader.grade("smith", path).score == 10
    solved.cells = [new_code_cell("x = 1")]
    lost = grader.grade("lost", hand_in(solved, "notes.ipynb"))
    assert lost.status == "unreadable" and "no exercise notebook" in lost.flags[0]


def test_the_command(
    material: Path, solved: Any, hand_in: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit codes, the report, and JSON of exactly the documented shape."""
    bad = tmp_path / "empty.ipynb"
    bad.write_bytes(b"")
    assert grade_main([str(bad), str(tmp_path / "absent.ipynb")]) == 2
    out = " ".join(capsys.readouterr().out.split())  # a long path is on a line of its own
    assert "unreadable" in out and "empty file" in out and "absent.ipynb: missing" in out
    path, result = hand_in(solved), tmp_path / "result.json"
    assert grade_main([str(path), "--json", str(result)]) == 0
    out = capsys.readouterr().out
    assert "10 of 10 points" in out and "90.3  pick" in out and "next:" not in out
    answer(solved, "total", "def total(values):\n    return 0")
    assert grade_main([str(hand_in(solved)), str(bad), "--json", "-"]) == 1
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "next: 90.2 The total; a hint: course hint 90.2" in captured.err
    assert found.keys() == {"submissions"} and [one["status"] for one in found["submissions"]] == [
        "graded",
        "unreadable",
    ]
    first = found["submissions"][0]
    assert first.keys() == {"name", "status", "score", "max_score", "flags", "items"}
    assert (first["score"], first["max_score"]) == (8, 10) and isinstance(first["flags"], list)
    for item in first["items"]:
        assert item.keys() == {"id", "status", "score", "max_score", "message"} and item["status"] in STATUSES
    assert json.loads(result.read_text(encoding="utf-8"))["submissions"][0]["score"] == 10


@pytest.mark.slow
def test_a_chapter_number_is_the_copy_in_work(
    material: Path, solved: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("course_lib.grading.grade.work_dir", lambda: tmp_path)
    monkeypatch.setattr("course_lib.grading.cli.work_dir", lambda: tmp_path)
    with pytest.raises(CourseError, match="there are no exercises yet"):
        grade_main([])
    assert grade_main(["90"]) == 2
    assert "90_fixture: missing" in capsys.readouterr().out
    (tmp_path / "exercises").mkdir()
    nbformat.write(solved, tmp_path / "exercises" / "90_fixture.ipynb")
    assert grade_main([]) == 0
    with pytest.raises(SystemExit):
        grade_main(["90", "--timeout", "0"])
