"""`course grade HANDINS/`: a class, from its folder to its table."""

import argparse
import json
import re
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Any, TextIO

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, Item, find_assignment, find_item
from course_lib.grading.class_run import Change, Row, Setting, changes, grade_again, run_class
from course_lib.grading.class_seed import class_seed
from course_lib.grading.collect import Collected, collect
from course_lib.grading.decisions import DECISIONS, read_decisions
from course_lib.grading.grade import Submission
from course_lib.grading.isolation.tiers import Tier
from course_lib.grading.journal import Journal
from course_lib.grading.overrides import Override, apply_overrides, by_roster, read_overrides, unused_overrides
from course_lib.grading.report import as_json
from course_lib.grading.reports_cli import write_class_reports
from course_lib.grading.roster import Learner, fold, read_roster
from course_lib.grading.sheets import plain
from course_lib.grading.table import write_file
from course_lib.machine import usable_cores

__all__ = [
    "LISTED",
    "ProgressBar",
    "add_class_options",
    "class_json",
    "class_lines",
    "class_main",
    "is_class",
    "results_folder",
]

LISTED = 60
"""The rows that a terminal is shown all of."""


def add_class_options(parser: argparse.ArgumentParser) -> None:
    """The options of `course grade` that are of a class alone."""
    group = parser.add_argument_group("a class", "a folder or .zip of hand-ins, in any layout")
    group.add_argument("--roster", type=Path, metavar="CSV", help="the class list: id, name, email")
    group.add_argument("--jobs", type=int, metavar="N", help="hand-ins graded at once (the cores there are)")
    group.add_argument("--csv", type=Path, metavar="F", help="write a table for a spreadsheet or a learning platform")
    group.add_argument("--bom", action="store_true", help="with --csv: the mark by which Excel knows that it is UTF-8")
    group.add_argument(
        "--lms",
        type=Path,
        metavar="F",
        help="write a row a learner, a column a chapter, for the gradebook of Canvas, Moodle and others",
    )
    group.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help="where the journal, records, overrides.csv and files.csv lie (work/grading/NAME)",
    )
    group.add_argument(
        "--overrides", type=Path, metavar="CSV", help="student,item,points,reason (RESULTS/overrides.csv)"
    )
    group.add_argument("--regrade", metavar="ITEM", help="grade one exercise anew and show who changes by how much")
    group.add_argument("--yes", action="store_true", help="with --regrade: write it without asking")
    group.add_argument(
        "--any-release", action="store_true", help="grade hand-ins of another release against the present one"
    )


def is_class(options: argparse.Namespace) -> bool:
    """Whether hand-ins of a class are meant: a folder or an archive is named, or an option of a class is given."""
    named = any(Path(one).is_dir() or one.lower().endswith(".zip") for one in options.handins)
    given = ("roster", "jobs", "csv", "lms", "results", "overrides", "regrade", "yes", "any_release")
    return named or any(getattr(options, name) for name in given)


def results_folder(work: Path, handins: Sequence[str]) -> Path:
    """Where a class's results lie when nobody says it: by the name and the place of its folder."""
    first = Path(handins[0]).resolve()
    name = re.sub(r"[^\w.-]+", "_", first.name).strip("._") or "class"
    return work / "grading" / f"{name}-{sha256(str(first).encode('utf-8', 'replace')).hexdigest()[:6]}"


@dataclass
class ProgressBar:
    """A line on a terminal with the time left; elsewhere a line every half minute."""

    file: TextIO
    width: int = 24
    every: float = 30.0
    start: float = field(default_factory=time.monotonic)
    _first: int | None = None
    _last: float = 0.0

    def __call__(self, done: int, total: int, learner: str) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first, self._last = done if not learner else done - 1, now
        if not self.file.isatty():
            if now - self._last >= self.every:
                self._last = now
                print(f"{done} of {total} graded{self._left(done, total, now)}", file=self.file, flush=True)
            return
        full = self.width * done // max(total, 1)
        name = "".join(one if one.isprintable() else "?" for one in learner)[:24]
        line = f"[{'#' * full}{'.' * (self.width - full)}] {done}/{total}{self._left(done, total, now)}  {name}"
        print(f"\r\x1b[K{line[:110]}", file=self.file, end="", flush=True)

    def _left(self, done: int, total: int, now: float) -> str:
        graded = done - (self._first or 0)
        if graded < 1 or done >= total:
            return ""
        seconds = (now - self.start) / graded * (total - done)
        return f", {seconds / 60:.0f} min left" if seconds >= 90 else f", {seconds:.0f} s left"

    def close(self) -> None:
        if self.file.isatty():
            print("\r\x1b[K", file=self.file, end="", flush=True)


def class_main(options: argparse.Namespace, tier: Tier, folder: Path, out: TextIO) -> int:
    """Collect, grade or regrade, and write what was asked for: exit 0 all passed, 1 some did not, 2 nothing graded."""
    _refuse(options)
    roster = read_roster(options.roster) if options.roster else None
    overrides = by_roster(read_overrides(options.overrides or folder / "overrides.csv"), roster)
    decisions = read_decisions(folder / DECISIONS)
    jobs = options.jobs or usable_cores()
    with (
        Journal(folder) as journal,
        collect(options.handins, roster, results=folder, decisions=decisions) as found,
    ):
        seed, said = class_seed(folder, options.seed)
        print(said, file=out)
        setting = Setting(jobs, seed, options.timeout, tier, options.any_release)
        for line in _noticed(found, folder):
            print(line, file=out)
        if journal.damaged:
            print(f"note: {journal.path}: {journal.damaged} damaged lines were skipped", file=out)
        out.flush()
        if options.regrade:
            written = _regrade(options, found, journal, setting, overrides, out)
            if not written:
                return 1
        bar = ProgressBar(sys.stderr)
        try:
            rows = run_class(found, journal, setting, bar, older=bool(options.regrade))
        except KeyboardInterrupt:
            print(f"what was graded is kept in {folder}; the same command goes on there", file=out, flush=True)
            raise
        finally:
            bar.close()
    rows = [(learner, _overridden(learner, one, overrides)) for learner, one in rows]
    people = {one.id: one for one in roster or ()}
    for line in [*class_lines(rows, people), *(f"note: {line}" for line in unused_overrides(rows, overrides))]:
        print(line, file=out)
    count = {name: sum(one.status == name for _, one in rows) for name in dict.fromkeys(one.status for _, one in rows)}
    print("; ".join(f"{number} {name}" for name, number in count.items()), file=out)
    print(f"results: {folder}", file=out, flush=True)
    for line in write_class_reports(options, rows, people, roster or (), found.ambiguous):
        print(line, file=out)
    result = json.dumps(class_json(rows, found), indent=1, ensure_ascii=False) + "\n"
    if options.json == "-":
        sys.stdout.write(result)
    elif options.json:
        write_file(Path(options.json), result)
        print(f"wrote {options.json}", file=out)
    graded = [one for _, one in rows if one.status.startswith("graded")]
    if not graded:
        return 2
    passed = all(item.status == "passed" for one in graded for item in one.items)
    return 0 if passed and len(graded) == len(rows) and not found.ambiguous else 1


def _refuse(options: argparse.Namespace) -> None:
    """CourseError for what cannot be meant, before anything is written."""
    if options.jobs is not None and options.jobs < 1:
        raise CourseError("--jobs must be 1 or more")
    if options.bom and not options.csv:
        raise CourseError("--bom goes with --csv")
    if options.yes and not options.regrade:
        raise CourseError("--yes goes with --regrade")
    if options.overrides and not options.overrides.is_file():
        raise CourseError(f"{options.overrides}: there is no such file")
    for name in options.handins:
        if not Path(name).exists():
            raise CourseError(f"{name}: there is no such file or folder")


def _noticed(found: Collected, folder: Path) -> list[str]:
    lines = [f"note: {line}" for line in found.notes] + [f"ambiguous: {line}" for line in found.ambiguous]
    if found.ambiguous:
        lines.append(
            f"to settle what is ambiguous, write {folder / DECISIONS}: a head `file,student`, then a line a file; "
            "one without a student is left out"
        )
    return lines


def _overridden(learner: str, one: Submission, overrides: Sequence[Override]) -> Submission:
    assignment: Assignment | None = None
    with suppress(CourseError):
        assignment = find_assignment(one.assignment) if one.assignment else None
    return apply_overrides(learner, one, overrides, assignment)


def _regrade(
    options: argparse.Namespace,
    found: Collected,
    journal: Journal,
    setting: Setting,
    overrides: Sequence[Override],
    out: TextIO,
) -> bool:
    """Show who changes by how much; whether it was written."""
    assignment, item = find_item(options.regrade)
    bar = ProgressBar(sys.stderr)
    try:
        again = grade_again(found, journal, setting, item.id, assignment, bar)
    except KeyboardInterrupt:
        print("the regrade was stopped: nothing was written, and the same command begins it anew", file=out, flush=True)
        raise
    finally:
        bar.close()
    moved = [one for one in again if one.before != one.after]
    print(f"{item.position} {item.id}: {len(moved)} of {len(again)} change", file=out)
    for one in moved:
        print(
            f"  {one.learner}: {one.before:g} -> {one.after:g} of {one.max_score:g}{_by_hand(one, item, overrides)}",
            file=out,
        )
    out.flush()
    if not options.yes and moved:
        if not sys.stdin.isatty():
            print("nothing was written; say --yes to write it", file=out)
            return False
        print("write this? [y/N] ", file=sys.stderr, end="", flush=True)
        if input().strip().lower() not in ("y", "yes"):
            print("nothing was written", file=out)
            return False
    changes(journal, again)
    return True


def _by_hand(change: Change, item: Item, overrides: Sequence[Override]) -> str:
    names = (item.id, item.position, item.position.lstrip("0"))
    mine = [one for one in overrides if one.student.casefold() == change.learner.casefold()]
    hit = next((one for one in mine if one.item.casefold() in names), None)
    return f" ({hit.points:g} set by hand stays)" if hit else ""


def class_lines(rows: Sequence[Row], people: Mapping[str, Learner]) -> list[str]:
    """A line a row; of a large class those that a person has to look at, and where the others are."""
    shown = list(rows)
    if len(rows) > LISTED:
        shown = [(who, one) for who, one in rows if one.status not in ("graded", "missing") or one.flags]
        shown = [(who, one) for who, one in shown if one.status != "missing" or one.items]
    lines = [_line(learner, one, people.get(learner)) for learner, one in shown]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} rows without a note are not listed here: --csv and --html have all")
    return lines


def _line(learner: str, one: Submission, person: Learner | None) -> str:
    """A row for the terminal, with the name where the id does not tell it."""
    who = f"{learner} {person.name}" if person and fold(person.name) not in ("", fold(learner)) else learner
    score = f"{one.score:g}/{one.max_score:g}" if one.items else "-"
    text = f"{plain(who, 60):<28} {one.assignment:<29} {one.status:<20} {score:>7}"
    if not one.items:
        return f"{text}  {'; '.join(one.flags)}"
    return text + (f"  {len(one.flags)} note{'s' * (len(one.flags) > 1)}" if one.flags else "")


def class_json(rows: Sequence[Row], found: Collected) -> dict[str, Any]:
    """As for one learner, with the chapter of each, and what was not sure."""
    result = as_json([replace(one, name=learner) for learner, one in rows])
    for entry, (_, one) in zip(result["submissions"], rows, strict=True):
        entry["assignment"] = one.assignment
    return result | {"ambiguous": list(found.ambiguous), "notes": list(found.notes)}
