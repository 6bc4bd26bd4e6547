"""Pieces of pictures that are drawn as SVG text in the page's own colours: lines, words, names at line ends."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

__all__ = ["MUTED", "PAGE", "RULE", "WIDTH", "end_labels", "head", "line", "put_text", "svg"]

WIDTH = 768
"""Of a picture's coordinates; it is shown at most so wide in px."""

PAGE = "var(--jp-content-font-color1, #1A1A1A)"
MUTED = "var(--jp-content-font-color2, #5F6368)"
RULE = "var(--jp-border-color1, #C8C8C8)"


def head(title: str, subtitle: str) -> str:
    """The finding, and a line on what is shown."""
    return (
        f'<div style="font-size: 17px; font-weight: 600; margin-top: 8px">{html.escape(title)}</div>'
        f'<div class="course-muted" style="margin-bottom: 6px">{html.escape(subtitle) or "&nbsp;"}</div>'
    )


def svg(height: int, parts: Iterable[str]) -> str:
    """The parts as one picture; its words are in the alternative text of the view."""
    style = "display: block; width: 100%; max-width: 768px; height: auto; overflow: visible"
    font = "font-family: var(--jp-content-font-family, sans-serif); font-size: 13px"
    return f'<svg viewBox="0 0 {WIDTH} {height}" style="{style}; {font}" aria-hidden="true">{"".join(parts)}</svg>'


def put_text(x: float, y: float, text: str, *, anchor: str = "middle", fill: str = PAGE, extra: str = "") -> str:
    """A line of text whose middle is at height y."""
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" dominant-baseline="central"'
    return f'<text {place} fill="{fill}" {extra}>{html.escape(text)}</text>'


def line(x0: float, y0: float, x1: float, y1: float, stroke: str = PAGE, width: float = 2) -> str:
    """A straight line."""
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{stroke}" stroke-width="{width}" fill="none"/>'


def end_labels(ends: Sequence[tuple[float, str, str]], right: float, top: float, bottom: float) -> list[str]:
    """Names at the right ends, in order, at least a line apart, inside the picture."""
    parts, order = [], sorted(ends)
    places: list[float] = []
    for place, _, _ in order:
        places.append(max(place, places[-1] + 17 if places else top))
    over = places[-1] - bottom
    if over > 0:
        limit = bottom
        for i in range(len(places) - 1, -1, -1):
            places[i] = min(places[i], limit)
            limit = places[i] - 17
    for (place, color, text), moved in zip(order, places, strict=True):
        parts.append(line(right + 2, place, right + 16, moved, color, 2))
        parts.append(put_text(right + 20, moved, text, anchor="start"))
    return parts
