"""Linux' own walls: namespaces, mounts, a loopback that is up. A few system calls, with nothing of ours around them.

Python 3.11 has none of them. Numbers are those of <linux/sched.h> and <linux/mount.h>, the same on every architecture.
"""

import ctypes
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = [
    "NEW_IPC",
    "NEW_MOUNTS",
    "NEW_NET",
    "NEW_PIDS",
    "NEW_USER",
    "NEW_UTS",
    "USER",
    "adopt_orphans",
    "bind",
    "die_with_parent",
    "drop_rights",
    "enter",
    "limit_memory",
    "loopback_up",
    "mount",
    "read_only",
    "switch_root",
]

NEW_MOUNTS, NEW_UTS, NEW_IPC, NEW_USER = 0x0002_0000, 0x0400_0000, 0x0800_0000, 0x1000_0000
NEW_PIDS, NEW_NET = 0x2000_0000, 0x4000_0000

USER = 1000
"""Who learner code is, behind the walls."""

_READ_ONLY, _NO_SUID, _NO_DEV, _REMOUNT, _NO_ATIME, _BIND = 1, 2, 4, 32, 1024, 4096
_RECURSIVE, _PRIVATE, _DETACH, _DEATH_SIGNAL, _ADOPT, _NO_NEW = 16384, 1 << 18, 2, 1, 36, 38
_REL_ATIME, _ST_RELATIME = 1 << 21, 4096


def _call(name: str, *arguments: object) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def enter(flags: int) -> None:
    """Leave the namespaces that `flags` names for new ones; with NEW_USER as user USER, who is nobody special. OSError.

    Linux lets user 0 be mapped only by who has every right, which a process inside other walls has not.
    """
    user, group = os.getuid(), os.getgid()
    _call("unshare", flags)
    if flags & NEW_USER:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii", newline="\n")
        Path("/proc/self/uid_map").write_text(f"{USER} {user} 1", encoding="ascii", newline="\n")
        Path("/proc/self/gid_map").write_text(f"{USER} {group} 1", encoding="ascii", newline="\n")
    if flags & NEW_MOUNTS:
        _call("mount", b"none", b"/", None, ctypes.c_ulong(_RECURSIVE | _PRIVATE), None)


def mount(kind: str, where: Path | str, options: str = "") -> None:
    """A new file system of this kind (tmpfs, proc). No programs with another owner's rights, no devices."""
    flags = ctypes.c_ulong(_NO_SUID | _NO_DEV)
    _call("mount", kind.encode(), os.fsencode(where), kind.encode(), flags, options.encode() or None)


def bind(source: Path | str, target: Path | str, *, writable: bool = False) -> None:
    """Show `source` at `target`, read-only unless `writable`. Both exist."""
    _call("mount", os.fsencode(source), os.fsencode(target), None, ctypes.c_ulong(_BIND | _RECURSIVE), None)
    if writable:
        return
    read_only(target)


def read_only(target: Path | str) -> None:
    """Forbid this process, and what it starts, to write at a mount."""
    kept = os.statvfs(target).f_flag  # what the mount forbids already must be forbidden again
    flags = _BIND | _REMOUNT | _READ_ONLY | (kept & (_NO_SUID | _NO_DEV | 8 | _NO_ATIME))
    flags |= _REL_ATIME if kept & _ST_RELATIME else 0
    _call("mount", None, os.fsencode(target), None, ctypes.c_ulong(flags), None)


def switch_root(new: Path) -> None:
    """Make `new` the root of the file system, and let go of the old one."""
    os.chdir(new)
    (new / ".old").mkdir()
    _call("pivot_root", os.fsencode(new), os.fsencode(new / ".old"))
    os.chdir("/")
    _call("umount2", b"/.old", _DETACH)
    os.rmdir("/.old")


def die_with_parent(by: int | None = None) -> None:
    """This process gets a signal when the one that started it ends: SIGKILL, or another one."""
    if sys.platform == "linux":
        _call("prctl", _DEATH_SIGNAL, by or signal.SIGKILL, 0, 0, 0)


def limit_memory(size: int) -> None:
    """This process may map so many bytes, and no more."""
    if sys.platform == "linux":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (size, size))


def drop_rights() -> None:
    """This process, and what it starts, may not mount or unmount, nor gain rights by a program."""
    if sys.platform == "linux":
        _call("capset", struct.pack("Ii", 0x2008_0522, 0), bytes(24))  # version 3, this thread; no right at all
        _call("prctl", _NO_NEW, 1, 0, 0, 0)


def adopt_orphans() -> None:
    """What a process below this one leaves behind becomes this one's child, and not that of the system's first."""
    if sys.platform == "linux":
        _call("prctl", _ADOPT, 1, 0, 0, 0)


def loopback_up(names: Sequence[str] = ("lo",)) -> None:
    """In a new network namespace: 127.0.0.1 can be reached, and nothing else."""
    import fcntl  # not on Windows, where this module is imported too

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as handle:
        for name in names:
            request = struct.pack("16sH14s", name.encode(), 0, b"")
            flags = struct.unpack("16sH14s", fcntl.ioctl(handle, 0x8913, request))[1]  # SIOCGIFFLAGS
            fcntl.ioctl(handle, 0x8914, struct.pack("16sH14s", name.encode(), flags | 1, b""))  # SIOCSIFFLAGS, IFF_UP
