"""Hand-ins graded end to end: nbval in a process of its own, the verdict in another."""

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest
from grading_fixture import answer, cell_of, right
from nbformat.v4 import new_code_cell

from course_lib.grading.assignment import Assignment
from course_lib.grading.cli import grade_main
from course_lib.grading.grade import Submission, grade_handin
from course_lib.grading.judge import Judge


@pytest.fixture(scope="module")
def judge(fixture_assignment: Assignment) -> Iterator[Judge]:
    with Judge(fixture_assignment.checks) as found:
        yield found


@pytest.fixture
def graded(judge: Judge, hand_in: Callable[..., Path]) -> Callable[..., Submission]:
    def grade(notebook: Any, **options: Any) -> Submission:
        path = hand_in(notebook)
        return grade_handin(str(path), path, lambda assignment: judge, **options)

    return grade


def statuses(submission: Submission) -> dict[str, str]:
    return {item.id: item.status for item in submission.items}


def message(submission: Submission, name: str) -> str:
    return next(item.message for item in submission.items if item.id == name)


def test_right_answers_get_full_marks(graded: Callable[..., Submission], solved: Any) -> None:
    found = graded(solved)
    assert set(statuses(found).values()) == {"passed"} and (found.score, found.max_score) == (10, 10)
    assert found.flags == ()


def test_untouched_is_not_attempted(graded: Callable[..., Submission], released: Any) -> None:
    found = graded(released)
    assert set(statuses(found).values()) == {"not_attempted"} and found.score == 0
