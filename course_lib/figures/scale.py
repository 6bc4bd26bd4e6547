"""Pictures of chapter 15: counted FLOPs against 6ND, fits against finishes, cadence, and a run that was stopped."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    tint,
)

__all__ = ["against_six_nd", "cadence", "finishes", "lost_work", "off_by", "stopped_run"]

PARTS = {"matrices": COLORS["blue"], "output layer": COLORS["orange"], "attention's scores": COLORS["vermilion"]}
"""Colour of each part of the counted FLOPs."""


def against_six_nd(
    panels: Mapping[str, Sequence[tuple[float, Mapping[str, float]]]],
    counted: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Counted FLOPs over 6ND, stacked by part, one panel for each thing that grows; dashed: 6ND itself.

    panels: what grows -> [(its value, {part: FLOPs / 6ND})]; counted: the same -> [(value, all FLOPs / 6ND)], circles.
    """
    fig, axes = new_panels(title, subtitle, height=270, cols=len(panels), share_y=True)
    for ax, (name, points) in zip(axes, panels.items(), strict=True):
        x = [value for value, _ in points]
        parts = [[one[part] for _, one in points] for part in PARTS]
        ax.stackplot(x, parts, colors=[tint(color, 0.75) for color in PARTS.values()])
        ax.axhline(1, color=COLORS["ink"], linewidth=1.4, linestyle=(0, (4, 3)))
        at, ratio = zip(*counted[name], strict=True)
        ax.plot(at, ratio, "o", color=COLORS["ink"], markersize=6, markerfacecolor=COLORS["paper"], zorder=4,
                clip_on=False)  # fmt: skip
        ax.set_xscale("log", base=2)
        ax.set_xlim(min(x), max(x))
        ax.set_xticks(at, [f"{value:,.0f}" for value in at])
        ax.minorticks_off()
        ax.set_xlabel(name)
        ends = ax.get_xticklabels()
        ends[0].set_horizontalalignment("left")
        ends[-1].set_horizontalalignment("right")
        for value, height in counted[name]:
            right = value == max(at)
            ax.annotate(
                f"{height:.2f}",
                (value, height),
                xytext=(-5 if right else 5, 9 if height > 0.99 else -17),
                textcoords="offset points",
                ha="right" if right else "left",
                size=9.5,
                color=COLORS["ink"],
            )
    axes[0].set_ylim(0, 1.12 * max(ratio for points in counted.values() for _, ratio in points))
    axes[0].set_ylabel("counted FLOPs / 6ND")
    handles = [Patch(facecolor=tint(color, 0.75), label=name) for name, color in reversed(PARTS.items())]
    axes[1 % len(axes)].legend(handles=handles, loc="upper left", frameon=False, fontsize=9.5, handlelength=1.0)
    if row:
        numbers(fig, row)
    return fig


def finishes(
    models: Mapping[str, Sequence[tuple[int, float]]],
    days: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Days of a run against devices, from the fewest on which it fits: name -> [(devices, days)]; dotted: `days`.

    A ring stands where it first fits, a dot at the first number of devices that stays under `days`.
    """
    fig, ax = new_figure(title, subtitle, height=330)
    ax.axhline(days, color=COLORS["muted"], linewidth=1.4, linestyle=(0, (1, 2)))
    for index, (name, points) in enumerate(models.items()):
        x, y = zip(*points, strict=True)
        (line,) = ax.plot(x, y, **series(index))
        color = str(line.get_color())
        ax.plot(x[0], y[0], "o", color=color, markersize=10, markerfacecolor=COLORS["paper"], markeredgewidth=2,
                clip_on=False)  # fmt: skip
        ax.annotate(
            f"{name}: {_time(y[0])}",
            (x[0], y[0]),
            xytext=(11, 18 if days / 3 < y[0] <= days else 5),  # over the dotted line
            textcoords="offset points",
            size=9.5,
            color=ink(color),
        )
        done = next(((n, d) for n, d in points if d <= days), None)
        if done is not None:
            ax.plot(*done, "o", color=color, markersize=6, zorder=4)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    most = max(n for points in models.values() for n, _ in points)
    ticks = [4**k for k in range(9) if 4**k <= 1.5 * most]
    ax.set_xticks(ticks, [f"{n:,}" for n in ticks])
    low, high = (f(d for points in models.values() for _, d in points) for f in (min, max))
    marks = [10.0**k for k in range(-3, 6) if low / 3 <= 10.0**k <= 3 * high]
    ax.set_yticks(marks, [f"{d:,g}" for d in marks])
    ax.minorticks_off()
    ax.set_ylim(low / 2, high * 3)
    ax.annotate(f"{days:g} days", (most, days), xytext=(0, 6), textcoords="offset points", ha="right", size=9.5,
                color=COLORS["muted"])  # fmt: skip
    ax.set_xlabel("devices")
    ax.set_ylabel("days of training")
    if row:
        numbers(fig, row)
    return fig


def _time(days: float) -> str:
    if days >= 730:
        return f"{days / 365.25:,.0f} years"
    return f"{days:,.0f} days" if days >= 2 else f"{24 * days:,.0f} hours"


def cadence(
    curves: Mapping[str, Sequence[tuple[float, float]]],
    drawn: Sequence[tuple[float, float, float, float]],
    marks: Sequence[tuple[str, float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Share of the time that is lost, against minutes between checkpoints: name -> [(minutes, share)].

    drawn: (minutes, median, low, high) of runs by chance, with whiskers; marks: names over vertical lines.
    """
    fig, ax = new_figure(title, subtitle, height=280)
    lines = []
    for index, (name, points) in enumerate(curves.items()):
        x, y = zip(*points, strict=True)
        (line,) = ax.plot(x, [100 * share for share in y], **series(index))
        lines.append((line, name))
    for at, middle, low, high in drawn:
        ax.plot([at, at], [100 * low, 100 * high], color=COLORS["grey"], linewidth=1.6)
        ax.plot(at, 100 * middle, "o", color=COLORS["ink"], markersize=6, markerfacecolor=COLORS["paper"])
    top = 115 * max([high for *_, high in drawn] + [share for points in curves.values() for _, share in points])
    ax.set_ylim(0, top)
    for name, at in marks:
        ax.axvline(at, color=COLORS["muted"], linewidth=1, linestyle=(0, (2, 2)))
        ax.annotate(name, (at, top), xytext=(4, -10), textcoords="offset points", size=9.5, color=COLORS["muted"])
    ax.set_xscale("log")
    ticks = [value for value in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if _inside(value, lines[0][0])]
    ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
    ax.minorticks_off()
    ax.set_xlabel("minutes of training between checkpoints")
    ax.set_ylabel("% of the time lost")
    end_labels(ax, lines)
    if row:
        numbers(fig, row)
    return fig


def _inside(value: float, line: object) -> bool:
    x = np.asarray(line.get_xdata())  # type: ignore[attr-defined]
    return bool(x.min() * 0.99 <= value <= x.max() * 1.01)


def stopped_run(
    passes: Sequence[tuple[int, float]],
    stops: Sequence[tuple[str, int, int]],
    every: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Above: which step each pass computed; below: its loss. Red: passes that were thrown away.

    passes: (step, loss) as they came; stops: (name, steps done when it stopped, steps of the checkpoint it took).
    """
    fig, (top, below) = new_panels(title, subtitle, height=360, rows=2, cols=1, share_x=True, height_ratios=[1.5, 1])
    step = [one for one, _ in passes]
    starts, begin = [0], 0
    for _, noticed, back in stops:
        starts.append(starts[-1] + noticed - begin)
        begin = back
    for index, first in enumerate(starts):
        last = starts[index + 1] if index + 1 < len(starts) else len(step)
        keep = min([back for *_, back in stops[index:]], default=math.inf)
        for lost, color in ((False, COLORS["blue"]), (True, COLORS["vermilion"])):
            here = [k for k in range(first, last) if (step[k] >= keep) == lost]
            top.plot(here, [step[k] for k in here], "o", color=color, markersize=3.5)
            finite = [k for k in here if math.isfinite(passes[k][1])]
            below.plot(finite, [passes[k][1] for k in finite], "o", color=color, markersize=3.5)
    bad = [k for k, (_, loss) in enumerate(passes) if not math.isfinite(loss)]
    high = below.get_ylim()[1]
    below.plot(bad, [high] * len(bad), "x", color=COLORS["vermilion"], markersize=6)
    if bad:
        below.annotate("not finite", (bad[-1], high), xytext=(8, -1), textcoords="offset points", size=9.5,
                       va="center", color=ink(COLORS["vermilion"]))  # fmt: skip
    for at in range(every, max(step) + 2, every):
        top.axhline(at, color=COLORS["rule"], linewidth=0.8, zorder=0)
    for index, ((name, noticed, back), at) in enumerate(zip(stops, starts[1:], strict=True)):
        top.annotate(
            f"{name}: back to {back}",
            (at - 1, noticed - 1),
            xytext=(at - 1 - 3 * (index == 1), max(step) * (0.5 + 0.24 * index)),
            ha="center",
            size=9.5,
            color=COLORS["muted"],
            arrowprops={"arrowstyle": "-|>", "color": COLORS["muted"], "linewidth": 1.0, "shrinkA": 2, "shrinkB": 4},
        )
    top.grid(False)
    top.set_ylim(-2, 1.15 * max(step))
    top.set_ylabel("step")
    below.set_ylabel("nats a token")
    below.set_xlabel("steps computed, repeated ones too; grey lines: checkpoints")
    panel_title(top, "which step")
    panel_title(below, "its loss")
    if row:
        numbers(fig, row)
    return fig


def lost_work(
    draws: Mapping[str, Sequence[float]],
    predicted: float,
    measured: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Steps done twice, over many runs by virtual time: a row of bars for each rule; lines: predicted and measured."""
    fig, axes = new_panels(title, subtitle, height=130 * len(draws) + 40, rows=len(draws), cols=1, share_x=True)
    most = max(max(values) for values in draws.values())
    for index, (ax, (name, values)) in enumerate(zip(axes, draws.items(), strict=True)):
        count = np.bincount(np.asarray(values, dtype=int), minlength=int(most) + 1) / len(values)
        ax.bar(range(len(count)), 100 * count, width=0.82, color=tint(COLORS["blue"], 0.55))
        ax.set_ylim(0, 150 * max(count))
        _line(ax, predicted, "Young and Daly", COLORS["ink"], index == 0)
        _line(ax, float(np.mean(values)), f"mean {np.mean(values):.1f}", COLORS["blue"], True, left=True)
        if index == len(draws) - 1:
            _line(ax, measured, f"measured: {measured:g}", COLORS["vermilion"], True)
        panel_title(ax, name)
        ax.set_ylabel("% of runs")
    axes[-1].set_xlabel("steps done twice in the whole run")
    if row:
        numbers(fig, row)
    return fig


def _line(ax: Axes, at: float, text: str, color: str, named: bool, *, left: bool = False) -> None:
    ax.axvline(at, color=color, linewidth=1.8)
    if named:
        ax.annotate(text, (at, 0.85), xycoords=("data", "axes fraction"), xytext=(-5 if left else 5, 0), size=9.5,
                    textcoords="offset points", ha="right" if left else "left", color=ink(color))  # fmt: skip


def off_by(
    rows: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """One row for each number, one tick for each run: the envelope's over the plan's, on an axis of powers of two."""
    fig, ax = new_figure(title, subtitle, height=90 + 44 * len(rows))
    box = {"facecolor": COLORS["paper"], "edgecolor": "none", "pad": 1.0}
    for place, values in enumerate(rows.values()):
        ax.plot(values, [place] * len(values), "|", color=COLORS["blue"], markersize=16, alpha=0.45)
        middle = float(np.median(values))
        ax.plot(middle, place, "o", color=COLORS["vermilion"], markersize=7, zorder=4)
        ax.annotate(f"{middle:.2f}", (middle, place), xytext=(0, 12), textcoords="offset points", ha="center",
                    size=9.5, color=ink(COLORS["vermilion"]), bbox=box, zorder=5)  # fmt: skip
    ax.axvline(1, color=COLORS["ink"], linewidth=1.2, linestyle=(0, (4, 3)))
    ax.set_xscale("log", base=2)
    low, high = (f(f(values) for values in rows.values()) for f in (min, max))
    ticks = [2.0**k for k in range(math.floor(math.log2(low)), math.ceil(math.log2(high)) + 1)]
    ax.set_xticks(ticks, [f"{value:g}" if value >= 1 else f"1/{1 / value:g}" for value in ticks])
    ax.minorticks_off()
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.grid(False)
    ax.set_xlabel("estimate / plan; the dot is the median")
    if row:
        numbers(fig, row)
    return fig
