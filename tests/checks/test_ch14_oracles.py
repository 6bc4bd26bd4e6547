"""What chapter 14's exercises call right, against torch, all orders there are, chances of counts, and the library."""

import math
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch

from course_lib.checks.ch14_clip import DEFAULTS, FIXED, RULES, SET, clip_cases, clipped
from course_lib.checks.ch14_kinds import tables
from course_lib.checks.ch14_logs import WANTED, incident, log, number
from course_lib.checks.ch14_order import suspects
from course_lib.checks.ch14_roots import draw
from course_lib.checks.ch14_skip import past
from course_lib.checks.ch14_step import ALARMS, STEP, farthest, most, moves
from course_lib.failures.incidents import INCIDENTS
from course_lib.failures.recovery import ZClip


@pytest.mark.parametrize("variant", range(12))
def test_of_all_orders_by_kind_the_wanted_one_is_the_fastest(variant: int) -> None:
    run = suspects(variant)
    lines = run["lines"]
    real = [letter for letter, (_, kind, _) in lines.items() if kind < 4]
    rng = np.random.default_rng(variant)

    def mean(order: tuple[str, ...]) -> float:
        """The fault is drawn, and checks are made until its own was made."""
        faults = rng.permutation(np.repeat(list(order), 20))
        return float(np.mean([sum(lines[one][2] for one in order[: order.index(fault) + 1]) for fault in faults]))

    by_kind = [one for one in permutations(real) if [lines[k][1] for k in one] == sorted(lines[k][1] for k in one)]
    assert min(by_kind, key=mean) == tuple(run["order"])
    assert mean(tuple(run["order"])) == pytest.approx(run["evidence"])
    assert sum(minutes == 240 for *_, minutes in lines.values()) == 1


def test_a_log_fits_its_own_line_and_no_other() -> None:
    """Each line's sign, looked for in every log: it is there in the log of that fault alone."""
    for variant, (name, letter) in enumerate(WANTED):
        _, run = incident(variant)
        series, resumes = log(variant), run["resumes"]
        loss, tokens, lr = series["loss"], series["tokens"], series["lr"]
        first = resumes[0] if resumes else None
        signs = {
            "A": len(set(tokens)) == 1,
            "B": bool((loss[1:] > 3 * loss[:-1]).any()),
            "C": first is not None
            and len(set(tokens)) > 1
            and bool((tokens[first : 2 * first] == tokens[:first]).all()),
            "D": first is not None and bool(lr[first] < lr[first - 1] / 2),
            "E": bool((series["scale"][1:] < series["scale"][:-1]).sum() > 5),
            "F": bool((np.diff(series["memory_bytes"]) > 0).all()),
            "G": "checksum_1" in series and bool((series["checksum_0"] != series["checksum_1"]).any()),
        }
        assert [sign for sign, there in signs.items() if there] == [letter], name
        assert name in INCIDENTS and math.isfinite(number(letter, run))


def test_the_leak_is_one_batch_of_logits() -> None:
    """16 sequences of 32 tokens, and the vocabulary, in FP32."""
    letter, run = incident(1)
    bytes_a_step = number(letter, run)
    assert bytes_a_step % (16 * 32 * 4) == 0 and 40 < bytes_a_step / (16 * 32 * 4) < 200


@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999), (0.8, 0.99), (0.95, 0.98)])
def test_torchs_adamw_keeps_the_bound_and_reaches_it(betas: tuple[float, float]) -> None:
    bound = most(betas)
    one, two = betas
    assert bound == pytest.approx((1 - one) / math.sqrt((1 - two) * (1 - one**2 / two)), rel=1e-6)
    rng, reached = np.random.default_rng(0), 0.0
    weights = torch.nn.Parameter(torch.zeros(50, dtype=torch.float64))
    adam = torch.optim.AdamW([weights], lr=1e-3, betas=betas, weight_decay=0.1, eps=1e-30)
    steps = round(6 / (1 - two))  # until the correction for the start is over; the worst gradients are the last 150
    for t in range(steps):
        grown = torch.full((25,), 1e-9 * (two / one) ** max(0, t + 150 - steps), dtype=torch.float64)
        weights.grad = torch.cat([grown, torch.tensor(rng.standard_cauchy(25))])
        before = weights.detach().numpy().copy()
        adam.step()
        after = weights.detach().numpy().copy()
        far = farthest({"before": before, "after": after, "lr": 1e-3, "weight_decay": 0.1})
        assert far <= bound * (1 + 1e-9)
        reached = max(reached, far)
    assert reached > 0.97 * bound


@pytest.mark.parametrize("seed", range(4))
def test_no_step_is_near_the_bound(seed: int) -> None:
    cases = STEP.cases(seed)
    assert set(ALARMS) < {case["name"] for case in cases}
    for case in cases:
        shares = np.array([farthest(step) / most(step["betas"]) for step in case["steps"]])
        assert ((shares < 0.99) | (shares > 1.3) | np.isnan(shares)).all()
        broken = (shares > 1) | np.isnan(shares)
        assert broken.any() != (case["name"] in ALARMS), case["name"]
    near = next(case for case in cases if case["name"] == "gradients that grow")
    assert min(farthest(step) for step in near["steps"]) > 1.05
    tight = [case["steps"] for case in cases if case["name"].startswith("gradients that grow, betas")]
    assert len({step["betas"] for steps in tight for step in steps}) == 3
    bounds = sorted({most(step["betas"]) for case in cases for step in case["steps"]})
    assert len(bounds) == 4 and all(1.2 * one < other for one, other in pairwise(bounds))
    assert all(farthest(step) > 0.93 * most(step["betas"]) for steps in tight for step in steps)


@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit_and_a_lost_decay_show_in_one_way_only(seed: int) -> None:
    cases = {case["name"]: case["steps"] for case in STEP.cases(seed)}
    far = [moves(step) for step in cases["one flipped bit"] if farthest(step) > 2]
    assert sorted(np.sign(one[np.abs(one).argmax()]) for one in far) == [-1, 1]
    assert all(np.sqrt((one**2).mean()) < most((0.9, 0.95)) for one in far)
    for step in cases["large weights, and a step without its decay"]:
        slack = np.abs(step["after"] - step["before"]) / step["lr"] - np.abs(0.1 * step["before"])
        assert slack.max() < most((0.9, 0.95))


@pytest.mark.parametrize("seed", range(4))
def test_clipping_is_the_librarys_where_norms_are_finite(seed: int) -> None:
    """The library adds 1e-6 to the deviation."""
    for case in clip_cases(seed):
        norms = [one for one in case["norms"] if math.isfinite(one)]
        clipper = ZClip(case["threshold"], case["keep"], case["warm_up"])
        theirs = [min(norm, clipper.limit(norm)) for norm in norms]
        ours = [one for one, norm in zip(clipped(case), case["norms"], strict=True) if math.isfinite(norm)]
        assert np.allclose(ours, theirs, rtol=1e-4, atol=1e-4), case["name"]


@pytest.mark.parametrize("seed", range(6))
def test_each_rule_decides_a_case(seed: int) -> None:
    cases = clip_cases(seed)
    for rule in [one for one in RULES if one != SET] + [SET + FIXED + name for name in DEFAULTS]:
        assert any(not np.allclose(clipped(case), clipped(case, rule), rtol=1e-3, equal_nan=True) for case in cases), (
            rule
        )


@pytest.mark.parametrize("variant", range(10))
def test_what_was_done_shows_in_the_columns(variant: int) -> None:
    run = past(variant)
    steps, batches, losses, moved, counts = (np.array(column) for column in zip(*run["rows"], strict=True))
    nan = np.isnan(losses)
    usual = np.median(moved[: int(np.flatnonzero(steps == run["bad"])[0])])
    if run["choice"] in "DE":
        assert not nan.any() and (counts == steps + 1).all() and (moved > usual / 3).all()
        assert run["evidence"] == batches[-1] - steps[-1]  # numbers that no row has
        assert (run["choice"] == "E") == (run["evidence"] > 0) == (run["bad"] not in batches)
        return
    assert (batches == steps).all() and steps[nan].tolist() == [run["bad"]]
    if run["choice"] in "AB":  # of the last row's batches and those before, one gave no gradient
        assert run["evidence"] == nan.sum() == 1
    if run["choice"] == "A":
        assert moved[nan] == 0 and (counts == steps + (steps < run["bad"])).all() and (moved == 0).sum() == 1
    if run["choice"] == "B":
        assert moved[nan] > usual / 3 and (counts == steps + 1).all()
    if run["choice"] == "C":
        assert (moved == 0).sum() == run["evidence"] > 1 and (counts == steps + 1).all()


def _chance(found: int, mean: float) -> float:
    """Of a Poisson count at least as far out on its side."""
    below = [math.exp(-mean) * mean**k / math.factorial(k) for k in range(found + 1)]
    return min(sum(below), 1 - sum(below[:-1]))


@pytest.mark.parametrize("variant", range(16))
def test_one_row_has_no_chance(variant: int) -> None:
    run = tables(variant)
    ratio = run["devices"] * run["days"] / (16_384 * 54)
    assert {row[2] == 0 for row in run["rows"]} == {True, False}
    chances = {
        letter: _chance(found, count * ratio) for letter, (_, count, found) in zip("ABCDE", run["rows"], strict=True)
    }
    odd = chances.pop(run["choice"])
    assert odd < 1e-3 and min(chances.values()) > 0.02
    count = run["rows"]["ABCDE".index(run["choice"])][1]
    assert run["evidence"] == pytest.approx(count * ratio)


@pytest.mark.parametrize("variant", range(12))
def test_six_incidents_each_under_one_heading(variant: int) -> None:
    run = draw(variant)
    assert sorted(run["causality"] + run["bias"] + run["neither"]) == list("ABCDEF")
    assert run["causality"] and run["bias"] and run["neither"]
    assert len({text for text, *_ in run["lines"].values()}) == 6
