"""Pictures and the explorer of chapter 2: what they write, at ordinary settings and at the edges."""

import time

import numpy as np
import pytest

from course_lib.figures import ledger, step
from course_lib.figures.style import png
from course_lib.widgets import training_state_explorer


def words(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_step_time_starts_each_part_where_the_last_one_ends() -> None:
    fig = step.step_time({"batch": 0.01, "forward": 4.0, "backward": 8.0}, title="t")
    bars = [(bar.get_x(), bar.get_width()) for bar in fig.axes[0].patches]
    assert bars == [(0.0, 0.01), (0.01, 4.0), (4.01, 8.0)]
    assert words(fig) == ["0.01 ms", "4.0 ms, 33%", "8.0 ms, 67%"]


def test_spike_draws_a_curve_that_leaves_the_picture_and_comes_back() -> None:
    losses = [6.0] * 11 + [40.0, 7.0, 7.0]
    fig = step.spike({"SGD": {"clipped": [6.0] * 14, "not clipped": losses}}, 10, title="t", highest=9.0)
    _, _, broken = fig.axes[0].get_lines()
    assert len(broken.get_ydata()) == 14 and max(broken.get_ydata()) > 9.0 > broken.get_ydata()[-1]
    assert fig.axes[0].get_ylim()[1] == 9.0
    assert png(fig).data


def test_schedule_and_moves_leaves_out_weights_without_a_gradient() -> None:
    gradients, moves = np.array([0.0, 1e-6, 1e-2]), np.array([0.0, 0.9, 1.0])
    fig = step.schedule_and_moves({"a": [0.1, 0.2]}, {"update 1": (gradients, moves)}, title="t")
    assert png(fig).data


def test_clip_orders_and_flops() -> None:
    assert "1.5e-06" in words(step.clip_orders({"right": 0.1, "early": 1.5e-6}, 0.1, title="t"))
    assert words(step.flops_of_a_step({"blocks": 3e9, "attention": 1e9}, 3.5e9, title="t")) == ["4.00", "3.50"]


def test_memory_ledger_says_both_sums() -> None:
    book = {"weights": 4_000_000, "activations": 10_000}
    fig = ledger.memory_ledger({"inference": book}, {"inference": book}, title="t")
    assert words(fig) == ["4", "4.0 MB measured", "4.0 MB predicted"]  # 10 kB are too thin to write in


@pytest.mark.parametrize(("number", "text"), [(0.2, "0.2"), (14.24, "14.2"), (113.4, "113"), (16_000, "16,000")])
def test_readable(number: float, text: str) -> None:
    assert ledger.readable(number) == text


def test_state_on_devices_draws_few_and_very_many() -> None:
    for device, many in ((80, "1 x 80 GB"), (0.01, "1,600 x 0.01 GB")):
        fig = ledger.state_on_devices({"weights": 2, "moments": 14}, device, title="t")
        assert words(fig)[-1] == many
        assert png(fig).data


def test_explorer_of_the_training_state(capsys: pytest.CaptureFixture[str]) -> None:
    """Its goals can be reached, its extremes are drawn, and it answers at once."""
    made = training_state_explorer()
    assert "How many devices" in capsys.readouterr().out
    assert not made.reached
    made.set(device="24 GB", billions=10.0)
    made.set(device="80 GB", billions=4.467)
    made.set(billions=1000.0)
    assert made.reached == {0, 1, 2}
    for billions in (0.1, 1000.0):
        for recipe in ("serve, 16 bits", "AdamW, both gradients"):
            made.set(billions=billions, recipe=recipe, device="24 GB")
            assert not made.error
    times = []
    for billions in (1.0, 2.0, 3.0):
        start = time.process_time()
        made.set(billions=billions)
        times.append(time.process_time() - start)
    assert min(times) < 1.0  # 0.1 s on an idle machine
