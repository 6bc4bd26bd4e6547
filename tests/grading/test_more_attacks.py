"""More tricks by which a wrong answer might get points: records, replies, hooks, files, and a look around inside.

The judge decides on data, so that what these can forge is at most a record, and for that they would have to know what
is right. What speaks of the grader's parts is a flag for a person.
"""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell

from course_lib.grading.assignment import all_assignments
from course_lib.grading.grade import Grader, Submission
from course_lib.grading.handins import read_handin
from course_lib.grading.lean import write_library
from course_lib.grading.splice import splice

pytestmark = pytest.mark.slow

Grade = Callable[..., Submission]
WRONG = "\n\ndef double(values):\n    return [0]"
ROOM = "import json, os\nfrom pathlib import Path\nroom = Path(os.environ['COURSE_GRADE_DIR'])\n"
SILENT = "import course_lib.checks.core as core\ncore._write_record = lambda *a: None\n"

TRICKS = {
    "a link to another's record": ROOM + SILENT
    + "for end in ('.json', '.safetensors'): os.symlink(f'total{end}', room / f'double{end}')",
    "a hard link to another's record": ROOM + SILENT
    + "for end in ('.json', '.safetensors'):\n    (room / f'total{end}').write_text('{}')\n"
    "    os.link(room / f'total{end}', room / f'double{end}')",
    "a folder for a record": ROOM + SILENT + "[(room / f'double{end}').mkdir() for end in ('.json', '.safetensors')]",
    "a socket for a record": ROOM + SILENT
    + "import socket\nos.chdir(room)\nfor end in ('.json', '.safetensors'): socket.socket(1).bind(f'double{end}')",
    "a record of many lists": ROOM + SILENT
    + "(room / 'double.safetensors').write_bytes(b'')\n"
    "(room / 'double.json').write_text('[' + '[],' * 2_000_000 + '[]]')",
    "a record of a deep list": ROOM + SILENT
    + "from safetensors.numpy import save\n(room / 'double.safetensors').write_bytes(save({}))\n"
    "(room / 'double.json').write_text('[' * 900 + ']' * 900)",
    "a record of odd kinds": ROOM + SILENT
    + "from safetensors.numpy import save\n(room / 'double.safetensors').write_bytes(save({}))\nd = lambda *p: "
    "{'$': 'dict', 'v': [list(q) for q in p]}\nseed = int(os.environ['COURSE_CHECK_SEED'])\n"
    "(room / 'double.json').write_text(json.dumps(d(('exercise', 'double'), ('seed', seed), ('stopped', None), "
    "('cases', [d(('value', {'$': 'tensor', 'dtype': 'load', 'k': 'a', 'shape': [-1]}))] * 3))))",
    "no case at all, and no word": "import course_lib.checks.core as core\ncore.read_packed = lambda *a: []",
    "a thread that writes later": ROOM
    + "import threading, time\ndef go():\n    while True:\n        for end in ('.json', '.safetensors'):\n"
    "            (room / f'double{end}').write_text(json.dumps({'status': 'passed'}))\n        time.sleep(.01)\n"
    "threading.Thread(target=go, daemon=True).start()",
    "a process that writes later": ROOM
    + "import subprocess, sys\ncode = 'import pathlib, sys, time\\nwhile True:\\n    pathlib.Path(sys.argv[1])"
    ".write_text(\"passed\")\\n    time.sleep(.01)'\n"
    "subprocess.Popen([sys.executable, '-c', code, str(room / 'double.json')], start_new_session=True, env={})",
    "a reply of its own": (
        "k = get_ipython().kernel\ndef forge(*a):\n    about = k.get_parent('shell')\n"
        "    k.session.send(k.iopub_socket, 'stream', {'name': 'stdout', 'text': 'double: ran 3 cases\\n"
        "'}, parent=about)\n"
        "    k.session.send(k.shell_stream, 'execute_reply', {'status': 'ok', 'execution_count': 1, 'payload': [], "
        "'user_expressions': {}}, parent=about, ident=k._shell_parent_ident if hasattr(k, "
        "'_shell_parent_ident') else None)\n"
        "    k.session.send(k.iopub_socket, 'status', {'execution_state': 'idle'}, parent=about)\n"
        "get_ipython().events.register('pre_execute', forge)"
    ),
    "every cell is fine": (
        "k = get_ipython().kernel\n"
        "async def fine(*a, **w): return {'status': 'ok', 'execution_count': 1, 'payload': [], "
        "'user_expressions': {}}\nk.do_execute = fine"
    ),
    "what stands ahead of a check": (
        "import course_lib.grading.isolation.restore as r\nr.restore = lambda: print('double: ran 3 cases') or exit()"
    ),
    "modules of its own": (
        "import sys, types\nm = types.ModuleType('course_lib.grading.isolation.restore')\nm.restore = lambda: None\n"
        "sys.modules[m.__name__] = m\nc = types.ModuleType('fixture_checks')\n"
        "c.check = lambda name, f: print(f'{name}: ran 3 cases')\nsys.modules['fixture_checks'] = c\ncheck = c.check"
    ),
    "a finder of modules": (
        "import sys, importlib.abc\nclass F(importlib.abc.MetaPathFinder):\n    def find_spec(self, n, p, t=None):\n"
        "        print('double: ran 3 cases')\nsys.meta_path.insert(0, F())\n"
        "for n in [n for n in sys.modules if 'checks' in n or 'restore' in n]: del sys.modules[n]"
    ),
    "start-up files": (
        "import os, site\nplaces = [os.environ['IPYTHONDIR'] + '/profile_default/startup', os.environ['HOME'], "
        "os.getcwd()]\n"
        "for place in places:\n    os.makedirs(place, exist_ok=True)\n"
        "    for name in ('00.py', 'sitecustomize.py', 'usercustomize.py', 'x.pth', 'fixture_checks.py', "
        "'pytest.ini',\n"
        "                 'conftest.py', 'ipython_config.py'):\n"
        "        with open(f'{place}/{name}', 'w') as f: f.write('import builtins; check = print')"
    ),
    "packages of all": (
        "import os, sys\nfor place in sys.path:\n    try:\n        with open(f'{place}/zz_course.pth', 'w') as f: "
        "f.write('import os; os._exit(0)')\n    except OSError: pass"
    ),
    "the room above": ROOM
    + "for name in ('../notebook.ipynb', '../../desk/notebook.ipynb', '../connection.json', '../cases/double.json'):\n"
    "    try: (room / name).write_text('{\"cells\": []}')\n    except OSError: pass",
    "a value that is all": (
        "class All(list):\n    def __eq__(self, o): return True\n    __hash__ = None\n"
        "    def __iter__(self): return iter([0])\n"
        "    def __len__(self): return 3\ndef double(values): return All([0])\n#"
    ),
    "numbers that are none": "def double(values): return [float('nan')] * len(values)\n#",
    "a value that changes": (
        "class Int(int):\n    def __int__(self): return 4\n    def bit_length(self): return 1\n"
        "    def __eq__(self, o): return True\n"
        "    __hash__ = int.__hash__\ndef double(values): return [Int(0)] * len(values)\n#"
    ),
    "an exception that is a value": (
        "class E(BaseException):\n    pass\ndef double(values):\n    raise E('double: ran 3 cases')\n#"
    ),
    "locals of the frames above": (
        "import sys, ctypes\ndef double(values):\n    f = sys._getframe()\n    while f:\n"
        "        for n, v in list(f.f_locals.items()):\n"
        "            if n in ('case', 'given', 'cases', 'exercise'):\n"
        "                f.f_locals[n] = [{'name': 'x', 'values': [0]}] * 3\n"
        "                ctypes.pythonapi.PyFrame_LocalsToFast(ctypes.py_object(f), ctypes.c_int(0))\n"
        "        f = f.f_back\n"
        "    return [0]\n#"
    ),
}  # fmt: skip

ONLY_BEHIND_WALLS = ("packages of all", "the room above")
SAMPLE = ("a link to another's record", "a thread that writes later", "a reply of its own", "modules of its own")


@pytest.mark.parametrize(
    "trick", [one if one in SAMPLE else pytest.param(one, marks=pytest.mark.stress) for one in TRICKS]
)
def test_a_trick_is_no_points(tier_grader: Grader, graded: Grade, released: Any, trick: str) -> None:
    if trick in ONLY_BEHIND_WALLS and not tier_grader.tier.walls:
        pytest.skip("this tier has no walls")
    answer(released, "double", TRICKS[trick] + ("" if TRICKS[trick].endswith("#") else WRONG))
    found = graded(released, timeout=8)
    assert found.score == 0 and not [one for one in found.items if one.status == "passed"], found.items
    assert "root:" not in " ".join(one.message for one in found.items)


def test_after_the_tricks_right_is_right(graded: Grade, solved: Any) -> None:
    assert graded(solved).score == 10


SPOKEN = {
    "environment": "import os\nplace = os.environ['COURSE_GRADE_DIR']",
    "core": "import course_lib.checks.core as c",
    "from core": "from course_lib.checks.core import write_packed",
    "frames": "import sys\nf = sys._getframe(1)",
    "objects": "import gc\nx = gc.get_objects()",
    "processes": "x = open('/proc/self/maps')",
    "transformers": "get_ipython().ast_transformers.clear()",
}


@pytest.mark.parametrize("what", SPOKEN)
@pytest.mark.parametrize("where", ["answer", "helper"])
def test_who_speaks_of_the_graders_parts_is_flagged(
    fixture_assignment: Any, solved: Any, hand_in: Any, what: str, where: str
) -> None:
    plain = splice(fixture_assignment, read_handin(hand_in(solved)))
    assert not plain.notes and not any(one.doubtful for one in plain.items.values())
    if where == "answer":
        answer(solved, "double", right("double") + "\n" + SPOKEN[what])
    else:
        solved.cells.append(new_code_cell(SPOKEN[what]))
    found = splice(fixture_assignment, read_handin(hand_in(solved)))
    assert found.items["double"].doubtful if where == "answer" else found.notes
    assert "part of the grader" in " ".join([*found.notes, *found.items["double"].notes])


FSUM = "from math import fsum as g\n"
ROUNDS: dict[str, dict[str, str]] = {
    "a helper in another answer": {"double": FSUM + "def helper(v): return g(v)\n", "total": "return helper(values)"},
    "an import in another answer": {"double": FSUM, "total": "return g(values)"},
    "a class in another answer": {
        "double": FSUM + "class H:\n    def go(self, v): return g(v)\n",
        "total": "return H().go(values)",
    },
    "by globals": {"double": FSUM + "def helper(v): return g(v)\n", "total": "return globals()['hel' + 'per'](values)"},
    "beside a magic": {"total": "%matplotlib inline\nimport math", "total ": "return math.fsum(values)"},
    "beside a shell's word": {"total": "x = !true\nimport math", "total ": "return math.fsum(values)"},
    "beside a question": {"total": "len?\nimport math", "total ": "return math.fsum(values)"},
    "under a clock": {"total": "%%time\nimport math", "total ": "return math.fsum(values)"},
}
OFF = "import course_lib.checks.core as c\nc.forbidden_in_answer = c.way_round = lambda *a: None\n"


@pytest.mark.parametrize("what", ROUNDS)
def test_what_may_not_be_called_is_found_though_the_kernel_says_nothing(graded: Grade, solved: Any, what: str) -> None:
    """The search in the kernel is switched off by a cell; the one in the sources finds it."""
    parts = ROUNDS[what]
    solved.cells.insert(solved.cells.index(cell_of(solved, "double")), new_code_cell(OFF))
    line = parts.get("total ", parts["total"])
    above = parts["total"] + "\n" if "total " in parts else ""
    if "double" in parts:
        answer(solved, "double", parts["double"] + right("double"))
    answer(solved, "total", f"{above}def total(values):\n    {line}")
    found = graded(solved)
    assert [one.status for one in found.items] == ["passed", "failed", "passed", "passed"], found.items
    assert "fsum" in found.items[1].message


LOOK = """
import gc, importlib, os, sys
found = []
words = [w[::-1] for w in WORDS]
places = [p for p in sys.path if p and "site-packages" not in p and os.path.isdir(p) and not p.startswith(sys.prefix)]
places = [p for p in places if "lib/python" not in p] + ["/room", "/tmp", "/dev/shm", os.environ["HOME"], os.getcwd()]
for place in places:
    for at, _, names in os.walk(place):
        if at.startswith(sys.prefix) or "site-packages" in at: continue
        for name in names:
            path = os.path.join(at, name)
            try: text = open(path, "rb").read(10**6) if os.path.isfile(path) else b""
            except OSError: continue
            found += [(path, w) for w in words if w.encode() in text]
import fixture_checks
for one in gc.get_objects():
    if type(one) is str or type(one) is tuple or type(one) is dict:
        for part in (one if type(one) is tuple else one.values() if type(one) is dict else [one]):
            if type(part) is str: found += [("memory", w) for w in words if w in part and part != w]
assert not found, found[:5]
"""


def test_a_look_around_finds_no_judge_and_no_belief(tier_grader: Grader, graded: Grade, solved: Any) -> None:
    """By its own code: files that it can reach, what is in memory. The words are turned, not to find themselves."""
    if not tier_grader.tier.walls:
        pytest.skip("this tier has no walls")
    words = ["Twice is plus two", "not what the values ask for", "another one is right", "def _judge_choice"]
    answer(solved, "double", LOOK.replace("WORDS", repr([w[::-1] for w in words])) + right("double"))
    found = graded(solved)
    assert [one.status for one in found.items] == ["passed"] * 4, (found.items, found.flags)


def test_the_library_for_learners_holds_no_judge_of_any_chapter(tmp_path: Path) -> None:
    library = write_library(tmp_path)
    text = "\n".join(path.read_text(encoding="utf-8") for path in (library / "course_lib" / "checks").rglob("*.py"))
    course = all_assignments(Path(__file__).parents[2])
    names = [one.checks for one in course]
    words = [sys.executable, "-c", f"import importlib\nfor one in {names}: importlib.import_module(one).check"]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": str(library)}, check=True, cwd=tmp_path)
    for assignment in course:
        for one in importlib.import_module(assignment.checks).EXERCISES:
            name = getattr(one.judge, "__name__", "")
            assert name in ("<lambda>", "judge", "withheld", "") or f"def {name}(" not in text, (one.id, name)
    assert not re.search(r"misconceptions=(?!\{\})", text), "beliefs that the grader looks for"
