"""The run that the incidents happen in: a small GPT on a made language, resumed twice, with all its dashboards.

Documents of two to four sentences are padded to 32 tokens. The language's entropy is known, so "too good" is a number.
Every part of a step is watched from outside: also a part that was replaced to inject a fault.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib import resume
from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig, stream_seed
from course_lib.data import IGNORE, BatchStream, Corpus
from course_lib.errors import CourseError
from course_lib.failures._watch import Watch
from course_lib.model import GPT
from course_lib.step import Batch
from course_lib.synthetic import KINDS, SyntheticLanguage
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
"""Tokens a sequence, and in the slot of a document with its padding."""
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
    """Inputs and targets (64, CONTEXT) of other documents, for validation."""
    pad: int
    """The id of padding: one more than the language's words."""
    chance: np.ndarray
    """Which words are drawn by chance, so that nobody can predict them: (V + 1,) bool."""
    chance_entropy: float
    """Entropy of such a word, nats."""


def text(seed: int, documents: int = 2_100) -> Text:
    """Documents of two to four sentences, each padded to a slot of CONTEXT tokens."""
    made = SyntheticLanguage(seed, names=16, numbers=16, objects=16)
    (stream, labels), (other, other_labels) = _padded(made, documents, 2 * seed), _padded(made, 66, 2 * seed + 1)
    own = made.corpus(1, CONTEXT + 1, seed)
    corpus = Corpus(own.tokenizer, stream, own.val, own.train_bytes, own.val_bytes)
    held_out = BatchStream(other, CONTEXT, 64, seed, labels=other_labels).global_batch(0)
    words, kinds = made.sample(4_000)
    chance = np.zeros(made.vocab_size + 1, dtype=bool)
    chance[words[kinds == KINDS.index("noise")]] = True
    return Text(corpus, labels, held_out, made.vocab_size, chance, made.entropy()["noise"])


def _padded(made: SyntheticLanguage, documents: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A stream (n,) int32 of padded documents, and its labels with IGNORE at padding."""
    tokens = made.sample(documents * CONTEXT, seed)[0].reshape(documents, CONTEXT).astype(np.int32)
    lengths = made.sentence_length * np.random.default_rng(stream_seed(seed, "lengths")).integers(2, 5, documents)
    padded = np.arange(CONTEXT) >= lengths[:, None]
    tokens[padded] = made.vocab_size
    return tokens.reshape(-1), np.where(padded, IGNORE, tokens).astype(np.int32).reshape(-1)


@dataclass(frozen=True)
class Setup:
    """What a run is made with. An incident changes a field, or replaces parts of the trainer in `fault`."""

    seed: int = 0
    steps: int = STEPS
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-2, warmup_steps=10, weight_decay=0.1))
    precision: str = "fp32"
    weights: str = "fp32"
    micro_batches: int = 1
    resumes: tuple[int, ...] = RESUMES
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


def make_trainer(setup: Setup, source: Text, **changes: Any) -> Trainer:
    """A trainer of this text: two layers of width 32, padding left out of the loss; no fault yet."""
    config = TrainConfig(
        preset="mini",
        steps=setup.steps,
        batch=BATCH,
        micro_batch=BATCH // setup.micro_batches,
        seed=setup.seed,
        device="cpu",
        precision=setup.precision,  # type: ignore[arg-type]
        weights=setup.weights,  # type: ignore[arg-type]
        val_every=0,
        data=DataConfig(tokenizer="bytes"),
        optim=setup.optim,
        model=ModelOverrides(d_model=32, n_layers=2, n_heads=2, context=CONTEXT),
        **changes,
    )
    model = GPT(config.model_config(source.pad + 1), setup.seed)
    trainer = Trainer(config, model=model, corpus=source.corpus)
    trainer.stream = BatchStream(source.corpus.train, CONTEXT, BATCH, setup.seed, labels=source.labels)
    return trainer


def keep(step: int, trainer: Trainer) -> Kept:
    """A copy of the state that a step starts from."""
    state = trainer.optimizer.state_dict()["state"]
    moments = {f"{number}/{name}": value.clone() for number, own in state.items() for name, value in own.items()}
    return Kept(step, {name: value.clone() for name, value in trainer.model.state_dict().items()}, moments)


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
