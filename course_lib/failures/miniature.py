"""A small run on two real ranks that is stopped three times, and each time goes on by a line of the runbook.

    done = run_through(Path("a new folder"), STRIKES)
    done.stops[0].lost, done.same_bits, done.seconds_a_step

What strikes: rank 1 is killed; it is killed and a bit of the newest checkpoint turns over; it computes NaN once,
which is noticed only when somebody reads the log. The trainer, the checkpoints, the ranks and the losses are real; the
times at which they strike are drawn (`draw`), for a small run does not live long enough to meet them by itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from course_lib.config import DataConfig, ModelOverrides, OptimConfig, TrainConfig, require, stream_seed
from course_lib.errors import CourseError, RankError
from course_lib.events import Event, Saved, Stepped
from course_lib.failures import runbook
from course_lib.parallel.launch import run_ranks
from course_lib.step import Batch
from course_lib.store import problem, steps
from course_lib.trainer import Trainer

__all__ = [
    "CADENCE",
    "KINDS",
    "LOOKS",
    "MEAN",
    "RANKS",
    "SEED",
    "STEPS",
    "Done",
    "Replayed",
    "Stop",
    "Strike",
    "config",
    "draw",
    "only",
    "replay",
    "run_through",
    "usable",
]

RANKS, STEPS, CADENCE, LOOKS, MEAN, SEED = 2, 60, 8, 5, 16, 24
"""Ranks; steps of the run; between checkpoints; between two looks at the log; between strikes, on average; and the seed
whose strikes the chapter has: with it the NaN gets into a checkpoint before anybody looks."""
KINDS = ("killed", "corrupt", "nan")
"""What strikes, in this order; as lines of the runbook say, see `runbook.STOPS`."""


@dataclass(frozen=True)
class Strike:
    """Something that goes wrong in the run, once."""

    kind: str
    after: int
    """Whole steps that the run does since its last start before it strikes, in the next one; nan: in its backward."""


@dataclass(frozen=True)
class Stop:
    """What a strike came to."""

    strike: Strike
    noticed: int
    """Steps that the run had done when it stopped."""
    resumed: int
    """Steps that the run had done in the checkpoint that it went on from."""
    passed_over: tuple[str, ...]
    """Newer checkpoints that were not taken, and why."""
    said: str
    """What the launcher or the log said, in a line."""
    line: str
    """Key of the runbook's line that was followed."""
    down: float
    """Seconds from the stop until the next step of the run was computed."""

    @property
    def lost(self) -> int:
        """Steps that were done and have to be done again."""
        return self.noticed - self.resumed


@dataclass(frozen=True)
class Done:
    """A run that arrived."""

    stops: tuple[Stop, ...]
    passes: tuple[tuple[int, float], ...]
    """(step, loss) in the order in which they were computed, repeated ones too; NaN where it was."""
    seconds_a_step: float
    """Median, without checkpoints."""
    seconds_a_save: float
    """Median: from the end of a step to its checkpoint on disk."""
    digest: str
    """SHA-256 of the weights at the end; the same on every rank."""
    same_bits: bool
    """The digest is that of the run that nothing struck."""

    @property
    def lost(self) -> int:
        """Steps done twice."""
        return sum(stop.lost for stop in self.stops)


def config(out: Path, resume: Path | None = None, every: int = CADENCE) -> TrainConfig:
    """The miniature's settings: a GPT of 30,000 parameters on the course's text as bytes, data parallel."""
    return TrainConfig(
        preset="mini",
        steps=STEPS,
        batch=8,
        device="cpu",
        precision="fp32",
        parallel="ddp",
        val_every=0,
        checkpoint_every=every,
        out=out,
        resume=resume,
        data=DataConfig(tokenizer="bytes", val_fraction=0.002),
        optim=OptimConfig(lr=1e-2, warmup_steps=5),
        model=ModelOverrides(d_model=32, n_layers=2, n_heads=2, context=32, dropout=0.1),
    )


# What every rank runs.


def attempt(setting: TrainConfig, strike: Strike | None) -> str:
    """Train from the start or from `setting.resume` to the end; the digest of the weights. `CourseError` at a NaN.

    Rank 0 writes each step to `out`/passes.jsonl as soon as it is done: after a kill there is nobody left to ask.
    """
    trainer = Trainer(setting, on_event=_Log(Path(str(setting.out)) / "passes.jsonl"))
    if strike is not None and trainer.ranks.rank == 1:
        _arm(trainer, strike)
    trainer.run()
    total = hashlib.sha256()
    for p in trainer.model.parameters():
        total.update(p.detach().contiguous().numpy().data)
    return total.hexdigest()


class _Log:
    """Writes steps as they come, and looks at them every `LOOKS` steps, as somebody who reads a dashboard does."""

    def __init__(self, path: Path) -> None:
        self.path, self.losses, self.last = path, list[float](), time.time()

    def __call__(self, event: Event) -> None:
        now = time.time()
        if isinstance(event, Stepped):
            one = event.record
            self.losses.append(one.loss)
            start = len(self.losses) == 1
            self._write({"step": one.step, "loss": str(one.loss), "at": now, "seconds": one.seconds, "start": start})
            bad = [k for k, loss in enumerate(self.losses) if not math.isfinite(loss)]
            if bad and (one.step + 1) % LOOKS == 0:
                first = one.step - (len(self.losses) - 1 - bad[0])
                raise CourseError(f"the loss is nan since step {first}, seen after step {one.step}")
        elif isinstance(event, Saved):
            self._write({"saved": event.step, "seconds": now - self.last})
        self.last = now

    def _write(self, line: dict[str, object]) -> None:
        with self.path.open("a", encoding="utf-8", newline="\n") as file:
            file.write(json.dumps(line) + "\n")


def _arm(trainer: Trainer, strike: Strike) -> None:
    """Let it happen on this rank, in that step."""
    batch, backward = trainer.parts.batch, trainer.parts.backward
    at = trainer.step + strike.after

    def killed(step: int, micro: int) -> Batch:
        if step == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return batch(step, micro)

    def computes_nan(loss: torch.Tensor) -> None:
        backward(loss * math.nan if trainer.step == at else loss)

    if strike.kind == "nan":
        trainer.parts.backward = computes_nan
    else:
        trainer.parts.batch = killed


# What watches over it.


def usable(folder: Path) -> str | None:
    """Why a run cannot go on from this checkpoint, or None: complete, as it was written, and every number finite."""
    found = problem(folder)
    if found is not None:
        return found
    for name in ("model.safetensors", "optimizer.safetensors"):
        bad = [key for key, tensor in load_file(folder / name).items() if not tensor.isfinite().all()]
        if bad:
            return f"complete, but {len(bad)} tensors of {name} are not finite"
    return None


def newest_usable(out: Path) -> tuple[Path | None, tuple[str, ...]]:
    """The newest checkpoint in `out` from which to go on, and the newer ones that were passed over, with the reason."""
    passed_over: list[str] = []
    for step, path in steps(out):
        why = usable(path)
        if why is None:
            return path, tuple(passed_over)
        passed_over.append(f"step {step} {why}")
    return None, tuple(passed_over)


def run_through(out: Path, strikes: Sequence[Strike]) -> Done:
    """Train to the end on `RANKS` ranks, whatever strikes on the way, and once more with nothing that does.

    out: a new folder; the run writes out/run and out/twin. `ConfigError` for a kind of strike that there is not.
    """
    for one in strikes:
        require(one.kind in KINDS, f"kind={one.kind!r} is unknown (there are: {', '.join(KINDS)})")
    folder, twin = out / "run", out / "twin"
    left = list(strikes)
    stops: list[Stop] = []
    resume: Path | None = None
    while True:
        strike = left.pop(0) if left else None
        try:
            digests = run_ranks(attempt, RANKS, config(folder, resume), strike)
            break
        except RankError as error:
            said = str(error).splitlines()[0]
        assert strike is not None, said
        noticed = _passes(folder)[-1]["step"] + 1
        if strike.kind == "corrupt" and steps(folder):  # else there is none yet that could be
            _turn_a_bit(steps(folder)[0][1] / "optimizer.safetensors")
        resume, passed_over = newest_usable(folder)
        at = 0 if resume is None else int(resume.name.removeprefix("step-"))
        stops.append(Stop(strike, noticed, at, passed_over, said, runbook.STOPS[strike.kind], 0.0))
    alone = run_ranks(attempt, RANKS, config(twin), None)
    passes = _passes(folder)
    return Done(
        stops=tuple(replace(stop, down=down) for stop, down in zip(stops, _gaps(passes), strict=True)),
        passes=tuple((one["step"], float(one["loss"])) for one in passes),
        seconds_a_step=float(np.median([one["seconds"] for one in passes])),
        seconds_a_save=float(np.median([one["seconds"] for one in _lines(folder) if "saved" in one])),
        digest=digests[0],
        same_bits=len({*digests, *alone}) == 1,
    )


def _lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "passes.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def _passes(folder: Path) -> list[dict[str, Any]]:
    return [line for line in _lines(folder) if "step" in line]


def _gaps(passes: list[dict[str, Any]]) -> list[float]:
    """Seconds between the last step before each stop and the first after it, without that step itself."""
    pairs = pairwise(passes)
    return [after["at"] - after["seconds"] - one["at"] for one, after in pairs if after["start"]]


def _turn_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(bytes(content))


# The same by virtual time: steps are counted, nothing is computed.


@dataclass(frozen=True)
class Replayed:
    """What three strikes cost in a run of which only the steps are counted."""

    lost: tuple[int, ...]
    """Steps done twice after each strike that came before the end."""
    saved_nan: bool = False
    """A checkpoint was written after a NaN and before anybody looked."""

    @property
    def total(self) -> int:
        """Of all strikes."""
        return sum(self.lost)


def draw(seed: int = SEED, mean: float = MEAN, kinds: Sequence[str] = KINDS) -> tuple[Strike, ...]:
    """When each strikes: gaps of a device that does not age, `mean` steps on average. Whole steps, rounded down."""
    rng = np.random.default_rng(stream_seed(seed, "when it strikes"))
    return tuple(Strike(kind, int(gap)) for kind, gap in zip(kinds, rng.exponential(mean, len(kinds)), strict=True))


def only(strikes: Sequence[Strike], kind: str) -> tuple[Strike, ...]:
    """The same times, and every strike of one kind."""
    return tuple(replace(one, kind=kind) for one in strikes)


def replay(strikes: Sequence[Strike], every: int = CADENCE, steps_of_run: int = STEPS) -> Replayed:
    """The steps that each strike costs, by the rules of `run_through`."""
    done, lost, saved_nan = 0, [], False
    for strike in strikes:
        done += strike.after
        if done >= steps_of_run:
            break
        noticed, back = done, done // every * every
        if strike.kind == "corrupt":
            back = max(0, back - every)
        if strike.kind == "nan":  # the step after it is the first whose loss is not finite
            noticed = -(-(done + 2) // LOOKS) * LOOKS
            if noticed > steps_of_run:
                break
            saved_nan |= (noticed - 1) // every * every > done  # a look comes before the save of the same step
        lost.append(noticed - back)
        done = back
    return Replayed(tuple(lost), saved_nan)
