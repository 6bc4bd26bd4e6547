"""Whether model, data, devices and layout fit together: each rule alone, its message, and that what it offers fits."""

import re
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.errors import ConfigError, ScheduleError
from course_lib.parallel.schedule import SCHEDULES, actions
from course_lib.planning.files import SECTIONS
from course_lib.planning.presets import preset
from course_lib.planning.rules import check, divisors, nearest_numbers
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec

RUN = preset("70b-on-512-h100")
MOE = preset("moe-8x7b-on-128-h100")


def changed(run, **changes):
    """changed(run, layout__tensor=4)"""
    sections = {name: getattr(run, name) for name in SECTIONS}
    for name, value in changes.items():
        section, _, key = name.partition("__")
        sections[section] = replace(sections[section], **{key: value})
    return replace(run, **sections)


def refused(run):
    with pytest.raises(ConfigError) as error:
        check(run)
    said = str(error.value)
    assert said.isprintable() and len(said) < 420
    return said


# (what is changed in a legal run, what the error says, a change that it offers)
CASES = [
    (dict(model__heads=60), "model.heads = 60 does not divide model.width = 8192; try heads = 32 or 64", None),
    (
        dict(model__kv_heads=7),
        "model.kv_heads = 7 does not divide model.heads = 64; try 4 or 8",
        dict(model__kv_heads=8),
    ),
    (
        dict(model__positions=4096),
        "data.sequence = 8192 is longer than model.positions = 4096",
        dict(data__sequence=4096),
    ),
    (dict(model__active_experts=2), "model.active_experts = 2 without experts", dict(model__active_experts=0)),
    (dict(model__expert_ffn=64), "model.expert_ffn = 64 without experts", dict(model__expert_ffn=None)),
    (
        dict(layout__data=32),
        "and hardware.devices = 512; try layout.data = 16, or hardware.devices = 1024",
        dict(layout__data=16),
    ),
    (
        dict(layout__data=32),
        "data 32 x tensor 8 x pipeline 4 x context 1 are 1024 devices",
        dict(hardware__devices=1024),
    ),
    (dict(hardware__devices=500), "try hardware.devices = 480 or 512", dict(hardware__devices=512)),
    (
        dict(data__global_batch=500),
        "data.global_batch = 500 is not divisible by data 16 x micro_batch 1 = 16 sequences; "
        "try global_batch = 496 or 512, or layout.data = 10 or 20",
        dict(data__global_batch=512),
    ),
    (dict(layout__micro_batch=3), "or layout.micro_batch = 2 or 4", dict(layout__micro_batch=4)),
    (dict(data__global_batch=8), "try global_batch = 16", dict(data__global_batch=128)),
    (
        dict(data__tokens=1000.0),
        "data.tokens = 1000 are not one update: global_batch x sequence = 4,194,304",
        dict(data__tokens=4.19e9),
    ),
    (
        dict(layout__tensor=3, layout__pipeline=1, layout__chunks=1, layout__schedule="1f1b", hardware__devices=48),
        "layout.tensor = 3 does not share out model.heads = 64 with kv_heads = 8; try 2 or 4",
        dict(layout__tensor=4, hardware__devices=64),
    ),
    (
        dict(model__ffn=28673),
        "layout.tensor = 8 does not divide model.ffn = 28673; try 1 or 53",
        dict(model__ffn=28672),
    ),
    (
        dict(data__sequence=8191),
        "layout.sequence_parallel cuts 8191 tokens over layout.tensor = 8, which does not divide "
        "them; try sequence = 8176 or 8192",
        dict(data__sequence=8192),
    ),
    (dict(data__sequence=8191), "or sequence_parallel = false", dict(layout__sequence_parallel=False)),
    (
        dict(layout__context=3, layout__data=1, hardware__devices=96, layout__tensor=8),
        "layout.context = 3: each rank has two pieces of the sequence, and data.sequence = 8192 is not divisible by "
        "2 x 3; "
        "try context = 2 or 4, or sequence = 8190 or 8196",
        dict(layout__context=4, hardware__devices=128),
    ),
    (dict(layout__expert=2), "layout.expert = 2 without experts in the model; try expert = 1", dict(layout__expert=1)),
    (
        dict(layout__recipe="adamw"),
        'layout.recipe = "adamw" is unknown; did you mean',
        dict(layout__recipe="adamw-16bit"),
    ),
    (
        dict(layout__recipe="inference-16bit"),
        'layout.recipe = "inference-16bit" trains nothing (there are: sgd-fp32',
        dict(layout__recipe="sgd-fp32"),
    ),
    (
        dict(layout__replicas=4),
        'layout.replicas = 4 belongs to sharding = "hsdp", not "zero1"',
        dict(layout__replicas=1),
    ),
    (
        dict(layout__sharding="hsdp"),
        "layout.replicas = 1 must be 2 or more for hsdp and divide layout.data = 16; try 2",
        dict(layout__replicas=2),
    ),
    (dict(layout__sharding="hsdp", layout__replicas=3), "try 2 or 4, or sharding", dict(layout__replicas=4)),
    (
        dict(layout__schedule="1f2b"),
        "layout.schedule = \"1f2b\" is unknown; did you mean '1f1b'?",
        dict(layout__schedule="1f1b", layout__chunks=1),
    ),
    (
        dict(layout__chunks=21),
        "layout.pipeline = 4 x chunks 21 = 84 stages are more than model.layers = 80; try pipeline = "
        "3 or fewer, or chunks = 20",
        dict(layout__chunks=20),
    ),
    (dict(model__layers=3, layout__chunks=2), "try pipeline = 1 or fewer", dict(model__layers=8)),
    (
        dict(layout__schedule="1f1b"),
        "layout.chunks = 5: 1f1b has one chunk on a rank, not chunks=5",
        dict(layout__chunks=1),
    ),
    (dict(layout__chunks=1), "interleaved needs chunks=2 or more", dict(layout__chunks=2)),
    (dict(layout__schedule="zbv", layout__chunks=3), "zbv has two chunks on a rank", dict(layout__chunks=2)),
    (
        dict(layout__schedule="dualpipev", layout__chunks=2, data__global_batch=16),
        'layout.schedule = "dualpipev" with '
        "pipeline = 4 has no order for 1 micro-batches (data.global_batch / (data x micro_batch)); it has one for 8: "
        "try data.global_batch = 128",
        dict(data__global_batch=128),
    ),
    (
        dict(data__global_batch=144),
        'interleaved" with pipeline = 4 has no order for 9 micro-batches',
        dict(data__global_batch=128),
    ),
]


@pytest.mark.parametrize(
    "changes, said, offered", CASES, ids=[" ".join(f"{k}={v}" for k, v in c[0].items()) for c in CASES]
)
def test_what_does_not_fit_is_told_with_the_nearest_that_does(changes, said, offered):
    wrong = changed(RUN, **changes)
    assert said in refused(wrong)
    if offered:
        check(changed(wrong, **offered))


MOE_CASES = [
    (dict(layout__sharding="hsdp", layout__replicas=16), "and divide layout.data / expert = 8; try 8"),
    (
        dict(layout__sharding="hsdp", layout__data=8, layout__pipeline=16, layout__micro_batch=2),
        'leaves no two groups of layout.expert = 8 in layout.data = 8; try sharding = "fsdp", or data = 16 or more',
    ),
    (dict(model__active_experts=9), "model.active_experts = 9 must be from 1 to model.experts = 8; try 8"),
    (dict(model__active_experts=0), "model.active_experts = 0 must be from 1 to model.experts = 8; try 2"),
    (dict(model__dense_layers=32), "model.dense_layers = 32 leaves no layer of 32 for the experts; try 31"),
    (dict(layout__expert=3), "layout.expert = 3 must divide model.experts = 8 and layout.data = 64; try 2 or 4"),
    (dict(layout__expert=16), "layout.expert = 16 must divide model.experts = 8 and layout.data = 64; try 8"),
    (
        dict(model__expert_ffn=129, layout__tensor=2, layout__data=32),
        "layout.tensor = 2 does not divide model.expert_ffn",
    ),
]


@pytest.mark.parametrize("changes, said", MOE_CASES, ids=[said[:30] for _, said in MOE_CASES])
def test_experts(changes, said):
    assert said in refused(changed(MOE, **changes))


def test_a_batch_in_tokens_and_words_of_other_programs():
    said = refused(changed(RUN, data__global_batch=2**22))
    assert "data.global_batch = 4194304 looks like tokens" in said and "write global_batch = 512" in said
    assert "did you mean 'adamw-16bit-fp32-gradients'?" in refused(changed(RUN, layout__recipe="bf16"))
    assert "did you mean 'zb_h1'?" in refused(changed(RUN, layout__schedule="ZeroBubble"))


def test_hsdp_needs_two_ranks():
    run = replace(preset("laptop"), layout=LayoutSpec(sharding="hsdp", recipe="adamw-fp32"))
    assert "needs layout.data of 2 or more" in refused(run)


def test_chunks_without_a_pipeline():
    assert "layout.chunks = 2 without a pipeline" in refused(changed(preset("laptop"), layout__chunks=2))


def test_the_two_chunks_of_a_v_are_written_out():
    for name in ("zbv", "dualpipev"):
        assert check(changed(RUN, layout__schedule=name, layout__chunks=1)).layout.chunks == 2


def test_uneven_stages_and_replicated_heads_of_keys_are_legal():
    """70 layers over 12 stages as in BLOOM; one head of keys on 12 ranks as in PaLM; 16 ranks and 8 such heads."""
    check(preset("bloom-176b"))
    check(preset("palm-540b"))
    check(changed(RUN, layout__tensor=16, layout__data=8))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(SCHEDULES), st.integers(1, 6), st.integers(1, 14), st.integers(1, 3), st.integers(1, 12)
)  # fmt: skip
def test_a_pipeline_is_legal_exactly_when_the_schedule_has_an_order(name, ranks, m, chunks, layers):
    """The oracle lists every action; it refuses before that, or not at all."""
    run = RunSpec(
        model=ModelSpec(layers=layers, width=64, heads=4, vocab=64),
        data=DataSpec(tokens=1e9, sequence=64, global_batch=m),
        hardware=HardwareSpec(devices=ranks, device="H100 SXM"),
        layout=LayoutSpec(pipeline=ranks, schedule=name, chunks=chunks),
    )
    held = 2 if name in ("zbv", "dualpipev") and chunks == 1 and ranks > 1 else chunks
    try:
        if ranks > 1:
            actions(name, ranks, m, chunks)
        legal = ranks * held <= layers and (ranks > 1 or chunks == 1)
    except ScheduleError:
        legal = False
    if legal:
        assert check(run).layout.chunks == held
    else:
        said = refused(run)
        offered = re.search(r"try data\.global_batch = (\d+)", said)
        if offered:
            check(changed(run, data__global_batch=int(offered[1])))


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 300))
def test_an_offered_batch_or_number_of_ranks_fits(data, micro_batch, batch):
    run = RunSpec(
        model=ModelSpec(layers=4, width=64, heads=4, vocab=64),
        data=DataSpec(tokens=1e9, sequence=64, global_batch=batch),
        hardware=HardwareSpec(devices=data, device="H100 SXM"),
        layout=LayoutSpec(data=data, micro_batch=micro_batch),
    )
    if batch % (data * micro_batch) == 0:
        check(run)
        return
    said = refused(run)
    for offer in re.findall(r"global_batch = (\d+(?: or \d+)?)", said)[1:]:
        for number in map(int, offer.split(" or ")):
            check(changed(run, data__global_batch=number))
    for number in map(int, re.findall(r"layout\.data = (\d+)", said)):
        check(changed(run, layout__data=number, hardware__devices=number))
    for number in map(int, re.findall(r"layout\.micro_batch = (\d+)", said)):
        check(changed(run, layout__micro_batch=number))


def test_any_small_layout_is_legal_exactly_when_a_brute_count_says_so():
    """Data, tensor and context ranks of 24 devices, against the same rules written out as plain divisions."""
    every = product((1, 2, 3, 4, 6, 8, 12, 24), (1, 2, 3, 4), (1, 2, 3), (1, 2), (48, 54))
    for data, tensor, context, micro, sequence in every:
        run = RunSpec(
            model=ModelSpec(layers=4, width=96, heads=12, kv_heads=4, ffn=96, vocab=64),
            data=DataSpec(tokens=1e9, sequence=sequence, global_batch=24),
            hardware=HardwareSpec(devices=24, device="H100 SXM"),
            layout=LayoutSpec(data=data, tensor=tensor, context=context, micro_batch=micro),
        )
        shared = 12 % tensor == 0 and (4 % tensor == 0 or tensor % 4 == 0) and 96 % tensor == 0
        cut = sequence % (2 * context) == 0 if context > 1 else True
        cut = cut and (tensor == 1 or (sequence // context) % tensor == 0)
        legal = data * tensor * context == 24 and 24 % (data * micro) == 0 and shared and cut
        if legal:
            check(run)
        else:
            refused(run)


def test_divisors_and_the_nearest():
    assert divisors(1) == [1] and divisors(12) == [1, 2, 3, 4, 6, 12] and divisors(49) == [1, 7, 49]
    assert nearest_numbers(5, [1, 4, 8]) == "4 or 8" and nearest_numbers(4, [1, 4, 8]) == "4"
    assert nearest_numbers(9, [1, 4, 8]) == "8" and nearest_numbers(1, [4]) == "4"
