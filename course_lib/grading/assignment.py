"""One chapter's exercises as `solutions/NN_name.ipynb` states them: items in order, and what is wrong with the file.

Where there are no solutions (what a class was given), the released notebooks in `exercises/` state them.
"""

import ast
import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from course_lib.errors import CourseError
from course_lib.grading.notebook import course_of, grade_of, tags_of
from course_lib.machine import material_dir

__all__ = [
    "Assignment",
    "Item",
    "all_assignments",
    "assignment_paths",
    "find_assignment",
    "find_item",
    "is_release",
    "load_assignment",
    "problems",
]

# Put together here, so that whoever looks for these marks finds only notebooks that hold answers.
BEGIN, END = (f"### {word} SOLUTION" for word in ("BEGIN", "END"))
BEGIN_HIDDEN, END_HIDDEN = (f"### {word} HIDDEN TESTS" for word in ("BEGIN", "END"))
_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_TITLE = re.compile(r"^(?:#+\s*|\*\*)(\d\d\.\d+)\s+(.+?)(?:\*\*|$)", re.MULTILINE)


@dataclass(frozen=True)
class Item:
    """One exercise: its one-word id, its place (`03.2`), and the indices of its answer and check cells."""

    id: str
    position: str
    title: str
    points: float
    minutes: float
    hints: tuple[str, ...]
    misconceptions: tuple[str, ...]
    claims: tuple[int, ...]
    answer: int
    check: int


@dataclass(frozen=True)
class Assignment:
    """A chapter's exercises. `notebook` is the solution notebook, never to be changed in place."""

    name: str
    path: Path
    notebook: NotebookNode
    items: tuple[Item, ...] = field(default=())

    @property
    def chapter(self) -> str:
        return self.name[:2]

    @property
    def checks(self) -> str:
        """The module that holds its EXERCISES, to be loaded by name."""
        return checks_module(self.name, self.notebook)

    @property
    def max_score(self) -> float:
        return sum(item.points for item in self.items)


def load_assignment(path: Path, with_checks: bool = False) -> Assignment:
    """Read and validate a solution notebook. CourseError naming the first thing that is wrong with it.

    `with_checks`: also load its checks (and torch with them) and see that both agree; for releases, not for graders.
    """
    try:
        notebook = nbformat.read(path, as_version=4)
    except FileNotFoundError:
        raise CourseError(f"{path}: there is no such solution notebook") from None
    except Exception as error:
        raise CourseError(f"{path}: cannot be read as a notebook: {type(error).__name__}: {error}") from error
    found = problems(path.stem, notebook)
    if with_checks and not found:
        found = _exercise_problems(checks_module(path.stem, notebook), list(_items(notebook)))
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise CourseError(f"{path.name}: {found[0]}{more}")
    return Assignment(path.stem, path, notebook, tuple(_items(notebook)))


def all_assignments(material: Path | None = None, with_checks: bool = False) -> list[Assignment]:
    """Every chapter's exercises, in order of chapter."""
    return [load_assignment(path, with_checks) for path in assignment_paths(material)]


def assignment_paths(material: Path | None = None) -> list[Path]:
    """The notebooks that state the exercises: `solutions/`; where there is no such folder, `exercises/`."""
    root = material or material_dir()
    folder = root / "solutions" if (root / "solutions").is_dir() else root / "exercises"
    return sorted(folder.glob("[0-9][0-9]_*.ipynb"))


def is_release(notebook: NotebookNode) -> bool:
    """Whether a notebook is what learners were given: it has stubs for answers, and may be without hints."""
    return bool(course_of(notebook).get("hash"))


def find_assignment(name: str, material: Path | None = None) -> Assignment:
    """By chapter ("03", "3") or by name ("03_accumulation"). CourseError listing what there is."""
    paths = assignment_paths(material)
    wanted = name.zfill(2) if name.isdigit() else name
    hits = [path for path in paths if path.stem == wanted or (wanted.isdigit() and path.stem[:2] == wanted)]
    if not hits:
        raise CourseError(f"no exercises for {name!r}; there are {', '.join(path.stem for path in paths) or 'none'}")
    return load_assignment(hits[0])


def find_item(name: str, material: Path | None = None) -> tuple[Assignment, Item]:
    """By id ("unequal-tokens") or by place ("03.2", "3.2"). CourseError listing near ones."""
    if re.fullmatch(r"\d{1,2}\.\d+", name):
        chapter, _, place = name.partition(".")
        assignment = find_assignment(chapter, material)
        for item in assignment.items:
            if item.position == f"{assignment.chapter}.{int(place)}":
                return assignment, item
        places = ", ".join(f"{item.position} {item.id}" for item in assignment.items)
        raise CourseError(f"no exercise {name}; chapter {assignment.chapter} has {places}")
    assignments = all_assignments(material)
    for assignment in assignments:
        for item in assignment.items:
            if item.id == name:
                return assignment, item
    ids = ", ".join(item.id for assignment in assignments for item in assignment.items)
    raise CourseError(f"no exercise {name!r}; there are {ids or 'none'}")


def problems(name: str, notebook: NotebookNode) -> list[str]:
    """What is wrong with a solution notebook, one line each; empty when it can be released."""
    found: list[str] = []
    if not re.fullmatch(r"\d\d_[a-z0-9_]+", name):
        found.append(f"the name {name!r} is not of the form 03_accumulation")
    if course_of(notebook).get("assignment") != name:
        found.append(f'notebook metadata.course.assignment must be "{name}"')
    seen: dict[str, int] = {}
    for index, cell in enumerate(notebook.cells):
        found += _marker_problems(index, cell)
        grade = grade_of(cell)
        if not grade:
            continue
        grade_id = str(grade.get("grade_id"))
        if grade_id in seen:
            found.append(f"grade_id {grade_id!r} is on cells {seen[grade_id]} and {index}")
        seen[grade_id] = index
        found += _grade_problems(index, cell, grade, is_release(notebook))
    answers = [cell for cell in notebook.cells if grade_of(cell).get("solution")]
    if not answers:
        found.append("has no answer cell (nbgrader metadata with solution = true)")
    for number, cell in enumerate(answers, start=1):
        found += _item_problems(f"{name[:2]}.{number}", cell, seen, notebook)
    ids = {str(grade_of(cell).get("grade_id")) for cell in answers}
    for cell in notebook.cells:
        grade_id = str(grade_of(cell).get("grade_id"))
        if grade_of(cell).get("grade") and grade_id.removeprefix("check-") not in ids:
            found.append(f"check cell {grade_id!r} has no answer cell {grade_id.removeprefix('check-')!r}")
    return found


def _marker_problems(index: int, cell: NotebookNode) -> list[str]:
    found = []
    for begin, end in ((BEGIN, END), (BEGIN_HIDDEN, END_HIDDEN)):
        marks = [line.strip() for line in cell.source.splitlines() if line.strip() in (begin, end)]
        if marks != [begin, end] * (len(marks) // 2):
            found.append(f"cell {index}: {begin!r} and {end!r} do not pair")
    grade = grade_of(cell)
    if BEGIN in cell.source and not grade.get("solution"):
        found.append(f"cell {index} has a solution region but is no answer cell")
    if BEGIN_HIDDEN in cell.source and not grade.get("grade"):
        found.append(f"cell {index} has hidden tests but is no check cell")
    return found


def _grade_problems(index: int, cell: NotebookNode, grade: dict[str, Any], released: bool) -> list[str]:
    found = []
    allowed = {"grade", "grade_id", "locked", "points", "schema_version", "solution", "task"}
    allowed |= {"checksum", "cell_type"} if released else set()
    if set(grade) - allowed:
        found.append(f"cell {index}: nbgrader metadata has other keys: {', '.join(sorted(set(grade) - allowed))}")
    if grade.get("schema_version") != 3:
        found.append(f"cell {index}: nbgrader schema_version must be 3")
    if any(not isinstance(grade.get(key), bool) for key in ("grade", "solution", "locked")):
        found.append(f"cell {index}: grade, solution and locked must be true or false")
    if not _ID.fullmatch(str(grade.get("grade_id"))) or len(str(grade["grade_id"])) > 60:
        found.append(f"cell {index}: grade_id {grade.get('grade_id')!r} is not of the form unequal-tokens")
    if grade.get("grade") != ("points" in grade):
        found.append(f"cell {index}: points belong on check cells (grade = true), and only there")
    points = grade.get("points", 1)
    if isinstance(points, bool) or not isinstance(points, int | float) or points <= 0:
        found.append(f"cell {index}: points must be a number above 0")
    if cell.cell_type != "code" and (grade.get("grade") or grade.get("solution")):
        found.append(f"cell {index}: answer and check cells are code cells")
    return found


def _item_problems(position: str, cell: NotebookNode, seen: dict[str, int], notebook: NotebookNode) -> list[str]:
    grade_id, course = str(grade_of(cell).get("grade_id")), course_of(cell)
    found = []
    released = is_release(notebook)
    if BEGIN not in cell.source and not released:
        found.append(f"{grade_id}: the answer cell has no {BEGIN!r} region")
    if course.get("exercise") != grade_id:
        found.append(f'{grade_id}: metadata.course.exercise must be "{grade_id}"')
    if course.get("position") != position:
        found.append(
            f'{grade_id}: metadata.course.position is {course.get("position")!r}, by its place it is "{position}"'
        )
    hints = course.get("hints")
    told = isinstance(hints, list) and len(hints) == 3 and all(isinstance(h, str) and h.strip() for h in hints)
    if not told and not (released and hints is None):
        found.append(f"{grade_id}: metadata.course.hints must be three texts (the idea; where; pseudo-code)")
    if not isinstance(course.get("minutes"), int | float) or course["minutes"] <= 0:
        found.append(f"{grade_id}: metadata.course.minutes must be a number above 0")
    for key in ("misconceptions", "claims"):
        if not isinstance(course.get(key, []), list):
            found.append(f"{grade_id}: metadata.course.{key} must be a list")
    check = seen.get(f"check-{grade_id}")
    if check is None:
        return [*found, f"{grade_id}: there is no check cell with grade_id 'check-{grade_id}'"]
    if _checked(notebook.cells[check].source) != grade_id:
        found.append(f'{grade_id}: its check cell must be one call, check("{grade_id}", answer)')
    claims = {f"claim-{claim}" for claim in course.get("claims", [])}
    tagged = {tag for tag in tags_of(notebook.cells[check]) if tag.startswith("claim-")}
    if claims != tagged:
        found.append(
            f"{grade_id}: metadata.course.claims says {sorted(claims)}, its check cell is tagged {sorted(tagged)}"
        )
    return found


def _checked(source: str) -> str | None:
    """The id in a check cell that is one call of `check`, else None."""
    lines, hidden = [], False
    for line in source.splitlines():
        hidden = (hidden or line.strip() == BEGIN_HIDDEN) and line.strip() != END_HIDDEN
        if not hidden:
            lines.append(line)
    try:
        body = ast.parse("\n".join(lines)).body
    except SyntaxError:
        return None
    call = body[0].value if len(body) == 1 and isinstance(body[0], ast.Expr) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.func.id != "check":
        return None
    first = call.args[0] if len(call.args) == 2 else None
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


def checks_module(name: str, notebook: NotebookNode) -> str:
    """The module that holds an assignment's EXERCISES: metadata.course.checks, else `course_lib.checks.chNN`."""
    return str(course_of(notebook).get("checks") or f"course_lib.checks.ch{name[:2]}")


def _exercise_problems(module: str, items: list[Item]) -> list[str]:
    """Whether the notebook and its checks agree on ids, order and misconceptions."""
    try:
        exercises = importlib.import_module(module).EXERCISES
    except ModuleNotFoundError as error:
        return [f"cannot load {module}: {error}"]
    ids, known = [item.id for item in items], [exercise.id for exercise in exercises]
    if ids != known:
        return [f"its answers are {', '.join(ids)}, but {module} has {', '.join(known)}"]
    return [
        f"{item.id}: misconception {name!r} is not one of {module}"
        for item, exercise in zip(items, exercises, strict=True)
        for name in item.misconceptions
        if name not in exercise.misconceptions
    ]


def _items(notebook: NotebookNode) -> list[Item]:
    where = {str(grade_of(cell).get("grade_id")): index for index, cell in enumerate(notebook.cells)}
    titles = {
        position: title.strip()
        for cell in notebook.cells
        if cell.cell_type == "markdown"
        for position, title in _TITLE.findall(cell.source)
    }
    items = []
    for index, cell in enumerate(notebook.cells):
        grade, course = grade_of(cell), course_of(cell)
        if not grade.get("solution"):
            continue
        name, position = str(grade["grade_id"]), str(course["position"])
        check = where[f"check-{name}"]
        items.append(
            Item(
                id=name,
                position=position,
                title=titles.get(position, name),
                points=float(grade_of(notebook.cells[check])["points"]),
                minutes=float(course["minutes"]),
                hints=tuple(course.get("hints", ())),
                misconceptions=tuple(course.get("misconceptions", [])),
                claims=tuple(course.get("claims", [])),
                answer=index,
                check=check,
            )
        )
    return items
