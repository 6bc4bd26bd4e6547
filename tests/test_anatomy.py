"""What a checkpoint is made of: our safetensors files are the library's, and the list of parts leaves no byte out."""

import itertools
from pathlib import Path

import pytest
import torch
from safetensors.torch import load, load_file, save
from test_checkpoint import train

from course_lib.anatomy import Part, contents, tensor_file
from course_lib.errors import CheckpointError

TENSORS = {
    "half": torch.arange(5, dtype=torch.bfloat16),
    "a": torch.randn(3, 4, generator=torch.Generator().manual_seed(0)),
    "turned": torch.arange(12.0).reshape(3, 4).T,
    "scalar": torch.tensor(3.5),
    "none": torch.zeros(0, 7),
    "ints": torch.arange(-3, 4),
    "bytes": torch.arange(9, dtype=torch.uint8),
    "flags": torch.tensor([True, False, True]),
    "16 bits": torch.tensor([1.5, -2.0], dtype=torch.float16),
    "double": torch.tensor([torch.pi], dtype=torch.float64),
    "grün": torch.ones(1, requires_grad=True),
}


def test_our_files_are_safetensors() -> None:
    data = b"".join(tensor_file(TENSORS))
    back = load(data)
    assert back.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert back[name].dtype == tensor.dtype and torch.equal(back[name], tensor), name
    theirs = save({name: tensor.detach().contiguous() for name, tensor in TENSORS.items()})
    assert load(theirs).keys() == back.keys()
    assert load(b"".join(tensor_file({}))) == {}


def test_nothing_is_copied() -> None:
    tensor = torch.zeros(1000)
    piece = tensor_file({"a": tensor})[-1]
    tensor[3] = 1.0
    assert bytes(piece) == tensor.numpy().tobytes()


def test_what_safetensors_cannot_hold_is_named() -> None:
    with pytest.raises(CheckpointError, match="wave"):
        tensor_file({"wave": torch.zeros(2, dtype=torch.complex64)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run") / "a"
    train(path, 2, precision="bf16", weights="bf16")
    return path


def test_the_parts_of_each_file_leave_no_gap(folder: Path) -> None:
    parts = contents(folder)
    names = sorted(path.name for path in folder.iterdir())
    assert list(dict.fromkeys(part.file for part in parts)) == names
    for name in names:
        mine = [part for part in parts if part.file == name]
        assert mine[0].offset == 0
        assert all(a.offset + a.bytes == b.offset for a, b in itertools.pairwise(mine))
        assert mine[-1].offset + mine[-1].bytes == (folder / name).stat().st_size


def test_a_part_is_where_it_says(folder: Path) -> None:
    """The bytes at a tensor's offset are the tensor; those of a key in meta.json hold its value."""
    parts = contents(folder)
    for name in ("model.safetensors", "masters.safetensors", "optimizer.safetensors"):
        data, tensors = (folder / name).read_bytes(), load_file(folder / name)
        mine = [part for part in parts if part.file == name and part.name in tensors]
        assert len(mine) == len(tensors) > 5
        for part in mine:
            tensor = tensors[part.name]
            assert part.shape == tuple(tensor.shape) and part.bytes == tensor.nbytes
            raw = data[part.offset : part.offset + part.bytes]
            assert raw == tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    kinds = {part.dtype for part in parts if part.file == "model.safetensors"}
    assert kinds == {"U64", "JSON", "BF16"}
    assert {part.dtype for part in parts if part.file == "masters.safetensors"} == {"U64", "JSON", "F32"}
    text = (folder / "meta.json").read_bytes()
    random = next(part for part in parts if part.file == "meta.json" and part.name == "random")
    assert b'"random": {' in text[random.offset : random.offset + random.bytes]
    assert isinstance(random, Part) and random.bytes > 5000  # 5,056 bytes of state as base64


def test_a_damaged_file_is_one_line(folder: Path, tmp_path: Path) -> None:
    for name, data in (("model.safetensors", b"\xff" * 40), ("meta.json", b"{"), ("model.safetensors", b"")):
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(CheckpointError, match=name):
            contents(tmp_path)
        path.unlink()
