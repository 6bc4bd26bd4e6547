"""For every run of the tests: it leaves the checkout as it found it, and the large counts leave a record.

In a process that runs tests beside others (pytest-xdist) each has a core of its own; the first process looks at the
checkout.
"""

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import stress_record

ROOT = Path(__file__).resolve().parent.parent
BEFORE = pytest.StashKey[list[str] | None]()
CHANGED = pytest.StashKey[list[str]]()
STRESS = pytest.StashKey[dict[str, dict[str, Any]]]()
ALONE = ("tests/distributed/", "tests/browser/", "tests/notebooks/test_nbval.py::test_notebook_runs[notebooks-")
"""Ranks, browsers and whole chapters: they want all cores, or look at the clock."""


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[int(worker["workerid"].removeprefix("gw")) % len(cores)]})


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith(ALONE):
            item.add_marker("alone")


def git_status() -> list[str] | None:
    """The lines of `git status --porcelain`, or None where this is no git checkout (or git is not there)."""
    try:
        done = subprocess.run(
            ["git", "status", "--porcelain", "--untracked-files=all"],
            cwd=ROOT,
            capture_output=True,
            encoding="utf-8",
            timeout=60,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return None
    return [line for line in done.stdout.splitlines() if not line.endswith("tests/stress.json")]  # a run may write it


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = None if hasattr(session.config, "workerinput") else git_status()
    session.config.stash[STRESS] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if "stress" in item.keywords and item.config.option.markexpr == "stress" and not report.skipped:
        found = item.config.stash[STRESS].setdefault(item.nodeid, {"outcome": "passed", "seconds": 0.0})
        found["seconds"] = round(found["seconds"] + report.duration, 1)
        if report.failed:
            found["outcome"] = "failed"
    return report


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What the run changed or left behind is an error in CI; elsewhere a warning, since somebody may be editing."""
    if session.config.stash.get(STRESS, {}):
        stress_record.write(session.config.stash[STRESS])
    before = session.config.stash.get(BEFORE, None)
    after = None if before is None else git_status()
    if before is None or after is None:
        return
    changed = sorted(set(before) ^ set(after))
    session.config.stash[CHANGED] = changed
    if changed and os.environ.get("CI") == "true" and session.exitstatus == 0:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    changed = config.stash.get(CHANGED, [])
    if changed:
        word = "ERROR" if os.environ.get("CI") == "true" else "warning"
        terminalreporter.write_line(f"{word}: `git status` is not what it was before the tests: {'; '.join(changed)}")
    if config.option.markexpr.startswith("not stress") and "not alone" not in config.option.markexpr:
        for line in stress_record.stale():
            terminalreporter.write_line(f"stress results: {line}")
