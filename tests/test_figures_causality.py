"""The pictures of chapter 12 say what they are given."""

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from course_lib.figures import causality as figures
from course_lib.figures.style import COLORS, png, title_of


def words(figure: object) -> set[str]:
    """All that is written in a figure."""
    return {text.get_text() for text in figure.findobj(Text)}  # type: ignore[attr-defined]


def test_by_position_starts_at_one_and_shades_below_the_entropy() -> None:
    figure = figures.by_position({"alone": [3.0, 2.9], "together": [2.6, 2.7]}, 2.77, title="T", row=[("1", "one")])
    (ax,) = figure.axes
    assert title_of(figure) == "T" and {"alone", "together", "entropy, 2.7700"} <= words(figure)
    assert ax.lines[1].get_xdata().tolist() == [1, 2] and ax.lines[1].get_ydata() == pytest.approx([2.6, 2.7])
    [shade] = ax.patches
    assert shade.get_y() + shade.get_height() == pytest.approx(2.77)
    png(figure)


def test_what_moves_with_a_later_token_has_the_other_colour() -> None:
    matrix = np.array([[1.0, 0.0, 1.0], [0.5, 1.0, 0.0], [0.0, 1.0, 1.0]])
    figure = figures.who_moves_whom({"a": matrix.tolist(), "b": np.eye(3).tolist()}, title="T")
    first, second = figure.axes
    assert len(first.collections) == 6 and len(second.collections) == 3
    colors = {}
    for bar in first.collections:
        corner = bar.get_paths()[0].vertices.min(0)
        colors[tuple(int(value) for value in corner[::-1])] = to_hex(bar.get_facecolor()[0])
    assert colors[0, 2] == to_hex(COLORS["communication"]) and colors[2, 1] == to_hex(COLORS["forward"])
    assert [color for place, color in colors.items() if place != (0, 2)].count(colors[0, 2]) == 0
    png(figure)


def test_verdicts_say_moves_or_stays_in_each_cell() -> None:
    figure = figures.verdicts([("one", False, True), ("two", False, False), ("three", True, True)], title="T")
    said = [text.get_text() for text in figure.axes[0].texts]
    assert said == ["stays", "moves", "stays", "stays", "moves", "moves"] and {"one", "two", "three"} <= words(figure)
    png(figure)


def test_bits_are_as_long_as_they_are_many() -> None:
    figure = figures.bits([("a layer", 8.7, "can hold"), ("the loss", 0.05, "found")], title="T")
    (ax,) = figure.axes
    assert [bar.get_x() + bar.get_width() for bar in ax.patches] == pytest.approx([8.7, 0.05])
    assert {"8.70", "0.05", "can hold", "found"} <= words(figure) and "entropy" not in words(figure)
    assert ax.get_xlim()[0] == 0 and ax.get_xscale() == "linear"  # so that lengths may be compared
    png(figure)


def test_over_training_draws_all_and_marks_the_switch() -> None:
    curves = {"honest": ([40, 80], [3.0, 2.5]), "repaired": ([80, 120], [2.9, 2.6])}
    figure = figures.over_training(curves, 80, title="T")
    (ax,) = figure.axes
    assert [list(line.get_ydata()) for line in ax.lines[:2]] == [[3.0, 2.5], [2.9, 2.6]]
    assert ax.lines[2].get_xdata() == pytest.approx([80, 80]) and {"honest", "repaired"} <= words(figure)
    png(figure)


def test_seeds_has_a_dot_for_each_and_a_ring_for_this_page() -> None:
    figure = figures.seeds({"a": [0.1, 0.2, 0.3], "b": [1.0, 1.1, 1.2]}, {"b": 1.05}, title="T", zero=True)
    (ax,) = figure.axes
    assert list(ax.lines[0].get_ydata()) == [0.1, 0.2, 0.3] and list(ax.lines[1].get_ydata()) == [1.0, 1.1, 1.2]
    assert list(ax.lines[2].get_ydata()) == [1.05] and list(ax.lines[2].get_xdata()) == [1]
    png(figure)


def test_a_model_has_one_colour_in_all_pictures() -> None:
    names = ("honest", "leaking, whole windows", "leaking, token by token", "among predecessors", "repaired")
    curves = figures.over_training({name: ([1, 2], [3.0, 2.0]) for name in names}, title="T").axes[0].lines
    placed = figures.by_position({name: [3.0, 2.0] for name in reversed(names)}, title="T").axes[0].lines
    dots = figures.seeds({name.replace(" ", "\n"): [1.0, 2.0] for name in names}, {}, title="T").axes[0].lines
    colors = [to_hex(line.get_color()) for line in curves[:5]]
    assert len(set(colors)) == 5
    assert colors == [to_hex(line.get_color()) for line in reversed(placed[:5])]
    assert colors == [to_hex(line.get_color()) for line in dots[:5]]
