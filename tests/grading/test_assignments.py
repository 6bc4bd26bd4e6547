"""Every assignment: exercises/ is what solutions/ release; solutions get full marks, untouched exercises none."""

import json
from pathlib import Path

import pytest

from course_lib.grading.assignment import all_assignments
from course_lib.grading.cli import grade_main
from course_lib.grading.release import differences
from course_lib.machine import material_dir

SOLUTIONS = sorted((material_dir() / "solutions").glob("*.ipynb"))


def test_exercises_are_what_solutions_release() -> None:
    assert differences() == [], "run `course release`"


def test_ids_are_unique_in_the_course() -> None:
    ids = [item.id for assignment in all_assignments() for item in assignment.items]
    assert len(set(ids)) == len(ids)


@pytest.mark.slow
@pytest.mark.parametrize("path", SOLUTIONS, ids=[path.stem for path in SOLUTIONS])
def test_solutions_get_full_marks_and_untouched_exercises_none(path: Path, tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    exercise = material_dir() / "exercises" / path.name
    assert grade_main([str(path), str(exercise), "--json", str(result)]) == 1
    solved, untouched = json.loads(result.read_text(encoding="utf-8"))["submissions"]
    assert {item["status"] for item in solved["items"]} == {"passed"}, solved["items"]
    assert solved["score"] == solved["max_score"] > 0 and solved["flags"] == []
    assert {item["status"] for item in untouched["items"]} == {"not_attempted"}, untouched["items"]
    assert untouched["score"] == 0 and untouched["flags"] == []
