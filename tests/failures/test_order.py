"""Minutes of an order of checks, against sums made by hand."""

import pytest

from course_lib.failures import order
from course_lib.failures.evidence import RESTART_MINUTES
from course_lib.failures.incidents import CHECKS, INCIDENTS


def test_the_minutes_are_those_up_to_the_last_check_that_is_needed() -> None:
    checks = list(CHECKS.values())
    found = order.minutes_to_find(checks)
    assert set(found) == set(INCIDENTS)
    for name, one in INCIDENTS.items():
        left, spent = set(one.checks), 0.0
        for check in checks:
            spent += check.minutes
            left.discard(check.name)
            if not left:
                break
        assert found[name] == spent


def test_dashboards_leave_fewer_checks_and_a_restart_comes_on_top() -> None:
    for name in order.ORDERS:
        blind, seen = order.blindly(name), order.with_dashboards(name)
        assert all(seen[fault] <= blind[fault] for fault in INCIDENTS)
        assert order.with_dashboards(name, restart=True) == {f: m + RESTART_MINUTES for f, m in seen.items()}
    assert sum(order.with_dashboards("order of suspicion").values()) < 0.5 * sum(order.by_chance().values())


def test_chance_lies_between_nothing_and_all_checks() -> None:
    everything = sum(check.minutes for check in CHECKS.values())
    assert all(0.3 * everything < minutes < everything for minutes in order.by_chance(100).values())
    assert max(order.blindly("cheapest check first").values()) <= everything


def test_faults_of_one_dashboard() -> None:
    assert order.dashboard("mask_leak") == order.dashboard("label_shift") == "loss"
    assert order.dashboard("slow_loader") == order.dashboard("straggler") == "step_seconds"
    assert order.dashboard("hang") == "no more steps"
    with pytest.raises(IndexError):
        order.dashboard("no such fault")
