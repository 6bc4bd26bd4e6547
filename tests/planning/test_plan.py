"""A plan against arithmetic that is done again here, against a run whose numbers are known, and with itself."""

import json
from dataclasses import replace
from math import inf, isfinite

import pytest

from course_lib.errors import ConfigError
from course_lib.planning.capacity import device_limit
from course_lib.planning.plan import given, plan
from course_lib.planning.presets import preset, presets
from course_lib.planning.rules import check
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec


def billion(**assume) -> RunSpec:
    """A billion parameters and a hundred billion tokens on 64 devices of 100 TFLOP/s: numbers for a calculator."""
    model = ModelSpec(layers=16, width=2048, heads=16, ffn=8192, vocab=50_000, gated=False, tied=True)
    hardware = HardwareSpec(
        devices=64,
        devices_per_node=8,
        memory_gib=80,
        peak_tflops=100,
        inside_gb_per_s=100,
        across_gb_per_s=10,
        failures_per_device_year=1.0,
        storage_gb_per_s=0.5,
        price_per_device_hour=2.0,
    )
    return RunSpec(
        name="billion",
        model=model,
        data=DataSpec(tokens=100e9, sequence=2048, global_batch=512),
        hardware=hardware,
        layout=LayoutSpec(data=64),
        assume=Assumptions(**{"mfu": 0.5, **assume}),
    )


def test_numbers_of_a_calculator():
    made = plan(billion())
    # 16 x (4 x 2048^2 + 2 x 2048 x 8192) in matrices, 50,000 x 2048 in the table, 33 norms
    n = 16 * (4 * 2048**2 + 2 * 2048 * 8192) + 50_000 * 2048 + 33 * 2048
    assert made.parameters.total == made.parameters.active == n == 907_773_952
    assert made.flops.six_nd == pytest.approx(6 * n * 100e9)
    scores = 12 * 16 * 2048 * 2048 * 100e9  # forward 4 x T x d a layer and token, and backward twice that
    assert made.flops.exact == pytest.approx(6 * (n - 33 * 2048) * 100e9 + scores)
    assert made.amount.batch_tokens == 1_048_576 and made.amount.steps == 95_368 and made.amount.micro_batches == 8
    assert made.amount.tokens_per_parameter == pytest.approx(110.16, abs=0.01)
    seconds = made.flops.exact / 100e9 * 1_048_576 / (64 * 100e12 * 0.5)
    assert made.time.step_seconds == pytest.approx(seconds)
    assert made.time.computing_hours == pytest.approx(95_368 * seconds / 3600)
    assert made.time.tokens_per_second == pytest.approx(1_048_576 / seconds)
    save = made.cadence
    assert save.checkpoint_bytes == 14 * n and save.write_seconds == pytest.approx(28 * n / 1e9)
    assert save.mtbf_seconds == pytest.approx(365.25 * 86_400 / 64)
    assert save.young_seconds == pytest.approx((2 * save.write_seconds * save.mtbf_seconds) ** 0.5)
    assert save.every_seconds == pytest.approx(save.daly_seconds, abs=seconds / 2)
    assert made.batch_floor == 512
    assert made.time.device_hours == 64 * made.time.hours and made.time.cost == 2 * made.time.device_hours


def test_the_classic_example_is_6e20():
    """Claim 25: a billion parameters and a hundred billion tokens, to the 10% by which this model is smaller."""
    assert plan(billion()).flops.six_nd == pytest.approx(6e20, rel=0.1)


def test_why_six_nd_differs_adds_up():
    """Each reason is its share of 6 N D; together they are what the exact count is more. Shares have one decimal."""
    for name in ("70b-on-512-h100", "moe-8x7b-on-128-h100", "gpt2-124m", "deepseek-v3"):
        flops = plan(preset(name)).flops
        shares = [float(why.split("%")[0]) / 100 for why in flops.why]
        assert sum(shares) == pytest.approx(flops.ratio - 1, abs=0.0005 * len(shares) + 1e-9), name
        assert [abs(share) for share in shares] == sorted((abs(share) for share in shares), reverse=True)
        assert flops.exact == pytest.approx(sum(flops.parts.values())) and flops.hardware >= flops.exact
    tied = plan(billion())
    assert not any("looked up" in why for why in tied.flops.why)  # the table multiplies as the head


@pytest.mark.parametrize("name", presets())
def test_presets_have_a_plan_that_agrees_with_itself(name):
    run = preset(name)
    made = plan(run)
    assert made.run == check(run) and made.run.hardware.memory_gib is not None
    assert len(made.memory.stages) == run.layout.pipeline
    assert made.memory.peak == max(stage.peak for stage in made.memory.stages)
    assert made.memory.stages[made.memory.worst].peak == made.memory.peak
    assert made.memory.limit == device_limit(made.run.hardware.memory_gib)
    save, time = made.cadence, made.time
    assert time.hours == pytest.approx(time.computing_hours + save.writing_hours + save.lost_hours, rel=1e-12)
    assert time.computing_hours == pytest.approx(time.hours * save.goodput)
    assert save.every_seconds == pytest.approx(save.every_steps * time.step_seconds)
    # Lost hours, second way: each interruption undoes what it undoes and takes a restart. Failures while restarting and
    # half-written checkpoints are in the first way only: below 5% of it where failures are rare.
    roughly = save.interruptions * (save.lost_seconds + save.restart_seconds) / 3600
    assert save.lost_hours == pytest.approx(roughly, rel=0.1, abs=1e-3)
    assert save.goodput == pytest.approx(save.goodput_first_order, abs=0.01)
    if not time.assumed:
        assert (time.step_seconds, time.mfu) == (made.step.seconds, made.step.mfu)
    assert made.step.hfu / made.step.mfu == pytest.approx(made.flops.hardware / made.flops.exact)  # both count alike
    severities = [risk.severity for risk in made.risks]
    assert severities == sorted(severities, reverse=True)


@pytest.mark.parametrize("name", presets())
def test_as_dict_is_json(name):
    text = json.dumps(plan(preset(name)).as_dict(), allow_nan=False)
    back = json.loads(text)
    assert set(back) == {
        "run", "parameters", "amount", "flops", "memory", "step", "time", "batch_floor", "cadence", "risks", "drill",
    }  # fmt: skip
    assert back["flops"]["ratio"] == pytest.approx(back["flops"]["exact"] / back["flops"]["six_nd"])
    assert back["time"]["days"] == pytest.approx(back["time"]["hours"] / 24)
    assert back["memory"]["fits"] in (True, False)


def test_without_failures_nothing_is_lost():
    run = billion()
    made = plan(replace(run, hardware=replace(run.hardware, failures_per_device_year=0.0)))
    assert made.cadence.mtbf_seconds == inf and made.cadence.interruptions == 0
    assert made.cadence.every_steps == made.amount.steps  # saved once, at the end
    assert made.cadence.lost_hours == pytest.approx(0, abs=1e-9)
    assert made.as_dict()["cadence"]["mtbf_seconds"] is None


def test_a_run_that_never_ends_is_a_plan():
    run = billion(restart_minutes=1000.0)
    made = plan(replace(run, hardware=replace(run.hardware, failures_per_device_year=10_000.0)))
    assert made.time.hours == inf and made.time.cost == inf
    assert made.risks[0].key == "never_ends"
    assert made.as_dict()["time"]["hours"] is None
    json.dumps(made.as_dict(), allow_nan=False)


def test_a_given_cadence_is_taken():
    made = plan(billion(checkpoint_every_minutes=10.0))
    assert made.cadence.every_seconds == pytest.approx(600, abs=made.time.step_seconds / 2)
    assert made.cadence.goodput < plan(billion()).cadence.goodput
    assert plan(billion(checkpoint_every_minutes=1e-6)).cadence.every_steps == 1


def test_without_an_assumed_mfu_it_is_predicted():
    made = plan(billion(mfu=None))
    assert not made.time.assumed and made.time.mfu == made.step.mfu and made.time.step_seconds == made.step.seconds
    assert plan(billion()).step == made.step  # it is predicted in any case


def test_without_a_price_there_is_no_cost():
    run = billion()
    assert plan(replace(run, hardware=replace(run.hardware, price_per_device_hour=None))).time.cost is None


def test_an_impossible_layout_is_an_error():
    with pytest.raises(ConfigError, match=r"layout\.data = 60"):
        plan(replace(billion(), layout=LayoutSpec(data=60)))
    with pytest.raises(ConfigError, match=r"hardware\.price is missing"):
        given(None, "price")


def test_more_memory_than_there_is_is_a_plan():
    run = billion()
    made = plan(replace(run, hardware=replace(run.hardware, memory_gib=1.0)))
    assert not made.memory.fits and made.risks[0].key == "memory" and isfinite(made.time.hours)
