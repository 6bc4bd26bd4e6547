"""Pictures of chapter 12: losses by position, who moves whom, which rules leak, bits, training and repair, seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    key,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    text_on,
    tint,
)

__all__ = ["bits", "by_position", "over_training", "seeds", "verdicts", "who_moves_whom"]

MODELS = (
    ("another future", 3),
    ("whole windows", 1),
    ("in the log", 1),
    ("together", 1),
    ("token by token", 2),
    ("alone", 2),
    ("predecessors", 4),
    ("repaired", 5),
    ("honest", 0),
    ("control", 0),
    ("letters choose", 0),
)
"""The chapter's models and ways to ask, by a word of their name: each has one look, in all of its pictures."""


def _look(name: str, place: int) -> dict[str, Any]:
    """Keyword arguments of `ax.plot`; what has no look of its own takes that of its place."""
    if "fresh" in name:
        return {**series(place), "color": COLORS["grey"]}
    return series(next((look for word, look in MODELS if word in name.replace("\n", " ")), place))


def by_position(
    curves: Mapping[str, Sequence[float]],
    floor: float | None = None,
    *,
    title: str,
    subtitle: str | None = None,
    xlabel: str = "position in the window",
    ylabel: str = "nats a token",
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Loss at each position, a line for each way to ask; `floor`: the entropy, below which no honest reader gets."""
    fig, ax = new_figure(title, subtitle, height=280)
    labelled = []
    for place, (name, values) in enumerate(curves.items()):
        at = np.arange(1, len(values) + 1)
        [line] = ax.plot(at, values, marker="o", markersize=5, **_look(name, place))
        labelled.append((line, name))
    if floor is not None:
        [line] = ax.plot([1, len(at)], [floor, floor], color=COLORS["ink"], linewidth=1.2)
        labelled.append((line, f"entropy, {floor:.4f}"))
        low, high = ax.get_ylim()
        ax.axhspan(low, floor, color=tint(COLORS["communication"], 0.10), linewidth=0)
        ax.set_ylim(low, high)
    end_labels(ax, labelled)
    ax.set_xticks(at)
    ax.set_xlabel(xlabel)
    ax.set_ylabel(ylabel)
    if row:
        numbers(fig, row)
    return fig


def who_moves_whom(
    matrices: Mapping[str, Sequence[Sequence[float]]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A square for each pair: down the position whose logits are watched, across the token that was changed.

    Blue where a position moves with its own or an earlier token, vermilion where with a later one. The more it moves,
    the darker; empty: no move.
    """
    fig, axes = new_panels(title, subtitle, height=290, cols=len(matrices))
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        _squares(ax, np.asarray(matrix, dtype=float))
        panel_title(ax, name)
        ax.set_xlabel("token that was changed")
    axes[0].set_ylabel("position that is watched")
    if row:
        numbers(fig, row)
    return fig


def _squares(ax: Axes, matrix: np.ndarray) -> None:
    size = len(matrix)
    top = float(matrix.max()) or 1.0
    for (at, token), moved in np.ndenumerate(matrix):
        if moved > 0:
            color = COLORS["communication" if token > at else "forward"]
            share = 0.25 + 0.75 * min(1.0, moved / top) ** 0.5
            ax.broken_barh([(token + 0.55, 0.9)], (at + 0.55, 0.9), color=tint(color, share), linewidth=0)
    edge = np.arange(size + 1) + 0.5
    ax.step(edge, [*edge[1:], edge[-1]], where="post", color=COLORS["ink"], linewidth=1.2)
    ticks = [place for place in range(1, size + 1) if place == 1 or place % max(1, size // 8) == 0]
    ax.set_xticks(ticks)
    ax.set_yticks(ticks)
    ax.set_xlim(0.5, size + 0.5)
    ax.set_ylim(size + 0.5, 0.5)
    ax.set_aspect("equal")
    ax.grid(False)


def verdicts(
    rows: Sequence[tuple[str, bool, bool]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A line for each rule: whether a token depends on later ones of its sequence, and on other sequences."""
    fig, ax = new_figure(title, subtitle, height=74 + 27 * len(rows))
    for place, (_, later, others) in enumerate(rows):
        for column, moved in enumerate((later, others)):
            color = COLORS["communication"] if moved else COLORS["idle"]
            ax.broken_barh([(column + 0.02, 0.96)], (place + 0.06, 0.88), color=color, linewidth=0)
            word = "moves" if moved else "stays"
            ax.text(column + 0.5, place + 0.5, word, ha="center", va="center", size=9.5, color=text_on(color))
    ax.set_yticks(np.arange(len(rows)) + 0.5, [name for name, _, _ in rows])
    ax.set_xticks([0.5, 1.5], ["when later tokens of its sequence change", "when other sequences change"])
    ax.xaxis.tick_top()
    ax.tick_params(length=0, labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xlim(0, 2)
    ax.set_ylim(len(rows), 0)
    ax.spines["bottom"].set_visible(False)
    ax.grid(False)
    if row:
        numbers(fig, row)
    return fig


def bits(
    bars: Sequence[tuple[str, float, str]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A bar for each amount of bits a token: (name, bits, kind).

    Kinds: "can hold", what choices can carry; "entropy", what there is to know; "found", what a loss shows.
    """
    fig, ax = new_figure(title, subtitle, height=80 + 30 * len(bars))
    colors = {"can hold": tint(COLORS["grey"], 0.6), "entropy": COLORS["blue"], "found": COLORS["communication"]}
    for place, (_, amount, kind) in enumerate(bars):
        ax.barh(place, amount, height=0.62, color=colors[kind])
        ax.annotate(
            f"{amount:.2f}",
            (amount, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            size=10,
            weight="bold",
            color=ink(COLORS["ink"]),
        )
    ax.set_xlim(0, max(amount for _, amount, _ in bars) * 1.12)
    ax.set_yticks(range(len(bars)), [name for name, _, _ in bars])
    ax.tick_params(axis="y", length=0, labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(bars) - 0.4, -0.6)
    ax.set_xlabel("bits a token")
    ax.grid(False)
    present = {kind for _, _, kind in bars}
    key(ax, [(kind, color) for kind, color in colors.items() if kind in present])
    if row:
        numbers(fig, row)
    return fig


def over_training(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    switch: float | None = None,
    *,
    title: str,
    subtitle: str | None = None,
    ylabel: str = "nats a token",
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Held-out loss over the steps: {name: (steps, losses)}; `switch`: the step at which the router was exchanged."""
    fig, ax = new_figure(title, subtitle, height=300)
    labelled = []
    for place, (name, (steps, losses)) in enumerate(curves.items()):
        [line] = ax.plot(steps, losses, marker="o", markersize=4, **_look(name, place))
        labelled.append((line, name))
    end_labels(ax, labelled)
    if switch is not None:
        ax.axvline(switch, color=COLORS["grey"], linewidth=1, linestyle=(0, (4, 3)))
    ax.set_xlabel("training step")
    ax.set_ylabel(ylabel)
    if row:
        numbers(fig, row)
    return fig


def seeds(
    columns: Mapping[str, Sequence[float]],
    live: Mapping[str, float],
    *,
    title: str,
    subtitle: str | None = None,
    ylabel: str = "nats a token",
    zero: bool = False,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """A column of dots for each measure, one a seed, from the record; a ring for the run of this page."""
    fig, ax = new_figure(title, subtitle, height=300)
    for place, (name, values) in enumerate(columns.items()):
        color = _look(name, place)["color"]
        spread = np.linspace(-0.14, 0.14, len(values)) if len(values) > 1 else np.zeros(len(values))
        ax.plot(place + spread, values, "o", color=color, markersize=5, alpha=0.75, zorder=2)
        if name in live:
            ax.plot([place], [live[name]], "o", markersize=12, markerfacecolor="none", zorder=3, color=COLORS["ink"])
    if zero:
        ax.axhline(0, color=COLORS["ink"], linewidth=1)
    ax.set_xticks(range(len(columns)), list(columns))
    ax.tick_params(axis="x", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_xlim(-0.5, len(columns) - 0.5)
    ax.set_ylabel(ylabel)
    if row:
        numbers(fig, row)
    return fig
