"""The pictures of chapter 11 say what they are given."""

import numpy as np
import pytest
from matplotlib.text import Text

from course_lib.figures import moe as figures
from course_lib.figures.axes import axes
from course_lib.figures.style import png, title_of


def words(figure: object) -> set[str]:
    """All that is written in a figure."""
    return {text.get_text() for text in figure.findobj(Text)}  # type: ignore[attr-defined]


def test_growth_is_relative_to_the_first_point() -> None:
    figure = figures.growth([2, 4, 8], {"parameters": [10, 20, 40], "time": [1.0, 1.0, 1.5]}, title="T")
    assert title_of(figure) == "T" and {"parameters: 4 times", "time: 1.5 times"} <= words(figure)
    assert figure.axes[0].lines[1].get_ydata() == pytest.approx([1, 1, 1.5])
    png(figure)


def test_a_load_map_has_the_busiest_expert_on_top() -> None:
    shares = np.ones((2, 5, 4))
    shares[0, :, 2], shares[1, 3, 1] = 3.0, 0.0
    figure = figures.load_map(shares.tolist(), title="T", row=[("1", "one")])
    first, second = (ax.images[0].get_array() for ax in figure.axes[:2])
    assert first.shape == (4, 5) and first[0].tolist() == [3.0] * 5 and first[1:].max() == 1
    assert second[3, 3] == 0 and {"block 0", "block 1"} <= words(figure)
    png(figure)


def test_balance_draws_a_line_a_seed_and_joins_their_losses() -> None:
    curves = {"nothing": [[1, 6, 2], [1, 4, 3]], "bias": [[1, 2, 1], [1, 3, 1]]}
    figure = figures.balance(curves, {"nothing": [4.2, 4.3], "bias": [4.1, 4.4]}, title="T")
    left, right = figure.axes
    assert [line.get_ydata().tolist() for line in left.lines[:3]] == [[1, 6, 2], [1, 4, 3], [1, 5, 2.5]]
    assert [list(line.get_ydata()) for line in right.lines[:2]] == [[4.2, 4.1], [4.3, 4.4]]
    assert left.get_ylim()[0] == 0
    png(figure)


def test_drops_are_in_percent() -> None:
    figure = figures.drops([1, 2], {"a": [0.25, 0.1]}, [0.0, 0.5], title="T")
    left, right = figure.axes
    assert left.lines[0].get_ydata() == pytest.approx([25, 10])
    assert [bar.get_height() for bar in right.patches] == pytest.approx([0, 50])
    png(figure)


def test_an_exchange_has_sums_of_what_arrives() -> None:
    figure = figures.exchange({"one": [[1, 7], [2, 4]]}, title="T")
    assert {"1", "7", "2", "4", "3", "11", "from 0", "to 1"} <= words(figure)
    png(figure)


def test_waiting_has_a_bar_for_each_rank_as_long_as_the_slower_one() -> None:
    figure = figures.waiting([0.5, 0.75], [[0.010, 0.011], [0.015, 0.006]], [0.02, 0.03], title="T")
    widths = [bar.get_width() for bar in figure.axes[0].patches]
    assert widths == pytest.approx([20, 10, 20, 11, 30, 15, 30, 6])
    assert {"20 ms", "30 ms", "75% of the rows, rank 0", "25% of the rows, rank 1"} <= words(figure)
    png(figure)


def test_the_closing_picture_marks_what_is_sent_with_twice_the_tokens() -> None:
    rows = [
        ("FSDP", 4.0, 8.4, {"all-gather": 2e6, "reduce-scatter": 1e6}, 3e6),
        ("tensor", 4.0, 9.9, {"all-reduce": 1e6}, 2e6),
    ]
    figure = axes(rows, title="T", row=[("1", "one")])
    _, right = figure.axes
    assert {"4.0, 8.4", "3.0, 3.0", "1.0, 2.0", "all-reduce", "all-gather"} <= words(figure)
    assert [line.get_xdata()[0] for line in right.lines] == pytest.approx([3, 2])
    assert "send" not in words(figure)
    png(figure)
