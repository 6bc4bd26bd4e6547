"""Ring and all-gather attention against one device; positions, work and traffic; context parallel as a whole."""

import inspect
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.parallel import _ring_attention
from course_lib.parallel.context import (
    ContextParallel,
    OnlineSoftmax,
    all_gather_attention,
    chunk_positions,
    contiguous,
    contiguous_positions,
    ring_attention,
    ring_work,
    zigzag,
    zigzag_positions,
)
from course_lib.parallel.equivalence import adamw, equivalence
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.traffic import count_traffic
from course_lib.planning import split_traffic

SHAPE = ModelConfig(vocab_size=27, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=7, context=8)
FORMS = {"ring": ring_attention, "all-gather": all_gather_attention}
LAYOUTS = {"zigzag": zigzag, "contiguous": contiguous}


def model() -> GPT:
    return GPT(SHAPE, seed=1)


@pytest.mark.parametrize(
    ("form", "layout", "ranks", "micro_batches"),
    [("ring", "zigzag", 2, 3), ("ring", "zigzag", 4, 1), ("ring", "contiguous", 4, 1), ("all-gather", "zigzag", 4, 2)],
)
def test_it_equals_one_process(form: str, layout: str, ranks: int, micro_batches: int) -> None:
    make = partial(ContextParallel, attention=FORMS[form], layout=LAYOUTS[layout])
    found = equivalence(make, ranks, micro_batches=micro_batches, make_model=model)
    assert found.equal, found
    assert found.loss_error < 1e-5


class LocalPositions(ContextParallel):
    """Each rank turns its tokens as if its part were the beginning of the sequence."""

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().share(inputs, targets)
        self.model.cos, self.model.sin = self.cos[: x.shape[1]], self.sin[: x.shape[1]]
        return x, y


class ShiftedAfterwards(ContextParallel):
    """Targets made from each rank's own tokens: the last token of a chunk gets the wrong one."""

    def share(self, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x, y = super().share(inputs, targets)
        return x, torch.where(y == -100, y, torch.cat([x[:, 1:], y[:, -1:]], 1))


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])


@pytest.mark.parametrize(
    "make",
    [
        LocalPositions,
        ShiftedAfterwards,
        partial(ContextParallel, attention=lambda q, k, v, chunks: attend(q, k, v)),
    ],
    ids=["local positions", "shifted afterwards", "own keys only"],
)
def test_a_broken_one_is_found(make: Any) -> None:
    found = equivalence(make, 2, make_model=model)
    assert not found.equal and found.gradient_error > 0.01, found


def one_device(length: int, heads: int = 4, kv_heads: int = 2) -> list[Tensor]:
    """q, k, v, and the gradient of the output: (2, heads, length, 6), in FP64."""
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, h, length, 6, generator=generator, dtype=torch.float64) * 3
        for h in (heads, kv_heads, kv_heads, heads)
    ]


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_outputs_and_gradients_are_those_of_one_device(ranks: int) -> None:
    """Both forms and layouts; queries in groups of two; a score of several hundred, so that a softmax not shifted would
    overflow."""

    def here(tensors: list[Tensor]) -> list[list[Tensor]]:
        out = []
        for form in FORMS.values():
            for layout in LAYOUTS.values():
                chunks = layout(dist.get_world_size())
                own = chunk_positions(tensors[0].shape[2], chunks)[dist.get_rank()]
                *qkv, gradient = (x[:, :, own].clone().requires_grad_() for x in tensors)
                y = form(*qkv, chunks)
                y.backward(gradient.detach())
                out.append([own, y.detach(), *(x.grad for x in qkv)])
        return out

    tensors = one_device(24)
    tensors[0][:, :, 5] *= 40
    *qkv, gradient = (x.clone().requires_grad_() for x in tensors)
    wanted = attend(*qkv)
    wanted.backward(gradient.detach())
    for found in run_ranks(here, ranks, tensors):
        for own, *results in found:
            for result, whole in zip(results, [wanted.detach(), *(x.grad for x in qkv)], strict=True):
                torch.testing.assert_close(result, whole[:, :, own], rtol=1e-9, atol=1e-10)


def test_a_softmax_in_pieces_is_the_softmax() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, values = torch.randn(3, 5, 12, generator=generator) * 50, torch.randn(3, 12, 4, generator=generator)
    scores[..., 7:] += 300  # the largest comes late
    scores[:, 2, 3:7] = -torch.inf  # a piece with nothing in it, after the first
    softmax = OnlineSoftmax()
    for piece in (slice(0, 3), slice(3, 7), slice(7, 8), slice(8, 12)):
        softmax.add(scores[..., piece], values[:, piece])
    out, logs = softmax.result()
    torch.testing.assert_close(out, scores.softmax(-1) @ values)
    torch.testing.assert_close(logs[..., 0], scores.logsumexp(-1))


def test_positions_and_work() -> None:
    assert [own.tolist() for own in zigzag_positions(8, 2)] == [[0, 1, 6, 7], [2, 3, 4, 5]]
    assert [own.tolist() for own in contiguous_positions(8, 2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for ranks in (1, 2, 4, 7):
        length = 6 * ranks
        for layout in (zigzag, contiguous):
            own = chunk_positions(length, layout(ranks))
            work = ring_work(length, layout(ranks))
            assert sorted(torch.cat(own).tolist()) == list(range(length))
            assert [sum(row) for row in work] == [int((positions + 1).sum()) for positions in own]  # by hand
        assert len({sum(row) for row in ring_work(length, zigzag(ranks))}) == 1
        steps = zip(*ring_work(length, zigzag(ranks)), strict=True)
        assert all(len(set(step)) == 1 for step in steps)  # in each step of the ring as well
    with pytest.raises(ConfigError, match="10 tokens does not divide into 4 chunks; take 8"):
        zigzag_positions(10, 2)


def test_what_is_computed_and_sent() -> None:
    """FLOPs of each rank's ring attention follow the blocks that it may see, masked halves included; what each form
    sends follows the formula, and no form sends queries."""

    def here(form: str, layout: str) -> tuple[int, dict[str, float], float]:
        strategy = ContextParallel(model(), adamw, attention=FORMS[form], layout=LAYOUTS[layout])
        tokens = torch.zeros(2, 9, dtype=torch.int64)
        batch = strategy.share(tokens[:, :-1], tokens[:, 1:])
        with count_traffic() as traffic:
            strategy.forward_backward(*batch, 16)
        q, k = torch.ones(1, 4, 32, 6), torch.ones(1, 2, 32, 6)
        with FlopCounterMode(display=False) as flops:
            FORMS[form](q, k, k, strategy.chunks)
        kinds = ("send", "all_gather", "reduce_scatter", "all_reduce")
        return flops.get_total_flops(), {kind: traffic.sent(kind=kind) for kind in kinds}, traffic.sent()

    def all_of_them() -> list[Any]:
        return [here("ring", "zigzag"), here("ring", "contiguous"), here("all-gather", "zigzag")]

    found = run_ranks(all_of_them, 4, timeout=60)
    a_block = 2 * 2 * 4 * 16 * 16 * 6  # scores and their product with values, 4 heads, chunks of 16, width 6
    assert [rank[0][0] / a_block for rank in found] == [
        2 + 1 + 6,
        9,
        9,
        9,
    ]  # two triangles and a whole, then two a step
    assert [rank[1][0] / a_block for rank in found] == [3, 7, 11, 15]
    parameters = sum(p.numel() for p in model().parameters())
    for place, form in ((0, "ring"), (2, "all-gather")):
        formula = split_traffic.context_sent(3, 16, 8, parameters, 4, form=form)  # type: ignore[arg-type]
        for rank in found:
            assert {kind: sent for kind, sent in rank[place][1].items() if sent} == pytest.approx(formula)
            assert rank[place][2] == pytest.approx(sum(formula.values()))
    assert "all_gather" not in inspect.getsource(_ring_attention)
