"""The runbook has one line a chapter, and its numbers are the plan's."""

import math
import re
from dataclasses import replace

import pytest

from course_lib.errors import ConfigError
from course_lib.failures import runbook
from course_lib.failures.miniature import KINDS
from course_lib.planning.plan import Plan, plan
from course_lib.planning.presets import preset, presets


@pytest.fixture(scope="module")
def made() -> Plan:
    return plan(preset("llama-3-405b"))


def test_one_line_a_chapter_in_order() -> None:
    assert [line.chapter for line in runbook.LINES] == list(range(16))
    assert len({line.key for line in runbook.LINES}) == 16
    assert {line.when for line in runbook.LINES} == {"before", "while", "stop"}
    assert all(line.question.endswith("?") and line.otherwise.endswith(".") for line in runbook.LINES)


def test_each_kind_of_strike_has_its_line() -> None:
    assert set(runbook.STOPS) == set(KINDS)
    assert set(runbook.STOPS.values()) <= {line.key for line in runbook.LINES}


@pytest.mark.parametrize("name", presets())
def test_every_preset_fills_every_line(name: str) -> None:
    lines = runbook.fill(plan(preset(name)))
    assert all(line.number and "nan" not in line.number.split() for line in lines)
    assert sum(bool(re.search(r"\d", line.number)) for line in lines) >= 12


def test_the_numbers_are_those_of_the_plan(made: Plan) -> None:
    numbers = {line.key: line.number for line in runbook.fill(made)}
    assert f"{math.log(128_256):.2f} nats" in numbers["floor"]
    n = 405_853_388_800  # parameters that Meta's own shapes give
    assert f"{n / 1e9:.2f} B parameters x 18 bytes = {n * 18 / 2**30:,.0f} GiB" in numbers["state"]
    assert "128 ranks x 16 micro-batches of 1 = 2,048 sequences, 16,777,216 tokens" in numbers["batch"]
    assert f"{n * 14 / 2**30:,.0f} GiB" in numbers["checkpoint"]  # without the gradients
    assert "one in 3.1 h" in numbers["anomaly"] or made.run.hardware.failures_per_device_year != 0.173
    assert "8,191 earlier positions" in numbers["leak"] and "tensor 8 on nodes of 8" in numbers["links"]
    assert "at most 2,048" in numbers["data"] and "16 stages, 16 micro-batches" in numbers["bubble"]
    assert "dense" in numbers["experts"]


def test_what_a_run_has_not_is_said() -> None:
    alone = {line.key: line.number for line in runbook.fill(plan(preset("350m-on-a-4090")))}
    assert alone["bubble"] == "no pipeline" and "nothing to compare" in alone["ranks"]
    mixture = {line.key: line.number for line in runbook.fill(plan(preset("moe-8x7b-on-128-h100")))}
    assert "12.9 of 46.7 B" in mixture["experts"] and "1 token in 4 " in mixture["experts"]


def test_which_weights_can_be_compared() -> None:
    """A weight that is sharded over all ranks is held once: there is nothing to hold it against."""
    told = {}
    run = preset("7b-on-64-a100")
    for sharding, replicas in (("ddp", 1), ("zero2", 1), ("fsdp", 1), ("hsdp", 8)):
        layout = replace(run.layout, data=64, sharding=sharding, replicas=replicas, recompute="all")
        lines = runbook.fill(plan(replace(run, layout=layout)))
        told[sharding] = next(line.number for line in lines if line.key == "ranks")
    assert told["ddp"] == told["zero2"] == "64 data-parallel ranks: one checksum"
    assert "each of 64 ranks has another shard" in told["fsdp"] and told["hsdp"].startswith("each shard is on 8 ranks")


def test_a_page_explains_itself(made: Plan) -> None:
    """Also to somebody who has never seen the course."""
    text = runbook.page(made)
    for word in ("MFU: ", "Goodput: ", "Before the first step: ", "storage_gb_per_s", "Assumed, "):
        assert word in text.split("\n## ")[0]
    assert all(one.expect in text for one in made.drill)
    assert "- none that the plan knows of" in runbook.page(plan(preset("7b-on-64-a100")))


def test_a_page_has_lines_risks_drill_and_your_remarks(made: Plan) -> None:
    text = runbook.page(made, own={"floor": "ours starts at 11.78"})
    assert text.startswith("# Runbook of ") and text.count("\n## ") == 16 + 2
    assert "- ours: ours starts at 11.78" in text and text.count("- ours:\n") == 15
    assert all(one.inject in text and one.proof in text for one in made.drill) and all(
        risk.text in text for risk in made.risks
    )
    with pytest.raises(ConfigError, match="'flour' is no line"):
        runbook.page(made, own={"flour": "x"})
