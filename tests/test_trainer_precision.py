"""The trainer in FP32, BF16, FP16 with a scaler and with masters of BF16 weights, bit by bit against a plain loop."""

import copy
import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from toys import toy_config, toy_corpus

from course_lib.config import OptimConfig
from course_lib.errors import ConfigError, CourseError
from course_lib.events import Event, Started, Stepped, StepRecord, event_to_dict
from course_lib.memory import ledger
from course_lib.model import GPT
from course_lib.optim import clip_by_global_norm, lr_at
from course_lib.planning.formulas import bytes_per_parameter
from course_lib.train_cli import Progress
from course_lib.trainer import Trainer, training_step
from course_lib.widgets.live import Watch

CORPUS = toy_corpus()
STEPS = 9
OPTIM = OptimConfig(lr=1e-2, warmup_steps=3, clip_norm=0.3)
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def overflowing() -> torch.amp.GradScaler:
    """Starts so high that the first steps overflow in FP16, and doubles so often that later ones do again."""
    return torch.amp.GradScaler("cpu", init_scale=2.0**21, growth_interval=2, growth_factor=4.0)


def make(**changes: Any) -> Trainer:
    trainer = Trainer(toy_config(optim=OPTIM, **changes), corpus=CORPUS)
    if trainer.scaler is not None:
        trainer.scaler = overflowing()
    return trainer


# ---------------------------------------------------------------- the plain loop


def plain_loop(trainer: Trainer, precision: str, micro_batches: int, steps: int) -> dict[str, Any]:
    """What the torch documentation prints, with this trainer's first weights and batches. No code of the trainer."""
    config = trainer.config
    model = GPT(config.model_config(257), config.seed)
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": matrices, "weight_decay": OPTIM.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=OPTIM.lr, betas=OPTIM.betas, eps=OPTIM.eps, fused=True)
    factors = [lr_at(step, OPTIM, config.steps) / OPTIM.lr for step in range(config.steps + 1)]
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: factors[step])
    scaler = overflowing() if precision == "fp16" else None
    losses, norms, rates, scales = [], [], [], []
    for step in range(steps):
        inputs, targets = (torch.from_numpy(part) for part in trainer.stream.global_batch(step))
        total = torch.zeros(())
        for x, y in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
            with torch.autocast("cpu", dtype=DTYPES[precision]) if precision != "fp32" else nullcontext():
                logits = model(x)
            loss = F.cross_entropy(logits.float().reshape(-1, 257), y.reshape(-1), reduction="sum") / targets.numel()
            (scaler.scale(loss) if scaler else loss).backward()
            total = total + loss.detach()
        if scaler:
            scaler.unscale_(optimizer)
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.3)))
        scales.append(scaler.get_scale() if scaler else None)
        rates.append(scheduler.get_last_lr()[0])
        losses.append(float(total))
        if scaler:
            scaler.step(optimizer)
            scaler.update()
            if scaler.get_scale() >= scales[-1]:
                scheduler.step()
        else:
            optimizer.step()
            scheduler.step()
        optimizer.zero_grad()
    return {
        "model": model,
        "optimizer": optimizer,
        "scaler": scaler,
        "losses": losses,
        "norms": norms,
        "rates": rates,
        "scales": scales,
    }


def moments(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [entry for state in optimizer.state_dict()["state"].values() for entry in state.values()]


def equal(first: list[Tensor], second: list[Tensor]) -> bool:
    return len(first) == len(second) > 0 and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("micro_batch", [None, 2])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_trainer_is_the_plain_loop_bit_by_bit(precision: str, micro_batch: int | None) -> None:
    trainer = make(precision=precision, micro_batch=micro_batch)
    records = trainer.run(STEPS).history
    expected = plain_loop(trainer, precision, trainer.config.micro_batches, STEPS)
    assert [r.loss for r in records] == expected["losses"]
    assert repr([r.grad_norm for r in records]) == repr(expected["norms"])  # NaN is NaN
    assert [r.scale for r in records] == expected["scales"]
    assert [r.lr for r in records] == pytest.approx(expected["rates"], rel=1e-12)
    assert equal(list(trainer.model.parameters()), list(expected["model"].parameters()))
    assert equal(moments(trainer.optimizer), moments(expected["optimizer"]))
    if precision == "fp16":
        assert trainer.scaler is not None and trainer.scaler.state_dict() == expected["scaler"].state_dict()
        pattern = "".join("s" if r.skipped else "." for r in records)
        assert pattern.startswith("s") and ".s" in pattern and pattern.count(".") >= 3, pattern  # after growth, again
        assert all(math.isinf(r.grad_norm) or math.isnan(r.grad_norm) for r in records if r.skipped)
    else:
        assert trainer.scaler is None and not any(r.skipped for r in records)


# ---------------------------------------------------------------- scaler, clipping, skipping


def test_the_limit_is_for_the_true_gradients() -> None:
    """Norm and clipped gradients are FP32's, to FP16's rounding, not 65,536 times larger."""
    found = {}
    for precision in ("fp32", "fp16"):
        trainer = Trainer(toy_config(precision=precision, optim=OPTIM), corpus=CORPUS)
        parts = trainer.parts
        inputs, targets = parts.input_ids(parts.batch(0, 0))
        parts.backward(parts.loss(parts.forward(inputs), targets, parts.batch(0, 0).valid))
        raw = nn.utils.get_total_norm([p.grad for p in trainer.model.parameters() if p.grad is not None])
        norm = parts.clip()
        clipped = nn.utils.get_total_norm([p.grad for p in trainer.model.parameters() if p.grad is not None])
        found[precision] = float(raw), float(norm), float(clipped)
    assert found["fp16"][0] == pytest.approx(65536 * found["fp32"][0], rel=1e-2)
    assert found["fp16"][1] == pytest.approx(found["fp32"][1], rel=1e-2) and found["fp32"][1] > 0.3
    assert found["fp16"][2] == pytest.approx(0.3, rel=1e-4) == found["fp32"][2]


def snapshot(trainer: Trainer) -> dict[str, Any]:
    scheduler = {key: value for key, value in trainer.scheduler.state_dict().items() if key != "lr_lambdas"}
    rates = [group["lr"] for group in trainer.optimizer.param_groups]
    return copy.deepcopy(
        {
            "weights": [p.detach() for p in trainer.model.parameters()],
            "masters": list(trainer.masters.state_dict().values()),
            "moments": moments(trainer.optimizer),
            "scheduler": (scheduler, rates),
            "cursor": trainer.stream.state_dict(),
        }
    )


def test_a_skipped_step_leaves_everything_but_the_cursor_and_the_scale() -> None:
    trainer = Trainer(toy_config(precision="fp16", optim=OPTIM), corpus=CORPUS)
    trainer.run(3)
    before = snapshot(trainer)
    assert trainer.scaler is not None
    trainer.scaler.update(2.0**40)
    record = training_step(trainer.parts, trainer.step)
    after = snapshot(trainer)
    assert record.skipped and record.scale == 2.0**40 and trainer.scaler.get_scale() == 2.0**39
    assert not math.isfinite(record.grad_norm) and 0 < record.loss < 6  # the loss itself is fine, and unscaled
    assert equal(before["weights"], after["weights"]) and equal(before["moments"], after["moments"])
    assert before["scheduler"] == after["scheduler"] and record.lr == before["scheduler"][1][0]
    assert before["cursor"] != after["cursor"] and trainer.step == 4
    assert all(p.grad is None for p in trainer.model.parameters())
    trainer.scaler.update(2.0**10)
    good = training_step(trainer.parts, trainer.step)
    assert good.step == 4 and not good.skipped and good.lr == record.lr and math.isfinite(good.grad_norm)
    assert not equal(after["weights"], snapshot(trainer)["weights"])


def test_a_norm_that_is_not_finite_is_reported_and_clips_nothing() -> None:
    for bad in (math.inf, math.nan):
        weights = [torch.zeros(2, requires_grad=True), torch.zeros(1, requires_grad=True)]
        weights[0].grad, weights[1].grad = torch.tensor([bad, 5.0]), torch.tensor([7.0])
        norm = float(clip_by_global_norm(weights, 1.0))
        assert math.isinf(norm) if math.isinf(bad) else math.isnan(norm)
        assert weights[0].grad[1] == 5.0 and weights[1].grad[0] == 7.0
        assert weights[0].grad[0] == bad or math.isnan(bad)


# ---------------------------------------------------------------- masters


@pytest.mark.parametrize("micro_batch", [None, 2])
def test_masters_are_an_fp32_optimizer_beside_bf16_weights(micro_batch: int | None) -> None:
    """By hand: BF16 model, a list of FP32 copies in AdamW, gradients cast up, weights rounded back."""
    trainer = make(weights="bf16", precision="bf16", micro_batch=micro_batch)
    records = trainer.run(STEPS).history
    config = trainer.config
    model = GPT(config.model_config(257), config.seed)
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    model = model.to(torch.bfloat16)
    for name in ("cos", "sin"):  # tables of positions, no parameters
        setattr(model, name, getattr(GPT(config.model_config(257)), name))
    groups = [
        {"params": [m for m in masters if m.dim() >= 2], "weight_decay": OPTIM.weight_decay},
        {"params": [m for m in masters if m.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.0, betas=OPTIM.betas, eps=OPTIM.eps, fused=True)
    for step in range(STEPS):
        inputs, targets = (torch.from_numpy(part) for part in trainer.stream.global_batch(step))
        pieces = config.micro_batches
        for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                logits = model(x).float()
            (F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="sum") / targets.numel()).backward()
        for master, p in zip(masters, model.parameters(), strict=True):
            assert p.grad is not None and p.grad.dtype == torch.bfloat16
            master.grad, p.grad = p.grad.float(), None
        norm = nn.utils.clip_grad_norm_(masters, 0.3)
        assert float(norm) == records[step].grad_norm
        for group in optimizer.param_groups:
            group["lr"] = lr_at(step, OPTIM, config.steps)
        optimizer.step()
        for master, p in zip(masters, model.parameters(), strict=True):
            p.data.copy_(master.detach())
    assert equal(list(trainer.model.parameters()), list(model.parameters()))
    assert equal(list(trainer.masters.masters.values()), masters)
    assert equal(moments(trainer.optimizer), moments(optimizer))
    assert all(p.dtype == torch.bfloat16 for p in trainer.model.parameters())


def test_masters_learn_what_bf16_weights_alone_do_not() -> None:
    optim = OptimConfig(lr=2e-5, warmup_steps=0, min_lr_ratio=1.0, weight_decay=0.0)
    moved = {}
    for kind in ("masters", "none"):
        trainer = Trainer(toy_config(weights="bf16", precision="bf16", optim=optim), corpus=CORPUS)
        before = [p.detach().clone() for p in trainer.model.parameters()]
        if kind == "none":
            trainer.parts.scheduler = lambda trainer=trainer: (trainer.masters.refresh(), 0.0)[1]
        trainer.run(30)
        pairs = zip(before, trainer.model.parameters(), strict=True)
        moved[kind] = sum(int((a != b).sum()) for a, b in pairs) / trainer.parameters
    assert moved["masters"] > 1.5 * moved["none"] > 0


def test_bytes_a_parameter_are_two_and_two_and_twelve() -> None:
    trainer = Trainer(toy_config(weights="bf16", precision="bf16"), corpus=CORPUS)
    inputs, targets = trainer.parts.input_ids(trainer.parts.batch(0, 0))
    before = snapshot(trainer)
    for _ in range(2):  # with a fresh optimizer, and after a step
        found = ledger(
            trainer.model,
            inputs,
            targets,
            trainer.optimizer,
            masters=trainer.masters,
            autocast=trainer.policy.autocast,
        )
        n = trainer.parameters
        assert (found["weights"], found["gradients"], found["masters"]) == (2 * n, 2 * n, 4 * n)
        counters = 4 * len(trainer.trained)
        assert found["optimizer"] == 8 * n + counters
        assert all(p.grad is None for p in [*trainer.model.parameters(), *trainer.masters.masters.values()])
        assert equal(before["masters"], list(trainer.masters.state_dict().values()))
        trainer.run(1)
        before = snapshot(trainer)
    assert bytes_per_parameter("adamw-16bit") == 2 + 2 + 4 + 8
    plain = Trainer(toy_config(), corpus=CORPUS)
    assert "masters" not in ledger(plain.model, inputs, targets, plain.optimizer, masters=plain.masters)


# ---------------------------------------------------------------- models of the learner's own


class Own(nn.Module):
    """BatchNorm, a tied head, integer and frozen parameters, a parameter that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(257, 16)
        self.linear = nn.Linear(16, 16)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 257)
        self.head.weight = self.table.weight
        self.numbers = nn.Parameter(torch.arange(3), requires_grad=False)
        self.frozen = nn.Parameter(torch.full((16,), 0.5), requires_grad=False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.linear(self.table(tokens) + self.frozen)
        return self.head(self.norm(x.flatten(0, 1)).view_as(x))


WAYS: dict[str, dict[str, Any]] = {
    "fp32": {"precision": "fp32"},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "bf16 weights": {"weights": "bf16", "precision": "auto"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_of_your_own_trains_in_every_precision(way: str) -> None:
    config = toy_config(batch=16, optim=OptimConfig(lr=2e-2), **WAYS[way])
    model = Own()
    trainer = Trainer(config, model=model, corpus=CORPUS)
    result = trainer.run()
    assert result.history[0].loss > 4 and result.val_loss is not None and result.val_loss < 3.6
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert model.norm.weight.dtype == model.norm.running_mean.dtype == torch.float32  # type: ignore[union-attr]
    assert model.numbers.tolist() == [0, 1, 2] and (model.frozen == 0.5).all() and (model.unused == 1).all()
    assert model.head.weight is model.table.weight
    assert result.sample


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_that_comes_in_16_bits_gets_masters_and_a_scaler_can_unscale_them(dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Embedding(257, 16), nn.Linear(16, 257)).to(dtype)
    precision = "fp16" if dtype == torch.float16 else "bf16"
    trainer = Trainer(toy_config(precision=precision, optim=OptimConfig(lr=2e-2)), model=model, corpus=CORPUS)
    result = trainer.run()
    assert len(trainer.masters.masters) == 3 and all(p.dtype == dtype for p in model.parameters())
    assert result.val_loss is not None and result.val_loss < 3.6
    for name, p in model.named_parameters():
        assert torch.equal(p, trainer.masters.masters[name].to(dtype))


# ---------------------------------------------------------------- what is said


def test_a_skipped_step_is_in_the_log_the_events_and_the_terminal(tmp_path: Path) -> None:
    events: list[Event] = []
    lines: list[str] = []
    progress = Progress(lines.append)

    def both(event: Event) -> None:
        events.append(event)
        progress(event)

    config = toy_config(precision="fp16", steps=8, out=tmp_path, optim=OPTIM)
    trainer = Trainer(config, corpus=CORPUS, on_event=both)
    trainer.scaler = overflowing()
    result = trainer.run()
    skipped = [record for record in result.history if record.skipped]
    assert result.skipped == len(skipped) >= 2 and math.isfinite(result.train_loss)
    assert result.train_loss == pytest.approx(sum(r.loss for r in result.history if not r.skipped) / (8 - len(skipped)))

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    text = (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line, parse_constant=refuse) for line in text]
    stepped = [row for row in rows if row["event"] == "stepped"]
    assert [row["skipped"] for row in stepped] == [record.skipped for record in result.history]
    assert [row["scale"] for row in stepped] == [record.scale for record in result.history]
    assert all(not math.isfinite(float(row["grad_norm"])) for row in stepped if row["skipped"])
    assert rows[-1]["skipped"] == result.skipped
    told = [line for line in lines if line.startswith("step") and "skipped" in line]
    assert len(told) == len(skipped) and "step 0: skipped" in told[0] and "2.09715e+06" in told[0]
    assert "slow" in lines[0] and "fp16" in lines[0] and "\n" not in lines[0]
    assert isinstance(events[0], Started) and "slow" in events[0].reason


def test_the_live_curve_goes_on_without_the_losses_that_are_not_finite() -> None:
    live = Watch("a run")
    live._last = 5
    for step, (loss, skipped) in enumerate([(5.0, False), (math.inf, True), (math.nan, True), (4.0, False)]):
        live(Stepped(StepRecord(step, loss, math.inf, 1e-3, 8, 0.1, 4.0, skipped)))
    assert live.losses == [5.0, 4.0] and live.steps == [0, 3]
    numbers = dict((label, value) for value, label in live._numbers())
    assert numbers["steps"] == "4 of 5" and numbers["steps skipped"] == "2"
    assert "nan" not in live._svg() and "inf" not in live._svg()


def test_the_terminal_tells_an_overflow_from_a_loss_that_is_not_finite() -> None:
    lines: list[str] = []
    progress = Progress(lines.append)
    progress(Started(0, 3, 1, "cpu", "fp16", "asked for"))
    progress(Stepped(StepRecord(0, 5.0, math.inf, 1e-3, 8, 0.1, 65536.0, True)))
    progress(Stepped(StepRecord(1, math.nan, math.nan, 1e-3, 8, 0.1, 32768.0, True)))
    progress.close()
    assert lines[0] == "1 parameters, cpu, fp16" and "overflowed at loss scale 65536" in lines[1]
    assert "step 1" in lines[2] and "loss is nan" in lines[2]


def test_a_run_whose_every_step_is_skipped_ends_before_the_scaler_lets_nan_through() -> None:
    trainer = Trainer(toy_config(precision="fp16", steps=400, optim=OPTIM), corpus=CORPUS)
    loss = trainer.parts.loss
    trainer.parts.loss = lambda *arguments: loss(*arguments) * math.nan
    before = snapshot(trainer)
    with pytest.raises(CourseError, match=r"step 11\d: the loss scale has fallen to"):
        trainer.run()
    assert equal(before["weights"], snapshot(trainer)["weights"])


def test_numbers_that_are_not_finite_are_strict_json() -> None:
    record = StepRecord(3, math.nan, math.inf, 1e-3, 8, 0.1, 4.0, True)
    row = event_to_dict(Stepped(record))
    assert row["loss"] == "nan" and row["grad_norm"] == "inf" and row["scale"] == 4.0 and row["skipped"] is True
    assert math.isnan(float(row["loss"])) and json.loads(json.dumps(row, allow_nan=False)) == row
    plain = StepRecord(3, 1.0, 1.0, 1e-3, 8, 0.1)
    assert plain.scale is None and plain.skipped is False


def test_settings_that_do_not_go_together_are_refused() -> None:
    for precision in ("fp32", "fp16"):
        with pytest.raises(ConfigError, match="precision='bf16'"):
            toy_config(weights="bf16", precision=precision)
    with pytest.raises(ConfigError, match="weights='fp8'"):
        toy_config(weights="fp8")
    with pytest.raises(ConfigError, match="did you mean 'fp16'"):
        toy_config(precision="fp-16")
