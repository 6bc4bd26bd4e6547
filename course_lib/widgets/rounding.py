"""The explorer of one value: where it lands in a number format, and what its bits are."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from course_lib.figures.rounding import Place, number, value_in_format
from course_lib.figures.rounding_svg import value_svg
from course_lib.precision import FORMATS, Format
from course_lib.widgets.controls import ChoiceControl, IntControl, TextControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["no_number", "parse_number", "value_explorer"]

_LABELS = {made.label: made for made in sorted(FORMATS.values(), key=lambda made: made.name != "fp16")}
_SHOW = 3  # values of the format to each side
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
_PATTERN = re.compile(rf"({_NUMBER})(?:(\*\*|\^|/|\*|\+|-)({_NUMBER}))?", re.IGNORECASE)


def parse_number(text: str) -> float | None:
    """A number as one types it: 0.1, 1e-8, 65,504, 2**-24, 2^-24, 1/3, 2048+1, inf, nan. None for anything else."""
    plain = re.sub(r"[\s,_]", "", text).replace("−", "-").lower()
    if plain.lstrip("+-") in ("inf", "infinity", "nan"):
        return float(plain)
    match = _PATTERN.fullmatch(plain)
    if match is None:
        return None
    left, sign, right = match.groups()
    a = float(left)
    if sign is None:
        return a
    b = float(right)
    try:
        value = {
            "**": lambda: a**b,
            "^": lambda: a**b,
            "/": lambda: a / b,
            "*": lambda: a * b,
            "+": lambda: a + b,
            "-": lambda: a - b,
        }[sign]()
    except OverflowError:
        return math.inf
    except ZeroDivisionError:
        return None
    return value if isinstance(value, float) else None


# ------------------------------------------------------------------------------------------------------------ a value


def _asked(fmt: Format, text: str, quarters: int) -> float | None:
    """The typed number, moved by quarters of the spacing where it lies."""
    typed = parse_number(text)
    if typed is None or not math.isfinite(typed):
        return typed
    return typed + quarters * fmt.ulp(min(max(typed, -fmt.max), fmt.max)) / 4


def _place(fmt: Format, x: float) -> Place | None:
    """The number line around x: three values of the format to each side, the largest and what lies past it."""
    if not math.isfinite(x):
        return None
    stored = fmt.round(x)
    start = stored if math.isfinite(stored) else math.copysign(fmt.max, x)
    values = [start]
    for _ in range(_SHOW):
        values.append(fmt.up(values[-1]))
        values.insert(0, fmt.down(values[0]))
    gap = fmt.ulp(start)
    past = "∞" if fmt.infinities else "NaN"
    ticks = [(v, number(v, gap)) for v in values if math.isfinite(v)]
    if values[-1] == math.inf:
        ticks.append((fmt.max + gap, past))
    if values[0] == -math.inf:
        ticks.insert(0, (-fmt.max - gap, "−" + past if fmt.infinities else past))
    below, above = fmt.neighbours(x)
    inside = math.isfinite(below) and math.isfinite(above) and stored != x
    at = stored if math.isfinite(stored) else ticks[-1][0] if x > 0 else ticks[0][0]
    return Place(x, at, ticks, (below + above) / 2 if inside else None)


def _words(fmt: Format, bits: tuple[str, str, str], stored: float) -> tuple[str, str, str]:
    sign, exponent, mantissa = "−" if bits[0] == "1" else "+", int(bits[1], 2), int(bits[2], 2)
    if not math.isfinite(stored):
        return (
            sign,
            "all ones",
            "0: infinity" if math.isinf(stored) else "not 0: NaN" if fmt.infinities else "all ones: NaN",
        )
    of = f"{mantissa:,} of {2**fmt.mantissa_bits:,}"
    if exponent == 0:
        return sign, f"0: no leading 1, times 2^{1 - fmt.bias}".replace("-", "−"), of
    return sign, f"{exponent} − {fmt.bias} = {exponent - fmt.bias}".replace("-", "−"), of


def _finding(fmt: Format, x: float, stored: float) -> tuple[str, str]:
    """Title and subtitle: what becomes of x, and why."""
    below, above = fmt.neighbours(x)
    gap = above - below
    asked, name = number(x, min(gap, fmt.ulp(stored)) / 4 if math.isfinite(stored) and x else 0.0), fmt.label
    if not math.isfinite(x):
        if math.isinf(x) and not fmt.infinities:
            return f"{name} has no infinity: it becomes NaN", "Its highest exponent holds ordinary values too."
        return f"{name} has bits for {number(x)}", "It is a bit pattern of its own; arithmetic goes on with it."
    if not math.isfinite(stored):
        kind = "infinity" if fmt.infinities else "NaN"
        edge = number(fmt.max + fmt.ulp(fmt.max) / 2)
        last = f"from {edge} on" if fmt.infinities else f"above {edge}"
        why = f"Its largest value is {number(fmt.max)}; half a spacing further, {last}, nothing rounds back to it."
        return f"In {name}, {asked} overflows: it becomes {kind}", why
    if stored == x:
        return f"{name} holds {asked} exactly", f"The next value away from zero is {number(fmt.ulp(x))} further."
    if stored == 0:
        half = number(fmt.smallest_subnormal / 2)
        return f"In {name}, {asked} becomes 0", f"Up to {half}, half of the smallest value, everything does."
    tie = x - below == above - x
    why = "It lies halfway: the tie goes to the even mantissa (last bit 0)." if tie else "The nearer neighbour wins."
    return f"In {name}, {asked} becomes {number(stored, gap)}: the neighbours here are {gap:.3g} apart".replace(
        "e-0", "e−"
    ), why


def no_number(words: str) -> View:
    """What an explorer shows for a text that is no number."""
    page = value_svg(("", "", ""), ("", "", ""), None, title="No number yet", subtitle="")
    return View(page, alt=words, message=words, data={"x": math.nan, "stored": math.nan, "stops": {}})


def _draw_value(format: str, value: str, move: int) -> View:
    fmt = _LABELS[format]
    x = _asked(fmt, value, move)
    if x is None:
        return no_number(f"“{value}” is no number. Write 0.1, 1e-8, 2**-24, 1/3 or inf.")
    stored = fmt.round(x)
    bits = fmt.bits(x)
    title, subtitle = _finding(fmt, x, stored)
    below, above = fmt.neighbours(x)
    spacing = fmt.ulp(x) if stored == x else above - below
    away = x - stored
    row = [
        (number(stored, fmt.ulp(stored)), "stored value"),
        (number(spacing) if math.isfinite(spacing) else "none", "spacing here"),
        (number(away) if math.isfinite(away) else "everything", "rounded away"),
        (f"{abs(away / x):.2g}" if x and math.isfinite(away) else "none", "of the value, relative"),
    ]
    page = value_svg(bits, _words(fmt, bits, stored), _place(fmt, x), title=title, subtitle=subtitle)
    return View(page, alt=f"{title}. Bits {' '.join(bits)}.", numbers=row, data={"x": x, "stored": stored})


def _still_value(format: str, value: str, move: int) -> Figure:
    fmt = _LABELS[format]
    x = _asked(fmt, value, move) or 0.0
    title, subtitle = _finding(fmt, x, fmt.round(x))
    words = _words(fmt, fmt.bits(x), fmt.round(x))
    return value_in_format(fmt.bits(x), words, _place(fmt, x), title=title, subtitle=subtitle)


def _is_finite(values: Mapping[str, Any]) -> bool:
    typed = parse_number(values["value"])
    return typed is not None and math.isfinite(typed)


def _integer_lost(values: Mapping[str, Any], view: View) -> bool:
    x = view.data["x"]
    lost = math.isfinite(view.data["stored"]) and view.data["stored"] != x
    return bool(values["format"] == "FP16" and math.isfinite(x) and float(x).is_integer() and lost)


def _bf16_is_finer(values: Mapping[str, Any], view: View) -> bool:
    x = view.data["x"]
    fp16, bf16 = FORMATS["fp16"].ulp(x), FORMATS["bf16"].ulp(x)
    return bool(FORMATS["fp16"].round(x) and bf16 < fp16)


def value_explorer() -> Explorer:
    """Display the explorer of one value: its bits in three colours, its two neighbours, and what is rounded away."""
    return explorer(
        _draw_value,
        [
            ChoiceControl(name="format", label="format", options=list(_LABELS), default="FP16"),
            TextControl(name="value", label="value", default="0.1", placeholder="0.1, 1e-8, 2**-24, inf"),
            IntControl(
                name="move",
                label="move",
                unit="quarters of the spacing",
                min=-12,
                max=12,
                default=0,
                enabled=_is_finite,
            ),
        ],
        presets=[
            Preset("2048 + 1", {"value": "2048 + 1"}),
            Preset("1024 + 1", {"value": "1024 + 1"}),
            Preset("Adam's epsilon in FP16", {"value": "1e-8"}),
            Preset("FP16's largest", {"value": "65,504"}),
            Preset("Adam's epsilon in BF16", {"value": "1e-8", "format": "BF16"}),
            Preset("FP8's largest", {"value": "448", "format": "FP8 E4M3"}),
        ],
        goals=[
            Goal(
                "The smallest whole number that FP16 cannot hold",
                lambda v, w: _integer_lost(v, w) and w.data["x"] == 2049,
            ),
            Goal(
                "A number above 65,504 that FP16 does not turn into infinity",
                lambda v, w: v["format"] == "FP16" and w.data["x"] > 65504 and math.isfinite(w.data["stored"]),
            ),
            Goal("A number that FP16 does not round to 0, and at which BF16 is finer", _bf16_is_finer),
        ],
        still=_still_value,
        title="Where does a number land?",
        caption="Bits: sign, exponent, mantissa. Black ticks are the format's values, the grey one is halfway.",
    )
