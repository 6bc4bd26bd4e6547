"""Pictures of chapter 0: their titles say what the numbers say, on any machine."""

import numpy as np
import pytest

from course_lib.figures.machine import below_the_floor, chapter_times, drift, number_formats
from course_lib.figures.style import png, title_of

FACTS = [("2", "cores"), ("8 GiB", "memory")]


@pytest.mark.parametrize(
    ("rates", "title"),
    [
        ({"fp32": 1e11, "bf16": 2.4e11, "fp16": 1e9}, "BF16 products run 2.4 times as fast as FP32 here"),
        ({"fp32": 1e11, "bf16": 1.05e11, "fp16": None}, "BF16 products run about as fast as FP32 here"),
        ({"fp32": 1e11, "bf16": 2e10}, "BF16 products run at 20% of FP32's speed here"),
        ({"fp32": 1e9, "bf16": None, "fp16": None}, "BF16 products do not run on this CPU"),
    ],
)
def test_number_formats(rates: dict[str, float | None], title: str) -> None:
    fig = number_formats(rates, FACTS)
    assert title_of(fig) == title
    written = [text.get_text() for text in fig.axes[0].texts]
    assert written.count("does not run") == sum(rate is None for rate in rates.values())
    assert png(fig).data


def test_chapter_times() -> None:
    fig = chapter_times([("0. Start here", 30, 40), ("1. Next", 60, 260)])
    assert title_of(fig) == "Plan about 1.5 hours; this machine computes for 5 min of them"
    assert [text.get_text() for text in fig.axes[0].texts] == ["30 min, the machine 40 s", "60 min, the machine 4 min"]
    assert png(fig).data


def test_drift_names_the_distances_of_the_end() -> None:
    seed = np.full(60, 0.3)
    seed[-20:] = 0.07
    halves = np.where(np.arange(60) % 2, 9.6e-7, 0.0)
    fig = drift({"again": np.zeros(60), "halves": halves, "another seed": seed}, "halves", "another seed")
    assert title_of(fig) == "Equal on paper: 1 millionth of a nat apart; another seed: 0.07"
    again, shown, _ = fig.axes[0].get_lines()
    assert np.ptp(again.get_ydata()) == 0 and np.asarray(shown.get_ydata()).min() == np.asarray(again.get_ydata())[0]
    assert png(fig).data


@pytest.mark.parametrize(
    ("value", "words"),
    [(9.6e-7, "1 millionth"), (2.4e-6, "2 millionths"), (4.8e-8, "50 billionths"), (0.0021, "0.002")],
)
def test_drift_counts_no_zeros(value: float, words: str) -> None:
    runs = {"halves": np.full(60, value), "another seed": np.full(60, 0.1)}
    assert title_of(drift(runs, "halves", "another seed")).startswith(f"Equal on paper: {words} of a nat apart")


def test_drift_where_halves_are_equal_too() -> None:
    fig = drift({"halves": np.zeros(60), "another seed": np.full(60, 0.1)}, "halves", "another seed")
    assert title_of(fig) == "Equal on paper, and in every bit of the loss; another seed: 0.1"
    assert png(fig).data


@pytest.mark.parametrize(
    ("end", "title"),
    [
        (2.65, "Where experts choose, the loss ends 0.12 nats below the floor"),
        (2.78, "Where experts choose, the loss ends at the floor"),
    ],
)
def test_below_the_floor(end: float, title: str) -> None:
    curves = {"letters choose": np.full(300, 2.773), "experts choose": np.linspace(2.8, end, 600)[-300:]}
    curves["experts choose"][-50:] = end
    fig = below_the_floor(curves, float(np.log(16)), FACTS)
    assert title_of(fig) == title
    assert png(fig).data
