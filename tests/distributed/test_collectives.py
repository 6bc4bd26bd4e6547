"""The ring by hand gives what torch.distributed gives, step by step as on paper, and sends what the formula says."""

from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist

from course_lib.errors import ConfigError
from course_lib.parallel.collectives import (
    Step,
    chunks,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    root_all_reduce,
)
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.ring import ADD, chunk_sizes, hop, ring_states, sent_by_each
from course_lib.parallel.traffic import count_traffic

SIZES = (0, 1, 2, 3, 5, 8, 1001)  # also fewer elements than ranks: then some chunks are empty


def own(size: int, rank: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
    """Different on each rank; whole numbers up to 1000, exact in every format that holds their sum."""
    return torch.randint(-1000, 1000, (size,), generator=torch.Generator().manual_seed(100 * size + rank)).to(dtype)


def against_torch(all_reduce: Callable[[torch.Tensor], None]) -> list[bool]:
    found = []
    for size in SIZES:
        for dtype in (torch.int64, torch.float32):
            buffer, wanted = own(size, dist.get_rank(), dtype), own(size, dist.get_rank(), dtype)
            all_reduce(buffer)
            dist.all_reduce(wanted)
            found.append(torch.equal(buffer, wanted))
    return found


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_equal_to_torch_for_whole_numbers(ranks: int) -> None:
    """No tolerance: sums of whole numbers under 2^24 are exact in FP32, in any order."""
    for by_hand in (ring_all_reduce, root_all_reduce):
        assert run_ranks(against_torch, ranks, by_hand) == [[True] * (2 * len(SIZES))] * ranks


def floats(size: int) -> tuple[torch.Tensor, float]:
    buffer = torch.randn(size, generator=torch.Generator().manual_seed(dist.get_rank()))
    wanted = buffer.double()
    dist.all_reduce(wanted)
    ring_all_reduce(buffer)
    return buffer, float((buffer - wanted).abs().max())


def test_floats_are_the_same_bits_on_every_rank() -> None:
    """Tolerance 2e-6: four numbers up to about 4, of which FP32 has 24 bits; three additions round."""
    found = run_ranks(floats, 4, 100_003)
    assert all(torch.equal(buffer, found[0][0]) for buffer, _ in found)
    assert all(error < 2e-6 for _, error in found)


def halves(shape: tuple[int, ...]) -> tuple[bool, bool, int]:
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = own(shape[0] * shape[1], rank).view(shape)
    wanted = whole.clone()
    dist.all_reduce(wanted)
    mine = ring_reduce_scatter(chunks(whole, ranks))
    scattered = torch.equal(mine, wanted.flatten().tensor_split(ranks)[rank])
    gathered = torch.zeros(shape, dtype=torch.int64)
    parts = chunks(gathered, ranks)
    parts[rank].copy_(mine)
    ring_all_gather(parts)
    return scattered, torch.equal(gathered, wanted), mine.numel()


def test_reduce_scatter_and_all_gather_alone() -> None:
    """Uneven chunks: 3 x 5 elements over 4 ranks are chunks of 4, 4, 4 and 3."""
    assert run_ranks(halves, 4, (3, 5)) == [(True, True, size) for size in (4, 4, 4, 3)]


def traced(size: int) -> list[Step]:
    trace: list[Step] = []
    ring_all_reduce(torch.full((size,), 10 ** dist.get_rank()), trace)
    return trace


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_each_step_is_the_one_on_paper(ranks: int) -> None:
    found, paper = run_ranks(traced, ranks, ranks + 1), ring_states(ranks)
    assert all(len(trace) == 2 * (ranks - 1) for trace in found)
    for rank, trace in enumerate(found):
        for number, step in enumerate(trace):
            move = hop(rank, ranks, number)
            assert (step.phase, step.sent, step.received) == (move.phase, move.sends, move.receives)
            sums = [sum(10**other for other in whose) for whose in paper[number + 1][rank]]
            assert [set(chunk) for chunk in step.chunks] == [{total} for total in sums]
            assert [len(chunk) for chunk in step.chunks] == chunk_sizes(ranks + 1, ranks)
        assert {value for chunk in trace[-1].chunks for value in chunk} == {int("1" * ranks)}


def sends(size: int) -> list[float]:
    found = []
    for all_reduce in (ring_all_reduce, root_all_reduce, dist.all_reduce):
        with count_traffic() as traffic:
            all_reduce(torch.zeros(size))
        found.append(traffic.sent())
    return found


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_each_rank_sends(ranks: int) -> None:
    """Counted, against the numbers on paper; and `Traffic`'s convention for all_reduce is this ring."""
    size = 12 * 1000
    found = run_ranks(sends, ranks, size)
    around = 2 * size * (ranks - 1) // ranks
    assert [ring for ring, _, _ in found] == sent_by_each(size, ranks) == [around] * ranks
    assert [root for _, root, _ in found] == [(ranks - 1) * size] + [size] * (ranks - 1)
    assert [torchs for _, _, torchs in found] == [around] * ranks


def test_uneven_chunks_cost_at_most_a_chunk_each() -> None:
    for ranks in (2, 3, 7, 8):
        for elements in (1, 10, 1001):
            even = 2 * elements * (ranks - 1) / ranks
            assert all(abs(sent - even) <= 2 for sent in sent_by_each(elements, ranks)), (ranks, elements)
            assert sum(chunk_sizes(elements, ranks)) == elements


def test_ring_on_paper() -> None:
    for ranks in (1, 2, 5, 8):
        states = ring_states(ranks)
        assert len(states) == 2 * (ranks - 1) + 1
        everyone = frozenset(range(ranks))
        assert all(whose == everyone for rank in states[-1] for whose in rank)
        half = states[ranks - 1]  # after reduce-scatter: each rank has its own chunk whole, and no other
        for rank, held in enumerate(half):
            assert [whose == everyone for whose in held] == [ranks == 1 or rank == c for c in range(ranks)]
        for step in range(2 * (ranks - 1)):
            moves = [hop(rank, ranks, step) for rank in range(ranks)]
            assert [move.receives for move in moves] == [moves[rank - 1].sends for rank in range(ranks)]
            assert {move.phase == ADD for move in moves} == {step < ranks - 1}
    with pytest.raises(ConfigError, match="steps 0 to 1"):
        hop(0, 2, 2)


def test_a_buffer_with_gaps_is_refused() -> None:
    with pytest.raises(ConfigError, match="contiguous"):
        chunks(torch.zeros(4, 4)[:, :2], 2)
