"""A class graded: several graders at once, each hand-in one row, every row on the disk as soon as it is there.

    with collect(folder, roster) as found, Journal(results) as journal:
        rows = run_class(found, journal, setting)      # (learner, Submission), hand-ins that are missing among them

What was graded before from the same file, exercises, library, seed and versions is taken from the journal. Beside it
lie `records/`: for each score what was run of the learner's, what it printed, with which seed and versions, and when;
and `cases/`: the inputs of the graded cases, made once for all graders.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, find_assignment
from course_lib.grading.collect import Collected, Found
from course_lib.grading.grade import Submission
from course_lib.grading.isolation.tiers import best_tier
from course_lib.grading.journal import Journal, assignment_digest, file_digest, key_of
from course_lib.grading.notebook import course_of
from course_lib.grading.records import keep
from course_lib.grading.release import release
from course_lib.grading.team import Setting, Task, Tell, graded

__all__ = ["Change", "Row", "Setting", "Tell", "changes", "grade_again", "run_class"]

Row = tuple[str, Submission]


@dataclass(frozen=True)
class Change:
    """What a regrade makes of one learner's exercise."""

    learner: str
    before: float
    after: float
    max_score: float
    submission: Submission
    """The row as it would be written: the other exercises stay as they were."""
    task: Task
    record: list[dict[str, Any]]


def run_class(
    found: Collected, journal: Journal, setting: Setting, tell: Tell | None = None, older: bool = False
) -> list[Row]:
    """Grade what is new, take the rest from the journal; a row for every hand-in and every one that is missing.

    `older`: a row of the same file counts also when the library or the seed has changed since (beside a regrade).
    CourseError only when no grader can be started. On Ctrl-C the hand-ins in progress are finished and kept.
    """
    rows, tasks = _prepare(found, setting)
    todo = []
    for task in tasks:
        known = journal.found(task.key)
        if known is None and older:
            known = journal.last(task.found.learner, task.found.assignment, task.digest)
        if known is None:
            todo.append(task)
        else:
            rows.append((task.found.learner, known))
    folder = journal.path.parent
    setting = replace(setting, cache=_cache(found, folder))
    for task, submission, record, failed in graded(todo, setting, len(tasks), tell, journal):
        if not failed:
            keep(folder, task, submission, record)
            journal.add(task.key, task.found.learner, task.digest, submission)
        rows.append((task.found.learner, submission))
    return sorted(rows, key=lambda row: (row[0].casefold(), row[0], row[1].assignment))


def grade_again(
    found: Collected, journal: Journal, setting: Setting, item: str, assignment: Assignment, tell: Tell | None = None
) -> list[Change]:
    """What grading one exercise anew would make of it, for each that was graded before. Nothing is written."""
    mine = replace_handins(found, [one for one in found.handins if one.assignment == assignment.name])
    tasks, before = [], {}
    for task in _prepare(mine, setting)[1]:
        last = journal.last(task.found.learner, assignment.name, task.digest)
        if last is not None:
            tasks.append(task)
            before[task.found.learner] = last
    if not tasks:
        raise CourseError(f"no hand-in of {assignment.name} was graded here before: leave --regrade out")
    result = []
    setting = replace(setting, cache=_cache(found, journal.path.parent))
    for task, new, record, failed in graded(tasks, setting, len(tasks), tell, journal):
        old = before[task.found.learner]
        fresh = next((one for one in new.items if one.id == item), None)
        if failed or fresh is None:
            reason = "; ".join(new.flags) or new.status
            raise CourseError(f"{task.found.place}: could not be graded anew ({reason}); nothing was written")
        kept = next((one for one in old.items if one.id == item), None)
        items = tuple(fresh if one.id == item else one for one in old.items) + (() if kept else (fresh,))
        score = kept.score if kept else 0.0
        merged = replace(old, items=items)
        result.append(Change(task.found.learner, score, fresh.score, fresh.max_score, merged, task, record))
    return sorted(result, key=lambda one: one.learner.casefold())


def changes(journal: Journal, found: Sequence[Change]) -> None:
    """Write what `grade_again` found: from now on these are the scores."""
    for one in found:
        keep(journal.path.parent, one.task, one.submission, one.record, again=True)
        journal.add(one.task.key, one.learner, one.task.digest, one.submission)


def replace_handins(found: Collected, handins: list[Found]) -> Collected:
    """The same collection with only these hand-ins, and nobody missing."""
    return Collected(handins=handins)


def _cache(found: Collected, folder: Path) -> Path | None:
    """Where graders keep cases for each other: beside the results, unless hand-ins lie there or around them.

    Whoever handed those in may have handed in a cache as well.
    """
    folder = folder.resolve()
    places = [one.path.resolve() for one in found.handins]
    places = [one for one in places if not _unpacked(one, folder)]
    if any(one.is_relative_to(folder) or folder.is_relative_to(one.parent) for one in places):
        return None
    return folder / "cases"


def _unpacked(path: Path, folder: Path) -> bool:
    """Whether it came out of an archive that we unpacked beside the results, where none can write outside its place."""
    return path.is_relative_to(folder) and path.relative_to(folder).parts[0].startswith(".unpacked-")


def _prepare(found: Collected, setting: Setting) -> tuple[list[Row], list[Task]]:
    """The rows that need no grading, and what is to be graded, chapter by chapter."""
    rows: list[Row] = []
    tasks: list[Task] = []
    known: dict[str, tuple[str, str]] = {}
    tier = (setting.tier or best_tier()).name
    for one in sorted(found.handins, key=lambda one: (one.assignment, one.learner)):
        if one.problem or not one.assignment:
            reason = one.problem or "nothing tells which chapter it is of"
            rows.append((one.learner, Submission(one.learner, "unreadable", (), (reason,), one.assignment)))
            continue
        if one.assignment not in known:
            assignment = find_assignment(one.assignment)
            known[one.assignment] = assignment_digest(assignment), course_of(release(assignment)).get("hash", "")
        digest, present = known[one.assignment]
        if one.release and one.release != present and not setting.any_release:
            reason = (
                f"it is of another release of these exercises ({one.release}; here is {present}): "
                "grade it with that copy of the course, or say --any-release"
            )
            rows.append(
                (one.learner, Submission(one.learner, "unreadable", (), (reason,), one.assignment, one.release))
            )
            continue
        content = file_digest(one.path)
        tasks.append(Task(one, key_of(one.learner, content, digest, setting.seed, setting.timeout, tier), content))
    for learner, name in found.missing:
        rows.append((learner, Submission(learner, "missing", (), ("nothing was handed in",), name)))
    return rows, tasks
