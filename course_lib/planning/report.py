"""A plan in words: sections with facts and tables, in the order in which an engineer asks. No layout here.

    for section in report(plan(run)):
        section.title, section.facts, section.table, section.bars

`course_lib.planning.render` makes text, Markdown and HTML of them, so that the three say the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from course_lib.planning.devices import assumed
from course_lib.planning.plan import Plan
from course_lib.planning.steptime import efficiency
from course_lib.planning.units import count, days, duration, figures, flops, gb, gib, percent, size

__all__ = ["Bar", "Bars", "Fact", "Section", "Table", "headline", "report"]


PARTS = {"compute": "matrix products", "recompute": "computed again", "memory": "reading and writing memory"}
"""Parts of a step in more words than their key has."""
OF = (
    "Of the training loop that `course_lib.planning.stage_memory` describes, which keeps all that autograd keeps. A "
    "program that frees or computes again more than that needs less: Llama 3 405B and DeepSeek-V3 ran in layouts that "
    "are too large by this count."
)
"""What the memory is of, and where it is known to be wrong."""


@dataclass(frozen=True)
class Fact:
    """One line: what, how much, and what there is to say about it."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True)
class Table:
    """Rows under a header; columns that are not of `words` are numbers."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: tuple[int, ...] = (0,)
    """Columns that are aligned left."""
    brief: int | None = None
    """How many columns a terminal shows; None: all."""


@dataclass(frozen=True)
class Bar:
    """One bar, made of named parts."""

    label: str
    parts: dict[str, float]
    said: str
    """Its total and whatever else is told at its end."""


@dataclass(frozen=True)
class Bars:
    """Bars of one scale."""

    rows: tuple[Bar, ...]
    limit: float | None = None
    """What none should exceed."""
    limit_said: str = ""


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    title: str
    facts: tuple[Fact, ...] = ()
    bars: Bars | None = None
    table: Table | None = None
    points: tuple[tuple[str, str], ...] = ()
    """Numbered: what it is, and what to do about it."""
    notes: tuple[str, ...] = ()
    """Sentences at the end."""


def headline(plan: Plan) -> tuple[str, str]:
    """What is planned, and what comes out, in a line each."""
    run, hardware = plan.run, plan.run.hardware
    device = hardware.device or "devices"
    large = count(plan.parameters.total) + " parameters"
    if plan.parameters.active != plan.parameters.total:
        large += f" ({count(plan.parameters.active)} active)"
    what = f"{run.name}: {large}, {count(run.data.tokens)} tokens, {hardware.devices:,} x {device}"
    end = "it never ends" if plan.time.hours == float("inf") else f"{days(plan.time.hours)}"
    hours = "" if plan.time.hours == float("inf") else f", {count(plan.time.device_hours)} device-hours"
    cost = "" if plan.time.cost is None else f", cost {count(plan.time.cost)}"
    fits = "fits" if plan.memory.fits else "does not fit"
    memory = f"memory {fits}: {gib(plan.memory.peak)} of {gib(plan.memory.limit)} GiB"
    return what, f"{end}{hours}{cost}; MFU {percent(plan.time.mfu)}; {memory}"


def report(plan: Plan, stages: int = 5) -> list[Section]:
    """Every section, the risks first and the recovery drill last. stages: of more, only some are shown."""
    return [
        _risks(plan),
        _time(plan),
        _memory(plan, stages),
        _model(plan),
        _layout(plan),
        _traffic(plan),
        _checkpoints(plan),
        _drill(plan),
    ]


def _risks(plan: Plan) -> Section:
    points = tuple((risk.text, risk.remedy) for risk in plan.risks)
    notes = () if points else ("None that the formulas see.",)
    return Section("Risks, the worst first", points=points, notes=notes)


def _time(plan: Plan) -> Section:
    time, step, amount, run = plan.time, plan.step, plan.amount, plan.run
    devices = run.hardware.devices
    whose = "assumed" if time.assumed else f"predicted; {_efficiency(plan)}"
    speed = f"{time.tokens_per_second:,.0f} tokens a second, {time.tokens_per_second / devices:,.0f} a device"
    facts = [
        Fact("from begin to end", days(time.hours), f"of which computing {days(time.computing_hours)}"),
        Fact("device-hours", count(time.device_hours), _cost(plan)),
        Fact("one step", duration(time.step_seconds), f"{amount.steps:,} steps; {speed}"),
        Fact("MFU", percent(time.mfu), whose),
    ]
    if step.hfu > step.mfu * 1.0001:
        facts.append(Fact("HFU", percent(step.hfu), "counts what is computed again"))
    parts = {
        PARTS.get(part, part.replace("_", " ")): seconds
        for part, seconds in step.parts.items()
        if seconds > 0.0005 * step.seconds
    }
    said = duration(step.seconds) + (" as predicted" if time.assumed else "")
    bars = Bars((Bar("a step", dict(sorted(parts.items(), key=lambda each: -each[1])), said),))
    return Section("Time", tuple(facts), bars=bars)


def _efficiency(plan: Plan) -> str:
    """The one number of the prediction that is no data sheet's, and where it is from."""
    device, assume = plan.run.hardware.device, plan.run.assume
    reached = f"products reach {percent(efficiency(device, assume), 0)} of the best one, "
    if assume.efficiency is not None:
        return reached + "as assumed"
    fitted = efficiency(device) != efficiency(None)
    return reached + ("fitted on published steps" if fitted else "a guess, as no published step is of this device")


def _cost(plan: Plan) -> str:
    price = plan.run.hardware.price_per_device_hour
    if plan.time.cost is None or price is None:
        return ""
    return f"cost {plan.time.cost:,.0f} at {price:g} an hour"


def _memory(plan: Plan, most: int) -> Section:
    memory, stages = plan.memory, plan.memory.stages
    shown = _some([stage.stage for stage in stages], memory.worst, most)
    names = dict.fromkeys(part for stage in stages for part, size in stage.parts.items() if size > 0)
    rows = tuple(
        Bar(
            f"stage {stage.stage}" if len(stages) > 1 else "a device",
            {name: max(0.0, stage.parts.get(name, 0.0)) for name in names},
            f"{gib(stage.peak)} GiB",
        )
        for stage in (stages[place] for place in shown)
    )
    worst = stages[memory.worst]
    limit = f"{gib(memory.limit)} GiB usable of {plan.run.hardware.memory_gib:g}"
    verdict = "fits" if memory.fits else "does not fit"
    moment = f"at {worst.at}, most of it {worst.filled_by.replace('_', ' ')}"
    facts = [Fact("fullest device", f"{gib(memory.peak)} GiB", f"{limit}: {verdict}; {moment}")]
    left = len(stages) - len(shown)
    notes = (f"{left} stages in between are not shown; --json has them.",) if left else ()
    return Section("Memory of a device, GiB", tuple(facts), Bars(rows, memory.limit, limit), notes=(*notes, OF))


def _some(stages: Sequence[int], worst: int, most: int) -> list[int]:
    """All of a few stages; of many the first two, the worst and the last."""
    return list(stages) if len(stages) <= most else sorted({stages[0], stages[1], worst, stages[-1]})


def _model(plan: Plan) -> Section:
    model, amount, work, data = plan.run.model, plan.amount, plan.flops, plan.run.data
    parts = sorted(plan.parameters.by_part.items(), key=lambda each: -each[1])
    total = plan.parameters.total
    heads = f"{model.heads} heads"
    if model.kv_heads not in (None, model.heads):
        heads += f" ({model.kv_heads} of keys and values)"
    ffn = model.ffn or 4 * model.width
    shape = f"{model.layers} layers of width {model.width:,}, {heads}, FFN {ffn:,}, vocabulary {model.vocab:,}"
    facts = [Fact("parameters", f"{total:,}", shape)]
    if model.experts:
        shared = f" and {model.shared_experts} shared" if model.shared_experts else ""
        of_a_token = f"{model.active_experts} of {model.experts} experts{shared}"
        facts.append(Fact("a token meets", f"{plan.parameters.active:,}", of_a_token))
    shares = ", ".join(f"{name.replace('_', ' ')} {percent(n / total)}" for name, n in parts if n > 0.0005 * total)
    facts += [
        Fact("of them", "", shares),
        Fact(
            "one batch",
            f"{amount.batch_tokens:,} tokens",
            f"{amount.sequences:,} sequences of {data.sequence:,}",
        ),
        Fact(
            "steps",
            f"{amount.steps:,}",
            f"{count(data.tokens)} tokens, {amount.tokens_per_parameter:,.1f} a parameter"
            + (" that is active" if model.experts else ""),
        ),
        Fact("6 N D", flops(work.six_nd), "six times parameters times tokens"),
        Fact("counted FLOPs", flops(work.exact), f"{work.ratio - 1:+.1%}, because of"),
    ]
    for reason in work.why:
        by, _, words = reason.partition(": ")
        if by not in ("+0.0%", "-0.0%"):
            facts.append(Fact("", by, words))
    if work.hardware > work.exact * 1.0001:
        facts.append(Fact("computed FLOPs", flops(work.hardware), "with what is computed again for backward"))
    return Section("Model and work", tuple(facts))


def _layout(plan: Plan) -> Section:
    layout, hardware, amount = plan.run.layout, plan.run.hardware, plan.amount
    words = [f"data {layout.data} ({layout.sharding}{f', {layout.replicas} groups' if layout.replicas > 1 else ''})"]
    if layout.tensor > 1:
        words.append(f"tensor {layout.tensor}{' with sequence parallel' if layout.sequence_parallel else ''}")
    if layout.pipeline > 1:
        chunks = f", {layout.chunks} chunks" if layout.chunks > 1 else ""
        words.append(f"pipeline {layout.pipeline} ({layout.schedule}{chunks})")
    if layout.context > 1:
        words.append(f"context {layout.context} ({layout.context_form})")
    again = {"none": "nothing", "selective": "attention", "all": "every block"}[layout.recompute]
    facts = [Fact("devices", f"{hardware.devices:,}", " x ".join(words))]
    if layout.expert > 1:
        facts.append(Fact("experts", f"over {layout.expert}", "data-parallel ranks"))
    each = f"{layout.micro_batch} sequence{'s' if layout.micro_batch > 1 else ''} each"
    facts += [
        Fact("micro-batches", f"{amount.micro_batches:,}", f"of {each}, on each data-parallel rank, for one step"),
        Fact(
            "bubble", percent(plan.step.bubble), "of a step, in the pipeline" if layout.pipeline > 1 else "no pipeline"
        ),
        Fact("data ranks", f"at most {plan.batch_floor:,}", "each needs a whole sequence of the batch"),
        Fact("recipe", "", f"{layout.recipe}; computed again for backward: {again}"),
    ]
    network = f"{hardware.inside_gb_per_s:g} GB/s inside a node of {hardware.devices_per_node:,}"
    if hardware.devices > (hardware.devices_per_node or 1):
        network += f", {hardware.across_gb_per_s:g} across"
    reached = f"{hardware.memory_gib:g} GiB; {network}; large products reach {percent(hardware.reached or 0, 0)}"
    facts.append(Fact(hardware.device or "device", f"{hardware.peak_tflops:g} TFLOP/s", reached))
    guesses = ", ".join(f"{key} {getattr(hardware, key):g}" for key in assumed(hardware))
    notes = (f"Assumed, since neither the plan nor a data sheet has it: {guesses}.",) if guesses else ()
    return Section("Layout and hardware", tuple(facts), notes=notes)


def _traffic(plan: Plan) -> Section:
    traffic, layout = plan.step.traffic, plan.run.layout
    kinds: list[str] = list(dict.fromkeys(kind for axis in traffic.values() for kind in axis))
    rows = []
    for axis, sent in traffic.items():
        total = sum(sent.values())
        if total > 0:
            cells = tuple(gb(sent[kind]) if sent.get(kind) else "-" for kind in kinds)
            ranks = getattr(layout, axis, None)
            rows.append((f"{axis}{f' ({ranks:,})' if ranks else ''}", *cells, gb(total)))
    if not rows:
        return Section("Traffic", notes=("One device sends nothing.",))
    used = [place for place in range(1, len(kinds) + 1) if any(row[place] != "-" for row in rows)]
    header = ("axis (ranks)", *(kinds[place - 1].replace("_", "-") for place in used), "together")
    body = tuple((row[0], *(row[place] for place in used), row[-1]) for row in rows)
    notes = []
    if 0 < plan.step.crossover < float("inf"):
        notes.append(
            f"Sending for data parallelism takes as long as computing at {count(plan.step.crossover)} devices; "
            f"there are {plan.run.hardware.devices:,}."
        )
    return Section("Traffic: what one device sends in a step, GB", table=Table(header, body), notes=tuple(notes))


def _checkpoints(plan: Plan) -> Section:
    save, run = plan.cadence, plan.run
    rate, storage = run.hardware.failures_per_device_year, run.hardware.storage_gb_per_s
    never = save.mtbf_seconds == float("inf")
    facts = [
        Fact(
            "one checkpoint",
            size(save.checkpoint_bytes),
            f"written in {duration(save.write_seconds)} at {storage:g} GB/s",
        ),
        Fact(
            "one failure in",
            "never" if never else duration(save.mtbf_seconds),
            f"{rate:g} a device and year; {figures(save.interruptions)} expected in the run",
        ),
        Fact(
            "save every",
            duration(save.every_seconds),
            f"{save.every_steps:,} steps; Young has {duration(save.young_seconds)}, Daly {duration(save.daly_seconds)}",
        ),
        Fact(
            "a failure costs",
            duration(save.lost_seconds + save.restart_seconds),
            f"{duration(save.lost_seconds)} of work on average, and {duration(save.restart_seconds)} to restart",
        ),
        Fact(
            "goodput",
            percent(save.goodput),
            f"in the whole run {duration(save.writing_hours * 3600)} to save, {duration(save.lost_hours * 3600)} lost",
        ),
    ]
    return Section("Checkpoints and failures", tuple(facts))


def _drill(plan: Plan) -> Section:
    rows = tuple(
        (f"{one.at_step:,}", f"{one.lost_steps:,.0f}", f"{one.minutes:,.0f}", one.inject, one.expect, one.proof)
        for one in plan.drill
    )
    header = ("at step", "steps lost", "minutes", "cause on purpose", "expect", "proof")
    return Section("Recovery drill, before the run", table=Table(header, rows, words=(3, 4, 5), brief=4))
