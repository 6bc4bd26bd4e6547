"""The smallest change that mends a plan, found by computing: of layouts, micro-batches, batches, devices, storage.

    near = Near(run)
    near.smaller(limit)                                  # the fewest changes until it fits, and of those the fastest
    near.quicker(limit, seconds, lambda step: step.bubble < 0.1)
    least_micro_batches("1f1b", 4, 1, 0.10)              # 27 by the schedule's formula
    least_batch(run, lambda step: step.parts["data_traffic"] < 0.05 * step.seconds)

A change is one of `layouts.groups`; the number of devices stays.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.parallel.schedule import bubble_formula
from course_lib.planning import cadence
from course_lib.planning.layouts import COLUMNS, Group, Space, groups, price
from course_lib.planning.spec import LayoutSpec, RunSpec
from course_lib.planning.steptime import StepTime, predict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

__all__ = ["Mended", "Near", "changes", "goodput_at", "least", "least_batch", "least_micro_batches"]

MOST_CHANGES = 2
"""Beyond it is another layout, and `search` finds the best of all."""


class Mended(NamedTuple):
    """A layout near the planned one."""

    layout: LayoutSpec
    peak: float
    """Bytes of the fullest device."""
    seconds: float
    """Of a step."""


class Near:
    """The layouts that are a change or two from a run's own, priced when they are first asked for."""

    def __init__(self, run: RunSpec, most: int = MOST_CHANGES) -> None:
        self.run, self.most = run, most

        layout = run.layout
        # Recomputing attention's inner values saves nothing where it is fused.
        modes = [
            mode for mode in Space.recompute if mode in ("none", "all", layout.recompute) or not layout.fused_attention
        ]
        self._space = Space(recompute=tuple(modes))

    @cached_property
    def _one(self) -> "list[tuple[Group, Numbers, Numbers]]":
        return [(group, *price(self.run, group)) for group in groups(self.run, self._space, changes=1)]

    @cached_property
    def _two(self) -> "list[tuple[Group, Numbers, Numbers]]":
        return [(group, *price(self.run, group)) for group in groups(self.run, self._space, changes=MOST_CHANGES)]

    def within(self, count: int, peak: float, seconds: float) -> Iterator[Mended]:
        """Those of one or two changes below both, fastest first; of those as fast, the one with the nearest numbers."""
        found = self._one if count == 1 else self._two
        if not found:
            return
        peaks, times = (np.concatenate([each[k] for each in found]) for k in (1, 2))
        far = np.concatenate([_distance(self.run.layout, group) for group, *_ in found])
        ends = np.cumsum([group.size for group, *_ in found])
        places = np.flatnonzero((peaks <= peak) & (times <= seconds))
        digits = 10.0 ** (np.floor(np.log10(times)) - 2)  # three of them decide
        for place in places[
            np.lexsort([(each[places]) for each in (peaks, times, far, np.round(times / digits) * digits)])
        ]:
            which = int(np.searchsorted(ends, place, side="right"))
            group = found[which][0]
            layout = group.layout(self.run, int(place - ends[which] + group.size))
            yield Mended(layout, float(peaks[place]), float(times[place]))

    def smaller(self, peak: float) -> Mended | None:
        """The fastest of those with the fewest changes that need at most `peak` bytes; None: none does."""
        for count in range(1, self.most + 1):
            for mended in self.within(count, peak, inf):
                return mended
        return None

    def quicker(self, peak: float, seconds: float, good: Callable[[StepTime], bool]) -> Mended | None:
        """The fastest single change that needs at most `peak` bytes, takes at most `seconds`, and whose predicted step
        is `good`; None: none is. A plan has to answer at once: two changes are left to a search."""
        for mended in self.within(1, peak, seconds):
            if good(predict(replace(self.run, layout=mended.layout))):
                return mended
        return None


def _distance(old: LayoutSpec, group: Group) -> "Numbers":
    """By how many doublings the numbers differ."""
    return np.sum(  # type: ignore[no-any-return]
        [np.abs(np.log2(group.columns[name] / getattr(old, name))) for name in COLUMNS], axis=0
    )


def changes(old: LayoutSpec, new: LayoutSpec) -> str:
    """What differs, as one would write it: "tensor = 8 (was 4), data = 16 (was 32)". What follows comes last."""
    order = ("schedule", "chunks") if new.pipeline > 1 else ()
    names = (
        "sharding",
        "replicas",
        *order,
        "recompute",
        "tensor",
        "pipeline",
        "context",
        "expert",
        "micro_batch",
        "data",
    )
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in names]
    return ", ".join(f"{name} = {_written(now)} (was {_written(was)})" for name, was, now in pairs if was != now)


def _written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def least_micro_batches(schedule: str, stages: int, chunks: int, below: float) -> int | None:
    """The smallest number of micro-batches for which the schedule exists and its formula has a bubble below that share
    of the time, from there on exact. None: not within 100 a stage and share, where only `naive` is."""
    for m in range(1, int(100 * stages / below)):
        try:
            if bubble_formula(schedule, stages, m, chunks) < below:
                return m
        except ScheduleError:  # no such schedule, or no exact formula, for this m
            continue
    return None


def least(good: Callable[[int], bool], most: int) -> int | None:
    """The smallest k from 2 to `most` for which `good(k)`, one by one up to 16 and then by doubling; None: none."""
    k = 2
    while k <= most:
        if good(k):
            return k
        k = k + 1 if k < 16 else 2 * k
    return None


def least_batch(run: RunSpec, good: Callable[[StepTime], bool], most: int = 4096) -> int | None:
    """The smallest multiple of the global batch, in sequences, whose predicted step is `good`; None: none to `most`."""

    def better(k: int) -> bool:
        return good(predict(replace(run, data=replace(run.data, global_batch=k * run.data.global_batch))))

    k = least(better, most)
    return None if k is None else k * run.data.global_batch


def goodput_at(write: float, mtbf: float, restart: float) -> float:
    """The goodput with the best cadence for such a write."""
    return cadence.goodput(cadence.daly(write, mtbf), write, mtbf, restart)
