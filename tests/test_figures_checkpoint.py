"""Pictures and the explorer of chapter 6: what they write, at ordinary settings and at the edges."""

import time

import pytest
import torch

from course_lib import anatomy
from course_lib.figures import checkpoint as figures
from course_lib.figures.checkpoint_bytes import bytes_of_a_part
from course_lib.figures.style import png
from course_lib.store import write_folder
from course_lib.widgets import checkpoint_explorer


def words(fig) -> list[str]:
    return [text.get_text() for ax in fig.axes for text in ax.texts]


@pytest.mark.parametrize(
    ("file", "name", "kind"),
    [
        ("model.safetensors", "norm.weight", "weights"),
        ("masters.safetensors", "norm.weight", "masters"),
        ("optimizer.safetensors", "norm.weight/exp_avg", "mean of gradients (m)"),
        ("optimizer.safetensors", "norm.weight/exp_avg_sq", "mean of squares (v)"),
        ("optimizer.safetensors", "norm.weight/step", "headers"),
        ("model.safetensors", "header", "headers"),
        ("meta.json", "random", "text"),
    ],
)
def test_kind_of(file: str, name: str, kind: str) -> None:
    assert figures.kind_of(file, name) == kind


def test_checkpoint_map_counts_every_byte() -> None:
    parts = [
        ("model.safetensors", "header", 10),
        ("model.safetensors", "w", 4_000),
        ("meta.json", "step", 14),
        ("meta.json", "random", 6_000),
        ("meta.json", "an entry of tomorrow", 9),
    ]
    fig = figures.checkpoint_map(parts, title="t", row=[("1", "a")])
    assert words(fig)[:2] == ["4.0 kB", "6.0 kB"]
    assert "6,000 bytes: what dropout draws next" in words(fig) and "9 bytes: an entry of tomorrow" in words(fig)
    assert png(fig).data


def test_left_out_draws_no_gap_of_zero_and_names_what_is_exact() -> None:
    gaps = {"no schedule": [0.0, 1e-4, 1e-3], "full resume": [0.0, 0.0, 0.0]}
    fig = figures.left_out({"never stopped": [3.0] * 13, "no schedule": [3.0] * 3}, gaps, 10, title="t")
    line = fig.axes[1].get_lines()[0]
    assert list(line.get_xdata()) == [10, 11, 12] and line.get_ydata()[0] != line.get_ydata()[0]
    assert "exactly 0: full resume" in words(fig)
    assert "the other 2" not in words(fig) and words(fig)[:2] == ["never stopped", "no schedule"]
    assert png(fig).data


def test_stopped_saves_prices_and_differences() -> None:
    fig = figures.stopped_saves({"a": ["previous", "broken"], "b": ["previous", "mixed", "new"]}, title="t")
    assert words(fig) == ["p", "×", "p", "?", "n"]
    assert "1,500 ms" in words(figures.price_of_a_save({"write": 0.1, "save": 1.5}, title="t"))
    assert words(figures.differences_at_the_end({"same": (0.0, False), "rate": (3e-4, True)}, title="t")) == [
        "  0: every bit",
        "  3.0e-04",
    ]
    assert png(figures.differences_at_the_end({"same": (0.0, False)}, title="t")).data


def test_explorer_shows_every_byte_of_every_part(tmp_path, capsys) -> None:
    tensors = {"w": torch.arange(200.0), "half": torch.ones(3, dtype=torch.bfloat16), "n": torch.tensor(7)}
    state = {"w/exp_avg": torch.zeros(5), "w/exp_avg_sq": torch.zeros(5), "w/step": torch.tensor(3.0)}
    content = {
        "model.safetensors": anatomy.tensor_file(tensors),
        "optimizer.safetensors": anatomy.tensor_file(state),
        "meta.json": [b'{"step": 3, "stream": {"step": 3}, "random": {"cpu": "AAAA"}}'],
    }
    folder = write_folder(tmp_path / "step-000003", content)
    made = checkpoint_explorer(folder)
    assert "byte by byte" in capsys.readouterr().out
    parts = anatomy.contents(folder)
    for file in {part.file for part in parts}:
        own = [part for part in parts if part.file == file]
        for number, part in enumerate(own):
            for through in (0, 37, 100):
                made.set(file=file, part=number, through=through)
                assert not made.error
                assert made.view.data == {"file": file, "name": part.name}
        made.set(part=made.controls[1].max)
        assert not made.error and made.view.data["name"] == own[-1].name
    assert made.reached == {0, 1, 2}
    made.set(file="model.safetensors", part=[p.name for p in parts if p.file == "model.safetensors"].index("w"))
    times = []
    for through in (10, 20, 30):
        start = time.process_time()
        made.set(through=through)
        times.append(time.process_time() - start)
    assert min(times) < 0.1


def test_explorer_reads_numbers_and_the_last_bytes(tmp_path) -> None:
    tensors = {"w": torch.arange(200.0)}
    state = {"w/step": torch.tensor(3.0)}
    content = {"model.safetensors": anatomy.tensor_file(tensors), "optimizer.safetensors": anatomy.tensor_file(state)}
    made = checkpoint_explorer(write_folder(tmp_path / "step-000003", content))
    made.set(file="model.safetensors", part=2, through=100)
    assert made.view.picture.split("</pre>")[0].split()[-4:] == ["196", "197", "198", "199"]
    fig = bytes_of_a_part(
        [("headers", 8), ("weights", 800)], 1, 100, bytes(range(20)), ["a row", "another"], title="t", subtitle="s"
    )
    assert words(fig) == [
        f"{100:>9,}\n{116:>9,}",
        "00 01 02 03  04 05 06 07  08 09 0a 0b  0c 0d 0e 0f \n10 11 12 13 ",
        "a row\nanother",
    ]
    assert png(fig).data
