"""More members of each kind of hard case at run time: each costs its own exercise at most, in every tier."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell

from course_lib.grading.grade import Submission

pytestmark = pytest.mark.slow

Grade = Callable[..., Submission]


def statuses(submission: Submission) -> list[str]:
    return [item.status for item in submission.items]


def first(name: str, lines: str) -> str:
    """Lines that run with the cell of a right answer, ahead of it."""
    return lines + "\n\n" + right(name)


# What a notebook may have in it and all its answers still count: in a cell of its own ahead of the second exercise.
HARMLESS = {
    "seeds": "import random, numpy, torch\nrandom.seed(1); numpy.random.seed(2); torch.manual_seed(3)",
    "no collection of garbage": "import gc\ngc.disable(); gc.set_threshold(0); gc.set_debug(gc.DEBUG_LEAK)",
    "another place": "import os\nos.chdir('/')",
    "threads switched at once": "import sys\nsys.setswitchinterval(1e-6)",
    "another locale": (
        "import locale\nfor n in ('C', 'tr_TR.UTF-8', 'de_DE.UTF-8'):\n"
        "    try: locale.setlocale(locale.LC_ALL, n)\n    except locale.Error: pass"
    ),
    "another alarm": "import signal\nsignal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(1)",
    "interrupts are not heard": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)",
    "no logging": "import logging\nlogging.disable(100)",
    "a tracer": "import sys, threading\nsys.settrace(lambda *a: None); sys.setprofile(lambda *a: None)",
    "a fault handler": "import faulthandler\nfaulthandler.enable(); faulthandler.dump_traceback_later(1, repeat=True)",
    "hooks of exceptions": "import sys\nsys.excepthook = sys.unraisablehook = lambda *a: 1 / 0",
    "hooks of display": "import sys\nsys.displayhook = lambda v: 1 / 0\nget_ipython().display_formatter.format = None",
    "streams that raise": (
        "import sys\nclass W:\n    def write(self, t): raise OSError\n    flush = write\nsys.stdout = W()"
    ),
    "no newline": "print('x' * 100_000, end='')",
    "the check's line, half of it": "print('total: ran', end=' ')",
    "carriage returns": "print('50%\\r100%\\r', end=''); print('\\x1b[31mred\\x1b[0m \\x1b]0;title\\x07 \\b\\b')",
    "half letters": "print('\\ud800')",
    "scripts and widgets": (
        "from IPython.display import display, HTML, Javascript, clear_output\n"
        "display(HTML('<script>alert(1)</script>'), Javascript('1'))\nimport ipywidgets\n"
        "display(ipywidgets.IntSlider())\n"
        "clear_output(wait=True)\nhandle = display(1, display_id=True); handle.update(2)"
    ),
    "a thousand displays": "from IPython.display import display\nfor n in range(1000): display(n)",
    "a program that prints": (
        "import os, subprocess, sys\nsubprocess.run([sys.executable, '-c', 'print(1)'])\nos.write(1, b'x' * 9999)"
    ),
    "stdin is read": "import sys\nassert sys.stdin is None or sys.stdin.read() == ''",
    "a thread that prints": (
        "import threading, time\ndef go():\n    while True:\n"
        "        print('double: passed, 3 cases'); time.sleep(.05)\n"
        "threading.Thread(target=go, daemon=True).start()"
    ),
    "tasks left": (
        "import asyncio\nasync def go():\n    while True:\n        await asyncio.sleep(.01)\n"
        "kept = [asyncio.get_event_loop().create_task(go()) for _ in range(9)]"
    ),
    "await": "import asyncio\nawait asyncio.sleep(0.01)\nasync with asyncio.Lock(): pass",
    "an object that will not die": (
        "class D:\n    def __del__(self):\n        import time\n        time.sleep(600)\nkept = D()"
    ),
    "an end that does not end": "import atexit, time\natexit.register(time.sleep, 600)",
    "marks of nbval": "# NBVAL_RAISES_EXCEPTION\n\x0c# NBVAL_SKIP\n1 / 0",
    "an exit in a helper": "import sys\nsys.exit(3)",
    "an interrupt in a helper": "raise KeyboardInterrupt",
    "no Python": "def (:",
    "words as of old": "print 'hello'",
    "a blank of no width": "x\u200b = 1",
    "history and storage": "%store\n%history\n%who\n%lsmagic\n%logstart x.log",
    "another's magics": "%load_ext nothing\n%%nothing\nx",
    "a page is asked for": "help(len); len?",
    "settings": (
        "%config InlineBackend.figure_format = 'svg'\n%xmode Minimal\n%precision 3\n%autoindent\n"
        "%colors NoColor\n%pdb on"
    ),
    "a pool of processes": (
        "from multiprocessing import get_context\nwith get_context('fork').Pool(2) as pool:\n"
        "    assert pool.map(abs, [-1, -2]) == [1, 2]"
    ),
    "shared memory left": (
        "from multiprocessing import shared_memory\nkept = shared_memory.SharedMemory(create=True, size=10**6)"
    ),
    "a listener left": "import socket\nkept = socket.create_server(('127.0.0.1', 0))",
    "figures left open": "import matplotlib.pyplot as plt\nfor _ in range(30): plt.figure()",
    "numpy raises": "import numpy\nnumpy.seterr(all='raise')",
    "torch otherwise": (
        "import torch\ntorch.set_default_dtype(torch.float64); torch.set_grad_enabled(False)\n"
        "torch.set_printoptions(precision=1); torch.use_deterministic_algorithms(True); torch.set_flush_denormal(True)"
    ),
    "files it may not read": "import os\nos.umask(0o777)\nopen('closed', 'w').close()",
    "no more files": (
        "kept = []\ntry:\n    while len(kept) < 5000: kept.append(open('/dev/null'))\nexcept OSError: del kept[-60:]"
    ),
}  # fmt: skip

# What damages names and modules. The answer it stands in may pay for it, and no other one.
DAMAGE = {
    "a hook on seeds": (
        "import torch, random, numpy\ntorch.manual_seed = lambda s: None\n"
        "random.seed = numpy.random.seed = lambda s=0: 1 / 0"
    ),
    "other variables": (
        "import os\nfor k in ('COURSE_CHECK_SEED', 'HOME', 'PATH', 'TMPDIR', 'PYTHONHASHSEED'): os.environ[k] = 'x'"
    ),
    "streams of its own": "import io, sys\nsys.stdout = sys.stderr = io.StringIO()",
    "streams gone": "import sys\nsys.stdout = sys.stderr = None",
    "a mode of torch": (
        "import torch\nfrom torch.overrides import TorchFunctionMode\nclass M(TorchFunctionMode):\n"
        "    def __torch_function__(self, f, t, a=(), k=None): raise ValueError\nkept = M().__enter__()"
    ),
    "modules forgotten": "import sys\nsys.modules.clear()",
    "the library is another": (
        "import sys, types\nfor n in list(sys.modules):\n"
        "    if n.startswith('course_lib'): sys.modules[n] = types.ModuleType(n)"
    ),
    "no import": "import builtins\nbuiltins.__import__ = lambda *a, **k: 1 / 0",
    "an import hook": (
        "import sys\nclass F:\n    def find_spec(self, *a): raise SystemExit\n"
        "sys.meta_path.insert(0, F()); sys.path.clear()"
    ),
    "its own check": "def check(one, two):\n    assert one == two\ncheck(1, 1)",
    "its own hint": "hint = check = 3",
    "numpy is damaged": "import numpy\nnumpy.asarray = numpy.array = numpy.ndarray = None",
    "json is damaged": "import json\njson.loads = json.dumps = json.JSONEncoder.encode = None",
    "safetensors are damaged": (
        "import safetensors.numpy as s, course_lib.checks.packing as p\ns.save = p.save_arrays = lambda *a: b''"
    ),
    "a clock that stands": "import time\ntime.time = time.monotonic = time.perf_counter = lambda: 0.0",
    "a path that lies": "import pathlib\npathlib.Path.write_text = pathlib.Path.write_bytes = lambda *a, **k: 1",
    "copy is damaged": "import copy\ncopy.deepcopy = lambda x: None",
    "no memory left of the limit": "import resource\nresource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))",
    "no files": (
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    ),
    "descriptors closed": "import os\nos.closerange(0, 256)",
    "stopped": "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)",
    "the kernel's loop stopped": "import asyncio\nasyncio.get_event_loop().stop()",
    "the shell reset": "get_ipython().reset(new_session=True); get_ipython().user_ns = {}",
    "the shell gone": "get_ipython().kernel.do_execute = None; get_ipython().kernel.shell_handlers.clear()",
    "the connection gone": "k = get_ipython().kernel\nk.iopub_socket.close(); k.session.key = b'other'",
    "records are no folder": (
        "import os, shutil\nd = os.environ['COURSE_GRADE_DIR']\nshutil.rmtree(d); open(d, 'w').close()"
    ),
    "records are closed": "import os\nos.chmod(os.environ['COURSE_GRADE_DIR'], 0)",
    "the room is empty": "import os, shutil\nd = os.path.dirname(os.environ['COURSE_GRADE_DIR'])\n"
    "for n in os.listdir(d):\n    p = os.path.join(d, n)\n"
    "    shutil.rmtree(p, True) if os.path.isdir(p) else os.unlink(p)",
    "a thread that throws": (
        "import ctypes, threading, time\nmain = threading.main_thread().ident\ndef go():\n    while True:\n"
        "        time.sleep(.2)\n"
        "        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(main), ctypes.py_object(SystemExit))\n"
        "threading.Thread(target=go, daemon=True).start()"
    ),
    "a thread that forks": (
        "import os, threading, time\ndef go():\n    while True:\n        time.sleep(.01)\n"
        "        os.fork() or time.sleep(60)\n"
        "threading.Thread(target=go, daemon=True).start()\ntime.sleep(2)"
    ),
    "ranks left": (
        "import torch.multiprocessing as mp, time\ncontext = mp.get_context('fork')\n"
        "kept = [context.Process(target=time.sleep, args=(600,)) for _ in range(2)]\nfor one in kept: one.start()"
    ),
}  # fmt: skip

# What ends or stops it inside of one exercise's function.
ENDS = {
    "a deep recursion": "import sys; sys.setrecursionlimit(10**9)\n    def f(): f()\n    f()",
    "sys.exit in a thread": (
        "import threading, os; t = threading.Thread(target=os._exit, args=(0,)); t.start(); t.join(); import "
        "time; time.sleep(1)"
    ),
    "exec of another program": "import os; os.execv('/bin/true', ['true'])",
    "a stop signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "a lock held twice": "import threading; l = threading.Lock(); l.acquire(); l.acquire()",
    "a wait for nobody": "import select; select.select([], [], [])",
    "a C loop": "sum(range(10**13))",
    "a regex": "import re; re.match('(a+)+$', 'a' * 60 + 'b')",
    "a big power": "9**9**9**9",
    "a fork that answers too": "import os; os.fork()",
    "deaf, in a loop of tries": (
        "while True:\n        try:\n            while True: pass\n        except BaseException: pass"
    ),
}  # fmt: skip


# In every run: the harmless ones many at a time, and a few of those that take their timeouts. Each alone, in each tier,
# runs with the large counts.
AT_A_TIME = 8
NAMES = list(HARMLESS)
SAMPLE = (
    "modules forgotten",
    "its own check",
    "streams of its own",
    "the connection gone",
    "records are no folder",
    "a thread that forks",
    "a deep recursion",
    "a regex",
    "a lock held twice",
)


def sampled(names: Iterable[str]) -> list[Any]:
    return [name if name in SAMPLE else pytest.param(name, marks=pytest.mark.stress) for name in names]


@pytest.mark.parametrize("begin", range(0, len(HARMLESS), AT_A_TIME))
def test_harmless_together(graded: Grade, solved: Any, begin: int) -> None:
    at = solved.cells.index(cell_of(solved, "total"))
    solved.cells[at:at] = [new_code_cell(HARMLESS[name]) for name in NAMES[begin : begin + AT_A_TIME]]
    found = graded(solved, timeout=10)
    assert statuses(found) == ["passed"] * 4, (found.items, found.flags)


@pytest.mark.stress
@pytest.mark.parametrize("what", HARMLESS)
def test_harmless(graded: Grade, solved: Any, what: str) -> None:
    solved.cells.insert(solved.cells.index(cell_of(solved, "total")), new_code_cell(HARMLESS[what]))
    found = graded(solved, timeout=10)
    assert statuses(found) == ["passed"] * 4, (found.items, found.flags)


@pytest.mark.parametrize("what", sampled(DAMAGE))
def test_damage(graded: Grade, solved: Any, what: str) -> None:
    answer(solved, "double", first("double", DAMAGE[what]))
    found = graded(solved, timeout=6)
    assert statuses(found)[1:] == ["passed"] * 3, (found.items, found.flags)


@pytest.mark.parametrize("what", sampled(DAMAGE))
def test_damage_in_a_cell_of_no_exercise(graded: Grade, solved: Any, what: str) -> None:
    """What no answer uses is not there when an exercise is run alone."""
    solved.cells.insert(solved.cells.index(cell_of(solved, "double")), new_code_cell(DAMAGE[what]))
    found = graded(solved, timeout=6)
    assert statuses(found) == ["passed"] * 4, (found.items, found.flags)


@pytest.mark.parametrize("what", sampled(ENDS))
def test_ends(graded: Grade, solved: Any, what: str) -> None:
    answer(solved, "total", right("total").replace("    return", f"    {ENDS[what]}\n    return"))
    found = graded(solved, timeout=4)
    assert [*statuses(found)[:1], *statuses(found)[2:]] == ["passed"] * 3, (found.items, found.flags)
    assert found.items[1].status != "passed" or what == "a fork that answers too", found.items[1]
