"""The cases of chapter 14, and which incidents are loud."""

import math

import pytest

from course_lib.errors import ConfigError
from course_lib.failures import worked
from course_lib.failures.incidents import INCIDENTS, reproduce


def test_every_letter_is_an_incident_or_a_twin() -> None:
    assert all(name in INCIDENTS for name, _, _ in worked.CASES.values())
    assert worked.fault("A") is INCIDENTS["mask_leak"] and worked.fault("E") is None
    with pytest.raises(ConfigError, match="there is no case 'Z'"):
        worked.case("Z")


def test_d_and_e_are_one_run_until_the_first_resume() -> None:
    one, other = worked.case("D"), worked.case("E")
    assert one.series["loss"][:40] == other.series["loss"][:40] != one.series["loss"][40:80]
    assert one.series["tokens"][40:80] == one.series["tokens"][:40] != other.series["tokens"][40:80]


def test_a_loud_run_stops_or_has_a_number_that_is_not_finite_or_stands_out() -> None:
    assert set(worked.LOUD) < set(INCIDENTS)
    assert any(map(math.isnan, reproduce("nan_from_ignored", 1).series["loss"]))
    assert reproduce("memory_leak", 1).steps < 120
    bad, fine = (max(reproduce("bad_batch", 1, fault=fault).series["loss"][40:]) for fault in (True, False))
    assert bad > 2 * fine
