"""The capacity explorer: it says what the plan says, at every corner and in time; what is impossible has a way out."""

import itertools
import random
import re
import time

import pytest
from explorer_moves import at, press

from course_lib.errors import ConfigError
from course_lib.figures.capacity import NOTHING
from course_lib.figures.style import png, title_of
from course_lib.planning.capacity import stages
from course_lib.planning.plan import plan
from course_lib.planning.presets import preset
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, RunSpec
from course_lib.planning.steptime import predict
from course_lib.widgets import capacity as widget
from course_lib.widgets import capacity_explorer
from course_lib.widgets.capacity_settings import controls, nearest, run_of, together

BUDGET = 0.1


@pytest.fixture(scope="module")
def made():
    return capacity_explorer()


# ----------------------------------------------------------------------------------------------------------- the widget


def test_it_opens_with_the_plan_of_its_setting(made):
    """The plan of the same run, written down here by hand."""
    view = at(made)
    run = RunSpec(
        name="explorer",
        model=preset("7b-on-64-a100").model,
        data=DataSpec(tokens=view.data["plan"].run.data.tokens, sequence=4096, global_batch=1024),
        hardware=HardwareSpec(devices=64, device="H100 SXM", price_per_device_hour=2.0),
        layout=LayoutSpec(data=64),
    )
    assert run.data.tokens == pytest.approx(1e12, rel=0.03)
    wanted = plan(run)
    assert view.data["plan"] == wanted and wanted.memory.fits
    assert view.alt.startswith("Fits, with ") and "data 64." in view.alt
    numbers = {label: value for value, label in view.numbers}
    assert numbers["MFU"] == f"{wanted.time.mfu:.1%}" and "with failures and saving" in numbers
    assert [control.name for control in made.controls if not control.more] == ["model", "devices", "sharding"]
    assert "course-static" in made._face and "<img" in made._face


def test_a_whole_copy_does_not_fit(made):
    view = press(made, "a whole copy on each device")
    memory = view.data["plan"].memory
    assert not memory.fits and memory.peak > 18 * 6.7e9  # 18 bytes a parameter alone
    assert view.alt.startswith("Does not fit: a device needs") and "if it fitted" in dict(map(reversed, view.numbers))
    assert at(made, sharding="FSDP").data["plan"].memory.peak < memory.peak / 3


def test_the_first_stages_are_the_fullest_and_computing_again_mends_it(made):
    before = press(made, "70B in eight stages").data["plan"]
    peaks = [stage.peak for stage in before.memory.stages]
    assert len(peaks) == 8 and peaks == sorted(peaks, reverse=True)
    assert peaks[0] > before.memory.limit > peaks[-1] and before.risks[0].key == "memory"
    assert "stage 7: " in made.view.picture
    after = press(made, "the same, blocks computed again").data["plan"]
    assert after.memory.fits and after.step.seconds > 1.1 * before.step.seconds


def test_a_batch_is_for_so_many_devices(made):
    view = press(made, "2,048 devices, the same batch")
    assert "1,024 of 2,048 data-parallel ranks have a sequence, the others nothing" in view.picture
    assert view.data["nearest"]["devices"] == [1024] and view.data["nearest"]["tensor"] == [2] and not view.numbers
    seconds = at(made, devices=1024).data["plan"].step.seconds
    assert f"With 1,024 devices a step takes {1000 * seconds:.3g} ms; more cannot make it shorter." in view.picture


def test_traffic_takes_over(made):
    made_of = press(made, "1,024 devices, an eighth of the network").data["plan"]
    assert made_of.step.parts["data_traffic"] > made_of.step.parts["compute"]
    assert made_of.risks[0].key == "data_traffic" and "traffic" in made.view.picture
    assert made_of.run.hardware.across_gb_per_s == at(made).data["plan"].run.hardware.across_gb_per_s / 8


def test_the_large_run_waits_and_fails(made):
    found = {risk.key for risk in press(made, "405B on 16,384 devices").data["plan"].risks}
    assert {"bubble", "failures"} <= found


def test_risks_are_in_the_picture_in_their_order(made):
    for one in made.presets:
        view = press(made, one.label)
        if "plan" not in view.data:
            continue
        risks = view.data["plan"].risks
        items = re.findall(r"<li[^>]*>(.*?)</li>", view.picture)
        assert len(items) == min(len(risks), 5) and (risks or NOTHING in view.picture)
        for item, risk in zip(items, risks, strict=False):
            words = re.sub(r"&[a-z#0-9]+;|[^A-Za-z0-9]", "", item)
            assert re.sub(r"[^A-Za-z0-9]", "", risk.text)[1:20] in words
        if risks:
            assert risks[0].text[1:] in view.alt


def test_every_control_reaches_the_plan(made):
    """Moved alone, each changes the run in its own field."""
    base = run_of(made.defaults)
    moves = {
        "model": ("1B", lambda run: run.model.layers == 24),
        "devices": (128, lambda run: run.layout.data == 128),
        "sharding": ("ZeRO-2", lambda run: run.layout.sharding == "zero2"),
        "tensor": (4, lambda run: run.layout.tensor == 4 and run.layout.data == 16),
        "pipeline": (4, lambda run: run.layout.pipeline == 4 and run.layout.schedule == "1f1b"),
        "micro_batch": (4, lambda run: run.layout.micro_batch == 4),
        "recompute": ("all blocks", lambda run: run.layout.recompute == "all"),
        "context": (4, lambda run: run.layout.context == 4),
        "batch": (2**21, lambda run: run.data.global_batch == 512),
        "sequence": (8192, lambda run: run.data.sequence == 8192 and run.data.global_batch == 512),
        "tokens": (2e12, lambda run: run.data.tokens == 2e12),
        "machine": ("A100 SXM 40GB", lambda run: run.hardware.memory_gib == 40),
        "network": (0.5, lambda run: run.hardware.across_gb_per_s == base.hardware.across_gb_per_s / 2),
        "price": (5.0, lambda run: run.hardware.price_per_device_hour == 5.0),
    }
    assert set(made.defaults) - set(moves) == {"schedule", "chunks", "expert"}
    for name, (value, reached) in moves.items():
        assert reached(run_of({**made.defaults, name: value})), name
    split = {"pipeline": 4, "schedule": "interleaved", "chunks": 4}
    assert run_of({**made.defaults, **split}).layout.chunks == 4
    assert run_of({**made.defaults, "model": "Mixtral 8x7B", "expert": 8}).layout.expert == 8
    assert run_of({**made.defaults, "sharding": "HSDP"}).layout.replicas == 8


def test_which_controls_have_an_effect(made):
    def disabled(**values):
        at(made, **values)
        return {name for name, field in made._fields.items() if field.disabled}

    assert disabled() == {"schedule", "chunks", "expert"}
    assert disabled(pipeline=4) == {"chunks", "expert"}
    assert disabled(pipeline=4, schedule="interleaved", model="Mixtral 8x7B") == set()
    assert disabled(devices=8) == {"schedule", "chunks", "expert", "network"}
    for name in ("schedule", "chunks", "expert"):
        control = next(one for one in made.controls if one.name == name)
        other = control.options[0] if name == "schedule" else 4
        assert run_of({**made.defaults, name: other}) == run_of(made.defaults), name
    alone = {**made.defaults, "devices": 8}
    assert predict(run_of(alone)).parts == predict(run_of({**alone, "network": 0.25})).parts


# --------------------------------------------------------------------------------------------------- what is impossible


@pytest.mark.parametrize(
    ("values", "told", "name", "values_near"),
    [
        ({"pipeline": 5}, "64 devices are no multiple of pipeline 5 = 5", "pipeline", [4, 8]),
        ({"tensor": 64}, "tensor = 64 does not share out heads = 32", "tensor", [32]),
        ({"micro_batch": 3}, "global_batch = 1024 is not divisible by", "micro_batch", [2, 4]),
        ({"devices": 8, "sharding": "HSDP"}, "HSDP copies the model over nodes", "devices", [16]),
        ({"devices": 8, "sharding": "HSDP"}, "HSDP copies the model over nodes", "sharding", ["FSDP"]),
        ({"pipeline": 2, "schedule": "DualPipeV", "batch": 2**17}, "has no order for 1 micro-batch", "batch", [2**19]),
        ({"model": "this course's medium", "pipeline": 8}, "are more than layers = 7", "pipeline", [4]),
        ({"model": "Mixtral 8x7B", "expert": 16}, "expert = 16 must divide experts = 8", "expert", [8]),
    ],
)
def test_what_is_impossible_says_why_and_what_is_near(made, values, told, name, values_near):
    view = at(made, **values)
    assert told in view.data["why"] and not view.numbers, view.alt
    assert view.data["nearest"][name] == values_near
    assert "Possible with one of these" in view.picture and "\n" not in view.alt


def test_the_nearest_is_possible_and_nothing_nearer_is(made):
    rng = random.Random(4)
    seen = 0
    grids = {one.name: one for one in controls()}
    for values in itertools.islice(settings(rng), 120):
        try:
            run_of(values)
        except ConfigError:
            seen += 1
        else:
            continue
        alone = nearest(values)
        for name, near in alone:
            for value in near:
                assert run_of({**values, name: value})
            if isinstance(values[name], int) and not hasattr(grids[name], "log"):
                for value in range(grids[name].min, grids[name].max + 1):
                    between = any(min(values[name], one) < value < max(values[name], one) for one in near)
                    if between:
                        with pytest.raises(ConfigError):
                            run_of({**values, name: value})
        if not alone:
            few = together(values)
            assert run_of({**values, **few}) and len(few) > 1
            for name in few:
                with pytest.raises(ConfigError):
                    run_of({**values, **{other: value for other, value in few.items() if other != name}})
    assert seen > 50


def test_an_impossible_setting_reaches_no_goal_and_says_no_number():
    fresh = capacity_explorer()
    view = at(fresh, tensor=64, pipeline=5, micro_batch=3)
    assert not fresh.reached and not view.numbers and view.data["together"]
    assert "No control alone makes it possible" in view.picture


# ------------------------------------------------------------------------------------------------ goals and extremes


@pytest.mark.parametrize(
    ("number", "values"),
    [
        (0, {"model": "Llama 2 70B", "devices": 128, "tensor": 2}),
        (1, {"micro_batch": 4, "recompute": "all blocks", "network": 1 / 32}),
        (2, {"pipeline": 4, "sharding": "ZeRO-1", "recompute": "all blocks", "schedule": "GPipe"}),
    ],
)
def test_goals_can_be_reached(number, values):
    fresh = capacity_explorer()
    at(fresh, **values)
    assert fresh.reached == {number}


def test_goals_are_not_reached_nearby():
    fresh = capacity_explorer()
    for one in fresh.presets:
        press(fresh, one.label)
    at(fresh, model="Llama 2 70B", devices=128)  # it does not fit
    at(fresh, model="Llama 2 70B", devices=128, recompute="all blocks")  # it fits, and computes too much again
    at(fresh, micro_batch=4, recompute="all blocks")  # it costs a quarter more time
    at(fresh, recompute="all blocks", network=1 / 32)  # it would fit anyway
    at(fresh, pipeline=4, sharding="ZeRO-1", schedule="GPipe")  # the last is fuller, and none fits
    assert not fresh.reached


def settings(rng):
    """Settings at random, at the ends of the controls and between."""
    while True:
        values = {}
        for one in controls():
            if _chosen(one):
                values[one.name] = rng.choice(list(one.options))
            elif isinstance(one.default, int) and not hasattr(one, "log"):
                values[one.name] = rng.choice([one.min, one.max, rng.randint(one.min, one.max)])
            elif one.log:
                middle = [2**k for k in range(-6, 45) if one.min <= 2**k <= one.max]
                values[one.name] = rng.choice([one.min, one.max, *[rng.choice(middle)] * 4])
            else:
                values[one.name] = rng.choice([one.min, one.max])
        yield values


def test_no_extreme_raises_or_draws_nonsense(made):
    rng, drawn = random.Random(8), 0
    for values in itertools.islice(settings(rng), 90):
        if rng.random() < 0.5:  # else nearly all are impossible
            values |= {"pipeline": 1, "context": 1, "micro_batch": 1, "tensor": rng.choice([1, 2])}
        view = widget._draw(**values)
        drawn += "plan" in view.data
        assert not re.search(r"\b(nan|inf)\b", view.picture + view.alt + view.message), values
        for x, wide in re.findall(r'<rect x="([-\d.]+)" y="[-\d.]+" width="([-\d.]+)"', view.picture):
            assert float(x) >= 0 and float(wide) >= 0 and float(x) + float(wide) <= 768.1, values
    assert drawn >= 15  # of 90; the others are impossible, which is drawn too


def test_every_move_from_every_preset_is_drawn_in_time(made):
    """Each control to its ends. CPU time, since other work may run beside it: a slow one has three more tries."""

    def seconds(values):
        begin = time.process_time()
        made.set(**values)
        return time.process_time() - begin

    slow = {}
    for one in (*made.presets, None):
        here = {**made.defaults, **(one.values if one else {})}
        for control in made.controls:
            for end in (control.options[0], control.options[-1]) if _chosen(control) else (control.min, control.max):
                values = {**here, control.name: end}
                took = seconds(values)
                for _ in range(3):
                    took = min(took, seconds(values)) if took >= BUDGET else took
                if took >= BUDGET:
                    slow[one.label if one else "default", control.name, end] = took
                assert not made.error and not re.search(r"\b(nan|inf)\b", made.view.picture + made.view.message)
    assert not slow


def _chosen(control):
    return hasattr(control, "options")


# --------------------------------------------------------------------------------------------------------- the pictures


def test_the_still_picture_is_that_of_the_default(made):
    view = at(made)
    figure = widget._still(**made.defaults)
    assert title_of(figure) in view.alt and png(figure).data
    assert len(figure.axes) == 3


def test_the_bars_are_the_stages(made):
    view = press(made, "70B in eight stages")
    run = view.data["plan"].run
    assert [stage.parts for stage in stages(run)] == list(widget._bars(view.data["plan"]).values())


@pytest.mark.parametrize(
    ("hours", "text"),
    [(0.5, "30 minutes"), (25.1, "25.1 hours"), (240, "10 days"), (24 * 400, "400 days"), (24 * 36525, "100 years")],
)
def test_days_in_words(hours, text):
    assert widget._days(hours) == text


@pytest.mark.parametrize(
    ("cost", "text"),
    [(0.021, "$0.02"), (123456, "$123,456"), (9.74e7, "$97.4 million"), (float("inf"), "no end")],
)
def test_money_in_words(cost, text):
    assert widget._money(cost) == text
