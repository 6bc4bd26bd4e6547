"""Pictures of when gradients are sent: what an all-reduce takes, and DDP's buckets behind backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, ink, new_figure, new_panels, numbers, panel_title, text_on, tint

__all__ = ["all_reduce_times", "bucket_timeline"]


def all_reduce_times(
    sizes: Sequence[float],
    seconds: Sequence[float],
    fit: tuple[float, float],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Milliseconds of one all-reduce against its bytes, both axes logarithmic; fit = (seconds, bytes a second)."""
    fig, ax = new_figure(title, subtitle, height=270)
    grid = np.geomspace(min(sizes), max(sizes), 200)
    ax.plot(grid, 1e3 * (fit[0] + grid / fit[1]), color=COLORS["grey"], linewidth=1.4)
    ax.plot(sizes, 1e3 * np.asarray(seconds), "o", color=COLORS["communication"], markersize=6)
    ax.set_xscale("log")
    ax.set_yscale("log")
    ticks = {4: "4 bytes", 1e3: "1 kB", 1e4: "10 kB", 1e5: "100 kB", 1e6: "1 MB", 1e7: "10 MB"}
    shown = {at: word for at, word in ticks.items() if min(sizes) <= at <= 1.3 * max(sizes)}
    ax.set_xticks(list(shown), list(shown.values()))
    marks = [
        m for m in (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100) if 0.6 * min(seconds) <= m / 1e3 <= 1.5 * max(seconds)
    ]
    ax.set_yticks(marks, [f"{m:g}" for m in marks])
    ax.minorticks_off()
    ax.set_ylabel("ms")
    ax.set_xlabel("bytes that are reduced")
    if row:
        numbers(fig, row)
    return fig


class Bucket(Protocol):
    """`course_lib.parallel.buckets.Bucket`: times in seconds since the forward pass began."""

    @property
    def elements(self) -> int: ...
    @property
    def started(self) -> float: ...
    @property
    def arrived(self) -> float: ...


def bucket_timeline(
    runs: Mapping[str, tuple[float, float, Sequence[Bucket]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """One step of one rank, a panel a run: {run: (end of forward, end of backward's wait, buckets)}.

    The upper bar is the computing: forward, then backward until its last bucket starts, then waiting. Below it each
    bucket with its share of the gradients: pale while it is ready and the one before is still on the wire, dark from
    then to its arrival.
    """
    fig, axes = new_panels(title, subtitle, height=30 + 150 * len(runs), rows=len(runs), cols=1, share_x=True)
    longest = max(end for _, end, _ in runs.values())
    for ax, (name, (forward, end, buckets)) in zip(axes, runs.items(), strict=True):
        last = max(bucket.started for bucket in buckets)
        total = sum(bucket.elements for bucket in buckets)
        for start, stop, shade, words in (
            (0.0, forward, "forward", "forward"),
            (forward, last, "backward", "backward"),
            (last, end, "idle", "waits"),
        ):
            ax.barh(0, 1e3 * (stop - start), left=1e3 * start, height=0.7, color=COLORS[shade])
            if stop - start > 0.09 * longest:
                middle = 1e3 * (start + stop) / 2
                ax.text(middle, 0, words, ha="center", va="center", size=9.5, color=text_on(COLORS[shade]))
        depth = 2.4 / max(len(buckets), 3)
        for place, bucket in enumerate(buckets):
            y = 0.75 + depth * place
            before = buckets[place - 1].arrived if place else 0.0
            free = min(max(bucket.started, before), bucket.arrived)  # the wire is
            for start, stop, shade in (
                (bucket.started, free, tint(COLORS["communication"], 0.3)),
                (free, bucket.arrived, COLORS["communication"]),
            ):
                if stop > start:
                    ax.barh(y, 1e3 * (stop - start), left=1e3 * start, height=0.8 * depth, color=shade)
            if len(buckets) <= 8:
                ax.annotate(
                    f"{bucket.elements / total:.0%}",
                    (1e3 * bucket.started, y),
                    xytext=(-4, 0),
                    textcoords="offset points",
                    ha="right",
                    va="center",
                    size=8.5,
                    color=ink(COLORS["communication"]),
                )
        ax.axvline(1e3 * end, color=COLORS["ink"], linewidth=1.2)
        ax.annotate(
            f"{1e3 * end:.0f} ms", (1e3 * end, 0), xytext=(5, 0), textcoords="offset points", va="center", size=10
        )
        panel_title(ax, name)
        ax.set_yticks([0, 0.75 + depth * (len(buckets) - 1) / 2], ["computing", "sending"])
        ax.tick_params(axis="y", labelcolor=COLORS["ink"], labelsize=9.5)
        ax.set_ylim(0.75 + depth * max(len(buckets), 3), -0.5)
        ax.grid(True, axis="x", color="#E4E4E4", linewidth=0.8)
        ax.grid(False, axis="y")
    axes[-1].set_xlim(0, 1e3 * longest * 1.12)
    axes[-1].set_xlabel("ms since forward began, rank 0")
    if row:
        numbers(fig, row)
    return fig
