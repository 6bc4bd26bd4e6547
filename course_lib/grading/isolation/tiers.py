"""Which walls this machine offers, found out by running something behind them.

    tier = best_tier()                # "bwrap", "unshare", "process" or "plain"
    command(tier, [...], show=..., write=...)   # the words that start a program behind those walls

bwrap    Debian's bubblewrap: own files, processes and network (loopback alone)
unshare  the same by Linux' own calls, where bubblewrap is not installed
process  its own process group, folders, environment and limits; it can read what you can, and use your network
plain    the same without limits (Windows)
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from course_lib.errors import CourseError
from course_lib.grading.isolation.linux import USER

__all__ = ["TIERS", "Tier", "best_tier", "command", "shown_paths", "tier_named"]


@dataclass(frozen=True)
class Tier:
    """One way to keep learner code in."""

    name: str
    walls: bool
    """Whether files, processes and network of this machine are out of its reach."""
    what: str
    """In words, for the report."""


TIERS = {
    "bwrap": Tier("bwrap", True, "bubblewrap: own files, processes and network, loopback alone"),
    "unshare": Tier("unshare", True, "Linux namespaces: own files, processes and network, loopback alone"),
    "process": Tier("process", False, "its own process group and limits; NOT kept from your files and your network"),
    "plain": Tier("plain", False, "its own process; NO limits, NOT kept from your files and your network"),
}

_SYSTEM: tuple[str, ...] = (
    "/usr",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/fonts",
)
_SYSTEM += ("/etc/localtime", "/etc/nsswitch.conf", "/etc/mime.types", "/var/cache/fontconfig")
_TOP = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_SYS = ("/sys/devices/system/cpu", "/sys/devices/system/node")

PROBE = """
import os, socket, sys
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname(), 5).close()
names = [name for _, name in socket.if_nameindex()]
far = not os.path.exists(sys.argv[1]) and names == ["lo"] and len([n for n in os.listdir("/proc") if n.isdigit()]) < 4
open(sys.argv[2] + "/here", "w").close()
sys.exit(0 if far else 3)
"""


def best_tier() -> Tier:
    """The strongest that works here."""
    return next(tier for tier in TIERS.values() if works(tier.name))


def tier_named(name: str) -> Tier:
    """CourseError when it is unknown, or does not work on this machine."""
    if name not in TIERS:
        raise CourseError(f"isolation {name!r} is unknown (there are: {', '.join(TIERS)})")
    if not works(name):
        raise CourseError(
            f"isolation {name!r} does not work on this machine; the strongest that does: {best_tier().name}"
        )
    return TIERS[name]


@lru_cache
def works(name: str) -> bool:
    """Run a probe behind these walls: loopback is up and alone, our files are out of sight, few processes are seen."""
    if name == "plain":
        return True
    if name == "process":
        return os.name == "posix"
    if sys.platform != "linux" or (name == "bwrap" and shutil.which("bwrap") is None):
        return False
    with TemporaryDirectory(prefix="course-probe-") as folder:
        secret, shared, root = (Path(folder).resolve() / part for part in ("secret", "shared", "root"))
        for path in (secret, shared, root):
            path.mkdir()
        words = [sys.executable, "-S", "-c", PROBE, str(secret), "/room"]
        try:
            done = subprocess.run(
                command(name, words, write=[(shared, "/room")], root=root),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=30,
                cwd="/",
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0 and (shared / "here").exists()


def shown_paths() -> list[Path]:
    """What a Python needs to run: the system's programs and libraries, this Python, and its packages."""
    found = [Path(path) for path in _SYSTEM if os.path.exists(path)]
    found += [Path(path) for path in _TOP if os.path.isdir(path) and not os.path.islink(path)]
    found += [Path(path) for path in _SYS if os.path.isdir(path)]
    python = [
        Path(sys.prefix),
        Path(sys.base_prefix),
        Path(sys.executable).parent,
        Path(sys.executable).resolve().parent,
    ]
    python += [Path(path) for path in sys.path if "site-packages" in path or "dist-packages" in path]
    found += [path for path in python if os.path.isdir(path) and path != Path("/")]  # False where it may not look
    kept: list[Path] = []
    for path in sorted(set(found), key=lambda path: len(path.parts)):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
    return kept


def command(
    name: str,
    words: Sequence[str],
    *,
    show: Sequence[Path] = (),
    write: Sequence[tuple[Path, str]] = (),
    hide: Sequence[Path] = (),
    root: Path,
) -> list[str]:
    """The words that run `words` behind the walls of this tier.

    show: more paths to read; write: (outside, inside) folders to write; hide: folders that stand in a shown one and are
    to be empty; root: an empty folder outside, which the new file system may stand on.
    """
    if name not in ("bwrap", "unshare"):
        return list(words)
    shown = [str(path) for path in [*shown_paths(), *show]]
    links = {path: os.readlink(path) for path in _TOP if os.path.islink(path)}
    hidden = [str(path) for path in hide if path.is_dir()]
    if name == "unshare":
        plan = {
            "root": str(root),
            "show": shown,
            "write": [[str(a), b] for a, b in write],
            "hide": hidden,
            "links": links,
        }
        door = Path(__file__).with_name("door.py")
        return [sys.executable, "-S", "-E", str(door), json.dumps(plan), *words]
    out = [
        "bwrap",
        "--unshare-all",
        "--uid",
        str(USER),
        "--gid",
        str(USER),
        "--die-with-parent",
        "--new-session",
        "--cap-drop",
        "ALL",
    ]
    for size_of in ("/tmp", "/var/tmp"):
        out += ["--perms", "1777", "--size", str(512 * 2**20), "--tmpfs", size_of]
    out += ["--proc", "/proc", "--dev", "/dev"]
    for path in shown:
        out += ["--ro-bind", path, path]
    for path in hidden:
        out += ["--tmpfs", path]
    for path, to in links.items():
        out += ["--symlink", to, path]
    for outside, inside in write:
        out += ["--bind", str(outside), inside]
    return [*out, "--chdir", "/", "--", *words]
