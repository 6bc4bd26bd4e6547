"""Plain data out of a kernel and back: a JSON tree for the structure, safetensors for the arrays. Never pickle.

What may be packed: None, bool, int, float (nan and inf too), complex, str, bytes, list, tuple, set, dict, numpy arrays
and scalars, torch tensors of any dtype. A round trip keeps type, dtype, shape and every bit; a tensor comes back
detached, on the CPU. torch is imported only where a tensor is met, so this room stays free of it.
"""

import json
import math
import stat
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load as load_arrays
from safetensors.numpy import save as save_arrays

from course_lib.checks.asking import kind

__all__ = ["MAX_BYTES", "PackError", "pack", "read_packed", "unpack", "write_packed"]

MAX_BYTES = 64 * 2**20
MAX_DEPTH = 100
_NUMPY_KINDS = "biuf"


class PackError(ValueError):
    """What an answer gave back is not plain data, or too much of it. The text names the type or the size."""


def pack(value: Any, max_bytes: int = MAX_BYTES) -> tuple[Any, dict[str, np.ndarray]]:
    """A JSON tree and the arrays that it refers to by key. PackError for anything that is not plain data."""
    arrays: dict[str, np.ndarray] = {}
    budget = [max_bytes]
    tree = _pack(value, arrays, budget, 0)
    return tree, arrays


def _spend(budget: list[int], size: int) -> None:
    budget[0] -= size
    if budget[0] < 0:
        raise PackError("gave back more data than fits (64 MiB)")


def _store(array: np.ndarray, arrays: dict[str, np.ndarray], budget: list[int]) -> str:
    _spend(budget, array.nbytes)
    key = f"a{len(arrays)}"
    arrays[key] = np.array(array, copy=True, order="C")
    return key


def _pack(value: Any, arrays: dict[str, np.ndarray], budget: list[int], depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PackError(f"gave back data nested more than {MAX_DEPTH} deep")
    _spend(budget, 16)
    if value is None or value is True or value is False:
        return value
    if isinstance(value, np.generic):
        return {"$": "scalar", "k": _numpy(np.asarray(value), arrays, budget)}
    if isinstance(value, np.ndarray):
        return {"$": "array", "k": _numpy(value, arrays, budget)}
    if isinstance(value, int):
        if value.bit_length() > 4096:
            raise PackError("gave back an integer of more than 4096 bits")
        return int(value)
    if isinstance(value, float):
        number = float(value)
        return number if math.isfinite(number) else {"$": "float", "v": repr(number)}
    if isinstance(value, complex):
        return {"$": "complex", "v": [_pack(float(part), arrays, budget, depth) for part in (value.real, value.imag)]}
    if isinstance(value, str):
        _spend(budget, len(value) * 4)
        return "".join(value)
    if isinstance(value, bytes | bytearray):
        _spend(budget, len(value) * 2)
        return {"$": "bytes", "v": bytes(value).hex()}
    if isinstance(value, list | tuple):
        items = [_pack(item, arrays, budget, depth + 1) for item in value]
        return items if isinstance(value, list) else {"$": "tuple", "v": items}
    if isinstance(value, set | frozenset):
        return {"$": "set", "v": [_pack(item, arrays, budget, depth + 1) for item in sorted(value, key=repr)]}
    if isinstance(value, Mapping):
        pairs = [[_pack(part, arrays, budget, depth + 1) for part in pair] for pair in value.items()]
        return {"$": "dict", "v": pairs}
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _tensor(torch, value, arrays, budget)
    raise PackError(f"gave back {kind(value)}, which is not plain data (numbers, text, lists, dicts, tensors)")


def _numpy(array: np.ndarray, arrays: dict[str, np.ndarray], budget: list[int]) -> str:
    if array.dtype.kind not in _NUMPY_KINDS or array.dtype.itemsize > 8:
        raise PackError(f"gave back a numpy array of dtype {array.dtype}; only numbers and booleans can be judged")
    return _store(array.astype(array.dtype.newbyteorder("="), copy=False), arrays, budget)


def _tensor(torch: Any, tensor: Any, arrays: dict[str, np.ndarray], budget: list[int]) -> dict[str, Any]:
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.device.type == "meta":
        raise PackError("gave back a sparse, quantized or meta tensor; give back a dense one")
    with torch.no_grad():
        flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    dtype = str(tensor.dtype).removeprefix("torch.")
    return {"$": "tensor", "k": _store(raw, arrays, budget), "dtype": dtype, "shape": list(tensor.shape)}


def unpack(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The value that `pack` was given. PackError when the tree or its arrays do not fit together (a damaged file)."""
    try:
        return _unpack(tree, arrays)
    except PackError:
        raise
    except Exception as error:
        raise PackError(f"cannot be read back: {type(error).__name__}: {error}") from error


def _unpack(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, list):
        return [_unpack(item, arrays) for item in tree]
    if not isinstance(tree, dict):
        return tree
    kind = tree["$"]
    if kind == "array":
        return arrays[tree["k"]].copy()
    if kind == "scalar":
        return arrays[tree["k"]][()]
    if kind == "float":
        return float(tree["v"])
    if kind == "complex":
        return complex(*(_unpack(part, arrays) for part in tree["v"]))
    if kind == "bytes":
        return bytes.fromhex(tree["v"])
    if kind == "tuple":
        return tuple(_unpack(item, arrays) for item in tree["v"])
    if kind == "set":
        return {_unpack(item, arrays) for item in tree["v"]}
    if kind == "dict":
        return {_unpack(key, arrays): _unpack(item, arrays) for key, item in tree["v"]}
    if kind == "tensor":
        import torch

        dtype = getattr(torch, tree["dtype"])
        if not isinstance(dtype, torch.dtype):
            raise PackError(f"names an unknown dtype {tree['dtype']}")
        raw = torch.from_numpy(arrays[tree["k"]].copy())
        return (raw.view(dtype) if raw.numel() else torch.empty(0, dtype=dtype)).reshape(tree["shape"])
    raise PackError(f"has an unknown kind {kind!r}")


def write_packed(stem: Path, value: Any, max_bytes: int = MAX_BYTES) -> None:
    """Write `stem`.json and `stem`.safetensors. PackError as in `pack`."""
    tree, arrays = pack(value, max_bytes)
    stem.with_suffix(".safetensors").write_bytes(save_arrays(arrays))
    stem.with_suffix(".json").write_text(json.dumps(tree, allow_nan=False), encoding="utf-8", newline="\n")


def read_packed(stem: Path, max_bytes: int = 4 * MAX_BYTES) -> Any:
    """Read what `write_packed` wrote. PackError for a file that is missing, damaged or larger than `max_bytes`."""
    try:
        for suffix in (".json", ".safetensors"):
            facts = stem.with_suffix(suffix).lstat()
            if not stat.S_ISREG(facts.st_mode):
                raise PackError("is not a plain file")
            if facts.st_size > max_bytes:
                raise PackError("is larger than 64 MiB")
        arrays = load_arrays(stem.with_suffix(".safetensors").read_bytes())
        tree = json.loads(stem.with_suffix(".json").read_text(encoding="utf-8"))
    except PackError:
        raise
    except Exception as error:
        raise PackError(f"cannot be read back: {type(error).__name__}") from error
    return unpack(tree, arrays)
