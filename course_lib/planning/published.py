"""Published runs beside what the planner says of them: steps that others timed, whole runs, and what is no check.

    for one in compare():                  # every timed step: one.row, one.seconds, one.published_seconds, one.error
        ...
    fit("H100")                            # the one constant of that chip, from the fitted half of its rows
    WHOLE, CONVERSIONS, EXCLUDED           # whole runs and their implied MFU; figures that follow from others; the rest

How the constants were fitted, fixed before anything was fitted: of each table, in the order in which its source prints
it, the first, third, fifth ... row is fitted and the others are held out. A chip's constant is the one at which the
logarithms of predicted over published seconds average to zero over its tables, each table weighing the same. Nothing
else is fitted, and no row has a number of its own.

What the held-out half proves is the constant, not the form. A first form had 77% of it within 15%, a median error of
11% and a largest of 58%. Looking at all rows then showed two facts that it lacked, and they went in as the sources have
them: Megatron-Core's README says that it overlaps tensor and pipeline traffic, and PyTorch leaves out the last product
of a block that it computes again. `summary` says what is reached since, `left_out` what a whole table makes of a
constant that never saw it, `MISSES` what is known of the rows that are far off.

The rival is one flat MFU for all steps of a chip (`flat_mfu`). Of held-out steps on A100 it misses by 21% in the median
where the planner misses by 5%; of those on H100 by 6%, where the planner misses by 8%: what was published of H100 was
laid out to be fast, without much recomputation or bubble, and so is alike. The figures are in `published.toml`.
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from math import exp, log, prod
from typing import Any, Literal

from course_lib.planning.devices import fill
from course_lib.planning.flops import six_nd, step_flops
from course_lib.planning.spec import Assumptions, DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec
from course_lib.planning.steptime import predict

__all__ = [
    "CONVERSIONS",
    "EXCLUDED",
    "MISSES",
    "RATES",
    "ROWS",
    "WHOLE",
    "Comparison",
    "Conversion",
    "Excluded",
    "Miss",
    "Rate",
    "Row",
    "Whole",
    "compare",
    "fit",
    "flat_error",
    "flat_mfu",
    "left_out",
    "summary",
]


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
class Comparison:
    """A timed step and its prediction."""

    row: Row
    seconds: float
    """Predicted."""
    published_seconds: float
    tflops: float
    """Predicted: model FLOPs a second and device, in 10**12."""
    published_tflops: float

    @property
    def error(self) -> float:
        """Predicted over published seconds, less one: +0.1 is a step predicted a tenth too long."""
        return self.seconds / self.published_seconds - 1


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
class Rate:
    """A rate that is published beside the time of a step."""

    row: str
    """Table and name, as in the run's name."""
    counts: Literal["model", "hardware"]
    tflops: float

    @property
    def computed(self) -> float:
        """TFLOP/s a device from the published time and our count of FLOPs."""
        (row,) = (row for row in ROWS if row.run.name == self.row)
        run = row.run
        flops = step_flops(run.model, run.data.sequence, run.data.global_batch, recompute=run.layout.recompute)
        return (flops.model if self.counts == "model" else flops.hardware) / (row.seconds * run.layout.devices * 1e12)

    @property
    def error(self) -> float:
        """Computed over published, less one."""
        return self.computed / self.tflops - 1


@dataclass(frozen=True)
class Miss:
    """A row that is predicted badly, what is known of it, and what another value of something unpublished would do."""

    row: str
    why: str
    layout: Mapping[str, Any] = field(default_factory=dict)
    assume: Mapping[str, Any] = field(default_factory=dict)

    @property
    def errors(self) -> tuple[float, float | None]:
        """As predicted; and with `layout` and `assume` put in, None where there is nothing to put in."""
        (row,) = (row for row in ROWS if row.run.name == self.row)
        other = replace(
            row,
            run=replace(
                row.run,
                layout=replace(row.run.layout, **self.layout),
                assume=replace(row.run.assume, **self.assume),
            ),
        )
        seconds = predict(other.run).seconds
        known = seconds / row.seconds - 1 if self.layout or self.assume else None
        return compare([row])[0].error, known


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
    for column, value in values.items():
        section, _, field = column.partition(".")
        if field:
            parts[section][field] = value
    layout, devices = parts["layout"], parts["hardware"]["devices"]
    others = layout.get("tensor", 1) * layout.get("pipeline", 1) * layout.get("context", 1)
    return RunSpec(
        name=f"{table['key']}: {values['name']}",
        model=ModelSpec(**models[values["model"]]),
        data=DataSpec(**{"tokens": 1e12, **parts["data"]}),
        hardware=fill(HardwareSpec(**parts["hardware"])),
        layout=LayoutSpec(**{"data": devices // others, **layout}),
        assume=Assumptions(**parts["assume"]),
    )


@cache
def _document() -> dict[str, Any]:
    text = resources.files("course_lib.planning").joinpath("published.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def _rows() -> tuple[Row, ...]:
    found = []
    for table in _document()["table"]:
        for place, cells in enumerate(table["rows"]):
            values = dict(zip(table["columns"], cells, strict=True))
            counted: Literal["fitted", "held out"] = "held out" if place % 2 else "fitted"
            found.append(
                Row(
                    table=table["key"],
                    title=table["title"],
                    name=values["name"],
                    run=_run(table, values, _document()["model"]),
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
WHOLE = tuple(Whole(**one) for one in _document()["whole"])
MISSES = tuple(Miss(**one) for one in _document()["miss"])
RATES = tuple(Rate(**one) for one in _document()["rate"])
CONVERSIONS = tuple(Conversion(**one) for one in _document()["conversion"])
EXCLUDED = tuple(Excluded(**one) for one in _document()["excluded"])


def compare(rows: Iterable[Row] = ROWS, efficiency: float | None = None) -> list[Comparison]:
    """Every row with its prediction. efficiency: for all of them, instead of the fitted constants."""
    found = []
    for row in rows:
        run = row.run
        if efficiency is not None:
            run = replace(run, assume=replace(run.assume, efficiency=efficiency))
        seconds = predict(run).seconds
        flops = step_flops(run.model, run.data.sequence, run.data.global_batch).model / (run.layout.devices * 1e12)
        found.append(Comparison(row, seconds, row.seconds, flops / seconds, flops / row.seconds))
    return found


def _bias(rows: Iterable[Row], efficiency: float) -> float:
    """Mean over tables of the mean logarithm of predicted over published seconds."""
    logs: dict[str, list[float]] = {}
    for one in compare(rows, efficiency):
        logs.setdefault(one.row.table, []).append(log(one.seconds / one.published_seconds))
    return sum(sum(table) / len(table) for table in logs.values()) / len(logs)


def _fit(rows: Sequence[Row]) -> float:
    """The constant at which `_bias` is 0, by halving: higher is faster."""
    low, high = 0.2, 1.5
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _bias(rows, middle) > 0 else (low, middle)
    return round((low + high) / 2, 3)


def fit(chip: str) -> float:
    """The constant of a chip, by the rule at the top of this file, to three decimals."""
    return _fit([row for row in ROWS if row.chip == chip and row.half == "fitted"])


def left_out(table: str) -> list[Comparison]:
    """A harder test: a table predicted with a constant that is fitted on all other tables of its chip, whole."""
    rows = [row for row in ROWS if row.table == table]
    others = [row for row in ROWS if row.chip == rows[0].chip and row.table != table and row.half != "outside"]
    return compare(rows, _fit(others))


@cache
def flat_mfu(chip: str) -> float:
    """The rival without a planner: one MFU for every step of a chip, fitted on the same rows by the same rule."""
    logs: dict[str, list[float]] = {}
    for one in compare(row for row in ROWS if row.chip == chip and row.half == "fitted"):
        logs.setdefault(one.row.table, []).append(log(one.published_tflops / (one.row.run.hardware.peak_tflops or 1.0)))
    return exp(sum(sum(table) / len(table) for table in logs.values()) / len(logs))


def flat_error(one: Comparison) -> float:
    """What `error` would be with `flat_mfu` of the row's chip instead of a prediction."""
    return one.published_tflops / (flat_mfu(one.row.chip) * (one.row.run.hardware.peak_tflops or 1.0)) - 1


def summary(errors: Iterable[float]) -> dict[str, float]:
    """Of some errors: how many, the median and the largest without sign, and the share within 15%."""
    errors = sorted(map(abs, errors))
    middle = len(errors) // 2
    return {
        "rows": len(errors),
        "median": errors[middle] if len(errors) % 2 else (errors[middle - 1] + errors[middle]) / 2,
        "largest": errors[-1],
        "within 15%": sum(error <= 0.15 for error in errors) / len(errors),
    }
