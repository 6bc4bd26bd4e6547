"""`course train`: a training run in the terminal. The flags are the fields of `TrainConfig`."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from tqdm.auto import tqdm

from course_lib.config import TrainConfig, require
from course_lib.events import (
    Event,
    Finished,
    Resumed,
    Sampled,
    Saved,
    Started,
    Stepped,
    StepRecord,
    TrainResult,
    Validated,
    json_number,
)

if TYPE_CHECKING:
    from course_lib.parallel.replicas import OneProcess

__all__ = ["Progress", "main", "result_to_dict"]

DESCRIPTION = """Train a small GPT on this machine and say how well it predicts text it has not seen.

Without options: the preset tiny (about 0.9M parameters) on Python's language reference, which is on your disk already.

Examples:
  course train                                the default run
  course train --text book.txt --steps 2000   a text of your own
  course train --preset small --out runs/a    a larger model; metrics and checkpoints in runs/a
  course train --resume runs/a                go on from its newest complete checkpoint, exactly
  course train --out runs/a --checkpoint-every 100 --keep-checkpoints 3
                                              a checkpoint every 100 steps, the last three kept
  course train --json                         one line of JSON on stdout, everything else on stderr
  torchrun --nproc-per-node 2 -m course_lib train --parallel ddp
                                              the same run on two ranks; --parallel fsdp shards the model

Ctrl-C ends a run after its current step, with a checkpoint if there is --out (exit status 130)."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """A run, and how to report it."""

    train: Annotated[TrainConfig, tyro.conf.arg(name="")] = dataclasses.field(default_factory=TrainConfig)
    """The run."""
    json: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Print the result as one line of JSON, alone on stdout."""
    quiet: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """No progress bar and no messages; only the result."""


class Progress:
    """An `on_event` callback: a progress bar and a line for each validation and checkpoint, all on stderr."""

    def __init__(self, write: Callable[[str], None] | None = None) -> None:
        self.bar: Any = None
        self.write = write or (lambda line: tqdm.write(line, file=sys.stderr))

    def __call__(self, event: Event) -> None:
        if isinstance(event, Started):
            reason = f" ({event.reason})" if event.reason not in ("", "asked for") else ""
            self.write(f"{event.parameters:,} parameters, {event.device}, {event.precision}{reason}")
            self.bar = tqdm(
                total=event.steps, initial=event.step, unit="step", file=sys.stderr, dynamic_ncols=True, mininterval=0.5
            )
        elif isinstance(event, Resumed):
            for reason in event.skipped:
                self.write(f"skipped {reason}")
            self.write(f"going on from {event.path} at step {event.step}")
            for difference in event.differs:
                self.write(f"not as it was then: {difference}")
        elif isinstance(event, Stepped):
            self.bar.update()
            if event.record.skipped:
                self.write(f"step {event.record.step}: skipped, {_why_skipped(event.record)}")
            elif event.record.step % 10 == 0:
                self.bar.set_postfix_str(f"loss {event.record.loss:.3f}", refresh=False)
        elif isinstance(event, Validated):
            found = event.validation
            size = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.3f} bits per byte"
            self.write(f"step {event.step}: validation loss {found.nats_per_token:.3f} nats per token{size}")
        elif isinstance(event, Sampled):
            self.write(f"a sample:\n{event.text}")
        elif isinstance(event, Saved):
            self.write(f"checkpoint: {event.path}")
        elif isinstance(event, Finished):
            self.close()

    def close(self) -> None:
        """Close the bar, also after an error."""
        if self.bar is not None:
            self.bar.close()


def _why_skipped(record: StepRecord) -> str:
    if not math.isfinite(record.loss):
        return f"the loss is {record.loss}: a smaller loss scale does not cure that"
    return f"gradients overflowed at loss scale {record.scale:g}"


def result_to_dict(result: TrainResult) -> dict[str, Any]:
    """The result as JSON data, without its history."""
    out = dataclasses.asdict(dataclasses.replace(result, history=[], validations=[]))
    del out["history"], out["validations"]
    return {name: str(value) if isinstance(value, Path) else json_number(value) for name, value in out.items()}


def parse(argv: Sequence[str]) -> Options:
    """The options of a command line. With --resume, the checkpoint's own configuration is the default of every flag."""
    default = Options()
    words = [part for word in argv for part in (word.split("=", 1) if word.startswith("--resume=") else [word])]
    if "--resume" in words[:-1]:
        from course_lib.trainer import saved_config

        folder = Path(words[words.index("--resume") + 1])
        default = Options(train=dataclasses.replace(saved_config(folder), resume=folder))
    return tyro.cli(
        Options,
        args=list(argv),
        prog="course train",
        description=DESCRIPTION,
        default=default,
        config=(tyro.conf.OmitArgPrefixes, tyro.conf.OmitSubcommandPrefixes),
    )


def main(argv: Sequence[str]) -> int:
    """Run `course train` with these words and return the exit status: 0, or 130 after Ctrl-C.

    Also as one of the ranks that torchrun started: rank 0 speaks for all of them.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return _run(parse(argv), first=True)
    from course_lib.parallel.torchrun import speak_once

    return speak_once(lambda ranks: _as_rank(argv, ranks))


def _as_rank(argv: Sequence[str], ranks: "OneProcess") -> int:
    with ranks.together():
        options = parse(argv)
    require(
        options.train.parallel != "none" or ranks.world_size == 1,
        f"torchrun started {ranks.world_size} processes, each of which would do the whole run; add --parallel ddp or "
        "--parallel fsdp",
    )
    return _run(options, ranks.first)


def _run(options: Options, first: bool) -> int:
    from course_lib.trainer import Trainer

    progress = Progress() if first and not options.quiet else None
    try:
        result = Trainer(options.train, on_event=progress).run()
    finally:
        if progress is not None:
            progress.close()
    if options.json and first:
        print(json.dumps(result_to_dict(result)), flush=True)
    elif first:
        size = "none" if result.val_bits_per_byte is None else f"{result.val_bits_per_byte:.3f}"
        print(
            f"{result.steps} steps in {result.seconds:.1f} s ({result.tokens_per_second:,.0f} tokens/s); "
            f"training loss {result.train_loss:.3f} nats per token, validation {size} bits per byte"
            + (f"; {result.skipped} steps skipped" if result.skipped else "")
        )
    return 130 if result.interrupted else 0
