"""Every strategy against one process, and broken ones that the same test has to find."""

from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.optim import AdamW

from course_lib.errors import RankError
from course_lib.parallel import ddp, zero
from course_lib.parallel.equivalence import Equivalence, equivalence, uneven_batches, uneven_model
from course_lib.parallel.fsdp import FullyShard
from course_lib.parallel.strategy import Strategy, rank_and_world

RIGHT = {
    "data parallel": ddp.DataParallel,
    "DDP": ddp.TorchDDP,
    "ZeRO-1": zero.Zero1,
    "ZeRO-2": zero.Zero2,
    "ZeRO-3": zero.Zero3,
    "FSDP2": FullyShard,
    "FSDP2 without reshard": partial(FullyShard, reshard=False),
    "FSDP2, gradients sent each time": partial(FullyShard, deferred="none"),
    "FSDP2, weights kept": partial(FullyShard, keep=True),
}
HYBRID = {
    "HSDP": partial(FullyShard, replicas=2),
    "HSDP, all-reduce deferred": partial(FullyShard, replicas=2, deferred="all-reduce"),
    "HSDP, nothing deferred": partial(FullyShard, replicas=2, deferred="none"),
}


@pytest.mark.parametrize(
    ("name", "ranks", "micro_batches"),
    [(name, ranks, micro) for name in RIGHT for ranks, micro in ((2, 1), (2, 3), (4, 3))]
    + [(name, 4, micro) for name in HYBRID for micro in (1, 3)],
)
def test_a_strategy_equals_one_process(name: str, ranks: int, micro_batches: int) -> None:
    found = equivalence((RIGHT | HYBRID)[name], ranks, micro_batches=micro_batches)
    assert found.equal, found
    assert found.loss_error < 1e-5
    assert found.steps == 3 and len(found.bytes_held) == ranks


@pytest.mark.parametrize("name", ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "FSDP2"])
def test_an_untied_output_layer_makes_no_difference(name: str) -> None:
    found = equivalence(RIGHT[name], 2, micro_batches=2, make_model=partial(uneven_model, tie_embeddings=False))
    assert found.equal, found


def test_accumulation_alone_is_a_strategy_on_one_rank() -> None:
    found = equivalence(Strategy, 1, micro_batches=3)
    assert found.equal and found.loss_error < 1e-5, found


def test_a_strategy_that_shares_no_data_takes_the_whole_batch() -> None:
    class Everything(Strategy):
        """As a rank does that splits the model: it reads all sequences."""

        def share(self, inputs, targets):
            return inputs, targets

    found = equivalence(Everything, 2, micro_batches=2)
    assert found.equal, found
    assert found.loss_error == pytest.approx(1.0)  # each rank reports the whole loss


def test_the_default_data_has_unequal_counts_everywhere() -> None:
    for ranks in (2, 4):
        batches = uneven_batches(ranks, 3, 3)
        counts = torch.stack([(targets >= 0).sum(1).view(ranks, 3, 2).sum(2) for _, targets in batches])
        assert int(counts[1, 0, 0]) == 0  # by step, rank, micro-batch
        assert all(len(set(step.tolist())) == ranks for step in counts.sum(2))
        assert all(len(set(step.flatten().tolist())) >= 6 for step in counts)
    sizes = [p.shape[0] for p in uneven_model().parameters()]
    assert any(size % 2 for size in sizes) and sum(p.numel() for p in uneven_model().parameters()) % 4


def broken(found: Equivalence, at_least: float) -> bool:
    return not found.equal and max(found.gradient_error, found.parameter_error) > at_least


class MeanOverRanks(ddp.TorchDDP):
    def backward(self, loss):
        loss.backward()


class Silent(Strategy):
    """Ranks that never talk."""


class StaleWeights(zero.Zero1):
    """Each rank updates its shard and keeps last step's weights everywhere else."""

    def step(self):
        self.optimizer.step()
        for sums in self.sums.values():
            sums.zero_()


class LastMicroBatchOnly(zero.Zero2):
    def reduce(self, flat):
        flat.shard.grad = None
        super().reduce(flat)


class NoUpdate(ddp.DataParallel):
    def step(self):
        self.optimizer.zero_grad()


class GradientsInBF16(ddp.DataParallel):
    def reduce(self, p):
        if self.last:
            low = p.grad.bfloat16()
            dist.all_reduce(low)
            p.grad.copy_(low)


WRONG = {
    "mean over ranks": (MeanOverRanks, 0.1),
    "silent": (Silent, 0.1),
    "flag after forward": (ddp.FlagAfterForward, 0.1),
    "hook on the tensor": (ddp.HookOnTensor, 0.1),
    "hook on the parameter": (ddp.HookOnParameter, 0.1),
    "stale weights": (StaleWeights, 0.1),
    "last micro-batch only": (LastMicroBatchOnly, 0.1),
    "no update": (NoUpdate, 0.1),
    "gradients in BF16": (GradientsInBF16, 1e-4),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_broken_strategy_is_found(name: str) -> None:
    strategy, at_least = WRONG[name]
    found = equivalence(strategy, 2, micro_batches=3)
    assert broken(found, at_least), found
    assert "NOT EQUAL" in str(found)


def test_a_mean_of_means_is_found() -> None:
    class MeanOfMeans(ddp.TorchDDP):
        """Each rank divides by its own valid tokens: right where counts are equal, and they are not."""

        def share(self, inputs, targets):
            x, y = super().share(inputs, targets)
            self.factor = int((targets >= 0).sum()) / max(1, int((y >= 0).sum())) / dist.get_world_size()
            return x, y

        def backward(self, loss):
            super().backward(loss * self.factor)

    assert broken(equivalence(MeanOfMeans, 2), 0.01)
    tokens = [torch.randint(0, 27, (4, 9), generator=torch.Generator().manual_seed(s)) for s in range(2)]
    equal_counts = [(t[:, :-1], t[:, 1:]) for t in tokens]
    assert equivalence(MeanOfMeans, 2, batches=equal_counts).equal


def test_ranks_that_drift_apart_within_the_tolerance_are_found() -> None:
    class OneBit(ddp.DataParallel):
        def parameters(self):
            found = super().parameters()
            if rank_and_world()[0] == 1:
                found["norm.weight"][0] = torch.nextafter(found["norm.weight"][0], torch.tensor(2.0))
            return found

    found = equivalence(OneBit, 2)
    assert found.parameter_error < found.tolerance and not found.ranks_agree and not found.equal
    assert "RANKS DISAGREE" in str(found)


def test_a_gradient_that_is_not_finite_is_infinitely_wrong() -> None:
    class Nan(ddp.DataParallel):
        def gradients(self):
            return {name: gradient * float("nan") for name, gradient in super().gradients().items()}

    assert equivalence(Nan, 2).gradient_error == float("inf")


def test_an_error_on_a_rank_names_it() -> None:
    class Fails(Strategy):
        def step(self):
            if rank_and_world()[0] == 1:
                raise ValueError("no step today")

    with pytest.raises(RankError, match="no step today") as caught:
        equivalence(Fails, 2)
    assert caught.value.rank == 1


def test_bytes_held_fall_rung_by_rung() -> None:
    held = {name: equivalence(RIGHT[name], 4).bytes_held[0] for name in ("data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3")}
    p = 4 * sum(p.numel() for p in uneven_model().parameters())
    units = len(zero.units(uneven_model()))

    def share(kind: str) -> list[float]:
        return [held[name][kind] / p for name in held]

    padding = 4 * 4 * units / p  # less than one number a unit and rank
    assert share("weights") == pytest.approx([1, 1, 1, 0.25], abs=padding)
    assert share("gradients") == pytest.approx([1, 1, 0.25, 0.25], abs=padding)
    assert share("optimizer") == pytest.approx([2, 0.5, 0.5, 0.5], abs=3 * padding)


def test_uneven_shards_of_fully_shard_are_padded() -> None:
    """Every rank's storage has the size of the largest shard; AdamW's moments have that of the shard itself."""
    held = equivalence(FullyShard, 4).bytes_held
    assert len({rank["weights"] for rank in held}) == 1
    assert held[-1]["optimizer"] < held[0]["optimizer"]


def test_another_optimizer_and_more_steps() -> None:
    loop = partial(AdamW, lr=1e-2, eps=1e-3, foreach=False)
    found = equivalence(FullyShard, 2, steps=5, make_optimizer=loop)
    assert found.equal and found.steps == 5, found
