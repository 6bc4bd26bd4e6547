"""Whatever goes wrong: the right rank is named, what happened and where; nothing is left; the next call works."""

import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psutil
import pytest
import torch
import torch.distributed as dist

from course_lib.errors import RankError
from course_lib.parallel.launch import run_ranks

RANKS = 3
STRESS_OF = ("course_lib/parallel/_*.py",)  # also what only the ranks import


@dataclass(frozen=True)
class Fault:
    """What one rank does wrong while the others go on, and what the error has to say of it."""

    name: str
    act: Callable[[], Any]
    """On the rank that is to be named."""
    first: str
    """In the error's first line; {rank} is that rank."""
    text: tuple[str, ...] = ()
    """In the lines after it."""
    others: Callable[[], Any] = lambda: dist.all_reduce(torch.ones(2))
    seconds: float = 2.0
    """Within which the error is there, after the call began (a machine with other work gets more)."""
    timeout: float = 30.0


def raise_error() -> None:
    raise ValueError("the loss\nis nan")


def raise_from() -> None:
    try:
        [][1]  # type: ignore[index]
    except IndexError as error:
        raise RuntimeError("no batch left") from error


def end_by(number: int) -> Callable[[], None]:
    def act() -> None:
        os.kill(os.getpid(), number)
        time.sleep(60)

    return act


def crash() -> None:
    import ctypes

    ctypes.string_at(0)


def sleep() -> None:
    time.sleep(60)


def hold_the_lock() -> None:
    import re

    re.match(r"(a+)+$", "a" * 60 + "b")  # Python's own code in C: no other thread of this rank runs


def other_shape() -> None:
    dist.all_reduce(torch.ones(3))


def same_size() -> None:
    dist.all_reduce(torch.ones(3, 2))


def other_dtype() -> None:
    dist.all_reduce(torch.ones(2, dtype=torch.int32))


def broadcast() -> None:
    dist.broadcast(torch.ones(2), 0)


def one_more() -> None:
    dist.barrier()
    dist.all_reduce(torch.ones(2))


def all_reduce() -> None:
    dist.all_reduce(torch.ones(3))


def reduce_scatter() -> None:
    """Gloo runs it as an all-reduce of all of its input."""
    dist.reduce_scatter_single(torch.ones(1), torch.ones(3))


def leave() -> None:
    return None


def leave_the_group() -> None:
    dist.destroy_process_group()


def in_ddp() -> None:
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    if dist.get_rank() != int(os.environ["COURSE_TEST_RANK"]):
        model(torch.ones(2, 3)).sum().backward()


FAULTS = [
    Fault("exception", raise_error, "rank {rank} of 3 failed: ValueError: the loss is nan",
          ("On rank {rank}:", "in raise_error", 'raise ValueError("the loss')),
    Fault("chained", raise_from, "rank {rank} of 3 failed: RuntimeError: no batch left", ("IndexError", "direct caus")),
    Fault("SIGKILL", end_by(signal.SIGKILL), "rank {rank} of 3 was ended by SIGKILL (killed from outside"),
    Fault("SIGTERM", end_by(signal.SIGTERM), "rank {rank} of 3 was ended by SIGTERM"),
    Fault("crash", crash, "rank {rank} of 3 was ended by SIGSEGV", ("line", "in crash: ctypes.string_at(0)")),
    Fault("sys.exit", lambda: sys.exit(3), "rank {rank} of 3 left early: it called sys.exit(3); use return"),
    Fault("os._exit", lambda: os._exit(0), "rank {rank} of 3 ended with exit code 0 before its function returned"),
    Fault("hang", sleep, "did not finish within 1.5 s",
          ("rank {rank}: is at ", "in sleep: time.sleep(60)", "in all_reduce", "The others wait for rank {rank}."),
          seconds=5, timeout=1.5),
    Fault("hang in C", hold_the_lock, "did not finish within 1.5 s",
          ("rank {rank}: is in compiled code that does not answer, called at", "in hold_the_lock: re.match"),
          seconds=6, timeout=1.5),
    Fault("shape", other_shape, "rank {rank} of 3 used another shape than ranks",
          ("rank {rank}: all_reduce of float32 (3,)  at ", "all_reduce of float32 (2,)", "in other_shape: dist.all_")),
    Fault("same size", same_size, "rank {rank} of 3 used another shape", ("float32 (3, 2)", "float32 (2, 3)"),
          others=lambda: dist.all_reduce(torch.ones(2, 3))),
    Fault("dtype", other_dtype, "rank {rank} of 3 used another dtype than ranks", ("of int32 (2,)", "float32 (2,)")),
    Fault("collective", broadcast, "rank {rank} of 3 called another collective than ranks",
          ("rank {rank}: broadcast of float32 (2,)", "in broadcast: dist.broadcast(torch.ones(2), 0)")),
    Fault("gloo's name", all_reduce, "rank {rank} of 3 called another collective than ranks",
          ("rank {rank}: all_reduce of float32 (3,)", "reduce_scatter of float32 (3,)", "in reduce_scatter: dist.redu"),
          others=reduce_scatter),
    Fault("one more", one_more, "rank {rank} of 3 called another collective than ranks", ("rank {rank}: barrier",)),
    Fault("leaves early", leave, "rank {rank} of 3 returned without the all_reduce that ranks",
          ("rank {rank}: has returned", "all_reduce of float32 (2,)")),
    Fault("leaves the group", leave_the_group, "rank {rank} of 3 returned without the all_reduce that ranks"),
    Fault("leaves DDP", in_ddp, "rank {rank} of 3 returned without the all_reduce", ("in in_ddp: model(",), in_ddp),
]  # fmt: skip


def provoke(fault: Fault, victim: int) -> RankError:
    """The error of a call in which `victim` does it, after all ranks have met once."""

    def work() -> Any:
        print("at work")
        dist.barrier()
        return fault.act() if dist.get_rank() == victim else fault.others()

    began = time.monotonic()
    with pytest.raises(RankError) as caught:
        run_ranks(work, RANKS, timeout=fault.timeout)
    busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1)) if hasattr(os, "getloadavg") else 1.0
    assert time.monotonic() - began < fault.seconds * busy
    return caught.value


def left_over(before: set[int]) -> list[psutil.Process]:
    """Processes below this one that were not there before, at any depth."""
    found = [one for one in psutil.Process().children(recursive=True) if one.pid not in before]
    return [one for one in found if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def check(fault: Fault, victim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_TEST_RANK", str(victim))
    run_ranks(leave, 1)
    before = {one.pid for one in psutil.Process().children(recursive=True)}
    error = provoke(fault, victim)
    first, *rest = str(error).splitlines()
    assert fault.first.format(rank=victim) in first, str(error)
    assert error.rank == victim and victim in error.ranks, str(error)
    for text in fault.text:
        assert text.format(rank=victim) in "\n".join(rest), str(error)
    assert "_rank.py" not in str(error) and "\x1b" not in str(error), str(error)
    assert not left_over(before), "a process is left"
    assert run_ranks(dist.get_rank, 2) == [0, 1]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    check(fault, FAULTS.index(fault) % RANKS, monkeypatch)


@pytest.mark.stress
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_fault_many_times(fault: Fault, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each on every rank in turn; those that a learner meets most, twenty times."""
    often = ("exception", "SIGKILL", "hang", "shape", "collective", "leaves early")
    for turn in range(20 if fault.name in often else 6):
        check(fault, turn % RANKS, monkeypatch)


def test_all_that_fail_are_named() -> None:
    def work() -> None:
        time.sleep(0.03 * dist.get_rank())
        raise KeyError(dist.get_rank())

    with pytest.raises(RankError, match="Rank 1 failed too: KeyError: 1") as caught:
        run_ranks(work, 2)
    assert (caught.value.rank, caught.value.ranks) == (0, (0, 1))
    assert "test_launch_faults.py" in str(caught.value), "a closure keeps the name of its file"
    assert "in work\n    raise KeyError(dist.get_rank())\n" in str(caught.value)


def test_an_error_that_comes_of_another_ranks_end_is_not_blamed() -> None:
    def work() -> None:
        if dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            dist.all_reduce(torch.ones(2))
        except RuntimeError as error:
            raise ValueError("rank 0 noticed") from error

    with pytest.raises(RankError, match="rank 1 of 2 was ended by SIGKILL") as caught:
        run_ranks(work, 2)
    assert (caught.value.rank, caught.value.ranks) == (1, (1,))


def test_a_receive_without_a_send_says_from_whom() -> None:
    def work() -> None:
        if dist.get_rank() == 1:
            dist.recv(torch.ones(2), 0)

    with pytest.raises(RankError) as caught:
        run_ranks(work, 2, timeout=1.0)
    assert caught.value.ranks == (1,)
    assert "rank 1: waits in recv from rank 0 at" in str(caught.value)
    assert "rank 0: has returned" in str(caught.value)
    assert str(caught.value).endswith("It waits for a call that no other rank makes.")


def test_the_group_is_named_when_it_is_not_all_ranks() -> None:
    def work() -> None:
        group = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            dist.all_reduce(torch.ones(2 + dist.get_rank()), group=group)

    with pytest.raises(RankError, match=r"\(collective 1 of the group of ranks 0 and 2\)") as caught:
        run_ranks(work, 3)
    assert caught.value.ranks == (0, 2)


class Unspeakable(Exception):
    """Cannot be sent, cannot be written."""

    def __init__(self) -> None:
        self.lock = __import__("threading").Lock()

    def __str__(self) -> str:
        raise KeyError


def test_an_exception_that_can_neither_be_sent_nor_written() -> None:
    def work() -> None:
        raise Unspeakable

    with pytest.raises(RankError, match="Unspeakable: <exception str"):
        run_ranks(work, 1)


def test_what_a_rank_has_started_ends_with_it() -> None:
    def work() -> int:
        import subprocess

        return subprocess.Popen(["sleep", "100"]).pid

    (pid,) = run_ranks(work, 1)
    end = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < end
        time.sleep(0.02)
