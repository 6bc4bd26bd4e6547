"""The controls of an explorer: what can be changed, with a label, a unit, limits and a default."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import log10
from typing import Any

import ipywidgets

__all__ = ["ChoiceControl", "Control", "FloatControl", "IntControl", "TextControl"]


@dataclass(frozen=True, kw_only=True)
class Control:
    """One thing that can be changed. `name` is the keyword with which `draw` gets its value."""

    name: str
    """Keyword of `draw`."""
    label: str
    """What it is, in the words of the text."""
    unit: str = ""
    """Unit of its value, shown behind the label: tokens, GiB, ms."""
    default: Any = None
    """Where it starts, and what reset goes back to."""
    enabled: Callable[[Mapping[str, Any]], bool] | None = None
    """Of all values: whether the control has an effect at this setting. Without effect it is disabled."""
    more: bool = False
    """Behind the button "More controls" from the start (from the fourth control on all are)."""

    @property
    def text(self) -> str:
        """Label with unit."""
        return f"{self.label} ({self.unit})" if self.unit else self.label

    def show(self, value: Any) -> str:
        """A value as the page writes it."""
        return str(value)

    def build(self) -> Any:
        """The ipywidget, whose `value` is the control's value."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class IntControl(Control):
    """A slider over whole numbers, ends included."""

    min: int
    max: int
    step: int = 1

    def __post_init__(self) -> None:
        _within(self, self.min, self.max)
        if (self.default - self.min) % self.step:
            raise ValueError(f"control {self.name!r}: {self.default} is not a number of steps from {self.min}")

    def build(self) -> Any:
        """A slider; its number can be typed too."""
        return ipywidgets.IntSlider(value=self.default, min=self.min, max=self.max, step=self.step)


@dataclass(frozen=True, kw_only=True)
class FloatControl(Control):
    """A slider over real numbers; with `log` its steps are factors: step 0.1 is ten steps from 1 to 10.

    The default becomes the nearest step, since a slider can stand nowhere else.
    """

    min: float
    max: float
    step: float = 0.1
    log: bool = False
    format: str = ".2f"
    """How the number is shown, as in format()."""

    def __post_init__(self) -> None:
        _within(self, self.min, self.max)
        if self.log and self.min <= 0:
            raise ValueError(f"control {self.name!r}: a logarithmic slider needs min above 0, not {self.min}")
        low, default = (log10(self.min), log10(self.default)) if self.log else (self.min, self.default)
        nearest = low + round((default - low) / self.step) * self.step
        value = 10**nearest if self.log else round(nearest, 12)
        object.__setattr__(self, "default", min(max(value, self.min), self.max))

    def show(self, value: Any) -> str:
        """A value as the page writes it."""
        return format(value, self.format)

    def build(self) -> Any:
        """A slider; its number can be typed too."""
        if not self.log:
            return ipywidgets.FloatSlider(
                value=self.default, min=self.min, max=self.max, step=self.step, readout_format=self.format
            )
        return ipywidgets.FloatLogSlider(
            value=self.default,
            base=10,
            min=log10(self.min),
            max=log10(self.max),
            step=self.step,
            readout_format=self.format,
        )


@dataclass(frozen=True, kw_only=True)
class ChoiceControl(Control):
    """One of a few: buttons for up to four, a drop-down list for more. The value is the option itself."""

    options: Sequence[str]

    def __post_init__(self) -> None:
        if self.default not in self.options:
            raise ValueError(f"control {self.name!r}: default {self.default!r} is not one of {list(self.options)}")

    def build(self) -> Any:
        """Buttons or a list."""
        if len(self.options) <= 4:
            return ipywidgets.ToggleButtons(
                options=list(self.options), value=self.default, style={"button_width": "auto"}
            )
        return ipywidgets.Dropdown(options=list(self.options), value=self.default)


@dataclass(frozen=True, kw_only=True)
class TextControl(Control):
    """A line of text; every keystroke is drawn."""

    placeholder: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.default, str):
            raise ValueError(f"control {self.name!r}: default must be a text, not {self.default!r}")

    def build(self) -> Any:
        """A text field."""
        return ipywidgets.Text(value=self.default, placeholder=self.placeholder, continuous_update=True)


def _within(control: Control, low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"control {control.name!r}: min {low} must be below max {high}")
    if not (isinstance(control.default, int | float) and low <= control.default <= high):
        raise ValueError(f"control {control.name!r}: default {control.default!r} is not between {low} and {high}")
