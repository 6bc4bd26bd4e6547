"""Pictures of chapter 4: formats side by side, what autocast casts, gradients in FP16, the scaler, lost updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    note,
    numbers,
    panel_title,
    series,
    text_on,
    tint,
)

__all__ = [
    "capability_table",
    "cast_ladder",
    "formats_side_by_side",
    "gradients_in_fp16",
    "loss_curves",
    "pace",
    "power_of_two",
    "scaler_run",
]

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_LANES = {"fp32": COLORS["orange"], "bf16": COLORS["blue"], "fp16": COLORS["blue"]}


def power_of_two(power: int) -> str:
    """2 to this power as one writes it: 2²⁴, 2⁻¹⁴, 1."""
    return "2" + str(power).translate(_RAISED) if power else "1"


def pace(ratio: float) -> str:
    """A rate over another (above 0) as one says it: 2.1 times as fast, 32 times slower."""
    return f"{ratio:.2g} times as fast" if ratio >= 1 else f"{1 / ratio:.2g} times slower"


def formats_side_by_side(
    formats: Mapping[str, tuple[float, float, float, int]], *, title: str, subtitle: str | None = None
) -> Figure:
    """A bar a format on an axis of powers of two: {name: (smallest subnormal, smallest normal, largest, significant
    bits)}. The pale end is the subnormals, which lose bits; behind the bar stands the precision."""
    fig, ax = new_figure(title, subtitle, height=60 + 40 * len(formats))
    for place, (tiny, normal, most, bits) in enumerate(formats.values()):
        low, middle, high = (float(np.log2(x)) for x in (tiny, normal, most))
        ax.barh(place, middle - low, left=low, height=0.5, color=tint(COLORS["blue"], 0.35))
        ax.barh(place, high - middle, left=middle, height=0.5, color=COLORS["blue"])
        ax.annotate(
            f"{bits} significant bits",
            (134, place),
            va="center",
            size=10,
            color=COLORS["ink"],
            annotation_clip=False,
        )
    ax.set_yticks(range(len(formats)), list(formats))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(formats) - 0.5, -0.5)
    ax.set_xlim(-152, 194)
    ticks = [-149, -126, -75, -24, 0, 16, 75, 128]
    ax.set_xticks(ticks, [power_of_two(t) for t in ticks])
    ax.grid(False)
    ax.grid(True, axis="x", color="#E4E4E4", linewidth=0.8)
    ax.set_xlabel("size of a number; pale: subnormals, with fewer and fewer bits")
    return fig


def cast_ladder(
    operations: Sequence[tuple[str, str, bool]], *, title: str, subtitle: str | None = None, low: str = "bf16"
) -> Figure:
    """Operations in order from left to right, each on the lane of the dtype that it puts out: [(name, dtype, casts)].

    A cast is a small hollow mark; everything else a filled one with its name.
    """
    fig, ax = new_figure(title, subtitle, height=250)
    lanes = {low: 0.0, "fp32": 1.0}
    heights = [lanes.get(dtype, 0.5) for _, dtype, _ in operations]
    ax.plot(range(len(operations)), heights, color=COLORS["rule"], linewidth=1.2, zorder=1)
    for place, ((name, dtype, casts), y) in enumerate(zip(operations, heights, strict=True)):
        color = _LANES.get(dtype, COLORS["grey"])
        face = COLORS["paper"] if casts else color
        ax.plot([place], [y], "o", markersize=5 if casts else 9, color=color, markerfacecolor=face, zorder=2)
        if not casts:
            above = y > 0.5
            ax.annotate(
                name,
                (place, y),
                xytext=(0, 9 if above else -9),
                textcoords="offset points",
                rotation=60 if above else -60,
                rotation_mode="anchor",
                ha="left",
                va="center",
                size=8.5,
                color=ink(color),
            )
    ax.set_yticks([0, 1], [low.upper(), "FP32"])
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(-1.1, 2.0)
    ax.set_xlim(-1, len(operations) + 2)
    ax.set_xticks([])
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)
    return fig


def gradients_in_fp16(
    panels: Mapping[str, npt.NDArray[np.float64]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Histograms of |gradient| by power of two over the zones of FP16: {panel: sizes (n,)}, what is 0 left out."""
    fig, axes = new_panels(title, subtitle, height=230, cols=len(panels), share_y=True)
    low, high = -40, 20
    zones = [
        (low, -25, "becomes 0", COLORS["vermilion"]),
        (-25, -14, "subnormal", COLORS["orange"]),
        (-14, 16, "normal", COLORS["green"]),
        (16, high, "∞", COLORS["vermilion"]),
    ]
    edges = np.arange(low, high + 1)
    shares = {}
    for name, sizes in panels.items():
        powers = np.log2(sizes[sizes > 0])
        shares[name] = np.histogram(powers, bins=edges)[0] / max(len(powers), 1)
    top = 1.25 * max(float(share.max()) for share in shares.values()) or 1.0
    for ax, (name, share) in zip(axes, shares.items(), strict=True):
        for start, stop, _, color in zones:
            ax.axvspan(start, stop, color=tint(color, 0.18), linewidth=0)
        middles = edges[:-1] + 0.5
        shades = [next(c for a, b, _, c in zones if a <= m < b) for m in middles]
        ax.bar(middles, share, width=0.9, color=shades)
        for start, stop, words, color in zones:
            ax.text((start + stop) / 2, top * 0.95, words, ha="center", va="top", size=9, color=ink(color))
        ax.set_ylim(0, top)
        ax.set_xlim(low, high)
        ax.set_xticks([-40, -25, -14, 0, 16], [power_of_two(p) for p in (-40, -25, -14, 0, 16)])
        ax.yaxis.set_major_formatter(lambda y, _: f"{y:.0%}")
        ax.set_xlabel("size of a gradient")
        panel_title(ax, name)
    axes[0].set_ylabel("share of the gradients")
    if row:
        numbers(fig, row)
    return fig


def scaler_run(scales: Sequence[float], skipped: Sequence[bool], *, title: str, subtitle: str | None = None) -> Figure:
    """The scale of every step as a staircase of powers of two; a cross where the step was left out."""
    fig, ax = new_figure(title, subtitle, height=240)
    steps, powers = np.arange(len(scales)), np.log2(np.asarray(scales, dtype=float))
    ax.step(steps, powers, where="mid", color=COLORS["blue"], linewidth=2)
    out = np.asarray(skipped, dtype=bool)
    ax.plot(steps[out], powers[out], "X", color=COLORS["vermilion"], markersize=9)
    if out.any():
        first = int(np.argmax(out))
        note(ax, "overflow: step left out, scale halved", (first, powers[first]), offset=(26, 4), color="vermilion")
    grown = np.flatnonzero(np.diff(powers) > 0)
    if len(grown):
        at = int(grown[0]) + 1
        note(ax, "enough good steps: scale doubled", (at, powers[at]), offset=(14, 30), color="blue")
    span = np.arange(np.floor(powers.min()) - 1, np.ceil(powers.max()) + 2)
    shown = span[:: max(1, len(span) // 6)]
    ax.set_yticks(shown, [power_of_two(int(p)) for p in shown])
    ax.set_xlabel("step")
    ax.set_ylabel("loss scale")
    return fig


def loss_curves(
    curves: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """One loss curve (nats a token) a run, named at its end; the first is the reference, drawn broad and pale."""
    fig, ax = new_figure(title, subtitle, height=280)
    lines = []
    for index, (name, values) in enumerate(curves.items()):
        style = {"color": COLORS["rule"], "linewidth": 8} if index == 0 else series(index - 1)
        (line,) = ax.plot(np.arange(len(values)), values, **style)
        lines.append((line, name))
    end_labels(ax, lines)
    ax.set_xlabel("update")
    ax.set_ylabel("nats a token")
    if row:
        numbers(fig, row)
    return fig


def _rate(ratio: float) -> str:
    return f"{ratio:.2g} x FP32" if ratio >= 1 else f"{1 / ratio:.2g} x slower"


def capability_table(
    rows: Mapping[str, Sequence[bool | float | str | None]],
    columns: Sequence[str],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """A table of what was probed: {row: cells}. True is green, False vermilion, None grey; a number is a rate over
    FP32's, above 0."""
    fig, ax = new_figure(title, subtitle, height=52 + 30 * len(rows))
    shades = {True: tint(COLORS["green"], 0.45), False: tint(COLORS["vermilion"], 0.45)}
    for y, cells in enumerate(rows.values()):
        for x, cell in enumerate(cells):
            if cell is None:
                text, color = "no device", COLORS["idle"]
            elif isinstance(cell, bool):
                text, color = "yes" if cell else "no", shades[cell]
            else:
                color = tint(COLORS["blue"], 0.2)
                text = cell if isinstance(cell, str) else _rate(cell)
            ax.barh(y, 0.94, left=x + 0.03, height=0.84, color=color)
            shade = COLORS["muted"] if cell is None else text_on(color)
            ax.text(x + 0.5, y, text, ha="center", va="center", size=9.5, color=shade)
    ax.set_yticks(range(len(rows)), list(rows))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_xticks([x + 0.5 for x in range(len(columns))], list(columns))
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.set_xlim(0, len(columns))
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)
    return fig
