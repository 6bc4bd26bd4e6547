"""Pictures and the calculator of chapter 3: what they write, at ordinary settings and at the edges."""

import time

import pytest

from course_lib.figures import accumulation, batch_size
from course_lib.figures.style import png
from course_lib.widgets import batch_calculator
from course_lib.widgets.batch_calculator import PUBLISHED


def words(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


def test_token_pull_is_one_over_its_share() -> None:
    """Counts 60 and 6: means weigh a token 1/120 and 1/12, the right weight is 1/66."""
    fig = accumulation.token_pull([60, 6], title="t")
    assert words(fig) == ["5.5", "0.55"]
    assert words(accumulation.token_pull([8, 8], title="t")) == ["1", "1"]
    assert png(fig).data


def test_differences_are_shares_of_one_draw() -> None:
    """Each line begins at 1 whatever its size, and noise has its own: 1/4 after 16 draws."""
    fig = accumulation.differences({"dropout": {1: 0.4, 16: 0.1}, "BatchNorm": {1: 0.3, 16: 0.15}}, title="t")
    assert [list(line.get_ydata()) for line in fig.axes[0].get_lines()] == [[1, 0.25], [1, 0.25], [1, 0.5]]
    assert words(fig) == ["noise, 1/√n: 25%", "dropout: 25%", "BatchNorm: 50%"]
    assert png(fig).data


def test_memory_and_speed_stacks_up_to_the_peak() -> None:
    fig = accumulation.memory_and_speed(
        {"weights": 4.0, "moments": 8.0}, {2: 20.0, 1: 16.0}, {2: 9e3, 1: 3e3}, title="t"
    )
    tops = [bar.get_y() + bar.get_height() for bar in fig.axes[0].patches][-2:]
    assert tops == [20.0, 16.0]
    fig = accumulation.memory_and_speed(
        {"weights": 4.0, "gradients": 4.0}, {2: 20.0, 1: 16.0}, {2: 9e3, 1: 3e3}, title="t"
    )
    assert [bar.get_height() for bar in fig.axes[0].patches][2:] == [0.0, 4.0, 16.0, 8.0]  # none yet in the whole batch
    assert png(fig).data


def test_the_other_pictures_are_drawn() -> None:
    nan = float("nan")
    assert png(accumulation.piece_errors({"FP32": {2: 1e-7, 4: 2e-7}}, title="t")).data
    assert png(accumulation.wrong_factor([0.1, 1, 10], {"SGD": [0.1, 1, 10]}, 8, title="t")).data
    gaps = {"short": [-0.3, -0.2], "long": [0.05, -0.01]}
    assert png(accumulation.by_length(gaps, {"short": 10, "long": 2000}, title="t")).data
    assert png(batch_size.doublings({"1": [5.0, 4.0, nan], "2": [5.0]}, {"1": 10, "2": 20}, title="t")).data


def test_calculator(capsys: pytest.CaptureFixture[str]) -> None:
    """Its goals can be reached, its presets give Llama 3's batch, its extremes are drawn, and it answers at once."""
    made = batch_calculator()
    assert "How large is the batch" in capsys.readouterr().out
    assert not made.reached
    before = made.view.data
    made.set(accumulation=16)
    assert made.view.data["tokens"] == 2 * before["tokens"] and made.view.data["updates"] == before["updates"] / 2
    for preset in made.presets[1:]:
        made.set(**{**made.defaults, **preset.values})
        assert made.view.data["tokens"] == PUBLISHED["Llama 3 405B, 2,048 x 8,192"]
    assert not made.reached
    made.set(**{**made.defaults, "micro_batch": 16, "accumulation": 98, "data_parallel": 1})
    made.set(**{**made.defaults, "data_parallel": 1, "tensor": 16, "pipeline": 32, "context_parallel": 2})
    made.set(**{**made.defaults, "micro_batch": 64, "accumulation": 128, "data_parallel": 512})
    assert made.reached == {0, 1, 2}
    for control in made.controls:
        edges = getattr(control, "options", None) or (control.min, control.max)
        for value in edges:
            made.set(**{**made.defaults, control.name: value})
            assert not made.error
    ends = {c.name: c.options[-1] if hasattr(c, "options") else c.max for c in made.controls}
    made.set(**ends)
    assert not made.error
    made.set(**{c.name: c.options[0] if hasattr(c, "options") else c.min for c in made.controls})
    assert not made.error
    times = []
    for count in (2, 3, 4):
        start = time.process_time()
        made.set(micro_batch=count)
        times.append(time.process_time() - start)
    assert min(times) < 1.0  # 0.1 s on an idle machine
    print(f"{min(times):.3f} s a move")
