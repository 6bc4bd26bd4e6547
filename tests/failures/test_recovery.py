"""Ways out of a loss spike: what each costs, and that replaying the batches tells a bad file from a bad state."""

import math

import numpy as np
import pytest

from course_lib.errors import ConfigError
from course_lib.failures import records, recovery
from course_lib.failures.recovery import BURST, NOTICED, SAVED_AT, SKIPPED, STEPS, STRUCK, TWIN, Recovery, Window, ZClip

SEED = 4


@pytest.fixture(scope="module")
def garbage() -> dict[str, Recovery]:
    return recovery.compare("garbage", SEED)


@pytest.fixture(scope="module")
def moments() -> dict[str, Recovery]:
    cures = ("go on", "leave out by z-score", "roll back, skip batches", "roll back, mended")
    return recovery.compare("moments", SEED, cures)


def test_z_clip_limits_what_stands_out() -> None:
    clipper, rng = ZClip(), np.random.default_rng(0)
    limits = [clipper.limit(norm) for norm in rng.normal(1.0, 0.1, 200)]
    assert limits[:25] == [math.inf] * 25 and np.isinf(limits).mean() > 0.9
    mean, deviation = clipper.mean, math.sqrt(clipper.variance)
    assert (mean, deviation) == (pytest.approx(1.0, abs=0.06), pytest.approx(0.1, abs=0.05))
    # The rule of the paper: mean + threshold^2 / z deviations, so that further out is nearer to the mean.
    assert clipper.limit(mean + 5 * deviation) == pytest.approx(mean + 2.5**2 / 5 * deviation, rel=1e-4)
    near = clipper.mean
    assert clipper.limit(100.0) < near + 0.1 * deviation and clipper.mean < 1.2


def test_a_window_takes_norms_as_they_are() -> None:
    window, rng = Window(), np.random.default_rng(0)
    norms = [*rng.normal(1.0, 0.1, 200), 5.0]
    assert all(window.limit(norm) == math.inf for norm in norms[:63]) and window.z == 0
    for norm in norms[63:]:
        window.limit(norm)
    last = np.array(norms[-129:-1])
    assert window.z == pytest.approx((5.0 - last.mean()) / last.std(ddof=1)) and window.z > 6
    window.limit(5.0)
    assert window.z < 12 and len(window.seen) == 202  # what was far out is in the deviation now


def test_a_clipped_spike_is_a_spike(garbage: dict[str, Recovery]) -> None:
    """The norm is limited, the direction stays."""
    assert max(garbage["go on"].norms[12:20]) > 3 * np.median(garbage["go on"].norms[:12])
    assert garbage["go on"].peak > 1 and garbage["clip by z-score"].peak > 0.5 * garbage["go on"].peak
    assert garbage["leave out by z-score"].peak < 0.1 and garbage["leave out by z-score"].left_out >= BURST


def test_the_same_batches_are_the_same_spike(garbage: dict[str, Recovery]) -> None:
    again = garbage["roll back, same batches"]
    first = NOTICED - SAVED_AT
    assert again.val_losses[:first] == again.val_losses[first : 2 * first] and again.repeated == first
    skip = garbage["roll back, skip batches"]
    assert again.back is None or again.back > first + 8  # behind the second spike
    assert max(skip.val_losses[first:]) < 1.3 and skip.left_out == SKIPPED
    assert skip.batches[first] == SAVED_AT + SKIPPED > STRUCK + BURST - 1
    assert max(garbage["roll back, mended"].val_losses[first:]) < 1.3


def test_skipping_data_does_not_mend_a_broken_resume(moments: dict[str, Recovery]) -> None:
    first = NOTICED - SAVED_AT
    assert moments["go on"].peak > 0.2
    assert max(moments["roll back, skip batches"].val_losses[first:]) > 1.3
    assert max(moments["roll back, mended"].val_losses[first:]) < 1.25


def test_the_twin_has_no_spike(garbage: dict[str, Recovery]) -> None:
    twin = garbage[TWIN]
    assert (twin.peak, twin.back, twin.gap) == (0, 0, 0) and len(twin.val_losses) == STEPS - SAVED_AT
    assert all(len(one.val_losses) == STEPS - SAVED_AT for one in garbage.values())


def test_replayed_elsewhere() -> None:
    data, state = (recovery.replay(cause, SEED) for cause in recovery.CAUSES)
    own = "the run's own state"
    assert min(data.values()) > 1
    assert state[own] > 0.2 and max(rise for name, rise in state.items() if name != own) < 0.1


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="cure='prayer' is unknown"):
        recovery.compare(cures=("prayer",))
    with pytest.raises(ConfigError, match="cause='rain' is unknown"):
        recovery.replay("rain")


def test_over_ten_seeds() -> None:
    kept = records.load("recovery")
    own = "replay: the run's own state"
    for cause, ways in kept.items():
        assert {len(rows) for rows in ways.values()} == {10}
        elsewhere = [row["rise"] for name in ways if name.startswith("replay") and name != own for row in ways[name]]
        assert all(row["rise"] > 0.1 for row in ways[own])
        assert all((rise > 0.1) == (cause == "garbage") for rise in elsewhere)
    data, state = kept["garbage"], kept["moments"]
    assert all(
        row["peak"] > 0.5 * gone["peak"] for row, gone in zip(data["clip by z-score"], data["go on"], strict=True)
    )
    assert sum(row["peak"] < 0.1 for row in data["leave out by z-score"]) >= 9
    assert sum(row["back"] is None for row in state["leave out by z-score"]) >= 9
    assert all(row["peak"] > 0.2 and 0 < row["left_out"] < BURST for row in data["leave out by raw norms"])
    assert sum(row["back"] is not None for row in state["leave out by raw norms"]) >= 8
    assert sum(row["back"] is not None for row in data["roll back, skip batches"]) >= 9
