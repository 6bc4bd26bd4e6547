"""Pictures of chapter 6: what a checkpoint is made of, resumes with a part left out, stopped saves, the price."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from course_lib.figures.checkpoint_bytes import KINDS, kind_of
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    text_on,
    tint,
)

__all__ = [
    "KINDS",
    "checkpoint_map",
    "differences_at_the_end",
    "kind_of",
    "left_out",
    "price_of_a_save",
    "stopped_saves",
]

FOR = {
    "random": "what dropout draws next",
    "stream": "which batch comes next",
    "scheduler": "the schedule's place",
    "scaler": "the loss scale (FP16)",
    "optimizer": "its groups, settings and current rate",
    "config": "every setting of the run",
    "model": "the model's class and shape",
    "tokenizer": "which tokenizer",
    "data": "digest of the training tokens",
    "versions": "torch and others, to say what differs",
    "machine": "CPU and threads, to say what differs",
    "step": "steps done",
    "precision": "fp32, bf16 or fp16",
    "format": "number of the format",
}
"""What each entry of meta.json is for."""


def checkpoint_map(
    parts: Sequence[tuple[str, str, int]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Every byte of a checkpoint: (file, part, bytes) in their order. Above the files, below meta.json, enlarged."""
    files = list(dict.fromkeys(file for file, _, _ in parts))
    entries = [(name, size) for file, name, size in parts if file == "meta.json"]
    fig, (top, below) = new_panels(
        title,
        subtitle,
        height=120 + 26 * len(files) + 19 * len(entries),
        cols=1,
        rows=2,
        height_ratios=[1.0 + len(files), 1.0 + 0.75 * len(entries)],
    )
    longest = max(sum(size for file, _, size in parts if file == one) for one in files)
    for place, one in enumerate(files):
        start = 0
        for file, name, size in parts:
            if file == one:
                top.barh(place, size / 1e3, left=start / 1e3, height=0.7, color=KINDS[kind_of(file, name)])
                start += size
                if size > longest / 100:
                    top.vlines(start / 1e3, place - 0.35, place + 0.35, color=COLORS["paper"], linewidth=0.7)
        _behind(top, start / 1e3, place, f"{start / 1e3:,.1f} kB")
    top.set_xlim(0, longest / 1e3 * 1.13)
    _rows(top, files)
    top.set_xlabel("kB (thousands of bytes), in the order of the file")
    used = {kind_of(file, name) for file, name, _ in parts}
    key(top, [(kind, color) for kind, color in KINDS.items() if kind in used])
    for place, (name, size) in enumerate(entries):
        below.barh(place, size, height=0.7, color=KINDS["text"])
        _behind(below, size, place, f"{size:,} bytes: {FOR.get(name, name)}")
    below.set_xlim(0, max(size for _, size in entries) * 1.5)
    _rows(below, [name for name, _ in entries])
    panel_title(below, "meta.json, enlarged")
    below.set_xlabel("bytes")
    if row:
        numbers(fig, row)
    return fig


def _rows(ax: Axes, names: Sequence[str]) -> None:
    ax.set_yticks(range(len(names)), list(names))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(names) - 0.4, -0.6)
    ax.grid(False)


def _behind(ax: Axes, x: float, y: float, text: str, color: str = COLORS["ink"], size: float = 9) -> None:
    ax.annotate(text, (x, y), xytext=(6, 0), textcoords="offset points", va="center", size=size, color=color)


REST = {"color": COLORS["muted"], "linewidth": 1.0}
"""A curve that need not be told from the others."""


def left_out(
    losses: Mapping[str, Sequence[float]],
    gaps: Mapping[str, Sequence[float]],
    saved_at: int,
    *,
    title: str,
    named: Collection[str] = (),
    subtitle: str | None = None,
) -> Figure:
    """Left the loss by step, right (log) the largest gap in a weight after each step, from `saved_at` on.

    losses: {name: losses}, the uninterrupted run first, from step 0; the others from `saved_at`: those of `named` have
    their colour and name, the rest is grey. gaps: {name: gaps}; a gap of 0 is not drawn, so that a curve begins where
    the first bit differs.
    """
    fig, (left, right) = new_panels(title, subtitle, height=330, cols=2, width_ratios=[1.25, 1.5])
    hue = {name: series(index) for index, name in enumerate(gaps)}
    ends: list[tuple[Line2D, str]] = []
    rest: list[tuple[Line2D, str]] = []
    for index, (name, values) in enumerate(losses.items()):
        style: dict[str, Any] = {"color": COLORS["rule"], "linewidth": 5.0}
        if index:
            style = hue[name] | {"linewidth": 1.6, "zorder": 3} if name in named else {**REST, "zorder": 2.5}
        first = 0 if index == 0 else saved_at
        steps = np.arange(first, first + len(values))
        shown = steps >= saved_at - 8
        (line,) = left.plot(steps[shown], np.asarray(values)[shown], **style)
        if name in named:
            ends.append((line, name))
        elif index:
            rest.append((line, name))
        if index == 0:
            left.annotate(
                name,
                (steps[shown][0], values[saved_at - 8]),
                xytext=(0, 9),
                textcoords="offset points",
                size=9,
                color=COLORS["muted"],
            )
    if rest:
        ends.append((rest[0][0], rest[0][1] if len(rest) == 1 else f"the other {len(rest)}"))
    end_labels(left, ends)
    left.axvline(saved_at - 0.5, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (2, 2)))
    panel_title(left, "loss, nats a token")
    left.set_xlabel("step")
    right.set_yscale("log")
    lines = []
    for index, (name, values) in enumerate(gaps.items()):
        data = np.where(np.asarray(values) > 0, values, np.nan)
        steps = np.arange(saved_at, saved_at + len(values))
        (line,) = right.plot(steps, data, marker="o", markersize=3.5, **series(index))
        lines.append((line, name))
    end_labels(right, [(line, name) for line, name in lines if np.isfinite(line.get_ydata()).any()])
    exact = [name for line, name in lines if not np.isfinite(line.get_ydata()).any()]
    if exact:
        right.text(
            0.98, 0.03, f"exactly 0: {', '.join(exact)}", transform=right.transAxes, ha="right", size=9.5,
            color=ink(COLORS["green"]), weight="bold",
        )  # fmt: skip
    right.set_xlim(saved_at - 0.5, saved_at + max(len(v) for v in gaps.values()) - 0.5)
    low, high = right.get_ylim()
    right.set_ylim(low / 3, high)
    panel_title(right, "largest gap in a weight, after the step")
    right.set_xlabel("step")
    return fig


OUTCOMES = {
    "previous": tint(COLORS["forward"], 0.45),
    "new": COLORS["green"],
    "mixed": COLORS["purple"],
    "broken": COLORS["vermilion"],
}
"""Colour of what a reader finds after a stopped save."""

_LETTERS = {"previous": "p", "new": "n", "mixed": "?", "broken": "×"}


def stopped_saves(
    outcomes: Mapping[str, Sequence[str]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A square for each operation after which a save was stopped: {way of saving: outcomes}, of OUTCOMES."""
    fig, ax = new_figure(title, subtitle, height=62 + 46 * len(outcomes))
    longest = max(len(found) for found in outcomes.values())
    for place, found in enumerate(outcomes.values()):
        for at, outcome in enumerate(found):
            ax.barh(place, 0.9, left=at - 0.45, height=0.62, color=OUTCOMES[outcome])
            ax.text(at, place, _LETTERS[outcome], ha="center", va="center", size=9, color=text_on(OUTCOMES[outcome]))
    _rows(ax, list(outcomes))
    ax.set_xlim(-0.7, longest - 0.3)
    ax.set_xlabel("stopped after so many file operations")
    words = {
        "previous": "p: the previous one",
        "new": "n: the new one",
        "mixed": "?: a mixture",
        "broken": "×: unusable",
    }
    key(ax, [(words[name], color) for name, color in OUTCOMES.items() if any(name in f for f in outcomes.values())])
    if row:
        numbers(fig, row)
    return fig


def price_of_a_save(
    seconds: Mapping[str, float], *, title: str, subtitle: str | None = None, row: Sequence[tuple[str, str]] = ()
) -> Figure:
    """A bar a way of writing the same bytes: {what: seconds}; the last one is the whole save."""
    fig, ax = new_figure(title, subtitle, height=56 + 36 * len(seconds))
    for place, value in enumerate(seconds.values()):
        last = place == len(seconds) - 1
        ax.barh(place, 1e3 * value, height=0.62, color=COLORS["forward"] if last else COLORS["rule"])
        _behind(ax, 1e3 * value, place, f"{1e3 * value:,.0f} ms", size=9.5)
    _rows(ax, list(seconds))
    ax.set_xlim(0, 1e3 * max(seconds.values()) * 1.13)
    ax.set_xlabel("milliseconds")
    if row:
        numbers(fig, row)
    return fig


def differences_at_the_end(
    gaps: Mapping[str, tuple[float, bool]], *, title: str, subtitle: str | None = None
) -> Figure:
    """The largest gap in a weight at the end (log scale), a dot a resume: {resume: (gap, it is a fault)}."""
    fig, ax = new_figure(title, subtitle, height=66 + 34 * len(gaps))
    some = [gap for gap, _ in gaps.values() if gap > 0]
    floor = min(some, default=1e-7) / 30
    ax.set_xscale("log")
    for place, (gap, fault) in enumerate(gaps.values()):
        color = COLORS["vermilion"] if fault else COLORS["green"]
        ax.plot(max(gap, floor), place, "X" if fault else "o", color=color, markersize=10)
        _behind(ax, max(gap, floor), place, f"  {gap:.1e}" if gap else "  0: every bit", ink(color), 9.5)
    _rows(ax, list(gaps))
    ax.set_xlim(floor / 2, max(some, default=1e-3) * 30)
    ax.set_xlabel("largest gap in a weight, ten steps after the resume")
    key(ax, [("no fault", COLORS["green"]), ("a fault", COLORS["vermilion"])])
    return fig
