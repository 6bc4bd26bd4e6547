"""The order in which each rank of a pipeline works, for the schedules that have a name.

An order is a list of codes, one number for each action (`Grid`): a list of 64 ranks x 1,024 micro-batches has several
hundred thousand, and numbers are quick. `schedule.actions` turns them into `Action`s.

gpipe, looped BFS, interleaved, zbv and dualpipev do what `torch.distributed.pipelining` 2.13 does, action for action.
Its 1F1B list is not what it runs (the last rank's forwards are counted from 1), and it has no ZB-H1.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from course_lib.errors import ScheduleError

__all__ = ["KINDS", "ORDERS", "Grid", "chunks_of", "legal", "nearest", "plan"]

KINDS = "FBIWP"
"""Forward, backward (both of the next two at once), backward for the input, backward for the weights; and P, a forward
that runs as one with the B behind it."""


@dataclass(frozen=True)
class Grid:
    """Every action of a pipeline as a number: kind, then stage, then micro-batch."""

    ranks: int
    microbatches: int
    homes: tuple[int, ...]
    """Of each stage the rank that holds it."""

    @property
    def size(self) -> int:
        """How many forwards there are: stages x micro-batches. Codes go from 0 to 5 times that."""
        return len(self.homes) * self.microbatches

    def row(self, kind: str, stage: int) -> range:
        """The codes of one kind on one stage, by micro-batch."""
        first = KINDS.index(kind) * self.size + stage * self.microbatches
        return range(first, first + self.microbatches)

    def held_by(self, rank: int) -> list[int]:
        """The stages of a rank, first to last."""
        return [stage for stage, home in enumerate(self.homes) if home == rank]


def _naive(grid: Grid, rank: int) -> list[int]:
    """One micro-batch through all stages and back, then the next."""
    held = grid.held_by(rank)
    rows = [grid.row("F", stage) for stage in held] + [grid.row("B", stage) for stage in reversed(held)]
    return [row[k] for k in range(grid.microbatches) for row in rows]


def _gpipe(grid: Grid, rank: int) -> list[int]:
    """All forwards, then all backwards. With several chunks (looped BFS), backwards begin with the last micro-batch."""
    held = grid.held_by(rank)
    order = [code for stage in held for code in grid.row("F", stage)]
    for stage in reversed(held):
        order += grid.row("B", stage) if len(held) == 1 else reversed(grid.row("B", stage))
    return order


def _alternate(forwards: list[int] | range, backwards: list[int] | range, warm: int) -> list[int]:
    """`warm` forwards, then one forward and one backward in turn, then the backwards that are left."""
    order = [*forwards[:warm]]
    for pair in zip(forwards[warm:], backwards, strict=False):
        order += pair
    return [*order, *backwards[len(forwards) - warm :]]


def _one_f_one_b(grid: Grid, rank: int) -> list[int]:
    """A backward as soon as one can run: rank r never holds more than p - r micro-batches."""
    warm = min(grid.ranks - 1 - rank, grid.microbatches)
    return _alternate(grid.row("F", rank), grid.row("B", rank), warm)


def rounds(ranks: int, microbatches: int) -> int:
    """Interleaved: in how many groups the micro-batches pass the chunks; p in each, or a few more."""
    return max(1, microbatches // ranks)


def _interleaved(grid: Grid, rank: int) -> list[int]:
    """1F1B over several chunks: a group of micro-batches passes a rank's first chunk, then its second, and so on."""
    m, held = grid.microbatches, grid.held_by(rank)
    group = m // rounds(grid.ranks, m)
    starts = range(0, m, group)
    forwards = [code for k in starts for stage in held for code in grid.row("F", stage)[k : k + group]]
    backwards = [code for k in starts for stage in reversed(held) for code in grid.row("B", stage)[k : k + group]]
    warm = min((len(held) - 1) * group + 2 * (grid.ranks - 1 - rank), len(forwards))
    return _alternate(forwards, backwards, warm)


def _zb_h1(grid: Grid, rank: int) -> list[int]:
    """1F1B with the backward cut in two: rank r puts r weight gradients off, which then fill the end.

    Qi et al. 2023, arXiv 2401.10241: every rank holds p micro-batches, as many as rank 0 does in 1F1B.
    """
    m, warm = grid.microbatches, min(grid.ranks - 1 - rank, grid.microbatches)
    forward, inputs, weights = (grid.row(kind, rank) for kind in "FIW")
    order = [*forward[:warm]]
    for k in range(m):
        order += forward[k + warm : k + warm + 1]
        order.append(inputs[k])
        if k >= rank:
            order.append(weights[k - rank])
    return [*order, *weights[max(0, m - rank) :]]


def _zbv(grid: Grid, rank: int) -> list[int]:
    """ZB-V: stages go down the ranks and back up, so that the first rank also has the last stage (arXiv 2405.15362)."""
    p, m = grid.ranks, grid.microbatches
    full = max(2 * p - 1, m)  # the pattern needs that many; those that are not there are left out again
    wide = Grid(p, full, grid.homes)
    (f0, i0, w0), (f1, i1, w1) = (tuple(iter(wide.row(kind, stage)) for kind in "FIW") for stage in wide.held_by(rank))
    order: list[int] = []

    def add(times: int, *rows: Iterator[int]) -> None:
        order.extend(next(row) for _ in range(times) for row in rows)

    add(2 * (p - rank) - 1, f0)
    add(rank, f1, f0)
    add(p - rank, f1, i1, w1)
    add(full - 2 * p + 1 + rank, f0, i0, w0, f1, i1, w1)  # until the first chunk has no forward left
    add(p - 1 - rank, i0, w0, f1, i1, w1)
    add(rank, i0, i1)
    add(p - rank, i0, w0)
    order += [*w1, *w0]
    if full == m:
        return order
    cut = (divmod(code, full) for code in order)
    return [row * m + k for row, k in cut if k < m]


def _dualpipev(grid: Grid, rank: int) -> list[int]:
    """DualPipeV: zbv's V, with forwards that run beside backwards (DeepSeek-V3, arXiv 2412.19437, and its code)."""
    p, m = grid.ranks, grid.microbatches
    first, second = grid.held_by(rank)
    f0, f1 = (zip(grid.row("F", stage), grid.row("P", stage), strict=True) for stage in (first, second))
    b0, b1 = (zip(*(grid.row(kind, stage) for kind in "BIW"), strict=True) for stage in (first, second))
    late: deque[int] = deque()  # weight gradients that were put off

    order = [next(f0)[0] for _ in range(2 * (p - 1 - rank))]
    order += [next(row)[0] for _ in range(rank + 1) for row in (f0, f1)]

    def backward(row: Iterator[tuple[int, ...]], split: bool = False) -> None:
        whole, inputs, weights = next(row)
        order.append(inputs if split else whole)
        if split:
            late.append(weights)

    def weights() -> None:
        if late:
            order.append(late.popleft())

    for _ in range(p - 1 - rank):
        backward(b1, split=True)
        weights()
        order.append(next(f1)[0])
    steady = m - 2 * p + rank + 1
    if rank == p - 1:  # its first forward can run long before the backward behind it: no pair
        order += [next(f0)[0], next(b1)[0], next(f1)[1], next(b0)[0]]
        steady -= 1
    order += [code for _ in range(steady) for code in (next(f0)[1], next(b1)[0], next(f1)[1], next(b0)[0])]
    for _ in range(p - 1 - rank):
        backward(b1)
        order.append(next(f1)[1])
        backward(b0)
    half = (rank + 1) // 2
    for k in range(rank + 1):
        backward(b1, split=k > half or (k == half and rank % 2 == 1))
        backward(b0, split=k >= half)
    for _ in range(p - 1 - rank):
        weights()
        backward(b0, split=True)
    for _ in range(rank + 1):
        weights()
    return order


class Order(NamedTuple):
    """A schedule with a name."""

    of_rank: Callable[[Grid, int], list[int]]
    chunks: str
    """How many chunks a rank may hold: "one", "two" (V-shaped), "several" (at least two) or "any"."""


ORDERS = {
    "naive": Order(_naive, "any"),
    "gpipe": Order(_gpipe, "any"),
    "1f1b": Order(_one_f_one_b, "one"),
    "interleaved": Order(_interleaved, "several"),
    "zb_h1": Order(_zb_h1, "one"),
    "zbv": Order(_zbv, "two"),
    "dualpipev": Order(_dualpipev, "two"),
}


def legal(name: str, ranks: int, microbatches: int) -> bool:
    """Whether a schedule exists for so many micro-batches."""
    if name == "interleaved":
        return microbatches % rounds(ranks, microbatches) == 0
    return microbatches >= (2 * ranks if name == "dualpipev" else 1)


def nearest(microbatches: int, fits: Callable[[int], bool]) -> str:
    """The number of micro-batches nearest to this one that fits, in words: "8", or "8 or 10"."""
    for far in count():
        found = sorted({k for k in (microbatches - far, microbatches + far) if k >= 1 and fits(k)})
        if found:
            break
    return " or ".join(map(str, found))


def chunks_of(name: str, stages: int, microbatches: int, chunks: int) -> int:
    """How many chunks a rank holds; `ScheduleError` where there is no such schedule."""
    if name not in ORDERS:
        raise ScheduleError(f"no schedule {name!r}; there are {', '.join(ORDERS)}")
    for word, number in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if not isinstance(number, int) or isinstance(number, bool) or number < 1:
            raise ScheduleError(f"{word}={number!r} must be a whole number, at least 1")
    allowed = ORDERS[name].chunks
    if allowed == "one" and chunks > 1:
        raise ScheduleError(f"{name} has one chunk on a rank, not chunks={chunks}; for more take interleaved or gpipe")
    if allowed == "several" and chunks < 2:
        raise ScheduleError(f"{name} needs chunks=2 or more; with one chunk on a rank it is 1f1b")
    if allowed == "two" and chunks > 2:
        raise ScheduleError(f"{name} has two chunks on a rank, not chunks={chunks}; leave chunks out")
    if not legal(name, stages, microbatches):
        why = "m >= 2p" if name == "dualpipev" else "m to be a multiple of max(1, m // p)"
        wanted = nearest(microbatches, lambda k: legal(name, stages, k))
        raise ScheduleError(
            f"{name} with {stages} stages has no order for {microbatches} micro-batches (it needs {why});"
            f" the nearest that has one: {wanted}"
        )
    return 2 if allowed == "two" else chunks


def plan(name: str, stages: int, microbatches: int, chunks: int = 1) -> tuple[Grid, list[list[int]]]:
    """The grid and the order of each rank; `ScheduleError` where there is no such schedule."""
    held = chunks_of(name, stages, microbatches, chunks)
    down = [*range(stages)]
    homes = [*down, *reversed(down)] if ORDERS[name].chunks == "two" else down * held
    grid = Grid(stages, microbatches, tuple(homes))
    return grid, [ORDERS[name].of_rank(grid, rank) for rank in range(stages)]
