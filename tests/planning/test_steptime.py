"""The step's time: traffic against the formulas that are counted elsewhere, the bubble against simulated schedules, the
hiding against events, arrays against single layouts."""

from dataclasses import replace
from math import inf, prod

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ConfigError
from course_lib.parallel.schedule import simulate
from course_lib.planning import communication, split_traffic
from course_lib.planning.devices import fill
from course_lib.planning.flops import step_flops
from course_lib.planning.sizes import parameters, total
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.planning.step_memory import moved_bytes, update_bytes
from course_lib.planning.step_traffic import Cut, context_bytes, data_bytes, expert_bytes, pipeline_bytes, tensor_bytes
from course_lib.planning.steptime import EFFICIENCY, efficiency, predict, step_seconds

DENSE = ModelSpec(layers=32, width=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
MIXTURE = ModelSpec(layers=16, width=2048, heads=16, vocab=32000, experts=64, active_experts=4, expert_ffn=1024)
H100 = {"device": "H100 SXM"}


def run(model=DENSE, sequences=64, sequence=4096, assume=None, **layout):
    cut = LayoutSpec(**layout)
    return RunSpec(
        model=model,
        data=DataSpec(tokens=1e12, sequence=sequence, global_batch=sequences),
        hardware=fill(HardwareSpec(devices=cut.devices, **H100)),
        layout=cut,
        assume=assume or Assumptions(),
    )


def cut_of(one):
    return Cut(**numbers(one))


def numbers(one):
    names = ("replicas", "tensor", "pipeline", "chunks", "context", "expert", "micro_batch")
    found = {name: getattr(one.layout, name) for name in names}
    return found | {"data_ranks": one.layout.data, "global_batch": one.data.global_batch}


def words(one):
    names = ("sharding", "schedule", "recompute", "recipe", "sequence_parallel", "fused_attention", "context_form")
    return {name: getattr(one.layout, name) for name in names}


# --- computing ------------------------------------------------------------------------------------------------------


def test_one_device_multiplies_and_moves_and_nothing_else():
    one = run(sequences=4, sharding="ddp", micro_batch=2)
    step = predict(one)
    rate = 989e12 * 0.80 * EFFICIENCY["H100"]
    assert step.parts["compute"] == pytest.approx(step_flops(DENSE, 4096, 4).model / rate, rel=1e-12)
    moved = sum(moved_bytes(DENSE, 4096).values()) * 4 * 4096
    assert step.parts["memory"] == pytest.approx(moved / 3.35e12, rel=1e-12)
    assert step.parts["optimizer"] == pytest.approx(32 * total(DENSE) / 3.35e12, rel=1e-12)  # 18 read, 14 written
    assert {name for name, seconds in step.parts.items() if seconds} == {"compute", "memory", "optimizer"}
    assert step.traffic == {} and step.crossover == inf and step.bubble == 0 and step.floor == 4
    assert step.mfu == pytest.approx(step_flops(DENSE, 4096, 4).model / (989e12 * step.seconds))


def test_a_step_is_the_sum_of_its_parts_and_all_devices_share_it():
    step = predict(run(data=4, tensor=4, pipeline=4, sequences=128))
    assert step.seconds == pytest.approx(sum(step.parts.values()), rel=1e-12)
    assert step.tokens_per_second == pytest.approx(128 * 4096 / step.seconds)
    assert step.hfu == step.mfu < 0.8 * EFFICIENCY["H100"]


def test_recomputing_all_costs_a_third_and_in_torch_without_the_last_product():
    whole = predict(run(recompute="all", sequences=4, assume=Assumptions(recompute_stops_early=False)))
    early = predict(run(recompute="all", sequences=4))
    head = step_flops(DENSE, 4096, 4).parts["head"]
    flops = step_flops(DENSE, 4096, 4).model
    assert whole.parts["recompute"] / whole.parts["compute"] == pytest.approx((flops - head) / 3 / flops, rel=1e-12)
    down = 2 * 4 * 4096 * DENSE.layers * DENSE.width * 14336
    assert whole.parts["recompute"] - early.parts["recompute"] == pytest.approx(
        down / (989e12 * 0.8 * EFFICIENCY["H100"]), rel=1e-9
    )
    assert whole.hfu > early.hfu > early.mfu > whole.mfu


def test_what_is_moved_by_hand():
    tiny = ModelSpec(layers=1, width=8, heads=2, vocab=10, gated=False, positions=4)
    assert moved_bytes(tiny, 4) == {"stream": 3 * 2 * 10 * 8, "blocks": 3 * 2 * 2 * 32, "scores": 0, "loss": 240}
    assert moved_bytes(tiny, 4, fused_attention=False)["scores"] == 3 * 2 * 5 * 2 * 4
    again = moved_bytes(tiny, 4, fused_attention=False, recompute="selective")
    assert again["scores"] == pytest.approx(4 * 2 * 5 * 2 * 4) and again["stream"] == 480
    assert moved_bytes(tiny, 4, recompute="all")["stream"] == pytest.approx(640)
    assert update_bytes("adamw-16bit") == 16 + 14 and update_bytes("adamw-fp32") == 16 + 12


def test_the_slowest_stage_sets_the_pace():
    even, odd = (
        predict(run(pipeline=4, sequences=4, model=replace(DENSE, layers=layers, vocab=1000))) for layers in (32, 33)
    )
    assert odd.parts["compute"] / even.parts["compute"] == pytest.approx(9 / 8, rel=0.01)  # the head is 0.2% of it
    big_head = predict(run(pipeline=4, sequences=4, model=replace(DENSE, vocab=1_000_000)))
    fair = predict(run(sequences=4, model=replace(DENSE, vocab=1_000_000)))
    assert big_head.parts["compute"] > 1.5 * fair.parts["compute"] / 4


def test_in_a_v_the_first_rank_has_the_head_too():
    model = replace(DENSE, layers=10, vocab=100_000)
    straight, bent = (
        predict(run(model, pipeline=4, sequences=16, schedule=name, chunks=chunks)).parts["compute"]
        for name, chunks in (("1f1b", 1), ("zbv", 2))
    )
    flops = step_flops(model, 4096, 16)
    head, layer = flops.parts["head"], (flops.model - flops.parts["head"]) / 10
    rate = 989e12 * 0.8 * EFFICIENCY["H100"]
    assert straight == pytest.approx(max(3 * layer, 2 * layer + head) / rate)  # layers 3, 3, 2, 2; the head on the last
    assert bent == pytest.approx((3 * layer + head) / rate)  # stages 2 + 1, 2 + 1, 1 + 1, 1 + 1; the head on the first


# --- traffic, against the formulas for the real number of ranks -----------------------------------------------------


@pytest.mark.parametrize("sequence_parallel", [True, False])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_tensor_traffic_is_that_of_split_traffic(ranks, sequence_parallel):
    one = run(tensor=ranks, data=2, pipeline=4, micro_batch=2)
    found = tensor_bytes(DENSE, 4096, cut_of(one), sequence_parallel=sequence_parallel, recompute="none")
    tokens = one.accumulation * 2 * 4096
    kind = "regather" if sequence_parallel else None
    wanted = split_traffic.tensor_sent(32, tokens, 4096, 128256, ranks, sequence=kind, loss_parallel=True)
    assert found == pytest.approx({kind: 2 * sent / 4 for kind, sent in wanted.items()}, rel=1e-12)


@pytest.mark.parametrize(("sequence_parallel", "before", "after"), [(True, 5, 7), (False, 4, 6)])
def test_recomputing_sends_what_forward_sent_once_more(sequence_parallel, before, after):
    one = run(replace(DENSE, vocab=8), tensor=8)
    none, whole = (
        sum(tensor_bytes(one.model, 4096, cut_of(one), sequence_parallel=sequence_parallel, recompute=how).values())
        for how in ("none", "all")
    )
    assert whole / none == pytest.approx(after / before, rel=1e-3)  # the sums of the norms' gradients are not repeated


@pytest.mark.parametrize("form", ["ring", "all-gather"])
def test_context_traffic_is_that_of_split_traffic(form):
    one = run(context=16, data=2, sequence=131072)
    found = context_bytes(DENSE, 131072, cut_of(one), form=form)
    wanted = split_traffic.context_sent(32, one.accumulation * 131072, 8 * 128, 0, 16, form=form)
    assert found == pytest.approx({kind: 2 * sent for kind, sent in wanted.items() if sent})


@pytest.mark.parametrize("pipeline", [1, 4])
@pytest.mark.parametrize(
    ("sharding", "deferred"),
    [("ddp", True), ("zero1", True), ("zero2", False), ("fsdp", False), ("fsdp_no_reshard", False), ("hsdp", False)],
)
def test_data_traffic_is_that_of_communication(sharding, deferred, pipeline):
    replicas = 2 if sharding == "hsdp" else 1
    one = run(data=16, sharding=sharding, replicas=replicas, pipeline=pipeline)
    found, between = data_bytes(DENSE, cut_of(one), sharding=sharding, recipe="adamw-16bit-fp32-gradients")
    wanted = communication.sent_by_kind(sharding, total(DENSE) / pipeline, 16, one.accumulation, deferred, replicas)
    if sharding == "fsdp_no_reshard" and pipeline > 1:  # stays gathered, since the next micro-batch is under way
        wanted["all_gather"] /= one.accumulation
    size = {"all_gather": 2, "reduce_scatter": 4, "all_reduce": 4}
    assert found == pytest.approx({kind: sent * size[kind] for kind, sent in wanted.items()})
    assert between == (found["all_reduce"] if sharding == "hsdp" else 0)


def test_pipeline_and_expert_traffic_are_those_of_communication():
    one = run(pipeline=4, data=2, micro_batch=2, tensor=2)
    wanted = communication.boundary_bytes(4, one.accumulation, 2 * 4096, 4096, bytes_per_value=2)[1]
    assert pipeline_bytes(DENSE, 4096, cut_of(one)) == (wanted.forward + wanted.backward) / 2  # two tensor ranks
    mixed = run(MIXTURE, data=16, expert=8)
    tokens = 64 / 16 * 4096
    assert expert_bytes(MIXTURE, 4096, cut_of(mixed)) == 2 * communication.expert_elements(tokens, 4, 2048, 8, 16)


def test_experts_are_summed_over_fewer_ranks():
    split, whole = run(MIXTURE, data=16, expert=8, sharding="zero1"), run(MIXTURE, data=16, sharding="zero1")
    sent = [data_bytes(MIXTURE, cut_of(one), sharding="zero1", recipe="adamw-16bit")[0] for one in (split, whole)]
    routed = parameters(MIXTURE)["experts"]
    rest = total(MIXTURE) - routed
    assert sent[1]["all_gather"] == pytest.approx(2 * total(MIXTURE) * 15 / 16)
    assert sent[0]["all_gather"] == pytest.approx(2 * (rest * 15 / 16 + routed / 8 * 1 / 2))


# --- waiting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "chunks", "m"), [("gpipe", 1, 8), ("1f1b", 1, 6), ("interleaved", 2, 8), ("zb_h1", 1, 8)]
)
def test_computing_and_bubble_are_a_simulated_pipeline(schedule, chunks, m):
    model = replace(DENSE, vocab=2)  # a head of nearly nothing, so that stages are equal
    step = predict(run(model, pipeline=4, sequences=m, schedule=schedule, chunks=chunks))
    busy = step.parts["compute"] + step.parts["memory"]
    slot = busy / (3 * m * chunks)
    done = simulate(schedule, 4, m, chunks, slot, slot, slot)
    assert busy + step.parts["bubble"] == pytest.approx(done.makespan, rel=1e-9)
    assert step.bubble == pytest.approx(done.bubble_fraction, rel=1e-9)


def test_recomputing_makes_backward_longer_in_the_bubble_too():
    assume = Assumptions(recompute_stops_early=False)
    step = predict(
        run(replace(DENSE, vocab=2), pipeline=4, sequences=8, schedule="1f1b", recompute="all", assume=assume)
    )
    done = simulate("1f1b", 4, 8, 1, 1.0, 2.0, 1.0)
    assert step.bubble == pytest.approx(done.bubble_fraction, rel=1e-6)


def test_fsdp_that_hides_is_the_exact_event_model():
    one = run(data=8, sharding="fsdp", sequences=64, micro_batch=8)
    step = predict(one)
    layers, busy = 32, step.parts["compute"] + step.parts["memory"]
    size = {kind: sent / 450e9 / layers for kind, sent in step.traffic["data"].items()}
    gather, scatter = size["all_gather"] / 2, size["reduce_scatter"]
    exact = communication.step_time(layers, busy / layers / 3, 2 * busy / layers / 3, gather, scatter)
    assert busy + step.parts["data_traffic"] == pytest.approx(exact, rel=1e-9)


def test_fsdp_that_cannot_hide_is_the_event_model_to_within_two_layers():
    one = run(data=64, sharding="fsdp", sequences=64, sequence=128)
    step = predict(one)
    layers, busy = 32, step.parts["compute"] + step.parts["memory"]
    size = {kind: sent / 400e9 / layers for kind, sent in step.traffic["data"].items()}
    gather, scatter = size["all_gather"] / 2, size["reduce_scatter"]
    assert layers * (2 * gather + scatter) > 2 * busy
    exact = communication.step_time(layers, busy / layers / 3, 2 * busy / layers / 3, gather, scatter)
    # events: the first layers of forward and backward compute with nothing beside them
    assert 0 <= exact - busy - step.parts["data_traffic"] <= 2 * busy / layers


def test_at_the_crossover_sending_takes_as_long_as_computing():
    one = run(data=8, sharding="ddp", sequences=1024, micro_batch=128, assume=Assumptions(hidden=0.0))
    there = predict(replace(one, layout=replace(one.layout, data=64, micro_batch=16))).crossover
    assert there == pytest.approx(
        predict(replace(one, layout=replace(one.layout, data=16))).crossover
    )  # always the same
    at = numbers(one) | {"data_ranks": np.array([there]), "micro_batch": np.array([1024 / there])}
    waiting, hiding = (
        step_seconds(one.model, one.data, one.hardware, assume, **words(one), **at)[0]
        for assume in (one.assume, Assumptions(hidden=1.0))
    )
    computing = step_flops(DENSE, 4096, 1024).model / there / (989e12 * 0.8 * EFFICIENCY["H100"])
    # all of it is exposed, or all but one layer's: 1/32 of what takes as long as computing
    assert there > 64 and waiting - hiding == pytest.approx(computing * 31 / 32, rel=1e-6)


def test_hidden_shares():
    fast, slow = (
        predict(run(tensor=8, data=8, micro_batch=4, sharding="zero1", assume=Assumptions(hidden=h, hidden_tensor=h)))
        for h in (1, 0)
    )
    assert fast.parts["tensor_traffic"] == 0 < slow.parts["tensor_traffic"]
    assert fast.parts["data_traffic"] == pytest.approx(slow.parts["data_traffic"] / 32)  # a layer's stays exposed
    assert fast.traffic == slow.traffic


def test_a_ring_hides_behind_attention_and_a_gather_does_not():
    ring, gather = (
        predict(run(context=8, sequence=65536, sequences=1, context_form=form)) for form in ("ring", "all-gather")
    )
    assert ring.parts["context_traffic"] == 0
    assert gather.parts["context_traffic"] == pytest.approx(sum(gather.traffic["context"].values()) / 450e9)
    short = predict(run(context=16, sequence=512, sequences=1))  # across nodes, with little attention to hide behind
    assert 0 < short.parts["context_traffic"] < sum(short.traffic["context"].values()) / 50e9


def test_experts_on_other_nodes_go_over_the_network():
    near, far = (predict(run(MIXTURE, data=64, expert=ranks)) for ranks in (8, 32))
    sent = [step.traffic["expert"]["all_to_all"] for step in (near, far)]
    assert near.parts["expert_traffic"] == pytest.approx(sent[0] / 450e9)
    assert far.parts["expert_traffic"] == pytest.approx(sent[1] * 24 / 31 / 50e9)  # 8 of 32 are at home, one is itself
    hidden = predict(run(MIXTURE, data=16, pipeline=4, expert=16, schedule="dualpipev", chunks=2, sequences=128))
    assert hidden.parts["expert_traffic"] < hidden.traffic["expert"]["all_to_all"] / 50e9


def test_tensor_parallelism_across_nodes_is_slower_by_the_bandwidth():
    near, far = predict(run(tensor=8, sequences=8)), predict(run(tensor=16, sequences=8))
    sent = [sum(step.traffic["tensor"].values()) for step in (near, far)]
    assert near.parts["tensor_traffic"] == pytest.approx(sent[0] / 450e9)
    assert far.parts["tensor_traffic"] == pytest.approx(sent[1] / 50e9)


# --- many at once ---------------------------------------------------------------------------------------------------

LAYOUTS = st.fixed_dictionaries(
    {
        "data": st.sampled_from([2, 4, 8]),
        "tensor": st.sampled_from([1, 2, 8]),
        "pipeline": st.sampled_from([1, 2, 3]),
        "context": st.sampled_from([1, 2]),
        "micro_batch": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=30, deadline=None)
@given(
    cuts=st.lists(LAYOUTS, min_size=1, max_size=6),
    sharding=st.sampled_from(["ddp", "zero1", "zero2", "fsdp", "fsdp_no_reshard"]),
    schedule=st.sampled_from(["gpipe", "1f1b", "zb_h1", "interleaved"]),
    recompute=st.sampled_from(["none", "selective", "all"]),
    plain=st.booleans(),
    model=st.sampled_from([DENSE, MIXTURE]),
)
def test_arrays_are_single_layouts(cuts, sharding, schedule, recompute, plain, model):
    fixed = {"sharding": sharding, "schedule": schedule, "recompute": recompute, "sequence_parallel": plain}
    runs = [run(model, sequences=96, **fixed, **cut) for cut in cuts]
    columns = {name: np.array([numbers(one)[name] for one in runs]) for name in numbers(runs[0])}
    one = runs[0]
    found = step_seconds(one.model, one.data, one.hardware, one.assume, **words(one), **columns)
    assert found == pytest.approx([predict(each).seconds for each in runs], rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(
    cut=LAYOUTS,
    what=st.sampled_from(["peak_tflops", "inside_gb_per_s", "across_gb_per_s", "memory_tb_per_s", "reached"]),
)
def test_better_hardware_is_never_slower(cut, what):
    one = run(sequences=96, **cut)
    better = replace(one, hardware=replace(one.hardware, **{what: 1.2 * getattr(one.hardware, what)}))
    assert predict(better).seconds <= predict(one).seconds * (1 + 1e-12)


# --- what is missing, what is assumed -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["peak_tflops", "inside_gb_per_s", "across_gb_per_s", "memory_tb_per_s"])
def test_a_missing_figure_is_named(name):
    one = run()
    with pytest.raises(ConfigError, match=f"hardware.{name} is missing"):
        predict(replace(one, hardware=replace(one.hardware, **{name: None})))


def test_efficiency_by_device():
    assert efficiency("A100 SXM 40GB") == EFFICIENCY["A100"]
    assert efficiency("H200 SXM") == efficiency("H800 SXM") == EFFICIENCY["H100"]
    assert EFFICIENCY["H100"] < efficiency("TPU v4") == efficiency(None) < EFFICIENCY["A100"]
    assert efficiency("H100 SXM", Assumptions(efficiency=0.9)) == 0.9
    slow, fast = (predict(run(assume=Assumptions(efficiency=e))).parts["compute"] for e in (0.45, 0.9))
    assert slow == pytest.approx(2 * fast)


def test_devices_of_a_layout():
    one = run(data=4, tensor=2, pipeline=4, context=2)
    assert cut_of(one).devices == one.layout.devices == prod((4, 2, 4, 2))
