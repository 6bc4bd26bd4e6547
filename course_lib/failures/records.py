"""Results that take longer than a page may: made by a command, kept as JSON, and known to be of this code.

`python -m course_lib.failures.records NAME ...` makes them again (no name: all that are of other code). A test says
when one is of other code than its `sources`; comments, docstrings and layout are no part of the code.
"""

import ast
import hashlib
import importlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from course_lib.errors import ConfigError, DataError

__all__ = ["RECORDS", "Record", "digest", "load", "make", "stale"]

PACKAGE = Path(__file__).resolve().parent.parent
FOLDER = Path(__file__).resolve().parent / "recorded"


@dataclass(frozen=True)
class Record:
    """How one result is made."""

    make: str
    """`module:function` of `course_lib`; called without arguments, returns JSON data."""
    sources: tuple[str, ...]
    """Files of `course_lib` that decide the result."""


RECORDS: dict[str, Record] = {
    "ruined": Record("course_lib.failures.ruined:recorded", sources=("failures/ruined.py",)),
    "policy_drift": Record(
        "course_lib.failures.policy_drift:recorded", sources=("failures/policy_drift.py", "failures/offpolicy.py")
    ),
    "leak_control": Record(
        "course_lib.failures.leak_control:over_seeds",
        sources=("failures/leak_control.py", "failures/leak_gap.py", "routers.py", "moe.py"),
    ),
    "leak_gap": Record(
        "course_lib.failures.leak_gap:over_seeds", sources=("failures/leak_gap.py", "routers.py", "moe.py")
    ),
    "skipped_step": Record(
        "course_lib.failures.skipped_step:over_seeds", sources=("failures/skipped_step.py", "failures/runs.py")
    ),
    "recovery": Record(
        "course_lib.failures.recovery:over_seeds",
        sources=("failures/recovery.py", "failures/skipped_step.py", "failures/runs.py"),
    ),
    "kept_logs": Record(
        "course_lib.failures.kept_logs:over_incidents",
        sources=("failures/kept_logs.py", "failures/runs.py", "failures/_faults.py", "failures/_ranks.py"),
    ),
}
"""Every result that is kept, by the name of its file in `recorded/`."""


def digest(name: str) -> str:
    """Of the code behind a result: 16 hex digits."""
    found = hashlib.sha256()
    for source in _record(name).sources:
        tree = ast.parse((PACKAGE / source).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                texts = [e for e in body if isinstance(e, ast.Expr) and isinstance(e.value, ast.Constant)]
                node.body = [e for e in body if e not in texts] or [ast.Pass()]  # type: ignore[attr-defined]
        found.update(ast.unparse(tree).encode())
    return found.hexdigest()[:16]


def load(name: str) -> Any:
    """The result called `name`, as it was made. DataError when its file is missing."""
    _record(name)
    path = FOLDER / f"{name}.json"
    if not path.is_file():
        raise DataError(f"{path.name} is missing: make it with `python -m course_lib.failures.records {name}`")
    return json.loads(path.read_text(encoding="utf-8"))["result"]


def stale(name: str) -> bool:
    """Whether the result is missing or of other code than this."""
    path = FOLDER / f"{name}.json"
    return not path.is_file() or json.loads(path.read_text(encoding="utf-8"))["digest"] != digest(name)


def make(name: str) -> Path:
    """Make the result again and write it; the old one stays until the new one is whole."""
    record = _record(name)
    module, function = record.make.split(":")
    result = getattr(importlib.import_module(module), function)()
    data = {"digest": digest(name), "torch": torch.__version__.split("+")[0], "result": result}
    path = FOLDER / f"{name}.json"
    new = path.with_suffix(".new")
    new.write_text(json.dumps(data, indent=1, allow_nan=True) + "\n", encoding="utf-8", newline="\n")
    return new.replace(path)


def _record(name: str) -> Record:
    if name not in RECORDS:
        raise ConfigError(f"there is no result {name!r}; there are: {', '.join(RECORDS) or 'none'}")
    return RECORDS[name]


if __name__ == "__main__":
    from course_lib.failures import records  # the same module under its own name, not a second one

    for name in sys.argv[1:] or [name for name in records.RECORDS if records.stale(name)]:
        print(f"{name} ...", flush=True)
        print(records.make(name))
