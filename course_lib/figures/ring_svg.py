"""One moment of a ring all-reduce as SVG in the page's own colours, in a few milliseconds, for the live explorer."""

from __future__ import annotations

import html
import math
from collections.abc import Sequence

from course_lib.figures.colors import COLORS

__all__ = ["ring_svg"]

_WIDTH, _HEIGHT = 768, 400
_TEXT = "var(--jp-content-font-color1, #1A1A1A)"
_RULE = "var(--jp-border-color1, #C8C8C8)"


def ring_svg(
    states: Sequence[Sequence[frozenset[int]]],
    moves: Sequence[tuple[int, int]],
    *,
    title: str,
    subtitle: str,
) -> str:
    """states[rank][chunk]: whose numbers are summed; moves[rank]: (chunk sent, chunk received), empty at the start.

    Arrows say which chunk has gone round in this step; what has arrived has a frame. Each chunk says in a tooltip whose
    numbers are in it.
    """
    ranks = len(states)
    box = min(26.0, 170 / ranks)
    wide, high = _WIDTH / 2 - ranks * box / 2 - 14, _HEIGHT / 2 - 44
    places = [
        (
            _WIDTH / 2 + wide * math.sin(2 * math.pi * rank / ranks),
            _HEIGHT / 2 - high * math.cos(2 * math.pi * rank / ranks),
        )
        for rank in range(ranks)
    ]
    parts = []
    for rank, (sent, _) in enumerate(moves):
        aside = 14.0 if ranks == 2 else 0.0  # two ranks: there and back are one line
        parts += _arrow(places[rank], places[(rank + 1) % ranks], sent, ranks * box / 2, aside)
    for rank, (x, y) in enumerate(places):
        left = x - ranks * box / 2
        parts.append(_words(x, y - 26, f"rank {rank}", 'font-weight="600"'))
        for chunk, whose in enumerate(states[rank]):
            arrived = bool(moves) and chunk == moves[rank][1]
            share = len(whose) / ranks
            names = ", ".join(str(one) for one in sorted(whose))
            note = f"rank {rank}, chunk {chunk}: the numbers of rank{'s' * (len(whose) > 1)} {names}"
            frame = f'stroke="{COLORS["communication"]}" stroke-width="3"' if arrived else f'stroke="{_RULE}"'
            fill = f'fill="{COLORS["weight"]}" fill-opacity="{1 if share == 1 else 0.06 + 0.5 * share:.2f}"'
            shape = f'x="{left + chunk * box + 1:.1f}" y="{y - 14:.1f}" width="{box - 2:.1f}" height="28" rx="3"'
            parts.append(f"<g><title>{html.escape(note)}</title><rect {shape} {fill} {frame}/>")
            parts.append(
                _words(left + chunk * box + box / 2, y, str(len(whose)), f'font-size="{min(14, box * 0.6):.0f}"')
            )
            parts.append("</g>")
    style = "display: block; width: 100%; max-width: 768px; height: auto; overflow: visible"
    font = "font-family: var(--jp-content-font-family, sans-serif); font-size: 13px"
    head = (
        f'<div style="font-size: 17px; font-weight: 600; margin-top: 8px">{html.escape(title)}</div>'
        f'<div class="course-muted" style="margin-bottom: 6px">{html.escape(subtitle) or "&nbsp;"}</div>'
    )
    return head + f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" style="{style}; {font}">{"".join(parts)}</svg>'


def _words(x: float, y: float, text: str, extra: str = "", fill: str = _TEXT) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="middle" dominant-baseline="central"'
    return f'<text {place} fill="{fill}" {extra}>{html.escape(text)}</text>'


def _arrow(start: tuple[float, float], end: tuple[float, float], chunk: int, half: float, aside: float) -> list[str]:
    """From near one rank to near the next, `aside` of the straight line, with the chunk's number at its middle."""
    dx, dy = end[0] - start[0], end[1] - start[1]
    length = math.hypot(dx, dy)
    start, end = ((x + aside * dy / length, y - aside * dx / length) for x, y in (start, end))
    # leave the boxes where the line leaves their rectangle
    edge = min(half / abs(dx) if dx else math.inf, 30 / abs(dy) if dy else math.inf) + 8 / length
    edge = min(edge, 0.35)
    x0, y0, x1, y1 = start[0] + edge * dx, start[1] + edge * dy, end[0] - edge * dx, end[1] - edge * dy
    ux, uy = dx / length, dy / length
    head = " ".join(
        f"{x:.1f},{y:.1f}"
        for x, y in (
            (x1, y1),
            (x1 - 10 * ux + 5 * uy, y1 - 10 * uy - 5 * ux),
            (x1 - 10 * ux - 5 * uy, y1 - 10 * uy + 5 * ux),
        )
    )
    color = COLORS["communication"]
    inside = (_WIDTH / 2 - (x0 + x1) / 2, _HEIGHT / 2 - (y0 + y1) / 2)
    far = math.hypot(*inside) or 1.0
    off = -14 if aside else 14  # outside of two lines, inside of a ring
    label = ((x0 + x1) / 2 + off * inside[0] / far, (y0 + y1) / 2 + off * inside[1] / far)
    return [
        f'<path d="M{x0:.1f} {y0:.1f}L{x1 - 6 * ux:.1f} {y1 - 6 * uy:.1f}" stroke="{color}" stroke-width="2"/>',
        f'<polygon points="{head}" fill="{color}"/>',
        _words(*label, str(chunk), 'font-weight="600"'),
    ]
