"""Training runs on ranks, for the trainer's tests: what each rank has to show, as plain data."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from toys import toy_config, toy_corpus

from course_lib.config import TrainConfig
from course_lib.data import IGNORE, BatchStream, Corpus
from course_lib.events import StepRecord
from course_lib.parallel.launch import run_ranks
from course_lib.step import Batch, training_step
from course_lib.trainer import Trainer

CORPUS = toy_corpus()


def config_of(parallel: str = "none", **changes: Any) -> TrainConfig:
    """Eight sequences a step; four passes of one sequence on each of two ranks, unless told otherwise."""
    return toy_config(**{"batch": 8, "micro_batch": 1, "device": "cpu", "parallel": parallel, **changes})


def uneven(trainer: Trainer, corpus: Corpus) -> None:
    """Give the rows unequal numbers of valid targets: half of the stream has few, the other half all of them.

    The batch part is replaced, too, by one that asks the stream for this rank's slice.
    """
    labels = corpus.train.copy()
    half = len(labels) // 2
    labels[:half][np.arange(half) % 5 != 0] = IGNORE
    trainer.stream = stream = BatchStream(
        corpus.train, trainer.context, trainer.config.batch, trainer.config.seed, trainer.step, labels=labels
    )
    ranks, micros = trainer.ranks, trainer.parts.micro_batches

    def batch(step: int, micro: int) -> Batch:
        valid = int((stream.global_batch(step)[1] != IGNORE).sum())
        return Batch(*stream.slice(step, ranks.rank, ranks.world_size, micro, micros), valid)

    trainer.parts.batch = batch


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor as one process has it: the parts of all ranks together."""
    found = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach().clone()


def state_of(trainer: Trainer) -> dict[str, Any]:
    """This rank's part of everything that a resume restores, bit by bit."""
    trainer.ranks.drop_gathered()
    local = {n: t.to_local() if hasattr(t, "to_local") else t for n, t in trainer.trained.items()}
    out: dict[str, Any] = {f"weights {name}": tensor.detach().clone() for name, tensor in local.items()}
    for number, entries in trainer.optimizer.state_dict()["state"].items():
        for key, value in entries.items():
            out[f"{number} {key}"] = (value.to_local() if hasattr(value, "to_local") else value).clone()
    out |= {f"random {name}": state.clone() for name, state in trainer.random.states.items()}
    return {name: value.tolist() for name, value in out.items()} | {
        "groups": trainer.optimizer.state_dict()["param_groups"],
        "scheduler": {k: v for k, v in trainer.scheduler.state_dict().items() if k != "lr_lambdas"},
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "cursor": trainer.stream.state_dict(),
    }


def records(trainer: Trainer, steps: int) -> list[StepRecord]:
    """Train on."""
    trainer.model.train()
    return [training_step(trainer.parts, trainer.step) for _ in range(steps)]


def numbers(found: list[StepRecord]) -> list[tuple[Any, ...]]:
    """What does not depend on the clock."""
    return [(one.loss, one.grad_norm, one.lr, one.tokens, one.scale, one.skipped) for one in found]


def on_ranks(ranks: int, fn: Any, *arguments: Any, **named: Any) -> list[Any]:
    """`run_ranks`, or the call itself for one."""
    if ranks == 1:
        return [fn(*arguments, **named)]
    return run_ranks(fn, ranks, *arguments, timeout=120, **named)


def trained(config: TrainConfig, steps: int, unequal: bool = False) -> dict[str, Any]:
    """`steps` steps on this rank: records, whole weights, validation and a sample."""
    trainer = Trainer(config, corpus=CORPUS)
    if unequal:
        uneven(trainer, CORPUS)
    found = records(trainer, steps)
    return {
        "records": numbers(found),
        "validation": trainer.validate(),
        "sample": trainer.sample("the", tokens=20),
        "weights": {name: whole(tensor).numpy() for name, tensor in trainer.trained.items()},
        "random": trainer.random.state_dict(),
    }


def saved(config: TrainConfig, steps: int, folder: Path, more: int = 0) -> dict[str, Any]:
    """`steps` steps, a checkpoint, and `more` steps."""
    trainer = Trainer(config, corpus=CORPUS)
    records(trainer, steps)
    trainer.save(folder)
    at_save = state_of(trainer)
    after = numbers(records(trainer, more))
    return {"at save": at_save, "after": after, "end": state_of(trainer)}


def resumed(folder: Path, steps: int, again: Path | None = None, **changes: Any) -> dict[str, Any]:
    """Go on from a checkpoint for `steps` steps; with `again`, save there half-way and go on from that."""
    trainer = Trainer.resume(folder, corpus=CORPUS, **changes)
    at_start = state_of(trainer)
    found = []
    if again is not None:
        found = numbers(records(trainer, steps // 2))
        trainer = Trainer.resume(trainer.save(again), corpus=CORPUS, **changes)
    found += numbers(records(trainer, steps - len(found)))
    return {"at start": at_start, "after": found, "end": state_of(trainer), "told": trainer.resumed}
