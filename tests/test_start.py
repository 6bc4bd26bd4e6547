"""start.py as its user meets it: what it accepts, what it says when something is missing, what it leaves behind."""

import ast
import errno
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX signals and scripts")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("start", ROOT / "start.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


start = load()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What start.py needs of a clone, in a folder with a space and another language's letters in its path."""
    root = tmp_path / "a b é" / "clone"
    (root / "course_lib").mkdir(parents=True)
    for name in ("start.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, root / name)
    for name in ("__init__.py", "__main__.py", "cli.py", "errors.py"):
        shutil.copy(ROOT / "course_lib" / name, root / "course_lib" / name)
    for name in ("notebooks", "exercises", "solutions"):
        (root / name).mkdir()
    return root


def call(root: Path, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Run start.py as a user would, from another folder."""
    command = [sys.executable, str(root / "start.py"), *words]
    cwd = cwd or root.parent
    return subprocess.run(command, cwd=cwd, env=os.environ | env, capture_output=True, encoding="utf-8", timeout=120)


def is_one_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stderr.splitlines()
    assert len(lines) == 1 and lines[0].startswith("start.py: ") and not done.stdout, done
    return lines[0]


# ---------------------------------------------------------------- old and odd Pythons


def test_parses_on_old_pythons():
    """Nothing in it is newer than Python 2.7's syntax, so that an old Python gets to say that it is too old."""
    source = (ROOT / "start.py").read_text(encoding="utf-8")
    assert source.isascii()
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef, ast.Nonlocal, ast.YieldFrom, ast.Match)
    starred_in_calls = set()
    for node in ast.walk(ast.parse(source)):
        assert not isinstance(node, newer), f"line {node.lineno}: {type(node).__name__}"
        if isinstance(node, ast.Call):
            assert not (node.args and any(isinstance(arg, ast.Starred) for arg in node.args[:-1]))
            starred_in_calls.update(id(arg) for arg in node.args)
        if isinstance(node, ast.Starred):
            assert id(node) in starred_in_calls, f"line {node.lineno}: a starred value outside a call"
        if isinstance(node, ast.FunctionDef):
            args = node.args
            assert not (args.kwonlyargs or args.posonlyargs or node.returns), f"line {node.lineno}"
            assert not any(arg.annotation for arg in args.args), f"line {node.lineno}: an annotation"
        if isinstance(node, ast.Raise):
            assert node.cause is None, f"line {node.lineno}: raise from"
        if isinstance(node, ast.Name):
            assert node.id != "print", f"line {node.lineno}: print is a statement in Python 2"
        if isinstance(node, ast.ClassDef):
            assert not node.keywords


def test_a_real_old_python_gets_one_line():
    tried = 0
    for version in ("2.7", *(f"3.{minor}" for minor in range(4, 11))):
        python = shutil.which(f"python{version}")
        if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
            continue
        done = subprocess.run([python, str(ROOT / "start.py"), "lab"], capture_output=True, encoding="utf-8")
        assert done.returncode == 2
        assert f"this is Python {version}, and the course needs Python 3.11 or newer" in is_one_line(done)
        tried += 1
    if not tried:
        pytest.skip("no old Python here")


def test_which_pythons_do():
    assert start.check_python((3, 11, 7)) is None
    assert "3.14 is not tested by us" in start.check_python((3, 14, 0))
    with pytest.raises(start.Stop, match=r"Python 3\.10.*3\.11 or newer: install Python 3\.11"):
        start.check_python((3, 10, 13))
    with pytest.raises(start.Stop, match=r"say python3\.12 start\.py lab"):
        start.check_python((3, 8, 1), which=lambda name: name == "python3.12")
    with pytest.raises(start.Stop, match="32-bit"):
        start.check_python((3, 11, 7), is_64bit=False)


@pytest.mark.parametrize("missing", ["venv", "ensurepip"])
def test_no_venv_module(missing):
    def find(name):
        if name == missing:
            raise ImportError(name)

    with pytest.raises(start.Stop, match=r"no venv module.*sudo apt install python3\.\d+-venv"):
        start.check_venv_module(find)
    start.check_venv_module(__import__)


# ---------------------------------------------------------------- words and options


def test_words():
    words = ("grade", "train")
    assert start.parse(["lab", "--no-browser", "--port", "8890"], words) == (
        "lab",
        None,
        ["--no-browser", "--port", "8890"],
    )
    assert start.parse(["lab", "--cpu", "--no-browser"], words) == ("lab", "cpu", ["--no-browser"])
    assert start.parse(["test", "-k", "x", "--torch", "keep", "-x"], words) == ("test", "keep", ["-k", "x", "-x"])
    assert start.parse(["setup", "--torch=keep"], words) == ("setup", "keep", [])
    # `check` and the words of `course` keep every option for themselves.
    assert start.parse(["train", "--cpu"], words) == ("train", None, ["--cpu"])
    for wrong, said in (
        (["lba"], "did you mean 'lab'"),
        (["grad", "01"], "did you mean 'grade'"),
        (["zzz"], "see --help"),
        (["--cpu", "lab"], "say the command first"),
        (["lab", "--torch", "new"], "--torch takes one word, keep"),
        (["lab", "--torch"], "--torch takes one word, keep"),
        (["setup", "--cpu", "--torch", "keep"], "exclude each other"),
        (["setup", "--port", "1"], "setup does not take '--port'"),
    ):
        with pytest.raises(start.Stop, match=said):
            start.parse(wrong, words)


def test_a_mistyped_word_installs_nothing(clone):
    done = call(clone, "grad", "01")
    assert done.returncode == 2
    assert "did you mean 'grade'" in is_one_line(done)
    assert not (clone / ".venv").exists()


def test_help():
    done = call(ROOT, "--help")
    assert done.returncode == 0
    for word in (*start.OWN, "--cpu", "--torch keep"):
        assert word in done.stdout


def test_ports():
    assert start.asked_port(["--no-browser"]) is None
    assert start.asked_port(["--port", "8890"]) == start.asked_port(["--ServerApp.port=8890"]) == 8890
    for wrong in (["--port", "x"], ["--port"], ["--port=70000"]):
        with pytest.raises(start.Stop, match="--port takes a number"):
            start.asked_port(wrong)
    start.check_port(0)


def test_a_taken_port_is_said_before_anything_is_installed(clone):
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        port = server.getsockname()[1]
        done = call(clone, "lab", "--no-browser", "--port", str(port))
    assert done.returncode == 2
    assert f"port {port} is taken" in is_one_line(done)
    assert not (clone / ".venv").exists() and not (clone / "work").exists()
    start.check_port(port)


# ---------------------------------------------------------------- the set-up, with installing replaced


class Installer:
    """Stands in for venv and pip: makes the interpreter's file, records the calls, fails when told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.made, self.calls, self.error = 0, 0, None
        monkeypatch.setattr(start, "make_venv", self.make)
        monkeypatch.setattr(start, "run_quietly", self.run)

    def make(self, root, kept):
        self.made += 1
        python = Path(start.venv_python(str(root)))
        python.parent.mkdir()
        python.write_text("", encoding="utf-8")

    def run(self, argv, root):
        self.calls += 1
        if self.error is not None:
            raise self.error


@pytest.fixture
def pip(monkeypatch):
    return Installer(monkeypatch)


def stop_with(text: str) -> Exception:
    """The failure that a step of the set-up with this stderr ends in."""
    script = f"import sys; sys.stderr.write({text!r}); sys.exit(1)"
    with pytest.raises(start.Stop) as caught:
        start.run_quietly([sys.executable, "-c", script], str(ROOT))
    return caught.value


NETWORK = "WARNING: Retrying ... NewConnectionError('Failed to establish a new connection: [Errno 111] refused')\n"
DISK = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"


def test_set_up_is_done_once(clone, pip):
    root = str(clone)
    assert start.set_up(root, None) == start.venv_python(root)
    assert (pip.made, pip.calls) == (1, 1)
    start.set_up(root, None)
    assert (pip.made, pip.calls) == (1, 1)
    settings = json.loads((clone / ".venv/share/jupyter/lab/settings/overrides.json").read_text(encoding="utf-8"))
    assert settings["@jupyterlab/apputils-extension:notification"]["fetchNews"] == "false"
    page = json.loads((clone / ".venv/share/jupyter/lab/settings/page_config.json").read_text(encoding="utf-8"))
    assert page["disabledExtensions"]["@jupyter/nbgrader"] is True, "nbgrader is for tests, not for the learner's Lab"


def test_new_versions_are_installed_into_the_same_venv(clone, pip):
    start.set_up(str(clone), None)
    with (clone / "constraints.txt").open("a", encoding="utf-8") as file:
        file.write("another==1.0\n")
    start.set_up(str(clone), None)
    assert (pip.made, pip.calls) == (1, 2)
    start.set_up(str(clone), None)
    assert pip.calls == 2


def test_the_choice_of_torch_is_kept(clone, pip):
    start.set_up(str(clone), "cpu")
    calls = pip.calls
    start.set_up(str(clone), None)
    assert (pip.made, pip.calls) == (1, calls)
    assert start.read_stamp(str(clone))["torch"] == "cpu"


def test_a_moved_folder_or_another_python_starts_anew(clone, pip, monkeypatch):
    start.set_up(str(clone), "cpu")
    moved = clone.rename(clone.parent / "moved")
    start.set_up(str(moved), None)
    assert pip.made == 2 and start.read_stamp(str(moved))["torch"] == "cpu"
    monkeypatch.setattr(start.sys, "version_info", (3, 12, 0))
    start.set_up(str(moved), None)
    assert pip.made == 3


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (NETWORK, "the package registry cannot be reached"),
        (DISK, "the disk is full"),
        ("ERROR: No matching distribution found for torch==2.13.0", "there is no PyTorch for this Python and machine"),
        ("something odd\nERROR: it broke\n", "the set-up failed and was undone: ERROR: it broke"),
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied"), "the set-up failed and was undone: .*Permission denied"),
        (KeyboardInterrupt(), None),
    ],
)
def test_a_failed_set_up_leaves_nothing(clone, pip, monkeypatch, error, said):
    if isinstance(error, str):
        monkeypatch.undo()
        error = stop_with(error)
        pip.__init__(monkeypatch)
    pip.error = error
    before = sorted(clone.iterdir())
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else start.Stop, match=said):
        start.set_up(str(clone), None)
    assert pip.made == 1 and sorted(clone.iterdir()) == before
    pip.error = None
    start.set_up(str(clone), None)
    assert start.read_stamp(str(clone))["torch"] == "default"


def test_an_update_without_network_keeps_what_works(clone, pip, monkeypatch):
    start.set_up(str(clone), None)
    stamp = start.read_stamp(str(clone))
    (clone / "constraints.txt").write_text("torch==2.13.0\n", encoding="utf-8")
    monkeypatch.undo()
    network, disk = stop_with(NETWORK), stop_with(DISK)
    pip.__init__(monkeypatch)
    pip.error = network
    with pytest.raises(start.Stop, match="registry cannot be reached"):
        start.set_up(str(clone), None)
    assert start.read_stamp(str(clone)) == stamp and os.path.exists(start.venv_python(str(clone)))
    pip.error = disk
    with pytest.raises(start.Stop, match="disk is full"):
        start.set_up(str(clone), None)
    assert not (clone / ".venv").exists()


def test_too_little_room_is_said_before_anything_is_made(clone, pip, monkeypatch):
    monkeypatch.setattr(start.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**10, 10**10, 3 * 10**8))
    with pytest.raises(start.Stop, match=r"needs about 2 GB, and 0\.3 GB are free"):
        start.set_up(str(clone), None)
    assert pip.made == 0 and not (clone / ".venv").exists()


def test_a_venv_of_another_maker_is_left_alone(clone, pip):
    (clone / ".venv").mkdir()
    (clone / ".venv/mine").write_text("x", encoding="utf-8")
    with pytest.raises(start.Stop, match=r"was not made by start\.py"):
        start.set_up(str(clone), None)
    assert (clone / ".venv/mine").exists()


@posix
def test_an_unfinished_venv_is_made_anew_unless_somebody_is_at_it(clone, pip):
    (clone / ".venv").mkdir()
    start.write_stamp(str(clone), {"building": os.getpid()})
    with pytest.raises(start.Stop, match=r"already setting \.venv up"):
        start.set_up(str(clone), None)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    start.write_stamp(str(clone), {"building": dead.pid})
    (clone / ".venv/half").write_text("x", encoding="utf-8")
    start.set_up(str(clone), None)
    assert not (clone / ".venv/half").exists() and pip.made == 1


def test_what_pip_is_told(clone):
    """Versions come from constraints.txt; --cpu takes torch alone from its own index; keep leaves torch out."""
    assert start.pip_calls(str(clone), "default", "linux") == [["-c", "constraints.txt", "-e", ".[dev]"]]
    first, second = start.pip_calls(str(clone), "cpu", "linux")
    assert first[-2:] == [start.CPU_INDEX, start.torch_pin(str(clone))] and "--no-deps" in first
    assert [second] == start.pip_calls(str(clone), "default", "linux") == start.pip_calls(str(clone), "cpu", "darwin")
    others, course = start.pip_calls(str(clone), "keep", "linux")
    assert "numpy>=1.26" in others and not [need for need in others if need.startswith("torch")]
    assert course == ["--no-deps", "-e", "."]


def test_keeping_a_torch_that_is_not_there(clone, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(start.Stop, match="has no torch"):
        start.set_up(str(clone), "keep")
    assert not (clone / ".venv").exists()


# ---------------------------------------------------------------- what runs


def chapter(text: str) -> dict:
    output = {"output_type": "stream", "name": "stdout", "text": [text]}
    code = {"cell_type": "code", "id": "a", "metadata": {}, "source": ["1"], "outputs": [output], "execution_count": 3}
    prose = {"cell_type": "markdown", "id": "b", "metadata": {}, "source": ["é"]}
    return {"cells": [code, prose], "metadata": {"widgets": {}}, "nbformat": 4, "nbformat_minor": 5}


def test_work_gets_what_is_missing_and_nothing_is_overwritten(clone):
    for folder in ("notebooks", "exercises"):
        (clone / folder / "01_x.ipynb").write_text(json.dumps(chapter(folder)), encoding="utf-8")
    (clone / "work").mkdir()
    (clone / "notebooks/00_start_here.ipynb").write_text(json.dumps(chapter("0")), encoding="utf-8")
    (clone / "work/00_start_here.ipynb").write_text("the learner's own", encoding="utf-8")
    new = start.fill_work(str(clone))
    assert new == [os.path.join("work", "01_x.ipynb"), os.path.join("work", "exercises", "01_x.ipynb")]
    assert (clone / "work/00_start_here.ipynb").read_text(encoding="utf-8") == "the learner's own"
    mine = json.loads((clone / "work/01_x.ipynb").read_text(encoding="utf-8"))
    assert mine["cells"][0]["outputs"] == [] and mine["cells"][0]["execution_count"] is None
    assert mine["cells"][1]["source"] == ["é"] and "widgets" not in mine["metadata"]
    given = json.loads((clone / "work/exercises/01_x.ipynb").read_text(encoding="utf-8"))
    assert given == start.clear_outputs(chapter("exercises"))
    assert "outputs" not in given["cells"][1] and given["cells"][0]["outputs"] == [], "no check looks passed already"
    assert start.fill_work(str(clone)) == []


def test_lab_opens_chapter_0_in_work(clone, monkeypatch):
    (clone / "work").mkdir()
    (clone / "work/00_start_here.ipynb").write_text("{}", encoding="utf-8")
    command = start.lab_command(str(clone), ["--no-browser", "--port", "8890"])
    assert command[:3] == [start.venv_python(str(clone)), "-m", "jupyterlab"]
    assert f"--ServerApp.root_dir={clone}" in command
    assert "--LabApp.default_url=/lab/tree/work/00_start_here.ipynb" in command
    assert "--ContentsManager.pre_save_hook=course_lib.widgets.saving.keep_static_faces" in command
    assert "--ServerApp.port_retries=0" in command and command[-3:] == ["--no-browser", "--port", "8890"]
    monkeypatch.setattr(os, "geteuid", lambda: 0, raising=False)
    assert "--allow-root" in start.lab_command(str(clone), [])
    monkeypatch.setattr(os, "geteuid", lambda: 1000, raising=False)
    assert "--allow-root" not in start.lab_command(str(clone), [])


def test_which_tests_run():
    assert start.tests_command("r", "test", ["-k", "x"])[1:] == [
        *("-m", "pytest", "--durations=15", "-m", "not stress"),
        *("-k", "x"),
    ]
    assert start.tests_command("r", "test", [])[1:] == [os.path.join("tests", "all_tests.py")]
    assert "not slow and not browser and not stress" in start.tests_command("r", "check", [])
    assert start.tests_command("r", "stress", [])[-1] == "stress"


@posix
def test_exit_status_folder_and_stdout_are_those_of_the_program(clone, pip):
    """`course` runs in the user's folder, pytest in the clone; start.py adds nothing to stdout, and loses no time."""
    start.set_up(str(clone), None)
    script = f'#!/bin/sh\npwd\necho "$@"\nexec "{sys.executable}" -c "import sys; sys.exit(7)"\n'
    python = Path(start.venv_python(str(clone)))
    python.write_text(script, encoding="utf-8")
    python.chmod(0o755)
    here = clone.parent / "hand-ins"
    here.mkdir()
    began = time.monotonic()
    done = call(clone, "grade", "01", "--json", "x y", cwd=here)
    assert time.monotonic() - began < 3
    assert (done.returncode, done.stderr) == (7, "")
    assert done.stdout.splitlines() == [str(here), "-m course_lib grade 01 --json x y"]
    (clone / "tests").mkdir(exist_ok=True)
    done = call(clone, "check", "-x", cwd=here)
    assert done.returncode == 7
    assert done.stdout.splitlines()[0] == str(clone)
    assert done.stdout.splitlines()[1].startswith("-m pytest --durations=15 -m not slow")


# ---------------------------------------------------------------- a real venv and a real pip

NO_SETTINGS = {"PIP_CONFIG_FILE": os.devnull, "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}


@pytest.mark.slow
def test_no_network_for_real(clone):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    done = call(clone, "setup", PIP_INDEX_URL=f"http://127.0.0.1:{port}/simple", **NO_SETTINGS)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "start.py: " + start.explain(NETWORK)
    assert not (clone / ".venv").exists()


@posix
@pytest.mark.slow
def test_ctrl_c_for_real(clone):
    """A registry that never answers, and a user who gives up."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/simple"
        process = subprocess.Popen(
            [sys.executable, str(clone / "start.py"), "setup"],
            env=os.environ | NO_SETTINGS | {"PIP_INDEX_URL": url},
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        silent.settimeout(90)
        connection, _ = silent.accept()  # pip is at work
        os.killpg(process.pid, signal.SIGINT)
        said = process.communicate(timeout=30)[1]
        connection.close()
    assert process.returncode == 130
    assert said.splitlines()[-1] == "start.py: stopped; no half-made .venv is left"
    assert not (clone / ".venv").exists()


@pytest.mark.slow
def test_a_real_venv_in_a_path_with_a_space(clone, monkeypatch):
    """All of the set-up but the dependencies: the editable install works from another folder."""
    monkeypatch.setattr(start, "pip_calls", lambda root, torch, platform: [["--no-deps", "-e", "."]])
    python = start.set_up(str(clone), None)
    done = call(clone, "setup")
    assert (done.returncode, done.stderr) == (0, "")
    where = [python, "-c", "import course_lib; print(course_lib.__file__)"]
    found = subprocess.run(where, cwd=clone.parent, capture_output=True, encoding="utf-8", check=True).stdout.strip()
    assert Path(found) == clone / "course_lib" / "__init__.py"
    course = Path(python).with_name("course.exe" if os.name == "nt" else "course")
    assert "grade" in subprocess.run([course, "--help"], capture_output=True, encoding="utf-8", check=True).stdout
