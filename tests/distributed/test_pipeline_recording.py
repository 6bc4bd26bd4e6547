"""What a real pipeline step records: times that fit its schedule, and activations held as the simulator says."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import pytest

from course_lib.config import preset
from course_lib.errors import ScheduleError
from course_lib.parallel.pipeline import Pipeline
from course_lib.parallel.recording import (
    Costs,
    Recording,
    core_share,
    costs_of,
    quickest,
    record,
    recorded_timeline,
    replay,
)
from course_lib.parallel.schedule import Action, actions, simulate

SMALL = preset("mini", n_layers=4, d_model=32, n_heads=2, d_ff=64, vocab_size=64, context=32, tie_embeddings=False)


@pytest.fixture(scope="module")
def small() -> Callable[..., list[Recording]]:
    return partial(record, shape=SMALL, length=32, steps=2)


@pytest.mark.parametrize(
    ("name", "chunks", "ranks", "micro_batches"),
    [
        ("naive", 1, 2, 4),
        ("gpipe", 1, 2, 6),
        ("gpipe", 2, 2, 4),
        ("1f1b", 1, 4, 8),
        ("interleaved", 2, 2, 8),
        ("zb_h1", 1, 3, 6),
        ("zbv", 1, 2, 6),
        ("dualpipev", 1, 2, 5),
    ],
)
def test_activations_held_are_the_peak_in_flight(
    small: Callable[..., list[Recording]], name: str, chunks: int, ranks: int, micro_batches: int
) -> None:
    """Seen in memory: what autograd has saved, and what a weight gradient that is put off still needs."""
    done = simulate(name, ranks, micro_batches, chunks)
    for found in small(name, ranks, micro_batches=micro_batches, chunks=chunks, watch=True):
        assert found.peak_held == done.peak_in_flight
        for rank in range(ranks):
            held = found.of_rank(rank, found.held)
            assert held == in_flight(done.actions[rank])  # not only at the worst moment
            assert held[-1] == found.of_rank(rank, found.bytes)[-1] == 0


def in_flight(order: list[Action]) -> list[int]:
    """After each action of a rank."""
    alive: set[tuple[int, int]] = set()
    out = []
    for action in order:
        cell = {(action.stage, action.microbatch)}
        alive = alive | cell if action.kind == "F" else alive if action.kind == "I" else alive - cell
        out.append(len(alive))
    return out


def test_bytes_are_as_many_times_those_of_one_micro_batch(small: Callable[..., list[Recording]]) -> None:
    one = small("naive", 2, micro_batches=2, watch=True)[0].peak_bytes
    for name, held in (("gpipe", (6, 6)), ("1f1b", (2, 1))):
        found = small(name, 2, micro_batches=6, watch=True)[0]
        assert found.peak_held == held
        assert found.peak_bytes == pytest.approx([n * size for n, size in zip(held, one, strict=True)], rel=0.03)
    cut = small("zb_h1", 2, micro_batches=6, watch=True)[0]
    assert cut.peak_bytes[0] == pytest.approx(2 * one[0], rel=0.03)
    assert one[1] < cut.peak_bytes[1] < 0.97 * 2 * one[1]  # after I a micro-batch holds less: x and dy only


def test_a_recorded_step_keeps_to_its_schedule(small: Callable[..., list[Recording]]) -> None:
    runs = small("interleaved", 2, micro_batches=4, chunks=2)
    assert len(runs) == 2 and quickest(runs) in runs
    for found in runs:
        line = found.timeline
        assert min(slot.start for slot in line.slots) == 0 and line.makespan == found.makespan
        assert line.peak_in_flight == simulate("interleaved", 2, 4, 2).peak_in_flight
        for rank in range(2):
            lane = line.lane(rank)
            assert all(a.end <= b.start for a, b in pairwise(lane))
            assert 0 <= found.waited(rank) <= line.idle(rank) + 1e-9
        ends = line.starts + line.durations
        for place, waits in enumerate(line.waits):  # nothing starts before what it needs has ended, on another rank too
            for other, _ in waits:
                assert line.starts[place] >= ends[other]
        assert (line.durations > 0).all() and 0 < found.bubble_fraction < 1
        assert found.held == found.bytes == ()
    told = repr(quickest(runs))
    assert told.startswith("<Recording: 2 ranks, ") and "bubble 0." in told


def test_a_rank_that_waits_is_idle() -> None:
    """The last rank's first forward waits for the first rank's, which has seven of eight blocks."""
    runs = record("1f1b", 2, micro_batches=4, shares=[7, 1], steps=2)
    found = quickest(runs)
    second = found.of_rank(1, found.waits)
    assert found.waited(1) > 0.25 * found.makespan and second[0] > 0
    assert found.waited(1) > 2 * found.waited(0)
    costs = costs_of(runs)
    assert costs.forward[0] > 2 * costs.forward[1]


def test_a_timeline_of_ones_own_order(small: Callable[..., list[Recording]]) -> None:
    mine = actions("gpipe", 2, 3)
    mine[1][3:] = reversed(mine[1][3:])
    found = small(mine, 2, micro_batches=3)[0]
    assert found.timeline.actions == mine
    with pytest.raises(ScheduleError, match="another schedule than the plan"):
        recorded_timeline(simulate("1f1b", 2, 3), [[], []])


def test_costs_and_replay(small: Callable[..., list[Recording]]) -> None:
    runs = small("zb_h1", 2, micro_batches=6)
    costs = costs_of(runs)
    assert costs.cut and min(*costs.forward, *costs.backward_input, *costs.backward_weight) > 0 <= costs.send
    whole = costs_of(small("1f1b", 2, micro_batches=6))
    assert not whole.cut and min(whole.backward_input) > 0
    for name in ("zb_h1", "zbv"):
        assert replay(costs, name, 4, 8).ranks == 4
        with pytest.raises(ScheduleError, match=f"{name} cuts the backward in two, and these costs do not"):
            replay(whole, name, 4, 8)
    assert replay(whole, "interleaved", 4, 8, 2).stages == 8


def test_a_replay_is_the_simulator_with_those_costs() -> None:
    costs = Costs((1.0, 2.0, 4.0, 3.0), (2.0, 4.0, 8.0, 6.0), (0.0,) * 4, 0.5)
    again = replay(costs, "1f1b", 4, 8)
    wanted = simulate(
        "1f1b", 4, 8, forward=costs.forward, backward_input=costs.backward_input, backward_weight=0, send=0.5
    )
    assert again.makespan == wanted.makespan
    assert costs.over(6).forward == (1.0, 3.0, 3.0, 3.0, 3.0, 3.0)
    assert Costs((1.0, 2.0), (2.0, 4.0), (0.0, 0.0), 0).over(4).backward_input == (2.0, 2.0, 2.0, 4.0)
    with pytest.raises(ScheduleError, match="costs of 4 stages cannot become those of 1"):
        replay(costs, "1f1b", 1, 8)


def test_without_record_nothing_is_kept() -> None:
    from course_lib.parallel.equivalence import adamw, uneven_batches, uneven_model

    strategy = Pipeline(uneven_model(), adamw, schedule="gpipe")
    strategy.forward_backward(*uneven_batches(1, 1, 1)[0], valid=1)
    assert strategy.recorded == []


def test_a_rank_alone_has_at_most_a_core() -> None:
    assert 0.05 < core_share(1, seconds=0.2) < 1.1
