"""For every run of the tests: it leaves the checkout as it found it."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
BEFORE = pytest.StashKey[list[str] | None]()
CHANGED = pytest.StashKey[list[str]]()


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
    return done.stdout.splitlines() if done.returncode == 0 else None


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEFORE] = git_status()


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """What the run changed or left behind is an error in CI; elsewhere a warning, since somebody may be editing."""
    before, after = session.config.stash.get(BEFORE, None), git_status()
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
