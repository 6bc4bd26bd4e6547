"""What travels between caller and rank: functions with the lines of their cells, tensors without their neighbours."""

import functools
import inspect
import io
import linecache
import os
import sys
import types
from collections.abc import Callable
from typing import Any

import cloudpickle

from course_lib.errors import RankError

__all__: list[str] = []

Source = tuple[str, str]
"""What a reader calls a cell ("Cell In[3]") and its text."""


class Packer(cloudpickle.Pickler):
    """cloudpickle that keeps the file name of code, and of a view of a tensor packs the view alone."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.files: set[str] = set()

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, types.CodeType):
            self.files.add(obj.co_filename)
            make, parts = self.dispatch_table[types.CodeType](obj)
            return code_of, (make, parts, obj.co_filename)
        torch = sys.modules.get("torch")
        if torch is not None and type(obj) is torch.Tensor and is_part(obj):
            return obj.detach().clone().requires_grad_(obj.requires_grad).__reduce_ex__(5)
        return super().reducer_override(obj)


def code_of(make: Callable[..., types.CodeType], parts: tuple[Any, ...], file: str) -> types.CodeType:
    """The code again, with the name of the file (or cell) that it came from."""
    return make(*parts).replace(co_filename=file)


def is_part(tensor: Any) -> bool:
    """Whether a dense CPU tensor uses less than its storage holds."""
    if str(tensor.layout) != "torch.strided" or tensor.device.type != "cpu":
        return False
    return bool(tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size())


def pack(what: Any) -> tuple[bytes, set[str]]:
    """Bytes, and the files that the code in them came from."""
    file = io.BytesIO()
    packer = Packer(file)
    packer.dump(what)
    return file.getvalue(), packer.files


unpack = cloudpickle.loads


def pack_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[bytes, dict[str, Source]]:
    """A call as bytes, and the cells that its code was written in. `RankError` names what cannot be sent."""
    try:
        data, files = pack((fn, args, kwargs))
    except Exception as error:
        raise RankError(f"{culprit(fn, args, kwargs)} cannot be sent to the ranks: {reason(error)}") from None
    return data, {file: source for file in files if (source := cell(file))}


def reason(error: BaseException) -> str:
    """One line: what pickle or cloudpickle says."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= 200 else text[:200] + " ..."


def culprit(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Which part of a call cannot be packed, in words."""
    name = getattr(fn, "__qualname__", type(fn).__name__).split("<locals>.")[-1]
    parts = [(f"argument {place} of {name}", value) for place, value in enumerate(args, 1)]
    parts += [(f"argument {key!r} of {name}", value) for key, value in kwargs.items()]
    inner = functools.partial(inspect.unwrap, fn) if callable(fn) else None
    try:
        used = inspect.getclosurevars(inner()) if inner is not None else None
    except (TypeError, ValueError):
        used = None
    if used is not None:
        parts += [(f"{key!r}, which {name} uses,", value) for key, value in {**used.nonlocals, **used.globals}.items()]
    for words, value in parts:
        try:
            pack(value)
        except Exception:
            return words
    return f"the function {name}"


def cell(file: str) -> Source | None:
    """Name and text of the notebook cell (or other text that is no file) that code came from."""
    if os.path.exists(file):
        return None
    text = "".join(linecache.getlines(file))
    if not text:
        return None
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    with_name = getattr(getattr(shell, "compile", None), "format_code_name", None)
    found = with_name(file) if with_name is not None else None
    return (" ".join(found) if found else file), text
