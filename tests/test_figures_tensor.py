"""The pictures of chapter 10 say what they are given; and the formulas behind them."""

import pytest
from matplotlib.collections import PathCollection
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from course_lib.errors import ConfigError
from course_lib.figures import context, tensor
from course_lib.figures.style import png, title_of
from course_lib.planning import split_traffic


def words(figure: object) -> list[str]:
    """All that is written in a figure."""
    return [text.get_text() for text in figure.findobj(Text)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_two_matrices_are_cut_for_each_rank(ranks: int) -> None:
    figure = tensor.column_then_row(ranks, title="T")
    assert title_of(figure) == "T" and words(figure).count("0") == 3 and words(figure).count(str(ranks - 1)) == 3
    assert len(figure.axes[0].findobj(Rectangle)) >= 2 + 4 * ranks
    png(figure)


def test_bars_write_their_sums() -> None:
    sent = {"a": {"all-reduce": 1.5}, "b": {"all-reduce": 6.0, "all-gather": 0.75}}
    figure = tensor.sent_bars(sent, unit="elements", title="T", row=[("1", "one")])
    assert {"1.5", "6.75", "all-reduce", "all-gather"} <= set(words(figure))
    png(figure)


def test_lines_end_in_their_names() -> None:
    figure = tensor.kept([1, 2, 4], {"a": [8.0, 6.0, 5.0], "b": [8.0, 4.0, 2.0]}, title="T", row=[("1", "one")])
    assert {"a", "b"} <= set(words(figure))
    assert figure.axes[0].lines[0].get_ydata().tolist() == [8.0, 4.0, 2.0]  # an equal share
    png(figure)
    png(tensor.sending_shares([2, 4, 8], {"a": [0.1, 0.3, 0.7]}, 8, title="T"))


def test_the_causal_half_is_shared_out_in_per_cent() -> None:
    layouts = {"in order": [(0, 1), (2, 3)], "folded": [(0, 3), (1, 2)]}
    figure = context.who_computes(layouts, 64, title="T")
    assert {"rank 0: 25%", "rank 1: 75%", "rank 0: 50%", "rank 1: 50%"} <= set(words(figure))
    assert not figure.findobj(PathCollection)  # an image, not thousands of patches
    png(figure)


def test_a_step_of_the_ring_is_as_long_as_its_slowest_rank() -> None:
    figure = context.ring_steps({"a": [[1, 0], [3, 4]], "b": [[3, 2], [3, 2]]}, title="T", row=[("1", "one")])
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert sorted((box.get_x(), box.get_width()) for box in boxes) == [(0, 1)] + [(0, 3)] * 3 + [(3, 4)] * 3
    png(figure)


def test_the_formulas_scale_as_they_should() -> None:
    assert split_traffic.tensor_calls(32) == 65
    plain = split_traffic.tensor_sent(32, 8192, 4096, 128_256, 8)
    assert plain == {"all_reduce": 7 / 8 * 4 * 65 * 8192 * 4096, "all_gather": 7 / 8 * 8192 * 128_256}
    kept = split_traffic.tensor_sent(32, 8192, 4096, 128_256, 8, sequence="keep", loss_parallel=True)
    again = split_traffic.tensor_sent(32, 8192, 4096, 128_256, 8, sequence="regather", loss_parallel=True)
    assert sum(again.values()) / sum(kept.values()) == pytest.approx(1.25, rel=1e-3)
    assert kept["all_gather"] == kept["reduce_scatter"] == plain["all_reduce"] / 2
    flops, elements = split_traffic.tensor_share(4096, 14_336, 32, 8, 8)
    assert flops == 6 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336) / 8 and elements == 7 * 4096
    ring, gather = (
        sum(split_traffic.context_sent(1, 64, 8, 0, 4, form=form).values()) for form in ("ring", "all-gather")
    )
    assert ring == 1.5 * gather == 3 / 4 * 3 * 2 * 64 * 8
    with pytest.raises(ConfigError, match="form='star' is unknown"):
        split_traffic.context_sent(1, 64, 8, 0, 4, form="star")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="ranks=0"):
        split_traffic.tensor_sent(1, 1, 1, 1, 0)
