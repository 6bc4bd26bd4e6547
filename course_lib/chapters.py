"""The chapters that exist: what each is called, how long it takes you, and how long the machine."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.machine import material_dir

__all__ = ["REFERENCE_TOKENS_PER_SECOND", "Chapter", "chapters", "read_chapter"]

REFERENCE_TOKENS_PER_SECOND = 17_000
"""Speed of chapter 0's run (preset `mini`, 12 sequences of 64 tokens) on two cores, where the chapters were timed."""


@dataclass(frozen=True)
class Chapter:
    """One notebook of `notebooks/`, as its opening cell describes it."""

    number: int
    title: str
    minutes: float
    """Minutes of the learner's time."""
    seconds: float
    """Seconds of machine time at `REFERENCE_TOKENS_PER_SECOND`."""
    path: Path


def chapters(folder: Path | None = None) -> list[Chapter]:
    """The chapters in `folder` (None: the course's own), in order."""
    folder = folder or material_dir() / "notebooks"
    return [read_chapter(path) for path in sorted(folder.glob("[0-9][0-9]_*.ipynb"))]


def read_chapter(path: Path) -> Chapter:
    """Title and times from the first cell: `# 1. Title`, and `**Time**: about 50 minutes ..., about 40 seconds ...`.

    CourseError when the cell does not say them.
    """
    notebook = json.loads(path.read_text(encoding="utf-8"))
    source = notebook["cells"][0]["source"]
    text = source if isinstance(source, str) else "".join(source)
    title = re.search(r"^# \d+\. (.+)$", text, re.MULTILINE)
    time = re.search(r"^\*\*Time\*\*: .*?(\d+) minutes.*?(\d+) seconds", text, re.MULTILINE | re.DOTALL)
    if title is None or time is None:
        raise CourseError(
            f"{path.name}: the first cell must have the lines `# N. Title` and `**Time**: N minutes ... N seconds`"
        )
    return Chapter(int(path.name[:2]), title[1].split(":")[0], float(time[1]), float(time[2]), path)
