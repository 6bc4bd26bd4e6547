"""The picture of the capacity explorer as HTML in the page's own colours: memory by stage, a step's time, the risks.

Every piece of a bar says in a tooltip what it is and how much. A setting that is impossible has its own picture: which
rule it breaks, and the nearest values at which it would not.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

from course_lib.figures.capacity import BREAKS, MEMORY_COLORS, NOTHING, TIME_COLORS, gib, present, said
from course_lib.figures.crossover import seconds_text
from course_lib.figures.style import COLORS, text_on
from course_lib.figures.svg import MUTED, PAGE, RULE, WIDTH, head, line, put_text, svg

__all__ = ["capacity_svg", "impossible_svg"]

_LEFT, _RIGHT = 70.0, 690.0
_ROW = 20.0  # of the key
_MOST = 5  # risks that are written out
_PAPER = "var(--jp-layout-color0, #FFFFFF)"
_HATCH = (
    '<defs><pattern id="course-capacity-hatch" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><path d="M0 0V6" stroke="#FFFFFF" stroke-opacity="0.75" stroke-width="2.4"/>'
    "</pattern></defs>"
)


def capacity_svg(
    bars: Mapping[str, Mapping[str, float]],
    usable: float,
    memory: float,
    times: Mapping[str, float],
    risks: Sequence[tuple[str, str]],
    *,
    title: str,
    subtitle: str,
) -> str:
    """Like `capacity.capacity_figure`. A risk is (what, the smallest change that mends it)."""
    parts, bottom = _memory(bars, usable, memory)
    more, bottom = _step(times, bottom + 40)
    return head(title, subtitle) + svg(round(bottom + 8), [_HATCH, *parts, *more]) + _risks(risks)


def impossible_svg(rows: int, nearest: Sequence[tuple[str, str]], told: str, *, title: str, subtitle: str) -> str:
    """Empty bars, and under them, after a line, which control would have to stand where: (control, values)."""
    step, parts = _height(rows), []
    for place in range(rows):
        top = 6 + place * step
        if rows <= 16 or place % 4 == 0:
            name = f"stage {place}" if rows > 1 else "a device"
            parts.append(put_text(_LEFT - 8, top + 0.4 * step, name, anchor="end", extra=_small(step)))
        box = f'x="{_LEFT}" y="{top:.1f}" width="{_RIGHT - _LEFT:.0f}" height="{0.78 * step:.1f}"'
        parts.append(f'<rect {box} fill="none" stroke="{MUTED}" stroke-dasharray="4 4"/>')
    items = "".join(f"<li><b>{html.escape(name)}</b> {html.escape(values)}</li>" for name, values in nearest)
    below = f'<div>{html.escape(told)}</div><ul style="padding-left: 22px">{items}</ul>'
    return head(title, subtitle) + svg(round(16 + rows * step), parts) + below


def _height(rows: int) -> float:
    """From bar to bar, in px."""
    return 36.0 if rows <= 4 else 26.0 if rows <= 8 else 19.0 if rows <= 16 else 11.0


def _memory(bars: Mapping[str, Mapping[str, float]], usable: float, memory: float) -> tuple[list[str], float]:
    names = present(list(bars.values()), MEMORY_COLORS)
    parts, top = _key([(said(name), MEMORY_COLORS.get(name, COLORS["grey"])) for name in names], 10)
    longest = max(memory, *(sum(sizes.values()) for sizes in bars.values()))
    px, step = (_RIGHT - _LEFT) / longest, _height(len(bars))
    top += 38
    end = top + len(bars) * step
    limit, all_of_it = _LEFT + usable * px, _LEFT + memory * px
    zone = f'x="{limit:.1f}" y="{top - 4:.1f}" width="{all_of_it - limit:.1f}" height="{end - top + 4:.1f}"'
    parts.append(f'<rect {zone} fill="{MUTED}" fill-opacity="0.18"/>')
    ends = []
    for place, (stage, sizes) in enumerate(bars.items()):
        y, middle = top + place * step, top + (place + 0.39) * step
        named = len(bars) <= 16 or place % 4 == 0
        if named:
            parts.append(put_text(_LEFT - 8, middle, stage, anchor="end", extra=_small(step)))
        boxes = [(f"{stage}: {said(name)} {gib(sizes[name])}", sizes[name], name) for name in names if sizes.get(name)]
        pieces, at = _boxes(boxes, MEMORY_COLORS, px, y, 0.78 * step, gib)
        parts += pieces
        if named:
            weight = 'font-weight="700" ' * (sum(sizes.values()) > usable) + _small(step) + _halo(_PAPER)
            ends.append(put_text(at + 6, middle, gib(sum(sizes.values())), anchor="start", extra=weight))
    parts.append(line(limit, top - 6, limit, end, PAGE, 2))
    dotted = f'stroke="{PAGE}" stroke-width="1.2" stroke-dasharray="2 3"'
    parts.append(f'<path d="M{all_of_it:.1f} {top - 6:.1f}V{end:.1f}" fill="none" {dotted}/>')
    words, right = f"{gib(usable)} usable of {gib(memory)}", limit > (_LEFT + _RIGHT) / 2
    anchor = "end" if right else "start"
    parts.append(put_text(all_of_it if right else limit, top - 14, words, anchor=anchor, fill=MUTED))
    return parts + ends, end


def _step(times: Mapping[str, float], top: float) -> tuple[list[str], float]:
    """One bar, as long as the picture is wide: what share of a step each part takes."""
    names, total = present([times], TIME_COLORS), sum(times.values()) or 1.0
    boxes = [(f"{said(name)}: {seconds_text(times[name])}", times[name], name) for name in names]

    def share(value: float) -> str:
        return f"{value / total:.0%}"

    parts, at = _boxes(boxes, TIME_COLORS, (_RIGHT - _LEFT) / total, top, 26, share)
    parts.append(put_text(_LEFT - 8, top + 13, "a step", anchor="end"))
    parts.append(put_text(at + 6, top + 13, seconds_text(total), anchor="start"))
    entries = [(f"{said(name)} {seconds_text(times[name])}", TIME_COLORS.get(name, COLORS["grey"])) for name in names]
    below, bottom = _key(entries, top + 42)
    return parts + below, bottom


def _halo(color: str) -> str:
    return f'style="paint-order: stroke; stroke: {color}; stroke-width: 4px; stroke-linejoin: round"'


def _small(step: float) -> str:
    return 'font-size="11.5" ' if step < 24 else ""


def _boxes(
    boxes: Sequence[tuple[str, float, str]],
    colors: Mapping[str, str],
    px: float,
    top: float,
    high: float,
    text: Callable[[float], str],
) -> tuple[list[str], float]:
    """Pieces of a bar with tooltips, from the left; and where the bar ends."""
    parts, at = ['<g class="course-slots">'], _LEFT
    for told, size, name in boxes:
        wide, color = size * px, colors.get(name, COLORS["grey"])
        area = f'x="{at:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{high:.1f}"'
        edge = f'stroke="{_PAPER}" stroke-width="1"'
        parts.append(f"<rect {area} {_fill(color)} {edge}><title>{html.escape(told)}</title></rect>")
        if color == COLORS["optimizer"]:  # between two colours that are as dark
            parts.append(f'<rect {area} fill="url(#course-capacity-hatch)" pointer-events="none"/>')
        words = text(size)
        if high >= 14 and wide > 12 + 7 * len(words):
            where = (at + wide / 2, top + high / 2)
            extra = 'pointer-events="none" ' + _small(high + 8) + _halo(color) * (color == COLORS["optimizer"])
            ink = PAGE if color == COLORS["idle"] else text_on(color)
            parts.append(put_text(*where, words, fill=ink, extra=extra))
        at += wide
    return [*parts, "</g>"], at


def _fill(color: str) -> str:
    """Idle is grey in both themes."""
    return f'fill="{MUTED}" fill-opacity="0.18"' if color == COLORS["idle"] else f'fill="{color}"'


def _key(entries: Sequence[tuple[str, str]], top: float) -> tuple[list[str], float]:
    """Squares with names, in as many rows as they need; returns the height of the last row."""
    parts, x = [], 0.0
    for text, color in entries:
        wide = 18 + 7.3 * len(text)
        if x > 0 and x + wide > WIDTH:
            x, top = 0.0, top + _ROW
        box = f'x="{x:.1f}" y="{top - 5.5:.1f}" width="11" height="11"'
        parts.append(f'<rect {box} {_fill(color)} stroke="{RULE}" stroke-width="0.6"/>')
        if color == COLORS["optimizer"]:
            parts.append(f'<rect {box} fill="url(#course-capacity-hatch)"/>')
        parts.append(put_text(x + 16, top, text, anchor="start"))
        x += wide + 14
    return parts, top


def _risks(risks: Sequence[tuple[str, str]]) -> str:
    """A list in order; the first is what breaks first."""
    if not risks:
        return f'<div style="font-weight: 600; margin-top: 14px">{NOTHING}.</div>'
    items = "".join(
        f'<li style="{"font-weight: 600" if place == 0 else ""}">{html.escape(what)} '
        f'<span class="course-muted" style="font-weight: 400">{html.escape(remedy)}</span></li>'
        for place, (what, remedy) in enumerate(risks[:_MOST])
    )
    more = f'<div class="course-muted">and {len(risks) - _MOST} more</div>' if len(risks) > _MOST else ""
    name = f'<div style="font-weight: 600; margin-top: 14px">{BREAKS}</div>'
    return f'{name}<ol style="margin: 0; padding-left: 22px">{items}</ol>{more}'
