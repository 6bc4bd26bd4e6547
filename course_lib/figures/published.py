"""Published runs beside the planner: predicted and published speed of a step, the errors row by row, implied MFU.

    found = compare()
    show(predicted_against_published(found, title="..."), "...")
    show(errors_by_table(found, title="..."), "...")
    show(implied_against_published(WHOLE, title="..."), "...")
    show(where_time_goes({"BLOOM": predict(run), ...}, title="..."), "...")

What was fitted is hollow, what was held out is filled, what lies outside of the model's claim is a cross.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from course_lib.figures.style import COLORS, ink, new_figure, numbers, style_axes, text_on
from course_lib.planning.published import Comparison, Whole, summary
from course_lib.planning.steptime import StepTime

__all__ = ["errors_by_table", "implied_against_published", "predicted_against_published", "where_time_goes"]

_CHIPS = {"A100": COLORS["blue"], "H100": COLORS["vermilion"]}
_OTHER = COLORS["grey"]
_PARTS = {
    "matrix products": (("compute",), COLORS["blue"]),
    "computed again": (("recompute",), COLORS["sky"]),
    "memory": (("memory", "optimizer"), COLORS["purple"]),
    "traffic that is waited for": (
        ("tensor_traffic", "context_traffic", "expert_traffic", "data_traffic", "sends"),
        COLORS["vermilion"],
    ),
    "bubble": (("bubble",), COLORS["rule"]),
}
_NEAR = 0.15
"""The aim: this far off at most."""
_HALVES = ("fitted", "held out", "outside")


def _look(half: str, color: str) -> dict[str, Any]:
    """Keyword arguments of `ax.plot` for one point."""
    if half == "outside":
        return {"marker": "x", "color": COLORS["grey"], "markersize": 6, "markeredgewidth": 1.4, "linestyle": ""}
    fill = color if half == "held out" else COLORS["paper"]
    return {
        "marker": "o",
        "markerfacecolor": fill,
        "markeredgecolor": color,
        "markersize": 6.5,
        "markeredgewidth": 1.3,
        "linestyle": "",
    }


def _legend(ax: Axes, entries: Sequence[tuple[str, dict[str, Any]]], at: tuple[float, float]) -> None:
    """With its upper left corner there, in shares of the axes."""
    handles = [Line2D([], [], label=name, **look) for name, look in entries]
    ax.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=at,
        frameon=False,
        fontsize=9,
        handletextpad=0.3,
        labelspacing=0.35,
    )


def _row_of_numbers(fig: Figure, found: Sequence[Comparison]) -> None:
    """What the two halves have reached."""
    entries = []
    for half in ("fitted", "held out"):
        of_half = [one.error for one in found if one.row.half == half]
        if of_half:
            reached = summary(of_half)
            entries.append((f"{reached['median']:.1%}", f"median error, {half} ({reached['rows']:.0f} rows)"))
            entries.append((f"{reached['within 15%']:.0%}", f"within 15%, {half}"))
    numbers(fig, entries)


def predicted_against_published(found: Sequence[Comparison], *, title: str, subtitle: str | None = None) -> Figure:
    """TFLOP/s a device, predicted over published, a point a step. On the line they agree; the band is 15% wide."""
    fig, ax = new_figure(title, subtitle, height=400)
    style_axes(ax, grid="both")
    for one in sorted(found, key=lambda one: one.row.half == "held out"):
        ax.plot([one.published_tflops], [one.tflops], zorder=3, **_look(one.row.half, _CHIPS.get(one.row.chip, _OTHER)))
    values = [value for one in found for value in (one.tflops, one.published_tflops)]
    low, high = 0.9 * min(values), 1.1 * max(values)
    ax.plot([low, high], [low, high], color=COLORS["ink"], linewidth=1)
    ax.fill_between(
        [low, high], [low / (1 + _NEAR), high / (1 + _NEAR)], [low / (1 - _NEAR), high / (1 - _NEAR)], **_band()
    )
    for axis in (ax.set_xscale, ax.set_yscale):
        axis("log")
    ticks = [tick for tick in (50, 100, 150, 200, 300, 400, 500, 700) if low <= tick <= high]
    for axis_ticks in (ax.xaxis, ax.yaxis):
        axis_ticks.set_ticks(ticks, [str(tick) for tick in ticks])
        axis_ticks.set_ticks([], minor=True)
    ax.set_xlim(low, high)
    ax.set_ylim(low, high)
    ax.set_xlabel("published: model TFLOP/s a device")
    ax.set_ylabel("predicted")
    there = {one.row.half for one in found}
    entries = [(f"{chip}, {half}", _look(half, color)) for chip, color in _CHIPS.items() for half in _HALVES[:2]]
    if "outside" in there:
        entries.append(("outside of the claim: other lengths, other chips", _look("outside", _OTHER)))
    _legend(ax, entries, (0, 1))
    _row_of_numbers(fig, found)
    return fig


def _band() -> dict[str, Any]:
    return {"color": COLORS["idle"], "linewidth": 0, "zorder": 0}


def errors_by_table(found: Sequence[Comparison], *, title: str, subtitle: str | None = None) -> Figure:
    """Predicted over published seconds less one, a line a table and a point a step; the worst of each has its name."""
    tables: dict[str, list[Comparison]] = {}
    for one in found:
        tables.setdefault(one.row.title, []).append(one)
    fig, ax = new_figure(title, subtitle, height=80 + 34 * len(tables))
    style_axes(ax, grid="x")
    ax.axvspan(-100 * _NEAR, 100 * _NEAR, **_band())
    ax.axvline(0, color=COLORS["ink"], linewidth=1)
    for place, rows in enumerate(tables.values()):
        for one in rows:
            ax.plot([100 * one.error], [place], zorder=3, **_look(one.row.half, _CHIPS.get(one.row.chip, _OTHER)))
        worst = max(rows, key=lambda one: abs(one.error))
        if abs(worst.error) > _NEAR:
            right = worst.error > 0
            ax.annotate(
                worst.row.name,
                (100 * worst.error, place),
                xytext=(8 if right else -8, 0),
                textcoords="offset points",
                ha="left" if right else "right",
                va="center",
                size=9,
                color=ink(_CHIPS.get(worst.row.chip, _OTHER)),
            )
    reach = max(35.0, 100 * max(abs(one.error) for one in found) + 18)
    ax.set_xlim(-reach, reach)
    ax.set_ylim(len(tables) - 0.4, -0.6)
    ax.set_yticks(range(len(tables)), list(tables))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xlabel("error of the predicted seconds (%); grey: within 15%")
    _row_of_numbers(fig, found)
    return fig


def implied_against_published(runs: Sequence[Whole], *, title: str, subtitle: str | None = None) -> Figure:
    """MFU of whole runs: what their hours imply (filled), what was published of their steps (hollow), and the ratio.

    Runs of which no MFU was published stand below, with the implied one alone.
    """
    known = sorted((run for run in runs if run.steady is not None), key=lambda run: run.goodput or 0.0)
    alone = sorted((run for run in runs if run.steady is None), key=lambda run: run.implied)
    rows = [*known, *alone]
    fig, ax = new_figure(title, subtitle, height=90 + 23 * len(rows))
    style_axes(ax, grid="x")
    color = COLORS["green"]
    for place, run in enumerate(rows):
        shade = COLORS["grey"] if run.kind != "independent" else color
        if run.steady is not None:
            ax.plot([100 * run.implied, 100 * run.steady], [place, place], color=shade, linewidth=2, zorder=2)
            ax.plot([100 * run.steady], [place], zorder=3, **_look("fitted", shade))
            words = f"{run.goodput:.2f}" + ("" if run.kind == "independent" else f", {run.kind}")
            ax.annotate(
                words,
                (100 * max(run.steady, run.implied), place),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                size=9.5,
                color=COLORS["ink"],
            )
        elif run.kind != "independent":
            ax.annotate(
                run.kind,
                (100 * run.implied, place),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                size=9.5,
                color=COLORS["ink"],
            )
        ax.plot([100 * run.implied], [place], zorder=3, **_look("held out", shade))
    if known and alone:
        ax.axhline(len(known) - 0.5, color=COLORS["rule"], linewidth=1)
    ax.set_yticks(range(len(rows)), [run.name for run in rows])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlim(0, max(100 * max(run.implied, run.steady or 0.0) for run in rows) + 16)
    ax.set_xlabel("model FLOPs, share of the devices' peak (%)")
    entries = [
        ("implied by all device-hours", _look("held out", color)),
        ("published of its steps; the ratio", _look("fitted", color)),
        ("circular, or a bound: no check", _look("held out", COLORS["grey"])),
    ]
    _legend(ax, entries, (0.66, 0.57))
    return fig


def where_time_goes(steps: Mapping[str, StepTime], *, title: str, subtitle: str | None = None) -> Figure:
    """A bar a step, of shares of its predicted seconds; the MFU at its end. Shares of 5% and more have their number."""
    fig, ax = new_figure(title, subtitle, height=92 + 30 * len(steps))
    style_axes(ax, grid="")
    for place, step in enumerate(steps.values()):
        start = 0.0
        for names, color in _PARTS.values():
            share = 100 * sum(step.parts[name] for name in names) / step.seconds
            ax.barh(place, share, left=start, height=0.66, color=color, edgecolor=COLORS["paper"], linewidth=1)
            if share >= 5:
                at = (start + share / 2, place)
                ax.annotate(f"{share:.0f}", at, ha="center", va="center", size=9, color=text_on(color))
            start += share
        ax.annotate(
            f"MFU {step.mfu:.0%}", (100, place), xytext=(6, 0), textcoords="offset points", va="center", size=9.5
        )
    ax.set_yticks(range(len(steps)), list(steps))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xlim(0, 112)
    ax.set_ylim(len(steps) - 0.4, -0.6)
    ax.set_xticks([0, 25, 50, 75, 100])
    ax.set_xlabel("share of the predicted step (%)")
    legend = ax.legend(
        handles=[Patch(facecolor=color, label=name) for name, (_, color) in _PARTS.items()],
        loc="lower left",
        bbox_to_anchor=(0, 1),
        ncols=len(_PARTS),
        frameon=False,
        fontsize=9,
        handlelength=0.9,
        handleheight=0.9,
        handletextpad=0.4,
        columnspacing=1.2,
        borderpad=0.2,
    )
    legend.set_in_layout(True)
    return fig
