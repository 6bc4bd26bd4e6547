"""Reasoning exercise 11.6: which axis would you add next, given a timeline and a traffic table?"""

import math
from functools import partial
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng
from course_lib.checks.smell import nearly

__all__ = ["NEXT", "next_axis", "next_text", "outcome"]

Run = dict[str, Any]

NETWORK, NODE_LINK = 50, 450
"""MB (1e6 bytes) a ms: a device's own network card, an eighth of the 400e9 of an H100 node; its links in the node."""
NODE, STAGES, SHARE = 8, 4, 4
WANTED = "ACDEBB"
"""The right line, variant by variant. C and the last B: only B and C fit. The first B: A would be faster, and does not
fit. E: the wait for a stage is larger than the one for the busiest expert, and half of it stays."""
WAITS = {
    "gather": "waits for weights (network)",
    "stage": "waits for a stage",
    "expert": "waits for the busiest expert",
}


def outcome(run: Run, line: str, rule: str = "") -> tuple[float, float]:
    """ms of the step with a line ("": as it is), and GB that a device holds, waits counted one by one.

    `rule` makes one mistake.
    """
    waits, state, activations = dict(run["waits"]), run["whole"] / run["data"], float(run["activations"])
    rate = NODE_LINK if line == "B" else NETWORK
    if rule == "one-link-for-all":
        rate = NETWORK
    if rule == "the-other-link":
        rate = NODE_LINK if rate == NETWORK else NETWORK
    added = 0.0 if rule == "new-traffic-is-free" or line not in run["sends"] else run["sends"][line] * 1000 / rate
    if line == "A":
        waits["gather"], state = 0, run["whole"] / NODE
    if line == "B":
        waits["gather"] /= 1 if rule == "weights-stay-whole" else SHARE
    if line in ("B", "C"):
        activations /= SHARE
    if line == "C" and rule == "context-cuts-weights":
        waits["gather"] /= SHARE
    if line == "D":
        waits["stage"] /= 1 if rule == "nothing-removed" else 2 if rule != "interleaving-ends-it" else math.inf
        activations *= 1 + (STAGES - 1) / (2 * STAGES)
    if line == "E":
        waits["expert"] = 0
    if rule == "nothing-removed":
        waits = dict(run["waits"])
    if rule == "nothing-else-waits":
        changed = {"A": ("gather",), "B": ("gather",), "C": (), "D": ("stage",), "E": ("expert",)}[line]
        waits = {key: wait for key, wait in waits.items() if key in changed}
    return run["compute"] + sum(waits.values()) + added, state + activations


def _draw(variant: int, rng: Any) -> Run:
    """Sizes from which the wanted line may come out right."""
    wanted, hard = WANTED[variant % 6], variant % 6 == 5
    compute = int(rng.integers(90, 160)) * 10
    large, small = (lambda: int(rng.integers(40, 70)) * 10), (lambda: int(rng.integers(4, 16)) * 10)
    data = int(rng.choice([64, 128]))
    long = wanted == "C" or hard
    expert = large() if wanted == "E" else small()
    stage = int(1.4 * large()) if wanted == "D" else int(1.3 * expert) if wanted == "E" else small()
    return {
        "compute": compute,
        "waits": {"gather": large() if wanted in "AB" else small() + 60, "stage": stage, "expert": expert},
        "whole": int(rng.integers(150, 260)) if wanted in "AE" else int(rng.integers(500, 700)),
        "data": data,
        "activations": int(rng.integers(80, 120)) if long else int(rng.integers(24, 36)),
        "sends": {
            "A": round(float(rng.uniform(1.5, 5)), 1),
            "B": round(float(rng.uniform(50, 120)), 1) if wanted != "C" else round(float(rng.uniform(200, 300)), 1),
            "C": round(float(rng.uniform(4, 10)), 1) if wanted == "C" else round(float(rng.uniform(15, 30)), 1),
            "D": round(float(rng.uniform(1, 4)), 1),
        },
        "usable": 72,
    }


def next_axis(variant: int) -> Run:
    """The numbers of a variant. The right line's step is at least 8% shorter than any other that fits."""
    rng = variant_rng("next-axis", variant)
    while True:
        run = _draw(variant, rng)
        found = {line: outcome(run, line) for line in "ABCDE"}
        clear = all(abs(size / run["usable"] - 1) > 0.06 for _, size in found.values())
        fits = sorted((ms, line) for line, (ms, size) in found.items() if size <= run["usable"])
        as_it_is = outcome(run, "")
        if not clear or not fits or fits[0][1] != WANTED[variant % 6]:
            continue
        if len(fits) > 1 and fits[1][0] < 1.08 * fits[0][0]:
            continue
        if (as_it_is[1] > run["usable"]) != (variant % 6 in (1, 5)):
            continue
        if variant % 6 == 4 and not found["A"][0] < fits[0][0]:
            continue
        if as_it_is[1] <= run["usable"] and fits[0][0] > 0.9 * as_it_is[0]:
            continue
        return run | {"choice": fits[0][1], "evidence": fits[0][0], "slots": _slots(run, rng)}


def _slots(run: Run, rng: Any) -> list[tuple[float, float, str]]:
    """The step of one device as (start, end, what), whole ms: the waits cut into parts between parts of computing."""
    parts: list[tuple[float, str]] = []
    order = [
        "stage",
        "compute",
        "gather",
        "compute",
        "expert",
        "compute",
        "gather",
        "compute",
        "expert",
        "compute",
        "stage",
    ]
    left = {**run["waits"], "compute": run["compute"]}
    for number, key in enumerate(order):
        again = order[number + 1 :].count(key)
        part = int(left[key] / (again + 1) * rng.uniform(0.7, 1.3)) if again else left[key]
        left[key] -= part
        parts.append((part, key))
    slots: list[tuple[float, float, str]] = []
    now = 0.0
    for part, key in parts:
        slots.append((now, now + part, WAITS.get(key, "computes")))
        now += part
    return slots


def next_text(variant: int) -> str:
    """What `question` prints."""
    run = next_axis(variant)
    slots = [f"  {start:5,.0f} to {end:5,.0f}  {what}" for start, end, what in run["slots"]]
    adds = {
        line: f"adds {sent:g} GB {'inside the node' if line == 'B' else 'on the network'};"
        for line, sent in run["sends"].items()
    }
    lines = [
        f"A mixture of experts on {run['data'] * STAGES} devices, in nodes of {NODE}: {STAGES} pipeline stages (1F1B),",
        f"and in each stage FSDP over {run['data']} data ranks, with the experts spread over 8 of them.",
        "",
        "One step of one device, from a simulator, in ms:",
        *slots,
        "",
        f"A device has {run['usable']} GB to use. Its activations take {run['activations']} GB. Weights, gradients",
        f"and optimizer of a whole stage take {run['whole']} GB; they are in shards over its {run['data']} data ranks.",
        f"It sends {NETWORK} GB/s over its own network card, and {NODE_LINK} GB/s over the links inside its node.",
        "",
        "Five lines that could come next, each alone. What a line adds is what one device sends more in a step;",
        "nothing of it is hidden behind computing.",
        "",
        f'  "A" hybrid sharding: the stage in shards over the {NODE} devices of a node, replicas over the nodes',
        f"      {adds['A']} no waits for weights",
        f'  "B" tensor parallel {SHARE}, inside the node',
        f"      {adds['B']} waits for weights / {SHARE}; activations / {SHARE}",
        f'  "C" context parallel {SHARE}',
        f"      {adds['C']} activations / {SHARE}",
        '  "D" interleaving, 2 chunks a stage',
        f"      {adds['D']} waits for a stage / 2; activations x (1 + (p-1)/(2p)) with p stages",
        '  "E" a balancing bias',
        "      adds nothing; no waits for the busiest expert",
        "",
        "What a line does not name stays as it is: computing, the other waits, the other bytes.",
        "",
        "choice:   the line with the shortest step, of those with which a device can hold what it has to",
        "evidence: ms of the step with that line",
    ]
    return "\n".join(lines)


def next_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter exact, the ms within 0.06%: rounding to four digits passes. Lines are 8% apart, memory 6%."""
    run = next_axis(int(returned["variant"]))
    choice, number = partial(_wrong_choice, run, value=returned.get("evidence")), partial(_wrong_number, run)
    return judge_choice(returned, run, "ABCDE", choice, number, rel_tol=6e-4)


def _best(run: Run, rule: str = "", *, any_size: bool = False) -> str:
    """The line that comes out best with a mistake."""
    found = {line: outcome(run, line, rule) for line in "ABCDE"}
    fits = [line for line in found if any_size or found[line][1] <= run["usable"]]
    return min(fits, key=lambda line: found[line][0])


def _wrong_choice(run: Run, given: str, value: float | None) -> Wrong:
    """What is wrong with a line, and whether the ms are right for that line."""
    right = value is not None and math.isclose(value, outcome(run, given)[0], rel_tol=6e-4)
    wrong = _wrong_line(run, given)
    before = f"{value:g} ms is right for {given}: " if right else f"{given}: "
    return Wrong(before + wrong.message, wrong.misconception)


def _wrong_line(run: Run, given: str) -> Wrong:
    if outcome(run, given)[1] > run["usable"]:
        held = outcome(run, "")[1] > run["usable"]
        ask = (
            "what does a device hold as it is, and what with this line?" if held else "what does a device hold with it?"
        )
        return Wrong(ask, "what-is-fast-fits")
    largest = {"gather": "A", "stage": "D", "expert": "E"}[max(run["waits"], key=lambda key: run["waits"][key])]
    rules = {
        "new-traffic-is-free": ("how long does a device send what this line adds?", _best(run, "new-traffic-is-free")),
        "one-link-for-all": ("over which link goes what each line adds?", _best(run, "one-link-for-all")),
        "the-largest-wait-first": ("it works on the largest wait. How much of it goes, and what is added?", largest),
    }
    found = {rule: text for rule, (text, line) in rules.items() if line == given}
    if found:
        rule = next(iter(found))
        return Wrong(" Or: ".join(found.values()), rule if len(found) == 1 else None)
    short, gains = outcome(run, "")[1] > run["usable"], outcome(run, given)[0] < outcome(run, "")[0]
    if given == "C" and not short:
        return Wrong("it makes room. Is there a lack of room in this run?", "room-is-always-short")
    if given == "B" and gains and not short:
        return Wrong("it fits. Which other lines fit, and how long is the step with each?")
    if given in "BC" and short:
        return Wrong("it fits. How long is its step, and that of the other one that fits?")
    return Wrong("which wait does it shorten, and how long is that in this timeline?", "any-axis-helps")


def _wrong_number(run: Run, value: float) -> Wrong:
    line, right, before = run["choice"], run["evidence"], "the choice is right, the number is not: "
    now = outcome(run, "")[0]
    guesses = {
        "new-traffic-is-free": "how long does a device send what the line adds?",
        "the-other-link": "over which link goes what the line adds?",
        "nothing-removed": "the line makes a wait shorter",
        "nothing-else-waits": "there are waits that the line does not touch",
        "weights-stay-whole": "of how much of a layer does a device wait for the weights with tensor parallel?",
        "context-cuts-weights": "context parallel cuts sequences. Does it cut weights?",
        "interleaving-ends-it": "how much of the waits for a stage do two chunks leave?",
    }
    others = {
        now: "that is the step as it is",
        now - right: "that is what the step gains; its length is asked for",
        right / 1000: "that is in seconds",
        run["compute"]: "that is the computing alone",
        sum(run["waits"].values()): "those are the waits as they are",
    }
    found = {
        rule: text
        for rule, text in guesses.items()
        if (line, rule) != ("B", "nothing-removed")  # all that B shortens is the waits for weights
        and math.isclose(value, guess := outcome(run, line, rule)[0], rel_tol=6e-4)
        and not math.isclose(guess, right, rel_tol=1.3e-3)
    }
    if found:
        rule = next(iter(found))
        known = rule if len(found) == 1 and rule in NEXT.misconceptions else None
        return Wrong(before + " Or: ".join(found.values()), known, form=True)
    for guess, text in others.items():
        if math.isclose(value, guess, rel_tol=6e-4):
            return Wrong(before + text, form=True)
    close = nearly(value, right)
    return Wrong(
        before + (close or "add up the slots of each kind, change the kind that the line names, add what it sends"),
        form=True,
    )


NEXT = Exercise(
    id="next-axis",
    title="Which axis next",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=next_judge,
    misconceptions={
        "what-is-fast-fits": "a faster layout is a possible one",
        "new-traffic-is-free": "a new axis only removes",
        "one-link-for-all": "all links are equally fast",
        "the-other-link": "a node's links and the network are equally fast",
        "the-largest-wait-first": "the largest wait is the one to work on, whatever that costs",
        "room-is-always-short": "a step is slow because memory is short",
        "any-axis-helps": "another axis makes any run faster",
        "nothing-removed": "a new axis only adds",
        "nothing-else-waits": "once its bottleneck is gone a device never waits",
        "weights-stay-whole": "tensor parallel gathers whole layers",
        "context-cuts-weights": "context parallel cuts the weights too",
        "interleaving-ends-it": "interleaving leaves no bubble",
    },
)
