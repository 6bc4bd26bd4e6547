"""What a training run reports: plain numbers in frozen dataclasses, handed to a callback while it runs. No torch."""

import json
import math
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from course_lib.errors import ConfigError

__all__ = [
    "Event",
    "Finished",
    "OnEvent",
    "Resumed",
    "RunLog",
    "Sampled",
    "Saved",
    "Started",
    "StepRecord",
    "Stepped",
    "StopSignal",
    "TrainResult",
    "Validated",
    "Validation",
    "event_to_dict",
    "json_number",
]


@dataclass(frozen=True)
class StepRecord:
    """One optimizer step."""

    step: int
    """Number of the step, from 0."""
    loss: float
    """Mean over the valid tokens of the global batch, in nats per token, before the update."""
    grad_norm: float
    """Norm of all gradients together, before clipping."""
    lr: float
    """Learning rate of this update."""
    tokens: int
    """Valid (predicted) tokens of the global batch."""
    seconds: float
    """Wall-clock time of the step."""
    scale: float | None = None
    """Loss scale of this step (fp16); None without a scaler. Loss and norm are the unscaled ones."""
    skipped: bool = False
    """The update was left out: a gradient was not finite. Weights, optimizer and scheduler are as before."""


@dataclass(frozen=True)
class Validation:
    """The loss over all validation documents."""

    nats_per_token: float
    """Mean cross entropy in nats."""
    bits_per_byte: float | None
    """Bits needed per byte of text; independent of the tokenizer. None when the tokens stand for no text."""
    tokens: int
    """Tokens predicted."""


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    steps: int
    """Optimizer steps done since the run began, over all its resumptions."""
    train_loss: float
    """Mean loss of the last updates (at most 50) of this call, in nats per token."""
    val_bits_per_byte: float | None
    """Bits per byte over the validation documents, with the last weights."""
    tokens_per_second: float
    """Trained tokens per second of training (validation, samples and checkpoints not counted)."""
    seconds: float
    """Time in training steps, in seconds."""
    parameters: int
    """Parameters, a tied matrix once."""
    val_loss: float | None = None
    """Nats per token over the validation documents, with the last weights."""
    tokens: int = 0
    """Tokens trained on in this call."""
    device: str = "cpu"
    """Where it ran."""
    precision: str = "fp32"
    """fp32, bf16 or fp16."""
    skipped: int = 0
    """Steps of this call whose update was left out, because a gradient was not finite (fp16)."""
    interrupted: bool = False
    """Stopped by Ctrl-C."""
    checkpoint: Path | None = None
    """The last checkpoint written in this call."""
    sample: str | None = None
    """Text written by the model at the end."""
    history: list[StepRecord] = field(default_factory=list)
    """Every step of this call."""
    validations: list[tuple[int, Validation]] = field(default_factory=list)
    """(steps done, validation) for every validation of this call."""


@dataclass(frozen=True)
class Started:
    """Training is about to begin."""

    step: int
    """Steps already done (more than 0 after a resume)."""
    steps: int
    """Step at which this call will stop."""
    parameters: int
    """Parameters, a tied matrix once."""
    device: str
    """Where it runs."""
    precision: str
    """fp32, bf16 or fp16."""
    reason: str = ""
    """Why this precision, in words."""


@dataclass(frozen=True)
class Resumed:
    """The run goes on from a checkpoint; comes after `Started`, once."""

    step: int
    """Steps done in it."""
    path: Path
    """Its folder."""
    skipped: tuple[str, ...] = ()
    """Newer folders that are incomplete or corrupt, and why."""
    differs: tuple[str, ...] = ()
    """What is not as it was when it was written: versions, CPU, threads, settings. The bits may differ from here on."""


@dataclass(frozen=True)
class Stepped:
    """One step was done."""

    record: StepRecord
    """Its numbers."""


@dataclass(frozen=True)
class Validated:
    """The validation documents were scored."""

    step: int
    """Steps done."""
    validation: Validation
    """The result."""


@dataclass(frozen=True)
class Sampled:
    """The model wrote some text."""

    step: int
    """Steps done."""
    text: str
    """Prompt and continuation."""


@dataclass(frozen=True)
class Saved:
    """A checkpoint was written."""

    step: int
    """Steps done."""
    path: Path
    """Its folder."""


@dataclass(frozen=True)
class Finished:
    """The run ended; the last event."""

    result: TrainResult
    """What it came to."""


Event = Started | Resumed | Stepped | Validated | Sampled | Saved | Finished
OnEvent = Callable[[Event], None]


def json_number(value: Any) -> Any:
    """The value as strict JSON allows it: infinity and NaN become the strings "inf", "-inf" and "nan"."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def event_to_dict(event: Event) -> dict[str, Any]:
    """The event as one flat JSON object, {"event": "stepped", "step": 3, "loss": ...}; a result without its history.

    A number that is not finite is a string: "inf", "-inf" or "nan".
    """
    if isinstance(event, Finished):
        event = Finished(replace(event.result, history=[], validations=[]))
    out: dict[str, Any] = {"event": type(event).__name__.lower()}
    for name, value in asdict(event).items():
        out.update(value if isinstance(value, dict) else {name: value})
    return {
        name: str(v) if isinstance(v, Path) else json_number(v)
        for name, v in out.items()
        if name not in ("history", "validations")
    }


class RunLog:
    """Collects a run's events, hands each to a callback, and appends each to `out`/metrics.jsonl, one line an event.

    A resumed run appends to the same file, after a line of its own "started" event.
    """

    def __init__(self, on_event: OnEvent | None = None, out: Path | None = None) -> None:
        self.on_event, self.out = on_event, out
        self.history: list[StepRecord] = []
        self.validations: list[tuple[int, Validation]] = []
        self.sample: str | None = None
        self.checkpoint: Path | None = None
        self._file: IO[str] | None = None

    def __enter__(self) -> "RunLog":
        if self.out is not None:
            try:
                self.out.mkdir(parents=True, exist_ok=True)
                self._file = (self.out / "metrics.jsonl").open("a", encoding="utf-8", newline="\n")
            except OSError as error:
                raise ConfigError(f"out={self.out} cannot be written ({error.strerror}); give another folder") from None
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def __call__(self, event: Event) -> None:
        """Take in one event."""
        if isinstance(event, Stepped):
            self.history.append(event.record)
        elif isinstance(event, Validated):
            self.validations.append((event.step, event.validation))
        elif isinstance(event, Sampled):
            self.sample = event.text
        elif isinstance(event, Saved):
            self.checkpoint = event.path
        if self._file is not None:
            self._file.write(json.dumps(event_to_dict(event)) + "\n")
            if not isinstance(event, Stepped) or event.record.step % 20 == 0:
                self._file.flush()
        if self.on_event is not None:
            self.on_event(event)

    def result(self, steps: int, parameters: int, device: str, precision: str, interrupted: bool) -> TrainResult:
        """The run so far. Its validation counts only when it is of the last step."""
        losses = [record.loss for record in self.history if not record.skipped][-50:]
        seconds = sum(record.seconds for record in self.history)
        tokens = sum(record.tokens for record in self.history)
        last = self.validations[-1][1] if self.validations and self.validations[-1][0] == steps else None
        return TrainResult(
            steps=steps,
            train_loss=sum(losses) / len(losses) if losses else math.nan,
            val_bits_per_byte=last.bits_per_byte if last else None,
            tokens_per_second=tokens / seconds if seconds else 0.0,
            seconds=seconds,
            parameters=parameters,
            val_loss=last.nats_per_token if last else None,
            tokens=tokens,
            device=device,
            precision=precision,
            skipped=sum(record.skipped for record in self.history),
            interrupted=interrupted,
            checkpoint=self.checkpoint,
            sample=self.sample,
            history=self.history,
            validations=self.validations,
        )


class StopSignal:
    """Inside the block, the first Ctrl-C only sets `set`, so that no step is cut in two; the second interrupts.

    signals: those that count as Ctrl-C; a rank of torchrun is told by SIGTERM.
    """

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT,)) -> None:
        self.set = False
        self.signals = signals
        self._previous: dict[signal.Signals, Any] = {}

    def _handle(self, *_: object) -> None:
        self.set = True
        self._restore()

    def _restore(self) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def __enter__(self) -> "StopSignal":
        if threading.current_thread() is threading.main_thread():
            for number in self.signals:
                self._previous[number] = signal.getsignal(number) or signal.default_int_handler
                signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()
