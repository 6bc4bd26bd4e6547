"""The pictures of a plan's memory, time and risks: each piece is there, and as long as it is large."""

import itertools
import re

import pytest
from matplotlib.text import Text

from course_lib.figures import capacity as figures
from course_lib.figures.capacity_svg import capacity_svg, impossible_svg
from course_lib.figures.style import png, title_of

G = figures.GIB
TIMES = {"compute": 4.2, "recompute": 1.0, "tensor_traffic": 0.5, "bubble": 0.8, "data_traffic": 0.3, "optimizer": 0.0}
RISKS = [("Stage 0 needs 83 GiB of 75.", "two stages more"), ("Bubble 30%.", "28 micro-batches")]


def bars(stages):
    """The first is the fullest; the last has logits."""
    return {
        f"stage {k}": {
            "weights": 4 * G,
            "optimizer": 12 * G,
            "gradients": 8 * G,
            "activations": 60 * G * (stages - k) / stages,
            "logits": 6 * G * (k == stages - 1),
        }
        for k in range(stages)
    }


def words(figure):
    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


@pytest.mark.parametrize("stages", [1, 4, 16, 32])
def test_a_bar_a_stage_and_the_two_limits(stages):
    figure = figures.stage_memory(bars(stages), 75 * G, 80 * G, title="T", row=[("84 GiB", "stage 0")])
    ax = figure.axes[0]
    boxes = [box for box in ax.patches if box.get_height() == pytest.approx(0.72)]
    assert len(boxes) == stages * 5 and title_of(figure) == "T"  # a category that is nowhere is not drawn
    ends = {}
    for box in boxes:
        place = round(box.get_y() + 0.36)
        ends[place] = max(ends.get(place, 0), box.get_x() + box.get_width())
    wanted = {k: sum(sizes.values()) / G for k, sizes in enumerate(bars(stages).values())}
    assert ends == pytest.approx(wanted)
    lines = sorted(line.get_xdata()[0] for line in ax.lines)
    assert lines == [75, 80] and "75 GiB of 80 GiB usable" in words(figure)
    assert [text.get_text() for text in ax.get_legend().get_texts()][:2] == ["weights", "gradients"]
    assert png(figure, scale=1).width == 800


def test_who_is_over_is_bold():
    figure = figures.stage_memory(bars(4), 75 * G, 96 * G, title="T")
    bold = [text.get_text() for text in figure.axes[0].texts if text.get_weight() == "bold"]
    assert bold == ["84 GiB"]


def test_what_is_unknown_is_drawn_too():
    figure = figures.stage_memory({"a device": {"weights": G, "new": 2 * G}}, 3 * G, 4 * G, title="T")
    assert "new" in words(figure)
    picture = capacity_svg({"a device": {"new": G}}, 3 * G, 4 * G, {"other": 1.0}, [], title="t", subtitle="s")
    assert "a device: new 1 GiB" in picture and "other: 1 s" in picture


def test_steps_side_by_side():
    figure = figures.step_parts({"as it is": TIMES, "twice": {"compute": 14.0}}, title="T")
    said = words(figure)
    assert "6.8 s" in said and "14 s" in said and "tensor traffic" in said and "optimizer" not in said
    assert figure.axes[0].get_xlim()[1] > 14


@pytest.mark.parametrize("stages", [1, 8, 32])
@pytest.mark.parametrize("count", [0, 2, 7])
def test_the_still_picture_has_all_three(stages, count):
    risks = [f"{k}: something breaks, and it takes many words to say what " * 3 for k in range(count)]
    figure = figures.capacity_figure(bars(stages), 75 * G, 80 * G, TIMES, risks, title="T", subtitle="S")
    said = words(figure)
    assert (figures.BREAKS if count else figures.NOTHING) in said and ("and 3 more" in said) == (count == 7)
    picture = png(figure, scale=1)
    figure.canvas.draw()
    low = [text.get_window_extent().y0 for text in figure.axes[2].texts]
    assert all(y >= 0 for y in low) and picture.height < 1000
    tops = [text.get_window_extent().y1 for text in figure.axes[2].texts]
    assert all(below <= y + 1 for y, below in zip(low, tops[1:], strict=False))  # no line lies on the one above


@pytest.mark.parametrize("stages", [1, 4, 16, 32])
def test_the_live_picture_has_every_piece_with_its_tooltip(stages):
    picture = capacity_svg(bars(stages), 75 * G, 80 * G, TIMES, RISKS, title="T & so", subtitle="s")
    titles = re.findall(r"<title>([^<]*)</title>", picture)
    assert len(titles) == stages * 4 + 1 + 5  # logits in the last stage alone; no optimizer in the step
    assert titles[0] == "stage 0: weights 4 GiB" and "bubble: 800 ms" in titles and "T &amp; so" in picture
    boxes = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)"[^>]*><title>', picture)
    px = 620 / (84 * G) if stages > 1 else 620 / (90 * G)
    assert float(boxes[0][2]) == pytest.approx(4 * G * px, abs=0.06)
    for (x, y, wide), (after, row, _) in itertools.pairwise(boxes):  # piece by piece, from the left
        assert float(after) == pytest.approx(float(x) + float(wide) if y == row else 70, abs=0.11)
    for x, wide_ in re.findall(r'<rect x="([-\d.]+)" y="[-\d.]+" width="([-\d.]+)"', picture):
        assert float(x) >= 0 and float(wide_) >= 0 and float(x) + float(wide_) <= 768
    assert picture.index("Stage 0 needs") < picture.index("Bubble 30%") and "two stages more" in picture
    assert ("84 GiB" if stages > 1 else "90 GiB") in picture


def test_few_risks_are_written_out():
    picture = capacity_svg(bars(1), 75 * G, 80 * G, TIMES, RISKS * 4, title="t", subtitle="s")
    assert picture.count("<li") == 5 and "and 3 more" in picture
    assert figures.NOTHING in capacity_svg(bars(1), 75 * G, 80 * G, TIMES, [], title="t", subtitle="s")


def test_what_is_impossible_has_empty_bars_and_a_list():
    picture = impossible_svg(3, [("devices", "2 or 4"), ("<tensor>", "1")], "Try:", title="t", subtitle="why")
    assert picture.count("stroke-dasharray") == 3 and "<title>" not in picture
    assert "<b>devices</b> 2 or 4" in picture and "&lt;tensor&gt;" in picture and "Try:" in picture


@pytest.mark.parametrize(
    ("size", "text"), [(80.2 * G, "80.2 GiB"), (1340 * G, "1,340 GiB"), (0.309 * G, "0.309 GiB"), (0, "0 GiB")]
)
def test_bytes_in_words(size, text):
    assert figures.gib(size) == text


def test_the_colours_are_those_of_the_planner():
    """Every category and part that the planner has a number for has its own colour and comes in words."""
    from course_lib.planning.capacity import stages
    from course_lib.planning.presets import preset, presets
    from course_lib.planning.rules import check
    from course_lib.planning.steptime import predict

    for name in presets():
        run = check(preset(name))
        assert {part for stage in stages(run) for part in stage.parts} <= set(figures.MEMORY_COLORS)
        assert set(predict(run).parts) <= set(figures.TIME_COLORS)
    for colors in (figures.MEMORY_COLORS, figures.TIME_COLORS):
        assert len(set(colors.values())) == len(colors)
        assert all("_" not in figures.said(name) for name in colors)
