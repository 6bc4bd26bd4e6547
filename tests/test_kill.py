"""`kill -9` at random moments: the run goes on from its newest checkpoint and ends with the same bits."""

import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from test_resume import CORPORA, differing, small, state_of

from course_lib.config import TrainConfig
from course_lib.step import training_step
from course_lib.store import latest, steps
from course_lib.trainer import Trainer

STEPS = 12
CORPUS = CORPORA["over the end of an epoch"]


def config_of(out: Path) -> TrainConfig:
    return small(steps=STEPS, out=out, keep_checkpoints=2, precision="fp16", micro_batch=2, model={"dropout": 0.1})


def go_on(out: Path, say: Connection | None = None) -> Trainer:
    """Begin, or resume from the newest checkpoint; save after each step, and say so."""
    there = latest(out).path is not None
    trainer = Trainer.resume(out, corpus=CORPUS) if there else Trainer(config_of(out), corpus=CORPUS)
    trainer.model.train()
    if say is not None:
        say.send(trainer.step)
    while trainer.step < STEPS:
        training_step(trainer.parts, trainer.step)
        trainer.save()
        if say is not None:
            say.send(trainer.step)
    return trainer


@pytest.fixture(scope="module")
def server() -> Any:
    """Children are forked from a process that has imported everything and trained nothing."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["course_lib.trainer", "torch._dynamo"])  # an optimizer imports the second
    return context


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    return go_on(tmp_path_factory.mktemp("straight"))


def said(pipe: Connection) -> Iterator[int]:
    """Everything that a child said before it died."""
    try:
        while pipe.poll(60):
            yield pipe.recv()
    except EOFError:
        return


def child(server: Any, out: Path, wait: float | None) -> tuple[int, bool, float]:
    """Run a child; kill it so many seconds after its first word.

    The last step it said, whether it was killed, and the seconds from its first word to its end.
    """
    ours, theirs = server.Pipe(duplex=False)
    process = server.Process(target=go_on, args=(out, theirs))
    process.start()
    theirs.close()
    last, began = ours.recv(), time.perf_counter()
    if wait is not None:
        process.join(wait)
        process.kill()
    for last in said(ours):  # noqa: B007
        pass
    process.join(60)
    assert process.exitcode in ((0,) if wait is None else (0, -9)), process.exitcode
    return last, process.exitcode != 0, time.perf_counter() - began


def rounds(server: Any, straight: Trainer, out: Path, count: int, seed: int) -> dict[str, int]:
    """`count` runs, each killed up to twice. What happened, counted."""
    rng = random.Random(seed)
    whole = min(child(server, out / name, None)[2] for name in ("first", "second"))
    seen = {"killed": 0, "in a save": 0, "resumed": 0}
    for number in range(count):
        here, before = out / f"round-{number}", 0
        for _ in range(2):
            last, killed, _ = child(server, here, rng.uniform(0, whole))
            found = latest(here)
            seen["killed"] += killed
            seen["in a save"] += bool(found.skipped) or any(path.suffix == ".new" for _, path in steps(here))
            if last or before:  # what was said to be saved is there
                assert found.path is not None and int(found.path.name[5:11]) >= max(last, before), (last, found)
                seen["resumed"] += 1
            before = max(last, before)
        assert child(server, here, None)[:2] == (STEPS, False)
        end = Trainer.resume(here, corpus=CORPUS)
        assert end.step == STEPS and differing(state_of(end), state_of(straight)) == []
        kept = [path.name for _, path in steps(here)]
        assert kept == [f"step-{STEPS:06d}", f"step-{STEPS - 1:06d}"], kept
    return seen


@pytest.mark.slow
def test_a_few_kills(server: Any, straight: Trainer, tmp_path: Path) -> None:
    seen = rounds(server, straight, tmp_path, 4, seed=0)
    assert seen["killed"] >= 2, seen


@pytest.mark.stress
@pytest.mark.timeout(1800)
def test_a_hundred_kills(server: Any, straight: Trainer, tmp_path: Path) -> None:
    seen = rounds(server, straight, tmp_path, 100, seed=1)
    assert seen["killed"] >= 100 and seen["in a save"] >= 20 and seen["resumed"] >= 50, seen
