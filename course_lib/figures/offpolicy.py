"""Pictures of chapter 13, second half: two numerics for one model, a policy that drifts, kernels under test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from course_lib.figures.curve import smoothed
from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    tint,
)

__all__ = ["batch_sizes", "gaps", "policies", "verdicts"]

_DASH = (0, (3, 2))


def gaps(
    tokens: Mapping[str, Sequence[float]],
    sequences: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: {numerics: gaps of log-probabilities, one a token}, as the share of tokens whose gap is larger than x.

    Right: {numerics: importance ratios, one a sequence}, a dot each; 1 is agreement.
    """
    fig, (left, right) = new_panels(title, subtitle, height=290, cols=2, width_ratios=[1.25, 1])
    shown, named = [], []
    for place, (name, values) in enumerate(tokens.items()):
        sizes = np.sort(np.abs(np.asarray(values, dtype=float)))
        share = 1 - np.arange(len(sizes)) / len(sizes)
        keep = sizes > 0
        if keep.any():
            shown.append(float(np.quantile(sizes[keep], 0.02)))
            look = series(place)
            left.plot(sizes[keep], 100 * share[keep], **look)
            third = int(np.argmin(np.abs(share[keep] - 0.35)))  # where curves are steep and lie apart
            named.append((float(sizes[keep][third]), 100 * float(share[keep][third]), name, look["color"]))
    for x, y, name, color in named:
        crowded = any(x < other[0] < 30 * x for other in named)  # the name would stand on the next curve
        left.annotate(
            name,
            (x, y),
            xytext=(-6, -3) if crowded else (5, 5),  # curves fall: free are the corners below left and above right
            textcoords="offset points",
            ha="right" if crowded else "left",
            va="top" if crowded else "baseline",
            size=9.5,
            color=ink(color),
        )
    left.set_xscale("log")
    left.minorticks_off()
    if shown:
        left.set_xlim(min(shown), None)
    left.set_ylim(0, 102)
    left.set_xlabel("gap between two log-probabilities, nats")
    panel_title(left, "tokens with a larger gap, %")
    for place, (name, ratios) in enumerate(sequences.items()):
        dots = np.asarray(ratios, dtype=float)
        across = place + np.linspace(-0.28, 0.28, len(dots)) if len(dots) > 1 else [place]
        right.plot(across, dots, "o", color=series(place)["color"], markersize=3.5, alpha=0.75, linestyle="none")
        del name
    right.axhline(1, color=COLORS["grey"], linewidth=1, linestyle=_DASH, zorder=1)
    right.set_xticks(range(len(sequences)), list(sequences))
    right.tick_params(axis="x", labelsize=9, labelcolor=COLORS["ink"])
    right.set_xlim(-0.5, len(sequences) - 0.5)
    panel_title(right, "importance ratio of a sequence")
    if row:
        numbers(fig, row)
    return fig


def batch_sizes(
    sizes: Sequence[int],
    differences: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """For each batch size the largest difference of one row's result: {what: (sizes,)}. Equal bits: at the foot."""
    fig, ax = new_figure(title, subtitle, height=230)
    positive = [value for values in differences.values() for value in values if value > 0]
    low = min(positive, default=1e-9)
    floor = low / 150
    labelled = []
    for place, (name, values) in enumerate(differences.items()):
        look = series(place)
        heights = [value if value > 0 else floor * 2.3 ** (1 - place) for value in values]  # side by side, not one
        [line] = ax.plot(range(len(sizes)), heights, marker="o", markersize=5, **{**look, "linewidth": 1.4})
        labelled.append((line, name))
    end_labels(ax, labelled)
    ax.set_yscale("log")
    ax.minorticks_off()
    high = max(positive, default=1e-8) * 4
    decades = [10.0**power for power in range(-12, 3) if low / 5 < 10.0**power < high]
    ax.set_yticks([floor, *decades], ["none:\nequal bits", *(f"{tick:.0e}".replace("e-0", "e-") for tick in decades)])
    ax.set_ylim(floor / 9, high)
    ax.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    ax.set_xlabel("rows in the batch")
    ax.set_ylabel("largest difference")
    if row:
        numbers(fig, row)
    return fig


def policies(
    curves: Mapping[str, Sequence[float]],
    ends: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    left_title: str = "this page's run: reward",
    right_title: str = "ten recorded seeds, at the end",
    ylabel: str = "mean reward",
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: reward over the updates of each way. Right: {way: (seeds,)} at the end, a line a seed over the ways."""
    fig, (left, right) = new_panels(title, subtitle, height=310, cols=2, width_ratios=[0.8, 1.3])
    labelled = []
    for place, (name, values) in enumerate(curves.items()):
        look = series(place)
        updates = np.arange(len(values))
        left.plot(updates, values, color=tint(look["color"], 0.35), linewidth=0.7, zorder=1)
        [line] = left.plot(updates, smoothed(values, max(2, min(20, len(values) // 10))), zorder=2, **look)
        labelled.append((line, name))
    end_labels(left, labelled)
    left.set_xlabel("update")
    left.set_ylabel(ylabel)
    panel_title(left, left_title)
    table = np.asarray(list(ends.values()), dtype=float)  # (ways, seeds)
    for seed in table.T:
        right.plot(range(len(seed)), seed, color=COLORS["grey"], linewidth=0.9, zorder=1)
    for place, seeds in enumerate(table):
        right.plot([place] * len(seeds), seeds, "o", color=series(place)["color"], markersize=5.5, zorder=3)
    right.set_xticks(range(len(table)), [name.replace(" ", "\n") for name in ends])
    right.tick_params(axis="x", labelsize=9 if len(table) < 5 else 7.8, labelcolor=COLORS["ink"])
    right.set_xlim(-0.4, len(table) - 0.6)
    panel_title(right, right_title)
    if row:
        numbers(fig, row)
    return fig


def verdicts(
    errors: Mapping[str, Sequence[float]],
    wrong: Sequence[str],
    limits: Mapping[str, float],
    *,
    title: str,
    subtitle: str | None = None,
    xlabel: str = "largest error, as a share of the largest output",
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Errors of each kernel, a mark a case, on a logarithmic axis: {kernel: (cases,)}; limits are vertical lines.

    Wrong kernels are crosses. An error of 0 stands at the left border, an infinite one at the right.
    """
    fig, ax = new_figure(title, subtitle, height=60 + 21 * len(errors))
    finite = [value for values in errors.values() for value in values if 0 < value < np.inf] + list(limits.values())
    low, high = min(finite) / 6, max(finite) * 30
    for place, (name, values) in enumerate(errors.items()):
        color = COLORS["vermilion"] if name in wrong else COLORS["green"]
        sizes = np.clip(np.nan_to_num(np.asarray(values, dtype=float), nan=np.inf, posinf=high), low, high)
        marker = "X" if name in wrong else "o"
        ax.plot(sizes, [place] * len(sizes), marker, color=color, markersize=5.5, alpha=0.75, linestyle="none")
    for name, limit in limits.items():
        ax.axvline(limit, color=COLORS["ink"], linewidth=1.4, linestyle=_DASH, zorder=1)
        ax.annotate(
            f"allowed: {name}",
            (limit, -0.6),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            va="bottom",
            size=9,
            color=COLORS["ink"],
            annotation_clip=False,
        )
    ax.set_xscale("log")
    ax.minorticks_off()
    ax.set_xlim(low / 2, high * 2)
    ax.set_yticks(range(len(errors)), list(errors))
    ax.tick_params(axis="y", labelsize=9, labelcolor=COLORS["ink"])
    ax.set_ylim(len(errors) - 0.5, -0.6)
    ax.grid(False)
    ax.grid(True, axis="x", color="#E4E4E4", linewidth=0.8)
    ax.set_xlabel(xlabel)
    if row:
        numbers(fig, row)
    return fig
