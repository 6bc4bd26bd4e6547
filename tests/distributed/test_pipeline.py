"""Every schedule on real ranks against one process: through the loop by hand, and through PyTorch's."""

from collections import Counter
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from course_lib.config import preset
from course_lib.errors import ConfigError, RankError, ScheduleError
from course_lib.memory import Peak
from course_lib.model import GPT
from course_lib.parallel._pipeline_later import Later
from course_lib.parallel.equivalence import adamw, equivalence, uneven_batches, uneven_model
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.pipeline import Mail, Pipeline, split_model
from course_lib.parallel.schedule import Action, actions
from course_lib.parallel.strategy import rank_and_world
from course_lib.parallel.traffic import count_traffic
from course_lib.planning.communication import boundary_bytes

OURS = [
    ("naive", 1),
    ("naive", 2),
    ("gpipe", 1),
    ("gpipe", 2),
    ("1f1b", 1),
    ("interleaved", 2),
    ("zb_h1", 1),
    ("zbv", 1),
    ("dualpipev", 1),
]
TORCHS = [
    ("gpipe", 1),
    ("gpipe", 2),
    ("1f1b", 1),
    ("interleaved", 2),
    ("interleaved_zb", 2),
    ("zbv", 1),
    ("dualpipev", 1),
]


def deep_model(tie_embeddings: bool = True) -> GPT:
    """Six blocks, for the eight stages that four ranks with two chunks each have."""
    shape = uneven_model().config
    sizes = {"vocab_size": 27, "d_model": 10, "n_heads": 1, "d_ff": 3, "context": 8}
    assert {name: getattr(shape, name) for name in sizes} == sizes
    return GPT(preset("mini", n_layers=6, **sizes, tie_embeddings=tie_embeddings), seed=1)


class Copies(Pipeline):
    """Shows the last stage's copy of a tied matrix where the last stage is, so that ranks agree only if copies do."""

    def parameters(self) -> dict[str, Tensor]:
        found = super().parameters()
        if self.tied is not None:
            found["embedding.weight"] = self.tied[0].detach().clone()
        return found


@pytest.mark.parametrize(("name", "chunks"), OURS)
def test_the_loop_equals_one_process_on_two_ranks(name: str, chunks: int) -> None:
    found = equivalence(partial(Copies, schedule=name, chunks=chunks), 2, micro_batches=4)
    assert found.equal and found.loss_error < 1e-5, found
    assert found.steps == 3


@pytest.mark.parametrize(("name", "chunks", "tied"), [("1f1b", 1, True), ("interleaved", 2, False), ("zbv", 1, True)])
def test_the_loop_equals_one_process_on_four_ranks(name: str, chunks: int, tied: bool) -> None:
    strategy = partial(Copies, schedule=name, chunks=chunks)
    model = partial(deep_model, tie_embeddings=tied)
    found = equivalence(strategy, 4, micro_batches=8, make_model=model, batches=uneven_batches(2, 8, 3))
    assert found.equal and found.loss_error < 1e-5, found


@pytest.mark.parametrize(("name", "chunks"), TORCHS)
def test_pytorchs_schedules_equal_one_process(name: str, chunks: int) -> None:
    found = equivalence(partial(Copies, schedule=name, chunks=chunks, by_torch=True), 2, micro_batches=4)
    assert found.equal and found.loss_error < 1e-5, found


def test_micro_batches_of_unequal_size_and_uneven_stages() -> None:
    """Seven rows in four micro-batches, a first stage without blocks; one rank, on which everything is handed over."""
    batches = [tuple(part[:7] for part in batch) for batch in uneven_batches(2, 4, 3)]
    found = equivalence(partial(Pipeline, shares=[0, 3], micro_batches=4), 2, batches=batches)
    assert found.equal, found
    found = equivalence(partial(Pipeline, schedule="zbv", micro_batches=4), 1, batches=batches)
    assert found.equal, found


def test_an_order_of_ones_own_runs() -> None:
    """GPipe whose backwards take the micro-batches from behind on one rank, and two of them cut in two."""
    mine = actions("gpipe", 2, 4)
    for rank, order in enumerate(mine):
        order[4:] = [Action(rank, rank, k, "B") for k in (3, 2)]
        order += [Action(rank, rank, 1, "I"), Action(rank, rank, 0, "I")]
        order += [Action(rank, rank, 0, "W"), Action(rank, rank, 1, "W")]
    found = equivalence(partial(Pipeline, schedule=mine), 2, micro_batches=4)
    assert found.equal, found


def test_a_deadlock_is_refused_before_it_starts() -> None:
    mine = actions("1f1b", 2, 4)
    mine[0][:0] = [mine[0].pop(2)]  # rank 0's first backward before its forwards
    with pytest.raises(RankError, match=r"rank 0 has B of stage 0, micro-batch 0 before F of stage 0"):
        equivalence(partial(Pipeline, schedule=mine), 2, micro_batches=4)
    late = actions("1f1b", 2, 4)
    late[0].insert(3, late[0].pop(1))  # waits for a backward of a forward that it has not sent
    late[1].insert(0, late[1].pop(2))
    with pytest.raises(RankError, match=r"ScheduleError: .*deadlock.*waits for") as caught:
        equivalence(partial(Pipeline, schedule=late), 2, micro_batches=4)
    assert "put first what the other waits for" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"schedule": "naive", "by_torch": True}, "torch.distributed.pipelining has no naive; it has gpipe"),
        ({"schedule": "zb_h1", "by_torch": True}, "has no zb_h1"),
        ({"schedule": "1f1b", "by_torch": True, "record": True}, "leave out by_torch"),
        ({"schedule": actions("1f1b", 2, 2), "by_torch": True}, "takes the name of a schedule"),
        ({"schedule": actions("1f1b", 2, 2)}, "lists for 2 ranks, and there are 1"),
        ({"schedule": "pipedream"}, "no schedule 'pipedream'"),
        ({"schedule": "dualpipev", "micro_batches": 1}, "dualpipev with 1 stages has no order for 1 micro-batches"),
    ],
)
def test_what_cannot_run_says_so(options: dict, told: str) -> None:
    with pytest.raises(ScheduleError, match=told):
        strategy = Pipeline(uneven_model(), adamw, **options)
        strategy.forward_backward(*uneven_batches(1, 1, 1)[0], valid=1)


# ------------------------------------------------------------------------------------------------------------- stages


@pytest.mark.parametrize("stages", range(1, 6))
def test_stages_one_after_the_other_are_the_model(stages: int) -> None:
    model = uneven_model()
    tokens = torch.arange(16).view(2, 8)
    x = tokens
    for stage in split_model(model, stages):
        x = stage(x)
    assert torch.equal(x, model(tokens))


def test_stages_keep_the_models_names_and_tensors() -> None:
    model = uneven_model(tie_embeddings=False)
    found: dict[str, nn.Parameter] = {}
    for stage in split_model(model, 4):
        assert not found.keys() & dict(stage.named_parameters()).keys()
        found |= dict(stage.named_parameters())
    assert {name: id(p) for name, p in found.items()} == {name: id(p) for name, p in model.named_parameters()}


def test_shares_of_the_blocks() -> None:
    def of(stages: int, shares: list[int] | None = None) -> list[int]:
        return [len(stage.blocks) for stage in split_model(deep_model(), stages, shares)]

    assert [of(n) for n in (1, 4, 6, 7, 8)] == [[6], [2, 2, 1, 1], [1] * 6, [1] * 6 + [0], [0] + [1] * 6 + [0]]
    assert of(3, [1, 4, 1]) == [1, 4, 1]
    for stages, shares in ((9, None), (2, [3, 4]), (2, [1, 2, 3]), (2, [7, -1])):
        with pytest.raises(ConfigError, match=r"too many for 6 blocks; at most 8|try \[3, 3\]"):
            of(stages, shares)


def test_a_tied_matrix_is_on_both_ends_or_one() -> None:
    def held(schedule: str) -> list[int]:
        def job() -> int:
            return sum(p.numel() for p in Pipeline(uneven_model(), adamw, schedule=schedule).model.parameters())

        return run_ranks(job, 2)

    whole = uneven_model().num_params()
    assert sum(held("1f1b")) == whole + 27 * 10
    assert sum(held("zbv")) == whole


# ------------------------------------------------------------------------------------------------------ split backward


def test_the_two_halves_of_a_backward_give_what_it_gives() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 3, bias=False), nn.LayerNorm(3), nn.Linear(3, 2))
    x = torch.randn(2, 6, 5, requires_grad=True)
    net(x).square().sum().backward()
    wanted = [p.grad.clone() for p in net.parameters()]
    dx, x.grad = x.grad, None
    net.zero_grad()
    with (later := Later()):
        y = net(x)
    y.square().sum().backward()
    assert torch.allclose(x.grad, dx)
    assert [p.grad is None for p in net.parameters()] == [True, True, True, False, False, True, True]
    assert len(later.kept) == 3
    for _ in range(2):  # the second time there is nothing left to add
        later.run()
        assert all(torch.allclose(p.grad, w, atol=1e-6) for p, w in zip(net.parameters(), wanted, strict=True))
    assert not any(p.grad.requires_grad for p in net.parameters())


# ----------------------------------------------------------------------------------------------------------- messages


def counted(runs: list[tuple[str, int, bool]]) -> list[Counter[str]]:
    """Of each run the messages that this rank sends in one step, and their bytes."""
    out = []
    for name, chunks, by_torch in runs:
        strategy = Pipeline(uneven_model(False), adamw, schedule=name, chunks=chunks, by_torch=by_torch)
        inputs, targets = uneven_batches(2, 4, 1)[0]
        strategy.forward_backward(inputs, targets, 10, 4)  # PyTorch asks for shapes first
        with count_traffic() as traffic:
            strategy.forward_backward(inputs, targets, 10, 4)
        assert {call.kind for call in traffic.calls} <= {"send", "recv"}
        sent = traffic.select("send")
        out.append(Counter(messages=len(sent), bytes=sum(call.bytes for call in sent)))
    return out


def test_what_is_sent() -> None:
    """Each hop from rank to rank: an activation and a gradient for each micro-batch. PyTorch sends the same."""
    hops = {("1f1b", 1): 1, ("interleaved", 2): 3, ("zbv", 1): 2}
    (one,) = boundary_bytes([2, 1], 4, 4 * 8, 10)
    runs = [(name, chunks, by_torch) for name, chunks in hops for by_torch in (False, True)]
    for (name, chunks, _), *found in zip(runs, *run_ranks(counted, 2, runs, timeout=60), strict=True):
        n = hops[name, chunks]
        assert sum(found, Counter()) == Counter(messages=2 * 4 * n, bytes=n * (one.forward + one.backward))


def test_what_a_stage_got_and_gave_goes_with_its_backward() -> None:
    """Outputs that were handed over are in no graph any more after it; with more micro-batches there are not more."""

    def peak(micro_batches: int) -> int:
        strategy = Pipeline(uneven_model(), adamw, schedule="naive", chunks=2)
        batch = [part[:2].repeat(micro_batches, 1) for part in uneven_batches(2, 1, 1)[0]]
        strategy.forward_backward(*batch, valid=1, micro_batches=micro_batches)  # makes the gradients
        with Peak(batch) as memory:
            before = memory.live
            strategy.forward_backward(*batch, valid=1, micro_batches=micro_batches)
        return memory.peak - before

    assert peak(16) == peak(2)


def test_messages_are_told_apart_whatever_their_order() -> None:
    def job() -> list[float]:
        mail = Mail((0, 1), 3)
        if rank_and_world()[0] == 0:
            for k in range(3):
                mail.send(torch.full((2,), float(k)), 0, 1, k)
        got = [mail.receive(partial(torch.empty, 2), 0, 1, k)[0].item() for k in (2, 0, 1)] if dist.get_rank() else []
        mail.finish()
        return got

    assert run_ranks(job, 2)[1] == [2.0, 0.0, 1.0]
    mail = Mail((0, 1, 2, 3), 5)
    pairs = [(a, b, k) for a in range(4) for b in (a - 1, a + 1) if 0 <= b < 4 for k in range(5)]
    assert len({mail.tag(*pair) for pair in pairs}) == len(pairs)


# ------------------------------------------------------------------------------------------- broken ones that are found


class HalfTied(Copies):
    """Each end updates its copy of the tied matrix with its own gradient."""

    def _add(self, matrix, other):
        pass


class FirstMicroBatchOnly(Pipeline):
    def forward_backward(self, inputs, targets, valid, micro_batches=1, on_micro_batch=None):
        rows = len(inputs) // micro_batches
        return super().forward_backward(inputs[:rows], targets[:rows], valid, 1, on_micro_batch)


class MeanOfMicroBatches(Pipeline):
    """As `scale_grads=True` does with a loss that is divided already."""

    def forward_backward(self, *args, **options):
        loss = super().forward_backward(*args, **options)
        for p in self.model.parameters():
            p.grad /= 4
        return loss


@pytest.mark.parametrize("broken", [HalfTied, FirstMicroBatchOnly, MeanOfMicroBatches])
def test_a_broken_pipeline_is_found(broken: type) -> None:
    found = equivalence(broken, 2, micro_batches=4)
    assert not found.equal and found.gradient_error > 0.1, found


def test_a_lost_weight_gradient_is_found() -> None:
    class Forgets(Pipeline):
        def __init__(self, *args, **options):
            super().__init__(*args, **options)
            Later.run = lambda self: self.kept.clear()  # on a rank, whose process ends

    model = partial(uneven_model, tie_embeddings=False)
    found = equivalence(partial(Forgets, schedule="zb_h1"), 2, micro_batches=4, make_model=model)
    assert not found.equal and found.gradient_error > 0.1, found
