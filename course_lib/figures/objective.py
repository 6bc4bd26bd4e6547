"""Pictures of chapter 1: the tree of continuations, surprise token by token, losses and the floors they stop at."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from course_lib.figures.style import (
    COLORS,
    end_labels,
    ink,
    new_figure,
    new_panels,
    numbers,
    panel_title,
    series,
    style_axes,
    text_on,
    tint,
)

__all__ = [
    "continuation_tree",
    "floor_curves",
    "four_runs",
    "many_means",
    "memorised",
    "shift_curves",
    "surprise",
    "two_units",
]

KINDS = (("grammar", "blue"), ("fact", "green"), ("noise", "vermilion"))
_COME = {"grammar": "Grammar comes", "fact": "Facts come", "noise": "Noise comes"}


def continuation_tree(levels: Sequence[np.ndarray], letters: str, start: str) -> Figure:
    """Rows of boxes: `levels[d]` holds the V^(d+1) probabilities of all continuations of d + 1 tokens, (V,) * (d + 1).

    A box is as wide as its text is probable, so a row is as wide as the probabilities of its texts sum to. The
    likeliest text of the last row is drawn darker. `start`: what every text begins with.
    """
    path = np.unravel_index(int(levels[-1].argmax()), levels[-1].shape)
    likeliest = start + "".join(letters[int(i)] for i in path)
    exact = all(abs(float(level.sum()) - 1) < 1e-9 for level in levels)
    fig, ax = new_figure(
        "Every row is exactly as wide as 1, with weights that mean nothing"
        if exact
        else "The rows are not as wide as 1",
        f"A box is as wide as its text is probable. Dark: the likeliest text, {likeliest}, {levels[-1].max():.1%}.",
        height=62 + 34 * len(levels),
    )
    shades = [COLORS["sky"], COLORS["orange"], COLORS["green"], COLORS["purple"]]
    for depth, level in enumerate(levels):
        flat = level.reshape(-1)
        edges = np.concatenate([[0.0], np.cumsum(flat)])
        chosen = int(np.ravel_multi_index(tuple(path[: depth + 1]), level.shape))
        low, high = -depth - 0.86, -depth
        boxes, colors = [], []
        for i, (left, right) in enumerate(pairwise(edges)):
            boxes.append([(left, low), (right, low), (right, high), (left, high)])
            colors.append(shades[i % len(letters)] if i == chosen else tint(shades[i % len(letters)], 0.38))
        ax.add_collection(PolyCollection(boxes, facecolors=colors, edgecolors="white", linewidths=0.9 / (depth + 1)))
        for i, (left, right) in enumerate(pairwise(edges)):
            if right - left > 0.022:
                weight = "bold" if i == chosen else "normal"
                ax.text((left + right) / 2, (low + high) / 2, letters[i % len(letters)], size=9, weight=weight,
                        ha="center", va="center", color=COLORS["ink"])  # fmt: skip
        sums = f"{len(flat):,} texts, sum {flat.sum():.9f}"
        ax.text(1.015, (low + high) / 2, sums, size=9, va="center", color=COLORS["ink"], clip_on=False)
    ax.set(xlim=(0, 1.30), ylim=(-len(levels), 0.02), yticks=[-d - 0.43 for d in range(len(levels))])
    ax.set_yticklabels([f"{d + 1} token{'s' if d else ''}" for d in range(len(levels))])
    ax.set_xticks([0, 0.25, 0.5, 0.75, 1.0])
    ax.set_xlabel("probability of the whole text", loc="left")
    style_axes(ax, grid="")
    ax.spines["bottom"].set_visible(False)
    return fig


def surprise(texts: Sequence[str], nats: np.ndarray) -> Figure:
    """One bar a token, -log p in nats, the token under it."""
    fig, ax = new_figure(
        f"A sentence costs {nats.sum():.0f} nats, the sum of its tokens' surprises",
        "-log P of each token given the ones before it. Tall: the model did not see it coming.",
        height=270,
    )
    values = np.asarray(nats)
    mean = float(values.mean())
    ax.bar(
        range(len(values)), values, width=0.82, color=[COLORS["sky"] if v <= mean else COLORS["blue"] for v in values]
    )
    ax.plot(
        [-0.6, len(values) - 0.4], [mean, mean], color=COLORS["ink"], linewidth=1.2, linestyle=(0, (4, 2)), zorder=3
    )
    ax.text(len(values) - 0.2, mean, f"mean {mean:.2f}", size=9.5, va="center", color=COLORS["ink"])
    ax.set_xticks(
        range(len(values)), texts, rotation=60, ha="right", rotation_mode="anchor", size=8.5, family="monospace"
    )
    ax.tick_params(axis="x", labelcolor=COLORS["ink"], pad=3)
    for i, v in enumerate(values):
        ax.text(i, v + 0.12, f"{v:.1f}", size=7.5, ha="center", va="bottom", color=COLORS["muted"])
    ax.set(ylabel="-log p, nats", xlim=(-0.6, len(values) + 1.6), ylim=(0, max(values) * 1.12))
    sums = (f"{nats.sum():.1f}", "nats, the sentence"), (f"{mean:.2f}", "nats per token, the mean")
    numbers(fig, [*sums, (f"e^-{nats.sum():.0f}", "probability of the sentence")])
    return fig


def shift_curves(curves: Mapping[str, Sequence[float]]) -> Figure:
    """Training loss by step for each way to make the targets; `curves`: label -> nats per token of every step."""
    lowest = min(curves, key=lambda name: curves[name][-1])
    fig, ax = new_figure(
        f"{lowest.capitalize()}, the loss falls to {curves[lowest][-1]:.2f}: too good to be true",
        "The same model, data and seed; only the targets differ. Training loss of every step.",
        height=260,
    )
    lines = [
        (ax.plot(range(len(values)), values, **series(i))[0], name) for i, (name, values) in enumerate(curves.items())
    ]
    end_labels(ax, [(line, f"{name}: {curves[name][-1]:.2f}") for line, name in lines])
    ax.set(xlabel="optimizer step", ylabel="training loss, nats per token", ylim=(0, None))
    return fig


def many_means(rows: Sequence[tuple[str, str, float]], right: int) -> Figure:
    """Bars, one a row: (name, how it is computed, nats); row `right` is the token mean."""
    values = [value for _, _, value in rows]
    fig, ax = new_figure(
        f"One batch, one model, {len(rows)} losses: {min(values):.1f} to {max(values):.1f} nats",
        "The same weights each time; what differs is which terms are added and what they are divided by.",
        height=44 * len(rows) + 46,
    )
    places = [-float(i) for i in range(len(rows))]
    colors = [COLORS["blue"] if i == right else COLORS["rule"] for i in range(len(rows))]
    ax.barh(places, values, height=0.62, color=colors)
    columns = (1.13 * max(values), 1.27 * max(values))  # right ends of the two columns beside the bars
    for end, head in zip(columns, ("nats", "to blue"), strict=True):
        ax.text(end, 0.58, head, size=8.5, ha="right", va="center", color=COLORS["muted"])
    for place, (_, how, value), color in zip(places, rows, colors, strict=True):
        ax.text(columns[0], place, f"{value:.2f}", size=10.5, weight="bold", ha="right", va="center")
        if value != values[right]:
            change = f"{value / values[right] - 1:+.0%}"
            ax.text(columns[1], place, change, size=9.5, ha="right", va="center", color=COLORS["muted"])
        ax.text(0.06, place, how, size=8.5, va="center", color=text_on(color))
    ends = [0.4, places[-1] - 0.4]
    ax.plot([values[right]] * 2, ends, color=ink(COLORS["blue"]), linewidth=1.0, linestyle=(0, (4, 2)))
    ax.set_yticks(places, [name for name, _, _ in rows])
    ax.tick_params(axis="y", labelcolor=COLORS["ink"])
    ax.set(xlabel="loss, nats", xlim=(0, max(values) * 1.28), ylim=(places[-1] - 0.5, 0.85))
    ax.set_xticks(range(math.floor(max(values)) + 1))  # no grid line in the columns of numbers
    style_axes(ax, grid="x")
    return fig


def two_units(names: Sequence[str], per_token: Sequence[float], per_byte: Sequence[float]) -> Figure:
    """The same two models in nats per token and in bits per byte, side by side."""
    turned = (per_token[0] < per_token[1]) != (per_byte[0] < per_byte[1])
    fig, axes = new_panels(
        "Lower per token, higher per byte: the order turns round" if turned else "Two units, one order",
        "Two models of one shape, as many steps, the same held-out documents.",
        height=190,
        cols=2,
    )
    for ax, values, unit in zip(axes, (per_token, per_byte), ("nats per token", "bits per byte"), strict=True):
        better = int(np.argmin(values))
        places = [-float(i) for i in range(len(names))]
        ax.barh(
            places,
            values,
            height=0.58,
            color=[COLORS["blue"] if i == better else COLORS["rule"] for i in range(len(names))],
        )
        for i, (place, value) in enumerate(zip(places, values, strict=True)):
            text = f"{value:.2f}" + (", looks better" if i == better and unit.startswith("nats") else "")
            text += ", is better" if i == better and unit.startswith("bits") else ""
            ax.text(value + 0.03 * max(values), place, text, size=9.5, va="center", color=COLORS["ink"])
        ax.set_yticks(places, names)
        ax.tick_params(axis="y", labelcolor=COLORS["ink"])
        ax.set(xlim=(0, max(values) * 1.5))
        panel_title(ax, unit)
        style_axes(ax, grid="x")
    perplexities = [
        (f"{math.exp(loss):.1f}", f"perplexity, {name}") for name, loss in zip(names, per_token, strict=True)
    ]
    numbers(fig, [*perplexities, ("8", "bits per byte, knowing nothing")])
    return fig


def floor_curves(
    steps: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    floors: Mapping[str, float],
    reached: Mapping[str, float],
) -> Figure:
    """Loss by step (logarithmic) for each kind of token, and the floor under it, as a pale band.

    `reached`: the first measured step at which a kind is within 0.2 nats of its floor; infinity: it never is.
    """
    last = max(reached, key=lambda kind: reached[kind])
    when = f"last, at step {reached[last]:.0f}" if math.isfinite(reached[last]) else "at no step"
    fig, ax = new_figure(
        f"{_COME[last]} within 0.2 nats of the floor {when}",
        "Loss on fresh sentences, one curve a kind of token. The model is never told that there are kinds.",
        height=300,
    )
    lines = []
    for index, (kind, color) in enumerate(KINDS):
        shade = COLORS[color]
        style = {**series(index), "color": shade}
        name = f"{kind}: {curves[kind][-1]:.2f}, floor {floors[kind]:.2f}"
        lines.append((ax.plot(steps, curves[kind], **style)[0], name))
        ax.axhline(floors[kind], color=shade, linewidth=6, alpha=0.22, zorder=1)
    end_labels(ax, lines)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticks([step for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if steps[0] <= step <= steps[-1]])
    ax.set(xlabel="optimizer steps (logarithmic)", ylabel="nats per token of the kind", ylim=(0, None))
    first = {kind: f"step {step:.0f}" if math.isfinite(step) else "never" for kind, step in reached.items()}
    numbers(fig, [(first[kind], f"{kind} within 0.2 nats of its floor") for kind, _ in KINDS])
    return fig


def memorised(seen: Mapping[str, float], fresh: Mapping[str, float], floors: Mapping[str, float]) -> Figure:
    """For each kind: the loss on the text that was trained on, on fresh text, and the floor between."""
    fig, ax = new_figure(
        f"Noise at {seen['noise']:.2f} nats, floor {floors['noise']:.2f}: it was not predicted but remembered",
        "A model that read a few sentences many times: its loss on them, and on fresh ones.",
        height=220,
    )
    highest = max(fresh.values())
    for place, (kind, _) in enumerate(KINDS):
        y = -place
        ax.plot([seen[kind], fresh[kind]], [y, y], color=COLORS["rule"], linewidth=3, zorder=1)
        ax.plot([floors[kind]] * 2, [y - 0.3, y + 0.3], color=COLORS["ink"], linewidth=2.2, zorder=2)
        for value, color, marker, side, name in (
            (seen[kind], "vermilion", "o", -1, "trained on"),
            (fresh[kind], "blue", "s", 1, "fresh"),
        ):
            ax.plot(value, y, marker, color=COLORS[color], markersize=9, zorder=3)
            text = f"{value:.2f}" if place else (f"{name} {value:.2f}" if side < 0 else f"{value:.2f} {name}")
            ax.annotate(
                text,
                (value, y),
                xytext=(9 * side, 0),
                textcoords="offset points",
                size=9.5,
                ha="left" if side > 0 else "right",
                va="center",
                color=ink(COLORS[color]),
            )
        ax.text(floors[kind], y + 0.44, f"floor {floors[kind]:.2f}", size=9, ha="center", va="center")
    ax.set_yticks([0, -1, -2], [kind for kind, _ in KINDS])
    ax.set_xticks(range(math.ceil(highest) + 1))
    ax.tick_params(axis="y", labelcolor=COLORS["ink"])
    ax.set(xlabel="nats per token of the kind", ylim=(-2.5, 0.7), xlim=(-0.26 * highest, 1.1 * highest))
    style_axes(ax, grid="x")
    return fig


def four_runs(curves: Mapping[str, Mapping[str, Sequence[float]]]) -> Figure:
    """Exercise 01.6: four panels, run letter -> "steps", each kind and "all"; one curve a kind, the total in black."""
    title, subtitle = "Four runs on one language", "Loss by kind of token; black: the mean over all tokens."
    fig, axes = new_panels(title, subtitle, height=470, cols=2, rows=2, share_y=True, share_x=True)
    for ax, (run, curve) in zip(axes, curves.items(), strict=True):
        lines = []
        for index, (kind, color) in enumerate(KINDS):
            style = {**series(index), "color": COLORS[color]}
            lines.append((ax.plot(curve["steps"], curve[kind], **style)[0], kind))
        lines.append((ax.plot(curve["steps"], curve["all"], color=COLORS["ink"], linewidth=2.6)[0], "all"))
        end_labels(ax, lines)
        panel_title(ax, f"Run {run}")
        ax.set_ylim(0, math.ceil(max(curve["all"][0], 4)))
    for ax in axes[2:]:
        ax.set_xlabel("optimizer step")
    for ax in axes[::2]:
        ax.set_ylabel("nats per token")
    return fig
