"""Runs that chapter 14 works through, by letter, so that a page can show one before it says what is wrong with it."""

from course_lib.config import require
from course_lib.failures.incidents import INCIDENTS, Incident, reproduce
from course_lib.failures.runs import Run

__all__ = ["CASES", "LOUD", "case", "fault", "twin"]

CASES: dict[str, tuple[str, int, bool]] = {
    "A": ("mask_leak", 0, True),
    "B": ("epsilon_too_small", 2, True),
    "C": ("lr_too_high", 2, True),
    "D": ("cursor_lost", 2, True),
    "E": ("cursor_lost", 2, False),
}
"""(incident, seed, whether its fault is in the run)."""
LOUD: dict[str, str] = {
    "bad_batch": "the loss jumps to several times its value",
    "nan_from_ignored": "the loss is NaN",
    "fp16_overflow": "every update is left out, and the log says so",
    "memory_leak": "the run ends: out of memory",
    "slow_loader": "every step takes several times as long",
    "straggler": "every step takes several times as long",
    "hang": "no step follows",
}
"""Incidents that nobody has to look for, and what everybody sees. The other ones are silent. A judgement, ours."""


def case(letter: str) -> Run:
    """The run of this letter. ConfigError for a letter that there is not."""
    require(letter in CASES, f"there is no case {letter!r} (there are: {', '.join(CASES)})")
    name, seed, faulty = CASES[letter]
    return reproduce(name, seed, fault=faulty)


def twin(letter: str) -> Run:
    """The same run without its fault."""
    name, seed, _ = CASES[letter]
    return reproduce(name, seed, fault=False)


def fault(letter: str) -> Incident | None:
    """What is wrong with it; None: nothing."""
    name, _, faulty = CASES[letter]
    return INCIDENTS[name] if faulty else None
