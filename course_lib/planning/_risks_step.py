"""Risks of a step: memory, the bubble, traffic, recomputation, uneven stages, the batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import ceil, floor, inf
from typing import TYPE_CHECKING, Any

from course_lib.planning._risk import LIMITS, Risk
from course_lib.planning.capacity import USABLE, stages
from course_lib.planning.remedies import Near, changes, least, least_batch, least_micro_batches
from course_lib.planning.steptime import StepTime, predict

if TYPE_CHECKING:
    from course_lib.planning.plan import Plan
    from course_lib.planning.spec import RunSpec

__all__ = ["KINDS"]

GIB = 2**30


def _memory(plan: Plan, near: Near) -> Iterator[Risk]:
    memory, run = plan.memory, plan.run
    stage, limit = memory.stages[memory.worst], memory.limit
    of = f"{limit / GIB:.1f} GiB ({USABLE:.0%} of {limit / USABLE / GIB:.0f})"
    filled = f"{stage.filled_by} are {stage.parts[stage.filled_by] / GIB:.1f}"
    where = f"stage {stage.stage} of {len(memory.stages)}" if len(memory.stages) > 1 else "a device"
    if memory.fits and memory.peak <= LIMITS["memory"] * limit:
        return
    wanted = LIMITS["memory"] * limit if memory.fits else limit
    mended = near.smaller(wanted)
    if mended is not None:
        remedy = f"{changes(run.layout, mended.layout)}: {mended.peak / GIB:.1f} GiB, " + _slower(plan, mended.seconds)
    else:
        remedy = _more_devices_fit(plan, wanted, near.most)
    if memory.fits:
        text = f"{where} needs {memory.peak / GIB:.1f} GiB of {of}: little is left; {filled}"
        yield Risk("memory_tight", 0.015, memory.peak, text, remedy)
    else:
        text = f"{where} needs {memory.peak / GIB:.1f} GiB of {of}, at {stage.at}; {filled}"
        yield Risk("memory", 2 + memory.peak / limit, memory.peak, text, remedy)


def _more_devices_fit(plan: Plan, wanted: float, most: int) -> str:
    """More data-parallel ranks, which share out more and leave the layout as it is."""
    run = plan.run

    def fits(k: int) -> bool:
        data = k * run.layout.data
        if run.data.global_batch % (data * run.layout.micro_batch):
            return False
        return _peak(replace(run, layout=replace(run.layout, data=data))) <= wanted

    k, none = least(fits, 64), "no two changes of the layout are" if most > 1 else "no single change of the layout is"
    if k is not None:
        devices = k * run.hardware.devices
        return f"{none} enough; {devices:,} devices with data = {k * run.layout.data} are"
    return f"{none} enough, nor more data-parallel ranks: --search looks at all layouts"


def _slower(plan: Plan, seconds: float) -> str:
    by = seconds / plan.step.seconds - 1
    return "as fast" if abs(by) < 0.0005 else f"{abs(by):.1%} {'slower' if by > 0 else 'faster'} a step"


def _bubble(plan: Plan, near: Near) -> Iterator[Risk]:
    layout, share = plan.run.layout, plan.step.bubble
    if layout.pipeline == 1 or share <= (aim := LIMITS["bubble"]):
        return
    m = plan.amount.micro_batches
    needed = least_micro_batches(layout.schedule, layout.pipeline, layout.chunks, aim)
    if needed is None:
        yield Risk("bubble", share, share, f"bubble {share:.0%}, however many micro-batches", _other_order(plan, near))
        return
    text = f"bubble {share:.0%} with {m} micro-batches: at least {needed} for under {aim:.0%}"
    batch, ways = plan.run.data.global_batch, []
    per_rank = batch // layout.data
    smaller = [size for size in range(1, layout.micro_batch) if per_rank % size == 0 and _has(plan, per_rank // size)]
    if smaller:
        ways.append(f"micro_batch = {max(smaller)} (was {layout.micro_batch}) gives {per_rank // max(smaller)}")
    else:
        ways.append(f"global_batch = {needed * layout.data * layout.micro_batch:,} sequences (was {batch:,})")
    if other := _other_order(plan, near):
        ways.append(other)
    yield Risk("bubble", _share(plan, "bubble"), share, text, "; or ".join(ways))


def _has(plan: Plan, micro_batches: int) -> bool:
    """Whether so many are enough, with the schedule as it is."""
    layout = plan.run.layout
    needed = least_micro_batches(layout.schedule, layout.pipeline, layout.chunks, LIMITS["bubble"])
    return needed is not None and micro_batches >= needed


def _other_order(plan: Plan, near: Near) -> str:
    """The change that fits, is faster and has a small bubble, in words."""
    aim, now = LIMITS["bubble"], plan.step.seconds
    mended = near.quicker(plan.memory.limit, now, lambda after: after.bubble < aim)
    return "" if mended is None else f"{changes(plan.run.layout, mended.layout)}: {_slower(plan, mended.seconds)}"


def _share(plan: Plan, *parts: str) -> float:
    return sum(plan.step.parts[part] for part in parts) / plan.step.seconds


_SAID = {
    "data_traffic": "data-parallel traffic that computing does not hide takes {share:.0%} of the step",
    "tensor_traffic": "tensor-parallel traffic takes {share:.0%} of the step ({size:.1f} GB a rank)",
    "context_traffic": "context-parallel traffic that attention does not hide takes {share:.0%} of the step",
    "expert_traffic": "experts' traffic takes {share:.0%} of the step ({size:.1f} GB a rank)",
    "sends": "sending between pipeline stages takes {share:.0%} of the step",
}


def _traffic(plan: Plan, near: Near) -> Iterator[Risk]:
    run, step = plan.run, plan.step
    devices, tensor, node = run.hardware.devices, run.layout.tensor, run.hardware.devices_per_node or 1
    for part, said in _SAID.items():
        share, aim, ways = _share(plan, part), LIMITS[part], []
        across = part == "tensor_traffic" and tensor > node
        if share <= aim and not across:
            continue
        text = said.format(share=share, size=sum(step.traffic.get(part.split("_")[0], {}).values()) / 1e9)
        if across:
            text += f": {tensor} ranks span {ceil(tensor / node)} nodes of {node}"
        if part == "data_traffic":
            if step.crossover < devices:
                text += f"; it is as long as computing from {step.crossover:,.0f} devices on, here are {devices:,}"
            batch = least_batch(run, _hides)
            ways += [f"global_batch = {batch:,} sequences (was {run.data.global_batch:,})"] if batch else []
        yield Risk(part, share, share, text, "; or ".join(ways + _less_of(plan, near, part, aim)) or _NONE)


def _hides(step: StepTime) -> bool:
    return step.parts["data_traffic"] < LIMITS["data_traffic"] * step.seconds


_NONE = "no single change of the layout is faster and fits: --search looks at all layouts"


def _less_of(plan: Plan, near: Near, part: str, aim: float) -> list[str]:
    """The change after which a part of the step is below its limit, if that is faster and fits; else the fastest."""
    limit, now = plan.memory.limit, 0.999 * plan.step.seconds
    mended = near.quicker(limit, now, lambda after: after.parts[part] < aim * after.seconds)
    least = mended or near.quicker(limit, now, lambda after: after.parts[part] < 0.9 * plan.step.parts[part])
    if least is None:
        return []
    less = "" if mended else f", and {_written(predict(replace(plan.run, layout=least.layout)), part)} of the step"
    return [f"{changes(plan.run.layout, least.layout)}: {_slower(plan, least.seconds)}{less}"]


def _written(step: StepTime, part: str) -> str:
    return f"{step.parts[part] / step.seconds:.0%}"


def _recompute(plan: Plan, near: Near) -> Iterator[Risk]:
    layout, share = plan.run.layout, _share(plan, "recompute")
    if layout.recompute == "none" or not plan.memory.fits:
        return
    limit = LIMITS["memory"] * plan.memory.limit
    lighter = ["none"] if layout.recompute == "selective" else ["none", "selective"]
    for mode in lighter:
        other: dict[str, Any] = {"recompute": mode}
        less = replace(plan.run, layout=replace(layout, **other))
        peak = _peak(less)
        after = predict(less)
        if peak <= limit and after.seconds < plan.step.seconds:
            yield Risk(
                "recompute",
                1 - after.seconds / plan.step.seconds,
                share,
                f"recomputing takes {share:.0%} of the step, and memory has room: {peak / GIB:.1f} GiB of "
                f"{plan.memory.limit / GIB:.1f} with less of it",
                f'recompute = "{mode}" (was "{layout.recompute}"): {_slower(plan, after.seconds)}',
            )
            return


def _peak(run: RunSpec) -> float:
    return max(stage.peak for stage in stages(run))


def _uneven(plan: Plan, near: Near) -> Iterator[Risk]:
    layers, stages = plan.run.model.layers, plan.run.layout.pipeline
    most = ceil(layers / stages)
    share = 1 - layers / (most * stages)
    if share > LIMITS["uneven"]:
        counts = [each * stages for each in (floor(layers / stages), most) if each]
        text = (
            f"{layers} layers over {stages} stages: the fullest has {most}, so that others wait {share:.0%} of the time"
        )
        ways = [f"{' or '.join(map(str, counts))} layers"]
        fits = {each.layout.pipeline for each in near.within(1, plan.memory.limit, inf)} - {stages}
        even = [p for p in fits if 1 - layers / (ceil(layers / p) * p) <= LIMITS["uneven"]]
        if even:
            ways.append(f"pipeline = {min(even, key=lambda p: (abs(p - stages), p))}, which fits")
        remedy = ", or ".join(ways)
        yield Risk("uneven", share, share, text, remedy)


def _floor(plan: Plan, near: Near) -> Iterator[Risk]:
    most, data = plan.batch_floor, plan.run.layout.data
    if 2 * data > most:
        text = f"the global batch allows at most {most:,} data-parallel ranks, and {data:,} are used"
        remedy = f"to use twice the devices: global_batch = {2 * data * plan.run.layout.micro_batch:,} sequences, or"
        remedy += " tensor, pipeline or context ranks"
        yield Risk("batch_floor", 0.01, most, text, remedy)


KINDS = (_memory, _bubble, _traffic, _recompute, _uneven, _floor)
"""In the order in which equals are listed."""
