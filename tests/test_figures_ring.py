"""The pictures of the ring say what they are given, and its explorer is the ring on paper at every corner."""

from itertools import product
from types import SimpleNamespace

import pytest
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from course_lib.figures import ring as figures
from course_lib.figures.style import COLORS, png, title_of
from course_lib.parallel.ring import hop, ring_states
from course_lib.widgets.ring import _draw, _first_complete, _half, _more_than_all, _still


def words(figure: object) -> list[str]:
    """All that is written in a figure."""
    return [text.get_text() for text in figure.findobj(Text)]  # type: ignore[attr-defined]


def traced(ranks: int) -> tuple[list[list[int]], list[list[SimpleNamespace]]]:
    """What `collectives.ring_all_reduce` brings back, from the ring on paper."""
    states = ring_states(ranks)
    traces = [
        [
            SimpleNamespace(
                phase=(move := hop(rank, ranks, number)).phase,
                sent=move.sends,
                received=move.receives,
                chunks=[[sum(10**one for one in whose)] for whose in states[number + 1][rank]],
            )
            for number in range(2 * (ranks - 1))
        ]
        for rank in range(ranks)
    ]
    return [[10**rank] * ranks for rank in range(ranks)], traces


@pytest.mark.parametrize("ranks", [2, 4])
def test_every_buffer_after_every_step(ranks: int) -> None:
    starts, traces = traced(ranks)
    figure = figures.ring_steps(starts, traces, title="T")
    text = words(figure)
    whole = "1" * ranks
    complete = sum(chunk == [int(whole)] for trace in traces for step in trace for chunk in step.chunks)
    assert title_of(figure) == "T" and text.count(whole) == complete
    assert {"start", f"step {2 * (ranks - 1)}", "reduce-scatter", "all-gather", f"rank {ranks - 1}"} <= set(text)
    boxes = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    framed = [box for box in boxes if box.get_linewidth() > 2]
    assert len(boxes) == ranks * ranks * (2 * ranks - 1) and len(framed) == ranks * 2 * (ranks - 1)
    assert png(figure).width == 800


def test_complete_chunks_alone_are_green() -> None:
    assert figures.shade_of(1) == COLORS["weight"] != figures.shade_of(7 / 8) != figures.shade_of(1 / 8)


def test_traffic_against_ranks() -> None:
    ranks = [2, 4, 1024]
    figure = figures.traffic_against_ranks(
        {"ring": (ranks, [1, 1.5, 1.998]), "root": (ranks, [1, 3, 1023])}, {"ring": ([2, 4], [1, 1.5])}, title="T"
    )
    assert {"ring", "root", "1,024", "2"} <= set(words(figure))
    assert [line.get_marker() for line in figure.axes[0].lines].count("o") == 1
    png(figure)


@pytest.mark.parametrize(("ranks", "step"), list(product((2, 3, 8), (0, 1, 7, 14))))
def test_explorer_at_its_corners(ranks: int, step: int) -> None:
    view = _draw(ranks, step, 1000.0)
    assert view.data["done"] == min(step, 2 * (ranks - 1))
    assert view.data["whole"] == sum(len(whose) == ranks for whose in ring_states(ranks)[view.data["done"]][0])
    assert isinstance(view.picture, str) and view.picture.count("<rect") == ranks * ranks
    assert view.picture.count("<polygon") == (ranks if view.data["done"] else 0)
    assert ("is done after" in view.message) == (step > 2 * (ranks - 1))
    still = _still(ranks, step, 1000.0)
    assert png(still).height > 100 and not any("arrow" in word for word in words(still))


def test_explorer_numbers_and_goals() -> None:
    view = _draw(4, 3, 1000.0)
    assert [value for value, _ in view.numbers] == ["750 MB", "1.5 GB", "6 GB"]
    assert "rank 2, chunk 2: the numbers of ranks 0, 1, 2, 3" in view.picture
    assert _first_complete({"ranks": 8, "step": 7}, _draw(8, 7, 1.0))
    assert not _first_complete({"ranks": 8, "step": 8}, _draw(8, 8, 1.0))
    assert _half({}, _draw(6, 7, 1.0)) and not _half({}, _draw(6, 8, 1.0)) and not _half({}, _draw(4, 4, 1.0))
    reached = [step for step in range(15) if _more_than_all({"size": 1.0}, _draw(8, step, 1.0))]
    assert reached == [13]
