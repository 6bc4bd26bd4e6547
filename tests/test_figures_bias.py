"""The pictures of chapter 13 say what they are given."""

import math

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.text import Text

from course_lib.figures import bias as figures
from course_lib.figures import offpolicy
from course_lib.figures.style import COLORS, png, title_of


def words(figure: object) -> set[str]:
    """All that is written in a figure."""
    return {text.get_text() for text in figure.findobj(Text)}  # type: ignore[attr-defined]


def test_growth_draws_some_runs_and_the_rms_of_all() -> None:
    runs = np.outer(np.r_[[3.0] * figures.RUNS, -9.0], [1, 2, 4])
    figure = figures.growth([1, 10, 100], {"noise": runs.tolist()}, title="T", row=[("1", "one")])
    *thin, thick = figure.axes[0].lines
    assert len(thin) == figures.RUNS and thin[0].get_ydata() == pytest.approx([3, 6, 12])
    assert thick.get_ydata()[0] == pytest.approx(math.sqrt((9 * figures.RUNS + 81) / (figures.RUNS + 1)))
    assert figure.axes[0].get_xscale() == figure.axes[0].get_yscale() == "log" and "noise" in words(figure)
    png(figure)


def test_feedback_has_the_first_steps_on_plain_axes_and_all_on_a_logarithmic_one() -> None:
    figure = figures.feedback([1, 5, 50], {"a": [1, 2, 3], "b": [1, 10, 1000]}, first=5, title="T")
    left, right = figure.axes
    assert list(left.lines[1].get_ydata()) == [1, 10] and list(right.lines[1].get_ydata()) == [1, 10, 1000]
    assert (left.get_yscale(), right.get_yscale()) == ("linear", "log") and left.get_ylim()[0] == 0
    png(figure)


def test_a_running_sum_lies_on_the_exact_one_with_its_marks() -> None:
    figure = figures.running_sum([0, 1, 2, 3], {"FP16": [0, 1, 1, 1]}, title="T", marks=[(1, "stops")])
    exact, rounded, mark = figure.axes[0].lines
    assert list(exact.get_ydata()) == [0, 1, 2, 3] and list(rounded.get_ydata()) == [0, 1, 1, 1]
    assert mark.get_ydata()[0] == 1 and {"stops", "exact", "FP16"} <= words(figure)
    png(figure)


def test_stops_draws_the_rule_as_a_line_and_what_was_found_as_dots() -> None:
    figure = figures.stops([0.5, 1], {"FP16": [1024, 2048], "BF16": [128, 256]}, {"FP16": [(1.0, 2048)]}, title="T")
    rule, dots, other = figure.axes[0].lines
    assert list(rule.get_ydata()) == [1024, 2048] and list(other.get_ydata()) == [128, 256]
    assert (dots.get_marker(), list(dots.get_xdata()), list(dots.get_ydata())) == ("o", [1.0], [2048])
    png(figure)


def test_places_are_darker_the_more_is_lost_and_say_where_a_way_does_not_exist() -> None:
    table = {"a": {"x": 1e-7, "y": 0.5, "z": None}, "b": {"x": 0.0, "y": math.inf, "z": 0.004}}
    figure = figures.places(table, title="T", dividers=[2])
    assert {"1e-7", "50%", "not possible", "0", "infinite", "0.4%", "a", "b", "z"} <= words(figure)
    fine, half, none = (to_hex(bar.get_facecolor()) for bar in figure.axes[0].patches[:3])
    assert sum(int(half[i : i + 2], 16) for i in (1, 3, 5)) < sum(int(fine[i : i + 2], 16) for i in (1, 3, 5))
    assert none == COLORS["idle"].lower()
    lefts = [bar.get_x() for bar in figure.axes[0].patches[:3]]
    assert lefts[2] - lefts[1] > lefts[1] - lefts[0]
    png(figure)


@pytest.mark.parametrize(
    ("error", "text"), [(1.12, "112%"), (-0.75, "-75%"), (0.008, "0.8%"), (2e-6, "2e-6"), (math.nan, "NaN")]
)
def test_an_error_is_written_as_one_reads_it(error: float, text: str) -> None:
    assert figures.as_error(error) == text


def test_twins_stand_beside_the_ends_of_every_seed() -> None:
    figure = figures.twins(
        {"BF16": [3, 4, 5], "FP32": [3, 2, 1]},
        {"BF16": [5.0, 6.0], "FP32": [1.0, 1.5]},
        title="T",
        floor=0.5,
    )
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == [2.5, 3.5, 4.5] and left.get_yscale() == "log"
    assert [list(line.get_ydata()) for line in right.lines[:2]] == [[5.0, 1.0], [6.0, 1.5]]
    assert {"BF16", "FP32", "nats a token above the floor"} <= words(figure)
    png(figure)


def test_gaps_shows_shares_of_tokens_and_a_dot_a_sequence() -> None:
    figure = offpolicy.gaps({"BF16": [0.0, -0.1, 0.01, 0.001]}, {"BF16": [0.9, 1.2]}, title="T")
    left, right = figure.axes
    curve = left.lines[0]
    assert list(curve.get_xdata()) == pytest.approx([0.001, 0.01, 0.1])
    assert list(curve.get_ydata()) == pytest.approx([75, 50, 25])
    assert list(right.lines[0].get_ydata()) == [0.9, 1.2] and right.lines[1].get_ydata()[0] == 1
    png(figure)


def test_equal_bits_stand_on_a_floor_below_every_difference() -> None:
    figure = offpolicy.batch_sizes([1, 2], {"a": [1e-5, 0.0], "b": [0.0, 0.0]}, title="T")
    first, second = (list(line.get_ydata()) for line in figure.axes[0].lines)
    assert first[0] == 1e-5 and second[0] == second[1] < first[1] < 1e-6  # side by side, far below the difference
    ticks = dict(
        zip(figure.axes[0].get_yticks(), (t.get_text() for t in figure.axes[0].get_yticklabels()), strict=True)
    )
    assert "equal bits" in ticks[second[0]] and all(tick > 1e-6 for tick in ticks if tick != second[0])
    png(offpolicy.batch_sizes([1, 2], {"a": [0.0, 0.0]}, title="T"))
    png(figure)


def test_policies_join_the_seeds_over_the_ways() -> None:
    figure = offpolicy.policies({"own": [0, 1], "other": [0, -1]}, {"own": [1, 2], "other": [-1, 0]}, title="T")
    left, right = figure.axes
    assert list(left.lines[0].get_ydata()) == [0, 1]
    assert [list(line.get_ydata()) for line in right.lines[:2]] == [[1, -1], [2, 0]]
    png(figure)


def test_verdicts_mark_wrong_kernels_and_keep_zero_and_infinity_inside() -> None:
    errors = {"right": [0.0, 1e-3], "wrong": [2.0, math.inf, math.nan]}
    figure = offpolicy.verdicts(errors, ["wrong"], {"limit": 1.0}, title="T")
    ax = figure.axes[0]
    low, high = ax.get_xlim()
    assert title_of(figure) == "T" and {"allowed: limit", "right", "wrong"} <= words(figure)
    assert [line.get_marker() for line in ax.lines[:2]] == ["o", "X"]
    drawn = np.concatenate([line.get_xdata() for line in ax.lines[:2]])
    assert np.isfinite(drawn).all() and low < drawn.min() and drawn.max() < high
    assert ax.lines[1].get_xdata()[0] == 2.0 and ax.lines[0].get_xdata()[0] < 1e-3
    png(figure)
