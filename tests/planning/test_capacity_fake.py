"""Predicted peaks against torch's own memory trackers, which follow every tensor of a real step whose tensors are fake.

Under `FakeTensorMode` a tensor has a shape and no bytes, and a fake process group answers at once, so that one process
plays one rank of 64 of a model that would not fit. What was learnt about the trackers:

- The first step precedes the optimizer's state: the second one counts, after `reset_mod_stats`.
- `MemTracker` for plain tensors, `FSDPMemTracker` for `fully_shard`; meshes are made outside of fake mode, also the one
  that `fully_shard` makes for itself of two.
- In fake mode a DTensor's loss over a split vocabulary is counted at the whole vocabulary's size. Where logits are
  whole on each rank (`split_loss=False`) the tracker is right; the split loss is checked with real, small tensors.
- A tracker's hook keeps a pipeline stage's input for good: its bytes are given back by hand.

5% is what is asked for. These come within 2%: the trackers count everything that the formulas count, and what is left
is a kernel's own temporaries.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_leaves

from course_lib.config import ModelConfig
from course_lib.masters import MasterWeights
from course_lib.memory import Peak
from course_lib.model import GPT, RMSNorm
from course_lib.parallel import composed, fsdp, tensor_torch
from course_lib.parallel.composed import FullyShardTensor
from course_lib.parallel.fsdp import FullyShard, local
from course_lib.parallel.pipeline import split_model
from course_lib.parallel.schedule import simulate
from course_lib.parallel.strategy import Strategy, summed_loss
from course_lib.parallel.tensor_torch import TorchTensorParallel
from course_lib.parallel.traffic import fake_ranks
from course_lib.planning.capacity import stage_bytes
from course_lib.planning.spec import DataSpec, ModelSpec
from course_lib.recompute import recompute_blocks

WITHIN = 0.02

SMALL = ModelConfig(
    vocab_size=8000, d_model=1024, n_layers=4, n_heads=16, n_kv_heads=4, d_ff=2816, context=512, tie_embeddings=False
)
ONE = ModelConfig(
    vocab_size=32000, d_model=2048, n_layers=20, n_heads=16, d_ff=5632, context=1024, tie_embeddings=False
)
SEVEN = ModelConfig(
    vocab_size=32000, d_model=4096, n_layers=32, n_heads=32, d_ff=11008, context=1024, tie_embeddings=False
)
"""60M, 1.2B and 6.7B parameters; the last has Llama 2's shape."""

Snapshot = dict[str, int]


class Quick:
    """A tracker's peak without the peaks of each module, which take most of its time."""

    def _update_peak_stats(self, peak_state: Any) -> None:
        for device, now in self._curr_mem_snap.items():  # type: ignore[attr-defined]
            if self._peak_mem.get(device, 0) < now["Total"]:  # type: ignore[attr-defined]
                self._peak_mem[device] = now["Total"]  # type: ignore[attr-defined]
                self._peak_mem_snap[device] = dict(now)  # type: ignore[attr-defined]


class Plain(Quick, MemTracker):
    """For ordinary tensors."""


class Sharded(Quick, FSDPMemTracker):
    """For `fully_shard`."""


def second_step(
    tracker: Any, compute: Callable[[], object], update: Callable[[], object], drop: Callable[[], object]
) -> dict[str, Snapshot]:
    """What is tracked at the "start" of the second step, at the worst moment of "compute" and of "update"."""

    def peak(run: Callable[[], object]) -> Snapshot:
        tracker._peak_mem.clear()
        tracker._peak_mem_snap.clear()
        run()
        return now("peak")

    def now(kind: str) -> Snapshot:
        found = [*tracker.get_tracker_snapshot(kind).values()]
        return {str(getattr(part, "value", part)): size for part, size in found[0].items()} if found else {"Total": 0}

    with tracker:
        for _ in range(2):
            tracker.reset_mod_stats()
            found = {"start": now("current"), "compute": peak(compute), "update": peak(update)}
            drop()
    return found


@contextmanager
def meshes_outside(world: int, shape: tuple[int, ...], names: tuple[str, ...]) -> Iterator[None]:
    """One rank of `world`, whose meshes are real; what is inside is fake."""
    concatenate = DeviceMesh._concatenate

    def really(meshes: list[DeviceMesh]) -> DeviceMesh:
        with unset_fake_temporarily():
            return concatenate(meshes)

    with fake_ranks(world), pytest.MonkeyPatch.context() as patch:
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        for module in (fsdp, composed, tensor_torch):
            patch.setattr(module, "init_device_mesh", lambda *_, **__: mesh)
        patch.setattr(DeviceMesh, "_concatenate", staticmethod(really))
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield


def tokens(config: ModelConfig, rows: int) -> tuple[Tensor, Tensor]:
    x, y = (torch.randint(0, config.vocab_size, (rows, config.context)) for _ in range(2))
    return x, y


def adamw(parameters: Any, fused: bool = True) -> torch.optim.AdamW:
    return torch.optim.AdamW(parameters, lr=1e-3, fused=fused, foreach=False)


def drive(tracker: Any, strategy: Strategy, x: Tensor, y: Tensor, micro: int) -> dict[str, Snapshot]:
    return second_step(
        tracker,
        lambda: strategy.forward_backward(x, y, y.numel(), micro, tracker.reset_mod_stats),
        strategy.optimizer.step,
        lambda: strategy.optimizer.zero_grad(set_to_none=True),
    )


def plain(config: ModelConfig, *, batch: int, recompute: str = "none", micro: int = 1) -> dict[str, Snapshot]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        strategy = Strategy(recompute_blocks(GPT(config), recompute), adamw)
        x, y = tokens(config, batch * micro)
        tracker = Plain()
        tracker.track_external(strategy.model, strategy.optimizer, x, y)
        return drive(tracker, strategy, x, y, micro)


def masters(config: ModelConfig, *, batch: int, recompute: str = "none", micro: int = 1) -> dict[str, Snapshot]:
    """BF16 weights and gradients, FP32 masters and moments."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model = recompute_blocks(GPT(config), recompute)
        weights = MasterWeights(model, torch.bfloat16)
        optimizer = adamw([*weights.trained().values()])
        strategy = Strategy(model, lambda _: optimizer)
        x, y = tokens(config, batch * micro)
        tracker = Plain()
        tracker.track_external(model, optimizer, [*weights.masters.values()], x, y)

        def update() -> None:
            weights.take_gradients()
            optimizer.step()
            weights.copy_back()

        return second_step(
            tracker,
            lambda: strategy.forward_backward(x, y, y.numel(), micro, tracker.reset_mod_stats),
            update,
            lambda: (optimizer.zero_grad(), model.zero_grad()),
        )


def sharded(
    config: ModelConfig, *, batch: int, ranks: int, recompute: str = "none", micro: int = 1, **options: Any
) -> dict[str, Snapshot]:
    groups = options.get("replicas", 1)
    shape, names = ((ranks,), ("shard",)) if groups == 1 else ((groups, ranks // groups), ("replica", "shard"))
    with meshes_outside(ranks, shape, names):
        model = recompute_blocks(GPT(config), recompute)
        strategy = FullyShard(model, adamw, deferred="none", **options)
        x, y = tokens(config, batch * micro)
        tracker = Sharded(model, strategy.optimizer)
        tracker.track_inputs((x, y))
        return drive(tracker, strategy, x, y, micro)


def tensor(
    config: ModelConfig, *, batch: int, ranks: int, recompute: str = "none", **options: Any
) -> dict[str, Snapshot]:
    with meshes_outside(ranks, (ranks,), ("tp",)):
        strategy = TorchTensorParallel(GPT(config), lambda p: adamw(p, fused=False), **options)
        recompute_blocks(strategy.model, recompute)
        x, y = tokens(config, batch)
        tracker = Plain()
        tracker.track_external(strategy.model, strategy.optimizer, x, y)
        return drive(tracker, strategy, x, y, 1)


def both(
    config: ModelConfig, *, batch: int, dp: int, tp: int, recompute: str = "none", **options: Any
) -> dict[str, Snapshot]:
    with meshes_outside(dp * tp, (dp, tp), ("dp", "tp")):
        strategy = FullyShardTensor(GPT(config), lambda p: adamw(p, fused=False), dp=dp, tp=tp, **options)
        recompute_blocks(strategy.model, recompute)
        x, y = tokens(config, batch)
        tracker = Sharded(strategy.model, strategy.optimizer)
        tracker.track_inputs((x, y))
        return drive(tracker, strategy, x, y, 1)


def stage(
    config: ModelConfig,
    *,
    batch: int,
    stages: int,
    rank: int,
    micro: int,
    recompute: str = "none",
    schedule: str = "1f1b",
) -> dict[str, Snapshot]:
    """One stage alone: what arrives is empty, and goes nowhere. Its actions are the schedule's."""
    actions = simulate(schedule, stages, micro).actions[rank]
    last = rank == stages - 1
    with FakeTensorMode(allow_non_fake_inputs=True):
        part = split_model(recompute_blocks(GPT(config), recompute), stages)[rank]
        optimizer = adamw(part.parameters())
        x, y = tokens(config, batch * micro)
        tracker = Plain()
        tracker.track_external(part, optimizer, x, y)
        shares, targets = x.tensor_split(micro), y.tensor_split(micro)

        def compute() -> None:
            held: dict[int, tuple[Tensor, Tensor]] = {}
            for action in actions:
                k = action.microbatch
                if action.kind == "F":
                    tracker.reset_mod_stats()
                    arrived = shares[k] if rank == 0 else part.arrives(shares[k]).requires_grad_()
                    out = part(arrived)
                    held[k] = arrived, summed_loss(out, targets[k], y.numel()) if last else out
                    del arrived, out
                else:
                    arrived, out = held.pop(k)
                    out.backward(None if last else torch.empty_like(out))
                    if arrived.grad is not None:
                        for kept in (arrived, arrived.grad):
                            kept.untyped_storage().resize_(0)
                    del arrived, out

        return second_step(tracker, compute, optimizer.step, optimizer.zero_grad)


def predicted(
    config: ModelConfig, *, batch: int, micro: int = 1, rank: int = 0, **layout: Any
) -> dict[str, dict[str, float]]:
    """By moment and category."""
    keywords: dict[str, Any] = {
        "sharding": "ddp", "schedule": "1f1b", "recompute": "none", "recipe": "adamw-fp32", "data_ranks": 1,
        "replicas": 1, "tensor": 1, "pipeline": 1, "chunks": 1, "context": 1, "expert": 1, "micro_batch": batch,
        "sequence_parallel": False, "fused_attention": True, "fused_norm": False, "split_loss": False,
    } | layout  # fmt: skip
    rows = batch * micro * keywords["data_ranks"]
    model = ModelSpec(
        layers=config.n_layers, width=config.d_model, heads=config.n_heads, kv_heads=config.kv_heads,
        ffn=config.ff, vocab=config.vocab_size,
    )  # fmt: skip
    data = DataSpec(tokens=1e9, sequence=config.context, global_batch=rows)
    found = stage_bytes(model, data, rank=rank, global_batch=rows, **keywords)
    return {moment: {part: float(size) for part, size in parts.items()} for moment, parts in found.items()}


Case = tuple[Callable[..., dict[str, Snapshot]], dict[str, Any], dict[str, Any]]
"""What runs it, its options, and the same as layout."""
FSDP: dict[str, Any] = {"sharding": "fsdp"}
CASES: dict[str, Case] = {
    "plain": (plain, {"batch": 4}, {}),
    "two micro-batches": (plain, {"batch": 2, "micro": 2}, {}),
    "recompute": (plain, {"batch": 4, "recompute": "all"}, {"recompute": "all"}),
    "masters": (masters, {"batch": 4}, {"recipe": "adamw-16bit"}),
    "masters, recompute": (
        masters,
        {"batch": 4, "recompute": "all"},
        {"recipe": "adamw-16bit", "recompute": "all"},
    ),
    "FSDP2": (sharded, {"batch": 1, "ranks": 64}, {**FSDP, "data_ranks": 64}),
    "FSDP2, recompute": (
        sharded,
        {"batch": 1, "ranks": 64, "recompute": "all"},
        {**FSDP, "data_ranks": 64, "recompute": "all"},
    ),
    "FSDP2, no reshard": (
        sharded,
        {"batch": 1, "ranks": 8, "reshard": False},
        {"sharding": "fsdp_no_reshard", "data_ranks": 8},
    ),
    "HSDP": (
        sharded,
        {"batch": 2, "ranks": 16, "replicas": 2, "micro": 2},
        {"sharding": "hsdp", "data_ranks": 16, "replicas": 2},
    ),
    "TP": (tensor, {"batch": 4, "ranks": 4}, {"tensor": 4}),
    "TP, sequence": (
        tensor,
        {"batch": 4, "ranks": 4, "sequence": True},
        {"tensor": 4, "sequence_parallel": True},
    ),
    "TP, recompute": (tensor, {"batch": 4, "ranks": 4, "recompute": "all"}, {"tensor": 4, "recompute": "all"}),
    "FSDP2 + TP": (
        both,
        {"batch": 4, "dp": 8, "tp": 4, "sequence": True},
        {**FSDP, "data_ranks": 8, "tensor": 4, "sequence_parallel": True},
    ),
    "first stage": (
        stage,
        {"batch": 2, "stages": 4, "rank": 0, "micro": 6},
        {"pipeline": 4, "rank": 0, "micro": 6},
    ),
    "middle stage": (
        stage,
        {"batch": 2, "stages": 4, "rank": 1, "micro": 6},
        {"pipeline": 4, "rank": 1, "micro": 6},
    ),
    "last stage": (stage, {"batch": 2, "stages": 4, "rank": 3, "micro": 6}, {"pipeline": 4, "rank": 3, "micro": 6}),
    "first stage, GPipe": (
        stage,
        {"batch": 2, "stages": 2, "rank": 0, "micro": 3, "schedule": "gpipe"},
        {"pipeline": 2, "rank": 0, "micro": 3, "schedule": "gpipe"},
    ),
}
RESIDENT = {"weights": ("Parameter", "Sharded Param"), "optimizer": ("Optstate", "OptState", "Other")}


def compare(config: ModelConfig, name: str) -> None:
    run, options, layout = CASES[name]
    tracked = run(config, **options)
    expected = predicted(config, batch=options["batch"], **{"micro": options.get("micro", 1), **layout})
    ours = {moment: sum(parts.values()) for moment, parts in expected.items()}
    update = ours.pop("optimizer")
    assert max(ours.values()) == pytest.approx(tracked["compute"]["Total"], rel=WITHIN)
    for part, names in RESIDENT.items():
        # AdamW counts its steps, 4 bytes a tensor; the trackers have the batch among "Other", with masters.
        found = sum(tracked["start"].get(name, 0) for name in names)
        assert expected["loss"][part] == pytest.approx(found, rel=0.003), part
    if run is tensor:  # a loop over parameters; and DTensor leaves the split embedding's gradient whole on each rank
        looped = predicted(config, batch=options["batch"], optimizer="loop", **layout)["optimizer"]
        update = sum(looped.values()) + 4 * config.vocab_size * config.d_model * (1 - 1 / options["ranks"])
    if run is not both:  # there the gradient is neither whole nor cut as its parameter is
        assert update == pytest.approx(tracked["update"]["Total"], rel=WITHIN)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_predicted_is_tracked(name: str) -> None:
    compare(SMALL, name)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fused", "foreach", "loop"])
def test_an_optimizers_temporaries(name: str) -> None:
    options = {"fused": {"fused": True}, "foreach": {"foreach": True}, "loop": {"foreach": False}}[name]
    with FakeTensorMode(allow_non_fake_inputs=True):
        strategy = Strategy(GPT(SMALL), lambda p: torch.optim.AdamW(p, lr=1e-3, **options))
        x, y = tokens(SMALL, 1)
        tracker = Plain()
        tracker.track_external(strategy.model, strategy.optimizer, x, y)
        tracked = drive(tracker, strategy, x, y, 1)["update"]["Total"]
    found = sum(predicted(SMALL, batch=1, optimizer=name)["optimizer"].values())
    assert found == pytest.approx(tracked, rel=0.003)  # rotary tables and the batch are not in it


class OneKernel(torch.autograd.Function):
    """A norm that keeps what torch's fused kernel on a GPU keeps: the stream, the gain, one number a row."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor) -> Tensor:
        ctx.save_for_backward(x, gain, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return torch.empty_like(gradient), torch.empty_like(ctx.saved_tensors[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain", "masters", "recompute", "FSDP2", "first stage"])
def test_norms_in_one_kernel(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RMSNorm, "forward", lambda self, x: OneKernel.apply(x, self.weight))
    run, options, layout = CASES[name]
    keywords = {"micro": options.get("micro", 1), **layout, "fused_norm": True}
    ours = predicted(SMALL, batch=options["batch"], **keywords)
    found = max(sum(parts.values()) for moment, parts in ours.items() if moment != "optimizer")
    assert found == pytest.approx(run(SMALL, **options)["compute"]["Total"], rel=WITHIN)


class RealPeak(Peak):
    """Sees what a DTensor's operator does to this rank's own part; not what DTensor tries out on fake tensors."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:
            return NotImplemented
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and not isinstance(leaf, FakeTensor | DTensor):
                self._follow(leaf)
        return result


@pytest.mark.slow
@pytest.mark.parametrize("sequence", [False, True])
def test_a_split_loss_with_real_tensors(sequence: bool) -> None:
    """5%: DTensor keeps a copy here and there of what is one tensor in the formulas."""
    config = ModelConfig(
        vocab_size=16000, d_model=256, n_layers=2, n_heads=8, d_ff=704, context=256, tie_embeddings=False
    )
    with fake_ranks(4):
        strategy = TorchTensorParallel(GPT(config), adamw, split_loss=True, sequence=sequence)
        x, y = tokens(config, 4)
        with RealPeak([local(p.detach()) for p in strategy.model.parameters()]) as peak:
            strategy.forward_backward(x, y, y.numel())
    ours = predicted(config, batch=4, tensor=4, split_loss=True, sequence_parallel=sequence)
    found = max(sum(parts.values()) - parts["optimizer"] for moment, parts in ours.items() if moment != "optimizer")
    assert found == pytest.approx(peak.peak, rel=0.05)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["plain", "FSDP2, recompute", "TP, sequence", "last stage"])
def test_predicted_is_tracked_at_1b(name: str) -> None:
    compare(ONE, name)


@pytest.mark.stress
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", ["plain", "recompute", "masters", "FSDP2", "HSDP", "FSDP2 + TP", "TP", "first stage"])
def test_predicted_is_tracked_at_7b(name: str) -> None:
    compare(SEVEN, name)
