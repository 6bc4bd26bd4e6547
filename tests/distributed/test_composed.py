"""FSDP over tensor-parallel groups, 2 x 2: against one process, what each rank keeps, and who talks to whom."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch

from course_lib.config import preset
from course_lib.errors import ConfigError, RankError
from course_lib.model import GPT
from course_lib.parallel.composed import FullyShardTensor
from course_lib.parallel.equivalence import adamw, equivalence, uneven_batches
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.mesh import RankGrid
from course_lib.parallel.strategy import rank_and_world
from course_lib.parallel.traffic import count_traffic

SHAPE = preset("mini", n_layers=2, d_model=16, n_heads=2, d_ff=24, vocab_size=32, context=8)
GRID = RankGrid(dp=2, tp=2)


def compared(micro_batches: int, strategy: Any = FullyShardTensor, **options: Any) -> Any:
    batches = uneven_batches(4, micro_batches, 3, vocab=32)
    make = partial(strategy, **options)
    return equivalence(
        make, 4, micro_batches=micro_batches, make_model=partial(GPT, SHAPE), batches=batches, timeout=120
    )


@pytest.mark.parametrize(("micro_batches", "options"), [(3, {}), (1, {"sequence": True, "split_loss": True})])
def test_it_equals_one_process(micro_batches: int, options: dict, capfd: pytest.CaptureFixture[str]) -> None:
    found = compared(micro_batches, **options)
    assert found.equal and found.loss_error < 1e-5, found
    whole = 4 * GPT(SHAPE).num_params()
    norms = 4 * 16 * 5  # not split by tp
    for held in found.bytes_held:
        assert held["weights"] == held["gradients"] == (whole - norms) / 4 + norms / 2
    assert "Warning" not in capfd.readouterr().err


class Means(FullyShardTensor):
    """FSDP's default: the mean over dp, where the loss is divided already."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        for module in self.model.modules():
            if hasattr(module, "set_gradient_divide_factor"):
                module.set_gradient_divide_factor(2.0)


class SameRows(FullyShardTensor):
    """Every rank reads the first rows, as if dp did not split the data."""

    def share(self, inputs, targets):
        return inputs[: len(inputs) // 2], targets[: len(targets) // 2]


class RowsByRank(FullyShardTensor):
    """Rows by rank, not by dp coordinate: the ranks of a tp group read different sequences."""

    def share(self, inputs, targets):
        rank, world = rank_and_world()
        return inputs.tensor_split(world)[rank], targets.tensor_split(world)[rank]


@pytest.mark.parametrize("broken", [Means, SameRows, RowsByRank])
def test_a_broken_composition_is_found(broken: type) -> None:
    found = compared(1, broken)
    assert not found.equal and found.gradient_error > 0.1, found


def test_who_talks_to_whom() -> None:
    """A block's sums stay in its tp group; weights and gradients travel over dp. Groups are those of `RankGrid`."""

    def job() -> tuple[tuple[int, int], Counter[tuple[str, tuple[int, ...]]]]:
        strategy = FullyShardTensor(GPT(SHAPE), adamw)
        tokens = torch.zeros(4, 9, dtype=torch.int64)
        with count_traffic() as traffic:
            strategy.forward_backward(*strategy.share(tokens[:, :-1], tokens[:, 1:]), valid=32)
        return strategy.place(), Counter((call.kind, call.group) for call in traffic.calls)

    for rank, (place, calls) in enumerate(run_ranks(job, 4, timeout=120)):
        at = GRID.coordinates(rank)
        assert place == (at["dp"], at["tp"])
        tp, dp = GRID.group("tp", rank), GRID.group("dp", rank)
        assert {group for _, group in calls} == {tp, dp}
        assert {kind for kind, group in calls if group == dp} == {"all_gather", "reduce_scatter"}
        assert calls["all_gather", dp] == 2 * 3 and calls["reduce_scatter", dp] == 3  # two blocks, and the rest
        assert calls["all_reduce", tp] >= 2 * 2 * 2  # two a block, each way


def test_sizes_that_do_not_fit_say_so() -> None:
    with pytest.raises(ConfigError, match=r"dp=2 times tp=2 must be the number of ranks, 1"):
        FullyShardTensor(GPT(SHAPE), adamw)
    with pytest.raises(RankError, match=r"must both divide by 2 tensor-parallel ranks"):
        run_ranks(lambda: FullyShardTensor(GPT(preset("mini", n_heads=1)), adamw, dp=1), 2)
