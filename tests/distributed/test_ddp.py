"""Data parallel equals one process, from scratch and PyTorch's; the suspects do not, and the checksum tells."""

from functools import partial

import pytest
import torch
from torch import nn

from course_lib.parallel import ddp
from course_lib.parallel.ddp import checksums, parameter_checksum, same_on_all_ranks
from course_lib.parallel.equivalence import adamw, equivalence, uneven_batches, uneven_model
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import Strategy, summed_loss
from course_lib.parallel.traffic import Traffic, count_traffic

RIGHT = (ddp.DataParallel, ddp.TorchDDP)
SUSPECTS = (ddp.FlagAfterForward, ddp.HookOnTensor, ddp.HookOnParameter)
SMALL_BUCKETS = partial(ddp.TorchDDP, bucket_cap_mb=0.0005)


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("strategy", [*RIGHT, SMALL_BUCKETS], ids=["scratch", "torch", "small-buckets"])
def test_equal_to_one_process(strategy: type[Strategy], ranks: int, micro_batches: int) -> None:
    """Unequal numbers of tokens on each rank and in each micro-batch; tolerance and reason: `equivalence.TOLERANCE`."""
    found = equivalence(strategy, ranks, micro_batches=micro_batches)
    assert found.equal, found
    assert found.loss_error < 1e-6


@pytest.mark.parametrize("strategy", SUSPECTS)
def test_suspects_differ_from_one_process_and_over_ranks(strategy: type[Strategy]) -> None:
    found = equivalence(strategy, 2, micro_batches=2)
    assert not found.equal and not found.ranks_agree and found.gradient_error > 0.1, found


@pytest.mark.parametrize("strategy", [ddp.FlagAfterForward, ddp.HookOnTensor])
def test_two_of_the_suspects_are_right_without_accumulation(strategy: type[Strategy]) -> None:
    assert equivalence(strategy, 2, micro_batches=1).equal


def one_step(strategy: type[Strategy], micro_batches: int) -> tuple[list[Traffic], bool, list[int], int]:
    """Traffic of each micro-batch; whether replicas agree after the step; their checksums; parameters."""
    model = uneven_model()
    running = strategy(model, adamw)
    inputs, targets = uneven_batches(2, micro_batches, 1)[0]
    valid = int((targets >= 0).sum())
    counted = []
    pieces = zip(*(part.chunk(micro_batches) for part in running.share(inputs, targets)), strict=True)
    for number, (x, y) in enumerate(pieces):
        with count_traffic() as traffic, running.micro_batch(last=number == micro_batches - 1):
            running.backward(summed_loss(running.model(x), y, valid))
        counted.append(traffic)
    running.step()
    return counted, same_on_all_ranks(model), checksums(model), sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("strategy", RIGHT)
def test_only_the_last_micro_batch_sends(strategy: type[Strategy]) -> None:
    for traffics, same, sums, parameters in run_ranks(one_step, 2, strategy, 3):
        sent = [traffic.sent(kind="all_reduce") for traffic in traffics]
        assert sent == [0, 0, parameters]  # 2 (N-1)/N = 1 at two ranks
        assert same and len(set(sums)) == 1


def test_torchs_ddp_sends_no_buffers_in_forward() -> None:
    """The model has RoPE's table, the same on all ranks."""
    for traffics, *_ in run_ranks(one_step, 2, ddp.TorchDDP, 2):
        assert [traffic.count("broadcast") for traffic in traffics] == [0, 0]


def test_the_parameter_hook_leaves_equal_replicas_before_the_update() -> None:
    def asked() -> list[bool]:
        model = uneven_model()
        running = ddp.HookOnParameter(model, adamw)
        inputs, targets = uneven_batches(2, 1, 1)[0]
        x, y = running.share(inputs, targets)
        equal = []
        for _ in range(2):
            with running.micro_batch(last=True):
                running.backward(summed_loss(running.model(x), y, 20))
            equal.append(same_on_all_ranks(model))
            running.step()
            equal.append(same_on_all_ranks(model))
        return equal

    assert run_ranks(asked, 2) == [[True, False, True, False]] * 2


def test_the_flag_after_forward_synchronises_the_first_micro_batch() -> None:
    for traffics, same, sums, parameters in run_ranks(one_step, 2, ddp.FlagAfterForward, 3):
        assert [traffic.sent(kind="all_reduce") for traffic in traffics] == [parameters, 0, 0]
        assert not same and len(set(sums)) == 2


def test_the_parameter_hook_averages_weights() -> None:
    """Before the step, both replicas hold the mean of the two that came in; the gradients are each rank's own."""

    def averaged() -> tuple[bool, float]:
        model = nn.Linear(3, 1, bias=False)
        nn.init.constant_(model.weight, 2.0 * torch.distributed.get_rank())
        running = ddp.HookOnParameter(model, adamw)
        with running.micro_batch(last=True):
            running.backward(model(torch.full((1, 3), 1.0 + torch.distributed.get_rank())).sum())
        return bool((model.weight == 1).all()), float(model.weight.grad[0, 0])

    assert run_ranks(averaged, 2) == [(True, 1.0), (True, 2.0)]


def test_replicas_start_as_rank_0s() -> None:
    def other_start(strategy: type[Strategy]) -> bool:
        torch.manual_seed(torch.distributed.get_rank())
        model = nn.Linear(3, 2)
        before = same_on_all_ranks(model)
        strategy(model, adamw)
        return not before and same_on_all_ranks(model)

    for strategy in RIGHT:
        assert run_ranks(other_start, 2, strategy) == [True, True]


def test_lineup_has_each_once_and_seeds_differ() -> None:
    orders = [ddp.lineup(seed) for seed in range(20)]
    assert all(set(order.values()) == {ddp.DataParallel, *SUSPECTS} and list(order) == list("ABCD") for order in orders)
    assert orders[0] == ddp.lineup(0) and len({tuple(order.values()) for order in orders}) > 5


def test_checksum_sees_one_bit_of_any_parameter() -> None:
    whole = parameter_checksum(uneven_model())
    assert whole == parameter_checksum(uneven_model()) < 2**56
    for name, _ in uneven_model().named_parameters():
        other = uneven_model()
        with torch.no_grad():
            last = other.get_parameter(name).view(-1)[-1:]
            last.copy_(torch.nextafter(last, torch.tensor(torch.inf)))
        assert parameter_checksum(other) != whole, name
    assert parameter_checksum(uneven_model().to(torch.bfloat16)) != whole
