"""Steps left out by one rank alone, and under a loss scaler."""

import math

import pytest

from course_lib.failures.skipped_step import BAD_STEP, SAVED_AT, compare
from course_lib.failures.skipping import RANK_STEP, on_one_rank, torch_clip, under_a_scaler, without_a_scaler


def test_one_rank_alone_leaves_the_other_for_good() -> None:
    alone, together = on_one_rank(), on_one_rank(together=True)
    assert not any(alone.apart[:RANK_STEP]) and all(apart > 0 for apart in alone.apart[RANK_STEP:])
    assert alone.apart[RANK_STEP] == pytest.approx(alone.moved[RANK_STEP], rel=1e-4)  # one update
    assert alone.apart[-1] > 0.5 * alone.apart[RANK_STEP]
    assert not any(together.apart)
    assert all(math.isfinite(loss) for loss in alone.losses)


def test_every_nan_halves_the_scale() -> None:
    healthy, often = under_a_scaler(None), under_a_scaler(2)
    assert healthy.skipped == 0 and set(healthy.scales) == {2.0**16}
    assert often.skipped == 30 and often.scales[-1] == 2.0 ** (16 - 29)
    assert often.lost[-2] > 0.05 > max(healthy.lost) and often.val_loss > healthy.val_loss
    # Of the gap most is missing updates: the control has them missing too, and no scaler.
    assert without_a_scaler(2) - healthy.val_loss > 0.5 * (often.val_loss - healthy.val_loss)


def test_a_clip_that_divides_by_infinity_hides_it() -> None:
    ours, theirs = compare(("gradients made finite",), "overflow")["gradients made finite"], torch_clip()
    assert ours.poisoned > 0 == theirs.poisoned and math.isfinite(theirs.val_loss)
    assert (
        theirs.norms[SAVED_AT : BAD_STEP + 1] == ours.norms[: BAD_STEP - SAVED_AT + 1]
        and theirs.updates == ours.updates
    )
