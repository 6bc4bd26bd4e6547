"""The oracles of chapter 15's exercises against each other way there is to know, and every variant against itself."""

import math
from dataclasses import replace

import pytest

from course_lib.checks import ch15_cadence, ch15_estimate, ch15_flops, ch15_hand, ch15_layout, ch15_runbook, ch15_state
from course_lib.checks.ch15 import CheckFailed, own_variant
from course_lib.checks.ch15_diagnose import diagnose_judge, diagnose_text, incident
from course_lib.checks.ch15_ranks import KINDS, ranks, ranks_judge, ranks_text
from course_lib.planning import cadence, capacity, flops, sizes
from course_lib.planning.search import search
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec

VARIANTS = (*range(21), 4_711, 10**9)


def _spec(shape: dict) -> ModelSpec:
    names = ("layers", "width", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied", "experts")
    return ModelSpec(**{name: shape[name] for name in names}, active_experts=shape["active"])


@pytest.mark.parametrize("case", ch15_flops.flops_cases(3), ids=lambda case: case["name"])
def test_counted_flops_are_the_planners(case) -> None:
    """Two lists of products, made apart; the planner's is tested against torch's own count."""
    model, s = _spec(case["shape"]), case["sequence"]
    counted = flops.step_flops(model, s, case["tokens"] / s).model
    assert ch15_flops.exact(case) == pytest.approx(counted, rel=1e-9)
    assert ch15_flops.six_nd(case) == pytest.approx(6 * sizes.active(model) * case["tokens"], rel=1e-9)


@pytest.mark.parametrize(
    ("sharding", "data", "tensor", "pipeline"), [("zero1", 8, 4, 4), ("fsdp", 16, 1, 1), ("ddp", 2, 1, 1)]
)
def test_state_is_the_planners(sharding: str, data: int, tensor: int, pipeline: int) -> None:
    """The planner's weights and optimizer, at its fullest stage; the last norm is all that it has besides: 0.1%. Its
    gradients have one more of the largest, which is being summed, and are left out on both sides."""
    model = ModelSpec(layers=32, width=2048, heads=16, vocab=65_536, ffn=8192)
    run = RunSpec(
        model=model,
        data=DataSpec(tokens=1e9, sequence=1024, global_batch=1024),
        hardware=HardwareSpec(devices=data * tensor * pipeline, device="H100 SXM"),
        layout=LayoutSpec(data=data, sharding=sharding, tensor=tensor, pipeline=pipeline),
    )
    states = [one.parts["weights"] + one.parts["optimizer"] for one in capacity.stages(run)]
    part = sizes.parameters(model)
    layers = sum(part[name] for name in ("attention", "feed_forward")) // 32 + 2 * 2048
    case = {"embedding": part["embedding"], "layer": layers, "head": part["head"], "layers": 32}
    case |= {"strategy": sharding, "data": data, "tensor": tensor, "pipeline": pipeline}
    gradients = 2 * (ch15_state.held(case) - ch15_state.held(case, "gradients-in-16-bit"))
    assert float(ch15_state.held(case) - gradients) == pytest.approx(max(states), rel=1e-3)


@pytest.mark.parametrize("case", ch15_cadence.cadence_cases(5), ids=lambda case: case["name"])
def test_the_simulation_knows_young_and_daly_well_enough(case) -> None:
    """Its best interval is Daly's to within what 160 tries can tell; both formulas pass, and a factor of sqrt(2) does
    not in at least one case."""
    write, mean = case["write_seconds"], ch15_cadence.mean_time(case)
    best = ch15_cadence.best(case)
    for interval in (cadence.young(write, mean), cadence.daly(write, mean)):
        assert ch15_cadence.simulated(case, interval)["both"] <= 1.005 * best
    exact = 1 - cadence.goodput(cadence.daly(write, mean), write, mean, 0.0)
    assert ch15_cadence.simulated(case, cadence.daly(write, mean))["both"] == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("variant", (0, 2, 5))
def test_the_cheapest_layout_is_what_the_search_finds(variant: int) -> None:
    """On the whole cluster, by predicted step time; the exercise prices by itself, and takes parts of it too."""
    run, (best, days) = ch15_layout.cluster(variant), ch15_layout.cheapest(variant)
    found = search(run, space=ch15_layout.SPACE).best
    assert found.plan is not None and found.plan.time.cost is not None and best.time.cost is not None
    assert best.memory.fits and best.time.days <= days
    assert best.time.cost <= found.plan.time.cost * (1 + 1e-9)
    half = replace(run, hardware=replace(run.hardware, devices=run.hardware.devices // 2))
    assert search(half, space=ch15_layout.SPACE).best.plan.time.days > days, "half of the cluster is in time as well"


@pytest.mark.parametrize("variant", VARIANTS)
def test_each_variant_is_right_for_itself_and_wrong_for_the_next(variant: int) -> None:
    case = {"name": "yours"}
    for make, judge, keys in (
        (ch15_hand.hand, ch15_hand.hand_judge, ("flops", "days")),
        (ch15_hand.hours, ch15_hand.hours_judge, ("device_hours", "days", "goodput")),
        (ranks, ranks_judge, ("ranks", "devices")),
        (incident, diagnose_judge, ("first", "fault", "remedy", "never")),
        (ch15_runbook.book, ch15_runbook.runbook_judge, ("lines",)),
    ):
        right = {key: make(variant)[key] for key in keys}
        assert judge(case, right | {"variant": variant}) is None
        if right != {key: make(variant + 1)[key] for key in keys}:
            assert judge(case, right | {"variant": variant + 1}) is not None
    for text in (ch15_hand.hand_text, ch15_hand.hours_text, ranks_text, diagnose_text, ch15_runbook.runbook_text):
        assert max(map(len, text(variant).splitlines())) <= 125
    assert ranks(variant)["kind"] == KINDS[variant % len(KINDS)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_exactly_one_limit_of_a_configuration_is_broken(variant: int) -> None:
    run = ch15_estimate.configuration(variant)
    right = {key: run[key] for key in ("parameters", "steps", "flops", "days", "state_gb", "checkpoint_gb")}
    right |= {"cadence_minutes": run["cadence_minutes"], "risk": run["risk"], "variant": variant}
    assert ch15_estimate.estimate_judge({}, right) is None
    young = math.sqrt(2 * run["write"] * run["mean"])
    broken = {
        "A": run["state_gb"] + run["activations"] > run["usable"],
        "B": (run["pipeline"] - 1) / (run["m"] + run["pipeline"] - 1) > 0.1,
        "C": run["batch"] < run["data"],
        "D": run["days"] > run["deadline"],
        "E": run["write"] / young + young / run["mean"] / 2 > 0.1,
        "F": run["tensor"] > 8,
        "G": run["heads"] % run["tensor"] != 0,
    }
    assert [letter for letter, is_so in broken.items() if is_so] == [run["risk"]]
    assert max(map(len, ch15_estimate.estimate_text(variant).splitlines())) <= 125


def test_every_fault_of_a_symptom_comes_up() -> None:
    seen = {incident(variant)["culprit"].fault for variant in range(60)}
    assert len(seen) == len({one.fault for n in range(5) for one in incident(n)["symptom"].suspects})


def test_which_check_is_first_is_no_rule() -> None:
    """Of the checks of a kind each is the cheap one sometimes, so that prices have to be read."""
    first: dict[int, set[str]] = {}
    for variant in range(100):
        run = incident(variant)
        first.setdefault(variant % 5, set()).add(run["checks"][run["first"]][0].check)
    assert [len(first[symptom]) for symptom in range(5)] == [2, 1, 3, 2, 1]


def test_the_broken_limit_does_not_follow_from_the_variant() -> None:
    letters = [ch15_estimate.configuration(variant)["risk"] for variant in range(28)]
    turns = ["".join(letters[n : n + 7]) for n in range(0, 28, 7)]
    assert turns[0] == ch15_estimate.BROKEN and len(set(turns)) == 4
    assert all(sorted(turn) == list("ABCDEFG") for turn in turns)


def test_letters_cannot_be_tried_out() -> None:
    """A wrong letter costs a variant unless a number is wrong beside it, or what is wrong is the form."""
    run = ch15_estimate.configuration(0)
    right = {key: run[key] for key in ("parameters", "steps", "flops", "days", "state_gb", "checkpoint_gb")}
    right |= {"cadence_minutes": run["cadence_minutes"], "risk": "A", "variant": 0}
    for change, free in (({}, False), ({"days": None}, False), ({"days": 1.0}, True), ({"risk": "H"}, True)):
        wrong = ch15_estimate.estimate_judge({}, right | change)
        assert wrong is not None and wrong.form is free, change
    four = {key: incident(0)[key] for key in ("first", "fault", "remedy", "never")} | {"variant": 0}
    other = next(letter for letter in "ABCD" if letter != four["never"])
    wrong = diagnose_judge({}, four | {"never": other})
    assert wrong is not None and not wrong.form and wrong.misconception == "notes-cost-time"


def test_a_name_makes_a_variant() -> None:
    assert own_variant("Ada Lovelace") == own_variant("  ada   LOVELACE ") != own_variant("Charles Babbage")
    assert all(100 <= own_variant(f"name {n}") < 10_000 for n in range(50))
    with pytest.raises(CheckFailed, match="a name in quotes"):
        own_variant(7)
