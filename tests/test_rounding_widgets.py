"""The explorers of number formats: what they say, at the presets and anywhere else, and how fast."""

import itertools
import math
import random
import re
import time

import numpy as np
import pytest
from explorer_moves import press

from course_lib.figures import rounding as figures
from course_lib.figures.rounding_svg import _nice
from course_lib.figures.style import png, title_of
from course_lib.precision import FORMATS
from course_lib.widgets import accumulator, accumulator_explorer, rounding, value_explorer
from course_lib.widgets.rounding import parse_number

BUDGET = 0.1


@pytest.fixture(scope="module")
def value():
    return value_explorer()


@pytest.fixture(scope="module")
def sums():
    return accumulator_explorer()


def numbers_of(view):
    return {what: text for text, what in view.numbers}


# ----------------------------------------------------------------------------------------------------- what is typed


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0.1", 0.1),
        (" 65,504 ", 65504.0),
        ("1e-8", 1e-8),
        ("2**-24", 2.0**-24),
        ("2^-24", 2.0**-24),
        ("1/3", 1 / 3),
        ("2048 + 1", 2049.0),
        ("−3.5", -3.5),
        ("-0", 0.0),
        (".5", 0.5),
        ("inf", math.inf),
        ("-Infinity", -math.inf),
        ("10**400", math.inf),
        ("1e400", math.inf),
        ("", None),
        ("1e", None),
        ("1/0", None),
        ("0**-1", None),
        ("(-8)**0.5", None),
        ("-8**0.5", None),
        ("2048x", None),
        ("__import__('os')", None),
    ],
)
def test_numbers_as_one_types_them(text, wanted):
    assert parse_number(text) == wanted


def test_nan_is_a_number_too():
    assert math.isnan(parse_number("nan"))


@pytest.mark.parametrize(
    ("x", "gap", "text"),
    [
        (2048.0, 2.0, "2,048"),
        (-0.5, 0.0, "−0.5"),
        (1e-8, 0.0, "1e−8"),
        (0.0999755859375, 2**-14, "0.0999756"),
        (math.inf, 0.0, "∞"),
        (-math.inf, 1.0, "−∞"),
        (math.nan, 0.0, "NaN"),
        (0.0, 2**-24, "0"),
        (3.4028234663852886e38, 0.0, "3.4028e38"),
    ],
)
def test_how_numbers_are_written(x, gap, text):
    assert figures.number(x, gap) == text


@pytest.mark.parametrize("name", FORMATS)
def test_ticks_of_one_number_line_differ(name):
    fmt = FORMATS[name]
    for x in (0.1, 1.0, 3.7, 100.0, fmt.smallest_normal, fmt.max / 3):
        labels = [label for _, label in rounding._place(fmt, x).ticks]
        assert len(set(labels)) == len(labels), labels


# ----------------------------------------------------------------------------------------------------------- a value


def test_2048_plus_1_is_lost_and_1024_plus_1_is_not(value):
    view = press(value, "2048 + 1")
    assert "2,049 becomes 2,048" in view.alt and "0 11010 0000000000" in view.alt
    assert numbers_of(view) == {
        "stored value": "2,048",
        "spacing here": "2",
        "rounded away": "1",
        "of the value, relative": "0.00049",
    }
    assert "halfway" in view.picture
    assert "holds 1,025 exactly" in press(value, "1024 + 1").alt


def test_adams_epsilon_is_nothing_in_fp16_and_something_in_bf16(value):
    view = press(value, "Adam's epsilon in FP16")
    assert "1e−8 becomes 0" in view.alt and numbers_of(view)["stored value"] == "0"
    assert numbers_of(press(value, "Adam's epsilon in BF16"))["stored value"] == "1.0012e−8"


def test_the_largest_values(value):
    assert "holds 65,504 exactly" in press(value, "FP16's largest").alt
    value.set(move=1)
    assert "65,512" in value.view.alt and value.view.data["stored"] == 65504
    value.set(move=2)
    assert "overflows: it becomes infinity" in value.view.alt
    assert "holds 448 exactly" in press(value, "FP8's largest").alt
    value.set(move=3)
    assert "overflows: it becomes NaN" in value.view.alt


def test_moving_goes_by_quarters_of_the_spacing(value):
    value.set(format="FP16", value="1", move=2)
    assert value.view.data["x"] == 1 + 2**-11 and value.view.data["stored"] == 1
    value.set(move=3)
    assert value.view.data["stored"] == 1 + 2**-10


def test_bits_and_neighbours_are_in_the_picture(value):
    value.set(format="FP8 E5M2", value="3.2", move=0)
    bits = re.findall(r'font-size="19.0">([01])<', value.view.picture)
    assert "".join(bits) == "".join(FORMATS["fp8_e5m2"].bits(3.2)) == "01000010"
    below, above = FORMATS["fp8_e5m2"].neighbours(3.2)
    assert f">{below:g}<" in value.view.picture and f">{above:g}<" in value.view.picture


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "", "x", "1e400", "1e300", "-0", "5e-324"])
def test_any_text_is_answered(value, text):
    for fmt in FORMATS.values():
        value.set(format=fmt.label, value=text, move=0)
        assert not value.error and value.view.alt
        if text in ("inf", "nan", "x"):
            assert value._fields["move"].disabled


# -------------------------------------------------------------------------------------------------------------- sums


def test_sums_of_ones(sums):
    view = press(sums, "2048 + 1")
    assert view.data["stops"] == {"FP16": 2048.0, "BF16": 256.0}
    assert view.alt.startswith("FP16 stops at 2,048, BF16 stops at 256")
    assert numbers_of(view)["Kahan, FP16"] == "3,000"
    view = press(sums, "1024 + 1")
    assert "FP16" not in view.data["stops"] and view.data["off"]["FP16"] == 0
    assert view.data["stops"] == {"BF16": 1024.0}


def test_a_thousand_hundredths(sums):
    said = numbers_of(press(sums, "1000 x 0.01"))
    assert (said["exact"], said["FP16"], said["BF16"], said["FP32"]) == ("10", "9.9531", "4", "10")


def test_a_bf16_weight_that_never_moves(sums):
    view = press(sums, "A BF16 weight that never moves")
    assert view.data["stops"] == {"BF16": 1.0} and "BF16 never moves" in view.alt
    assert view.data["off"]["stochastic, BF16"] < 0.1 and view.data["off"]["Kahan, BF16"] < 0.01


def test_the_point_of_the_stop_is_marked(sums):
    view = press(sums, "2048 + 1")
    assert "FP16 stops after 2,048 additions" in view.picture and "BF16 stops after 256" in view.picture


def test_fewer_additions_are_the_beginning_of_more(sums):
    sums.set(start="0", addend="0.3", count=777, wide="BF16")
    for name, method in (("Kahan, BF16", "kahan"), ("stochastic, BF16", "stochastic"), ("FP16", "plain")):
        curves, _, _ = accumulator._all_sums(0.0, 0.3, 777, "BF16")
        fmt = "fp16" if name == "FP16" else "bf16"
        assert np.array_equal(curves[name], accumulator.running_sums(0.3, 777, fmt, method, seed=4))


@pytest.mark.parametrize("addend", ["0", "inf", "nan", "", "1e300", "-1e300", "1e-300", "65504", "1/3"])
@pytest.mark.parametrize("start", ["0", "-1", "1e38", "65504", "x"])
def test_any_sum_is_answered(sums, start, addend):
    for count, wide in itertools.product((1, 2, 5000), ("FP16", "BF16")):
        sums.set(start=start, addend=addend, count=count, wide=wide)
        assert not sums.error, (start, addend, count, sums.error)
        assert not re.search(r"\bnan\b", sums.view.picture), (start, addend, count)


# ------------------------------------------------------------------------------------------------------ goals, faces


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (0, {"value": "2049"}),
        (1, {"value": "65504", "move": 1}),
        (2, {"value": "1e-6"}),
    ],
)
def test_goals_of_the_value_can_be_reached(number, settings):
    fresh = value_explorer()
    fresh.set(**settings)
    assert number in fresh.reached


@pytest.mark.parametrize(
    ("number", "settings"),
    [
        (0, {"addend": "0.5"}),
        (1, {"start": "1e9"}),
        (2, {"addend": "17", "count": 5000}),
    ],
)
def test_goals_of_the_sum_can_be_reached(number, settings):
    fresh = accumulator_explorer()
    fresh.set(**settings)
    assert number in fresh.reached


def test_a_preset_reaches_no_goal_by_itself():
    for fresh in (value_explorer(), accumulator_explorer()):
        for preset in fresh.presets:
            if preset.label != "2048 + 1":
                press(fresh, preset.label)
        assert not fresh.reached


def test_without_a_kernel_there_is_a_picture_of_the_default(value, sums):
    for fresh in (value, sums):
        fresh.reset()
        figure = fresh._still(**fresh.defaults)
        assert png(figure).data and title_of(figure) in fresh.view.alt


def test_the_figures_draw_every_format_and_the_edges():
    for fmt, text in itertools.product(FORMATS.values(), ("0", "-0.3", "1e-9", "1e9", "inf", "nan")):
        assert png(rounding._still_value(fmt.label, text, 0), scale=1).data
    for start, addend in (("0", "0"), ("0", "1e300"), ("65000", "1"), ("1", "-0.001")):
        assert png(accumulator._still_sums(start, addend, 50, "BF16"), scale=1).data


def test_round_numbers_on_the_axis():
    assert _nice(0, 3000) == [0, 1000, 2000, 3000] and _nice(-0.05, 1.05)[:2] == [0.0, 0.5]
    assert _nice(1, 1) == [1] and len(_nice(-1e308, 1e308)) <= 20


# -------------------------------------------------------------------------------------------------------------- speed


def test_every_setting_is_drawn_in_time(value, sums):
    """Random settings over the whole range, the sums not seen before: a new addend is the slowest."""
    rng = random.Random(7)

    def seconds(explorer, **settings):
        accumulator._sums.cache_clear()
        start = time.process_time()
        explorer.set(**settings)
        assert not explorer.error
        return time.process_time() - start

    def best(explorer, **settings):
        return min(seconds(explorer, **settings) for _ in range(3))

    for fmt in FORMATS.values():
        text = f"{rng.choice([-1, 1]) * 10 ** rng.uniform(-45, 39):.6g}"
        assert best(value, format=fmt.label, value=text, move=rng.randint(-12, 12)) < BUDGET
    for wide in ("FP16", "BF16"):
        for addend in ("1", "0.01", "1e-3", "-7.77", "1e-30", "1e30"):
            assert best(sums, start=rng.choice(["0", "1", "1024"]), addend=addend, count=5000, wide=wide) < BUDGET


def test_17_is_the_smallest_addend_that_overflows():
    """The goal's answer, by trying them all."""
    ends = {addend: accumulator.running_sums(addend, 5000, "fp16")[-1] for addend in range(1, 18)}
    assert [addend for addend, end in ends.items() if math.isinf(end)] == [17]
