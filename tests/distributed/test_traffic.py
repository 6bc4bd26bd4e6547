"""Traffic counted on pretended ranks, against programs whose traffic is known by hand; values are not looked at."""

import functools
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from course_lib.config import preset
from course_lib.errors import CourseError
from course_lib.model import GPT
from course_lib.parallel import _c10d
from course_lib.parallel.traffic import Collective, Row, Traffic, answer_at_once, count_traffic, fake_ranks

WIDTH, LAYERS = 24, 3
LAYER = WIDTH * WIDTH + WIDTH  # elements of one layer: 600, divisible by the group sizes used here
ALL = LAYERS * LAYER


@pytest.fixture(autouse=True)
def plain_warnings():
    """torch renamed some of these collectives, and warns where a rank is not in a group; both are tried on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def stack():
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)])


def step(model):
    model(torch.ones(2, WIDTH)).sum().backward()


def sharded(mesh, **options):
    model = stack()
    for layer in model:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def listed(traffic):
    return [(call.kind, call.elements) for call in traffic.calls]


# --------------------------------------------------------------------------------------------------- plain collectives


def objects():
    dist.all_gather_object([None] * dist.get_world_size(), {"a": 1})


def functional(name, tensor, *rest):
    import torch.distributed._functional_collectives as made

    return getattr(made, name)(tensor, *rest, dist.group.WORLD)


wait = torch.ops._c10d_functional.wait_tensor


PLAIN = {
    "all_reduce": (lambda: dist.all_reduce(torch.ones(6, 2)), "all_reduce", 12, 2 * 12 * 3 / 4),
    "all_gather": (
        lambda: dist.all_gather([torch.ones(5) for _ in range(4)], torch.ones(5)),
        "all_gather",
        20,
        20 * 3 / 4,
    ),
    "all_gather_into_tensor": (
        lambda: dist.all_gather_into_tensor(torch.ones(20), torch.ones(5)),
        "all_gather",
        20,
        20 * 3 / 4,
    ),
    "reduce_scatter": (
        lambda: dist.reduce_scatter(torch.ones(5), [torch.ones(5) for _ in range(4)]),
        "reduce_scatter",
        20,
        20 * 3 / 4,
    ),
    "reduce_scatter_tensor": (
        lambda: dist.reduce_scatter_tensor(torch.ones(5), torch.ones(20)),
        "reduce_scatter",
        20,
        20 * 3 / 4,
    ),
    "broadcast": (lambda: dist.broadcast(torch.ones(8), 1), "broadcast", 8, 8 * 3 / 4),
    "reduce": (lambda: dist.reduce(torch.ones(8), 1), "reduce", 8, 8 * 3 / 4),
    "gather": (
        lambda: dist.gather(torch.ones(3), [torch.ones(3) for _ in range(4)] if dist.get_rank() == 0 else None),
        "gather",
        12,
        3 * 3 / 4,
    ),
    "scatter": (
        lambda: dist.scatter(torch.ones(3), [torch.ones(3) for _ in range(4)] if dist.get_rank() == 0 else None),
        "scatter",
        12,
        3 * 3 / 4,
    ),
    "all_to_all_single": (
        lambda: dist.all_to_all_single(torch.ones(8), torch.ones(8)),
        "all_to_all",
        8,
        6,
    ),
    "all_to_all_uneven": (
        lambda: dist.all_to_all_single(torch.ones(4, 2), torch.ones(7, 2), [1, 1, 1, 1], [4, 1, 0, 2]),
        "all_to_all",
        14,
        6,
    ),
    "all_to_all_list": (
        lambda: dist.all_to_all([torch.ones(k + 1) for k in range(4)], [torch.ones(k + 1) for k in range(4)]),
        "all_to_all",
        10,
        9,
    ),
    "barrier": (lambda: dist.barrier(), "barrier", 0, 0),
    "isend": (lambda: dist.isend(torch.ones(9), 2), "send", 9, 9),
    "irecv": (lambda: dist.irecv(torch.ones(9), 2).wait(), "recv", 9, 0),
    "functional all_reduce": (
        lambda: functional("all_reduce", torch.ones(6), "sum") + 1,
        "all_reduce",
        6,
        2 * 6 * 3 / 4,
    ),
    "functional all_gather": (
        lambda: functional("all_gather_tensor", torch.ones(5), 0) + 1,
        "all_gather",
        20,
        20 * 3 / 4,
    ),
    "functional reduce_scatter": (
        lambda: functional("reduce_scatter_tensor", torch.ones(20), "sum", 0) + 1,
        "reduce_scatter",
        20,
        20 * 3 / 4,
    ),
    "functional broadcast": (lambda: functional("broadcast", torch.ones(8), 1) + 1, "broadcast", 8, 8 * 3 / 4),
    "functional all_to_all": (
        lambda: functional("all_to_all_single", torch.ones(7), [1, 1, 1, 1], [4, 1, 0, 2]) + 1,
        "all_to_all",
        7,
        3,
    ),
}


@pytest.mark.parametrize("name", PLAIN)
def test_one_collective_is_one_line_with_its_size(name):
    program, kind, elements, sent = PLAIN[name]
    with fake_ranks(4), count_traffic() as traffic:
        program()
    (call,) = traffic.calls
    assert (call.kind, call.elements, call.sent, call.backward) == (kind, elements, sent, False)
    assert call.group == (0, 1, 2, 3) and call.bytes == 4 * elements
    assert call.dtype == ("" if kind == "barrier" else "float32")
    assert (traffic.sent(), traffic.sent("bytes")) == (sent, 4 * sent)


def test_every_operator_of_this_torch_is_read_or_known_to_send_nothing():
    known = set(_c10d.FORMS) | _c10d.SILENT | {"_c10d_functional::batch_p2p_ops"}
    assert _c10d.schemas() == known


def test_a_batch_of_sends_and_receives_is_each_of_them():
    with fake_ranks(4, rank=1), count_traffic() as traffic:
        dist.batch_isend_irecv(
            [dist.P2POp(dist.isend, torch.ones(3), 2), dist.P2POp(dist.irecv, torch.ones(5, dtype=torch.int64), 0)]
        )
    send, receive = traffic.calls
    assert (send.kind, send.peer, send.elements, send.bytes) == ("send", 2, 3, 12)
    assert (receive.kind, receive.peer, receive.elements, receive.bytes) == ("recv", 0, 5, 40)


def test_a_functional_batch_too():
    with fake_ranks(4, rank=1), count_traffic() as traffic:
        name = dist.group.WORLD.group_name
        made = torch.ops._c10d_functional.batch_p2p_ops(
            ["isend", "irecv"], [2, 0], [0, 0], [torch.ones(3), torch.ones(5)], name
        )
        list(map(wait, made))
    assert [(c.kind, c.peer, c.elements) for c in traffic.calls] == [("send", 2, 3), ("recv", 0, 5)]


def test_peers_and_groups_are_global_ranks():
    with fake_ranks(8, rank=5), count_traffic() as traffic:
        odd = dist.new_group([1, 3, 5, 7])
        dist.all_reduce(torch.ones(8), group=odd)
        dist.broadcast(torch.ones(8), 3, group=odd)
        dist.isend(torch.ones(2), 7, group=odd)
        dist.all_reduce(torch.ones(8), group=dist.new_group([0, 2]))  # not a member: nothing happens
    assert [(c.kind, c.group, c.peer) for c in traffic.calls] == [
        ("all_reduce", (1, 3, 5, 7), None),
        ("broadcast", (1, 3, 5, 7), 3),
        ("send", (1, 3, 5, 7), 7),
    ]


def test_what_an_object_collective_sends_is_listed():
    """Two gathers: how long each rank's pickle is, then the pickles, padded to the longest."""
    with fake_ranks(4), count_traffic() as traffic:
        objects()
    length, pickles = traffic.calls
    assert (length.kind, length.dtype, length.elements) == ("all_gather", "int64", 4)
    assert (pickles.kind, pickles.dtype) == ("all_gather", "uint8") and pickles.elements > 4


# --------------------------------------------------------------------------------------------------------- in autograd


@pytest.mark.parametrize(
    ("name", "shape", "rest", "wanted"),
    [
        ("all_gather_tensor_autograd", (5,), (0,), [("all_gather", 20, False), ("reduce_scatter", 20, True)]),
        (
            "reduce_scatter_tensor_autograd",
            (20,),
            ("sum", 0),
            [("reduce_scatter", 20, False), ("all_gather", 20, True)],
        ),
        ("all_to_all_single_autograd", (8,), (None, None), [("all_to_all", 8, False), ("all_to_all", 8, True)]),
    ],
)
def test_backward_of_a_functional_collective_counts(name, shape, rest, wanted):
    tensor = torch.ones(shape, requires_grad=True)
    with fake_ranks(4), count_traffic() as traffic:
        (functional(name, tensor, *rest) * 2).sum().backward()
    assert [(call.kind, call.elements, call.backward) for call in traffic.calls] == wanted
    assert traffic.count(backward=True) == traffic.count(backward=False) == 1


@pytest.mark.parametrize("grad", [True, False])
def test_the_autograd_operators_called_by_name_count_once(grad):
    with fake_ranks(4), torch.inference_mode(not grad), count_traffic() as traffic:
        tensor = torch.ones(5, requires_grad=grad)
        name = dist.group.WORLD.group_name
        wait(torch.ops._c10d_functional_autograd.all_gather_into_tensor(tensor, 4, name))
    assert listed(traffic) == [("all_gather", 20)]


def test_a_dtensor_says_what_it_sends():
    with fake_ranks(4):
        tensor = distribute_tensor(torch.ones(8, 3), init_device_mesh("cpu", (4,)), [Shard(0)])
        with count_traffic() as traffic:
            tensor.full_tensor()
            tensor.sum().full_tensor()
    assert listed(traffic) == [("all_gather", 24), ("all_reduce", 1)]


def test_an_operator_that_moves_a_dtensor_by_itself_is_seen():
    """A product of two row-sharded matrices gathers one of them, inside DTensor's own dispatch."""
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,))
        a, b = (distribute_tensor(torch.ones(8, 8), mesh, [Shard(0)]) for _ in range(2))
        with count_traffic() as traffic:
            a @ b
    assert listed(traffic) == [("all_gather", 64)]


# ------------------------------------------------------------------------------------------------------ data parallel


def ddp(**options):
    model = DistributedDataParallel(stack(), **options)
    model.register_comm_hook(None, answer_at_once)
    return model


def test_ddp_sends_each_gradient_once_and_nothing_under_no_sync():
    with fake_ranks(4):
        with count_traffic() as building:
            model = ddp()
        with count_traffic() as skipped, model.no_sync():
            step(model)
        with count_traffic() as counted:
            step(model)
    assert [(c.dtype, c.elements, c.peer) for c in building.select("broadcast")][-1] == ("float32", ALL, 0)  # weights
    assert building.count("all_gather") == 1  # the number of parameters, to compare
    assert not skipped.calls
    assert listed(counted) == [("all_reduce", ALL)] and counted.calls[0].backward
    assert counted.sent() == 2 * ALL * 3 / 4


def test_ddp_with_small_buckets_sends_the_same_in_more_calls():
    with fake_ranks(4):
        model = ddp(bucket_cap_mb=4 * LAYER / 2**20)
        with count_traffic() as first:
            step(model)
        with count_traffic() as later:
            step(model)
    assert first.sent(kind="all_reduce") == later.sent(kind="all_reduce") == 2 * ALL * 3 / 4
    assert later.count("all_reduce") == LAYERS
    assert all(call.dtype == "int32" for call in later.select("broadcast"))  # the order of buckets, agreed on once


def test_ddp_broadcasts_buffers_in_every_forward_and_it_shows():
    with fake_ranks(4):
        net = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH, affine=False))
        model = DistributedDataParallel(net)
        model.register_comm_hook(None, answer_at_once)
        step(model)
        with count_traffic() as traffic:
            model(torch.ones(2, WIDTH))
    assert sum(call.elements for call in traffic.select("broadcast") if call.dtype == "float32") == 2 * WIDTH


# --------------------------------------------------------------------------------------------------------------- FSDP


@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_fsdp_gathers_twice_and_scatters_once(world_size):
    with fake_ranks(world_size):
        model = sharded(init_device_mesh("cpu", (world_size,)))
        with count_traffic() as traffic:
            step(model)
    assert traffic.count("all_gather", backward=False) == traffic.count("all_gather", backward=True) == LAYERS
    assert traffic.count("reduce_scatter", backward=True) == LAYERS and traffic.count() == 3 * LAYERS
    assert {call.elements for call in traffic.calls} == {LAYER}
    assert traffic.sent() == 3 * ALL * (world_size - 1) / world_size


def test_fsdp_without_reshard_gathers_once():
    with fake_ranks(4):
        model = sharded(init_device_mesh("cpu", (4,)), reshard_after_forward=False)
        with count_traffic() as traffic:
            step(model)
    assert traffic.count("all_gather") == traffic.count("reduce_scatter") == LAYERS
    assert traffic.count("all_gather", backward=True) == 0
    assert traffic.sent() == 2 * ALL * 3 / 4


def test_hybrid_sharding_gathers_in_its_row_and_reduces_over_its_column():
    with fake_ranks(8):
        mesh = init_device_mesh("cpu", (2, 4), mesh_dim_names=("replicate", "shard"))
        model = sharded(mesh)
        with count_traffic() as traffic:
            step(model)
    groups = {(call.kind, call.group, call.elements) for call in traffic.calls}
    row, column = (0, 1, 2, 3), (0, 4)
    assert groups == {
        ("all_gather", row, LAYER),
        ("reduce_scatter", row, LAYER),
        ("all_reduce", column, LAYER // 4),
    }
    assert traffic.sent() == 3 * ALL * 3 / 4 + 2 * (ALL / 4) * 1 / 2


def test_fsdp_accumulation_with_the_synchronisation_deferred():
    with fake_ranks(4):
        model = sharded(init_device_mesh("cpu", (4,)))
        with count_traffic() as traffic:
            model.set_requires_gradient_sync(False)
            step(model)
            model.set_requires_gradient_sync(True)
            step(model)
    assert traffic.count("reduce_scatter") == LAYERS
    assert traffic.sent(kind="reduce_scatter") == ALL * 3 / 4


def test_fsdp_counts_in_the_dtype_that_travels():
    from torch.distributed.fsdp import MixedPrecisionPolicy

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with fake_ranks(4):
        model = sharded(init_device_mesh("cpu", (4,)), mp_policy=policy)
        with count_traffic() as traffic:
            step(model)
    assert traffic.sent("bytes", "all_gather") == 2 * 2 * ALL * 3 / 4
    assert traffic.sent("bytes", "reduce_scatter") == 4 * ALL * 3 / 4
    assert {row.dtype for row in traffic.table()} == {"bfloat16", "float32"}


def test_recomputed_blocks_gather_no_third_time():
    """Recomputation runs inside backward, where FSDP has gathered the block already."""
    with fake_ranks(4):
        mesh = init_device_mesh("cpu", (4,))
        model = stack()
        for layer in model:
            layer.forward = functools.partial(checkpoint, layer.forward, use_reentrant=False)
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        with count_traffic() as traffic:
            model(torch.ones(2, WIDTH, requires_grad=True)).sum().backward()
    assert traffic.count("all_gather") == 2 * LAYERS


def test_1024_ranks_in_one_process():
    with fake_ranks(1024, rank=1023):
        model = sharded(init_device_mesh("cpu", (1024,)))
        with count_traffic() as traffic:
            step(model)
    assert traffic.count() == 3 * LAYERS
    padded = 1024 * WIDTH * 1 * 2  # each of 1024 ranks holds one row of the weight (24 of them) and one of the bias
    assert traffic.calls[0].elements <= padded and traffic.calls[0].ranks == 1024
    assert "1024 ranks" in repr(traffic.calls[0]) and len(repr(traffic.calls[0])) < 100


def test_a_1024_rank_step_of_a_preset_takes_less_than_a_second():
    """Built, sharded, forward and backward, in seconds of this process's CPU time: other work may run beside it."""
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        with fake_ranks(1024), count_traffic() as traffic:
            model = GPT(preset("mini"))
            for part in (*model.blocks, model):
                fully_shard(part, mesh=init_device_mesh("cpu", (1024,)), reshard_after_forward=True)
            model(torch.zeros(1, 16, dtype=torch.int64)).sum().backward()
        seconds.append(time.process_time() - begin)
    assert traffic.count() == 3 * (4 + 1) and min(seconds) < 1


# ------------------------------------------------------------------------------------------------------------- the rest


def test_the_table_sums_by_kind_group_size_and_dtype():
    with fake_ranks(4), count_traffic() as traffic:
        for size in (8, 4):
            dist.all_reduce(torch.ones(size))
        dist.all_reduce(torch.ones(8, dtype=torch.bfloat16))
        dist.all_reduce(torch.ones(8), group=dist.new_group([0, 1]))
    assert traffic.table() == [
        Row("all_reduce", 4, "float32", 2, 12, 48, 18.0),
        Row("all_reduce", 4, "bfloat16", 1, 8, 16, 12.0),
        Row("all_reduce", 2, "float32", 1, 8, 32, 8.0),
    ]
    assert traffic.count() == traffic.count("all_reduce") == 4 and traffic.count("all_gather") == 0
    assert traffic.sent("bytes") == 4 * 18 + 2 * 12 + 4 * 8


def test_nothing_outside_the_block_counts_and_blocks_nest():
    with fake_ranks(4):
        dist.all_reduce(torch.ones(2))
        with count_traffic() as outer:
            dist.all_reduce(torch.ones(3))
            with count_traffic() as inner:
                dist.all_reduce(torch.ones(4))
        dist.all_reduce(torch.ones(5))
    assert listed(outer) == [("all_reduce", 3), ("all_reduce", 4)] and listed(inner) == [("all_reduce", 4)]


def test_counting_leaves_results_and_gradients_alone():
    model = stack()
    step(model)
    wanted = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    with count_traffic() as traffic:
        step(model)
    assert not traffic.calls
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), wanted, strict=True))


def test_fake_ranks_come_and_go():
    for size in (4, 2, 16):
        with fake_ranks(size, rank=size - 1):
            assert (dist.get_rank(), dist.get_world_size()) == (size - 1, size)
            assert init_device_mesh("cpu", (size,)).size() == size
        assert not dist.is_initialized()
    with pytest.raises(ZeroDivisionError), fake_ranks(2):
        print(1 / 0)
    assert not dist.is_initialized()


def test_fake_ranks_refuse_what_cannot_be():
    with pytest.raises(CourseError, match="rank=4 is not one of 4"), fake_ranks(4, rank=4):
        pass
    with fake_ranks(2):
        with pytest.raises(CourseError, match="a process group exists"), fake_ranks(4):
            pass
        assert dist.get_world_size() == 2


def test_a_ring_of_one_sends_nothing():
    assert Collective("all_reduce", (0,), 8, 32, "float32").sent == 0
    assert Traffic().sent() == 0 and Traffic().table() == []
