"""A loss spike, and ways out of it as they are practised, compared on the same batches from the same checkpoint.

Two causes that look alike on a dashboard:

- "garbage": eight batches in a row are uniform noise, as from a broken file.
- "moments": the run is resumed at that step, and whatever resumes it loses the second moments of the last block, as if
  one shard of the optimizer's state were missing. The data is good.

PaLM (Chowdhery et al. 2022, arXiv 2204.02311, section 5.1) went back about 100 steps and left out 200 to 500 batches;
here it is 20 and 40. ZClip is Kumar et al. 2025, arXiv 2504.02507. `Window` is the statistic of OLMo-core's
`SkipStepOptimizer` (allenai/OLMo-core, read in 2026), for the norm alone; OLMo-core tests the loss in the same way too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from course_lib import resume
from course_lib.config import OptimConfig, require, stream_seed
from course_lib.failures.runs import CONTEXT, Setup, Text, make_trainer, text
from course_lib.failures.skipped_step import held_out_loss
from course_lib.model import GPT
from course_lib.optim import clip_by_global_norm
from course_lib.step import Batch, training_step
from course_lib.trainer import Trainer

__all__ = [
    "BURST",
    "CAUSES",
    "CURES",
    "NOTICED",
    "SAVED_AT",
    "SKIPPED",
    "STEPS",
    "STRUCK",
    "TWIN",
    "Recovery",
    "Window",
    "ZClip",
    "compare",
    "over_seeds",
    "replay",
]

STEPS, SAVED_AT, STRUCK, BURST, NOTICED, SKIPPED = 130, 60, 72, 8, 80, 40
"""Passes of a run; the checkpoint; where the cause strikes, for how many batches; where it is noticed; batches that a
roll-back leaves out."""
CAUSES = ("garbage", "moments")
TWIN = "without the cause"
CURES = {
    "go on": "clipping at norm 1, as always",
    "clip by z-score": "ZClip: a norm 2.5 deviations above its running mean is clipped to near the mean",
    "leave out by z-score": "no update at 6 deviations above ZClip's mean, which norms enter limited",
    "leave out by raw norms": "no update at 6 deviations above the mean of the last 128 norms, all as they were",
    "roll back, same batches": "back to the checkpoint, and the same batches again",
    "roll back, skip batches": "back to the checkpoint, and go on 40 batches later",
    "roll back, mended": "back to the checkpoint with the cause mended, and the same batches again",
}
"""Ways out, and what each does."""
DOCUMENTS = 3_000  # enough for 170 batches, each document once
HELD_OUT = 24  # documents that are scored after each pass
CLOSE = 0.02  # nats: at most so far above the twin counts as recovered
SPIKE = (
    10 * CLOSE
)  # nats: recovered is only what is not so far above the twin again; the noise between two runs is less


class ZClip:
    """A limit for the gradient norm from its own running mean and deviation; feed it one norm a step.

    A norm `threshold` deviations above the mean, z of them, is limited to mean + threshold^2 / z deviations: the
    further out, the nearer to the mean. Then the limited norm enters the mean. The first `warm_up` norms only fill it.
    """

    def __init__(self, threshold: float = 2.5, keep: float = 0.97, warm_up: int = 25) -> None:
        self.threshold, self.keep, self.warm_up = threshold, keep, warm_up
        self.seen: list[float] = []
        self.mean = self.variance = math.nan
        self.z = 0.0
        """Deviations above the mean of the norm before."""

    def limit(self, norm: float) -> float:
        """What this step's norm may be at most; infinity for no limit."""
        if len(self.seen) < self.warm_up:
            self.seen.append(norm)
            self.mean, self.variance = float(np.mean(self.seen)), float(np.var(self.seen))
            self.z = 0.0
            return math.inf
        deviation = math.sqrt(self.variance) + 1e-6
        self.z = (norm - self.mean) / deviation
        most = self.mean + self.threshold**2 / self.z * deviation if self.z > self.threshold else math.inf
        used = min(norm, most)
        self.mean = self.keep * self.mean + (1 - self.keep) * used
        self.variance = self.keep * self.variance + (1 - self.keep) * (used - self.mean) ** 2
        return most


class Window:
    """How far a norm is above the last 128 before it, left-out ones included and none limited; no limit to clip at."""

    def __init__(self, length: int = 128) -> None:
        self.length = length
        self.seen: list[float] = []
        self.z = 0.0
        """Deviations above the mean of the norms before; 0 until half a window is there."""

    def limit(self, norm: float) -> float:
        """Takes the norm in; infinity."""
        last = np.array(self.seen[-self.length :])
        full = len(last) + 1 >= self.length // 2
        self.z = (norm - float(last.mean())) / float(last.std(ddof=1)) if full else 0.0
        self.seen.append(norm)
        return math.inf


@dataclass(frozen=True)
class Recovery:
    """One way out of a spike, pass by pass from the checkpoint on. A pass is a step that was done, or left out."""

    cure: str
    batches: list[int]
    """Which batch of the data each pass had."""
    val_losses: list[float]
    """Loss of the held-out documents after each pass, nats a token."""
    norms: list[float]
    """Gradient norm before clipping."""
    left_out: int
    """Batches without an update: skipped, or left out."""
    repeated: int
    """Passes that a roll-back threw away."""
    peak: float
    """Largest height above the twin, at the same pass, nats; of a roll-back, the spike before it counts too."""
    back: int | None
    """Passes from the strike to the first of five in a row near the twin after the last spike.

    None: not within the run; 0: never far.
    """
    gap: float
    """Above the twin at the end: mean of the last five passes."""


class _Run:
    def __init__(self, source: Text, cause: str, cure: str, seed: int, saved: Path | None, norms: Sequence[float]):
        self.source, self.cause, self.cure, self.seed = source, cause, cure, seed
        self.clipper = Window() if cure == "leave out by raw norms" else ZClip()
        for norm in norms:
            self.clipper.limit(norm)
        self.shift = 0  # batches that were skipped
        self.mended = False
        self.resumed_at_strike = cause == "moments"
        self.batches: list[int] = []
        self.val_losses: list[float] = []
        self.norms: list[float] = []
        self.left_out = 0
        self.leave = False
        self.start(saved)

    def start(self, saved: Path | None, broken: bool = False) -> None:
        """A new trainer, from the checkpoint; `broken`: by the same resume that loses moments."""
        optim = OptimConfig(lr=1e-2, warmup_steps=10, weight_decay=0.1, min_lr_ratio=1.0)
        self.trainer = trainer = make_trainer(Setup(self.seed, STEPS, optim), self.source)
        trainer.model.train()
        if saved is not None:
            resume.restore(trainer, saved, resume.PARTS)
        if broken:
            forget(trainer)
        self.parts = trainer.parts
        self._batch, self._update = self.parts.batch, self.parts.optimizer
        self.parts.batch, self.parts.clip, self.parts.optimizer = self.batch, self.clip, self.update

    def batch(self, step: int, micro: int) -> Batch:
        wanted = step + self.shift
        own = self._batch(wanted, micro)
        if self.cause != "garbage" or self.mended or not STRUCK <= wanted < STRUCK + BURST:
            return own
        return garbage(self.source, self.seed, wanted, len(own.inputs))

    def clip(self) -> Tensor:
        weights = list(self.trainer.model.parameters())
        norm = clip_by_global_norm(weights, None)
        most = self.clipper.limit(float(norm))
        self.leave = self.cure.startswith("leave out") and self.clipper.z > 6
        clip_by_global_norm(weights, min(1.0, most) if self.cure == "clip by z-score" else 1.0)
        return norm

    def update(self) -> None:
        if self.leave:
            self.trainer.optimizer.zero_grad(set_to_none=True)
            self.left_out += 1
        else:
            self._update()

    def steps(self, count: int, score: bool = True) -> None:
        """Passes. score: with the held-out loss after each, which is half the time of a small step."""
        for _ in range(count):
            step = self.trainer.step
            if step == STRUCK and self.resumed_at_strike:
                forget(self.trainer)
            self.batches.append(step + self.shift)
            self.norms.append(training_step(self.parts, step).grad_norm)
            if score:
                self.val_losses.append(held_out_loss(self.trainer, self.source, HELD_OUT))


def forget(trainer: Trainer) -> None:
    """The last block's second moments are 0, and Adam's step count is as it was: one shard was not restored."""
    for weight in trainer.model.blocks[-1].parameters():  # type: ignore[union-attr, index]
        trainer.optimizer.state[weight]["exp_avg_sq"].zero_()


def garbage(source: Text, seed: int, step: int, sequences: int) -> Batch:
    """A batch of uniform noise in place of that of `step`."""
    rng = np.random.default_rng(stream_seed(seed, f"garbage, step {step}"))
    tokens = rng.integers(source.pad, size=(sequences, CONTEXT + 1))
    return Batch(tokens[:, :-1], tokens[:, 1:], tokens[:, 1:].size)


def compare(cause: str = "garbage", seed: int = 0, cures: Sequence[str] = tuple(CURES)) -> dict[str, Recovery]:
    """The twin without the cause, then each way out, from one checkpoint: {name: what came of it}. A second a way.

    ConfigError for a cause or cure that there is not.
    """
    require(cause in CAUSES, f"cause={cause!r} is unknown (there are: {', '.join(CAUSES)})")
    for cure in cures:
        require(cure in CURES, f"cure={cure!r} is unknown (there are: {', '.join(CURES)})")
    with TemporaryDirectory(prefix="course-spike-") as folder:
        saved, norms, source = _saved(seed, Path(folder))
        twin = _Run(source, "", TWIN, seed, saved, norms)
        twin.steps(STEPS - SAVED_AT)
        out = {TWIN: _judged(twin, twin, 0)}
        for cure in cures:
            out[cure] = _way_out(_Run(source, cause, cure, seed, saved, norms), saved, twin)
    return out


def _saved(seed: int, folder: Path) -> tuple[Path, list[float], Text]:
    """The checkpoint that all ways share, the gradient norms before it, and the text."""
    source = text(seed, DOCUMENTS)
    first = _Run(source, "", TWIN, seed, None, ())
    first.steps(SAVED_AT, score=False)
    return resume.save(first.trainer, folder / "checkpoint"), first.norms, source


def _way_out(run: _Run, saved: Path, twin: _Run) -> Recovery:
    passes = STEPS - SAVED_AT
    if not run.cure.startswith("roll back"):
        run.steps(passes)
        return _judged(run, twin, 0)
    run.steps(NOTICED - SAVED_AT)
    run.mended = run.cure == "roll back, mended"
    run.start(saved, broken=run.cause == "moments" and not run.mended)
    run.shift = SKIPPED if run.cure == "roll back, skip batches" else 0
    run.left_out += run.shift
    run.resumed_at_strike = False
    run.steps(passes - (NOTICED - SAVED_AT))
    return _judged(run, twin, NOTICED - SAVED_AT)


def _judged(run: _Run, twin: _Run, repeated: int) -> Recovery:
    above = np.array(run.val_losses) - np.array(twin.val_losses)
    near = above[STRUCK - SAVED_AT :] <= CLOSE
    spikes = np.flatnonzero(above[STRUCK - SAVED_AT :] > SPIKE)
    first = int(spikes[-1]) if len(spikes) else int(np.argmin(near))  # the last pass of a spike, or the first far one
    back = 0 if near.all() else next((k for k in range(first, len(near) - 4) if near[k : k + 5].all()), None)
    return Recovery(
        run.cure,
        run.batches,
        run.val_losses,
        run.norms,
        run.left_out,
        repeated,
        float(above.max()),
        back,
        float(above[-5:].mean()),
    )


def replay(cause: str = "garbage", seed: int = 0) -> dict[str, float]:
    """The batches of the burst once more, from several states: {state: rise of the held-out loss over them, nats}.

    The test that PaLM's authors made. Where good states rise too, it is the data; where only the run's own does, it is
    that state.
    """
    require(cause in CAUSES, f"cause={cause!r} is unknown (there are: {', '.join(CAUSES)})")
    out: dict[str, float] = {}
    with TemporaryDirectory(prefix="course-spike-") as folder:
        saved, norms, source = _saved(seed, Path(folder))
        for name, before in (("the run's own state", STRUCK - SAVED_AT), (f"the checkpoint of step {SAVED_AT}", 0)):
            run = _Run(source, "", TWIN, seed, saved, norms)
            run.steps(before, score=False)
            if cause == "moments" and before:
                forget(run.trainer)
            out[name] = _rise(run, cause)
        other = _Run(source, "", TWIN, seed, None, ())
        other.trainer.model.load_state_dict(GPT(other.trainer.model.config, seed + 1).state_dict())  # type: ignore[arg-type]
        other.steps(SAVED_AT, score=False)
        out["a run from other initial weights"] = _rise(other, cause)
    return out


def _rise(run: _Run, cause: str) -> float:
    before = held_out_loss(run.trainer, run.source, HELD_OUT)
    run.cause, run.shift = cause, STRUCK - run.trainer.step
    run.steps(BURST)
    return max(run.val_losses[-BURST:]) - before


def over_seeds(seeds: int = 10) -> dict[str, dict[str, list[dict[str, float | None]]]]:
    """For each cause: the ways out that differ, and each state of `replay`, of each seed. Kept as a record."""
    cures = (
        "go on",
        "clip by z-score",
        "leave out by z-score",
        "leave out by raw norms",
        "roll back, skip batches",
    )
    out: dict[str, dict[str, list[dict[str, float | None]]]] = {}
    for cause in CAUSES:
        rows = out.setdefault(cause, {})
        for seed in range(seeds):
            for cure, one in compare(cause, seed, cures).items():
                kept = {name: getattr(one, name) for name in ("peak", "back", "gap", "left_out", "repeated")}
                rows.setdefault(cure, []).append(kept)
            for state, rise in replay(cause, seed).items():
                rows.setdefault(f"replay: {state}", []).append({"rise": rise})
    return out
