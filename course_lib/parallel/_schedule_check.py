"""Is a list of pipeline actions one that can run? What is wrong is a `ScheduleError` that names the action."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_orders import KINDS, Grid

__all__ = ["Action", "check_order", "check_present", "decode", "encode", "grid_of", "read"]

Kind = Literal["F", "B", "I", "W"]


class Action(NamedTuple):
    """One piece of a rank's work."""

    rank: int
    stage: int
    """From 0 to ranks x chunks - 1, in the order in which a forward passes them."""
    microbatch: int
    kind: Kind
    """F: forward. B: the whole backward. Or its halves: I, the gradient for the input; W, that for the weights."""
    paired: bool = False
    """An F that runs as one with the B behind it: both begin when both can, take the sum, and pass on at the end."""

    def __str__(self) -> str:
        return f"{self.kind} of stage {self.stage}, micro-batch {self.microbatch}"


def read(actions: Sequence[Sequence[Action]]) -> list[list[Action]]:
    """The list of each rank, every item an `Action` with whole numbers, in its own rank's list."""
    if not actions or isinstance(actions, dict | str):
        raise ScheduleError("a schedule is a list of lists of actions, one for each rank; at least one rank")
    lists = []
    for rank, items in enumerate(actions):
        if not isinstance(items, list | tuple) or isinstance(items, Action):
            raise ScheduleError(f"rank {rank} has {items!r}; give each rank a list of actions")
        lists.append([_action(item, rank, place) for place, item in enumerate(items)])
    return lists


def _action(item: Action, rank: int, place: int) -> Action:
    here = f"rank {rank}, item {place}"
    if not isinstance(item, tuple) or len(item) not in (4, 5):
        raise ScheduleError(f"{here} is {item!r}; write Action(rank, stage, microbatch, kind)")
    action = Action(*item)
    if action.kind not in ("F", "B", "I", "W"):
        raise ScheduleError(f"{here}: the kind {action.kind!r} is none of F, B, I, W")
    if action.paired and action.kind != "F":
        raise ScheduleError(f"{here}: {action} is paired; only an F can be, with the B behind it")
    for word, number in zip(("rank", "stage", "microbatch"), action[:3], strict=True):
        if not isinstance(number, int | np.integer) or isinstance(number, bool) or number < 0:
            raise ScheduleError(f"{here}: {word}={number!r} must be a whole number, at least 0")
    if action.rank != rank:
        raise ScheduleError(f"{here}: {action} says rank {action.rank} and stands in rank {rank}'s list; move it")
    return action


def grid_of(lists: list[list[Action]], microbatches: int | None, placement: Sequence[int] | None) -> Grid:
    """The smallest pipeline that all actions fit into, and where its stages live.

    Without `placement` stage s lives on rank s mod p, or as a V where more actions are in place with two chunks.
    """
    ranks = len(lists)
    everything = [*chain.from_iterable(lists)]
    if not everything:
        raise ScheduleError("the schedule has no actions; begin with Action(0, 0, 0, 'F')")
    stages = max(action.stage for action in everything) + 1
    last = max(everything, key=lambda action: action.microbatch)
    if microbatches is not None and last.microbatch >= microbatches:
        raise ScheduleError(f"rank {last.rank}: {last}, but there are {microbatches} micro-batches, from 0 on")
    count = last.microbatch + 1 if microbatches is None else microbatches
    if placement is not None:
        homes = tuple(placement)
        strange = [home for home in homes if home not in range(ranks)]
        if strange:
            raise ScheduleError(f"placement has rank {strange[0]!r}; the schedule has ranks 0 to {ranks - 1}")
        if len(homes) < stages:
            far = next(action for action in everything if action.stage == stages - 1)
            raise ScheduleError(f"rank {far.rank}: {far}, but placement names {len(homes)} stages, from 0 on")
        check_present(lists, homes, count)
    else:
        stages = -(-stages // ranks) * ranks
        held = Counter((action.rank, action.stage) for action in everything)
        loop = {stage: stage % ranks for _, stage in held}
        fold = {stage: min(stage, 2 * ranks - 1 - stage) for _, stage in held}
        in_loop, in_fold = (sum(held[home, stage] for stage, home in h.items()) for h in (loop, fold))
        is_fold = stages == 2 * ranks and in_fold > in_loop
        check_present(lists, range(stages), count)  # also keeps what follows as small as the list
        homes = tuple(min(s, 2 * ranks - 1 - s) if is_fold else s % ranks for s in range(stages))
    return Grid(ranks, count, homes)


def check_present(lists: list[list[Action]], stages: Sequence[int], microbatches: int) -> None:
    """Every stage has to run the forward of every micro-batch."""
    present = {(action.stage, action.microbatch) for items in lists for action in items if action.kind == "F"}
    if len(present) < len(stages) * microbatches:
        pairs = ((stage, k) for stage in range(len(stages)) for k in range(microbatches))
        stage, k = next(pair for pair in pairs if pair not in present)
        raise ScheduleError(f"F of stage {stage}, micro-batch {k} is missing; every stage runs every micro-batch")


def decode(grid: Grid, code: int) -> Action:
    """The action that a code stands for."""
    kind, rest = divmod(code, grid.size)
    stage, microbatch = divmod(rest, grid.microbatches)
    letter = KINDS[kind]
    return Action(grid.homes[stage], stage, microbatch, "F" if letter == "P" else letter, letter == "P")  # type: ignore[arg-type]


def encode(grid: Grid, action: Action) -> int:
    """The code of an action."""
    letter = "P" if action.paired else action.kind
    return KINDS.index(letter) * grid.size + action.stage * grid.microbatches + action.microbatch


class Table(NamedTuple):
    """Every action of an order, rank after rank: numbers in arrays."""

    code: np.ndarray
    kind: np.ndarray
    """The place of its letter in "FBIW"."""
    paired: np.ndarray
    """Whether it is an F that runs as one with the B behind it."""
    stage: np.ndarray
    rank: np.ndarray
    own: np.ndarray
    """Where the action stands whose end gives it what it needs of its own stage: a B or I its F, a W its I; -1: none.
    Of a pair that is the B."""
    other: np.ndarray
    """The same for the stage before (F) or after (B, I)."""


def check_order(grid: Grid, orders: list[list[int]]) -> Table:
    """Every action once, on its rank, after what its rank has to do first. Circles over ranks are found by running."""
    code = np.fromiter(chain.from_iterable(orders), dtype=np.int64)
    kind, cell = np.divmod(code, grid.size)
    paired = kind == KINDS.index("P")
    kind[paired] = 0
    stage = cell // grid.microbatches
    rank = np.repeat(np.arange(grid.ranks), [len(order) for order in orders])
    homes = np.asarray(grid.homes)
    if (wrong := np.flatnonzero(homes[stage] != rank)).size:
        action = decode(grid, int(code[wrong[0]]))
        raise ScheduleError(f"{action} is on rank {rank[wrong[0]]}; its stage lives on rank {action.rank}: move it")
    counts = np.bincount(kind * grid.size + cell, minlength=4 * grid.size).reshape(4, grid.size)
    if (counts > 1).any():
        action = decode(grid, int(np.flatnonzero(counts.ravel() > 1)[0]))
        raise ScheduleError(f"rank {action.rank}: {action} is there twice; drop one")
    f, b, i, w = counts
    for found, one, two, told in (
        (b + i > 1, "B", "I", "both compute the input's gradient; keep B, or I and W"),
        (b + w > 1, "B", "W", "both compute the weights' gradient; keep B, or I and W"),
    ):
        if found.any():
            at = int(np.flatnonzero(found)[0])
            first, second = (decode(grid, KINDS.index(letter) * grid.size + at) for letter in (one, two))
            raise ScheduleError(f"rank {first.rank}: {first} and {second}: {told}")
    for found, letter, told in (
        (f == 0, "F", "every stage runs every micro-batch"),
        ((b + i == 0) & (w > 0), "I", "its W is there, and is the other half only"),
        (b + i == 0, "B", "every forward has its backward (or I and W)"),
        (i > w, "W", "its I computes no gradient for the weights"),
    ):
        if found.any():
            action = decode(grid, KINDS.index(letter) * grid.size + int(np.flatnonzero(found)[0]))
            raise ScheduleError(f"{action} is missing: {told}; add it to rank {action.rank}")
    table = _needs(grid, Table(code, kind, paired, stage, rank, cell, cell))
    place = np.arange(code.size)
    behind = np.append(kind[1:], -1)
    if (alone := np.flatnonzero(paired & ((behind != 1) | (np.append(rank[1:], -1) != rank)))).size:
        action = decode(grid, int(code[alone[0]]))
        raise ScheduleError(f"rank {action.rank}: {action} is paired, so a B has to follow it; put one there")
    for needed in (table.own, table.other):
        early = (needed >= place) & (rank[needed] == rank)
        if early.any():
            at = int(np.flatnonzero(early)[0])
            action, need = decode(grid, int(code[at])), decode(grid, int(code[needed[at]]))
            here = f"rank {action.rank}"
            if action == need:
                raise ScheduleError(f"{here}: {action} is paired with the F whose result it needs: pair another")
            raise ScheduleError(f"{here} has {action} before {need}, whose result it needs: swap them")
    return table


def _needs(grid: Grid, table: Table) -> Table:
    """What each action waits for, by place. `own` and `other` of the table that is given: its cell."""
    cell, kind = table.own, table.kind
    at = np.full((3, grid.size), -1)  # where F, the input's gradient (B or I) and W of each cell end
    at[np.array([0, 1, 1, 2])[kind], cell] = np.arange(cell.size) + table.paired
    own = np.select([kind == 0, kind == KINDS.index("W")], [-1, at[1, cell]], at[0, cell])
    before = np.where(table.stage > 0, at[0, cell - grid.microbatches], -1)
    after = np.where(table.stage < len(grid.homes) - 1, at[1, (cell + grid.microbatches) % grid.size], -1)
    other = np.select([kind == 0, kind == KINDS.index("W")], [before, -1], after)
    return table._replace(own=own, other=other)
