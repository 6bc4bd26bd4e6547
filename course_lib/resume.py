"""A trainer's state into a checkpoint, and back: which parts there are, in which order they return, what may differ."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import asdict, is_dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib import checkpoint
from course_lib.config import DataConfig, TrainConfig, from_dict, to_dict
from course_lib.data import Corpus, prepare
from course_lib.errors import CheckpointError, ConfigError
from course_lib.events import Resumed
from course_lib.store import Latest, keep_last
from course_lib.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from course_lib.trainer import Trainer

__all__ = ["PARTS", "prepared", "require_same_run", "restore", "resume", "save", "saved_config"]

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
            "class": trainer.model_class,
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
    ranks = trainer.ranks
    if ranks.world_size > 1:
        meta["ranks"] = {"world_size": ranks.world_size, "random": ranks.gather(trainer.random.state_dict())}
    what: dict[str, Any] = {"model": model, "optimizer": trainer.optimizer, "meta": meta, "files": trainer.files}
    if ranks.sharded:
        from course_lib.parallel import sharded

        path = sharded.save(folder, ranks=ranks, tokenizer=tokenizer, **what)
    else:
        masters = trainer.masters.state_dict()
        path = ranks.from_first(
            lambda: checkpoint.save(folder, tokenizer=tokenizer, trained=trainer.trained, masters=masters, **what)
        )
    ranks.from_first(lambda: keep_last(path, trainer.config.keep_checkpoints, trainer.files))
    return path


def prepared(config: TrainConfig, found: Latest | None) -> Corpus:
    """The run's text as tokens; of a run that goes on, with its checkpoint's tokenizer, not learned again."""
    path = None if found is None else found.path
    return prepare(config.data, None if path is None else load_tokenizer(path))


def require_same_run(trainer: Trainer) -> None:
    """`ConfigError` when the ranks do not train on the same tokens, with the same settings and versions."""
    settings = to_dict(replace(trainer.config, data=DataConfig()))  # where a node has the text is its own affair
    for part in ("model", "data", "optim"):
        settings |= settings.pop(part)
    here = {f"the version of {name}": one for name, one in checkpoint.surroundings()["versions"].items()}
    here |= {**settings, "the kind of device": trainer.device.split(":")[0]}
    trainer.ranks.require_same({**here, "the digest of the training text": _digest(trainer)})


def resume(trainer: Trainer, found: Latest) -> Resumed:
    """Restore what `course_lib.checkpoint.look` found, and say what was skipped and what differs."""
    assert found.path is not None
    restore(trainer, found.path)
    return _told(trainer, found.path, found)


def _told(trainer: Trainer, path: Path, found: Latest) -> Resumed:
    meta = checkpoint.read_meta(path)
    meta["config"] = to_dict(from_dict(meta["config"]))  # with the fields that are newer than the checkpoint
    here = {"config": to_dict(trainer.config), "precision": trainer.policy.name, **checkpoint.surroundings()}
    differs = [
        f"{one.what} was {one.there}, is {one.here}"
        for one in checkpoint.differences(meta, here, ("versions", "machine", "precision", "config"))
        if one.what not in ("config.resume", "config.out", "config.precision")
    ]
    there, now = _ranks(meta)["world_size"], trainer.ranks.world_size
    if there != now:
        differs.append(
            f"ranks was {there}, is {now}: the same batches in the same order, but sums are rounded otherwise, and "
            "dropout draws from new streams"
        )
    skipped = tuple(f"{one.path.name}: {one.reason}" for one in found.skipped)
    return Resumed(trainer.step, path, skipped, tuple(differs))


def _ranks(meta: dict[str, Any]) -> dict[str, Any]:
    """How many ranks wrote a checkpoint, and the random state of each."""
    found: dict[str, Any] = meta.get("ranks") or {"world_size": 1, "random": [meta["random"]]}
    return found


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
        _load_weights(trainer, folder, meta)
    if "optimizer" in parts:
        _same_optimizer(trainer, folder, from_dict(meta["config"]))
        _load_optimizer(trainer, folder, meta)
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
        ranks = _ranks(meta)
        if ranks["world_size"] == trainer.ranks.world_size:
            trainer.random.load_state_dict(ranks["random"][trainer.ranks.rank])
        else:
            trainer.random = trainer.random_stream(meta["step"])


def _load_weights(trainer: Trainer, folder: Path, meta: dict[str, Any]) -> None:
    if trainer.ranks.sharded or meta.get("shards"):
        from course_lib.parallel import sharded

        sharded.load_weights(folder, trainer.model, trainer.masters.masters)
        return
    checkpoint.load_model(folder, trainer.model)
    try:
        trainer.masters.load_state_dict(checkpoint.load_masters(folder))
    except ConfigError as error:
        raise CheckpointError(f"{folder}: {error}; resume with the same `weights`") from None


def _load_optimizer(trainer: Trainer, folder: Path, meta: dict[str, Any]) -> None:
    if trainer.ranks.sharded or meta.get("shards"):
        from course_lib.parallel import sharded

        sharded.load_optimizer(folder, trainer.trained, trainer.optimizer)
    else:
        checkpoint.load_optimizer(folder, trainer.trained, trainer.optimizer)


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
