"""The diagnosis table: from a symptom to its causes in the order of suspicion, a check, the fix, and what not to do.

The table is `diagnosis.toml` beside this file. Every row is reproduced by at least one incident.
"""

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from course_lib.errors import ConfigError
from course_lib.failures.incidents import CATEGORIES, CHECKS, INCIDENTS
from course_lib.settings import nearest

__all__ = ["Cause", "Row", "rows", "rows_of", "search", "table"]

KEYS = {"data": CATEGORIES[0], "numerics": CATEGORIES[1], "optimizer": CATEGORIES[2], "system": CATEGORIES[3]}
TEXTS = ("symptom", "look", "check", "fix", "never")
LISTS = (*KEYS, "checks", "incidents")


@dataclass(frozen=True)
class Cause:
    """One thing that can be behind a symptom."""

    category: str
    """One of `incidents.CATEGORIES`."""
    text: str


@dataclass(frozen=True)
class Row:
    """One symptom."""

    symptom: str
    look: str
    """Which dashboard shows it, and how."""
    causes: tuple[Cause, ...]
    """In the order of suspicion."""
    check: str
    """The cheap check, in words."""
    checks: tuple[str, ...]
    """The checks of the simulator that make it, by name."""
    fix: str
    never: str
    """What not to do."""
    incidents: tuple[str, ...]
    """Which incidents reproduce it, by name."""


@cache
def table() -> tuple[Row, ...]:
    """The table that comes with the course, in its own order."""
    return rows(files("course_lib.failures").joinpath("diagnosis.toml").read_text(encoding="utf-8"))


def rows(text: str) -> tuple[Row, ...]:
    """The rows of a table in TOML. `ConfigError` says which row is wrong, and how: one line."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"the diagnosis table is no TOML: {error}") from None
    if set(data) != {"row"} or not isinstance(data["row"], list):
        raise ConfigError("the diagnosis table holds [[row]] entries and nothing else")
    found = tuple(_row(number, row) for number, row in enumerate(data["row"], 1))
    names = [row.symptom for row in found]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"two rows of the diagnosis table have the symptom {twice[0]!r}")
    return found


def _row(number: int, data: dict[str, Any]) -> Row:
    where = f"row {number} of the diagnosis table ({data.get('symptom', 'without a symptom')})"
    for key in data:
        if key not in TEXTS + LISTS:
            raise ConfigError(f"{where} has no field {key!r}{nearest(key, TEXTS + LISTS)}")
    for key in TEXTS:
        if not isinstance(data.get(key), str) or not data[key].strip():
            raise ConfigError(f"{where}: {key} has to be a text")
    for key in LISTS:
        value = data.get(key, [])
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise ConfigError(f"{where}: {key} has to be a list of texts")
    for key, known in (("checks", CHECKS), ("incidents", INCIDENTS)):
        if not data.get(key):
            raise ConfigError(f"{where}: {key} is empty; every row names at least one")
        for name in data[key]:
            if name not in known:
                raise ConfigError(f"{where}: {key} has {name!r}, which does not exist{nearest(name, known)}")
    causes = tuple(Cause(category, text) for key, category in KEYS.items() for text in data.get(key, []))
    if not causes:
        raise ConfigError(f"{where} has no cause; give data, numerics, optimizer or system")
    texts = {key: " ".join(data[key].split()) for key in TEXTS}
    return Row(**texts, causes=causes, checks=tuple(data["checks"]), incidents=tuple(data["incidents"]))


def rows_of(incident: str) -> tuple[Row, ...]:
    """The rows that an incident reproduces."""
    return tuple(row for row in table() if incident in row.incidents)


def search(words: str) -> tuple[Row, ...]:
    """The rows that hold each of these, each at the start of a word, in the table's order; all rows for no word."""
    wanted = [re.compile(rf"(?<!\w){re.escape(word)}") for word in words.lower().split()]

    def text(row: Row) -> str:
        titles = [INCIDENTS[name].title for name in row.incidents]
        parts = [row.symptom, row.look, row.check, row.fix, row.never, *(cause.text for cause in row.causes), *titles]
        return " ".join(parts).lower()

    return tuple(row for row in table() if all(word.search(text(row)) for word in wanted))
