"""Reasoning exercise 08.3: what does FSDP add in communication? The configuration follows the variant."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng
from course_lib.checks.smell import nearly

__all__ = ["TRAFFIC", "sends", "traffic", "traffic_text"]

KINDS: list[dict[str, Any]] = [  # what the variants turn on, one after the other
    {"again": True, "micro_batches": 1, "deferred": False, "gradient": 2, "node": None},
    {"again": True, "micro_batches": 1, "deferred": False, "gradient": 4, "node": None},
    {"again": True, "micro_batches": 4, "deferred": True, "gradient": 2, "node": None},
    {"again": True, "micro_batches": 1, "deferred": False, "gradient": 2, "node": 8},
    {"again": False, "micro_batches": 2, "deferred": True, "gradient": 2, "node": None},
    {"again": False, "micro_batches": 4, "deferred": False, "gradient": 2, "node": None},
]


def sends(run: dict[str, Any], **changes: Any) -> float:
    """Bytes that one device sends in a step, added up ring step by ring step. `changes` make it another run."""
    run = {"reduced": "scatter", "whole": False, **run, **changes}
    parameters, ranks, node = run["parameters"], run["ranks"], run["node"]
    inside = node or ranks
    sent = 0.0

    def ring(numbers: float, size: int, width: int) -> None:
        """One turn round a ring of `size` devices: size - 1 steps, a size-th part in each."""
        nonlocal sent
        if run["whole"]:
            sent += numbers * width
            return
        for _ in range(size - 1):
            sent += numbers / size * width

    for number in range(run["micro_batches"]):
        for _ in range(2 if run["again"] else 1):
            ring(parameters, inside, 2)
        if not run["deferred"] or number == run["micro_batches"] - 1:
            for _ in range(2 if run["reduced"] == "all" else 1):
                ring(parameters, inside, run["gradient"])
            if node is not None:
                for _ in range(2):
                    ring(parameters / node, ranks // node, run["gradient"])
    return sent


def ddp_sends(run: dict[str, Any]) -> float:
    """The same for data parallel: one all-reduce, two turns of the ring, after the last micro-batch."""
    return sum(2 * run["parameters"] / run["ranks"] * run["gradient"] for _ in range(run["ranks"] - 1))


def traffic(variant: int) -> dict[str, Any]:
    """The configuration of a variant, with the right choice and evidence."""
    rng = variant_rng("added-traffic", variant)
    run = dict(KINDS[variant % len(KINDS)])
    run["parameters"] = int(rng.integers(11, 300)) * 10**8
    run["ranks"] = int(rng.choice([16, 32, 64] if run["node"] is None else [32, 64, 128]))
    ratio = sends(run) / ddp_sends(run)
    choice = "A" if ratio < 1.0001 else "B" if ratio < 2 else "C"
    return {**run, "ratio": ratio, "choice": choice, "evidence": sends(run) / 1e9}


def traffic_text(variant: int) -> str:
    """What `question` prints."""
    run = traffic(variant)
    count, width = run["micro_batches"], "BF16, 2 bytes" if run["gradient"] == 2 else "FP32, 4 bytes"
    passes = "before forward, dropped after it, and gathered again before backward;"
    if not run["again"]:
        passes = "before forward, kept until its backward is done, then dropped;"
    each = "" if count == 1 else "in every micro-batch "
    when = "" if count == 1 else ", after the last micro-batch only" if run["deferred"] else ", after every micro-batch"
    lines = [
        f"{run['parameters']:,} parameters on {run['ranks']} devices; a step has "
        f"{'one micro-batch' if count == 1 else f'{count} micro-batches'}.",
        "",
        "FSDP:",
        "  weights are gathered in BF16, 2 bytes:",
        f"  {each}{passes}",
        f"  gradients are reduce-scattered in {width}{when};",
    ]
    if run["node"] is None:
        lines.append(f"  shards are spread over all {run['ranks']} devices.")
    else:
        lines += [
            f"  the shards of a model are spread over the {run['node']} devices of one node, and each of the "
            f"{run['ranks'] // run['node']} nodes has them all;",
            "  after the reduce-scatter within the node, each device's gradient shard is all-reduced with the same",
            "  shard of the other nodes, in the same format.",
        ]
    lines += [
        "Data parallel, for comparison:",
        f"  gradients are all-reduced in {width}{'' if count == 1 else ', after the last micro-batch only'}.",
        "",
        "All are rings: in a gather or a reduce-scatter among n devices, each sends (n-1)/n of the whole;",
        "in an all-reduce, twice that.",
        "",
        'choice:   in this step, with FSDP one device sends "A" at most as many bytes as with data parallel; "B" more,',
        '          but less than twice as many; "C" at least twice as many',
        "evidence: GB (1e9 bytes) that one device sends in this step with FSDP, to four digits",
    ]
    return "\n".join(lines)


def traffic_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter is exact, the GB within 0.051%: four digits, rounded. A ratio is exactly 1, or 20% from a limit."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    run, choice, value = traffic(int(returned["variant"])), returned["choice"], returned["evidence"]
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in ("A", "B", "C")):
        return Wrong('`choice` is one letter in quotes: "A", "B" or "C"', form=True)
    half = value is not None and math.isclose(value, run["evidence"], rel_tol=5.1e-4)
    if value is not None and math.isclose(value, run["evidence"] * 1e9, rel_tol=5.1e-4):
        return Wrong("the evidence is in bytes: 1 GB is 1e9 bytes", form=True)
    if choice is None:
        return Wrong(f"`choice` is still empty{'; the evidence is right' if half else ''}", form=True)
    given = choice.strip().upper()
    if given == run["choice"]:
        if value is None:
            return Wrong("the choice is right; `evidence` is still empty", form=True)
        return None if half else _wrong_evidence(run, float(value), "the choice is right. ", form=True)
    if half:
        return Wrong("the evidence is right, the choice is not: work out data parallel's bytes the same way", form=True)
    if value is not None:
        found = _wrong_evidence(run, float(value), "", form=False)
        if found.misconception:
            return found
    return _wrong_choice(run, given)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    if given == "B" and run["choice"] == "A":
        message = "count bytes, not collectives: in which format does each of them travel, here and with data parallel?"
        return Wrong(message, "half-as-much-again-always")
    if given == "A" and run["again"] and run["node"] is None:
        return Wrong("how often do the weights travel in this step?", "shards-cost-nothing")
    if run["micro_batches"] > 1:
        message = "go through the micro-batches one by one: what travels in each?"
        return Wrong(message, "once-a-step" if given < run["choice"] else None)
    return Wrong("list what travels in this step, one line each, for FSDP and for data parallel")


def _wrong_evidence(run: dict[str, Any], value: float, before: str, *, form: bool) -> Wrong:
    found = {
        rule: message
        for rule, (guess, message) in _guesses(run).items()
        if math.isclose(value, guess / 1e9, rel_tol=5.1e-4)
        and not math.isclose(guess / 1e9, run["evidence"], rel_tol=1e-3)
    }
    if found:  # two that give the same number cannot be told apart
        rule = next(iter(found))
        known = rule if len(found) == 1 and rule in TRAFFIC.misconceptions else None
        return Wrong(before + " Or: ".join(found.values()), known, form=form)
    close = nearly(value, run["evidence"])
    if close:
        return Wrong(f"{before}The GB are {close}", form=form)
    message = "The GB are not right: write one line for each collective of the step, with its bytes and its share"
    return Wrong(before + message, form=form)


def _guesses(run: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """Misconception -> the bytes that it gives for this run, and what to ask of it."""
    right, m, node = sends(run), run["micro_batches"], run["node"]
    flat = {"node": None} if node else {}
    return {
        "gathers-once": (
            sends(run, again=False),
            "That is with one gather of the weights. Where are they when backward begins?",
        ),
        "gathers-twice-always": (sends(run, again=True), "Here the weights are still there when backward begins"),
        "once-a-step": (
            sends(run, micro_batches=1),
            "That is with one micro-batch. What travels again in the next one?",
        ),
        "reduces-every-time": (sends(run, deferred=False), "How often are the gradients reduced in this step?"),
        "reduces-at-the-end": (sends(run, deferred=True), "How often are the gradients reduced in this step?"),
        "all-reduces-too": (
            sends(run, reduced="all"),
            "One of your reductions sends twice. Which collective reduces here?",
        ),
        "everything-travels": (sends(run, whole=True), "A device does not send itself what it holds"),
        "one-format-for-all": (sends(run, gradient=2), "In which format are the gradients reduced?"),
        "nodes-are-one-ring": (sends(run, **flat), "Among how many devices is a shard gathered here?"),
        "replicas-cost-nothing": (_no_replicas(run), "Each node has a gradient of its own data. Where do they meet?"),
        "all devices": (right * run["ranks"], "That is what all devices send together"),
        "gibibytes": (right * 1e9 / 2**30, "Those are GiB; 1 GB is 1e9 bytes"),
        "numbers": (sends(run) / 2, "Is that in bytes? A BF16 number has two"),
        "added": (abs(right - ddp_sends(run)), "That is the difference to data parallel; FSDP's whole is asked for"),
        "m": (right / m if run["deferred"] else right, "That is for one micro-batch of the step"),
    }


def _no_replicas(run: dict[str, Any]) -> float:
    if run["node"] is None:
        return sends(run)
    return sends(run, ranks=run["node"], node=None)


TRAFFIC = Exercise(
    id="added-traffic",
    title="What FSDP adds in communication",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=traffic_judge,
    misconceptions={
        "half-as-much-again-always": "FSDP always sends half as much again as data parallel",
        "shards-cost-nothing": "what is sharded is not sent",
        "gathers-once": "the weights are gathered once for both passes",
        "gathers-twice-always": "the weights are gathered again before backward, always",
        "once-a-step": "a step sends the same, however many micro-batches it has",
        "reduces-every-time": "gradients are reduced after every backward, always",
        "reduces-at-the-end": "gradients are reduced once a step, always",
        "all-reduces-too": "FSDP all-reduces its gradients",
        "everything-travels": "each device sends the whole",
        "one-format-for-all": "weights and gradients travel in one format",
        "nodes-are-one-ring": "shards are spread over all devices, always",
        "replicas-cost-nothing": "replicas need no gradients of each other",
    },
)
