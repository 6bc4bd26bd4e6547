"""Pictures of chapter 2: where a step's time goes, orders of its parts, spikes and clipping, the schedule, FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.curve import smoothed
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    note,
    numbers,
    panel_title,
    series,
)

__all__ = ["PART_COLORS", "clip_orders", "flops_of_a_step", "loss_by_order", "schedule_and_moves", "spike", "step_time"]

PART_COLORS = {
    "batch": COLORS["grey"],
    "input ids": COLORS["grey"],
    "forward": COLORS["forward"],
    "loss": COLORS["sky"],
    "backward": COLORS["backward"],
    "clip": COLORS["green"],
    "optimizer": COLORS["optimizer"],
    "scheduler": COLORS["grey"],
    "record": COLORS["grey"],
}
"""Colour of each of the nine parts."""


def step_time(milliseconds: Mapping[str, float], *, title: str, subtitle: str | None = None) -> Figure:
    """One bar a part, in the step's order, each begun where the part before it ends: (part -> ms)."""
    fig, ax = new_figure(title, subtitle, height=300)
    total = sum(milliseconds.values())
    start = 0.0
    for row, (part, ms) in enumerate(milliseconds.items()):
        ax.barh(row, ms, left=start, height=0.62, color=PART_COLORS.get(part, COLORS["grey"]))
        share = ms / total
        text = f"{ms:.1f} ms, {share:.0%}" if share >= 0.005 else f"{ms:.2f} ms"
        ax.annotate(
            text,
            (start + ms, row),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=9.5,
            color=COLORS["ink"],
        )
        start += ms
    ax.set_yticks(range(len(milliseconds)), [f"{i}  {part}" for i, part in enumerate(milliseconds, start=1)])
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(milliseconds) - 0.4, -0.6)
    ax.set_xlim(0, total * 1.14)
    ax.grid(False)
    ax.grid(True, axis="x", color="#E4E4E4", linewidth=0.8)
    ax.set_xlabel("milliseconds from the start of the step")
    return fig


def loss_by_order(
    losses: Mapping[str, Sequence[float]], *, title: str, subtitle: str | None = None, span: int = 8
) -> Figure:
    """One smoothed loss curve (nats a token) an order of the parts, named at its end; the first is the right one."""
    fig, ax = new_figure(title, subtitle, height=300)
    lines = []
    for index, (name, values) in enumerate(losses.items()):
        style = series(index)
        if index == 0:
            style["linewidth"] = 3.0
        (line,) = ax.plot(np.arange(len(values)), smoothed(values, span), **style)
        lines.append((line, name))
    end_labels(ax, lines)
    ax.set_xlabel("step")
    ax.set_ylabel("nats a token")
    return fig


def spike(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    at: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
    highest: float = 9.0,
) -> Figure:
    """Loss by step with and without clipping, a panel an optimizer: {panel: {"clipped": losses, ...}}.

    A mark stands at step `at`, where the gradient spiked. A curve above `highest` leaves the picture and comes back.
    """
    fig, axes = new_panels(title, subtitle, height=270, cols=len(panels), share_y=True)
    for ax, (name, curves) in zip(axes, panels.items(), strict=True):
        ax.axvline(at, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (2, 2)))
        lines = []
        for index, (label, values) in enumerate(curves.items()):
            data = np.asarray(values, dtype=float)
            mean = np.concatenate([smoothed(list(data[: at + 1]), 4), smoothed(list(data[at + 1 :]), 4)])
            (line,) = ax.plot(np.arange(len(mean)), mean, **series(index))
            lines.append((line, label))
        end_labels(ax, lines)
        panel_title(ax, name)
        ax.set_xlabel("step")
        ax.set_xlim(0, max(len(v) for v in curves.values()))
    lowest = min(float(np.nanmin(values)) for curves in panels.values() for values in curves.values())
    axes[0].set_ylim(lowest - 0.3, highest)
    axes[0].set_ylabel("nats a token")
    note(axes[0], "the spike", (at, 0.95 * highest), offset=(-26, 0))
    if row:
        numbers(fig, row)
    return fig


def clip_orders(
    lengths: Mapping[str, float],
    limit: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Length of the gradient with which the optimizer works, a dot an order (log scale); the limit is a line."""
    fig, ax = new_figure(title, subtitle, height=60 + 42 * len(lengths))
    low = min(*lengths.values(), limit) / 6
    ax.set_xscale("log")
    for place, length in enumerate(lengths.values()):
        color = COLORS["green"] if place == 0 else COLORS["vermilion"]
        ax.plot(length, place, "o", color=color, markersize=10)
        ax.annotate(f"{length:.2g}", (length, place), xytext=(9, 0), textcoords="offset points", va="center", size=9.5)
    ax.axvline(limit, color=COLORS["ink"], linewidth=1.2)
    ax.annotate(f"limit {limit:g}", (limit, -0.55), xytext=(0, 4), textcoords="offset points", ha="center", size=9.5)
    ax.set_yticks(range(len(lengths)), list(lengths))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(lengths) - 0.5, -0.6)
    ax.set_xlim(low, max(*lengths.values(), limit) * 6)
    ax.set_xlabel("norm of the gradient that the optimizer is given")
    if row:
        numbers(fig, row)
    return fig


def schedule_and_moves(
    rates: Mapping[str, Sequence[float]],
    moves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Left: the rate of each step, named at its peak. Right: a dot a weight, |gradient| against |move| in rates.

    rates: {what stands at the peak: rates}, from the earliest peak to the last, whose name may be long.
    moves: {update: (|gradients| (n,), |moves| (n,))}; weights without any gradient have no place on the log axis.
    """
    fig, (left, right) = new_panels(title, subtitle, height=270, cols=2, width_ratios=[1, 1.25])
    for index, (name, values) in enumerate(rates.items()):
        (line,) = left.plot(np.arange(len(values)), np.asarray(values) * 1e3, **series(index))
        peak = int(np.argmax(values))
        left.annotate(
            name,
            (peak, 1e3 * values[peak]),
            xytext=(0, 9) if len(name) < 5 else (-5, 9),
            textcoords="offset points",
            ha="center" if len(name) < 5 else "left",
            va="center",
            size=9.5,
            color=ink(str(line.get_color())),
        )
    left.set_ylim(0, 1.12e3 * max(max(values) for values in rates.values()))
    panel_title(left, "learning rate, in thousandths")
    left.set_xlabel("step")
    right.set_xscale("log")
    shades = [COLORS["vermilion"], COLORS["sky"]]
    for shade, (name, (gradient, moved)) in zip(shades, moves.items(), strict=False):
        right.plot(gradient, moved, "o", color=shade, markersize=2.2, alpha=0.7, markeredgewidth=0)
        top = float(np.quantile(moved, 0.999)) + 0.07
        right.annotate(
            name, (1, top), xycoords=("axes fraction", "data"), ha="right", va="center", size=9.5, color=ink(shade)
        )
    right.set_ylim(-0.03, 1.3)
    panel_title(right, "move of a weight, in rates")
    right.set_xlabel("size of its gradient")
    return fig


def flops_of_a_step(
    parts: Mapping[str, float],
    estimate: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Counted FLOPs of one step as a stacked bar (part -> FLOPs), over the bar of the 6ND estimate."""
    fig, ax = new_figure(title, subtitle, height=150)
    start = 0.0
    shades = ("forward", "orange", "green", "grey")
    for shade, flops in zip(shades, parts.values(), strict=False):
        ax.barh(0, flops / 1e9, left=start / 1e9, height=0.62, color=COLORS[shade], edgecolor=COLORS["paper"])
        start += flops
    ax.barh(1, estimate / 1e9, height=0.62, color=COLORS["rule"])
    for place, flops in ((0, start), (1, estimate)):
        text = f"{flops / 1e9:.2f}"
        ax.annotate(text, (flops / 1e9, place), xytext=(6, 0), textcoords="offset points", va="center", size=9.5)
    ax.set_yticks([0, 1], ["counted", "6ND"])
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(1.5, -0.6)
    ax.set_xlim(0, max(start, estimate) / 1e9 * 1.1)
    ax.grid(False)
    ax.set_xlabel("GFLOP in one step")
    key(ax, list(zip(parts, shades, strict=False)))
    if row:
        numbers(fig, row)
    return fig
