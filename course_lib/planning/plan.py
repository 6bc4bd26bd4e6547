"""A training run before it begins: what has to be computed, how long, in which memory, what will go wrong.

    made = plan(preset("7b-on-64-a100"))
    made.parameters.total, made.amount.steps, made.flops.six_nd, made.flops.exact, made.flops.why
    made.memory.stages[0].parts, made.memory.peak, made.memory.limit
    made.step.parts, made.step.bubble, made.step.traffic, made.step.crossover, made.batch_floor
    made.time.days, made.time.device_hours, made.time.cost
    made.cadence.every_seconds, made.cadence.interruptions, made.cadence.goodput
    made.risks[0].text, made.risks[0].remedy, made.drill[0].inject
    made.as_dict()                                   # plain data, for JSON

Bytes, seconds and FLOPs are plain unless a name says otherwise. A layout that cannot exist is a `ConfigError`; one that
needs more memory than there is, or takes a century, is a plan with a risk.
"""

from dataclasses import asdict, dataclass, replace
from math import inf, isfinite
from typing import Any

from course_lib.errors import ConfigError
from course_lib.planning import cadence as _cadence
from course_lib.planning import capacity, flops, rules, sizes, steptime
from course_lib.planning.capacity import StageMemory
from course_lib.planning.communication import batch_floor
from course_lib.planning.drill import Drill, drill
from course_lib.planning.remedies import MOST_CHANGES
from course_lib.planning.risks import Risk, risks
from course_lib.planning.spec import RunSpec
from course_lib.planning.steptime import StepTime

__all__ = ["Amount", "Cadence", "Flops", "Memory", "Parameters", "Plan", "Time", "plan", "plan_unchecked"]


@dataclass(frozen=True)
class Parameters:
    """How large the model is."""

    by_part: dict[str, int]
    total: int
    active: int
    """That one token meets; the same as `total` without experts."""


@dataclass(frozen=True)
class Amount:
    """How much is trained."""

    sequences: int
    """Of one step."""
    batch_tokens: int
    """Of one step."""
    micro_batches: int
    """That each data-parallel rank computes for one step."""
    steps: int
    tokens: float
    """Of the run."""
    tokens_per_parameter: float
    """Tokens over active parameters."""


@dataclass(frozen=True)
class Flops:
    """FLOPs of the whole run."""

    six_nd: float
    """6 x active parameters x tokens."""
    exact: float
    """Every matrix product, forward and backward, with attention's full square."""
    hardware: float
    """`exact` and what recomputation repeats."""
    parts: dict[str, float]
    """`exact` by part."""
    why: tuple[str, ...]
    """Why the first two differ, largest reason first."""

    @property
    def ratio(self) -> float:
        """Exact over 6 N D."""
        return self.exact / self.six_nd


@dataclass(frozen=True)
class Memory:
    """Bytes of a device, at each pipeline stage."""

    stages: tuple[StageMemory, ...]
    worst: int
    """Place of the stage with the largest peak."""
    peak: float
    """Of that stage."""
    limit: float
    """What a device has for it."""

    @property
    def fits(self) -> bool:
        """No stage needs more than there is."""
        return self.peak <= self.limit


@dataclass(frozen=True)
class Time:
    """How long it takes, and what it costs."""

    step_seconds: float
    mfu: float
    """Share of the peak while it computes."""
    assumed: bool
    """The MFU was given; False: predicted from shapes, layout and bandwidths."""
    tokens_per_second: float
    """Of all devices, while they compute."""
    computing_hours: float
    """All steps, if nothing ever fails or is saved."""
    hours: float
    """From begin to end: with checkpoints, what failures undo, and restarts. Infinite: it never ends."""
    device_hours: float
    cost: float | None
    """In the currency of `price_per_device_hour`; None without a price."""

    @property
    def days(self) -> float:
        """Hours / 24."""
        return self.hours / 24


@dataclass(frozen=True)
class Cadence:
    """Checkpoints and failures."""

    checkpoint_bytes: float
    write_seconds: float
    """All devices wait for it."""
    mtbf_seconds: float
    """Mean time between interruptions of the run."""
    young_seconds: float
    daly_seconds: float
    every_steps: int
    """What the plan takes: as given, or Daly's, in whole steps."""
    every_seconds: float
    """The same in seconds of training."""
    lost_seconds: float
    """Training that an interruption undoes, on average."""
    restart_seconds: float
    interruptions: float
    """Expected in the whole run."""
    writing_hours: float
    """All devices wait for checkpoints, in the whole run."""
    lost_hours: float
    """Undone and restarting, in the whole run: with the hours of writing and computing, all of its hours."""
    goodput: float
    """Share of the run's hours that is training which stays, exactly in the exponential model."""
    goodput_first_order: float


@dataclass(frozen=True)
class Plan:
    """What is known about a run before it begins. `run` has every number that was left out filled in."""

    run: RunSpec
    parameters: Parameters
    amount: Amount
    flops: Flops
    memory: Memory
    step: StepTime
    """As predicted, also where an MFU is assumed for `time`."""
    time: Time
    batch_floor: int
    """Data-parallel ranks at most: each needs a whole sequence."""
    cadence: Cadence
    risks: tuple[Risk, ...] = ()
    """In order, the worst first."""
    drill: tuple[Drill, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain data: dictionaries, lists, numbers, texts. What is infinite is None, as JSON has no such number."""
        found = _plain(asdict(self))
        found["flops"]["ratio"] = self.flops.ratio
        found["memory"]["fits"] = self.memory.fits
        found["time"]["days"] = _plain(self.time.days)
        return found  # type: ignore[no-any-return]


def plan(run: RunSpec) -> Plan:
    """The plan of a run. `ConfigError` where it cannot exist."""
    return plan_unchecked(rules.check(run))


def plan_unchecked(run: RunSpec, *, changes: int = MOST_CHANGES) -> Plan:
    """The same for a run that `rules.check` returned. `changes`: of the layout, that a remedy may have; 1 is quick."""
    step = steptime.predict(run)
    time, saving = _time(run, step)
    made = Plan(
        run=run,
        parameters=Parameters(sizes.parameters(run.model), sizes.total(run.model), sizes.active(run.model)),
        amount=_amount(run),
        flops=_flops(run),
        memory=_memory(run),
        step=step,
        time=time,
        batch_floor=batch_floor(run.batch_tokens, run.data.sequence),
        cadence=saving,
    )
    made = replace(made, risks=tuple(risks(made, changes=changes)))
    return replace(made, drill=tuple(drill(made)))


def _amount(run: RunSpec) -> Amount:
    return Amount(
        sequences=run.data.global_batch,
        batch_tokens=run.batch_tokens,
        micro_batches=run.accumulation,
        steps=run.steps,
        tokens=run.data.tokens,
        tokens_per_parameter=run.data.tokens / sizes.active(run.model),
    )


def _flops(run: RunSpec) -> Flops:
    tokens, model = run.data.tokens, run.model
    sequences, stops = tokens / run.data.sequence, run.assume.recompute_stops_early
    counted = flops.step_flops(model, run.data.sequence, sequences, recompute=run.layout.recompute, stops_early=stops)
    rule = flops.six_nd(sizes.active(model), tokens)
    looked_up = flops.six_nd((0 if model.tied else model.vocab * model.width) + model.positions * model.width, tokens)
    scores = counted.parts["attention_scores"]
    rest = counted.model - rule - scores + looked_up
    reasons = [
        (scores, f"attention's scores over {run.data.sequence:,} tokens, which no parameter stands for"),
        (-looked_up, "the embedding is looked up, not multiplied"),
        (rest, "norms and biases multiply no matrix"),
    ]
    why = [f"{by / rule:+.1%}: {text}" for by, text in sorted(reasons, key=lambda each: -abs(each[0])) if by]
    return Flops(rule, counted.model, counted.hardware, counted.parts, tuple(why))


def _memory(run: RunSpec) -> Memory:
    stages = tuple(capacity.stages(run))
    worst = max(range(len(stages)), key=lambda place: stages[place].peak)
    return Memory(
        stages, worst, stages[worst].peak, capacity.device_limit(given(run.hardware.memory_gib, "memory_gib"))
    )


def _time(run: RunSpec, step: StepTime) -> tuple[Time, Cadence]:
    hardware, assume = run.hardware, run.assume
    seconds, mfu = step.seconds, step.mfu
    if assume.mfu is not None:
        counted = flops.step_flops(run.model, run.data.sequence, run.data.global_batch).model
        mfu = assume.mfu
        seconds = counted / (hardware.devices * given(hardware.peak_tflops, "peak_tflops") * 1e12 * mfu)
    computing = run.steps * seconds
    saving = _saving(run, seconds, computing)
    whole = computing / saving.goodput / 3600 if saving.goodput else inf
    price = hardware.price_per_device_hour
    time = Time(
        step_seconds=seconds,
        mfu=mfu,
        assumed=assume.mfu is not None,
        tokens_per_second=run.batch_tokens / seconds,
        computing_hours=computing / 3600,
        hours=whole,
        device_hours=whole * hardware.devices,
        cost=None if price is None else whole * hardware.devices * price,
    )
    return time, saving


def _saving(run: RunSpec, step_seconds: float, computing: float) -> Cadence:
    """How often to save, and what failures cost; `computing`: seconds of all steps."""
    hardware, assume = run.hardware, run.assume
    rate = given(hardware.failures_per_device_year, "failures_per_device_year")
    mtbf = _cadence.mtbf_hours(hardware.devices, rate) * 3600
    size = _cadence.checkpoint_bytes(sizes.total(run.model), run.layout.recipe)
    write = _cadence.write_seconds(size, given(hardware.storage_gb_per_s, "storage_gb_per_s"))
    wanted = daly = _cadence.daly(write, mtbf)
    if assume.checkpoint_every_minutes is not None:
        wanted = 60 * assume.checkpoint_every_minutes
    steps = run.steps if wanted >= computing else max(1, round(wanted / step_seconds))
    every, restart = steps * step_seconds, 60 * assume.restart_minutes
    goodput = _cadence.goodput(every, write, mtbf, restart)
    lost = _cadence.expected_lost(every, write, mtbf)
    hours = computing / goodput / 3600 if goodput else inf
    writing = computing / every * write / 3600
    return Cadence(
        checkpoint_bytes=size,
        write_seconds=write,
        mtbf_seconds=mtbf,
        young_seconds=_cadence.young(write, mtbf),
        daly_seconds=daly,
        every_steps=steps,
        every_seconds=every,
        lost_seconds=lost,
        restart_seconds=restart,
        interruptions=_cadence.interruptions(hardware.devices, rate, hours),
        writing_hours=writing,
        lost_hours=max(0.0, hours - computing / 3600 - writing),
        goodput=goodput,
        goodput_first_order=_cadence.goodput_first_order(every, write, mtbf, restart),
    )


def given(value: float | None, key: str) -> float:
    """A number of the hardware that has to be there by now."""
    if value is None:
        raise ConfigError(f"hardware.{key} is missing: give a number, or a device that devices.toml has")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, float):
        return value if isfinite(value) else None
    return value.item() if hasattr(value, "item") else value
