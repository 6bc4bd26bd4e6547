"""The nine parts, their order, what the loss divides by, events, validation, Ctrl-C, and models that are not ours."""

import dataclasses
import json
import math
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from toys import toy_config, toy_corpus

from course_lib.config import ModelConfig, ModelOverrides, OptimConfig
from course_lib.data import IGNORE
from course_lib.errors import ConfigError
from course_lib.events import Event, Finished, Sampled, Saved, Started, Stepped, Validated
from course_lib.machine import compile_problem
from course_lib.model import GPT
from course_lib.trainer import Batch, Trainer, training_step

NAMES = ["batch", "input_ids", "forward", "loss", "backward", "clip", "optimizer", "scheduler", "record"]


def toy_trainer(**changes: Any) -> Trainer:
    return Trainer(toy_config(**changes), corpus=toy_corpus())


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return [p.detach().clone() for p in trainer.model.parameters()]


def same(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_nine_parts_run_in_order() -> None:
    trainer = toy_trainer(batch=8, micro_batch=4)
    called: list[str] = []

    def spy(name: str, part: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            called.append(name)
            return part(*arguments)

        return call

    fields = [field.name for field in dataclasses.fields(trainer.parts)]
    assert fields == [*NAMES, "micro_batches"]
    trainer.parts = dataclasses.replace(
        trainer.parts, **{name: spy(name, getattr(trainer.parts, name)) for name in NAMES}
    )
    record = training_step(trainer.parts, 0)
    assert called == NAMES[:5] * 2 + NAMES[5:]
    assert record.step == 0 and record.tokens == 8 * 16 and record.seconds > 0 and trainer.step == 1
    assert record.lr == pytest.approx(1e-2 / 5) and record.grad_norm > 0


def test_part_shapes_and_types() -> None:
    trainer = toy_trainer(batch=8, micro_batch=2)
    parts = trainer.parts
    batch = parts.batch(0, 3)
    whole_inputs, whole_targets = trainer.stream.global_batch(0)
    assert np.array_equal(batch.inputs, whole_inputs[6:8]) and np.array_equal(batch.targets, whole_targets[6:8])
    assert batch.valid == 8 * 16
    inputs, targets = parts.input_ids(batch)
    assert inputs.shape == targets.shape == (2, 16) and inputs.dtype == torch.int64
    assert torch.equal(inputs[:, 1:], targets[:, :-1])
    logits = parts.forward(inputs)
    assert logits.shape == (2, 16, 257)
    loss = parts.loss(logits, targets, batch.valid)
    assert loss.shape == () and loss.dtype == torch.float32
    parts.backward(loss)
    assert all(p.grad is not None and p.grad.shape == p.shape for p in trainer.model.parameters())
    before = weights(trainer)
    assert float(parts.clip()) > 0
    parts.optimizer()
    assert not same(before, weights(trainer)) and all(p.grad is None for p in trainer.model.parameters())


def ignoring(trainer: Trainer) -> None:
    """Make the batch's rows unequal: row r keeps its first 2 r + 1 targets."""

    def batch(step: int, micro: int) -> Batch:
        inputs, targets = trainer.stream.global_batch(step)
        targets = targets.copy()
        for row in range(len(targets)):
            targets[row, 2 * row + 1 :] = IGNORE
        valid = int((targets != IGNORE).sum())
        rows = len(inputs) // trainer.parts.micro_batches
        piece = slice(micro * rows, (micro + 1) * rows)
        return Batch(inputs[piece], targets[piece], valid)

    trainer.parts.batch = batch


def test_accumulation_is_the_large_batch_also_with_unequal_tokens() -> None:
    found = []
    for micro in (None, 4, 1):
        trainer = toy_trainer(batch=8, micro_batch=micro)
        ignoring(trainer)
        gradients: list[torch.Tensor] = []
        clip = trainer.parts.clip

        def keep(trainer: Trainer = trainer, clip: Callable[[], torch.Tensor] = clip, into: list = gradients) -> Any:
            into.extend(p.grad.clone() for p in trainer.model.parameters() if p.grad is not None)
            return clip()

        trainer.parts.clip = keep
        record = training_step(trainer.parts, 0)
        found.append((record, gradients))
    whole, whole_gradients = found[0]
    assert whole.tokens == sum(2 * row + 1 for row in range(8))
    for record, gradients in found[1:]:
        assert record.loss == pytest.approx(whole.loss, rel=1e-6)
        for a, b in zip(whole_gradients, gradients, strict=True):
            assert torch.allclose(a, b, atol=1e-6, rtol=1e-4)  # another order of FP32 sums


def test_a_run_learns_and_reports() -> None:
    events: list[Event] = []
    trainer = Trainer(toy_config(steps=60, val_every=20), corpus=toy_corpus(), on_event=events.append)
    before = trainer.validate()
    result = trainer.run()
    assert before.nats_per_token == pytest.approx(math.log(257), abs=0.2)
    assert result.val_loss is not None and result.val_loss < 2.5
    assert result.val_bits_per_byte is not None and result.val_bits_per_byte < 4.0
    assert result.steps == 60 and result.tokens == 60 * 8 * 16 and len(result.history) == 60
    assert result.tokens_per_second == pytest.approx(result.tokens / result.seconds)
    assert result.train_loss == pytest.approx(sum(r.loss for r in result.history[-50:]) / 50)
    assert result.parameters == sum(p.numel() for p in trainer.model.parameters())
    kinds = [type(event) for event in events]
    assert kinds[0] is Started and kinds[-1] is Finished and kinds.count(Stepped) == 60
    assert [event.step for event in events if isinstance(event, Validated)] == [20, 40, 60]
    assert kinds[-2] is Sampled and Saved not in kinds
    assert trainer.run().steps == 60  # nothing is left to do


def test_validation_is_the_mean_over_every_token_and_bits_per_byte_count_bytes() -> None:
    trainer = toy_trainer()
    val = trainer.corpus.val
    total = 0.0
    for first in range(0, len(val) - 1, 16):
        piece = torch.from_numpy(val[first : first + 17].astype(np.int64))
        with torch.no_grad():
            scores = trainer.model(piece[None, :-1])[0].log_softmax(-1)
        total -= float(scores.gather(1, piece[1:, None]).sum())
    found = trainer.validate()
    assert found.tokens == len(val) - 1
    assert found.nats_per_token == pytest.approx(total / (len(val) - 1), rel=1e-5)
    assert found.bits_per_byte == pytest.approx(total / math.log(2) / trainer.corpus.val_bytes, rel=1e-5)
    assert trainer.model.training


def test_the_same_seed_gives_the_same_run_whatever_the_global_stream_does() -> None:
    model = {"dropout": 0.2}
    first = toy_trainer(model=model)
    state = torch.get_rng_state()
    first_result = first.run(6)
    assert torch.equal(state, torch.get_rng_state())
    torch.rand(5)
    second = toy_trainer(model=model)
    second.run(2)
    torch.rand(5)
    second_result = second.run(4)
    assert [r.loss for r in first_result.history[2:]] == [r.loss for r in second_result.history]
    assert same(weights(first), weights(second))
    third = toy_trainer(model=model, seed=1)
    third.run(6)
    assert not same(weights(first), weights(third))


def test_metrics_are_json_lines(tmp_path: Path) -> None:
    trainer = toy_trainer(steps=10, val_every=5, checkpoint_every=4, out=tmp_path, optim=OptimConfig(warmup_steps=2))
    result = trainer.run()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if line["event"] == "stepped"]
    assert [line["loss"] for line in steps] == [record.loss for record in result.history]
    assert [line["step"] for line in lines if line["event"] == "saved"] == [4, 8, 10]
    assert lines[-1]["event"] == "finished" and lines[-1]["val_bits_per_byte"] == result.val_bits_per_byte
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-000004", "step-000008", "step-000010"]
    assert result.checkpoint == tmp_path / "step-000010"


def test_ctrl_c_ends_after_the_step_with_a_checkpoint_that_goes_on(tmp_path: Path) -> None:
    def interrupt(event: Event) -> None:
        if isinstance(event, Stepped) and event.record.step == 6:
            signal.raise_signal(signal.SIGINT)

    handler = signal.getsignal(signal.SIGINT)
    stopped = Trainer(toy_config(out=tmp_path), corpus=toy_corpus(), on_event=interrupt)
    result = stopped.run()
    assert result.interrupted and result.steps == 7 and result.val_bits_per_byte is None
    assert signal.getsignal(signal.SIGINT) is handler
    assert result.checkpoint is not None
    resumed = Trainer.resume(tmp_path, corpus=toy_corpus())
    assert resumed.run().steps == 30
    straight = toy_trainer()
    straight.run()
    assert same(weights(resumed), weights(straight))


def test_a_second_ctrl_c_stops_at_once() -> None:
    def twice(event: Event) -> None:
        if isinstance(event, Stepped):
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        Trainer(toy_config(), corpus=toy_corpus(), on_event=twice).run()


def test_any_module_from_tokens_to_logits_trains() -> None:
    """A bigram table has to reach the bigram entropy of its training tokens."""
    corpus = toy_corpus()
    table = nn.Embedding(257, 257)
    nn.init.zeros_(table.weight)
    config = toy_config(steps=300, batch=32, optim=OptimConfig(lr=0.3, weight_decay=0.0, clip_norm=None))
    result = Trainer(config, model=table, corpus=corpus).run()
    counts = np.zeros((257, 257))
    np.add.at(counts, (corpus.train[:-1], corpus.train[1:]), 1)
    rows = counts.sum(1, keepdims=True)
    entropy = -(counts * np.log(np.where(counts, counts / np.maximum(rows, 1), 1))).sum() / counts.sum()
    assert result.train_loss == pytest.approx(entropy, abs=0.05)
    assert result.sample is not None and len(result.sample) > 20


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch": 5000}, "batch"),
        ({"device": "tpu"}, "device"),
        ({"device": "cuda:7"}, "device"),
        ({"model": {"context": 100_000}}, "context"),
    ],
)
def test_what_cannot_run_fails_before_the_first_step(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        toy_trainer(**changes)


def test_a_vocabulary_smaller_than_the_tokenizer_is_refused() -> None:
    model = GPT(ModelConfig(vocab_size=100, d_model=16, n_layers=1, n_heads=2, context=16))
    with pytest.raises(ConfigError, match="vocab_size=257"):
        Trainer(toy_config(), model=model, corpus=toy_corpus())


def test_compile_without_a_compiler_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("course_lib.machine.find_compiler", lambda: None)
    with pytest.raises(ConfigError, match="compiler"):
        toy_trainer(compile=True)


@pytest.mark.slow
@pytest.mark.skipif(compile_problem() is not None, reason=str(compile_problem()))
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_compiled_run_is_close_to_eager(precision: str) -> None:
    model = {"n_layers": 1}
    eager = toy_trainer(model=model, precision=precision).run(5)
    compiled = toy_trainer(model=model, precision=precision, compile=True).run(5)
    for a, b in zip(eager.history, compiled.history, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=2e-2 if precision == "bf16" else 1e-4)


def test_samples_start_with_the_prompt_and_repeat() -> None:
    trainer = toy_trainer()
    first = trainer.sample("the cat", 20, seed=3)
    assert first.startswith("the cat") and first == trainer.sample("the cat", 20, seed=3)
    assert first != trainer.sample("the cat", 20, seed=4)


def test_overrides_reach_the_model() -> None:
    trainer = Trainer(toy_config(model={"n_layers": 1, "tie_embeddings": False}), corpus=toy_corpus())
    assert isinstance(trainer.model, GPT) and len(trainer.model.blocks) == 1
    assert trainer.model.head.weight is not trainer.model.embedding.weight
    assert ModelOverrides(d_model=3).changes() == {"d_model": 3}
