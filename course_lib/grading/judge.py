"""The judge: a process in which no learner code ever runs. It makes the cases and decides on what left the kernel.

`python -m course_lib.grading.judge MODULE` loads a chapter's EXERCISES, then answers one JSON line for each JSON line:
it lays out a seed's cases as data, or judges what a kernel left.
"""

import copy
import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from course_lib.checks.core import (
    Case,
    Exercise,
    PackError,
    forbidden_in_source,
    judge_record,
    read_packed,
    write_packed,
)
from course_lib.errors import CourseError
from course_lib.grading.child import Child
from course_lib.grading.isolation import linux

__all__ = ["Judge", "main"]


class Judge:
    """A judge process for one chapter, started at once and ready when it is first asked. Use as a context manager."""

    def __init__(self, module: str, timeout: float = 120) -> None:
        self.module, self.timeout = module, timeout
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        environment.pop("COURSE_GRADE_DIR", None)
        self._child = Child([sys.executable, "-m", "course_lib.grading.judge", module], env=environment)

    def __enter__(self) -> "Judge":
        self._child.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._child.stop()

    def ask(self, seed: int, records: Path, sources: dict[str, list[str]], context: str) -> dict[str, dict[str, Any]]:
        """For each exercise id {"status", "line", "message", "misconception", "case", "record", "ran"}.

        `sources`: the learner's cells for each exercise, for the search for forbidden names; `context`: our own cells.
        CourseError when the judge cannot be started. What it cannot judge in time has failed.
        """
        answer = self._child.insist(
            {"seed": seed, "records": str(records), "sources": sources, "context": context}, self.timeout
        )
        if answer:
            return answer
        message = "what came back could not be judged in time"
        return {name: _verdict("failed", message, record=True, ran=None) for name in sources}

    def lay_out(self, seed: int, folder: Path) -> dict[str, int]:
        """Write the cases of every exercise for this seed into a folder, as data; how many each has. CourseError."""
        answer = self._child.insist({"seed": seed, "lay_out": str(folder)}, self.timeout)
        if not answer:
            raise CourseError(
                f"{self.module}: its cases for seed {seed} could not be made; is the chapter's check broken?"
            )
        return answer


MEMORY = 8 * 2**30
"""Bytes that a judge may map, torch's 2 GiB among them: a record of nothing but brackets grows when it is read."""


def _verdict(status: str, message: str, **more: Any) -> dict[str, Any]:
    return {"status": status, "message": message, "line": message, "misconception": None, "case": None, **more}


def _judge(exercise: Exercise, request: dict[str, Any]) -> dict[str, Any]:
    """The verdict on one exercise; `record` says whether its check left anything, `ran` whether that is a whole run."""
    stem = Path(request["records"]) / exercise.id
    name = forbidden_in_source(request["sources"].get(exercise.id, []), exercise.forbidden, request["context"])
    if not stem.with_suffix(".json").exists():
        return _verdict("failed", "its check recorded nothing", record=False, ran=False)
    try:
        record = read_packed(stem)
    except PackError as error:
        return _verdict("failed", f"what its check recorded {error}", record=True, ran=False)
    found = judge_record(exercise, record, request["seed"])
    if found.status == "passed" and name:
        return _verdict("failed", f"`{name}` does this exercise's work: write it yourself", record=True, ran=True)
    return {
        "status": found.status,
        "message": found.message,
        "line": found.line.removeprefix(f"{exercise.id}: "),
        "misconception": found.misconception,
        "case": found.case,
        "record": True,
        "ran": _ran(record),
    }


def _ran(record: Any) -> bool | None:
    """Whether a record says that every case was run; None when an error of one of them is in it, or is all there is."""
    try:
        if record["stopped"]:
            return False
        return None if any("error" in entry for entry in record["cases"]) else True
    except (KeyError, TypeError, IndexError, ValueError):
        return False


def _made_once(cases: Callable[[int], list[Case]]) -> Callable[[int], list[Case]]:
    """The same cases for the same seed, each time in a copy: some take seconds to make, and a class has one seed."""
    made: dict[int, list[Case]] = {}

    def copies(seed: int) -> list[Case]:
        if seed not in made:
            made.clear()
            made[seed] = cases(seed)
        return copy.deepcopy(made[seed])

    return copies


def _lay_out(exercise: Exercise, seed: int, folder: str) -> int:
    cases = exercise.cases(seed)
    write_packed(Path(folder) / exercise.id, [exercise.given(case) for case in cases])
    return len(cases)


def main(argv: list[str] | None = None) -> int:
    """Answer requests on stdin, one JSON line each, until it ends."""
    module = (sys.argv[1:] if argv is None else argv)[0]
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    linux.limit_memory(MEMORY)
    found: list[Exercise] = importlib.import_module(module).EXERCISES
    exercises = [replace(one, cases=_made_once(one.cases)) for one in found]
    for line in sys.stdin:
        request = json.loads(line)
        if "lay_out" in request:
            laid = {exercise.id: _lay_out(exercise, request["seed"], request["lay_out"]) for exercise in exercises}
            answers.write(json.dumps(laid) + "\n")
            answers.flush()
            continue
        asked = [exercise for exercise in exercises if exercise.id in request["sources"]]
        verdicts = {exercise.id: _judge(exercise, request) for exercise in asked}
        answers.write(json.dumps(verdicts) + "\n")
        answers.flush()
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except CourseError as error:
        print(error, file=sys.stderr)
        code = 2
    sys.exit(code)
