"""Who takes which token, before and after one score moved: as HTML in the page's own colours, and as a still figure.

A block is a sequence, a column a token, a row an expert. In a cell: the token's score with the expert.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, new_figure, text_on
from course_lib.figures.svg import MUTED, PAGE, WIDTH, head, put_text, svg

__all__ = ["Routed", "routing_still", "routing_svg"]

TAKEN, LOST, GAINED = COLORS["blue"], COLORS["vermilion"], COLORS["orange"]
_LEFT, _HIGH, _HEAD, _GAP = 84.0, 34.0, 26.0, 18.0


@dataclass(frozen=True)
class Routed:
    """What is drawn: S sequences, T tokens, E experts."""

    words: Sequence[Sequence[str]]
    """S lists of T words."""
    scores: np.ndarray
    """(S, T, E)."""
    taken: np.ndarray
    """(S, T, E) bool: the expert answers the token."""
    dropped: np.ndarray
    """(S, T, E) bool: the token chose the expert, which was full."""
    before: np.ndarray
    """(S, T, E) bool: what was taken before the score moved."""
    moved: int
    """The token of the first sequence whose score moved."""

    def state(self, sequence: int, token: int, expert: int) -> str:
        """taken, gained, lost, dropped or free."""
        at = (sequence, token, expert)
        if self.taken[at]:
            return "taken" if self.before[at] else "gained"
        return "lost" if self.before[at] else "dropped" if self.dropped[at] else "free"


_SAID = {
    "taken": "takes it",
    "gained": "takes it now",
    "lost": "took it, and does no more",
    "dropped": "was chosen, and is full",
    "free": "does not take it",
}


def routing_svg(routed: Routed, *, title: str, subtitle: str) -> str:
    """The blocks one under the other; each cell says in a tooltip what its expert does."""
    parts: list[str] = []
    for sequence, words in enumerate(routed.words):
        top = _top(sequence, routed.scores.shape[2])
        parts.append(put_text(0, top + _HEAD / 2, f"sequence {sequence + 1}", anchor="start", fill=MUTED))
        for token, word in enumerate(words):
            x, wide = _column(token, len(words))
            mine = sequence == 0 and token == routed.moved
            parts.append(put_text(x + wide / 2, top + _HEAD / 2, word, extra='font-weight="700"' if mine else ""))
            parts += [_cell(routed, sequence, token, expert, x, wide) for expert in range(routed.scores.shape[2])]
            if mine:
                shape = (
                    f'x="{x:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{_HEAD + _HIGH * routed.scores.shape[2]}"'
                )
                parts.append(
                    f'<rect {shape} rx="4" fill="none" stroke="{PAGE}" stroke-width="2" pointer-events="none"/>'
                )
        for expert in range(routed.scores.shape[2]):
            middle = top + _HEAD + (expert + 0.5) * _HIGH
            parts.append(put_text(_LEFT - 10, middle, f"expert {'ABCD'[expert]}", anchor="end", fill=PAGE))
    return head(title, subtitle) + svg(round(_top(len(routed.words), routed.scores.shape[2])), parts) + _key()


def _top(sequence: int, experts: int) -> float:
    return sequence * (_HEAD + experts * _HIGH + _GAP)


def _column(token: int, tokens: int) -> tuple[float, float]:
    wide = (WIDTH - _LEFT) / tokens
    return _LEFT + token * wide, wide


def _number(score: float) -> str:
    return f"{score:.2f}".removeprefix("0")


def _cell(routed: Routed, sequence: int, token: int, expert: int, x: float, wide: float) -> str:
    score, state = float(routed.scores[sequence, token, expert]), routed.state(sequence, token, expert)
    y = _top(sequence, routed.scores.shape[2]) + _HEAD + expert * _HIGH
    fill, ink = f'fill="{MUTED}" fill-opacity="0.14"', PAGE
    if state in ("taken", "gained"):
        fill, ink = f'fill="{TAKEN}"', text_on(TAKEN)
    frame = {"lost": f'stroke="{LOST}" stroke-width="4"', "gained": f'stroke="{GAINED}" stroke-width="4"'}.get(
        state, ""
    )
    if state == "dropped":
        frame = f'stroke="{MUTED}" stroke-width="1.5" stroke-dasharray="4 3"'
    told = (
        f"“{routed.words[sequence][token]}” scores {_number(score)} with expert {'ABCD'[expert]}, which {_SAID[state]}"
    )
    shape = f'x="{x + 4:.1f}" y="{y + 3:.1f}" width="{wide - 8:.1f}" height="{_HIGH - 6:.1f}" rx="3"'
    words = put_text(x + wide / 2, y + _HIGH / 2, _number(score), fill=ink, extra='pointer-events="none"')
    return f"<g><title>{html.escape(told)}</title><rect {shape} {fill} {frame}/>{words}</g>"


def _key() -> str:
    look = (
        "display: inline-block; width: 22px; height: 14px; vertical-align: -2px; margin: 0 6px 0 0; border-radius: 3px"
    )
    grey = "background: rgba(128, 128, 128, 0.16)"
    entries = (
        (f"background: {TAKEN}", "takes it"),
        (f"{grey}; box-shadow: inset 0 0 0 3px {LOST}", "took it before the score moved"),
        (f"background: {TAKEN}; box-shadow: inset 0 0 0 3px {GAINED}", "takes it only since"),
        (f"{grey}; outline: 1.5px dashed {MUTED}; outline-offset: -2px", "was chosen, but is full"),
    )
    spans = "".join(
        f'<span style="margin-right: 18px; white-space: nowrap"><span style="{look}; {style}"></span>{text}</span>'
        for style, text in entries
    )
    return f'<div style="font-size: 13px; color: {PAGE}; margin: 2px 0 6px 0; line-height: 22px">{spans}</div>'


def routing_still(routed: Routed, *, title: str, subtitle: str | None = None) -> Figure:
    """The same as a figure."""
    experts = routed.scores.shape[2]
    height = _top(len(routed.words), experts) - _GAP + 4
    fig, ax = new_figure(title, subtitle, height=round(height))
    boxes: list[list[tuple[float, float]]] = []
    looks: list[tuple[str, str, float]] = []  # face, edge, its width
    for sequence, words in enumerate(routed.words):
        top = _top(sequence, experts)
        ax.text(0, top + _HEAD / 2, f"sequence {sequence + 1}", size=9, va="center", color=COLORS["muted"])
        for expert in range(experts):
            middle = top + _HEAD + (expert + 0.5) * _HIGH
            ax.text(
                _LEFT - 10, middle, f"expert {'ABCD'[expert]}", size=9.5, ha="right", va="center", color=COLORS["ink"]
            )
        for token, word in enumerate(words):
            x, wide = _column(token, len(words))
            mine = sequence == 0 and token == routed.moved
            weight = "bold" if mine else "normal"
            ax.text(x + wide / 2, top + _HEAD / 2, word, size=9.5, weight=weight, ha="center", va="center")
            if mine:
                boxes.append(_box(x, top, wide, _HEAD + _HIGH * experts))
                looks.append(("none", COLORS["ink"], 1.5))
            for expert in range(experts):
                state = routed.state(sequence, token, expert)
                face = TAKEN if state in ("taken", "gained") else COLORS["idle"]
                edge = {"lost": LOST, "gained": GAINED, "dropped": COLORS["grey"]}.get(state, "none")
                y = top + _HEAD + expert * _HIGH
                boxes.append(_box(x + 4, y + 3, wide - 8, _HIGH - 6))
                looks.append((face, edge, 1.0 if state == "dropped" else 2.5))
                text = _number(float(routed.scores[sequence, token, expert]))
                ax.text(x + wide / 2, y + _HIGH / 2, text, size=9, ha="center", va="center", color=text_on(face))
    faces, edges, widths = zip(*looks, strict=True)
    ax.add_collection(PolyCollection(boxes, facecolors=faces, edgecolors=edges, linewidths=widths))
    ax.set_xlim(0, WIDTH + 2)
    ax.set_ylim(height, 0)
    ax.axis("off")
    return fig


def _box(x: float, y: float, wide: float, high: float) -> list[tuple[float, float]]:
    return [(x, y), (x + wide, y), (x + wide, y + high), (x, y + high)]
