"""The pictures of chapter 7 say what they are given."""

from types import SimpleNamespace

import pytest
from matplotlib.text import Text

from course_lib.figures import data_parallel as figures
from course_lib.figures.style import COLORS, png


def words(figure: object) -> list[str]:
    """All that is written in a figure."""
    return [text.get_text() for text in figure.findobj(Text)]  # type: ignore[attr-defined]


def widths(figure: object, axes: int = 0) -> list[float]:
    """Of the bars, in the order in which they were drawn."""
    return [round(patch.get_width(), 6) for patch in figure.axes[axes].patches]  # type: ignore[attr-defined]


def dots(figure: object) -> list[float]:
    """Where each dot is, in the order in which they were drawn."""
    lines = figure.axes[0].lines  # type: ignore[attr-defined]
    return [pytest.approx(float(line.get_xdata()[0])) for line in lines if line.get_marker() == "o"]


def test_years_and_the_devices_that_they_take() -> None:
    figure = figures.years_on_one({"small": 0.01, "large": 50.0, "huge": 3036.4}, limit=0.25, title="T")
    text = words(figure)
    assert "3.7 days: 1 device" in text and "50 years: 200 devices" in text and {"small", "large"} <= set(text)
    assert "3,000 years: 12,000 devices" in text and dots(figure) == [0.01, 50.0, 3036.4]
    png(figure)


@pytest.mark.parametrize(
    ("years", "said"),
    [(3035.4, "3,000 years"), (58.3, "58 years"), (1.6, "1.6 years"), (0.5, "6 months"), (0.05, "18 days")],
)
def test_years_in_words(years: float, said: str) -> None:
    assert figures._years(years) == said


def test_all_reduce_times_has_its_fit() -> None:
    figure = figures.all_reduce_times([4, 4e6], [1e-4, 2.1e-3], (1e-4, 2e9), title="T", row=[("1 GB/s", "bandwidth")])
    line, dots = figure.axes[0].lines
    assert dots.get_ydata()[0] == pytest.approx(0.1) and line.get_ydata()[-1] == pytest.approx(2.1)
    assert "1 GB/s" in words(figure)
    png(figure)


def test_errors_are_red_beyond_the_tolerance() -> None:
    figure = figures.errors({"same": 0.0, "rounding": 1e-7, "wrong": 0.5}, tolerance=1e-5, title="T")
    text = words(figure)
    assert {"0: the same bits", "1e-07", "0.5", "tolerance 1e-05"} <= set(text)
    dots = [line.get_color() for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert dots == [COLORS["green"], COLORS["green"], COLORS["vermilion"]]
    png(figure)


def test_a_heading_among_errors_has_no_dot() -> None:
    figure = figures.errors({"against one": None, "same": 0.0, "near": 1e-7}, tolerance=1e-5, title="T")
    assert dots(figure) == [1e-8, 1e-7] and figure.axes[0].get_xlim()[1] == pytest.approx(3e-4)
    weights = {label.get_text(): label.get_weight() for label in figure.axes[0].get_yticklabels()}
    assert weights == {"against one": "bold", "same": "normal", "near": "normal"}
    png(figure)


def test_buckets_in_time() -> None:
    buckets = [
        SimpleNamespace(elements=75, started=0.05, arrived=0.09),
        SimpleNamespace(elements=25, started=0.08, arrived=0.12),
    ]
    figure = figures.bucket_timeline({"one": (0.02, 0.13, buckets[:1]), "two": (0.03, 0.12, buckets)}, title="T")
    # forward, backward, waits; the first bucket on the wire; the second waiting for it, and on the wire
    assert widths(figure, 1) == pytest.approx([30, 50, 40, 40, 10, 30])
    text = words(figure)
    assert {"75%", "25%", "100%", "130 ms", "120 ms", "waits", "one", "two"} <= set(text)
    png(figure)


def test_suspects() -> None:
    png(figures.losses_alike({"A": [3.0, 2.0], "B": [3.0, 2.1]}, title="T", row=[("2", "A")]))
    same, other = 0xABCD << 40, 0x1234 << 40
    figure = figures.replicas_apart(
        {"A": [(same, same)], "B": [(same, other)]}, {"A": [0.0, 0.0], "B": [0.1, 0.5]}, title="T"
    )
    text = words(figure)
    assert text.count("abcd") == 3 and text.count("1234") == 1 and text.count("=") == 1 and text.count("≠") == 1
    assert max(figure.axes[1].lines[1].get_ydata()) == 50
    png(figure)


def test_traffic_and_what_fits() -> None:
    figure = figures.accumulated_traffic([1, 8], {"all": [1e6, 8e6], "last": [1e6, 1e6]}, title="T")
    assert words(figure).count("1.00") == 3 and "8.00" in words(figure)
    png(figure)
    figure = figures.replica_bytes({"small": 16.0, "large": 6480.0}, {"24 GB": 24, "80 GB": 80}, title="T")
    assert {"16 GB", "6,480 GB", "24 GB", "80 GB"} <= set(words(figure)) and dots(figure) == [16.0, 6480.0]
    png(figure)
