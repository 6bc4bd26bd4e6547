"""Expert parallel: one layer over ranks against the whole layer, a model against one process, what is sent and held."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.errors import RankError
from course_lib.model import GPT
from course_lib.moe import MoE, MoEConfig, moe_gpt, moe_layers, take_loads
from course_lib.parallel.equivalence import adamw, equivalence, uneven_batches
from course_lib.parallel.expert import ExpertParallel, MoEShard, by_expert
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import summed_loss
from course_lib.parallel.traffic import count_traffic
from course_lib.planning import communication


def small_moe(experts: int = 4, top_k: int = 2, **more: Any) -> GPT:
    shape = ModelConfig(vocab_size=27, d_model=10, n_layers=2, n_heads=1, context=8)
    return moe_gpt(shape, MoEConfig(n_experts=experts, top_k=top_k, d_expert=3, **more), seed=1)


@pytest.mark.parametrize(
    ("ranks", "micro_batches", "options"),
    [(2, 1, {}), (2, 3, {}), (4, 3, {}), (4, 1, {"over": 2}), (2, 2, {"over": 1})],
)
def test_expert_parallel_equals_one_process(ranks: int, micro_batches: int, options: dict) -> None:
    strategy = partial(ExpertParallel, **options)
    found = equivalence(strategy, ranks, micro_batches=micro_batches, make_model=small_moe)
    assert found.equal and found.loss_error < 1e-5, found
    one = sum(p.numel() for layer in moe_layers(small_moe()) for p in (layer.up, layer.down))
    rest = small_moe().num_params() - one
    kept = rest + one // options.get("over", ranks)
    for held in found.bytes_held:
        assert (held["weights"], held["gradients"]) == (4 * kept, 4 * kept)
        assert held["optimizer"] == pytest.approx(8 * kept, rel=0.02)


class SummedTwice(ExpertParallel):
    """Experts' gradients have all ranks' tokens already, and are summed over ranks all the same."""

    def reduce(self, p: Tensor) -> None:
        if self.last:
            self.pending.append(dist.all_reduce(p.grad, async_op=True))


class RestNotSummed(ExpertParallel):
    def reduce(self, p: Tensor) -> None:
        pass


class WrongWayBack(MoEShard):
    """What comes back is taken for the order in which the tokens lay before they were sorted."""

    def experts(self, rows: Tensor, gates: Tensor) -> Tensor:
        out = super().experts(rows, gates)
        token, _ = by_expert(gates)
        return out[token[: len(out)]] if len(token) >= len(out) else out


class Shuffled(ExpertParallel):
    def __init__(self, model, make_optimizer):
        super().__init__(model, make_optimizer)
        for layer in moe_layers(model):
            layer.__class__ = WrongWayBack


@pytest.mark.parametrize("wrong", [SummedTwice, RestNotSummed, Shuffled])
def test_a_broken_expert_parallel_is_found(wrong: type) -> None:
    found = equivalence(wrong, 2, make_model=small_moe)
    assert not found.equal and max(found.gradient_error, found.parameter_error) > 0.1, found


def test_a_capacity_counts_on_each_rank_and_so_another_number_of_ranks_is_another_model() -> None:
    found = equivalence(ExpertParallel, 2, make_model=partial(small_moe, capacity_factor=1.0))
    assert not found.equal and found.gradient_error > 0.1, found


def layer_on_ranks(experts: int, tilt: float, batch: int = 8) -> dict[str, Any]:
    """One layer's answers and gradients of this rank's rows; `tilt` makes expert 0 (and then 1, ...) the favourite."""
    rank, world = dist.get_rank(), dist.get_world_size()
    whole, x = tilted(experts, tilt, batch)
    layer = MoEShard(whole, dist.group.WORLD)
    mine = x.tensor_split(world)[rank].clone().requires_grad_()
    with count_traffic() as traffic:
        out = layer(mine)
        out.square().sum().backward()
    return {
        "out": out.detach(),
        "x": mine.grad,
        "up": layer.up.grad,
        "down": layer.down.grad,
        "arriving": layer.arriving,
        "calls": [(call.kind, call.backward, call.elements, call.stays) for call in traffic.calls],
    }


def tilted(experts: int, tilt: float, batch: int) -> tuple[MoE, Tensor]:
    generator = torch.Generator().manual_seed(3)
    layer = MoE(6, MoEConfig(n_experts=experts, top_k=2, d_expert=5), generator).double()
    x = torch.randn(batch, 4, 6, dtype=torch.float64, generator=generator)
    x[..., 0] = 1
    with torch.no_grad():
        layer.router[0] -= tilt * torch.arange(experts)
    return layer, x


def many_layers() -> list[dict[str, Any]]:
    return [layer_on_ranks(experts, tilt) for experts, tilt in LAYERS]


LAYERS = ((4, 0.0), (8, 0.3), (8, 50.0))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_layer_over_ranks_is_the_layer(ranks: int) -> None:
    """Equal, uneven and empty splits; with tilt 50 all tokens go to the first two experts, and so to the first rank."""
    found = run_ranks(many_layers, ranks, timeout=60)
    for place, (experts, tilt) in enumerate(LAYERS):
        layer, x = tilted(experts, tilt, 8)
        x.requires_grad_()
        out = layer(x)
        out.square().sum().backward()
        runs = [one[place] for one in found]
        for name, right in (("out", out.detach()), ("x", x.grad), ("up", layer.up.grad), ("down", layer.down.grad)):
            torch.testing.assert_close(torch.cat([run[name] for run in runs]), right, atol=1e-12, rtol=0)
        by_sender = (layer.route(x.detach()) != 0).view(ranks, -1, experts).sum(1)  # (N, E)
        came = torch.cat([run["arriving"] for run in runs], dim=1)
        assert torch.equal(came, by_sender)
        assert tilt < 1 or came.sum(0).tolist() == [32, 32] + [0] * (experts - 2)
        for rank, run in enumerate(runs):
            kinds = [(kind, backward) for kind, backward, *_ in run["calls"]]
            assert kinds == [("all_to_all", False)] * 3 + [("all_to_all", True)] * 2
            own = by_sender[rank].view(ranks, -1).sum(1)  # to each rank
            leave, arrive = int(own.sum()), int(run["arriving"].sum())
            rows = [leave, arrive, leave, arrive]  # dispatch and combine; their backward: combine's first
            assert [elements for *_, elements, _ in run["calls"][1:]] == [6 * n for n in rows]
            assert [stays for *_, stays in run["calls"][1:]] == [6 * int(own[rank])] * 4


def whole_model(tokens: Tensor) -> tuple[float, float]:
    """Elements sent in all-to-alls of rows by a step of this rank, and the formula's for its tokens."""
    torch.manual_seed(0)
    shape = ModelConfig(vocab_size=27, d_model=16, n_layers=3, n_heads=1, context=32)
    strategy = ExpertParallel(moe_gpt(shape, MoEConfig(n_experts=8, top_k=2, d_expert=8), 0), adamw)
    mine = tokens.tensor_split(dist.get_world_size())[dist.get_rank()]
    with count_traffic() as traffic:
        loss = summed_loss(strategy.model(mine), mine, tokens.numel())
        strategy.backward(loss)
    rows = [call for call in traffic.select("all_to_all") if call.dtype == "float32"]
    formula = communication.expert_elements(mine.numel(), 2, 16, dist.get_world_size(), 3)
    return sum(call.sent for call in rows), formula


def test_the_formula_is_what_is_sent_when_tokens_go_everywhere() -> None:
    tokens = torch.randint(0, 27, (64, 32), generator=torch.Generator().manual_seed(0))
    found = run_ranks(whole_model, 4, tokens, timeout=60)
    for sent, formula in found:
        assert sent == pytest.approx(formula, rel=0.15)  # an untrained router is not quite fair
    assert sum(sent for sent, _ in found) == pytest.approx(sum(formula for _, formula in found), rel=0.05)


def biases(batches: list[tuple[Tensor, Tensor]]) -> list[list[float]]:
    strategy = ExpertParallel(small_moe(bias_rate=0.05), adamw)
    for inputs, targets in batches:
        strategy.forward_backward(*strategy.share(inputs, targets), valid=targets.numel(), micro_batches=2)
        strategy.step()
    assert not take_loads(strategy.model).any()
    return [layer.bias.tolist() for layer in moe_layers(strategy.model) if layer.bias is not None]


def test_biases_follow_the_load_of_the_global_batch() -> None:
    batches = uneven_batches(2, 2, 3)
    [alone] = run_ranks(biases, 1, batches)
    two = run_ranks(biases, 2, batches)
    assert two[0] == two[1] == alone and any(any(layer) for layer in alone)


def test_experts_that_ranks_do_not_divide_say_what_does() -> None:
    with pytest.raises(RankError, match="over=2 ranks have to divide 2 ranks and 3 experts; try over=1"):
        run_ranks(partial(ExpertParallel, small_moe(3), adamw), 2)


def thresholds(batches: list[tuple[Tensor, Tensor]], micro_batches: int) -> list[list[float]]:
    strategy = ExpertParallel(small_moe(routing="threshold", threshold_rate=0.5), adamw)
    for inputs, targets in batches:
        share = strategy.share(inputs, targets)
        strategy.forward_backward(*share, valid=targets.numel(), micro_batches=micro_batches)
        strategy.step()
    return [layer.thresholds.tolist() for layer in moe_layers(strategy.model) if layer.thresholds is not None]


def test_thresholds_follow_the_passes_of_all_ranks() -> None:
    """Two ranks with a pass each move them as one process with two passes over the same rows."""
    batches = uneven_batches(2, 1, 3)
    [alone] = run_ranks(thresholds, 1, batches, 2)
    two = run_ranks(thresholds, 2, batches, 1)
    assert two[0] == two[1] and len(alone) == 2
    torch.testing.assert_close(torch.tensor(two[0]), torch.tensor(alone), atol=1e-5, rtol=0)
    assert (torch.tensor(alone) - 0.25).abs().max() > 1e-3


def test_choosing_out_of_the_whole_batch_is_refused() -> None:
    with pytest.raises(RankError, match="needs all ranks' tokens at once; try 'expert_choice'"):
        run_ranks(partial(ExpertParallel, small_moe(routing="expert_choice_batch"), adamw), 2)


@pytest.mark.parametrize("routing", ["threshold", "expert_choice", "expert_choice_chunks"])
def test_other_routers_equal_one_process_for_a_step(routing: str) -> None:
    more = {"chunk": 3} if routing == "expert_choice_chunks" else {}
    found = equivalence(ExpertParallel, 2, steps=1, make_model=partial(small_moe, routing=routing, **more))
    assert found.equal, found
