"""Reports of hand-ins that are made up: nothing in them runs, nothing in them is a formula, and the numbers add up."""

import argparse
import csv
import io
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from course_lib.grading.assignment import Assignment
from course_lib.grading.feedback import page_name, write_feedback
from course_lib.grading.grade import GradedItem, Submission
from course_lib.grading.gradebook import csv_rows, outcome_bars, score_bars, write_csv, write_gradebook
from course_lib.grading.pages import render
from course_lib.grading.report import as_json, text_report
from course_lib.grading.reports_cli import write_class_reports, write_own
from course_lib.grading.results import as_results, write_all_results, write_results
from course_lib.grading.roster import Learner
from course_lib.grading.sheets import Course, Row, outcome, plain, read_course, reason, sheets, smells
from course_lib.grading.table import csv_text

NASTY = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&{{ 7 * 7 }}{% raw %}\x1b[31mred\x07\u202eabc\0\ud800"
FORMULA = '=HYPERLINK("http://example.com";"x")'
POINTS = {"double": 1.0, "total": 2.0, "pick": 3.0, "largest": 4.0}


def item(name: str, status: str, message: str = "", score: float | None = None, **more: Any) -> GradedItem:
    number = list(POINTS).index(name) + 1
    points = (POINTS[name] if status == "passed" else 0.0) if score is None else score
    return GradedItem(name, f"90.{number}", f"The {name}", status, points, POINTS[name], message, **more)


def handed_in(*statuses: str, **more: Any) -> Submission:
    items = tuple(
        item(name, status, f"what {name} gave is wrong") for name, status in zip(POINTS, statuses, strict=True)
    )
    return Submission("x.ipynb", "graded", items, **{"assignment": "90_fixture", "seed": 20_611, **more})


ALL = handed_in(*["passed"] * 4)
NONE = handed_in(*["not_attempted"] * 4)
EMPTY = Submission("x", "unreadable", flags=("/srv/class/li/90.ipynb: is an empty file",), assignment="90_fixture")
ABSENT = Submission("x", "missing", assignment="90_fixture")


def smelling(name: str, misconception: str) -> Submission:
    wrong = item(name, "failed", f"case 1 of 3: not so [{misconception}]", misconception=misconception, case=1)
    return Submission("x", "graded", (wrong,), assignment="90_fixture")


class Page(HTMLParser):
    """Tags with their attributes, and the text."""

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self._inside = ""
        self.source = path.read_text(encoding="utf-8")
        self.feed(self.source)
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else self._inside

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            self.scripts.append(data)
        elif self._inside != "style":
            self.words.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))


# ---------------------------------------------------------------- tables


def test_one_row_a_hand_in_with_status_points_reason_and_flags_apart(tmp_path: Path) -> None:
    flagged = handed_in("passed", "failed", "timeout", "missing", flags=("total: printed, but recorded nothing",))
    rows: list[Row] = [("ann", ALL), ("bob", flagged), ("li", EMPTY), ("mo", ABSENT)]
    write_csv(tmp_path / "new" / "grades.csv", rows)
    found = read_csv(tmp_path / "new" / "grades.csv")
    assert [row["student"] for row in found] == ["ann", "bob", "li", "mo"]
    assert [row["status"] for row in found] == ["graded", "graded", "unreadable", "missing"]
    assert [(row["score"], row["max_score"]) for row in found] == [("10", "10"), ("1", "10"), ("0", "10"), ("0", "10")]
    assert [row["pick"] for row in found] == ["3", "0", "0", "0"]
    assert [row["reason"] for row in found] == ["", "", "90.ipynb: is an empty file", ""]
    assert [row["flags"] for row in found] == ["", "total: printed, but recorded nothing", "", ""]


def test_several_chapters_share_a_table_and_the_class_list_adds_names(tmp_path: Path) -> None:
    other = Submission(
        "y", "graded", (GradedItem("sum", "91.1", "Sum", "passed", 1.5, 1.5, ""),), assignment="91_other"
    )
    people = {"7": Learner("7", 'Zoë, the "first"', "z@example.com")}
    write_csv(tmp_path / "grades.csv", [("7", other), ("7", ALL), ("8", ALL)], people, bom=True)
    assert (tmp_path / "grades.csv").read_bytes().startswith(b'\xef\xbb\xbf"student","name","email","assignment"')
    first, second, third = read_csv(tmp_path / "grades.csv")
    assert (first["name"], first["email"], third["name"]) == ('Zoë, the "first"', "z@example.com", "")
    assert (first["sum"], first["double"], first["max_score"]) == ("1.5", "", "1.5")
    assert (second["sum"], second["double"], second["max_score"]) == ("", "1", "10")


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=12), st.text(max_size=12))
def test_no_field_is_a_formula_however_a_spreadsheet_cuts_it(learner: str, flag: str) -> None:
    """Also cut at semicolons, where Excel's separator is one: quotes protect a field from its own separator alone."""
    one = handed_in("passed", "passed", "failed", "failed", flags=(flag, FORMULA))
    for row in csv_rows([("=" + learner, one), (learner, one)])[1:]:
        line = csv_text([row])
        for separator in (",", ";", "\t"):
            for cells in csv.reader(io.StringIO(line, newline=""), delimiter=separator):
                for cell in cells:
                    bare = cell.strip().strip('"').strip()
                    assert not bare.startswith(("=", "+", "-", "@")), (separator, line)


def test_sheets_sort_chapters_and_keep_what_has_none(fixture_assignment: Assignment) -> None:
    lost = Submission("z", "unreadable", flags=("z: is no notebook",))
    other = Submission("y", "graded", (GradedItem("sum", "9.1", "Sum", "passed", 1, 1, ""),), assignment="09_other")
    found = sheets([("a", ALL), ("b", lost), ("a", other)])
    assert [(one.name, len(one.rows)) for one in found] == [("09_other", 1), ("90_fixture", 1), ("", 1)]
    (alone,) = sheets([("a", ALL), ("b", lost)])
    assert len(alone.rows) == 2 and alone.max_score == 10
    (nobody,) = sheets([("a", ABSENT)], Course(assignments=(fixture_assignment,)))
    assert [column.id for column in nobody.columns] == list(POINTS) and nobody.title == "Chapter 90: fixture"
    old = Submission("x", "graded", ALL.items)
    assert sheets([("a", old)], Course(assignments=(fixture_assignment,)))[0].name == "90_fixture"


def test_exercises_stand_in_their_order_also_from_the_tenth_on() -> None:
    items = tuple(GradedItem(f"e{n}", f"15.{n}", "", "passed", 1, 1, "") for n in (10, 2, 1))
    (sheet,) = sheets([("a", Submission("x", "graded", items, assignment="15_scale"))])
    assert [column.position for column in sheet.columns] == ["15.1", "15.2", "15.10"]


@pytest.mark.parametrize(
    ("status", "score", "expected"),
    [
        ("passed", 3, "passed"),
        ("failed", 3, "passed"),
        ("failed", 1, "partly"),
        ("passed", 0, "failed"),
        ("timeout", 0, "timeout"),
        ("kernel_died", 0, "kernel_died"),
        ("strange", 0, "failed"),
    ],
)
def test_points_set_by_hand_decide_the_outcome(status: str, score: float, expected: str) -> None:
    assert outcome(item("pick", status, score=score)) == expected


def test_histograms_count_every_hand_in_once() -> None:
    half = handed_in("passed", "failed", "timeout", "passed")
    (sheet,) = sheets([("a", ALL), ("b", NONE), ("c", half), ("d", EMPTY), ("e", ABSENT)])
    bars = {bar.label: bar.count for bar in outcome_bars(sheet, "total")}
    assert bars == {"passed": 1, "wrong": 1, "not tried": 1, "no answer": 1}, "who handed in nothing is not counted"
    shares = [bar.count for bar in score_bars(sheet)]
    assert shares == [2, 0, 0, 0, 0, 1, 0, 0, 0, 1], "5 of 10 points lie in the bar of 50%, full marks in the last"


def test_the_commonest_misconceptions_first_and_a_learner_once() -> None:
    rows = [
        ("a", smelling("double", "adds-instead")),
        ("a", smelling("double", "adds-instead")),
        ("b", smelling("double", "adds-instead")),
        ("b", smelling("pick", "takes-the-first")),
    ]
    assert smells(rows) == [("adds-instead", "double", 2), ("takes-the-first", "pick", 1)]


def test_the_sentences_of_misconceptions_come_from_the_checks(fixture_assignment: Assignment) -> None:
    course = read_course([("a", smelling("double", "adds-instead"))])
    assert course.belief("double", "adds-instead") == "Twice is plus two."
    assert course.belief("double", "no-such") == "" and course.belief("largest", "adds-instead") == ""
    assert read_course([("a", ALL)]).beliefs == {}, "without one no process is started"


# ---------------------------------------------------------------- pages


@pytest.fixture
def nasty_rows() -> list[Row]:
    wrong = item("double", "failed", NASTY, misconception="adds-instead")
    bad = Submission("x", "graded_with_problems", (wrong, *ALL.items[1:]), (NASTY, FORMULA), assignment="90_fixture")
    broken = Submission("y", "unreadable", flags=(f"{NASTY}: is no notebook",), assignment="90_fixture")
    return [(NASTY, bad), ("ann", ALL), ("li" + NASTY, broken), ("mo", ABSENT)]


def test_nothing_from_a_hand_in_is_markup(tmp_path: Path, nasty_rows: list[Row]) -> None:
    index = write_gradebook(tmp_path, nasty_rows, Course())
    pages = [index, *sorted((tmp_path / "feedback").iterdir())]
    assert len(pages) == 5
    for path in pages:
        page = Page(path)
        assert len(page.named("script")) == (path == index) and not page.named("img"), path
        assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on") or name == "style"]
        assert not [mark for mark in ("\x1b", "\x07", "\u202e", "\0", "49{") if mark in page.source]
        links = [attrs["href"] for attrs in page.named("a")]
        assert all(re.fullmatch(r"feedback/[a-z0-9_-]+\.html|#[a-z0-9-]+", str(link)) for link in links)
    text = Page(index).text
    assert "<script>alert(1)</script><img src=x onerror=alert(2)>" in text and "{{ 7 * 7 }}{% raw %}" in text


def test_pages_load_nothing_and_their_policy_allows_their_own_script_alone(
    tmp_path: Path, nasty_rows: list[Row]
) -> None:
    index = Page(write_gradebook(tmp_path, nasty_rows, Course()))
    (feedback, *_) = [Page(path) for path in (tmp_path / "feedback").iterdir()]
    for page in (index, feedback):
        policy = next(str(attrs["content"]) for attrs in page.named("meta") if "http-equiv" in attrs)
        assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy and "http" not in policy
        assert page.source.index("Content-Security-Policy") < page.source.index("<style")
        assert not {tag for tag, _ in page.tags} & {"link", "iframe", "object", "embed", "form", "base"}
        assert not [attrs for _, attrs in page.tags if "src" in attrs] and "@import" not in page.source
    assert "script-src 'sha256-" in index.source and "script-src" not in feedback.source
    assert index.scripts and "nasty" not in index.scripts[0] and feedback.scripts == []


def test_the_gradebook_says_who_what_and_why(tmp_path: Path, fixture_assignment: Assignment) -> None:
    rows = [
        ("ann", ALL),
        ("bob", smelling("double", "adds-instead")),
        (
            "eve",
            handed_in("kernel_died", "failed", "not_attempted", "passed", flags=("total: a record contradicts it",)),
        ),
        ("li", EMPTY),
        ("mo", ABSENT),
    ]
    course = Course(assignments=(fixture_assignment,), beliefs={"double": {"adds-instead": "Twice is plus two."}})
    page = Page(write_gradebook(tmp_path, rows, course))
    for words in (
        "5 learners",
        "3 graded",
        "1 unreadable",
        "1 missing",
        "total: a record contradicts it",
        "90.ipynb: is an empty file",
        "Chapter 90: fixture",
        "90.1 double (1)",
        "Total of 10",
        "adds-instead Twice is plus two. double",
        "kernel died",
    ):
        assert words in page.text, words
    assert "/srv/class" not in page.source
    assert len(page.named("svg")) == 5 and all(attrs["role"] == "img" for attrs in page.named("svg"))
    assert any("passed 1, wrong 1" in str(attrs["aria-label"]) for attrs in page.named("svg"))
    assert all(attrs.get("scope") in ("col", "row") for attrs in page.named("th"))


def test_several_chapters_get_a_table_of_all(tmp_path: Path) -> None:
    other = Submission("y", "graded", (GradedItem("sum", "91.1", "Sum", "passed", 2, 2, ""),), assignment="91_other")
    page = Page(write_gradebook(tmp_path, [("ann", ALL), ("ann", other), ("bob", NONE)], Course()))
    assert "All chapters" in page.text and "Total of 12" in page.text and "ann 10 2 12 bob 0 – 0" in page.text


def test_the_gradebook_has_names_and_counts_no_absence(tmp_path: Path) -> None:
    people = {"1001": Learner("1001", "Lee, Ann"), "bob": Learner("bob", "Bob")}
    rows = [("1001", ALL), ("bob", ABSENT), ("cy", EMPTY)]
    course = Course(titles={"90_fixture": "The fixture's own"})
    page = Page(write_gradebook(tmp_path, rows, course, people))
    assert "3 learners 2 hand-ins 1 graded 1 unreadable 1 missing" in page.text
    assert "Lee, Ann 1001" in page.text and "bob no hand-in" in page.text and "Bob" not in page.text
    assert "Chapter 90: The fixture's own (1): bob" in page.text
    start, end = page.text.index("To look at"), page.text.index("Who has no hand-in")
    assert "cy" in page.text[start:end] and "bob" not in page.text[start:end]
    assert re.search(r"bob no hand-in (– )+Lee|bob no hand-in (– )+cy", page.text), "a dash, not 0"


def test_a_chapter_is_called_what_its_page_calls_it() -> None:
    course = read_course([("ann", Submission("x", "graded", assignment="01_objective"))])
    assert course.titles.get("01_objective") in ("The objective", None), "None: another test's material stands there"
    assert sheets([("ann", ALL)], Course(titles={"90_fixture": "A title"}))[0].title == "Chapter 90: A title"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_csv(pipe, [("ann", ALL)])
        assert os.read(reader, 10_000).startswith(b'"student"') and pipe.is_fifo()
    finally:
        os.close(reader)


def test_an_empty_class_is_a_page_too(tmp_path: Path) -> None:
    assert "0 learners" in Page(write_gradebook(tmp_path, [], Course())).text
    write_csv(tmp_path / "grades.csv", [])
    assert read_csv(tmp_path / "grades.csv") == []


def test_a_page_of_feedback_holds_its_learners_results_and_no_flags(
    tmp_path: Path, fixture_assignment: Assignment
) -> None:
    flag = "total: printed, but recorded nothing"
    wrong = smelling("double", "adds-instead").items[0]
    mine = Submission("x", "graded", (wrong, *NONE.items[1:]), (flag,), "90_fixture", seed=20_611)
    beliefs = {"double": {"adds-instead": "Twice is plus two."}}
    course = Course(assignments=(fixture_assignment,), beliefs=beliefs)
    write_gradebook(tmp_path, [("ann", mine), ("bob", ALL)], course)
    page = Page(tmp_path / "feedback" / "ann.html")
    assert "bob" not in page.text and flag not in page.text and "20611" not in page.text
    assert "0 of 10 points, graded on cases that only the grader runs" in page.text
    assert "case 1 of 3: not so [adds-instead]" in page.text and "Twice is plus two." in page.text
    assert "Next: 90.1 The double" in page.text and "python3 start.py hint 90.1" in page.text
    absent = Submission("x", "missing", flags=("nothing was handed in",), assignment="90_fixture")
    named = Page(write_feedback(tmp_path / "named", "ann", [ALL, absent], course, "Ann Li"))
    assert "Feedback: Ann Li (ann)" in named.text and "10 of 20 points, 1 of 2 notebooks handed in" in named.text
    own = Page(write_feedback(tmp_path / "own", "", [mine], course))
    assert flag in own.text and (tmp_path / "own" / "index.html").exists()
    broken = Page(write_feedback(tmp_path, "li", [EMPTY], course))
    assert "unreadable 90.ipynb: is an empty file" in broken.text and "/srv" not in broken.source


def test_every_learner_has_a_file_of_their_own(tmp_path: Path) -> None:
    """On file systems, too, that take "Ann" for "ann", and on Windows, where `con` is a device."""
    names = ["ann", "Ann", "ANN", "a/../../b", "a b", "a-b", "con", "index", "..", "李", "李李", "x" * 300, NASTY, " "]
    files = [page_name(name) for name in names]
    assert len({file.lower() for file in files}) == len(names)
    assert files[0] == "ann.html" and all(re.fullmatch(r"[a-z0-9_-]{1,60}\.html", file) for file in files)
    assert "con.html" not in files and "index.html" not in files


def test_only_templates_are_markup(tmp_path: Path) -> None:
    template = '{% extends "base" %}{% block main %}<p>{{ word }}</p>{% endblock %}'
    assert "<p>&lt;b&gt;&amp;amp;</p>" in render(template, title="t", word="<b>&amp;")
    assert "<title>&lt;/title&gt;</title>" in render(template, title="</title>", word="")


# ---------------------------------------------------------------- text, JSON, Gradescope


def test_the_text_says_what_passed_what_next_and_which_cases() -> None:
    one = handed_in("passed", "failed", "timeout", "missing", flags=("it is of another release",))
    lines = text_report(one).splitlines()
    assert lines[0] == (
        "x.ipynb: 1 of 10 points, on cases that only the grader runs (seed 20611; --seed 0: those of your notebook)"
    )
    assert [line.split()[2] for line in lines[1:5]] == ["passed", "failed", "timeout", "missing"]
    assert lines[5:] == ["  note: it is of another release", "  next: 90.2 The total; a hint: course hint 90.2"]
    assert "on the cases that your notebook's checks run" in text_report(handed_in(*["passed"] * 4, seed=0))
    assert "next" not in text_report(ALL)
    assert text_report(EMPTY) == "x: unreadable: 90.ipynb: is an empty file"
    problems = handed_in("kernel_died", "passed", "passed", "passed")
    shown = text_report(Submission("x", "graded_with_problems", problems.items, assignment="90_fixture"))
    assert "9 of 10 points" in shown and "graded with problems" in shown


def test_text_from_a_hand_in_does_nothing_to_a_terminal() -> None:
    one = Submission(f"n\x1b]0;t\x07{NASTY}", "graded", (item("double", "failed", NASTY),), (NASTY,))
    for text in (text_report(one), text_report(Submission(NASTY, "unreadable", flags=(NASTY,)))):
        assert not set(text) & set("\x1b\x07\0\u202e\x9b") and text.replace("\n", "").isprintable()
        text.encode("utf-8")
    assert plain("a\r\nb\x1b[1;31mc\x1b[0m\td") == "a\nbc d" and plain("x" * 50, 10) == "x" * 10 + " ..."


def test_json_has_the_keys_that_are_documented() -> None:
    (found,) = json.loads(json.dumps(as_json([smelling("double", "adds-instead")])))["submissions"]
    (only,) = found.pop("items")
    assert found == {"name": "x", "status": "graded", "score": 0, "max_score": 1, "flags": []}
    assert only.keys() == {"id", "status", "score", "max_score", "message"} and only["id"] == "double"


def test_results_json_has_the_form_that_gradescope_reads(tmp_path: Path) -> None:
    """Names, types and allowed words as its specification lists them."""
    one = handed_in("passed", "failed", "kernel_died", "missing", flags=(NASTY,), seconds=1.23456)
    for number, submission in enumerate((one, EMPTY, ABSENT, Submission(NASTY, "unreadable", flags=(NASTY,)))):
        write_results(tmp_path / f"{number}" / "results.json", submission)
        found = json.loads((tmp_path / f"{number}" / "results.json").read_text(encoding="utf-8"))
        assert isinstance(found["score"], float | int) and isinstance(found["execution_time"], float | int)
        assert found["visibility"] in ("hidden", "after_due_date", "after_published", "visible")
        assert found["stdout_visibility"] == "hidden" and found["output"] and found["output_format"] == "text"
        for test in found["tests"]:
            assert test["output_format"] == "text" and test["visibility"] in ("visible", "hidden")
            assert test["name"] and test["score"] <= test["max_score"]
            assert test.get("status", "passed") in ("passed", "failed")
    found = as_results(one)
    assert found["score"] == 1 and [test["score"] for test in found["tests"]] == [1, 0, 0, 0, 0]
    assert [test["visibility"] for test in found["tests"]] == ["visible"] * 4 + ["hidden"]
    assert [test["number"] for test in found["tests"][:4]] == ["90.1", "90.2", "90.3", "90.4"]
    assert "/srv" not in json.dumps(as_results(EMPTY)) and "is an empty file" in as_results(EMPTY)["output"]


def test_a_class_gets_a_results_file_for_each_hand_in(tmp_path: Path) -> None:
    twice = [("ann", ALL), ("ann", NONE), ("Ann/..", ALL), ("mo", Submission("x", "missing"))]
    paths = write_all_results(tmp_path / "out", twice)
    assert len(set(paths)) == 4 and all(path.is_relative_to(tmp_path / "out") and path.exists() for path in paths)
    assert paths[0] == tmp_path / "out" / "ann" / "90_fixture" / "results.json" and paths[1].name == "results-1.json"
    assert write_all_results(tmp_path / "one", [("", ALL)]) == [tmp_path / "one" / "results.json"]


def test_the_options_of_a_class_write_its_reports(tmp_path: Path, fixture_assignment: Assignment) -> None:
    names = {"csv": tmp_path / "t.csv", "html": tmp_path / "book", "gradescope": tmp_path / "gs"}
    options = argparse.Namespace(**names, bom=True, lms=tmp_path / "lms.csv")
    by_hand = Submission("x", "graded", ALL.items, ("double: 1 points by hand in place of 0: kind",), "90_fixture")
    people = {"ann": Learner("ann", "Ann Lee")}
    loose = ["x.ipynb: nobody in the class list is named by it", by_hand.flags[0]]
    lines = write_class_reports(options, [("ann", by_hand), ("mo", ABSENT)], people, list(people.values()), loose)
    assert len(lines) == 4 and Page(tmp_path / "book" / "index.html").text.count("by hand in place of") == 1
    assert loose[0] in Page(tmp_path / "book" / "index.html").text
    assert read_csv(tmp_path / "lms.csv") == [
        {"student": "ann", "90_fixture": "10"},
        {"student": "mo", "90_fixture": ""},
    ]
    assert (tmp_path / "t.csv").read_bytes()[:3] == b"\xef\xbb\xbf"
    assert [row["name"] for row in read_csv(tmp_path / "t.csv")] == ["Ann Lee", ""]
    assert "by hand in place of 0: kind" in Page(tmp_path / "book" / "feedback" / "ann.html").text
    assert (tmp_path / "gs" / "mo" / "90_fixture" / "results.json").exists()
    nothing = argparse.Namespace(csv=None, html=None, gradescope=None, lms=None, bom=False)
    assert write_class_reports(nothing, [("ann", ALL)], {}) == [] and write_own(nothing, [ALL]) == []


def test_reasons_leave_out_the_folder() -> None:
    for flag in ("/a/b c/x.ipynb: is an empty file", "C:\\a\\x.ipynb: is an empty file", "x.ipynb: is an empty file"):
        assert reason(Submission("x", "unreadable", flags=(flag,))) == "x.ipynb: is an empty file"
    died = Submission("x", "graded_with_problems", (item("pick", "kernel_died", "out of memory"),))
    assert reason(died) == "pick: out of memory" and reason(ALL) == ""
