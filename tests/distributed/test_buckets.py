"""Buckets are watched without changing what DDP computes, and the imitated wire takes the time that it says."""

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist

from course_lib.parallel.buckets import Bucket, watch_buckets
from course_lib.parallel.ddp import TorchDDP
from course_lib.parallel.equivalence import adamw, uneven_batches, uneven_model
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import summed_loss


def gradients(watched: bool, bandwidth: float | None = None) -> tuple[torch.Tensor, list[Bucket], float, int]:
    """Gradients of the second step, its buckets, when backward was over, and the parameters."""
    strategy = TorchDDP(uneven_model(), adamw, bucket_cap_mb=0.002)
    inputs, targets = uneven_batches(2, 1, 1)[0]
    x, y = strategy.share(inputs, targets)
    buckets: list[Bucket] = []
    ended = 0.0

    def step() -> torch.Tensor:
        strategy.optimizer.zero_grad()
        strategy.backward(summed_loss(strategy.model(x), y, 20))
        return torch.cat([g.flatten() for g in strategy.gradients().values()])

    if not watched:
        step()
        return step(), [], 0.0, 0
    with watch_buckets(strategy.model, bandwidth) as watch:
        step()
        dist.barrier()
        watch.clear()
        found = step()
        ended = watch.now()
        buckets = sorted(watch.buckets, key=lambda bucket: bucket.number)
    return found, buckets, ended, found.numel()


def test_watching_changes_no_bit() -> None:
    plain = run_ranks(gradients, 2, False)
    for rank, (found, buckets, ended, parameters) in enumerate(run_ranks(gradients, 2, True)):
        assert torch.equal(found, plain[rank][0])
        assert len(buckets) > 1 and sum(bucket.elements for bucket in buckets) == parameters
        assert all(0 < bucket.started < bucket.arrived <= ended for bucket in buckets)
        assert [bucket.started for bucket in buckets] == sorted(bucket.started for bucket in buckets)


def test_the_wire_takes_its_time_one_bucket_after_the_other() -> None:
    """At two ranks a rank sends 4 bytes a gradient; only lower bounds, which a loaded machine keeps too."""
    bandwidth = 4 * 1810 / 0.2
    for _, buckets, ended, parameters in run_ranks(gradients, 2, True, bandwidth):
        assert ended >= 4 * parameters / bandwidth == pytest.approx(0.2, rel=0.05)
        for before, bucket in pairwise(buckets):
            assert bucket.arrived - before.arrived >= 0.99 * 4 * bucket.elements / bandwidth
