"""What a checkpoint is made of, byte by byte: tensors as a safetensors file, and the parts of every file."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from course_lib.errors import CheckpointError

__all__ = ["Part", "contents", "tensor_file"]

_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def tensor_file(tensors: Mapping[str, Tensor]) -> list[bytes | memoryview]:
    """A safetensors file in pieces: 8 bytes with the header's length, the header (JSON), then each tensor's own bytes.

    The pieces are views of the tensors: nothing is copied, so that 10 GB of weights need no second 10 GB.
    """
    order = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)  # so that each is aligned
    header: dict[str, Any] = {}
    pieces: list[bytes | memoryview] = []
    at = 0
    for name in order:
        tensor = tensors[name].detach().cpu().contiguous()
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"{name}: a tensor of {tensor.dtype} cannot be saved; convert it to float32 first")
        end = at + tensor.nbytes
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, end]}
        pieces.append(tensor.reshape(-1).view(torch.uint8).numpy().data)
        at = end
    text = json.dumps(header).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *pieces]


@dataclass(frozen=True)
class Part:
    """Some bytes of a checkpoint, one after the other."""

    file: str
    """Name of the file."""
    name: str
    """The tensor's name, the key in a JSON file, or "header length", "header"."""
    dtype: str
    """As safetensors spells it (F32, BF16, ...); "JSON" for text, "U64" for a header's length."""
    shape: tuple[int, ...]
    """Of a tensor; () for a scalar and for everything else."""
    offset: int
    """First byte, counted from the start of the file."""
    bytes: int
    """How many."""


def contents(folder: Path) -> list[Part]:
    """Every byte of every file of a checkpoint, in order: for each file its parts, which leave no gap.

    Only headers and JSON are read, so the size of the tensors costs nothing. `CheckpointError` for a damaged file.
    """
    out: list[Part] = []
    for path in sorted(Path(folder).iterdir()):
        try:
            if path.suffix == ".safetensors":
                out += _tensor_parts(path)
            elif path.suffix == ".json":
                out += _json_parts(path)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{path}: cannot be read ({error}); take another checkpoint") from None
    return out


def _tensor_parts(path: Path) -> Iterator[Part]:
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        if size > path.stat().st_size:
            raise ValueError("its header is longer than the file")
        header = json.loads(file.read(size))
    yield Part(path.name, "header length", "U64", (), 0, 8)
    yield Part(path.name, "header", "JSON", (), 8, size)
    header.pop("__metadata__", None)
    for name, row in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = row["data_offsets"]
        yield Part(path.name, name, row["dtype"], tuple(row["shape"]), 8 + size + begin, end - begin)


def _json_parts(path: Path) -> Iterator[Part]:
    """One part a top-level key, from the end of the one before: the braces are in the first and the last."""
    text = path.read_text(encoding="utf-8")
    content = json.loads(text)
    decoder, at, begin = json.JSONDecoder(), text.index("{") + 1, 0
    ends: list[tuple[str, int]] = []
    for _ in content:
        key, at = decoder.raw_decode(text, text.index('"', at))
        at = text.index(":", at) + 1
        while text[at].isspace():
            at += 1
        _, at = decoder.raw_decode(text, at)
        ends.append((key, at))
    if ends:
        ends[-1] = ends[-1][0], len(text)
    for key, end in ends or [("", len(text))]:
        offset, size = len(text[:begin].encode("utf-8")), len(text[begin:end].encode("utf-8"))
        yield Part(path.name, key, "JSON", (), offset, size)
        begin = end
