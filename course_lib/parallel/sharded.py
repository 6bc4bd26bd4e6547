"""A checkpoint that every rank writes its part of: PyTorch's distributed checkpoint (DCP), stored as safetensors.

The folder is that of `course_lib.store`, complete or not there: shard-00001-....safetensors of rank 0, shard-00002-...
of rank 1, tokenizer.json, meta.json, and the marker, written last by rank 0. In the shards are tensors only, the
weights by name and the optimizer's as "name/entry"; each file's header says where its part begins. Everything else is
in meta.json. DCP's default storage would pickle its metadata, and run what is in it on loading: it is not used.

The same reader takes a plain checkpoint, so either kind can be loaded on any number of ranks, and by one process.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor, nn
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import TensorStorageMetadata

from course_lib import checkpoint, store
from course_lib.errors import CheckpointError
from course_lib.files import Files
from course_lib.parallel.replicas import OneProcess

__all__ = ["is_sharded", "load_optimizer", "load_weights", "save", "weights_of"]


def is_sharded(meta: Mapping[str, Any]) -> bool:
    """Whether a checkpoint's meta.json is that of `save`."""
    return bool(meta.get("shards"))


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """The model's state_dict, a tied tensor once, under the name that `named_parameters` gives it."""
    once = {*dict(model.named_parameters()), *dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in model.state_dict().items() if name in once}


def save(
    folder: Path,
    *,
    ranks: OneProcess,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: dict[str, Any],
    tokenizer: Any,
    files: Files,
) -> Path:
    """Write a checkpoint on all ranks together, crash-safe, and return its folder (absolute).

    Rank 0 makes the folder, each rank writes and syncs its own files, and rank 0 writes the marker when all are done.
    `CheckpointError` on every rank when one of them could not write; earlier checkpoints are as they were.
    """
    folder = Path(folder).absolute()
    ranks.drop_gathered()
    new = ranks.from_first(lambda: store.begin(folder, files))
    tensors, numbers = checkpoint.optimizer_content(dict(model.named_parameters()), optimizer)
    try:
        with ranks.together():
            rows = _write(new, {**weights_of(model), **tensors}, ranks.rank, files)
    except CheckpointError:
        ranks.from_first(lambda: store.give_up(new))
        raise
    every = {name: row for one in ranks.gather(rows) for name, row in one.items()}
    everything = {"format": store.FORMAT, **checkpoint.surroundings(), **meta, "shards": sorted(every)}
    content = {
        "tokenizer.json": checkpoint.json_file(tokenizer.content()),
        store.META: checkpoint.json_file({**everything, "optimizer": numbers}),
    }
    return ranks.from_first(lambda: store.finish(folder, every, content, files))


def _write(new: Path, tensors: dict[str, Tensor], rank: int, files: Files) -> dict[str, tuple[int, str]]:
    try:
        dcp.save(tensors, storage_writer=dcp.HuggingFaceStorageWriter(str(new), save_distributed=True))
        own = sorted(new.glob(f"shard-{rank + 1:05d}-*"))
        for path in own:
            files.sync(path)
        files.sync(new)
        return {path.name: store.file_row(path) for path in own}
    except (dcp.api.CheckpointException, OSError) as error:
        raise CheckpointError(
            f"{new}: the checkpoint could not be written ({_reason(error)}); earlier ones are as they were: free some "
            "space or give another folder"
        ) from error


def _reason(error: BaseException) -> str:
    failures = getattr(error, "failures", None)
    return " ".join(str(next(iter(failures.values()))[0] if failures else error).split())


class _AnyFolder(FileSystem):
    """In a plain checkpoint with masters, these come last: they win over the 16-bit weights of the same names."""

    def ls(self, path: Any) -> list[str]:
        return sorted(super().ls(path), reverse=True)


def _reader(folder: Path) -> dcp.HuggingFaceStorageReader:
    reader = dcp.HuggingFaceStorageReader(str(folder))
    reader.fs = _AnyFolder()
    return reader


def _sizes(folder: Path) -> dict[str, TensorStorageMetadata]:
    return dict(_reader(folder).read_metadata().state_dict_metadata)  # type: ignore[arg-type]


def _fill(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Read into these tensors, whole or this rank's part of them. Sends nothing: each rank reads what it needs."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # it is: that is what no_dist means
            dcp.load(tensors, storage_reader=_reader(folder), no_dist=True)
    except (dcp.api.CheckpointException, OSError) as error:
        raise CheckpointError(f"{folder}: cannot be read ({_reason(error)}); take an earlier checkpoint") from None


def load_weights(folder: Path, model: nn.Module, masters: Mapping[str, Tensor]) -> None:
    """Copy the saved weights into `model`, whole or sharded; with FP32 `masters`, into these, and round them to it.

    `CheckpointError` when names or shapes differ.
    """
    own = weights_of(model)
    saved = {name: one.size for name, one in _sizes(folder).items() if "/" not in name}
    checkpoint.same_tensors(folder, saved, own)
    _fill(folder, {name: masters[name].detach() if name in masters else one for name, one in own.items()})
    for name, master in masters.items():
        own[name].copy_(master.detach())


def load_optimizer(folder: Path, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's moments, step counts and groups, whole or sharded as `trained` (by name) is."""
    tensors: dict[str, Tensor] = {}
    for key, saved in _sizes(folder).items():
        name = key.rpartition("/")[0]
        if not name:
            continue
        if name in trained and trained[name].shape == saved.size:
            tensors[key] = torch.zeros_like(trained[name].detach(), dtype=saved.properties.dtype)
        else:
            tensors[key] = torch.zeros(saved.size, dtype=saved.properties.dtype)
    _fill(folder, tensors)
    checkpoint.put_optimizer(folder, trained, optimizer, tensors)
