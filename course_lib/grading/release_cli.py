"""The commands `release` and `syllabus`: arguments in, exit code out."""

import argparse
import sys
from pathlib import Path

from course_lib.errors import CourseError

__all__ = ["release_main", "syllabus_main"]


def release_main(argv: list[str]) -> int:
    """`course release [--check | --class DIR | --nbgrader DIR]`: write exercises/, or what a class or nbgrader gets."""
    parser = argparse.ArgumentParser(
        prog="course release",
        description="Write exercises/ from solutions/; or lay out what a class is given, or nbgrader's source folder.",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--check", action="store_true", help="write nothing; exit 1 when exercises/ is not what it should be"
    )
    what.add_argument(
        "--class",
        dest="bundle",
        type=Path,
        metavar="DIR",
        help="write what a class is given: chapters, exercises, library, start.py; no solutions, hidden tests, history",
    )
    what.add_argument("--nbgrader", type=Path, metavar="DIR", help="write nbgrader's source/ and a configuration")
    parser.add_argument("--hints", action="store_true", help="with --class or --nbgrader: give the hints out too")
    parser.add_argument(
        "--chapters", metavar="LIST", help="with --class or --nbgrader: exercises of these alone, such as 1-4 or 1,3"
    )
    options = parser.parse_args(argv)
    if (options.hints or options.chapters) and not (options.bundle or options.nbgrader):
        parser.error("--hints and --chapters go with --class or --nbgrader")
    from course_lib.grading.bundle import write_class, write_nbgrader
    from course_lib.grading.release import differences, write_release

    if options.bundle or options.nbgrader:
        wanted = chapter_numbers(options.chapters) if options.chapters else None
        write = write_class if options.bundle else write_nbgrader
        folder = options.bundle or options.nbgrader
        for line in write(folder, hints=options.hints, chapters=wanted):
            print(line)
        return 0
    if options.check:
        found = differences()
        for line in found:
            print(line)
        if found:
            print("run `course release`")
        return 1 if found else 0
    for path in write_release():
        print(f"wrote exercises/{path.name}")
    return 0


def chapter_numbers(text: str) -> list[int]:
    """[1, 2, 3, 7] for "1-3,7". CourseError when it says no such thing."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        if not first.isdigit() or (dash and not last.isdigit()):
            raise CourseError(f"--chapters: {text!r} names no chapters; write 1-4 or 1,3,7")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers or numbers[-1] > 99:
            raise CourseError(f"--chapters: {part.strip()!r} holds no chapter")
        found.update(numbers)
    return sorted(found)


def syllabus_main(argv: list[str]) -> int:
    """`course syllabus [--weeks N]`: chapters with their exercises, points, minutes and claims; or a plan by weeks."""
    parser = argparse.ArgumentParser(
        prog="course syllabus", description="Chapters, exercises, points, minutes, claims; or a plan of a semester."
    )
    parser.add_argument("--weeks", type=int, metavar="N", help="lay the course out over N weeks")
    parser.add_argument("--chapters", metavar="LIST", help="these alone, such as 0-6,15")
    parser.add_argument("--markdown", action="store_true", help="as tables for a web page")
    options = parser.parse_args(argv)
    if options.weeks is not None and not 1 <= options.weeks <= 60:
        parser.error("--weeks must be from 1 to 60")
    from course_lib.grading.syllabus import as_lines, as_markdown, read_syllabus

    wanted = chapter_numbers(options.chapters) if options.chapters else None
    syllabus = read_syllabus(wanted)
    lines = as_markdown(syllabus, options.weeks) if options.markdown else as_lines(syllabus, options.weeks)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0
