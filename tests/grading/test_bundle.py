"""What a class is given: it holds no answer, and it works."""

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import nbformat
import pytest

from course_lib.errors import CourseError
from course_lib.grading.assignment import Assignment, all_assignments, load_assignment
from course_lib.grading.bundle import MARKER, write_class, write_nbgrader
from course_lib.grading.notebook import course_of
from course_lib.grading.release import release
from course_lib.grading.release_cli import chapter_numbers, release_main
from course_lib.machine import material_dir

ROOT = material_dir()
BEGIN = "### BEGIN " + "SOLUTION"
END = "### END " + "SOLUTION"


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("class") / "for class"
    write_class(folder, material=ROOT)
    return folder


@pytest.fixture(scope="module")
def assignments() -> list[Assignment]:
    return all_assignments(ROOT)


@cache
def texts(folder: Path) -> dict[str, str]:
    """Every file as text; of a notebook also the sources of its cells as they are typed. Without pictures' lines."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            text = path.read_bytes().decode("utf-8")
            if path.suffix == ".ipynb":
                text += "\n".join(cell.source for cell in nbformat.reads(text, 4).cells)
            text = re.sub("[A-Za-z0-9+/=]{2000,}", "", text)
            found[path.relative_to(folder).as_posix()] = text
    return found


def essence(text: str) -> str:
    """Code without indents and blank lines, so that a copy at another depth is found."""
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def regions(assignment: Assignment) -> list[tuple[str, str]]:
    """(exercise, what stands between the marks)."""
    found = []
    for item in assignment.items:
        source = assignment.notebook.cells[item.answer].source
        for part in re.findall(rf"{BEGIN}\n(.*?)\n\s*{END}", source, re.DOTALL):
            found.append((item.id, essence(part)))
    return found


def test_no_answer_hint_hidden_test_or_history_is_in_it(bundle: Path, assignments: list[Assignment]) -> None:
    everything = texts(bundle)
    marks = [f"{word} {what}" for word in ("BEGIN", "END") for what in ("SOLUTION", "HIDDEN TESTS")]
    for name, text in everything.items():
        assert not [mark for mark in marks if mark in text], name
        assert '"hints":' not in text or not name.endswith(".ipynb"), name
    names = set(everything)
    assert not [
        name for name in names if re.match(r"(solutions|tests|work|benchmarks|\.git|\.ci|\.venv|dist)(/|$)", name)
    ]
    assert not [name for name in names if name.endswith((".pyc", ".orig", "~")) or "__pycache__" in name]
    whole = "\n".join(essence(text) for text in everything.values())
    answers = [pair for assignment in assignments for pair in regions(assignment)]
    assert len(answers) >= 90
    assert [name for name, region in answers if region in whole] == []
    hints = [hint for assignment in assignments for item in assignment.items for hint in item.hints]
    assert [hint for hint in hints if hint in whole or json.dumps(hint)[1:-1] in whole] == []


def test_the_search_for_answers_would_find_one(assignments: list[Assignment]) -> None:
    """The test above can fail: an answer that is pasted into a file, indented otherwise, is found."""
    name, region = regions(assignments[0])[0]
    pasted = "\n\n".join("        " + line for line in region.splitlines())
    assert name and region in essence(f"def somewhere():\n{pasted}\n")


def test_its_exercises_are_the_release(bundle: Path, assignments: list[Assignment]) -> None:
    facts = json.loads((bundle / MARKER).read_text(encoding="utf-8"))
    assert list(facts["exercises"]) == [one.name for one in assignments] and facts["hints"] is False
    for one in assignments:
        wanted = release(one)
        given = load_assignment(bundle / "exercises" / one.path.name)
        assert given.notebook.metadata.course == wanted.metadata.course
        assert facts["exercises"][one.name] == wanted.metadata.course["hash"]
        assert [cell.source for cell in given.notebook.cells] == [cell.source for cell in wanted.cells]
        assert [(i.id, i.points, i.minutes, i.hints) for i in given.items] == [
            (i.id, i.points, i.minutes, ()) for i in one.items
        ]


def test_links_in_it_lead_somewhere(bundle: Path) -> None:
    for name, text in texts(bundle).items():
        if name.endswith(".ipynb"):
            cells = nbformat.read(bundle / name, 4).cells
            text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
        if name.endswith((".md", ".ipynb")):
            for link in re.findall(r"\]\(([^)#\s]+)\)", text):
                if "://" not in link:
                    assert ((bundle / name).parent / link).exists(), f"{name}: {link}"


def test_its_project_builds_without_the_solutions(bundle: Path) -> None:
    project = tomllib.loads((bundle / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["dev"] == []
    for name in project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]:
        assert (bundle / name).is_dir(), name
    assert (bundle / project["project"]["readme"]).is_file()


def inside(bundle: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """A Python that sees the class's copy of the library, from its folder."""
    environment = {**os.environ, "PYTHONPATH": str(bundle), "PYTHONDONTWRITEBYTECODE": "1", **env}
    environment.pop("COURSE_WORK", None)
    return subprocess.run(
        [sys.executable, *words], cwd=bundle, env=environment, capture_output=True, encoding="utf-8", timeout=240
    )


def test_start_fills_work_and_has_no_tests(bundle: Path, tmp_path: Path) -> None:
    code = f"import start; print(len(start.fill_work({str(bundle)!r})), start.course_words(start.ROOT)[:1])"
    done = inside(bundle, "-c", code)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[0] == str(
        len(list((bundle / "notebooks").glob("*.ipynb")) + list((bundle / "exercises").glob("*.ipynb")))
    )
    done = inside(bundle, "start.py", "test")
    assert done.returncode == 2 and "made for a class" in done.stderr


def test_checks_work_in_it_and_hints_say_where_they_are(bundle: Path, assignments: list[Assignment]) -> None:
    assignment = assignments[0]
    item = assignment.items[0]
    given = "\n".join(cell.source for cell in assignment.notebook.cells[: item.answer] if cell.cell_type == "code")
    call = assignment.notebook.cells[item.check].source
    answer = assignment.notebook.cells[item.answer].source
    stub = load_assignment(bundle / "exercises" / assignment.path.name).notebook.cells[item.answer].source
    assert item.id == "sequence-log-prob"
    done = inside(bundle, "-c", f"{given}\n{answer}\n{call}\nhint({item.id!r})")
    assert f"{item.id}: passed" in done.stdout and "without hints" in done.stdout, done.stderr
    done = inside(bundle, "-c", f"{given}\n{stub}\n{call}")
    assert done.returncode == 1 and "not attempted yet" in done.stderr


def test_commands_in_it(bundle: Path, assignments: list[Assignment]) -> None:
    done = inside(bundle, "-m", "course_lib", "hint", "01.1")
    assert done.returncode == 2 and "given out without hints" in done.stderr
    done = inside(bundle, "-m", "course_lib", "release")
    assert done.returncode == 2 and "no folder solutions/" in done.stderr
    done = inside(bundle, "-m", "course_lib", "syllabus", "--weeks", "12")
    points = sum(one.max_score for one in assignments)
    assert done.returncode == 0 and f"in all {points:g} points" in done.stdout


@pytest.mark.slow
def test_a_learner_can_grade_in_it(bundle: Path, tmp_path: Path) -> None:
    """Without solutions too: cases of another seed, judged outside the kernel."""
    out = tmp_path / "out.json"
    solution = ROOT / "solutions" / "01_objective.ipynb"
    stub = bundle / "exercises" / "01_objective.ipynb"
    done = inside(bundle, "-m", "course_lib", "grade", str(solution), str(stub), "--json", str(out))
    assert done.returncode == 1, done.stderr
    solved, untouched = json.loads(out.read_text(encoding="utf-8"))["submissions"]
    assert solved["score"] == solved["max_score"] == 12 and untouched["score"] == 0


def test_hints_and_chapters_by_request(tmp_path: Path) -> None:
    write_class(tmp_path / "week 1", hints=True, chapters=[1, 2], material=ROOT)
    assert [path.name[:2] for path in sorted((tmp_path / "week 1" / "exercises").glob("*"))] == ["01", "02"]
    given = load_assignment(tmp_path / "week 1" / "exercises" / "01_objective.ipynb")
    assert all(len(item.hints) == 3 for item in given.items)
    with pytest.raises(CourseError, match="no exercises of chapter 77"):
        write_class(tmp_path / "week 2", chapters=[77], material=ROOT)
    assert not (tmp_path / "week 2").exists()


def test_a_folder_with_other_things_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "thesis"
    other.mkdir()
    (other / "chapter.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(CourseError, match="holds other things"):
        write_class(other, material=ROOT)
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(CourseError, match="is a file"):
        write_class(tmp_path / "file", material=ROOT)
    assert [path.name for path in other.iterdir()] == ["chapter.txt"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "thesis"]


def test_an_earlier_release_is_brought_up_to_date(tmp_path: Path) -> None:
    folder = tmp_path / "class"
    write_class(folder, chapters=[1, 2], material=ROOT)
    (folder / "work").mkdir()
    (folder / "work" / "mine.ipynb").write_text("{}", encoding="utf-8")
    (folder / "course_lib" / "left_over.py").write_text("", encoding="utf-8")
    write_class(folder, chapters=[1], material=ROOT)
    assert (folder / "work" / "mine.ipynb").exists() and not (folder / "course_lib" / "left_over.py").exists()
    assert [path.name for path in (folder / "exercises").iterdir()] == ["01_objective.ipynb"]
    assert [path.name for path in tmp_path.iterdir()] == ["class"]


def test_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for room in ("bundle", "assignment", "release"):  # another test's material may stand there
        monkeypatch.setattr(f"course_lib.grading.{room}.material_dir", lambda: ROOT)
    assert release_main(["--class", str(tmp_path / "class"), "--chapters", "1"]) == 0
    assert "exercises of 1 chapter, 12 points, without hints" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        release_main(["--hints"])
    with pytest.raises(SystemExit):
        release_main(["--class", "a", "--nbgrader", "b"])


@pytest.mark.parametrize(("text", "numbers"), [("1-4", [1, 2, 3, 4]), ("3,1", [1, 3]), ("0-2,2, 15", [0, 1, 2, 15])])
def test_lists_of_chapters(text: str, numbers: list[int]) -> None:
    assert chapter_numbers(text) == numbers


@pytest.mark.parametrize("text", ["", "a", "4-1", "1-", "-3", "1--2", "1;2", "100"])
def test_what_is_no_list_of_chapters(text: str) -> None:
    with pytest.raises(CourseError, match="--chapters"):
        chapter_numbers(text)


def test_nbgraders_layout(tmp_path: Path) -> None:
    write_nbgrader(tmp_path, chapters=[1, 3], material=ROOT)
    found = [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*")) if path.is_file()]
    assert found == [
        "nbgrader_config.py",
        "source/01_objective/01_objective.ipynb",
        "source/03_gradient_accumulation/03_gradient_accumulation.ipynb",
    ]
    seeds = [re.findall(r'SEED", "(\d+)"', (tmp_path / "nbgrader_config.py").read_text(encoding="utf-8"))]
    write_nbgrader(tmp_path / "again", chapters=[1], material=ROOT)
    seeds.append(re.findall(r'SEED", "(\d+)"', (tmp_path / "again" / "nbgrader_config.py").read_text(encoding="utf-8")))
    assert seeds[0] != seeds[1] and all(len(one) == 1 and int(one[0]) >= 10**8 for one in seeds), "drawn for each"
    shutil.rmtree(tmp_path / "again")
    notebook = nbformat.read(tmp_path / found[1], 4)
    assert any(BEGIN in cell.source for cell in notebook.cells)
    assert not any("hints" in course_of(cell) for cell in notebook.cells)
    (tmp_path / "nbgrader_config.py").write_text("c = 1\n", encoding="utf-8")
    assert write_nbgrader(tmp_path, chapters=[1, 3], material=ROOT) == [f"{tmp_path}: nothing has changed"]
    write_nbgrader(tmp_path, hints=True, chapters=[1], material=ROOT)
    assert any("hints" in course_of(cell) for cell in nbformat.read(tmp_path / found[1], 4).cells)
