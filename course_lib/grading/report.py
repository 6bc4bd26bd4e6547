"""What a grading says: one line an exercise and the next thing to look at, or JSON."""

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.sheets import outcome, plain, reason
from course_lib.machine import material_dir

__all__ = ["ahead", "as_json", "folded", "nothing_tried", "text_report", "to_type"]

_WORDS = {"not_attempted": "not attempted", "kernel_died": "kernel died"}


def to_type(words: str) -> str:
    """A command of `course` as whoever reads it can type it.

    start.py runs `python -m course_lib`, and then the shell that it was called from knows no `course`.
    """
    as_module = Path(sys.argv[0]).parts[-2:] == ("course_lib", "__main__.py")
    through_start = as_module and (material_dir() / "start.py").is_file()
    return f"python3 start.py {words}" if through_start else f"course {words}"


def ahead(items: Sequence[GradedItem]) -> GradedItem | None:
    """What to look at next: the first that was tried and did not pass, else the first that did not."""
    left = [item for item in items if outcome(item) != "passed"]
    tried = [item for item in left if outcome(item) not in ("not_attempted", "missing")]
    return next(iter(tried or left), None)


def nothing_tried(submission: Submission) -> bool:
    """Whether every exercise is as it was given out."""
    return bool(submission.items) and all(outcome(item) == "not_attempted" for item in submission.items)


def text_report(submission: Submission, limit: int = 400, width: int = 0, hints: bool = True) -> str:
    """A few lines for the learner. What comes from the hand-in is text: no colours, no controls.

    `width`: columns; messages then stand under their exercise. 0: a line each. `hints`: whether there are any.
    """
    name = " ".join(plain(submission.name).split())
    if not submission.items:
        return folded(f"{name}: {submission.status}: {reason(submission, limit)}", width)
    points = f"{submission.score:g} of {submission.max_score:g} points, "
    # Behind the name of a long path the points begin a line of their own.
    parting = "\n    " if width and len(name) + len(points) > width else " "
    lines = [f"{name}:{parting}{points}{_cases(submission)}"]
    for item in submission.items:
        word = _WORDS.get(item.status, item.status)
        message = _cut(item.message, limit) if item.status not in ("passed", "not_attempted") else ""
        score = f"{item.score:g}/{item.max_score:g}"
        line = f"  {item.position}  {item.id:<24} {word:<14} {score:>5}"
        if width and message:
            lines += [line, *(f"        {one.strip()}" for one in message.splitlines())]
        else:
            lines.append(f"{line}  {message}" if message else line)
    if submission.status != "graded":
        lines.append(f"  {submission.status.replace('_', ' ')}")
    lines += [f"  note: {_cut(flag, limit)}" for flag in submission.flags]
    onward = ahead(submission.items)
    if onward is not None:
        hint = f"; a hint: {to_type(f'hint {onward.position}')}" if hints else ""
        lines.append(f"  next: {onward.position} {onward.title}{hint}")
    return "\n".join(folded(line, width) for line in lines)


def folded(text: str, width: int) -> str:
    """A text in lines of at most so many columns; the second and later ones stand further in. 0: as it is."""
    if not width:
        return text
    found = []
    for line in text.split("\n"):
        start = line[: len(line) - len(line.lstrip())]
        further = start if len(start) >= 8 else " " * (len(start) + 4)
        wrapper = textwrap.TextWrapper(width, start, further, break_long_words=False, break_on_hyphens=False)
        found += wrapper.wrap(line.strip()) or [""]
    return "\n".join(found)


def _cases(submission: Submission) -> str:
    """Which cases were run: those of the notebook's own checks (seed 0), or others of the same kinds."""
    if nothing_tried(submission):
        return "nothing attempted yet in what is saved"
    if submission.seed == 0:
        return "on the cases that your notebook's checks run"
    return f"on cases that only the grader runs (seed {submission.seed}; --seed 0: those of your notebook)"


def _cut(text: str, limit: int) -> str:
    return plain("\n      ".join(line.rstrip() for line in text.splitlines()), limit)


def as_json(submissions: Sequence[Submission]) -> dict[str, Any]:
    """`{"submissions": [{"name", "status", "score", "max_score", "flags", "items": [...]}]}`: these keys, no others."""
    return {
        "submissions": [
            {
                "name": one.name,
                "status": one.status,
                "score": one.score,
                "max_score": one.max_score,
                "flags": list(one.flags),
                "items": [
                    {
                        "id": item.id,
                        "status": item.status,
                        "score": item.score,
                        "max_score": item.max_score,
                        "message": item.message,
                    }
                    for item in one.items
                ],
            }
            for one in submissions
        ]
    }
