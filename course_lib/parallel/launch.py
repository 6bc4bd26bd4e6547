"""Run a function on many ranks of this machine, also from a notebook cell.

A fork server (`_server.py`) that has imported torch forks the ranks, so that a call starts in a tenth of a second. A
rank has the caller's environment, working directory and import path, and reads the learner's files anew.
"""

import contextlib
import json
import math
import operator
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from course_lib.errors import RankError
from course_lib.parallel._crew import Crew, ForkServer, Starter, search_path
from course_lib.parallel._follow import Follower
from course_lib.parallel._lines import names
from course_lib.parallel._network import loopback, loopback_problem
from course_lib.parallel._parcel import pack_call

__all__ = ["join_ranks", "run_ranks"]

MAX_RANKS = 64
_lock = threading.RLock()
_starter: Starter | None = None


def run_ranks(fn: Callable[..., Any], ranks: int, *args: Any, timeout: float = 30.0, **kwargs: Any) -> list[Any]:
    """Call `fn(*args, **kwargs)` on each of `ranks` processes and return what each returned, in rank order.

    Inside, `torch.distributed` is initialised with gloo, torch has one thread, and RANK, WORLD_SIZE and LOCAL_RANK are
    set as torchrun sets them. `fn` may be defined in a notebook cell and use what other cells define; each rank gets a
    copy. What a rank prints appears here as "[rank 1] ...". Random numbers are those of a new process: other
    ones on each rank, until it seeds.

    `timeout` (seconds) counts from the moment when every rank is ready to call `fn`.

    `RankError` when something goes wrong: `.rank` failed first, `.ranks` are all that failed on their own, and the text
    has that rank's traceback (an exception), its signal (a killed process), or where every rank stands (a hang).

    Ranks that call different collectives, or one with different shapes or dtypes, or that return without one, are told
    by what torch's flight recorder wrote down on each. It sees DDP's and FSDP's calls too, and costs some 30
    microseconds a collective, which takes ten times that and more between two ranks. TORCH_DISTRIBUTED_DEBUG=DETAIL,
    which checks before each collective, works when it is set, but makes a collective about three times as long, and DDP
    cannot be made under it in torch 2.13. Sends and receives are not recorded: one without its partner shows as a hang.

    No process of a call is left when it ends, however it ends.
    """
    number = check(fn, ranks, timeout)
    parcel, sources = pack_call(fn, args, kwargs)
    names.update({file: name for file, (name, _) in sources.items()})
    with _lock:
        problem: RankError
        try:
            return _run(number, parcel, sources, timeout)
        except RankError as error:
            problem = error
    __tracebackhide__ = True
    raise problem.with_traceback(None) from None


def _run(ranks: int, parcel: bytes, sources: dict[str, tuple[str, str]], timeout: float) -> list[Any]:
    if (problem := loopback_problem()) is not None:
        raise RankError(f"ranks talk over the loopback network (127.0.0.1), which does not work here: {problem}")
    starter = _start()
    crew = Crew(starter, starter.start(ranks))
    try:
        for rank, process in enumerate(crew.processes):
            setup: dict[str, Any] = {"path": search_path(), "folder": _folder(), "sources": sources}
            setup |= {"rank": rank, "ranks": ranks, "environment": _environment(rank, ranks)}
            setup |= {"timeout": min(timeout, 1e6)}
            with contextlib.suppress(OSError):  # of one that has died already: found when listening
                process.connection.send_bytes(json.dumps(setup).encode("utf-8"))
                process.connection.send_bytes(parcel)
        results = Follower(crew, timeout).results()
        for process in crew.processes:
            with contextlib.suppress(OSError):
                process.connection.send_bytes(b"leave")
        if starter.release(crew.processes):
            crew.processes = []
        crew.dismiss(1.0)
        return results
    finally:
        crew.dismiss()


def check(fn: Callable[..., Any], ranks: int, timeout: float) -> int:
    """The number of ranks. `RankError`, in one line, for what cannot work."""
    if not callable(fn):
        raise RankError(f"run_ranks calls a function, and {fn!r} is none; write run_ranks(step, 2, ...), without ()")
    try:
        number = operator.index(ranks)
    except TypeError:
        raise RankError(f"ranks={ranks!r} has to be a whole number, for example 2") from None
    if isinstance(ranks, bool) or not 1 <= number <= MAX_RANKS:
        hint = "for more, traffic.fake_ranks simulates them" if number > MAX_RANKS else "for example 2"
        raise RankError(f"ranks={ranks!r} has to be from 1 to {MAX_RANKS} ({hint})")
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise RankError(f"timeout={timeout!r} has to be a number of seconds above 0, for example 30")
    inside = sys.modules.get("course_lib.parallel._rank")
    if inside is not None and inside.number is not None:
        raise RankError(f"run_ranks was called on rank {inside.number} of another run_ranks; start ranks outside")
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise RankError("torchrun has started the ranks already; use `with join_ranks():` and call the function itself")
    _start()  # it imports torch while this process does, if it has to
    from torch import distributed as dist

    if not dist.is_available() or not dist.is_gloo_available():
        raise RankError(
            "this build of torch has no gloo, over which ranks on a CPU talk; install torch from its own index"
        )
    return number


def _start() -> Starter:
    """What starts ranks in this process: kept from call to call."""
    global _starter
    if _starter is None or not _starter.alive():
        if hasattr(os, "fork") and os.environ.get("COURSE_RANKS") != "pool":
            _starter = ForkServer()
        else:
            from course_lib.parallel._pool import Pool

            _starter = Pool()
    return _starter


def _folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it has been removed
        return None


def _environment(rank: int, ranks: int) -> dict[str, str]:
    """The caller's environment with a rank's own part."""
    own = {
        "RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_RANK": rank,
        "LOCAL_WORLD_SIZE": ranks,
        "OMP_NUM_THREADS": 1,
    }
    environment = dict(os.environ) | {name: str(value) for name, value in own.items()}
    if name := loopback():
        environment.setdefault("GLOO_SOCKET_IFNAME", name)
    environment.setdefault("TORCH_FR_BUFFER_SIZE", "1024")
    return environment


@contextlib.contextmanager
def join_ranks() -> Iterator[int]:
    """Under torchrun: this process's rank, in a group that is ready; the group ends with the block.

        with join_ranks():
            step()          # the function that run_ranks(step, 2) calls

    Tensors on a CPU travel over gloo; where every rank of the node has a GPU (it is the current one), those on a GPU
    over NCCL. `RankError` outside torchrun.
    """
    import torch
    from torch import distributed as dist

    if "TORCHELASTIC_RUN_ID" not in os.environ:
        raise RankError("join_ranks needs torchrun: torchrun --nproc-per-node 2 script.py; elsewhere use run_ranks")
    local, here = int(os.environ["LOCAL_RANK"]), int(os.environ["LOCAL_WORLD_SIZE"])
    if here == int(os.environ["WORLD_SIZE"]) and (name := loopback()) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # one node: nothing leaves the machine
    backend = "gloo"
    if torch.cuda.is_available() and torch.cuda.device_count() >= here:
        torch.cuda.set_device(local)
        backend = "cpu:gloo,cuda:nccl"
    dist.init_process_group(backend)
    try:
        yield dist.get_rank()
    finally:
        dist.destroy_process_group()
