"""Nothing that learner code does in its kernel turns a wrong answer into points.

Each trick is tried where the answer is wrong; in none may the exercise count. Cases and judges are not in the kernel,
so a trick can at best forge a record, and for that it would have to know what is right.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import answer, cell_of
from nbformat.v4 import new_code_cell

from course_lib.grading.grade import Grader

pytestmark = pytest.mark.slow

WRONG = "\n\ndef double(values):\n    return [0]"
RECORD = (
    "import json, os\nfrom pathlib import Path\nfrom course_lib.checks.core import read_packed, write_packed\n"
    "seed = int(os.environ['COURSE_CHECK_SEED'])\nroom = Path(os.environ['COURSE_GRADE_DIR'])\n"
)

TRICKS = {
    "the check is another": "check = lambda name, answer: print(f'{name}: ran 3 cases')",
    "exercises say passed": (
        "import fixture_checks as f\nfor e in f.EXERCISES:\n    object.__setattr__(e, 'run', lambda a, c: True)"
    ),
    "the judge says yes": (
        "import course_lib.checks.core as c\nc.judge_record = c._judge = c.evaluate = lambda *a, **k: None"
    ),
    "pack gives something equal to all": (
        "import course_lib.checks.core as c\nclass Yes(list):\n    def __eq__(self, o): return True\nold = c.pack\n"
        "c.pack = lambda v, *a: old(v, *a)\nc.unpack = lambda *a: Yes([0])"
    ),
    "a record of its own": RECORD + (
        "write_packed(room / 'double', {'exercise': 'double', 'seed': seed, 'stopped': None, 'cases': []})\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "a record that says passed": RECORD + (
        "(room / 'double.json').write_text(json.dumps({'status': 'passed', 'exercise': 'double', 'passed': True}))\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "another exercise's record": RECORD + (
        "import course_lib.checks.core as c\nold = c._write_record\n"
        "c._write_record = lambda stem, record, n: old(stem.with_name('double'), "
        "{**record, 'exercise': 'double'}, n)"
    ),
    "a link to a file outside": RECORD + (
        "(room / 'double.json').symlink_to('/etc/passwd')\n(room / 'double.safetensors').symlink_to('/etc/passwd')\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "the folder of records is a link": RECORD + (
        "import shutil\nshutil.rmtree(room)\nroom.symlink_to('/etc')\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "a pipe in place of a record": RECORD + (
        "os.mkfifo(room / 'double.json'); os.mkfifo(room / 'double.safetensors')\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "damaged arrays": RECORD + (
        "(room / 'double.safetensors').write_bytes(b'\\xff' * 100)\n(room / 'double.json').write_text('[' * 100000)\n"
        "import course_lib.checks.core as c\nc._write_record = lambda *a: None"
    ),
    "other cases": (
        "import os\nfrom pathlib import Path\nfrom course_lib.checks.core import read_packed, write_packed\n"
        "stem = Path(os.environ['COURSE_CASES_DIR']) / 'double'\n"
        "write_packed(stem, [{**case, 'values': [0]} for case in read_packed(stem)])"
    ),
    "another seed": "import os\nos.environ['COURSE_CHECK_SEED'] = '0'",
    "no grading": "import os\ndel os.environ['COURSE_GRADE_DIR'], os.environ['COURSE_CASES_DIR']",
    "an exception that looks well": (
        "import course_lib.checks.core as c\nclass Fine(Exception):\n    def _render_traceback_(self): return []\n"
        "c.CheckFailed = Fine"
    ),
    "exceptions are not shown": (
        "get_ipython().set_custom_exc((BaseException,), lambda *a, **k: print('double: ran 3 cases'))"
    ),
    "source is another": (
        "get_ipython().input_transformers_post.append("
        "lambda lines: [l.replace('check(\"double\", double)', 'print(\"double: ran 3 cases\")')"
        " for l in lines])"
    ),
    "syntax trees are others": (
        "import ast\nclass T(ast.NodeTransformer):\n    def visit_Module(self, n):\n"
        "        return ast.parse('print(\"double: ran 3 cases\")') if 'check' in ast.dump(n) else n\n"
        "get_ipython().ast_transformers.append(T())"
    ),
    "a hook before each cell": (
        "get_ipython().events.register('pre_run_cell', lambda info: print('double: passed, 3 cases'))"
    ),
    "stdout of its own": (
        "import io, sys\nclass Out(io.StringIO):\n    def write(self, t):\n"
        "        return sys.__stdout__.write('double: ran 3 cases')\n"
        "sys.stdout = Out()"
    ),
    "messages of its own": (
        "k = get_ipython().kernel\nk.session.send(k.iopub_socket, 'status', {'execution_state': 'idle'}, "
        "parent=k.get_parent('shell'))\n"
        "k.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'double: passed, 3 cases\\n'})"
    ),
    "it ends well at once": "import atexit, os\nprint('double: ran 3 cases')\nos._exit(0)",
    "nbval's comments": "# NBVAL_SKIP\n# NBVAL_IGNORE_OUTPUT",
    "its parent": (
        "import os\nfor n in os.listdir('/proc'):\n    if n.isdigit() and int(n) != os.getpid():\n"
        "        try:\n            open(f'/proc/{n}/mem', 'r+b').close()\n"
        "            open(f'/proc/{n}/fd/1', 'w').write('{}\\n')\n"
        "        except OSError:\n            pass"
    ),
    "frames above it": (
        "import sys\ndef double(values):\n    f = sys._getframe()\n    while f:\n"
        "        for n in ('record', 'outcome'):\n"
        "            if isinstance(f.f_locals.get(n), dict): f.f_locals[n]['stopped'] = None\n        f = f.f_back\n"
        "    return [0]\n#"
    ),
}  # fmt: skip


ONLY_BEHIND_WALLS = ("its parent",)
"""What would be done to this machine."""


@pytest.mark.parametrize("trick", TRICKS)
def test_a_trick_is_no_points(tier_grader: Grader, released: Any, hand_in: Callable[..., Path], trick: str) -> None:
    """Neither for this exercise nor for the untouched ones. The text says no more than what a learner may know."""
    if trick in ONLY_BEHIND_WALLS and not tier_grader.tier.walls:
        pytest.skip("this tier has no walls")
    answer(released, "double", TRICKS[trick] + ("" if TRICKS[trick].endswith("#") else WRONG))
    found = tier_grader.grade("x", hand_in(released))
    assert found.score == 0 and not [one for one in found.items if one.status == "passed"], found.items
    assert "root:" not in " ".join(one.message for one in found.items)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_cell_of_its_own_forges_no_more(
    tier_grader: Grader, released: Any, hand_in: Callable[..., Path], where: str
) -> None:
    """All the tricks that leave a kernel alive, in extra cells."""
    answer(released, "double", WRONG.strip())
    cell = new_code_cell(TRICKS["the check is another"] + "\n" + TRICKS["exercises say passed"])
    released.cells.insert(released.cells.index(cell_of(released, "double")) + (where == "after"), cell)
    assert tier_grader.grade("x", hand_in(released)).score == 0


def test_the_tricks_are_caught_by_the_judge_and_not_by_luck(
    tier_grader: Grader, solved: Any, hand_in: Callable[..., Path]
) -> None:
    """The same hand-in with right answers has its points."""
    assert tier_grader.grade("x", hand_in(solved)).score == 10
