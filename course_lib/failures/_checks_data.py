"""Checks of data and mask: read the batches as the model got them, and change a token that it must not see."""

import hashlib
import math

import numpy as np
import torch

from course_lib.data import IGNORE
from course_lib.failures.causality import probe
from course_lib.failures.evidence import Check, Finding, loss_of, replayed, tensors_of
from course_lib.failures.runs import Kept, Run

__all__: list[str] = []

DATA = "data and mask"


def targets(run: Run) -> Finding:
    """Each target must be the next input of its row: exact, so one in a thousand is too many."""
    right = compared = 0
    for micro in run.batches:
        for batch in micro:
            valid = batch.targets[:, :-1] != IGNORE
            right += int((valid & (batch.targets[:, :-1] == batch.inputs[:, 1:])).sum())
            compared += int(valid.sum())
    share = right / max(compared, 1)
    text = f"{right:,} of {compared:,} targets are the token after their input ({share:.1%})"
    return Finding({"right": right, "compared": compared, "share": share}, text, share < 0.999)


def valid_tokens(run: Run) -> Finding:
    """Padding must not be predicted: exact, so one is too many."""
    flat = np.concatenate([batch.targets.ravel() for micro in run.batches for batch in micro])
    counted, padding = int((flat != IGNORE).sum()), int((flat == run.text.pad).sum())
    text = f"of {counted:,} targets that the loss counts, {padding:,} are padding ({padding / max(counted, 1):.1%})"
    return Finding({"counted": counted, "padding": padding}, text, padding > 0)


def empty_batches(run: Run) -> Finding:
    """A mean over no target is 0 / 0."""
    counts = [[int((batch.targets != IGNORE).sum()) for batch in micro] for micro in run.batches]
    least = [min(one) for one in counts]
    step = int(np.argmin(least))
    text = (
        f"the fewest valid targets of a micro-batch: {least[step]}, at step {step}; the median: {np.median(least):.0f}"
    )
    return Finding({"fewest": least[step], "step": step, "median": float(np.median(least))}, text, least[step] == 0)


def _repeats(run: Run) -> list[float]:
    """For each step, the share of its sequences whose hash was in an earlier step."""
    seen: set[bytes] = set()
    shares = []
    for micro in run.batches:
        rows = [hashlib.sha256(row.tobytes()).digest() for batch in micro for row in batch.inputs]
        shares.append(sum(row in seen for row in rows) / len(rows))
        seen.update(rows)
    return shares


def sample_hashes(run: Run) -> Finding:
    """The run reads its text less than once. Short documents agree by chance, under 1 in 100; 5 in 100 is no chance."""
    share = float(np.mean(_repeats(run)))
    assert run.trainer is not None
    epochs = run.steps * run.trainer.stream.batch / run.trainer.stream.windows
    text = f"{share:.1%} of the sequences had come before; the run is {epochs:.2f} epochs long"
    return Finding({"repeated": share, "epochs": epochs}, text, share > 0.05)


def resume_batches(run: Run) -> Finding:
    """Repeats that begin at a resume: few before (5 in 100, as for hashes), most after."""
    shares, at = _repeats(run), run.setup.resumes
    if not at or run.steps <= at[0]:
        return Finding({"resumes": 0}, "the run was not resumed", False)
    before = float(np.mean(shares[: at[0]]))
    after = min(float(np.mean(shares[step : step + 5])) for step in at if step < run.steps)
    text = (
        f"sequences that had come before: {before:.1%} before the first resume, {after:.1%} in the steps after a resume"
    )
    return Finding({"before": before, "after": after}, text, before < 0.05 and after > 0.5)


def mask_probe(run: Run) -> Finding:
    """The leak probe of chapter 12 on eight held-out rows, with the last weights that are finite."""
    tokens = torch.from_numpy(run.text.held_out[0][:8])
    with replayed(run, _sound(run)) as trainer:
        report = probe(trainer.model, tokens, run.text.pad + 1)
    size = report.worst.size if report.worst else 0.0
    text = f"changing only later tokens moves earlier logits by {size:.2g}; the logits' spread is {report.spread:.2g}"
    return Finding({"moved": size, "spread": report.spread}, text, report.leaks)


def _sound(run: Run) -> Kept:
    """The last kept state with finite weights."""
    for kept in reversed(run.kept):
        if all(bool(torch.isfinite(value).all()) for value in kept.weights.values()):
            return kept
    return run.kept[0]


def _bigrams(run: Run) -> np.ndarray:
    """log p(next word | word) over the training text, add-one, (V, V); padding left out."""
    stream, size = run.text.corpus.train, run.text.pad
    counts = np.ones((size, size))
    inside = (stream[:-1] != size) & (stream[1:] != size)
    np.add.at(counts, (stream[:-1][inside], stream[1:][inside]), 1)
    return np.log(counts / counts.sum(1, keepdims=True))


def batch_content(run: Run) -> Finding:
    """How unlikely each step's words are by the text's own pairs of words; z of the worst of 120 steps is 3 or 4."""
    table, scores = _bigrams(run), []
    for micro in run.batches:
        rows = np.concatenate([batch.inputs for batch in micro])
        inside = (rows[:, :-1] != run.text.pad) & (rows[:, 1:] != run.text.pad)
        scores.append(-table[rows[:, :-1][inside], rows[:, 1:][inside]].mean() if inside.any() else math.nan)
    values = np.array(scores)
    step = int(np.nanargmax(values))
    middle = np.nanmedian(values)
    spread = 1.4826 * np.nanmedian(np.abs(values - middle)) + 1e-9
    z = float((values[step] - middle) / spread)
    text = (
        f"the least likely words are those of step {step}: {values[step]:.2f} nats a pair, the median step has "
        f"{middle:.2f} (z = {z:.1f})"
    )
    return Finding({"step": step, "nats": float(values[step]), "median": float(middle), "z": z}, text, z > 10)


def replay_elsewhere(run: Run) -> Finding:
    """The batch of the sharpest rise of the loss, from other states of the run, against its neighbours there."""
    losses = np.array(run.series["loss"])
    usual = np.array([np.median(losses[max(0, k - 6) : k]) if k >= 6 else math.nan for k in range(len(losses))])
    rise = np.where(np.isfinite(losses), losses, -np.inf) / usual
    if not np.isfinite(rise).any():
        return Finding({}, "there is no finite loss to look at", False)
    step = int(np.nanargmax(np.where(np.isfinite(rise), rise, -np.inf)))
    states = [kept for kept in run.kept if kept.step >= 20 and abs(kept.step - step) > 3][:: max(1, len(run.kept) // 4)]
    ratios = []
    for kept in states:
        with replayed(run, kept) as trainer, torch.no_grad():
            near = [loss_of(trainer, *tensors_of(run, k)) for k in (step - 2, step - 1) if k >= 0]
            own = loss_of(trainer, *tensors_of(run, step))
            ratios.append(float(own / torch.stack(near).mean()))
    worst = float(np.min(ratios)) if ratios else math.nan
    text = (
        f"the loss rises most at step {step} ({losses[step]:.2f} against {usual[step]:.2f}); replayed from "
        f"{len(ratios)} other states that batch has at least {worst:.2f} times the loss of the batches before it"
    )
    return Finding({"step": step, "ratio": worst, "states": len(ratios)}, text, worst > 1.5)


def batch_mix(run: Run) -> Finding:
    """Word counts of a step against those of the run: chi-squared per word; 0.85 to 0.92 when shuffled."""
    size = run.text.pad
    counts = np.stack(
        [
            np.bincount(np.concatenate([b.inputs.ravel() for b in micro]), minlength=size + 1)[:size]
            for micro in run.batches
        ]
    ).astype(float)
    names = counts[:, counts.sum(0) > 0]
    expected = names.sum(1, keepdims=True) * names.sum(0) / names.sum()
    keep = expected.sum(1) > 0
    chi = float(((names - expected)[keep] ** 2 / expected[keep]).mean())
    text = f"word counts of a step differ from the run's by {chi:.2f} in chi-squared per word (shuffled: below 1)"
    return Finding({"chi_squared": chi}, text, chi > 1.25)


@torch.no_grad()
def known_floor(run: Run) -> Finding:
    """Held-out loss against that of a model that knows the language: never less; 0.03 is for the luck of its words."""
    with replayed(run, _sound(run)) as trainer:
        loss = float(loss_of(trainer, *map(torch.from_numpy, run.text.held_out)))
    text = f"the held-out loss is {loss:.3f}; a model that knows the language has {run.text.floor:.3f} on these words"
    return Finding({"loss": loss, "floor": run.text.floor}, text, loss < run.text.floor - 0.03)


CHECKS = (
    Check("targets", "Compare each target with the next input of its row", DATA, 5, targets),
    Check("valid_tokens", "Count what the loss averages over, and how much of it is padding", DATA, 5, valid_tokens),
    Check("empty_batches", "Find the micro-batch with the fewest valid targets", DATA, 5, empty_batches),
    Check("sample_hashes", "Hash every sequence and count those that came before", DATA, 10, sample_hashes),
    Check("resume_batches", "Compare the batches around each resume, by hash", DATA, 10, resume_batches),
    Check("batch_mix", "Compare the word counts of each step with those of the whole run", DATA, 10, batch_mix),
    Check("batch_content", "Score every batch by the text's own pairs of words", DATA, 15, batch_content),
    Check("mask_probe", "Change later tokens and watch the logits of earlier ones", DATA, 15, mask_probe),
    Check("known_floor", "Compare the held-out loss with the least that is possible", DATA, 10, known_floor),
    Check("replay_elsewhere", "Replay the batch of the sharpest rise from other states", DATA, 30, replay_elsewhere),
)
