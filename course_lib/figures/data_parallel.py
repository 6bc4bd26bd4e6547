"""Pictures of chapter 7: years on one device, times of an all-reduce, buckets, suspects, traffic, what fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.figures.buckets import all_reduce_times, bucket_timeline
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    numbers,
    panel_title,
)
from course_lib.figures.style import series as look

__all__ = [
    "accumulated_traffic",
    "all_reduce_times",
    "bucket_timeline",
    "errors",
    "losses_alike",
    "replica_bytes",
    "replicas_apart",
    "years_on_one",
]


_PAPER = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1.2}
"""Behind words that a line would cross."""


def years_on_one(runs: Mapping[str, float], *, limit: float, title: str, subtitle: str | None = None) -> Figure:
    """A dot a run, {run: years on one device}, on a logarithmic axis; a line at `limit` years, and how many devices
    the run needs to stay under it, with two digits."""
    fig, ax = new_figure(title, subtitle, height=70 + 34 * len(runs))
    words = []
    for years in runs.values():
        devices = float(f"{np.ceil(years / limit):.2g}")
        words.append(f"{_years(years)}: {devices:,.0f} device{'s' * (devices > 1)}")
    smallest, largest = min(*runs.values(), limit) / 4, max(runs.values()) * 500
    _dots(ax, list(runs.values()), words, (smallest, largest), words_at=max(runs.values()) * 2)
    ticks = {1 / 365: "a day", 1 / 12: "a month", 1: "a year", 30: "30 years", 1000: "1,000 years"}
    shown = {at: name for at, name in ticks.items() if smallest < at < largest}
    ax.set_xticks(list(shown), list(shown.values()))
    ax.axvline(limit, color=COLORS["ink"], linewidth=1.2, linestyle=(0, (4, 3)))
    _rows(ax, list(runs))
    return fig


def _dots(
    ax: Axes, values: Sequence[float], words: Sequence[str], span: tuple[float, float], *, words_at: float
) -> None:
    """A dot a row on a logarithmic axis; its words stand in a column at the right, where no line crosses them."""
    for place, (value, said) in enumerate(zip(values, words, strict=True)):
        ax.plot([span[0], words_at / 1.15], [place, place], color=COLORS["rule"], linewidth=0.8, zorder=1)
        ax.plot([value], [place], "o", color=COLORS["blue"], markersize=9, zorder=3)
        ax.annotate(said, (words_at, place), va="center", size=9.5)
    ax.set_xscale("log")
    ax.set_xlim(*span)
    ax.minorticks_off()


def _years(years: float) -> str:
    """0.02 -> "7.3 days", 0.5 -> "6 months", 58.3 -> "58 years", 3035.4 -> "3,000 years": two digits."""
    for size, unit in ((1, "year"), (1 / 12, "month"), (1 / 365.25, "day")):
        if years >= 1.5 * size or unit == "day":
            count = years / size
            return f"{float(f'{count:.2g}'):,g} {unit}s"
    raise AssertionError


def _rows(ax: Axes, names: Sequence[str]) -> None:
    """Names at the left of bars, the first on top."""
    ax.set_yticks(range(len(names)), names)
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(False)


def errors(
    ways: Mapping[str, float | None],
    *,
    tolerance: float,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """A dot a way, {way: relative difference}, on a logarithmic axis with 0 at its left; a line at the tolerance.

    None instead of a difference: the name is a heading for the rows below it.
    """
    fig, ax = new_figure(title, subtitle, height=60 + 30 * len(ways))
    found = [error for error in ways.values() if error]
    least = 10.0 ** np.floor(np.log10(min([*found, tolerance])) - 1)
    for place, error in enumerate(ways.values()):
        if error is None:
            continue
        shade = COLORS["green" if error <= tolerance else "vermilion"]
        ax.plot([least, error or least], [place, place], color=shade, linewidth=2, alpha=0.5)
        ax.plot([error or least], [place], "o", color=shade, markersize=8, clip_on=False, zorder=3)
        words = f"{error:.2g}" if error > 0.01 else f"{error:.0e}" if error else "0: the same bits"
        ax.annotate(
            words,
            (error or least, place),
            xytext=(9, 0),
            textcoords="offset points",
            va="center",
            size=9.5,
            color=ink(shade),
            bbox=_PAPER,
        )
    ax.axvline(tolerance, color=COLORS["ink"], linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_xscale("log")
    ax.set_xlim(least, 10 if max(found, default=0) > tolerance else 30 * tolerance)
    marks = [10.0**k for k in range(-12, 1, 2) if 10.0**k > least * 2]
    marks = [mark for mark in marks if mark <= ax.get_xlim()[1]]
    ax.set_xticks([least, *marks], ["0  //", *(f"{mark:g}" for mark in marks)])
    ax.minorticks_off()
    ax.set_xlabel("relative difference; // the axis is broken")
    _rows(ax, list(ways))
    for label, error in zip(ax.get_yticklabels(), ways.values(), strict=True):
        label.set_fontweight("bold" if error is None else "normal")
    ax.tick_params(axis="y", pad=9)
    ax.annotate(
        f"tolerance {tolerance:g}",
        (tolerance, -0.6),
        xytext=(5, 2),
        textcoords="offset points",
        size=9,
        color=COLORS["muted"],
    )
    return fig


def losses_alike(
    losses: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Loss against the step, a curve a run, all in one frame."""
    fig, ax = new_figure(title, subtitle, height=270)
    lines = [
        (ax.plot(range(len(values)), values, **{**look(index), "linewidth": 1.5})[0], name)
        for index, (name, values) in enumerate(losses.items())
    ]
    end_labels(ax, lines)
    ax.set_xlabel("step")
    ax.set_ylabel("nats a token")
    if row:
        numbers(fig, row)
    return fig


def replicas_apart(
    sums: Mapping[str, Sequence[Sequence[int]]],
    distances: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Left: checksums after the first steps, sums[run][step][rank]. Right: how far apart the replicas are, by step.

    A checksum is written with its first four digits of 14; equal ones are green, unequal ones vermilion. Distances are
    relative to the weights' length.
    """
    fig, (left, right) = new_panels(title, subtitle, height=250, width_ratios=[1.3, 1])
    for place, rows in enumerate(sums.values()):
        for step, ranks in enumerate(rows):
            same = len(set(ranks)) == 1
            shade = COLORS["green" if same else "communication"]
            for rank, total in enumerate(ranks):
                y = place + (rank - (len(ranks) - 1) / 2) * 0.36
                words = f"{total:014x}"[:4]
                left.text(step, y, words, ha="center", va="center", size=9.5, color=ink(shade), family="monospace")
            left.text(
                step + 0.36,
                place,
                "=" if same else "≠",
                ha="center",
                va="center",
                size=13,
                color=ink(shade),
                weight="bold",
            )
        if place:
            left.axhline(place - 0.5, color=COLORS["rule"], linewidth=0.8)
    steps = max(len(rows) for rows in sums.values())
    left.set_xlim(-0.45, steps - 0.4)
    left.set_xticks(range(steps), [str(step + 1) for step in range(steps)])
    left.set_xlabel("after step")
    _rows(left, list(sums))
    left.set_ylim(len(sums) - 0.5, -0.5)
    panel_title(left, "checksum on rank 0 and rank 1")
    lines = []
    for index, (name, values) in enumerate(distances.items()):
        steps_ = range(1, len(values) + 1)
        dashes = ("-", "--", "-.", ":")[index % 4]  # one colour: green and vermilion have a meaning at the left
        curve = right.plot(steps_, [100 * value for value in values], color=COLORS["ink"], linestyle=dashes)[0]
        lines.append((curve, name))
    end_labels(right, lines)
    right.set_xlabel("after step")
    panel_title(right, "distance, % of the weights")
    return fig


def accumulated_traffic(
    micro_batches: Sequence[int],
    sent: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Elements that a rank sends in a step, in millions, against the step's micro-batches: a group of bars each."""
    fig, ax = new_figure(title, subtitle, height=250)
    width = 0.8 / len(sent)
    shades = ("communication", "green")
    for index, (name, values) in enumerate(sent.items()):
        places = np.arange(len(micro_batches)) + (index - (len(sent) - 1) / 2) * width
        ax.bar(places, np.asarray(values) / 1e6, width * 0.92, color=COLORS[shades[index % 2]], label=name)
        for x, value in zip(places, values, strict=True):
            ax.annotate(
                f"{value / 1e6:.2f}",
                (x, value / 1e6),
                xytext=(0, 4),
                textcoords="offset points",
                ha="center",
                size=9,
                color=COLORS["ink"],
            )
    ax.set_xticks(range(len(micro_batches)), [str(count) for count in micro_batches])
    ax.set_xlabel("micro-batches a step")
    ax.set_ylabel("million elements sent")
    ax.margins(y=0.12)
    key(ax, [(name, shades[index % 2]) for index, name in enumerate(sent)])
    return fig


def replica_bytes(
    models: Mapping[str, float],
    devices: Mapping[str, float],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """State of one replica in GB, a dot a model, on a logarithmic axis; a line at each device's memory."""
    fig, ax = new_figure(title, subtitle, height=90 + 34 * len(models))
    words = [f"{size:,.0f} GB" if size >= 100 else f"{size:.3g} GB" for size in models.values()]
    largest = max(*models.values(), *devices.values())
    _dots(ax, list(models.values()), words, (min(models.values()) / 2, largest * 12), words_at=largest * 2)
    for name, size in devices.items():
        ax.axvline(size, color=COLORS["ink"], linewidth=1.2, linestyle=(0, (4, 3)))
        ax.annotate(
            name, (size, -0.6), xytext=(0, 5), textcoords="offset points", ha="center", size=9.5, color=COLORS["ink"]
        )
    shown = [tick for tick in (0.1, 1, 10, 100, 1000, 10_000) if ax.get_xlim()[0] < tick <= largest * 1.6]
    ax.set_xticks(shown, [f"{tick:,g} GB" for tick in shown])
    _rows(ax, list(models))
    if row:
        numbers(fig, row)
    return fig
