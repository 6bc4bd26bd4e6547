"""Pictures of the ring: every rank's buffer after every step, and what a rank sends as ranks are added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.figures.style import COLORS, end_labels, new_figure, numbers, style_axes, text_on, tint
from course_lib.figures.style import series as look

__all__ = ["ring_moment", "ring_steps", "shade_of", "traffic_against_ranks"]

_GAP = 0.7
"""Between two ranks, in widths of a chunk."""


class RingStep(Protocol):
    """One step as one rank saw it: `course_lib.parallel.collectives.Step`."""

    @property
    def phase(self) -> str: ...
    @property
    def sent(self) -> int: ...
    @property
    def received(self) -> int: ...
    @property
    def chunks(self) -> Sequence[Sequence[float]]: ...


def shade_of(share: float) -> str:
    """Fill of a chunk in which this share of the ranks is summed: green when it is complete."""
    return COLORS["weight"] if share >= 1 else tint(COLORS["weight"], 0.08 + 0.5 * share)


def ring_steps(
    starts: Sequence[Sequence[float]],
    traces: Sequence[Sequence[RingStep]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """A row a step, a group of chunks a rank: starts[rank][chunk] and traces[rank][step], one number a chunk.

    Rank r has to start with 10^r in every chunk, so that each digit 1 of a sum is a rank that is in it. What has
    arrived in a step has a frame, and a line from where it was sent.
    """
    ranks, steps = len(starts), len(traces[0])
    fig, ax = new_figure(title, subtitle, height=46 + 46 * (steps + 1))
    style_axes(ax, grid="")
    ax.spines["bottom"].set_visible(False)
    left = [rank * (ranks + _GAP) for rank in range(ranks)]
    for row in range(steps + 1):
        for rank in range(ranks):
            done = traces[rank][row - 1] if row else None
            values = [chunk[0] for chunk in done.chunks] if done else starts[rank]
            for chunk, value in enumerate(values):
                arrived = done is not None and chunk == done.received
                _box(ax, left[rank] + chunk, row, f"{value:.0f}", ranks, arrived)
            if done:
                _arrow(ax, left, rank, row, done.received)
    for first in sorted({[step.phase for step in traces[0]].index(step.phase) for step in traces[0]}):
        phase = traces[0][first].phase
        last = first + sum(step.phase == phase for step in traces[0])
        ax.plot([-0.78] * 2, [first + 0.72, last + 0.28], color=COLORS["ink"], linewidth=1.2)
        ax.text(
            -1.12, (first + 1 + last) / 2, phase, rotation=90, ha="center", va="center", size=9.5, color=COLORS["ink"]
        )
    ax.set_yticks(range(steps + 1), ["start"] + [f"step {number}" for number in range(1, steps + 1)])
    ax.tick_params(axis="y", labelsize=9, labelcolor=COLORS["ink"])
    ax.set_xticks([x + ranks / 2 for x in left], [f"rank {rank}" for rank in range(ranks)])
    ax.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False, labelsize=10)
    for label in ax.get_xticklabels():
        label.set(color=COLORS["ink"], weight="bold")
    ax.set_xlim(-1.45, left[-1] + ranks + 0.55)
    ax.set_ylim(steps + 0.42, -0.42)
    return fig


def _box(ax: Axes, x: float, row: float, text: str, ranks: int, arrived: bool) -> None:
    fill = shade_of(text.count("1") / ranks)
    edge, width = (COLORS["communication"], 2.2) if arrived else (COLORS["rule"], 0.6)
    ax.add_patch(
        Rectangle((x + 0.04, row - 0.28), 0.92, 0.56, facecolor=fill, edgecolor=edge, linewidth=width, zorder=3)
    )
    size = 9.5 if ranks <= 3 else 8.6 if ranks == 4 else 6.5
    ax.text(x + 0.5, row + 0.01, text, ha="center", va="center", size=size, color=text_on(fill), zorder=4)


def _arrow(ax: Axes, left: Sequence[float], rank: int, row: int, chunk: int) -> None:
    """From the chunk on the rank before, a row up, to where it has arrived; the last rank's goes out at the right."""
    end, span, heights = left[rank] + chunk + 0.5, left[1] - left[0], [row - 0.72, row - 0.28]
    ends = [end] if rank else [end, left[-1] + span + chunk + 0.5]
    for x in ends:
        line = ax.plot([x - span, x], heights, color=COLORS["communication"], linewidth=1.1, alpha=0.8, zorder=2)[0]
        line.set_clip_path(Rectangle((-0.55, -1), left[-1] + len(left) + 1.1, 99, transform=ax.transData))


def traffic_against_ranks(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    counted: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """What the busiest rank sends, in buffers, against the ranks; both axes logarithmic. Dots are counted."""
    fig, ax = new_figure(title, subtitle, height=300)
    labelled = []
    for index, (name, (ranks, sent)) in enumerate(curves.items()):
        labelled.append((ax.plot(ranks, sent, **look(index))[0], name))
        if name in counted:
            ax.plot(*counted[name], "o", color=look(index)["color"], markersize=6, zorder=3)
    end_labels(ax, labelled)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ticks = [2**k for k in range(1, 11)]
    ax.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    marks = [1, 2, 10, 100, 1000]
    ax.set_yticks(marks, [f"{mark:,}" for mark in marks])
    ax.minorticks_off()
    ax.set_xlabel("ranks")
    ax.set_ylabel("buffers sent by the busiest rank")
    if row:
        numbers(fig, row)
    return fig


def ring_moment(
    states: Sequence[Sequence[frozenset[int]]],
    received: Sequence[int],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """One moment of a ring: a row a rank, a box a chunk with the number of ranks that are summed in it.

    states[rank][chunk] says whose numbers are in it; received[rank] is the chunk that has just arrived, if any.
    """
    ranks = len(states)
    fig, ax = new_figure(title, subtitle, height=40 + 44 * ranks)
    style_axes(ax, grid="")
    ax.spines["bottom"].set_visible(False)
    for rank, chunks in enumerate(states):
        for chunk, whose in enumerate(chunks):
            arrived = bool(received) and chunk == received[rank]
            fill = shade_of(len(whose) / ranks)
            edge, width = (COLORS["communication"], 2.2) if arrived else (COLORS["rule"], 0.6)
            box = Rectangle((chunk + 0.04, rank - 0.36), 0.92, 0.72, facecolor=fill, edgecolor=edge, linewidth=width)
            ax.add_patch(box)
            ax.text(chunk + 0.5, rank, str(len(whose)), ha="center", va="center", size=11, color=text_on(fill))
    ax.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    ax.set_xticks([chunk + 0.5 for chunk in range(ranks)], [f"chunk {chunk}" for chunk in range(ranks)])
    ax.tick_params(axis="both", labelsize=10, labelcolor=COLORS["ink"])
    ax.tick_params(axis="x", top=True, labeltop=True, bottom=False, labelbottom=False)
    ax.set_xlim(0, max(ranks, 8))
    ax.set_ylim(ranks - 0.5, -0.5)
    return fig
