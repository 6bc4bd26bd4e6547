"""The event model of overlap: the closed form is exact for it, bounds hold, small cases by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ConfigError, ScheduleError
from course_lib.parallel.overlap import LayerTimes, ddp_tasks, exposed, fsdp_tasks, typical, waited_for, waits
from course_lib.parallel.timeline import simulate
from course_lib.planning.communication import step_time

TIMES = st.integers(0, 12).map(float)  # whole numbers: sums are exact in any order
LAYER = st.builds(LayerTimes, TIMES, TIMES, TIMES, TIMES)


@settings(max_examples=1500, deadline=None)
@given(st.integers(1, 7), LAYER, st.booleans(), st.booleans())
def test_the_closed_form_is_exact_for_equal_layers(count, layer, prefetch, reshard):
    run = simulate(fsdp_tasks([layer] * count, prefetch=int(prefetch), reshard=reshard))
    wanted = step_time(
        count, layer.forward, layer.backward, layer.gather, layer.scatter, prefetch=prefetch, reshard=reshard
    )
    assert run.makespan == wanted


@settings(max_examples=300, deadline=None)
@given(st.lists(LAYER, min_size=1, max_size=6), st.integers(0, 4), st.booleans())
def test_bounds_for_any_layers(layers, prefetch, reshard):
    run = simulate(fsdp_tasks(layers, prefetch=prefetch, reshard=reshard))
    computing = sum(layer.forward + layer.backward for layer in layers)
    sending = sum((1 + reshard) * layer.gather + layer.scatter for layer in layers)
    assert max(computing, sending) <= run.makespan <= computing + sending
    assert exposed(run) == run.makespan - computing == sum(end - start for start, end in waits(run))
    serial = simulate(fsdp_tasks(layers, prefetch=0)).makespan
    assert serial == sum(layer.forward + layer.backward + 2 * layer.gather + layer.scatter for layer in layers)
    assert simulate(fsdp_tasks(layers, prefetch=1)).makespan <= serial


@settings(max_examples=200, deadline=None)
@given(st.lists(LAYER, min_size=1, max_size=6), st.integers(0, 4), st.booleans())
def test_no_more_layers_are_whole_than_the_prefetch_allows(layers, prefetch, reshard):
    """A layer is whole from the start of its gather to the end of the computing that it was gathered for."""
    if not reshard:
        return
    slots = {slot.name: slot for slot in simulate(fsdp_tasks(layers, prefetch=prefetch)).slots}
    for gather, work in (("gather", "forward"), ("gather again", "backward")):
        spans = [(slots[f"{gather} {i}"].start, slots[f"{work} {i}"].end) for i in range(len(layers))]
        for moment, _ in spans:
            assert sum(start <= moment < end for start, end in spans) <= prefetch + 1


def test_two_layers_by_hand():
    """Gathers of 2, forwards of 3, backwards of 5, scatters of 1."""
    layers = [LayerTimes(3, 5, 2, 1)] * 2
    late, early = (simulate(fsdp_tasks(layers, prefetch=k)) for k in (0, 1))
    # 2+3 2+3 | 2+5+1 2+5+1
    assert late.makespan == 26 and exposed(late) == 10
    assert waits(late) == [(0, 2), (5, 7), (10, 12), (17, 20), (25, 26)]
    # gather 0 and 1 back to back: 2+3+3 | 2+5+5+1
    assert early.makespan == 21 and waits(early) == [(0, 2), (8, 10), (20, 21)]
    stays = simulate(fsdp_tasks(layers, reshard=False))
    assert stays.makespan == 19 and waits(stays) == [(0, 2), (18, 19)]
    names = [slot.name for slot in early.lane("network")]
    assert names == ["gather 0", "gather 1", "gather again 1", "gather again 0", "scatter 1", "scatter 0"]


def test_what_the_network_does_while_computing_waits():
    late = simulate(fsdp_tasks([LayerTimes(3, 6, 2, 2)] * 6, prefetch=0))
    assert waited_for(late) == {"gather": 24, "scatter": 12} and exposed(late) == 36
    assert waited_for(simulate(fsdp_tasks([LayerTimes(3, 6, 0, 0)] * 2))) == {}
    assert typical([LayerTimes(1, 2, 3, 4), LayerTimes(3, 4, 5, 6)]) == LayerTimes(2, 3, 4, 5)


def test_data_parallel_hides_all_but_the_last_bucket():
    layers = [LayerTimes(3, 5, 2, 1)] * 4
    run = simulate(ddp_tasks(layers))
    assert run.makespan == 4 * 8 + 3 and waits(run) == [(32, 35)]
    slow = simulate(ddp_tasks([LayerTimes(3, 5, 6, 2)] * 4))
    assert slow.makespan == 4 * 3 + 5 + 4 * 8


def test_nothing_to_do_and_wrong_use():
    assert simulate(fsdp_tasks([])).makespan == 0
    with pytest.raises(ScheduleError, match="prefetch=-1"):
        fsdp_tasks([LayerTimes(1, 1, 1, 1)], prefetch=-1)
    with pytest.raises(ConfigError, match="layers=0"):
        step_time(0, 1, 1, 1, 1)
