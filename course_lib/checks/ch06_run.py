"""The small run that the exercises of chapter 6 save and resume: everything that a resume needs, on a toy."""

import copy
import inspect
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "PARTS",
    "SmallRun",
    "alike",
    "first_difference",
    "restore",
    "small_run_text",
    "snapshot",
    "trajectory",
    "weights",
]


class SmallRun:
    """A classifier of 6 numbers in training, with dropout, a schedule and a loss scale. One `step()` is one update."""

    def __init__(self, seed: int = 0, peak: float = 0.02, warmup: int = 8) -> None:
        g = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(72, 6, generator=g)
        self.targets = (self.inputs @ torch.randn(6, 4, generator=g)).argmax(-1)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4))
        for p in self.model.parameters():
            nn.init.normal_(p, std=0.3, generator=g)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=peak)
        rate = lambda s: min((s + 1) / warmup, 0.97 ** (s - warmup))
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rate)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**13, growth_interval=4)
        self.generator = torch.Generator().manual_seed(seed + 1)  # for dropout
        self.cursor = 0  # the number of the next batch

    def step(self) -> float:
        """One training step; returns its loss."""
        rows = torch.arange(8 * self.cursor, 8 * self.cursor + 8) % 72
        kept = torch.rand(8, 6, generator=self.generator) < 0.8
        loss = F.cross_entropy(self.model(self.inputs[rows] * kept / 0.8), self.targets[rows])
        self.scaler.scale(loss).backward()
        for grad in (p.grad for p in self.model.parameters() if p.grad is not None):
            grad[grad.abs() > 65504] = torch.inf  # as FP16 would have it
        scale = self.scaler.get_scale()
        self.scaler.step(self.optimizer)  # unscales; does nothing when a gradient is infinite
        self.scaler.update()
        self.optimizer.zero_grad()
        if self.scaler.get_scale() >= scale:  # a skipped update skips the schedule too
            self.scheduler.step()
        self.cursor += 1
        return loss.item()


def small_run_text() -> str:
    """The source of `SmallRun`, for a learner to read."""
    return inspect.getsource(SmallRun)


# What the judges need: their own save and resume, with parts that can be left out.

PARTS = ("model", "optimizer", "scheduler", "scaler", "generator", "cursor")


def snapshot(run: SmallRun) -> dict[str, Any]:
    """Every part of a run, copied."""
    state = {name: getattr(run, name).state_dict() for name in ("model", "optimizer", "scheduler", "scaler")}
    return copy.deepcopy({**state, "generator": run.generator.get_state(), "cursor": run.cursor})


def restore(run: SmallRun, saved: dict[str, Any], parts: Collection[str] = PARTS) -> None:
    """Put the saved `parts` into a run."""
    saved = copy.deepcopy(saved)
    for name in ("model", "optimizer", "scheduler", "scaler"):
        if name in parts:
            getattr(run, name).load_state_dict(saved[name])
    if "generator" in parts:
        run.generator.set_state(saved["generator"])
    if "cursor" in parts:
        run.cursor = saved["cursor"]


def weights(run: Any) -> Tensor:
    """All parameters of a run as one vector, copied."""
    return torch.cat([p.detach().flatten() for p in run.model.parameters()]).clone()


def alike(one: Any, other: Any) -> bool:
    """Whether two saved states hold the same, bit for bit."""
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return bool(one == other)


def trajectory(
    make: Callable[[], Any],
    steps: int,
    stops: Sequence[int] = (),
    save: Callable[[Any], Any] = snapshot,
    load: Callable[[Any, Any], Any] = restore,
) -> list[Tensor]:
    """Weights at 0, 1, ... `steps` steps done; at each of `stops` the run is saved and a new one goes on."""
    run, out = make(), []
    for done in range(steps + 1):
        if done in stops:
            saved = copy.deepcopy(save(run))  # as if it went through a file
            run = make()
            load(run, saved)
        out.append(weights(run))
        if done < steps:
            run.step()
    return out


def first_difference(one: Sequence[Tensor], other: Sequence[Tensor], tolerance: float = 0.0) -> int | None:
    """How many steps were done when two trajectories first differ by more than `tolerance`; None: never."""
    for done, (a, b) in enumerate(zip(one, other, strict=True)):
        if not bool(((a - b).abs() <= tolerance).all()):
            return done
    return None
