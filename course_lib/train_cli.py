"""`course train`: a training run in the terminal. The flags are the fields of `TrainConfig`."""

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from tqdm.auto import tqdm

from course_lib.config import TrainConfig
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
    """Run `course train` with these words and return the exit status: 0, or 130 after Ctrl-C."""
    options = parse(argv)
    from course_lib.trainer import Trainer

    progress = None if options.quiet else Progress()
    try:
        result = Trainer(options.train, on_event=progress).run()
    finally:
        if progress is not None:
            progress.close()
    if options.json:
        print(json.dumps(result_to_dict(result)), flush=True)
    else:
        size = "none" if result.val_bits_per_byte is None else f"{result.val_bits_per_byte:.3f}"
        print(
            f"{result.steps} steps in {result.seconds:.1f} s ({result.tokens_per_second:,.0f} tokens/s); "
            f"training loss {result.train_loss:.3f} nats per token, validation {size} bits per byte"
            + (f"; {result.skipped} steps skipped" if result.skipped else "")
        )
    return 130 if result.interrupted else 0
