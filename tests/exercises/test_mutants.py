"""Every check fails the plausible wrong answers, each with its misconception, and passes other right ones."""

import time
from collections import Counter
from typing import Any

import pytest
from mutants import Answer, answers, chapters, chapters_with_checks, exercises, references

from course_lib.checks.core import Exercise, evaluate, pack
from course_lib.grading.grade import GRADING_SEED
from course_lib.machine import material_dir

SEEDS = (0, 11, GRADING_SEED)
"""What a notebook, another grader and this grader use: check and grade have to agree."""
STATED = [(chapter, name, answer) for chapter in chapters() for name, answer in answers(chapter).items()]
EXERCISES = [(chapter, exercise) for chapter in chapters() for exercise in exercises(chapter).values()]


def test_every_chapter_with_checks_has_stated_answers() -> None:
    assert chapters_with_checks() == chapters()


@pytest.mark.parametrize(
    ("chapter", "name", "answer", "seed"),
    [
        pytest.param(chapter, name, answer, seed, id=f"{chapter}-{name}-{seed}")
        for seed in SEEDS
        for chapter, name, answer in STATED
        if not answer.once or seed == SEEDS[0]
    ],
)
def test_answer(chapter: str, name: str, answer: Answer, seed: int) -> None:
    assert name.startswith("right_" if answer.correct else "wrong_"), "name answers right_* or wrong_*"
    outcome = evaluate(exercises(chapter)[answer.exercise], answer.value, seed)
    if answer.correct:
        assert outcome.status == "passed", outcome.line
    else:
        assert outcome.status == "failed", f"a wrong answer passed: {outcome.line}"
        assert outcome.misconception == answer.misconception, outcome.line
        assert answer.says in outcome.line


@pytest.mark.parametrize(("chapter", "exercise"), EXERCISES, ids=[exercise.id for _, exercise in EXERCISES])
class TestExercise:
    def test_has_enough_answers(self, chapter: str, exercise: Exercise) -> None:
        stated = [answer for answer in answers(chapter).values() if answer.exercise == exercise.id]
        smells = Counter(answer.misconception for answer in stated if not answer.correct and answer.misconception)
        assert len(smells) >= 3, f"needs wrong answers of three misconceptions, has {dict(smells)}"
        assert any(answer.correct for answer in stated), "needs another right answer"
        assert set(smells) <= set(exercise.misconceptions), "a misconception without its sentence"

    @pytest.mark.parametrize("seed", SEEDS)
    def test_the_reference_passes_and_quickly(self, chapter: str, exercise: Exercise, seed: int) -> None:
        found = reference(chapter)
        if not found:
            pytest.skip(f"there is no solutions/{chapter}_*.ipynb yet")
        start = time.perf_counter()
        outcome = evaluate(exercise, found[exercise.id], seed)
        assert outcome.status == "passed", outcome.line
        assert time.perf_counter() - start < 10

    def test_cases_depend_on_the_seed_alone(self, chapter: str, exercise: Exercise) -> None:
        first, again, other = exercise.cases(0), exercise.cases(0), exercise.cases(1)
        assert repr(pack(first)) == repr(pack(again)), "the same seed gives the same cases"
        names = [case["name"] for case in first]
        assert names == [case["name"] for case in other], "cases keep their names for every seed"
        assert len(set(names)) == len(names) and all(0 < len(name) <= 80 for name in names)

    def test_blank_is_not_attempted_and_nonsense_fails(self, chapter: str, exercise: Exercise) -> None:
        def stub(*args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError()

        assert evaluate(exercise, None).status == "not_attempted"
        for nonsense in (stub, 5, "x", {}, lambda *args, **kwargs: None, {"variant": "x"}, {"variant": 10**9}):
            assert evaluate(exercise, nonsense).status in ("failed", "not_attempted")


_REFERENCES: dict[str, dict[str, Any]] = {}


def reference(chapter: str) -> dict[str, Any]:
    if chapter not in _REFERENCES:
        _REFERENCES[chapter] = references(chapter, material_dir() / "solutions")
    return _REFERENCES[chapter]
