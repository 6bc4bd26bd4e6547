"""What is alive after each operator, held against `memory.Peak`, which books every tensor when it is made."""

import torch

from course_lib.memory import Peak
from course_lib.model import GPT
from course_lib.parallel.alive import Alive
from course_lib.parallel.equivalence import adamw
from course_lib.parallel.strategy import Strategy, summed_loss
from course_lib.parallel.tradeoffs import small


def test_on_one_process_it_agrees_with_peak() -> None:
    """Nothing is sharded here, so both see the same, but for what is smaller than 256 bytes."""
    tokens = torch.zeros(2, 17, dtype=torch.int64)

    def run(strategy: Strategy) -> None:
        loss = summed_loss(strategy.model(tokens[:, :-1]), tokens[:, 1:], 32)
        strategy.backward(loss)
        strategy.step()

    strategies = [Strategy(GPT(small()), adamw) for _ in range(2)]
    for strategy in strategies:
        run(strategy)
    first, second = strategies
    with Alive(first) as alive:
        run(first)
    held = [tensor for tensors in second.tensors_held().values() for tensor in tensors]
    with Peak([*held, *second.model.buffers()]) as peak:
        run(second)
    totals = [moment.total for moment in alive.moments]
    assert abs(max(totals) - peak.peak) < 1e-3 * peak.peak
    assert totals[-1] < totals[0] * 1.01  # gradients and activations are gone
    weights = 4 * first.model.num_params()
    assert {moment.whole for moment in alive.moments} == {weights}
    gradients = [moment.gradients for moment in alive.moments]
    assert gradients[0] == 0 and max(gradients) == weights


def test_a_storage_that_is_emptied_and_filled_again_counts_when_it_is_full() -> None:
    strategy = Strategy(torch.nn.Linear(100, 100, bias=False), adamw)
    kept = torch.zeros(1000)
    with Alive(strategy) as alive:
        alive.follow([kept])
        other = kept + 1  # 4,000 bytes that live on
        full = alive.moments[-1].total
        other.untyped_storage().resize_(0)
        kept.add_(1)
        empty = alive.moments[-1].total
        other.untyped_storage().resize_(8000)
        kept.add_(1)
        larger = alive.moments[-1].total
    assert (full - empty, larger - empty) == (4000, 8000)


def test_what_runs_outside_of_the_phases_is_not_recorded() -> None:
    strategy = Strategy(torch.nn.Linear(100, 100, bias=False), adamw)
    with Alive(strategy) as alive:
        alive.enter("", "")
        _ = torch.zeros(1000) + 1
        assert alive.moments == []
        alive.enter("", "update")
        _ = torch.zeros(1000) + 1
        assert [moment.phase for moment in alive.moments] == ["update", "update"]
