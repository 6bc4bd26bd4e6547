"""Risks of the whole run: failures, writing, the cadence, its length, its tokens, an assumed MFU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import ceil, floor, inf, log10
from typing import TYPE_CHECKING

from course_lib.planning._risk import LIMITS, Risk
from course_lib.planning.cadence import daly
from course_lib.planning.remedies import Near, goodput_at, least
from course_lib.planning.steptime import predict

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan

__all__ = ["KINDS"]

BEST_TOKENS = 20.0
"""A parameter, of the model that learns most from a given computing, about (Hoffmann et al. 2022, arXiv 2203.15556)."""
HARDLY = 0.01
"""A goodput below it is no run."""
OUT_OF_REACH = 50.0
"""So many times faster storage is no remedy."""


def _failures(plan: Plan, near: Near) -> Iterator[Risk]:
    save, time = plan.cadence, plan.time
    write, mtbf, restart = save.write_seconds, save.mtbf_seconds, save.restart_seconds
    storage = plan.run.hardware.storage_gb_per_s or 0.0
    if time.hours == inf or save.goodput < HARDLY:
        text = (
            f"the run hardly moves: a failure every {mtbf / 60:.2g} minutes, {write / 60:.2g} minutes to write a "
            f"checkpoint and {restart / 60:.2g} to restart"
        )
        yield Risk("never_ends", 4.0, save.goodput, text, _better_goodput(plan, 0.9))
        return
    lost, writing = save.lost_hours / time.hours, save.writing_hours / time.hours
    if lost > LIMITS["failures"]:
        text = (
            f"failures cost {lost:.1%} of the hours: {save.interruptions:,.0f} interruptions, each undoes "
            f"{save.lost_seconds / 60:.0f} minutes of training and takes {restart / 60:.0f} to restart"
        )
        yield Risk("failures", lost, lost, text, _better_goodput(plan, (1 + save.goodput) / 2))
    if writing > LIMITS["writing"]:
        text = f"writing checkpoints takes {writing:.1%} of the hours: {write:.0f} s "
        text += f"every {save.every_seconds / 60:.0f} minutes"
        if write > save.every_seconds:
            text += ", longer than the training between two"
        needed = _least_storage(plan, LIMITS["writing"])
        yield Risk("writing", writing, writing, text, f"storage_gb_per_s = {_up(needed)} (was {storage:g})")


def _least_storage(plan: Plan, share: float) -> float:
    """GB/s for which writing takes that share of the time, with the cadence that is best then."""
    save = plan.cadence

    def writing(write: float) -> float:
        every = save.every_seconds if plan.run.assume.checkpoint_every_minutes else daly(write, save.mtbf_seconds)
        return write / (every + write)

    low, high = 0.0, save.write_seconds
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if writing(middle) < share else (low, middle)
    return save.checkpoint_bytes / low / 1e9


def _better_goodput(plan: Plan, aim: float) -> str:
    """The storage, or the restart, with which the goodput is that, each alone; both where neither is enough."""
    save = plan.cadence
    write, mtbf, restart = save.write_seconds, save.mtbf_seconds, save.restart_seconds
    ways = []
    if goodput_at(write / OUT_OF_REACH, mtbf, restart) >= aim:
        good = _largest(lambda w: goodput_at(w, mtbf, restart) >= aim, write)
        ways.append(f"storage_gb_per_s = {_up(save.checkpoint_bytes / good / 1e9)}")
    if goodput_at(write, mtbf, restart / OUT_OF_REACH) >= aim:
        good = _largest(lambda r: goodput_at(write, mtbf, r) >= aim, restart)
        ways.append(f"restart_minutes = {good / 60:.2g}")
    if not ways:
        good = _largest(lambda f: goodput_at(f * write, mtbf, f * restart) >= aim, 1.0)
        ways.append(f"writing and restarting both {1 / good:.2g} times as fast")
    return f"{' or '.join(ways)}: {aim:.1%} of the time is then training that stays (was {save.goodput:.1%})"


def _up(number: float) -> str:
    """Three digits, rounded up, so that it is enough."""
    unit = 10.0 ** (floor(log10(number)) - 2)
    return f"{ceil(number / unit - 1e-9) * unit:.12g}"


def _largest(good: Callable[[float], bool], most: float) -> float:
    """The largest number up to `most` that is good, where smaller ones are."""
    low, high = 0.0, most
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if good(middle) else (low, middle)
    return low


def _cadence(plan: Plan, near: Near) -> Iterator[Risk]:
    save = plan.cadence
    given = plan.run.assume.checkpoint_every_minutes
    best = goodput_at(save.write_seconds, save.mtbf_seconds, save.restart_seconds)
    if given is not None and save.goodput < best - 0.005:
        text = f"a checkpoint every {given:g} minutes leaves {save.goodput:.1%} of the time to training that stays"
        better = min(save.daly_seconds / 60, 60 * plan.time.computing_hours)  # without failures: once, at the end
        remedy = f"checkpoint_every_minutes = {float(f'{better:.3g}'):.12g}: {best:.1%}"
        yield Risk("cadence", best - save.goodput, save.goodput, text, remedy)


def _long(plan: Plan, near: Near) -> Iterator[Risk]:
    days, most = plan.time.days, LIMITS["days"]
    if not most < days < inf or plan.cadence.goodput < HARDLY:
        return
    run = plan.run

    def soon(k: int) -> bool:
        if run.data.global_batch % (k * run.layout.data * run.layout.micro_batch):
            return False
        return _days(plan, k) <= most

    k = least(soon, max(2, plan.batch_floor // run.layout.data))
    if k is None:
        remedy = (
            f"{run.data.tokens * most / days:.3g} tokens: no number of data-parallel ranks is enough with this batch"
        )
    else:
        remedy = f"{k * run.hardware.devices:,} devices with data = {k * run.layout.data}: {_days(plan, k):,.0f} days"
    yield Risk("days", min(2.0, 1 + days / most / 100), days, f"the run takes {days:,.0f} days", remedy)


def _days(plan: Plan, k: int) -> float:
    """With k times the data-parallel ranks."""
    run, save = plan.run, plan.cadence
    hardware = replace(run.hardware, devices=k * run.hardware.devices)
    more = replace(run, hardware=hardware, layout=replace(run.layout, data=k * run.layout.data))
    ratio = predict(more).seconds / plan.step.seconds
    goodput = goodput_at(save.write_seconds, save.mtbf_seconds / k, save.restart_seconds)
    return plan.time.computing_hours * ratio / goodput / 24 if goodput else inf


def _tokens(plan: Plan, near: Near) -> Iterator[Risk]:
    each, aim = plan.amount.tokens_per_parameter, BEST_TOKENS
    if each < LIMITS["tokens_per_parameter"]:
        text = (
            f"{each:.1f} tokens a parameter: a smaller model would learn more from the same computing (about {aim:g})"
        )
        size = (plan.amount.tokens * plan.parameters.active / aim) ** 0.5
        remedy = f"with the same FLOPs about {size:.3g} parameters and {aim * size:.3g} tokens"
        yield Risk("tokens", 0.012, each, text, remedy)


def _assumed(plan: Plan, near: Near) -> Iterator[Risk]:
    time, step = plan.time, plan.step
    if time.assumed and time.mfu > LIMITS["optimism"] * step.mfu:
        text = (
            f"an MFU of {time.mfu:.0%} is assumed, and {step.mfu:.0%} is predicted from shapes, layout and bandwidths"
        )
        days = time.days * time.mfu / step.mfu
        remedy = f"mfu = {step.mfu:.2f} makes it {days:,.0f} days and not {time.days:,.0f}"
        yield Risk("assumed_mfu", 1 - step.mfu / time.mfu, time.mfu, text, remedy)


KINDS = (_failures, _cadence, _long, _tokens, _assumed)
"""In the order in which equals are listed."""
