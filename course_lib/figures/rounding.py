"""Pictures of number formats: the bits of a value over its place on the number line, and sums one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from course_lib.figures.style import COLORS, end_labels, ink, new_figure, note, series, text_on, tint

__all__ = ["BIT_COLORS", "Place", "number", "running_sums_figure", "value_in_format"]

BIT_COLORS = {"sign": COLORS["purple"], "exponent": COLORS["blue"], "mantissa": COLORS["green"]}
"""Colour of each of the three groups of bits."""
_SPAN = 768  # px from edge to edge


@dataclass(frozen=True)
class Place:
    """Where on the number line of a format a value lies, and where it is stored."""

    asked: float
    stored: float
    """Place of what is stored; for infinity and NaN the end of the line that stands for it."""
    ticks: Sequence[tuple[float, str]]
    """The format's values in sight, from low to high, with their labels."""
    middle: float | None = None
    """Halfway between the two neighbours; None where there is no such place."""


def number(x: float, gap: float = 0.0, digits: int = 5) -> str:
    """As few digits as tell values `gap` apart from each other, else `digits` of them; whole numbers in full."""
    if not math.isfinite(x):
        return "NaN" if math.isnan(x) else "∞" if x > 0 else "−∞"
    if x.is_integer() and abs(x) < 1e9:
        return f"{int(x):,}".replace("-", "−")
    digits = min(17, max(3, math.ceil(math.log10(abs(x) / gap)) + 2)) if gap > 0 else digits
    head, _, power = f"{x:.{digits}g}".partition("e")
    return (f"{head}e{int(power)}" if power else head).replace("-", "−")


def value_in_format(
    bits: tuple[str, str, str], words: tuple[str, str, str], place: Place | None, *, title: str, subtitle: str
) -> Figure:
    """Bits in three colours with a few words under each group; under them the number line, if the value has a place."""
    fig, ax = new_figure(title, subtitle, height=208 if place else 84)
    ax.set_axis_off()
    ax.set_xlim(0, _SPAN)
    ax.set_ylim(208 if place else 84, 0)
    _draw_bits(ax, bits, words)
    if place:
        _draw_line(ax, place)
    return fig


def _draw_bits(ax: Axes, bits: tuple[str, str, str], words: tuple[str, str, str]) -> None:
    count = sum(map(len, bits))
    gap = 14
    step = min(42.0, (_SPAN - 2 * gap) / count)
    side = step - min(6.0, step / 6)
    left, ends = 0.0, -20.0
    for (name, color), group, text in zip(BIT_COLORS.items(), bits, words, strict=True):
        boxes, colors = [], []
        for bit in group:
            fill = color if bit == "1" else tint(color, 0.28)
            boxes.append(Rectangle((left, 4), side, 40))
            colors.append(fill)
            ax.text(left + side / 2, 25, bit, ha="center", va="center", size=min(14, side / 2), color=text_on(fill))
            left += step
        ax.add_collection(PatchCollection(boxes, facecolors=colors, edgecolors="none"))
        start = max(left - step * len(group), ends + 20)
        label = f"{name} {text}".strip()
        ax.text(start, 62, label, va="center", size=9.5, color=ink(color))
        ends = start + 7.6 * len(label)
        left += gap


def _draw_line(ax: Axes, place: Place) -> None:
    y, low, high = 150, place.ticks[0][0], place.ticks[-1][0]
    unit = (_SPAN - 110) / ((high - low) or 1)

    def at(x: float) -> float:
        return 55 + (x - low) * unit

    ax.add_collection(LineCollection([[(0, y), (_SPAN, y)]], colors=COLORS["rule"], linewidths=1.2))
    marks = [[(at(x), y - 10), (at(x), y + 10)] for x, _ in place.ticks]
    ax.add_collection(LineCollection(marks, colors=COLORS["ink"], linewidths=1.6))
    if place.middle is not None:
        middle = at(place.middle)
        ax.add_collection(LineCollection([[(middle, y - 6), (middle, y + 6)]], colors=COLORS["grey"], linewidths=1.0))
    last = -math.inf
    for x, label in place.ticks:
        if at(x) - last >= 8.4 * len(label) + 10:
            weight = "bold" if x == place.stored else "normal"
            ax.text(at(x), y + 25, label, ha="center", va="center", size=9.5, weight=weight, color=COLORS["ink"])
            last = at(x)
    color = COLORS["vermilion"]
    dot = min(max(at(place.asked), 12), _SPAN - 12)
    ax.plot([dot], [y], "o", color=color, markersize=8)
    side = "center" if 90 < dot < _SPAN - 90 else "left" if dot <= 90 else "right"
    words = f"{number(place.asked, abs(high - low) / 60)} asked for"
    ax.text(min(max(dot, 4), _SPAN - 4), y - 44, words, ha=side, va="center", size=9.5, color=ink(color))
    target = at(place.stored)
    if abs(target - dot) > 4:
        bend = 0.35 if target < dot else -0.35
        style: dict[str, Any] = {"arrowstyle": "-|>", "mutation_scale": 13, "linewidth": 1.4, "shrinkA": 5}
        arrow = FancyArrowPatch(
            (dot, y), (target, y - 10), connectionstyle=f"arc3,rad={bend}", shrinkB=1, color=color, **style
        )
        ax.add_patch(arrow)


def running_sums_figure(
    curves: Mapping[str, npt.NDArray[np.float64]],
    exact: npt.NDArray[np.float64],
    stops: Mapping[str, int],
    *,
    title: str,
    subtitle: str,
) -> Figure:
    """One curve a way of adding: {name: sums after 0, 1, ... additions}; the exact sums as a grey band behind them.

    stops: {name: additions after which that sum moved no more}, each marked with a dot. Infinities are not drawn.
    """
    fig, ax = new_figure(title, subtitle, height=300)
    count = len(exact) - 1
    keep = np.unique(np.linspace(0, count, min(count + 1, 400)).astype(int))
    (line,) = ax.plot(keep, exact[keep], color=COLORS["rule"], linewidth=7, solid_capstyle="butt")
    labelled = [(line, f"exact {number(float(exact[-1]))}")]
    for index, (name, sums) in enumerate(curves.items()):
        shown = np.where(np.isfinite(sums[keep]), sums[keep], np.nan)
        (line,) = ax.plot(keep, shown, **series(index))
        if np.isfinite(shown[-1]):
            labelled.append((line, f"{name} {number(float(sums[-1]))}"))
        if name in stops:
            end = stops[name]
            ax.plot([end], [sums[end]], "o", color=line.get_color(), markersize=8)
            side = 18 if exact[-1] < exact[0] else -20
            note(ax, f"{name} stops", (end, float(sums[end])), offset=(10, side), color=str(line.get_color()))
    end_labels(ax, labelled)
    ax.set_xlim(0, max(count, 1))
    ax.set_xlabel("additions")
    ax.margins(y=0.12)
    ax.yaxis.set_major_formatter(lambda x, _: number(float(x)))
    ax.xaxis.set_major_formatter(lambda x, _: f"{int(x):,}" if float(x).is_integer() else "")
    return fig
