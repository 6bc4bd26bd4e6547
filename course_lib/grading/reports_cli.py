"""What `course grade` writes beside its lines: tables, web pages, Gradescope's results."""

import argparse
from collections.abc import Mapping, Sequence

from course_lib.grading.feedback import write_feedback
from course_lib.grading.grade import Submission
from course_lib.grading.gradebook import write_csv, write_gradebook
from course_lib.grading.lms import write_lms
from course_lib.grading.results import write_all_results
from course_lib.grading.roster import Learner
from course_lib.grading.sheets import Course, Row, read_course

__all__ = ["write_class_reports", "write_own"]


def write_own(options: argparse.Namespace, submissions: Sequence[Submission]) -> list[str]:
    """For one learner: `--html DIR`, `--gradescope OUT`. The lines to print."""
    lines = []
    rows = [("", one) for one in submissions]
    if options.html:
        lines.append(f"wrote {write_feedback(options.html, '', submissions, read_course(rows))}")
    if options.gradescope:
        lines += [f"wrote {path}" for path in write_all_results(options.gradescope, rows)]
    return lines


def write_class_reports(
    options: argparse.Namespace,
    rows: Sequence[Row],
    people: Mapping[str, Learner] | None,
    roster: Sequence[Learner] = (),
    ambiguous: Sequence[str] = (),
) -> list[str]:
    """For a class: `--csv F`, `--bom`, `--lms F`, `--html DIR`, `--gradescope DIR`. The lines to print."""
    lines = []
    wanted = options.csv or options.html or options.lms
    course = read_course(rows) if rows and wanted else Course()
    if options.csv:
        write_csv(options.csv, rows, people, course, bom=options.bom)
        lines.append(f"wrote {options.csv}")
    if options.lms:
        write_lms(options.lms, rows, roster, course)
        lines.append(f"wrote {options.lms}")
    if options.html:
        lines.append(f"wrote {write_gradebook(options.html, rows, course, people, ambiguous)}")
    if options.gradescope:
        written = write_all_results(options.gradescope, rows)
        lines.append(f"wrote {len(written)} files to {options.gradescope}")
    return lines
