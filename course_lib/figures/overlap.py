"""FSDP's two lanes, computing and sending, on one time axis: what a prefetch hides, and what stays exposed.

from course_lib.figures.overlap import overlap_lanes
runs = {"no prefetch": simulate(fsdp_tasks(layers, prefetch=0)), "prefetch": simulate(fsdp_tasks(layers))}
show(overlap_lanes(runs, title="..."), "...")
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from course_lib.figures.ledger import readable
from course_lib.figures.style import COLORS, new_figure, text_on, tint
from course_lib.parallel.overlap import COMPUTE, NETWORK, exposed, waits
from course_lib.parallel.timeline import Timeline

__all__ = ["overlap_lanes"]

_PALE = tint(COLORS["communication"], 0.35)
_KINDS = {
    "forward": ("forward", COLORS["forward"]),
    "backward": ("backward", COLORS["backward"]),
    "gather": ("all-gather", COLORS["communication"]),
    "scatter": ("reduce-scatter", _PALE),
    "all_reduce": ("all-reduce", COLORS["communication"]),
}
_WAIT = ("exposed: computing waits", COLORS["idle"])
_HIGH, _LANE, _RUN = 0.78, 0.92, 2.75  # height of a bar, from lane to lane, from run to run


def overlap_lanes(
    runs: Mapping[str, Timeline],
    *,
    title: str,
    subtitle: str | None = None,
    unit: str = "ms",
    scale: float = 1e3,
) -> Figure:
    """Two lanes a run: {name: timeline of `overlap.fsdp_tasks`}. Times x `scale` are shown in `unit`.

    In a bar: its layer. Grey on the compute lane is the exposed time; beside the lanes, how much in all.
    """
    fig, ax = new_figure(title, subtitle, height=64 + 112 * len(runs))
    longest = max((run.makespan for run in runs.values()), default=0.0) * scale or 1.0
    used: dict[str, tuple[str, str]] = {}
    ticks: list[tuple[float, str]] = []
    for place, (name, run) in enumerate(runs.items()):
        top = place * _RUN
        for lane, resource in enumerate((COMPUTE, NETWORK)):
            ticks.append((top + lane * _LANE, resource))
        for slot in run.slots:
            kind = used[slot.kind] = _KINDS[slot.kind]
            y = top + (0.0 if slot.resource == COMPUTE else _LANE)
            _bar(ax, slot.start * scale, slot.end * scale, y, kind, slot.label, longest)
        gaps = waits(run) if run.slots else []
        for start, end in gaps:
            _bar(ax, start * scale, end * scale, top, _WAIT, "", longest)
        ax.annotate(name, (0, top), xytext=(0, 21), textcoords="offset points", size=10, weight="bold", va="center")
        end = run.makespan * scale
        total = f"{readable(end)} {unit}"
        waited = f"{readable(exposed(run) * scale if gaps else 0.0)} {unit} exposed"
        for text, y, weight in ((total, top, "bold"), (waited, top + _LANE, "normal")):
            ax.annotate(text, (end, y), xytext=(7, 0), textcoords="offset points", size=9.5, weight=weight, va="center")
        ax.plot([end, end], [top - _HIGH / 2, top + _LANE + _HIGH / 2], color=COLORS["ink"], linewidth=1.4)
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", length=0, labelcolor=COLORS["ink"])
    ax.set_ylim(max(len(runs), 1) * _RUN - 0.9, -1.0)
    ax.set_xlim(0, longest * 1.22)
    ax.set_xlabel(f"time ({unit})")
    ax.grid(False)
    ax.spines["left"].set_visible(False)
    _key(ax, used)
    return fig


def _bar(ax: Axes, start: float, end: float, y: float, kind: tuple[str, str], label: str, longest: float) -> None:
    color = kind[1]
    edge = COLORS["communication" if color == _PALE else "paper"]
    ax.barh(y, end - start, left=start, height=_HIGH, color=color, edgecolor=edge, linewidth=0.8)
    if label and (end - start) / longest > 0.009 + 0.008 * len(label):
        ax.text((start + end) / 2, y, label, size=8.5, ha="center", va="center_baseline", color=text_on(color))


def _key(ax: Axes, used: Mapping[str, tuple[str, str]]) -> None:
    entries = [kind for name, kind in _KINDS.items() if name in used] + [_WAIT]
    patches = [
        Patch(
            facecolor=color, edgecolor=COLORS["communication" if color == _PALE else "rule"], linewidth=0.6, label=text
        )
        for text, color in entries
    ]
    ax.legend(
        handles=patches,
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=len(patches),
        frameon=False,
        fontsize=9,
        handlelength=1.1,
        handleheight=1.0,
        handletextpad=0.4,
        columnspacing=1.3,
        borderaxespad=0.0,
    )
