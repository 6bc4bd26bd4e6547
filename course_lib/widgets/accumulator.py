"""The explorer of a running sum: in which format, and by which way of adding, it stops."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from course_lib.figures.rounding import number, running_sums_figure
from course_lib.figures.rounding_svg import sums_svg
from course_lib.precision import running_sums
from course_lib.widgets.controls import ChoiceControl, IntControl, TextControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer
from course_lib.widgets.rounding import no_number, parse_number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["accumulator_explorer"]

_MOST = 5000


@lru_cache(maxsize=64)
def _sums(addend: float, start: float, fmt: str, method: Any) -> npt.NDArray[np.float64]:
    """For all counts at once: the sums after fewer additions are the beginning of those after more."""
    return running_sums(addend, _MOST, fmt, method, start=start, seed=4)


def _stop(sums: npt.NDArray[np.float64]) -> int | None:
    """After how many additions a plain sum moves no more; None when its last addition still moved it."""
    if len(sums) < 2 or sums[-1] != sums[-2] or not math.isfinite(sums[-1]):
        return None
    return int(np.argmax(sums == sums[-1]))


def _draw_sums(start: str, addend: str, count: int, wide: str) -> View:
    first, step = parse_number(start), parse_number(addend)
    if first is None or step is None or not (math.isfinite(first) and math.isfinite(step)):
        wrong = start if first is None or not math.isfinite(first) else addend
        return no_number(f"“{wrong}” is no finite number. Write 1, 0.01 or 2**-11.")
    curves, exact, stops = _all_sums(first, step, count, wide)
    title, off = _verdict(curves, stops, exact)
    subtitle = f"{number(step)} added {count:,} times to {number(first)}, one by one."
    row = [(number(float(sums[-1])), made) for made, sums in {"exact": exact, **curves}.items()]
    page = sums_svg(curves, exact, stops, title=title, subtitle=subtitle)
    data = {"stops": {made: float(curves[made][-1]) for made in stops}, "off": off, "moved": abs(step * count)}
    return View(page, alt=f"{title}. {subtitle}", numbers=row, data=data)


def _still_sums(start: str, addend: str, count: int, wide: str) -> Figure:
    first, step = parse_number(start) or 0.0, parse_number(addend) or 0.0
    curves, exact, stops = _all_sums(first, step, count, wide)
    subtitle = f"{number(step)} added {count:,} times to {number(first)}, one by one."
    return running_sums_figure(curves, exact, stops, title=_verdict(curves, stops, exact)[0], subtitle=subtitle)


def _all_sums(
    first: float, step: float, count: int, wide: str
) -> tuple[dict[str, npt.NDArray[np.float64]], npt.NDArray[np.float64], dict[str, int]]:
    """The curves by name, the exact sums, and where the plain ones stop."""
    plain = ("FP16", "BF16", "FP32")
    curves = {made: _sums(step, first, made.lower(), "plain")[: count + 1] for made in plain}
    for method in ("Kahan", "stochastic"):
        curves[f"{method}, {wide}"] = _sums(step, first, wide.lower(), method.lower())[: count + 1]
    with np.errstate(over="ignore"):
        exact = np.asarray(first + step * np.arange(count + 1), dtype=np.float64)
    ends = {made: _stop(curves[made]) for made in plain} if step else {}
    return curves, exact, {made: end for made, end in ends.items() if end is not None}


def _verdict(
    curves: Mapping[str, npt.NDArray[np.float64]], stops: Mapping[str, int], exact: npt.NDArray[np.float64]
) -> tuple[str, dict[str, float]]:
    """The title, and by how much each sum is off."""
    off = {made: abs(float(sums[-1]) - float(exact[-1])) for made, sums in curves.items()}
    infinite = [made for made in ("FP16", "BF16", "FP32") if not math.isfinite(curves[made][-1])]
    where = [
        f"{made} {'never moves' if end == 0 else f'stops at {number(float(curves[made][end]))}'}"
        for made, end in stops.items()
    ]
    where += [f"{made} overflows" for made in infinite]
    if where:
        return ", ".join(where), off
    worst = max(off, key=lambda made: off[made])
    if off[worst] == 0:
        return "Every sum is exact", off
    share = off[worst] / abs(float(exact[-1] - exact[0]) or 1.0)
    return f"No sum stops; {worst} is off by the most, {share:.2g} of what was added", off


def _overflows(values: Mapping[str, Any], view: View) -> bool:
    start, addend = parse_number(values["start"]), parse_number(values["addend"])
    return bool(start == 0 and addend == 17 and not math.isfinite(view.data["off"]["FP16"]))


def accumulator_explorer() -> Explorer:
    """Display the explorer of a running sum: three formats, Kahan's way, stochastic rounding, and where each stops."""
    return explorer(
        _draw_sums,
        [
            TextControl(name="start", label="start from", default="0", placeholder="0, 1, 1024"),
            TextControl(name="addend", label="addend", default="1", placeholder="1, 0.01, 2**-11"),
            IntControl(name="count", label="additions", min=1, max=_MOST, default=3000),
            ChoiceControl(name="wide", label="Kahan and stochastic in", options=["FP16", "BF16"], default="FP16"),
        ],
        presets=[
            Preset("2048 + 1", {"start": "0", "addend": "1", "count": 3000}),
            Preset("1024 + 1", {"start": "1024", "addend": "1", "count": 100}),
            Preset("1000 x 0.01", {"addend": "0.01", "count": 1000}),
            Preset("A BF16 weight that never moves", {"start": "1", "addend": "-0.001", "count": 1000, "wide": "BF16"}),
        ],
        goals=[
            Goal(
                "An addend with which FP16, from 0, stops at exactly 1,024",
                lambda v, w: parse_number(v["start"]) == 0 and w.data["stops"].get("FP16") == 1024,
            ),
            Goal(
                "A start and an addend with which even FP32 never moves",
                lambda v, w: w.data["stops"].get("FP32") is not None,
            ),
            Goal("The smallest whole addend with which FP16, from 0, overflows instead of stopping", _overflows),
        ],
        still=_still_sums,
        title="Where does a running sum stop?",
        caption="Each sum is rounded before the next addition. Grey: the exact sum. A dot: it stands still from there.",
    )
