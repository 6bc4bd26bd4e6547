"""Computing, sending and MFU of an FSDP step against the number of devices, with the crossover and the wall.

    steps = {n: fsdp_step(model, sequence, tokens, n, cluster) for n in devices_to_draw(step.crossover, step.floor)}
    show(crossover_curves(steps, here=1024, title="..."), "...")

`crossover_svg` is the same picture as HTML in the page's own colours, in a few milliseconds, for the live explorer.
"""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Mapping, Sequence

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.figures.style import COLORS, new_panels
from course_lib.figures.style import end_labels as name_lines
from course_lib.figures.svg import MUTED, PAGE, RULE, end_labels, head, line, put_text, svg
from course_lib.planning.clusters import FsdpStep

__all__ = ["LARGEST", "crossover_curves", "crossover_svg", "devices_to_draw"]

LARGEST = 65_536
"""Devices at the right edge."""

_TICKS = (1, 8, 64, 512, 4096, 32_768)
_CURVES: tuple[tuple[str, str, str, Callable[[FsdpStep], float]], ...] = (
    ("the step", COLORS["grey"], "", lambda step: step.seconds),
    ("computing", COLORS["forward"], "", lambda step: step.computing),
    ("sending", COLORS["communication"], "7 3", lambda step: step.sending),
)
_TIMES = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs"))


def devices_to_draw(crossover: float, floor: int) -> list[int]:
    """Numbers of devices for smooth curves: about three for each doubling, and those beside the two marks."""
    points = {round(2 ** (k / 3)) for k in range(int(3 * math.log2(LARGEST)) + 1)}
    for mark in (crossover, float(floor)):
        points |= {n for n in (math.floor(min(mark, 1e9)), math.ceil(min(mark, 1e9))) if 1 <= n <= LARGEST}
    return sorted(points)


def seconds_text(value: float) -> str:
    """0.25 -> "250 ms", 90 -> "1.5 min"."""
    if value == 0:
        return "nothing"
    size, unit = next((one for one in _TIMES if value >= one[0]), _TIMES[-1])
    return f"{value / size:.3g} {unit}"


def _tick(power: int) -> str:
    """10^3 -> "1,000 s", 10^-2 -> "0.01 s"."""
    return f"{10.0**power:,.0f} s" if power >= 0 else f"{10.0**power:.{-power}f} s" if power >= -3 else f"1e−{-power} s"


def _to_the_left(mark: float, step: FsdpStep) -> bool:
    """Whether a mark's name stands at its left: away from the other mark, and from the picture's right edge."""
    other = step.crossover if mark == step.floor else step.floor
    return mark > 8192 or (other / 3 < mark <= other and mark > 16)


def _decades(steps: Mapping[int, FsdpStep]) -> tuple[int, int]:
    """Powers of ten around all times; what is more than seven decades below the longest is not drawn."""
    values = [of(step) for step in steps.values() for _, _, _, of in _CURVES]
    high = math.ceil(math.log10(max(max(values), 1e-9)))
    low = math.floor(math.log10(max(min(value for value in values if value > 0), 1e-12)))
    return max(low, high - 7), max(high, low + 1)


def crossover_curves(steps: Mapping[int, FsdpStep], here: int, *, title: str, subtitle: str | None = None) -> Figure:
    """Above the times of a step, below its MFU, both over devices: {devices: step}. `here` has a dot."""
    fig, (top, bottom) = new_panels(title, subtitle, height=380, cols=1, rows=2, share_x=True, height_ratios=[2, 1])
    some = next(iter(steps.values()))
    low, high = _decades(steps)
    names = []
    for name, color, dashes, of in _CURVES:
        style, wide = "--" if dashes else "-", 6.0 if name == "the step" else 1.8
        points = [(n, of(step)) for n, step in steps.items() if of(step) > 0]
        (drawn,) = top.plot(*zip(*points, strict=True), style, color=color, linewidth=wide)
        names.append((drawn, name))
    name_lines(top, names)
    bottom.plot(list(steps), [100 * step.mfu for step in steps.values()], color=COLORS["weight"], linewidth=2.2)
    for ax in (top, bottom):
        ax.set_xscale("log", base=2)
        ax.set_xlim(1, LARGEST)
        if some.floor < LARGEST:
            ax.axvspan(some.floor, LARGEST, color=COLORS["idle"], linewidth=0)
            ax.axvline(some.floor, color=COLORS["ink"], linewidth=1.6)
        if 1 < some.crossover < LARGEST:
            ax.axvline(some.crossover, color=COLORS["communication"], linewidth=1.2, linestyle=(0, (2, 2)))
    if here in steps:
        top.plot([here], [steps[here].seconds], "o", color=COLORS["ink"], markersize=7, zorder=5)
        bottom.plot([here], [100 * steps[here].mfu], "o", color=COLORS["weight"], markersize=7)
        side = (-8, "right") if here > 8192 else (8, "left")
        for ax, value, words in (
            (top, steps[here].seconds, seconds_text(steps[here].seconds)),
            (bottom, 100 * steps[here].mfu, f"{steps[here].mfu:.0%}"),
        ):
            ax.annotate(
                words,
                (here, value),
                xytext=(side[0], 9),
                textcoords="offset points",
                ha=side[1],
                va="center",
                size=10,
                weight="bold",
                color=COLORS["ink"],
                path_effects=[withStroke(linewidth=3, foreground=COLORS["paper"])],
            )
    top.set_yscale("log")
    top.set_ylim(10.0**low, 10.0**high)
    top.set_ylabel("seconds")
    for mark, words, level in (
        (some.floor, f"wall: {some.floor:,}", 0.94),
        (some.crossover, f"crossover: {some.crossover:,.0f}", 0.06),
    ):
        if 1 < mark < LARGEST:
            right = _to_the_left(mark, some)
            top.annotate(
                words,
                (mark, level),
                xycoords=("data", "axes fraction"),
                xytext=(-5 if right else 5, 0),
                textcoords="offset points",
                ha="right" if right else "left",
                va="center",
                size=9.5,
                color=COLORS["ink"],
            )
    bottom.set_ylim(0, 100)
    bottom.set_ylabel("MFU (%)")
    bottom.set_xlabel("devices")
    bottom.xaxis.set_major_locator(FixedLocator(_TICKS))
    bottom.xaxis.set_minor_locator(NullLocator())
    bottom.set_xticklabels([f"{n:,}" for n in _TICKS])
    return fig


# ---------------------------------------------------------------------------------------------------------- as SVG

_LEFT, _RIGHT = 66.0, 636.0
_TOP, _MIDDLE, _BELOW, _BOTTOM = 10.0, 226.0, 252.0, 340.0  # the two panels


def crossover_svg(steps: Mapping[int, FsdpStep], here: int, *, title: str, subtitle: str) -> str:
    """Like `crossover_curves`, as HTML; `here` is one of the devices in `steps`."""
    some = steps[here]
    low, high = _decades(steps)

    def x(devices: float) -> float:
        return _LEFT + math.log2(min(max(devices, 1), LARGEST)) / math.log2(LARGEST) * (_RIGHT - _LEFT)

    def y(seconds: float) -> float:
        place = (math.log10(max(seconds, 1e-30)) - low) / (high - low)
        return _MIDDLE - min(max(place, 0.0), 1.0) * (_MIDDLE - _TOP)

    def share(mfu: float) -> float:
        return _BOTTOM - min(max(mfu, 0.0), 1.0) * (_BOTTOM - _BELOW)

    parts = _frame(x, y, low, high) + _marks(some, x)
    ends = []
    for name, color, dashes, of in _CURVES:
        width = 7 if name == "the step" else 2.2
        points = [(x(n), y(of(step))) for n, step in steps.items() if of(step) > 0]
        parts.append(_path(points, f'stroke="{color}" stroke-width="{width}" stroke-dasharray="{dashes}"'))
        if points:
            ends.append((points[-1][1], color, name))
    parts += end_labels(ends, _RIGHT, _TOP + 8, _MIDDLE)
    green = COLORS["weight"]
    curve = [(x(n), share(step.mfu)) for n, step in steps.items()]
    parts.append(_path(curve, f'stroke="{green}" stroke-width="2.6"'))
    parts += end_labels([(curve[-1][1], green, "MFU")], _RIGHT, _BELOW, _BOTTOM)
    parts.append(line(x(here), _TOP, x(here), _BOTTOM, PAGE, 0.8))
    for height, color, words in (
        (y(some.seconds), PAGE, seconds_text(some.seconds)),
        (share(some.mfu), green, f"{some.mfu:.0%}"),
    ):
        parts.append(f'<circle cx="{x(here):.1f}" cy="{height:.1f}" r="5.5" fill="{color}"/>')
        parts.append(_beside(x(here), height - 13, words, here > 8192))
    return head(title, subtitle) + svg(388, parts)


def _path(points: Sequence[tuple[float, float]], style: str) -> str:
    return f'<polyline points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}" fill="none" {style}/>'


def _frame(x: Callable[[float], float], y: Callable[[float], float], low: int, high: int) -> list[str]:
    parts = []
    for power in range(low, high + 1):
        parts.append(line(_LEFT, y(10.0**power), _RIGHT, y(10.0**power), RULE, 0.6))
        if (high - power) % (1 if high - low <= 5 else 2) == 0:
            parts.append(put_text(_LEFT - 8, y(10.0**power), _tick(power), anchor="end", fill=MUTED))
    for percent in (0, 50, 100):
        height = _BOTTOM - percent / 100 * (_BOTTOM - _BELOW)
        parts.append(line(_LEFT, height, _RIGHT, height, RULE, 0.6))
        parts.append(put_text(_LEFT - 8, height, f"{percent}%", anchor="end", fill=MUTED))
    parts += [put_text(x(tick), _BOTTOM + 16, f"{tick:,}", fill=MUTED) for tick in _TICKS]
    parts.append(put_text((_LEFT + _RIGHT) / 2, _BOTTOM + 36, "devices", fill=MUTED))
    return parts


def _marks(some: FsdpStep, x: Callable[[float], float]) -> list[str]:
    """The wall, with what lies beyond it in grey, and the crossover."""
    parts = []
    wall, cross = x(some.floor), x(some.crossover)
    if some.floor < LARGEST:
        words = f"Batch / sequence = {some.floor:,}: each device has one sequence. More devices would have none."
        area = f'x="{wall:.1f}" y="{_TOP}" width="{_RIGHT - wall:.1f}" height="{_BOTTOM - _TOP}"'
        parts.append(f'<rect {area} fill="{MUTED}" fill-opacity="0.16"><title>{html.escape(words)}</title></rect>')
        parts.append(line(wall, _TOP, wall, _BOTTOM, PAGE, 2))
        parts.append(_beside(wall, _TOP + 10, f"wall {some.floor:,}", _to_the_left(some.floor, some)))
    if 1 < some.crossover < LARGEST:
        color = COLORS["communication"]
        dotted = f'stroke="{color}" stroke-width="1.6" stroke-dasharray="2 3" fill="none"'
        parts.append(f'<path d="M{cross:.1f} {_TOP}L{cross:.1f} {_BOTTOM}" {dotted}/>')
        parts.append(
            _beside(cross, _MIDDLE - 10, f"crossover {some.crossover:,.0f}", _to_the_left(some.crossover, some))
        )
    return parts


def _beside(place: float, height: float, words: str, left: bool) -> str:
    """Words beside a line, legible where they cross another one."""
    edge = "paint-order: stroke; stroke: var(--jp-layout-color0, #FFFFFF); stroke-width: 4px; stroke-linejoin: round"
    anchor = "end" if left else "start"
    return put_text(place + (-8 if left else 8), height, words, anchor=anchor, extra=f'style="{edge}"')
