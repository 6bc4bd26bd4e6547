"""What chapter 9's exercises call right, against the simulator, brute force, autograd, and the formula of traffic."""

from itertools import accumulate, product

import numpy as np
import pytest
import torch

from course_lib.checks.ch09 import BUBBLES
from course_lib.checks.ch09_deadlock import DEADLOCK, SHAPES, deadlock
from course_lib.checks.ch09_enough import KINDS, bubble, enough, legal
from course_lib.checks.ch09_messages import Lists, mends, moved, run_lists
from course_lib.checks.ch09_next import NEXT, PLANS, next_batch
from course_lib.checks.ch09_order import COST, ORDER, held
from course_lib.checks.ch09_play import Pass, one_f_one_b, play
from course_lib.checks.ch09_skip import SKIP, crossings
from course_lib.checks.ch09_stage import STAGE, _oracle
from course_lib.checks.core import evaluate
from course_lib.errors import ScheduleError
from course_lib.parallel.schedule import Action, actions, run, simulate
from course_lib.planning.communication import boundary_bytes


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb_h1"])
def test_bubbles_are_those_of_the_simulator(name: str) -> None:
    """Whole costs, other ones on each stage; the judge counts milliseconds."""
    done = simulate(name, 3, 5, forward=[3, 4, 2], backward_input=[2, 5, 3], backward_weight=[1, 2, 4])
    rows = [
        (slot.rank, "F" if slot.kind == "F" else "B", int(slot.start) + 7, int(slot.end) + 7) for slot in done.slots
    ]
    case = {"name": "", "rows": rows, "ranks": 3}
    assert BUBBLES.judge(case, [done.bubble_fraction, done.idle_over_ideal]) is None
    assert BUBBLES.judge(case, [done.bubble_fraction, done.idle_over_ideal + 1e-6]) is not None


@pytest.mark.parametrize("variant", range(2 * len(KINDS)))
def test_enough_is_enough_and_fewer_are_not(variant: int) -> None:
    told = enough(variant)
    of = "bubble_fraction" if told["of"] == "total" else "idle_over_ideal"
    found = {}
    for m in (told["fewer"], told["choice"]):
        found[m] = getattr(simulate(told["schedule"], told["ranks"], m, told["chunks"]), of)
        assert found[m] == pytest.approx(float(bubble(told, m)), rel=1e-9)
    target = float(told["target"])
    assert found[told["choice"]] < target - 1e-9 < found[told["fewer"]]
    assert not any(legal(told, m) for m in range(told["fewer"] + 1, told["choice"]))


@pytest.mark.parametrize(("ranks", "count"), [(1, 3), (2, 4), (3, 3), (4, 8), (5, 2), (7, 12)])
def test_1f1b_is_that_of_the_library_and_both_simulators_agree(ranks: int, count: int) -> None:
    lists = one_f_one_b(ranks, count)
    ours = [[(action.kind, action.microbatch) for action in items] for items in actions("1f1b", ranks, count)]
    assert lists == ours
    done = simulate("1f1b", ranks, count, forward=1, backward_input=1, backward_weight=1)
    ends, stuck = play(lists, COST)
    assert not stuck
    assert ends == {(slot.rank, slot.kind, slot.microbatch): slot.end for slot in done.slots}
    assert [held(items) for items in lists] == list(done.peak_in_flight)
    case = {"name": "", "ranks": ranks, "count": count}
    assert ORDER.judge(case, [[list(item) for item in items] for items in lists]) is None


def _orders(count: int) -> list[list[Pass]]:
    """Every list of one rank whose micro-batches come and go in order."""
    found = []
    for forwards in product((True, False), repeat=2 * count):
        depth = [*accumulate(1 if forward else -1 for forward in forwards)]
        if depth[-1] == 0 and min(depth) >= 0:
            numbers = {True: iter(range(count)), False: iter(range(count))}
            found.append([("F" if forward else "B", next(numbers[forward])) for forward in forwards])
    return found


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (2, 4), (3, 3), (4, 2)])
def test_no_order_is_quicker_or_as_quick_with_less_in_memory(ranks: int, count: int) -> None:
    """Every combination of orders is played: the judge's makespan is the least, and so is what it allows each rank."""
    spans: dict[int, list[list[int]]] = {}
    for lists in product(_orders(count), repeat=ranks):
        ends, stuck = play(lists, COST)
        if not stuck:
            spans.setdefault(max(ends.values()), []).append([held(items) for items in lists])
    assert min(spans) == (count + ranks - 1) * 3
    least = [min(peaks) for peaks in zip(*spans[min(spans)], strict=True)]
    assert least == [min(ranks - rank, count) for rank in range(ranks)]


@pytest.mark.parametrize("seed", range(20))
def test_passes_stop_where_the_library_refuses(seed: int) -> None:
    """Lists with two entries swapped: `play` comes to a stop exactly where `run` raises."""
    rng = np.random.default_rng(seed)
    lists = one_f_one_b(3, 4)
    items = lists[int(rng.integers(3))]
    a, b = (int(n) for n in rng.choice(len(items), size=2, replace=False))
    items[a], items[b] = items[b], items[a]
    wanted = [[Action(rank, rank, k, kind) for kind, k in row] for rank, row in enumerate(lists)]  # type: ignore[arg-type]
    _, stuck = play(lists, COST)
    if stuck:
        with pytest.raises(ScheduleError):
            run(wanted)
    else:
        run(wanted)


def _in_any_order(lists: Lists, seed: int) -> list[int | None]:
    """The same as `run_lists`: a rank or a pair of ranks that can move is drawn, one entry at a time."""
    rng = np.random.default_rng(seed)
    place = [0] * len(lists)
    while True:
        at = [items[n] if n < len(items) else None for n, items in zip(place, lists, strict=True)]
        moves: list[tuple[int, ...]] = [(rank,) for rank, step in enumerate(at) if step and not step.verb]
        for rank, step in enumerate(at):
            other = at[step.other] if step and step.verb == "send" else None
            if step and other and (other.verb, other.what, other.k, other.other) == ("recv", step.what, step.k, rank):
                moves.append((rank, step.other))
        if not moves:
            return [n if n < len(items) else None for n, items in zip(place, lists, strict=True)]
        for rank in moves[int(rng.integers(len(moves)))]:
            place[rank] += 1


@pytest.mark.parametrize("variant", range(3 * len(SHAPES)))
def test_ranks_stand_in_one_place_whoever_goes_first(variant: int) -> None:
    lists = deadlock(variant)
    assert all(_in_any_order(lists, seed) == run_lists(lists) for seed in range(10))
    assert None not in run_lists(lists)
    cures = mends(lists)
    assert cures
    assert all(_in_any_order(moved(lists, *cure), 0) == [None] * len(lists) for cure in cures)
    assert lists != deadlock(variant + len(SHAPES))


def test_one_of_the_two_right_costs_no_pipeline() -> None:
    """As the text of 9.4 says; both wrong costs a try."""
    lists = deadlock(0)
    right = {"variant": 0, "stuck": run_lists(lists), "mend": mends(lists)[0]}
    for wrong in ({"mend": (0, 9, 0)}, {"mend": (1, 4, 0)}, {"stuck": [1, 0]}, {"mend": None}):
        outcome = evaluate(DEADLOCK, {**right, **wrong})
        assert outcome.status == "failed" and outcome.form, outcome.line
    outcome = evaluate(DEADLOCK, {**right, "stuck": [1, 0], "mend": (0, 9, 0)})
    assert outcome.status == "failed" and not outcome.form, outcome.line


@pytest.mark.parametrize("variant", range(len(PLANS)))
def test_a_wrong_letter_costs_a_try_and_a_wrong_number_does_not(variant: int) -> None:
    told = next_batch(variant)
    right = {"variant": variant, "choice": told["choice"], "evidence": told["evidence"]}
    for letter in "ABCD".replace(told["choice"], ""):
        assert not evaluate(NEXT, {**right, "choice": letter}).form
    outcome = evaluate(NEXT, {**right, "evidence": told["evidence"] + 1})
    assert outcome.status == "failed" and outcome.form, outcome.line


@pytest.mark.parametrize("variant", range(2 * len(PLANS)))
def test_the_next_batch_starts_after_the_last_update(variant: int) -> None:
    told = next_batch(variant)
    half = told["B"] / 2
    span = simulate("1f1b", told["ranks"], told["count"], 1, told["F"], half, half).makespan
    assert told["evidence"] == span + told["U"] + told["q"] * told["F"]


@pytest.mark.parametrize("seed", range(3))
def test_crossings_are_those_of_the_formula(seed: int) -> None:
    """Where activations and gradients have the same format."""
    for case in SKIP.cases(seed):
        stages, skips, job = case["stages"], case["skips"], case["job"]
        shares = [stages.count(stage) for stage in range(max(stages) + 1)]
        each = job["micro_batches"] * job["tokens"] * job["width"] * 2
        formula = boundary_bytes(shares, job["micro_batches"], job["tokens"], job["width"], 2, skips)
        wanted = [(count * each, count * each) for count in crossings(stages, skips)]
        assert [tuple(row) for row in formula] == wanted


@pytest.mark.parametrize("seed", range(2))
def test_a_stage_sends_what_autograd_finds(seed: int) -> None:
    for case in STAGE.cases(seed):
        right = _oracle(case)
        weight, bias = (case[name].double().requires_grad_() for name in ("weight", "bias"))
        for k, (given, target) in enumerate(zip(case["inputs"], case["gradients"], strict=True)):
            rows = torch.nn.functional.one_hot(given, weight.shape[1]) if case["stage"] == 0 else given
            x = rows.double().requires_grad_()
            y = torch.nn.functional.linear(x, weight, bias).tanh()
            last = case["stage"] == case["stages"] - 1
            (((y - target) ** 2).sum() / 64 if last else (y * target).sum()).backward()
            assert x.grad is not None
            assert np.allclose(right["activations"][k], y.detach(), rtol=1e-12)
            assert np.allclose(right["gradients"][k], x.grad, rtol=1e-9, atol=1e-12)
        assert weight.grad is not None and bias.grad is not None
        assert np.allclose(right["weight"], weight.grad, rtol=1e-9, atol=1e-12)
        assert np.allclose(right["bias"], bias.grad, rtol=1e-9, atol=1e-12)
