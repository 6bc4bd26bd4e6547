"""Pictures of chapter 5: bytes alive over a step, what each mode costs, bytes against depth and length, segments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, NullLocator

from course_lib.figures.ledger import BYTE_COLORS, readable
from course_lib.figures.style import COLORS, end_labels, ink, key, new_figure, new_panels, note, numbers, panel_title
from course_lib.figures.style import series as look

__all__ = ["bytes_curves", "cost_of_modes", "fits_in", "gradients_against", "live_bytes", "segment_sizes"]

AGAIN = COLORS["vermilion"]
"""Colour of what is computed a second time."""


def live_bytes(
    traces: Mapping[str, tuple[Sequence[float], int]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes alive after each operator of a step, a panel a run: {name: (bytes, number of forward's operators)}."""
    fig, axes = new_panels(title, subtitle, height=250, cols=len(traces), share_y=True)
    top = max(max(values) for values, _ in traces.values()) / 1e6
    for ax, (name, (values, forward)) in zip(axes, traces.items(), strict=True):
        data, at = np.asarray(values) / 1e6, np.arange(len(values))
        ax.fill_between(at[:forward], data[:forward], color=COLORS["forward"], alpha=0.85, linewidth=0)
        ax.fill_between(at[forward - 1 :], data[forward - 1 :], color=COLORS["backward"], alpha=0.85, linewidth=0)
        peak = int(np.argmax(data))
        side = 34 if peak < len(data) / 2 else -34
        note(ax, f"{readable(float(data[peak]))} MB", (peak, float(data[peak])), offset=(side, 12), color="ink")
        panel_title(ax, name)
        ax.set_xlabel("operators, in the order in which they run")
        ax.set_ylim(0, top * 1.18)
        ax.set_xlim(0, len(data))
    axes[0].set_ylabel("MB alive")
    key(axes[0], [("forward", COLORS["forward"]), ("backward", COLORS["backward"])])
    if row:
        numbers(fig, row)
    return fig


def cost_of_modes(rows: Mapping[str, Mapping[str, float]], *, title: str, subtitle: str | None = None) -> Figure:
    """A row a mode: {mode: {"kept": bytes, "peak": bytes, "time": ratio, "flops": ratio}}, the first keeps everything.

    Left: bytes kept for backward (full) and at the worst moment (pale). Right: time over the first's, a dot for FLOPs.
    """
    fig, (left, right) = new_panels(title, subtitle, height=70 + 40 * len(rows), cols=2, width_ratios=[1.25, 1])
    names = list(rows)
    for place, name in enumerate(names):
        kept, peak, time, flops = (rows[name][key_] for key_ in ("kept", "peak", "time", "flops"))
        left.barh(place, peak / 1e6, height=0.6, color=COLORS["sky"], alpha=0.4)
        left.barh(place, kept / 1e6, height=0.6, color=COLORS["sky"])
        text = f"{readable(kept / 1e6)} kept, {readable(peak / 1e6)} at most"
        left.annotate(
            text,
            (peak / 1e6, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=9,
            color=COLORS["ink"],
        )
        right.barh(place, time, height=0.6, color=COLORS["orange"])
        right.plot([flops], [place], "D", color=COLORS["ink"], markersize=5)
        right.annotate(
            f"{time:.2f}", (max(time, flops), place), xytext=(8, 0), textcoords="offset points", va="center", size=9.5
        )
    for ax in (left, right):
        ax.set_ylim(len(names) - 0.4, -0.6)
        ax.grid(False)
    left.set_yticks(range(len(names)), names)
    left.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    right.set_yticks([])
    left.set_xlim(0, max(entry["peak"] for entry in rows.values()) / 1e6 * 1.62)
    right.set_xlim(0, max(max(entry["time"], entry["flops"]) for entry in rows.values()) * 1.2)
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

    A curve without a formula is a dotted line through its dots.
    """
    fig, axes = new_panels(title, subtitle, height=290, cols=len(panels))
    for ax, (axis, curves) in zip(axes, panels.items(), strict=True):
        lines = []
        for index, (name, (xs, measured, formula)) in enumerate(curves.items()):
            style = look(index)
            ys = np.asarray(measured if formula is None else formula) / 1e6
            if formula is None:
                style["linestyle"] = (0, (1, 2))
            (line,) = ax.plot(xs, ys, **style)
            ax.plot(xs, np.asarray(measured) / 1e6, "o", color=style["color"], markersize=5, clip_on=False)
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
