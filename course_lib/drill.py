"""The recovery drill: 20 steps, a checkpoint, 10 more, against 30 in one go; then the resume with one part left out.

The run is made so that each omission can show: with dropout (random state), a schedule that moves at every step, data
in a shuffled order, and, for the loss scaler's row, FP16 with a scale that changes often. On the CPU, where equal means
equal bit by bit. Plain data comes back: the table of `course drill` and the curves of a picture.
"""

import hashlib
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

import torch

from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig
from course_lib.data import Corpus, prepare
from course_lib.resume import PARTS, restore
from course_lib.step import training_step
from course_lib.trainer import Trainer

__all__ = ["OMISSIONS", "SAVED_AT", "STEPS", "Drill", "DrillRow", "DrillStep", "Omission", "drill", "drill_config"]

STEPS, SAVED_AT = 30, 20
FIRST_SCALE, GROWTH_INTERVAL = 2.0**10, 2  # torch begins at 2^16 and doubles every 2,000 steps: too slow for 30

OnProgress = Callable[[int, int, str], None]
"""(steps done, steps of the whole drill, name of the run that they belong to)"""


@dataclass(frozen=True)
class Omission:
    """A resume from which one thing is left out, and what has to follow."""

    name: str
    parts: tuple[str, ...]
    """The parts that are restored, of `course_lib.resume.PARTS`."""
    loss: int | None
    """The first step whose loss differs; None: not at a step that is known beforehand."""
    parameters: int | None
    """The first step after which the parameters differ."""
    reason: str
    """Why then."""
    precision: str = "fp32"
    back: int = 0
    """Steps that the data cursor is set back."""


def _without(part: str) -> tuple[str, ...]:
    return tuple(one for one in PARTS if one != part)


OMISSIONS = (
    Omission("weights only", ("weights",), 20, 20, "it begins the data again: another batch"),
    Omission(
        "no optimizer",
        _without("optimizer"),
        21,
        20,
        "the loss of step 20 comes before its update; the update has no moments",
    ),
    Omission(
        "scheduler restarted",
        _without("scheduler"),
        22,
        21,
        "the learning rate of step 20 is in the optimizer; that of 21 is the schedule's second",
    ),
    Omission("no scaler", _without("scaler"), None, None, "", precision="fp16"),
    Omission("no random state", _without("random"), 20, 20, "dropout drops other activations"),
    Omission("cursor off by one", PARTS, 20, 20, "the batch of step 19 once more", back=1),
)


@dataclass(frozen=True)
class DrillStep:
    """One step of one run."""

    step: int
    """Its number in the whole run, from 0."""
    loss: float
    """Nats per token, before the update."""
    lr: float
    """Learning rate of the update."""
    digest: str
    """SHA-256 of all parameters after the update."""
    scale: float | None = None
    """What the loss was multiplied by (FP16)."""
    skipped: bool = False
    """The update was left out after an overflow (FP16)."""


@dataclass(frozen=True)
class DrillRow:
    """A resume at step 20, compared with the run that never stopped."""

    name: str
    precision: str
    steps: tuple[DrillStep, ...]
    """Steps 20 to 29."""
    first_loss: int | None
    """The first step whose loss is not the same; None: all are the same."""
    first_parameters: int | None
    """The first step after which the parameters are not the same."""
    reason: str
    """Why."""
    passed: bool
    """It shows what it should."""


@dataclass(frozen=True)
class Drill:
    """All runs of a drill."""

    straight: dict[str, tuple[DrillStep, ...]]
    """The 30 steps in one go, by precision."""
    rows: tuple[DrillRow, ...]
    """The full resume in each precision, then one omission each."""
    seconds: float
    passed: bool
    """The full resumes are exact, and each omission shows what it should."""


def drill_config(precision: str = "fp32") -> TrainConfig:
    """The drill's run: a small GPT with dropout on the default text, as bytes, in two micro-batches a step."""
    return TrainConfig(
        preset="mini",
        steps=STEPS,
        batch=8,
        micro_batch=4,
        device="cpu",
        precision="fp16" if precision == "fp16" else "fp32",
        val_every=0,
        data=DataConfig(tokenizer="bytes"),
        optim=OptimConfig(lr=1e-2, warmup_steps=5),
        model=ModelOverrides(d_model=32, n_layers=2, n_heads=2, context=32, dropout=0.1),
    )


class _Runs:
    """Makes trainers, steps them, and counts for the progress bar."""

    def __init__(self, corpus: Corpus, on_progress: OnProgress | None) -> None:
        self.corpus, self.on_progress = corpus, on_progress
        self.done, self.total = 0, 2 * STEPS + (2 + len(OMISSIONS)) * (STEPS - SAVED_AT)

    def trainer(self, precision: str) -> Trainer:
        trainer = Trainer(drill_config(precision), corpus=self.corpus)
        if trainer.scaler is not None:
            trainer.scaler = torch.amp.GradScaler("cpu", init_scale=FIRST_SCALE, growth_interval=GROWTH_INTERVAL)
        trainer.model.train()
        return trainer

    def steps(self, trainer: Trainer, name: str, first: int, count: int) -> tuple[DrillStep, ...]:
        out = []
        for step in range(first, first + count):
            record = training_step(trainer.parts, trainer.step)
            digest = _digest(trainer)
            out.append(DrillStep(step, record.loss, record.lr, digest, record.scale, record.skipped))
            self.done += 1
            if self.on_progress is not None:
                self.on_progress(self.done, self.total, name)
        return tuple(out)

    def resumed(
        self, name: str, precision: str, folder: Path, parts: Collection[str], back: int = 0
    ) -> tuple[DrillStep, ...]:
        trainer = self.trainer(precision)
        restore(trainer, folder, parts)
        trainer.stream.step -= back
        return self.steps(trainer, name, SAVED_AT, STEPS - SAVED_AT)


def _digest(trainer: Trainer) -> str:
    total = hashlib.sha256()
    for p in trainer.model.parameters():
        total.update(p.detach().contiguous().numpy().data)
    return total.hexdigest()


def drill(on_progress: OnProgress | None = None, corpus: Corpus | None = None) -> Drill:
    """Run the whole drill, in a temporary folder; takes a few seconds. corpus: None is the default text."""
    began = time.perf_counter()
    runs = _Runs(prepare(drill_config().data) if corpus is None else corpus, on_progress)
    straight: dict[str, tuple[DrillStep, ...]] = {}
    rows: list[DrillRow] = []
    with tempfile.TemporaryDirectory() as name:
        folders: dict[str, Path] = {}
        for precision in ("fp32", "fp16"):
            trainer = runs.trainer(precision)
            head = runs.steps(trainer, f"30 steps, {precision}", 0, SAVED_AT)
            folders[precision] = trainer.save(Path(name) / precision)
            tail = runs.steps(trainer, f"30 steps, {precision}", SAVED_AT, STEPS - SAVED_AT)
            straight[precision] = head + tail
        for precision in ("fp32", "fp16"):
            row = "full resume" if precision == "fp32" else f"full resume, {precision}"
            steps = runs.resumed(row, precision, folders[precision], PARTS)
            rows.append(_full(row, precision, steps, straight[precision][SAVED_AT:]))
        for one in OMISSIONS:
            steps = runs.resumed(one.name, one.precision, folders[one.precision], one.parts, one.back)
            rows.append(_judge(one, steps, straight[one.precision][SAVED_AT:]))
    passed = all(row.passed for row in rows)
    return Drill(straight, tuple(rows), time.perf_counter() - began, passed)


def _first(steps: tuple[DrillStep, ...], wanted: tuple[DrillStep, ...], what: str) -> int | None:
    pairs = zip(steps, wanted, strict=True)
    return next((one.step for one, other in pairs if getattr(one, what) != getattr(other, what)), None)


def _full(name: str, precision: str, steps: tuple[DrillStep, ...], wanted: tuple[DrillStep, ...]) -> DrillRow:
    exact = steps == wanted
    reason = "every loss, learning rate and parameter is the same, bit by bit" if exact else "the resume is not exact"
    return DrillRow(
        name, precision, steps, _first(steps, wanted, "loss"), _first(steps, wanted, "digest"), reason, exact
    )


def _judge(omission: Omission, steps: tuple[DrillStep, ...], wanted: tuple[DrillStep, ...]) -> DrillRow:
    loss, parameters = _first(steps, wanted, "loss"), _first(steps, wanted, "digest")
    reason = omission.reason
    if omission.precision == "fp16":
        skipped = _first(steps, wanted, "skipped")
        passed = steps[0].scale != wanted[0].scale and parameters is not None and skipped is not None
        then = f"step {skipped} overflows in one run only" if skipped is not None else "no step overflows"
        scales = f"the scale is {steps[0].scale:,.0f} instead of {wanted[0].scale:,.0f}"
        reason = f"{scales}: other small gradients are lost, and {then}"
    else:
        passed = (loss, parameters) == (omission.loss, omission.parameters)
    if not passed:
        reason = f"not what it should show (loss {omission.loss}, parameters {omission.parameters}): {reason}"
    return DrillRow(omission.name, omission.precision, steps, loss, parameters, reason, passed)
