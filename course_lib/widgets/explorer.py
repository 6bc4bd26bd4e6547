"""The one helper that makes every explorer: controls, a picture that answers them, presets, goals.

CSS classes, which the browser tests rely on:

- `course-explorer`: the whole; `course-explorer-title`; `course-explorer-goals` (`course-goal-reached`);
- `course-explorer-presets`: its buttons, the last one resets; `course-explorer-more`: shows the other controls;
- `course-explorer-controls`: a box of controls; each is a `course-control`, and `course-control-NAME`;
- `course-explorer-picture`: what `draw` drew, its numbers and message included; a goal's tick is not part of it;
- `course-explorer-error`: one line, when a setting cannot be drawn; `course-explorer-caption`: the sentence under it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ipywidgets

from course_lib.figures.style import close, png
from course_lib.widgets.controls import Control
from course_lib.widgets.faces import Shown, caption_html, image_html, numbers_html, rich, show_faces, styles

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Explorer", "Goal", "Preset", "View", "explorer"]

_VISIBLE = 3


@dataclass(frozen=True)
class View:
    """What `draw` returns for one setting."""

    picture: Figure | str
    """A figure, or HTML or SVG in JupyterLab's colours (`currentColor`, `var(--jp-...)`)."""
    alt: str
    """What the picture shows at this setting, for those who cannot see it."""
    numbers: Sequence[tuple[str, str]] = ()
    """Big numbers under the picture: (value, what it is)."""
    message: str = ""
    """One sentence on this setting, or none."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """What goals look at besides the values."""


@dataclass(frozen=True)
class Preset:
    """A button that sets several controls at once; controls not named go to their defaults."""

    label: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Goal:
    """Something to find: `reached(values, view)` says whether this setting is it."""

    text: str
    reached: Callable[[Mapping[str, Any], View], bool]


class Explorer(Shown):
    """An explorer on the page. `values` are the settings, `set(name=value)` changes them, `view` is what is drawn."""

    def __init__(
        self,
        draw: Callable[..., View],
        controls: Sequence[Control],
        presets: Sequence[Preset] = (),
        goals: Sequence[Goal] = (),
        *,
        title: str,
        caption: str,
        still: Callable[..., Figure] | None = None,
    ) -> None:
        self._draw, self._still = draw, still
        self.title, self.caption = title, caption
        self.controls, self.presets, self.goals = tuple(controls), tuple(presets), tuple(goals)
        self.reached: set[int] = set()
        self.error = ""
        self._check()
        self._busy = False
        self.view = draw(**self.defaults)  # a default that cannot be drawn is a bug: it raises here
        for goal in self.goals:
            if goal.reached(self.defaults, self.view):
                raise ValueError(f"the goal {goal.text!r} is already reached at the default setting")
        self._face = self._static_face()
        self._fields = {control.name: self._field(control) for control in self.controls}
        self.widget = self._build()
        self._put()

    # --------------------------------------------------------------------------------------------------------- state

    @property
    def defaults(self) -> dict[str, Any]:
        """The default of every control."""
        return {control.name: control.default for control in self.controls}

    @property
    def values(self) -> dict[str, Any]:
        """The current value of every control."""
        return {name: field.value for name, field in self._fields.items()}

    def set(self, **values: Any) -> None:
        """Set several controls and draw once. ValueError for a name that is not a control."""
        unknown = set(values) - set(self._fields)
        if unknown:
            raise ValueError(f"no control {sorted(unknown)}; there are {sorted(self._fields)}")
        self._busy = True
        try:
            for name, value in values.items():
                self._fields[name].value = value
        finally:
            self._busy = False
        self._update()

    def reset(self) -> None:
        """Every control back to its default. Goals that were reached stay reached."""
        self.set(**self.defaults)

    def _check(self) -> None:
        names = [control.name for control in self.controls]
        if len(set(names)) != len(names):
            raise ValueError(f"two controls have one name: {names}")
        for preset in self.presets:
            unknown = set(preset.values) - set(names)
            if unknown:
                raise ValueError(f"preset {preset.label!r} sets {sorted(unknown)}, which are not controls")

    def _changed(self, _change: Any = None) -> None:
        if not self._busy:
            self._update()

    def _update(self) -> None:
        values = self.values
        try:
            self.view = self._draw(**values)
            self.error = ""
        except Exception as error:
            self.error = " ".join(f"This setting cannot be drawn: {type(error).__name__}: {error}".split())[:300]
        else:
            self.reached |= {i for i, goal in enumerate(self.goals) if self._is_reached(goal, values)}
        self._put()

    def _is_reached(self, goal: Goal, values: dict[str, Any]) -> bool:
        try:
            return bool(goal.reached(values, self.view))
        except Exception:
            return False

    # ------------------------------------------------------------------------------------------------------ the page

    def _put(self) -> None:
        """Show the current view, the goals, and which controls have an effect."""
        values = self.values
        for control in self.controls:
            if control.enabled is not None:
                try:
                    self._fields[control.name].disabled = not control.enabled(values)
                except Exception:
                    self._fields[control.name].disabled = False
        if self.error:
            self._picture.value = f'<div role="alert" class="course-explorer-error">{rich(self.error)}</div>'
        else:
            self._picture.value = self._view_html(self.view)
        items = ""
        for index, goal in enumerate(self.goals):
            if index in self.reached:
                items += f'<li class="course-goal course-goal-reached">✓ {rich(goal.text)} <span>(found)</span></li>'
            else:
                items += f'<li class="course-goal">○ {rich(goal.text)}</li>'
        page = f'<div role="status"><ul class="course-goals" aria-label="goals">{items}</ul></div>'
        if self.goals and self._goals.value != page:
            self._goals.value = page

    def _view_html(self, view: View) -> str:
        if isinstance(view.picture, str):
            picture = f'<div role="img" aria-label="{_attribute(view.alt)}">{view.picture}</div>'
        else:
            picture = image_html(png(view.picture, scale=1.5, colors=None), view.alt)
            close(view.picture)
        message = f'<p role="status" class="course-message">{rich(view.message)}</p>' if view.message else ""
        return picture + numbers_html(view.numbers) + message

    def _field(self, control: Control) -> Any:
        field = control.build()
        field.description = control.text
        field.style.description_width = "210px"
        field.layout.width = "100%"
        field.layout.max_width = "640px"
        field.add_class("course-control")
        field.add_class(f"course-control-{control.name}")
        field.observe(self._changed, names="value")
        return field

    def _build(self) -> ipywidgets.VBox:
        title = ipywidgets.HTML(f'<div class="course-title course-explorer-title">{rich(self.title)}</div>')
        self._goals = ipywidgets.HTML()
        self._goals.add_class("course-explorer-goals")
        self._picture = ipywidgets.HTML()
        self._picture.add_class("course-explorer-picture")
        caption = ipywidgets.HTML(caption_html(self.caption))
        caption.add_class("course-explorer-caption")
        parts: list[Any] = [styles(), title]
        if self.goals:
            parts.append(self._goals)
        parts.append(self._buttons())
        front = [control for control in self.controls if not control.more][:_VISIBLE]
        back = [control for control in self.controls if control not in front]
        parts.append(self._box(front))
        if back:
            parts += self._more(self._box(back))
        box = ipywidgets.VBox([*parts, self._picture, caption])
        for name in ("course-widget", "course-explorer"):
            box.add_class(name)
        return box

    def _box(self, controls: Sequence[Control]) -> ipywidgets.VBox:
        box = ipywidgets.VBox([self._fields[control.name] for control in controls], layout={"overflow": "visible"})
        box.add_class("course-explorer-controls")
        return box

    def _buttons(self) -> ipywidgets.HBox:
        buttons = []
        for preset in self.presets:
            button = ipywidgets.Button(description=preset.label)
            button.on_click(lambda _, preset=preset: self.set(**{**self.defaults, **preset.values}))
            buttons.append(button)
        reset = ipywidgets.Button(description="Reset", icon="undo")
        reset.on_click(lambda _: self.reset())
        row = ipywidgets.HBox([*buttons, reset], layout={"flex_flow": "row wrap", "overflow": "visible"})
        row.add_class("course-explorer-presets")
        return row

    def _more(self, box: ipywidgets.VBox) -> list[Any]:
        box.layout.display = "none"
        button = ipywidgets.Button(
            description="More controls", icon="chevron-down", layout={"align_self": "flex-start"}
        )
        button.add_class("course-explorer-more")

        def toggle(_: Any) -> None:
            hidden = box.layout.display == "none"
            box.layout.display = "flex" if hidden else "none"
            button.description = "Fewer controls" if hidden else "More controls"
            button.icon = "chevron-up" if hidden else "chevron-down"

        button.on_click(toggle)
        return [button, box]

    # -------------------------------------------------------------------------------------------------- without kernel

    def _static_face(self) -> str:
        view = self.view
        still = self._still(**self.defaults) if self._still else view.picture
        if isinstance(still, str):
            raise ValueError("draw returns HTML: give `still`, which draws the default setting as a figure")
        picture = image_html(png(still), view.alt)
        settings = ", ".join(f"{control.text} {control.show(control.default)}" for control in self.controls)
        return (
            f'<div class="course-explorer course-static"><p><b>{rich(self.title)}</b></p>{picture}'
            f"{_numbers_table(view.numbers)}{caption_html(self.caption)}"
            f"<p><i>Here with {rich(settings)}. Run this cell to change it.</i></p></div>"
        )

    def _show(self) -> None:
        show_faces(self.widget, self._face, f"{self.title}\n{self.caption}")


def _numbers_table(row: Sequence[tuple[str, str]]) -> str:
    return "<p>" + " · ".join(f"<b>{rich(value)}</b> {rich(label)}" for value, label in row) + "</p>" if row else ""


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")


def explorer(
    draw: Callable[..., View],
    controls: Sequence[Control],
    presets: Sequence[Preset] = (),
    goals: Sequence[Goal] = (),
    *,
    title: str,
    caption: str,
    still: Callable[..., Figure] | None = None,
) -> Explorer:
    """Display an explorer: controls, and a picture that answers them::

        def draw(m, p):
            share = bubble(m, p)
            return View(schedule_figure(m, p), alt=f"{p} stages ...", numbers=[(f"{share:.1%}", "idle of total")])

        explorer(
            draw,
            [IntControl(name="m", label="micro-batches", min=1, max=64, default=8),
             IntControl(name="p", label="stages", min=2, max=8, default=4)],
            presets=[Preset("GPipe's own example", {"m": 32, "p": 4})],
            goals=[Goal("The smallest m with a bubble under 5%", lambda values, view: ...)],
            title="How many micro-batches hide a pipeline's bubble?", caption="Grey is time in which a stage waits.",
        )

    draw(**values) -> View is called for every change, in the kernel; 100 ms is its budget. What it raises becomes one
    line in the widget, except at the default setting, where it is a bug and raises here. Three controls are in front,
    the others behind "More controls". A preset sets what it names and resets the rest. A goal, once reached, stays
    ticked; one that the default already reaches is a ValueError. Where no kernel runs, the page shows the default
    setting as a picture: that of `draw`, or, when `draw` returns HTML, the figure of `still(**values)`.
    """
    made = Explorer(draw, controls, presets, goals, title=title, caption=caption, still=still)
    made.display()
    return made
