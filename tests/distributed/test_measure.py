"""What feeds the event model: a time for each layer, and FSDP2's own step with gathers issued ahead."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from course_lib.config import preset
from course_lib.model import GPT
from course_lib.parallel.measure import _Trunk, gather_ahead, layer_times, step_seconds
from course_lib.parallel.traffic import count_traffic, fake_ranks

SHAPE = preset("mini", n_layers=3)


def test_each_layer_has_its_times():
    times = layer_times(SHAPE, 2, batch=2, length=8, rounds=2)
    assert len(times) == 3
    for layer in times:
        assert min(layer.forward, layer.backward, layer.gather, layer.scatter) > 0
        assert max(layer.forward, layer.backward, layer.gather, layer.scatter) < 5


def test_a_real_step_both_ways():
    seconds = step_seconds(SHAPE, 2, batch=2, length=8, rounds=2)
    assert list(seconds) == ["late", "early"] and all(0 < value < 10 for value in seconds.values())


def gathers_so_far(ahead):
    """How many gathers have been issued when each block begins its forward, and in all."""
    seen = []
    with fake_ranks(2):
        trunk = _Trunk(GPT(SHAPE))
        for block in trunk.blocks:
            fully_shard(block, mesh=init_device_mesh("cpu", (2,)), reshard_after_forward=True)
        fully_shard(trunk, mesh=init_device_mesh("cpu", (2,)))
        if ahead:
            gather_ahead(trunk.blocks)
        for block in trunk.blocks:
            inner = block.attention_norm
            inner.register_forward_pre_hook(lambda *_: seen.append(traffic.count("all_gather")))
        with count_traffic() as traffic:
            trunk(torch.ones(1, 4, SHAPE.d_model)).sum().backward()
    return seen, traffic.count("all_gather"), traffic.count("reduce_scatter")


def test_a_block_that_gathers_ahead_has_the_next_one_on_the_way():
    assert gathers_so_far(ahead=False) == ([1, 2, 3], 6, 3)
    assert gathers_so_far(ahead=True) == ([2, 3, 3], 6, 3)
