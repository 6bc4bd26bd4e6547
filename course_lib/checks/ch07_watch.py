"""What a rank of chapter 7's checks calls is written down, and compared with the other ranks' calls before it is made.

Gloo ends a process whose partner sends more than it expects, or that sends to a rank which does not exist; a learner
would see PyTorch break. Here the second of two ranks that do not agree raises a `Mismatch` instead.
"""

import json
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.guard import is_learners

__all__ = ["EARLY", "UNWAITED", "Mismatch", "Seen", "unwaited", "watched"]

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
OUTPUT_FIRST = ("all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter")
"""Every rank of them calls with equally large tensors, and the first argument is what is filled."""

EARLY = 2.0**40
"""What stands in a tensor from `irecv` on until it has been waited for."""


class Mismatch(Exception):
    """A call that the other ranks' calls do not go with: what to tell, and the misconception ("" for none)."""

    def __init__(self, text: str, rule: str = "") -> None:
        super().__init__(f"{text} <{rule}>")


class Seen(list[Any]):
    """[kind, elements of the whole tensor, the rank it goes to (-1 for a collective), addresses of its memory]."""

    def __init__(self) -> None:
        super().__init__()
        self.begun: Counter[str] = Counter()
        """Handles that were given out and not waited for, by what gave them."""
        self.dropped: list[str] = []
        """What gave the handles that nobody can wait for any more."""


UNWAITED = {
    "isend": ("`isend` returns at once: keep what it returns, and wait for it", "isend-has-sent"),
    "irecv": ("`irecv` returns at once: keep what it returns, and wait for it", "irecv-has-received"),
    "async_op": ("with `async_op=True` a call returns at once: keep what it returns, and wait for it", "async-is-done"),
}


class _Handle:
    """What a call that returns at once returns: the caller's tensors are filled when it is waited for, not before."""

    def __init__(self, work: Any, seen: Seen, made_by: str, pairs: list[tuple[Tensor, Tensor]]) -> None:
        self.work, self.seen, self.made_by, self.pairs, self.done = work, seen, made_by, pairs, False
        seen.begun[made_by] += 1

    def wait(self, *args: Any, **kwargs: Any) -> Any:
        if self.done:  # gloo would wait for ever for a sending that has ended
            return True
        done = self.work.wait(*args, **kwargs)
        self._end()
        return done

    def is_completed(self) -> bool:
        done = self.done or bool(self.work.is_completed())
        if done:
            self._end()
        return done

    def get_future(self) -> Any:
        def ended(future: Any) -> Any:
            self._end()
            return future.value()

        return self.work.get_future().then(ended)

    def _end(self) -> None:
        if not self.done:
            self.done = True
            self.seen.begun[self.made_by] -= 1
            with torch.no_grad():
                for tensor, arrived in self.pairs:
                    tensor.copy_(arrived)
            self.pairs = []

    def __del__(self) -> None:
        if not self.done:
            self.seen.dropped.append(self.made_by)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.work, name)


class _Calls:
    """This rank's calls, counted, each compared with the others' through the store in which the ranks met."""

    def __init__(self, store: Any) -> None:
        self.store, self.count, self.any_source = store, Counter[str](), False

    def first_of(self, key: str, mine: dict[str, Any]) -> dict[str, Any]:
        """What the first rank to come here has called."""
        self.count[key] += 1
        told = json.dumps(mine)
        first: dict[str, Any] = json.loads(self.store.compare_set(f"watched/{key}/{self.count[key]}", "", told))
        return first


_calls = _Calls(None)


def _line() -> str:
    """ " at line 9": where the learner's code stands."""
    frame: types.FrameType | None = sys._getframe(1)
    while frame is not None and not is_learners(frame.f_code.co_filename):
        frame = frame.f_back
    return f" at line {frame.f_lineno}" if frame is not None else ""


def _compare(kind: str, elements: int, dtype: str, group: Any, stage: str) -> None:
    """Refuse a collective that another rank, at this place of its row, has not called."""
    mine = {"rank": dist.get_rank(), "kind": kind, "elements": elements, "dtype": dtype, "stage": stage}
    mine["line"] = _line()
    first = _calls.first_of(f"group/{group.group_name}", mine)
    same_size = kind not in OUTPUT_FIRST or (elements, dtype) == (first["elements"], first["dtype"])
    if first["kind"] != kind or first["stage"] != stage or not same_size:
        both = "; ".join(_in_words(call, first["dtype"] != dtype) for call in (mine, first))
        text = f"{both}. All ranks have to make the same calls, of the same sizes, in the same order"
        raise Mismatch(text, "ranks-need-not-agree")


def _in_words(call: dict[str, Any], dtypes: bool) -> str:
    size = f" of {_numbers(call['elements'])}" if call["kind"] in OUTPUT_FIRST else ""
    dtype = f" in {call['dtype']}" if dtypes and size else ""
    stage = f", in {call['stage']}" if call["stage"] else ""
    return f"rank {call['rank']} calls {call['kind']}{size}{dtype}{call['line']}{stage}"


def _numbers(count: int) -> str:
    return f"{count} number{'s' if count != 1 else ''}"


def _pair(source: int, to: int, tag: int, tensors: list[Tensor], sends: bool) -> None:
    """Refuse a rank that does not exist, and a receive whose tensor is smaller than what is sent to it."""
    n, me, peer = dist.get_world_size(), (source if sends else to), (to if sends else source)
    does = "sends to" if sends else "receives from"
    if n == 1 or peer == me:
        raise Mismatch(f"rank {me} {does} itself; {'there is no other' if n == 1 else 'only others can answer'}")
    if not 0 <= peer < n:
        text = f"rank {me} {does} rank {peer}{_line()}: there are ranks 0 to {n - 1}. Which one is next in a ring?"
        raise Mismatch(text, "a-ring-has-ends")
    if _calls.any_source and not sends:
        return
    mine: dict[str, Any] = {
        "bytes": sum(t.numel() * t.element_size() for t in tensors),
        "elements": sum(t.numel() for t in tensors),
        "line": _line(),
    }
    first = _calls.first_of(f"pair/{source}/{to}/{tag}", mine)
    sent, received = (mine, first) if sends else (first, mine)
    if sent["bytes"] > received["bytes"]:
        text = f"rank {to} receives {_numbers(received['elements'])}{received['line']} from rank {source}, which sends "
        raise Mismatch(f"{text}{sent['elements']}{sent['line']}. Does this message go with this receive?")


def _inside(name: str) -> bool:
    """Whether `dist.NAME` is calling, which waits at once and is to be seen waiting where a hang is told."""
    frame: types.FrameType | None = sys._getframe(2)
    for _ in range(5):  # dist.recv calls irecv, each behind a wrapper
        if frame is None:
            return False
        if frame.f_code.co_name == name and frame.f_globals.get("__name__") == dist.irecv.__module__:
            return True
        frame = frame.f_back
    return False


def _returns_at_once() -> bool:
    frame: types.FrameType | None = sys._getframe(2)
    return bool(frame is not None and frame.f_locals.get("async_op"))


@contextmanager
def watched(stage: str = "") -> Iterator[Seen]:
    """Write down what this rank sends. Only on a rank: the class of all groups is changed meanwhile.

    stage: where this call of the answer stands; a collective of one stage does not go with one of another.
    Who reads what `irecv` was given before waiting for it reads `EARLY`, and not by chance the message itself; who does
    not wait for an asynchronous collective reads what was there before it.
    """
    global _calls
    store = dist.distributed_c10d._get_default_store()
    if store is not _calls.store:
        _calls = _Calls(store)
    group, seen = dist.ProcessGroup, Seen()
    kept = {name: getattr(group, name) for name in KINDS if hasattr(group, name)}
    inner_recv, inner_any, inner_barrier = group.recv, group.recv_anysource, group.barrier

    def wrap(name: str, inner: Callable[..., Any]) -> Callable[..., Any]:
        kind = KINDS[name]

        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            _nothing_dropped(seen)
            tensors = [list(_tensors(part)) for part in (*args, *kwargs.values())]
            elements = max((sum(t.numel() for t in part) for part in tensors), default=0)
            peer = int(args[1]) if kind == "send" and len(args) > 1 else -1
            seen.append([kind, elements, peer, [t.data_ptr() for part in tensors for t in part]])
            if kind == "send":
                if self.size() == dist.get_world_size():
                    _pair(dist.get_rank(), peer, int(args[2]) if len(args) > 2 else 0, tensors[0], sends=True)
                work = inner(self, *args, **kwargs)
                return work if _inside("send") else _Handle(work, seen, "isend", [])
            dtype = str(tensors[0][0].dtype).removeprefix("torch.") if tensors and tensors[0] else ""
            _compare(kind, elements, dtype, self, stage)
            if kind not in OUTPUT_FIRST or not args or not _returns_at_once():
                return inner(self, *args, **kwargs)
            given = list(_tensors(args[0]))
            fresh = [t.detach().clone() for t in given]
            work = inner(self, _in_place_of(args[0], iter(fresh)), *args[1:], **kwargs)
            return _Handle(work, seen, "async_op", list(zip(given, fresh, strict=True)))

        return call

    def recv(self: Any, tensors: list[Tensor], source: int, tag: int = 0, *args: Any, **kwargs: Any) -> Any:
        _nothing_dropped(seen)
        if self.size() == dist.get_world_size():
            _pair(source, dist.get_rank(), tag, tensors, sends=False)
        if _inside("recv"):
            return inner_recv(self, tensors, source, tag, *args, **kwargs)
        arrived = [torch.full_like(t, EARLY if t.is_floating_point() else 0) for t in tensors]
        with torch.no_grad():
            for t in tensors:
                t.fill_(EARLY if t.is_floating_point() else 0)
        work = inner_recv(self, arrived, source, tag, *args, **kwargs)
        return _Handle(work, seen, "irecv", list(zip(tensors, arrived, strict=True)))

    def recv_anysource(self: Any, *args: Any, **kwargs: Any) -> Any:
        _calls.any_source = True  # which message comes is not known, so none is compared
        return inner_any(self, *args, **kwargs)

    def barrier(self: Any, *args: Any, **kwargs: Any) -> Any:
        _compare("barrier", 0, "", self, stage)
        return inner_barrier(self, *args, **kwargs)

    for name, inner in kept.items():
        setattr(group, name, wrap(name, inner))
    kept |= {"recv": inner_recv, "recv_anysource": inner_any, "barrier": inner_barrier}
    for name, function in {"recv": recv, "recv_anysource": recv_anysource, "barrier": barrier}.items():
        setattr(group, name, function)
    try:
        yield seen
    finally:
        for name, inner in kept.items():
            setattr(group, name, inner)


def _nothing_dropped(seen: Seen) -> None:
    if seen.dropped:
        raise Mismatch(*UNWAITED[seen.dropped[0]])


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


def _in_place_of(value: Any, fresh: Iterator[Tensor]) -> Any:
    """The same nest of lists with other tensors in it."""
    if isinstance(value, list | tuple):
        return [_in_place_of(item, fresh) for item in value]
    return next(fresh) if isinstance(value, Tensor) else value


def unwaited(seen: Seen) -> str:
    """What gave a handle that was never waited for; "" when there is none."""
    return next((name for name, count in seen.begun.items() if count > 0), "")
