"""Where learner code runs: a folder of its own, an environment with nothing of ours, an end that reaches all of it."""

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from course_lib.machine import end_session, own_session

__all__ = ["Room", "room", "run_group"]

_PASSED_ON = (
    "PATH",
    "LANG",
    "LC_ALL",
    "LC_CTYPE",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "SYSTEMROOT",
    "COMSPEC",
    "PATHEXT",
    "TZ",
)
_ONE_THREAD = tuple(f"{name}_NUM_THREADS" for name in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"))
_MARK = "COURSE_GRADE_ROOM"


@dataclass(frozen=True)
class Room:
    """The temporary folder of one run: `desk` is the kernel's working directory, `records` what its checks write."""

    folder: Path
    desk: Path
    records: Path
    environment: dict[str, str]


@contextlib.contextmanager
def room(seed: int) -> Iterator[Room]:
    """A fresh room; when it is left, every process that was started in it is ended and the folder is removed."""
    with TemporaryDirectory(prefix="course-grade-", ignore_cleanup_errors=True) as name:
        folder = Path(name).resolve()
        places = {key: folder / key for key in ("home", "desk", "records", "tmp", "ipython", "jupyter", "mpl")}
        for place in places.values():
            place.mkdir()
        _share_font_cache(places["mpl"])
        environment = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
        environment |= dict.fromkeys(_ONE_THREAD, "1")
        environment |= {
            "HOME": str(places["home"]),
            "USERPROFILE": str(places["home"]),
            "TMPDIR": str(places["tmp"]),
            "TEMP": str(places["tmp"]),
            "TMP": str(places["tmp"]),
            "IPYTHONDIR": str(places["ipython"]),
            "JUPYTER_RUNTIME_DIR": str(places["jupyter"]),
            "JUPYTER_CONFIG_DIR": str(places["jupyter"]),
            "JUPYTER_DATA_DIR": str(places["jupyter"]),
            "MPLCONFIGDIR": str(places["mpl"]),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONIOENCODING": "utf-8",
            "COURSE_CHECK_SEED": str(seed),
            "COURSE_GRADE_DIR": str(places["records"]),
            _MARK: str(folder),
        }
        try:
            yield Room(folder, places["desk"], places["records"], environment)
        finally:
            _end_all(str(folder))


def run_group(command: list[str], where: Room, timeout: float, **extra: str) -> bool:
    """Run a command in a session of its own; False when it had to be killed after `timeout` seconds."""
    log = (where.folder / "log.txt").open("wb")
    with (
        log,
        subprocess.Popen(
            command,
            cwd=where.folder,
            env={**where.environment, **extra},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            **own_session(),
        ) as process,
    ):
        try:
            process.wait(timeout)
            return True
        except subprocess.TimeoutExpired:
            return False
        finally:
            end_session(process)


def _end_all(mark: str) -> None:
    """End whatever carries this room's mark in its environment: kernels have their own sessions, orphans no parent."""
    for _ in range(20):
        left = [process for process in psutil.process_iter() if _carries(process, mark)]
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=1)
        time.sleep(0.02)


def _carries(process: psutil.Process, mark: str) -> bool:
    if process.pid == os.getpid():
        return False
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE and process.environ().get(_MARK) == mark)
    except (psutil.Error, OSError):
        return False


def _share_font_cache(target: Path) -> None:
    """matplotlib's list of fonts takes seconds to make; a copy of the user's own is enough."""
    homes = [os.environ.get("MPLCONFIGDIR"), os.environ.get("XDG_CACHE_HOME"), str(Path.home() / ".cache")]
    for home in filter(None, homes):
        for folder in (Path(home), Path(home) / "matplotlib"):
            for path in folder.glob("fontlist-*.json"):
                with contextlib.suppress(OSError):
                    shutil.copy(path, target)
