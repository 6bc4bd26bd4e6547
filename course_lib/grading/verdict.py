"""What became of one exercise, from what nbval saw, what its check recorded and what the judge says of that."""

import re
from typing import Any

from course_lib.grading.assignment import BEGIN_HIDDEN, END_HIDDEN
from course_lib.grading.run import CellResult
from course_lib.grading.splice import SplicedItem

__all__ = ["contradiction", "decide", "hidden_lines"]

NOT_SHOWN = "(a test that is not in your notebook)"


def hidden_lines(source: str) -> list[str]:
    """What stands between the marks of hidden tests in a check cell; the longest first."""
    lines, inside = set(), False
    for line in source.splitlines():
        mark = line.strip()
        inside = (inside or mark == BEGIN_HIDDEN) and mark != END_HIDDEN
        if inside and mark != BEGIN_HIDDEN and any(map(str.isalnum, mark)):
            lines.add(mark)
    return sorted(lines, key=len, reverse=True)


def contradiction(one: SplicedItem, mine: list[CellResult], verdict: dict[str, Any]) -> str | None:
    """What a check printed against what it left, for a person to look at. It proves nothing: damage looks alike."""
    check = next((result for result in mine if result.role == "check"), None)
    if check is None or check.outcome in ("died", "timeout"):
        return None
    name = re.escape(one.item.id)
    said = re.search(rf"^{name}: (ran|passed)\b", check.printed, re.MULTILINE)
    if said and not verdict["record"]:
        return f"its check printed {said[0]!r} and recorded nothing"
    if said and verdict["ran"] is False:
        return f"its check printed {said[0]!r} and recorded something else"
    if not said and verdict["ran"]:
        return "its check recorded that it ran to its end, and did not print so"
    if said and said[1] == "passed":
        return f"its check printed {said[0]!r}, which no check does while it is graded"
    return None


def _raised(result: CellResult, hidden: bool = False) -> str:
    """An exception in a line. Of a syntax error Jupyter tells the file that it keeps the cell in: say "your cell".

    `hidden`: its check holds tests that the learner does not have, and what they raise may tell what they ask.
    """
    if hidden and result.role == "check":
        return f"{result.error} in its check, which also runs a test that is not in your notebook"
    message = re.sub(r"\((?:<[^>]*>|[^(),]*\.py), line (\d+)\)$", r"(line \1 of your cell)", result.message)
    return f"{result.error}: {message}"


def decide(
    one: SplicedItem,
    mine: list[CellResult],
    ended: tuple[str, str] | None,
    verdict: dict[str, Any],
    hidden: list[str],
    timeout: float,
) -> tuple[str, str, str | None]:
    """Status, message and misconception of one exercise. Points need both: nbval's pass and the judge's.

    `ended`: what ended the kernel in it (`kernel_died`, `timeout`), or that the hand-in's time was over (`late`).
    `hidden`: the lines of its check which the learner does not have; the message holds none of them. `timeout`: seconds
    that a cell had.
    """
    status, message, misconception = _decide(one, mine, ended, verdict, bool(hidden))
    if status == "timeout" and not message:
        message = f"your code took more than {timeout:g} s in a cell, and was stopped"
    for line in hidden:
        message = message.replace(line, NOT_SHOWN)
    return status, message, misconception


def _decide(
    one: SplicedItem, mine: list[CellResult], ended: tuple[str, str] | None, verdict: dict[str, Any], hidden: bool
) -> tuple[str, str, str | None]:
    if not one.sources:
        return "missing", "its answer cell is not in the notebook", None
    if ended is not None and ended[0] == "late":
        return ("not_attempted", "not attempted yet", None) if one.untouched else ("timeout", ended[1], None)
    if ended is not None and ended[0] == "kernel_died":
        why = ended[1] if ended[1].startswith("it ") else "quit(), os._exit, a crash, or out of memory"
        return "kernel_died", f"your code ended the kernel ({why})", None
    if ended is not None or any(result.outcome == "timeout" for result in mine):
        return "timeout", "", None
    check = next((result for result in mine if result.role == "check"), None)
    broken = next((result for result in mine if result.role == "answer" and result.error), None)
    if not verdict["record"]:
        if one.untouched:
            return "not_attempted", "not attempted yet", None
        result = broken or check
        text = _raised(result, hidden) if result and result.error else "its check did not run to its end"
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
        text = _raised(check, hidden) if check and check.error else "its check did not print its line"
        return "failed", f"what came back is right, but the check cell did not pass in the notebook ({text})", None
    return "passed", verdict["line"], None
