"""The formulas of traffic against what is counted, of bytes against the ZeRO paper, of the crossover against events."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.config import preset
from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.parallel.ddp import DataParallel
from course_lib.parallel.fsdp import FullyShard
from course_lib.parallel.overlap import LayerTimes, exposed, fsdp_tasks
from course_lib.parallel.timeline import simulate
from course_lib.parallel.tradeoffs import measure, measure_here
from course_lib.parallel.traffic import fake_ranks
from course_lib.parallel.zero import Zero1, Zero2, Zero3
from course_lib.planning.communication import (
    STRATEGIES,
    batch_floor,
    crossover,
    padded_elements,
    ring_steps,
    sent_by_kind,
    sent_elements,
    shard_bytes,
    step_time,
)

SHAPE = preset("mini", n_layers=2)  # every dimension divides by 4: nothing is padded

# What is counted: strategy, the formula's name, deferred, replicas.
COUNTED = {
    "ddp": (DataParallel, "ddp", True, 1),
    "zero1": (Zero1, "zero1", True, 1),
    "zero2": (Zero2, "zero2", False, 1),
    "zero3": (Zero3, "zero3", False, 1),
    "fsdp, each micro-batch": (partial(FullyShard, deferred="none"), "fsdp", False, 1),
    "fsdp, deferred": (FullyShard, "fsdp", True, 1),
    "no reshard": (partial(FullyShard, reshard=False, deferred="none"), "fsdp_no_reshard", False, 1),
    "no reshard, deferred": (partial(FullyShard, reshard=False), "fsdp_no_reshard", True, 1),
    "kept": (partial(FullyShard, keep=True, deferred="none"), "fsdp_keep", False, 1),
    "kept, deferred": (partial(FullyShard, keep=True), "fsdp_keep", True, 1),
    "hsdp, each micro-batch": (partial(FullyShard, replicas=2, deferred="none"), "hsdp", False, 2),
    "hsdp, all-reduce deferred": (partial(FullyShard, replicas=2, deferred="all-reduce"), "hsdp", "all-reduce", 2),
    "hsdp, deferred": (partial(FullyShard, replicas=2), "hsdp", True, 2),
}


def by_kind(traffic):
    kinds = dict.fromkeys(call.kind for call in traffic.calls)
    return {kind: traffic.sent(kind=kind) for kind in kinds if traffic.sent(kind=kind)}


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("name", COUNTED)
def test_traffic_is_what_is_counted_on_pretended_ranks(name, micro_batches, ranks=4):
    make, strategy, deferred, replicas = COUNTED[name]
    with fake_ranks(ranks):
        found = measure_here(make, micro_batches, SHAPE, 3 * ranks, 4, watch=False)
    wanted = sent_by_kind(strategy, found.parameters, ranks, micro_batches, deferred, replicas)
    assert by_kind(found.traffic) == wanted
    assert sent_elements(strategy, found.parameters, ranks, micro_batches, deferred, replicas) == found.traffic.sent()


@pytest.mark.parametrize("ranks", [3, 48, 1024])
def test_with_its_padding_it_is_what_fsdp_sends_on_any_number_of_ranks(ranks):
    with fake_ranks(ranks):
        found = measure_here(FullyShard, 1, SHAPE, ranks, 4, watch=False)
    padded = padded_elements([tuple(p.shape) for p in GPT(SHAPE).parameters()], ranks)
    assert padded > found.parameters
    assert found.traffic.sent() == pytest.approx(sent_elements("fsdp", padded, ranks), rel=1e-12)


def test_nothing_is_padded_where_the_first_dimension_divides():
    assert padded_elements([(8, 3), (4,)], 4) == 28 and padded_elements([(5, 3), (1,)], 4) == 28
    assert padded_elements([(128, 128)], 1024) == 8 * 128 * 128


@pytest.mark.parametrize("name", ["ddp", "zero2", "zero3", "fsdp, deferred", "no reshard"])
def test_traffic_is_what_is_counted_on_real_ranks(name):
    make, strategy, deferred, replicas = COUNTED[name]
    found = measure(make, 2, micro_batches=2, shape=SHAPE, length=4)
    assert by_kind(found.traffic) == sent_by_kind(strategy, found.parameters, 2, 2, deferred, replicas)


def test_hybrid_sharding_on_four_real_ranks():
    found = measure(partial(FullyShard, replicas=2), 4, shape=SHAPE, length=4)
    assert by_kind(found.traffic) == sent_by_kind("hsdp", found.parameters, 4, replicas=2)


def test_two_and_three_times_the_parameters():
    for ranks in (2, 64, 1024):
        around = 6e9 * (ranks - 1) / ranks
        for strategy, times in {"ddp": 2, "zero1": 2, "zero2": 2, "fsdp_no_reshard": 2, "zero3": 3, "fsdp": 3}.items():
            assert sent_elements(strategy, 6e9, ranks) == times * around
        assert sent_elements("fsdp", 6e9, ranks, 8) == 24 * around
        assert sent_elements("fsdp", 6e9, ranks, 8, deferred=True) == 17 * around
        assert sent_elements("ddp", 6e9, ranks, 8, deferred=True) == 2 * around
    assert all(sent_elements(strategy, 6e9, 1) == 0 for strategy in STRATEGIES)


def test_hybrid_sharding_as_the_paper_counts_it():
    """Zhao et al. 2023, section 3.2.2: across hosts, an all-reduce of the shards, 2 M (W - G) / (G W) for W ranks in
    groups of G."""
    world, group, model = 64, 8, 1e9
    sent = sent_by_kind("hsdp", model, world, replicas=world // group)
    assert sent["all_reduce"] == pytest.approx(2 * model * (world - group) / (group * world))
    assert sent["all_gather"] == 2 * model * 7 / 8 and sent["reduce_scatter"] == model * 7 / 8


@pytest.mark.parametrize(
    ("ranks", "wanted"),
    [(4, (52.5, 41.3, 30)), (64, (31.4, 16.6, 1.9)), (1024, (30.1, 15.1, 0.1))],
)
def test_bytes_of_the_zero_paper(ranks, wanted):
    """Table 1 there, in GB: 7.5 billion parameters; 120 GB in data parallel whatever the ranks."""
    total = {name: sum(shard_bytes(name, 7.5e9, ranks).values()) / 1e9 for name in ("ddp", "zero1", "zero2", "zero3")}
    assert total["ddp"] == 120
    assert tuple(total[name] for name in ("zero1", "zero2", "zero3")) == pytest.approx(wanted, abs=0.051)
    assert shard_bytes("fsdp", 7.5e9, ranks) == shard_bytes("zero3", 7.5e9, ranks)


def test_bytes_by_part_recipe_and_group():
    assert shard_bytes("zero1", 8, 4) == {"weights": 16, "gradients": 16, "optimizer": 24}
    assert shard_bytes("zero2", 8, 4, "adamw-fp32") == {"weights": 32, "gradients": 8, "optimizer": 16}
    assert sum(shard_bytes("hsdp", 8, 4, replicas=2).values()) == 2 * sum(shard_bytes("fsdp", 8, 4).values())


def test_steps_of_a_ring():
    assert [ring_steps(n) for n in (1, 2, 4, 1024)] == [0, 2, 6, 2046]


# ------------------------------------------------------------------------------------------------------- the crossover


@settings(max_examples=200, deadline=None)
@given(st.floats(1e8, 1e12), st.floats(1e4, 1e8), st.floats(1e11, 1e15), st.floats(1e8, 1e12))
def test_at_the_crossover_sending_takes_as_long_as_computing(parameters, tokens, device_flops, bandwidth):
    devices = crossover(6 * parameters * tokens, 3 * 2 * parameters, device_flops, bandwidth)
    computing = 6 * parameters * tokens / devices / device_flops
    sending = 2 * sent_elements("fsdp", parameters, 1) if devices == 1 else 6 * parameters * (1 - 1 / devices)
    assert sending / bandwidth == pytest.approx(computing, rel=1e-6)
    other = crossover(6 * 1e9 * tokens, 3 * 2 * 1e9, device_flops, bandwidth)
    assert other == pytest.approx(devices)  # the model's size cancels


@pytest.mark.parametrize("factor", [0.25, 0.5, 2.0, 4.0])
def test_the_event_model_crosses_where_the_formula_says(factor):
    """Under the crossover a prefetch hides nearly everything, beyond it nearly nothing more than computing covers."""
    layers, flops, sent, speed, bandwidth = 32, 1e18, 6e10, 1e14, 1e11
    devices = factor * crossover(flops, sent, speed, bandwidth)
    computing, sending = flops / devices / speed, sent * (1 - 1 / devices) / bandwidth
    layer = LayerTimes(computing / 3 / layers, 2 * computing / 3 / layers, sending / 3 / layers, sending / 3 / layers)
    run = simulate(fsdp_tasks([layer] * layers))
    assert run.makespan == pytest.approx(max(computing, sending), rel=0.06)
    assert (exposed(run) / run.makespan < 0.06) == (factor < 1)
    assert run.makespan == pytest.approx(
        step_time(layers, layer.forward, layer.backward, layer.gather, layer.scatter), rel=1e-9
    )


def test_the_floor_of_the_batch():
    assert batch_floor(10e6, 10e3) == 1000
    assert batch_floor(16 * 2**20, 8192) == 2048
    assert batch_floor(8191, 8192) == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: sent_elements("zero4", 1, 2), "strategy='zero4' is unknown"),
        (lambda: sent_elements("hsdp", 1, 6, replicas=4), "ranks=6 cannot be cut into replicas=4"),
        (lambda: sent_elements("fsdp", 1, 4, replicas=2), "replicas=2 is for strategy='hsdp'"),
        (lambda: sent_elements("fsdp", 1, 0), "ranks=0"),
        (lambda: shard_bytes("zero1", 1, 4, "adam"), "recipe='adam' is unknown"),
        (lambda: batch_floor(1e6, 0), "sequence=0 must be above 0"),
        (lambda: crossover(1e18, 0, 1e14, 1e11), "sent_bytes=0 must be above 0"),
    ],
)
def test_what_cannot_be_says_so(call, told):
    with pytest.raises(ConfigError, match=told):
        call()
