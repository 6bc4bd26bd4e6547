"""Run a function on many ranks of this machine, also from a notebook cell."""

import itertools
import json
import os
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any

import cloudpickle

from course_lib.errors import RankError
from course_lib.parallel import _crew

__all__ = ["run_ranks"]

_calls = itertools.count()


def run_ranks(fn: Callable[..., Any], ranks: int, *args: Any, timeout: float = 30.0, **kwargs: Any) -> list[Any]:
    """Call `fn(*args, **kwargs)` on each of `ranks` processes and return what each returned, in rank order.

    Inside, `torch.distributed` is initialised with gloo. What a rank prints comes here as "[rank 1] ...".
    `RankError` says which rank failed first and shows its traceback.
    `timeout` (seconds) counts from the moment when every rank is ready.
    """
    parcel = cloudpickle.dumps((fn, args, kwargs))
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    crew = _crew.start(ranks)
    try:
        call = f"call-{next(_calls)}"
        for rank, process in enumerate(crew.processes):
            setup = {"path": [os.path.abspath(part or os.curdir) for part in sys.path], "folder": os.getcwd()}
            setup |= {"environment": _environment(rank, ranks), "rank": rank, "ranks": ranks}
            setup |= {"port": store.port, "call": call, "timeout": timeout}
            process.connection.send_bytes(json.dumps(setup).encode())
            process.connection.send_bytes(parcel)
        results = _follow(crew, timeout)
        for process in crew.processes:
            process.connection.send_bytes(b"leave")
        crew.dismiss(1.0)
        return results
    finally:
        crew.dismiss()


def _environment(rank: int, ranks: int) -> dict[str, str]:
    own = {"RANK": rank, "WORLD_SIZE": ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": ranks}
    environment = dict(os.environ) | {name: str(value) for name, value in own.items()}
    names = [name for _, name in socket.if_nameindex()]
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo" if "lo" in names else "lo0")
    environment.setdefault("OMP_NUM_THREADS", "1")
    return environment


def _follow(crew: _crew.Crew, timeout: float) -> list[Any]:
    number = len(crew.processes)
    results: dict[int, Any] = {}
    ready: set[int] = set()
    finished: set[int] = set()
    by_connection = {process.connection: rank for rank, process in enumerate(crew.processes)}
    end = time.monotonic() + 120
    while len(finished) < number:
        left = end - time.monotonic()
        if left <= 0:
            slow = tuple(sorted(set(range(number)) - finished))
            raise RankError(f"ranks {list(slow)} did not finish within {timeout:.0f} s", rank=slow[0], ranks=slow)
        for connection in wait(list(by_connection), left):
            rank = by_connection[connection]
            try:
                kind, _, content = cloudpickle.loads(connection.recv_bytes())
            except (EOFError, OSError):
                time.sleep(0.1)
                crew.exits()
                code = crew.processes[rank].code
                raise RankError(f"rank {rank} died (exit code {code})", rank=rank, ranks=(rank,)) from None
            if kind in ("stdout", "stderr"):
                stream = sys.stdout if kind == "stdout" else sys.stderr
                for line in content[0].split("\n"):
                    print(f"[rank {rank}] {line}", file=stream)
            elif kind == "ready":
                ready.add(rank)
                if len(ready) == number:
                    end = time.monotonic() + timeout
            elif kind == "returned":
                results[rank] = cloudpickle.loads(content[0])
            elif kind == "failed":
                name, text, trace = content
                raise RankError(f"rank {rank} failed with {name}: {text}\n\n{trace}", rank=rank, ranks=(rank,))
            elif kind == "finished":
                finished.add(rank)
    return [results[rank] for rank in range(number)]
