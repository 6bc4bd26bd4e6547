"""The pictures of chapter 8 say what they are given; and which bytes an operator touches."""

import pytest
from matplotlib.text import Text

from course_lib.figures import zero as figures
from course_lib.figures.style import png, title_of
from course_lib.parallel.touch import touches
from course_lib.parallel.tradeoffs import small


def words(figure: object) -> str:
    """All that is written in a figure."""
    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def test_a_raster_marks_rows_and_names_phases() -> None:
    rows = [("weights", "", 4e6), ("weights", "blocks.0", 8e6), ("moments", "", 16e6)]
    marks = [[True] * 10 + [False] * 30, [False] * 20 + [True] * 20, [False] * 40]
    figure = figures.touched(rows, marks, [("forward", 0), ("backward", 20), ("update", 39)], title="T")
    text = words(figure).split("\n")
    assert title_of(figure) == "T" and {"weights", "moments", "forward", "backward"} <= set(text)
    assert "update" not in text  # one operator of forty: no room for its name
    spans = [len(area.get_paths()) for area in figure.axes[0].collections]
    assert spans == [1, 1, 1, 1, 1, 0]  # a pale row and its marks, three times
    assert png(figure).width == 800


def test_rungs_write_sums_and_parts() -> None:
    held = {"a": {"weights": 4.0, "gradients": 4.0, "optimizer": 8.0}, "b": {"weights": 1.0, "optimizer": 2.5}}
    sent = {"a": {"all-reduce": 2.0}, "b": {"all-gather": 1.0, "again in backward": 1.0, "reduce-scatter": 1.0}}
    figure = figures.rungs(held, sent, title="T", row=[("1", "one")])
    text = words(figure).split("\n")
    assert {"16", "3.5", "2.5", "2 P", "3 P", "all-reduce", "again in backward"} <= set(text)
    png(figure)


def test_step_memory_stacks_whole_weights_state_and_the_rest() -> None:
    moments = [
        ("forward", 0.0, 0.0, 10e6),
        ("forward", 2e6, 0.0, 13e6),
        ("backward", 2e6, 1e6, 15e6),
        ("backward", 0.0, 1e6, 11e6),
    ]
    figure = figures.step_memory({"one": moments, "two": moments}, title="T", row=[("1", "one")])
    text = words(figure)
    assert "15 MB" in text and "whole weights" in text and "backward" in text
    tops = [area.get_paths()[0].get_extents().y1 for area in figure.axes[0].collections[:4]]
    assert tops == pytest.approx([2, 12, 13, 15])
    png(figure)


def test_trades_label_every_point() -> None:
    figure = figures.trades({"a": (2.0, 16.0), "b": (12.0, 7.0)}, title="T", offsets={"b": (-10, 0)})
    assert {"a: 16.0", "b: 7.0"} <= set(words(figure).split("\n"))
    assert figure.axes[0].get_xlim()[1] > 12 and figure.axes[0].get_ylim()[0] == 0
    png(figure)


def test_forward_touches_weights_alone_and_moments_wait_for_the_update() -> None:
    step = touches(small())
    (_, turn, update) = (first for _, first in step.phases)
    assert 0 < turn < update < len(step.marks[0])
    sizes = {
        kind: sum(size for name, _, size in step.rows if name == kind) for kind in ("weights", "gradients", "moments")
    }
    assert sizes["moments"] == 2 * sizes["weights"] == 2 * sizes["gradients"] == 2 * 4 * 1_738_880
    for (kind, unit, _), marks in zip(step.rows, step.marks, strict=True):
        assert any(marks[:turn]) == (kind == "weights"), (kind, unit)
        assert any(marks[turn:update]) == (kind != "moments"), (kind, unit)
        assert any(marks[update:]), (kind, unit)
    assert 0.01 < step.largest < 0.03
    forward = {
        unit: marks.index(True)
        for (kind, unit, _), marks in zip(step.rows, step.marks, strict=True)
        if kind == "weights"
    }
    order = [unit for unit in sorted(forward, key=forward.__getitem__) if unit]
    assert order == [f"blocks.{i}" for i in range(8)]
