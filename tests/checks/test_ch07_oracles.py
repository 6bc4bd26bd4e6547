"""What the checks of chapter 7 take for right is what PyTorch does on real ranks."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from course_lib.checks.ch07_suspects import FAULTS, recorded, suspects_cases
from course_lib.checks.ch07_traffic import LOOPS, _ring_sends, synchronised
from course_lib.checks.ch07_watch import EARLY, unwaited, watched
from course_lib.errors import RankError
from course_lib.grading.grade import GRADING_SEED
from course_lib.parallel.collectives import ring_all_reduce
from course_lib.parallel.launch import run_ranks


def reduced_by_ddp(source: str, micro_batches: int) -> list[int]:
    """Elements that DDP reduces in the second update of a loop of 07.4, which runs as it is printed."""
    from torch.nn.parallel import DistributedDataParallel

    from course_lib.parallel.traffic import count_traffic

    ddp = DistributedDataParallel(nn.Linear(7, 5, bias=False))
    space: dict[str, Any] = {"ddp": ddp, "nullcontext": nullcontext, "share_of_loss": lambda out, targets: out.sum()}
    space["optimizer"] = torch.optim.SGD(ddp.parameters(), lr=0.1)
    space["micro_batches"] = [(torch.randn(3, 7), None)] * micro_batches
    for _ in range(2):  # in the first one DDP sends a few numbers more, to agree on its buckets
        with count_traffic() as traffic:
            exec(source, space)
    return [call.elements for call in traffic.calls if call.kind == "all_reduce"]


@pytest.mark.parametrize("loop", LOOPS)
def test_ddp_reduces_as_often_as_the_check_says(loop: str) -> None:
    assert run_ranks(reduced_by_ddp, 2, LOOPS[loop], 4) == [[35] * synchronised(loop, 4)] * 2


def sent_in_a_ring(elements: int) -> int:
    with watched() as seen:
        ring_all_reduce(torch.zeros(elements))
    assert {kind for kind, *_ in seen} <= {"send"}
    return sum(size for _, size, _, _ in seen)


@pytest.mark.parametrize(("ranks", "elements"), [(2, 6), (3, 12), (4, 4096)])
def test_a_ring_sends_as_much_as_the_check_says(ranks: int, elements: int) -> None:
    assert run_ranks(sent_in_a_ring, ranks, elements) == [_ring_sends(elements, ranks)] * ranks


def early_and_late() -> tuple[float, float]:
    import torch.distributed as dist

    other, came = 1 - dist.get_rank(), torch.zeros(1)
    with watched():
        receiving = dist.irecv(came, other)
        sending = dist.isend(torch.tensor([7.0]), other)
        assert receiving is not None and sending is not None
        sending.wait()
        early = float(came)
        receiving.wait()
    return early, float(came)


def test_what_is_read_before_its_wait_is_seen_for_sure() -> None:
    assert run_ranks(early_and_late, 2) == [(EARLY, 7.0)] * 2


def late_sum() -> tuple[float, str, float, str]:
    import torch.distributed as dist

    x = torch.tensor([1.0 + dist.get_rank()])
    with watched() as seen:
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        early, before = float(x), unwaited(seen)
        work.wait()
        work.wait()
    return early, before, float(x), unwaited(seen)


def test_an_asynchronous_sum_is_there_after_its_wait() -> None:
    assert run_ranks(late_sum, 2) == [(1.0, "async_op", 3.0, ""), (2.0, "async_op", 3.0, "")]


def by_its_future() -> float:
    import torch.distributed as dist

    x = torch.ones(3)
    with watched():
        work = dist.all_reduce(x, async_op=True)
        assert work is not None
        work.get_future().wait()
    return float(x.sum())


def test_a_future_is_waited_for_too() -> None:
    assert run_ranks(by_its_future, 2) == [6.0, 6.0]


def apart(call: str) -> None:
    """Rank 0 begins a call, then rank 1 makes one that does not go with it."""
    import torch.distributed as dist

    rank = dist.get_rank()
    store, works = dist.distributed_c10d._get_default_store(), []
    with watched(f"update {1 + rank * (call == 'stage')}"):
        if rank == 0:
            if call in ("size", "kind", "stage"):
                works.append(dist.all_reduce(torch.ones(64), async_op=True))
            elif call == "pair":
                works.append(dist.isend(torch.ones(3), 1))
            store.set("called", "yes")
            store.get("rank 1 has ended")
        store.get("called")
        if call == "kind":
            dist.broadcast(torch.ones(64), 0)
        elif call == "pair":
            dist.recv(torch.ones(2), 0)
        elif call == "dropped":
            dist.isend(torch.ones(2), 0)
            dist.recv(torch.ones(2), 0)
        elif call in ("size", "stage"):
            dist.all_reduce(torch.ones(1 if call == "size" else 64))
        else:
            dist.isend(torch.ones(1), int(call))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("size", "rank 1 calls all_reduce of 1 number at line"),
        ("kind", "rank 1 calls broadcast of 64 numbers at line"),
        ("stage", "in update 2; rank 0 calls all_reduce of 64 numbers at line"),
        ("pair", "rank 1 receives 2 numbers at line"),
        ("2", "rank 1 sends to rank 2 at line"),
        ("-1", "rank 1 sends to rank -1 at line"),
        ("1", "rank 1 sends to itself"),
        ("dropped", "keep what it returns"),
    ],
)
def test_ranks_that_do_not_agree_are_told_before_gloo_gives_up(call: str, words: str) -> None:
    with pytest.raises(RankError, match=f"rank 1 of 2 failed: .*Mismatch: .*{words}"):
        run_ranks(apart, 2, call)


def test_the_runs_come_in_another_order_at_another_seed() -> None:
    orders = [tuple(case["fault"] for case in suspects_cases(seed)) for seed in (0, 11, GRADING_SEED)]
    assert len(set(orders)) == 3 and {tuple(sorted(order)) for order in orders} == {tuple(sorted(orders[0]))}


@pytest.mark.parametrize("fault", FAULTS)
def test_the_loss_of_every_suspect_falls(fault: str) -> None:
    run = recorded(5, [[8, 8], [8, 8]], 40, fault, range(40), 1)
    for rank in run:
        assert sum(rank["loss"][-5:]) < sum(rank["loss"][:5])
