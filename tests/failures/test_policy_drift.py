"""A policy that learns from another engine's texts: what is equal, what differs, and what ten seeds show."""

import copy

import pytest
import torch

from course_lib.errors import ConfigError
from course_lib.failures import policy_drift, records
from course_lib.failures.offpolicy import engine
from course_lib.failures.policy_drift import WAYS, pretrained, run


@pytest.fixture(scope="module")
def start() -> torch.nn.Module:
    return pretrained(0, steps=60)


def test_the_matched_trainer_computes_what_the_sampler_does(start: torch.nn.Module) -> None:
    tokens = policy_drift.questions(8, torch.Generator().manual_seed(0))[0]
    ours = torch.func.functional_call(start, policy_drift._as_the_sampler(start), (tokens,))  # type: ignore[attr-defined]
    assert torch.equal(ours, engine(start, "fp8")(tokens))
    ours.float().sum().backward()
    grads = [p.grad for p in start.parameters()]
    assert all(g is not None and g.dtype == torch.float32 and torch.isfinite(g).all() for g in grads)
    start.zero_grad()


def test_a_run_leaves_its_start_alone_and_is_the_same_again(start: torch.nn.Module) -> None:
    before = copy.deepcopy(start.state_dict())
    first, again = (run("FP8 sampler", 3, start=start, updates=3) for _ in range(2))
    assert first == again and len(first.reward) == 3
    assert all(torch.equal(before[name], value) for name, value in start.state_dict().items())


def test_only_the_mismatched_ways_have_a_gap(start: torch.nn.Module) -> None:
    # FP32 against FP32 differs by the cache's order of additions, about 1e-6 a log-probability, squared; FP8 by 1e-2.
    kl = {way: max(run(way, 1, start=start, updates=2).kl) for way in WAYS}
    assert kl["FP32 sampler"] < 1e-9 < 1e-5 < min(kl["FP8 sampler"], kl["FP8, truncated ratios"])
    assert kl["FP8, matched trainer"] < kl["FP8 sampler"] / 20  # BF16's rounding, of another order of additions


def test_the_ways_share_their_questions_and_differ_in_what_they_learn(start: torch.nn.Module) -> None:
    plain, mended = (run(way, 1, start=start, updates=4) for way in ("FP8 sampler", "FP8, truncated ratios"))
    assert plain.reward[0] == mended.reward[0] and plain.kl[0] == mended.kl[0]
    assert plain.kl[1:] != mended.kl[1:]


def test_over_ten_seeds_the_mismatch_lowers_the_reward_and_both_repairs_help_in_most() -> None:
    ends = {way: kept["final"] for way, kept in records.load("policy_drift")["ways"].items()}
    fp8 = ends["FP8 sampler"]
    assert len(fp8) == 10 and sum(low < exact for low, exact in zip(fp8, ends["FP32 sampler"], strict=True)) >= 9
    for way, seeds in (("FP8, truncated ratios", 6), ("FP8, matched trainer", 8)):
        assert sum(kept > low for kept, low in zip(ends[way], fp8, strict=True)) >= seeds
        assert sum(ends[way]) > sum(fp8) + 10 * 0.05  # a twentieth of the reward, in the mean


def test_with_a_baseline_the_drift_is_gone_in_this_task() -> None:
    kept = records.load("policy_drift")["ways"]
    fp8, exact = (kept[f"{name}, baseline"]["final"] for name in ("FP8", "FP32"))
    assert len(fp8) == 10 and all(abs(a - b) < 0.01 for a, b in zip(fp8, exact, strict=True))
    grown = [end / first for end, first in zip(kept["FP8 sampler"]["kl"], kept["FP8 sampler"]["kl_first"], strict=True)]
    assert sorted(grown)[5] > 10  # the gap feeds itself without one


def test_a_baseline_takes_the_mean_away(start: torch.nn.Module) -> None:
    plain, less = (run(way, 1, start=start, updates=2) for way in ("FP8 sampler", "FP8, baseline"))
    assert plain.reward[0] == less.reward[0] and plain.kl[0] == less.kl[0] and plain.kl[1] != less.kl[1]


def test_a_wrong_name_is_one_line() -> None:
    with pytest.raises(ConfigError, match="no way 'FP7'"):
        run("FP7")
