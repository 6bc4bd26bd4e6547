"""What became of one exercise, from what nbval saw, what its check recorded and what the judge says of that."""

import re
from typing import Any

from course_lib.grading.run import CellResult
from course_lib.grading.splice import SplicedItem

__all__ = ["decide"]


def _raised(result: CellResult) -> str:
    """An exception in a line. Of a syntax error Jupyter tells the file that it keeps the cell in: say "your cell"."""
    message = re.sub(r"\((?:<[^>]*>|[^(),]*\.py), line (\d+)\)$", r"(line \1 of your cell)", result.message)
    return f"{result.error}: {message}"


def decide(
    one: SplicedItem, mine: list[CellResult], ended: tuple[str, str] | None, verdict: dict[str, Any]
) -> tuple[str, str, str | None]:
    """Status, message and misconception of one exercise. Points need both: nbval's pass and the judge's.

    `ended`: what ended the kernel in it (`kernel_died`, `timeout`), or that the hand-in's time was over (`late`).
    """
    if not one.sources:
        return "missing", "its answer cell is not in the notebook", None
    if ended is not None and ended[0] == "late":
        return ("not_attempted", "not attempted yet", None) if one.untouched else ("timeout", ended[1], None)
    if ended is not None and ended[0] == "kernel_died":
        why = ended[1] if ended[1].startswith("it ") else "quit(), os._exit, a crash, or out of memory"
        return "kernel_died", f"your code ended the kernel ({why})", None
    if ended is not None or any(result.outcome == "timeout" for result in mine):
        return "timeout", "your code took too long and was stopped", None
    check = next((result for result in mine if result.role == "check"), None)
    broken = next((result for result in mine if result.role == "answer" and result.error), None)
    if not verdict["record"]:
        if one.untouched:
            return "not_attempted", "not attempted yet", None
        result = broken or check
        text = _raised(result) if result and result.error else "its check did not run to its end"
        return "failed", text, None
    if verdict["status"] != "passed":
        text = verdict["line"]
        if verdict["status"] == "not_attempted" and not one.untouched:
            if broken and broken.error != "NotImplementedError":
                return "failed", _raised(broken), None
            if any("raise NotImplementedError" in source for source in one.sources):
                return "failed", "`raise NotImplementedError()` still stands in it: delete that line", None
        return verdict["status"], text, verdict["misconception"]
    if check is None or check.outcome != "passed":
        text = _raised(check) if check and check.error else "its check did not print its line"
        return "failed", f"what came back is right, but the check cell did not pass in the notebook ({text})", None
    return "passed", verdict["line"], None
