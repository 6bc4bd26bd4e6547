"""A grid of ranks with the groups of one of them: as a figure, and as HTML in the page's own colours.

    grid = RankGrid(dp=4, tp=2, pp=2, ep=2)
    show(rank_grid(grid, 5, title="Rank 5 is in five groups"), "...")

A block is a pipeline stage, a row a share of the batch (and of the sequence), a column a part of every matrix.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, new_figure, text_on
from course_lib.figures.svg import MUTED, PAGE, RULE, WIDTH, head, line, put_text, svg
from course_lib.parallel.mesh import AXES, RankGrid

__all__ = ["GROUP_COLORS", "group_lines", "rank_grid", "rank_grid_svg"]

GROUP_COLORS = {
    "tp": COLORS["blue"],
    "cp": COLORS["purple"],
    "dp": COLORS["green"],
    "pp": COLORS["vermilion"],
    "ep": COLORS["orange"],
}
"""Filled for tp, cp, dp and pp; a frame for ep, whose ranks are also partners in dp or cp."""

_LEFT = 86.0
_GAP = 16.0  # between two stages
_WIDE, _HIGH = 56.0, 30.0  # of a cell, at most
_BODY = 430.0  # height of all rows, at most


class _Places:
    """Where each rank's cell is, in px from the left and the top."""

    def __init__(self, grid: RankGrid, top: float, width: float) -> None:
        self.grid, self.top, self.rows = grid, top, grid.dp * grid.cp
        self.wide = min(_WIDE, (width - _LEFT - _GAP * (grid.pp - 1)) / (grid.pp * grid.tp))
        self.high = min(_HIGH, _BODY / self.rows)
        self.bottom = top + self.rows * self.high

    @property
    def numbered(self) -> bool:
        """Whether a cell has the room for its rank."""
        return self.wide >= 9 + 6.5 * len(str(self.grid.world - 1)) and self.high >= 13

    def left(self, stage: int) -> float:
        """Of a stage's block."""
        return _LEFT + stage * (self.grid.tp * self.wide + _GAP)

    def cell(self, rank: int) -> tuple[float, float]:
        """Left and top of a rank's cell."""
        stage, rest = divmod(rank, self.rows * self.grid.tp)
        row, column = divmod(rest, self.grid.tp)
        return self.left(stage) + column * self.wide, self.top + row * self.high

    def walls(self, node: int) -> Iterator[tuple[float, float, float, float]]:
        """Lines between neighbours, and around blocks, where one node ends and another begins."""
        tp, world = self.grid.tp, self.grid.world
        for rank in range(world):
            x, y = self.cell(rank)
            row, column = divmod(rank % (self.rows * tp), tp)
            if column < tp - 1 and rank // node != (rank + 1) // node:
                yield x + self.wide, y, x + self.wide, y + self.high
            if row < self.rows - 1 and rank // node != (rank + tp) // node:
                yield x, y + self.high, x + self.wide, y + self.high

    def row_names(self) -> list[tuple[float, str]]:
        """(middle, name) of the rows; of every second or fourth where they are low."""
        step = next(k for k in (1, 2, 4, 8, 16, 32, 64) if k * self.high >= 15 or k >= self.rows)
        found = []
        for row in range(0, self.rows, step):
            dp, cp = divmod(row, self.grid.cp)
            name = f"dp {dp}" + f", cp {cp}" * (self.grid.cp > 1)
            found.append((self.top + (row + 0.5) * self.high, name))
        return found


def _of(grid: RankGrid, rank: int) -> tuple[dict[int, str], set[int]]:
    """Of each partner of a rank the axis whose colour it has; and those that have a frame for ep."""
    filled = {one: axis for axis in ("dp", "cp", "pp", "tp") for one in grid.group(axis, rank) if one != rank}
    return filled, set(grid.group("ep", rank)) if grid.ep > 1 else set()


def group_lines(grid: RankGrid, rank: int, node: int) -> list[tuple[str, str, str, str]]:
    """(axis, its group, over how many nodes, what travels in it) for every axis; `node`: how many ranks share one."""
    found = []
    for axis, about in AXES.items():
        group = grid.group(axis, rank)
        if axis == "edp" and grid.ep == 1:
            continue  # the same groups as dp x cp
        shown = ", ".join(map(str, group if len(group) <= 8 else group[:6]))
        shown += f", … {group[-1]}" if len(group) > 8 else ""
        many = len({one // node for one in group})
        where = "alone" if len(group) == 1 else "in one node" if many == 1 else f"over {many} nodes"
        sends = about.sends if len(group) > 1 else "nothing"
        if axis == "dp" and grid.cp > 1:
            sends = f"gradients, summed over dp x cp ({grid.dp * grid.cp} ranks); with FSDP the weights too"
        found.append((axis, shown, where, sends))
    return found


def rank_grid(grid: RankGrid, rank: int = 0, *, title: str, subtitle: str | None = None, node: int = 8) -> Figure:
    """The grid, one rank's partners in the colours of `GROUP_COLORS`, and what travels between them. Up to 2,048 ranks.

    node: how many ranks share a machine; lines part machines.
    """
    places = _Places(grid, 24.0, 752)
    lines = group_lines(grid, rank, node)
    height = places.bottom + 22 + 21 * len(lines)
    fig, ax = new_figure(title, subtitle, height=round(height))
    filled, framed = _of(grid, rank)
    boxes, colors = [], []
    for one in range(grid.world):
        x, y = places.cell(one)
        boxes.append(_box(x, y, places.wide, places.high))
        colors.append(COLORS["ink"] if one == rank else GROUP_COLORS[filled[one]] if one in filled else COLORS["idle"])
        if places.numbered:
            middle = (x + places.wide / 2, y + places.high / 2)
            ax.text(*middle, str(one), size=8.5, ha="center", va="center", color=text_on(colors[-1]))
    ax.add_collection(PolyCollection(boxes, facecolors=colors, edgecolors=COLORS["paper"], linewidths=0.8))
    if framed:
        frames = [_box(*places.cell(one), places.wide, places.high, 2.0) for one in framed]
        ax.add_collection(PolyCollection(frames, facecolors="none", edgecolors=GROUP_COLORS["ep"], linewidths=2.4))
    for x0, y0, x1, y1 in places.walls(node):
        ax.plot([x0, x1], [y0, y1], color=COLORS["ink"], linewidth=1.2, solid_capstyle="butt")
    for middle_y, name in places.row_names():
        ax.text(_LEFT - 8, middle_y, name, size=9, ha="right", va="center", color=COLORS["muted"])
    for stage in range(grid.pp):
        center = places.left(stage) + grid.tp * places.wide / 2
        ax.text(center, 12, f"stage {stage}", size=9, ha="center", va="center", color=COLORS["muted"])
    for number, (axis, group, where, sends) in enumerate(lines):
        y = places.bottom + 24 + 21 * number
        _swatch(ax, axis, y)
        ax.text(36, y, axis.upper(), size=9, weight="bold", va="center", color=COLORS["ink"])
        ax.text(86, y, f"{group}   ({where})", size=9, va="center", color=COLORS["ink"])
        ax.text(330, y, sends, size=9, va="center", color=COLORS["muted"])
    ax.set_xlim(0, 768)
    ax.set_ylim(height, 0)
    ax.axis("off")
    return fig


def _box(x: float, y: float, wide: float, high: float, inset: float = 0.0) -> list[tuple[float, float]]:
    left, top, right, bottom = x + inset, y + inset, x + wide - inset, y + high - inset
    return [(left, top), (right, top), (right, bottom), (left, bottom)]


def _swatch(ax: object, axis: str, y: float) -> None:
    """A small square in the axis's colour, a frame for ep."""
    face = {"ep": "none", "edp": "none"}.get(axis, GROUP_COLORS.get(axis, "none"))
    edge = GROUP_COLORS["ep"] if axis == "ep" else "none"
    box = [_box(16, y - 6, 12, 12)]
    ax.add_collection(PolyCollection(box, facecolors=face, edgecolors=edge, linewidths=2))  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------------------- as SVG


def rank_grid_svg(grid: RankGrid, rank: int = 0, *, title: str, subtitle: str, node: int = 8) -> str:
    """Like `rank_grid`, as HTML. Every cell says in a tooltip where its rank is."""
    places = _Places(grid, 24.0, WIDTH)
    filled, framed = _of(grid, rank)
    parts = [put_text(_LEFT - 8, middle, name, anchor="end", fill=MUTED) for middle, name in places.row_names()]
    for stage in range(grid.pp):
        center = places.left(stage) + grid.tp * places.wide / 2
        parts.append(put_text(center, 12, f"stage {stage}", fill=MUTED))
    for one in range(grid.world):
        parts.append(_cell(places, one, rank, filled, framed))
    parts += [line(*wall, PAGE, 1.4) for wall in places.walls(node)]
    return head(title, subtitle) + svg(round(places.bottom + 6), parts) + _table(grid, rank, node)


def _cell(places: _Places, one: int, rank: int, filled: dict[int, str], framed: set[int]) -> str:
    x, y = places.cell(one)
    where = places.grid.coordinates(one)
    words = ", ".join(f"{axis} {where[axis]}" for axis in ("pp", "dp", "cp", "tp", "ep"))
    fill, ink = f'fill="{MUTED}" fill-opacity="0.16"', PAGE
    if one == rank:
        fill, ink = f'fill="{PAGE}"', "var(--jp-layout-color0, #FFFFFF)"
    elif one in filled:
        fill, ink = f'fill="{GROUP_COLORS[filled[one]]}"', text_on(GROUP_COLORS[filled[one]])
    shape = f'x="{x + 0.5:.1f}" y="{y + 0.5:.1f}" width="{places.wide - 1:.1f}" height="{places.high - 1:.1f}"'
    parts = [f"<rect {shape} {fill}><title>rank {one}: {words}</title></rect>"]
    if one in framed:
        inside = f'x="{x + 2:.1f}" y="{y + 2:.1f}" width="{places.wide - 4:.1f}" height="{places.high - 4:.1f}"'
        frame = f'stroke="{GROUP_COLORS["ep"]}" stroke-width="{3 if places.high > 12 else 1.5}"'
        parts.append(f'<rect {inside} fill="none" {frame} pointer-events="none"/>')
    if places.numbered:
        middle = (x + places.wide / 2, y + places.high / 2)
        parts.append(put_text(*middle, str(one), fill=ink, extra='font-size="12" pointer-events="none"'))
    return "".join(parts)


def _table(grid: RankGrid, rank: int, node: int) -> str:
    """The groups in words, a row each."""
    rows = []
    for axis, group, where, sends in group_lines(grid, rank, node):
        color = GROUP_COLORS.get(axis, "transparent")
        look = f"border: 3px solid {color}" if axis == "ep" else f"background: {color}; border: 3px solid {color}"
        swatch = f'<span style="display: inline-block; width: 8px; height: 8px; {look}"></span>'
        cells = (swatch, f"<b>{axis.upper()}</b>", html.escape(group), where, html.escape(sends))
        space = f"padding: 3px 12px 3px 0; border-bottom: 1px solid {RULE}; vertical-align: top; text-align: left"
        rows.append("<tr>" + "".join(f'<td style="{space}">{cell}</td>' for cell in cells) + "</tr>")
    look = f"border-collapse: collapse; font-size: 13px; margin: 4px 0; color: {PAGE}"
    return f'<table style="{look}">{"".join(rows)}</table>'
