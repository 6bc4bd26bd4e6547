"""Ranks from a script, from a notebook, in a sandbox, under torchrun; and when the one who called them is ended."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import psutil
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
HEAD = """
import os, sys, time
import torch, torch.distributed as dist
from course_lib.errors import RankError
from course_lib.parallel.launch import join_ranks, run_ranks

factor = 5
def work(x):
    dist.all_reduce(x)
    return (factor * x).tolist()
"""
MARK = "COURSE_TEST_RANKS"


@pytest.fixture
def marked(tmp_path: Path) -> Iterator[Callable[[], list[psutil.Process]]]:
    """What was started by this test and still runs, found by its environment, also when it has lost its parent."""
    os.environ[MARK] = str(tmp_path)

    def running() -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                alive = process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
                if alive and process.environ().get(MARK) == str(tmp_path):
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found

    yield running
    for process in running():
        process.kill()
    del os.environ[MARK]


def start(*words: str, cwd: Path) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        words,
        cwd=cwd,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # A shell's background job ignores Ctrl-C, and hands that on to its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def run(*words: str, cwd: Path) -> str:
    """Standard output of a command that has to succeed and to leave nothing on stderr."""
    with start(*words, cwd=cwd) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and err == "", out + err
    return out


def gone_within(seconds: float, running: Callable[[], list[psutil.Process]]) -> bool:
    end = time.monotonic() + seconds
    while left := running():
        if time.monotonic() > end:
            print(left)
            return False
        time.sleep(0.05)
    return True


def test_a_script_needs_no_guard_and_its_other_lines_run_once(
    tmp_path: Path, marked: Callable[[], list[psutil.Process]]
) -> None:
    script = tmp_path / "a script.py"
    text = HEAD + "print('top')\nprint(run_ranks(work, 2, torch.ones(2)))\n"
    text += "try:\n    run_ranks(lambda: [][dist.get_rank()], 2)\nexcept RankError as error:\n    print(error)\n"
    script.write_text(text, encoding="utf-8", newline="\n")
    top, result, *error = run(sys.executable, str(script), cwd=tmp_path).splitlines()
    assert (top, result) == ("top", "[[10.0, 10.0], [10.0, 10.0]]")
    assert re.fullmatch(r"rank [01] of 2 failed: IndexError: list index out of range", error[0])
    assert '  File "a script.py", line 14, in <lambda>' in error
    assert gone_within(5, marked), "the fork server outlived its caller"


@pytest.mark.slow
def test_a_guarded_script_a_command_line_and_a_module(tmp_path: Path) -> None:
    guarded = HEAD + "if __name__ == '__main__':\n    print(run_ranks(work, 2, torch.ones(2)))\n"
    (tmp_path / "guarded.py").write_text(guarded, encoding="utf-8", newline="\n")
    plain = HEAD + "print(run_ranks(work, 2, torch.ones(2)))"
    wanted = "[[10.0, 10.0], [10.0, 10.0]]\n"
    assert run(sys.executable, "guarded.py", cwd=tmp_path) == wanted
    assert run(sys.executable, "-m", "guarded", cwd=tmp_path) == wanted
    assert run(sys.executable, "-c", plain, cwd=tmp_path) == wanted


def busy_script(folder: Path, body: str) -> Path:
    script = folder / "busy.py"
    text = HEAD + "def busy():\n    print('at work')\n" + body + "\nrun_ranks(busy, 2, timeout=100)\n"
    script.write_text(text, encoding="utf-8", newline="\n")
    return script


HOLDING_THE_LOCK = "    import re\n    re.match('(a+)+$', 'a' * 60 + 'b')"


def test_the_interrupt_of_the_caller_ends_the_ranks(tmp_path: Path, marked: Callable[[], list[psutil.Process]]) -> None:
    """Ctrl-C goes to the whole group of the terminal; ranks ignore it, and the caller ends them."""
    script = busy_script(tmp_path, "    time.sleep(100)")
    with start(sys.executable, str(script), cwd=tmp_path) as process:
        assert process.stdout is not None and "at work" in process.stdout.readline()
        ranks = [one for one in marked() if one.pid != process.pid]
        assert len(ranks) >= 3  # the server and two ranks
        for one in ranks:
            one.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None and {one.pid for one in ranks} <= {one.pid for one in marked()}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in err and process.returncode == -signal.SIGINT
    assert gone_within(5, marked)


@pytest.mark.slow
@pytest.mark.parametrize("body", ["    time.sleep(100)", HOLDING_THE_LOCK], ids=["asleep", "holding-the-lock"])
def test_nothing_outlives_a_killed_caller(
    body: str, tmp_path: Path, marked: Callable[[], list[psutil.Process]]
) -> None:
    with start(sys.executable, str(busy_script(tmp_path, body)), cwd=tmp_path) as process:
        assert process.stdout is not None and "at work" in process.stdout.readline()
        process.kill()
        assert gone_within(5, marked)


@pytest.mark.slow
def test_nothing_outlives_a_killed_fork_server_and_the_next_call_works(
    tmp_path: Path, marked: Callable[[], list[psutil.Process]]
) -> None:
    """The caller notices, ends the ranks that the server has left, and starts another one."""
    script = tmp_path / "script.py"
    text = HEAD + "import threading, psutil\n"
    text += "def kill():\n    time.sleep(1)\n    psutil.Process().children()[0].kill()\n"
    text += "run_ranks(work, 2, torch.ones(2))\nthreading.Thread(target=kill).start()\n"
    text += "try:\n    run_ranks(time.sleep, 2, 100)\nexcept RankError as error:\n    print(error)\n"
    text += "print(run_ranks(work, 2, torch.ones(2)))\n"
    script.write_text(text, encoding="utf-8", newline="\n")
    first, *_, last = run(sys.executable, str(script), cwd=tmp_path).splitlines()
    assert "the process that starts the ranks has ended; run the cell again" in first
    assert last == "[[10.0, 10.0], [10.0, 10.0]]"
    assert gone_within(5, marked)


@pytest.mark.slow
def test_the_same_function_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    text = (
        HEAD + "with join_ranks() as rank:\n    found = work(torch.ones(2))\n    if rank == 1:\n        print(found)\n"
    )
    script.write_text(text, encoding="utf-8", newline="\n")
    words = ("-m", "torch.distributed.run", "--nproc-per-node", "2", "--rdzv-backend", "c10d")
    with start(sys.executable, *words, "--rdzv-endpoint", "localhost:0", str(script), cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out == "[10.0, 10.0]\n", out + err


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_in_a_sandbox_without_a_network(tmp_path: Path) -> None:
    """bubblewrap brings the loopback interface up; hostnames cannot be looked up, and nothing is written about it."""
    script = tmp_path / "script.py"
    script.write_text(HEAD + "print(run_ranks(work, 2, torch.ones(2)))\n", encoding="utf-8", newline="\n")
    words = ["bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc", "--bind", str(tmp_path), str(tmp_path)]
    words += ["--setenv", "TMPDIR", str(tmp_path), "--unshare-all", "--die-with-parent", "--new-session"]
    assert run(*words, sys.executable, str(script), cwd=tmp_path) == "[[10.0, 10.0], [10.0, 10.0]]\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_without_a_loopback_interface_it_says_so(tmp_path: Path) -> None:
    words = ("unshare", "--map-root-user", "--net", sys.executable, "-c", HEAD + "run_ranks(work, 2, torch.ones(2))")
    with start(*words, cwd=tmp_path) as process:
        _, err = process.communicate(timeout=60)
    if "unshare failed" in err:
        pytest.skip("this system does not let a user make a network namespace")
    assert err.splitlines()[-1].startswith("course_lib.errors.RankError: ranks talk over the loopback network")


CELLS = [
    HEAD,
    "def step(x):\n    print('before', x.tolist())\n    return work(x)\nrun_ranks(step, 2, torch.ones(2))",
    "def wrong():\n    if dist.get_rank() == 1:\n        work(torch.zeros(0)[5])\n    work(torch.ones(2))\n"
    "run_ranks(wrong, 2)",
    "def uneven():\n    work(torch.ones(2 + dist.get_rank()))\nrun_ranks(uneven, 2)",
    "run_ranks(step, 2, torch.ones(1))",
]


@pytest.mark.slow
def test_in_a_notebook_the_cell_and_its_line_are_named(
    tmp_path: Path, marked: Callable[[], list[psutil.Process]]
) -> None:
    """Prints come into the cell; an error names the cell's own line, also through a function of another cell."""
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS]  # type: ignore[no-untyped-call]
    notebook = nbformat.v4.new_notebook(cells=cells)  # type: ignore[no-untyped-call]
    os.environ["PYTHONPATH"] = str(ROOT)
    try:
        NotebookClient(notebook, allow_errors=True, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    finally:
        del os.environ["PYTHONPATH"]
    assert all(output.get("name") != "stderr" for cell in notebook.cells for output in cell.outputs)
    printed = "".join(output.text for output in notebook.cells[1].outputs if output.output_type == "stream")
    assert sorted(printed.splitlines()) == ["[rank 0] before [1.0, 1.0]", "[rank 1] before [1.0, 1.0]"]
    (error,) = notebook.cells[2].outputs
    assert error.ename == "RankError" and error.evalue.startswith("rank 1 of 2 failed: IndexError: ")
    assert '  File "Cell In[3]", line 3, in wrong\n    work(torch.zeros(0)[5])\n' in error.evalue
    assert "_rank.py" not in "\n".join(error.traceback) and len(error.traceback) < 12
    (error,) = notebook.cells[3].outputs
    assert error.evalue.startswith("rank 1 of 2 used another shape than rank 0 (collective 1)")
    for rank in range(2):
        line = rf"  rank {rank}: all_reduce of float32 \({2 + rank},\)  at Cell In\[1\], line \d, in work: dist.all_"
        assert re.search(line, error.evalue), error.evalue
    assert notebook.cells[4].outputs[-1].data["text/plain"] == "[[10.0], [10.0]]"
    assert gone_within(10, marked), "the fork server outlived the kernel"
