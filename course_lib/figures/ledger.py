"""Pictures of bytes: a ledger of one step, measured against predicted, and bytes a parameter by recipe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, key, new_figure, numbers, text_on, tint

__all__ = ["BYTE_COLORS", "memory_ledger", "readable", "recipe_bytes", "state_on_devices"]

BYTE_COLORS = {
    "weights": COLORS["forward"],
    "gradients": COLORS["backward"],
    "master": COLORS["green"],
    "moments": COLORS["optimizer"],
    "optimizer": COLORS["optimizer"],
    "activations": COLORS["sky"],
    "logits": COLORS["yellow"],
    "other": COLORS["rule"],
}
"""Colour of each category of bytes."""


def _stack(ax: Axes, at: float, sizes: Mapping[str, float], height: float, unit: float, words: bool) -> float:
    """Stack one row of bars from left to right; returns its end. Numbers stand inside where there is room."""
    start = 0.0
    for name, size in sizes.items():
        color = BYTE_COLORS.get(name, COLORS["rule"])
        ax.barh(at, size, left=start, height=height, color=color, edgecolor=COLORS["paper"], linewidth=1.0)
        if words and size >= 0.045 * unit:
            ax.annotate(
                readable(size), (start + size / 2, at), ha="center", va="center", size=9.5, color=text_on(color)
            )
        start += size
    return start


def memory_ledger(
    measured: Mapping[str, Mapping[str, int]],
    predicted: Mapping[str, Mapping[str, int]],
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """A row a kind of use: {"AdamW": {category: bytes}}. Measured is the thick bar, predicted the thin one under it."""
    fig, ax = new_figure(title, subtitle, height=60 + 74 * len(measured))
    names = list(next(iter(measured.values())))
    longest = max(sum(sizes.values()) for sizes in measured.values()) / 1e6
    for row, (use, sizes) in enumerate(measured.items()):
        for at, height, book, words in ((row - 0.12, 0.5, sizes, True), (row + 0.26, 0.14, predicted[use], False)):
            end = _stack(ax, at, {k: v / 1e6 for k, v in book.items()}, height, longest, words)
            text = f"{end:.1f} MB measured" if words else f"{end:.1f} MB predicted"
            ax.annotate(
                text,
                (end, at),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                size=9.5 if words else 9,
                color=COLORS["ink"] if words else COLORS["muted"],
            )
    ax.set_yticks(range(len(measured)), list(measured))
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(len(measured) - 0.5, -0.55)
    ax.set_xlim(0, longest * 1.24)
    ax.grid(False)
    ax.set_xlabel("MB (millions of bytes)")
    key(ax, [(name, BYTE_COLORS.get(name, COLORS["rule"])) for name in names])
    return fig


def recipe_bytes(
    recipes: Mapping[str, Mapping[str, float]],
    *,
    title: str,
    subtitle: str | None = None,
    row: Sequence[tuple[str, str]] = (),
) -> Figure:
    """Bytes a parameter, a bar a recipe: {recipe: {"weights": 2, "gradients": 2, "master": 4, "moments": 8}}."""
    fig, ax = new_figure(title, subtitle, height=50 + 42 * len(recipes))
    longest = max(sum(sizes.values()) for sizes in recipes.values())
    for place, sizes in enumerate(recipes.values()):
        end = _stack(ax, place, sizes, 0.62, longest, words=True)
        ax.annotate(f"{end:.3g}", (end, place), xytext=(7, 0), textcoords="offset points", va="center", size=10)
    ax.set_yticks(range(len(recipes)), list(recipes))
    ax.tick_params(axis="y", labelsize=9.5, labelcolor=COLORS["ink"])
    ax.set_ylim(len(recipes) - 0.5, -0.5)
    ax.set_xlim(0, longest * 1.08)
    ax.set_xticks(range(0, int(longest) + 1, 4))
    ax.grid(False)
    ax.set_xlabel("bytes a parameter")
    names = list(dict.fromkeys(name for sizes in recipes.values() for name in sizes))
    key(ax, [(name, BYTE_COLORS[name]) for name in names])
    if row:
        numbers(fig, row)
    return fig


def state_on_devices(
    gigabytes: Mapping[str, float], device: float, *, title: str, subtitle: str | None = None
) -> Figure:
    """One model's state as a stacked bar (category -> GB) over the memory of the devices that it fills, in GB each."""
    fig, ax = new_figure(title, subtitle, height=170)
    total = sum(gigabytes.values())
    count = max(1, -int(-total // device))
    limit = count * device
    _stack(ax, 0, gigabytes, 0.56, limit, words=True)
    ax.barh(1, limit, height=0.4, color=tint(COLORS["grey"], 0.3))
    if 1 < count <= 64:  # more would be a grey block
        ax.vlines([place * device for place in range(1, count)], 0.8, 1.2, color=COLORS["paper"], linewidth=1.5)
    for at, end, text in ((0, total, f"{readable(total)} GB"), (1, limit, f"{count:,} x {device:g} GB")):
        ax.annotate(text, (end, at), xytext=(7, 0), textcoords="offset points", va="center", size=10)
    ax.set_yticks([0, 1], ["state", "devices"])
    ax.tick_params(axis="y", labelsize=10, labelcolor=COLORS["ink"])
    ax.set_ylim(1.5, -0.5)
    ax.set_xlim(0, limit * 1.16)
    ax.grid(False)
    ax.set_xlabel("GB (billions of bytes), before activations")
    key(ax, [(name, BYTE_COLORS[name]) for name, size in gigabytes.items() if size])
    return fig


def readable(number: float) -> str:
    """Three digits and no exponent: 0.2, 14.2, 113, 16,000."""
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
