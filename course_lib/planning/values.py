"""One value of a plan: is it of the right kind, and can it be meant? Every "no" says what to write instead.

    check_values("model", spec)      # of a dataclass in `course_lib.planning.spec`: ConfigError, or nothing
    number_in("80 GiB")              # 80.0: the number of a text that should have been one
    shown("80GiB")                   # '"80GiB"': a value as a TOML file has it, shortened

An upper end is no law: it is where a number is more likely to be in another unit, and the message says which.
"""

import json
import math
import re
import types
from dataclasses import dataclass, fields
from typing import Any, Literal, Union, get_args, get_origin

from course_lib.errors import ConfigError
from course_lib.planning._words import near

__all__ = ["RANGES", "Kind", "Range", "check_value", "check_values", "clipped", "kinds", "number_in", "plain", "shown"]


@dataclass(frozen=True)
class Range:
    """What a number can be."""

    low: float
    high: float
    unit: str
    """What one is: "blocks", "GiB"."""
    example: str
    """A value as TOML, for "try"."""
    mistaken: tuple[tuple[float, str], ...] = ()
    """Other units that a number above `high` may be in: how many of them are one `unit`, and their name."""
    above: bool = False
    """`low` itself is too small."""


_BYTES = ((2.0**10, "MiB"), (2.0**20, "KiB"), (2.0**30, "bytes"))
_FLOPS = ((1e3, "GFLOP/s"), (1e12, "FLOP/s"))
_BANDWIDTH = ((1e3, "MB/s"), (1e9, "bytes/s"), (8e9, "bit/s"))
_PERCENT = ((100.0, "percent"),)


def _share(example: str) -> Range:
    return Range(0, 1, "a share between 0 and 1", example, _PERCENT, above=True)


RANGES: dict[str, dict[str, Range]] = {
    "model": {
        "layers": Range(1, 10_000, "blocks", "32"),
        "width": Range(1, 1_000_000, "elements", "4096"),
        "heads": Range(1, 10_000, "heads", "32"),
        "vocab": Range(1, 100_000_000, "tokens", "128_256"),
        "kv_heads": Range(1, 10_000, "heads", "8"),
        "head_dim": Range(1, 100_000, "elements", "128"),
        "ffn": Range(1, 10_000_000, "elements", "14_336"),
        "positions": Range(0, 1_000_000_000, "rows", "0"),
        "experts": Range(0, 100_000, "experts a layer", "8"),
        "active_experts": Range(0, 100_000, "experts a token", "2"),
        "shared_experts": Range(0, 100_000, "experts", "1"),
        "expert_ffn": Range(1, 10_000_000, "elements", "2048"),
        "dense_layers": Range(0, 10_000, "layers", "1"),
        "attention_parameters": Range(1, 10**12, "parameters a layer", "187_107_328"),
    },
    "data": {
        "tokens": Range(1, 1e18, "tokens", "300e9"),
        "sequence": Range(1, 1_000_000_000, "tokens", "4096"),
        "global_batch": Range(1, 1_000_000_000, "sequences", "1024"),
    },
    "hardware": {
        "devices": Range(1, 100_000_000, "devices", "64"),
        "devices_per_node": Range(1, 1_000_000, "devices", "8"),
        "memory_gib": Range(0, 8192, "GiB of 2**30 bytes", "80", _BYTES, above=True),
        "memory_tb_per_s": Range(0, 200, "TB/s", "3.35", ((1e3, "GB/s"), (1e12, "bytes/s")), True),
        "peak_tflops": Range(0, 50_000, "TFLOP/s", "989", _FLOPS, above=True),
        "reached": _share("0.8"),
        "inside_gb_per_s": Range(0, 20_000, "GB/s", "450", _BANDWIDTH, above=True),
        "across_gb_per_s": Range(0, 20_000, "GB/s", "50", _BANDWIDTH, above=True),
        "failures_per_device_year": Range(0, 10_000, "interruptions a device and year", "0.17"),
        "storage_gb_per_s": Range(0, 1_000_000, "GB/s", "100", ((1e9, "bytes/s"),), above=True),
        "price_per_device_hour": Range(0, 10_000, "of your currency", "2.5"),
    },
    "layout": {
        name: Range(1, high, what, "1")
        for name, high, what in (
            ("data", 100_000_000, "ranks"),
            ("replicas", 100_000_000, "groups"),
            ("tensor", 1_000_000, "ranks"),
            ("pipeline", 10_000, "ranks"),
            ("chunks", 10_000, "chunks a rank"),
            ("context", 1_000_000, "ranks"),
            ("expert", 1_000_000, "ranks"),
            ("micro_batch", 1_000_000_000, "sequences"),
        )
    },
    "assume": {
        "mfu": _share("0.4"),
        "efficiency": _share("0.8"),
        "hidden": Range(0, 1, "a share between 0 and 1", "1.0", _PERCENT),
        "hidden_tensor": Range(0, 1, "a share between 0 and 1", "0.0", _PERCENT),
        "restart_minutes": Range(0, 100_000, "minutes", "10", ((60.0, "seconds"), (6e4, "ms"))),
        "checkpoint_every_minutes": Range(0, 1_000_000, "minutes", "60", above=True),
    },
}
"""By section and key. Bounds on sizes keep sums inside 64-bit integers, also in arrays."""


@dataclass(frozen=True)
class Kind:
    """What a field takes."""

    type: type
    """int, float, bool or str."""
    optional: bool
    """None is allowed, in TOML by leaving the key out."""
    choices: tuple[str, ...] = ()
    """The words that are allowed; empty: any."""


def kinds(cls: type) -> dict[str, Kind]:
    """Every field of a dataclass that holds a single value, and what it takes."""
    found: dict[str, Kind] = {}
    for field in fields(cls):
        parts = get_args(field.type) if get_origin(field.type) in (types.UnionType, Union) else (field.type,)
        inner = next(part for part in parts if part is not type(None))
        if get_origin(inner) is Literal:
            found[field.name] = Kind(str, type(None) in parts, get_args(inner))
        elif inner in (int, float, bool, str):
            found[field.name] = Kind(inner, type(None) in parts)
    return found


def shown(value: Any) -> str:
    """A value as a TOML file has it, on one line and at most 40 characters."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) >= 10**18:
        return f"a number of about {math.ceil(math.log10(abs(value)))} digits"
    if isinstance(value, float):
        return f"{value:.6g}"
    return clipped(json.dumps(value, ensure_ascii=False) if isinstance(value, str) else " ".join(str(value).split()))


def clipped(text: str, length: int = 40) -> str:
    """A text on one line, with question marks for what cannot be printed, and no longer than that."""
    text = "".join(letter if letter.isprintable() else "?" for letter in text)
    return text if len(text) <= length else text[: length - 4] + " ..."


_NUMBER = re.compile(r"([-+]?(?:\d[\d_,]*)?\.?\d+(?:e[-+]?\d+)?)\s*([a-zµ%][a-z/%*0-9 ]*)?", re.IGNORECASE)
_TIMES = {"m": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12}
_UNITS: tuple[tuple[str, dict[str, float]], ...] = (
    # The GB of a GPU's data sheet are GiB: memory stacks come in powers of two.
    ("GiB", {"gib": 1, "gb": 1, "mib": 2.0**-10, "mb": 2.0**-10, "tib": 2.0**10, "tb": 2.0**10}),
    (
        "GB/s",
        {"gb/s": 1, "mb/s": 1e-3, "tb/s": 1e3, "gib/s": 2**30 / 1e9, "gbit/s": 1 / 8, "gbps": 1 / 8, "Gb/s": 1 / 8},
    ),
    ("TB/s", {"tb/s": 1, "gb/s": 1e-3, "mb/s": 1e-6}),
    ("TFLOP/s", {"tflop/s": 1, "tflops": 1, "pflop/s": 1e3, "pflops": 1e3, "gflop/s": 1e-3, "gflops": 1e-3}),
    ("a share", {"%": 0.01}),
    ("minutes", {"min": 1, "s": 1 / 60, "h": 60, "hours": 60}),
)


def number_in(text: str, unit: str = "") -> float | None:
    """The number of a text that should have been one, in this unit of `RANGES`: None where there is none.

    "80 GB" is 80 in GiB, "400 Gbit/s" is 50 in GB/s, "15T" is 15e12; with a unit that we do not know it is None.
    """
    match = _NUMBER.fullmatch(text.strip()) if len(text) <= 60 else None
    if match is None:
        return None
    said = (match[2] or "").strip()
    known = next((table for name, table in _UNITS if unit.startswith(name)), _TIMES)
    times = 1.0 if not said else known.get(said, known.get(said.lower(), math.nan))
    number = float(re.sub("[_,]", "", match[1])) * times
    return number if math.isfinite(number) else None


def plain(number: float, whole: bool) -> str:
    """A number to write into the file."""
    if whole or (number == int(number) and abs(number) < 1e6):
        return f"{round(number):_}" if number >= 1e5 else str(round(number))
    return f"{number:.4g}"


def _said(where: str, value: Any) -> str:
    return f"{where} = {shown(value)}"


def _not_a_number(where: str, value: Any, kind: Kind, bounds: Range) -> ConfigError:
    """The error for a value that is no number at all."""
    wanted, example = "a whole number" if kind.type is int else "a number", bounds.example
    if isinstance(value, str):
        number = number_in(value, bounds.unit)
        if number is not None:
            key = where.rpartition(".")[2]
            return ConfigError(
                f"{_said(where, value)} is text; write a number: {key} = {plain(number, kind.type is int)}"
            )
        return ConfigError(f"{_said(where, value)} is text; it must be {wanted}, without quotes; try {example}")
    named = {bool: "true or false", list: "a list", dict: "a section or table", type(None): "empty"}
    what = named.get(type(value), "a date or time")
    return ConfigError(f"{where} is {what}; it must be {wanted}; try {example}")


def _too_large(where: str, value: float, bounds: Range, whole: bool) -> ConfigError:
    key = where.rpartition(".")[2]
    for factor, unit in bounds.mistaken:
        if bounds.low < value / factor <= bounds.high and value >= 5 * bounds.high:  # 1.5 is not 1.5 percent
            return ConfigError(
                f"{_said(where, value)} looks like {unit}, not {bounds.unit}: "
                f"write {key} = {plain(value / factor, False)}"
            )
    return ConfigError(
        f"{_said(where, value)} cannot be meant: at most {plain(bounds.high, whole)} ({bounds.unit}); "
        f"try {bounds.example}"
    )


def _check_number(where: str, value: Any, kind: Kind, bounds: Range) -> None:
    whole = kind.type is int
    wanted = "a whole number" if whole else "a number"
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _not_a_number(where, value, kind, bounds)
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(
            f"{_said(where, value)} must be {wanted} that is finite ({bounds.unit}); try {bounds.example}"
        )
    if whole and isinstance(value, float):
        if value == int(value) and abs(value) < 1e18:
            raise ConfigError(
                f"{_said(where, value)} must be a whole number, without point or exponent: write {int(value)}"
            )
        near = [n for n in (math.floor(value), math.ceil(value)) if bounds.low <= n <= bounds.high]
        tries = " or ".join(map(str, near)) or bounds.example
        raise ConfigError(f"{_said(where, value)} must be a whole number ({bounds.unit}); try {tries}")
    if value > bounds.high:
        raise _too_large(where, float(min(value, 10**300)), bounds, whole)
    if value < bounds.low or (bounds.above and value == bounds.low):
        least = f"above {bounds.low:g}" if bounds.above else f"at least {bounds.low:g}"
        raise ConfigError(f"{_said(where, value)} must be {least} ({bounds.unit}); try {bounds.example}")


def check_value(section: str, key: str, value: Any, kind: Kind) -> None:
    """`ConfigError` unless the value is of this kind and in its range: one line with section.key and what to write."""
    where = f"{section}.{key}"
    if value is None and kind.optional:
        return
    if kind.type in (int, float):
        _check_number(where, value, kind, RANGES[section][key])
    elif kind.type is bool:
        if not isinstance(value, bool):
            raise ConfigError(f"{_said(where, value)} must be true or false, without quotes")
    elif not isinstance(value, str):
        words = f"one of {', '.join(kind.choices)}" if kind.choices else "text"
        raise ConfigError(f'{_said(where, value)} must be {words}, in quotes: {key} = "..."')
    elif kind.choices and value not in kind.choices:
        raise ConfigError(
            f"{_said(where, value)} is unknown{near(value, kind.choices)} (there are: {', '.join(kind.choices)})"
        )
    elif not value.strip() or len(value) > 80 or not value.isprintable():
        raise ConfigError(f"{_said(where, value)} must be text on one line, 1 to 80 characters")


def check_values(section: str, spec: Any) -> None:
    """Every field of a dataclass of `course_lib.planning.spec`; whole numbers become floats where any will do."""
    for key, kind in kinds(type(spec)).items():
        value = getattr(spec, key)
        check_value(section, key, value, kind)
        if kind.type is float and isinstance(value, int):
            object.__setattr__(spec, key, float(value))
