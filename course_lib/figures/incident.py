"""The dashboards of one training run as small multiples: what somebody on call would look at, and no verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from course_lib.figures.style import COLORS, ink, new_panels, panel_title

__all__ = ["PANELS", "Panel", "dashboards", "drawn", "short"]

COLS = 3
_WIDE = 20.0  # a panel whose values span more than this factor is drawn in powers of ten


@dataclass(frozen=True)
class Panel:
    """One of the dashboards."""

    title: str
    unit: str
    names: tuple[str, ...]
    """Its series, the first one drawn as the main line."""
    factor: float = 1.0
    """What a stored value is multiplied by to be in `unit`."""
    from_zero: bool = False
    """Whether its axis begins at zero: noise of a few percent stays small."""
    absent: str = "not recorded in this run"
    """What stands in it when the run has none of its series."""

    @property
    def heading(self) -> str:
        """Title and unit."""
        return f"{self.title}, {self.unit}" if self.unit else self.title


PANELS: tuple[Panel, ...] = (
    Panel("loss", "nats a token", ("loss", "val_loss")),
    Panel("gradient norm", "", ("grad_norm",)),
    Panel("learning rate", "", ("lr",)),
    Panel("largest activation", "", ("activation",)),
    Panel("update size / weight size", "", ("update_ratio",)),
    Panel("loss scale", "", ("scale",)),
    Panel("step time", "ms", ("step_seconds",), 1e3, from_zero=True),
    Panel("memory", "MiB", ("memory_bytes",), 2.0**-20),
    Panel("checksum of the weights", "", ("checksum_0", "checksum_1")),
)
"""All dashboards, in the order of the picture."""


def short(value: float) -> str:
    """A number in at most about six characters: 65,536; 0.0021; 3e-07; "not finite"."""
    if not math.isfinite(value):
        return "not finite"
    if value == 0:
        return "0"
    if 1e-3 <= abs(value) < 1e6:
        digits = max(0, 2 - math.floor(math.log10(abs(value))))
        text = f"{value:,.{digits}f}"
        return text.rstrip("0").rstrip(".") if "." in text else text
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def drawn(panel: Panel, series: Mapping[str, Sequence[float | None]]) -> dict[str, np.ndarray]:
    """The panel's series that the run has, (steps,) each, in the panel's unit; None becomes NaN."""
    found = {}
    for name in panel.names:
        values = np.array([math.nan if v is None else v for v in series.get(name, ())], dtype=float)
        if len(values) and not (name != "loss" and np.isnan(values).all()):
            found[name] = values * panel.factor
    return found


def dashboards(
    series: Mapping[str, Sequence[float | None]],
    events: Sequence[tuple[int, str]] = (),
    good: Mapping[str, Sequence[float | None]] | None = None,
    *,
    title: str,
    subtitle: str | None = None,
) -> Figure:
    """Nine panels over the step. series: by the names in `PANELS`, one value a step (None or NaN: not measured).

    good: the same of a run that is known to be good, in grey. events: (step, what happened then), a dashed line in
    every panel; name them in the subtitle. A value that is not finite is a cross at the top of its panel. Of the
    checksums it counts only whether the ranks' are equal, and whether they change.
    """
    rows = -(-len(PANELS) // COLS)
    fig, axes = new_panels(title, subtitle, height=152 * rows, cols=COLS, rows=rows)
    steps = max([1, *(len(values) for values in series.values())])
    for place, (panel, ax) in enumerate(zip(PANELS, axes, strict=True)):
        panel_title(ax, panel.heading)
        _panel(ax, panel, drawn(panel, series), drawn(panel, good or {}))
        ax.set_xlim(-0.02 * steps, 1.02 * steps)
        ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
        for step in {step for step, _ in events if step < steps}:
            ax.axvline(step, color=COLORS["grey"], linewidth=1.0, linestyle=(0, (3, 2)), zorder=1)
        if place >= len(PANELS) - COLS and not ax.get_xlabel():
            ax.set_xlabel("step")
    return fig


def _panel(ax: Axes, panel: Panel, values: Mapping[str, np.ndarray], good: Mapping[str, np.ndarray]) -> None:
    if not values:
        ax.text(0.5, 0.5, panel.absent, transform=ax.transAxes, ha="center", va="center", size=9, color=COLORS["muted"])
        ax.set_yticks([])
        ax.grid(False)
        return
    if panel.names[0] == "checksum_0":
        _checksums(ax, list(values.values()))
        return
    main = panel.names[0]
    if main in good:
        ax.plot(np.arange(len(good[main])), good[main], color=COLORS["grey"], linewidth=1.2, alpha=0.8, zorder=1.5)
    for name, line in values.items():
        at = np.arange(len(line))
        seen = np.isfinite(line)
        if name == "val_loss":
            color = COLORS["communication"]
            ax.plot(at[seen], line[seen], "o", color=color, markersize=4, linestyle="none", zorder=4)
            if seen.any():
                _validation(ax, [*values.values(), *good.values()], color)
        else:
            ax.plot(at, line, color=COLORS["forward"], linewidth=1.4)
            if seen.sum() == 1:
                ax.plot(at[seen], line[seen], ".", color=COLORS["forward"])
            _crosses(ax, at[~seen])
    _scale(ax, np.concatenate([*values.values(), good.get(main, np.array([]))]), panel.from_zero)


def _checksums(ax: Axes, ranks: Sequence[np.ndarray]) -> None:
    """A stroke for each rank and step: blue where the checksum is rank 0's, else vermilion; short where it stayed."""
    differ = 0
    for rank, line in enumerate(ranks):
        count = min(len(line), len(ranks[0]))
        same = line[:count] == ranks[0][:count]
        differ += int((~same).sum())
        stayed = np.concatenate([[False], line[1:count] == line[: count - 1]])
        for equal, color in ((True, COLORS["forward"]), (False, COLORS["communication"])):
            for short_one, half in ((False, 0.3), (True, 0.08)):
                at = np.flatnonzero((same == equal) & (stayed == short_one))
                ax.vlines(at, rank - half, rank + half, color=color, linewidth=1.0)
    ax.set_ylim(max(len(ranks), 2) - 0.4, -0.6)
    ax.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
    ax.grid(False)
    if len(ranks) == 1:
        ax.set_xlabel("step; one rank, nothing to compare")
    else:
        ax.set_xlabel("step; ranks equal at all" if not differ else f"ranks differ at {differ} steps")


def _scale(ax: Axes, values: np.ndarray, from_zero: bool) -> None:
    """Powers of ten where the values span many, else from just under the lowest; a few ticks in short numbers."""
    seen = values[np.isfinite(values)]
    if len(seen) and not from_zero and seen.min() > 0 and seen.max() / seen.min() > _WIDE:
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(numticks=4))
        ax.yaxis.set_minor_locator(NullLocator())
    else:
        ax.yaxis.set_major_locator(MaxNLocator(3))
        if len(seen) and seen.max() - seen.min() <= 1e-9 * abs(seen.max()):
            spread = abs(float(seen.max())) or 1.0
            ax.set_ylim(float(seen.min()) - 0.5 * spread, float(seen.max()) + 0.5 * spread)
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
    ax.margins(y=0.12)
    if from_zero:
        ax.set_ylim(0, 1.12 * float(seen.max()) if len(seen) else 1)


def _crosses(ax: Axes, steps: np.ndarray) -> None:
    """Steps whose value is not a number, at the top of the panel."""
    if not len(steps):
        return
    color = COLORS["communication"]
    ax.plot(
        steps,
        np.full(len(steps), 1.02),
        "x",
        color=color,
        markersize=5,
        linestyle="none",
        transform=ax.get_xaxis_transform(),
        clip_on=False,
        zorder=5,
    )
    count = "1 step" if len(steps) == 1 else f"{len(steps)} steps"
    ax.text(0.99, 0.8, f"not finite: {count}", transform=ax.transAxes, ha="right", va="top", size=8.5, color=ink(color))


def _validation(ax: Axes, lines: Sequence[np.ndarray], color: str) -> None:
    """The name of the dots, at the right: over lines that end low, under lines that end high."""
    numbers = np.concatenate([line[np.isfinite(line)] for line in lines])
    ends = [line[np.isfinite(line)][-1] for line in lines if np.isfinite(line).any()]
    high = max(ends) > 0.5 * (numbers.min() + numbers.max())
    place, side = (0.03, "bottom") if high else (0.99, "top")
    ax.text(0.99, place, "dots: validation", transform=ax.transAxes, ha="right", va=side, size=8.5, color=ink(color))
