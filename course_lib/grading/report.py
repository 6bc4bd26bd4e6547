"""What a grading says: one line an exercise and the next thing to look at, or JSON."""

from collections.abc import Sequence
from typing import Any

from course_lib.grading.grade import Submission
from course_lib.grading.sheets import outcome, plain, reason

__all__ = ["as_json", "text_report"]

_WORDS = {"not_attempted": "not attempted", "kernel_died": "kernel died"}


def text_report(submission: Submission, limit: int = 400) -> str:
    """A few lines for the learner. What comes from the hand-in is text: no colours, no controls."""
    name = " ".join(plain(submission.name).split())
    if not submission.items:
        return f"{name}: {submission.status}: {reason(submission, limit)}"
    lines = [f"{name}: {submission.score:g} of {submission.max_score:g} points, {_cases(submission)}"]
    for item in submission.items:
        word = _WORDS.get(item.status, item.status)
        message = f"  {_cut(item.message, limit)}" if item.status not in ("passed", "not_attempted") else ""
        score = f"{item.score:g}/{item.max_score:g}"
        lines.append(f"  {item.position}  {item.id:<24} {word:<14} {score:>5}{message}")
    if submission.status != "graded":
        lines.append(f"  {submission.status.replace('_', ' ')}")
    lines += [f"  note: {_cut(flag, limit)}" for flag in submission.flags]
    ahead = next((item for item in submission.items if outcome(item) != "passed"), None)
    if ahead is not None:
        lines.append(f"  next: {ahead.position} {ahead.title}; a hint: course hint {ahead.position}")
    return "\n".join(lines)


def _cases(submission: Submission) -> str:
    """Which cases were run: those of the notebook's own checks (seed 0), or others of the same kinds."""
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
