"""What a grading says: one line an exercise and the next thing to look at, or JSON."""

from typing import Any

from course_lib.grading.grade import Submission

__all__ = ["as_json", "as_text"]

_WORDS = {"not_attempted": "not attempted", "kernel_died": "kernel died"}


def as_text(submission: Submission, limit: int = 400) -> str:
    """A few lines for the learner."""
    if submission.status != "graded":
        return f"{submission.name}: {submission.status}: {'; '.join(submission.flags)}"
    lines = [f"{submission.name}: {submission.score:g} of {submission.max_score:g} points, on fresh cases"]
    for item in submission.items:
        word = _WORDS.get(item.status, item.status)
        message = f"  {_cut(item.message, limit)}" if item.status not in ("passed", "not_attempted") else ""
        score = f"{item.score:g}/{item.max_score:g}"
        lines.append(f"  {item.position}  {item.id:<24} {word:<14} {score:>5}{message}")
    lines += [f"  note: {_cut(flag, limit)}" for flag in submission.flags]
    ahead = next((item for item in submission.items if item.status != "passed"), None)
    if ahead is not None:
        lines.append(f"  next: {ahead.position} {ahead.title}; a hint: course hint {ahead.position}")
    return "\n".join(lines)


def _cut(text: str, limit: int) -> str:
    text = "\n      ".join(line.rstrip() for line in text.splitlines())
    return text if len(text) <= limit else text[:limit] + " ..."


def as_json(submissions: list[Submission]) -> dict[str, Any]:
    """`{"submissions": [{"name", "status", "score", "max_score", "flags", "items": [...]}]}`."""
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
