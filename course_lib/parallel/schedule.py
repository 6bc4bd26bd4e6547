"""Pipeline schedules: who does what when, how long ranks wait, and what they hold meanwhile.

    done = simulate("1f1b", stages=4, microbatches=8)         # four ranks; costs of 1 unless given
    done.makespan, done.bubble_fraction, done.idle_over_ideal # 33.0, 0.2727..., 0.375
    done.peak_in_flight                                       # (4, 3, 2, 1) micro-batches on each rank
    done.slots[0]                                             # rank 0, stage 0, micro-batch 0, "F", 0.0, 1.0
    done.waits_for(Action(0, 0, 0, "B"))                      # B of stage 1, micro-batch 0
    bubble_formula("1f1b", 4, 8)                              # 0.2727...: from p and m, nothing is run

    mine = actions("gpipe", 4, 8)                             # one list of actions for each rank
    mine[0][0], mine[0][1] = mine[0][1], mine[0][0]
    run(mine, forward=1.0, send=0.1)                          # runs it, or says which action cannot

The schedules: `naive`, `gpipe` (with chunks > 1: looped BFS), `1f1b`, `interleaved`, `zb_h1`, `zbv`, `dualpipev`.
A rank holds `chunks` stages: stage s is on rank s mod p, and for zbv and dualpipev (always two chunks) the second half
comes back up, so that rank 0 has the first stage and the last.

F waits for the F of the stage before; B and I for the gradient of the stage after, and their own F; W for its own I.
A result that goes to another rank arrives `send` later, which occupies nobody. B takes as long as I and W, and passes
its gradient on at its end. A pair of dualpipev (an F that is `paired`, and the B behind it) begins when both can,
takes the sum, and passes both results on at its end: what overlapping them gains is not counted.
`timeline.start_times` decides when each action starts. Time and memory grow as
ranks x micro-batches x chunks: 64 ranks with 1,024 micro-batches take less than a second, with 2,048 twice as long.
"""

from collections.abc import Sequence
from math import inf

import numpy as np

from course_lib.errors import ScheduleError
from course_lib.parallel._schedule_bubble import FORMULAS, Formula, bubble_formula
from course_lib.parallel._schedule_check import Action, check_order, decode, encode, grid_of, read
from course_lib.parallel._schedule_orders import ORDERS, Grid, plan
from course_lib.parallel._schedule_timeline import PipelineSlot, PipelineTimeline
from course_lib.parallel.timeline import simulate as simulate_tasks
from course_lib.parallel.timeline import start_times

__all__ = [
    "FORMULAS",
    "SCHEDULES",
    "Action",
    "Formula",
    "PipelineSlot",
    "PipelineTimeline",
    "actions",
    "bubble_formula",
    "run",
    "simulate",
]

SCHEDULES = tuple(ORDERS)
"""The names, simplest first."""

Times = float | Sequence[float]
"""How long something takes: the same for every stage, or one number for each."""


def actions(name: str, stages: int, microbatches: int, chunks: int = 1) -> list[list[Action]]:
    """What each of `stages` ranks does, in order. `ScheduleError` where there is no such schedule."""
    grid, orders = plan(name, stages, microbatches, chunks)
    return [[decode(grid, code) for code in order] for order in orders]


def simulate(
    name: str,
    stages: int,
    microbatches: int,
    chunks: int = 1,
    forward: Times = 1.0,
    backward_input: Times = 1.0,
    backward_weight: Times = 1.0,
    send: float = 0.0,
) -> PipelineTimeline:
    """Run a schedule that has a name.

    stages: ranks p. Each holds `chunks` parts of the model; zbv and dualpipev hold two in any case.
    forward, backward_input, backward_weight: how long one part takes for one micro-batch, in any unit; a list has one
    number for each of the p x chunks stages.
    """
    grid, orders = plan(name, stages, microbatches, chunks)
    return _simulate(grid, orders, (forward, backward_input, backward_weight), send)


def run(
    actions: Sequence[Sequence[Action]],
    forward: Times = 1.0,
    backward_input: Times = 1.0,
    backward_weight: Times = 1.0,
    send: float = 0.0,
    *,
    microbatches: int | None = None,
    placement: Sequence[int] | None = None,
) -> PipelineTimeline:
    """Run a list of actions for each rank, also one of your own. `ScheduleError` names the action where it cannot run.

    microbatches: how many there should be; from the list unless given.
    placement: of each stage its rank; unless given s mod p, or the V of zbv and dualpipev if that fits better.
    """
    lists = read(actions)
    grid = grid_of(lists, microbatches, placement)
    orders = [[encode(grid, action) for action in items] for items in lists]
    return _simulate(grid, orders, (forward, backward_input, backward_weight), send)


def _simulate(grid: Grid, orders: list[list[int]], times: tuple[Times, Times, Times], send: float) -> PipelineTimeline:
    words = ("forward", "backward_input", "backward_weight")
    stages = len(grid.homes)
    f, i, w = (_each(word, time, stages) for word, time in zip(words, times, strict=True))
    if not isinstance(send, int | float) or not 0 <= send < inf:
        raise ScheduleError(f"send={send!r} must be a number, at least 0 and finite")
    table = check_order(grid, orders)
    durations = np.stack([f, i + w, i, w])[table.kind, table.stage]
    delays = np.where(table.rank[table.other] != table.rank, float(send), 0.0)
    ends = np.cumsum([len(order) for order in orders]).tolist()
    lanes = [range(end - len(order), end) for end, order in zip(ends, orders, strict=True)]
    # What a rank does itself has ended before, so only other stages decide; the first F waits for nothing.
    waits: list[tuple[tuple[int, float], ...]] = [
        (pair,) for pair in zip(table.other.tolist(), delays.tolist(), strict=True)
    ]
    for place in np.flatnonzero(table.other < 0).tolist():
        waits[place] = ()
    for place in np.flatnonzero(table.paired).tolist():
        waits[place] += waits[place + 1]
    starts = np.array(start_times(lanes, durations.tolist(), waits))
    done = PipelineTimeline(grid, table, starts, durations, waits)
    if starts.min() < 0:
        try:
            simulate_tasks(done.tasks())
        except ScheduleError as error:
            raise ScheduleError(f"{error}; on one of these ranks, put first what the other waits for") from None
    return done


def _each(word: str, times: Times, count: int) -> np.ndarray:
    """One number for each stage."""
    try:
        found = np.asarray(times, dtype=float)
    except (TypeError, ValueError):
        raise ScheduleError(f"{word}={times!r} must be a number, or one number for each stage") from None
    if found.ndim > 1 or (found.ndim == 1 and found.size != count):
        raise ScheduleError(f"{word} has {found.size} numbers; give one for all, or one for each of {count} stages")
    if not ((found >= 0) & (found < inf)).all():
        raise ScheduleError(f"{word}={times!r} must be at least 0 and finite")
    return np.broadcast_to(found, (count,))
