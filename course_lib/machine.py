"""The machine, probed: cores, memory, devices, number formats, matmul peak, folders. Platform differences live here."""

import contextlib
import ctypes
import functools
import math
import os
import platform
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course_lib.errors import ConfigError

__all__ = [
    "TIME_IS_UP",
    "Machine",
    "bf16_speedup",
    "compile_problem",
    "cpu_name",
    "end_session",
    "find_compiler",
    "keep_memory",
    "material_dir",
    "matmul_peak",
    "own_session",
    "pick_device",
    "probe",
    "runs",
    "set_threads",
    "speedup",
    "time_limit",
    "torch_dtype",
    "usable_cores",
    "work_dir",
]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h
DTYPES = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def usable_cores() -> int:
    """Cores this process may use: its affinity, cut by a container's CPU quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cpu_quota(Path("/sys/fs/cgroup"))
    return max(1, min(cores, math.ceil(quota)) if quota is not None else cores)


def _cpu_quota(root: Path) -> float | None:
    """Cores' worth of time per second allowed by cgroup v2 or v1; None: no limit or no cgroup."""
    try:
        limit, period = (root / "cpu.max").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        try:
            limit = (root / "cpu" / "cpu.cfs_quota_us").read_text(encoding="ascii").strip()
            period = (root / "cpu" / "cpu.cfs_period_us").read_text(encoding="ascii").strip()
        except OSError:
            return None
    try:
        cores = float(limit) / float(period)
    except (ValueError, ZeroDivisionError):  # "max"
        return None
    return cores if cores > 0 else None


_threads: int | None = None


def set_threads(n: int | None = None) -> int:
    """Set torch's threads once and return their number: n, else OMP_NUM_THREADS, else the usable cores.

    A later call without n changes nothing; with n, it sets them again. `ConfigError` for n < 1.
    """
    global _threads
    import torch

    if n is not None and n < 1:
        raise ConfigError(f"threads={n} must be at least 1; this machine has {usable_cores()} usable cores")
    if n is None and _threads is not None:
        return _threads
    if n is None:
        asked = os.environ.get("OMP_NUM_THREADS", "")
        n = int(asked) if asked.isdigit() and int(asked) > 0 else usable_cores()
    if torch.get_num_threads() != n:
        torch.set_num_threads(n)
    _threads = n
    return n


def keep_memory() -> bool:
    """Let the C library keep freed memory for the next step instead of giving it back to the system (glibc only).

    A step frees and asks for the same tens of MB again; otherwise every page comes back as a page fault. Tensors of
    2 MiB and more also get huge pages, if torch has not made its first tensor yet.
    Applies to the whole process, and its size stays at its peak. Returns whether it could be set.
    """
    if platform.system() != "Linux":
        return False
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # torch reads it once, at its first allocation
    try:
        libc = ctypes.CDLL("libc.so.6")
        limit = 2**30  # bytes
        return all(libc.mallopt(option, limit) == 1 for option in (_TRIM_THRESHOLD, _MMAP_THRESHOLD))
    except (OSError, AttributeError):  # another C library
        return False


def torch_dtype(name: str) -> Any:
    """The torch dtype called fp32, bf16 or fp16."""
    import torch

    if name not in DTYPES:
        raise ConfigError(f"dtype={name!r} is unknown (there are: {', '.join(DTYPES)})")
    return getattr(torch, DTYPES[name])


def _devices() -> tuple[str, ...]:
    import torch

    found = ["cpu"]
    if torch.cuda.is_available():
        found.append("cuda")
    if getattr(torch.backends, "mps", None) is not None and torch.backends.mps.is_available():
        found.append("mps")
    return tuple(found)


def pick_device(wanted: str = "auto") -> str:
    """ "auto" takes cuda, else mps, else cpu. `ConfigError` when the wanted device is unknown or absent."""
    found = _devices()
    if wanted == "auto":
        return "cuda" if "cuda" in found else "mps" if "mps" in found else "cpu"
    if wanted.split(":")[0] not in ("cpu", "cuda", "mps"):
        raise ConfigError(f"device={wanted!r} is unknown; this machine has: {', '.join(found)}")
    if wanted.split(":")[0] not in found:
        raise ConfigError(f"device={wanted!r} is not on this machine; it has: {', '.join(found)}")
    return wanted


def runs(device: str, dtype: str) -> bool:
    """Whether a matrix product and its gradient in this dtype really run on the device, with a finite result."""
    import torch

    try:
        a = torch.ones(8, 8, device=device, dtype=torch_dtype(dtype), requires_grad=True)
        (a @ a).sum().backward()
        return a.grad is not None and bool(torch.isfinite(a.grad).all())
    except (RuntimeError, TypeError, NotImplementedError):
        return False


def cpu_name() -> str:
    """Name of the processor, as the system gives it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _memory_bytes() -> int:
    """Memory this process may use, in bytes: the machine's, cut by a container's limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text(encoding="ascii")))
        except (OSError, ValueError):
            continue
    return total


@dataclass(frozen=True)
class Machine:
    """What was found. `dtypes[device][name]` says whether a matrix product in fp32, bf16 or fp16 really ran there."""

    system: str
    """Linux, Darwin or Windows, with its machine type."""
    cpu: str
    """Name of the processor."""
    cores: int
    """Usable cores: affinity and quota counted."""
    memory_bytes: int
    """Usable memory in bytes."""
    python: str
    """Python's version."""
    torch: str
    """torch's version."""
    devices: tuple[str, ...]
    """cpu, and cuda or mps where present."""
    dtypes: dict[str, dict[str, bool]]
    """Per device: which number formats ran."""
    threads: int
    """Threads that torch uses."""


def probe() -> Machine:
    """Look at this machine. Takes about a second the first time (it imports torch)."""
    import torch

    threads = set_threads()
    devices = _devices()
    return Machine(
        system=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=_memory_bytes(),
        python=platform.python_version(),
        torch=torch.__version__,
        devices=devices,
        dtypes={device: {name: runs(device, name) for name in DTYPES} for device in devices},
        threads=threads,
    )


def find_compiler() -> str | None:
    """Path of the C++ compiler that torch.compile would use (CXX, g++, clang++ or cl); None when there is none."""
    names = [os.environ.get("CXX", ""), *(("cl",) if platform.system() == "Windows" else ("g++", "clang++", "c++"))]
    return next((path for name in names if name and (path := shutil.which(name))), None)


def _sync(device: str) -> None:
    import torch

    if device.startswith("cuda"):
        torch.cuda.synchronize()
    elif device.startswith("mps"):
        torch.mps.synchronize()


def matmul_rate(size: int, dtype: str, seconds: float, device: str = "cpu") -> float:
    """Best measured FLOP/s of a size x size matrix product (2 size^3 FLOPs each), within about `seconds`."""
    import torch

    generator = torch.Generator().manual_seed(0)
    a = torch.randn(size, size, generator=generator).to(device, torch_dtype(dtype))
    out = torch.empty_like(a)
    best = math.inf
    end = time.perf_counter() + seconds
    with torch.inference_mode():
        torch.mm(a, a, out=out)
        _sync(device)
        while True:
            start = time.perf_counter()
            torch.mm(a, a, out=out)
            _sync(device)
            now = time.perf_counter()
            best = min(best, now - start)
            if now >= end:
                return 2 * size**3 / best


def matmul_peak(dtype: str = "fp32", seconds: float = 0.3, device: str = "cpu") -> float:
    """FLOP/s of square matrix products, measured: the best single product of a few sizes. What MFU divides by."""
    set_threads()
    sizes = (512, 1024, 1536) if device == "cpu" else (2048, 4096, 8192)
    return max(matmul_rate(size, dtype, seconds / len(sizes), device) for size in sizes)


def speedup(name: str, device: str = "cpu", *, size: int = 384, rounds: int = 4, seconds: float = 0.005) -> float:
    """Rate of a matrix product in `name` as a multiple of FP32's: the best of `rounds`, taken in turns."""
    rates = {"fp32": 0.0, name: 0.0}
    for _ in range(rounds):
        for one in rates:
            rates[one] = max(rates[one], matmul_rate(size, one, seconds, device))
    return rates[name] / rates["fp32"]


@functools.lru_cache(maxsize=8)
def bf16_speedup(device: str = "cpu") -> float:
    """How many times faster a BF16 matrix product is than an FP32 one, measured once (about 50 ms)."""
    return speedup("bf16", device)


def compile_problem() -> str | None:
    """Why torch.compile cannot work here, in a line that says what to do; None when nothing is known against it."""
    if find_compiler() is None:
        return "compile needs a C++ compiler (g++, clang++ or cl), and none was found; leave it out"
    import torch

    folder = str(Path(torch.__file__).parent)
    if " " in folder:  # Inductor of torch 2.13 calls the compiler with its paths unquoted
        return f"compile cannot work with a space in torch's path ({folder}); move the course, or leave it out"
    return None


TIME_IS_UP = "the time is up"


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """TimeoutError(TIME_IS_UP) inside the block after `seconds`; no limit on Windows and outside the main thread."""
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_: object) -> None:
        raise TimeoutError(TIME_IS_UP)

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def own_session() -> dict[str, Any]:
    """Keyword arguments of `subprocess.Popen` that give a process, and what it starts, a session of its own."""
    if os.name == "nt":
        return {"creationflags": getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)}
    return {"start_new_session": True}


def end_session(process: "subprocess.Popen[Any]") -> None:
    """End a process started with `own_session`, and (not on Windows) all that is still in its session's group."""
    if os.name == "nt":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def material_dir() -> Path:
    """The folder of notebooks/, exercises/ and (not in a class release) solutions/: the clone, else the package's."""
    here = Path(__file__).resolve().parent
    root = here.parent
    return root if (root / "notebooks").is_dir() and (root / "exercises").is_dir() else here / "_material"


def work_dir() -> Path:
    """The learner's own folder: COURSE_WORK if set, else work/ of the clone, else ./work. Not created here."""
    if os.environ.get("COURSE_WORK"):
        return Path(os.environ["COURSE_WORK"]).expanduser()
    material = material_dir()
    return Path.cwd() / "work" if material.name == "_material" else material / "work"
