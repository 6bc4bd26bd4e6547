"""The envelope's six numbers, by hand, and runs that are drawn."""

from dataclasses import replace
from math import sqrt

import numpy as np
import pytest

from course_lib.planning.envelope import against, envelope, unseen
from course_lib.planning.plan import plan
from course_lib.planning.presets import preset
from course_lib.planning.rules import check
from course_lib.planning.sizes import total


def test_six_numbers_by_hand() -> None:
    run = check(preset("llama-3-405b"))
    run = replace(run, hardware=replace(run.hardware, failures_per_device_year=0.5, storage_gb_per_s=1000.0))
    n, own = 405_853_388_800, envelope(run)
    assert own.steps == pytest.approx(15.6e12 / (2048 * 8192))
    assert own.state_gib == pytest.approx(n * 18 / 16_384 / 2**30)
    assert own.days == pytest.approx(6 * n * 15.6e12 / (16_384 * 989e12 * 0.4) / 86_400)
    assert own.checkpoint_gib == pytest.approx(14 * n / 2**30)
    write, mtbf = 14 * n / 1e12, 365.25 * 86_400 / (16_384 * 0.5)
    assert own.save_minutes == pytest.approx(sqrt(2 * write * mtbf) / 60)
    assert own.stops == pytest.approx(16_384 * own.days / 365.25 * 0.5)


def test_of_a_mixture_time_is_of_what_a_token_meets_and_memory_of_all() -> None:
    run = check(preset("moe-8x7b-on-128-h100"))
    own = envelope(run)
    assert own.state_gib == pytest.approx(46.7e9 * 18 / 128 / 2**30, rel=2e-3)
    assert own.days == pytest.approx(6 * 12.88e9 * 1e12 / (128 * 989e12 * 0.4) / 86_400, rel=2e-3)


def test_unseen_runs_are_legal_varied_and_the_same_for_the_same_seed() -> None:
    runs = [unseen(seed) for seed in range(200)]
    assert all(run == unseen(seed) for seed, run in enumerate(runs[:5]))
    for run in runs:
        check(run)
    sizes = [total(run.model) for run in runs]
    assert 0.2e9 < min(sizes) < 2e9 and 30e9 < max(sizes) < 100e9
    devices = {run.hardware.devices for run in runs}
    assert min(devices) == 8 and 1024 <= max(devices) <= 4096
    assert len({run.layout for run in runs}) > 30 and {run.hardware.device for run in runs} == {
        "A100 SXM 80GB",
        "H100 SXM",
    }


def test_what_is_exact_and_what_is_not() -> None:
    rows: dict[str, list[float]] = {}
    for seed in range(60):
        for name, ratio in against(unseen(seed)).items():
            rows.setdefault(name, []).append(ratio)
    assert np.allclose(rows["steps"], 1, atol=1e-3) and np.allclose(rows["checkpoint size"], 1)
    assert np.allclose(rows["time between saves"], 1, atol=0.02)  # Young against Daly
    assert max(rows["memory of a device"]) < 1 and np.median(rows["memory of a device"]) < 0.5
    assert 0.3 < np.median(rows["days"]) < 1.5 and np.ptp(rows["days"]) > 0.5


def test_days_agree_where_the_plan_has_the_same_mfu() -> None:
    run = preset("7b-on-64-a100")
    run = replace(run, assume=replace(run.assume, mfu=0.4))
    made = plan(run)
    # What is left: attention's scores, and what failures and saves take.
    assert against(run)["days"] == pytest.approx(made.cadence.goodput / made.flops.ratio, rel=1e-3)
