"""The cases of a chapter as data, made once for a seed, the exercises, the library and its versions, for all graders.

    counts = lay_out(cases_file(cache, assignment, seed), folder, make)

One file for each: a digest of all that follows it, then the counts and the files. It is there whole or not at all,
and one that is damaged or was changed is made again. It holds what an exercise's `cases` gives to learner code, no
expected values. Still, `cache` has to be a folder that graders alone write.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from course_lib.grading.assignment import Assignment
from course_lib.grading.digests import assignment_digest, library_digest, versions

__all__ = ["cases_file", "lay_out"]

_FORMAT = 1


def cases_file(cache: Path, assignment: Assignment, seed: int) -> Path:
    """Where the cases are kept. What makes other cases possible makes another name."""
    facts = [_FORMAT, assignment.checks, assignment_digest(assignment), library_digest(), seed, versions()]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode("utf-8")).hexdigest()[:32]
    return cache / f"{key}.cases"


def lay_out(kept: Path | None, folder: Path, make: Callable[[], dict[str, int]]) -> dict[str, int]:
    """Fill `folder` with the cases, from the file or by `make`, which writes there; how many each exercise has.

    Whoever comes while another one makes them waits. A file that cannot be written is no harm.
    """
    if kept is None:
        return _made(folder, make)
    with _locked(kept.with_suffix(".lock")):
        counts = _taken(kept, folder)
        if counts is None:
            counts = _made(folder, make)
            with contextlib.suppress(OSError):
                _keep(kept, folder, counts)
    return counts


def _made(folder: Path, make: Callable[[], dict[str, int]]) -> dict[str, int]:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return make()


def _keep(path: Path, folder: Path, counts: dict[str, int]) -> None:
    """Write the file whole or not at all."""
    files = {one.name: one.read_bytes() for one in sorted(folder.iterdir())}
    facts = {"counts": counts, "files": {name: len(content) for name, content in files.items()}}
    body = json.dumps(facts).encode("ascii") + b"\n" + b"".join(files.values())
    for left in path.parent.glob(f".{path.name}.*.new"):  # of graders that were killed; the lock is ours
        left.unlink(missing_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}.new")
    with beside.open("wb") as file:
        file.write(_digest(body) + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def _taken(path: Path, folder: Path) -> dict[str, int] | None:
    """The counts, with the files in `folder`; None when the cache does not have them as they were written."""
    try:
        if path.is_symlink():
            return None
        digest, _, body = path.read_bytes().partition(b"\n")
        if digest != _digest(body):
            return None
        head, _, rest = body.partition(b"\n")
        facts = json.loads(head)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, size in facts["files"].items():
            if Path(name).name != name:
                return None
            (folder / name).write_bytes(rest[:size])
            rest = rest[size:]
        return {str(name): int(count) for name, count in facts["counts"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _digest(body: bytes) -> bytes:
    return hashlib.sha256(body).hexdigest().encode("ascii")


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """One grader at a time. The lock goes with the process, however it ends; where there is none, nobody waits."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, OSError):
            import fcntl

            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(path.open("ab"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
