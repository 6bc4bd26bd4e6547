"""Three hints an exercise, one at a time; the reference once its check has passed."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import Any

import ipywidgets

from course_lib.checks import core
from course_lib.errors import CourseError
from course_lib.machine import material_dir
from course_lib.widgets.faces import Shown, rich, show_faces, styles

__all__ = ["Hints", "hint"]


@dataclass(frozen=True)
class _Exercise:
    position: str
    hints: tuple[str, ...]
    reference: str | None
    """None in a class release, which has no answers."""


def _find(exercise: str) -> _Exercise:
    """Look for the answer cell of an exercise among the solutions (in a class release: the exercises). CourseError."""
    known = []
    solved = (material_dir() / "solutions").is_dir()
    for path in sorted((material_dir() / ("solutions" if solved else "exercises")).glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            course = cell["metadata"].get("course", {})
            if course.get("exercise") == exercise and "hints" in course:
                source = "".join(cell["source"]) if solved else None
                return _Exercise(str(course.get("position", "")), tuple(course["hints"]), source)
            if course.get("exercise") == exercise:
                raise CourseError("this copy of the course was given out without hints: ask whoever gave it to you")
            if course.get("exercise"):
                known.append(str(course["exercise"]))
    raise CourseError(f"no exercise {exercise!r} with hints; there are: {', '.join(sorted(set(known))) or 'none'}")


class Hints(Shown):
    """What `hint` displays. CSS classes: `course-hints`, and in it `course-hints-next`, `-reference`, `-text`."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        self._found = _find(exercise)
        self.shown = 0
        self.widget = self._build()

    @property
    def passed(self) -> bool:
        """Whether the exercise's check has passed in this session."""
        return self.exercise in core.PASSED

    def _build(self) -> ipywidgets.VBox:
        self._text = ipywidgets.HTML()
        self._text.add_class("course-hints-text")
        self._next = ipywidgets.Button()
        self._next.add_class("course-hints-next")
        self._next.on_click(lambda _: self.next())
        reference = ipywidgets.Button(description="The reference")
        reference.add_class("course-hints-reference")
        reference.on_click(lambda _: self.reference())
        row = ipywidgets.HBox([self._next, reference], layout={"flex_flow": "row wrap", "overflow": "visible"})
        box = ipywidgets.VBox([styles(), row, self._text])
        for name in ("course-widget", "course-hints"):
            box.add_class(name)
        self._put()
        return box

    def next(self) -> None:
        """Show one hint more, as the button does."""
        self.shown = min(self.shown + 1, len(self._found.hints))
        self._put()

    def reference(self) -> None:
        """Show the reference when the check has passed, else say that it opens then."""
        if self._found.reference is None:
            self._put("<p>The reference is not in this copy of the course: ask whoever gave it to you.</p>")
        elif self.passed:
            code = html.escape(_clean(self._found.reference))
            self._put(f"<p><b>The reference.</b> Yours need not look like it.</p><pre>{code}</pre>")
        else:
            self._put("<p>It opens when the check above has passed in this session.</p>")

    def _put(self, more: str = "") -> None:
        count = len(self._found.hints)
        left = self.shown < count
        self._next.description = f"Hint {self.shown + 1} of {count}" if left else "No more hints"
        self._next.disabled = not left
        shown = enumerate(self._found.hints[: self.shown], start=1)
        lines = "".join(f"<p><b>{number}.</b> {rich(text)}</p>" for number, text in shown)
        self._text.value = f'<div role="status">{lines}{more}</div>' if lines or more else ""

    def _show(self) -> None:
        command = f"python3 start.py hint {self._found.position or self.exercise}"
        face = (
            '<div class="course-hints course-static"><p><i>Stuck? Run this cell for a hint, or type '
            f"<code>{command}</code> in a terminal.</i></p></div>"
        )
        show_faces(self.widget, face, f"Stuck? {command}")


def _clean(source: str) -> str:
    marks = ("### BEGIN", "### END")
    return "\n".join(line for line in source.splitlines() if not line.strip().startswith(marks))


def hint(exercise: str) -> Any:
    """Display the hints of an exercise, closed: `hint("unequal-tokens")`. Where there are none, a line says so."""
    try:
        made = Hints(exercise)
    except CourseError as error:
        print(error)
        return None
    made.display()
    return made
