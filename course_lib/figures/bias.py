"""Pictures of chapter 13, first half: errors that add up, sums that stop, where training adds, a ruined run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, to_hex
from matplotlib.figure import Figure

from course_lib.figures.curve import smoothed
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    text_on,
    tint,
)

__all__ = ["RUNS", "feedback", "growth", "places", "running_sum", "stops", "twins"]

RUNS = 10
"""Runs that `growth` draws each with a line of its own."""
_LOSS = LinearSegmentedColormap.from_list(
    "loss", [(0.0, "#E3F1EA"), (0.35, "#F4F3E4"), (0.75, COLORS["orange"]), (1.0, COLORS["vermilion"])]
)


def growth(
    steps: Sequence[int],
    curves: Mapping[str, Sequence[Sequence[float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """|Error| after n steps, both axes logarithmic: {name: (runs, points)}.

    Thin lines are the first `RUNS` runs, the thick one is the RMS of all.
    """
    fig, ax = new_figure(title, subtitle, height=300)
    labelled = []
    low = np.inf
    for place, (name, runs) in enumerate(curves.items()):
        look = series(place)
        every = np.abs(np.asarray(runs, dtype=float))
        for run in every[:RUNS]:
            ax.plot(steps, np.where(run > 0, run, np.nan), color=tint(look["color"], 0.35), linewidth=0.8, zorder=2)
        mean = np.sqrt((every**2).mean(0))
        [line] = ax.plot(steps, np.where(mean > 0, mean, np.nan), zorder=3, **look)
        labelled.append((line, name))
        low = min(low, float(mean[mean > 0].min()))
    end_labels(ax, labelled)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_ylim(low / 3, None)
    ax.minorticks_off()
    ax.set_xlabel("steps")
    ax.set_ylabel("error, in errors of one step")
    if row:
        numbers(fig, row)
    return fig


def feedback(
    steps: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    first: int,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """The same curves twice: left the `first` steps on plain axes, right all on a logarithmic one. {name: (steps,)}."""
    fig, (left, right) = new_panels(title, subtitle, height=270, cols=2)
    near = np.asarray(steps) <= first
    labelled = []
    for place, (name, values) in enumerate(curves.items()):
        sizes = np.asarray(values, dtype=float)
        left.plot(np.asarray(steps)[near], sizes[near], **series(place))
        [line] = right.plot(steps, sizes, **series(place))
        labelled.append((line, name))
    end_labels(right, labelled)
    right.set_yscale("log")
    right.minorticks_off()
    for ax, words in ((left, f"the first {first}, plain axis"), (right, "all, logarithmic axis")):
        panel_title(ax, words)
        ax.set_xlabel("steps")
        ax.set_xlim(0, None)
    left.set_ylabel("error, in errors of one step")
    left.set_ylim(0, None)
    if row:
        numbers(fig, row)
    return fig


def running_sum(
    exact: Sequence[float],
    sums: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    marks: Sequence[tuple[float, str]] = (),
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A sum after each addition beside the exact one (grey); marks are heights where the spacing changes."""
    fig, ax = new_figure(title, subtitle, height=280)
    count = np.arange(len(exact))
    [line] = ax.plot(count, exact, color=COLORS["rule"], linewidth=7, zorder=1)
    labelled = [(line, "exact")]
    for place, (name, values) in enumerate(sums.items()):
        [line] = ax.plot(count[: len(values)], values, zorder=2 + place, **series(place))
        labelled.append((line, name))
    for height, words in marks:
        ax.axhline(height, color=COLORS["grey"], linewidth=0.9, linestyle=(0, (2, 2)), zorder=0)
        ax.annotate(
            words,
            (0, height),
            xytext=(4, 3),
            textcoords="offset points",
            size=9,
            color=ink(COLORS["muted"]),
        )
    end_labels(ax, labelled)
    ax.set_ylim(0, None)
    ax.set_xlim(0, None)
    ax.set_xlabel("additions")
    ax.set_ylabel("sum")
    if row:
        numbers(fig, row)
    return fig


def stops(
    addends: Sequence[float],
    rules: Mapping[str, Sequence[float]],
    found: Mapping[str, Sequence[tuple[float, float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Where a sum of equal addends stops. rules: {format: (addends,)}, lines; found: {format: [(addend, stop)]}, dots.

    Both axes in powers of two.
    """
    fig, ax = new_figure(title, subtitle, height=290)
    labelled = []
    for place, (name, values) in enumerate(rules.items()):
        look = series(place)
        [line] = ax.plot(addends, values, **look)
        labelled.append((line, name))
        if found.get(name):
            x, y = zip(*found[name], strict=True)
            ax.plot(x, y, "o", color=look["color"], markersize=5.5, linestyle="none", zorder=3)
    end_labels(ax, labelled)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.minorticks_off()
    ax.set_xlabel("addend")
    ax.set_ylabel("where the sum stands still")
    if row:
        numbers(fig, row)
    return fig


def places(
    table: Mapping[str, Mapping[str, float | None]],
    *,
    title: str,
    subtitle: str | None = None,
    dividers: Sequence[int] = (),
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A table of relative errors: {where training adds: {how: error}}, pale for nothing lost, dark for all of it.

    None is a way that does not exist there.
    dividers: columns before which a gap separates one group from the next.
    """
    ways = list(next(iter(table.values())))
    gap = 0.18
    lefts = [at + gap * sum(at >= divider for divider in dividers) for at in range(len(ways))]
    fig, ax = new_figure(title, subtitle, height=44 + 36 * len(table))
    for y, errors in enumerate(table.values()):
        for left, way in zip(lefts, ways, strict=True):
            error = errors[way]
            # Up to 1e-7 (what FP32 leaves) is the pale end, all of the sum the dark one.
            share = 0.0 if error is None else (np.log10(max(abs(error), 1e-12)) + 7) / 7
            shade = COLORS["idle"] if error is None else to_hex(_LOSS(float(np.clip(share, 0, 1))))
            words = "not possible" if error is None else as_error(error)
            ax.barh(y, 0.94, left=left + 0.03, height=0.86, color=shade)
            ax.text(
                left + 0.5,
                y,
                words,
                ha="center",
                va="center",
                size=8 if error is None else 9.5,
                color=COLORS["muted"] if error is None else text_on(shade),
            )
    ax.set_yticks(range(len(table)), list(table))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xticks([left + 0.5 for left in lefts], ways)
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", labelsize=9, labelcolor=COLORS["ink"])
    ax.set_ylim(len(table) - 0.5, -0.5)
    ax.set_xlim(0, lefts[-1] + 1)
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)
    if row:
        numbers(fig, row)
    return fig


def as_error(error: float) -> str:
    """A relative error as one reads it: 112%, 0.8%, 2e-6, 0."""
    if not np.isfinite(error):
        return "NaN" if np.isnan(error) else "infinite"
    if error == 0:
        return "0"
    if abs(error) >= 0.0995:
        return f"{error:.0%}"
    return f"{error:.1%}" if abs(error) >= 0.001 else f"{error:.0e}".replace("e-0", "e-")


def twins(
    curves: Mapping[str, Sequence[float]],
    ends: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    right_title: str = "recorded seeds: loss at the end",
    floor: float | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: loss (nats a token) of each run, this page's. Right: {run: (seeds,)} at the end, a line a seed.

    floor: the left panel shows what is above it, on a logarithmic axis.
    """
    fig, (left, right) = new_panels(title, subtitle, height=300, cols=2, width_ratios=[1.6, 1])
    labelled = []
    for place, (name, values) in enumerate(curves.items()):
        look = series(place)
        above = np.asarray(values, dtype=float) - (floor or 0.0)
        steps = np.arange(len(above))
        left.plot(steps, above, color=tint(look["color"], 0.35), linewidth=0.8, zorder=1)
        smooth = smoothed(above.tolist(), max(2, min(20, len(above) // 15)))
        [line] = left.plot(steps, smooth, zorder=2, **look)
        labelled.append((line, name))
    end_labels(left, labelled)
    if floor is not None:
        left.set_yscale("log")
        ticks = [tick for tick in (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5) if tick < left.get_ylim()[1]]
        ticks = [tick for tick in ticks if tick > left.get_ylim()[0]]
        left.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        left.minorticks_off()
    left.set_xlabel("step")
    left.set_ylabel("nats a token" if floor is None else "nats a token above the floor")
    panel_title(left, "this page's run")
    table = np.asarray(list(ends.values()), dtype=float)  # (runs, seeds)
    for seed in table.T:
        right.plot(range(len(seed)), seed, color=COLORS["grey"], linewidth=0.9, zorder=1)
    for place, seeds in enumerate(table):
        right.plot([place] * len(seeds), seeds, "o", color=series(place)["color"], markersize=5.5, zorder=3)
    right.set_xticks(range(len(table)), list(ends))
    right.tick_params(axis="x", labelsize=9, labelcolor=COLORS["ink"])
    right.set_xlim(-0.4, len(table) - 0.6)
    panel_title(right, right_title)
    if row:
        numbers(fig, row)
    return fig
