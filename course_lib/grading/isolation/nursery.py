"""The warm process behind the walls: torch is loaded once, and each hand-in's kernel is a fork of it.

`python -m course_lib.grading.isolation.nursery`: one JSON line on stdin is a wish, one on stdout the answer.
{"do": "start", "room": ..., "environment": {...}, "limits": {...}, "walls": bool} -> {"started": pid}
{"do": "alive"} -> {"alive": bool, "code": exit code or null};  {"do": "end"} -> {"ended": true}

It never runs a learner's code itself, so that no hand-in finds a trace of an earlier one. With walls each kernel also
has processes and temporary folders of its own: when it ends, whatever it started ends with it.
"""

import contextlib
import importlib
import json
import os
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import Any, NoReturn

from course_lib.grading.isolation import linux
from course_lib.grading.isolation.reap import end_below

__all__ = ["main"]

WARM = (
    *("numpy", "torch", "torch.nn.functional", "torch.distributed", "safetensors.torch"),
    *("course_lib.checks.core", "course_lib.trainer", "ipykernel.kernelapp", "IPython.core.debugger"),
    *("IPython.core.oinspect", "IPython.core.completerlib", "IPython.core.logger", "IPython.extensions.storemagic"),
    *("tornado.platform.asyncio", "tornado.locks", "tornado.queues", "faulthandler"),
)
COLD = ("debugpy",)
"""What a kernel would load and no grading needs: two tenths of a second."""


class Kernel:
    """The one kernel that runs at a time."""

    def __init__(self) -> None:
        self.process = 0
        self.code: int | None = None

    def start(self, wish: dict[str, Any]) -> int:
        self.end()
        self.code = None
        self.process = os.fork()
        if self.process == 0:
            _become(wish)
        return self.process

    def alive(self) -> bool:
        if self.process:
            done, status = os.waitpid(self.process, os.WNOHANG)
            if done:
                self.process, self.code = 0, os.waitstatus_to_exitcode(status)
        return bool(self.process)

    def end(self) -> None:
        """Kill it and whatever it started, orphans of orphans too: without walls they are our children now."""
        if self.alive():
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(self.process, signal.SIGKILL)
            _, status = os.waitpid(self.process, 0)
            self.process, self.code = 0, os.waitstatus_to_exitcode(status)
        end_below()


def _become(wish: dict[str, Any]) -> NoReturn:
    """In the fork: a kernel, or with walls the one that waits for it. Never returns."""
    code = 70
    try:
        os.setsid()
        linux.die_with_parent()
        sink = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(sink, number)
        os.closerange(3, 256)
        if wish["walls"]:
            linux.enter(linux.NEW_USER | linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_IPC)
            code = _wait_for(os.fork() or _first(wish))
        else:
            _kernel(wish)
            code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 0
    except BaseException as error:
        with contextlib.suppress(OSError):
            Path(wish["room"], "kernel-error.txt").write_text(
                f"{type(error).__name__}: {error}", encoding="utf-8", newline="\n"
            )
    finally:
        os._exit(code)


def _first(wish: dict[str, Any]) -> NoReturn:
    """Process 1 of the kernel's own system: buries what dies there, and ends with the kernel."""
    linux.die_with_parent()
    for place in ("/tmp", "/dev/shm", "/var/tmp"):
        _empty(
            place, [Path(path) for path in wish["shown"] if Path(path).is_relative_to(place)], wish["limits"]["disk"]
        )
    with contextlib.suppress(OSError):
        linux.mount("proc", "/proc")
    for place in ("/dev", "/"):  # what one hand-in wrote there the next would find
        with contextlib.suppress(OSError):
            linux.read_only(place)
    kernel = os.fork()
    if kernel == 0:
        linux.die_with_parent()
        os.setsid()
        _kernel(wish)
        os._exit(0)
    while True:
        process, status = os.wait()
        if process == kernel:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)


def _empty(place: str, shown: list[Path], size: int) -> None:
    """A new, empty folder in the place of a temporary one; what Python needs of it is shown again."""
    held = [(path, os.open(path, os.O_PATH)) for path in shown]
    linux.mount("tmpfs", place, f"mode=1777,size={size}")
    for path, handle in held:
        path.mkdir(parents=True)
        linux.bind(f"/proc/self/fd/{handle}", path)
        os.close(handle)


def _wait_for(process: int) -> int:
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) & 0xFF


def _kernel(wish: dict[str, Any]) -> None:
    """Set the limits, forget our environment, and be an IPython kernel until it ends."""
    limits, room = wish["limits"], Path(wish["room"])
    wanted = [("AS", limits["memory"]), ("FSIZE", limits["file"]), ("CORE", 0)]
    if wish["walls"]:  # in a user namespace of its own nobody else's processes count; root is not bound by it
        wanted.append(("NPROC", 16 * limits["processes"]))
    for name, value in wanted:
        which = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(which)[1]
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(which, (value, value))
    if wish["walls"]:
        linux.drop_rights()
    os.environ.clear()
    os.environ.update(wish["environment"])
    for name in ("HOME", "TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"):
        Path(wish["environment"][name]).mkdir(parents=True, exist_ok=True)
    desk = Path(wish["desk"])
    desk.mkdir(parents=True, exist_ok=True)
    os.chdir(desk)
    sys.argv = ["kernel"]
    # A fork has the random state of the one it comes from: the same for every hand-in.
    from ipykernel.kernelapp import IPKernelApp

    app = IPKernelApp.instance()
    words = ["-f", str(room / "connection.json"), "--HistoryManager.enabled=False", "--IPKernelApp.ignore_cwd=True"]
    app.initialize(words)
    sys.path.append("")  # last: a learner's own torch.py hides nothing
    app.start()


def main() -> int:
    """Load what kernels need, then answer wishes until stdin ends; then all kernels end."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    linux.die_with_parent()
    linux.adopt_orphans()
    for name in COLD:
        sys.modules[name] = None  # type: ignore[assignment]
    for name in WARM:
        importlib.import_module(name)
    kernel = Kernel()
    ready = {"ready": True, "threads": threading.active_count()}
    answers.write(json.dumps(ready) + "\n")
    answers.flush()
    for line in sys.stdin:
        wish = json.loads(line)
        if wish["do"] == "start":
            answer: dict[str, Any] = {"started": kernel.start(wish)}
        elif wish["do"] == "alive":
            answer = {"alive": kernel.alive(), "code": kernel.code}
        else:
            kernel.end()
            answer = {"ended": True}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    kernel.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
