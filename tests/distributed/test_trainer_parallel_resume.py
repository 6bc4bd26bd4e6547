"""Checkpoints of ranks: resumed bit by bit on as many, and step for step on another number; written together or not."""

import errno
import functools
import json
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from rank_runs import CORPUS, config_of, numbers, on_ranks, records, resumed, saved, whole

from course_lib import store
from course_lib.checkpoint import find, look
from course_lib.config import TrainConfig
from course_lib.errors import CheckpointError, CourseError, RankError
from course_lib.files import Files
from course_lib.trainer import Trainer

LAYOUTS = [("none", 1), ("ddp", 2), ("fsdp", 2), ("ddp", 4), ("fsdp", 4)]

# As in test_trainer_parallel.py: FP32 sums in another order, 16-bit weights rounded to the neighbour.
# FP16 has three bits more than BF16, so an eighth of its tolerance; over all layouts it came to 1.2e-5.
LOSS = {"fp32": 3e-6, "bf16": 2e-4, "fp16": 2.5e-5, "bf16 weights": 5e-3}
WAYS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16 weights": {"precision": "bf16", "weights": "bf16"},
}


@functools.cache
def alone(way: str) -> list[tuple[Any, ...]]:
    """Steps 4 to 7 of the run that one process does without a stop."""
    return numbers(records(Trainer(config_of(**WAYS[way]), corpus=CORPUS), 8))[4:]


def goes_on(way: str, there: tuple[str, int], here: tuple[str, int], folder: Path) -> None:
    """Saved at step 4 in one layout, resumed in another: losses are those of one process."""
    name = folder / f"{there[0]}-{there[1]}"
    if not name.exists():
        on_ranks(there[1], saved, config_of(there[0], **WAYS[way]), 4, name)
    every = on_ranks(here[1], resumed, name, 4, parallel=here[0])
    losses = [[record[0] for record in one["after"]] for one in every]
    assert all(one == losses[0] for one in losses)
    assert losses[0] == pytest.approx([record[0] for record in alone(way)], abs=LOSS[way])
    assert [r[2:] for r in every[0]["after"]] == [r[2:] for r in alone(way)]
    told = " ".join(every[0]["told"].differs)
    assert ("ranks was" in told) == (there[1] != here[1]) and ("config.parallel was" in told) == (there[0] != here[0])


@pytest.mark.parametrize(
    ("there", "here"),
    [
        (("fsdp", 2), ("none", 1)),
        (("fsdp", 2), ("fsdp", 4)),
        (("fsdp", 4), ("fsdp", 2)),
        (("none", 1), ("fsdp", 2)),
        (("fsdp", 2), ("ddp", 2)),
        (("ddp", 4), ("fsdp", 2)),
        (("ddp", 2), ("none", 1)),
    ],
    ids=lambda layout: "".join(map(str, layout)),
)
def test_another_number_of_ranks_goes_on_with_the_same_losses(
    there: tuple[str, int], here: tuple[str, int], tmp_path: Path
) -> None:
    goes_on("fp32", there, here, tmp_path)


def master_bits(config: TrainConfig, save: Path | None = None, resume: Path | None = None) -> dict[str, Any]:
    """What the optimizer updates, whole and in FP32, and the weights that the model computes with."""
    if resume is None:
        trainer = Trainer(config, corpus=CORPUS)
        records(trainer, 3)
    else:
        trainer = Trainer.resume(resume, corpus=CORPUS, parallel=config.parallel)
    if save is not None:
        trainer.save(save)
    trainer.ranks.drop_gathered()
    masters = {name: whole(tensor) for name, tensor in trainer.trained.items()}
    weights = {name: whole(p).to(torch.bfloat16) for name, p in trainer.model.named_parameters()}
    assert all(torch.equal(weights[name], master.to(torch.bfloat16)) for name, master in masters.items())
    return {name: master.float().tolist() for name, master in masters.items()}


@pytest.mark.parametrize(("there", "here"), [("fsdp", "none"), ("none", "fsdp")])
def test_masters_become_shards_and_shards_masters(there: str, here: str, tmp_path: Path) -> None:
    """Bit by bit: what fell below the 16-bit weights' last place is kept."""
    ranks, way = {"fsdp": 2, "none": 1}, WAYS["bf16 weights"]
    saved_bits = on_ranks(ranks[there], master_bits, config_of(there, **way), save=tmp_path / "a")[0]
    for found in on_ranks(ranks[here], master_bits, config_of(here, **way), resume=tmp_path / "a"):
        assert found == saved_bits


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", WAYS)
def test_every_layout_resumes_every_other(way: str, tmp_path: Path) -> None:
    for there in LAYOUTS:
        for here in LAYOUTS:
            goes_on(way, there, here, tmp_path)


@pytest.mark.parametrize(
    ("parallel", "way"), [("ddp", "fp16"), ("fsdp", "fp32"), ("fsdp", "fp16"), ("fsdp", "bf16 weights")]
)
def test_as_many_ranks_go_on_bit_by_bit_twice(parallel: str, way: str, tmp_path: Path) -> None:
    """With dropout and accumulation: weights, moments, scaler, cursor and each rank's random state; then once more."""
    config = config_of(parallel, model={"dropout": 0.1}, **WAYS[way])
    straight = on_ranks(2, saved, config, 4, tmp_path / "a", more=4)
    again = on_ranks(2, resumed, tmp_path / "a", 4, again=tmp_path / "b")
    for wanted, found in zip(straight, again, strict=True):
        for part in ("at save", "end"):
            there, here = wanted[part], found["at start" if part == "at save" else part]
            assert [name for name in there if there[name] != here[name]] == [], part
        assert wanted["after"] == found["after"] and found["told"].differs == ()
    assert straight[0]["end"]["random cpu"] != straight[1]["end"]["random cpu"]


def test_other_ranks_draw_from_other_streams(tmp_path: Path) -> None:
    """Dropout of the resumed ranks is neither that of the start nor the same on two of them."""
    config = config_of("ddp", model={"dropout": 0.1})
    on_ranks(2, saved, config, 4, tmp_path / "a")
    fresh = on_ranks(4, saved, config, 0, tmp_path / "b")
    every = on_ranks(4, resumed, tmp_path / "a", 0)
    streams = [str(one["at start"]["random cpu"]) for one in every]
    streams += [str(one["at save"]["random cpu"]) for one in fresh]
    assert len(set(streams)) == 8


# ---------------------------------------------------------------- the folder


def test_a_sharded_checkpoint_has_tensors_json_and_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "step-000002"
    on_ranks(2, saved, config_of("fsdp"), 2, folder)
    names = sorted(path.name for path in folder.iterdir())
    shards = [f"shard-0000{rank}-model-00001-of-00001.safetensors" for rank in (1, 2)]
    assert names == ["COMPLETE.json", "meta.json", *shards, "tokenizer.json"]
    sizes = [(folder / name).stat().st_size for name in shards]
    assert max(sizes) < 1.2 * min(sizes)  # each rank wrote its half
    meta = json.loads((folder / "meta.json").read_text("utf-8"))
    assert meta["shards"] == shards and meta["ranks"]["world_size"] == 2 and meta["step"] == 2
    assert {group["lr"] for group in meta["optimizer"]["param_groups"]} != {0.0}
    assert find(tmp_path) == folder

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a checkpoint was unpickled")

    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, forbidden)
    monkeypatch.setattr(torch, "load", forbidden)
    assert Trainer.resume(folder, corpus=CORPUS, parallel="none").step == 2


@pytest.mark.parametrize("name", ["shard-00002-model-00001-of-00001.safetensors", "meta.json"])
def test_a_damaged_shard_is_found(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "step-000002"
    on_ranks(2, saved, config_of("fsdp"), 2, folder)
    path = folder / name
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"{name} is not what was saved"):
        look(folder)


def test_a_shard_that_rank_0_cannot_see_is_no_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001"
    new = store.begin(folder)
    (new / "shard-1.safetensors").write_bytes(b"12345678")
    rows = {"shard-1.safetensors": store.file_row(new / "shard-1.safetensors"), "shard-2.safetensors": (8, "0")}
    with pytest.raises(CheckpointError, match="all nodes have to share the file system"):
        store.finish(folder, rows, {"meta.json": [b"{}"]})
    assert not folder.exists() and not new.exists()
    store.begin(folder)
    (new / "shard-1.safetensors").write_bytes(b"12345678")
    assert store.problem(new) is not None
    del rows["shard-2.safetensors"]
    assert store.problem(store.finish(folder, rows, {"meta.json": [b"{}"]})) is None


class Faulty(Files):
    """Fails, or kills its process, at the `at`-th operation."""

    def __init__(self, at: int, kill: bool) -> None:
        self.left, self.kill = at, kill

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            if self.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(errno.ENOSPC, "No space left on device")

    def sync(self, path: Path) -> None:
        self._count()
        super().sync(path)

    def write(self, path: Path, pieces: Any) -> None:
        self._count()
        super().write(path, pieces)


def breaks(parallel: str, out: Path, rank: int, at: int, kill: bool) -> tuple[str, list[str], float]:
    """A checkpoint, two more steps, and one that goes wrong on `rank`: what is said and there, and the next loss."""
    trainer = Trainer(config_of(parallel, out=out), corpus=CORPUS)
    records(trainer, 2)
    trainer.save()
    records(trainer, 2)
    if trainer.ranks.rank == rank:
        trainer.files = Faulty(at, kill)
    said = ""
    try:
        trainer.save()
    except CourseError as error:
        said = str(error)
    trainer.files = Files()
    there = sorted(path.name for path in out.iterdir())
    loss = records(trainer, 1)[0].loss
    trainer.save()
    return said, there, loss


@pytest.mark.parametrize(("parallel", "rank", "at"), [("fsdp", 0, 2), ("fsdp", 0, 3), ("fsdp", 1, 1), ("ddp", 0, 3)])
def test_a_full_disk_on_one_rank_is_one_error_on_all(parallel: str, rank: int, at: int, tmp_path: Path) -> None:
    """The run keeps its older checkpoint, can go on, and saves again."""
    first, second = on_ranks(2, breaks, parallel, tmp_path, rank, at, False)
    assert first == second
    said, there, loss = first
    assert f"rank {rank}: " in said and "No space left" in said and "\n" not in said
    assert there == ["step-000002"]
    assert find(tmp_path) == tmp_path / "step-000005"
    assert loss == pytest.approx(alone("fp32")[0][0], abs=LOSS["fp32"])


@pytest.mark.parametrize(("parallel", "rank", "at"), [("fsdp", 1, 1), ("fsdp", 0, 7), ("ddp", 0, 4)])
def test_a_rank_killed_in_a_save_leaves_the_checkpoint_before_it(
    parallel: str, rank: int, at: int, tmp_path: Path
) -> None:
    with pytest.raises(RankError, match="SIGKILL") as caught:
        on_ranks(2, breaks, parallel, tmp_path, rank, at, True)
    assert caught.value.rank == rank
    found = look(tmp_path)
    assert found.path == tmp_path / "step-000002" and [one.path.name for one in found.skipped] == ["step-000004.new"]
    every = on_ranks(2, resumed, tmp_path, 6)
    losses = [record[0] for record in every[0]["after"]]
    assert losses[2:] == pytest.approx([record[0] for record in alone("fp32")], abs=LOSS["fp32"])
    assert every[0]["told"].skipped[0].startswith("step-000004.new: incomplete")


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("parallel", ["ddp", "fsdp"])
@pytest.mark.parametrize("rank", [0, 1])
def test_killed_at_every_operation_of_a_save(parallel: str, rank: int, tmp_path: Path) -> None:
    at, done = 0, False
    while not done:
        at += 1
        out = tmp_path / str(at)
        try:
            on_ranks(2, breaks, parallel, out, rank, at, True)
            done = True
        except RankError:
            pass
        found = find(out)
        assert store.problem(found) is None and int(found.name[5:11]) >= 2
        Trainer.resume(out, corpus=CORPUS, parallel="none")
    operations = at - 1  # of this rank; under ddp rank 0 alone writes
    assert operations == 0 if (parallel, rank) == ("ddp", 1) else operations >= (8 if rank == 0 else 1)
