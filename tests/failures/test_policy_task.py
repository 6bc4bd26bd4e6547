"""The policy task: its reward, its gradient, what a mismatch does and what repairs it."""

import pytest
import torch

from course_lib.errors import ConfigError
from course_lib.failures import policy_task, records
from course_lib.failures.offpolicy import compare, sample
from course_lib.failures.policy_task import DIGITS, LENGTH, MISMATCHES, reward, run, texts
from course_lib.model import GPT


def test_reward_counts_rises_between_digits() -> None:
    rows = [[0, 1, 2, 3, 4, 5, 6, 7], [7, 6, 5, 4, 3, 2, 1, 0], [0, 0, 1, 1, 2, 2, 3, 3], [1, 2, 10, 3, 4, 4, 4, 4]]
    assert reward(torch.tensor(rows)).tolist() == pytest.approx([1, 0, 3 / 7, 2 / 7])


def test_matched_learns_and_a_repeat_is_the_same_run() -> None:
    first, again = run(steps=70), run(steps=70)
    assert first == again
    assert sum(first.reward[-10:]) / 10 > sum(first.reward[:10]) / 10 + 0.2
    assert max(first.largest) < 1e-4  # the cache alone
    assert len(first.text.split()[0]) == LENGTH


def test_a_stale_sampler_collapses_and_truncated_ratios_hold() -> None:
    """Over three seeds together: one seed alone may recover."""
    late = {
        how: [run(*how, seed).late for seed in range(3)]
        for how in (("matched", "none"), ("stale", "none"), ("stale", "tis"))
    }
    mean = {how: sum(found) / 3 for how, found in late.items()}
    assert mean["matched", "none"] > 0.8 > mean["stale", "none"] + 0.15
    assert mean["stale", "tis"] > mean["stale", "none"] + 0.1


def test_increments_that_are_lost_leave_the_sampler_behind() -> None:
    whole, added = run("fp8", steps=100), run("fp8 increments", steps=100)
    assert max(added.largest) > 5 * max(whole.largest)
    assert sum(added.reward[-20:]) < sum(whole.reward[-20:]) - 1


def test_sampler_weights_take_up_increments_as_their_format_can() -> None:
    shape = policy_task.ModelConfig(vocab_size=DIGITS + 1, d_model=32, n_layers=1, n_heads=2, context=LENGTH + 1)
    left = {}
    for fmt in ("fp16", "bf16", "fp8"):
        model = GPT(shape, 0)
        kept = policy_task._Increments(model, fmt)
        for _ in range(50):
            with torch.no_grad():
                for p in model.parameters():
                    p += 1e-3
            sampler = kept.follow(model)
        pairs = zip(sampler.parameters(), model.parameters(), strict=True)
        left[fmt] = max(float((a - b).abs().max()) for a, b in pairs)
    assert left["fp16"] < 0.03 and left["fp8"] > 0.04 and left["fp16"] < left["bf16"]  # of 0.05 that were sent


def test_without_a_gap_the_correction_changes_nothing() -> None:
    """With a matched sampler every ratio is 1 to 1e-6, so the correction changes next to nothing."""
    plain, corrected = run(steps=8), run("matched", "tis", steps=8, cap=2.0)
    assert corrected.grad_norm == pytest.approx(plain.grad_norm, rel=1e-2)


def test_texts_are_of_the_model() -> None:
    shape = policy_task.ModelConfig(vocab_size=DIGITS + 1, d_model=32, n_layers=1, n_heads=2, context=LENGTH + 1)
    model, generator = GPT(shape, 0), torch.Generator().manual_seed(0)
    assert texts(model, 5, generator).shape == (5, LENGTH)
    assert compare(model, sample(model, torch.full((3, 1), DIGITS), LENGTH, generator)).largest < 1e-4


def test_bad_input_says_what_there_is() -> None:
    with pytest.raises(ConfigError, match="there are matched"):
        run("x")
    with pytest.raises(ConfigError, match="correction"):
        run("stale", "x")  # type: ignore[arg-type]


def test_recorded_over_ten_seeds() -> None:
    found = records.load("policy_task")
    late = {name: one["late"] for name, one in found.items()}
    assert all(len(of) == 10 for of in late.values()) and {name.rsplit(" ", 1)[0] for name in late} == set(MISMATCHES)
    assert min(late["matched none"]) > 0.7
    fallen = sum(bad < good - 0.1 for bad, good in zip(late["stale none"], late["matched none"], strict=True))
    mended = sum(tis > bad for tis, bad in zip(late["stale tis"], late["stale none"], strict=True))
    assert fallen >= 8 and mended >= 8
    gaps = [max(found[f"{name} none"]["largest"]) for name in ("matched", "fp16", "bf16", "fp8")]
    assert gaps == sorted(gaps)


@pytest.mark.stress
def test_collapse_and_repair_over_ten_seeds() -> None:
    fallen = mended = 0
    for seed in range(10):
        matched, stale, tis = (run(*how, seed).late for how in (("matched",), ("stale",), ("stale", "tis")))
        fallen += stale < matched - 0.1
        mended += tis > stale
    assert fallen >= 8 and mended >= 8
