"""What `traffic` needs of torch's private parts, in one place (torch 2.13).

`TorchDispatchMode` sees each operator below autograd, also those that C++ issues (DDP's reducer) and those of backward.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import GroupName, _resolve_process_group
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["FORMS", "SILENT", "Issued", "schemas", "start_fake", "watch"]

NAMESPACES = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor")


class Issued(TypedDict):
    """One collective as an operator's arguments describe it: the fields of `traffic.Collective`."""

    kind: str
    group: tuple[int, ...]
    elements: int
    bytes: int
    dtype: str
    backward: bool
    peer: int | None
    stays: float


def watch(note: Callable[[Issued], None]) -> AbstractContextManager[Any]:
    """While open, call `note` for each collective that this thread issues.

    One that another operator issues inside (a functional collective runs a c10d one) is not reported again.
    """
    return _Watch(note)


class _Watch(TorchDispatchMode):
    def __init__(self, note: Callable[[Issued], None]) -> None:
        super().__init__()
        self.note = note
        self.groups: dict[str, tuple[int, ...]] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        # A tensor that wraps others (DTensor, AsyncCollectiveTensor) first turns its operator into those that it needs,
        # and the mode sees these. Otherwise what it sends would be issued while the mode is switched off.
        if any(hasattr(kind, "__tensor_flatten__") for kind in types):
            return NotImplemented
        if getattr(func, "namespace", "") in NAMESPACES and func.name().split(".")[0] not in SILENT:
            for call in self.read(func.name().split(".")[0], args):
                self.note(call)
        return func(*args, **(kwargs or {}))

    def ranks(self, group: Any) -> tuple[int, ...]:
        """Global ranks of a group, which an operator gets as a boxed process group or by its name."""
        if isinstance(group, str):
            group = _resolve_process_group(GroupName(group))
        elif not isinstance(group, dist.ProcessGroup):
            group = dist.ProcessGroup.unbox(group)
        name = group.group_name
        if name not in self.groups:
            self.groups[name] = tuple(dist.get_process_group_ranks(group))
        return self.groups[name]

    def read(self, name: str, args: tuple[Any, ...]) -> list[Issued]:
        """What one call of an operator sends: one collective, or for a batch of sends and receives each of them."""
        if name == "_c10d_functional::batch_p2p_ops":
            kinds, peers, tags, tensors, group = args
            single = "_c10d_functional::{}".format
            each = zip(kinds, tensors, peers, tags, strict=True)
            return [call for kind, *rest in each for call in self.read(single(kind), (*rest, group))]
        form = FORMS[name]
        group = self.ranks(args[form.group])
        tensors = [] if form.kind == "barrier" else _flat(args[form.tensors])
        whole = len(group) if form.part else 1
        elements = sum(tensor.numel() for tensor in tensors)
        return [
            {
                "kind": form.kind,
                "group": group,
                "elements": whole * elements,
                "bytes": whole * sum(tensor.numel() * tensor.element_size() for tensor in tensors),
                "dtype": "+".join(dict.fromkeys(str(tensor.dtype).removeprefix("torch.") for tensor in tensors)),
                "backward": torch._C._current_graph_task_id() != -1,
                "peer": None if form.peer is None else group[args[form.peer]],
                "stays": _stays(form, args, group, elements) if form.kind == "all_to_all" else 0.0,
            }
        ]


def _flat(value: Any) -> list[Tensor]:
    """The tensors in a tensor, a list, or a list of lists."""
    return [value] if isinstance(value, Tensor) else [one for part in value for one in _flat(part)]


def _stays(form: "_Form", args: tuple[Any, ...], group: tuple[int, ...], elements: int) -> float:
    """Elements of an all-to-all's input that are this rank's own already."""
    mine = group.index(dist.get_rank())
    if form.splits is None or not args[form.splits]:
        inputs = args[form.tensors]
        return elements / len(group) if isinstance(inputs, Tensor) else inputs[mine].numel()
    splits = args[form.splits]
    return elements * splits[mine] / max(sum(splits), 1)


def schemas() -> set[str]:
    """Names of all operators in the communication namespaces of this torch."""
    names = {schema.name for schema in torch._C._jit_get_all_schemas()}
    return {name for name in names if name.split("::")[0] in NAMESPACES}


def start_fake(world_size: int, rank: int) -> None:
    """A default group whose collectives return at once and move nothing."""
    dist.init_process_group("fake", rank=rank, world_size=world_size)


@dataclass(frozen=True)
class _Form:
    """How to read an operator's arguments: their places."""

    kind: str
    tensors: int = 0
    group: int = 1
    part: bool = False
    """Whether the tensors are one rank's part of the whole."""
    peer: int | None = None
    """Place of the other end or the root, which is a rank of the group."""
    splits: int | None = None
    """Place of the rows that go to each rank."""


FORMS = {
    "c10d::allreduce_": _Form("all_reduce"),
    "c10d::allreduce_coalesced_": _Form("all_reduce"),
    "c10d::allgather_": _Form("all_gather", group=2),
    "c10d::_allgather_base_": _Form("all_gather", group=2),
    "c10d::allgather_coalesced_": _Form("all_gather", tensors=1, group=2, part=True),
    "c10d::allgather_into_tensor_coalesced_": _Form("all_gather", group=2),
    "c10d::reduce_scatter_": _Form("reduce_scatter", tensors=1, group=2),
    "c10d::_reduce_scatter_base_": _Form("reduce_scatter", tensors=1, group=2),
    "c10d::reduce_scatter_tensor_coalesced_": _Form("reduce_scatter", tensors=1, group=2),
    "c10d::broadcast_": _Form("broadcast", peer=2),
    "c10d::reduce_": _Form("reduce", peer=3),
    "c10d::gather_": _Form("gather", tensors=1, group=2, part=True, peer=3),
    "c10d::scatter_": _Form("scatter", group=2, part=True, peer=3),
    "c10d::alltoall_": _Form("all_to_all", tensors=1, group=2),
    "c10d::alltoall_base_": _Form("all_to_all", tensors=1, group=2, splits=4),
    "c10d::barrier": _Form("barrier"),
    "c10d::monitored_barrier_": _Form("barrier"),
    "c10d::send": _Form("send", peer=2),
    "c10d::recv_": _Form("recv", peer=2),
    "c10d::recv_any_source_": _Form("recv"),
    "_c10d_functional::all_reduce": _Form("all_reduce", group=2),
    "_c10d_functional::all_reduce_": _Form("all_reduce", group=2),
    "_c10d_functional::all_reduce_coalesced": _Form("all_reduce", group=2),
    "_c10d_functional::all_reduce_coalesced_": _Form("all_reduce", group=2),
    "_c10d_functional::all_gather_into_tensor": _Form("all_gather", group=2, part=True),
    "_c10d_functional::all_gather_into_tensor_out": _Form("all_gather", group=2, part=True),
    "_c10d_functional::all_gather_into_tensor_coalesced": _Form("all_gather", group=2, part=True),
    "_c10d_functional::reduce_scatter_tensor": _Form("reduce_scatter", group=3),
    "_c10d_functional::reduce_scatter_tensor_out": _Form("reduce_scatter", group=3),
    "_c10d_functional::reduce_scatter_tensor_coalesced": _Form("reduce_scatter", group=3),
    "_c10d_functional::all_to_all_single": _Form("all_to_all", group=3, splits=2),
    "_c10d_functional::broadcast": _Form("broadcast", group=2, peer=1),
    "_c10d_functional::broadcast_": _Form("broadcast", group=2, peer=1),
    "_c10d_functional::isend": _Form("send", group=3, peer=1),
    "_c10d_functional::irecv": _Form("recv", group=3, peer=1),
    "_dtensor::shard_dim_alltoall": _Form("all_to_all", group=3),
}
FORMS |= {
    f"_c10d_functional_autograd::{name}": FORMS[f"_c10d_functional::{name}"]
    for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
}

SILENT = frozenset(
    {
        "c10d::check_for_nan",
        "_c10d_functional::wait_tensor",
        "_c10d_functional::_wrap_tensor_autograd",
        "_dtensor::mesh_get_process_group",
    }
)
"""Operators of these namespaces that send nothing."""
