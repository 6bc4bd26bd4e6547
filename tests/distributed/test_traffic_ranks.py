"""Traffic counted on real gloo ranks: the same numbers as on pretended ones, and the same on every rank."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from course_lib.parallel.launch import run_ranks
from course_lib.parallel.traffic import count_traffic

WIDTH, LAYERS = 24, 3
LAYER = WIDTH * WIDTH + WIDTH
ALL = LAYERS * LAYER
RANKS = (2, 4)


def stack():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def step(model):
    model(torch.full((2, WIDTH), dist.get_rank() + 1.0)).sum().backward()


def by_ddp():
    model = DistributedDataParallel(stack(), bucket_cap_mb=4 * LAYER / 2**20)
    for _ in range(2):
        step(model)  # the second forward agrees on the order of buckets
    with count_traffic() as skipped, model.no_sync():
        step(model)
    with count_traffic() as first:
        step(model)
    with count_traffic() as counted:
        step(model)
    return skipped, first, counted


@pytest.mark.parametrize("ranks", RANKS)
def test_ddp(ranks):
    for skipped, first, counted in run_ranks(by_ddp, ranks):
        assert not skipped.calls
        assert first.sent(kind="all_reduce") == counted.sent() == 2 * ALL * (ranks - 1) / ranks
        assert counted.count() == counted.count("all_reduce", backward=True) == LAYERS
        assert counted.calls[0].group == tuple(range(ranks))


def by_fsdp(shape, reshard):
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :])
    model = stack()
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    fully_shard(model, mesh=mesh, reshard_after_forward=reshard)
    step(model)
    with count_traffic() as counted:
        step(model)
    with count_traffic() as clipping:
        nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    with count_traffic() as deferred:
        model.set_requires_gradient_sync(False)
        step(model)
        model.set_requires_gradient_sync(True)
        step(model)
    gradient = model[0].weight.grad.full_tensor()
    return counted, clipping, deferred, gradient


def reference(ranks):
    """The gradient that FSDP leaves after the four steps: the average over ranks, summed over steps."""
    model = stack()
    for rank in range(ranks):
        (model(torch.full((2, WIDTH), rank + 1.0)).sum() / ranks).backward()
    return 4 * model[0].weight.grad


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp(ranks, reshard):
    share = (ranks - 1) / ranks
    for counted, clipping, deferred, gradient in run_ranks(by_fsdp, ranks, (ranks,), reshard):
        assert counted.count("all_gather") == (2 if reshard else 1) * LAYERS
        assert counted.count("reduce_scatter") == LAYERS
        assert counted.sent() == (3 if reshard else 2) * ALL * share
        assert clipping.count("all_reduce") == clipping.count() == 1 and clipping.calls[0].elements == 2 * LAYERS
        assert deferred.sent(kind="reduce_scatter") == ALL * share
        torch.testing.assert_close(gradient, reference(ranks))


def test_hybrid_sharding():
    groups = []
    for counted, _, _, _ in run_ranks(by_fsdp, 4, (2, 2), True):
        assert counted.sent() == 3 * ALL / 2 + 2 * (ALL / 2) / 2
        groups.append(counted.select("all_gather")[0].group)
    assert groups == [(0, 1), (0, 1), (2, 3), (2, 3)]


def by_hand():
    import torch.distributed._functional_collectives as functional

    rank, ranks = dist.get_rank(), dist.get_world_size()
    with count_traffic() as traffic:
        tensor = torch.ones(4, requires_grad=True)
        gathered = functional.all_gather_tensor_autograd(tensor, 0, dist.group.WORLD)
        (gathered * (rank + 1)).sum().backward()
        got = torch.empty(3)
        pair = [dist.isend(torch.full((3,), float(rank)), (rank + 1) % ranks), dist.irecv(got, (rank - 1) % ranks)]
        for work in pair:
            work.wait()
        objects = [None] * ranks
        dist.all_gather_object(objects, {"rank": rank})
        dist.barrier()
        sizes = torch.tensor([k + 1 for k in range(ranks)])
        mine = torch.empty(ranks * (rank + 1))
        dist.all_to_all_single(mine, torch.ones(int(sizes.sum())), [rank + 1] * ranks, sizes.tolist())
    return traffic, tensor.grad, got, objects


@pytest.mark.parametrize("ranks", RANKS)
def test_a_program_by_hand_is_counted_and_still_right(ranks):
    total = ranks * (ranks + 1) // 2
    for rank, (traffic, gradient, got, objects) in enumerate(run_ranks(by_hand, ranks)):
        assert [(c.kind, c.elements, c.backward) for c in traffic.calls if c.dtype == "float32"] == [
            ("all_gather", 4 * ranks, False),
            ("reduce_scatter", 4 * ranks, True),
            ("send", 3, False),
            ("recv", 3, False),
            ("all_to_all", total, False),
        ]
        assert [c.kind for c in traffic.calls if c.dtype != "float32"] == ["all_gather", "all_gather", "barrier"]
        send, receive = traffic.select("send") + traffic.select("recv")
        assert (send.peer, receive.peer) == ((rank + 1) % ranks, (rank - 1) % ranks)
        assert traffic.sent(kind="all_to_all") == total - (rank + 1)
        assert gradient.tolist() == [total] * 4 and got.tolist() == [(rank - 1) % ranks] * 3
        assert objects == [{"rank": r} for r in range(ranks)]


def times_counted():
    """A step's collectives, waited for by hand while counting: async operations count once, when issued."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with count_traffic() as traffic:
            work = dist.all_reduce(torch.ones(6), async_op=True)
            issued = traffic.count()
            work.wait()
    return issued, traffic.count()


def test_a_collective_counts_when_it_is_issued():
    assert run_ranks(times_counted, 2) == [(1, 1)] * 2
