"""What learner code is given of a case: what `run` reads, and nothing that only the judge needs."""

import copy
from typing import Any

import pytest
from mutants import chapters, exercises, references

from course_lib.checks.core import Exercise, evaluate
from course_lib.checks.guard import steady
from course_lib.grading.grade import GRADING_SEED
from course_lib.machine import material_dir


class Watched(dict[str, Any]):
    """A case that notes which of its keys are read."""

    def __init__(self, case: dict[str, Any]) -> None:
        super().__init__(case)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def items(self) -> Any:
        self.read |= set(self)
        return super().items()


@pytest.mark.slow
@pytest.mark.parametrize("chapter", chapters())
def test_a_case_that_leaves_the_grader_holds_what_run_reads_alone(chapter: str) -> None:
    """What nobody reads there is for the judge, so likely what is right: a hand-in could read it from its file."""
    answers = references(chapter, material_dir() / "solutions")
    for name, exercise in exercises(chapter).items():
        unread = None
        for case in exercise.cases(GRADING_SEED):
            watched = Watched(copy.deepcopy(exercise.given(case)))
            with steady(quiet=True):
                exercise.run(answers[name], watched)
            left = set(watched) - watched.read - {"name"}
            unread = left if unread is None else unread & left
        assert not unread, f"{name}: give its Exercise of_judge={tuple(sorted(unread))}"


def test_what_is_the_judges_alone_does_not_reach_an_answer() -> None:
    seen: list[dict[str, Any]] = []

    def run(answer: Any, case: dict[str, Any]) -> int:
        seen.append(case)
        return 5

    right = {"name": "one", "n": 1, "right": 5}
    exercise = Exercise("x", "x", lambda seed: [right], run, lambda case, returned: None, of_judge=("right",))
    assert evaluate(exercise, len).status == "passed" and seen == [{"name": "one", "n": 1}]
