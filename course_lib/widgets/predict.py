"""Predict first: choose, say how sure you are, lock it in; after the experiment, compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets

from course_lib.widgets.faces import Shown, display_html, rich, show_faces, styles

__all__ = ["Prediction", "predict"]

SURE = ("a guess", "fairly sure", "certain")

_LOCKED: dict[
    str, tuple[int, str]
] = {}  # question -> (option, how sure): running a cell again keeps what was locked in
_SCORES: dict[str, tuple[bool, str]] = {}  # question -> (right, how sure), once revealed


class Prediction(Shown):
    """A question that is on the page. `reveal()` compares after the experiment.

    CSS classes: `course-predict` (the box), `course-predict-question`, `course-predict-options`, `course-predict-sure`,
    `course-predict-lock`, `course-predict-status`; the comparison is `course-reveal`.
    """

    def __init__(
        self,
        question: str,
        options: Sequence[str],
        answer: int,
        misconceptions: Sequence[str | None] | None = None,
        sentences: Mapping[str, str] | None = None,
    ) -> None:
        if not 0 <= answer < len(options):
            raise ValueError(f"answer={answer} is not the index of one of {len(options)} options")
        if misconceptions is not None and len(misconceptions) != len(options):
            raise ValueError(
                f"{len(misconceptions)} misconceptions for {len(options)} options: one each, None for none"
            )
        if len(set(options)) != len(options):
            raise ValueError("two options read the same")
        self.question, self.options, self.answer = question, tuple(options), answer
        self._beliefs = tuple(misconceptions or [None] * len(options))
        self._sentences = dict(sentences or {})
        self.widget = self._build()

    @property
    def locked(self) -> tuple[int, str] | None:
        """(index of the option, how sure) once locked in, else None."""
        return _LOCKED.get(self.question)

    def lock(self, option: int, sure: str = SURE[1]) -> None:
        """Lock in a prediction, as the button does. A second one changes nothing."""
        if self.locked is None:
            _LOCKED[self.question] = (range(len(self.options))[option], sure)
        self._refresh()

    def _build(self) -> ipywidgets.VBox:
        question = ipywidgets.HTML(f'<div class="course-title">Predict</div><p>{rich(self.question)}</p>')
        question.add_class("course-predict-question")
        self._choice = ipywidgets.RadioButtons(
            options=list(self.options), value=None, description="Your prediction", layout={"width": "auto"}
        )
        self._choice.add_class("course-predict-options")
        self._sure = ipywidgets.ToggleButtons(
            options=SURE,
            value=None,
            description="How sure?",
            style={"button_width": "auto", "description_width": "initial"},
        )
        self._sure.add_class("course-predict-sure")
        self._button = ipywidgets.Button(description="Lock in", button_style="primary")
        self._button.add_class("course-predict-lock")
        self._button.on_click(lambda _: self._press())
        self._status = ipywidgets.HTML()
        self._status.add_class("course-predict-status")
        row = ipywidgets.HBox(
            [self._sure, self._button], layout={"flex_flow": "row wrap", "align_items": "center", "overflow": "visible"}
        )
        box = ipywidgets.VBox([styles(), question, self._choice, row, self._status])
        for name in ("course-widget", "course-predict"):
            box.add_class(name)
        self._refresh()
        return box

    def _press(self) -> None:
        if self._choice.index is None or self._sure.index is None:
            missing = "Choose an answer" if self._choice.index is None else "Say how sure you are"
            self._status.value = f'<div role="status">{missing} first.</div>'
            return
        self.lock(self._choice.index, SURE[self._sure.index])

    def _refresh(self) -> None:
        locked = self.locked
        for control in (self._choice, self._sure, self._button):
            control.disabled = locked is not None
        if locked is None:
            self._status.value = (
                '<div role="status" class="course-muted">Nothing is graded. You may also run on without.</div>'
            )
            return
        option, sure = locked
        self._choice.index, self._sure.index = option, SURE.index(sure)
        self._status.value = (
            f'<div role="status">Locked in: <b>{rich(self.options[option])}</b> ({sure}). Now run on.</div>'
        )

    def _show(self) -> None:
        items = "".join(f"<li>{rich(option)}</li>" for option in self.options)
        face = (
            f'<div class="course-predict course-static"><p><b>Predict.</b> {rich(self.question)}</p><ul>{items}</ul>'
            "<p><i>Run this cell to choose, to say how sure you are and to lock it in.</i></p></div>"
        )
        show_faces(
            self.widget, face, f"Predict: {self.question}\n" + "\n".join(f"  ( ) {option}" for option in self.options)
        )

    def reveal(self, because: str = "") -> None:
        """After the experiment: what you said against what it showed, and what the option you took smells of.

        `because` is one more sentence for those who did predict. Who did not is told so, and not the answer.
        """
        if self.locked is None:
            text = "You made no prediction here. Lock one in above, then run this cell again to compare."
            display_html(f'<div class="course-reveal"><p>{text}</p></div>', text)
            return
        option, sure = self.locked
        right = option == self.answer
        _SCORES[self.question] = (right, sure)
        lines = [f"{'✓' if right else '✗'} You said **{self.options[option]}** ({sure})."]
        lines[0] += " The experiment agrees." if right else f" The experiment says **{self.options[self.answer]}**."
        belief = self._beliefs[option]
        if belief and not right:
            sentence = self._sentences.get(belief, belief)
            if " " not in sentence:
                sentence = f"a common belief, “{sentence.replace('-', ' ')}”."
            lines.append(f"Behind that choice there is often this: {sentence}")
        if because:
            lines.append(because)
        lines.append(_tally())
        body = "".join(f"<p>{rich(line)}</p>" for line in lines)
        display_html(f'<div class="course-reveal">{body}</div>', "\n".join(lines).replace("**", ""))


def _tally() -> str:
    right = sum(hit for hit, _ in _SCORES.values())
    certain = [hit for hit, sure in _SCORES.values() if sure == SURE[2]]
    text = f"In this session: {right} of {len(_SCORES)} predictions right"
    return text + (f", {sum(certain)} of {len(certain)} when you were certain." if certain else ".")


def predict(
    question: str,
    options: Sequence[str],
    answer: int,
    misconceptions: Sequence[str | None] | None = None,
    sentences: Mapping[str, str] | None = None,
) -> Prediction:
    """Ask for a prediction before an experiment and display it::

        guess = predict("What will …?", ["the same", "twice"], answer=1, misconceptions=["mean-of-means-is-fine", None])
        ...                      # the experiment, in the next cell, ends with
        guess.reveal()

    options: what to choose from; answer: index of the one that the experiment will show; misconceptions: for each
    option None, or a misconception's id (its sentence is looked up in `sentences`, such as an exercise's
    `misconceptions`), or a sentence. It never waits: the cells below run whether something was locked in or not.
    Running the cell again keeps what was locked in. ValueError when answer or misconceptions do not fit the options.
    """
    prediction = Prediction(question, options, answer, misconceptions, sentences)
    prediction.display()
    return prediction
