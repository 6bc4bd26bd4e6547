"""What each way past a NaN step leaves behind, measured against the run that has the mended code from the start."""

import math

import numpy as np
import pytest
import torch

from course_lib.data import IGNORE
from course_lib.errors import ConfigError
from course_lib.failures import records
from course_lib.failures.skipped_step import BAD_STEP, MENDED, SAVED_AT, STEPS, WAYS, Past, compare, own_mean

PLACE = BAD_STEP - SAVED_AT


@pytest.fixture(scope="module")
def empty() -> dict[str, Past]:
    return compare(cause="empty", seed=3)


@pytest.fixture(scope="module")
def overflow() -> dict[str, Past]:
    return compare(("gradients made finite", "rolled back"), "overflow", seed=3)


def test_the_bug_is_a_division_of_0_by_0() -> None:
    logits, targets = torch.zeros(1, 2, 5), torch.full((1, 2), IGNORE)
    assert own_mean(logits, targets, 0).isnan() and own_mean(logits, targets, 1) == 0
    targets[0, 0] = 1
    assert own_mean(logits, targets, 0) == own_mean(logits, targets, 1) == pytest.approx(math.log(5))


def test_only_the_roll_back_has_the_bits_of_the_mended_run(empty: dict[str, Past]) -> None:
    assert set(empty) == {MENDED, *WAYS}
    assert [way for way in WAYS if empty[way].same] == ["rolled back"]
    assert empty["rolled back"].repeated == PLACE and empty["rolled back"].losses == empty[MENDED].losses


def test_an_update_with_nan_is_the_end(empty: dict[str, Past]) -> None:
    for way in ("go on", "loss made finite"):
        assert empty[way].poisoned == 1 and math.isnan(empty[way].val_loss)
    assert empty["loss made finite"].losses[-1] == 0  # and the log looks finite


def test_weights_put_back_never_move_again(empty: dict[str, Past]) -> None:
    past = empty["weights put back"]
    assert all(moved == 0 for moved in past.moved[PLACE:]) and past.poisoned == 1
    assert all(math.isfinite(loss) for loss in past.losses[PLACE + 1 :])
    assert past.trained < past.counted == empty[MENDED].counted
    assert past.updates == STEPS  # the optimizer has counted what it did not do


def test_a_step_on_no_gradient_still_moves_the_weights(empty: dict[str, Past]) -> None:
    past = empty["gradients made finite"]
    assert past.norms[PLACE] == 0 and past.moved[PLACE] > 0.3 * np.median(past.moved[:PLACE])


def test_an_update_left_out_leaves_the_books_apart(empty: dict[str, Past]) -> None:
    past = empty["update left out"]
    assert past.moved[PLACE] == 0 and past.poisoned == 0
    assert (past.updates, past.scheduled, past.cursor) == (STEPS - 1, STEPS, STEPS)
    assert past.trained < past.counted and abs(past.val_loss - empty[MENDED].val_loss) < 0.02


def test_infinite_gradients_made_finite_freeze_weights(overflow: dict[str, Past]) -> None:
    past = overflow["gradients made finite"]
    assert 0 < past.poisoned < 0.05 and all(math.isfinite(loss) for loss in past.losses)
    assert overflow["rolled back"].same


def test_unknown_names() -> None:
    with pytest.raises(ConfigError, match="way='hope' is unknown"):
        compare(("hope",))
    with pytest.raises(ConfigError, match="cause='rain' is unknown"):
        compare(cause="rain")


def test_over_ten_seeds() -> None:
    kept = records.load("skipped_step")
    for cause, ways in kept.items():
        assert {len(rows) for rows in ways.values()} == {10}
        assert all(row["same"] and row["distance"] == 0 for row in ways["rolled back"])
        assert not any(row["same"] for way in WAYS if way != "rolled back" for row in ways[way])
        assert all(row["poisoned"] > 0 and row["moved"] == 0 for row in ways["weights put back"])
        assert all(0 < row["poisoned"] < 0.05 for row in ways["gradients made finite"]) == (cause == "overflow")
