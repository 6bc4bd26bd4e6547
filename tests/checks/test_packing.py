"""Plain data survives the way out of a kernel and back, bit for bit; anything else is refused with a clear line."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from course_lib.checks.core import PackError, pack, read_packed, unpack, write_packed

VALUES: list[Any] = [
    None,
    True,
    -(10**30),
    0.1 + 0.2,
    -0.0,
    math.inf,
    2 + 3j,
    "Wörter\n$",
    b"\x00\xff",
    [],
    [1, [2.5, None], "x"],
    (1, (2,)),
    {1, 2},
    {"a": 1, 2: "b", ("k", 1): [True]},
    {"$": "tensor", "k": "a0"},
    np.float32(0.1),
    np.int64(7),
    np.arange(6, dtype=np.int16).reshape(2, 3).T,
    np.zeros((0, 3)),
    np.array(3.5),
    np.array([True, False]),
]


def same(one: Any, two: Any) -> bool:
    if type(one) is not type(two):
        return False
    if isinstance(one, np.ndarray):
        return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, two) and one == two
    return bool(one == two)


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_round_trip(value: Any, tmp_path: Path) -> None:
    write_packed(tmp_path / "x", value)
    assert same(read_packed(tmp_path / "x"), value)


def test_nan_keeps_being_nan() -> None:
    assert math.isnan(unpack(*pack(math.nan)))


DTYPES = [
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.float8_e4m3fn,
    torch.int64, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_keep_dtype_shape_and_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    value = (torch.randn(3, 4, generator=torch.Generator().manual_seed(0)) * 3).to(dtype).T
    write_packed(tmp_path / "x", {"t": value, "empty": value[:0]})
    back = read_packed(tmp_path / "x")
    assert back["t"].dtype == dtype and back["t"].shape == (4, 3) and back["empty"].shape == (0, 3)
    assert torch.equal(back["t"].contiguous().view(torch.uint8), value.contiguous().view(torch.uint8))


def test_a_tensor_comes_back_detached_and_as_a_copy() -> None:
    value = torch.ones(3, requires_grad=True)
    back = unpack(*pack(value))
    assert not back.requires_grad and back.data_ptr() != value.data_ptr()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (object(), "not plain data"),
        (lambda: 1, "function"),
        (np.array(["a"]), "dtype"),
        (np.array([object()]), "dtype"),
        (torch.nn.Linear(2, 2), "Linear"),
        (torch.eye(2).to_sparse(), "sparse"),
        (1 << 5000, "4096 bits"),
        (np.zeros(9 * 2**20), "64 MiB"),
        ([0] * 5_000_000, "64 MiB"),
    ],
    ids=["object", "function", "text", "objects", "module", "sparse", "huge int", "huge array", "huge list"],
)
def test_what_is_not_plain_data_is_refused(value: Any, words: str) -> None:
    with pytest.raises(PackError, match=words):
        pack(value)


def test_nesting_without_end_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(PackError, match="deep"):
        pack(loop)


@pytest.mark.parametrize(
    "damage", ["", "{", '{"$": "array", "k": "zz"}', '{"$": "what"}', '{"$": "tensor", "k": "a0"}', "[" * 9999]
)
def test_a_damaged_file_is_a_pack_error(damage: str, tmp_path: Path) -> None:
    write_packed(tmp_path / "x", torch.ones(2))
    (tmp_path / "x.json").write_text(damage, encoding="utf-8")
    with pytest.raises(PackError):
        read_packed(tmp_path / "x")


def test_a_link_or_a_pipe_is_not_read(tmp_path: Path) -> None:
    write_packed(tmp_path / "real", 1)
    (tmp_path / "x.safetensors").symlink_to(tmp_path / "real.safetensors")
    (tmp_path / "x.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(PackError, match="plain file"):
        read_packed(tmp_path / "x")


def test_a_missing_file_is_a_pack_error(tmp_path: Path) -> None:
    with pytest.raises(PackError):
        read_packed(tmp_path / "absent")
