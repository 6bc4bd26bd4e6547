"""The record of the large counts: what each `stress` test said, when, and of which code.

`python3 start.py stress` writes `tests/stress.json`; `test` says of which tests the code has changed since.
"""

import ast
import hashlib
import json
import platform
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "stress.json"


def files_behind(test: Path) -> list[Path]:
    """The test file, what it imports of ours (also what that imports), and what its `STRESS_OF` names by pattern."""
    seen: set[Path] = set()
    waiting = [test.resolve()]
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        tree = ast.parse(path.read_text(encoding="utf-8"))
        waiting += [found for name in _names(tree) for found in _ours(name, path.parent)]
        for pattern in _patterns(tree):
            seen |= {found.resolve() for found in ROOT.glob(pattern)}
    return sorted(seen)


def _names(tree: ast.Module) -> set[str]:
    """Dotted names that are imported anywhere in the file, inside functions too, but not for type checking alone."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _ours(name: str, beside: Path) -> list[Path]:
    parts = name.split(".")
    places = [ROOT.joinpath(*parts)] if parts[0] in ("course_lib", "tests") else [beside.joinpath(*parts)]
    return [
        path.resolve()
        for place in places
        for path in (place.with_suffix(".py"), place / "__init__.py")
        if path.is_file()
    ]


def _patterns(tree: ast.Module) -> tuple[str, ...]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "STRESS_OF" for t in node.targets):
            return tuple(ast.literal_eval(node.value))
    return ()


def digests(test: Path) -> dict[str, str]:
    """A short SHA-256 of each file behind a test, by its path in the checkout."""
    return {
        path.relative_to(ROOT).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in files_behind(test)
        if path.is_relative_to(ROOT)
    }


def load() -> dict[str, Any]:
    """The record; empty where there is none."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}


def write(outcomes: dict[str, dict[str, Any]]) -> None:
    """Put outcomes, by test id, into the record; a file's digests are those of now. Tests that are gone are dropped."""
    record = load()
    for node, outcome in outcomes.items():
        name, _, case = node.partition("::")
        entry = record.setdefault(name, {"tests": {}})
        entry.update(date=date.today().isoformat(), machine=_machine(), digests=digests(ROOT / name))
        entry["tests"][case] = outcome
    kept = {name: record[name] for name in sorted(record) if (ROOT / name).is_file()}
    RECORD.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8", newline="\n")


def _machine() -> str:
    from course_lib.machine import cpu_name, usable_cores

    return f"{cpu_name()}, {usable_cores()} cores, Python {platform.python_version()}"


def stale() -> list[str]:
    """One line for each test file whose recorded results are of other code, or in which a test failed."""
    lines = []
    for name, entry in load().items():
        test = ROOT / name
        now = digests(test) if test.is_file() else {}
        changed = sorted(path for path in now.keys() | entry["digests"] if now.get(path) != entry["digests"].get(path))
        if changed:
            more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
            lines.append(f"{name}: results of {entry['date']} are of other code ({', '.join(changed[:3])}{more})")
        failed = sorted(case for case, outcome in entry["tests"].items() if outcome["outcome"] == "failed")
        lines += [f"{name}::{case} failed on {entry['date']}" for case in failed]
    return lines
