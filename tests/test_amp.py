"""The choice of a precision, the probes behind it, the trace of autocast, masters and stochastic rounding."""

import copy
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from course_lib import amp, probes
from course_lib.amp import MasterWeights, Policy, autocast_trace, capabilities, precision_policy, stochastic_round
from course_lib.errors import ConfigError

# ---------------------------------------------------------------- the policy


def test_fp16_on_a_cpu_is_only_taken_when_asked_for_and_says_how_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.amp.fp16_speedup", lambda: 0.0123)
    policy = precision_policy("cpu", "fp16")
    assert policy.name == "fp16" and "slow" in policy.reason and "0.012 times" in policy.reason
    assert "\n" not in policy.reason
    for bf16_runs in (True, False):
        for ratio in (0.1, 1.0, 9.0):
            monkeypatch.setattr("course_lib.amp.runs", lambda *_, it=bf16_runs: it)
            monkeypatch.setattr("course_lib.amp.bf16_speedup", lambda _, it=ratio: it)
            chosen = precision_policy("cpu", "auto")
            assert chosen.name == ("bf16" if bf16_runs and ratio > 2 else "fp32") and chosen.reason


def test_the_ratio_of_fp16_is_measured() -> None:
    probes.fp16_speedup.cache_clear()
    assert 0 < probes.fp16_speedup() < 4


@pytest.mark.parametrize(
    ("native", "fp16_trains", "name"), [(True, False, "bf16"), (False, True, "fp16"), (False, False, "fp32")]
)
def test_auto_on_a_gpu(native: bool, fp16_trains: bool, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.amp.runs", lambda *_: True)
    monkeypatch.setattr("course_lib.amp.casts", lambda *_: True)
    monkeypatch.setattr("course_lib.amp.trains", lambda *_: fp16_trains)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: native)
    policy = precision_policy("cuda:0", "auto")
    assert (policy.name, policy.device) == (name, "cuda") and policy.reason


def test_what_does_not_train_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.amp.trains", lambda *_: False)
    with pytest.raises(ConfigError, match="fp16"):
        precision_policy("cpu", "fp16")
    monkeypatch.setattr("course_lib.amp.runs", lambda *_: False)
    with pytest.raises(ConfigError, match="weights='fp32'"):
        precision_policy("cpu", "auto", weights="bf16")


def test_bf16_that_multiplies_but_is_not_cast_to_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Autocast of an older MPS warns and goes on in FP32: that is no BF16 training."""

    def disabled(device: str, dtype: torch.dtype) -> Any:
        return torch.autocast("cpu", enabled=False)

    monkeypatch.setattr("course_lib.amp.bf16_speedup", lambda _: 3.0)
    assert precision_policy("cpu", "auto").name == "bf16"
    monkeypatch.setattr(torch.amp, "autocast", disabled)
    assert precision_policy("cpu", "auto").name == "fp32"
    with pytest.raises(ConfigError, match="bf16"):
        precision_policy("cpu", "bf16")


def test_only_fp16_has_a_scaler() -> None:
    assert precision_policy("cpu", "auto", weights="bf16").name == "bf16"
    for name in ("fp32", "bf16"):
        assert Policy(name, "cpu", "").scaler() is None
    scaler = Policy("fp16", "cpu", "").scaler()
    assert scaler is not None and scaler.is_enabled() and scaler.get_scale() == 65536.0
    with Policy("fp16", "cpu", "").autocast():
        assert torch.get_autocast_dtype("cpu") == torch.float16 and torch.is_autocast_enabled("cpu")


# ---------------------------------------------------------------- the probes


def test_the_capability_table_is_what_torch_does_here() -> None:
    rows = {(row.device, row.dtype): row for row in capabilities(speed=False)}
    assert len(rows) == 3 * 6
    for device in ("cuda", "mps"):
        here = torch.cuda.is_available() if device == "cuda" else torch.backends.mps.is_available()
        row = rows[device, "fp32"]
        assert (row.multiplies is None) != here and (here or device in row.note)
    fp32, bf16, fp64 = (rows["cpu", name] for name in ("fp32", "bf16", "fp64"))
    assert fp32.stores and fp32.multiplies and fp32.scaler and not fp32.autocast
    assert fp64.multiplies and not fp64.autocast and "autocast" in fp64.note
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert bf16.autocast == ((torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.bfloat16)
    assert all("\n" not in row.note for row in rows.values())


def test_speeds_are_multiples_of_fp32() -> None:
    cpu = {row.dtype: row for row in capabilities() if row.device == "cpu"}
    assert cpu["fp32"].speed == 1.0 and cpu["fp64"].speed is None
    for name in ("bf16", "fp16"):
        speed = cpu[name].speed
        assert speed is None if not cpu[name].multiplies else speed is not None and 0 < speed < 40


def test_an_error_is_a_no_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> bool:
        raise RuntimeError('"addmm" not implemented\nfor this type')

    monkeypatch.setattr(probes, "_multiplies", refuse)
    row = probes._probe("cpu", "fp32", speed=True)
    assert row.stores and row.multiplies is False and row.speed is None and row.note == '"addmm" not implemented'


def test_a_scaler_that_loses_gradients_or_steps_on_infinity_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.trains("cpu", "bf16") and probes.trains("cpu", "fp32") and not probes.trains("cpu", "fp64")
    unscale = torch.amp.GradScaler.unscale_

    def zeroes(self: Any, optimizer: torch.optim.Optimizer) -> None:
        unscale(self, optimizer)
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.grad.zero_()

    with monkeypatch.context() as patch:
        patch.setattr(torch.amp.GradScaler, "unscale_", zeroes)
        assert not probes.trains("cpu", "bf16")
    with monkeypatch.context() as patch:
        patch.setattr(
            torch.amp.GradScaler, "step", lambda self, optimizer: (unscale(self, optimizer), optimizer.step())
        )
        assert not probes.trains("cpu", "bf16")


# ---------------------------------------------------------------- the trace


class Small(nn.Module):
    """Every kind of operation that autocast treats in its own way."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.linear = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.batch_norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 10, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.norm(self.linear(self.embedding(tokens)))
        x = self.batch_norm(x.flatten(0, 1)).view_as(x)
        return self.head(nn.functional.dropout(x.softmax(-1), 0.1, self.training))


def test_the_trace_shows_what_is_cast_and_leaves_the_model_alone() -> None:
    model = Small()
    tokens = torch.randint(10, (2, 3))
    before, random = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    rows = autocast_trace(model, tokens, tokens, Policy("bf16", "cpu", ""))
    assert torch.equal(random, torch.get_rng_state())
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters()) and not model.linear._forward_hooks
    by_module = {row.module: row for row in rows if row.phase == "forward" and not row.casts}
    assert by_module["linear"].op == "addmm" and set(by_module["linear"].inputs) == {"bf16"}
    assert by_module["head"].output == "bf16" and by_module["embedding"].output == "fp32"
    assert by_module["norm"].op == "native_layer_norm" and by_module["norm"].inputs == ("bf16", "fp32", "fp32")
    assert all(row.output == "fp32" for row in rows if row.phase == "loss")
    casts = [row for row in rows if row.casts and row.module == "linear"]
    assert len(casts) == 3  # the input, the weight, the bias
    assert [row.phase for row in rows] == sorted((row.phase for row in rows), key=["forward", "loss", "backward"].index)
    assert {"mm", "embedding_dense_backward"} <= {row.op for row in rows if row.phase == "backward"}
    assert not {row.op for row in rows} & {"t", "view", "transpose", "_unsafe_view", "detach", "empty_like"}


def test_without_autocast_nothing_is_in_16_bits() -> None:
    tokens = torch.randint(10, (2, 3))
    rows = autocast_trace(Small(), tokens, tokens, Policy("fp32", "cpu", ""))
    assert not any(row.casts or row.output in ("bf16", "fp16") for row in rows)


# ---------------------------------------------------------------- stochastic rounding

KINDS = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float16: np.float16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


def every_value(dtype: torch.dtype) -> np.ndarray:
    """All finite values of the format, ascending, as FP64."""
    unsigned = np.uint16 if dtype.itemsize == 2 else np.uint8
    bits = np.arange(2 ** (8 * dtype.itemsize), dtype=np.uint32).astype(unsigned)
    with np.errstate(invalid="ignore"):  # signalling NaNs
        found = bits.view(KINDS[dtype]).astype(np.float64)
    return np.unique(found[np.isfinite(found)])


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_values_of_the_format_stay(dtype: torch.dtype) -> None:
    values = torch.from_numpy(every_value(dtype)).float()
    for seed in range(3):
        rounded = stochastic_round(values, dtype, torch.Generator().manual_seed(seed))
        assert rounded.dtype == dtype and torch.equal(rounded.float(), values)


def test_values_stay_whatever_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.from_numpy(every_value(torch.float16)).float()
    for drawn in (0.0, 1 - 2**-24):
        monkeypatch.setattr(torch, "rand", lambda size, it=drawn, **_: torch.full(size, it))
        assert torch.equal(stochastic_round(values, torch.float16).float(), values)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
def test_the_mean_is_the_value_and_only_the_two_neighbours_come(dtype: torch.dtype) -> None:
    """For 300 values of every size: each draw is a neighbour, their mean is within 5 standard errors."""
    grid = every_value(dtype)
    rng = np.random.default_rng(1)
    place = rng.integers(0, len(grid) - 1, 300)
    share = rng.random(300)
    x = torch.from_numpy((1 - share) * grid[place] + share * grid[place + 1]).float()
    exact = x.double().numpy()
    low = grid[np.clip(np.searchsorted(grid, exact, "right") - 1, 0, len(grid) - 2)]
    high = grid[np.clip(np.searchsorted(grid, exact, "right"), 1, len(grid) - 1)]
    count = 4000
    drawn = stochastic_round(x.expand(count, -1), dtype, torch.Generator().manual_seed(2)).double().numpy()
    assert ((drawn == low) | (drawn == high)).all()
    up = (drawn == high).mean(0)
    chance = (exact - low) / (high - low)
    error = np.sqrt(np.maximum(chance * (1 - chance), 1e-4) / count)
    assert (np.abs(up - chance) < 5 * error).all()


def test_special_values_and_the_ends() -> None:
    x = torch.tensor([torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 70000.0, -70000.0])
    rounded = stochastic_round(x, torch.float16)
    plain = x.to(torch.float16)
    assert torch.equal(rounded.view(torch.int16)[[0, 1, 3, 4, 5, 6]], plain.view(torch.int16)[[0, 1, 3, 4, 5, 6]])
    assert rounded[2].isnan()
    assert stochastic_round(torch.tensor(1.5), torch.bfloat16).shape == ()
    assert stochastic_round(torch.zeros(0, 3), torch.bfloat16).shape == (0, 3)
    for wrong in (torch.float32, torch.int16):
        with pytest.raises(ConfigError, match="float32"):
            stochastic_round(torch.ones(2), wrong)
    with pytest.raises(ConfigError, match="float32"):
        stochastic_round(torch.ones(2, dtype=torch.float64), torch.bfloat16)


def test_the_same_generator_gives_the_same_bits_and_the_global_one_is_left_alone() -> None:
    x = torch.linspace(-2, 2, 1001)
    state = torch.get_rng_state()
    first = stochastic_round(x, torch.bfloat16, torch.Generator().manual_seed(3))
    assert torch.equal(first, stochastic_round(x, torch.bfloat16, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, stochastic_round(x, torch.bfloat16, torch.Generator().manual_seed(4)))
    assert torch.equal(state, torch.get_rng_state())


# ---------------------------------------------------------------- masters


def train(weight: nn.Parameter, trained: Tensor, masters: MasterWeights | None, steps: int, lr: float) -> None:
    optimizer = torch.optim.SGD([trained], lr=lr)
    for _ in range(steps):
        weight.sum().backward()
        if masters is not None:
            masters.take_gradients()
        optimizer.step()
        optimizer.zero_grad()
        if masters is not None:
            masters.copy_back()


def test_the_update_that_bf16_loses_is_kept_by_the_master() -> None:
    lost = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(lost.weight)
    train(lost.weight, lost.weight, None, 100, lr=1e-3)
    assert lost.weight.item() == 1.0
    kept = nn.Linear(1, 1, bias=False)
    nn.init.ones_(kept.weight)
    masters = MasterWeights(kept, torch.bfloat16)
    train(kept.weight, masters.trained()["weight"], masters, 100, lr=1e-3)
    by_hand = torch.ones(())
    for _ in range(100):
        by_hand -= 1e-3
    assert torch.equal(masters.masters["weight"].detach().squeeze(), by_hand)
    assert torch.equal(kept.weight.detach().squeeze(), by_hand.bfloat16())


def test_which_parameters_get_a_master() -> None:
    model = Small()
    model.head.weight = nn.Parameter(torch.randn(10, 8))
    model.frozen = nn.Parameter(torch.ones(2), requires_grad=False)  # type: ignore[assignment]
    model.numbers = nn.Parameter(torch.arange(3), requires_grad=False)  # type: ignore[assignment]
    model.wide = nn.Parameter(torch.ones(2, dtype=torch.float64))  # type: ignore[assignment]
    original = {name: p.detach().clone() for name, p in model.named_parameters()}
    objects = dict(model.named_parameters())
    assert not MasterWeights(model).masters and set(MasterWeights(model).trained()) == set(original) - {
        "frozen",
        "numbers",
    }
    masters = MasterWeights(model, torch.bfloat16)
    kept = {"batch_norm.weight", "batch_norm.bias", "wide", "frozen", "numbers"}
    assert set(masters.masters) == set(original) - kept
    for name, p in model.named_parameters():
        assert p is objects[name] and p.dtype == (original[name].dtype if name in kept else torch.bfloat16)
        if name in masters.masters:
            assert torch.equal(masters.masters[name], original[name]) and masters.masters[name].is_leaf
    assert masters.trained()["wide"] is model.wide and list(masters.trained()) == [
        name for name, p in model.named_parameters() if p.requires_grad
    ]
    again = MasterWeights(model)  # already in 16 bits
    assert torch.equal(again.masters["linear.weight"], original["linear.weight"].bfloat16().float())
    with pytest.raises(ConfigError, match="16-bit"):
        MasterWeights(model, torch.float32)


def test_tied_weights_have_one_master() -> None:
    model = Small()
    model.head.weight = model.embedding.weight
    masters = MasterWeights(model, torch.bfloat16)
    assert "embedding.weight" in masters.masters and "head.weight" not in masters.masters
    assert model.head.weight is model.embedding.weight


def test_masters_are_saved_by_name_and_a_wrong_set_changes_nothing() -> None:
    first, second = (MasterWeights(Small(), torch.bfloat16) for _ in range(2))
    saved = {name: value.clone() for name, value in first.state_dict().items()}
    second.load_state_dict(saved)
    assert all(torch.equal(second.masters[name], value) for name, value in saved.items())
    for wrong in ({**saved, "norm.bias": torch.ones(3)}, {**saved, "more": torch.ones(1)}, {}):
        values = {name: torch.zeros_like(value) for name, value in wrong.items()}
        with pytest.raises(ConfigError, match="master of"):
            second.load_state_dict(values)
    assert all(torch.equal(second.masters[name], value) for name, value in saved.items())
    with torch.no_grad():
        next(iter(second.parameters.values())).fill_(3.0)
    second.refresh()
    assert (next(iter(second.masters.values())) == 3.0).all()


def test_gradients_move_and_their_16_bit_memory_is_freed() -> None:
    model = Small()
    masters = MasterWeights(model, torch.bfloat16)
    tokens = torch.randint(10, (2, 3))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(tokens)
    out.float().square().sum().backward()
    gradients = {name: p.grad.clone() for name, p in masters.parameters.items() if p.grad is not None}
    assert len(gradients) == len(masters.masters) and all(g.dtype == torch.bfloat16 for g in gradients.values())
    masters.take_gradients()
    masters.take_gradients()  # nothing is left to take, nothing is lost
    for name, gradient in gradients.items():
        assert masters.parameters[name].grad is None
        found = masters.masters[name].grad
        assert found is not None and found.dtype == torch.float32 and torch.equal(found, gradient.float())


def test_amp_is_the_door_to_all_of_it() -> None:
    assert all(hasattr(amp, name) for name in amp.__all__)
