"""The look: sizes, colours that can be read, labels that do not collide, the same picture every time."""

import io
import itertools
import subprocess
import sys

import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from course_lib.figures.curve import smoothed, training_curve
from course_lib.figures.next_token import next_token_bars
from course_lib.figures.style import (
    COLORS,
    WIDTH,
    contrast,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    numbers,
    png,
    series,
    text_on,
    tint,
    title_of,
)

FILLS = sorted(set(COLORS.values()))


def curves(ends=(0.1, 0.12, 0.14, 2.0), title="Four curves", rows=True):
    fig, ax = new_figure(title, "Nats a token.", height=240)
    steps = np.arange(200)
    lines = [ax.plot(steps, end + 3 * np.exp(-steps / 30), **series(i))[0] for i, end in enumerate(ends)]
    end_labels(ax, [(line, f"curve {i}") for i, line in enumerate(lines)])
    ax.set_ylim(0)
    ax.set_xlabel("step")
    if rows:
        numbers(fig, [("27.3%", "idle of total"), ("1", "another", "communication")])
    return fig, ax


def texts(fig):
    """(text, box in px) of everything that is really written."""
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        draw = Text.draw

        def record(self, renderer):
            drawn.append(self)
            draw(self, renderer)

        patch.setattr(Text, "draw", record)
        fig.canvas.draw()
    unique = {id(text): text for text in drawn if text.get_text().strip() and text.get_visible()}
    return [(text.get_text(), text.get_window_extent()) for text in unique.values()]


def test_a_picture_is_800_px_wide_sharp_and_small():
    picture = png(curves()[0])
    image = Image.open(io.BytesIO(picture.data))
    assert (picture.width, image.size) == (WIDTH, (2 * picture.width, 2 * picture.height))
    assert len(picture.data) <= 60_000


def test_the_same_figure_gives_the_same_picture():
    """All but a few pixels: numpy's last bit depends on how memory is aligned, and can tip one at a line's edge."""
    fig, _ = curves()
    first = np.asarray(Image.open(io.BytesIO(png(fig).data)).convert("RGB"))
    for picture in (png(fig), png(curves()[0])):
        again = np.asarray(Image.open(io.BytesIO(picture.data)).convert("RGB"))
        assert again.shape == first.shape and (again != first).any(axis=-1).sum() <= 20
        assert b"Software" not in picture.data and b"tIME" not in picture.data


def test_the_background_is_white_in_every_theme():
    image = np.asarray(Image.open(io.BytesIO(png(curves()[0]).data)).convert("RGB"))
    assert (image[[0, 0, -1, -1], [0, -1, 0, -1]] == 255).all()


@pytest.mark.parametrize("color", FILLS)
def test_text_is_readable_on_and_in_every_colour(color):
    assert contrast(color, text_on(color)) >= 4.5
    assert contrast(ink(color), "#FFFFFF") >= 4.5
    assert contrast(tint(color), COLORS["ink"]) >= 4.5


def test_contrast_is_that_of_the_guidelines():
    assert contrast("#FFFFFF", "#000000") == pytest.approx(21)
    assert contrast("#767676", "#FFFFFF") == pytest.approx(4.54, abs=0.01)


def test_curves_differ_without_colour():
    dashes = [str(series(i)["linestyle"]) for i in range(6)]
    same = [pair for pair in itertools.combinations(range(6), 2) if dashes[pair[0]] == dashes[pair[1]]]
    for a, b in same:
        assert contrast(series(a)["color"], series(b)["color"]) > 1.5


@pytest.mark.parametrize("ends", [(0.1, 0.12, 0.14, 2.0), (1.0, 1.02, 1.04, 2.0), (2.9, 2.92, 3.0, 3.01)])
def test_nothing_leaves_the_canvas_and_nothing_collides(ends):
    fig, _ = curves(
        ends, title="A title that is so long that it does not fit into one line and is wrapped into two of them"
    )
    png(fig)
    boxes = texts(fig)
    assert len(boxes) > 12
    for text, box in boxes:
        assert box.x0 >= 0 and box.x1 <= fig.bbox.x1 and box.y0 >= 0 and box.y1 <= fig.bbox.y1, text
    for (a, one), (b, two) in itertools.combinations(boxes, 2):
        overlap = min(one.x1, two.x1) - max(one.x0, two.x0), min(one.y1, two.y1) - max(one.y0, two.y0)
        assert min(overlap) <= 1.5, (a, b)


def test_labels_at_the_ends_keep_their_order():
    fig, _ = curves(ends=(2.0, 0.14, 0.12, 0.1))
    png(fig)
    heights = [box.y0 for text, box in texts(fig) if text.startswith("curve ")]
    assert heights == sorted(heights, reverse=True)


def test_a_row_of_numbers_adds_height_and_leaves_the_plot_alone():
    with_row, without = curves(rows=True), curves(rows=False)
    heights = [fig.get_size_inches()[1] for fig, _ in (with_row, without)]
    assert heights[0] > heights[1]
    for fig, _ in (with_row, without):
        png(fig)
    plots = [ax.get_position().height * fig.get_size_inches()[1] for fig, ax in (with_row, without)]
    assert plots[0] == pytest.approx(plots[1], abs=0.02)


@pytest.mark.parametrize("words", [1, 4, 9])
def test_long_labels_under_numbers_do_not_collide(words):
    fig, _ = new_figure("A title")
    numbers(
        fig, [("1", "short"), ("2,345.6", " ".join(["longer"] * words)), ("3", "a third one"), ("4", "and a fourth")]
    )
    png(fig)
    boxes = [box for text, box in texts(fig) if text in ("short", "a third one", "and a fourth") or "longer" in text]
    assert all(a.x1 + 3 < b.x0 for a, b in itertools.pairwise(boxes)) and boxes[-1].x1 < fig.bbox.x1


def test_dollar_signs_and_underscores_are_text():
    fig, _ = new_figure("Costs $5, not $6", "a_b and c^d")
    assert title_of(fig) == "Costs $5, not $6"
    assert png(fig).data
    assert png(next_token_bars(["$x$", "␣a_b", "⏎"], [0.5, 0.3, 0.2], title="After “$”")).data


def test_panels_share_what_they_are_told_to():
    fig, axes = new_panels("Two", cols=2, share_y=True)
    axes[0].plot([0, 1], [0, 10])
    key(axes[1], [("forward", "forward"), ("idle", "idle")])
    assert axes[1].get_ylim() == axes[0].get_ylim()
    assert png(fig).width == WIDTH


def test_smoothing_does_not_lag_and_keeps_straight_lines():
    line = np.arange(50.0)
    assert smoothed(line) == pytest.approx(line)
    assert smoothed([3.0]) == pytest.approx([3.0])
    noisy = np.tile([0.0, 2.0], 40)
    assert np.abs(smoothed(noisy)[10:-10] - 1).max() < 0.1


def test_training_curve_of_one_step_is_drawn():
    assert png(training_curve([0], [7.0], title="One step")).data


def test_figures_leave_pyplot_and_global_settings_alone():
    code = (
        "import sys, matplotlib; rc = matplotlib.rcParams\n"
        "settings = lambda: {k: rc[k] for k in list(rc) if k != 'backend'}\n"
        "before = settings()\n"
        "from course_lib.figures import style, curve, next_token\n"
        "style.png(style.new_figure('x')[0])\n"
        "assert 'matplotlib.pyplot' not in sys.modules and settings() == before"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
