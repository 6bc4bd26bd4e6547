"""A plan as a TOML file: read strictly, written back the same.

    run = load("run.toml")                       # RunSpec; or a ConfigError: file, section.key, what to write instead
    run = loads('base = "7b-on-64-a100"\\n[layout]\\nmicro_batch = 2')
    run = from_dict(with_settings(read("run.toml"), ["layout.tensor=4"]))
    to_toml(run)                                 # loads(to_toml(run)) == run

The sections are those of `course_lib.planning.spec`. `base = "preset"` at the top takes a preset; what stands below
changes single keys of it. A file that names another `device` than its base takes nothing of the base's device along.
"""

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from course_lib.errors import ConfigError
from course_lib.planning._names import SECTION_NAMES, other_name
from course_lib.planning._words import near
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.planning.values import RANGES, Kind, check_value, clipped, kinds, number_in, plain, shown

__all__ = ["SECTIONS", "from_dict", "load", "loads", "merged", "name_of", "read", "reads", "to_toml", "with_settings"]

SECTIONS: dict[str, type] = {
    "model": ModelSpec,
    "data": DataSpec,
    "hardware": HardwareSpec,
    "layout": LayoutSpec,
    "assume": Assumptions,
}
"""The sections of a file, and what each becomes."""

MAX_BYTES = 1_000_000
"""A plan has about a kilobyte."""


# ---------------------------------------------------------------------------------------------- text -> dictionary


def reads(text: str, name: str = "the text") -> dict[str, Any]:
    """The sections of a TOML text as dictionaries, not yet checked; `ConfigError` with the line where it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: no TOML: {_explained(text, str(error))}") from None
    except (ValueError, RecursionError):
        raise ConfigError(f"{name}: no TOML that a plan needs: a number or a nesting is far too long") from None


def _explained(text: str, message: str) -> str:
    """tomllib's message with the line itself, and what is often meant."""
    if text.lstrip().startswith("{"):
        return "it looks like JSON; write sections like [model] and lines like layers = 32"
    at = message.rpartition("(at line ")[2].partition(",")[0]
    lines = text.splitlines()
    if not at.isdecimal() or not 0 < int(at) <= len(lines):
        return message
    line = lines[int(at) - 1].strip()
    key, _, value = (part.strip() for part in line.partition("#")[0].partition("="))
    if value in ("True", "False"):
        hint = f"; write {value.lower()}"
    elif value[:1].isdigit():
        hint = f"; {_number_alone(key, value)}"
    elif ":" in line and "=" not in line:
        hint = "; write key = value"
    elif value[:1].isalpha():
        hint = "; write words in quotes"
    else:
        hint = ""
    return f"{message}: {clipped(line) or 'an empty line'}{hint}"


def _number_alone(key: str, value: str) -> str:
    """What to write instead of "80 GiB" and "15T"."""
    unit = next((table[key].unit for table in RANGES.values() if key in table), None)
    number = None if unit is None else number_in(value, unit)
    if number is None:
        return "write one number, without a unit: the unit stands in the key, and 15e12 is 15 trillion"
    return f"write {key} = {plain(number, number == int(number) and number < 1e6)}"


def read(path: str | Path) -> dict[str, Any]:
    """The sections of a file as dictionaries, not yet checked. `ConfigError` when it cannot be read, or is no text."""
    name = clipped(str(path), 200)
    try:
        file = Path(path)
        if file.is_dir():
            raise ConfigError(f"{name} is a folder; name a TOML file in it")
        if not file.exists():
            raise ConfigError(f"{name}: there is no such file")
        if not file.is_file():
            raise ConfigError(f"{name} is no regular file")
        if file.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{name} has {file.stat().st_size:,} bytes; a plan has about a thousand")
        data = file.read_bytes()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"{name} cannot be read: {why}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ConfigError(f"{name}: line {line} is no UTF-8 text; save the file as UTF-8") from None
    if "\0" in text:
        raise ConfigError(f"{name} is a binary file, not a TOML text")
    return reads(text, name)


# ----------------------------------------------------------------------------------------------- dictionary -> run


def with_settings(data: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """The dictionary with single values changed: "layout.tensor=4", "hardware.device=H100 SXM", "name=mine"."""
    changes: dict[str, Any] = {}
    for setting in settings:
        where, equals, text = setting.partition("=")
        section, dot, key = where.strip().partition(".")
        if not equals or (not dot and section != "name"):
            raise ConfigError(f"--set {shown(setting)}: write section.key=value, for instance layout.tensor=4")
        if dot and section not in SECTIONS:
            raise ConfigError(f"--set {shown(setting)}: {_unknown_section(section)}")
        try:
            value = tomllib.loads(f"value = {text.strip()}\n")["value"]
        except (ValueError, RecursionError):
            value = text.strip()
        if dot:
            changes.setdefault(section, {})[key] = value
        else:
            changes["name"] = value
    return merged(data, changes)


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A base with single keys changed; with another device, the figures of the base's device are dropped."""
    out = {key: dict(value) if isinstance(value, Mapping) else value for key, value in base.items()}
    hardware = changes.get("hardware")
    if isinstance(hardware, Mapping) and "device" in hardware and isinstance(out.get("hardware", {}), dict):
        kept = out.get("hardware", {})
        out["hardware"] = {key: kept[key] for key in ("devices", "storage_gb_per_s") if key in kept}
    for key, value in changes.items():
        if isinstance(value, Mapping) and isinstance(out.get(key), dict):
            out[key].update(value)
        else:
            out[key] = value
    return out


def from_dict(data: Mapping[str, Any]) -> RunSpec:
    """The run of a dictionary with the sections of a file. `ConfigError` for what is unknown, missing or impossible."""
    data = dict(data)
    if "base" in data:
        from course_lib.planning.presets import preset_sections

        base = data.pop("base")
        check_value("base", "base", base, Kind(str, False))
        data = merged(preset_sections(base), data)
    for key, value in data.items():
        if key != "name" and key not in SECTIONS:
            raise ConfigError(_unknown_top(key, value))
    name = data.get("name", "run")
    check_value("name", "name", name, Kind(str, False))
    made: dict[str, Any] = {}
    for section, cls in SECTIONS.items():
        values = data.get(section, {})
        if not isinstance(values, Mapping):
            raise ConfigError(_no_section(section, values))
        made[section] = _section(section, cls, values, section in data)
    return RunSpec(name=name, **made)


def _section(section: str, cls: type, values: Mapping[str, Any], there: bool) -> Any:
    known = kinds(cls)
    for key, value in values.items():
        if key not in known:
            raise ConfigError(_unknown_key(section, str(key), value))
        if value is not None:
            check_value(section, key, value, known[key])
    needed = [field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING]
    missing = [key for key in needed if values.get(key) is None]
    if missing and not there:
        raise ConfigError(f"the section [{section}] is missing; it needs {', '.join(needed)}")
    if missing:
        bounds = RANGES[section][missing[0]]
        raise ConfigError(
            f"{section}.{missing[0]} is missing ({bounds.unit}); for instance {missing[0]} = {bounds.example}"
        )
    return cls(**values)


def _unknown_section(word: str) -> str:
    other = SECTION_NAMES.get(word.lower())
    meant = f"; did you mean [{other}]?" if other else near(word, SECTIONS)
    return f"there is no section [{clipped(word)}]{meant} (there are: {', '.join(SECTIONS)})"


def _no_section(section: str, value: Any) -> str:
    what = f"[[{section}]] is a list" if isinstance(value, list) else f"{section} = {shown(value)} is no section"
    return f"{what}; write [{section}] once, and its keys below it"


def _unknown_top(key: str, value: Any) -> str:
    if isinstance(value, Mapping | list):
        return _unknown_section(key)
    homes = [section for section, cls in SECTIONS.items() if key in kinds(cls)]
    if homes:
        return f"{key} stands outside of a section; it belongs below {' or '.join(f'[{home}]' for home in homes)}"
    hint = other_name("", key, value)
    words = f": {hint}" if hint else near(key, ["name", "base", *SECTIONS])
    return f"{clipped(key)} is no key of the top{words} (there are name, base and the sections {', '.join(SECTIONS)})"


def _unknown_key(section: str, key: str, value: Any) -> str:
    where = f"{section}.{clipped(key)}"
    homes = [home for home, cls in SECTIONS.items() if key in kinds(cls)]
    if homes:
        return f"{where} stands in the wrong section; {key} belongs below {' or '.join(f'[{home}]' for home in homes)}"
    hint = other_name(section, key, value)
    if hint:
        return f"{where} is no key: {hint}"
    known = kinds(SECTIONS[section])
    if isinstance(value, Mapping):
        return f"[{where}]: a section has no sections of its own; write its keys below [{section}]"
    return f"{where} is no key{near(key, known)} ([{section}] has: {', '.join(known)})"


def loads(text: str, name: str = "the text") -> RunSpec:
    """The run of a TOML text. `name` stands before each error, and is the run's name when the text has none."""
    return _named(reads(text, name), name, "run")


def load(path: str | Path) -> RunSpec:
    """The run of a TOML file, called as the file unless it has a name."""
    return _named(read(path), clipped(str(path), 200), name_of(path))


def name_of(path: str | Path) -> str:
    """What a run is called whose file gives it no name."""
    stem = "".join(letter for letter in Path(path).stem if letter.isprintable())[:80].strip()
    return stem or "run"


def _named(data: dict[str, Any], where: str, name: str) -> RunSpec:
    try:
        return from_dict({"name": name, **data})
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


# ------------------------------------------------------------------------------------------------------ run -> text


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, int):
        return f"{value:_}"
    short = f"{value:.6g}"
    return short if float(short) == value else repr(value)


def to_toml(run: RunSpec) -> str:
    """The file of a run: what differs from the defaults, in the order of the fields."""
    lines = [f"name = {_written(run.name)}"]
    for section, cls in SECTIONS.items():
        spec = getattr(run, section)
        values = {field.name: (getattr(spec, field.name), field.default) for field in fields(cls)}
        kept = [f"{key} = {_written(value)}" for key, (value, default) in values.items() if value != default]
        if kept:
            lines += ["", f"[{section}]", *kept]
    return "\n".join(lines) + "\n"
