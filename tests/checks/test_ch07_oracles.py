"""What the checks of chapter 7 take for right is what PyTorch does on real ranks."""

from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import nn

from course_lib.checks.ch07_ranks import EARLY, watched
from course_lib.checks.ch07_suspects import FAULTS, recorded
from course_lib.checks.ch07_traffic import LOOPS, _ring_sends, synchronised
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


@pytest.mark.parametrize("fault", FAULTS)
def test_the_loss_of_every_suspect_falls(fault: str) -> None:
    run = recorded(5, [[8, 8], [8, 8]], 40, fault, range(40), 1)
    for rank in run:
        assert sum(rank["loss"][-5:]) < sum(rank["loss"][:5])
