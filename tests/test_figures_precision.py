"""Pictures of chapter 4: what they write, at ordinary values and at the edges."""

import numpy as np
import pytest

from course_lib.figures import precision as figures
from course_lib.figures.style import png
from course_lib.precision import FORMATS


def words(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_formats_stand_with_their_range_and_bits() -> None:
    rows = {f.label: (f.smallest_subnormal, f.smallest_normal, f.max, f.mantissa_bits + 1) for f in FORMATS.values()}
    fig = figures.formats_side_by_side(rows, title="t")
    assert words(fig)[2:4] == ["8 significant bits", "11 significant bits"]
    pale, full = fig.axes[0].patches[6:8]  # FP16
    assert (pale.get_x(), full.get_x()) == (-24, -14)
    assert full.get_x() + full.get_width() == pytest.approx(16, abs=1e-3)
    assert png(fig).data


@pytest.mark.parametrize(("power", "text"), [(24, "2²⁴"), (-14, "2⁻¹⁴"), (0, "1")])
def test_powers_of_two(power: int, text: str) -> None:
    assert figures.power_of_two(power) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(2.13, "2.1 times as fast"), (1.0, "1 times as fast"), (0.031, "32 times slower")]
)
def test_pace(ratio: float, text: str) -> None:
    assert figures.pace(ratio) == text


def test_casts_have_no_name_and_stand_on_the_lane_of_their_result() -> None:
    steps = [("mul", "fp32", False), ("cast", "bf16", True), ("product", "bf16", False), ("odd", "int64", False)]
    fig = figures.cast_ladder(steps, title="t")
    assert words(fig) == ["mul", "product", "odd"]
    marks = [line for line in fig.axes[0].get_lines() if len(line.get_xdata()) == 1]
    assert [float(line.get_ydata()[0]) for line in marks] == [1.0, 0.0, 0.0, 0.5]
    assert png(fig).data


def test_gradients_are_sorted_into_the_zones_of_fp16() -> None:
    sizes = np.array([2.0**-30, 2.0**-20, 1.0, 2.0**18, 0.0])
    fig = figures.gradients_in_fp16({"a": sizes, "none": np.zeros(3)}, title="t", row=[("1", "x")])
    bars = [bar for bar in fig.axes[0].patches if abs(bar.get_width() - 0.9) < 1e-6 and bar.get_height() > 0]
    bars = [bar for bar in bars if bar.get_height() < 1]  # the zones are one high
    assert [bar.get_height() for bar in bars] == [0.25] * 4
    assert len({bar.get_facecolor() for bar in bars}) == 3  # both ends are one colour
    assert [ax.get_xlabel() for ax in fig.axes[:2]] == ["size of a gradient"] * 2
    assert png(fig).data


@pytest.mark.parametrize(
    ("scales", "skipped", "notes"),
    [
        ([16, 8, 8, 16], [True, False, False, False], 2),
        ([4, 4], [False, False], 0),
        ([2.0**-3, 2.0**-4], [True] * 2, 1),
    ],
)
def test_scaler_run_marks_what_happened(scales: list[float], skipped: list[bool], notes: int) -> None:
    fig = figures.scaler_run(scales, skipped, title="t")
    assert len(words(fig)) == notes
    (line,) = (line for line in fig.axes[0].get_lines() if line.get_marker() == "X")
    assert len(line.get_xdata()) == sum(skipped)
    assert png(fig).data


def test_loss_curves_name_every_run() -> None:
    fig = figures.loss_curves({"FP32": [2, 1], "BF16": [2, 1.5]}, title="t", row=[("1", "x")])
    assert words(fig) == ["FP32", "BF16"] and png(fig).data


def test_capability_table_writes_every_cell() -> None:
    fig = figures.capability_table(
        {"cpu": [True, False, 0.0256, 2.1, "not measured"], "mps": [None] * 5}, list("abcde"), title="t"
    )
    assert words(fig) == ["yes", "no", "39 x slower", "2.1 x FP32", "not measured"] + ["no device"] * 5
    assert png(fig).data
