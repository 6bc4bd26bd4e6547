"""Gradescope's `results.json`: its specification is gradescope-autograders.readthedocs.io/en/latest/specs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib.grading.feedback import page_name, whose_cases
from course_lib.grading.grade import Submission
from course_lib.grading.sheets import WORDS, Row, outcome, plain, reason
from course_lib.grading.table import write_file

__all__ = ["as_results", "write_all_results", "write_results"]


def write_results(path: Path, submission: Submission) -> None:
    """Write the file whole or not at all, also for a hand-in that could not be read."""
    write_file(path, json.dumps(as_results(submission), indent=1, ensure_ascii=False) + "\n")


def write_all_results(out: Path, rows: Sequence[Row]) -> list[Path]:
    """One hand-in goes to `out`, a file, or to `out/results.json`; several to `out/LEARNER/CHAPTER/results.json`."""
    if len(rows) == 1 and not rows[0][0]:
        paths = [out if out.suffix == ".json" and not out.is_dir() else out / "results.json"]
    else:
        paths = []
        for number, (learner, one) in enumerate(rows):
            folder = out / page_name(learner).removesuffix(".html") if learner else out
            path = folder / page_name(one.assignment or "unknown").removesuffix(".html") / "results.json"
            paths.append(path if path not in paths else path.with_name(f"results-{number}.json"))
    for path, (_, one) in zip(paths, rows, strict=True):
        write_results(path, one)
    return paths


def as_results(submission: Submission) -> dict[str, Any]:
    """All of it is text, never HTML. What was noticed is a test that no learner sees."""
    tests: list[dict[str, Any]] = []
    for item in submission.items:
        passed = outcome(item) == "passed"
        message = "" if passed else f"{WORDS[outcome(item)]}: {item.message}"
        tests.append(
            {
                "name": plain(f"{item.title} ({item.id})"),
                "number": item.position,
                "score": item.score,
                "max_score": item.max_score,
                "status": "passed" if passed else "failed",
                "output": plain(message, 4000),
                "output_format": "text",
                "visibility": "visible",
            }
        )
    if submission.items and submission.flags:
        flags = "\n".join(plain(flag, 1000) for flag in submission.flags)
        tests.append(
            {
                "name": "For whoever grades",
                "score": 0.0,
                "max_score": 0.0,
                "output": flags,
                "output_format": "text",
                "visibility": "hidden",
            }
        )
    told = whose_cases(submission)
    output = f"{told[0].upper()}{told[1:]}." if told else f"{submission.status}: {reason(submission)}"
    return {
        "score": submission.score,
        "execution_time": round(submission.seconds, 3),
        "output": output,
        "output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": {"status": submission.status, "assignment": submission.assignment, "release": submission.release},
        "tests": tests,
    }
