"""Where no process can be forked (Windows): a new kernel is started for each hand-in, which takes seconds."""

import contextlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import mkdtemp
from types import TracebackType
from typing import Any

import psutil

from course_lib.grading.isolation import linux
from course_lib.grading.isolation.restore import DESK
from course_lib.grading.isolation.tiers import TIERS, Tier
from course_lib.grading.isolation.warm import MARK, Limits, Nursery, empty, end_marked, over, remove, usage

__all__ = ["ColdKernel", "ColdNursery", "nursery_for"]


def nursery_for(tier: Tier, library: Path) -> "Nursery | ColdNursery":
    """The one that this tier has: `plain` starts each kernel anew."""
    return ColdNursery(library) if tier.name == "plain" else Nursery(tier, library)


class ColdNursery:
    """As `warm.Nursery`, without a warm process."""

    tier = TIERS["plain"]

    def __init__(self, library: Path) -> None:
        self.library, self.folder = library, Path()

    def __enter__(self) -> "ColdNursery":
        linux.adopt_orphans()
        self.folder = Path(mkdtemp(prefix="course-grade-")).resolve()
        (self.folder / "room").mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        remove(self.folder)

    @property
    def room(self) -> Path:
        """The folder of records and cases."""
        return self.folder / "room"

    @property
    def inside(self) -> str:
        """The same folder, as the kernel sees it."""
        return str(self.room)

    def empty_room(self) -> None:
        """Take away what an earlier hand-in left."""
        empty(self.room)

    def kernel(self, environment: Mapping[str, str], limits: Limits) -> "ColdKernel":
        """A new kernel."""
        return ColdKernel(self, environment, limits)


class ColdKernel:
    """One hand-in's kernel, over local ports."""

    def __init__(self, nursery: ColdNursery, environment: Mapping[str, str], limits: Limits) -> None:
        from jupyter_client.manager import KernelManager

        self.limits, self.mark = limits, os.urandom(16).hex()
        places = {name: nursery.room / name for name in ("home", "tmp", "ipython", "jupyter", "mpl", "desk")}
        for place in places.values():
            place.mkdir()
        own = {"HOME": "home", "USERPROFILE": "home", "TMPDIR": "tmp", "TEMP": "tmp", "TMP": "tmp"}
        own |= {"IPYTHONDIR": "ipython", "MPLCONFIGDIR": "mpl", DESK: "desk"}
        own |= dict.fromkeys(("JUPYTER_RUNTIME_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR"), "jupyter")
        kept = {**environment, MARK: self.mark, **{name: str(places[place]) for name, place in own.items()}}
        manager: Any = KernelManager(connection_file=str(nursery.room / "connection.json"))
        self.manager = manager
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}", "--IPKernelApp.ignore_cwd=True"]
        argv.append("--IPKernelApp.exec_lines=import sys; sys.path.append('')")
        self.manager.kernel_spec.argv = argv
        with open(os.devnull, "w", encoding="utf-8") as sink:
            self.manager.start_kernel(env=kept, cwd=str(places["desk"]), stdout=sink, stderr=sink)
        self.client: Any = self.manager.client()
        self.client.start_channels()

    def alive(self) -> bool:
        """Whether the kernel still runs."""
        return bool(self.manager.is_alive())

    def interrupt(self) -> None:
        """Ctrl-C."""
        self.manager.interrupt_kernel()

    def too_much(self) -> str | None:
        """What of its limits it has overstepped, in words; only processes and memory are watched."""
        with contextlib.suppress(psutil.Error):
            one = psutil.Process(self.manager.provisioner.pid)
            return over(self.limits, *usage([one, *one.children(recursive=True)]), 0)
        return None

    def end(self) -> None:
        """Kill the kernel and what it started; close the client."""
        self.client.stop_channels()
        with contextlib.suppress(RuntimeError, OSError, json.JSONDecodeError):
            self.manager.shutdown_kernel(now=True)
        end_marked(self.mark)
        left = psutil.Process().children(recursive=True)  # on Linux also orphans, which the worker has adopted
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        psutil.wait_procs(left, timeout=5)
