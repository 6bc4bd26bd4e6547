"""AdamW, schedule and clipping against their formulas."""

import itertools
import math

import pytest
import torch
from torch import nn

from course_lib.config import ModelConfig, OptimConfig
from course_lib.model import GPT
from course_lib.optim import clip_by_global_norm, lr_at, make_optimizer, make_scheduler, param_groups


def small() -> GPT:
    return GPT(ModelConfig(vocab_size=20, d_model=16, n_layers=1, n_heads=2, context=8))


def give_gradients(model: nn.Module, seed: int = 0, scale: float = 1.0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = scale * torch.randn(p.shape, generator=generator)


def test_only_matrices_decay() -> None:
    model = small()
    decayed, plain = param_groups(model, 0.3)
    assert decayed["weight_decay"] == 0.3 and plain["weight_decay"] == 0.0
    assert all(p.dim() >= 2 for p in decayed["params"]) and all(p.dim() < 2 for p in plain["params"])
    assert len(decayed["params"]) + len(plain["params"]) == len(list(model.parameters()))
    model.norm.weight.requires_grad_(False)
    assert all(p is not model.norm.weight for group in param_groups(model, 0.3) for p in group["params"])


def test_adamw_by_hand() -> None:
    model = small()
    config = OptimConfig(lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    optimizer = make_optimizer(model, config)
    assert optimizer.defaults["fused"]
    names = [name for name, _ in model.named_parameters()]
    value = {name: p.detach().double() for name, p in model.named_parameters()}
    m = {name: torch.zeros_like(value[name]) for name in names}
    v = {name: torch.zeros_like(value[name]) for name in names}
    for step in range(1, 4):
        give_gradients(model, seed=step)
        for name, p in model.named_parameters():
            assert p.grad is not None
            g = p.grad.double()
            m[name] = 0.9 * m[name] + 0.1 * g
            v[name] = 0.95 * v[name] + 0.05 * g * g
            if p.dim() >= 2:
                value[name] -= 0.01 * 0.1 * value[name]
            value[name] -= 0.01 * (m[name] / (1 - 0.9**step)) / ((v[name] / (1 - 0.95**step)).sqrt() + 1e-8)
        optimizer.step()
    for name, p in model.named_parameters():
        assert torch.allclose(p.double(), value[name], atol=1e-6), name  # FP32 against FP64, three steps of size 0.01


def test_schedule() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=4, min_lr_ratio=0.25)
    rates = [lr_at(step, config, 21) for step in range(21)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[-1] == pytest.approx(0.5) and lr_at(1000, config, 21) == pytest.approx(0.5)
    assert rates[12] == pytest.approx(0.5 + 1.5 * 0.5 * (1 + math.cos(math.pi * 0.5)))
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert lr_at(0, OptimConfig(lr=1.0, warmup_steps=0), 5) == 1.0


def test_the_torch_scheduler_follows_the_formula_and_its_state_goes_on() -> None:
    config = OptimConfig(lr=2.0, warmup_steps=4)
    model = small()
    optimizer = make_optimizer(model, config)
    scheduler = make_scheduler(optimizer, config, 21)
    for step in range(21):
        if step == 10:
            state, saved = scheduler.state_dict(), optimizer.state_dict()
            scheduler = make_scheduler(optimizer, config, 21)
            scheduler.load_state_dict(state)
            optimizer.load_state_dict(saved)  # making a scheduler sets the rate of step 0
        assert {group["lr"] for group in optimizer.param_groups} == {lr_at(step, config, 21)}
        assert scheduler.get_last_lr()[0] == lr_at(step, config, 21)
        optimizer.step()
        scheduler.step()


def test_default_warmup_fits_any_run() -> None:
    assert [OptimConfig().warmup(steps) for steps in (1, 10, 200, 1000, 5000)] == [0, 0, 10, 50, 100]


@pytest.mark.parametrize("scale", [0.001, 5.0])
def test_clipping_scales_all_gradients_by_one_factor(scale: float) -> None:
    model = small()
    give_gradients(model, scale=scale)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    expected = math.sqrt(sum(float(g.double().pow(2).sum()) for g in before))
    norm = clip_by_global_norm(model.parameters(), 1.0)
    assert float(norm) == pytest.approx(expected, rel=1e-5)
    factor = min(1.0, 1.0 / expected)
    for g, p in zip(before, model.parameters(), strict=True):
        assert p.grad is not None and torch.allclose(p.grad, g * factor, rtol=1e-4, atol=0)


def test_no_clipping_only_measures() -> None:
    model = small()
    give_gradients(model, scale=9.0)
    before = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    assert float(clip_by_global_norm(model.parameters(), None)) > 9
    assert all(torch.equal(g, p.grad) for g, p in zip(before, model.parameters(), strict=True) if p.grad is not None)


def test_clipping_without_any_gradient_is_a_norm_of_zero() -> None:
    assert float(clip_by_global_norm([torch.nn.Parameter(torch.ones(2))], 1.0)) == 0.0
