"""The pictures of chapter 5 say what they are given, and its explorer agrees with the formulas at every corner."""

from itertools import product

import numpy as np
import pytest

from course_lib.config import ModelConfig
from course_lib.figures import recompute as figures
from course_lib.figures.style import png, title_of
from course_lib.planning.formulas import activation_bytes
from course_lib.widgets.recompute import _MODES, _bargain, _beyond, _draw, _rescued


def words(figure: object) -> str:
    """All that is written in a figure."""
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))  # type: ignore[attr-defined]


def test_live_bytes_marks_the_peak_of_each_run() -> None:
    traces = {
        "kept": ([0.0, 4e6, 9e6, 2e6], ["forward"] * 2 + ["backward"] * 2),
        "less": ([0.0, 1e6, 3e6, 2e6, 5e6, 1e6], ["forward"] * 2 + ["backward"] * 2 + ["again", "backward"]),
    }
    figure = figures.live_bytes(traces, title="T", row=[("1", "one")])
    text = words(figure).split("\n")
    assert title_of(figure) == "T" and "9 MB, with the logits" in text and "5 MB" in text and "logits" in text
    first, second = (ax for ax in figure.axes)
    hatched = [[bool(area.get_hatch()) for area in ax.collections] for ax in (first, second)]
    assert hatched == [[False, False], [False, False, True, False]]  # what is computed again, and nothing else
    assert first.get_ylim()[1] > second.get_ylim()[1] > 5
    assert png(figure).width == 800


def test_costs_segments_curves_and_gradients() -> None:
    rows = {
        "none": {"kept": 10e6, "peak": 12e6, "time": 1.0, "flops": 1.0},
        "all": {"kept": 1e6, "peak": 4e6, "time": 1.3, "flops": 1.25},
    }
    text = words(figures.cost_of_modes(rows, title="T"))
    assert "10 kept, 12 peak" in text and "1.30" in text and "1.25" in text
    curves = {"blocks": {"none": ([1, 2], [1e6, 2e6], [1e6, 2e6]), "stored": ([1, 2], [1e6, 4e6], None)}}
    figure = figures.bytes_curves(curves, title="T")
    assert {"none", "stored", "blocks"} <= set(words(figure).split("\n"))
    stored = [line.get_markerfacecolor() for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert stored[0] != stored[1] == "#FFFFFF"  # measured alone: open dots
    png(figure)
    figure = figures.segment_sizes([1, 2, 4], [5e6, 3e6, 4e6], ([1, 2, 3, 4], [5e6, 3e6, 3e6, 4e6]), title="T")
    assert "2 layers: 3 MB" in words(figure)
    values = np.linspace(-1, 1, 50)
    png(figures.gradients_against(values, {"a": values, "b": values[::-1]}, title="T"))


@pytest.mark.parametrize("mode", _MODES)
def test_explorer_at_its_corners(mode: str) -> None:
    for blocks, length in product((1, 96), (512.0, 65_536.0)):
        view = _draw(blocks, length, mode)
        assert 0 <= view.data["saved"] < 1 and 0 <= view.data["flops"] < 1 / 3
        assert view.data["total"] <= view.data["before"] * 1.0001 and png(view.picture).height > 100  # type: ignore[arg-type]


def test_explorer_numbers_and_goals() -> None:
    config = ModelConfig(vocab_size=32_000, d_model=2048, n_layers=24, n_heads=16, context=32_768)
    kept, whole = (activation_bytes(config, 1, 32_768, "bf16", mode) for mode in ("all", "none"))
    view = _draw(24, 32_768, "all blocks")
    assert view.data["before"] - view.data["total"] == pytest.approx(whole - kept - (whole - kept) / 24)
    assert view.data["before"] > 80e9 > view.data["total"]  # where it opens
    assert _rescued({}, _draw(24, 32_768, "keep attention")) and not _rescued({}, view)
    assert _beyond({"mode": "all blocks"}, _draw(96, 2048, "all blocks"))
    assert _bargain({}, _draw(24, 2048, "keep matmuls")) and not _bargain({}, view)
