"""A trainer's state into a checkpoint, and back: which parts there are, in which order they return, what may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib import checkpoint
from course_lib.config import TrainConfig, from_dict, to_dict
from course_lib.data import Corpus, prepare
from course_lib.errors import CheckpointError, ConfigError
from course_lib.events import Resumed
from course_lib.store import Latest, keep_last
from course_lib.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from course_lib.trainer import Trainer

__all__ = ["PARTS", "prepared", "restore", "resume", "save", "saved_config"]

PARTS = ("weights", "optimizer", "scheduler", "scaler", "cursor", "random")
"""What a resume needs besides the same configuration, text and tokenizer, in the order of restoring."""

_IN_THE_OPTIMIZER = ("lr", "betas", "eps", "weight_decay")


def save(trainer: Trainer, folder: Path) -> Path:
    """Write everything that `trainer` needs to go on; then remove what `keep_checkpoints` does not keep."""
    model, tokenizer = trainer.model, trainer.corpus.tokenizer
    shape = getattr(model, "config", None)
    meta = {
        "step": trainer.step,
        "precision": trainer.policy.name,
        "config": to_dict(trainer.config),
        "model": {
            "class": type(model).__name__,
            "parameters": trainer.parameters,
            "config": asdict(shape) if is_dataclass(shape) and not isinstance(shape, type) else None,
        },
        "tokenizer": {"name": tokenizer.name, "vocab_size": tokenizer.vocab_size, "eos": tokenizer.eos},
        "data": _digest(trainer),
        "scheduler": {key: value for key, value in trainer.scheduler.state_dict().items() if key != "lr_lambdas"},
        "scaler": None if trainer.scaler is None else trainer.scaler.state_dict(),
        "stream": trainer.stream.state_dict(),
        "random": trainer.random.state_dict(),
    }
    path = checkpoint.save(
        folder,
        model=model,
        optimizer=trainer.optimizer,
        meta=meta,
        tokenizer=tokenizer,
        trained=trainer.trained,
        masters=trainer.masters.state_dict(),
        files=trainer.files,
    )
    keep_last(path, trainer.config.keep_checkpoints, trainer.files)
    return path


def prepared(config: TrainConfig, found: Latest | None) -> Corpus:
    """The run's text as tokens; of a run that goes on, with its checkpoint's tokenizer, not learned again."""
    path = None if found is None else found.path
    return prepare(config.data, None if path is None else load_tokenizer(path))


def resume(trainer: Trainer, found: Latest) -> Resumed:
    """Restore what `course_lib.checkpoint.look` found, and say what was skipped and what differs."""
    assert found.path is not None
    restore(trainer, found.path)
    return _told(trainer, found.path, found)


def _told(trainer: Trainer, path: Path, found: Latest) -> Resumed:
    meta = checkpoint.read_meta(path)
    here = {"config": to_dict(trainer.config), "precision": trainer.policy.name, **checkpoint.surroundings()}
    differs = [
        f"{one.what} was {one.there}, is {one.here}"
        for one in checkpoint.differences(meta, here, ("versions", "machine", "precision", "config"))
        if one.what not in ("config.resume", "config.out", "config.precision")
    ]
    skipped = tuple(f"{one.path.name}: {one.reason}" for one in found.skipped)
    return Resumed(trainer.step, path, skipped, tuple(differs))


def restore(trainer: Trainer, folder: Path, parts: Collection[str] = PARTS) -> None:
    """Put the saved `parts` in the place of the trainer's own. Leave one out to see what it was for.

    The order matters: weights, optimizer, scheduler, scaler, then the data cursor, and the random state last.
    `CheckpointError` when the checkpoint is of another run.
    """
    unknown = sorted(set(parts) - set(PARTS))
    if unknown:
        raise ConfigError(f"a checkpoint has no part {unknown[0]!r} (there are: {', '.join(PARTS)})")
    meta = checkpoint.read_meta(folder)
    if meta["data"] != _digest(trainer):
        raise CheckpointError(f"{folder}: this run's tokens differ from the data there; give the same text")
    if "weights" in parts:
        checkpoint.load_model(folder, trainer.model)
        try:
            trainer.masters.load_state_dict(checkpoint.load_masters(folder))
        except ConfigError as error:
            raise CheckpointError(f"{folder}: {error}; resume with the same `weights`") from None
    if "optimizer" in parts:
        _same_optimizer(trainer, folder, from_dict(meta["config"]))
        checkpoint.load_optimizer(folder, trainer.trained, trainer.optimizer)
    if "scheduler" in parts:
        groups = trainer.optimizer.param_groups
        trainer.scheduler.load_state_dict({"lr_lambdas": [None] * len(groups), **meta["scheduler"]})
        for group, lr in zip(groups, trainer.scheduler.get_last_lr(), strict=True):
            group["lr"] = lr
    if "scaler" in parts and trainer.scaler is not None:
        if not meta["scaler"]:
            raise CheckpointError(f"{folder}: has no loss scaler, for it was not fp16; resume in {meta['precision']}")
        trainer.scaler.load_state_dict(meta["scaler"])
    if "cursor" in parts:
        trainer.stream.load_state_dict(meta["stream"])
    if "random" in parts:
        trainer.random.load_state_dict(meta["random"])


def _same_optimizer(trainer: Trainer, folder: Path, saved: TrainConfig) -> None:
    """These settings come back with the optimizer's state: another value would be ignored without a word."""
    for name in _IN_THE_OPTIMIZER:
        there, here = getattr(saved.optim, name), getattr(trainer.config.optim, name)
        if there != here:
            raise CheckpointError(
                f"{folder}: {name} is {there} in the optimizer's saved state and {here} in this run's settings; "
                f"resume with {name}={there}"
            )


def _digest(trainer: Trainer) -> str:
    return hashlib.sha256(np.ascontiguousarray(trainer.corpus.train).tobytes()).hexdigest()


def saved_config(folder: Path, **changes: Any) -> TrainConfig:
    """The configuration that goes on from a checkpoint: its own, in the precision it chose, some fields changed.

    folder: a checkpoint, or an `out` folder, of which the newest complete one is taken.
    """
    found = checkpoint.find(folder)
    meta = checkpoint.read_meta(found)
    config = from_dict(meta["config"])
    out = found.parent if config.out is not None else None
    return replace(config, **{"precision": meta["precision"], "out": out, "resume": Path(folder), **changes})
