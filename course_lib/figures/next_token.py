"""The distribution of the next token, as bars."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure

from course_lib.figures.style import COLORS, new_figure

__all__ = ["next_token_bars"]


def next_token_bars(
    tokens: Sequence[str], shares: Sequence[float], *, title: str, subtitle: str | None = None
) -> Figure:
    """Bars for the likeliest tokens: their printable texts and probabilities (0 to 1), the likeliest first."""
    fig, ax = new_figure(title, subtitle, height=20 * len(tokens) + 24)
    rows = range(len(tokens))
    ax.barh(rows, shares, height=0.72, color=COLORS["forward"])
    widest = max([*shares, 0.05])
    for row, share in zip(rows, shares, strict=True):
        ax.text(share + widest * 0.012, row, f"{share:.1%}", va="center", size=9, color=COLORS["ink"])
    ax.set_yticks(rows, labels=[text.replace("$", r"\$") for text in tokens], family="DejaVu Sans Mono")
    ax.tick_params(axis="y", labelcolor=COLORS["ink"])
    ax.set_ylim(len(tokens) - 0.4, -0.6)
    ax.set_xlim(0, widest * 1.12)
    ax.set_xticks([])
    ax.grid(False)
    ax.spines["bottom"].set_visible(False)
    return fig
