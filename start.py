#!/usr/bin/env python3
"""Set the course up and open it. Standard library only; parses on Python 2.7, so that every old Python gets one line.

    python3 start.py lab         set up once, then open JupyterLab on chapter 0; other options go to JupyterLab
    python3 start.py setup       only the set-up: .venv with the tested versions
    python3 start.py test        set up, then every test; other options go to pytest
    python3 start.py check       the fast tests
    python3 start.py stress      the tests with large counts
    python3 start.py WORD ...    any other word is a command of `course`: python3 start.py grade 01

    --cpu          (setup, lab, test) on Linux: PyTorch's CPU build, much smaller than the CUDA one
    --torch keep   (setup, lab, test) use the PyTorch that this Python already has
A later call without these two keeps what was chosen. Remove the folder .venv to choose anew.
"""

import difflib
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys

ROOT = os.path.dirname(os.path.realpath(os.path.abspath(__file__)))
OLDEST = (3, 11)
TESTED = ((3, 11),)
OWN = ("setup", "lab", "test", "check", "stress")
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
# What .venv takes with PyTorch's CPU build is 1.6 GB; pip unpacks beside it.
NEEDED_BYTES = 2 * 10**9

DISK_FULL = (
    "no space left on device",
    "[errno 28]",
    "disk quota exceeded",
    "[errno 122]",
    "not enough space on the disk",
)
NO_NETWORK = (
    "failed to establish a new connection",
    "newconnectionerror",
    "name resolution",
    "name or service not known",
    "nodename nor servname",
    "getaddrinfo failed",
    "nameresolutionerror",
    "network is unreachable",
    "connection refused",
    "connection reset",
    "connection broken",
    "connecttimeout",
    "timed out",
    "proxyerror",
    "sslerror",
)


class Stop(Exception):
    """Ends the run with one line on stderr and this exit status."""

    def __init__(self, message, code=2):
        Exception.__init__(self, message)
        self.code = code


def say(message):
    """One line on stderr: stdout belongs to the command (`grade --json`)."""
    sys.stderr.write("start.py: " + message + "\n")
    sys.stderr.flush()


# ---------------------------------------------------------------- the Python that runs this


def check_python(version, is_64bit=True, which=None):
    """Stop when this Python cannot run the course; return a warning line, or None. `version`: (3, 8, 10)."""
    name = "%d.%d" % tuple(version[:2])
    if tuple(version[:2]) < OLDEST:
        message = "this is Python %s, and the course needs Python %d.%d or newer: " % ((name,) + OLDEST)
        for minor in range(OLDEST[1], OLDEST[1] + 8):
            if which is not None and which("python3.%d" % minor):
                raise Stop(message + "say python3.%d start.py lab" % minor)
        raise Stop(message + "install Python %d.%d" % TESTED[0])
    if not is_64bit:
        raise Stop("this Python is a 32-bit one, for which there is no PyTorch: install a 64-bit Python")
    if tuple(version[:2]) not in TESTED:
        return "note: Python %s is not tested by us (%s is)" % (name, ", ".join("%d.%d" % pair for pair in TESTED))
    return None


def check_venv_module(find):
    """Stop when this Python cannot make a virtual environment. `find(name)` raises ImportError for a missing module."""
    try:
        find("venv")
        find("ensurepip")
    except ImportError:
        package = "python%d.%d-venv" % sys.version_info[:2]
        raise Stop(
            "this Python has no venv module (or no ensurepip). On Debian and Ubuntu: sudo apt install " + package
        )


# ---------------------------------------------------------------- the command line


def parse(argv, course_words=()):
    """(command, torch, rest): torch is "cpu", "keep" or None (not said); rest is passed on as it is."""
    command, rest = argv[0], list(argv[1:])
    if command.startswith("-"):
        raise Stop("say the command first: python3 start.py lab %s (python3 start.py --help lists them)" % command)
    if command not in OWN and command not in course_words:
        near = difflib.get_close_matches(command, list(OWN) + list(course_words), 1)
        raise Stop("there is no command %r%s" % (command, near and "; did you mean %r?" % near[0] or ": see --help"))
    torch = None
    if command in ("setup", "lab", "test"):
        if "--torch" in rest:
            place = rest.index("--torch")
            rest[place : place + 2] = ["--torch=" + "".join(rest[place + 1 : place + 2])]
        for option in [word for word in rest if word == "--cpu" or word.startswith("--torch=")]:
            rest.remove(option)
            if option not in ("--cpu", "--torch=keep"):
                raise Stop("--torch takes one word, keep: python3 start.py %s --torch keep" % command)
            said = "cpu" if option == "--cpu" else "keep"
            if torch not in (None, said):
                raise Stop("--cpu and --torch keep exclude each other")
            torch = said
        if command == "setup" and rest:
            raise Stop("setup does not take %r; it takes --cpu or --torch keep" % rest[0])
    return command, torch, rest


def asked_port(options):
    """The port in JupyterLab's options as an int, or None. Stops when it is not a number."""
    port = None
    for place, option in enumerate(options):
        name, equals, value = option.partition("=")
        if name in ("--port", "--ServerApp.port"):
            port = value if equals else "".join(options[place + 1 : place + 2])
    if port is None:
        return None
    if not port.isdigit() or int(port) > 65535:
        raise Stop("--port takes a number up to 65535, not %r" % port)
    return int(port)


def check_port(port):
    """Stop when no server can listen on `port` of this machine (0: the system chooses)."""
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listener = socket.socket(family, socket.SOCK_STREAM)
        except OSError:
            continue  # no IPv6 here
        try:
            if os.name == "nt":
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_EXCLUSIVEADDRUSE, 1)
            else:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
            listener.listen(1)
        except OSError as error:
            if error.errno in (errno.EADDRINUSE, 10048, 10013):
                raise Stop("port %d is taken: choose another (--port %d), or leave --port out" % (port, port + 1))
            if error.errno == errno.EACCES:
                raise Stop("port %d is not allowed for this user: choose one from 1024 up, or leave --port out" % port)
        finally:
            listener.close()


# ---------------------------------------------------------------- the set-up


def venv_python(root):
    """The interpreter of root's .venv."""
    return os.path.join(root, ".venv", *(("Scripts", "python.exe") if os.name == "nt" else ("bin", "python")))


def stamp_path(root):
    return os.path.join(root, ".venv", "course.json")


def read_stamp(root):
    """What .venv was made for; {"building": pid}: unfinished; None: there is none. Stops on one of another maker."""
    if not os.path.lexists(os.path.join(root, ".venv")):
        return None
    try:
        with open(stamp_path(root), encoding="utf-8") as file:
            stamp = json.load(file)
    except ValueError:
        return {"building": 0}
    except OSError:
        raise Stop("the folder .venv was not made by start.py: move it away, then run this again")
    return stamp if isinstance(stamp, dict) else {"building": 0}


def write_stamp(root, stamp):
    """Replace the stamp in one step, so that it is never half-written."""
    with open(stamp_path(root) + ".new", "w", encoding="utf-8", newline="\n") as file:
        json.dump(stamp, file)
    os.replace(stamp_path(root) + ".new", stamp_path(root))


def wanted_stamp(root, torch, version):
    """What a .venv that fits would say: its place (it cannot be moved), its Python, its torch, what is installed."""
    needs = hashlib.sha256()
    for name in ("pyproject.toml", "constraints.txt"):
        with open(os.path.join(root, name), "rb") as file:
            needs.update(file.read() + b"\0")
    return {"root": root, "python": "%d.%d" % tuple(version[:2]), "torch": torch, "needs": needs.hexdigest()}


def is_running(pid):
    """Whether the process that was building .venv still is. On Windows this is not known: False."""
    if not pid or os.name == "nt":
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return error.errno == errno.EPERM
    return True


def set_up(root, torch):
    """Make .venv fit, and return its interpreter. Whatever goes wrong, no half-made .venv is left."""
    stamp = read_stamp(root)
    want = wanted_stamp(root, torch or (stamp or {}).get("torch") or "default", sys.version_info)
    python = venv_python(root)
    usable = os.path.exists(python)
    if stamp == want and usable:
        return python
    if stamp is not None and is_running(stamp.get("building")):
        raise Stop("start.py is already setting .venv up (process %d): wait for it to end" % stamp["building"])
    update = usable and stamp is not None and dict(stamp, needs=want["needs"]) == want
    if not update:
        check_venv_module(__import__)
        kept = find_torch(root) if want["torch"] == "keep" else None
        remove_venv(root)
        free = shutil.disk_usage(root).free
        if free < NEEDED_BYTES:
            raise Stop("the disk is too full: the set-up needs about 2 GB, and %.1f GB are free" % (free / 1e9), 1)
    try:
        if not update:
            os.mkdir(os.path.join(root, ".venv"))
        write_stamp(root, dict(want, building=os.getpid()))
        say("bringing .venv up to date" if update else "setting up .venv (once; some minutes)")
        if not update:
            if want["torch"] == "default" and sys.platform.startswith("linux"):
                say("note: on Linux, PyTorch from the public registry is the CUDA build, several GB to download.")
                say("note: without an NVIDIA GPU, stop with Ctrl-C and say: python3 start.py setup --cpu")
            make_venv(root, kept)
        for arguments in pip_calls(root, want["torch"], sys.platform):
            run_quietly([python, "-m", "pip", "install"] + arguments, root)
        no_news(root)
        write_stamp(root, want)
    except BaseException as error:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second Ctrl-C does not stop the clearing up
        if update and getattr(error, "network", False):
            write_stamp(root, stamp)  # pip fetches everything before it changes anything
        else:
            remove_venv(root)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if isinstance(error, OSError):
            raise Stop(explain(str(error)), 1)
        raise
    say("the set-up is complete")
    return python


def find_torch(root):
    """The folder that holds this Python's torch. Stops when it has none."""
    from importlib.metadata import version
    from importlib.util import find_spec

    spec = find_spec("torch")
    if spec is None or not spec.origin:
        raise Stop("--torch keep: this Python (%s) has no torch; leave --torch keep out to install it" % sys.executable)
    folder = os.path.dirname(os.path.dirname(os.path.realpath(spec.origin)))
    if folder.startswith(os.path.join(root, ".venv") + os.sep):
        raise Stop("--torch keep: run start.py with the Python that has the torch to keep, not with .venv's own")
    if version("torch").split("+")[0] != torch_pin(root).split("==")[1]:
        say("note: torch %s is kept; what is tested is %s" % (version("torch"), torch_pin(root)))
    return folder


def make_venv(root, kept):
    """An empty .venv. `kept`: the folder with the torch to keep; its packages are seen after .venv's own."""
    base = getattr(sys, "_base_executable", None) or sys.executable
    run_quietly([base, "-m", "venv", ".venv"], root)
    if kept:
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        site = subprocess.check_output([venv_python(root), "-I", "-c", ask]).decode("utf-8").strip()
        with open(os.path.join(site, "kept_torch.pth"), "w", encoding="utf-8", newline="\n") as file:
            file.write(kept + "\n")


def torch_pin(root):
    """The line torch==VERSION of constraints.txt."""
    with open(os.path.join(root, "constraints.txt"), encoding="utf-8") as file:
        return next(line.strip() for line in file if line.startswith("torch=="))


def pip_calls(root, torch, platform):
    """The arguments of each `pip install`, in order."""
    constrained = ["-c", "constraints.txt"]
    if torch == "keep":
        import tomllib

        with open(os.path.join(root, "pyproject.toml"), "rb") as file:
            project = tomllib.load(file)["project"]
        needs = project["dependencies"] + project["optional-dependencies"]["dev"]
        needs = [need for need in needs if not need.replace(">", "=").replace("<", "=").startswith("torch=")]
        # Nothing but torch and what torch needs is taken from outside: JupyterLab's files have to lie in .venv.
        return [["--ignore-installed"] + constrained + needs, ["--no-deps", "-e", "."]]
    calls = [constrained + ["-e", ".[dev]"]]
    if torch == "cpu" and platform.startswith("linux"):
        # torch alone comes from its own index, which has other versions of everything else.
        calls.insert(0, ["--no-deps", "--index-url", CPU_INDEX, torch_pin(root)])
    return calls


def run_quietly(argv, root):
    """Run a step of the set-up. pip's progress shows on a terminal; a failing step's stderr becomes one line."""
    env = child_environment(root)
    env.setdefault("PIP_RETRIES", "2")
    env.update(PIP_USER="0", PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1")
    if not sys.stderr.isatty():
        env.setdefault("PIP_QUIET", "1")
    is_pip = argv[1:3] == ["-m", "pip"]
    out = sys.stderr.fileno() if is_pip else subprocess.PIPE
    process = subprocess.Popen(argv, cwd=root, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE)
    try:
        printed, errors = process.communicate()
    except BaseException:
        process.terminate()
        process.wait()
        raise
    if process.returncode:
        text = ((printed or b"") + errors).decode("utf-8", "replace")
        stop = Stop(explain(text), 1)
        stop.network = says(text, NO_NETWORK) and not says(text, DISK_FULL)
        raise stop


def says(text, signs):
    return any(sign in text.lower() for sign in signs)


def explain(text):
    """One line for what went wrong, from what the failing step wrote."""
    if says(text, DISK_FULL):
        return "the disk is full (the set-up needs about 2 GB, with CUDA about 8): make room, then run this again"
    if says(text, NO_NETWORK):
        return "the package registry cannot be reached: check the network (or proxy), then run this again"
    if "no matching distribution found for torch" in text.lower():
        machine = tuple(sys.version_info[:2]) + (sys.platform,)
        return "there is no PyTorch for this Python and machine (%d.%d, %s): try Python 3.11" % machine
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()] or lines or ["nothing was said"]
    return "the set-up failed and was undone: " + errors[-1][:300]


def remove_venv(root):
    """Remove .venv, its stamp last and saying "unfinished": the next call goes on with a removal cut short."""
    folder = os.path.join(root, ".venv")
    if os.path.islink(folder):
        os.unlink(folder)
        return
    if os.path.exists(stamp_path(root)):
        try:
            write_stamp(root, {"building": os.getpid()})
        except OSError:
            pass  # the disk may be full
        for name in os.listdir(folder):
            if name != os.path.basename(stamp_path(root)):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    if os.path.lexists(folder):
        raise Stop("the folder .venv cannot be removed (is a program of it running?): remove it by hand", 1)


def no_news(root):
    """JupyterLab of this .venv asks no server for news or updates, and shows none of nbgrader, which is for tests."""
    quiet = {"@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}}
    hidden = {"disabledExtensions": {"@jupyter/nbgrader": True, "@jupyter-notebook/lab-extension": True}}
    names = ["formgrader", "validate_assignment", "assignment_list", "course_list"]
    off = dict({"nbgrader.server_extensions." + name: False for name in names}, notebook=False)
    write_json(root, "share/jupyter/lab/settings/overrides.json", quiet)
    write_json(root, "share/jupyter/lab/settings/page_config.json", hidden)
    write_json(root, "etc/jupyter/jupyter_server_config.d/zz_course.json", {"ServerApp": {"jpserver_extensions": off}})


def write_json(root, path, content):
    """Write settings to a file of .venv."""
    path = os.path.join(root, ".venv", *path.split("/"))
    if not os.path.isdir(os.path.dirname(path)):
        os.makedirs(os.path.dirname(path))
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        json.dump(content, file)


# ---------------------------------------------------------------- what runs in .venv


def child_environment(root):
    """The environment of what runs in .venv: its programs (`course`, `jupyter`) are found first."""
    env = dict(os.environ)
    for name in ("PYTHONHOME", "__PYVENV_LAUNCHER__"):
        env.pop(name, None)
    env["VIRTUAL_ENV"] = os.path.join(root, ".venv")
    env["PATH"] = os.path.dirname(venv_python(root)) + os.pathsep + env.get("PATH", "")
    return env


def become(argv, root):
    """Run argv in place of this process, so that its exit status and Ctrl-C are its own."""
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name != "nt":
        os.execve(argv[0], argv, child_environment(root))
    process = subprocess.Popen(argv, env=child_environment(root))
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the program got it too and decides


def clear_outputs(notebook):
    """As a learner starts with it: no outputs (an exercise holds what its checks should print), no widget state."""
    notebook.get("metadata", {}).pop("widgets", None)
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            cell.update(outputs=[], execution_count=None)
    return notebook


def fill_work(root):
    """Copy the chapters and exercises that work/ lacks, never over what is there. Returns the new names."""
    new = []
    for source, target in (("notebooks", "work"), ("exercises", os.path.join("work", "exercises"))):
        os.makedirs(os.path.join(root, target), exist_ok=True)
        for name in sorted(os.listdir(os.path.join(root, source))):
            path = os.path.join(root, target, name)
            if not name.endswith(".ipynb") or os.path.lexists(path):
                continue
            with open(os.path.join(root, source, name), encoding="utf-8") as file:
                notebook = clear_outputs(json.load(file))
            with open(path + ".part", "w", encoding="utf-8", newline="\n") as file:
                json.dump(notebook, file, ensure_ascii=False, indent=1)
                file.write("\n")
            os.rename(path + ".part", path)
            new.append(os.path.join(target, name))
    return new


def lab_command(root, options):
    """JupyterLab on the clone (so that links between files work), opening chapter 0 in work/."""
    argv = [venv_python(root), "-m", "jupyterlab", "--ServerApp.root_dir=" + root]
    # A saved notebook keeps each widget's static face: its live view would need a kernel that is gone.
    argv.append("--ContentsManager.pre_save_hook=course_lib.widgets.saving.keep_static_faces")
    if os.path.exists(os.path.join(root, "work", "00_start_here.ipynb")):
        argv.append("--LabApp.default_url=/lab/tree/work/00_start_here.ipynb")
    if asked_port(options):
        argv.append("--ServerApp.port_retries=0")  # this port or none
    if hasattr(os, "geteuid") and os.geteuid() == 0 and "--allow-root" not in options:
        argv.append("--allow-root")
    return argv + list(options)


def tests_command(root, command, options):
    """pytest for `test` (everything but the large counts), `check` (fast) or `stress`. Options: one process for all."""
    if command == "test" and not options:
        return [venv_python(root), os.path.join("tests", "all_tests.py")]
    marks = {"test": "not stress", "check": "not slow and not browser and not stress", "stress": "stress"}
    return [venv_python(root), "-m", "pytest", "--durations=15", "-m", marks[command]] + list(options)


def course_words(root):
    """The names of `course`'s commands, so that a mistyped one is caught before anything is installed."""
    sys.path.insert(0, root)
    try:
        from course_lib.cli import COMMANDS
    finally:
        sys.path.remove(root)
    return tuple(COMMANDS)


def on_signal(number, frame):
    raise Stop("stopped; no half-made .venv is left", 128 + number)


def run(argv, root):
    """The whole of it; returns an exit status, or becomes the program that was asked for."""
    if not argv or argv[0] in ("-h", "--help", "help"):
        sys.stdout.write(__doc__)
        return 0
    which = getattr(shutil, "which", None)
    warning = check_python(sys.version_info, sys.maxsize > 2**32, which)
    command, torch, rest = parse(argv, course_words(root))
    if command in ("test", "check", "stress") and not os.path.isdir(os.path.join(root, "tests")):
        raise Stop("this copy of the course was made for a class: it has no tests (python3 start.py lab opens it)")
    if command == "lab" and asked_port(rest):
        check_port(asked_port(rest))
    if warning:
        say(warning)
    before = signal.signal(signal.SIGTERM, on_signal)
    python = set_up(root, torch)
    signal.signal(signal.SIGTERM, before)
    if command == "setup":
        return 0
    if command == "lab":
        for name in fill_work(root):
            say("new: " + name)
        return become(lab_command(root, rest), root)
    if command in OWN:
        os.chdir(root)
        return become(tests_command(root, command, rest), root)
    return become([python, "-m", "course_lib", command] + rest, root)


def main(argv):
    try:
        return run(argv, ROOT)
    except Stop as stop:
        say(str(stop))
        return stop.code
    except KeyboardInterrupt:
        say("stopped; no half-made .venv is left")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
