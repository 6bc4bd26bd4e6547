"""The pictures of chapter 15 say what they are given."""

import math

import pytest
from matplotlib.text import Text

from course_lib.figures import scale as figures
from course_lib.figures.style import png, title_of


def words(figure: object) -> set[str]:
    """All that is written in a figure."""
    return {text.get_text() for text in figure.findobj(Text)}  # type: ignore[attr-defined]


def test_against_six_nd_stacks_parts_and_marks_counts() -> None:
    parts = {"matrices": 0.5, "output layer": 0.25, "attention's scores": 0.25}
    panels = {name: [(1, parts), (2, parts), (16, parts)] for name in ("depth", "width", "length")}
    counted = {name: [(1, 0.5), (4, 1.0), (16, 2.0)] for name in panels}
    figure = figures.against_six_nd(panels, counted, title="T", subtitle="S", row=[("1", "x")])
    assert title_of(figure) == "T" and {"depth", "width", "length", "0.50", "1.00", "2.00", *parts} <= words(figure)
    assert len(figure.axes[0].collections) == 3 and list(figure.axes[0].lines[1].get_ydata()) == [0.5, 1.0, 2.0]
    png(figure)


def test_finishes_rings_where_it_fits_and_dots_where_it_is_done() -> None:
    figure = figures.finishes({"a": [(2, 1500.0), (64, 50.0)], "b": [(1, 1.5)]}, 60, title="T", row=[("1", "x")])
    lines = figure.axes[0].lines
    rings = [line for line in lines if line.get_marker() == "o" and line.get_markersize() == 10]
    dots = [line for line in lines if line.get_marker() == "o" and line.get_markersize() == 6]
    assert [float(line.get_xdata()[0]) for line in rings] == [2, 1]
    assert [float(line.get_xdata()[0]) for line in dots] == [64, 1]
    assert {"a: 4 years", "b: 36 hours", "60 days"} <= words(figure)
    png(figure)
    assert figures.finishes({"never": [(2, 300.0)]}, 60, title="T").axes[0].lines[-1].get_markersize() == 10


def test_cadence_has_curves_draws_and_marks() -> None:
    curve = [(3.0, 0.3), (20.0, 0.15), (192.0, 0.5)]
    figure = figures.cadence({"exact": curve}, [(24.0, 0.15, 0.1, 0.2)], [("Daly", 18.6)], title="T", row=[("1", "x")])
    line, whisker, dot, mark = figure.axes[0].lines
    assert list(line.get_ydata()) == pytest.approx([30, 15, 50]) and list(whisker.get_ydata()) == [10, 20]
    assert float(dot.get_ydata()[0]) == 15 and float(mark.get_xdata()[0]) == 18.6 and "Daly" in words(figure)
    png(figure)


def test_stopped_run_colours_what_was_undone() -> None:
    """Step 2 is undone by the first stop, 3 and 4 by the second, which goes back further than the first."""
    steps = [0, 1, 2, 2, 3, 1, 2, 3, 4]
    passes = [(step, math.nan if k == 4 else 2.0) for k, step in enumerate(steps)]
    figure = figures.stopped_run(passes, [("a", 3, 2), ("b", 4, 1)], 2, title="T", row=[("1", "x")])
    top, below = figure.axes
    blue, red = (
        sorted(int(x) for line in top.lines if line.get_color() == color for x in line.get_xdata())
        for color in ("#0072B2", "#D55E00")
    )
    assert blue[:1] == [0] and {1, 2, 3, 4} <= set(red) and {5, 6, 7, 8} <= set(blue)
    crosses = [line for line in below.lines if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[4]]
    assert {"a: back to 2", "b: back to 1", "not finite"} <= words(figure)
    png(figure)


def test_lost_work_has_bars_that_sum_to_all_runs() -> None:
    figure = figures.lost_work({"one": [1, 1, 3], "two": [2, 4, 6]}, 2.0, 5.0, title="T", row=[("1", "x")])
    for ax in figure.axes:
        assert sum(bar.get_height() for bar in ax.patches) == pytest.approx(100)
    assert {"Young and Daly", "measured: 5", "mean 4.0", "mean 1.7"} <= words(figure)
    png(figure)


def test_off_by_writes_medians() -> None:
    figure = figures.off_by({"days": [0.5, 1.0, 2.0], "memory": [0.1, 0.25, 0.3]}, title="T", row=[("1", "x")])
    assert {"1.00", "0.25", "days", "memory", "1/16", "2"} <= words(figure)
    png(figure)
