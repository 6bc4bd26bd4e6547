"""The incident simulator: fair, reproducible, and silent about the fault until it is named."""

import itertools
import math
import pprint

import pytest
from incident_fake import CHECKS, KINDS, catalogue  # noqa: F401

from course_lib.errors import ConfigError
from course_lib.failures import incidents, scoring
from course_lib.failures.scoring import HEALTHY, par_path, points, restart_minutes, table_order
from course_lib.failures.simulator import Case, dealt, headline

fake = pytest.mark.usefixtures("catalogue")
ANSWERS = [*KINDS, HEALTHY]


def case_of(name):
    return Case(next(seed for seed in itertools.count() if dealt(seed) == name))


def solved(name, *orders, said=None):
    case = case_of(name)
    for order in orders:
        case.restart() if order == "restart" else case.order(order)
    return case.answer(said or name)


@fake
def test_every_answer_is_dealt_once_in_each_row_of_seeds():
    for first in range(0, 60, len(ANSWERS)):
        row = [dealt(seed) for seed in range(first, first + len(ANSWERS))]
        assert sorted(row) == sorted(ANSWERS)
    assert len({tuple(dealt(seed) for seed in range(first, first + 6)) for first in range(0, 60, 6)}) > 5


@fake
def test_the_same_seed_is_the_same_case():
    one, two = Case(17), Case(17)
    assert one.dashboards == two.dashboards and one.events == two.events == [(6, "resumed")]
    assert one.order("decode") == two.order("decode")
    assert Case(4).dashboards != Case(4 + len(ANSWERS)).dashboards  # another seed of the run
    assert len({Case().seed for _ in range(20)}) > 1


@fake
@pytest.mark.parametrize("name", ANSWERS)
def test_nothing_tells_the_fault_before_the_answer(name):
    case = case_of(name)
    case.order("disk")
    said = (
        repr(case)
        + pprint.pformat(vars(case))
        + repr(case.dashboards)
        + repr(case.good)
        + repr(case.events)
        + case.headline
    )
    others = [one for one in ANSWERS if one != name]
    assert name not in said and not any(one in said for one in others)
    with pytest.raises(ConfigError, match="name it first"):
        case.trace()
    assert case.good["loss"] == [5 - 0.1 * step for step in range(12)]  # of another seed, and without the fault
    series = case.dashboards
    series["loss"][0] = -1
    assert case.dashboards["loss"][0] == 5


@fake
def test_a_check_costs_once_and_measures_this_run():
    case = case_of("overflow")
    assert case.order("finite").abnormal and case.minutes == 10
    assert case.order("Finite ") is case.order("finite") and case.minutes == 10
    assert not case.order("decode").abnormal and case.minutes == 15
    assert [order.name for order in case.orders] == ["finite", "decode"]
    assert repr(case) == f"Case(seed={case.seed}, 2 ordered, 15 minutes, open)"


@fake
def test_a_wrong_name_gets_the_nearest():
    case = case_of("hot")
    with pytest.raises(ConfigError, match="no check 'rats'; did you mean 'rates'"):
        case.order("rats")
    with pytest.raises(ConfigError, match="no fault 'stragler'; did you mean 'straggler'"):
        case.answer("stragler")
    with pytest.raises(ConfigError, match="there are: decode"):
        case.order("12")
    with pytest.raises(ConfigError, match="negative"):
        Case(-1)
    assert case.orders == [] and case.score is None


@fake
def test_an_answer_closes_the_case_and_opens_the_trace():
    case = case_of("doubled")
    case.order("decode")
    score = case.answer("doubled")
    trace = case.trace()
    assert [order.name for order in trace] == [check.name for check in table_order()]
    assert [order.name for order in trace if order.finding.abnormal] == ["order"]
    assert case.minutes == 5 and len(case.orders) == 1  # the trace costs nothing
    assert score.fix == "mend doubled" and score.never == "not so with doubled"
    for late in (lambda: case.answer("hot"), lambda: case.order("ranks"), case.restart):
        with pytest.raises(ConfigError, match="closed"):
            late()
    assert case.order("decode").text == "decode measured 0.0"  # what is in the notes stays
    assert case.score is score


# ------------------------------------------------------------------------------------------------------------ the score


@fake
def test_the_tables_path_goes_through_the_row_in_order():
    assert par_path("overflow") == ("decode", "finite") and par_path("hot") == ("rates",)
    assert par_path("straggler") == ("ranks",)  # `disk` comes after it
    assert solved("overflow", "decode", "finite").points == solved("overflow", "finite").points == 100
    assert par_path(HEALTHY) == tuple(check.name for check in table_order())


@fake
@pytest.mark.parametrize("name", list(KINDS))
def test_the_tables_own_path_has_all_points(name):
    score = solved(name, *par_path(name))
    assert score.points == 100 and score.right and score.shown and score.minutes == score.par
    assert score.remarks == ("Every check that you ordered is on the table's path.",)


@fake
def test_a_healthy_run_wants_a_look_into_each_kind():
    assert solved(HEALTHY, "decode", "finite", "rates", "ranks").points == 100
    short = solved(HEALTHY, "decode", "finite", "rates")
    assert short.points == 40 and "guess" in short.remarks[0]
    assert solved(HEALTHY, *[check.name for check in table_order()]).points == 100
    assert solved("hot", "rates", said=HEALTHY).points == 0


@fake
def test_a_guess_is_worth_the_name_alone():
    assert solved("straggler").points == 40
    score = solved("straggler", "disk")
    assert score.points == 40 and not score.shown and "look at ranks" in " ".join(score.remarks)


@fake
def test_minutes_cost_points():
    assert solved("straggler", "ranks").points == 100
    score = solved("straggler", "decode", "order", "finite", "rates", "ranks")
    assert score.minutes == 55 and score.points == round(40 + 60 * 20 / 55)
    assert "as it turned out" in score.remarks[0]


@fake
def test_a_wrong_name_of_the_right_kind_has_a_few_points():
    assert solved("doubled", "order", said="shifted").points == 20
    assert solved("doubled", "order", said="hot").points == 0


@fake
def test_restarting_first_costs_most():
    """Whatever checks are ordered, and whatever the fault: with a restart it is less, and first of all it is said."""
    assert restart_minutes() == 120 > sum(check.minutes for check in table_order())
    every = [check.name for check in table_order()]
    for name in KINDS:
        worst = solved(name, *every)
        score = solved(name, "restart", *par_path(name))
        assert score.points < worst.points
        assert "restarted before any check" in score.remarks[0]
    late = solved("hot", "rates", "restart")
    assert late.points < 45 and "took 120 minutes" in late.remarks[0]


@fake
def test_a_restart_runs_again_and_says_what_came(monkeypatch):
    made = []
    reproduce = scoring.incidents.reproduce
    monkeypatch.setattr(
        scoring.incidents, "reproduce", lambda *given, **more: made.append(given[:2]) or reproduce(*given, **more)
    )
    case = case_of("hot")
    found = case.restart()
    assert made == [
        ("hot", case.seed % 20),
        ("hot", case.seed % 20 + 1),
        ("hot", case.seed % 20),
    ] and found.numbers == {"steps": 12, "largest_difference": 0.0}
    assert "12 steps: loss from 5.00 to 3.90" in found.text and case.minutes == 120


@fake
def test_checks_out_of_order_are_named():
    score = solved("shifted", "disk", "ranks", "decode")
    assert score.remarks[0] == "Looked at before the likelier suspects of data and mask: look at disk; look at ranks."
    assert score.points == round(40 + 60 * 5 / 50)


@fake
def test_points_never_rise_with_minutes():
    for right, kind, shown in itertools.product((True, False), repeat=3):
        row = [points(right, kind, shown, 20, spent) for spent in range(0, 600, 5)]
        assert all(0 <= one <= 100 for one in row) and sorted(row[1:], reverse=True) == row[1:]
    assert points(True, False, True, 20, 10) == points(True, False, True, 20, 20) == 100


@fake
def test_headlines_have_no_nan():
    assert headline([5, math.nan]) == "2 steps: loss 5.00 nats a token at first, and not finite at the end"
    assert headline([math.nan]) == "1 steps, and no loss is finite"


@fake
def test_progress_is_reported():
    seen = []
    Case(0, on_step=lambda *given: seen.append(given))
    assert seen == [(done, 24) for done in range(1, 25)]


@fake
def test_the_table_has_every_check():
    assert {check.name for check in table_order()} == set(CHECKS)
    assert [check.name for check in table_order()][:2] == ["decode", "order"]


# -------------------------------------------------------------------------------------------------- the real catalogue


def test_a_real_restart_costs_more_than_all_real_checks():
    checks = incidents.CHECKS
    assert restart_minutes() > sum(check.minutes for check in checks.values())
    assert all(check.minutes > 0 and check.category in incidents.CATEGORIES for check in checks.values())


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 7, 11])
def test_a_real_case_is_solved_along_the_tables_path(seed):
    """The checks of the path show the fault in a real run; the trace has a finding of every check, in one line each."""
    case = Case(seed)
    truth = dealt(seed)
    for name in par_path(truth):
        case.order(name)
    score = case.answer(truth)
    assert score.points == 100 and score.shown, (truth, case.orders)
    trace = case.trace()
    assert len(trace) == len(incidents.CHECKS) and all("\n" not in order.finding.text for order in trace)
    if truth == HEALTHY:
        assert not any(order.finding.abnormal for order in trace)


@pytest.mark.slow
def test_a_real_restart_meets_the_fault_again():
    """The same seed on the same machine: the losses are the same bits, so the difference is 0."""
    case = Case(5)
    found = case.restart()
    assert found.numbers["largest_difference"] == 0 and found.numbers["steps"] == len(case.dashboards["loss"])
