"""What a checkpoint holds, what refuses to load, and how a damaged one says so."""

import io
import json
import pickle
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from toys import toy_config, toy_corpus

from course_lib import checkpoint
from course_lib.anatomy import contents as contents_of
from course_lib.checkpoint import RandomState
from course_lib.config import OptimConfig
from course_lib.data import load_text
from course_lib.errors import CheckpointError, CourseError
from course_lib.events import Event, Resumed, Started
from course_lib.files import Files
from course_lib.store import write_folder
from course_lib.tokenizer import load_tokenizer
from course_lib.trainer import Trainer, saved_config

CORPUS = toy_corpus()


def train(folder: Path | None, steps: int, **changes: Any) -> Trainer:
    trainer = Trainer(toy_config(**changes), corpus=CORPUS)
    trainer.run(steps)
    if folder is not None:
        trainer.save(folder)
    return trainer


def test_a_checkpoint_holds_tensors_and_json_and_nothing_else(tmp_path: Path) -> None:
    trainer = train(tmp_path / "a", 3)
    assert sorted(path.name for path in (tmp_path / "a").iterdir()) == [
        "COMPLETE.json",
        "meta.json",
        "model.safetensors",
        "optimizer.safetensors",
        "tokenizer.json",
    ]
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    meta = checkpoint.read_meta(tmp_path / "a")
    assert meta["format"] == 2 and meta["step"] == 3 and meta["precision"] == "fp32" and meta["scaler"] is None
    assert meta["versions"]["torch"] == torch.__version__ and meta["machine"]["threads"] >= 1
    assert meta["machine"]["capability"] == torch.backends.cpu.get_cpu_capability()
    assert meta["config"]["batch"] == 8 and set(meta["random"]) >= {"cpu"} and meta["stream"]["step"] == 3
    assert meta["model"]["config"]["d_model"] == 16 and meta["tokenizer"]["name"] == "bytes"
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


class Full(Files):
    """The disk is full when the marker is to be written."""

    def write(self, path: Path, pieces: Iterable[bytes | memoryview]) -> None:
        if path.name == "COMPLETE.json":
            raise OSError(28, "No space left on device")
        super().write(path, pieces)


def test_a_save_that_fails_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    trainer = train(tmp_path / "a", 2)
    before = (tmp_path / "a" / "meta.json").read_bytes()
    trainer.run(1)
    trainer.files = Full()
    with pytest.raises(CheckpointError, match="space"):
        trainer.save(tmp_path / "a")
    assert (tmp_path / "a" / "meta.json").read_bytes() == before
    assert list(tmp_path.iterdir()) == [tmp_path / "a"]
    assert Trainer.resume(tmp_path / "a", corpus=CORPUS).step == 2


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
        (folder / "COMPLETE.json").unlink()
        (folder / "meta.json").write_text('{"format": 1}', encoding="utf-8")
    elif how == "no marker":
        (folder / "COMPLETE.json").unlink()


@pytest.mark.parametrize("how", ["no weights", "cut weights", "no JSON", "other format", "no marker"])
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
        ({"optim": OptimConfig(lr=3e-3, warmup_steps=5)}, "lr is 0.01"),
        ({"precision": "fp16"}, "fp16"),
        ({"precision": "bf16", "weights": "bf16"}, "master"),
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


# ------------------------------------------------------------------------------------------------------ no pickle


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> Any:
        return Path.touch, (self.target,)


def bombs(target: Path) -> dict[str, bytes]:
    """A pickle bomb as plain pickle, as torch's zip file, and as torch's old file."""
    out = {"pickle": pickle.dumps(Bomb(target))}
    for name, zipped in (("zip", True), ("old", False)):
        buffer = io.BytesIO()
        torch.save({"state": Bomb(target)}, buffer, _use_new_zipfile_serialization=zipped)
        out[name] = buffer.getvalue()
    return out


@pytest.mark.parametrize("kind", ["pickle", "zip", "old"])
@pytest.mark.parametrize("signed", [False, True], ids=["found by its checksum", "with the right checksum"])
def test_a_pickle_bomb_in_every_file_never_goes_off(kind: str, signed: bool, tmp_path: Path) -> None:
    """First in one file after the other, then in all; also where the marker says that this is what was saved."""
    target = tmp_path / "it went off"
    bomb = bombs(target)[kind]
    (pickle.loads if kind == "pickle" else lambda data: torch.load(io.BytesIO(data), weights_only=False))(bomb)
    assert target.exists()  # so it is one
    target.unlink()
    train(tmp_path / "good", 1, precision="bf16", weights="bf16")
    everything = sorted(path.name for path in (tmp_path / "good").iterdir())
    assert len(everything) == 6
    for names in [*([name] for name in everything), everything]:
        folder = tmp_path / "bad"
        shutil.copytree(tmp_path / "good", folder)
        for name in names:
            (folder / name).write_bytes(bomb)
        if signed and "COMPLETE.json" not in names:
            contents = {path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "COMPLETE.json"}
            write_folder(folder, contents)
        if signed and names == ["tokenizer.json"]:
            with pytest.raises(CheckpointError):
                load_tokenizer(folder)
        else:
            with pytest.raises(CheckpointError):
                Trainer.resume(folder, corpus=CORPUS)
        with pytest.raises(CheckpointError):
            contents_of(folder)
        assert not target.exists()
        shutil.rmtree(folder)


def test_a_load_calls_no_unpickler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path / "a", 2)

    def never(*_: object, **__: object) -> None:
        raise AssertionError("something was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, never)
    monkeypatch.setattr(torch, "load", never)
    assert Trainer.resume(tmp_path / "a", corpus=CORPUS).step == 2


# ----------------------------------------------------------------------------------------------- what a resume says


def events_of(folder: Path, **changes: Any) -> Resumed:
    seen: list[Event] = []
    Trainer.resume(folder, corpus=CORPUS, on_event=seen.append, **changes).run(1)
    (found,) = [event for event in seen if isinstance(event, Resumed)]
    assert isinstance(seen[0], Started) and seen[1] == found
    return found


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Another meta.json, properly saved."""
    meta = checkpoint.read_meta(folder)
    change(meta)
    contents = {path.name: [path.read_bytes()] for path in folder.iterdir() if path.name != "COMPLETE.json"}
    write_folder(folder, {**contents, "meta.json": [json.dumps(meta).encode()]})


def test_a_resume_says_what_differs_and_goes_on(tmp_path: Path) -> None:
    train(tmp_path / "a", 2)
    assert events_of(tmp_path / "a") == Resumed(2, tmp_path / "a", (), ())

    def elsewhere(meta: dict[str, Any]) -> None:
        meta["versions"]["torch"] = "2.9.1"
        meta["machine"].update(capability="AVX2", threads=64)

    rewrite(tmp_path / "a", elsewhere)
    found = events_of(tmp_path / "a", steps=40)
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    assert set(found.differs) == {
        f"versions.torch was 2.9.1, is {torch.__version__}",
        f"machine.capability was AVX2, is {capability}",
        f"machine.threads was 64, is {threads}",
        "config.steps was 30, is 40",
    }


def test_a_resume_says_what_it_skipped(tmp_path: Path) -> None:
    out = tmp_path / "out"
    trainer = Trainer(toy_config(out=out, checkpoint_every=2), corpus=CORPUS)
    trainer.run(6)
    assert [path.name for path in sorted(out.glob("step-*"))] == ["step-000002", "step-000004", "step-000006"]
    damage(out / "step-000006", "cut weights")
    damage(out / "step-000004", "no marker")
    found = events_of(out)
    assert found.step == 2 and found.path == out / "step-000002"
    assert found.skipped[0].startswith("step-000006: corrupt: optimizer.safetensors has 100 bytes")
    assert found.skipped[1].startswith("step-000004: incomplete: no COMPLETE.json")
    line = [json.loads(line) for line in (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [one["skipped"] for one in line if one["event"] == "resumed"] == [list(found.skipped)]


def test_the_run_keeps_the_last_ones(tmp_path: Path) -> None:
    Trainer(toy_config(out=tmp_path, checkpoint_every=5, keep_checkpoints=2), corpus=CORPUS).run()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000025", "step-000030"]
