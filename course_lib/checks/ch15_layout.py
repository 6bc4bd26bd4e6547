"""Reasoning exercise 15.7: the cheapest layout for a given cluster. The planner says what each one needs and costs."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import keys_of
from course_lib.checks.core import Case, CheckFailed, Exercise, Wrong, kind, variant_rng
from course_lib.errors import ConfigError
from course_lib.planning.capacity import device_limit
from course_lib.planning.devices import fill
from course_lib.planning.layouts import Space, groups, price
from course_lib.planning.plan import Plan, plan
from course_lib.planning.spec import DataSpec, HardwareSpec, LayoutSpec, ModelSpec, RunSpec

__all__ = ["LAYOUT", "cheapest", "cluster", "layout_text", "look"]

MARGIN = 1.05
GIB = 2**30
NUMBERS = ("data", "tensor", "pipeline", "micro_batch")
WORDS = {"sharding": ("ddp", "zero1", "fsdp"), "recompute": ("none", "all")}
SPACE = Space(shardings=WORDS["sharding"], schedules=("1f1b",), recompute=WORDS["recompute"], most_context=1)
RUNS = (
    # layers, width, heads, heads of keys, inside, tokens (1e12), batch, sequence, devices, device, price
    (40, 5_120, 40, 8, 13_824, 0.3, 256, 4_096, 64, "A100 SXM 40GB", 0.9),
    (80, 8_192, 64, 8, 24_576, 2.0, 1_024, 4_096, 256, "H100 SXM", 2.0),
    (32, 4_096, 32, 8, 14_336, 0.5, 64, 8_192, 128, "A100 SXM 80GB", 1.2),
    (64, 7_168, 56, 8, 20_480, 0.4, 512, 4_096, 128, "A100 SXM 40GB", 0.9),
    (80, 8_192, 64, 8, 24_576, 1.0, 128, 8_192, 512, "H100 SXM", 2.2),
    (48, 6_144, 48, 8, 16_384, 1.0, 512, 4_096, 128, "H100 SXM", 2.0),
)


@cache
def cluster(variant: int = 0) -> RunSpec:
    """Model, data and cluster of a variant of `cheapest-layout`, with a layout that is none yet: put your own in with
    `dataclasses.replace`, and `hardware.devices` to match."""
    if isinstance(variant, bool) or not isinstance(variant, int) or variant < 0:
        raise CheckFailed(f"cluster: variant is a whole number from 0, such as cluster(1); yours is {variant!r}")
    rng = variant_rng("cheapest-layout", variant)
    layers, width, heads, kv, ffn, tokens, batch, sequence, devices, device, price = RUNS[variant % len(RUNS)]
    vocab = int(rng.choice([32_000, 64_000, 128_000]))
    times = int(rng.choice([1, 2])) if variant >= len(RUNS) else 1
    scale = float(rng.choice([0.6, 0.8, 1.0, 1.3]))
    return RunSpec(
        name=f"cluster {variant}",
        model=ModelSpec(layers=layers, width=width, heads=heads, kv_heads=kv, ffn=ffn, vocab=vocab),
        data=DataSpec(tokens=round(tokens * scale, 2) * 1e12, sequence=sequence, global_batch=batch * times),
        hardware=HardwareSpec(devices=devices, device=device, price_per_device_hour=price),
    )


@cache
def cheapest(variant: int) -> tuple[Plan, int]:
    """The cheapest plan of all that fit and are done in time, on the cluster, its half or its quarter; and the days
    there are: 70% more than the fastest needs, so that half of the cluster is not enough."""
    run = cluster(variant)
    found = []
    for part in (1, 2, 4):
        hardware = fill(replace(run.hardware, devices=run.hardware.devices // part))
        fastest = _fastest(replace(run, hardware=hardware))
        if fastest is not None:
            found.append(plan(replace(run, hardware=hardware, layout=fastest)))
    days = max(2, round(1.7 * found[0].time.days))
    return min((one for one in found if one.time.days <= days), key=_cost), days


def _fastest(run: RunSpec) -> LayoutSpec | None:
    """The fastest layout that fits, of all legal ones, each priced; of two that are equally fast the smaller."""
    limit, best = device_limit(run.hardware.memory_gib or 0.0), None
    for group in groups(run, SPACE):
        if not group.size:
            continue
        peaks, seconds = price(run, group)
        place = int(np.lexsort((peaks, np.where(peaks <= limit, seconds, np.inf)))[0])
        if peaks[place] <= limit and (best is None or (seconds[place], peaks[place]) < best[:2]):
            best = (seconds[place], peaks[place], group.layout(run, place))
    return None if best is None else best[2]


def _cost(made: Plan) -> float:
    assert made.time.cost is not None
    return made.time.cost


def layout_text(variant: int) -> str:
    """What `question` prints."""
    run, (_, days) = cluster(variant), cheapest(variant)
    model, data, hardware = run.model, run.data, run.hardware
    return (
        f"model    {model.layers} layers, width {model.width:,}, {model.heads} heads, {model.kv_heads} of keys and "
        "values, "
        f"{model.ffn:,} inside, vocabulary {model.vocab:,}\n"
        f"data     {data.tokens / 1e12:g}T tokens, sequences of {data.sequence:,}, {data.global_batch:,} an update\n"
        f"cluster  {hardware.devices} devices ({hardware.device}), 8 to a node, {hardware.price_per_device_hour:g} an "
        "hour "
        "each. All or some may be\n"
        "         used; those that are not are not paid\n"
        f"time     it has to be done within {days} days, stops counted\n\n"
        "data, tensor, pipeline, micro_batch: whole numbers; the product of the first three is the devices that are "
        "used\n"
        'sharding:  "ddp", "zero1" or "fsdp", what the data-parallel ranks share out\n'
        'recompute: "none" or "all" blocks are computed again in backward\n'
        "The schedule is 1F1B. Wanted: it fits, is in time, and costs at most 5% more than the cheapest layout there "
        "is.\n"
        f"cluster({variant}) is this run for the planner; look(answer) prints what your layout needs, takes and costs"
    )


def _made(answer: dict[str, Any]) -> Plan:
    """The plan of an answer. ConfigError where it cannot be."""
    run = cluster(answer["variant"])
    numbers: dict[str, Any] = {key: int(answer[key]) for key in NUMBERS}
    words: dict[str, Any] = {key: str(answer[key]).strip().lower() for key in WORDS}
    layout = LayoutSpec(**numbers, **words)
    return plan(replace(run, layout=layout, hardware=replace(run.hardware, devices=layout.devices)))


def look(answer: dict[str, Any]) -> None:
    """Print what the layout of an answer needs, takes and costs; or in one line why it cannot be."""
    form = _form(answer)
    if form is not None:
        raise CheckFailed(f"look: {form.message}")
    try:
        made = _made(answer)
    except ConfigError as error:
        print(f"no such layout: {error}")
        return
    there, (_, days) = cluster(answer["variant"]).hardware.devices, cheapest(answer["variant"])
    parts = ", ".join(f"{name.replace('_', ' ')} {seconds:.3g}" for name, seconds in made.step.parts.items() if seconds)
    print(
        f"memory  {made.memory.peak / GIB:.1f} GiB of {made.memory.limit / GIB:.1f}, at stage {made.memory.worst}, "
        f"most of it {made.memory.stages[made.memory.worst].filled_by}\n"
        f"step    {made.time.step_seconds:.3g} s: {parts}\n"
        f"time    {made.time.days:.1f} of {days} days, on {made.run.hardware.devices} of {there} devices, MFU "
        f"{made.time.mfu:.0%}\n"
        f"cost    {made.time.cost:,.0f}"
    )


def _form(returned: dict[str, Any]) -> Wrong | None:
    wrong = keys_of(returned, (*NUMBERS, *WORDS))
    if wrong is not None:
        return wrong
    for key in NUMBERS:
        value = returned[key]
        if value is None:
            return Wrong(f"`{key}` is still empty", form=True)
        if isinstance(value, bool) or not isinstance(value, int | float) or value % 1 or not 1 <= value <= 10**6:
            return Wrong(f"`{key}` is a whole number from 1; yours is {value!r}", form=True)
    for key, words in WORDS.items():
        value = returned[key]
        if value is None:
            return Wrong(f"`{key}` is still empty", form=True)
        if not isinstance(value, str) or value.strip().lower() not in words:
            return Wrong(
                f"`{key}` is one of {', '.join(words)}, in quotes; yours is {kind(value)} {value!r}", form=True
            )
    return None


def layout_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """5% in cost: the second and third best of a kind pass, an axis that is not needed does not."""
    form = _form(returned)
    if form is not None:
        return form
    variant = returned["variant"]
    run, (best, days) = cluster(variant), cheapest(variant)
    used = int(returned["data"] * returned["tensor"] * returned["pipeline"])
    if used > run.hardware.devices:
        return Wrong(f"that takes {used:,} devices; the cluster has {run.hardware.devices}", "devices-grow")
    try:
        made = _made(returned)
    except ConfigError as error:
        return _broken(str(error))
    if not made.memory.fits:
        stage = made.memory.stages[made.memory.worst]
        text = (
            f"stage {stage.stage} needs {made.memory.peak / GIB:.1f} GiB, and {made.memory.limit / GIB:.1f} are "
            "usable. Most "
            f"of it: {stage.filled_by}"
        )
        return Wrong(f"{text}. What shares that out, or makes less of it?", _memory_belief(stage.parts))
    if made.time.days > days:
        text = f"it fits, and takes {made.time.days:.0f} days on {used} devices; there are {days}"
        return Wrong(text, "fits-is-finishes") if used < run.hardware.devices else _dear(made, best, text)
    more = _cost(made) / _cost(best)
    text = f"it fits, and costs {more - 1:.0%} more than the cheapest"
    return None if more <= MARGIN else _dear(made, best, text)


def _broken(text: str) -> Wrong:
    first = text.split(";")[0]
    beliefs = {"layout.tensor": "heads-divide", "global_batch": "batches-divide", "pipeline": "layers-divide"}
    rule = next((rule for key, rule in beliefs.items() if key in first), None)
    return Wrong(f"no such layout: {first}", rule, form=True)


def _memory_belief(parts: dict[str, float]) -> str:
    state = sum(parts.get(name, 0.0) for name in ("weights", "gradients", "optimizer"))
    return "a-model-is-its-weights" if 2 * state > sum(parts.values()) else "activations-are-small"


def _dear(made: Plan, best: Plan, before: str) -> Wrong:
    """What the step spends its time on, beside the best's."""

    def shares(one: Plan) -> dict[str, float]:
        amount = one.run.hardware.devices / one.run.data.global_batch
        return {name: seconds * amount for name, seconds in one.step.parts.items()}

    mine, theirs = shares(made), shares(best)
    worst = max(mine, key=lambda name: mine[name] - theirs.get(name, 0.0))
    share = made.step.parts[worst] / made.step.seconds
    beliefs = {
        "recompute": ("recompute-to-be-safe", "is the memory that this saves needed?"),
        "bubble": ("stages-are-free", "what makes the stages wait, and are they needed?"),
        "tensor_traffic": (
            "tensor-goes-anywhere",
            "how often does a layer wait for its tensor ranks, and over which link?",
        ),
        "data_traffic": ("sharding-is-free", "what do the data-parallel ranks send, and what hides it?"),
    }
    rule, text = beliefs.get(worst, (None, "what cuts the work unevenly, or makes a device wait?"))
    name = worst.replace("_", " ")
    return Wrong(f"{before}. {share:.0%} of its step is {name}: {text}", rule)


LAYOUT = Exercise(
    id="cheapest-layout",
    title="The cheapest layout",
    cases=one_case("your layout"),
    run=answer_run,
    judge=layout_judge,
    misconceptions={
        "devices-grow": "a plan takes the devices that it wants",
        "heads-divide": "any number of tensor ranks will do",
        "batches-divide": "any number of data-parallel ranks will do",
        "layers-divide": "any number of stages will do",
        "a-model-is-its-weights": "what has to fit are the weights",
        "activations-are-small": "what has to fit is the state",
        "fits-is-finishes": "a run that fits is a run that ends",
        "recompute-to-be-safe": "recomputation costs little, and is always safe",
        "stages-are-free": "a pipeline costs nothing",
        "tensor-goes-anywhere": "tensor parallel costs nothing, over any link",
        "sharding-is-free": "sharding costs nothing",
    },
)
