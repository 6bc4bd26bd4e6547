"""Everything a run needs to go on exactly: tensors in safetensors, the rest in one `meta.json`. Never pickle.

A checkpoint is a folder: model.safetensors, optimizer.safetensors, masters.safetensors (16-bit weights only),
tokenizer.json, meta.json and the marker of `course_lib.store`. meta.json has the format's number, the step, precision,
both configurations, scaler, scheduler, data cursor, random states, and where it was written: versions, CPU, threads.
"""

import base64
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from course_lib import __version__
from course_lib.anatomy import tensor_file
from course_lib.config import stream_seed
from course_lib.errors import CheckpointError
from course_lib.files import Files
from course_lib.machine import cpu_name
from course_lib.store import FORMAT, META, Latest, latest, problem, write_folder

__all__ = [
    "Difference",
    "RandomState",
    "differences",
    "find",
    "json_file",
    "load_masters",
    "load_model",
    "load_optimizer",
    "look",
    "optimizer_content",
    "own_tensors",
    "put_optimizer",
    "read_meta",
    "same_tensors",
    "save",
    "surroundings",
]


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
        """The states as base64 text, by kind of device: a GPU's number may be another after a resume."""
        return {
            _kind(name): base64.b64encode(bytes(state.tolist())).decode("ascii") for name, state in self.states.items()
        }

    def load_state_dict(self, saved: dict[str, str]) -> None:
        """Take over saved states; a device that the checkpoint does not know keeps its own."""
        for name in self.states:
            if _kind(name) in saved:
                self.states[name] = torch.tensor(list(base64.b64decode(saved[_kind(name)])), dtype=torch.uint8)


def _kind(device: str) -> str:
    return device.split(":")[0]


def _get(device: str) -> Tensor:
    return torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state(device)


def _set(device: str, state: Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.cuda.set_rng_state(state, device)


def _names(trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> dict[int, str]:
    """Parameter name by its number in the optimizer's state_dict."""
    by_id = {id(p): name for name, p in trained.items()}
    order = [p for group in optimizer.param_groups for p in group["params"]]
    return {number: by_id[id(p)] for number, p in enumerate(order)}


def own_tensors(model: nn.Module) -> dict[str, Tensor]:
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


def json_file(content: Any) -> list[bytes | memoryview]:
    """A JSON file in pieces."""
    return [(json.dumps(content, ensure_ascii=False, indent=1) + "\n").encode("utf-8")]


def surroundings() -> dict[str, Any]:
    """Where this process runs, as far as it can change the bits of a result: versions, CPU and threads."""
    packages = ("torch", "numpy", "safetensors", "tokenizers")
    return {
        "versions": {
            "course": __version__,
            "python": platform.python_version(),
            **{name: torch.__version__ if name == "torch" else version(name) for name in packages},
        },
        "machine": {
            "cpu": cpu_name(),
            "capability": torch.backends.cpu.get_cpu_capability(),
            "threads": torch.get_num_threads(),
        },
    }


def optimizer_content(
    trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state: its tensors as "name/entry", and everything else as JSON data for meta.json."""
    names = _names(trained, optimizer)
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, Any] = {}
    state = optimizer.state_dict()
    for number, entries in state["state"].items():
        for key, value in entries.items():
            target: dict[str, Any] = tensors if isinstance(value, Tensor) else numbers
            target[f"{names[number]}/{key}"] = value
    return tensors, {"param_groups": state["param_groups"], "numbers": numbers}


def save(
    folder: Path,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    meta: dict[str, Any],
    tokenizer: Any = None,
    trained: Mapping[str, Tensor] | None = None,
    masters: Mapping[str, Tensor] | None = None,
    files: Files | None = None,
) -> Path:
    """Write a checkpoint to `folder`, crash-safe, and return it (absolute).

    trained: what the optimizer updates, by name (None: the model's parameters). masters: FP32 copies of 16-bit weights,
    by name. A checkpoint of that name is replaced once the new one is complete. `CheckpointError` when the disk is full
    or the folder cannot be written; earlier checkpoints are as they were.
    """
    trained = dict(model.named_parameters()) if trained is None else trained
    tensors, numbers = optimizer_content(trained, optimizer)
    everything = {"format": FORMAT, **surroundings(), **meta, "optimizer": numbers}
    content = {"model.safetensors": tensor_file(own_tensors(model)), "optimizer.safetensors": tensor_file(tensors)}
    if masters:
        content["masters.safetensors"] = tensor_file(masters)
    if tokenizer is not None:
        content["tokenizer.json"] = json_file(tokenizer.content())
    content[META] = json_file(everything)
    return write_folder(folder, content, files)


def look(folder: Path) -> Latest:
    """The checkpoint that `folder` stands for: itself, or its newest complete `step-N`; and what was skipped.

    `CheckpointError` when there is none, or when `folder` itself is a checkpoint that cannot be used.
    """
    folder = Path(folder).absolute()
    new = folder.with_name(folder.name + ".new")
    if new.is_dir() and problem(new) is None:  # the power went before it was given its name
        return Latest(new, ())
    if any(folder.glob("*.safetensors")) or (folder / META).exists():
        reason = problem(folder)
        if reason is None:
            return Latest(folder, ())
        raise CheckpointError(f"{folder}: {reason}; take another checkpoint")
    found = latest(folder)
    if found.path is None:
        why = "; ".join(f"{one.path.name} is {one.reason}" for one in found.skipped)
        raise CheckpointError(f"{folder}: no checkpoint here ({why or 'no step-N folder'}); check the path")
    return found


def find(folder: Path) -> Path:
    """The checkpoint in `folder`: itself, or its newest complete `step-N`. `CheckpointError` when there is none."""
    path = look(folder).path
    assert path is not None
    return path


def read_meta(folder: Path) -> dict[str, Any]:
    """meta.json of a checkpoint; `CheckpointError` when it cannot be read or is of another format."""
    path = Path(folder) / META
    try:
        meta: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); take an earlier checkpoint") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        raise CheckpointError(f"{path}: {problem(Path(folder), deep=False) or 'is of another format'}")
    return meta


@dataclass(frozen=True)
class Difference:
    """Something that is not as it was when the checkpoint was written."""

    what: str
    """For example machine.threads, versions.torch, config.steps."""
    there: str
    """When it was written."""
    here: str
    """In this process."""


def differences(saved: Mapping[str, Any], here: Mapping[str, Any], within: Sequence[str] = ()) -> list[Difference]:
    """What differs between two meta-like dictionaries, in the parts `within` (none: in all); nested names with dots."""
    out: list[Difference] = []
    for name in sorted({*saved, *here} & {*within} if within else {*saved, *here}):
        there, now = saved.get(name), here.get(name)
        if isinstance(there, Mapping) and isinstance(now, Mapping):
            inner = differences(there, now)
            out += [Difference(f"{name}.{one.what}", one.there, one.here) for one in inner]
        elif json.dumps(there) != json.dumps(now):
            out.append(Difference(name, str(there), str(now)))
    return out


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{path}: cannot be read ({error}); take an earlier checkpoint") from None


def load_masters(folder: Path) -> dict[str, Tensor]:
    """The saved FP32 masters by name; empty when the run has none."""
    path = Path(folder) / "masters.safetensors"
    return _read(path) if path.exists() else {}


def same_tensors(folder: Path, saved: Mapping[str, Sequence[int]], own: Mapping[str, Tensor]) -> None:
    """`CheckpointError` when a model's tensors and the saved shapes differ in a name or a shape."""
    for name in sorted(own.keys() | saved.keys()):
        if name not in saved or name not in own or own[name].shape != torch.Size(saved[name]):
            there = tuple(saved[name]) if name in saved else "nothing"
            here = tuple(own[name].shape) if name in own else "nothing"
            raise CheckpointError(
                f"{folder}: {name} is {there} there and {here} in this model; use the run's own model"
            )


def load_model(folder: Path, model: nn.Module) -> None:
    """Copy the saved weights into `model`. `CheckpointError` when names or shapes differ."""
    saved = _read(Path(folder) / "model.safetensors")
    same_tensors(folder, {name: one.shape for name, one in saved.items()}, own_tensors(model))
    model.load_state_dict(saved, strict=False)


def load_optimizer(folder: Path, trained: nn.Module | Mapping[str, Tensor], optimizer: torch.optim.Optimizer) -> None:
    """Restore the optimizer's moments, step counts and groups. trained: the model, or what is updated, by name."""
    trained = dict(trained.named_parameters()) if isinstance(trained, nn.Module) else trained
    put_optimizer(folder, trained, optimizer, _read(Path(folder) / "optimizer.safetensors"))


def put_optimizer(
    folder: Path, trained: Mapping[str, Tensor], optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put the tensors of `optimizer_content`, and what meta.json has beside them, into the optimizer."""
    meta = read_meta(folder)["optimizer"]
    numbers = {name: number for number, name in _names(trained, optimizer).items()}
    state: dict[int, dict[str, Any]] = {}
    for key, value in [*tensors.items(), *meta["numbers"].items()]:
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
