"""Pictures of chapter 5: bytes alive over a step, what each mode costs, bytes against depth and length, segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, MultipleLocator, NullLocator

from course_lib.figures.ledger import BYTE_COLORS, readable
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    note,
    numbers,
    panel_title,
    text_on,
    tint,
)
from course_lib.figures.style import series as look

__all__ = ["bytes_curves", "cost_of_modes", "fits_in", "gradients_against", "live_bytes", "segment_sizes"]

AGAIN = COLORS["vermilion"]
"""Colour of a block that is whole a second time, and of gradients without the random state."""

_HATCH = "//////"


def live_bytes(
    traces: Mapping[str, tuple[Sequence[float], Sequence[str]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes alive after each operator of a step, a panel a run, each with its own scale: {name: (bytes, kinds)}.

    An operator's kind is "forward", "again" (forward once more, inside backward) or "backward". The spike where forward
    ends is named: it is the logits. In the first panel, a dashed line stands at the peak of the last.
    """
    fig, axes = new_panels(title, subtitle, height=270, cols=len(traces))
    peaks = [max(values) / 1e6 for values, _ in traces.values()]
    for ax, (name, (values, kinds)) in zip(axes, traces.items(), strict=True):
        data = np.asarray(values) / 1e6
        start = 0
        for kind, run in groupby(kinds):
            end = start + len(list(run))
            part = slice(max(start - 1, 0), end)
            shade = COLORS["backward" if kind == "backward" else "forward"]
            area = ax.fill_between(np.arange(len(data))[part], data[part], color=shade, alpha=0.9, linewidth=0)
            if kind == "again":
                area.set(hatch=_HATCH, facecolor=tint(shade, 0.45), edgecolor=shade)
            start = end
        peak, turn = int(np.argmax(data)), list(kinds).count("forward")
        near = max(turn - len(data) // 40, 0)
        spike = near + int(np.argmax(data[near : turn + len(data) // 40 + 1]))
        side = 34 if peak < len(data) / 2 else -34
        text = f"{readable(float(data[peak]))} MB" + (", with the logits" if spike == peak else "")
        note(ax, text, (peak, float(data[peak])), offset=(side, 14), color="ink")
        if spike != peak:
            note(ax, "logits", (spike, float(data[spike])), offset=(-20, 16))
        panel_title(ax, name)
        ax.set_xlabel("operators, in the order in which they run")
        ax.set_ylim(0, data[peak] * 1.22)
        ax.set_xlim(0, len(data))
    axes[0].axhline(peaks[-1], color=COLORS["ink"], linewidth=1, linestyle=(0, (4, 3)))
    axes[0].set_ylabel("MB alive")
    patches = [
        Patch(facecolor=COLORS["forward"], label="forward"),
        Patch(facecolor=tint(COLORS["forward"], 0.45), edgecolor=COLORS["forward"], hatch=_HATCH, linewidth=0),
        Patch(facecolor=COLORS["backward"], label="backward"),
    ]
    patches[1].set_label("forward again")
    axes[0].legend(
        handles=patches,
        loc="upper right",
        bbox_to_anchor=(1, 0.9),
        framealpha=1,
        edgecolor="none",
        fontsize=9,
        handlelength=1,
    )
    if row:
        numbers(fig, row)
    return fig


def cost_of_modes(rows: Mapping[str, Mapping[str, float]], *, title: str, subtitle: str | None = None) -> Figure:
    """A row a mode: {mode: {"kept": bytes, "peak": bytes, "time": ratio, "flops": ratio}}, the first keeps everything.

    Left: bytes kept for backward (full) and at the worst moment (pale). Right: time over the first's as a bar, which
    has its number inside; a dot for FLOPs, with its number at the right.
    """
    fig, (left, right) = new_panels(title, subtitle, height=70 + 40 * len(rows), cols=2, width_ratios=[1.25, 1])
    names = list(rows)
    furthest = max(max(entry["time"], entry["flops"]) for entry in rows.values())
    for place, name in enumerate(names):
        kept, peak, time, flops = (rows[name][key_] for key_ in ("kept", "peak", "time", "flops"))
        left.barh(place, peak / 1e6, height=0.6, color=COLORS["sky"], alpha=0.4)
        left.barh(place, kept / 1e6, height=0.6, color=COLORS["sky"])
        text = f"{readable(kept / 1e6)} kept, {readable(peak / 1e6)} peak"
        right.barh(place, time, height=0.6, color=COLORS["orange"])
        right.plot([flops], [place], "D", color=COLORS["ink"], markersize=5)
        for ax, words, x, shift in (
            (left, text, peak / 1e6, 6),
            (right, f"{time:.2f}", 0.0, 8),
            (right, f"{flops:.2f}", furthest, 12),
        ):
            ax.annotate(
                words,
                (x, place),
                xytext=(shift, 0),
                textcoords="offset points",
                va="center",
                size=9,
                color=text_on(COLORS["orange"]) if words == f"{time:.2f}" and x == 0 else COLORS["ink"],
            )
    for ax in (left, right):
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.grid(False)
    left.set_yticks(range(len(names)), names)
    left.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    right.annotate(
        "FLOPs", (furthest, -0.42), xytext=(12, 2), textcoords="offset points", size=8.5, color=COLORS["muted"]
    )
    right.set_yticks([])
    right.xaxis.set_major_locator(MultipleLocator(0.5))
    left.set_xlim(0, max(entry["peak"] for entry in rows.values()) / 1e6 * 1.62)
    right.set_xlim(0, furthest * 1.2)
    panel_title(left, "MB of activations")
    panel_title(right, "time (bar) and FLOPs (dot)")
    right.axvline(1, color=COLORS["grey"], linewidth=1, linestyle=(0, (2, 2)))
    return fig


def bytes_curves(
    panels: Mapping[str, Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float] | None]]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Measured bytes as dots, the formula as a line, a panel an axis: {x label: {curve: (xs, measured, formula)}}.

    A curve without a formula is a dash-dotted line through open dots.
    """
    fig, axes = new_panels(title, subtitle, height=290, cols=len(panels))
    for ax, (axis, curves) in zip(axes, panels.items(), strict=True):
        lines = []
        for index, (name, (xs, measured, formula)) in enumerate(curves.items()):
            style = look(index)
            ys = np.asarray(measured if formula is None else formula) / 1e6
            filled = style["color"]
            if formula is None:
                style |= {"linestyle": (0, (6, 2, 1.2, 2)), "linewidth": 1.4}
                filled = COLORS["paper"]
            (line,) = ax.plot(xs, ys, **style)
            ax.plot(
                xs,
                np.asarray(measured) / 1e6,
                "o",
                color=style["color"],
                markerfacecolor=filled,
                markersize=5,
                clip_on=False,
            )
            lines.append((line, name))
        end_labels(ax, lines)
        ax.set_xlabel(axis)
        ax.set_xlim(left=0)
        ax.set_ylim(bottom=0)
    axes[0].set_ylabel("MB kept for backward")
    return fig


def segment_sizes(
    sizes: Sequence[int],
    measured: Sequence[float],
    formula: tuple[Sequence[int], Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes at the worst moment against the layers of a segment (log axis): measured dots, the formula's line."""
    fig, ax = new_figure(title, subtitle, height=250)
    ax.set_xscale("log", base=2)
    ax.plot(formula[0], np.asarray(formula[1]) / 1e6, color=COLORS["forward"], linewidth=2)
    ax.plot(sizes, np.asarray(measured) / 1e6, "o", color=COLORS["ink"], markersize=6)
    low = int(np.argmin(measured))
    note(
        ax,
        f"{sizes[low]} layers: {readable(measured[low] / 1e6)} MB",
        (sizes[low], measured[low] / 1e6),
        offset=(0, 42),
    )
    ax.annotate(
        "the formula",
        (formula[0][-1], formula[1][-1] / 1e6),
        xytext=(-12, 0),
        textcoords="offset points",
        ha="right",
        size=9.5,
        color=ink(COLORS["forward"]),
    )
    ax.xaxis.set_major_locator(FixedLocator(list(sizes)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels([str(size) for size in sizes])
    ax.set_ylim(bottom=0)
    ax.set_xlabel("layers in a segment")
    ax.set_ylabel("MB at the worst moment")
    if row:
        numbers(fig, row)
    return fig


def gradients_against(
    reference: np.ndarray, others: Mapping[str, np.ndarray], *, title: str, subtitle: str | None = None
) -> Figure:
    """A dot a weight: its gradient with everything kept against its gradient recomputed, a panel a run."""
    fig, axes = new_panels(title, subtitle, height=290, cols=len(others), share_y=True)
    limit = float(np.quantile(np.abs(reference), 0.999)) * 1.4
    for ax, (name, values), shade in zip(axes, others.items(), (COLORS["green"], AGAIN), strict=False):
        ax.plot([-limit, limit], [-limit, limit], color=COLORS["rule"], linewidth=1)
        ax.plot(reference, values, "o", color=shade, markersize=2.4, alpha=0.6, markeredgewidth=0)
        panel_title(ax, name)
        ax.set_xlim(-limit, limit)
        ax.set_ylim(-limit, limit)
        ax.set_xlabel("gradient, everything kept")
        ax.ticklabel_format(style="plain")
        ax.locator_params(axis="x", nbins=5)
    axes[0].set_ylabel("gradient, recomputed")
    return fig


def fits_in(
    runs: Mapping[str, Mapping[str, float]],
    limit: float,
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Stacked bars in GB, a row a run: {run: {category: bytes}}; the line at `limit` GB is the device's memory."""
    fig, ax = new_figure(title, subtitle, height=90 + 46 * len(runs))
    shades = {**BYTE_COLORS, "block computed again": AGAIN}
    widest = max(limit, *(sum(sizes.values()) / 1e9 for sizes in runs.values()))
    for place, sizes in enumerate(runs.values()):
        start = 0.0
        for name, size in sizes.items():
            ax.barh(
                place, size / 1e9, left=start, height=0.6, color=shades[name], edgecolor=COLORS["paper"], linewidth=0.6
            )
            start += size / 1e9
        ax.annotate(
            f"{readable(start)} GB", (start, place), xytext=(7, 0), textcoords="offset points", va="center", size=10
        )
    ax.axvline(limit, color=COLORS["ink"], linewidth=1.4)
    ax.annotate(
        f"{limit:g} GB",
        (limit, len(runs) - 0.5),
        xytext=(4, 4),
        textcoords="offset points",
        size=9.5,
        color=COLORS["ink"],
    )
    ax.set_yticks(range(len(runs)), list(runs))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(runs) - 0.5, -0.5)
    ax.set_xlim(0, widest * 1.16)
    ax.grid(False)
    ax.set_xlabel("GB (billions of bytes)")
    key(ax, [(name, shades[name]) for name in next(iter(runs.values()))])
    return fig
