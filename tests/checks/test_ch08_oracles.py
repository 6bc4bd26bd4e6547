"""What chapter 8's exercises call right, against FSDP's counted traffic, the event model, and the formulas."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from course_lib.checks.ch08 import BYTES
from course_lib.checks.ch08_crossover import CROSSOVER, _first
from course_lib.checks.ch08_overlap import OVERLAP, simulate
from course_lib.checks.ch08_traffic import KINDS, sends
from course_lib.parallel.overlap import LayerTimes, fsdp_tasks
from course_lib.parallel.timeline import simulate as simulate_tasks
from course_lib.parallel.traffic import count_traffic, fake_ranks
from course_lib.planning.communication import batch_floor, crossover, shard_bytes

RANKS, NODE, WIDTH, LAYERS = 16, 4, 64, 3


@pytest.fixture(autouse=True)
def no_group() -> Iterator[None]:
    yield
    assert not dist.is_initialized()


def _step(kind: dict[str, Any]) -> tuple[float, int]:
    """Bytes that rank 0 of RANKS sends in one step of a small model under `fully_shard`, and its parameters."""
    with fake_ranks(RANKS):
        names, shape = (None, (RANKS,)) if kind["node"] is None else (("replica", "shard"), (RANKS // NODE, NODE))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
        reduce = torch.float32 if kind["gradient"] == 4 else torch.bfloat16
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
        numbers = sum(p.numel() for p in model.parameters())
        for part in [*model, model]:
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=kind["again"])
        assert isinstance(model, FSDPModule)
        with count_traffic() as traffic:
            for number in range(kind["micro_batches"]):
                last = number == kind["micro_batches"] - 1
                model.set_requires_gradient_sync(last or not kind["deferred"])
                model(torch.zeros(2, WIDTH)).sum().backward()
    return traffic.sent("bytes"), numbers


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_bytes_sent_are_those_of_fully_shard(number: int) -> None:
    """Exact: sizes are whole, and every rank's share is too."""
    kind = dict(KINDS[number])
    kind["node"] = kind["node"] and NODE
    counted, numbers = _step(kind)
    assert sends({**kind, "parameters": numbers, "ranks": RANKS}) == pytest.approx(counted, rel=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_starts_are_those_of_the_event_model(seed: int) -> None:
    """In forward `prefetch` layers ahead leave room for one more, the one that computes."""
    for case in OVERLAP.cases(seed):
        pairs = list(zip(case["compute"], case["gather"], strict=True))
        layers = [LayerTimes(forward=forward, backward=1, gather=gather, scatter=1) for forward, gather in pairs]
        start = {slot.name: slot.start for slot in simulate_tasks(fsdp_tasks(layers, prefetch=case["ahead"])).slots}
        wanted = [(start[f"gather {n}"], start[f"forward {n}"]) for n in range(len(pairs))]
        assert simulate(case["compute"], case["gather"], case["ahead"] + 1) == wanted


@pytest.mark.parametrize("seed", range(3))
def test_bytes_and_crossings_are_those_of_the_formulas(seed: int) -> None:
    for case in BYTES.cases(seed):
        strategy = ("ddp", "zero1", "zero2", "zero3")[case["stage"]]
        held = sum(shard_bytes(strategy, case["parameters"], case["ranks"]).values())
        assert BYTES.judge(case, held / 1e9) is None
    for case in CROSSOVER.cases(seed):
        job = case["job"]
        flops, sent = 6 * job["parameters"] * job["tokens"], job["passes"] * 2 * job["parameters"]
        after = int(crossover(flops, sent, job["flops"], job["bandwidth"])) + 1
        assert _first(job) == (after if after <= batch_floor(job["tokens"], job["sequence"]) else None)
