"""The trainer on ranks against one process: losses step for step, norms, weights, traffic, and what ranks agree on."""

import functools
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from rank_runs import CORPUS, config_of, numbers, on_ranks, records, trained, whole
from torch import nn
from toys import toy_corpus

from course_lib.config import DataConfig, OptimConfig, TrainConfig
from course_lib.data import BatchStream, Corpus
from course_lib.errors import ConfigError, CourseError
from course_lib.model import GPT
from course_lib.parallel.replicas import OneProcess
from course_lib.parallel.traffic import count_traffic
from course_lib.trainer import Trainer, train_rank

STEPS = 6
KINDS = ["ddp", "fsdp"]

# Sums of FP32 numbers in another order (ranks, buckets, shards): measured at most 5e-7 in the loss and 2e-7 of a norm.
# A gradient that is halved (a mean instead of a sum) changes the norm by half; a missing micro-batch by a quarter.
# Weights are compared as whole matrices: AdamW turns the rounding of a gradient near 0 into a step of another sign.
FP32 = {"loss": 3e-6, "norm": 5e-6, "weights": 5e-6}
# In 16 bits, a weight that differs in the last bit of FP32 may be rounded to the neighbour, 2^-9 of it away.
BF16 = {"loss": 2e-4, "norm": 1e-3, "weights": 5e-3}
# Gradients in BF16, too: each is rounded to 2^-9, and again in every sum of two micro-batches or ranks.
BF16_WEIGHTS = {"loss": 2e-3, "norm": 5e-3, "weights": 5e-2}

WAYS: dict[str, tuple[dict[str, Any], dict[str, float]]] = {
    "fp32": ({}, FP32),
    "bf16": ({"precision": "bf16"}, BF16),
    "bf16 weights": ({"precision": "bf16", "weights": "bf16"}, BF16_WEIGHTS),
    "recomputed": ({"activation_checkpointing": "all"}, FP32),
}


@functools.cache
def alone(way: str, unequal: bool) -> dict[str, Any]:
    return trained(config_of(**WAYS[way][0]), STEPS, unequal)


def compare(every: list[dict[str, Any]], one: dict[str, Any], limits: dict[str, float]) -> None:
    """All ranks say the same, bit by bit; and rank 0's numbers are those of one process within the limits."""
    first = every[0]
    for other in every[1:]:
        assert other["records"] == first["records"] and other["validation"] == first["validation"]
        assert other["sample"] == first["sample"]
        assert all(np.array_equal(other["weights"][name], value) for name, value in first["weights"].items())
    for mine, wanted in zip(first["records"], one["records"], strict=True):
        assert mine[0] == pytest.approx(wanted[0], abs=limits["loss"])
        assert mine[1] == pytest.approx(wanted[1], rel=limits["norm"])
        assert mine[2:] == wanted[2:]  # learning rate, valid tokens of the global batch, scale, skipped
    for name, value in one["weights"].items():
        apart = np.linalg.norm(first["weights"][name] - value) / np.linalg.norm(value)
        assert apart <= limits["weights"], (name, apart)
    assert first["validation"].tokens == one["validation"].tokens
    assert first["validation"].nats_per_token == pytest.approx(one["validation"].nats_per_token, abs=limits["loss"])


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("parallel", KINDS)
def test_step_for_step_the_run_of_one_process_with_unequal_tokens(parallel: str, ranks: int) -> None:
    """Accumulated, clipped (the norms are above 1), and no rank has as many valid tokens as another."""
    one = alone("fp32", True)
    assert max(record[1] for record in one["records"]) > 1 and len({record[3] for record in one["records"]}) > 1
    every = on_ranks(ranks, trained, config_of(parallel), STEPS, unequal=True)
    compare(every, one, FP32)
    assert every[0]["sample"] == one["sample"]


@pytest.mark.parametrize("way", ["bf16", "bf16 weights", "recomputed"])
@pytest.mark.parametrize("parallel", KINDS)
def test_precision_and_recomputation_are_those_of_one_process(parallel: str, way: str) -> None:
    changes, limits = WAYS[way]
    compare(on_ranks(2, trained, config_of(parallel, **changes), STEPS), alone(way, False), limits)


def overflowing(config: TrainConfig) -> list[tuple[Any, ...]]:
    trainer = Trainer(config, corpus=CORPUS)
    trainer.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**22, growth_interval=2)
    return numbers(records(trainer, 10))


@pytest.mark.parametrize("parallel", KINDS)
def test_fp16_ranks_skip_the_same_steps(parallel: str) -> None:
    """A scale so large that gradients overflow, each in one rank's part: every rank lowers it after the same steps."""
    one = overflowing(config_of(precision="fp16"))
    every = on_ranks(2, overflowing, config_of(parallel, precision="fp16"))
    assert str(every[0]) == str(every[1])  # a norm may be nan
    skipped = [record[5] for record in every[0]]
    assert True in skipped and False in skipped
    assert [record[4:] for record in every[0]] == [record[4:] for record in one]
    assert [record[0] for record in every[0]] == pytest.approx([record[0] for record in one], abs=1e-4)


def counted(config: TrainConfig) -> dict[str, int]:
    """The collectives of the third step (DDP settles its buckets in the first)."""
    trainer = Trainer(config, corpus=CORPUS)
    records(trainer, 2)
    with count_traffic() as traffic:
        records(trainer, 1)
    return {kind: traffic.count(kind) for kind in ("all_reduce", "all_gather", "reduce_scatter", "broadcast")}


@pytest.mark.parametrize("parallel", KINDS)
def test_accumulation_synchronises_once(parallel: str) -> None:
    """Four passes send what one pass sends: gradients once, the loss once; FSDP also gathers in each pass."""
    once, four = (on_ranks(2, counted, config_of(parallel, micro_batch=micro))[0] for micro in (None, 1))
    if parallel == "ddp":
        assert four == once == {"all_reduce": 1 + 1, "all_gather": 0, "reduce_scatter": 0, "broadcast": 0}
        return
    groups = 2 + 1  # blocks and the rest of the model
    # The norm and the loss; each block gathered in forward and in backward, the rest once for both.
    assert once == {"all_reduce": 2, "all_gather": 2 * groups - 1, "reduce_scatter": groups, "broadcast": 0}
    assert four == {**once, "all_gather": 4 * (2 * groups - 1)}


@pytest.mark.parametrize("micros", [1, 2])
@pytest.mark.parametrize("world", [1, 2, 4])
def test_ranks_and_passes_take_the_slices_of_the_stream(world: int, micros: int) -> None:
    stream = BatchStream(CORPUS.train, 16, 8)
    inputs, targets = stream.global_batch(3)
    for rank in range(world):
        ranks = OneProcess("cpu")
        ranks.rank, ranks.world_size = rank, world
        for micro in range(micros):
            found = ranks.micro_batch(inputs, targets, micro, micros)
            for mine, wanted in zip(found, stream.slice(3, rank, world, micro, micros), strict=True):
                assert np.array_equal(mine, wanted) and len(mine) == 8 // (world * micros)


def own_start(config: TrainConfig) -> list[np.ndarray]:
    """The whole weights of a trainer whose model was made from another seed on each rank."""
    trainer = Trainer(config, model=GPT(config.model_config(257), seed=1 + dist.get_rank()), corpus=CORPUS)
    return [whole(p).numpy() for p in trainer.model.parameters()]


@pytest.mark.parametrize("parallel", KINDS)
def test_a_model_of_your_own_starts_as_rank_0s(parallel: str) -> None:
    config = config_of(parallel)
    wanted = [p.detach().numpy() for p in GPT(config.model_config(257), seed=1).parameters()]
    for found in on_ranks(2, own_start, config):
        assert all(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))


def dropped(config: TrainConfig) -> dict[str, Any]:
    return trained(config, 3)


@pytest.mark.parametrize("parallel", KINDS)
def test_ranks_drop_out_differently_and_a_run_repeats(parallel: str) -> None:
    first, again = (on_ranks(2, dropped, config_of(parallel, model={"dropout": 0.2})) for _ in range(2))
    assert [one["records"] for one in first] == [one["records"] for one in again]
    assert first[0]["random"] != first[1]["random"]


# ---------------------------------------------------------------- a whole run


def reporting(config: TrainConfig, stop_at: int | None = None) -> tuple[Any, int]:
    """A run in which rank 1 alone is asked to stop after some step; its result, and how many events came."""
    events: list[Any] = []
    trainer = Trainer(config, corpus=CORPUS, on_event=events.append)
    part = trainer.parts.clip

    def clip() -> torch.Tensor:
        if trainer.step + 1 == stop_at and trainer.ranks.rank == 1:
            trainer._interrupt.set = True
        return part()

    trainer.parts.clip = clip
    return trainer.run(), len(events)


@pytest.mark.parametrize("parallel", KINDS)
def test_rank_0_reports_and_all_stop_after_the_same_step(parallel: str, tmp_path: Path) -> None:
    # A validation right before each save: FSDP2 leaves the root's weights gathered after it.
    config = config_of(parallel, out=tmp_path / "out", checkpoint_every=2, keep_checkpoints=2, val_every=2)
    (first, events), (second, none) = on_ranks(2, reporting, config, 5)
    assert events > 5 and none == 0
    assert first.interrupted and second.interrupted and first.steps == second.steps == 5
    assert numbers(first.history) == numbers(second.history) and first.validations == second.validations
    folders = sorted(path.name for path in (tmp_path / "out").glob("step-*"))
    assert folders == ["step-000004", "step-000005"]
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text("utf-8").splitlines()]
    assert [line["event"] for line in lines].count("stepped") == 5 and len(lines) == events
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (first, _), _ = on_ranks(2, reporting, config_of(parallel, resume=tmp_path / "out", steps=30))
    assert first.steps == 30 and not first.interrupted and first.sample is not None


def test_train_rank_is_what_a_notebook_runs() -> None:
    config = config_of("fsdp", steps=8)
    one = train_rank(config_of(steps=8), CORPUS)
    for result in on_ranks(2, train_rank, config, CORPUS):
        assert result.sample == one.sample and result.parameters == one.parameters
        assert [r.loss for r in result.history] == pytest.approx([r.loss for r in one.history], abs=FP32["loss"])


# ---------------------------------------------------------------- what cannot run


def refused(make: Any) -> str:
    """What a trainer says no to, on this rank."""
    try:
        make()
    except ConfigError as error:
        return str(error)
    return "nothing"


def custom(kind: str) -> nn.Module:
    shape = config_of().model_config(257)
    model = GPT(shape)
    if kind == "batch norm":
        model.extra = nn.BatchNorm1d(4)
    if kind == "shared":
        model.blocks[1].attention.out.weight = model.blocks[0].attention.out.weight
    if kind == "half":
        model.blocks[0].attention.out.to(torch.bfloat16)
    return model


def other_text() -> Corpus:
    return toy_corpus(seed=dist.get_rank())


def text_on_one_node(folder: Path) -> None:
    """Rank 1 does not find its text."""
    path = folder / f"text-{dist.get_rank()}.txt"
    Trainer(config_of("ddp", data=DataConfig(tokenizer="bytes", text=path)))


def every_refusal(folder: Path) -> dict[str, str]:
    plain = {"micro_batch": None, "steps": 10, "optim": OptimConfig(warmup_steps=1)}
    cases: dict[str, Any] = {
        "batch": lambda: Trainer(config_of("ddp", **{**plain, "batch": 7}), corpus=CORPUS),
        "micro": lambda: Trainer(config_of("fsdp", batch=8, micro_batch=8), corpus=CORPUS),
        "batch norm": lambda: Trainer(config_of("ddp"), model=custom("batch norm"), corpus=CORPUS),
        "shared": lambda: Trainer(config_of("fsdp"), model=custom("shared"), corpus=CORPUS),
        "half": lambda: Trainer(config_of("fsdp"), model=custom("half"), corpus=CORPUS),
        "text": lambda: Trainer(config_of("ddp"), corpus=other_text()),
        "seed": lambda: Trainer(config_of("ddp", seed=int(other_text().train[40])), corpus=CORPUS),
        "out": lambda: Trainer(config_of("ddp", out=folder / "file" / "x"), corpus=CORPUS).run(),
    }
    said = {name: refused(make) for name, make in cases.items()}
    try:
        text_on_one_node(folder)
    except CourseError as error:
        said["one node"] = str(error)
    return said


def test_what_ranks_cannot_run_is_the_same_line_on_all(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder", encoding="utf-8", newline="\n")
    (tmp_path / "text-0.txt").write_text("a text. " * 400, encoding="utf-8", newline="\n")
    first, second = on_ranks(2, every_refusal, tmp_path)
    assert first == second
    wanted = {
        "batch": "batch=7 does not divide into 2 ranks; try batch=6 or batch=8",
        "micro": "batch=8 does not divide into 2 ranks x micro_batch=8; try batch=16, or micro_batch=4",
        "batch norm": "BatchNorm1d keeps statistics",
        "shared": "blocks.1.attention.out.weight is shared between blocks",
        "half": "blocks.0.attention.out.weight is bfloat16",
        "text": "the digest of the training text is",
        "seed": "seed is ",
        "out": "cannot be written",
        "one node": "rank 1: ",
    }
    for name, words in wanted.items():
        assert words in first[name] and "\n" not in first[name], (name, first[name])
    assert "text-1.txt" in first["one node"]


def test_without_ranks_the_line_says_how_to_start_them() -> None:
    with pytest.raises(ConfigError, match="torchrun --nproc-per-node 2 -m course_lib train --parallel fsdp"):
        Trainer(config_of("fsdp"), corpus=CORPUS)
    with pytest.raises(ConfigError, match="compile=False"):
        config_of("ddp", compile=True)
