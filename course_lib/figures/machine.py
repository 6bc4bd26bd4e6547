"""Pictures of chapter 0: what this machine can do, how far equal runs drift apart, and a loss that is too low."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.curve import smoothed
from course_lib.figures.style import COLORS, end_labels, ink, new_figure, numbers, series, text_on, tint

__all__ = ["below_the_floor", "chapter_times", "drift", "number_formats"]

_FORMATS = {"fp32": "FP32 (4 bytes)", "bf16": "BF16 (2 bytes)", "fp16": "FP16 (2 bytes)"}


def number_formats(rates: Mapping[str, float | None], facts: Sequence[tuple[str, str]], device: str = "cpu") -> Figure:
    """Bars: FLOP/s of a matrix product by number format ("fp32", "bf16", "fp16"); None: it does not run here.

    `facts` are the big numbers under it: (value, label).
    """
    base, half = rates["fp32"], rates.get("bf16")
    assert base is not None
    if half is None:
        title = f"BF16 products do not run on this {device.upper()}"
    elif half > 1.1 * base:
        title = f"BF16 products run {half / base:.1f} times as fast as FP32 here"
    elif half < 0.9 * base:
        title = f"BF16 products run at {half / base:.0%} of FP32's speed here"
    else:
        title = "BF16 products run about as fast as FP32 here"
    fig, ax = new_figure(
        title,
        f"Billions of multiplications and additions a second in one matrix product on this {device.upper()}.",
        height=130,
    )
    names = [name for name in _FORMATS if name in rates]
    most = max(rate for rate in rates.values() if rate is not None)
    for row, name in enumerate(names):
        rate = rates[name]
        ax.barh(row, rate or 0, height=0.62, color=COLORS["forward"] if rate else COLORS["idle"])
        text = "does not run" if rate is None else f"{rate / 1e9:,.0f}" if rate >= 1e10 else f"{rate / 1e9:.1f}"
        inside = rate is not None and rate > 0.12 * most
        shade = text_on(COLORS["forward"]) if inside else ink(COLORS["muted"])
        ax.annotate(
            text,
            (rate or 0, row),
            xytext=(-7 if inside else 7, 0),
            textcoords="offset points",
            ha="right" if inside else "left",
            va="center",
            color=shade,
            size=10,
        )
    ax.set_yticks(range(len(names)), [_FORMATS[name] for name in names])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.set_xlim(0, 1.02 * most)
    ax.grid(False)
    ax.set_xticks([])
    numbers(fig, facts)
    return fig


def chapter_times(chapters: Sequence[tuple[str, float, float]]) -> Figure:
    """Bars: (chapter, your minutes, this machine's seconds) for each chapter that exists."""
    yours = sum(minutes for _, minutes, _ in chapters)
    machine = sum(seconds for _, _, seconds in chapters)
    fig, ax = new_figure(
        f"Plan about {yours / 60:.1f} hours; this machine computes for {_duration(machine)} of them",
        "A bar is your time with a chapter, exercises not counted. Beside it: how long the machine computes in it.",
        height=34 * len(chapters) + 20,
    )
    for row, (_, minutes, seconds) in enumerate(chapters):
        ax.barh(row, minutes, height=0.62, color=tint(COLORS["forward"], 0.55))
        ax.annotate(
            f"{minutes:.0f} min, the machine {_duration(seconds)}",
            (minutes, row),
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            size=9.5,
            color=COLORS["ink"],
            annotation_clip=False,
        )
    ax.set_yticks(range(len(chapters)), [name for name, _, _ in chapters])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(chapters) - 0.5, -0.5)
    ax.set_xlim(0, 1.5 * max(minutes for _, minutes, _ in chapters))
    ax.set_xticks([])
    ax.grid(False)
    return fig


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def drift(runs: Mapping[str, Sequence[float]], on_paper: str, other: str) -> Figure:
    """How far each run's loss is from the first run's, step by step, in nats per token, on a logarithmic axis.

    `runs` maps a name to the absolute differences (n,); differences of exactly 0 stand on the bottom line. The title
    compares the run called `on_paper`, which is equal in algebra, with the one called `other`, over the last 20 steps.
    """
    bottom = 1e-8
    small, large = float(np.max(runs[on_paper][-20:])), float(np.median(runs[other][-20:]))
    apart = f": {_small(small)} of a nat apart" if small > 0 else ", and in every bit of the loss"
    fig, ax = new_figure(
        f"Equal on paper{apart}; {other}: {large:.1g}",
        "Distance of each run's loss from the first run's, at every step (nats a token).",
        height=270,
    )
    lines = []
    for index, (name, values) in enumerate(runs.items()):
        shown = np.maximum(np.asarray(values, dtype=float), bottom)
        (line,) = ax.plot(np.arange(len(shown)), shown, **series(index))
        line.set_linewidth(1.5 if np.any(shown > bottom) else 2.4)
        lines.append((line, name))
    ax.set_yscale("log")
    ax.set_ylim(bottom / 2, 2)
    ticks = [bottom, 1e-6, 1e-4, 1e-2, 1]
    ax.set_yticks(ticks, ["exactly 0", "1 millionth", "0.0001", "0.01", "1"])
    ax.minorticks_off()
    ax.set_xlabel("step")
    end_labels(ax, lines)
    return fig


def _small(value: float) -> str:
    """One significant digit, in words where zeros would be counted: "2 millionths"; above a thousandth, digits."""
    rounded = float(f"{value:.0e}")
    if rounded >= 1e-3:
        return f"{rounded:g}"
    unit, name = (1e-6, "millionth") if rounded >= 1e-6 else (1e-9, "billionth")
    count = round(rounded / unit)
    return f"{count} {name}{'s' if count != 1 else ''}"


def below_the_floor(curves: Mapping[str, Sequence[float]], floor: float, row: Sequence[tuple[str, str]]) -> Figure:
    """Training losses (nats per token, one a step) against the entropy of the data; the last curve is the strange one.

    `row` holds the big numbers under it: (value, label).
    """
    names = list(curves)
    last = float(np.mean(curves[names[-1]][-50:]))
    fig, ax = new_figure(
        f"Where {names[-1]}, the loss ends {floor - last:.2f} nats below the floor"
        if last < floor
        else f"Where {names[-1]}, the loss ends at the floor",
        "Training loss on random letters, none of them used twice. The floor is their entropy.",
        height=280,
    )
    everything = np.concatenate([smoothed(values) for values in curves.values()])
    low, high = min(everything.min(), floor), max(everything.max(), floor)
    pad = 0.12 * (high - low)
    ax.axhspan(low - pad, floor, color=tint(COLORS["communication"], 0.10), linewidth=0)
    end = max(len(values) for values in curves.values()) - 1
    (line,) = ax.plot([0, end], [floor, floor], color=COLORS["ink"], linewidth=1.2)
    lines = [(line, f"floor, {floor:.4f}")]
    for name, color in zip(names, ("forward", "communication"), strict=True):
        steps = np.arange(len(curves[name]))
        ax.plot(steps, curves[name], color=tint(COLORS[color], 0.35), linewidth=0.8)
        (line,) = ax.plot(steps, smoothed(curves[name]), color=COLORS[color], linewidth=2.4)
        lines.append((line, name))
    ax.set_ylim(low - pad, high + pad)
    ax.text(
        0.02,
        0.06,
        "below the floor: impossible for whoever sees only the past",
        transform=ax.transAxes,
        size=9.5,
        color=ink(COLORS["communication"], tint(COLORS["communication"], 0.10)),
    )
    ax.set_xlabel("step")
    ax.set_ylabel("nats a token")
    end_labels(ax, lines)
    numbers(fig, row)
    return fig
