"""The kinds of bytes in a checkpoint and their colours, and one of its files byte by byte."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, ink, new_panels, tint

__all__ = ["KINDS", "bytes_of_a_part", "kind_of"]

KINDS = {
    "weights": COLORS["forward"],
    "masters": COLORS["green"],
    "mean of gradients (m)": COLORS["optimizer"],
    "mean of squares (v)": tint(COLORS["optimizer"], 0.55),
    "text": COLORS["yellow"],
    "headers": COLORS["grey"],
}
"""Colour of each kind of bytes."""


def kind_of(file: str, name: str) -> str:
    """The kind of a part: weights, the optimizer's two means, text, or what only says where things are."""
    if file.endswith(".json"):
        return "text"
    if name in ("header", "header length") or name.endswith("/step"):
        return "headers"
    if name.endswith("/exp_avg"):
        return "mean of gradients (m)"
    if name.endswith("/exp_avg_sq"):
        return "mean of squares (v)"
    return "masters" if file.startswith("masters") else "weights"


def bytes_of_a_part(
    sizes: Sequence[tuple[str, int]],
    chosen: int,
    offset: int,
    data: bytes,
    read_as: Sequence[str],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """One file as a bar of its parts, (kind, bytes), with one marked; under it bytes in hex, and what each row says.

    offset: where `data` begins in the file; `read_as` has a text for every row of 16 bytes.
    """
    fig, (bar, page) = new_panels(title, subtitle, height=236, cols=1, rows=2, height_ratios=[1, 3.4])
    total = max(1, sum(size for _, size in sizes))
    ends = np.cumsum([size for _, size in sizes]) / total
    spans = [(float(end) - size / total, size / total) for end, (_, size) in zip(ends, sizes, strict=True)]
    colors = [KINDS[kind] if at == chosen else tint(KINDS[kind], 0.4) for at, (kind, _) in enumerate(sizes)]
    bar.broken_barh(spans, (-0.3, 0.6), facecolors=colors)
    bar.vlines([left for left, width in spans if width > 0.005], -0.3, 0.3, color=COLORS["paper"], linewidth=0.8)
    left, width = spans[chosen]
    bar.plot(left + width / 2, -0.5, marker="v", color=COLORS["ink"], markersize=8)
    bar.set_xlim(0, 1)
    bar.set_ylim(0.45, -0.95)
    bar.set_yticks([])
    bar.set_xticks([])
    page.set_xlim(0, 100)
    page.set_ylim(1, 0)
    for ax in (bar, page):
        ax.grid(False)
        ax.spines["bottom"].set_visible(False)
    page.set_yticks([])
    page.set_xticks([])
    mono: dict[str, Any] = {"family": "DejaVu Sans Mono", "va": "top", "size": 8.4, "linespacing": 1.87}
    rows = [data[at : at + 16] for at in range(0, len(data), 16)]
    hexes = [" ".join(f"{row[i : i + 4].hex(' ')} " for i in range(0, len(row), 4)) for row in rows]
    places = [f"{offset + 16 * line:>9,}" for line in range(len(rows))]
    shade = ink(KINDS[sizes[chosen][0]])
    for x, lines, color in ((0.0, places, COLORS["muted"]), (11.0, hexes, COLORS["ink"]), (64.0, read_as, shade)):
        page.text(x, 0, "\n".join(lines), color=color, **mono).set_parse_math(False)
    return fig
