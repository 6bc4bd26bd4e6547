"""The seed of a class's cases: drawn once, kept beside its journal, the same in every later run.

A public seed would let anyone who has the course make the cases that are graded.
"""

import contextlib
import json
import secrets
from pathlib import Path

from course_lib.errors import CourseError
from course_lib.grading.table import write_file

__all__ = ["SEED_FILE", "class_seed", "draw_seed"]

SEED_FILE = "seed.txt"


def draw_seed() -> int:
    """A number that nobody can guess, and that a person can copy."""
    return 10**8 + secrets.randbelow(9 * 10**8)


def class_seed(folder: Path, given: int | None) -> tuple[int, str]:
    """The seed of this class and a line that says where it is from. One that is given is kept from then on.

    Call it while the journal is open: two runs would draw two. CourseError when the file holds no number.
    """
    path = folder / SEED_FILE
    kept = _kept(path, folder / "journal.jsonl")
    if given is None and kept is not None:
        seed, said = kept, f"kept in {path}"
    elif given is None:
        seed, said = draw_seed(), f"drawn for this class and kept in {path}"
    elif kept in (None, given):
        seed, said = given, f"kept in {path}"
    else:
        seed, said = given, f"kept in {path} in place of {kept}: what was graded on other cases is graded again"
    if not path.exists() or seed != kept:
        write_file(path, f"{seed}\n")
    return seed, f"seed: {seed} ({said})"


def _kept(path: Path, journal: Path) -> int | None:
    """What the file says; where there is none, the seed of the last row that was graded here."""
    if path.exists():
        try:
            return int(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            raise CourseError(f"{path}: holds no whole number; write the class's seed into it") from None
    seed = None
    with contextlib.suppress(OSError), journal.open("rb") as file:
        for line in file:
            with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
                seed = int(json.loads(line)["submission"]["seed"])
    return seed
