"""Points by hand: read from any table, laid over a row, never lost."""

from pathlib import Path

import pytest

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.overrides import Override, apply_overrides, by_roster, read_overrides, unused_overrides
from course_lib.grading.roster import Learner

ROW = Submission(
    "ann",
    "graded",
    (
        GradedItem("double", "03.1", "The double", "failed", 0.0, 1.0, "wrong"),
        GradedItem("total", "03.2", "The total", "passed", 2.0, 2.0, "fine"),
    ),
    ("a flag",),
)


@pytest.mark.parametrize("item", ["double", "03.1", "3.1", "Double"])
def test_points_take_the_place_of_the_computed_ones(item: str) -> None:
    found = apply_overrides("ann", ROW, [Override("ANN", item, 0.5, "half right"), Override("bob", item, 9, "")], None)
    assert found.score == 2.5 and found.items[1] == ROW.items[1] and found.items[0].status == "failed"
    assert found.flags == ("a flag", "double: 0.5 points by hand in place of 0: half right")
    assert found.items[0].message == "wrong (points set by hand)"


def test_a_missing_hand_in_gets_the_exercise(fixture_assignment: Assignment) -> None:
    row = Submission("ann", "missing", (), ("nothing was handed in",), "90_fixture")
    found = apply_overrides("ann", row, [Override("ann", "pick", 3, "on paper")], fixture_assignment)
    assert (found.score, found.max_score, found.status) == (3, 3, "missing")
    assert apply_overrides("ann", row, [Override("ann", "nothing", 3, "")], fixture_assignment) == row


def test_what_fits_nobody_is_told() -> None:
    lines = unused_overrides(
        [("ann", ROW)], [Override("ann", "3.1", 1, ""), Override("ann", "x", 1, "", 3), Override("b", "x", 1, "", 4)]
    )
    assert len(lines) == 2 and "line 3" in lines[0] and "no hand-in of 'b'" in lines[1]


def test_more_points_than_there_are_count_and_are_told() -> None:
    overrides = [Override("ann", "3.1", 7, "a bonus", 2), Override("ann", "3.2", 2, "", 3)]
    row = apply_overrides("ann", ROW, overrides, None)
    assert row.score == 9
    (line,) = unused_overrides([("ann", row)], overrides)
    assert "line 2: 7 points are more than the 1 of double" in line


def test_a_student_may_be_written_as_the_class_list_has_them() -> None:
    roster = [Learner("u1", "Ann Lee", "ann@uni.edu"), Learner("u2", "Bo Lee", "bo@uni.edu")]
    written = [Override(name, "3.1", 1, "", line) for line, name in enumerate(("Lee, Ann", "bo@uni.edu", "Lee", "zed"))]
    assert [one.student for one in by_roster(written, roster)] == ["u1", "u2", "Lee", "zed"]
    assert by_roster(written, None) == written
    with pytest.raises(CourseError, match="line 5 repeats the student and item of line 4"):
        by_roster([Override("u1", "3.1", 1, "", 4), Override("Ann Lee", "3.1", 2, "", 5)], roster)


def test_reading(tmp_path: Path) -> None:
    path = tmp_path / "overrides.csv"
    assert read_overrides(path) == []
    path.write_text("", encoding="utf-8")
    assert read_overrides(path) == []
    path.write_bytes('Points;Student;Item;Reason\r\n0,5;ann;03.1;"half; nearly"\r\n'.encode("utf-16"))
    assert read_overrides(path) == [Override("ann", "03.1", 0.5, "half; nearly", 2)]


@pytest.mark.parametrize(
    ("row", "what"),
    [
        ("ann,double,many,x", "line 2: points must be"),
        ("ann,double,-1,x", "line 2: points must be"),
        ("ann,double,nan,x", "line 2: points must be"),
        ("ann,,1,x", "line 2 needs"),
        ("ann,double,1,x\nAnn,double,2,y", "line 3 repeats"),
    ],
)
def test_what_is_not_clear_is_refused(tmp_path: Path, row: str, what: str) -> None:
    path = tmp_path / "overrides.csv"
    path.write_text(f"student,item,points,reason\n{row}\n", encoding="utf-8")
    with pytest.raises(CourseError, match=what):
        read_overrides(path)
    path.write_text(f"{row}\n", encoding="utf-8")
    with pytest.raises(CourseError, match="must name the columns"):
        read_overrides(path)
