"""Pictures of chapter 10, second half: which rank computes which scores, and what each step of a ring does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from course_lib.figures.style import COLORS, new_panels, numbers, panel_title, text_on, tint
from course_lib.figures.tensor import RANK_COLORS

__all__ = ["ring_steps", "who_computes"]

Chunks = Sequence[Sequence[int]]


def who_computes(
    layouts: Mapping[str, Chunks],
    length: int,
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A panel a layout: the causal half of all scores, each row in the colour of the rank that has its query."""
    fig, axes = new_panels(title, subtitle, height=330, cols=len(layouts))
    for ax, (name, chunks) in zip(axes, layouts.items(), strict=True):
        size = length // sum(len(own) for own in chunks)
        image = np.ones((length, length, 3))
        for rank, own in enumerate(chunks):
            pairs = 0
            for place in own:
                for query in range(place * size, (place + 1) * size):
                    image[query, : query + 1] = to_rgb(RANK_COLORS[rank])
                    pairs += query + 1
            middle = (max(own) + 0.5) * size
            share = pairs / (length * (length + 1) / 2)
            inside = middle > 0.4 * length
            ax.annotate(
                f"rank {rank}: {share:.0%}",
                (length * 0.02 if inside else middle + 1.2 * size, middle),
                size=9.5,
                va="center",
                color=text_on(RANK_COLORS[rank]) if inside else COLORS["ink"],
            )
        ax.imshow(image, interpolation="nearest", extent=(0, length, length, 0))
        for place in range(1, sum(len(own) for own in chunks)):
            ax.axhline(place * size, color=COLORS["paper"], linewidth=1.5)
        panel_title(ax, name)
        ax.set_xlabel("key")
        ax.set_ylabel("query")
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        for spine in ax.spines.values():
            spine.set_visible(False)
    if row:
        numbers(fig, row)
    return fig


def ring_steps(
    layouts: Mapping[str, Sequence[Sequence[int]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A panel a layout: work[rank][step] as bars along time, a step as long as its slowest rank; grey is idle."""
    height = 80 + 34 * len(next(iter(layouts.values())))
    fig, axes = new_panels(title, subtitle, height=height * len(layouts), cols=1, rows=len(layouts), share_x=True)
    for ax, (name, work) in zip(axes, layouts.items(), strict=True):
        begin = 0
        for step in range(len(work[0])):
            longest = max(rank[step] for rank in work)
            for rank, pairs in enumerate(row_[step] for row_ in work):
                ax.add_patch(Rectangle((begin, rank - 0.35), longest, 0.7, facecolor=COLORS["idle"], linewidth=0))
                if pairs:
                    color = COLORS["forward"] if step else tint(COLORS["forward"], 0.6)
                    edge = COLORS["paper"]
                    ax.add_patch(Rectangle((begin, rank - 0.35), pairs, 0.7, facecolor=color, edgecolor=edge))
            begin += longest
            ax.axvline(begin, color=COLORS["rule"], linewidth=1)
        ax.set_xlim(0, max(sum(max(r[s] for r in w) for s in range(len(w[0]))) for w in layouts.values()) * 1.02)
        ax.set_ylim(len(work) - 0.5, -0.5)
        ax.set_yticks(range(len(work)), [f"rank {rank}" for rank in range(len(work))])
        ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
        ax.grid(False)
        panel_title(ax, name)
    axes[-1].set_xlabel("pairs of a query and a key (pale: step 0, a rank's own keys; lines: the steps of the ring)")
    if row:
        numbers(fig, row)
    return fig
