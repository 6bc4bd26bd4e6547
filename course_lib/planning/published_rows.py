"""What `published.toml` holds, as dataclasses: timed steps, whole runs, what follows from others, and what is excluded.

`course_lib.planning.published` compares them with what the planner says.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import prod
from typing import Any, Literal

from course_lib.planning.devices import fill
from course_lib.planning.flops import six_nd, step_flops
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec

__all__ = ["CONVERSIONS", "EXCLUDED", "ROWS", "WHOLE", "Conversion", "Excluded", "Row", "Whole", "document"]


@dataclass(frozen=True)
class Row:
    """One step that somebody timed."""

    table: str
    """The key of its table."""
    title: str
    name: str
    run: RunSpec
    """With its hardware filled in."""
    kind: str
    """What is published, as in `published.toml`."""
    published: float
    half: Literal["fitted", "held out", "outside"]
    """Outside: of what the model claims; shown, in no average."""
    source: str
    mark: str
    not_published: str
    """What the row needs, its source does not say, and what is put there."""

    @property
    def standing(self) -> str:
        """Whether the row proves anything: a time that somebody else measured does, but not what was fitted on it."""
        return {
            "fitted": "circular: its chip's constant is fitted on it",
            "held out": "independent: timed by others, seen by no fit",
            "outside": "independent, outside of what the model claims",
        }[self.half]

    @property
    def chip(self) -> str:
        """A100, H100 or, outside of both halves, another."""
        return (self.run.hardware.device or "").split(" ")[0]

    @property
    def seconds(self) -> float:
        """Of the published step: its FLOPs are counted from the shapes, so that a rate and a time are one figure."""
        run, value = self.run, self.published
        flops = step_flops(run.model, run.data.sequence, run.data.global_batch, recompute=run.layout.recompute)
        device = run.layout.devices * 1e12
        if self.kind == "model_tflops":
            return flops.model / (value * device)
        if self.kind == "hardware_tflops":
            return flops.hardware / (value * device)
        if self.kind == "mfu":
            return flops.model / (value * device * (run.hardware.peak_tflops or 1.0))
        if self.kind == "tokens_per_second":
            return run.batch_tokens / value
        if self.kind == "tokens_per_device_second":
            return run.batch_tokens / (value * run.layout.devices)
        return value


@dataclass(frozen=True)
class Whole:
    """A whole run: what its hours imply, beside what was published of its steps."""

    name: str
    parameters: float
    """That a token meets."""
    tokens: float
    device_hours: float
    hours_how: str
    peak_tflops: float
    kind: Literal["independent", "circular", "bound"]
    """Circular: the hours follow from the rate, or the rate from the hours; bound: the hours are a limit."""
    why: str
    source: str
    mark: str
    steady: float | None = None
    """Published MFU of the running steps, model FLOPs; None: not published."""
    steady_why: str = ""
    explained: str = ""
    """What goodput stands for here."""
    flops: float | None = None
    """Where the source has a count; None: 6 N D."""

    @property
    def implied(self) -> float:
        """FLOPs over what all device-hours could have done: the whole run's MFU; 6 N D has no attention in it."""
        flops = six_nd(self.parameters, self.tokens) if self.flops is None else self.flops
        return flops / (self.device_hours * 3600 * self.peak_tflops * 1e12)

    @property
    def goodput(self) -> float | None:
        """Implied over published: what restarts, ramps, evaluation and slow days leave of the steady rate."""
        return None if self.steady is None else self.implied / self.steady


@dataclass(frozen=True)
class Conversion:
    """A published figure that follows from others of the same source."""

    name: str
    published: float
    unit: str
    product: tuple[float, ...]
    how: str
    """What `product` and `over` are."""
    kind: Literal["independent", "circular"]
    source: str
    mark: str
    over: tuple[float, ...] = ()

    @property
    def computed(self) -> float:
        """All of `product` over all of `over`."""
        return prod(self.product) / prod(self.over)

    @property
    def error(self) -> float:
        """Computed over published, less one."""
        return self.computed / self.published - 1


@dataclass(frozen=True)
class Excluded:
    """A figure that must not be used as a check."""

    name: str
    why: str


def _run(table: Mapping[str, Any], values: Mapping[str, Any], models: Mapping[str, Any]) -> RunSpec:
    """A row's run: the table's sections, with the row's columns put in."""
    parts: dict[str, dict[str, Any]] = {
        section: dict(table.get(section, {})) for section in ("data", "hardware", "layout", "assume")
    }
    parts["model"] = dict(models[values["model"]])
    for column, value in values.items():
        section, _, field = column.partition(".")
        if field:
            parts[section][field] = value
    layout, devices = parts["layout"], parts["hardware"]["devices"]
    others = layout.get("tensor", 1) * layout.get("pipeline", 1) * layout.get("context", 1)
    return RunSpec(
        name=f"{table['key']}: {values['name']}",
        model=ModelSpec(**parts["model"]),
        data=DataSpec(**{"tokens": 1e12, **parts["data"]}),
        hardware=fill(HardwareSpec(**parts["hardware"])),
        layout=LayoutSpec(**{"data": devices // others, **layout}),
        assume=Assumptions(**parts["assume"]),
    )


@cache
def document() -> dict[str, Any]:
    """The file as it is."""
    text = resources.files("course_lib.planning").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _rows() -> tuple[Row, ...]:
    found = []
    for table in document()["table"]:
        for place, cells in enumerate(table["rows"]):
            values = dict(zip(table["columns"], cells, strict=True))
            counted: Literal["fitted", "held out"] = "held out" if place % 2 else "fitted"
            found.append(
                Row(
                    table=table["key"],
                    title=table["title"],
                    name=values["name"],
                    run=_run(table, values, document()["model"]),
                    kind=table["published"],
                    published=values["published"],
                    half=counted if table.get("counted", True) else "outside",
                    source=table["source"],
                    mark=table["mark"],
                    not_published=table["not_published"],
                )
            )
    return tuple(found)


ROWS = _rows()
"""Every timed step, in the order of the file."""
WHOLE = tuple(Whole(**one) for one in document()["whole"])
CONVERSIONS = tuple(Conversion(**one) for one in document()["conversion"])
EXCLUDED = tuple(Excluded(**one) for one in document()["excluded"])
