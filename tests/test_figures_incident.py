"""The dashboards of a run, as a picture, as characters and as words: they show what was recorded, and no verdict."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from course_lib.figures.incident import PANELS, dashboards, drawn, short
from course_lib.figures.incident_text import BLOCKS, PLAIN, dashboards_text, dashboards_words, sparkline
from course_lib.figures.style import COLORS, png, title_of

NAMES = [panel.names[0] for panel in PANELS]


def series(steps=40, **changes):
    at = np.arange(steps)
    val = [5 - 0.1 * step if step % 10 == 9 else math.nan for step in range(steps)]
    made = {"loss": list(5 - 0.1 * at), "val_loss": val, "grad_norm": [1.0] * steps, "lr": list(1e-3 * at)}
    made |= {"activation": [3.0] * steps, "update_ratio": [1e-3] * steps, "scale": [1.0] * steps}
    made |= {"step_seconds": [0.02] * steps, "memory_bytes": [2.0**28] * steps, "checksum_0": list(7.0 + at)}
    return made | changes


def panel_of(figure, name):
    return figure.axes[NAMES.index(name)]


def words(figure):
    return {text.get_text() for text in figure.findobj(Text)}


def test_every_series_is_drawn_in_its_unit():
    figure = dashboards(series(), [(20, "resumed"), (40, "ended")], title="T", subtitle="S")
    assert title_of(figure) == "T" and {panel.heading for panel in PANELS} <= words(figure)
    for name, factor in (("loss", 1), ("grad_norm", 1), ("lr", 1), ("step_seconds", 1e3), ("memory_bytes", 2**-20)):
        line = panel_of(figure, name).lines[0].get_ydata()
        assert line == pytest.approx(np.array(series()[name]) * factor), name
    dots = panel_of(figure, "loss").lines[1]
    assert list(dots.get_xdata()) == [9, 19, 29, 39] and "dots: validation" in words(figure)
    for ax in figure.axes:  # an event in the run, in every panel
        upright = [list(line.get_xdata()) for line in ax.lines if len(set(line.get_xdata())) == 1]
        assert upright == [[20, 20]]
    assert png(figure).width == 800


def test_a_spike_gets_powers_of_ten_and_time_begins_at_zero():
    figure = dashboards(series(grad_norm=[1.0] * 39 + [500.0]), title="T")
    assert panel_of(figure, "grad_norm").get_yscale() == "log" and panel_of(figure, "loss").get_yscale() == "linear"
    assert panel_of(figure, "step_seconds").get_ylim()[0] == 0
    wide = dashboards(series(step_seconds=[0.001] * 39 + [1.0]), title="T")
    assert panel_of(wide, "step_seconds").get_ylim()[0] == 0 and panel_of(wide, "step_seconds").get_yscale() == "linear"


@pytest.mark.parametrize("name", ["loss", "grad_norm", "activation", "update_ratio", "scale"])
@pytest.mark.parametrize("bad", [[12], [12, 13, 14], range(40)])
def test_what_is_not_finite_is_marked(name, bad):
    values = series()[name]
    for step in bad:
        values[step] = math.inf if step == 13 else math.nan
    figure = dashboards(series(**{name: values}), title="T")
    crosses = [line for line in panel_of(figure, name).lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [list(bad)]
    count = "1 step" if len(bad) == 1 else f"{len(bad)} steps"
    assert f"not finite: {count}" in words(figure)
    png(figure)


def test_a_good_run_is_grey_and_behind():
    good = series(loss=[9.0] * 40, grad_norm=[0.1] * 40)
    ax = panel_of(dashboards(series(), good=good, title="T"), "loss")
    first, *others = ax.lines
    assert to_hex(first.get_color()).upper() == COLORS["grey"] and set(first.get_ydata()) == {9.0}
    assert all(first.get_zorder() < line.get_zorder() for line in others) and ax.get_ylim()[1] > 9
    text = dashboards_text(series(), good=good)
    (line,) = [line for line in text.splitlines() if line.startswith("loss,")]
    assert (
        line.split()[-1] == "9"
        and "good: last" in text
        and "a good run ends at 0.1)" in dashboards_words(series(), (), good)
    )


def test_checksums_are_compared_between_ranks():
    own = series()["checksum_0"]
    other = own[:30] + [value + 1 for value in own[30:]]
    strokes = [
        collection for collection in panel_of(dashboards(series(checksum_1=other), title="T"), "checksum_0").collections
    ]
    red = sum(
        len(one.get_segments()) for one in strokes if to_hex(one.get_colors()[0]).upper() == COLORS["communication"]
    )
    assert sum(len(one.get_segments()) for one in strokes) == 80 and red == 10
    assert "ranks differ at 10 steps" in words(dashboards(series(checksum_1=other), title="T"))
    assert "step; ranks equal at all" in words(dashboards(series(checksum_1=own), title="T"))
    assert "step; one rank, nothing to compare" in words(dashboards(series(), title="T"))
    assert "at 10 of 40 steps" in dashboards_text(series(checksum_1=other))
    assert "2 ranks, equal at all steps" in dashboards_words(series(checksum_1=own))


def test_weights_that_stay_have_short_strokes():
    figure = dashboards(series(checksum_0=[1.0] * 10 + list(range(2, 32))), title="T")
    heights = [
        segment[1][1] - segment[0][1]
        for one in panel_of(figure, "checksum_0").collections
        for segment in one.get_segments()
    ]
    assert sum(height < 0.2 for height in heights) == 9 and len(heights) == 40
    assert "at every step but 9" in dashboards_text(series(checksum_0=[1.0] * 10 + list(range(2, 32))))


@pytest.mark.parametrize(
    "given", [{}, {"loss": []}, {"loss": [math.nan]}, {"loss": [2.0]}, {"loss": [None, 2.0], "scale": [None, None]}]
)
def test_a_run_that_recorded_little_is_drawn(given):
    figure = dashboards(given, title="T")
    assert "not recorded in this run" in words(figure)
    png(figure)
    assert len(dashboards_text(given).splitlines()) >= len(PANELS) and dashboards_words(given)


def test_constant_values_stay_inside_their_panel():
    for name in ("grad_norm", "scale", "memory_bytes", "activation"):
        for value in (0.0, 1.0, 65536.0, -2.0):
            low, high = panel_of(dashboards(series(**{name: [value] * 40}), title="T"), name).get_ylim()
            assert low < value * {"memory_bytes": 2.0**-20}.get(name, 1) < high or (value == 0 and low <= 0 < high)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (65536, "65,536"),
        (0.0021, "0.0021"),
        (3e-7, "3e-7"),
        (0, "0"),
        (2.5, "2.5"),
        (-1.25e9, "-1.2e9"),
        (math.nan, "not finite"),
    ],
)
def test_numbers_are_short(value, text):
    assert short(value) == text


# ------------------------------------------------------------------------------------------------------- in characters


def test_a_sparkline_runs_from_lowest_to_highest():
    assert sparkline(range(8)) == BLOCKS and sparkline(range(8), marks=PLAIN) == PLAIN
    assert sparkline([3, 3]) == BLOCKS[0] * 2 and sparkline([]) == "" and sparkline([math.nan]) == "x"
    assert sparkline([1, math.inf, 2]) == f"{BLOCKS[0]}x{BLOCKS[-1]}"


def test_no_spike_is_lost_between_the_marks():
    for at in range(0, 400, 7):
        values = [1.0] * 400
        values[at] = 9.0
        assert sparkline(values).count(BLOCKS[-1]) == 1
        values[at] = math.nan
        assert sparkline(values).count("x") == 1


def test_the_text_has_a_line_a_series_and_its_ends():
    text = dashboards_text(series(loss=[5.0, math.nan, 2.0]), [(20, "resumed")])
    (line,) = [line for line in text.splitlines() if line.startswith("loss,")]
    assert line.split()[-4:] == ["5", "2", "2", "5"]
    assert "not finite at step 1" in text and text.splitlines()[-1] == "at step 20: resumed"
    assert max(map(len, text.splitlines())) <= 112


def test_words_say_what_the_picture_shows():
    said = dashboards_words(series(grad_norm=[1.0, 1.0, 8.0] + [1.0] * 37), [(20, "resumed")])
    assert "loss, nats a token: from 5 to 1.1" in said and "gradient norm: from 1 to 1, between 1 and 8" in said
    assert said.endswith("At step 20: resumed.")


def test_none_and_nan_are_not_measured():
    assert drawn(PANELS[0], {"loss": [1.0, None], "val_loss": [None, None]}).keys() == {"loss"}
