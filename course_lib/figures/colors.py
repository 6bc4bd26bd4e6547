"""Colours that always mean the same, and text in and on them that can be read."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.colors import to_hex, to_rgb

__all__ = ["COLORS", "contrast", "ink", "series", "text_on", "tint"]

COLORS: dict[str, str] = {
    "forward": "#0072B2",
    "backward": "#E69F00",
    "weight": "#009E73",
    "optimizer": "#CC79A7",
    "communication": "#D55E00",
    "idle": "#ECECEC",
    "blue": "#0072B2",
    "orange": "#E69F00",
    "green": "#009E73",
    "purple": "#CC79A7",
    "vermilion": "#D55E00",
    "sky": "#56B4E9",
    "yellow": "#F0E442",
    "grey": "#9A9A9A",
    "ink": "#1A1A1A",
    "muted": "#5F6368",
    "rule": "#C8C8C8",
    "paper": "#FFFFFF",
}
"""Colour by meaning (forward, backward, weight gradient, optimizer, communication, idle) and by name (Okabe-Ito)."""

_SERIES = [
    ("blue", "-"),
    ("vermilion", (0, (5, 1.5))),
    ("green", (0, (1.2, 1.2))),
    ("purple", (0, (5, 1.5, 1.2, 1.5))),
    ("orange", (0, (8, 2))),
    ("ink", (0, (3, 1, 1, 1, 1, 1))),
]


def series(index: int) -> dict[str, Any]:
    """Keyword arguments of `ax.plot` for the index-th curve: a colour, and dashes that greyscale tells apart."""
    name, dashes = _SERIES[index % len(_SERIES)]
    return {"color": COLORS[name], "linestyle": dashes, "linewidth": 2.0}


def _luminance(color: str) -> float:
    rgb = np.asarray(to_rgb(color))
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return float(linear @ np.array([0.2126, 0.7152, 0.0722]))


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as the Web Content Accessibility Guidelines 2 define it."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)


def text_on(color: str) -> str:
    """The colour for text on a filled shape: near-black or white, whichever is easier to read."""
    return max((COLORS["ink"], COLORS["paper"]), key=lambda text: contrast(text, color))


def ink(color: str, background: str = "#FFFFFF") -> str:
    """The same hue, darkened until text in it reads well on the background (contrast at least 4.5)."""
    rgb = np.asarray(to_rgb(color))
    for share in np.linspace(1.0, 0.0, 41):
        candidate = to_hex(tuple(rgb * share))
        if contrast(candidate, background) >= 4.5:
            return candidate
    return COLORS["ink"]


def tint(color: str, share: float = 0.25) -> str:
    """A pale version for backgrounds: `share` of the colour, the rest white."""
    return to_hex(tuple(1 - share * (1 - np.asarray(to_rgb(color)))))
