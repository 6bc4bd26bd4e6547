"""The incident simulator: the dashboards of a run, checks that cost minutes, the name of the fault, and the score.

CSS classes, which the browser tests rely on:

- `course-incident`: the whole; `course-incident-title`; `course-incident-progress`: a bar while a run is made;
- `course-incident-picture`: the dashboards; `course-incident-caption`: the sentence under them;
- `course-incident-checks`: the checks of one kind of cause; each is a button `course-incident-check` (once ordered also
  `course-incident-ordered`); `course-incident-restart`: the button that restarts the run;
- `course-incident-notes`: what was ordered, and what came back; `course-incident-error`: one line;
- `course-incident-fault`: the list of faults; `course-incident-go`: names the fault, then takes another case;
- `course-incident-score`: after the answer, with the trace of all checks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets
from IPython.display import display

from course_lib.errors import CourseError
from course_lib.figures.incident import dashboards
from course_lib.figures.incident_text import dashboards_text, dashboards_words
from course_lib.figures.style import png
from course_lib.widgets.faces import Shown, caption_html, image_html, in_notebook, numbers_html, rich, styles

if TYPE_CHECKING:
    from course_lib.failures.scoring import Order, Score
    from course_lib.failures.simulator import Case

__all__ = ["Incident", "incident_simulator"]

TITLE = "What is wrong with this run?"
CAPTION = "One run, trained on this machine, with a fault or perhaps without; in grey a good one. Dashed: a resume."
_BRIEF = (
    "Somebody was worried and called you. Every check measures **this run**; its minutes are what it would take on a "
    "large job. Order what you need, then name the fault: the score is for the name and for the minutes, against the "
    "path of the diagnosis table. Suspect in this order: data and mask, numerics, optimizer, system."
)


class Incident(Shown):
    """The simulator on the page. `case` is the one at hand; `order`, `restart`, `answer` and `take` are its buttons."""

    def __init__(self, seed: int | None = None) -> None:
        from course_lib.failures.simulator import Case

        self._make: Callable[..., Case] = Case
        self._seed = seed
        self.case: Case | None = None
        self.error = ""
        self.widget = self._build()

    # ---------------------------------------------------------------------------------------------- what can be done

    def take(self, seed: int | None = None) -> None:
        """Take a case: its run is trained, with a bar that shows how far it is. None: a new one."""
        self._say("")
        self._score.value = ""
        try:
            self.case = self._busy(lambda on_step: self._make(seed, on_step=on_step))
        finally:
            self._progress.value = ""
        self._put()

    def order(self, check: str) -> None:
        """Order a check."""
        self._do(lambda case: case.order(check))

    def restart(self) -> None:
        """Restart the run: it is trained once more."""
        self._do(lambda case: self._busy(lambda _: case.restart()))

    def answer(self, name: str) -> None:
        """Name the fault."""
        self._do(lambda case: case.answer(name))

    def _do(self, deed: Callable[[Case], Any]) -> None:
        """One deed on the case; an error is one line, and the page stays alive."""
        if self.case is None:
            return
        self._say("")
        try:
            deed(self.case)
        except CourseError as error:
            self._say(str(error))
        except Exception as error:
            self._say(f"This did not work: {type(error).__name__}: {error}")
        finally:
            self._progress.value = ""
        self._put()

    def _busy(self, work: Callable[[Callable[[int, int], None]], Any]) -> Any:
        """Do work that trains a run. Its progress is drawn at most a few times."""
        self._progress.value = _bar(0, 1)

        def on_step(done: int, total: int) -> None:
            if done % 10 == 0:
                self._progress.value = _bar(done, total)

        return work(on_step)

    def _go(self) -> None:
        """The one button at the end: it names the fault, and once that is done, takes another case."""
        if self.case is None or self.case.score is not None:
            try:
                self.take()
            except Exception as error:
                self._say(f"No run could be made: {type(error).__name__}: {error}")
        elif not self._fault.value:
            self._say("Choose a fault first.")
        else:
            self.answer(self._fault.value)

    def _say(self, error: str) -> None:
        self.error = " ".join(error.split())[:300]
        self._error.value = f'<div role="alert">{rich(self.error)}</div>' if self.error else ""

    # ------------------------------------------------------------------------------------------------------ the page

    def _build(self) -> ipywidgets.VBox:
        from course_lib.failures.scoring import faults, restart_minutes, table_order

        self._title = _html("course-incident-title", f'<div class="course-title">{TITLE}</div>')
        self._progress = _html("course-incident-progress")
        self._picture = _html("course-incident-picture")
        self._caption = _html("course-incident-caption", caption_html(CAPTION))
        self._notes = _html("course-incident-notes")
        self._error = _html("course-incident-error")
        self._score = _html("course-incident-score")
        self._checks: dict[str, ipywidgets.Button] = {}
        groups: dict[str, list[ipywidgets.Button]] = {}
        for check in table_order():
            button = ipywidgets.Button(description=f"{check.title} ({check.minutes:g} min)")
            button.add_class("course-incident-check")
            button.on_click(lambda _, name=check.name: self.order(name))
            self._checks[check.name] = button
            groups.setdefault(check.category, []).append(button)
        boxes = [_group(kind, buttons) for kind, buttons in groups.items()]
        grid = ipywidgets.Box(boxes, layout={"overflow": "visible"})
        grid.add_class("course-incident-grid")
        label = f"Restart the run ({restart_minutes():g} min)"
        self._restart = restart = ipywidgets.Button(description=label, layout={"align_self": "flex-start"})
        restart.add_class("course-incident-restart")
        restart.on_click(lambda _: self.restart())
        options = [("choose one", ""), *((title, name) for name, title in faults().items())]
        self._fault = ipywidgets.Dropdown(options=options, value="", description="The fault is:")
        self._fault.style.description_width = "initial"
        self._fault.add_class("course-incident-fault")
        self._button = ipywidgets.Button(description="Name it", button_style="primary")
        self._button.add_class("course-incident-go")
        self._button.on_click(lambda _: self._go())
        looks = {"flex_flow": "row wrap", "overflow": "visible"}
        self._naming = ipywidgets.HBox([self._fault, self._button], layout=looks)
        brief = _html("course-incident-brief", f"<p>{rich(_BRIEF)}</p>")
        self._desk = ipywidgets.VBox([grid, restart], layout={"overflow": "visible"})
        for part in (self._caption, self._desk, self._naming):
            part.layout.display = "none"  # until there is a case
        parts = [self._title, brief, self._picture, self._caption, self._desk, self._notes, self._naming]
        box = ipywidgets.VBox([styles(), *parts, self._progress, self._error, self._score])
        for name in ("course-widget", "course-incident"):
            box.add_class(name)
        return box

    def _put(self) -> None:
        """Show the case as it is now."""
        from course_lib.failures.scoring import RESTART

        case = self.case
        if case is None:
            return
        title = f'<div class="course-title">{TITLE} <span class="course-muted">Case {case.seed}</span></div>'
        if self._title.value != title:
            self._title.value = title
            self._picture.value = self._drawn(1.5, None)
            self._fault.value = ""
        ordered = {order.name for order in case.orders}
        for name, button in self._checks.items():
            text = button.description.removeprefix("✓ ")
            if name in ordered:
                button.description = f"✓ {text}"
                button.add_class("course-incident-ordered")
            else:
                button.description = text
                button.remove_class("course-incident-ordered")
        self._restart.disabled = RESTART in ordered
        self._notes.value = _notes(case.orders, case.minutes)
        closed = case.score is not None
        self._desk.layout.display = "none" if closed else "flex"
        self._caption.layout.display = self._naming.layout.display = "flex"
        self._fault.disabled = closed
        self._button.description = "Another case" if closed else "Name it"
        self._score.value = _score(case.score, case.trace(), ordered) if case.score else ""

    def _drawn(self, scale: float, colors: int | None) -> str:
        """The dashboards as an `<img>`."""
        case = self.case
        assert case is not None
        events = case.events
        happened = ". ".join(f"Step {step}: {text}" for step, text in events)
        good = case.good
        subtitle = f"Grey: a good run of the same set-up, with another seed. {happened}"
        figure = dashboards(case.dashboards, events, good, title=case.headline, subtitle=subtitle)
        words = f"{case.headline}. {dashboards_words(case.dashboards, events, good)}"
        return image_html(png(figure, scale=scale, colors=colors), words)

    # ----------------------------------------------------------------------------------------------- without a kernel

    def _faces(self) -> dict[str, Any]:
        """The one output: alive, as HTML, as text."""
        view = {"version_major": 2, "version_minor": 0, "model_id": self.widget.model_id}
        face = f'<div class="course-incident course-static"><p><b>{TITLE}</b></p>'
        text = TITLE
        if self.case is not None:
            command = f"course incident --seed {self.case.seed}"
            face += self._drawn(2.0, 128) + caption_html(CAPTION)
            text = (
                f"{TITLE}\n{self.case.headline}\n{dashboards_text(self.case.dashboards, self.case.events)}\n{command}"
            )
            face += (
                f"<p><i>Run this cell to order checks and to name the fault, or type <code>{command}</code>.</i></p>"
            )
        else:
            face += "<p><i>The run is being made.</i></p>"
        face += "</div>"
        return {"application/vnd.jupyter.widget-view+json": view, "text/html": face, "text/plain": text}

    def _show(self) -> None:
        shown = None
        if self.case is None:
            if in_notebook():
                shown = display(self._faces(), raw=True, display_id=True)
            self.take(self._seed)
        if shown is not None:
            shown.update(self._faces(), raw=True)
        elif in_notebook():
            display(self._faces(), raw=True)
        else:
            print(self._faces()["text/plain"])


def _html(name: str, value: str = "") -> ipywidgets.HTML:
    made = ipywidgets.HTML(value)
    made.add_class(name)
    return made


def _group(kind: str, buttons: list[ipywidgets.Button]) -> ipywidgets.VBox:
    box = ipywidgets.VBox([ipywidgets.HTML(f"<b>{rich(kind)}</b>"), *buttons], layout={"overflow": "visible"})
    box.add_class("course-incident-checks")
    return box


def _bar(done: int, total: int) -> str:
    share = done / total
    return (
        '<div role="progressbar" aria-label="the run is trained" aria-valuemin="0" aria-valuemax="100" '
        f'aria-valuenow="{100 * share:.0f}" class="course-bar"><div style="width: {share:.0%}"></div></div>'
        f'<div class="course-muted">The run is trained on this machine: {done} of {total} steps.</div>'
    )


def _notes(orders: list[Order], minutes: float) -> str:
    """What was ordered; a screen reader is told the last one."""
    if not orders:
        return '<div class="course-muted">Nothing ordered yet: 0 minutes.</div>'
    items = [
        f"<b>{rich(one.title)}</b> ({one.minutes:g} min): {rich(one.finding.text)}"  # what was measured, no verdict
        for one in orders
    ]
    items[-1] = f'<span role="status">{items[-1]}</span>'
    listed = "".join(f"<li>{item}</li>" for item in items)
    return f'<div class="course-title">Your notes: {minutes:g} minutes</div><ol>{listed}</ol>'


def _score(score: Score, trace: list[Order], ordered: set[str]) -> str:
    """The score, what to learn from it, and what each check says about this run."""
    from course_lib.failures.scoring import faults

    titles, checks = faults(), {order.name: order.title for order in trace}
    said, truth = titles[score.said], titles[score.truth]
    verdict = f"✓ Right: “{truth}”." if score.right else f"✗ You said “{said}”, and it is “{truth}”."
    row = [(f"{score.points}", "points of 100"), (f"{score.minutes:g} min", "spent")]
    row.append((f"{score.par:g} min", "the table's path"))
    lines = [f"The table's path: {'; '.join(checks[name] for name in score.path)}.", *score.remarks]
    lines += [f"**To mend it:** {score.fix}", f"**Not to do:** {score.never}"]
    body = "".join(f"<p>{rich(line)}</p>" for line in lines)
    return (
        f'<div role="status"><p class="course-title">{rich(verdict)}</p>{numbers_html(row)}{body}</div>'
        f"{_trace(trace, ordered)}"
    )


def _trace(trace: list[Order], ordered: set[str]) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in ("", "check", "min", "what it says about this run"))
    rows = ""
    for one in trace:
        name = ' class="course-incident-abnormal"' if one.finding.abnormal else ""
        mark = "✓" if one.name in ordered else ""
        cells = f"<td>{mark}</td><td>{rich(one.title)}</td><td>{one.minutes:g}</td><td>{rich(one.finding.text)}</td>"
        rows += f"<tr{name}>{cells}</tr>"
    text = "What each check says about this run: ✓ you ordered it, bold what is unusual"
    return f'<table class="course-table"><caption>{text}</caption><thead><tr>{head}</tr></thead>{rows}</table>'


def incident_simulator(seed: int | None = None) -> Incident:
    """Display the incident simulator with the case of this seed (None: a new one each time the cell is run).

    The run is trained in the cell, in some seconds. Where no kernel runs, the page shows its dashboards as a picture.
    In a terminal: `course incident --seed N`.
    """
    made = Incident(seed)
    made.display()
    return made
