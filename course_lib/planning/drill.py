"""The recovery drill: which failures to cause on purpose before the run, when, what they should cost, what proves it.

    for one in plan(run).drill:
        one.inject, one.at_step, one.lost_steps, one.minutes, one.proof

A recovery that was never tried is a guess. The drill runs on the real layout, in the first hours, with the cadence of
the plan; what it costs is compared with what the plan expects.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan

__all__ = ["Drill", "drill", "fewer_data_ranks"]

COMPARED = 20
"""Steps that are run twice and compared, after a recovery."""


@dataclass(frozen=True)
class Drill:
    """One failure, caused on purpose."""

    key: str
    inject: str
    """What to do to the run."""
    at_step: int
    """When."""
    lost_steps: float
    """Steps that are done again, at most."""
    minutes: float
    """From the failure until the run is where it was."""
    expect: str
    """What should happen."""
    proof: str
    """What has to be seen, or the drill has failed."""


def fewer_data_ranks(plan: Plan) -> int | None:
    """The most data-parallel ranks below the planned ones that the batch allows; None: there are none."""
    layout, batch = plan.run.layout, plan.run.data.global_batch
    step = layout.expert * layout.replicas
    fits = [n for n in range(step, layout.data, step) if batch % (n * layout.micro_batch) == 0]
    return max(fits, default=None)


def drill(plan: Plan) -> list[Drill]:
    """The failures to cause, in the order in which to cause them; each later than the last has recovered."""
    save, step = plan.cadence, plan.time.step_seconds
    every, restart = min(save.every_steps, plan.amount.steps), save.restart_seconds

    def minutes(steps: float, extra: float = 0.0) -> float:
        return (steps * step + restart + extra) / 60

    same = f"steps up to the failure, and {COMPARED} after it, have the same losses and sample numbers as without it"
    rows = [
        Drill(
            "resume",
            "stop the run by its own signal, right after a checkpoint, and start it again",
            every,
            0,
            minutes(0),
            "no step is done again",
            f"the next {COMPARED} steps are the same, bit for bit, as in a run that was not stopped",
        ),
        Drill(
            "killed_rank",
            "kill one rank (signal 9) halfway between two checkpoints",
            2 * every + max(1, every // 2),
            max(1, every // 2),
            minutes(max(1, every // 2)),
            f"all ranks end within the time-out, the run restarts from step {2 * every}",
            same,
        ),
        Drill(
            "killed_while_writing",
            "kill one rank while a checkpoint is written",
            4 * every,
            every,
            minutes(every, save.write_seconds),
            f"the half-written checkpoint is ignored, the run restarts from step {3 * every}",
            f"{same}; the half-written one is never loaded",
        ),
        Drill(
            "corrupt_checkpoint",
            "change one byte in the newest checkpoint, then kill a rank just before the next",
            6 * every - 1,
            2 * every - 1,
            minutes(2 * every - 1),
            f"the checksum fails, the message names the file, the run restarts from step {4 * every}",
            f"{same}; with a checkpoint of one byte more or less too",
        ),
        Drill(
            "nan",
            "put a NaN into one gradient of one rank",
            7 * every + 1,
            1,
            minutes(1),
            f"the run stops in this step, before a checkpoint is written, names rank and step, and restarts from step "
            f"{7 * every}; where a loss scale is in use, all ranks skip the same update and count it instead",
            f"{same}; no checkpoint holds a number that is not finite",
        ),
        Drill(
            "slow_device",
            "slow one device down by a tenth",
            8 * every,
            0,
            0.0,
            f"a step takes {1.1 * step:.3g} s instead of {step:.3g} s, on every rank",
            "the alarm names the device, from its own time and not from the step's",
        ),
        Drill(
            "slow_storage",
            "let storage write at half its speed",
            9 * every,
            0,
            save.write_seconds / 60,
            f"a checkpoint takes {2 * save.write_seconds:.3g} s instead of {save.write_seconds:.3g} s",
            "the run goes on, and says that it saves too slowly",
        ),
    ]
    fewer = fewer_data_ranks(plan)
    if fewer is not None:
        ratio = plan.run.layout.data / fewer
        rows.append(
            Drill(
                "lost_node",
                "take a node away for good, with no spare",
                10 * every + max(1, every // 2),
                max(1, every // 2),
                minutes(max(1, every // 2)),
                f"the run goes on with {fewer} data-parallel ranks of {plan.run.layout.data}, the same global batch, "
                f"and steps of about {step * ratio:.3g} s",
                f"the loss goes on as before, to rounding; {COMPARED} steps neither repeat a sample nor leave one out",
            )
        )
    return [row for row in rows if row.at_step <= plan.amount.steps]
