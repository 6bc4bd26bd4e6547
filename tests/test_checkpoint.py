"""A run that was stopped and resumed is, bit by bit, the run that never stopped."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import toy_config, toy_corpus

from course_lib import checkpoint
from course_lib.checkpoint import RandomState
from course_lib.config import OptimConfig
from course_lib.data import load_text
from course_lib.errors import CheckpointError, CourseError
from course_lib.trainer import Trainer, saved_config

CORPUS = toy_corpus()


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def same(first: Trainer, second: Trainer) -> bool:
    return all(torch.equal(a, b) for a, b in zip(weights(first), weights(second), strict=True))


def train(folder: Path | None, steps: int, **changes: Any) -> Trainer:
    trainer = Trainer(toy_config(**changes), corpus=CORPUS)
    trainer.run(steps)
    if folder is not None:
        trainer.save(folder)
    return trainer


WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "accumulation": {"micro_batch": 2},
    "dropout": {"model": {"dropout": 0.1}},
    "bf16": {"precision": "bf16"},
    "all": {"precision": "bf16", "micro_batch": 2, "model": {"dropout": 0.1, "tie_embeddings": False}},
}


@pytest.mark.parametrize("way", WAYS)
def test_twenty_steps_and_ten_are_thirty(way: str, tmp_path: Path) -> None:
    straight = Trainer(toy_config(**WAYS[way]), corpus=CORPUS)
    losses = [record.loss for record in straight.run().history]
    train(tmp_path / "a", 20, **WAYS[way])
    torch.rand(3)  # the global stream is somewhere else by now
    resumed = Trainer.resume(tmp_path / "a", corpus=CORPUS)
    assert resumed.step == 20
    assert [record.loss for record in resumed.run().history] == losses[20:]
    assert resumed.step == 30 and same(resumed, straight)


def test_two_resumes_in_a_row(tmp_path: Path) -> None:
    way = WAYS["all"]
    straight = train(None, 30, **way)
    train(tmp_path / "a", 7, **way)
    second = Trainer.resume(tmp_path / "a", corpus=CORPUS)
    second.run(9)
    second.save(tmp_path / "b")
    third = Trainer.resume(tmp_path / "b", corpus=CORPUS)
    assert third.run().steps == 30 and same(third, straight)


@pytest.mark.parametrize("part", ["optimizer", "scheduler", "stream", "random"])
def test_every_part_is_needed(part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave one part out of the restoring: the thirty steps come out different."""
    way = {"model": {"dropout": 0.1}}
    straight = train(None, 30, **way)
    train(tmp_path / "a", 20, **way)
    if part == "optimizer":
        monkeypatch.setattr(checkpoint, "load_optimizer", lambda *_: None)
    meta = json.loads((tmp_path / "a" / "meta.json").read_text(encoding="utf-8"))
    fresh = Trainer(toy_config(**way), corpus=CORPUS)
    if part == "scheduler":
        meta["scheduler"] = {k: v for k, v in fresh.scheduler.state_dict().items() if k != "lr_lambdas"}
    if part == "random":
        meta["random"] = fresh.random.state_dict()
    if part == "stream":
        meta["stream"]["step"] = 19
    (tmp_path / "a" / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    resumed = Trainer.resume(tmp_path / "a", corpus=CORPUS)
    resumed.run(10)
    assert not same(resumed, straight)


def test_a_checkpoint_holds_tensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    trainer = train(tmp_path / "a", 3)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "meta.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    meta = checkpoint.read_meta(tmp_path / "a")
    assert meta["step"] == 3 and meta["torch"] == torch.__version__ and meta["precision"] == "fp32"
    assert meta["config"]["batch"] == 8 and meta["threads"] >= 1 and set(meta["random"]) >= {"cpu"}
    size = (tmp_path / "a" / "model.safetensors").stat().st_size
    assert size < 4 * trainer.parameters + 3000  # the tied matrix is there once


def test_the_newest_checkpoint_is_found_by_number(tmp_path: Path) -> None:
    train(tmp_path / "step-000009", 1)
    for name in ("step-1000000", "step-200000", "step-new"):
        shutil.copytree(tmp_path / "step-000009", tmp_path / name)
    assert checkpoint.find(tmp_path).name == "step-1000000"
    assert checkpoint.find(tmp_path / "step-000009").name == "step-000009"
    with pytest.raises(CheckpointError, match="no checkpoint"):
        checkpoint.find(tmp_path / "nothing")


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = train(tmp_path / "a", 2)
    before = (tmp_path / "a" / "meta.json").read_bytes()
    trainer.run(1)

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="space"):
        trainer.save(tmp_path / "a")
    assert (tmp_path / "a" / "meta.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def test_saving_again_replaces(tmp_path: Path) -> None:
    trainer = train(tmp_path / "a", 2)
    trainer.run(1)
    trainer.save(tmp_path / "a")
    assert checkpoint.read_meta(tmp_path / "a")["step"] == 3
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]


def damage(folder: Path, how: str) -> None:
    if how == "no weights":
        (folder / "model.safetensors").unlink()
    elif how == "cut weights":
        path = folder / "optimizer.safetensors"
        path.write_bytes(path.read_bytes()[:100])
    elif how == "no JSON":
        (folder / "meta.json").write_text("{", encoding="utf-8")
    elif how == "other format":
        (folder / "meta.json").write_text('{"format": 99}', encoding="utf-8")


@pytest.mark.parametrize("how", ["no weights", "cut weights", "no JSON", "other format"])
def test_a_damaged_checkpoint_is_one_line(how: str, tmp_path: Path) -> None:
    train(tmp_path / "a", 1)
    damage(tmp_path / "a", how)
    with pytest.raises(CheckpointError) as caught:
        Trainer.resume(tmp_path / "a", corpus=CORPUS)
    assert str(tmp_path) in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 4}, "batch"),
        ({"seed": 1}, "seed"),
        ({"model": toy_config(model={"d_model": 32}).model}, "attention.out.weight"),
        ({"model": toy_config(model={"n_layers": 1}).model}, "blocks.1"),
    ],
)
def test_another_run_does_not_take_it(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    train(tmp_path / "a", 1)
    with pytest.raises(CourseError, match=says):
        Trainer(saved_config(tmp_path / "a", **changes), corpus=CORPUS)


def test_another_text_does_not_go_on(tmp_path: Path) -> None:
    train(tmp_path / "a", 1)
    with pytest.raises(CheckpointError, match="same text"):
        Trainer.resume(tmp_path / "a", corpus=toy_corpus(seed=5))


def test_resume_may_change_what_does_not_touch_the_past(tmp_path: Path) -> None:
    train(tmp_path / "a", 20)
    longer = Trainer.resume(tmp_path / "a", corpus=CORPUS, steps=40, val_every=5)
    assert longer.run().steps == 40


def test_a_text_run_resumes_with_its_own_tokenizer(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"Line {i}: " + "the cat sat on the mat. " * (i % 7 + 3) for i in range(90)), "utf-8")
    assert len(load_text(text)) > 1
    from course_lib.config import DataConfig

    config = toy_config(data=DataConfig(text=text, vocab_size=300), out=tmp_path / "out", optim=OptimConfig())
    trainer = Trainer(config)
    trainer.run(3)
    resumed = Trainer.resume(tmp_path / "out")
    assert resumed.step == 3 and resumed.config.out == tmp_path / "out"
    assert resumed.corpus.tokenizer.decode(resumed.corpus.train) == trainer.corpus.tokenizer.decode(
        trainer.corpus.train
    )


def test_any_optimizer_and_module_survive(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path / "a", model=model, optimizer=optimizer, meta={})
    other = torch.nn.Sequential(torch.nn.Embedding(10, 4), torch.nn.Linear(4, 10))
    fresh = torch.optim.SGD(other.parameters(), lr=0.5)
    checkpoint.load_model(tmp_path / "a", other)
    checkpoint.load_optimizer(tmp_path / "a", other, fresh)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert fresh.param_groups[0]["lr"] == 0.1 and fresh.param_groups[0]["momentum"] == 0.9
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(optimizer.state[a]["momentum_buffer"], fresh.state[b]["momentum_buffer"])


def test_a_random_state_is_a_stream_beside_the_global_one() -> None:
    ours, twin = RandomState(0, "training", "cpu"), RandomState(0, "training", "cpu")
    outside = torch.get_rng_state()
    with ours.use():
        first = torch.rand(3)
    assert torch.equal(outside, torch.get_rng_state())
    with twin.use():
        assert torch.equal(first, torch.rand(3))
    twin.load_state_dict(ours.state_dict())
    with ours.use():
        second = torch.rand(3)
    with twin.use():
        assert torch.equal(second, torch.rand(3)) and not torch.equal(first, second)
