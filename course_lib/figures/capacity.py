"""Pictures of chapter 15: a device's memory stage by stage, what a step's time is made of, what breaks first.

    bars = {f"stage {one.stage}": one.parts for one in stages(run)}
    show(stage_memory(bars, usable, memory, title="Stage 0 is the fullest"), "...")

`capacity_figure` has the step and the risks too; `capacity_svg.capacity_svg` is the same for the live explorer.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke

from course_lib.figures.ledger import BYTE_COLORS, readable
from course_lib.figures.style import COLORS, new_figure, new_panels, numbers, panel_title, text_on, tint

__all__ = [
    "BREAKS",
    "GIB",
    "MEMORY_COLORS",
    "NOTHING",
    "TIME_COLORS",
    "capacity_figure",
    "gib",
    "present",
    "said",
    "stage_memory",
    "step_parts",
]

GIB = 2**30
"""Bytes."""

BREAKS = "What breaks first, and the smallest change that mends it"
NOTHING = "Nothing breaks that this plan knows of"

_LINE = 13.5  # points from line to line

MEMORY_COLORS: dict[str, str] = {
    "weights": BYTE_COLORS["weights"],
    "gradients": BYTE_COLORS["gradients"],
    "optimizer": BYTE_COLORS["optimizer"],
    "update": tint(COLORS["optimizer"], 0.45),
    "activations": BYTE_COLORS["activations"],
    "logits": BYTE_COLORS["logits"],
    "working": COLORS["vermilion"],
    "gathered": tint(COLORS["forward"], 0.4),
}
"""Colour of each category of `planning.capacity`, in the order in which they are piled up."""

TIME_COLORS: dict[str, str] = {
    "compute": COLORS["forward"],
    "recompute": tint(COLORS["forward"], 0.4),
    "memory": COLORS["green"],
    "bubble": COLORS["idle"],
    "sends": tint(COLORS["grey"], 0.6),
    "tensor_traffic": COLORS["communication"],
    "context_traffic": COLORS["orange"],
    "expert_traffic": COLORS["yellow"],
    "data_traffic": tint(COLORS["communication"], 0.5),
    "optimizer": COLORS["optimizer"],
}
"""Colour of each part of `planning.steptime`, in the order in which they are drawn."""

_WORDS = {
    "update": "for the update",
    "working": "one block at work",
    "gathered": "gathered layers",
    "memory": "reading memory",
    "sends": "between stages",
}


def said(name: str) -> str:
    """A category or part in words."""
    return _WORDS.get(name, name.replace("_", " "))


def gib(size: float) -> str:
    """Bytes as the pictures write them: 80.2 GiB, 1,340 GiB, 0.31 GiB."""
    return f"{size / GIB:,.0f} GiB" if size >= 1000 * GIB else f"{size / GIB:.3g} GiB"


def present(rows: Sequence[Mapping[str, float]], order: Mapping[str, str]) -> list[str]:
    """Names that are above nothing in some row, in the order of the colours; unknown ones last."""
    found = dict.fromkeys(name for row in rows for name, size in row.items() if size > 0)
    return [name for name in order if name in found] + [name for name in found if name not in order]


def stage_memory(
    bars: Mapping[str, Mapping[str, float]],
    usable: float,
    memory: float,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar a pipeline stage: {"stage 0": {category: bytes}}. Lines at what a device has and what of it is usable."""
    fig, ax = new_figure(title, subtitle, height=_high(len(bars)))
    _memory(ax, bars, usable, memory)
    if row:
        numbers(fig, row)
    return fig


def step_parts(
    steps: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar a run: {run: {part: seconds}}, what a step's time is made of."""
    fig, ax = new_figure(title, subtitle, height=_high(len(steps)))
    _times(ax, steps)
    if row:
        numbers(fig, row)
    return fig


def capacity_figure(
    bars: Mapping[str, Mapping[str, float]],
    usable: float,
    memory: float,
    times: Mapping[str, float],
    risks: Sequence[str],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Above the memory of every stage, then a step's time, then what breaks first, a line a risk."""
    lines = _numbered(risks)
    heights = [_high(len(bars)), 110, 34 + 19 * len(lines)]
    fig, (top, middle, below) = new_panels(
        title,
        subtitle,
        height=sum(heights),
        cols=1,
        rows=3,
        height_ratios=[float(px - 60) for px in heights[:2]] + [max(heights[2] - 30.0, 8.0)],
    )
    _memory(top, bars, usable, memory)
    _times(middle, {"a step": times})
    below.set_axis_off()
    panel_title(below, BREAKS if risks else NOTHING)
    for place, text in enumerate(lines):
        below.annotate(
            text,
            (0, 1),
            xycoords="axes fraction",
            xytext=(0, -_LINE * place),
            textcoords="offset points",
            va="top",
            size=9.5,
            color=COLORS["ink"] if place == 0 else COLORS["muted"],
        ).set_in_layout(False)
    if row:
        numbers(fig, row)
    return fig


def _high(rows: int) -> int:
    """px of a plot with so many bars."""
    return 92 + round(rows * (38 if rows <= 4 else 26 if rows <= 8 else 18 if rows <= 16 else 11))


def _numbered(risks: Sequence[str], width: int = 100, most: int = 4) -> list[str]:
    """The first risks with their place, wrapped."""
    lines = []
    for place, text in enumerate(risks[:most], 1):
        first, *rest = textwrap.wrap(text, width) or [""]
        lines += [f"{place}.  {first}", *(f"     {more}" for more in rest)]
    return [*lines, f"and {len(risks) - most} more"] if len(risks) > most else lines


def _memory(ax: Axes, bars: Mapping[str, Mapping[str, float]], usable: float, memory: float) -> None:
    fullest = max(sum(sizes.values()) for sizes in bars.values())
    longest = max(fullest, memory) / GIB
    names = present(list(bars.values()), MEMORY_COLORS)
    ax.axvspan(usable / GIB, memory / GIB, color=COLORS["idle"], linewidth=0, zorder=0)
    for place, sizes in enumerate(bars.values()):
        shown = {name: sizes.get(name, 0.0) / GIB for name in names}
        start = _stack(ax, place, shown, MEMORY_COLORS, longest, words=len(bars) <= 16)
        if len(bars) <= 16 or place % 4 == 0:
            _end(ax, start, place, gib(start * GIB), bold=sum(sizes.values()) > usable)
    ax.axvline(usable / GIB, color=COLORS["ink"], linewidth=1.5)
    ax.axvline(memory / GIB, color=COLORS["ink"], linewidth=1, linestyle=(0, (2, 2)))
    right = usable / GIB > 0.7 * longest
    ax.annotate(
        f"{gib(usable)} of {gib(memory)} usable",
        (usable / GIB, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-5 if right else 5, -3),
        textcoords="offset points",
        size=9,
        va="top",
        ha="right" if right else "left",
        color=COLORS["ink"],
        path_effects=[withStroke(linewidth=3, foreground=COLORS["paper"])],
    )
    _rows(ax, list(bars), headroom=0.95 if len(bars) <= 8 else 1.6 if len(bars) <= 16 else 2.8)
    ax.set_xlim(0, longest * 1.14)
    ax.set_xlabel("GiB of one device at its worst moment")
    _key(ax, [(said(name), MEMORY_COLORS.get(name, COLORS["rule"])) for name in names])


def _times(ax: Axes, steps: Mapping[str, Mapping[str, float]]) -> None:
    longest = max(sum(times.values()) for times in steps.values())
    names = present(list(steps.values()), TIME_COLORS)
    for place, times in enumerate(steps.values()):
        end = _stack(ax, place, {name: times.get(name, 0.0) for name in names}, TIME_COLORS, longest, words=True)
        _end(ax, end, place, f"{readable(end)} s", bold=False)
    _rows(ax, list(steps), headroom=0.5)
    ax.set_xlim(0, longest * 1.14)
    ax.set_xlabel("seconds of a step")
    _key(ax, [(said(name), TIME_COLORS.get(name, COLORS["rule"])) for name in names])


def _stack(
    ax: Axes, place: float, sizes: Mapping[str, float], colors: Mapping[str, str], longest: float, *, words: bool
) -> float:
    """One row, from left to right; returns its end. Numbers stand inside where there is room."""
    start = 0.0
    for name, size in sizes.items():
        color = colors.get(name, COLORS["rule"])
        ax.barh(
            place,
            size,
            left=start,
            height=0.72,
            color=color,
            edgecolor=COLORS["paper"],
            linewidth=0.8,
            hatch=_hatch(color),
            zorder=2,
        )
        if words and size >= 0.055 * longest:
            at = (start + size / 2, place)
            text = ax.annotate(readable(size), at, ha="center", va="center", size=9, color=text_on(color), zorder=5)
            if _hatch(color):
                text.set_path_effects([withStroke(linewidth=3, foreground=color)])
        start += size
    return start


def _end(ax: Axes, end: float, place: float, text: str, *, bold: bool) -> None:
    ax.annotate(
        text,
        (end, place),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        size=9.5,
        weight="bold" if bold else "normal",
        color=COLORS["ink"],
        path_effects=[withStroke(linewidth=3, foreground=COLORS["paper"])],
        zorder=4,
    )


def _rows(ax: Axes, names: list[str], headroom: float) -> None:
    every = 1 if len(names) <= 16 else 4
    ax.set_yticks(range(0, len(names), every), names[::every])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(names) - 0.5, -headroom)
    ax.grid(False)


def _key(ax: Axes, entries: Sequence[tuple[str, str]]) -> None:
    """Squares with names over the axes, from the left, in two rows where one has no room."""
    rows = 1 if sum(30 + 6.2 * len(name) for name, _ in entries) < 690 else 2
    cols = -(-len(entries) // rows)
    order = [entries[row * cols + col] for col in range(cols) for row in range(rows) if row * cols + col < len(entries)]
    patches = [
        Patch(facecolor=color, edgecolor=_edge(color), hatch=_hatch(color), linewidth=0.5, label=name)
        for name, color in order
    ]
    legend = ax.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=cols,
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.0,
        borderaxespad=0.2,
    )
    for text in legend.get_texts():
        text.set_color(COLORS["ink"])


def _hatch(color: str) -> str | None:
    """The optimizer's bytes, between two that are as dark."""
    return "////" if color == COLORS["optimizer"] else None


def _edge(color: str) -> str:
    return COLORS["paper"] if color == COLORS["optimizer"] else COLORS["rule"]
