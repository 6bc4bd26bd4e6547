"""Pictures of chapter 3: rounding, a wrong factor, unequal tokens, memory against speed, and what differs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.style import (
    COLORS,
    end_labels,
    key,
    new_figure,
    new_panels,
    numbers,
    series,
)

__all__ = ["by_length", "differences", "memory_and_speed", "piece_errors", "token_pull", "wrong_factor"]

Row = Sequence[tuple[str, str]]


def piece_errors(
    errors: Mapping[str, Mapping[int, float]], *, title: str, subtitle: str | None = None, row: Row = ()
) -> Figure:
    """Relative difference from the gradient of the whole batch, a line a format: {"FP32": {micro-batches: error}}."""
    fig, ax = new_figure(title, subtitle, height=270)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    lines = []
    for index, (name, points) in enumerate(errors.items()):
        style = {**series(index), "marker": "o", "markersize": 5.5}
        (line,) = ax.plot(list(points), list(points.values()), **style)
        lines.append((line, f"{name}: {list(points.values())[-1]:.0e}"))
    end_labels(ax, lines)
    counts = list(next(iter(errors.values())))
    ax.set_xticks(counts, [str(count) for count in counts])
    ax.minorticks_off()
    values = [value for points in errors.values() for value in points.values()]
    ax.set_ylim(min(values) / 10, max(values) * 10)
    ax.set_xlabel("micro-batches that the batch is cut into")
    ax.set_ylabel("relative difference")
    if row:
        numbers(fig, row)
    return fig


def wrong_factor(
    factors: Sequence[float],
    moves: Mapping[str, Sequence[float]],
    marked: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Row = (),
) -> Figure:
    """Move of the weights against the factor that the gradient is wrong by, both axes log: {optimizer: moves}.

    `marked` is the factor of the text; a vertical line stands there.
    """
    fig, ax = new_figure(title, subtitle, height=290)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.axvline(1, color=COLORS["rule"], linewidth=1.0)
    ax.axvline(marked, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (2, 2)))
    lines = []
    for index, (name, values) in enumerate(moves.items()):
        (line,) = ax.plot(factors, values, **series(index))
        lines.append((line, name))
    end_labels(ax, lines)
    low, high = ax.get_ylim()
    ax.annotate(
        f"{marked:g} times",
        (marked, low),
        xytext=(5, 8),
        textcoords="offset points",
        size=9.5,
        color=COLORS["muted"],
    )
    ax.annotate(
        "right", (1, low), xytext=(-5, 8), textcoords="offset points", ha="right", size=9.5, color=COLORS["ink"]
    )
    ax.set_ylim(low, high)
    ax.set_xlabel("factor that the gradient is wrong by")
    ax.set_ylabel("move of the weights, right = 1")
    if row:
        numbers(fig, row)
    return fig


def token_pull(counts: Sequence[int], *, title: str, subtitle: str | None = None, row: Row = ()) -> Figure:
    """Pull of one token under the mean of means, as a multiple of the right one; a bar a micro-batch, by its count."""
    ordered = np.sort(np.asarray(counts))
    pull = ordered.sum() / (len(ordered) * ordered)  # (1 / (micro-batches x count)) over (1 / all tokens)
    fig, ax = new_figure(title, subtitle, height=270)
    colors = [COLORS["vermilion"] if value > 1 else COLORS["blue"] for value in pull]
    ax.bar(range(len(ordered)), pull - 1, bottom=1, width=0.72, color=colors)
    ax.set_yscale("log", base=2)
    ax.axhline(1, color=COLORS["ink"], linewidth=1.2)
    for place, value in enumerate(pull):
        ax.annotate(
            f"{value:.2g}",
            (place, value),
            xytext=(0, 9 if value > 1 else -10),
            textcoords="offset points",
            ha="center",
            va="center",
            size=9.5,
        )
    low, high = np.floor(np.log2(pull.min())) - 1, np.ceil(np.log2(pull.max())) + 0.7
    ticks = 2.0 ** np.arange(low, high)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.set_ylim(2.0**low, 2.0**high)
    ax.set_xticks(range(len(ordered)), [str(count) for count in ordered])
    ax.tick_params(axis="x", labelcolor=COLORS["ink"])
    ax.set_xlabel("tokens that count, in each micro-batch")
    ax.set_ylabel("pull of one token, right = 1")
    if row:
        numbers(fig, row)
    return fig


def by_length(
    gaps: Mapping[str, Sequence[float]],
    counts: Mapping[str, int],
    *,
    title: str,
    subtitle: str | None = None,
    row: Row = (),
) -> Figure:
    """Loss of one recipe minus that of the other, in nats a token: a row a kind of text, a dot a seed, a bar the mean.

    counts: {kind: held-out tokens of that kind}.
    """
    fig, ax = new_figure(title, subtitle, height=60 + 48 * len(gaps))
    for place, values in enumerate(gaps.values()):
        mean = float(np.mean(values))
        color = COLORS["blue"] if mean < 0 else COLORS["vermilion"]
        ax.barh(place, mean, height=0.5, color=color, alpha=0.85)
        ax.plot(values, [place] * len(values), "o", color=COLORS["ink"], markersize=5.5)
        left = mean < 0
        ax.annotate(
            f"{mean:+.2f}",
            (min(*values, mean) if left else max(*values, mean), place),
            xytext=(-9 if left else 9, 0),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            size=9.5,
        )
    ax.axvline(0, color=COLORS["ink"], linewidth=1.0)
    ax.set_yticks(range(len(gaps)), [f"{name}\n{counts[name]:,} tokens" for name in gaps])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(gaps) - 0.5, -0.5)
    widest = max(abs(value) for values in gaps.values() for value in values)
    ax.set_xlim(-1.3 * widest, 1.3 * widest)
    ax.grid(False)
    ax.set_xlabel("nats a token: to the left of 0 the mean of means is better, to the right it is worse")
    if row:
        numbers(fig, row)
    return fig


def memory_and_speed(
    fixed: Mapping[str, float],
    peaks: Mapping[int, float],
    speeds: Mapping[int, float],
    *,
    title: str,
    subtitle: str | None = None,
    row: Row = (),
) -> Figure:
    """Left: peak MB a micro-batch, over what does not shrink ({category: MB}). Right: tokens a second a micro-batch.

    The first micro-batch of `peaks` is the whole batch: when it is at its peak there are no gradients yet.
    """
    fig, (left, right) = new_panels(title, subtitle, height=300, cols=2, width_ratios=[1.35, 1])
    shades = {"weights": "forward", "moments": "optimizer", "gradients": "backward", "the rest": "sky"}
    places = range(len(peaks))
    base = np.zeros(len(peaks))
    for name, size in fixed.items():
        sizes = np.full(len(peaks), size)
        if name == "gradients":
            sizes[0] = 0.0
        left.bar(places, sizes, bottom=base, width=0.7, color=COLORS[shades[name]])
        base += sizes
    rest = np.maximum(np.array(list(peaks.values())) - base, 0.0)
    left.bar(places, rest, bottom=base, width=0.7, color=COLORS["sky"])
    for place, peak in zip(places, peaks.values(), strict=True):
        left.annotate(f"{peak:.0f}", (place, peak), xytext=(0, 4), textcoords="offset points", ha="center", size=9.5)
    right.bar(places, [speed / 1e3 for speed in speeds.values()], width=0.7, color=COLORS["green"])
    for place, speed in zip(places, speeds.values(), strict=True):
        text = f"{speed / 1e3:.1f}"
        right.annotate(text, (place, speed / 1e3), xytext=(0, 4), textcoords="offset points", ha="center", size=9.5)
    for ax, words in ((left, "peak of one update, MB"), (right, "thousand tokens a second")):
        ax.set_xticks(places, [str(size) for size in peaks])
        ax.set_xlabel("sequences in a micro-batch")
        ax.set_ylabel(words)
        ax.margins(y=0.1)
    key(left, [(name, shades[name]) for name in (*fixed, "the rest")])
    if row:
        numbers(fig, row)
    return fig


def differences(
    lengths: Mapping[str, Mapping[int, float]], *, title: str, subtitle: str | None = None, row: Row = ()
) -> Figure:
    """What is left of a difference in the mean of n draws, against n: {cause: {n: length}}, each over its length at 1.

    A dashed line falls like 1/√n, as pure noise does.
    """
    fig, ax = new_figure(title, subtitle, height=280)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    counts = sorted({count for points in lengths.values() for count in points})
    noise = [count**-0.5 for count in counts]
    (line,) = ax.plot(counts, noise, color=COLORS["grey"], linewidth=1.2, linestyle=(0, (2, 2)))
    lines = [(line, f"noise, 1/√n: {100 * noise[-1]:.3g}%")]
    for index, (name, points) in enumerate(lengths.items()):
        left = {count: length / points[1] for count, length in sorted(points.items())}
        style = {**series(index), "marker": "o", "markersize": 5.5}
        (line,) = ax.plot(list(left), list(left.values()), **style)
        lines.append((line, f"{name}: {list(left.values())[-1]:.0%}"))
    end_labels(ax, lines)
    ax.set_xticks(counts, [str(count) for count in counts])
    ticks = [2.0**-power for power in range(5) if 2.0**-power > 0.6 * noise[-1]]
    ax.set_yticks(ticks, [f"{tick:.0%}" if tick != 0.125 else "12.5%" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("draws n, each of a new batch, that the difference is averaged over")
    ax.set_ylabel("left of the difference")
    if row:
        numbers(fig, row)
    return fig
