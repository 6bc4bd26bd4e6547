"""The run that the incidents happen in: a small GPT on a made language, resumed twice, with all its dashboards.

Documents of two to four sentences with padding between them. The language is known, so "too good" is a number.
Every part of a step is watched from outside: also a part that was replaced to inject a fault.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from course_lib import resume
from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig, stream_seed
from course_lib.data import IGNORE, BatchStream, Corpus, shift
from course_lib.errors import CourseError
from course_lib.failures._watch import Watch
from course_lib.model import GPT
from course_lib.step import Batch
from course_lib.synthetic import SyntheticLanguage
from course_lib.trainer import Trainer

__all__ = [
    "BATCH",
    "CONTEXT",
    "KEPT_EVERY",
    "RESUMES",
    "STEPS",
    "Kept",
    "Run",
    "Setup",
    "Text",
    "go",
    "make_trainer",
    "text",
]

CONTEXT = 32
"""Tokens a sequence."""
STEPS = 120
BATCH = 16
RESUMES = (40, 80)
"""Steps after which the run is stopped and resumed from its checkpoint."""
SHORT = {"steps": 60, "resumes": (20, 40)}
"""Of runs whose steps take longer: FP16 on a CPU."""
KEPT_EVERY = 10
VAL_EVERY = 10


@dataclass(frozen=True)
class Text:
    """The corpus, which of its tokens are padding, and what is known of it."""

    corpus: Corpus
    labels: np.ndarray
    """The training stream with IGNORE at padding, (n,) int32."""
    held_out: tuple[np.ndarray, np.ndarray]
    """Inputs and targets (64, CONTEXT) of other documents, each from its start, for validation."""
    pad: int
    """The id of padding: one more than the language's words."""
    floor: float
    """Loss on `held_out` of a model that knows the language: exact, nats per token."""


def text(seed: int, documents: int = 2_100) -> Text:
    """Documents of two to four sentences of eight words, each followed by 1 to 15 tokens of padding."""
    made = SyntheticLanguage(seed, names=16, numbers=16, objects=16)
    stream, padded, _ = _documents(made, documents, 2 * seed, 16)
    rows, empty, own = _documents(made, 64, 2 * seed + 1, 1)
    row_labels = np.where(empty, IGNORE, rows).astype(np.int64).reshape(-1, CONTEXT + 1)
    rows = rows.astype(np.int64).reshape(row_labels.shape)
    small = made.corpus(1, CONTEXT + 1, seed)
    corpus = Corpus(small.tokenizer, stream, small.val, small.train_bytes, small.val_bytes)
    known = [made.log_probs(one)[1:] for one in own]
    return Text(
        corpus,
        np.where(padded, IGNORE, stream).astype(np.int32),
        shift(rows, row_labels),
        made.vocab_size,
        -float(np.concatenate(known).mean()),
    )


def _documents(
    made: SyntheticLanguage, count: int, seed: int, padding: int
) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """A stream (n,) int32, which of its tokens are padding, and the documents alone.

    After each come 1 to `padding` - 1 tokens of padding; 1: as many as fill a row of CONTEXT + 1.
    """
    rng = np.random.default_rng(stream_seed(seed, "documents"))
    tokens = made.sample(count * CONTEXT, seed)[0].reshape(count, CONTEXT).astype(np.int32)
    lengths = made.sentence_length * rng.integers(2, 5, count)
    ends = lengths + rng.integers(1, padding, count) if padding > 1 else np.full(count, CONTEXT + 1)
    width = int(ends.max())
    padded = np.arange(width) >= lengths[:, None]
    filled = np.where(padded, made.vocab_size, np.pad(tokens, ((0, 0), (0, max(0, width - CONTEXT))))[:, :width])
    inside = np.arange(width) < ends[:, None]
    own = [row[:length].astype(np.int64) for row, length in zip(tokens, lengths, strict=True)]
    return filled[inside].astype(np.int32), padded[inside], own


@dataclass(frozen=True)
class Setup:
    """What a run is made with. An incident changes a field, or replaces parts of the trainer in `fault`."""

    seed: int = 0
    steps: int = STEPS
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-2, warmup_steps=10, weight_decay=0.1))
    precision: str = "fp32"
    weights: str = "fp32"
    micro_batches: int = 1
    init_std: float = 0.02
    resumes: tuple[int, ...] = RESUMES
    ranks: int = 1
    budget: int = 5_000_000
    """Bytes that the device of the story has for what is held between steps."""
    left_out: tuple[str, ...] = ()
    """Parts of the checkpoint that a resume does not restore."""
    fault: Callable[[Trainer, Text], None] | None = None
    """Called with each trainer of the run, before its first step."""


@dataclass(frozen=True)
class Kept:
    """The state before a step, in memory: enough to replay from."""

    step: int
    weights: dict[str, Tensor]
    """The model's state_dict."""
    moments: dict[str, Tensor]
    """The optimizer's state, by "number of the parameter/name"."""


@dataclass
class Run:
    """One run and all that was written down of it."""

    name: str | None
    """The fault, hidden from whoever looks for it; None: there is none."""
    seed: int
    setup: Setup
    text: Text
    series: dict[str, list[float]] = field(default_factory=dict)
    """The dashboards: one number a step. NaN in val_loss where there was no validation."""
    notes: dict[str, list[float]] = field(default_factory=dict)
    """What was written down besides, one number a step, and no dashboard shows: checks read it."""
    events: list[str] = field(default_factory=list)
    """What the log says besides numbers: resumes, errors, the end."""
    batches: list[list[Batch]] = field(default_factory=list)
    """The micro-batches of every step, as they reached the model."""
    kept: list[Kept] = field(default_factory=list)
    """States of the run, every KEPT_EVERY steps."""
    trainer: Trainer | None = None
    """The trainer as the run left it, replaced parts included."""
    ranks: list[dict[str, Any]] = field(default_factory=list)
    """What each rank wrote down; empty for a run in one process."""

    @property
    def steps(self) -> int:
        """Steps that were done."""
        return len(self.series.get("loss", []))


def make_trainer(setup: Setup, source: Text, parallel: Literal["none", "ddp"] = "none") -> Trainer:
    """A trainer of this text: two layers of width 32, padding left out of the loss; no fault yet."""
    config = TrainConfig(
        preset="mini",
        steps=setup.steps,
        batch=BATCH,
        micro_batch=BATCH // setup.micro_batches // setup.ranks,
        seed=setup.seed,
        device="cpu",
        precision=setup.precision,  # type: ignore[arg-type]
        weights=setup.weights,  # type: ignore[arg-type]
        val_every=0,
        data=DataConfig(tokenizer="bytes"),
        optim=setup.optim,
        model=ModelOverrides(d_model=32, n_layers=2, n_heads=2, context=CONTEXT),
        parallel=parallel,
    )
    model = GPT(replace(config.model_config(source.pad + 1), init_std=setup.init_std), setup.seed)
    trainer = Trainer(config, model=model, corpus=source.corpus)
    trainer.stream = BatchStream(source.corpus.train, CONTEXT, BATCH, setup.seed, labels=source.labels)
    return trainer


def keep(step: int, trainer: Trainer) -> Kept:
    """A copy of the state that a step starts from."""
    state = trainer.optimizer.state_dict()["state"]
    moments = {f"{number}/{name}": value.clone() for number, own in state.items() for name, value in own.items()}
    return Kept(step, {name: value.clone() for name, value in trainer.model.state_dict().items()}, moments)


def put_back(trainer: Trainer, kept: Kept) -> None:
    """Weights, masters and moments of a kept state into a trainer."""
    trainer.model.load_state_dict(kept.weights)
    trainer.masters.refresh()
    parameters = [p for group in trainer.optimizer.param_groups for p in group["params"]]
    for number, p in enumerate(parameters):
        own = {key.partition("/")[2]: v for key, v in kept.moments.items() if key.startswith(f"{number}/")}
        trainer.optimizer.state[p] = {name: value.clone() for name, value in own.items()}


def go(run: Run, on_step: Callable[[int], None] | None = None) -> Run:
    """Train to the end, or to what ends the run. At each step of `resumes` it is stopped and resumed from its files."""
    setup, source = run.setup, run.text
    trainer = _started(setup, source)
    watch = Watch(run, trainer)
    try:
        for step in range(setup.steps):
            if step in setup.resumes:
                trainer = _resumed(trainer, setup, source, step)
                watch = Watch(run, trainer)
                run.events.append(f"step {step}: resumed from the checkpoint of step {step}")
            if step % KEPT_EVERY == 0:
                run.kept.append(keep(step, trainer))
            watch.step(step)
            due = (step + 1) % VAL_EVERY == 0
            watch.put(val_loss=watch.validate() if due else math.nan)
            watch.check_budget()
            if on_step is not None:
                on_step(step)
        run.events.append(f"step {setup.steps}: the run ended as planned")
    except (CourseError, torch.OutOfMemoryError) as error:
        run.events.append(f"step {run.steps}: the run stopped: {str(error).splitlines()[0]}")
    run.trainer = trainer
    return run


def _started(setup: Setup, source: Text) -> Trainer:
    trainer = make_trainer(setup, source)
    trainer.model.train()
    if setup.fault is not None:
        setup.fault(trainer, source)
    return trainer


def _resumed(old: Trainer, setup: Setup, source: Text, step: int) -> Trainer:
    """A new trainer with what the old one saved, but for what `left_out` names."""
    with TemporaryDirectory(prefix="course-incident-") as folder:
        path = resume.save(old, Path(folder) / "checkpoint")
        trainer = make_trainer(setup, source)
        trainer.model.train()
        resume.restore(trainer, path, [part for part in resume.PARTS if part not in setup.left_out])
    lost = step - trainer.stream.step
    if lost:
        batch = trainer.parts.batch
        trainer.parts.batch = lambda step, micro: batch(step - lost, micro)
    if setup.fault is not None:
        setup.fault(trainer, source)
    return trainer
