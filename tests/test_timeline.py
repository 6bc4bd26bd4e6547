"""The discrete-event simulator: against a brute-force one, by its laws, and by schedules known by hand."""

import time
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ScheduleError
from course_lib.parallel.timeline import Task, simulate

TINY = 1e-9


def schedules():
    """Random tasks without circles: each waits only for earlier ones. Then the lanes are interleaved anew."""

    @st.composite
    def build(draw):
        count = draw(st.integers(0, 14))
        tasks = []
        for index in range(count):
            waits = draw(st.lists(st.integers(0, index - 1), max_size=3)) if index else []
            after = tuple(f"t{w}" if draw(st.booleans()) else (f"t{w}", draw(st.floats(0, 3))) for w in waits)
            tasks.append(Task(f"t{index}", f"r{draw(st.integers(0, 3))}", draw(st.floats(0, 10)), after))
        lanes = {}
        for task in tasks:
            lanes.setdefault(task.resource, []).append(task)
        order = draw(st.permutations([task.resource for task in tasks]))  # any order that keeps each lane's own
        queues = {resource: iter(lane) for resource, lane in lanes.items()}
        return [next(queues[resource]) for resource in order]

    return build()


def edges(tasks):
    """(earlier, later, delay) of everything that has to hold."""
    last = {}
    for task in tasks:
        if task.resource in last:
            yield last[task.resource], task.name, 0.0
        last[task.resource] = task.name
        for wait in task.after:
            yield (wait, task.name, 0.0) if isinstance(wait, str) else (wait[0], task.name, wait[1])


def brute_force(tasks):
    """Starts by pushing tasks later until nothing moves any more."""
    start = {task.name: 0.0 for task in tasks}
    takes = {task.name: task.duration for task in tasks}
    rules, moved = list(edges(tasks)), True
    while moved:
        moved = False
        for earlier, later, delay in rules:
            wanted = start[earlier] + takes[earlier] + delay
            if wanted > start[later]:
                start[later], moved = wanted, True
    return start


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_it_agrees_with_brute_force(tasks):
    run = simulate(tasks)
    wanted = brute_force(tasks)
    assert {slot.name: slot.start for slot in run.slots} == wanted


@settings(max_examples=300, deadline=None)
@given(schedules())
def test_the_laws_of_a_schedule(tasks):
    run = simulate(tasks)
    slots = {slot.name: slot for slot in run.slots}
    assert [slot.name for slot in run.slots] == [task.name for task in tasks]
    for earlier, later, delay in edges(tasks):  # also: no two on one resource at a time, in the order given
        assert slots[later].start >= slots[earlier].end + delay
    for resource in run.resources:
        assert run.makespan >= run.busy(resource) - TINY
        assert abs(run.busy(resource) + run.idle(resource) - run.makespan) < TINY
        assert [slot.resource for slot in run.lane(resource)] == [resource] * len(run.lane(resource))
    for task in tasks:
        before = run.waits_for(task.name)
        if before is None:
            assert slots[task.name].start == 0
        else:
            gap = [d for a, b, d in edges(tasks) if (a, b) == (before, task.name)]
            assert any(slots[task.name].start == slots[before].end + delay for delay in gap)


@settings(max_examples=200, deadline=None)
@given(schedules())
def test_the_critical_path_is_as_long_as_the_schedule(tasks):
    run = simulate(tasks)
    path = run.critical_path()
    slots = {slot.name: slot for slot in run.slots}
    if not tasks:
        assert path == () and run.makespan == 0
        return
    assert slots[path[0]].start == 0 and slots[path[-1]].end == run.makespan
    waited = sum(slots[b].start - slots[a].end for a, b in pairwise(path))  # delays between them
    worked = sum(slots[name].end - slots[name].start for name in path)
    assert abs(worked + waited - run.makespan) < TINY


@settings(max_examples=100, deadline=None)
@given(schedules(), st.randoms())
def test_the_order_between_resources_does_not_matter(tasks, random):
    lanes = {}
    for task in tasks:
        lanes.setdefault(task.resource, []).append(task)
    names = list(lanes)
    random.shuffle(names)
    other = simulate([task for name in names for task in lanes[name]])
    assert {slot.name: slot.start for slot in other.slots} == {s.name: s.start for s in simulate(tasks).slots}


def circular(tasks):
    """Whether the tasks' order has a circle, by removing what has no predecessor."""
    left, rules = {task.name for task in tasks}, list(edges(tasks))
    while True:
        free = left - {b for a, b, _ in rules if a in left and b in left}
        if not free:
            return bool(left)
        left -= free


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 7), max_size=2)), min_size=8, max_size=8),
)
def test_a_deadlock_is_found_exactly_when_there_is_a_circle(rows):
    tasks = [
        Task(f"t{i}", f"r{resource}", 1.0, tuple(f"t{w}" for w in waits)) for i, (resource, waits) in enumerate(rows)
    ]
    if not circular(tasks):
        assert len(simulate(tasks).slots) == 8
        return
    with pytest.raises(ScheduleError, match=r"^deadlock, ") as caught:
        simulate(tasks)
    told = str(caught.value)
    assert "\n" not in told and len(told) < 600 and "waits for 't" in told


# -------------------------------------------------------------------------------------------------- known by hand


def test_the_example_of_the_docstring():
    run = simulate(
        [
            Task("gather 0", "network", 2.0, kind="communication"),
            Task("gather 1", "network", 2.0, kind="communication"),
            Task("forward 0", "compute", 3.0, after=("gather 0",), kind="forward"),
            Task("forward 1", "compute", 3.0, after=("forward 0", ("gather 1", 0.5)), kind="forward"),
        ]
    )
    assert (run.makespan, run.idle("compute"), run.busy("network"), run.idle("network")) == (8, 2, 4, 4)
    assert [(slot.start, slot.end) for slot in run.slots] == [(0, 2), (2, 4), (2, 5), (5, 8)]
    assert run.waits_for("forward 1") == "forward 0" and run.waits_for("gather 0") is None
    assert run.critical_path() == ("gather 0", "forward 0", "forward 1")
    assert run.resources == ("network", "compute") and len(run.lane("network")) == 2
    assert repr(run) == "<Timeline: 4 tasks on 2 resources, ends at 8>"


def pipeline(stages, micro_batches, delay=0.0):
    """GPipe: every forward, then every backward (twice as long), with a delay from stage to stage."""
    tasks = []
    for stage in range(stages):
        first, last = stage == 0, stage == stages - 1
        for m in range(micro_batches):
            after = () if first else ((f"F{stage - 1}.{m}", delay),)
            tasks.append(Task(f"F{stage}.{m}", f"stage {stage}", 1.0, after, "forward"))
        for m in range(micro_batches):
            after = (f"F{stage}.{m}",) if last else ((f"B{stage + 1}.{m}", delay),)
            tasks.append(Task(f"B{stage}.{m}", f"stage {stage}", 2.0, after, "backward"))
    return tasks


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (4, 8), (4, 16), (8, 32), (8, 2)])
def test_gpipes_bubble(stages, micro_batches):
    """(p-1)/(m+p-1) of the total (Huang et al. 2019, arXiv 1811.06965): a formula that this simulator does not use."""
    run = simulate(pipeline(stages, micro_batches))
    idle = sum(run.idle(resource) for resource in run.resources) / (stages * run.makespan)
    assert idle == pytest.approx((stages - 1) / (micro_batches + stages - 1))


def test_of_two_that_end_alike_the_resource_comes_first():
    run = simulate(
        [Task("a", "r", 2.0), Task("b", "s", 2.0), Task("c", "r", 1.0, ("b",)), Task("d", "t", 1.0, ("b", "a"))]
    )
    assert run.waits_for("c") == "a" and run.waits_for("d") == "b"


def test_a_delay_lies_between_tasks_and_occupies_nobody():
    run = simulate(pipeline(3, 1, delay=0.25))
    assert run.makespan == 3 * 3 + 4 * 0.25


# ------------------------------------------------------------------------------------------------------ what is wrong


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        ([Task("a", "r", 1.0, ("b",))], "task 'a' waits for 'b', which is not in the schedule"),
        ([Task("a", "r", 1.0), Task("a", "s", 1.0)], "task 'a' is there twice"),
        ([Task("a", "r", -1.0)], "task 'a' takes -1.0"),
        ([Task("a", "r", float("nan"))], "task 'a' takes nan"),
        ([Task("a", "r", float("inf"))], "task 'a' takes inf"),
        ([Task("a", "r", 1.0), Task("b", "r", 1.0, (("a", -0.5),))], "task 'b' waits -0.5 after 'a'"),
        ([Task("a", "r", 1.0), Task("b", "r", 1.0, (("a", float("nan")),))], "task 'b' waits nan after 'a'"),
        ([Task("aa", "r", 1.0, "b")], r"write after=\('b',\)"),
        ([Task("a", "r", 1.0, ("a",))], "deadlock, 1 of 1 tasks never start: 'a' waits for 'a'"),
        (
            [Task("a", "r", 1.0, ("b",)), Task("b", "r", 1.0)],
            "'a' waits for 'b', which comes after 'a' on 'r'",
        ),
        (
            [Task("send", "x", 1.0, ("get",)), Task("get", "y", 1.0, ("send",)), Task("free", "z", 1.0)],
            "deadlock, 2 of 3 tasks never start: 'send' waits for 'get'; 'get' waits for 'send'",
        ),
    ],
)
def test_what_cannot_run_is_named(tasks, told):
    with pytest.raises(ScheduleError, match=told):
        simulate(tasks)


def test_a_long_circle_is_told_in_short():
    tasks = [Task(f"t{i}", f"r{i}", 1.0, (f"t{(i + 1) % 1000}",)) for i in range(1000)]
    with pytest.raises(ScheduleError, match="and so on over 995 more") as caught:
        simulate(tasks)
    assert len(str(caught.value)) < 400


def test_unknown_names_are_errors_too():
    run = simulate([Task("a", "r", 1.0)])
    with pytest.raises(ScheduleError, match="no task 'b'"):
        run.waits_for("b")
    with pytest.raises(ScheduleError, match="no resource 's'; there are r"):
        run.busy("s")


def test_no_tasks_at_all():
    run = simulate([])
    assert run.makespan == 0 and run.slots == () and run.resources == () and run.critical_path() == ()


def test_131072_tasks_in_under_a_second():
    """64 stages, 1,024 micro-batches, forward and backward; CPU time, since other work may run beside it."""
    tasks = pipeline(64, 1024, delay=0.1)
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        simulate(tasks)
        seconds.append(time.process_time() - begin)
    assert min(seconds) < 1
