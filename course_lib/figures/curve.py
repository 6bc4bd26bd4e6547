"""The loss of a training run, step by step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, end_labels, new_figure, numbers, tint

__all__ = ["smoothed", "training_curve"]


def smoothed(values: Sequence[float], span: int = 20) -> np.ndarray:
    """Mean over `span` neighbours, half on each side, so without lag. (n,) from (n,).

    Near the start it takes fewer, since a curve is steep there; near the end, a straight line through the last `span`.
    """
    total = np.concatenate([[0.0], np.cumsum(values)])
    index = np.arange(len(values))
    half = np.minimum(span // 2, np.minimum(index, len(values) - 1 - index))
    mean: np.ndarray = (total[index + half + 1] - total[index - half]) / (2 * half + 1)
    if len(values) > span > 2:
        slope, level = np.polyfit(index[-span:], np.asarray(values, dtype=float)[-span:], 1)
        mean[-(span // 2) :] = slope * index[-(span // 2) :] + level
    return mean


def _span(count: int) -> int:
    return max(2, min(20, count // 15))


def training_curve(
    steps: Sequence[int],
    losses: Sequence[float],
    validations: Sequence[tuple[int, float]] = (),
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
    height: int = 250,
) -> Figure:
    """Loss (nats per token) of each step, pale, and smoothed; dots for validation (steps done, nats per token).

    `row` holds the big numbers under it: (value, label).
    """
    fig, ax = new_figure(title, subtitle, height=height)
    ax.plot(steps, losses, color=tint(COLORS["forward"], 0.35), linewidth=1.0)
    (line,) = ax.plot(steps, smoothed(losses, _span(len(losses))), color=COLORS["forward"], linewidth=2.2)
    labels = [(line, "training")]
    if validations:
        at, loss = zip(*validations, strict=True)
        (dots,) = ax.plot(at, loss, "o", color=COLORS["communication"], markersize=5.5, linestyle="none")
        labels.append((dots, "validation"))
    end_labels(ax, labels)
    ax.set_xlabel("step")
    ax.set_ylabel("nats a token")
    if row:
        numbers(fig, row)
    return fig
