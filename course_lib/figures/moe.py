"""Pictures of chapter 11: FLOPs and parameters, load over training, balance, drops, who sends what, the waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    text_on,
    tint,
)

__all__ = ["balance", "drops", "exchange", "growth", "load_map", "waiting"]

_HEAT = LinearSegmentedColormap.from_list("load", ["#F4F7FA", COLORS["sky"], COLORS["blue"], "#00273D"])


def growth(
    experts: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Against the number of experts, each curve relative to its first point; both axes in powers of two."""
    fig, ax = new_figure(title, subtitle, height=270)
    labelled = []
    for place, (name, values) in enumerate(curves.items()):
        relative = np.asarray(values, dtype=float) / values[0]
        [line] = ax.plot(experts, relative, marker="o", markersize=5, **series(place))
        labelled.append((line, f"{name}: {relative[-1]:.3g} times"))
    end_labels(ax, labelled)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log", base=2)
    ax.set_xticks(list(experts), [str(count) for count in experts])
    ticks = 2.0 ** np.arange(0, np.ceil(np.log2(ax.get_ylim()[1])) + 1)
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.set_xlabel("experts, of which a token visits two")
    ax.set_ylabel(f"times what it is with {experts[0]} experts")
    if row:
        numbers(fig, row)
    return fig


def load_map(
    shares: Sequence[Sequence[Sequence[float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A map for each layer: x steps, y experts (the busiest of all steps on top), dark where an expert gets much.

    shares: (layers, steps, experts), 1 where an expert gets what all would get if they were equal.
    """
    data = np.asarray(shares, dtype=float)
    layers, steps, experts = data.shape
    fig, axes = new_panels(title, subtitle, height=290, cols=layers, share_y=True)
    top = float(data.max())
    for place, ax in enumerate(axes):
        order = np.argsort(-data[place].sum(0))
        image = ax.imshow(
            data[place][:, order].T, aspect="auto", cmap=_HEAT, vmin=0, vmax=top, extent=(1, steps + 1, experts, 0)
        )
        panel_title(ax, f"block {place}")
        ax.set_xlabel("training step")
        ax.grid(False)
        ax.spines["bottom"].set_visible(False)
        ax.set_yticks([])
    axes[0].set_ylabel("experts, busiest first")
    bar = fig.colorbar(image, ax=axes, fraction=0.035, pad=0.015)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, labelsize=9, labelcolor=COLORS["muted"])
    bar.set_label("load, in equal shares", size=9.5, color=COLORS["muted"])
    if row:
        numbers(fig, row)
    return fig


def balance(
    curves: Mapping[str, Sequence[Sequence[float]]],
    losses: Mapping[str, Sequence[float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: load of the busiest expert over the steps, a thin line a seed. Right: the loss of each seed.

    curves: {way: (seeds, steps)}. losses: {way: (seeds,)}, seeds in the same order, joined by a line over the ways.
    """
    fig, (left, right) = new_panels(title, subtitle, height=300, cols=2, width_ratios=[1.5, 1])
    labelled = []
    for place, (name, lines) in enumerate(curves.items()):
        look = series(place)
        every = np.asarray(lines, dtype=float)
        steps = np.arange(1, every.shape[1] + 1)
        for line in every:
            left.plot(steps, line, color=tint(look["color"], 0.35), linewidth=0.8, zorder=2)
        [mean] = left.plot(steps, every.mean(0), zorder=3, **look)
        labelled.append((mean, name))
    end_labels(left, labelled)
    left.axhline(1, color=COLORS["grey"], linewidth=1, linestyle=(0, (4, 3)))
    left.set_ylim(0, None)
    left.set_xlabel("training step")
    panel_title(left, "load of the busiest expert, in equal shares")
    table = np.asarray(list(losses.values()), dtype=float)  # (ways, seeds)
    for seed in table.T:
        right.plot(range(len(seed)), seed, color=COLORS["rule"], linewidth=1, zorder=1)
    for place, seeds in enumerate(table):
        color = series(place)["color"]
        right.plot([place] * len(seeds), seeds, "o", color=color, markersize=6, zorder=3)
    right.set_xticks(range(len(table)), list(losses))
    right.tick_params(axis="x", labelsize=9.5, labelcolor=COLORS["ink"])
    right.set_xlim(-0.4, len(table) - 0.6)
    panel_title(right, "loss at the end, a line a seed")
    right.set_ylabel("nats a token")
    if row:
        numbers(fig, row)
    return fig


def drops(
    factors: Sequence[float],
    shares: Mapping[str, Sequence[float]],
    by_sequence: Sequence[float],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Left: share of the visits that is dropped, against the capacity factor. Right: by place in the batch."""
    fig, (left, right) = new_panels(title, subtitle, height=280, cols=2, width_ratios=[1.4, 1])
    labelled = []
    for place, (name, values) in enumerate(shares.items()):
        [line] = left.plot(factors, [100 * value for value in values], **series(place))
        labelled.append((line, name))
    end_labels(left, labelled)
    left.set_ylim(0, None)
    left.set_xlabel("capacity factor")
    panel_title(left, "dropped, % of the visits")
    places = np.arange(1, len(by_sequence) + 1)
    right.bar(places, [100 * value for value in by_sequence], width=0.75, color=COLORS["vermilion"])
    right.set_xticks(places)
    right.set_xlabel("sequence of the batch, in order")
    panel_title(right, "dropped by place, %")
    if row:
        numbers(fig, row)
    return fig


def exchange(
    matrices: Mapping[str, Sequence[Sequence[int]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A table for each situation: from which rank (down) to which rank (across) how many rows; sums under it."""
    fig, axes = new_panels(title, subtitle, height=270, cols=len(matrices))
    top = max(max(max(line) for line in table) for table in matrices.values())
    for ax, (name, table) in zip(axes, matrices.items(), strict=True):
        _matrix(ax, np.asarray(table), top)
        panel_title(ax, name)
    if row:
        numbers(fig, row)
    return fig


def _matrix(ax: Axes, table: np.ndarray, top: float) -> None:
    ranks = len(table)
    for (sender, receiver), rows in np.ndenumerate(table):
        color = tint(COLORS["communication"], 0.08 + 0.92 * rows / top)
        if sender == receiver:  # these rows stay
            color = tint(COLORS["grey"], 0.25)
        ax.broken_barh([(receiver + 0.03, 0.94)], (sender + 0.03, 0.94), color=color, linewidth=0)
        ax.text(receiver + 0.5, sender + 0.5, f"{rows}", ha="center", va="center", size=9.5, color=text_on(color))
    for receiver, rows in enumerate(table.sum(0)):
        at = (receiver + 0.5, ranks + 0.4)
        ax.text(*at, f"{rows}", ha="center", va="center", size=10, weight="bold", color=COLORS["ink"])
    middle = np.arange(ranks) + 0.5
    ax.set_xticks(middle, [f"to {rank}" for rank in range(ranks)])
    ax.set_yticks([*middle, ranks + 0.4], [*(f"from {rank}" for rank in range(ranks)), "sum"])
    ax.tick_params(labelsize=9.5, labelcolor=COLORS["ink"])
    ax.xaxis.tick_top()
    ax.tick_params(axis="x", length=0)
    ax.set_xlim(0, ranks)
    ax.set_ylim(ranks + 0.75, 0)
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)


def waiting(
    shares: Sequence[float],
    working: Sequence[Sequence[float]],
    steps: Sequence[float],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar for each rank and situation: the time in its experts, and the rest of the layer's time.

    shares: of the assignments that go to rank 0. working: (situations, ranks) seconds in the experts. steps: seconds of
    the layer's forward, as the slower rank has them.
    """
    fig, ax = new_figure(title, subtitle, height=76 + 56 * len(shares))
    place, ticks = 0.0, []
    for share, times, whole in zip(shares, working, steps, strict=True):
        for rank, seconds in enumerate(times):
            y = place + 0.42 * rank
            ax.barh(y, 1e3 * whole, height=0.36, color=COLORS["idle"])
            ax.barh(y, 1e3 * seconds, height=0.36, color=COLORS["forward"])
            ticks.append((y, f"{share if rank == 0 else 1 - share:.0%} of the rows, rank {rank}"))
        ax.annotate(
            f"{1e3 * whole:.0f} ms",
            (1e3 * whole, place + 0.21),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=10,
            weight="bold",
            color=ink(COLORS["ink"]),
        )
        place += 1.1
    ax.set_yticks([y for y, _ in ticks], [text for _, text in ticks])
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(place - 0.35, -0.4)
    ax.set_xlim(0, 1e3 * max(steps) * 1.12)
    ax.grid(False)
    ax.set_xlabel("ms of the layer's forward: blue computing in its experts; grey sending, sorting, waiting")
    if row:
        numbers(fig, row)
    return fig
