"""The commands `grade`, `release`, `execute`, `hint` and `syllabus`: arguments in, exit code out."""

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from course_lib.errors import CourseError
from course_lib.grading.release_cli import release_main, syllabus_main
from course_lib.machine import material_dir, work_dir

if TYPE_CHECKING:
    from course_lib.grading.grade import Submission
    from course_lib.grading.isolation.tiers import Tier

__all__ = ["execute_main", "grade_main", "hint_main", "release_main", "syllabus_main"]


def grade_main(argv: list[str]) -> int:
    """`course grade PATH-OR-CHAPTER...`: exit 0 all passed, 1 some did not, 2 nothing could be graded.

    A folder or an archive is a class: see `class_cli`.
    """
    from course_lib.grading.class_cli import add_class_options, class_main, is_class, results_folder

    parser = argparse.ArgumentParser(
        prog="course grade",
        description="Grade exercise notebooks: your own (by chapter number, or all of them), or those of a class. "
        "What passes in your own ones is marked on the map that `course progress` draws; checks in a notebook mark "
        "nothing there.",
    )
    parser.add_argument(
        "handins",
        nargs="*",
        metavar="PATH-OR-CHAPTER",
        help="a chapter number, a notebook, or a class's folder; nothing: all of work/exercises",
    )
    parser.add_argument("--json", metavar="OUT", help="write the result as JSON to a file; - for stdout")
    parser.add_argument("--timeout", type=float, default=60, metavar="S", help="seconds a cell may take (60)")
    parser.add_argument("--seed", type=int, help="the seed of the graded cases (a notebook's own checks use 0)")
    parser.add_argument("--isolation", metavar="TIER", help="bwrap, unshare, process or plain (the strongest there is)")
    parser.add_argument(
        "--require-isolation", action="store_true", help="grade nothing unless files and network are out of reach"
    )
    parser.add_argument("--html", type=Path, metavar="DIR", help="write web pages: your own, or a class's gradebook")
    parser.add_argument("--gradescope", type=Path, metavar="OUT", help="write Gradescope's results.json (several: DIR)")
    add_class_options(parser)
    options = parser.parse_intermixed_args(argv)  # paths may stand among the options
    if not options.timeout > 0:
        parser.error("--timeout must be above 0")
    from course_lib.grading import own

    others = [one for one in options.handins if not own.is_own_folder(one)]
    classroom = is_class(argparse.Namespace(**{**vars(options), "handins": others}))
    if classroom and not options.handins:
        parser.error("name the folder or the .zip with the hand-ins")
    from course_lib.grading.isolation.tiers import best_tier, tier_named
    from course_lib.grading.report import as_json
    from course_lib.grading.reports_cli import write_own
    from course_lib.grading.table import write_file

    names = options.handins or [str(work_dir() / "exercises")]
    if not options.handins and not any(Path(names[0]).glob("*.ipynb")):
        how = own.how_copied().replace(" it ", " them ")
        raise CourseError(f"{own.short_path(Path(names[0]))}: there are no exercises yet; {how}")
    places = [] if classroom else own.own_places(names)
    tier = tier_named(options.isolation) if options.isolation else best_tier()
    if options.require_isolation and not tier.walls:
        raise CourseError(f"--require-isolation: this machine offers only {tier.name!r} ({tier.what})")
    out = sys.stderr if options.json == "-" else sys.stdout
    print(f"isolation: {tier.name} ({tier.what})", file=out, flush=True)
    if classroom:
        return class_main(options, tier, options.results or results_folder(work_dir(), options.handins), out)
    submissions = _grade_own(options, places, tier, out)
    with own.Alive("writing the reports"):
        lines = write_own(options, submissions)
    for line in lines:
        print(line, file=out)
    result = json.dumps(as_json(submissions), indent=1, ensure_ascii=False) + "\n"
    if options.json == "-":
        sys.stdout.write(result)
    elif options.json:
        write_file(Path(options.json), result)
    graded = [one for one in submissions if one.status.startswith("graded")]
    if not graded:
        return 2
    passed = all(item.status == "passed" for one in graded for item in one.items)
    return 0 if passed and len(graded) == len(submissions) else 1


def _grade_own(
    options: argparse.Namespace, places: list[tuple[str, Path]], tier: "Tier", out: TextIO
) -> list["Submission"]:
    """Grade a learner's own notebooks, report each, and keep each as progress at once: a later one may be stopped."""
    from course_lib.grading import own
    from course_lib.grading.grade import GRADING_SEED, Grader
    from course_lib.grading.progress import keep_progress, kept_line
    from course_lib.grading.report import nothing_tried, text_report

    submissions = []
    notes: dict[str, None] = {}
    seed = GRADING_SEED if options.seed is None else options.seed
    with contextlib.ExitStack() as stack:
        grader: Grader | None = None
        for name, path in places:
            one = own.not_there(name, path) or own.not_begun(name, path, seed, tier.name)
            if one is None:
                with own.Alive(f"grading {name}"):
                    grader = grader or stack.enter_context(Grader(options.seed, options.timeout, tier))
                    one = grader.grade(name, path)
            submissions.append(one)
            if nothing_tried(one) and len(places) > 1:
                print(f"{name}: nothing attempted yet, 0 of {one.max_score:g} points", file=out, flush=True)
            else:
                print(text_report(one, 1200, 80, own.has_hints(one)), file=out, flush=True)
            if one.status == "unreadable" and (way := own.rescue(path)):
                print(f"  {way}", file=out, flush=True)
            notes.update(dict.fromkeys(keep_progress([one], [path])))
    for line in (*notes, *kept_line(places)):
        print(line, file=out)
    return submissions


def execute_main(argv: list[str]) -> int:
    """`course execute NOTEBOOK... | --all`: run notebooks and write them with normalised outputs."""
    parser = argparse.ArgumentParser(
        prog="course execute",
        description="Run notebooks of the course and write them with outputs that are the same on every machine.",
    )
    parser.add_argument("notebooks", nargs="*", type=Path, metavar="NOTEBOOK", help="a path, or a name in solutions/")
    parser.add_argument("--all", action="store_true", help="every chapter and every solution")
    parser.add_argument("--timeout", type=float, default=300, metavar="S", help="seconds a cell may take (300)")
    parser.add_argument("--draft", action="store_true", help="write the notebook even when something must be mended")
    options = parser.parse_args(argv)
    from course_lib.grading.execute import execute

    material = material_dir()
    paths = list(options.notebooks)
    if options.all:
        paths += [path for room in ("notebooks", "solutions") for path in sorted((material / room).glob("*.ipynb"))]
    if not paths:
        parser.error("name a notebook, or say --all")
    failed = 0
    for number, path in enumerate(paths, start=1):
        if not path.exists() and (material / "solutions" / path).exists():
            path = material / "solutions" / path
        print(f"[{number}/{len(paths)}] {path} ...", end=" ", file=sys.stderr, flush=True)
        start = time.perf_counter()
        done = execute(path, options.timeout)
        state = "done" if not done.problems else f"{len(done.problems)} to mend"
        print(f"{state}, {time.perf_counter() - start:.1f} s", file=sys.stderr)
        for problem in done.problems:
            print(f"{path.name}: {problem}")
        failed += bool(done.problems)
        if options.draft or not done.problems:
            path.write_bytes(done.content)
    return 1 if failed else 0


def hint_main(argv: list[str]) -> int:
    """`course hint 03.2 [--level N]`: the first hint, or hints 1 to N."""
    parser = argparse.ArgumentParser(
        prog="course hint", description="Hints for an exercise: the idea; where; pseudo-code."
    )
    parser.add_argument("exercise", help="its place (03.2) or its id (unequal-tokens)")
    parser.add_argument("--level", type=int, choices=(1, 2, 3), default=1, help="how much to tell (1)")
    options = parser.parse_args(argv)
    from course_lib.grading.own import exercise_named
    from course_lib.grading.report import to_type

    item = exercise_named(options.exercise)
    if not item.hints:
        raise CourseError("this copy of the course was given out without hints: ask whoever gave it to you")
    print(f"{item.position} {item.title} ({item.id})")
    for number, hint in enumerate(item.hints[: options.level], start=1):
        print(f"hint {number} of {len(item.hints)}: {hint}")
    if options.level < len(item.hints):
        print(f"More: {to_type(f'hint {item.position} --level {options.level + 1}')}")
    return 0
