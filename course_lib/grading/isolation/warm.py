"""The grader's end of the warm process: start it, get a kernel for a hand-in, end that and all it started.

with Nursery(tier, library) as nursery:
    kernel = nursery.kernel(environment, limits)      # a jupyter_client connection over unix sockets
    kernel.client, kernel.alive(), kernel.usage(), kernel.end()
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

import psutil

from course_lib.grading.child import Child
from course_lib.grading.isolation.restore import DESK
from course_lib.grading.isolation.tiers import Tier, command, shown_paths

__all__ = ["Limits", "Nursery", "WarmKernel"]

MARK = "COURSE_GRADE_MARK"
MOST_FILES = 20_000
LONGEST_SOCKET = 103
"""Bytes that the path of a unix socket may have: 107 on Linux, 103 on macOS."""
_PORTS = ("shell_port", "iopub_port", "stdin_port", "hb_port", "control_port")


@dataclass(frozen=True)
class Limits:
    """What one hand-in may use, in bytes; `resident` and `processes` are watched, the rest the system holds to."""

    memory: int = 8 * 2**30
    """Address space of each process: torch alone takes 2 GiB of it."""
    file: int = 256 * 2**20
    disk: int = 512 * 2**20
    """Each of its temporary folders (with walls)."""
    resident: int = 3 * 2**30
    """Memory of all its processes."""
    processes: int = 64


class Nursery:
    """One warm process; use as a context manager. One kernel at a time."""

    def __init__(self, tier: Tier, library: Path, patience: float = 120) -> None:
        self.tier, self.library, self.patience = tier, library, patience
        self.folder = Path()
        self._child: Child | None = None

    def __enter__(self) -> "Nursery":
        self.folder = Path(mkdtemp(prefix="course-grade-")).resolve()
        if len(os.fsencode(self.folder / "room" / "k-5")) > LONGEST_SOCKET and Path("/tmp").is_dir():
            self.folder.rmdir()
            self.folder = Path(mkdtemp(prefix="course-grade-", dir="/tmp")).resolve()
        for name in ("room", "root"):
            (self.folder / name).mkdir()
        self._start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()
        remove(self.folder)

    @property
    def room(self) -> Path:
        """The one folder that both sides see, from outside."""
        return self.folder / "room"

    @property
    def inside(self) -> str:
        """The same folder as the kernel sees it."""
        return "/room" if self.tier.walls else str(self.room)

    def _start(self) -> None:
        words = [sys.executable, "-P", "-m", "course_lib.grading.isolation.nursery"]
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TZ") if name in os.environ}
        environment = kept | dict.fromkeys((f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS")), "1")
        environment |= {"PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8"}
        home = "/tmp" if self.tier.walls else str(self.folder)
        environment |= {"PYTHONPATH": str(self.library), "HOME": home, "MPLCONFIGDIR": f"{home}/mpl"}
        log = (self.folder / "log.txt").open("wb")
        self._child = Child(
            command(
                self.tier.name,
                words,
                show=[self.library],
                write=[(self.room, "/room")],
                hide=[Path(path) / "course_lib" for path in sys.path if "-packages" in path],
                root=self.folder / "root",
            ),
            ready=self.patience,
            sorry=lambda: f"no kernel could be started ({self.tier.name}): {self._log()}",
            patience_to_end=2,
            stderr=log,
            env=environment,
            cwd="/",
            start_new_session=True,
        )
        with log:
            self._child.start()

    def _log(self) -> str:
        text = (self.folder / "log.txt").read_text(encoding="utf-8", errors="replace").strip()
        return text.splitlines()[-1] if text else "no reason given"

    def ask(self, **wish: Any) -> dict[str, Any]:
        """One wish, one answer; {} when the warm process has gone."""
        return {} if self._child is None else self._child.ask(wish, self.patience)

    def empty_room(self) -> None:
        """End what still runs, and take away what it left."""
        self.ask(do="end")
        empty(self.room)

    def kernel(self, environment: Mapping[str, str], limits: Limits) -> "WarmKernel":
        """A new kernel. A warm process that has gone is started again."""
        if self._child is None or not self._child.running:
            self._stop()
            self._start()
        return WarmKernel(self, environment, limits)

    def processes(self) -> list[psutil.Process]:
        """All that run behind the walls, the warm process and what starts it included."""
        with contextlib.suppress(psutil.Error):
            if self._child is not None and self._child.pid is not None:
                return list(psutil.Process(self._child.pid).children(recursive=True))
        return []

    def _stop(self) -> None:
        left = self.processes()
        child, self._child = self._child, None
        if child is not None:
            child.stop()
        for one in left:
            with contextlib.suppress(psutil.Error, OSError):
                one.kill()


class WarmKernel:
    """One hand-in's kernel, and the client that talks with it."""

    def __init__(self, nursery: Nursery, environment: Mapping[str, str], limits: Limits) -> None:
        from jupyter_client.blocking import BlockingKernelClient

        self.nursery, self.limits = nursery, limits
        facts: dict[str, Any] = {
            "transport": "ipc",
            "key": uuid.uuid4().hex,
            "signature_scheme": "hmac-sha256",
            "kernel_name": "",
        }
        facts |= {name: number for number, name in enumerate(_PORTS, start=1)}
        inside = facts | {"ip": f"{nursery.inside}/k"}
        (nursery.room / "connection.json").write_text(json.dumps(inside), encoding="utf-8", newline="\n")
        home = "/tmp" if nursery.tier.walls else nursery.inside
        places = {"HOME": "home", "TMPDIR": "tmp", "TEMP": "tmp", "TMP": "tmp", "IPYTHONDIR": "ipython"}
        places |= dict.fromkeys(("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"), "jupyter")
        places |= {"MPLCONFIGDIR": "mpl", DESK: "desk"}
        own = {name: f"{home}/{place}" for name, place in places.items()}
        self.mark = own[MARK] = facts["key"]
        self._before = {one.pid for one in nursery.processes()}
        nursery.ask(
            do="start",
            room=nursery.inside,
            desk=own[DESK],
            environment={**environment, **own},
            limits=asdict(limits),
            walls=nursery.tier.walls,
            shown=[str(path) for path in [*shown_paths(), nursery.library]],
        )
        self._until_it_listens()
        self.client = BlockingKernelClient()
        outside: Any = facts | {"ip": str(nursery.room / "k")}
        self.client.load_connection_info(outside)
        self.client.start_channels()

    def _until_it_listens(self) -> None:
        """A client that calls before the kernel listens would call again only after a tenth of a second."""
        sockets = [self.nursery.room / f"k-{number}" for number in range(1, len(_PORTS) + 1)]
        deadline = time.monotonic() + self.nursery.patience
        looks = 0
        while not all(path.exists() for path in sockets) and time.monotonic() < deadline:
            looks += 1
            if looks % 100 == 0 and not self.alive():
                return  # whoever asks it first will see that it has gone
            time.sleep(0.001)

    def alive(self) -> bool:
        """Whether the kernel still runs."""
        return bool(self.nursery.ask(do="alive").get("alive"))

    def interrupt(self) -> None:
        """Ctrl-C for the kernel and what it started."""
        self.client.control_channel.send(self.client.session.msg("interrupt_request", {}))

    def too_much(self) -> str | None:
        """What of its limits it has overstepped, in words."""
        own = [one for one in self.nursery.processes() if one.pid not in self._before]
        processes, resident = usage(own)
        if resident > self.limits.resident:
            resident = sum(map(share, own))
        return over(self.limits, processes, resident, *written(self.nursery.room))

    def end(self) -> None:
        """Kill the kernel and everything it started; close the client."""
        self.client.stop_channels()
        self.nursery.ask(do="end")
        if not self.nursery.tier.walls:
            end_marked(self.mark)


def usage(processes: Iterable[psutil.Process]) -> tuple[int, int]:
    """How many run, and bytes of memory that they hold together (shared pages count for each)."""
    count = resident = 0
    for one in processes:
        with contextlib.suppress(psutil.Error):
            resident += one.memory_info().rss
            count += 1
    return count, resident


def share(process: psutil.Process) -> int:
    """Bytes that a process holds, those that it shares with others in equal parts."""
    with contextlib.suppress(psutil.Error):
        with contextlib.suppress(psutil.Error, AttributeError):
            return int(process.memory_full_info().pss)
        return int(process.memory_info().rss)
    return 0


def written(folder: Path) -> tuple[int, int]:
    """Bytes and files below a folder, which may change while we count."""
    size = files = 0
    waiting = [str(folder)]
    while waiting and files < MOST_FILES:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                files += 1
                with contextlib.suppress(OSError):
                    size += entry.stat(follow_symlinks=False).st_size
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
    return size, files


def over(limits: Limits, processes: int, resident: int, left: int, files: int = 0) -> str | None:
    """Which limit is overstepped, in words."""
    if processes > limits.processes:
        return f"it ran {processes} processes at once (at most {limits.processes})"
    if resident > limits.resident:
        return f"it took more than {limits.resident / 2**30:.3g} GiB of memory"
    if left > limits.disk:
        return f"it wrote more than {limits.disk >> 20} MiB"
    if files >= MOST_FILES:
        return f"it wrote more than {MOST_FILES} files"
    return None


def empty(folder: Path) -> None:
    """Remove all that is in a folder, whatever it is."""
    for path in folder.iterdir():
        remove(path)


def remove(path: Path) -> None:
    """Remove a file or a folder, also one without rights or deeper than Python goes."""
    if not path.is_dir() or path.is_symlink():
        path.unlink(missing_ok=True)
        return
    with contextlib.suppress(RecursionError):
        shutil.rmtree(path, ignore_errors=True)
    if path.exists() and os.name == "posix":
        for words in (["chmod", "-R", "u+rwX"], ["rm", "-rf"]):
            subprocess.run([*words, "--", str(path)], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)


def end_marked(mark: str) -> None:
    """Without walls: end whatever carries this hand-in's mark in its environment, orphans too."""
    for _ in range(20):
        left = [one for one in psutil.process_iter() if _carries(one, mark)]
        if not left:
            return
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=1)


def _carries(process: psutil.Process, mark: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark)
    except (psutil.Error, OSError):
        return False
