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

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from math import exp, log
from typing import Any, Literal

from course_lib.planning.flops import step_flops
from course_lib.planning.published_rows import (
    CONVERSIONS,
    EXCLUDED,
    ROWS,
    WHOLE,
    Conversion,
    Excluded,
    Row,
    Whole,
    document,
)
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


MISSES = tuple(Miss(**one) for one in document()["miss"])
RATES = tuple(Rate(**one) for one in document()["rate"])


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
