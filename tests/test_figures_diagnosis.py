"""The pictures of chapter 14 say what they are given."""

import math

import pytest
from matplotlib.text import Text

from course_lib.figures import diagnosis as figures
from course_lib.figures import interruptions as tables
from course_lib.figures.style import png, title_of


def words(figure: object) -> set[str]:
    """All that is written in a figure."""
    return {text.get_text() for text in figure.findobj(Text)}  # type: ignore[attr-defined]


def test_orders_have_a_dot_for_each_fault_and_their_mean() -> None:
    costs = {"one": {"a": 10.0, "b": 30.0}, "two": {"a": 40.0, "b": 60.0}}
    figure = figures.orders(costs, {"a": "data", "b": "system"}, title="T")
    dots = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [float(line.get_xdata()[0]) for line in dots] == [10, 30, 40, 60] and title_of(figure) == "T"
    assert {"mean 20", "mean 50", "one", "two"} <= words(figure)
    png(figure)


def test_past_marks_what_is_not_finite() -> None:
    losses = {"good": [2.0, 1.5, 1.0], "bad": [2.0, math.nan, math.nan]}
    figure = figures.past(losses, {"good": [0.1] * 3, "bad": [0.1, 0.0, 0.0]}, 40, 41, title="T", row=[("1", "x")])
    left, right = figure.axes
    crosses = [line for line in left.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[41, 42]]
    assert not [line for line in right.lines if line.get_marker() == "x"]
    assert {"good", "bad (not finite)"} <= words(figure)
    png(figure)


def test_apart_leaves_out_steps_without_a_number() -> None:
    figure = figures.apart(
        {"one rank": [0, 1, 2]}, 1, {"a": [8, 4, 2]}, {"a": [0.0, math.nan, 5.0]}, title="T", row=[("1", "x")]
    )
    first, scale, zeros = figure.axes
    assert list(first.lines[0].get_ydata()) == [0, 1, 2] and list(zeros.lines[0].get_xdata()) == [0, 2]
    assert scale.get_yscale() == "log"
    png(figure)


def test_ways_out_have_a_panel_each_and_a_line_a_cause() -> None:
    ways = {"go on": {"garbage": [1, 5, 2], "moments": [1, 4, 3]}, "skip": {"garbage": [1, 5, 1], "moments": [1, 4, 1]}}
    figure = figures.ways_out(ways | {"third": ways["skip"]}, 1, 2, title="T", row=[("1", "x")])
    assert [ax.get_title("left") for ax in figure.axes if ax.get_visible()] == ["go on", "skip", "third"]
    assert list(figure.axes[1].lines[1].get_ydata()) == [1, 4, 1] and {"garbage", "moments"} <= words(figure)
    png(figure)


def test_replayed_writes_medians() -> None:
    figure = figures.replayed(
        {"a": {"own": [1, 2, 4], "other": [0, 0.1, 0.2]}, "b": {"own": [3], "other": [0]}}, title="T", row=[("1", "x")]
    )
    assert {"2.00", "0.10", "3.00"} <= words(figure)
    png(figure)


def test_causes_show_a_share_that_is_not_its_count_s() -> None:
    rows = [("gpu", 148, 30.1, True), ("software", 271, 64.7, False)]
    figure = tables.causes(rows, title="T", row=[("1", "x")])
    assert {"148: 35.3%, printed: 30.1%", "271: 64.7%"} <= words(figure)
    assert [bar.get_width() for bar in figure.axes[0].patches] == [148, 271]
    assert figure.axes[0].lines[0].get_xdata()[0] == pytest.approx(0.301 * 419)
    png(figure)


def test_rates_and_their_line() -> None:
    points = [(8, 800.0, "measured", "A"), (800, 7.9, "projected", "B"), (80_000, 0.2, "counted", "C")]
    figure = tables.rates(points, title="T", row=[("1", "x")])
    line, first, second, _ = figure.axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([800, 0.08])
    assert first.get_markerfacecolor() != "none" == second.get_markerfacecolor()
    assert {"A: 33 days", "B: 7.9 h", "C: 12 min"} <= words(figure)
    png(figure)


def test_kinds_tell_absent_from_not_mentioned() -> None:
    figure = tables.kinds({"x": {"small": True, "large": False}, "y": {"large": True}}, ["small", "large"], title="T")
    marks = [line.get_marker() for line in figure.axes[0].lines]
    assert marks == ["s", "o", "s"] and "not mentioned" in words(figure)
    png(figure)


def test_roots_have_every_incident_once() -> None:
    incidents = [("one", "data", "bias"), ("two", "data", "neither"), ("three", "system", "neither")]
    figure = tables.roots(incidents, ["data", "system"], ["causality", "bias", "neither"], title="T", row=[("1", "x")])
    assert {"one", "two", "three", "data", "system", "bias"} <= words(figure)
    assert [int(bar.get_x()) for bar in figure.axes[0].patches] == [1, 2, 2]
    png(figure)
