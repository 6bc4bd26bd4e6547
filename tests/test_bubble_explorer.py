"""The explorer of the bubble and its pictures: they say what the simulator says, at every corner and in time."""

import itertools
import random
import re
import time
from types import SimpleNamespace

import numpy as np
import pytest
from explorer_moves import at, press
from matplotlib.collections import PolyCollection

from course_lib.figures.pipeline import KINDS, held_over_time, legend, timeline_figure
from course_lib.figures.pipeline_svg import pipeline_svg, slot_text
from course_lib.figures.style import png, title_of
from course_lib.parallel.schedule import SCHEDULES, Action, bubble_formula, simulate
from course_lib.widgets import bubble, bubble_explorer

BUDGET = 0.1


@pytest.fixture(scope="module")
def made():
    return bubble_explorer()


def numbers(view):
    return {label: value for value, label in view.numbers}


# ----------------------------------------------------------------------------------------------------------- the widget


def test_what_it_opens_with(made):
    view = at(made)
    assert view.alt.startswith("GPipe: 27.3% of the time is idle. 4 ranks, 8 micro-batches, 33 ms for the batch.")
    assert view.alt.endswith("by rank: 8, 8, 8, 8.")
    said = numbers(view)
    assert said == {
        "idle / total": "27.3%",
        "idle / ideal": "37.5%",
        "formula": "27.3%",
        "most activations in flight on a rank": "8",
    }
    assert "each rank waits (p − 1) (F + B), which makes 27.3% of the total and 37.5% of the ideal" in view.message
    assert view.message.endswith("The simulation agrees.")
    assert [control.name for control in made.controls if not control.more] == ["stages", "microbatches", "schedule"]
    assert "course-static" in made._face and "<img" in made._face and "GPipe: 27.3%" in made._face


def test_the_presets_make_their_points(made):
    labels = ["twice the micro-batches, twice the batch", "1F1B has GPipe's bubble but not its memory", "interleave"]
    labels += ["fill it with weight gradients", "one slow rank", "sending takes half a forward"]
    assert [preset.label for preset in made.presets] == labels
    done = press(made, labels[0]).data["done"]
    assert done.bubble_fraction == pytest.approx(3 / 19) and done.peak_in_flight == (16,) * 4
    done = press(made, labels[1]).data["done"]
    assert done.bubble_fraction == pytest.approx(9 / 33) and done.peak_in_flight == (4, 3, 2, 1)
    done = press(made, labels[2]).data["done"]
    assert done.bubble_fraction == pytest.approx(9 / 57) and done.peak_in_flight == (11, 9, 7, 5)
    assert done.makespan == 28.5  # the same model in finer pieces: 24 ms of work and 4.5 of waiting
    done = press(made, labels[3]).data["done"]
    assert done.bubble_fraction == pytest.approx(1 / 9) and set(done.table.kind.tolist()) == {0, 2, 3}
    view = press(made, labels[4])
    assert view.data["done"].bubble_fraction > 0.4 and "rank 2, slow" in view.picture
    assert view.message.endswith("1 − mean / max of the ranks' times stays: 37.5%.")  # 1 - 1.25 / 2
    done = press(made, labels[5]).data["done"]
    assert done.makespan == 41 and simulate("gpipe", 4, 8, send=0.5).makespan == 36
    assert not made.reached  # a preset shows, the goals are for finding


@pytest.mark.parametrize("schedule", bubble._SCHEDULES)
@pytest.mark.parametrize(("p", "m"), [(1, 1), (2, 8), (4, 2), (4, 8), (5, 12)])
def test_formula_and_simulation_are_told_apart_rightly(made, schedule, p, m):
    """The number is the formula's; "agrees" exactly where the formula holds, and then the simulation has it too."""
    view = at(made, stages=p, microbatches=m, schedule=schedule, chunks=3)
    if "done" not in view.data:
        return
    name, chunks = bubble._SCHEDULES[schedule]
    given = 1 if chunks == 2 else chunks or 3
    told = bubble_formula(name, p, m, given, 1, 1, 1, anywhere=True)
    assert next(value for value, label in view.numbers if label.startswith("formula")) == f"{told:.1%}"
    same = abs(told - view.data["done"].bubble_fraction) < 1e-9
    holds = view.message.endswith("The simulation agrees.")
    assert holds == ("formula" in numbers(view)) and (same or not holds)
    try:
        bubble_formula(name, p, m, given)
    except bubble.ScheduleError:
        assert not holds and "The formula of " + schedule in view.message and "would make" in view.message
    else:
        assert holds


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"send": 0.3}, "The formula of GPipe knows of no time for sending."),
        ({"slow_by": 2}, "The formula of GPipe is for ranks that are equally fast."),
        (
            {"schedule": "interleaved", "microbatches": 2},
            "2 micro-batches (m >= p); the nearest for which it holds: 4.",
        ),
        ({"schedule": "ZB-H1", "backward_weight": 2}, "The formula of ZB-H1 is wrong for F=1, I=1, W=2 (m >= p, and W"),
    ],
)
def test_where_the_formula_does_not_hold_the_reason_is_there(made, values, told):
    assert told in at(made, **values).message


@pytest.mark.parametrize(
    ("values", "nearest", "told"),
    [
        ({"schedule": "interleaved", "microbatches": 9}, "8 or 10", "interleaved with 4 stages has no order for 9"),
        ({"schedule": "DualPipeV", "microbatches": 3}, "8", "DualPipeV with 4 stages has no order for 3"),
        ({"schedule": "DualPipeV", "stages": 16}, "32", "DualPipeV with 16 stages has no order for 8"),
    ],
)
def test_without_an_order_it_says_which_number_has_one(made, values, nearest, told):
    view = at(made, **values)
    assert told in view.message and view.message.endswith(f"the nearest that has one: {nearest}.")
    assert f"The nearest that has one: {nearest}." in view.picture and "\n" not in view.message
    assert f"rank {values.get('stages', 4) - 1}" in view.picture and not view.numbers
    fresh = bubble_explorer()
    at(fresh, **values)
    assert not fresh.reached


def test_a_rank_as_slow_as_asked(made):
    """In a V a rank's two stages are slow."""
    for schedule, stages in (("1F1B", [2]), ("interleaved", [2, 6]), ("ZB-V", [2, 5])):
        done = at(made, schedule=schedule, slow_by=2, slow_rank=2, forward=1.5).data["done"]
        share = 1.5 / (1 if schedule == "1F1B" else 2)
        forward = done.table.kind == 0
        for stage in range(done.stages):
            (takes,) = set(done.durations[forward & (done.table.stage == stage)].tolist())
            assert takes == share * (2 if stage in stages else 1)
    assert "rank 3, slow" in at(made, slow_by=2, slow_rank=15).picture
    assert "slow" not in at(made, slow_by=1, slow_rank=3).picture


def test_which_controls_have_an_effect(made):
    def disabled(**values):
        at(made, **values)
        return {name for name, field in made._fields.items() if field.disabled}

    chosen = {"stage", "microbatch"}
    assert disabled() == {"chunks", "slow_rank"} | chosen
    assert disabled(schedule="interleaved", slow_by=2) == chosen
    assert disabled(schedule="ZB-V", highlight="a backward") == {"chunks", "slow_rank"}
    assert disabled(stages=1, slow_by=2, highlight="a forward") == {"chunks", "send", "slow_rank", "stage"}
    assert disabled(highlight="the critical path") == {"chunks", "slow_rank"} | chosen
    assert disabled(microbatches=1, highlight="a weight gradient") == {"chunks", "slow_rank", "microbatch"}


# ---------------------------------------------------------------------------------------------- what a slot waits for


def test_a_chosen_slot_says_what_it_waits_for(made):
    view = at(made, schedule="1F1B", send=0.5, highlight="a backward")
    assert view.message.startswith(
        "Backward of stage 0, micro-batch 0, on rank 0, 13 to 15 ms: it waits for backward of stage 1, micro-batch 0, "
        "which ends at 12.5 on rank 1 and is on its way for 0.5. A chain of 8 decides when it ends. "
    )
    view = at(made, schedule="1F1B", highlight="a forward", microbatch=2)
    assert (
        "on rank 0, 2 to 3 ms: starts when its rank is free, after forward of stage 0, micro-batch 1." in view.message
    )
    assert "0 to 1 ms: starts at once. A chain of 1 decides" in at(made, highlight="a forward").message
    view = at(made, highlight="a weight gradient", stage=3, microbatch=63)
    assert view.message.startswith(
        "In GPipe the weight gradient is part of the backward. Backward of stage 3, micro-batch 7,"
    )
    view = at(made, schedule="ZB-H1", highlight="a weight gradient", stage=63, microbatch=0)
    assert view.message.startswith("Weight gradient of stage 3, micro-batch 0,")
    assert 'stroke-width="3"/><title>weight gradient of stage 3' in view.picture


@pytest.mark.parametrize("schedule", bubble._SCHEDULES)
def test_the_chain_is_the_timelines_own(made, schedule):
    settings = {"schedule": schedule, "send": 0.3, "slow_by": 1.5, "microbatches": 12}
    view = at(made, **settings, highlight="the critical path")
    done, chain = view.data["done"], view.data["chain"]
    actions = [action for lane in done.actions for action in lane]
    assert tuple(actions[place] for place in chain) == done.critical_path()
    assert done.starts[chain[0]] == 0 and (done.starts + done.durations)[chain[-1]] == done.makespan
    assert view.message.startswith(f"{len(chain)} actions, each waiting for the one before, decide")
    view = at(made, **settings, highlight="a forward", stage=3, microbatch=5)
    slot = done.slots[view.data["chain"][-1]]
    assert (slot.stage, slot.microbatch, slot.kind) == (3, 5, "F")
    before = done.waits_for(Action(*slot[:4], actions[view.data["chain"][-1]].paired))
    assert before == actions[view.data["chain"][-2]]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_slot_and_every_gap_has_its_tooltip(name):
    done = simulate(name, 4, 8, 2 if name == "interleaved" else 1, send=0.25)
    titles = re.findall(r"<title>([^<]*)</title>", pipeline_svg(done, title="t", subtitle="s"))
    slots = [title for title in titles if " of stage " in title and not title.startswith("rank")]
    assert sorted(slots) == sorted(slot_text(done, place) for place in range(len(done.slots)))
    idle = 0.0
    for title in titles:
        if found := re.match(r"rank \d+ is idle from ([\d.]+) to ([\d.]+) ms: ", title):
            idle += float(found[2]) - float(found[1])
    assert idle == pytest.approx(sum(done.idle(rank) for rank in range(4)), abs=0.05)
    for slot, place in zip(done.slots, range(len(done.slots)), strict=True):
        text = slot_text(done, place)
        assert text.startswith(f"{KINDS[slot.kind][0]} of stage {slot.stage}, micro-batch {slot.microbatch}, on rank")


# ------------------------------------------------------------------------------------------------ goals and extremes


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (0, {"microbatches": 58}),
        (0, {"schedule": "ZB-V", "microbatches": 10}),
        (0, {"schedule": "interleaved", "chunks": 4, "microbatches": 15}),
        (1, {"schedule": "1F1B", "microbatches": 16}),
        (2, {"schedule": "interleaved", "chunks": 4, "send": 0.5}),
    ],
)
def test_goals_can_be_reached(number, values):
    fresh = bubble_explorer()
    at(fresh, **values)
    assert fresh.reached == {number}


@pytest.mark.parametrize(
    "values",
    [
        {"microbatches": 57},
        {"microbatches": 59},
        {"stages": 3, "microbatches": 39},
        {"schedule": "1F1B", "microbatches": 15},
        {"schedule": "naive", "microbatches": 16},
        {"schedule": "ZB-H1", "microbatches": 16},
        {"schedule": "interleaved", "chunks": 4, "send": 0.2},
        {"schedule": "ZB-V", "microbatches": 11},
    ],
)
def test_goals_are_not_reached_nearby(values):
    fresh = bubble_explorer()
    at(fresh, **values)
    assert not fresh.reached


EXTREMES = {
    "stages": (1, 16),
    "microbatches": (1, 64),
    "chunks": (2, 4),
    "forward": (0.25, 4),
    "backward_input": (0, 4),
    "backward_weight": (0, 4),
    "send": (0, 2),
    "slow_by": (1, 4),
}


def test_the_extremes_are_those_of_the_controls(made):
    limits = {control.name: control for control in made.controls}
    assert {name: (limits[name].min, limits[name].max) for name in EXTREMES} == EXTREMES


@pytest.mark.parametrize("schedule", bubble._SCHEDULES)
def test_no_extreme_raises_or_draws_nonsense(made, schedule):
    rng = random.Random(schedule)
    corners = [dict(zip(EXTREMES, values, strict=True)) for values in itertools.product(*EXTREMES.values())]
    for values in rng.sample(corners, 12):
        highlight = rng.choice(["nothing", "a forward", "a backward", "a weight gradient", "the critical path"])
        chosen = {"highlight": highlight, "stage": rng.choice([0, 63]), "microbatch": rng.choice([0, 63])}
        view = at(made, **values, **chosen, schedule=schedule, slow_rank=rng.choice([0, 15]))
        assert not re.search(r"\b(nan|inf)\b", view.picture + view.alt + view.message), values
        boxes = re.findall(r'<rect x="([-\d.]+)" y="([-\d.]+)" width="([-\d.]+)"', view.picture)
        assert boxes and all(float(x) >= 0 and float(x) + float(wide) <= 700 for x, _, wide in boxes), values


@pytest.mark.parametrize("schedule", bubble._SCHEDULES)
def test_16_ranks_and_64_micro_batches_in_time(made, schedule):
    """CPU time, since other work may run beside it. With every chunk and the critical path."""

    def seconds(number):
        made.reset()
        begin = time.process_time()
        made.set(stages=16, microbatches=64, schedule=schedule, chunks=4, send=0.1, highlight="the critical path")
        return time.process_time() - begin

    assert min(seconds(number) for number in range(4)) < BUDGET
    assert not made.error and made.view.data["done"].ranks == 16
    made.reset()


# --------------------------------------------------------------------------------------------------------- the pictures


def drawn(ax):
    """How many bars, grey lanes included."""
    return sum(len(one.get_paths()) for one in ax.collections if isinstance(one, PolyCollection))


def test_the_still_picture_is_that_of_the_default(made):
    view = at(made)
    figure = bubble._still(**made.defaults)
    assert title_of(figure) in view.alt and png(figure).data
    said = [text.get_text() for text in figure.axes[0].texts]
    assert sorted(said) == sorted(str(k) for k in range(8) for _ in range(8))
    assert drawn(figure.axes[0]) == 4 + 64 and len(figure.axes) == 2
    assert [tick.get_text() for tick in figure.axes[0].get_yticklabels()] == [f"rank {r}" for r in range(4)]


def test_bars_are_where_the_slots_are():
    done = simulate("1f1b", 2, 3)
    figure = timeline_figure(done, title="t", scale=1000, unit="ms", update=0.5, framed=[(0, 0, 0, "F")])
    lanes, bars, frame = (one for one in figure.axes[0].collections)
    spans = [path.get_extents() for path in bars.get_paths()]
    wanted = [(slot.start * 1000, slot.end * 1000, slot.rank) for slot in done.slots]
    wanted += [(done.makespan * 1000, done.makespan * 1000 + 500, rank) for rank in range(2)]
    assert [(round(box.x0), round(box.x1), int(box.y0)) for box in spans] == wanted
    assert {round(path.get_extents().x1) for path in lanes.get_paths()} == {round(done.makespan * 1000 + 500)}
    assert len(frame.get_paths()) == 1
    names = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert names == ["forward", "backward", "optimizer step", "idle"]


def test_several_runs_under_each_other_also_recorded_ones():
    slots = [SimpleNamespace(rank=0, stage=0, microbatch=0, kind="F", start=0.0, end=0.002)]
    slots += [SimpleNamespace(rank=1, stage=1, microbatch=0, kind="B", start=0.003, end=0.007)]
    runs = {"recorded": SimpleNamespace(slots=slots), "simulated": simulate("zbv", 2, 4)}
    figure = timeline_figure(runs, title="t")
    said = {text.get_text() for text in figure.axes[0].texts}
    assert {"recorded", "simulated"} <= said and png(figure).data
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["rank 0", "rank 1"] * 2
    with pytest.raises(ValueError, match="one timeline"):
        timeline_figure(runs, title="t", held=True)


def test_the_names_of_the_colours():
    assert [name for name, _ in legend("BF")] == ["forward", "backward", "idle"]
    assert [name for name, _ in legend("WFI")] == ["forward", "input gradient", "weight gradient", "idle"]
    assert [name for name, _ in legend("FBIW")][1] == "backward, input gradient"


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_is_held_over_time(name):
    done = simulate(name, 4, 8, 2 if name == "interleaved" else 1)
    for rank in range(4):
        times, counts = done.in_flight(rank)
        assert max(counts) == done.peak_in_flight[rank] and counts[0] == counts[-1] == 0 and min(counts) == 0
        assert times == sorted(times) and times[0] == 0
        for moment in np.linspace(0.01, done.makespan - 0.01, 23):
            lane = done.lane(rank)
            begun = sum(slot.kind == "F" and slot.start <= moment for slot in lane)
            over = sum(slot.kind in "BW" and slot.end <= moment for slot in lane)
            assert counts[int(np.searchsorted(times, moment, side="right")) - 1] == begun - over
        _, same = held_over_time(done.lane(rank))
        assert max(same) == max(counts)


@pytest.mark.parametrize("name", SCHEDULES)
def test_what_decides_by_place_is_what_the_timeline_says_by_name(name):
    rng = random.Random(7)
    for p, m in ((1, 2), (3, 6), (4, 8)):
        chunks = {"interleaved": 3, "gpipe": 2}.get(name, 1)
        stages = p * (2 if name in ("zbv", "dualpipev") else chunks)
        times = [[rng.choice([0.0, 0.5, rng.random()]) for _ in range(stages)] for _ in range(3)]
        done = simulate(name, p, m, chunks, *times, rng.choice([0.0, 0.3]))
        actions = [action for lane in done.actions for action in lane]
        told = [actions[place] if place >= 0 else None for place in done.decided_by.tolist()]
        assert told == [done.waits_for(action) for action in actions]
