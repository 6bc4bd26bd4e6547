"""`python door.py PLAN COMMAND...`: behind new walls, with only what the plan shows, run the command. For "unshare".

PLAN is JSON: {"root": an empty folder, "show": [paths, read-only], "write": [[outside, inside], ...], "hide": [paths],
"links": {path: to}}. It is run by its file name, so it finds `linux.py` beside itself, and nothing else of the course.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import linux

__all__ = ["furnish", "walls"]

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")


def walls() -> None:
    """New namespaces; returns in their process 1, which ends when we do. We wait for it and end as it ends."""
    wanted = linux.NEW_MOUNTS | linux.NEW_PIDS | linux.NEW_NET | linux.NEW_IPC | linux.NEW_UTS
    linux.enter(wanted | linux.NEW_USER)
    linux.loopback_up()
    child = os.fork()
    if child:
        for number in (0, 1):
            os.close(number)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    linux.die_with_parent()


def furnish(plan: dict[str, Any]) -> None:
    """A file system that holds what the plan shows."""
    root = Path(plan["root"])
    linux.mount("tmpfs", root, "mode=755,size=16m")
    shown = [(path, path, False) for path in plan["show"]]
    shown += [(outside, inside, True) for outside, inside in plan["write"]]
    shown += [(f"/dev/{name}", f"/dev/{name}", True) for name in DEVICES]
    for place in ("/proc", "/tmp", "/dev/shm", "/var/tmp"):
        inside(root, place).mkdir(parents=True, exist_ok=True)
    for path in ("/tmp", "/dev/shm", "/var/tmp"):
        linux.mount("tmpfs", inside(root, path), "mode=1777,size=512m")
    linux.mount("proc", inside(root, "/proc"))
    for outside, name, writable in sorted(shown, key=lambda one: len(Path(one[1]).parts)):
        target = inside(root, name)
        if Path(outside).is_dir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
        linux.bind(outside, target, writable=writable)
    for path in plan["hide"]:
        if inside(root, path).is_dir():
            linux.mount("tmpfs", inside(root, path), "mode=555,size=1m")
    for path, to in plan["links"].items():
        inside(root, path).symlink_to(to)
    linux.switch_root(root)


def inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


if __name__ == "__main__":
    walls()
    furnish(json.loads(sys.argv[1]))
    os.execv(sys.argv[2], sys.argv[2:])
