"""How checks of chapter 7 run an answer on real ranks, watch what it sends, and tell what went wrong on which rank."""

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.core import Wrong
from course_lib.checks.guard import is_learners, is_stub, time_limit_paused

__all__ = ["COLLECTIVES", "EARLY", "HANG_SECONDS", "Sent", "on_ranks", "stopped", "watched"]

HANG_SECONDS = 4.0
"""After so long an answer that waits for itself is stopped. The slowest reference takes 0.1 s."""

COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in (
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
        "nn",
        "_functional_collectives",
    )
)

KINDS = {
    "send": "send",
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce",
    "allgather": "all_gather",
    "_allgather_base": "all_gather",
    "allgather_coalesced": "all_gather",
    "allgather_into_tensor_coalesced": "all_gather",
    "reduce_scatter": "reduce_scatter",
    "_reduce_scatter_base": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
}
"""Methods of a process group, under which every call of `torch.distributed` ends, and what they are called there."""

Sent = list[Any]
"""[kind, elements of the whole tensor, the rank it goes to (-1 for a collective), addresses of its memory]."""


EARLY = 2.0**40
"""What stands in a tensor from `irecv` on until it has been waited for."""


class _Arriving:
    """The handle of a receive: what has arrived gets to the caller's tensors when the caller waits, not before."""

    def __init__(self, work: Any, tensors: list[Tensor], arrived: list[Tensor]) -> None:
        self.work, self.pairs = work, list(zip(tensors, arrived, strict=True))

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        done = self.work.wait(*args, **kwargs)
        self._hand_over()
        return done

    def is_completed(self) -> bool:
        done = bool(self.work.is_completed())
        if done:
            self._hand_over()
        return done

    def _hand_over(self) -> None:
        with torch.no_grad():
            for tensor, arrived in self.pairs:
                tensor.copy_(arrived)
        self.pairs = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


def _inside_dist_recv() -> bool:
    frame = sys._getframe(2)
    for _ in range(4):  # dist.recv calls irecv, each behind a wrapper
        if frame.f_code.co_name == "recv" and frame.f_globals.get("__name__") == dist.irecv.__module__:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


@contextmanager
def watched() -> Iterator[list[Sent]]:
    """Write down what this rank sends. Only on a rank: the class of all groups is changed meanwhile.

    Who reads what `irecv` was given before waiting for it reads `EARLY`, and not by chance the message itself.
    """
    group, seen = dist.ProcessGroup, []
    kept = {name: getattr(group, name) for name in KINDS if hasattr(group, name)}

    def wrap(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            tensors = [list(_tensors(part)) for part in (*args, *kwargs.values())]
            elements = max((sum(t.numel() for t in part) for part in tensors), default=0)
            peer = int(args[1]) if name == "send" and len(args) > 1 else -1
            seen.append([KINDS[name], elements, peer, [t.data_ptr() for part in tensors for t in part]])
            return inner(self, *args, **kwargs)

        return call

    for name, inner in kept.items():
        setattr(group, name, wrap(name, inner))
    receive = kept["recv"] = group.recv

    def recv(self: Any, tensors: list[Tensor], *args: Any, **kwargs: Any) -> Any:
        if _inside_dist_recv():  # it waits at once, and is to be seen waiting where a hang is told
            return receive(self, tensors, *args, **kwargs)
        arrived = [torch.full_like(t, EARLY if t.is_floating_point() else 0) for t in tensors]
        with torch.no_grad():
            for t in tensors:
                t.fill_(EARLY if t.is_floating_point() else 0)
        return _Arriving(receive(self, arrived, *args, **kwargs), tensors, arrived)

    group.recv = recv  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        for name, inner in kept.items():
            setattr(group, name, inner)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def on_ranks(work: Callable[..., Any], ranks: int, *args: Any) -> dict[str, Any]:
    """{"ranks": what each rank returned}, or {"stopped": {"hung": ..., "text": ...}} when one of them did not.

    `work` is called as work(*args) on every rank. A stub raises NotImplementedError here, as it would without ranks.
    """
    from course_lib.errors import RankError
    from course_lib.parallel.launch import run_ranks

    try:
        with time_limit_paused():  # the first call starts a server, which takes long where the machine is busy
            returned = run_ranks(_attempt, ranks, work, args, timeout=HANG_SECONDS)
    except RankError as error:
        return {"stopped": _told(error)}
    if any(one == STUB for one in returned):
        raise NotImplementedError()
    return {"ranks": returned}


STUB = "not written yet"


def _attempt(work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return work(*args)
    except NotImplementedError as error:
        if is_stub(error):
            return STUB
        raise


FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
DISAGREE = ("did not finish", "returned without", "called another", "used another")


def _told(error: Any) -> dict[str, Any]:
    """What a message needs of a RankError: its first line, whether the ranks did not agree, and where they stood."""
    first, *rest = str(error).strip().splitlines()
    standing = [line.strip() for line in rest if re.match(r" +rank \d+:", line)]
    for line, code in zip(rest, [*rest[1:], ""], strict=False):
        frame = FRAME.match(line)
        if frame and is_learners(frame["file"]):
            text = "" if FRAME.match(code) else code.strip()
            standing = [f"line {frame['line']} of your cell, in {frame['name']}: {text}"]
    disagree = any(words in first for words in DISAGREE)
    return {"first": " ".join(first.split())[:240], "disagree": disagree, "standing": standing[:8]}


def stopped(told: dict[str, Any], disagree: str | None, ask: str = "") -> Wrong:
    """The message for an answer that did not come to its end; `disagree`: the misconception of ranks that wait."""
    where = "".join(f"\n    {line[:200]}" for line in told["standing"])
    if told["disagree"]:
        ask = ask or "What does each of them wait for, and which rank is to do it?"
        return Wrong(f"{told['first']}. {ask}{where}", disagree)
    return Wrong(f"{told['first']}{where}")
