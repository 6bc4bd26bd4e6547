"""The search against brute force over every layout with the plan's own, unvectorised functions; and what it says."""

from dataclasses import replace
from itertools import product

import pytest

from course_lib.errors import ConfigError, ScheduleError
from course_lib.parallel.schedule import bubble_formula
from course_lib.planning import search as module
from course_lib.planning.capacity import device_limit, stages
from course_lib.planning.layouts import COLUMNS, Space, groups, price
from course_lib.planning.presets import preset
from course_lib.planning.rules import check
from course_lib.planning.search import search
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.planning.steptime import predict

NAMES = ("sharding", "schedule", "recompute", *COLUMNS)
SPACE = Space(chunks=(2,), shardings=("ddp", "zero2", "fsdp", "hsdp"), recompute=("none", "all"))
DEVICES = 4


def small(memory_gib: float = 6.0, **changes) -> RunSpec:
    """A model that is small for a device in time, not in memory. 6 layers: on 4 stages they are uneven."""
    model = ModelSpec(layers=6, width=1024, heads=8, kv_heads=2, ffn=2816, vocab=32_000)
    hardware = HardwareSpec(
        devices=DEVICES, device="A100 SXM 80 GB", devices_per_node=2, memory_gib=memory_gib, across_gb_per_s=10.0
    )
    data = DataSpec(tokens=1e9, sequence=1024, global_batch=8)
    return RunSpec(model=changes.pop("model", model), hardware=hardware, data=data, layout=LayoutSpec(**changes))


MIXTURE = ModelSpec(
    layers=4, width=512, heads=8, vocab=8_000, experts=4, active_experts=2, expert_ffn=768, dense_layers=1
)


def exact(run: RunSpec) -> bool:
    """Whether the bubble's formula holds there, by the schedules' own word: with recomputing, B takes longer."""
    layout, again = run.layout, run.layout.recompute != "none"
    if layout.pipeline == 1:
        return layout.schedule == "1f1b"
    try:
        bubble_formula(
            layout.schedule, layout.pipeline, run.accumulation, layout.chunks, backward_input=1.5 if again else 1.0
        )
    except ScheduleError:
        return False
    return True


def brute(run: RunSpec) -> dict[tuple, tuple[float, float]]:
    """Every legal layout, tried one by one: its price. Nothing is shared with the search but rules and formulas."""
    run, numbers = replace(run, hardware=check(replace(run, layout=LayoutSpec(data=DEVICES))).hardware), (1, 2, 4)
    found = {}
    for data, tensor, pipeline, context in product(numbers, repeat=4):
        if data * tensor * pipeline * context != DEVICES:
            continue
        for micro, expert, replicas, chunks in product((1, 2, 4, 8), numbers, numbers, (1, *SPACE.chunks)):
            for sharding, schedule, recompute in product(SPACE.shardings, SPACE.schedules, SPACE.recompute):
                if (schedule == "gpipe" and chunks > 1) or (sharding == "hsdp" and replicas >= data):
                    continue  # what the space leaves out: chunks of gpipe, and groups of one rank, which are ddp
                if schedule in ("zbv", "dualpipev") and chunks == 1:
                    continue  # written out as two
                numbers_of = dict(
                    data=data, tensor=tensor, pipeline=pipeline, context=context, micro_batch=micro, expert=expert,
                    replicas=replicas, chunks=chunks, sharding=sharding, schedule=schedule, recompute=recompute,
                )  # fmt: skip
                one = replace(run, layout=replace(run.layout, **numbers_of))
                try:
                    check(one)
                except ConfigError:
                    continue
                if exact(one):
                    key = tuple(numbers_of[name] for name in NAMES)
                    found[key] = max(stage.peak for stage in stages(one)), predict(one).seconds
    return found


ODD = small(fused_attention=False, sequence_parallel=False)
ODD = replace(ODD, data=replace(ODD.data, sequence=516))  # of four context ranks, but not of their eight pieces


@pytest.fixture(scope="module", params=["dense", "mixture", "plain attention, no sequence parallel"])
def case(request):
    run = {
        "dense": small(),
        "mixture": small(model=MIXTURE),
        "plain attention, no sequence parallel": ODD,
    }[request.param]
    expected = brute(run)
    middle = sorted(peak for peak, _ in expected.values())[len(expected) // 2]  # half of them fit
    return replace(run, hardware=replace(run.hardware, memory_gib=middle / device_limit(1.0))), expected


def key(layout: LayoutSpec) -> tuple:
    return tuple(getattr(layout, name) for name in NAMES)


def test_every_legal_layout_once_with_its_price(case):
    run, expected = case
    run = check(replace(run, layout=replace(run.layout, data=DEVICES)))
    found = {}
    for group in groups(run, SPACE):
        peaks, seconds = price(run, group)
        for place in range(group.size):
            one = key(group.layout(run, place))
            assert one not in found
            found[one] = float(peaks[place]), float(seconds[place])
    assert found.keys() == expected.keys() and len(found) > 400
    for one, numbers in found.items():  # the same formulas in another order of rounding
        assert numbers == pytest.approx(expected[one], rel=1e-9), one


def parts(one: tuple) -> int:
    """How many things a layout does beside data parallelism in plain 1F1B."""
    values = dict(zip(NAMES, one, strict=True))
    count = sum(values[name] > 1 for name in ("replicas", "tensor", "pipeline", "chunks", "context", "expert"))
    return count + (values["recompute"] != "none") + (values["schedule"] not in ("1f1b", "interleaved"))


@pytest.mark.parametrize("tolerance", [module.SAME, 0.2])
def test_the_best_and_the_front_are_those_of_brute_force(case, tolerance, monkeypatch):
    """With a wide tolerance many are as fast as the best, and the simplest of them has to be found."""
    monkeypatch.setattr(module, "SAME", tolerance)
    run, expected = case
    made = search(run, space=SPACE)
    limit = device_limit(run.hardware.memory_gib)
    fits = {one: numbers for one, numbers in expected.items() if numbers[0] <= limit}
    assert 0 < len(fits) < len(expected)  # else memory decides nothing here
    assert (made.considered, made.total, made.fits, made.complete) == (len(expected), len(expected), len(fits), True)
    near = 1e-6  # seven digits decide
    fastest = min(seconds for _, seconds in fits.values())
    same = {one: numbers for one, numbers in fits.items() if numbers[1] <= fastest * (1 + module.SAME)}
    assert made.pareto[0].seconds == pytest.approx(fastest, rel=near)
    assert len(same) > 5 or tolerance < 0.1
    simplest = min((parts(one), peak) for one, (peak, _) in same.items())
    assert (parts(key(made.best.layout)), made.best.peak) == (simplest[0], pytest.approx(simplest[1], rel=near))
    assert key(made.best.layout) in same
    slower = [(s, p) for p, s in fits.values() if s > made.best.seconds * (1 + module.SAME)]
    second = min(slower)
    assert made.equals == len(fits) - len(slower) - 1
    assert (made.runner_up.seconds, made.runner_up.peak) == pytest.approx(second, rel=near)
    of_all = min(seconds for _, seconds in expected.values())
    assert made.fastest.seconds == pytest.approx(made.best.seconds if of_all == fastest else of_all, rel=near)
    for option in made.pareto:  # none is beaten
        peak, seconds = expected[key(option.layout)]
        assert (option.peak, option.seconds) == pytest.approx((peak, seconds), rel=near)
        for other_peak, other in fits.values():
            assert not (other_peak < peak * (1 - near) and other < seconds * (1 - near))
    for peak, seconds in fits.values():  # and none that is missing beats them
        assert any(o.peak <= peak * (1 + near) and o.seconds <= seconds * (1 + near) for o in made.pareto)


def test_rivals_are_the_best_with_another_value(case):
    run, expected = case
    made, limit = search(run, space=SPACE), device_limit(run.hardware.memory_gib)
    for name, rival in made.rivals.items():
        place, mine = NAMES.index(name), getattr(made.best.layout, name)
        best = min(s for one, (p, s) in expected.items() if one[place] != mine and p <= limit)
        assert rival.option.seconds == pytest.approx(best, rel=1e-6), name
        assert getattr(rival.option.layout, name) != mine
        assert name in rival.why


def test_full_plans_are_those_of_the_front_and_agree():
    made = search(small(), space=SPACE)
    assert [option.plan.step.seconds for option in made.pareto] == pytest.approx(
        [option.seconds for option in made.pareto], rel=1e-6
    )
    assert [option.plan.memory.peak for option in made.pareto] == pytest.approx(
        [option.peak for option in made.pareto], rel=1e-6
    )
    assert made.best.plan.run.layout == made.best.layout
    assert made.best.plan is made.best.plan  # made once
    seconds, peaks = ([getattr(option, name) for option in made.pareto] for name in ("seconds", "peak"))
    assert seconds == sorted(seconds) and peaks == sorted(peaks, reverse=True)


def test_why_the_runner_up_loses():
    run = small()
    made = search(run, space=SPACE)
    assert " -> " in made.why and " s a step slower" in made.why
    rival = made.rivals["tensor"]
    slower = rival.option.seconds - made.best.seconds
    assert f"{slower:.3g} s a step slower" in rival.why and "tensor traffic" in rival.why
    same = replace(made.best)
    assert module.difference(same, same) == "nothing: as fast and as large"


def test_progress_counts_and_can_stop():
    seen = []
    made = search(small(), space=SPACE, progress=seen.append)
    counts = [each.considered for each in seen]
    assert counts == sorted(set(counts)) and counts[-1] == made.total == seen[0].total
    assert seen[-1].best.seconds == made.pareto[0].seconds  # the simplest of those as fast is chosen at the end
    times = [each.best.seconds for each in seen if each.best]
    assert times == sorted(times, reverse=True)
    half = search(small(), space=SPACE, progress=lambda each: each.considered < made.total / 2)
    assert made.total / 2 <= half.considered < made.total and not half.complete
    assert half.pareto[0].seconds >= made.pareto[0].seconds


def test_ctrl_c_returns_what_there_is(monkeypatch):
    calls = []

    def interrupted(run, group):
        calls.append(group)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return price(run, group)

    monkeypatch.setattr(module, "price", interrupted)
    made = search(small(), space=SPACE)
    assert not made.complete and made.best.plan is not None
    monkeypatch.setattr(module, "price", lambda run, group: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        search(small(), space=SPACE)


def test_large_groups_come_in_blocks():
    run = check(preset("70b-on-512-h100"))
    group = max(groups(run), key=lambda each: each.size)
    parts = [*group.blocks(1000)]
    assert [part.size for part in parts[:-1]] == [1000] * (group.size // 1000)
    assert sum(part.size for part in parts) == group.size
    assert parts[1].layout(run, 3) == group.layout(run, 1003)


def test_near_layouts_are_those_of_few_changes():
    """Against counting the differences of every layout."""
    run = check(replace(small(), layout=LayoutSpec(data=2, tensor=2, micro_batch=2)))
    here = run.layout

    def made(layout: LayoutSpec) -> int:
        count = sum(getattr(layout, n) != getattr(here, n) for n in ("tensor", "pipeline", "context", "expert"))
        count += layout.micro_batch != here.micro_batch
        count += (layout.sharding, layout.replicas) != (here.sharding, here.replicas)
        return count + (layout.recompute != here.recompute)  # one stage here: a pipeline brings its schedule with it

    every = [group.layout(run, place) for group in groups(run) for place in range(group.size)]
    for most in (1, 2, 3):
        near = [group.layout(run, k) for group in groups(run, changes=most) for k in range(group.size)]
        assert sorted(map(key, near)) == sorted(key(each) for each in every if 1 <= made(each) <= most)


NOTHING = replace(
    small(),
    data=DataSpec(tokens=1e9, sequence=1023, global_batch=3),
    hardware=HardwareSpec(devices=16, device="A100 SXM 80 GB"),
)


@pytest.mark.parametrize(
    ("run", "says"),
    [
        (small(memory_gib=0.05), r"none of [\d,]+ layouts fits: the smallest needs [\d.]+ GiB of 0\.0"),
        (NOTHING, "hardware.devices=16 has no legal layout with data.global_batch=3"),
        (replace(small(), hardware=HardwareSpec(devices=4, device="H1000")), "hardware.device"),
    ],
)
def test_what_cannot_be_is_one_line(run, says):
    with pytest.raises(ConfigError, match=says) as error:
        search(run, space=SPACE)
    assert "\n" not in str(error.value)
