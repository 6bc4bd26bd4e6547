"""The pictures of published runs show every row where its numbers are."""

import numpy as np
import pytest
from matplotlib.text import Text

from course_lib.figures.published import (
    errors_by_table,
    implied_against_published,
    predicted_against_published,
    where_time_goes,
)
from course_lib.figures.style import png, title_of
from course_lib.planning.published import ROWS, WHOLE, compare
from course_lib.planning.steptime import predict

FOUND = compare()


def words(figure):
    return [text.get_text() for text in figure.findobj(Text)]


def points(figure):
    """(x, y, hollow) of single points that are no cross."""
    return [
        (float(line.get_xdata()[0]), float(line.get_ydata()[0]), line.get_markerfacecolor() == "#FFFFFF")
        for line in figure.axes[0].lines
        if line.get_marker() == "o" and len(line.get_xdata()) == 1
    ]


def test_predicted_against_published():
    figure = predicted_against_published(FOUND, title="T", subtitle="S")
    counted = [one for one in FOUND if one.row.half != "outside"]
    wanted = [(one.published_tflops, one.tflops, one.row.half == "fitted") for one in counted]
    assert np.array(sorted(points(figure))) == pytest.approx(np.array(sorted(wanted)))
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "x"]
    assert len(crosses) == len(FOUND) - len(counted)
    low, high = figure.axes[0].get_xlim()
    assert all(low < x < high and low < y < high for x, y, _ in points(figure))
    assert title_of(figure) == "T" and {"A100, fitted", "H100, held out", "within 15%, held out"} <= set(words(figure))
    assert png(figure).width == 800


def test_errors_by_table():
    figure = errors_by_table(FOUND, title="T")
    tables = list(dict.fromkeys(one.row.title for one in FOUND))
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == tables
    wanted = [
        (100 * one.error, tables.index(one.row.title), one.row.half == "fitted")
        for one in FOUND
        if one.row.half != "outside"
    ]
    assert np.array(sorted(points(figure))) == pytest.approx(np.array(sorted(wanted)))
    assert "32B" in words(figure)  # the worst of its table, beyond 15%
    assert not any("Megatron-LM 2021" in text and "1.7B" in text for text in words(figure))
    png(figure)


def test_one_table_alone_and_only_one_half():
    some = [one for one in FOUND if one.row.table == "megatron-a100"]
    assert "1008B" not in words(errors_by_table(some, title="T"))
    png(predicted_against_published([one for one in some if one.row.half == "fitted"], title="T"))


def test_implied_against_published():
    figure = implied_against_published(WHOLE, title="T")
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert sorted(names) == sorted(run.name for run in WHOLE)
    by_name = {run.name: run for run in WHOLE}
    found = points(figure)
    for place, name in enumerate(names):
        run = by_name[name]
        assert (pytest.approx(100 * run.implied), place, False) in found
        if run.steady is not None:
            assert (pytest.approx(100 * run.steady), place, True) in found
    assert {"0.84", "0.90", "0.77, bound", "1.00, circular", "bound"} <= set(words(figure))
    known = [by_name[name].steady is not None for name in names]
    assert known == sorted(known, reverse=True)
    png(figure)


def test_where_time_goes_is_the_whole_step():
    steps = {row.run.name: predict(row.run) for row in ROWS[:9:4]}
    figure = where_time_goes(steps, title="T")
    bars = figure.axes[0].patches
    for place, step in enumerate(steps.values()):
        mine = [bar for bar in bars if round(bar.get_y() + bar.get_height() / 2) == place]
        assert sum(bar.get_width() for bar in mine) == pytest.approx(100)
        assert mine[0].get_width() == pytest.approx(100 * step.parts["compute"] / step.seconds)
        assert mine[-1].get_width() == pytest.approx(100 * step.parts["bubble"] / step.seconds)
        assert f"MFU {step.mfu:.0%}" in words(figure)
    png(figure)
