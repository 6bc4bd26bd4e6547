"""How `chNN.py` states answers: `@wrong("unequal-tokens", "mean-of-means-is-fine")` and `@right("unequal-tokens")`.

Above a function or class they make it an answer; with `answer=` they take any other value, such as a dict:
`wrong_later = wrong("which-curve-leaks", "lower-is-better", answer={"variant": 0, "choice": "B", "evidence": 1.9})`.
`says=` demands words in the message, beside the misconception or instead of it (a forbidden call has no misconception).
`once=True`: at one seed only, for an answer that waits until it is stopped.
"""

import ast
import importlib
import importlib.util
import linecache
from collections.abc import Callable
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat

from course_lib.checks.core import Exercise

HERE = Path(__file__).parent
_NONE = object()


@dataclass(frozen=True)
class Answer:
    """One stated answer. A wrong one must fail with `misconception` (and words `says`), a right one must pass."""

    exercise: str
    value: Any
    correct: bool
    misconception: str | None = None
    says: str = ""
    once: bool = False


def wrong(
    exercise: str, misconception: str | None = None, *, says: str = "", answer: Any = _NONE, once: bool = False
) -> Any:
    """A plausible wrong answer and the misconception that its message must name."""
    if misconception is None and not says:
        raise ValueError(f"{exercise}: a wrong answer needs its misconception, or words that its message says")
    return _state(lambda value: Answer(exercise, value, False, misconception, says, once), answer)


def right(exercise: str, *, answer: Any = _NONE) -> Any:
    """Another right answer, written differently from the reference."""
    return _state(lambda value: Answer(exercise, value, True), answer)


def _state(make: Callable[[Any], Answer], answer: Any) -> Any:
    return make if answer is _NONE else make(answer)


def chapters() -> list[str]:
    """Chapters with stated answers, such as ["01", "02"]."""
    return sorted(path.stem.removeprefix("ch") for path in HERE.glob("ch[0-9][0-9].py"))


def chapters_with_checks() -> list[str]:
    """Chapters that have a file in course_lib/checks."""
    import course_lib.checks

    folder = Path(next(iter(course_lib.checks.__path__)))
    return sorted(path.stem.removeprefix("ch") for path in folder.glob("ch[0-9][0-9].py"))


def exercises(chapter: str) -> dict[str, Exercise]:
    module = importlib.import_module(f"course_lib.checks.ch{chapter}")
    return {exercise.id: exercise for exercise in module.EXERCISES}


def answers(chapter: str) -> dict[str, Answer]:
    """Name -> stated answer, in the order of the file."""
    path = HERE / f"ch{chapter}.py"
    spec = importlib.util.spec_from_file_location(f"answers_ch{chapter}", path)
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: value for name, value in vars(module).items() if isinstance(value, Answer)}


def references(chapter: str, folder: Path) -> dict[str, Any]:
    """Exercise id -> the reference answer, from the cells of `folder`/NN_*.ipynb run here, checks left out."""
    path = next(iter(sorted(folder.glob(f"{chapter}_*.ipynb"))), None)
    if path is None:
        return {}
    scope: dict[str, Any] = {"__name__": f"reference_ch{chapter}"}
    found: dict[str, Any] = {}
    with redirect_stdout(StringIO()):
        for index, cell in enumerate(nbformat.read(path, as_version=4).cells):
            course, grade = cell.metadata.get("course", {}), cell.metadata.get("nbgrader", {})
            if cell.cell_type != "code" or course.get("role") == "hint":
                continue
            if grade.get("grade"):
                statement = ast.parse(cell.source).body[0]
                assert isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call)
                answer = ast.Expression(statement.value.args[1])
                found[grade["grade_id"].removeprefix("check-")] = eval(compile(answer, "<check>", "eval"), scope)
                continue
            name = f"{path.stem}-cell-{index}.py"
            linecache.cache[name] = (len(cell.source), None, cell.source.splitlines(keepends=True), name)
            exec(compile(cell.source, name, "exec"), scope)
    return found
