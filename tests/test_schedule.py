"""Pipeline schedules: against torch's own lists, a simulator by brute force, formulas, and figures known by hand."""

import time
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ScheduleError
from course_lib.parallel.schedule import (
    FORMULAS,
    SCHEDULES,
    Action,
    actions,
    bubble_formula,
    run,
    simulate,
)
from course_lib.parallel.timeline import simulate as simulate_tasks

TINY = 1e-9
V = ("zbv", "dualpipev")


def chunks_for(name, several=2):
    return several if name == "interleaved" else 1


def words(lists):
    """Short: "2F3" is the F of stage 2 and micro-batch 3; a pair is "(2F3;5B1)"."""
    found = []
    for items in lists:
        texts, before = [], None
        for action in items:
            text = f"{action.stage}{action.kind}{action.microbatch}"
            if before is not None and before.paired:
                text = f"({texts.pop()};{text})"
            texts.append(text)
            before = action
        found.append(texts)
    return found


def spelled(*rows):
    return [row.split() for row in rows]


# ------------------------------------------------------------------------------------------- the same lists as torch's


def torchs(name, p, m, v=None):
    """torch's computing actions. The module is private: nothing but this function may touch it."""
    from torch.distributed.pipelining._schedule_visualizer import get_schedule_ops

    found = []
    for items in get_schedule_ops(name, p, m, v):
        texts = [str(one).replace("OVERLAP_F_B", "") for one in items if one is not None]
        found.append([text for text in texts if "REDUCE" not in text])
    return found


SAMPLE = [
    *(("gpipe", "GPipe", p, m, 1) for p, m in ((1, 1), (1, 4), (2, 3), (3, 2), (4, 8), (5, 5), (8, 32))),
    *(("gpipe", "LoopedBFS", p, m, 2) for p, m in ((1, 3), (2, 1), (2, 4), (3, 7), (4, 2), (4, 8), (8, 16))),
    *(("gpipe", "LoopedBFS", p, m, v) for p, m, v in ((2, 5, 3), (3, 3, 4), (4, 8, 3), (2, 2, 5))),
    *(("interleaved", "Interleaved1F1B", p, m, 2) for p, m in ((1, 3), (2, 1), (2, 4), (3, 3), (3, 5), (3, 6), (4, 2))),
    *(("interleaved", "Interleaved1F1B", p, m, 2) for p, m in ((4, 3), (4, 8), (4, 10), (5, 15), (6, 8), (8, 32))),
    *(
        ("interleaved", "Interleaved1F1B", p, m, v)
        for p, m, v in ((2, 4, 3), (2, 6, 4), (3, 8, 3), (4, 8, 4), (4, 16, 3))
    ),
    *(("zbv", "ZBVZeroBubble", p, m, 2) for p, m in ((1, 1), (1, 4), (2, 1), (2, 2), (2, 3), (2, 5), (3, 4), (3, 9))),
    *(("zbv", "ZBVZeroBubble", p, m, 2) for p, m in ((4, 1), (4, 6), (4, 7), (4, 8), (5, 12), (7, 13), (8, 32))),
    *(("dualpipev", "DualPipeV", p, m, 2) for p, m in ((1, 2), (1, 5), (2, 4), (2, 5), (3, 6), (3, 7), (3, 12))),
    *(("dualpipev", "DualPipeV", p, m, 2) for p, m in ((4, 8), (4, 9), (4, 16), (5, 10), (6, 13), (7, 14), (8, 32))),
]


@pytest.mark.parametrize(("name", "theirs", "p", "m", "v"), SAMPLE)
def test_action_for_action_what_torch_does(name, theirs, p, m, v):
    assert words(actions(name, p, m, v)) == torchs(theirs, p, m, None if theirs == "GPipe" else v)


def test_the_sample_is_large_enough():
    assert len(set(SAMPLE)) == len(SAMPLE) >= 60


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (5, 5)])
def test_torchs_list_of_1f1b_is_broken_on_the_last_rank_only(p, m):
    """It counts that rank's forwards from 1. When this fails, torch has mended it: move 1f1b into the sample."""
    ours, theirs = words(actions("1f1b", p, m)), torchs("1F1B", p, m)
    assert ours[:-1] == theirs[:-1]
    assert theirs[-1][0] == f"{p - 1}F1" and theirs[-1][-2] == f"{p - 1}F{m}"


@pytest.mark.parametrize("name", ["interleaved", "dualpipev"])
def test_torch_refuses_the_same_numbers_of_micro_batches(name):
    theirs = {"interleaved": "Interleaved1F1B", "dualpipev": "DualPipeV"}[name]
    for p in (2, 3, 4):
        for m in range(1, 13):
            try:
                torchs(theirs, p, m)
            except ValueError:
                with pytest.raises(ScheduleError, match="the nearest that has one: "):
                    actions(name, p, m, 2)
            else:
                assert actions(name, p, m, 2)


def test_1f1b_by_hand():
    assert words(actions("1f1b", 3, 4)) == spelled(
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    )


def test_zb_h1_by_hand():
    assert words(actions("zb_h1", 2, 3)) == spelled(
        "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
        "1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2",
    )


def test_naive_by_hand():
    assert words(actions("naive", 2, 2)) == spelled("0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1")
    assert words(actions("naive", 2, 1, 2)) == spelled("0F0 2F0 2B0 0B0", "1F0 3F0 3B0 1B0")


# ------------------------------------------------------------------------------------------------- figures to be met


@pytest.mark.parametrize(
    ("name", "v", "bubble", "over_ideal", "peak"),
    [
        ("naive", 1, 3 / 4, 3, (1, 1, 1, 1)),
        ("gpipe", 1, 9 / 33, 3 / 8, (8, 8, 8, 8)),
        ("gpipe", 2, 9 / 57, 3 / 16, (16, 16, 16, 16)),
        ("1f1b", 1, 9 / 33, 3 / 8, (4, 3, 2, 1)),
        ("interleaved", 2, 9 / 57, 3 / 16, (11, 9, 7, 5)),
        ("zb_h1", 1, 3 / 27, 1 / 8, (4, 4, 4, 4)),
        ("zbv", 1, 3 / 51, 1 / 16, (8, 8, 8, 8)),
        ("dualpipev", 1, 6 / 54, 1 / 8, (9, 9, 9, 9)),
    ],
)
def test_four_ranks_and_eight_micro_batches(name, v, bubble, over_ideal, peak):
    """.2727, .2727, .1579, .1111, .0588, .1111 of the total."""
    done = simulate(name, 4, 8, v)
    assert done.bubble_fraction == pytest.approx(bubble, abs=1e-12)
    assert done.idle_over_ideal == pytest.approx(over_ideal, abs=1e-12)
    assert done.peak_in_flight == peak


@pytest.mark.parametrize(
    ("p", "m", "figures"),
    [
        (4, 16, {"gpipe": 0.1579, "1f1b": 0.1579, "interleaved": 0.0857, "zbv": 0.0303, "dualpipev": 0.0588}),
        (8, 32, {"gpipe": 0.1795, "1f1b": 0.1795, "interleaved": 0.0986, "zbv": 0.0352, "dualpipev": 0.0680}),
    ],
)
def test_figures_of_larger_pipelines(p, m, figures):
    for name, wanted in figures.items():
        assert round(simulate(name, p, m, chunks_for(name)).bubble_fraction, 4) == wanted, name


@pytest.mark.parametrize("p", [1, 2, 3, 6])
@pytest.mark.parametrize("m", [1, 2, 5, 12, 24])
def test_peaks(p, m):
    """What each schedule holds, from how it is defined."""
    ranks = range(p)
    assert simulate("naive", p, m).peak_in_flight == (1,) * p
    assert simulate("gpipe", p, m, 3).peak_in_flight == (3 * m,) * p
    assert simulate("1f1b", p, m).peak_in_flight == tuple(min(m, p - r) for r in ranks)
    assert simulate("zb_h1", p, m).peak_in_flight == (min(m, p),) * p
    if m % p == 0:
        warm = [(3 - 1) * p + 2 * (p - 1 - r) + 1 for r in ranks]
        assert simulate("interleaved", p, m, 3).peak_in_flight == tuple(min(3 * m, one) for one in warm)
    if m >= 2 * p:
        assert simulate("zbv", p, m).peak_in_flight == (2 * p,) * p
        assert simulate("dualpipev", p, m).peak_in_flight == (2 * p + 1,) * p


# ------------------------------------------------------------------------------------------------- formula, simulation

COSTS = [(1, 1, 1), (2, 3, 1), (1.5, 0.5, 0.25), (1, 2, 0), (0.5, 4, 3), (3, 1, 2)]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("v", [1, 2, 3])
def test_the_formula_is_the_simulation_in_its_domain(name, v):
    tried = 0
    for p in range(1, 7):
        for m in range(1, 20):
            for f, i, w in COSTS:
                try:
                    wanted = bubble_formula(name, p, m, v, f, i, w)
                except ScheduleError:
                    continue
                done = simulate(name, p, m, v, f, i, w)
                assert done.bubble_fraction == pytest.approx(wanted, abs=1e-9), (p, m, f, i, w)
                ideal = bubble_formula(name, p, m, v, f, i, w, of="ideal")
                assert done.idle_over_ideal == pytest.approx(ideal, abs=1e-9)
                if p > 1 and name != "naive":
                    assert len({round(done.idle(rank), 9) for rank in range(p)}) == 1
                tried += 1
    if v == chunks_for(name):
        assert tried >= 60


@pytest.mark.parametrize(("name", "v"), [("gpipe", 2), ("interleaved", 2), ("interleaved", 3), ("zb_h1", 1)])
def test_where_the_formula_stops_being_true(name, v):
    """Below p micro-batches ranks wait longer than it says."""
    for p in range(2, 7):
        for m in range(1, p):
            with pytest.raises(ScheduleError, match=rf"the nearest for which it holds: {p}; simulate"):
                bubble_formula(name, p, m, v)
            told = bubble_formula(name, p, m, v, anywhere=True)
            assert simulate(name, p, m, v).bubble_fraction > told + 0.01
        assert bubble_formula(name, p, p, v) == pytest.approx(simulate(name, p, p, v).bubble_fraction)


@pytest.mark.parametrize("p", range(2, 9))
def test_the_formula_of_zbv_stops_somewhere_below_2p(p):
    wrong = [m for m in range(1, 4 * p) if abs(simulate("zbv", p, m).bubble_fraction - zbv_formula(p, m)) > TINY]
    assert wrong == [*range(1, wrong[-1] + 1)] and p <= wrong[-1] < 2 * p
    with pytest.raises(ScheduleError, match=rf"holds: {2 * p};"):
        bubble_formula("zbv", p, 2 * p - 1)


def zbv_formula(p, m):
    return bubble_formula("zbv", p, m, anywhere=True)


def test_formulas_that_need_certain_times():
    """ZB-H1: W at most F and I. zbv and dualpipev: all three alike. Outside, the simulation says something else."""
    for name, costs in (
        ("zb_h1", (1, 1, 2)),
        ("zb_h1", (1, 3, 2)),
        ("zb_h1", (3, 1, 2)),
        ("zbv", (2, 1, 1)),
        ("dualpipev", (1, 2, 1)),
    ):
        with pytest.raises(ScheduleError, match=r"wrong for F=.*simulate\(\) is right"):
            bubble_formula(name, 4, 8, 1, *costs)
        told = bubble_formula(name, 4, 8, 1, *costs, anywhere=True)
        assert abs(simulate(name, 4, 8, 1, *costs).bubble_fraction - told) > 0.003


def test_one_rank_has_no_bubble_and_nothing_but_naive_is_worse_than_gpipe():
    for name in SCHEDULES:
        assert simulate(name, 1, 4, chunks_for(name)).bubble_fraction == pytest.approx(0, abs=TINY)
        for p, m in ((2, 4), (4, 8), (6, 24)):
            bubble = simulate(name, p, m, chunks_for(name)).bubble_fraction
            assert (bubble > simulate("gpipe", p, m).bubble_fraction + TINY) == (name == "naive")


def test_both_definitions_on_uneven_stages():
    """Three stages of 1, 3 and 2 in each direction, two micro-batches: drawn by hand."""
    done = simulate("gpipe", 3, 2, forward=[1, 3, 2], backward_input=[1, 3, 2], backward_weight=0)
    assert done.makespan == 18  # F: 1 + 3 + 3 + 2, and back
    assert [done.busy(rank) for rank in range(3)] == [4, 12, 8]
    assert [done.idle(rank) for rank in range(3)] == [14, 6, 10]
    assert done.bubble_fraction == pytest.approx(30 / 54) and done.idle_over_ideal == pytest.approx(30 / 24)


def test_sending_delays_and_occupies_nobody():
    assert simulate("naive", 3, 1, send=0.25).makespan == 9 + 4 * 0.25
    assert simulate("naive", 1, 2, 3, send=0.25).makespan == 18  # all on one rank: nothing is sent
    assert simulate("zbv", 2, 1, send=0.25).makespan == simulate("zbv", 2, 1).makespan + 4 * 0.25  # not at the turn
    assert simulate("gpipe", 4, 8, send=0.1).makespan == pytest.approx(33 + 6 * 0.1)
    assert simulate("1f1b", 4, 8, send=0.1).makespan > 33 + 6 * 0.1 + 0.5  # it waits for every round trip


def test_a_pair_begins_when_both_can_and_passes_on_at_its_end():
    done = simulate("dualpipev", 2, 5, forward=2.0, backward_input=3.0, backward_weight=4.0)
    slots = {Action(*slot[:4]): slot for slot in done.slots}
    pair = next(a for a in done.actions[0] if a.paired)
    place = done.actions[0].index(pair)
    forward, backward = done.slots[place], done.slots[place + 1]
    assert (forward.kind, backward.kind) == ("F", "B") and backward.start == forward.end
    assert backward.end - forward.start == 2.0 + 3.0 + 4.0
    after = slots[Action(done.grid.homes[pair.stage + 1], pair.stage + 1, pair.microbatch, "F")]
    assert after.start >= backward.end


# ------------------------------------------------------------------------------------------------------- brute force


def rules(lists, stages, send=0.0):
    """(what ends, what starts then, delay) of everything that has to hold; actions are (stage, micro-batch, kind)."""
    home, ends, leads = {}, {}, {}
    for rank, items in enumerate(lists):
        for place, a in enumerate(items):
            key = (a.stage, a.microbatch, a.kind)
            home[a.stage] = rank
            ends[key] = key
            if a.paired:
                partner = items[place + 1]
                ends[key] = (partner.stage, partner.microbatch, partner.kind)
                leads[ends[key]] = key
    for items in lists:
        for one, two in pairwise(items):
            yield one[1:4], two[1:4], 0.0
    for s, k, kind in ends:
        needs = []
        if kind == "F" and s > 0:
            needs.append(((s - 1, k, "F"), s - 1))
        if kind in "BI":
            needs.append(((s, k, "F"), s))
            if s < stages - 1:
                needs.append(((s + 1, k, "B") if (s + 1, k, "B") in ends else (s + 1, k, "I"), s + 1))
        if kind == "W":
            needs.append(((s, k, "I"), s))
        for need, at in needs:
            first = leads.get((s, k, kind), (s, k, kind))
            yield ends[need], first, send if home[at] != home[s] else 0.0


def brute_force(edges, takes):
    """Starts by pushing actions later until nothing moves; None where they go round in a circle."""
    start = dict.fromkeys(takes, 0.0)
    for _ in range(len(takes) + 1):
        moved = False
        for earlier, later, delay in edges:
            wanted = start[earlier] + takes[earlier] + delay
            if wanted > start[later]:
                start[later], moved = wanted, True
        if not moved:
            return start
    return None


def circular(edges, keys):
    left = set(keys)
    while left:
        free = left - {b for a, b, _ in edges if a in left and b in left}
        if not free:
            return True
        left -= free
    return False


@st.composite
def pipelines(draw):
    """A schedule with a name and uneven times."""
    name = draw(st.sampled_from(SCHEDULES))
    p = draw(st.integers(1, 4))
    m = draw(st.integers(2 * p if name == "dualpipev" else 1, 2 * p + 3))
    if name == "interleaved":
        m -= m % max(1, m // p)
    v = draw(st.integers(2, 3)) if name == "interleaved" else draw(st.integers(1, 3)) if name == "gpipe" else 1
    stages = p * (2 if name in V else v)
    times = st.lists(st.floats(0, 10), min_size=stages, max_size=stages) | st.floats(0, 10)
    return (name, p, m, v, draw(times), draw(times), draw(times), draw(st.floats(0, 3)))


def per_stage(time, stages):
    return time if isinstance(time, list) else [time] * stages


@settings(max_examples=200, deadline=None)
@given(pipelines())
def test_the_laws_of_a_pipeline(setting):
    name, p, m, v, f, i, w, send = setting
    done = simulate(*setting)
    stages, lists = done.stages, actions(name, p, m, v)
    f, i, w = (per_stage(time, stages) for time in (f, i, w))
    takes = {"F": f, "B": [a + b for a, b in zip(i, w, strict=True)], "I": i, "W": w}
    slots = {slot[1:4]: slot for slot in done.slots}
    assert len(slots) == len(done.slots) == sum(map(len, lists)) and done.actions == lists
    edges = list(rules(lists, stages, send))
    # every start is the earliest that the rules allow
    wanted = brute_force(edges, {key: takes[key[2]][key[0]] for key in slots})
    assert {key: slot.start for key, slot in slots.items()} == pytest.approx(wanted, abs=TINY)
    # no rank does two things at once, and no rule is broken
    by_rank = defaultdict(list)
    for slot in done.slots:
        by_rank[slot.rank].append(slot)
        assert slot.end - slot.start == pytest.approx(takes[slot.kind][slot.stage], abs=TINY)
    for rank, lane in by_rank.items():
        assert lane == list(done.lane(rank))
        assert all(two.start >= one.end - TINY for one, two in pairwise(lane))
    assert all(slots[two].start >= slots[one].end + delay - TINY for one, two, delay in edges)
    # a micro-batch has to pass all stages and come back; a rank has to do all its work
    hops = sum(one != two for one, two in pairwise(done.grid.homes))
    assert done.makespan >= sum(f) + sum(i) + 2 * hops * send - TINY
    assert all(done.makespan >= done.busy(rank) - TINY for rank in range(p))
    work = m * (sum(f) + sum(i) + sum(w))
    assert sum(done.busy(rank) for rank in range(p)) == pytest.approx(work, abs=1e-6)
    idle = sum(done.idle(rank) for rank in range(p))
    if done.makespan > 1e-3:
        assert done.bubble_fraction == pytest.approx(idle / (p * done.makespan), abs=1e-6)
        assert -TINY <= done.bubble_fraction <= 1  # 1: only sending takes time
    # memory, counted over time
    for rank, lane in by_rank.items():
        held = most = 0
        for slot in lane:
            held += {"F": 1, "B": -1, "I": 0, "W": -1}[slot.kind]
            most = max(most, held)
        assert held == 0 and done.peak_in_flight[rank] == most


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_it_is_the_timeline_of_its_tasks(setting):
    done = simulate(*setting)
    again = simulate_tasks(done.timeline.tasks)
    assert again.starts == pytest.approx(done.timeline.starts, abs=TINY)
    path = done.critical_path()
    slots = {slot[:4]: slot for slot in done.slots}
    assert slots[path[0][:4]].start == 0 and slots[path[-1][:4]].end == done.makespan
    for before, after in pairwise(path):
        assert done.waits_for(after) == before


@settings(max_examples=60, deadline=None)
@given(pipelines())
def test_a_list_runs_like_the_schedule_it_comes_from(setting):
    name, p, m, v, *times = setting
    assert run(actions(name, p, m, v), *times).slots == simulate(*setting).slots


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(SCHEDULES), st.data())
def test_a_shuffled_list_runs_exactly_when_there_is_no_circle(name, data):
    p = data.draw(st.integers(1, 2 if name == "dualpipev" else 3))
    m = 2 * p if name == "dualpipev" else data.draw(st.integers(1, 3))
    lists = actions(name, p, m, chunks_for(name))
    stages = p * (2 if name in (*V, "interleaved") else 1)
    for items in lists:
        units = [items[place : place + 1 + a.paired] for place, a in enumerate(items)]
        units = [unit for place, unit in enumerate(units) if not (place and items[place - 1].paired)]
        for _ in range(data.draw(st.integers(0, 3))):
            a, b = (data.draw(st.integers(0, len(units) - 1)) for _ in range(2))
            units[a], units[b] = units[b], units[a]
        items[:] = [action for unit in units for action in unit]
    edges = list(rules(lists, stages))
    keys = {a[1:4] for items in lists for a in items}
    if circular(edges, keys):
        with pytest.raises(ScheduleError, match=r"whose result it needs: swap|^deadlock, .*put first") as caught:
            run(lists)
        told = str(caught.value)
        assert "\n" not in told and any(f"{k} of stage {s}, micro-batch {b}" in told for s, b, k in keys)
    else:
        done = run(lists)
        assert {slot[1:4]: slot.start for slot in done.slots} == brute_force(
            edges, dict.fromkeys(keys, 1.0) | {key: 2.0 for key in keys if key[2] == "B"}
        )


# --------------------------------------------------------------------------------------------------------- refused


def changed(change, name="1f1b", p=3, m=4):
    lists = actions(name, p, m)
    change(lists)
    return lists


def swap(rank, a, b):
    def change(lists):
        items = lists[rank]
        items[a], items[b] = items[b], items[a]

    return change


def put(rank, place, *action):
    return lambda lists: lists[rank].insert(place, Action(*action))


def replace(rank, place, action):
    return lambda lists: lists[rank].__setitem__(place, action)


def move(a, place, b, rank):
    return lambda lists: lists[b].insert(0, lists[a].pop(place)._replace(rank=rank))


@pytest.mark.parametrize(
    ("change", "name", "told"),
    [
        # misses
        (lambda x: x[1].pop(2), "1f1b", "B of stage 1, micro-batch 0 is missing: .*add it to rank 1"),
        (lambda x: x[0].pop(4), "1f1b", "F of stage 0, micro-batch 3 is missing"),
        (lambda x: x[2].clear(), "1f1b", "F of stage 2, micro-batch 0 is missing"),
        (lambda x: x[1].pop(), "zb_h1", "W of stage 1, micro-batch 3 is missing"),
        (lambda x: x[0].remove(Action(0, 0, 1, "I")), "zb_h1", "I of stage 0, micro-batch 1 is missing: its W"),
        # repeats
        (put(1, 8, 1, 1, 2, "B"), "1f1b", "rank 1: B of stage 1, micro-batch 2 is there twice"),
        (put(1, 0, 1, 1, 0, "F"), "1f1b", "rank 1: F of stage 1, micro-batch 0 is there twice"),
        (put(0, 8, 0, 0, 1, "I"), "1f1b", "rank 0: B of stage 0, micro-batch 1 and I of .*: both compute the input's"),
        (put(0, 8, 0, 0, 1, "W"), "1f1b", "rank 0: B of stage 0, micro-batch 1 and W of .*: both compute the weights'"),
        # the wrong rank
        (move(0, 0, 1, 1), "1f1b", "F of stage 0, micro-batch 0 is on rank 1; its stage lives on rank 0: move it"),
        (move(0, 0, 1, 0), "1f1b", "rank 1, item 0: F of stage 0, micro-batch 0 says rank 0 and stands in rank 1's"),
        (move(2, -1, 0, 0), "zbv", "W of stage 2, micro-batch 3 is on rank 0; its stage lives on rank 2"),
        # breaks a dependency
        (swap(2, 0, 1), "1f1b", "rank 2 has B of stage 2, micro-batch 0 before F of stage 2, micro-batch 0, whose"),
        (swap(0, 2, 3), "zb_h1", None),
        (swap(0, -1, -2), "zb_h1", "rank 0 has W of stage 0, micro-batch 3 before I of stage 0, micro-batch 3"),
        # deadlocks
        (
            lambda x: (swap(1, 1, 2)(x), swap(2, 1, 2)(x)),
            "1f1b",
            r"^deadlock, \d+ of 24 tasks never start: 'B of stage 1, micro-batch 0' waits for .*comes after.*put first",
        ),
        # what is no action
        (replace(1, 3, None), "1f1b", r"rank 1, item 3 is None; write Action\(rank, stage, microbatch, kind\)"),
        (replace(1, 3, Action(1, 1, 2, "X")), "1f1b", "rank 1, item 3: the kind 'X' is none of F, B, I, W"),
        (replace(1, 3, Action(1, -1, 2, "F")), "1f1b", "rank 1, item 3: stage=-1 must be a whole number"),
        (replace(1, 3, Action(1, 1, 0.5, "F")), "1f1b", "rank 1, item 3: microbatch=0.5 must be a whole number"),
        (replace(1, 3, Action(1, 10**12, 2, "F")), "1f1b", "F of stage 1, micro-batch 2 is missing"),
        (replace(1, 3, Action(1, 1, 10**12, "F")), "1f1b", "F of stage 0, micro-batch 4 is missing"),
        (lambda x: x.__setitem__(1, "FBFB"), "1f1b", "rank 1 has 'FBFB'; give each rank a list of actions"),
        (lambda x: [items.clear() for items in x], "1f1b", "no actions; begin with"),
        (lambda x: x.clear(), "1f1b", "at least one rank"),
        # pairs
        (
            replace(0, 0, Action(0, 0, 0, "F", True)),
            "1f1b",
            "F of stage 0, micro-batch 0 is paired, so a B has to follow",
        ),
        (replace(2, 0, Action(2, 2, 0, "F", True)), "1f1b", "B of stage 2, micro-batch 0 is paired with the F whose"),
        (replace(2, 1, Action(2, 2, 0, "B", True)), "1f1b", "B of stage 2, micro-batch 0 is paired; only an F can be"),
    ],
)
def test_what_cannot_run_is_refused_and_named(change, name, told):
    lists = changed(change, name)
    if told is None:  # legal, if slower
        assert run(lists).makespan >= simulate(name, 3, 4).makespan
        return
    with pytest.raises(ScheduleError, match=told) as caught:
        run(lists)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 600


def test_the_deadlock_of_two_ranks_that_disagree():
    lists = actions("gpipe", 2, 2)
    lists[0][:] = [Action(0, 0, k, kind) for k in (0, 1) for kind in "FB"]
    lists[1][:] = [Action(1, 1, k, "F") for k in (0, 1)] + [Action(1, 1, k, "B") for k in (0, 1)]
    with pytest.raises(ScheduleError) as caught:
        run(lists)
    assert str(caught.value) == (
        "deadlock, 6 of 8 tasks never start: "
        "'B of stage 0, micro-batch 0' waits for 'B of stage 1, micro-batch 0', "
        "which comes after 'F of stage 1, micro-batch 1' on 'rank 1'; "
        "'F of stage 1, micro-batch 1' waits for 'F of stage 0, micro-batch 1', "
        "which comes after 'B of stage 0, micro-batch 0' on 'rank 0'; "
        "on one of these ranks, put first what the other waits for"
    )


def test_how_many_and_where_can_be_said():
    lists = actions("1f1b", 3, 4)
    with pytest.raises(ScheduleError, match="F of stage 0, micro-batch 4 is missing"):
        run(lists, microbatches=5)
    with pytest.raises(ScheduleError, match="micro-batch 3, but there are 3 micro-batches"):
        run(lists, microbatches=3)
    with pytest.raises(ScheduleError, match="F of stage 0, micro-batch 0 is on rank 0; its stage lives on rank 2"):
        run(lists, placement=[2, 1, 0])
    with pytest.raises(ScheduleError, match="placement has rank 3; the schedule has ranks 0 to 2"):
        run(lists, placement=[0, 1, 3])
    with pytest.raises(ScheduleError, match=r"of stage 2, .*placement names 2 stages"):
        run(lists, placement=[0, 1])
    three = [[Action(0, s, 0, kind) for s, kind in ((0, "F"), (2, "F"), (2, "B"), (0, "B"))]]
    three += [[Action(1, 1, 0, kind) for kind in "FB"]]
    assert run(three, placement=[0, 1, 0]).makespan == 9


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (dict(name="2f2b"), "no schedule '2f2b'; there are naive, gpipe, 1f1b"),
        (dict(stages=0), "stages=0 must be a whole number, at least 1"),
        (dict(microbatches=2.5), "microbatches=2.5 must be"),
        (dict(chunks=True), "chunks=True must be"),
        (dict(chunks=2), "1f1b has one chunk on a rank, not chunks=2; for more take interleaved"),
        (dict(name="interleaved"), "interleaved needs chunks=2 or more"),
        (dict(name="zbv", chunks=3), "zbv has two chunks on a rank, not chunks=3"),
        (dict(name="interleaved", chunks=2, microbatches=9), "for 9 micro-batches .*nearest that has one: 8 or 10"),
        (dict(name="interleaved", chunks=2, microbatches=13), "the nearest that has one: 12$"),
        (dict(name="dualpipev", microbatches=3), "needs m >= 2p.*the nearest that has one: 8$"),
        (dict(forward=[1, 2]), "forward has 2 numbers; give one for all, or one for each of 4 stages"),
        (dict(name="zbv", backward_weight=[1] * 4), "backward_weight has 4 numbers; .* 8 stages"),
        (dict(backward_input=-1), "backward_input=-1 must be at least 0"),
        (dict(backward_weight=float("nan")), "backward_weight=nan must be at least 0"),
        (dict(forward="quick"), "forward='quick' must be a number"),
        (dict(send=-0.5), "send=-0.5 must be a number, at least 0"),
        (dict(send=[1, 1]), "send="),
        (dict(send=float("inf")), "send=inf must be"),
    ],
)
def test_settings_that_no_pipeline_has(call, told):
    with pytest.raises(ScheduleError, match=told) as caught:
        simulate(**dict(name="1f1b", stages=4, microbatches=8) | call)
    assert "\n" not in str(caught.value)


def test_the_nearest_legal_number_is_legal_and_nearest():
    for p in range(1, 9):
        good = [m for m in range(1, 80) if m % max(1, m // p) == 0]
        for m in range(1, 40):
            if m in good:
                assert actions("interleaved", p, m, 2)
                continue
            near = min(abs(m - k) for k in good)
            wanted = " or ".join(str(k) for k in good if abs(m - k) == near)
            with pytest.raises(ScheduleError, match=rf"one: {wanted}$"):
                actions("interleaved", p, m, 2)


def test_other_errors():
    with pytest.raises(ScheduleError, match="no rank 4; there are 0 to 3"):
        simulate("1f1b", 4, 8).idle(4)
    with pytest.raises(ScheduleError, match="no task 'F of stage 9, micro-batch 0'"):
        simulate("1f1b", 4, 8).waits_for(Action(0, 9, 0, "F"))
    with pytest.raises(ScheduleError, match="each time must be at least 0"):
        bubble_formula("1f1b", 4, 8, forward=-1)


# ------------------------------------------------------------------------------------------------------ what it shows


def test_the_example_of_the_docstring():
    done = simulate("1f1b", stages=4, microbatches=8)
    assert (done.makespan, done.idle_over_ideal, done.peak_in_flight) == (33.0, 0.375, (4, 3, 2, 1))
    assert done.slots[0] == (0, 0, 0, "F", 0.0, 1.0)
    assert done.waits_for(Action(0, 0, 0, "B")) == Action(1, 1, 0, "B")
    assert done.waits_for(Action(0, 0, 0, "F")) is None
    assert repr(done) == "<PipelineTimeline: 4 ranks, 4 stages, 8 micro-batches, ends at 33, bubble 0.2727>"
    mine = actions("gpipe", 4, 8)
    mine[0][0], mine[0][1] = mine[0][1], mine[0][0]
    assert run(mine, forward=1.0, send=0.1).makespan > simulate("gpipe", 4, 8, send=0.1).makespan
    assert set(FORMULAS) == set(SCHEDULES)
    assert done.timeline.slots[0].label == "0" and done.timeline.resources[0] == "rank 0"


def test_without_any_time_there_is_no_bubble():
    done = simulate("1f1b", 4, 8, 1, 0, 0, 0)
    assert (done.makespan, done.bubble_fraction, done.idle_over_ideal) == (0, 0, 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_64_stages_and_1024_micro_batches_in_under_a_second(name):
    """CPU time, since other work may run beside it."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        done = simulate(name, 64, 1024, chunks_for(name), send=0.1)
        assert done.bubble_fraction > 0 and max(done.peak_in_flight) > 0
        seconds.append(time.process_time() - begin)
        del done
    assert min(seconds) < 1


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_a_widget_asks_for_in_under_100_ms(name):
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        done = simulate(name, 16, 64, chunks_for(name), send=0.1)
        assert done.slots and done.critical_path() and done.bubble_fraction and done.peak_in_flight
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 0.1
