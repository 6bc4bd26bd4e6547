"""Runs on two real ranks, and the faults that need them. Each rank writes its log to a folder, so a hang leaves one."""

import json
import lzma
import math
import re
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor

from course_lib.errors import RankError
from course_lib.failures._watch import Watch
from course_lib.failures.runs import KEPT_EVERY, VAL_EVERY, Kept, Run, Setup, Text, keep, make_trainer, put_back, text
from course_lib.parallel.launch import run_ranks
from course_lib.step import Batch
from course_lib.trainer import Trainer

__all__: list[str] = []

LATER = 25
"""The step from which a rank or its loader is slow, and at which two ranks part."""


def keep_own_gradients(trainer: Trainer, _: Text) -> None:
    """Rank 1 updates from a copy of its gradients that a hook made before they were summed over the ranks."""
    if trainer.ranks.rank != 1:
        return
    clip, own = trainer.parts.clip, dict[str, Tensor]()

    def remember(name: str) -> Callable[[Tensor], None]:
        return lambda gradient: own.__setitem__(name, gradient.clone())

    for name, p in trainer.model.named_parameters():
        p.register_hook(remember(name))

    def replaced() -> Tensor:
        for name, p in trainer.model.named_parameters():
            p.grad = own[name]
        return clip()

    trainer.parts.clip = replaced


def work_more(trainer: Trainer, _: Text) -> None:
    """From a step on, something else runs on the node of rank 1: it computes for 60 ms more in every step."""
    if trainer.ranks.rank != 1:
        return
    forward = trainer.parts.forward

    def slow(inputs: Tensor) -> Tensor:
        if trainer.step >= LATER:
            start = time.process_time()
            while time.process_time() - start < 0.06:  # of its own computing: some five steps
                with torch.no_grad():
                    trainer.model(inputs)
        return forward(inputs)

    trainer.parts.forward = slow


def unpack_every_batch(trainer: Trainer, source: Text) -> None:
    """From a step on, the loader unpacks its whole compressed shard for each batch."""
    batch, shard = trainer.parts.batch, lzma.compress(source.corpus.train.tobytes(), preset=1)

    def unpacked(step: int, micro: int) -> Batch:
        start = time.process_time()
        while step >= LATER and time.process_time() - start < 0.06:  # as long as a shard that is ten times as large
            lzma.decompress(shard)
        return batch(step, micro)

    trainer.parts.batch = unpacked


def barrier_on_one(trainer: Trainer, _: Text) -> None:
    """Rank 0 alone waits at a barrier, in a branch that only the rank with the log takes."""
    record = trainer.parts.record

    def logged(step: int, *numbers: Any) -> Any:
        if step == LATER and trainer.ranks.first:
            dist.barrier()
        return record(step, *numbers)

    trainer.parts.record = logged


def rank_run(setup: Setup, folder: str) -> None:
    """What each rank does: train, and write a line for each step to its log; rank 0 also keeps states."""
    source, rank = text(setup.seed), dist.get_rank()
    trainer = make_trainer(setup, source, parallel="ddp")
    trainer.model.train()
    run = Run(None, setup.seed, setup, source)
    if setup.fault is not None:
        setup.fault(trainer, source)
    watch = Watch(run, trainer)
    with (Path(folder) / f"rank-{rank}.jsonl").open("w", encoding="utf-8", newline="\n") as log:
        for step in range(setup.steps):
            if rank == 0 and step % KEPT_EVERY == 0:
                _write(keep(step, trainer), folder)
            start = time.process_time()
            watch.step(step)
            own = time.process_time() - start
            watch.put(val_loss=watch.validate() if (step + 1) % VAL_EVERY == 0 else math.nan)
            last = [{name: values[-1] for name, values in table.items()} for table in (run.series, run.notes)]
            batches = [{key: np.asarray(value).tolist() for key, value in asdict(b).items()} for b in watch.micro]
            log.write(json.dumps({"series": last[0], "notes": last[1], "seconds": own, "batches": batches}) + "\n")
            log.flush()
    if rank == 0:
        _write(keep(setup.steps, trainer), folder)


def _write(kept: Kept, folder: str) -> None:
    tensors = {f"weights/{name}": value for name, value in kept.weights.items()}
    tensors |= {f"moments/{name}": value for name, value in kept.moments.items()}
    save_file(tensors, Path(folder) / f"kept-{kept.step:04d}.safetensors")


def _read(path: Path) -> Kept:
    tensors = load_file(path)
    parts: dict[str, dict[str, Tensor]] = {"weights": {}, "moments": {}}
    for name, value in tensors.items():
        part, _, rest = name.partition("/")
        parts[part][rest] = value
    return Kept(int(path.stem.split("-")[1]), parts["weights"], parts["moments"])


def go_on_ranks(run: Run, on_step: Callable[[int], None] | None = None) -> Run:
    """Train on two ranks. The trainer of the run is then one process that has rank 0's weights, to replay with."""
    with TemporaryDirectory(prefix="course-incident-") as folder:
        error = None
        try:
            run_ranks(rank_run, 2, run.setup, folder, timeout=120.0)  # ranks that part are found long before
        except RankError as caught:
            error = caught
        logs = [_lines(Path(folder) / f"rank-{rank}.jsonl") for rank in (0, 1)]
        kept = [_read(path) for path in sorted(Path(folder).glob("kept-*.safetensors"))]
    if error is not None and min(map(len, logs)) < LATER:
        raise error
    _fill(run, logs, kept, error)
    for step in range(run.steps if on_step is not None else 0):
        on_step(step)  # type: ignore[misc]
    return run


def _lines(path: Path) -> list[dict[str, Any]]:
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def _fill(run: Run, logs: list[list[dict[str, Any]]], kept: list[Kept], error: RankError | None) -> None:
    """The two logs and the kept states as one run."""
    for first, second in zip(*logs, strict=False):
        for name, value in first["series"].items():
            run.series.setdefault(name, []).append(value)
        run.series.setdefault("checksum_1", []).append(second["series"]["checksum_0"])
        loading = max(one["notes"]["loader_seconds"] for one in (first, second))
        notes = {
            **first["notes"],
            "loader_seconds": loading,
            "seconds_0": first["seconds"],
            "seconds_1": second["seconds"],
        }
        for name, value in notes.items():
            run.notes.setdefault(name, []).append(value)
        rows = [*first["batches"], *second["batches"]]
        run.batches.append([Batch(np.array(b["inputs"]), np.array(b["targets"]), b["valid"]) for b in rows])
    lines = str(error).splitlines() if error is not None else []
    for rank in (0, 1):
        said = next((m[1] for line in lines if (m := re.match(rf"\s+rank {rank}: (.*)", line))), "has returned")
        run.ranks.append({"steps": len(logs[rank]), "place": said})
    run.events.append(
        f"step {run.setup.steps}: the run ended as planned"
        if error is None
        else f"step {run.steps}: no rank went on; the run was ended from outside"
    )
    run.kept = [one for one in kept if one.step < run.steps]
    run.trainer = make_trainer(run.setup, run.text)
    put_back(run.trainer, kept[-1])
    if run.setup.fault is not None:
        run.setup.fault(run.trainer, run.text)
