"""Watch a training run: its loss curve, speed and remaining time, while it runs."""

from __future__ import annotations

import base64
import math
import sys
import time
from typing import Any

import ipywidgets
import numpy as np
from IPython.display import display

from course_lib.events import Event, Finished, Started, Stepped, TrainResult, Validated
from course_lib.figures.curve import smoothed, training_curve
from course_lib.figures.style import png
from course_lib.widgets.faces import caption_html, display_html, in_notebook, numbers_html, rich, styles

__all__ = ["Watch", "watch"]

_EVERY = 0.25  # seconds between two drawings


class Watch:
    """What `watch` returns: hand it to a Trainer as `on_event`. It may watch one run after another."""

    def __init__(self, title: str, per_byte: bool = True) -> None:
        self.title, self.per_byte = title, per_byte
        self._clear()

    def _clear(self) -> None:
        self.steps: list[int] = []
        self.losses: list[float] = []  # finite ones: a skipped FP16 step may have none
        self._done = self._skipped = 0
        self.validations: list[tuple[int, float]] = []
        self._bits: float | None = None
        self._first = self._last = 0
        self._tokens = 0
        self._seconds = 0.0
        self._drawn = 0.0
        self._view: Any = None
        self._bar: Any = None

    def __call__(self, event: Event) -> None:
        """Take one event of the run."""
        if isinstance(event, Started):
            self._clear()
            self._first, self._last = event.step, event.steps
            self._done = event.step
            self._open()
        elif isinstance(event, Stepped):
            record = event.record
            self._done = record.step + 1
            self._skipped += record.skipped
            if math.isfinite(record.loss):
                self.steps.append(record.step)
                self.losses.append(record.loss)
            self._tokens += record.tokens
            self._seconds += record.seconds
            if time.monotonic() - self._drawn > _EVERY:
                self._draw()
        elif isinstance(event, Validated):
            if math.isfinite(event.validation.nats_per_token):
                self.validations.append((event.step, event.validation.nats_per_token))
            self._bits = event.validation.bits_per_byte if self.per_byte else None
            self._draw()
        elif isinstance(event, Finished):
            self._close(event.result)

    # ------------------------------------------------------------------------------------------------ while it runs

    def _open(self) -> None:
        if not in_notebook():
            from tqdm import tqdm

            self._bar = tqdm(total=self._last, initial=self._first, desc=self.title, unit="step", file=sys.stderr)
            return
        self._page = ipywidgets.HTML()
        box = ipywidgets.VBox([styles(), self._page])
        for name in ("course-widget", "course-live"):
            box.add_class(name)
        self._draw()
        view = {"version_major": 2, "version_minor": 0, "model_id": box.model_id}
        bundle: dict[str, Any] = {
            "application/vnd.jupyter.widget-view+json": view,
            "text/plain": f"{self.title}: training",
        }
        bundle["text/html"] = f"<p><i>{rich(self.title)}: run this cell to watch it.</i></p>"
        self._box = box
        self._view = display(bundle, raw=True, display_id=True)

    def _recent(self) -> float:
        return float(np.mean(self.losses[-20:]))

    def _numbers(self) -> list[tuple[str, str]]:
        row = [(f"{self._done:,} of {self._last:,}", "steps")]
        if self.losses:
            row.append((f"{self._recent():.2f}", "training loss, nats a token"))
        if self._bits is not None:
            row.append((f"{self._bits:.2f}", "validation, bits a byte"))
        if self._seconds > 0:
            row.append((f"{self._tokens / self._seconds:,.0f}", "tokens a second"))
            left = (self._last - self._done) * self._seconds / max(self._done - self._first, 1)
            row.append((f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min", "left"))
        if self._skipped:
            row.append((f"{self._skipped:,}", "steps skipped"))
        return row

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if self._bar is not None:
            bits = {} if self._bits is None else {"bits/byte": f"{self._bits:.3f}"}
            loss = {"loss": f"{self.losses[-1]:.3f}"} if self.losses else {}
            self._bar.set_postfix({**loss, **bits}, refresh=False)
            self._bar.update(self._done - self._bar.n)
            return
        if not in_notebook():
            return
        share = (self._done - self._first) / max(self._last - self._first, 1)
        progress = (
            '<div role="progressbar" aria-label="training" aria-valuemin="0" aria-valuemax="100" '
            f'aria-valuenow="{100 * share:.0f}" style="height: 6px; border-radius: 3px; margin: 6px 0; '
            'background: var(--jp-border-color2, #ddd)">'
            f'<div style="height: 6px; border-radius: 3px; width: {share:.1%}; background: #0072B2"></div></div>'
        )
        self._page.value = (
            f'<div class="course-title">{rich(self.title)}</div>{progress}{self._svg()}{numbers_html(self._numbers())}'
        )

    def _svg(self, width: int = 790, height: int = 190) -> str:
        if len(self.losses) < 2:
            return f'<div style="height: {height}px" class="course-muted">The first steps take longest.</div>'
        steps, losses = np.array(self.steps, dtype=float), np.array(self.losses)
        mean = smoothed(self.losses, max(2, min(20, len(self.losses) // 15)))
        stride = max(1, len(steps) // 400)
        seen = [loss for _, loss in self.validations]
        low, high = min([*losses, *seen]), max([*losses, *seen])
        pad = 0.05 * (high - low or 1.0)
        low, high = low - pad, high + pad
        left, bottom = 44, 20

        def x(step: Any) -> Any:
            return left + (step - self._first) / max(self._last - self._first, 1) * (width - left - 10)

        def y(loss: Any) -> Any:
            return (height - bottom) * (high - loss) / (high - low)

        def path(values: np.ndarray) -> str:
            return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x(steps[::stride]), y(values[::stride]), strict=True))

        ticks = "".join(
            f'<line x1="{left}" x2="{width}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="currentColor" opacity="0.15"/>'
            f'<text x="{left - 8}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>'
            for v in _ticks(low, high)
        )
        dots = "".join(f'<circle cx="{x(s):.1f}" cy="{y(v):.1f}" r="4" fill="#D55E00"/>' for s, v in self.validations)
        return (
            f'<svg role="img" aria-label="Loss by step, in nats a token" viewBox="0 0 {width} {height}" '
            'style="width: 100%; display: block; overflow: visible; font-size: 12px; fill: currentColor">'
            f"{ticks}"
            f'<polyline points="{path(losses)}" fill="none" stroke="#56B4E9" stroke-width="1" opacity="0.6"/>'
            f'<polyline points="{path(mean)}" fill="none" stroke="#0072B2" stroke-width="2.4"/>{dots}'
            f'<text x="{left}" y="{height - 3}">step {self._first:,}</text>'
            f'<text x="{width}" y="{height - 3}" text-anchor="end">{self._last:,}</text></svg>'
        )

    # ------------------------------------------------------------------------------------------------- when it is over

    def _close(self, result: TrainResult) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.close()
            self._bar = None
        row = [
            (f"{result.tokens_per_second:,.0f}", "tokens a second"),
            (f"{result.seconds:.0f} s", "in training steps"),
        ]
        row.append((f"{result.parameters / 1e6:.2f} M", "parameters"))
        if self.per_byte and result.val_bits_per_byte is not None:
            row.insert(0, (f"{result.val_bits_per_byte:.2f}", "bits a byte, validation"))
        elif self.validations:
            row.insert(0, (f"{self.validations[-1][1]:.2f}", "nats a token, validation"))
        if result.skipped:
            row.append((f"{result.skipped:,}", "steps skipped"))
        if not self.losses:
            return
        headline = f"{self.title}: from {self.losses[0]:.2f} to {self._recent():.2f} nats a token"
        caption = "The loss of every step (pale) and smoothed"
        caption += ", with the validation loss as dots." if self.validations else "."
        if not in_notebook():
            print(f"{headline}. " + "; ".join(f"{value} {label}" for value, label in row))
            return
        ran = f"{self._done - self._first:,} steps on {result.device} in {result.precision}"
        subtitle = f"{ran}, on the machine that made this page."
        picture = png(
            training_curve(self.steps, self.losses, self.validations, title=headline, subtitle=subtitle, row=row)
        )
        self._view.update(
            {"image/png": base64.b64encode(picture.data).decode("ascii"), "text/plain": f"[picture] {headline}"},
            metadata={"image/png": {"width": picture.width, "height": picture.height}},
            raw=True,
        )
        self._box.close()
        display_html(caption_html(caption), caption)


def _ticks(low: float, high: float, about: int = 4) -> list[float]:
    step = 10 ** np.floor(np.log10((high - low) / about))
    step *= next(factor for factor in (1, 2, 5, 10) if (high - low) / (step * factor) <= about + 1)
    return [round(float(v), 6) for v in np.arange(np.ceil(low / step) * step, high, step)]


def watch(title: str, *, per_byte: bool = True) -> Watch:
    """A callback that shows a training run while it runs: `Trainer(config, on_event=watch("The first run")).run()`.

    In a notebook: the loss curve, steps done, tokens a second, time left, drawn at most four times a second; at the end
    the picture of the whole run stays in the page, with its caption. Elsewhere: a progress bar on stderr, then a line.
    `per_byte` False: the validation is written in nats a token, not in bits a byte.
    """
    return Watch(title, per_byte)
