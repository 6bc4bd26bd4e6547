"""The pictures of `rounding` as SVG text in the page's own colours: drawn in a few milliseconds, for live explorers."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from course_lib.figures.colors import COLORS, series, text_on
from course_lib.figures.rounding import BIT_COLORS, Place, number
from course_lib.figures.svg import MUTED, PAGE, RULE, WIDTH, end_labels, head, line, put_text, svg

__all__ = ["sums_svg", "value_svg"]


def value_svg(
    bits: tuple[str, str, str], words: tuple[str, str, str], place: Place | None, *, title: str, subtitle: str
) -> str:
    """Like `rounding.value_in_format`, as HTML."""
    parts = _bits(bits, words)
    if place:
        parts += _number_line(place)
    return head(title, subtitle) + svg(200, parts)


def _bits(bits: tuple[str, str, str], words: tuple[str, str, str]) -> list[str]:
    parts: list[str] = []
    gap = 14
    step = min(42.0, (WIDTH - 2 * gap) / max(sum(map(len, bits)), 1))
    side = step - min(6.0, step / 6)
    left, ends = 0.0, -20.0
    for (name, color), group, text in zip(BIT_COLORS.items(), bits, words, strict=True):
        start = max(left, ends + 20)
        for bit in group:
            strong = bit == "1"
            box = f'x="{left:.1f}" y="2" width="{side:.1f}" height="40" rx="4" fill="{color}"'
            parts.append(f'<rect {box} fill-opacity="{1 if strong else 0.22}"/>')
            size = f'font-size="{min(19.0, side * 0.72):.1f}"'
            parts.append(put_text(left + side / 2, 23, bit, fill=text_on(color) if strong else PAGE, extra=size))
            left += step
        label = f"{name} {text}".strip()
        if group:
            parts.append(f'<circle cx="{start + 5:.1f}" cy="60" r="5" fill="{color}"/>')
            parts.append(put_text(start + 15, 60, label, anchor="start"))
        ends = start + 15 + 7.0 * len(label)
        left += gap
    return parts


def _number_line(place: Place) -> list[str]:
    y, low, high = 146, place.ticks[0][0], place.ticks[-1][0]
    unit = (WIDTH - 110) / ((high - low) or 1)

    def at(x: float) -> float:
        return 55 + (x - low) * unit

    parts = [line(0, y, WIDTH, y, RULE, 1.5)]
    if place.middle is not None:
        parts.append(line(at(place.middle), y - 6, at(place.middle), y + 6, MUTED, 1))
    last = -math.inf
    for x, label in place.ticks:
        parts.append(line(at(x), y - 10, at(x), y + 10))
        if at(x) - last >= 8.0 * len(label) + 10:
            parts.append(put_text(at(x), y + 24, label, extra='font-weight="700"' if x == place.stored else ""))
            last = at(x)
    color = COLORS["vermilion"]
    dot, target = min(max(at(place.asked), 12), WIDTH - 12), at(place.stored)
    parts.append(f'<circle cx="{dot:.1f}" cy="{y}" r="6" fill="{color}"/>')
    anchor = "middle" if 90 < dot < WIDTH - 90 else "start" if dot <= 90 else "end"
    parts.append(put_text(dot, y - 44, f"{number(place.asked, abs(high - low) / 60)} asked for", anchor=anchor))
    if abs(target - dot) > 4:
        away = 4 if target < dot else -4
        tip = target + away
        curve = f"M{dot:.1f} {y - 8}Q{(dot + target) / 2:.1f} {y - 36} {tip:.1f} {y - 15}"
        parts.append(f'<path d="{curve}" fill="none" stroke="{color}" stroke-width="2"/>')
        head = f"M{target:.1f} {y - 9}l{away * 0.4:.1f} -10l{away * 1.7:.1f} 7z"
        parts.append(f'<path d="{head}" fill="{color}"/>')
    return parts


def _nice(low: float, high: float, wanted: int = 5) -> list[float]:
    """Round numbers between low and high: multiples of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / wanted
    if not math.isfinite(raw) or raw <= 0 or low + raw == low:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5) if m * power >= raw), 10 * power)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)][:20]


def sums_svg(
    curves: Mapping[str, npt.NDArray[np.float64]],
    exact: npt.NDArray[np.float64],
    stops: Mapping[str, int],
    *,
    title: str,
    subtitle: str,
) -> str:
    """Like `rounding.running_sums_figure`, as HTML."""
    left, right, top, bottom = 74.0, 590.0, 14.0, 252.0
    count = len(exact) - 1
    keep = np.unique(np.linspace(0, count, min(count + 1, 400)).astype(int))
    shown = {name: sums[keep] for name, sums in curves.items()}
    finite = np.concatenate([v[np.isfinite(v)] for v in (exact[keep], *shown.values())])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    room = (high - low) * 0.06 or abs(high) * 1e-3 or 1.0
    low, high = low - room, high + room
    if not math.isfinite(high - low):
        low, high = -1.0, 1.0

    def x(i: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return left + np.asarray(i, dtype=float) / max(count, 1) * (right - left)

    def y(value: npt.ArrayLike) -> npt.NDArray[np.float64]:
        return bottom - (np.asarray(value, dtype=float) - low) / (high - low) * (bottom - top)

    def path(values: npt.NDArray[np.float64], style: str) -> str:
        ok = np.isfinite(values)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x(keep[ok]), y(values[ok]), strict=True))
        return f'<polyline points="{points}" fill="none" {style}/>'

    parts = []
    ticks = _nice(low, high)
    gap = abs(ticks[1] - ticks[0]) if len(ticks) > 1 else 0.0
    for tick in ticks:
        parts.append(line(left, float(y(tick)), right, float(y(tick)), RULE, 0.6))
        parts.append(put_text(left - 8, float(y(tick)), number(tick, gap), anchor="end", fill=MUTED))
    for tick in _nice(0, count):
        if float(tick).is_integer():
            parts.append(put_text(float(x(tick)), bottom + 16, f"{int(tick):,}", fill=MUTED))
    parts.append(put_text((left + right) / 2, bottom + 36, "additions", fill=MUTED))
    parts.append(path(exact[keep], f'stroke="{RULE}" stroke-width="8"'))
    ends = [(float(y(exact[-1])), RULE, f"exact {number(float(exact[-1]))}")]
    for index, (name, values) in enumerate(shown.items()):
        color, dash = _stroke(index)
        parts.append(path(values, f'stroke="{color}" stroke-width="2.5" {dash}'))
        if math.isfinite(values[-1]):
            ends.append((float(y(values[-1])), color, f"{name} {number(float(values[-1]))}"))
        if name in stops:
            end = stops[name]
            dot = f'cx="{float(x(end)):.1f}" cy="{float(y(curves[name][end])):.1f}" r="6" fill="{color}"'
            parts.append(f"<circle {dot}><title>{html.escape(name)} stops after {end:,} additions</title></circle>")
    if np.isfinite([place for place, _, _ in ends]).all():
        parts += end_labels(ends, right, top, bottom)
    return head(title, subtitle) + svg(296, parts)


def _stroke(index: int) -> tuple[str, str]:
    style = series(index)
    dashes = style["linestyle"]
    pattern = "" if isinstance(dashes, str) else " ".join(f"{3 * d:g}" for d in dashes[1])
    return str(style["color"]), f'stroke-dasharray="{pattern}"' if pattern else ""
