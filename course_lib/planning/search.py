"""The best layout: every legal one priced by the closed forms, full plans only for those that you look at.

    found = search(preset("70b-on-512-h100"), progress=print)
    found.best.layout, found.best.seconds, found.best.peak, found.best.plan
    found.pareto                    # from fast and large to slow and small: nothing is both faster and smaller
    found.runner_up, found.why      # the next that fits and is slower, and what it loses by
    found.rivals["tensor"].why      # the fastest with another number of tensor ranks

Sharding, schedule, recomputation and numbers of the layout are varied, the `Space` says which; recipe, attention and
assumptions stay. An assumed MFU would make all layouts equal, so that times are the predicted ones. Some 200,000 to
400,000 layouts a second of one core (`benchmarks/search.py`). Their number grows about as (log n)^3 with n devices,
times the divisors of the batch a device: 61,000 for 128 devices, 563,000 for 16,384.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.errors import ConfigError
from course_lib.planning import rules
from course_lib.planning.capacity import device_limit
from course_lib.planning.devices import fill
from course_lib.planning.layouts import COLUMNS, Group, Space, groups, price
from course_lib.planning.plan import Plan, given, plan_unchecked
from course_lib.planning.spec import LayoutSpec, RunSpec
from course_lib.planning.steptime import predict

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Option", "Progress", "Rival", "Search", "Space", "difference", "search"]

CHOSEN = ("sharding", "schedule", "recompute", *COLUMNS)
"""What a search chooses."""


SAME = 0.005
"""Times that differ by less are one to a prediction that is off by more; then the simpler layout is the better one."""


@dataclass(frozen=True)
class Progress:
    """How far a search is."""

    considered: int
    total: int
    best: "Option | None"


@dataclass(frozen=True)
class Option:
    """One layout with its price."""

    layout: LayoutSpec
    seconds: float
    """Of a step."""
    peak: float
    """Bytes of the fullest device."""
    run: RunSpec = field(repr=False, compare=False)
    """What was searched, with this layout."""

    @cached_property
    def plan(self) -> Plan:
        """The full plan, made when it is first asked for: of a front of a hundred, few are looked at."""
        return plan_unchecked(self.run)


@dataclass(frozen=True)
class Rival:
    """The fastest layout that fits and has another value of one field."""

    option: Option
    why: str
    """What it loses by."""


@dataclass(frozen=True)
class Search:
    """What was found."""

    best: Option
    """The simplest of those that fit and are as fast as the fastest of them, to `SAME`; then the smallest."""
    pareto: tuple[Option, ...]
    """Those that fit and that no other beats in both time and memory, fastest first."""
    runner_up: Option | None
    """The fastest that fits and is slower than that; None: there is no such."""
    why: str
    """What the runner-up loses by."""
    rivals: dict[str, Rival]
    """By field: what is lost with another value there."""
    fastest: Option
    """Whether it fits or not; the best itself where the fastest of all fits."""
    considered: int
    fits: int
    """Of those considered."""
    equals: int
    """Of those that fit: as fast as the best, itself not counted."""
    total: int
    """All legal ones: more than `considered` if the search was stopped."""

    @property
    def complete(self) -> bool:
        """Nothing was left out."""
        return self.considered == self.total


def search(run: RunSpec, *, progress: Callable[[Progress], object] | None = None, space: Space | None = None) -> Search:
    """The best layout for the devices of `run`, by predicted step time within their memory.

    run.layout gives what is not varied; its own split need not be legal. progress: called after every block of layouts,
    some ten times a second; where it returns False, and on Ctrl-C, the search stops and returns what it has.
    `ConfigError` where no layout is legal, or none fits: it says what the smallest needs.
    """
    run = replace(run, hardware=fill(run.hardware))
    every = [group for group in groups(run, space) if group.size]
    total = sum(group.size for group in every)
    if not total:
        raise ConfigError(
            f"hardware.devices={run.hardware.devices} has no legal layout with data.global_batch="
            f"{run.data.global_batch} and model.heads={run.model.heads}; try a batch that the devices divide"
        )
    run = rules.check(replace(run, layout=every[0].layout(run, 0)))  # for what has nothing to do with the split
    found, considered = _Found(device_limit(given(run.hardware.memory_gib, "memory_gib"))), 0
    try:
        for block in (block for group in every for block in group.blocks()):
            found.add(block, *price(run, block))
            considered += block.size
            if progress and progress(Progress(considered, total, found.option(run, found.best))) is False:
                break
    except KeyboardInterrupt:
        if not considered:
            raise
    return _conclude(run, found, considered, total)


@dataclass
class _Candidate:
    """A place in a block; made a layout only when it is wanted."""

    seconds: float
    peak: float
    group: Group
    place: int

    def key(self) -> tuple[float, float]:
        return self.seconds, self.peak


class _Found:
    """The best so far, of several kinds."""

    def __init__(self, limit: float) -> None:
        self.limit, self.fits = limit, 0
        self.best: _Candidate | None = None  # the fastest that fits
        self.kept: list[tuple[Group, NDArray[np.intp], NDArray[np.float64], NDArray[np.float64]]] = []
        self.fastest: _Candidate | None = None
        self.smallest: _Candidate | None = None
        self.front: list[_Candidate] = []
        self.by_value: dict[str, dict[Any, _Candidate]] = {name: {} for name in CHOSEN}

    def add(self, group: Group, peaks: "NDArray[np.float64]", seconds: "NDArray[np.float64]") -> None:
        """Take a block in. Seven digits decide: beyond is rounding, and equals would look like winners and losers."""
        peaks, seconds = (each.astype(np.float32).astype(np.float64) for each in (peaks, seconds))

        def candidate(place: Any) -> _Candidate:
            return _Candidate(float(seconds[place]), float(peaks[place]), group, int(place))

        quickest = np.flatnonzero(seconds == seconds.min())
        self.fastest = _better(self.fastest, candidate(quickest[peaks[quickest].argmin()]))
        small = candidate(int(peaks.argmin()))
        if self.smallest is None or small.peak < self.smallest.peak:
            self.smallest = small
        places = np.flatnonzero(peaks <= self.limit)
        if not len(places):
            return
        self.fits += len(places)
        places = places[np.lexsort((peaks[places], seconds[places]))]
        first = candidate(places[0])
        self.best = _better(self.best, first)
        self.kept.append((group, places, seconds[places], peaks[places]))
        lower = np.flatnonzero(np.diff(np.minimum.accumulate(peaks[places])) < 0) + 1
        self.front = _front([*self.front, first, *map(candidate, places[lower])])
        for name, bests in self.by_value.items():
            if name in group.columns:
                values, starts = np.unique(group.columns[name][places], return_index=True)
                each: Sequence[tuple[Any, int]] = [*zip(values.tolist(), places[starts].tolist(), strict=True)]
            else:
                each = [(getattr(group, name), int(places[0]))]
            for value, place in each:
                bests[value] = _better(bests.get(value), candidate(place))

    def ranked(self) -> tuple[_Candidate, _Candidate | None, int]:
        """The best, the runner-up, and how many are as fast as the best: `Search` says what is meant."""
        assert self.best is not None
        best, rank = self.best, (_parts(self.best.group)[self.best.place], self.best.peak)
        for group, places, seconds, peaks in self.kept:  # each in order of time
            count = int(np.searchsorted(seconds, self.best.seconds * (1 + SAME), side="right"))
            if count:
                parts = _parts(group)[places[:count]]
                at = int(np.lexsort((seconds[:count], peaks[:count], parts))[0])
                if (parts[at], peaks[at]) < rank:
                    rank = parts[at], peaks[at]
                    best = _Candidate(float(seconds[at]), float(peaks[at]), group, int(places[at]))
        second: _Candidate | None = None
        equals = -1
        for group, places, seconds, peaks in self.kept:
            count = int(np.searchsorted(seconds, best.seconds * (1 + SAME), side="right"))
            equals += count
            if count < len(places):
                slower = _Candidate(float(seconds[count]), float(peaks[count]), group, int(places[count]))
                second = _better(second, slower)
        return best, second, equals

    @staticmethod
    def option(run: RunSpec, one: _Candidate | None) -> Option | None:
        """As others see it."""
        if one is None:
            return None
        layout = one.group.layout(run, one.place)
        return Option(layout, one.seconds, one.peak, replace(run, layout=layout))


def _parts(group: Group) -> "NDArray[np.int64]":
    """Of each layout, how many things it does beside data parallelism in plain 1F1B."""
    numbers = [group.columns[name] > 1 for name in ("replicas", "tensor", "pipeline", "chunks", "context", "expert")]
    kinds = (group.recompute != "none") + (group.schedule not in ("1f1b", "interleaved"))
    return np.sum(numbers, axis=0) + kinds  # type: ignore[no-any-return]


def _better(old: _Candidate | None, new: _Candidate) -> _Candidate:
    return new if old is None or new.key() < old.key() else old


def _front(some: list[_Candidate]) -> list[_Candidate]:
    """Those that no other beats in both, fastest first; of equals the first."""
    kept: list[_Candidate] = []
    for one in sorted(some, key=_Candidate.key):
        if not kept or one.peak < kept[-1].peak:
            kept.append(one)
    return kept


def _conclude(run: RunSpec, found: _Found, considered: int, total: int) -> Search:
    fastest, smallest = (found.option(run, one) for one in (found.fastest, found.smallest))
    assert fastest is not None and smallest is not None
    if found.best is None:
        raise ConfigError(
            f"none of {considered:,} layouts fits: the smallest needs {smallest.peak / 2**30:.1f} GiB of "
            f"{found.limit / 2**30:.1f} ({_in_words(smallest.layout)}); try more devices or a smaller batch"
        )
    first, after, equals = found.ranked()
    best, second = found.option(run, first), found.option(run, after)
    assert best is not None
    pareto = [found.option(run, one) for one in found.front]
    rivals = {}
    for name, bests in found.by_value.items():
        others = [one for value, one in bests.items() if value != getattr(best.layout, name)]
        if others:
            rival = found.option(run, min(others, key=_Candidate.key))
            assert rival is not None
            rivals[name] = Rival(rival, difference(best, rival))
    return Search(
        best=best,
        pareto=tuple(one for one in pareto if one is not None),
        runner_up=second,
        why="there is no second" if second is None else difference(best, second),
        rivals=rivals,
        fastest=best if fastest.peak <= found.limit else fastest,
        considered=considered,
        fits=found.fits,
        equals=equals,
        total=total,
    )


def _in_words(layout: LayoutSpec, than: LayoutSpec | None = None) -> str:
    """What was chosen; with `than`, where the two differ."""
    said = []
    for name in CHOSEN:
        value, other = getattr(layout, name), getattr(than, name, None)
        if than is not None and value != other:
            said.append(f"{name} {other} -> {value}")
        elif than is None and value != 1:
            said.append(f"{name} {value}")
    return ", ".join(said) or "nothing"


def difference(best: Option, other: Option) -> str:
    """Why one layout loses against another: what differs, and the parts of the step that cost or save most."""
    mine, theirs = (predict(each.run).parts for each in (best, other))
    change = {part: theirs[part] - mine[part] for part in mine}
    large = 0.01 * max(map(abs, change.values()), default=0.0)
    parts = sorted((part for part in change if abs(change[part]) > large), key=lambda part: -abs(change[part]))[:3]
    slower = other.seconds - best.seconds
    costs = [f"{change[part]:+.3g} s {part.replace('_', ' ')}" for part in parts]
    if slower <= SAME * best.seconds:
        more = (other.peak - best.peak) / 2**30
        end = f"as fast, with {abs(more):.1f} GiB {'more' if more > 0 else 'less'}"
        end = end if abs(more) > 0.05 else "as fast and as large"
    else:
        end = f"{slower:.3g} s a step slower ({slower / best.seconds:.1%}): {', '.join(costs)}"
    return f"{_in_words(other.layout, best.layout)}: {end}"
