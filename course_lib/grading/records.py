"""What a score rests on, one file for a learner and chapter: what was run and printed, seed, versions, when."""

import contextlib
import hashlib
import json
import re
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from course_lib.grading.grade import Submission
from course_lib.grading.journal import versions
from course_lib.grading.table import write_file
from course_lib.grading.team import Task

__all__ = ["keep", "record_path"]


def record_path(folder: Path, learner: str, assignment: str) -> Path:
    """One file for a learner and chapter, by a name that any system takes."""
    slug = re.sub(r"[^A-Za-z0-9.-]+", "_", learner).strip("._")[:60] or "learner"
    number = hashlib.sha256(learner.encode("utf-8", "replace")).hexdigest()[:8]
    return folder / "records" / f"{slug}-{number}" / f"{assignment}.json"


def keep(folder: Path, task: Task, submission: Submission, record: list[dict[str, Any]], again: bool = False) -> None:
    """Write what a score rests on. `again`: one exercise of it alone, so that the runs before stay beside it."""
    found = task.found
    path = record_path(folder, found.learner, found.assignment)
    if again:
        with contextlib.suppress(ValueError, OSError, KeyError, TypeError):
            record = json.loads(path.read_text(encoding="utf-8"))["runs"] + record
    content = {
        "learner": found.learner,
        "assignment": found.assignment,
        "place": found.place,
        "matched": found.how,
        "file": task.digest,
        "key": task.key,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "submission": asdict(submission),
        "runs": record,
    }
    write_file(path, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
