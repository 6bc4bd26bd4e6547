"""The measured ledger against the predicted one, and the peak against a known allocation."""

from contextlib import AbstractContextManager

import pytest
import torch
from torch import nn

from course_lib.config import ModelConfig, OptimConfig, preset
from course_lib.memory import Peak, ledger, storage_bytes
from course_lib.model import GPT
from course_lib.optim import make_optimizer
from course_lib.planning.formulas import RECIPES, bytes_per_parameter, predicted_ledger

SHAPES = {
    "tiny": {},
    "grouped": {"n_kv_heads": 2},
    "untied": {"tie_embeddings": False, "d_ff": 100, "n_layers": 2},
    "one head": {"n_heads": 1, "n_layers": 1},
    "dropout": {"dropout": 0.1},
}


def data(config: ModelConfig, batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, config.context)
    return tuple(torch.randint(0, config.vocab_size, shape, generator=generator) for _ in range(2))  # type: ignore[return-value]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 5])
def test_measured_is_predicted(shape: str, precision: str, batch: int) -> None:
    config = preset("mini", **SHAPES[shape])
    model = GPT(config)
    inputs, targets = data(config, batch)

    def autocast() -> AbstractContextManager[object]:
        return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

    tensors = len(list(model.parameters()))
    optimizers = {None: None, "sgd": torch.optim.SGD(model.parameters()), "adamw": make_optimizer(model, OptimConfig())}
    for name, optimizer in optimizers.items():
        measured = ledger(model, inputs, targets, optimizer, autocast=autocast)
        predicted = predicted_ledger(config, batch, config.context, name, precision)
        assert measured.keys() == predicted.keys()
        # 4 bytes: the number that the mean loss divides by; 4 a tensor: AdamW counts its steps
        slack = {"activations": 4, "optimizer": 4 * tensors if name == "adamw" else 0}
        for category, size in measured.items():
            assert 0 <= size - predicted[category] <= slack.get(category, 0), (name, category)


def test_measuring_changes_nothing() -> None:
    config = preset("mini", n_layers=1)
    model = GPT(config)
    optimizer = make_optimizer(model, OptimConfig(lr=0.5))
    before = [p.detach().clone() for p in model.parameters()]
    ledger(model, *data(config, 2), optimizer)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.state and {group["lr"] for group in optimizer.param_groups} == {0.5}
    assert all(p.grad is None for p in model.parameters())


def test_fp32_adamw_is_sixteen_bytes_a_parameter() -> None:
    model = GPT(preset("mini"))
    found = ledger(model, *data(model.config, 1), make_optimizer(model, OptimConfig()))
    state = found["weights"] + found["gradients"] + found["optimizer"]
    assert state / model.num_params() == pytest.approx(bytes_per_parameter("adamw-fp32"), abs=0.001)


def test_sixteen_bit_recipes_as_tensors() -> None:
    """Build the state that a recipe names, and weigh it."""
    shape = (64, 64)
    parts = {
        "weights": [torch.zeros(shape, dtype=torch.bfloat16)],
        "master": [torch.zeros(shape)],
        "moments": [torch.zeros(shape), torch.zeros(shape)],
    }
    gradients = {
        "adamw-16bit": [torch.zeros(shape, dtype=torch.bfloat16)],
        "adamw-16bit-fp32-gradients": [torch.zeros(shape)],
        "adamw-16bit-both-gradients": [torch.zeros(shape, dtype=torch.bfloat16), torch.zeros(shape)],
    }
    for name, own in gradients.items():
        weighed = {key: storage_bytes(tensors) // 64**2 for key, tensors in {**parts, "gradients": own}.items()}
        recipe = RECIPES[name]
        assert weighed == {
            "weights": recipe.weights,
            "master": recipe.master,
            "moments": recipe.moments,
            "gradients": recipe.gradients,
        }
    assert [bytes_per_parameter(name) for name in gradients] == [16, 18, 20]


def test_views_and_tied_tensors_count_once() -> None:
    base = torch.zeros(10)
    assert storage_bytes([base, base[2:4], base.view(2, 5)]) == 40
    assert storage_bytes([base], {base.untyped_storage().data_ptr()}) == 0


def test_peak_sees_what_is_alive_at_once() -> None:
    start = torch.zeros(250)  # 1,000 bytes
    with Peak([start]) as peak:
        assert peak.live == 1000
        a = start + 1
        b = a * 2
        del a
        c = b + 1
        assert peak.live == 3000 and peak.peak == 3000
        d = torch.cat([b, c])
        del b, c
        assert peak.live == 3000 and peak.peak == 5000
        d.view(-1)
        assert peak.live == 3000


def test_a_training_step_needs_more_than_its_parts_at_rest() -> None:
    config = preset("mini", n_layers=2)
    model = GPT(config)
    inputs, targets = data(config, 4)
    with Peak([*model.parameters(), *model.buffers(), inputs, targets]) as inference, torch.no_grad():
        model(inputs)
    with Peak([*model.parameters(), *model.buffers(), inputs, targets]) as training:
        nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).backward()
    found = ledger(model, inputs, targets, torch.optim.SGD(model.parameters()))
    forward = found["weights"] + found["buffers"] + found["data"] + found["activations"]
    assert inference.peak < forward < training.peak < 1.5 * (forward + found["gradients"])
