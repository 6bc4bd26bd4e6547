"""Runs to begin from: some of the course's own, some that were published, each a TOML file in this folder.

    presets()                        # their names
    preset("7b-on-64-a100")          # RunSpec
    about("llama-3-405b")            # the first line of its file: what it is

A file of yours begins with `base = "7b-on-64-a100"` and changes what is different.
"""

import tomllib
from functools import cache
from importlib import resources
from typing import Any

from course_lib.errors import ConfigError
from course_lib.planning._words import near
from course_lib.planning.files import from_dict
from course_lib.planning.spec import RunSpec

__all__ = ["about", "preset", "preset_sections", "presets"]

_FOLDER = resources.files(__name__)


@cache
def _names() -> tuple[str, ...]:
    found = [entry.name.removesuffix(".toml") for entry in _FOLDER.iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(found))


def presets() -> list[str]:
    """The names of all presets."""
    return list(_names())


def _text(name: str) -> str:
    if name not in _names():
        raise ConfigError(f"there is no preset {name!r}{near(name, _names())} (there are: {', '.join(_names())})")
    return _FOLDER.joinpath(f"{name}.toml").read_text(encoding="utf-8")


def about(name: str) -> str:
    """What a preset is, in one line."""
    return _text(name).partition("\n")[0].removeprefix("#").strip()


def preset_sections(name: str) -> dict[str, Any]:
    """A preset's sections as dictionaries. `ConfigError` with the nearest name where there is none."""
    return {"name": name, **tomllib.loads(_text(name))}


def preset(name: str) -> RunSpec:
    """A preset as a run."""
    return from_dict(preset_sections(name))
