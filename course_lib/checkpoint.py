"""Everything a run needs to go on exactly: tensors in safetensors, the rest in one `meta.json`. Never pickle.

A checkpoint is a folder: model.safetensors, optimizer.safetensors, tokenizer.json and meta.json (step, configuration,
scheduler, data cursor, random states, precision, torch version).
"""

import base64
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from course_lib.config import stream_seed
from course_lib.errors import CheckpointError

__all__ = ["RandomState", "find", "load_model", "load_optimizer", "read_meta", "save"]

FORMAT = 1


class RandomState:
    """The random stream of one run. `use()` puts it in torch's place and puts the global one back afterwards."""

    def __init__(self, seed: int, purpose: str, device: str) -> None:
        devices = ["cpu"] + ([device] if device.startswith("cuda") else [])
        number = stream_seed(seed, purpose)
        self.states = {name: torch.Generator(name).manual_seed(number).get_state() for name in devices}

    @contextmanager
    def use(self) -> Iterator[None]:
        """Draw from this stream inside the block. The global random state is the same before and after."""
        outside = {name: _get(name) for name in self.states}
        for name, state in self.states.items():
            _set(name, state)
        try:
            yield
        finally:
            for name in self.states:
                self.states[name] = _get(name)
                _set(name, outside[name])

    def state_dict(self) -> dict[str, str]:
        """The states as base64 text, by device."""
        return {name: base64.b64encode(bytes(state.tolist())).decode("ascii") for name, state in self.states.items()}

    def load_state_dict(self, saved: dict[str, str]) -> None:
        """Take over saved states; a device that the checkpoint does not know keeps its own."""
        for name in self.states:
            if name in saved:
                self.states[name] = torch.tensor(list(base64.b64decode(saved[name])), dtype=torch.uint8)


def _get(device: str) -> Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state(device)


def _set(device: str, state: Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Parameter name by its number in the optimizer's state_dict."""
    by_id = {id(p): name for name, p in model.named_parameters()}
    order = [p for group in optimizer.param_groups for p in group["params"]]
    return {number: by_id[id(p)] for number, p in enumerate(order)}


def _own_tensors(model: nn.Module) -> dict[str, Tensor]:
    """The model's state_dict with each shared (tied) tensor once, under its first name."""
    seen: set[tuple[int, torch.Size, tuple[int, ...]]] = set()
    out: dict[str, Tensor] = {}
    for name, tensor in model.state_dict().items():
        key = (tensor.data_ptr(), tensor.shape, tensor.stride())
        if key in seen and tensor.numel():
            continue
        seen.add(key)
        out[name] = tensor.detach().contiguous()
    return out


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: dict[str, Any],
    tokenizer: Any = None,
) -> Path:
    """Write a checkpoint to `folder` and return it. It is written beside it first and renamed when complete."""
    folder = Path(folder)
    temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        save_file(_own_tensors(model), temporary / "model.safetensors")
        names = _names(model, optimizer)
        tensors: dict[str, Tensor] = {}
        numbers: dict[str, Any] = {}
        state = optimizer.state_dict()
        for number, entries in state["state"].items():
            for key, value in entries.items():
                target: dict[str, Any] = tensors if isinstance(value, Tensor) else numbers
                target[f"{names[number]}/{key}"] = value.contiguous() if isinstance(value, Tensor) else value
        save_file(tensors, temporary / "optimizer.safetensors")
        if tokenizer is not None:
            tokenizer.save(temporary)
        content = {
            "format": FORMAT,
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            **meta,
            "optimizer": {"param_groups": state["param_groups"], "numbers": numbers},
        }
        (temporary / "meta.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8", newline="\n")
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def find(folder: Path) -> Path:
    """The checkpoint in `folder`: itself, or its newest `step-N`. `CheckpointError` when there is none."""
    folder = Path(folder)
    if (folder / "meta.json").is_file():
        return folder
    steps = [path.parent for path in folder.glob("step-*/meta.json") if path.parent.name[5:].isdigit()]
    if not steps:
        raise CheckpointError(f"{folder}: no checkpoint here (no meta.json, no step-N folder); check the path")
    return max(steps, key=lambda path: int(path.name[5:]))


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a checkpoint; `CheckpointError` when it cannot be read or is of another format."""
    path = Path(folder) / "meta.json"
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); take an earlier checkpoint") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{path}: not a checkpoint of format {FORMAT}; it was written by another version")
    return meta


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); take an earlier checkpoint") from None


def load_model(folder: Path, model: nn.Module) -> None:
    """Copy the saved weights into `model`. `CheckpointError` when names or shapes differ."""
    saved = _read(Path(folder) / "model.safetensors")
    own = _own_tensors(model)
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved or name not in own or own[name].shape != saved[name].shape:
            there = tuple(saved[name].shape) if name in saved else "nothing"
            here = tuple(own[name].shape) if name in own else "nothing"
            raise CheckpointError(
                f"{folder}: {name} is {there} there and {here} in this model; use the run's own model"
            )
    model.load_state_dict(saved, strict=False)


def load_optimizer(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's moments, step counts and groups."""
    saved = _read(Path(folder) / "optimizer.safetensors")
    meta = read_meta(folder)["optimizer"]
    numbers = {name: number for number, name in _names(model, optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*saved.items(), *meta["numbers"].items()]:
        name, entry = key.rsplit("/", 1)
        if name not in numbers:
            raise CheckpointError(f"{folder}: the optimizer there holds {name}, which this model does not train")
        state.setdefault(numbers[name], {})[entry] = value
    groups = [
        {key: tuple(value) if isinstance(value, list) and key != "params" else value for key, value in group.items()}
        for group in meta["param_groups"]
    ]
    try:
        optimizer.load_state_dict({"state": state, "param_groups": groups})
    except ValueError as error:
        raise CheckpointError(
            f"{folder}: the optimizer's groups differ ({error}); use the run's own settings"
        ) from None
