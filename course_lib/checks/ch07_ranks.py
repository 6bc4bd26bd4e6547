"""How checks of chapter 7 run an answer on real ranks, and tell what went wrong on which rank."""

import re
import warnings
from collections.abc import Callable
from typing import Any

from course_lib.checks.core import Wrong
from course_lib.checks.guard import is_learners, is_stub, time_limit_paused

__all__ = ["COLLECTIVES", "HANG_SECONDS", "on_ranks", "stopped"]

HANG_SECONDS = 4.0
"""After so long an answer that waits for itself is stopped. The slowest reference takes 0.1 s."""

COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in (
        "all_reduce",
        "all_reduce_coalesced",
        "all_gather",
        "all_gather_coalesced",
        "all_gather_into_tensor",
        "all_gather_object",
        "all_to_all",
        "all_to_all_single",
        "broadcast",
        "broadcast_object_list",
        "gather",
        "gather_object",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "scatter",
        "scatter_object_list",
        "send_object_list",
        "recv_object_list",
        "nn",
        "_functional_collectives",
    )
)


def on_ranks(work: Callable[..., Any], ranks: int, *args: Any) -> dict[str, Any]:
    """{"ranks": what each rank returned}, or {"stopped": {"hung": ..., "text": ...}} when one of them did not.

    `work` is called as work(*args) on every rank. A stub raises NotImplementedError here, as it would without ranks.
    """
    from course_lib.errors import RankError
    from course_lib.parallel.launch import run_ranks

    try:
        with time_limit_paused():  # the first call starts a server, which takes long where the machine is busy
            returned = run_ranks(_attempt, ranks, work, args, timeout=HANG_SECONDS)
    except RankError as error:
        return {"stopped": _told(error)}
    if any(one == STUB for one in returned):
        raise NotImplementedError()
    return {"ranks": returned}


STUB = "not written yet"


def _attempt(work: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        with warnings.catch_warnings():  # older names of collectives are right too
            warnings.simplefilter("ignore", FutureWarning)
            return work(*args)
    except NotImplementedError as error:
        if is_stub(error):
            return STUB
        raise


FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')
MISMATCH = re.compile(r"Mismatch: (?P<text>.*) <(?P<rule>[\w-]*)>$")
"""How an error of `ch07_watch` is told."""
DISAGREE = ("did not finish", "returned without", "called another", "used another")


def _told(error: Any) -> dict[str, Any]:
    """What a message needs of a RankError: its first line, whether the ranks did not agree, and where they stood."""
    first, *rest = str(error).strip().splitlines()
    standing = [line.strip() for line in rest if re.match(r" +rank \d+:", line)]
    for line, code in zip(rest, [*rest[1:], ""], strict=False):
        frame = FRAME.match(line)
        if frame and is_learners(frame["file"]):
            text = "" if FRAME.match(code) else code.strip()
            standing = [f"line {frame['line']} of your cell, in {frame['name']}: {text}"]
    disagree = any(words in first for words in DISAGREE)
    mismatch = MISMATCH.search(first)
    if mismatch is not None:
        return {"first": mismatch["text"], "disagree": True, "standing": standing[:8], "rule": mismatch["rule"]}
    return {"first": " ".join(first.split())[:240], "disagree": disagree, "standing": standing[:8]}


def waits(line: str) -> bool:
    """Whether a rank that stands in this line waits for another one."""
    return "waits in" in line or ".wait(" in line


def stopped(told: dict[str, Any], disagree: str | None, ask: str = "") -> Wrong:
    """The message for an answer that did not come to its end; `disagree`: the misconception of ranks that wait."""
    where = "".join(f"\n    {line[:200]}" for line in told["standing"])
    if "rule" in told:
        return Wrong(told["first"] + where, told["rule"] or None)
    if "did not finish" in told["first"] and not any(map(waits, told["standing"])):
        return Wrong(f"{told['first']}, and none of them waits for another. Does your loop end?{where}")
    if told["disagree"]:
        ask = ask or "What does each of them wait for, and which rank is to do it?"
        return Wrong(f"{told['first']}. {ask}{where}", disagree)
    return Wrong(f"{told['first']}{where}")
