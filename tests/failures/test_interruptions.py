"""The published tables: the counts add up, and where a table does not agree with itself, we say so."""

import sys
from subprocess import run

import pytest

from course_lib.failures import interruptions as tables


def test_the_counts_add_up_to_what_the_text_says() -> None:
    assert tables.unexpected() == 419
    assert tables.unexpected() + tables.LLAMA3_PLANNED == 466


def test_one_row_does_not_agree_with_itself() -> None:
    (wrong,) = tables.inconsistent()
    assert (wrong.component, wrong.count, wrong.printed) == ("faulty GPU", 148, 30.1)
    assert tables.share(wrong) == pytest.approx(35.3, abs=0.05)


def test_its_error_went_on_into_the_share_of_all_gpus() -> None:
    """The text has 58.7% for GPU issues: the sum of the printed percentages, not of the counts."""
    gpus = [cause for cause in tables.LLAMA3 if cause.category == "GPU"]
    assert sum(cause.printed for cause in gpus) == pytest.approx(58.7)
    assert 100 * sum(cause.count for cause in gpus) / 419 == pytest.approx(64.0, abs=0.05)
    assert sum(cause.printed for cause in tables.LLAMA3) == pytest.approx(94.9)


def test_about_78_percent_is_hardware() -> None:
    assert tables.hardware() == 328 and round(100 * 328 / 419) == 78
    assert tables.hardware(strict=True) == 289 and round(100 * 289 / 419) == 69


def test_a_rate_is_hours_between_interruptions() -> None:
    by_source = {(rate.devices, rate.how): rate.hours for rate in tables.RATES}
    assert by_source[16_384, "counted"] == pytest.approx(3.09, abs=0.005)
    assert by_source[992, "counted"] == pytest.approx(13.9, abs=0.1)
    assert next(iter(by_source)) == (8, "measured")
    # The projections are those of 6.50 failures in 1,000 node-days, eight devices a node; the measured one is not.
    for devices, hours in ((16_384, 1.8), (131_072, 0.23)):
        assert 24 * 1000 / 6.50 / (devices / 8) == pytest.approx(hours, rel=0.03)
    assert pytest.approx(28.8, abs=0.1) == 24 * 1000 / 6.50 / (1024 / 8)


def test_independent_devices() -> None:
    per_device = 3.09 * 16_384
    assert tables.independent_hours(2 * 16_384, per_device) == pytest.approx(3.09 / 2)


def test_every_report_has_its_source_and_no_kind_is_written_in_two_ways() -> None:
    assert all("arXiv" in one.source and one.says for one in tables.REPORTS)
    assert len({(one.run, one.kind) for one in tables.REPORTS}) == len(tables.REPORTS)
    seen = {one.kind for one in tables.REPORTS if one.seen}
    assert {one.kind for one in tables.REPORTS if not one.seen} <= seen


def test_no_torch() -> None:
    script = "import sys, course_lib.failures.interruptions; assert 'torch' not in sys.modules"
    assert run([sys.executable, "-c", script], capture_output=True).returncode == 0
