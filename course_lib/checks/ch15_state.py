"""Check 15.4: bytes of state on the fullest device, for three layouts."""

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong
from course_lib.checks.smell import not_a_number, plain

__all__ = ["STATE", "held"]

WEIGHTS, GRADIENTS, OPTIMIZER = 2, 4, 12
SHARED = {"ddp": (False, False, False), "zero1": (False, False, True), "fsdp": (True, True, True)}
"""Whether the data-parallel ranks share out weights, gradients and optimizer."""


def held(case: Case, rule: str = "") -> Fraction:
    """Bytes on the fullest device: every part is put on its stage, byte by byte; with a rule, what that mistake
    gives."""
    data, tensor, pipeline = case["data"], case["tensor"], case["pipeline"]
    stages: list[list[tuple[str, int]]] = [[] for _ in range(pipeline)]
    for n in range(case["layers"]):  # dealt out one by one, then put in order: the first stages have one more
        stages[n % pipeline].append(("layer", case["layer"]))
    if rule == "the-last-have-one-more":
        stages.reverse()
    if rule == "as-many-as-go-in":
        full = -(-case["layers"] // pipeline)
        stages = [[("layer", case["layer"])] * max(0, min(full, case["layers"] - n * full)) for n in range(pipeline)]
    stages[0].append(("embedding", case["embedding"]))
    stages[-1].append(("head", case["head"]))
    if rule == "ends-hold-layers-alone":
        stages = [[part for part in stage if part[0] == "layer"] for stage in stages]
    if rule == "the-first-is-fullest":
        stages = stages[:1]
    if rule == "the-last-is-fullest":
        stages = stages[-1:]
    if rule == "one-more-is-nothing":
        short = case["layers"] // pipeline
        stages = [[("layer", case["layer"])] * short + [p for p in stage if p[0] != "layer"] for stage in stages]
    if rule == "stages-are-equal":
        everything = case["layers"] * case["layer"] + case["embedding"] + case["head"]
        stages = [[("layer", everything)]]
        tensor = tensor * pipeline
    shared = {
        "zero1-shards-all": (True, True, True) if case["strategy"] == "zero1" else None,
        "zero1-shards-gradients": (False, True, True) if case["strategy"] == "zero1" else None,
        "fsdp-keeps-weights": (False, True, True) if case["strategy"] == "fsdp" else None,
        "copies-share-a-model": (True, True, True) if case["strategy"] == "ddp" else None,
        "nothing-is-shared": (False, False, False),
    }.get(rule) or SHARED[case["strategy"]]
    sizes = {"gradients-in-16-bit": (2, 2, 12), "forgets-the-master": (2, 4, 8), "no-gradients": (2, 0, 12)}.get(
        rule, (WEIGHTS, GRADIENTS, OPTIMIZER)
    )
    ranks = data * tensor * pipeline if rule == "zero1-over-all-devices" else data
    fullest = Fraction(0)
    for stage in stages:
        bytes_here = Fraction(0)
        for name, count in stage:
            whole = rule == "tensor-cuts-nothing" or (rule == "the-ends-are-not-cut" and name != "layer")
            cut = 1 if whole else tensor
            for size, sharded in zip(sizes, shared, strict=True):
                bytes_here += Fraction(size * count, cut * (ranks if sharded else 1))
        fullest = max(fullest, bytes_here)
    return fullest


ASKS = {
    "stages-are-equal": "that is the mean over the stages. Which stage holds the embedding, which the head?",
    "the-last-have-one-more": "the layers do not divide here: which stages have one more?",
    "as-many-as-go-in": "the layers do not divide here: as evenly as can be, how many does the last stage have?",
    "ends-hold-layers-alone": "where are the embedding and the head?",
    "the-first-is-fullest": "is the first stage the fullest here?",
    "the-last-is-fullest": "is the last stage the fullest here?",
    "one-more-is-nothing": "the layers do not divide into the stages here",
    "the-ends-are-not-cut": "tensor parallel cuts embedding and head, too",
    "tensor-cuts-nothing": "what do the tensor ranks share?",
    "zero1-shards-all": "what do the data-parallel ranks share at stage 1 of ZeRO, and what not?",
    "zero1-shards-gradients": "stage 1 shares out one category. Which?",
    "zero1-over-all-devices": "among how many ranks is the optimizer of one stage's cut shared out? Who else has it?",
    "fsdp-keeps-weights": "what of a layer does a rank of FSDP hold while it is not used?",
    "copies-share-a-model": "what does a rank of plain data parallel hold?",
    "nothing-is-shared": "what do the data-parallel ranks share out here?",
    "gradients-in-16-bit": "how many bytes has a gradient in the text?",
    "forgets-the-master": "the optimizer has three numbers a parameter: the master weight is one",
    "no-gradients": "where are the gradients?",
}


def state_cases(seed: int) -> list[Case]:
    """Layouts are fixed so that each rule decides one alone; sizes follow the seed."""
    rng = np.random.default_rng([seed, 1504])

    def case(name: str, strategy: str, data: int, tensor: int, pipeline: int, layers: int, head: float = 1.0) -> Case:
        unit = data * tensor * 1_000
        layer, embedding = (
            int(rng.integers(150_000, 300_000)) * unit // 64,
            int(rng.integers(40_000, 90_000)) * unit // 64,
        )
        ends = {"embedding": embedding, "layer": layer, "head": int(embedding * head)}
        cut = {"strategy": strategy, "data": data, "tensor": tensor, "pipeline": pipeline, "layers": layers}
        return {"name": name, **ends, **cut}

    return [
        case("ZeRO-1 without another cut", "zero1", 32, 1, 1, 24),
        case("data parallel, 64 devices", "ddp", 64, 1, 1, 32),
        case("ZeRO-1, tensor 8", "zero1", 16, 8, 1, 40, 0.9),
        case("ZeRO-1, tensor 4, 8 stages", "zero1", 8, 4, 8, 48, 0.5),
        case("ZeRO-1, a heavy head", "zero1", 8, 2, 4, 32, 2.5),
        case("ZeRO-1, layers that do not divide", "zero1", 4, 8, 4, 30, 0.0),
        case("data parallel in 4 stages", "ddp", 8, 1, 4, 34, 9.0),
        case("FSDP over all", "fsdp", 256, 1, 1, 80),
    ]


def state_run(answer: Callable[..., Any], case: Case) -> Any:
    sizes = (case["embedding"], case["layer"], case["layers"], case["head"])
    return plain(answer(*sizes, case["strategy"], case["data"], case["tensor"], case["pipeline"]))


def state_judge(case: Case, returned: Any) -> Wrong | None:
    """Relative 1e-6: floats; a forgotten layer of many is above 1%."""
    form = not_a_number(returned)
    if form is not None:
        return Wrong(form.message, form=True)
    right = float(held(case))
    if _near(returned, right):
        return None
    for rule, text in ASKS.items():
        guess = float(held(case, rule))
        if _near(returned, guess) and not abs(guess - right) <= 1e-3 * right:
            return Wrong(f"{returned:.4g} bytes: {text}", rule if rule in STATE.misconceptions else None)
    for factor, unit in ((1e9, "GB"), (2**30, "GiB")):
        if _near(returned * factor, right, 1e-3):
            return Wrong(f"{returned:.4g}: those are {unit}; bytes are asked for")
    return Wrong(
        f"{returned:.4g} bytes: make a list for each stage: its layers, its ends; then each category and its cut"
    )


def _near(a: float, b: float, tolerance: float = 1e-6) -> bool:
    return abs(a - b) <= tolerance * abs(b)


STATE = Exercise(
    id="state-per-device",
    title="State on the fullest device",
    cases=state_cases,
    run=state_run,
    judge=state_judge,
    forbidden=("course_lib.planning",),
    misconceptions={
        "stages-are-equal": "a pipeline divides the state evenly",
        "ends-hold-layers-alone": "embedding and head are small",
        "the-first-is-fullest": "the first stage is always the fullest",
        "the-last-is-fullest": "the last stage is always the fullest",
        "one-more-is-nothing": "layers always divide into the stages",
        "the-ends-are-not-cut": "tensor parallel cuts the layers alone",
        "zero1-shards-all": "every stage of ZeRO shares out everything",
        "zero1-shards-gradients": "stage 1 of ZeRO shares out gradients",
        "zero1-over-all-devices": "the optimizer is shared out among all devices",
        "fsdp-keeps-weights": "FSDP keeps the weights whole",
        "copies-share-a-model": "data parallel shares out a model",
        "nothing-is-shared": "sharding changes who computes, not what is held",
        "gradients-in-16-bit": "gradients have the format of the weights",
        "forgets-the-master": "the optimizer is its two averages",
    },
)
