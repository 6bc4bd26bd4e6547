"""Recomputed blocks: the same gradients bit for bit, bytes and FLOPs as the formulas say, models that are not ours."""

import copy
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from toys import toy_config, toy_corpus

from course_lib.config import ModelConfig, TrainConfig, from_dict, preset, to_dict
from course_lib.errors import ConfigError
from course_lib.memory import Peak, ledger
from course_lib.model import GPT
from course_lib.planning.formulas import (
    activation_bytes,
    best_segment,
    matmul_flops,
    predicted_ledger,
    recomputed_flops,
    segmented_bytes,
)
from course_lib.recompute import recompute_blocks, recomputed_blocks
from course_lib.trainer import Trainer, training_step

MODES = ("all", "keep_attention", "keep_matmuls")
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dropout": {"dropout": 0.2},
    "grouped": {"n_kv_heads": 2, "n_layers": 3},
}


def data(config: ModelConfig, batch: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, config.context)
    return tuple(torch.randint(0, config.vocab_size, shape, generator=generator) for _ in range(2))  # type: ignore[return-value]


def autocast(precision: str) -> AbstractContextManager[object]:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")


def gradients(model: nn.Module, inputs: Tensor, targets: Tensor, precision: str = "fp32") -> list[Tensor]:
    """Gradients of one step that draws its dropout from a fixed seed; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        with autocast(precision):
            logits = model(inputs)
        torch.manual_seed(4)  # whoever draws again without restoring draws something else
        F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten()).backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [1, 3])
def test_gradients_are_the_same_bits(mode: str, every: int, dropout: float, precision: str) -> None:
    config = preset("mini", dropout=dropout)
    inputs, targets = data(config)
    plain = gradients(GPT(config), inputs, targets, precision)
    model = recompute_blocks(GPT(config), mode, every)
    assert recomputed_blocks(model) == ([0, 1, 2, 3] if every == 1 else [2])
    assert same(gradients(model, inputs, targets, precision), plain)


def test_without_random_state_dropout_gives_other_gradients() -> None:
    config = preset("mini", dropout=0.2)
    inputs, targets = data(config)
    plain = gradients(GPT(config), inputs, targets)
    assert not same(gradients(recompute_blocks(GPT(config), restore_rng=False), inputs, targets), plain)
    still = preset("mini", dropout=0.0)
    plain = gradients(GPT(still), inputs, targets)
    assert same(gradients(recompute_blocks(GPT(still), restore_rng=False), inputs, targets), plain)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("every", [1, 2])
def test_bytes_are_the_formulas(mode: str, every: int, shape: str, precision: str) -> None:
    config = preset("mini", **SHAPES[shape])
    model = recompute_blocks(GPT(config), mode, every)
    inputs, targets = data(config)
    optimizer = torch.optim.SGD(model.parameters())
    measured = ledger(model, inputs, targets, optimizer, autocast=lambda: autocast(precision))
    predicted = predicted_ledger(config, 3, config.context, "sgd", precision, mode, every)
    measured["activations"] -= 4  # the number that the mean loss divides by
    assert measured == predicted
    assert predicted["activations"] < activation_bytes(config, 3, config.context, precision)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("mode", MODES)
def test_flops_are_the_formulas(mode: str, shape: str) -> None:
    config = preset("mini", **SHAPES[shape])
    model = recompute_blocks(GPT(config), mode, 2)
    inputs, _ = data(config)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):  # the fused kernel is not counted
        model(inputs).sum().backward()
    # This kernel is no attention operator but two matrix products, which are kept or not like the others.
    blocks, T = config.n_layers // 2, config.context
    attention = 4 * 3 * blocks * config.n_heads * T * T * config.head_dim
    moved = {"all": 0, "keep_attention": attention, "keep_matmuls": -attention}[mode]
    again = recomputed_flops(config, 3, T, mode, 2)
    assert counter.get_total_flops() == matmul_flops(config, 3, T) + again + moved


def test_peak_falls_and_the_state_does_not() -> None:
    config = preset("mini", n_layers=6)
    inputs, targets = data(config)
    peaks, books = {}, {}
    for mode in ("none", *MODES):
        model = recompute_blocks(GPT(config), mode)
        with Peak([*model.parameters(), *model.buffers(), inputs, targets]) as peak:
            start = peak.live
            F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
        peaks[mode] = peak.peak - start
        books[mode] = ledger(model, inputs, targets, torch.optim.AdamW(model.parameters()))
        assert len(peak.trace) > 100 and max(peak.trace) == peak.peak
    assert peaks["all"] <= peaks["keep_attention"] < peaks["keep_matmuls"] < peaks["none"]
    # At the worst moment one block is whole again: more than what lies between forward and backward.
    assert books["all"]["activations"] < peaks["all"]
    for name in ("weights", "gradients", "optimizer", "buffers"):
        assert len({book[name] for book in books.values()}) == 1


def test_setting_again_undoes_and_names_stay() -> None:
    model = GPT(preset("mini"))
    names = list(model.state_dict())
    recompute_blocks(model, "all")
    recompute_blocks(model, "keep_matmuls", only=[1])
    assert recomputed_blocks(model) == [1] and list(model.state_dict()) == names
    twin = copy.deepcopy(model)
    with torch.no_grad():
        dict(twin.named_parameters())["blocks.1.attention.out.weight"].zero_()
    inputs, _ = data(model.config)
    assert not torch.equal(twin(inputs), model(inputs))  # the copy runs its own block, not the original's
    recompute_blocks(model, "none")
    assert recomputed_blocks(model) == [] and all("forward" not in block.__dict__ for block in model.blocks)


class Own(nn.Module):
    """A model that is not ours, with blocks that it calls by position and by name."""

    def __init__(self, blocks: bool = True) -> None:
        super().__init__()
        self.embedding = nn.Embedding(257, 16)
        layers = [nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 16)) for _ in range(3)]
        self.layers = nn.ModuleList(layers)
        if blocks:
            self.blocks = self.layers
        self.head = nn.Linear(16, 257)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(input=x)
        return self.head(x)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize(("dropout", "precision"), [(0.0, "fp32"), (0.2, "fp32"), (0.2, "bf16"), (0.2, "fp16")])
def test_trainer_ends_in_the_same_bits(mode: str, own: bool, dropout: float, precision: str) -> None:
    def train(config: TrainConfig) -> list[Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = Own() if own else None
        trainer = Trainer(config, model, corpus=toy_corpus())
        if config.activation_checkpointing != "none":
            assert recomputed_blocks(trainer.model) == list(range(3 if own else 2))
        for step in range(3):
            training_step(trainer.parts, step)
        return [p.detach() for p in trainer.model.parameters()]

    plain: dict[str, Any] = {"batch": 8, "micro_batch": 4, "model": {"dropout": dropout}, "precision": precision}
    assert same(train(toy_config(**plain, activation_checkpointing=mode)), train(toy_config(**plain)))


def test_what_cannot_run_says_so() -> None:
    with pytest.raises(ConfigError, match="Own has no `blocks`"):
        Trainer(toy_config(activation_checkpointing="all"), Own(blocks=False), corpus=toy_corpus())
    Trainer(toy_config(), Own(blocks=False), corpus=toy_corpus())
    with pytest.raises(ConfigError, match="keep_matmuls"):
        toy_config(activation_checkpointing="keep-matmuls")
    with pytest.raises(ConfigError, match="compile=False"):
        toy_config(activation_checkpointing="all", compile=True)
    with pytest.raises(ConfigError, match="recompute_every=0"):
        toy_config(recompute_every=0)
    with pytest.raises(ConfigError, match="there are: none, all"):
        recompute_blocks(GPT(preset("mini")), "some")
    config = toy_config(activation_checkpointing="keep_attention", recompute_every=2)
    assert from_dict(to_dict(config)) == config


def test_validation_and_sampling_do_not_recompute() -> None:
    trainer = Trainer(toy_config(activation_checkpointing="all"), corpus=toy_corpus())
    plain = Trainer(toy_config(), corpus=toy_corpus())
    assert trainer.validate() == plain.validate() and trainer.sample(tokens=5) == plain.sample(tokens=5)


def chain_peak(layers: int, size: int) -> int:
    """Peak bytes of a chain of tanh layers in segments of `size`, above what is there at the start."""
    x = torch.zeros(50, 100, requires_grad=True)

    def segment(count: int, y: Tensor) -> Tensor:
        for _ in range(count):
            y = y.tanh()
        return y

    with Peak([x]) as peak:
        start, y = peak.live, x
        for first in range(0, layers, size):
            y = checkpoint(segment, min(size, layers - first), y, use_reentrant=False)
        y.sum().backward()
    return peak.peak - start


def test_segments_have_a_square_root_optimum() -> None:
    layers, each = 64, 4 * 50 * 100
    for size in (1, 4, 8, 16, 64):
        # x itself is not counted; backward adds its own gradients, two or three at a time
        assert abs(chain_peak(layers, size) - segmented_bytes(layers, size, each, each)) <= 4 * each, size
    assert best_segment(layers, each, each) == 8
    assert chain_peak(layers, 8) < min(chain_peak(layers, 2), chain_peak(layers, 32))
    assert best_segment(4, inside=30, edge=1) == 1  # where a layer keeps much more than its input
    assert segmented_bytes(10, 4, 7, 2) == 3 * 2 + 4 * 7 and segmented_bytes(3, 8, 7, 2) == 2 + 21
