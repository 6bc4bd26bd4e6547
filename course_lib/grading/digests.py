"""Digests of what a score rests on: a file, the library, a chapter's exercises; and the versions of what runs them."""

import contextlib
import hashlib
import platform
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import course_lib
from course_lib.grading.assignment import Assignment

__all__ = ["assignment_digest", "file_digest", "library_digest", "versions"]


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes; of its path when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return hashlib.sha256(str(path).encode("utf-8", "replace")).hexdigest()


@lru_cache
def library_digest() -> str:
    """Of every source of the library: the checks and the grader are among them."""
    root = Path(course_lib.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        if "_material" not in path.parts:
            total.update(f"{path.relative_to(root).as_posix()}\0{file_digest(path)}\n".encode())
    return total.hexdigest()


def assignment_digest(assignment: Assignment) -> str:
    """Of the notebook that states the exercises, and of its checks where they are not the course's own."""
    text = file_digest(assignment.path)
    if not assignment.checks.startswith("course_lib."):
        with contextlib.suppress(ImportError, ValueError):
            spec = find_spec(assignment.checks)
            text += file_digest(Path(spec.origin)) if spec and spec.origin else ""
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


@lru_cache
def _versions() -> tuple[tuple[str, str], ...]:
    found = [("course", course_lib.__version__), ("python", platform.python_version())]
    for name in ("torch", "numpy", "nbval", "ipykernel", "nbformat"):
        with contextlib.suppress(PackageNotFoundError):
            found.append((name, version(name)))
    return tuple(found)


def versions() -> dict[str, str]:
    """Of the course, Python, and what the exercises and the grader run on."""
    return dict(_versions())
