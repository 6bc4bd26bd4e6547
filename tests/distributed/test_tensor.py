"""Tensor and sequence parallel, by hand and PyTorch's, against one process; what they send and keep; broken ones."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from course_lib.config import ModelConfig
from course_lib.errors import ConfigError
from course_lib.model import GPT
from course_lib.parallel.alive import kept_for_backward
from course_lib.parallel.equivalence import adamw, equivalence
from course_lib.parallel.launch import run_ranks
from course_lib.parallel.strategy import Strategy
from course_lib.parallel.tensor import Edges, Part, TensorParallel, block_parts, split_cross_entropy
from course_lib.parallel.tensor_torch import TorchTensorParallel
from course_lib.parallel.traffic import Traffic, count_traffic, fake_ranks
from course_lib.planning import split_traffic

TWO = ModelConfig(vocab_size=27, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=7, context=8)
FOUR = ModelConfig(vocab_size=27, d_model=16, n_layers=3, n_heads=4, d_ff=7, context=8, tie_embeddings=False)
EVEN = ModelConfig(vocab_size=27, d_model=16, n_layers=3, n_heads=4, n_kv_heads=2, d_ff=8, context=8)
"""27 tokens and 7 columns divide by neither 2 nor 4; PyTorch's styles want a feed-forward that does."""

HAND: dict[str, dict[str, Any]] = {
    "tensor": {},
    "loss parallel": {"loss_parallel": True},
    "sequence": {"sequence": "keep", "loss_parallel": True},
    "sequence, gathered again": {"sequence": "regather"},
}
TORCH: dict[str, dict[str, Any]] = {
    "DTensor": {},
    "DTensor, loss": {"split_loss": True},
    "DTensor, sequence": {"sequence": True, "split_loss": True},
    "DTensor, each linear for itself": {"once": False},
}


def model(shape: ModelConfig) -> GPT:
    return GPT(shape, seed=1)


@pytest.mark.parametrize(("name", "ranks", "micro_batches"), [(n, r, m) for n in HAND for r, m in ((2, 1), (4, 3))])
def test_by_hand_equals_one_process(name: str, ranks: int, micro_batches: int) -> None:
    """Two ranks: two heads share keys and values, and the embedding is tied. Four: neither."""
    make = partial(model, TWO if ranks == 2 else FOUR)
    found = equivalence(partial(TensorParallel, **HAND[name]), ranks, micro_batches=micro_batches, make_model=make)
    assert found.equal, found
    assert found.loss_error < 1e-5


@pytest.mark.parametrize("name", TORCH)
def test_pytorchs_equals_one_process(name: str) -> None:
    make = partial(TorchTensorParallel, **TORCH[name])
    found = equivalence(make, 2, micro_batches=2, make_model=partial(model, EVEN))
    assert found.equal, found
    assert found.loss_error < 1e-5


class NormsNotSummed(TensorParallel):
    """Each rank has the norms' gradients of its own positions, and leaves it at that."""

    micro_batch = Strategy.micro_batch  # type: ignore[assignment]


class NoSumInBackward(TensorParallel):
    """A column-split matrix without `copy_in`: the gradient of its input is that of this rank's columns."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        for module in self.model.modules():
            if hasattr(module, "edges"):
                module.edges = _NoCopyIn()


class _NoCopyIn(Edges):
    def into(self, x: Tensor, weight: Tensor) -> Tensor:
        return F.linear(x, weight)


class EveryRankCounts(TensorParallel):
    """All ranks have the whole loss; here they all report it."""

    forward_backward = Strategy.forward_backward  # type: ignore[assignment]


def test_broken_ones_are_found() -> None:
    for make in (partial(NormsNotSummed, sequence="keep"), NoSumInBackward):
        found = equivalence(make, 2, make_model=partial(model, TWO))
        assert not found.equal and found.gradient_error > 0.05, found
    assert equivalence(EveryRankCounts, 2, make_model=partial(model, TWO)).loss_error == pytest.approx(1)


def test_a_run_of_rows_of_a_fused_matrix_is_another_model() -> None:
    """Rank 0 of two would have all of gate and rank 1 all of up."""
    with fake_ranks(2, rank=1):
        part = block_parts(model(TWO).blocks[0], Edges())  # type: ignore[arg-type]
    assert part["feed_forward.gate_up.weight"].index.tolist() == [4, 5, 6, 11, 12, 13]
    assert part["attention.qkv.weight"].index.tolist() == [*range(8, 16), *range(20, 24), *range(28, 32)]
    rows = Part(0, torch.arange(7, 14))
    assert rows.of(torch.arange(14.0)[:, None]).flatten().tolist() == list(range(7, 14))


def calls(traffic: Traffic) -> dict[tuple[str, bool, int], int]:
    return Counter((call.kind, call.backward, call.elements) for call in traffic.calls)


def counted(make: Callable[..., Strategy], shape: ModelConfig, length: int = 8) -> Traffic:
    strategy = make(model(shape), adamw)
    tokens = torch.randint(0, shape.vocab_size, (2, length + 1), generator=torch.Generator().manual_seed(0))
    with count_traffic() as traffic:
        strategy.forward_backward(*strategy.share(tokens[:, :-1], tokens[:, 1:]), 2 * length)
        strategy.step()  # PyTorch sums the norms' gradients here
    return traffic


def test_what_is_sent_is_what_the_formula_says() -> None:
    """On two real ranks; and by hand on 64 pretended ones, where a ring is not a swap."""

    def both() -> dict[str, Traffic]:
        made = {name: partial(TensorParallel, **options) for name, options in HAND.items()}
        made |= {name: partial(TorchTensorParallel, **options) for name, options in TORCH.items()}
        return {name: counted(make, EVEN) for name, make in made.items()}

    found = run_ranks(both, 2, timeout=90)[0]
    n = split_traffic.tensor_calls(3)
    for backward in (False, True):
        assert calls(found["tensor"])["all_reduce", backward, 256] == n == 7
        assert calls(found["DTensor"])["all_reduce", backward, 256] == n
        for name in ("sequence", "DTensor, sequence"):
            for kind in ("all_gather", "reduce_scatter"):
                assert calls(found[name])[kind, backward, 256] == n
    assert calls(found["DTensor, each linear for itself"])["all_reduce", True, 256] == 3 * (3 + 2) + 1
    for name, options in {**HAND, "DTensor": {}, "DTensor, sequence": HAND["sequence"]}.items():
        formula = split_traffic.tensor_sent(3, 16, 16, 27, 2, **options)
        assert {kind: found[name].sent(kind=kind) for kind in formula} == formula, name
        assert found[name].sent() == sum(formula.values()), name

    wide = ModelConfig(vocab_size=100, d_model=128, n_layers=2, n_heads=64, d_ff=64, context=64)
    for options in HAND.values():
        with fake_ranks(64):
            traffic = counted(partial(TensorParallel, **options), wide, 64)
        formula = split_traffic.tensor_sent(2, 128, 128, 100, 64, **options)
        assert {kind: traffic.sent(kind=kind) for kind in formula} == pytest.approx(formula)


def test_a_split_loss_is_the_loss() -> None:
    """Against PyTorch's on whole logits: uneven vocabulary, ignored tokens, one logit 200 above all others."""

    def split(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        columns = torch.arange(10).tensor_split(4)[dist.get_rank()]
        own = logits[:, columns].clone().requires_grad_()
        loss = split_cross_entropy(own, targets, int(columns[0]))
        loss.backward()
        assert own.grad is not None
        return loss.detach(), own.grad

    logits = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    logits[1, 4] = 200.0
    targets = torch.tensor([0, 9, -100, 4, 7, 2])
    whole = logits.clone().requires_grad_()
    wanted = F.cross_entropy(whole, targets, reduction="sum")
    wanted.backward()
    found = run_ranks(split, 4, logits, targets)
    for loss, _ in found:
        torch.testing.assert_close(loss, wanted.detach())
    torch.testing.assert_close(torch.cat([gradient for _, gradient in found], 1), whole.grad)


def test_what_is_kept_for_backward() -> None:
    """Gathering again saves the gathered inputs of 2 L + 1 matrices; a split loss, logits that are nowhere whole."""

    def kept() -> dict[str, int]:
        tokens = torch.zeros(2, 9, dtype=torch.int64)
        batch = tokens[:, :-1], tokens[:, 1:]
        shape = ModelConfig(vocab_size=512, d_model=64, n_layers=3, n_heads=4, d_ff=64, context=8)
        out = {}
        for name, options in {
            "tensor": {"loss_parallel": True},
            "keep": {"sequence": "keep", "loss_parallel": True},
            "regather": {"sequence": "regather", "loss_parallel": True},
            "whole loss": {},
        }.items():
            out[name] = kept_for_backward(TensorParallel(model(shape), adamw, **options), *batch)
        return out

    found = run_ranks(kept, 2)[0]
    activations = 4 * 16 * 64
    assert found["keep"] - found["regather"] == 7 * activations // 2
    # two norms' inputs a block and one at the end, and a norm's output where it is not the gathered input
    assert found["tensor"] - found["keep"] > 3 * 2 * activations / 2
    assert found["whole loss"] - found["tensor"] == pytest.approx(4 * 16 * 512 / 2, abs=500)  # numbers a token


def test_what_cannot_be_shared_out_is_said() -> None:
    with fake_ranks(4), pytest.raises(ConfigError, match=r"n_kv_heads=2 cannot be shared out to 4 .* take 2"):
        TensorParallel(model(TWO), adamw)
    with fake_ranks(2):
        with pytest.raises(ConfigError, match="a sequence of 7 tokens does not divide by 2 ranks"):
            TensorParallel(model(TWO), adamw, sequence="keep").share(torch.zeros(1, 7), torch.zeros(1, 7))
        with pytest.raises(ConfigError, match="set dropout=0"):
            TensorParallel(GPT(ModelConfig(dropout=0.1)), adamw)
        with pytest.raises(ConfigError, match="d_ff=7 must both divide"):
            TorchTensorParallel(model(TWO), adamw)
