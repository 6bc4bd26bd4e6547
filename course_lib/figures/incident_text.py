"""The dashboards of a run in characters: a row of blocks a series for the terminal, and words for a screen reader."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from course_lib.figures.incident import PANELS, drawn, short

__all__ = ["BLOCKS", "PLAIN", "dashboards_text", "dashboards_words", "sparkline"]

BLOCKS = "▁▂▃▄▅▆▇█"
PLAIN = "_.-:=+*#"
"""The same for a terminal that has ASCII alone."""
_WIDTH = 36
_NAMES = {"val_loss": "validation loss"}


def sparkline(values: Sequence[float], width: int = _WIDTH, marks: str = BLOCKS) -> str:
    """A row of marks, from the lowest to the highest value; an x where a value is not finite.

    Of several values that share a mark, the one furthest from the median of all is shown, so that no spike is lost.
    """
    line = np.asarray(values, dtype=float)
    seen = line[np.isfinite(line)]
    if not len(line):
        return ""
    low, high, middle = (float(f(seen)) if len(seen) else 0.0 for f in (np.min, np.max, np.median))
    out = ""
    for part in np.array_split(line, min(width, len(line))):
        if np.isfinite(part).all():
            value = float(part[np.argmax(np.abs(part - middle))])
            out += marks[round((value - low) / (high - low) * (len(marks) - 1)) if high > low else 0]
        else:
            out += "x"
    return out


def _rows(series: Mapping[str, Sequence[float | None]]) -> Iterator[tuple[str, str, np.ndarray]]:
    """(title, name, values in the panel's unit) of every series; without values where the run has none."""
    for panel in PANELS:
        found = drawn(panel, series)
        if not found:
            yield panel.heading, panel.absent, np.array([])
        if panel.names[0] == "checksum_0":
            continue
        for name, values in found.items():
            sparse = name == "val_loss"
            yield _NAMES.get(name, panel.heading), name, values[np.isfinite(values)] if sparse else values


def _checksums(series: Mapping[str, Sequence[float | None]]) -> str:
    """What the checksums of the weights say, a sentence."""
    ranks = list(drawn(PANELS[-1], series).values())
    if not ranks:
        return "not recorded in this run"
    count = min(len(line) for line in ranks)
    stayed = int((ranks[0][1:] == ranks[0][:-1]).sum())
    changes = f"changes at every step but {stayed}" if stayed else "changes at every step"
    if len(ranks) == 1:
        return f"one rank; {changes}"
    differ = int(np.any([line[:count] != ranks[0][:count] for line in ranks[1:]], axis=0).sum())
    return (
        f"{len(ranks)} ranks, "
        + (f"not equal at {differ} of {count} steps" if differ else "equal at all steps")
        + f"; {changes}"
    )


def _number(value: float) -> str:
    return short(float(value)) if math.isfinite(value) else "nan"


def _broken(values: np.ndarray) -> str:
    """Which values are not finite, or nothing."""
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return ""
    return (
        f"not finite at step {bad[0]}" if len(bad) == 1 else f"not finite at {len(bad)} steps, first at step {bad[0]}"
    )


def dashboards_text(
    series: Mapping[str, Sequence[float | None]],
    events: Sequence[tuple[int, str]] = (),
    good: Mapping[str, Sequence[float | None]] | None = None,
    marks: str = BLOCKS,
) -> str:
    """A line a series: its blocks from the first step to the last, its first, last, lowest and highest value.

    good: a run that is known to be good; its last value stands at the end of each line.
    """
    head = "".join(f"{word:>10}" for word in ("first", "last", "lowest", "highest"))
    head += f"{'good: last':>12}" if good else ""
    others = {(title, name): values for title, name, values in _rows(good or {})}
    lines = [f"{'':<25} {'from the first step to the last':<{_WIDTH}}{head}"]
    for title, name, values in _rows(series):
        if not len(values):
            lines.append(f"{title:<25} {name}")
            continue
        seen = values[np.isfinite(values)]
        ends = (values[0], values[-1], *((seen.min(), seen.max()) if len(seen) else (math.nan, math.nan)))
        numbers = "".join(f"{_number(value):>10}" for value in ends)
        other = others.get((title, name), np.array([]))
        numbers += f"{_number(other[-1]):>12}" if len(other) else ""
        lines.append(f"{title:<25} {sparkline(values.tolist(), marks=marks):<{_WIDTH}}{numbers}")
        if _broken(values):
            lines.append(f"{'':<25} {_broken(values)}")
    lines.append(f"{PANELS[-1].heading:<25} {_checksums(series)}")
    return "\n".join([*lines, *(f"at step {step}: {text}" for step, text in events)])


def dashboards_words(
    series: Mapping[str, Sequence[float | None]],
    events: Sequence[tuple[int, str]] = (),
    good: Mapping[str, Sequence[float | None]] | None = None,
) -> str:
    """The dashboards in sentences, for those who cannot see the picture."""
    out = []
    others = {(title, name): values for title, name, values in _rows(good or {})}
    for title, name, values in _rows(series):
        seen = values[np.isfinite(values)]
        if len(seen):
            said = f"from {short(float(seen[0]))} to {short(float(seen[-1]))}"
            said += f", between {short(float(seen.min()))} and {short(float(seen.max()))}"
            other = others.get((title, name), np.array([]))
            said += f" (a good run ends at {short(float(other[-1]))})" if len(other) else ""
        else:
            said = "never finite" if len(values) else name
        out.append(f"{title}: {said}" + (f"; {_broken(values)}" if len(seen) and _broken(values) else ""))
    out.append(f"{PANELS[-1].heading}: {_checksums(series)}")
    return ". ".join([*out, *(f"At step {step}: {text}" for step, text in events)]) + "."
