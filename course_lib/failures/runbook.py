"""The runbook: one line a chapter, with a question, the check that answers it, and what to do when the answer is no.

    for line in fill(plan(run)):
        print(line.chapter, line.question, line.number)
    page(plan(run), own={"floor": "ours starts at 11.78"})      # Markdown, with your own remarks

The numbers come from the planner. The lines are ours: what the chapters found, as somebody on call would need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from course_lib.config import require
from course_lib.planning.communication import STRATEGIES
from course_lib.planning.devices import assumed
from course_lib.planning.formulas import RECIPES
from course_lib.planning.plan import Plan

__all__ = ["LINES", "STOPS", "Filled", "Line", "fill", "page"]

GIB = 2**30
HOUR = 3600.0


@dataclass(frozen=True)
class Line:
    """A line of the runbook."""

    key: str
    chapter: int
    """Where it comes from."""
    when: str
    """before: the first step is allowed; while: the run goes on; stop: it has stopped."""
    question: str
    check: str
    """What to measure."""
    otherwise: str
    """What to do when it is not so."""
    number: Callable[[Plan], str]
    """What the check should give, for a plan."""


@dataclass(frozen=True)
class Filled:
    """A line with its number."""

    key: str
    chapter: int
    when: str
    question: str
    check: str
    otherwise: str
    number: str


def _machine(p: Plan) -> str:
    peak, reached = p.run.hardware.peak_tflops or 0.0, p.run.hardware.reached or 1.0
    return f"{peak:,.0f} TFLOP/s on the data sheet; {peak * reached:,.0f} in a large product"


def _state(p: Plan) -> str:
    n, each = p.parameters.total, RECIPES[p.run.layout.recipe].total
    return f"{n / 1e9:.2f} B parameters x {each} bytes = {n * each / GIB:,.0f} GiB, over all devices"


def _batch(p: Plan) -> str:
    layout, amount = p.run.layout, p.amount
    parts = f"{layout.data} ranks x {amount.micro_batches} micro-batches of {layout.micro_batch}"
    return f"{parts} = {amount.sequences:,} sequences, {amount.batch_tokens:,} tokens; {amount.steps:,} updates"


def _precision(p: Plan) -> str:
    own = RECIPES[p.run.layout.recipe]
    return f"bytes: weights {own.weights}, gradients {own.gradients}, master {own.master}, moments {own.moments}"


def _memory(p: Plan) -> str:
    worst = p.memory.stages[p.memory.worst]
    return (
        f"stage {worst.stage}: {worst.peak / GIB:.1f} of {p.memory.limit / GIB:.1f} GiB "
        f"(at worst: {worst.at}; most: {worst.filled_by})"
    )


def _checkpoint(p: Plan) -> str:
    c = p.cadence
    return f"{c.checkpoint_bytes / GIB:,.0f} GiB in {c.write_seconds:,.0f} s, every {c.every_steps:,} steps"


def _ranks(p: Plan) -> str:
    layout = p.run.layout
    if layout.data == 1:
        return "one data-parallel rank: nothing to compare"
    if "weights" not in STRATEGIES[layout.sharding].sharded:
        return f"{layout.data} data-parallel ranks: one checksum"
    if layout.sharding == "hsdp" and layout.replicas > 1:
        return f"each shard is on {layout.replicas} ranks: one checksum a shard"
    return f"each of {layout.data} ranks has another shard: nothing to compare; checksums of shards at save and load"


def _data(p: Plan) -> str:
    return (
        f"{p.run.layout.data} data-parallel ranks of at most {p.batch_floor:,}; "
        f"sending takes longer than computing from {p.step.crossover:,.0f} devices on"
    )


def _bubble(p: Plan) -> str:
    stages, m = p.run.layout.pipeline, p.amount.micro_batches
    return f"{p.step.bubble:.1%} with {stages} stages, {m} micro-batches" if stages > 1 else "no pipeline"


def _links(p: Plan) -> str:
    sent = {axis: sum(kinds.values()) / 1e9 for axis, kinds in p.step.traffic.items()}
    told = ", ".join(f"{axis} {size:,.1f}" for axis, size in sent.items() if size)
    return f"tensor {p.run.layout.tensor} on nodes of {p.run.hardware.devices_per_node}; GB a rank: {told or 'none'}"


def _experts(p: Plan) -> str:
    model = p.run.model
    if not model.experts:
        return "dense: each token meets all parameters"
    met = f"{p.parameters.active / 1e9:.1f} of {p.parameters.total / 1e9:.1f} B parameters"
    return f"{met}; an expert has 1 token in {model.experts / model.active_experts:.0f} when all are busy alike"


def _sums(p: Plan) -> str:
    m, n = p.amount.micro_batches, p.run.layout.data
    return (
        f"{m} micro-batches on {n} ranks: {m * n:,} addends a gradient; a BF16 sum of equal ones stops at 256 of them"
    )


def _stops(p: Plan) -> str:
    c = p.cadence
    often = f"{c.interruptions:,.0f} stops, one in {c.mtbf_seconds / HOUR:,.1f} h"
    return f"{often}; a clean one undoes {c.lost_seconds / 60:,.0f} minutes of training"


def _date(p: Plan) -> str:
    step = f"{p.time.step_seconds:,.1f} s a step (MFU {p.time.mfu:.0%})"
    whose = "assumed" if p.time.assumed else "predicted, not measured"
    return f"{step}, {whose}; goodput {p.cadence.goodput:.0%}: {p.time.days:,.1f} days"


LINES: tuple[Line, ...] = (
    Line(
        "machine", 0, "before", "What does each device reach, measured?",
        "Time one large matrix product on every device, alone.",
        "A device that is a tenth slower than the others is taken out: all wait for it.", _machine,
    ),
    Line(
        "floor", 1, "before", "What is the loss at step 0, and what is the least that it can be?",
        "Compare the first logged loss with ln V (V: the vocabulary), later ones with runs of like size and data.",
        "Higher at step 0: the initialisation. Far below what others reach: a leak, see line 12.",
        lambda p: f"ln {p.run.model.vocab:,} = {math.log(p.run.model.vocab):.2f} nats at step 0; the least: measure it",
    ),
    Line(
        "state", 2, "before", "How many bytes stay from step to step?",
        "Add up weights, gradients, master copies and moments of one rank after two steps.",
        "Look which category differs; the master copy is the one that people forget.", _state,
    ),
    Line(
        "batch", 3, "before", "What stands behind one update?",
        "Count the valid tokens of one global batch; divide sums by that one count.",
        "Another count: only data-parallel ranks multiply the batch. Another loss: a mean of means was taken.", _batch,
    ),
    Line(
        "precision", 4, "before", "Which formats do weights, gradients and moments really have?",
        "Print the dtypes after the first step, and the loss scale if there is one.",
        "Set them by hand: a recipe that this device does not support may have switched itself off.", _precision,
    ),
    Line(
        "memory", 5, "before", "Does the fullest rank fit, with its activations?",
        "Read the peak of the second step on the first and on the last stage.",
        "If activations fill it: smaller micro-batches, then recomputation. If the state does: sharding.", _memory,
    ),
    Line(
        "checkpoint", 6, "while", "Can the run go on from its newest checkpoint?",
        "Checksums after every save; once a week, 20 steps, a save, 10 more, against 30 in one go: the same weights?",
        "Take the newest checkpoint that passes, and find out why the newer one does not.", _checkpoint,
    ),
    Line(
        "ranks", 7, "while", "Do all ranks live, and hold the same weights?",
        "Read which rank ended first; after an update, compare checksums of weights that are held more than once.",
        "Take that device out; all ranks go back to the newest usable checkpoint.", _ranks,
    ),
    Line(
        "data", 8, "before", "Can the batch occupy all data-parallel ranks, and does the network keep up?",
        "Compare the time of a step with and without its collectives.",
        "More tokens an update, hybrid sharding, or another way of splitting.", _data,
    ),
    Line(
        "bubble", 9, "before", "What share of the time do stages wait?",
        "Idle / total from a profile of one step, against the schedule's formula.",
        "More micro-batches, chunks, or a better cut of the layers.", _bubble,
    ),
    Line(
        "links", 10, "before", "Does each axis use the link that it needs?",
        "Count the bytes by axis in one step; print which ranks share a node.",
        "Tensor ranks inside one node; what is left may cross.", _links,
    ),
    Line(
        "experts", 11, "while", "Are the experts busy alike, and how many parameters does a token meet?",
        "Log the load of the busiest expert over the mean, and the share that is dropped.",
        "Balancing bias or auxiliary loss; a capacity only with the drops counted.", _experts,
    ),
    Line(
        "leak", 12, "before", "Can any position see what it has to predict?",
        "The leak probe at step 0 with the real mask, router and packing: change a later token.",
        "No run begins until it is 0.", lambda p: f"0 of {p.run.data.sequence - 1:,} earlier positions move",
    ),
    Line(
        "sums", 13, "before", "In which format do long sums run?",
        "Sum as many equal numbers as there are addends, in the code's own order and format.",
        "An FP32 accumulator first.", _sums,
    ),
    Line(
        "anomaly", 14, "stop", "Something is odd: what is it, and what do you go back to?",
        "Dashboards first; then data and mask, numerics, optimizer, system. Is every number of the checkpoint finite?",
        "Back to a checkpoint from before it, with the cause mended; no step is skipped and forgotten.", _stops,
    ),
    Line(
        "date", 15, "while", "When will it be done, and is it on time?",
        "Every day: tokens so far, against the plan's MFU and goodput.",
        "Below the plan's MFU it is a step that got slow; below its goodput it is the stops.", _date,
    ),
)  # fmt: skip
"""The runbook's lines, one a chapter."""

WORDS = (
    "Before the first step: the lines marked before, and the drill. When something stops or is odd: the line marked "
    "stop, then those marked while. Numbers are a plan's, until you have measured them. MFU: FLOPs that the model "
    "needs, over what the devices could do in that time. Goodput: share of the time in which steps are done that stay."
)
"""How to use the page, for somebody who has only the page."""

STOPS: Mapping[str, str] = {"killed": "ranks", "corrupt": "checkpoint", "nan": "anomaly"}
"""Which line helps with what strikes in `course_lib.failures.miniature`: the line's key."""


def fill(made: Plan) -> list[Filled]:
    """Each line with its number for this plan."""
    return [
        Filled(one.key, one.chapter, one.when, one.question, one.check, one.otherwise, one.number(made))
        for one in LINES
    ]


def page(made: Plan, own: Mapping[str, str] | None = None) -> str:
    """The runbook as Markdown, to keep and to go on with: lines, risks, drill. own: your remark to a line, by its key.

    `ConfigError` for a key that there is not.
    """
    own = own or {}
    keys = [line.key for line in LINES]
    for key in own:
        require(key in keys, f"own: {key!r} is no line (there are: {', '.join(keys)})")
    hardware = made.run.hardware
    guesses = ", ".join(f"{key} {getattr(hardware, key):g}" for key in assumed(hardware)) or "none"
    out = [
        f"# Runbook of {made.run.name}",
        "",
        WORDS,
        "",
        f"Assumed, not measured and on no data sheet: {guesses}.",
        "",
    ]
    for line in fill(made):
        out += [
            f"## {line.chapter}. {line.question}",
            "",
            f"- number: {line.number}",
            f"- check ({line.when}): {line.check}",
            f"- if not: {line.otherwise}",
            f"- ours: {own.get(line.key, '')}".rstrip(),
            "",
        ]
    risks = [f"- {risk.text}: {risk.remedy}" for risk in made.risks] or ["- none that the plan knows of"]
    out += ["## Risks, worst first", "", *risks, ""]
    out += [
        "## Drill, before the run",
        "",
        *[f"- step {one.at_step:,}: {one.inject}. Expect: {one.expect}. Proof: {one.proof}" for one in made.drill],
        "",
    ]
    return "\n".join(out)
