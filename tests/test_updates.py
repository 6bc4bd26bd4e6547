"""The update in the timeline: when it may run, what it holds up, and what beginning the next batch early would use."""

from itertools import pairwise

import pytest

from course_lib.errors import ScheduleError
from course_lib.parallel.schedule import SCHEDULES, simulate
from course_lib.parallel.updates import TrainingTimeline, training_timeline

CHUNKS = {"interleaved": 2}


def ends(train: TrainingTimeline, step: int, kinds: str, rank: int | None = None) -> list[float]:
    return [s.end for s in train.slots if s.step == step and s.kind in kinds and rank in (None, s.rank)]


def starts(train: TrainingTimeline, step: int, kinds: str, rank: int) -> list[float]:
    return [s.start for s in train.slots if s.step == step and s.kind in kinds and rank == s.rank]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("sync", [True, False])
def test_a_step_comes_after_its_ranks_update(name: str, sync: bool) -> None:
    train = training_timeline(name, 3, 6, 3, CHUNKS.get(name, 1), update=0.5, send=0.25, sync=sync)
    assert train.steps == 3 and train.stale == ()
    for step in range(3):
        for rank in range(3):
            (update,) = starts(train, step, "O", rank)
            assert update >= max(ends(train, step, "FBIW", None if sync else rank))
            if step < 2:
                assert min(starts(train, step + 1, "F", rank)) >= update + 0.5
    for rank in range(3):
        lane = train.lane(rank)
        assert all(a.end <= b.start for a, b in pairwise(lane))
        assert [s.step for s in lane] == sorted(s.step for s in lane)
    alone = simulate(name, 3, 6, CHUNKS.get(name, 1), send=0.25)
    assert len(train.slots) == 3 * (len(alone.slots) + 3)


@pytest.mark.parametrize("name", SCHEDULES)
def test_with_sync_the_bubble_of_a_step_comes_back_in_every_step(name: str) -> None:
    chunks = CHUNKS.get(name, 1)
    alone = simulate(name, 4, 8, chunks)
    train = training_timeline(name, 4, 8, 3, chunks, update=0.0)
    assert train.makespan == 3 * alone.makespan
    assert train.bubble_fraction == pytest.approx(alone.bubble_fraction)
    assert training_timeline(name, 4, 8, 3, chunks, update=2.0).makespan == 3 * alone.makespan + 6


def test_without_sync_the_fill_of_the_next_step_meets_the_drain_of_this_one_only_if_ranks_end_in_turn() -> None:
    """1F1B: rank 0 ends last and begins first, so nothing is gained. ZBV: all end alike, and rank 0 begins at once."""
    lengths = {
        name: [training_timeline(name, 4, 8, 3, update=1.0, sync=sync).makespan for sync in (True, False)]
        for name in ("1f1b", "zbv")
    }
    assert lengths["1f1b"][0] == lengths["1f1b"][1]
    assert lengths["zbv"][0] > lengths["zbv"][1]


def test_a_stream_of_batches_has_one_bubble_and_old_weights() -> None:
    steps, m, p = 4, 8, 4
    eager = training_timeline("1f1b", p, m, steps, update=0.0, sync=False, flush=False)
    alone = simulate("1f1b", p, steps * m)
    assert eager.makespan == alone.makespan < training_timeline("1f1b", p, m, steps, update=0.0).makespan
    # rank r has p - 1 - r forwards under way when a step's last backward comes: all of the next batch
    for rank in range(p):
        assert sum(slot.rank == rank for slot in eager.stale) == (p - 1 - rank) * (steps - 1)
    assert {slot.step for slot in eager.stale} == {1, 2, 3} and {slot.kind for slot in eager.stale} == {"F"}
    assert [slot.microbatch for slot in eager.lane(0) if slot.kind == "B"] == [*range(m)] * steps
    assert sum(slot.kind == "O" for slot in eager.slots) == p * steps


def test_an_update_is_of_a_rank() -> None:
    train = training_timeline("1f1b", 2, 2, 1, update=3.0)
    assert [(s.rank, s.stage, s.microbatch, s.end - s.start) for s in train.slots if s.kind == "O"] == [
        (0, -1, -1, 3.0),
        (1, -1, -1, 3.0),
    ]
    assert repr(train) == "<TrainingTimeline: 2 ranks, 1 steps, ends at 12, bubble 0.2500>"


def test_what_cannot_be_says_so() -> None:
    with pytest.raises(ScheduleError, match="steps=0 must be a whole number"):
        training_timeline("1f1b", 2, 2, 0)
    with pytest.raises(ScheduleError, match="duration is a number"):
        training_timeline("1f1b", 2, 2, update=-1.0)
