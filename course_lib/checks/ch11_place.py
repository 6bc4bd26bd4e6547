"""Reasoning exercise 11.5: place a 70B model on 64 devices. Any layout that keeps the rules and fits is right."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng
from course_lib.checks.smell import nearly, plain

__all__ = ["PLACE", "held", "place", "place_text"]

DEVICES = 64
KEYS = ("data", "tensor", "pipeline", "micro_batch", "micro_batches", "zero")

Run = dict[str, Any]
Layout = dict[str, int]

LLAMA = {"layers": 80, "width": 8192, "heads": 64, "kv_heads": 8, "inside": 28_672}
RUNS: list[Run] = [
    LLAMA | {"name": "Llama 2 70B", "vocab": 32_000, "sequence": 4096, "batch": 128, "node": 8, "usable": 72},
    LLAMA | {"name": "Llama 3 70B", "vocab": 128_256, "sequence": 8192, "batch": 64, "node": 8, "usable": 72},
    LLAMA | {"name": "Llama 2 70B", "vocab": 32_000, "sequence": 2048, "batch": 256, "node": 4, "usable": 36},
    {
        "name": "A model of 69e9 parameters with 4 key-value heads",
        "layers": 76,
        "width": 8192,
        "heads": 64,
        "kv_heads": 4,
        "inside": 30_720,
        "vocab": 64_000,
        "sequence": 4096,
        "batch": 128,
        "node": 8,
        "usable": 72,
    },
]
"""Shapes of Touvron et al. 2023 (arXiv 2307.09288) and Grattafiori et al. 2024 (arXiv 2407.21783), and one of ours.
`usable`: GB of a device, nine tenths of 80 or 40."""
BUBBLE = 0.06
"""The most of a step that the pipeline may be idle: (p - 1)/(m + p - 1)."""


def place(variant: int) -> Run:
    """The run of a variant, with the sizes that its text states. After four variants the usable GB differ too."""
    run = dict(RUNS[variant % len(RUNS)])
    if variant >= len(RUNS):
        run["usable"] += int(variant_rng("place-70b", variant).integers(1, 5))
    width, heads, kv = run["width"], run["heads"], run["kv_heads"]
    attention = width * (heads + 2 * kv) * (width // heads) + width * width
    run["layer"] = attention + 3 * width * run["inside"] + 2 * width
    run["embedding"] = run["vocab"] * width
    run["kept"] = 2 * (6 * width + 2 * kv * (width // heads) + 4 * run["inside"])
    return run


def place_text(variant: int) -> str:
    """What `question` prints."""
    run = place(variant)
    return (
        f"{run['name']}: {run['layers']} layers of {run['layer']:,} parameters, {run['heads']} heads,"
        f" {run['kv_heads']} key-value heads;\n"
        f"the embedding has {run['embedding']:,} parameters, and the output head as many again.\n"
        f"Sequences of {run['sequence']:,} tokens; the recipe fixes {run['batch']} sequences a step.\n"
        f"{DEVICES} devices in nodes of {run['node']}, each with {run['usable']}e9 usable bytes.\n\n"
        "Rules:\n"
        f"  data x tensor x pipeline = {DEVICES}; data x micro_batch x micro_batches = {run['batch']} sequences\n"
        "  tensor stays inside a node and divides its devices, the heads and the key-value heads\n"
        "  pipeline divides the layers; 1F1B; its bubble (p-1)/(m+p-1) is at most "
        f"{BUBBLE:.0%}, with m = micro_batches\n"
        f"  a device holds at most {run['usable']}e9 bytes\n\n"
        "A device of the first stage is the fullest. It holds, in this exercise:\n"
        "  parameters:  those of its layers and of the embedding, with pipeline 1 also of the head; all / tensor\n"
        "  state:       for each of its parameters, 2 bytes of weight, 2 of gradient, 12 of the optimizer.\n"
        "               zero 0: whole. zero 1: the optimizer's in shards over the data ranks.\n"
        "               zero 3: all 16 in shards over the data ranks; besides, the weights of two layers and the\n"
        "               gradient of one are whole for a while: 6 bytes for each parameter of one layer, / tensor\n"
        f"  activations: {run['kept']:,} bytes for each token in each of its layers, / tensor (sequence parallel);\n"
        "               micro_batch sequences are in a micro-batch, and the first stage holds\n"
        "               min(pipeline, micro_batches) micro-batches at once. Nothing is recomputed\n\n"
        "data, tensor, pipeline, micro_batch (sequences), micro_batches (a step, on each data rank): whole numbers\n"
        "zero:        0, 1 or 3\n"
        "evidence:    GB (1e9 bytes) that a device of the first stage holds in your layout, to four digits"
    )


def held(run: Run, at: Layout, rule: str = "") -> dict[str, float]:
    """Bytes of a device of the first stage, layer by layer. `rule` makes one mistake."""
    tensor, pipeline, data = at["tensor"], at["pipeline"], at["data"]
    layers = run["layers"] if rule == "all-layers" else run["layers"] // pipeline
    cut = 1 if rule == "tensor-cuts-no-state" else tensor
    parameters = 0.0 if rule == "no-embedding" else run["embedding"] / cut
    if pipeline == 1 and rule not in ("no-head", "no-embedding"):
        parameters += run["embedding"] / cut
    if pipeline > 1 and rule == "head-everywhere":
        parameters += run["embedding"] / cut
    kept = 0.0
    for _ in range(layers):
        parameters += run["layer"] / cut
        kept += run["kept"] * at["micro_batch"] * run["sequence"]
    optimizer = {"no-master-weights": 8, "no-optimizer": 0}.get(rule, 12)
    if at["zero"] == 0:
        state = (4 + optimizer) * parameters
    elif at["zero"] == 1:
        state = (4 + optimizer / data) * parameters
    else:
        state = (4 + optimizer) * parameters / data
    if rule == "shards-are-all" and at["zero"] == 1:
        state = 16 * parameters / data
    if rule == "replicas-hold-all":
        state = 16 * parameters
    whole = 6 * run["layer"] / tensor if at["zero"] == 3 and rule != "nothing-is-whole" else 0.0
    flight = 1 if rule == "one-in-flight" else min(pipeline, at["micro_batches"])
    if rule == "all-in-flight":
        flight = at["micro_batches"]
    activations = kept * flight / (1 if rule == "tensor-cuts-no-activations" else tensor)
    if rule == "fsdp-cuts-activations":
        activations /= data
    if rule == "no-activations":
        activations = 0.0
    if rule == "activations-alone":
        state = whole = 0.0
    return {"state": state + whole, "activations": activations}


HINTS = {
    "one-in-flight": "How many micro-batches has the first stage begun before the first backward comes back to it?",
    "all-in-flight": "Those are all micro-batches of the step. How many does 1F1B let the first stage hold?",
    "no-activations": "That is the state. What else does it hold?",
    "activations-alone": "Those are the activations. What else does it hold?",
    "tensor-cuts-no-activations": "By what does tensor parallel with sequence parallel divide the activations?",
    "tensor-cuts-no-state": "By what does tensor parallel divide the parameters?",
    "fsdp-cuts-activations": "You divided the activations by the data ranks. Do they compute the same sequences?",
    "all-layers": "How many of the layers are on the first stage?",
    "no-embedding": "The embedding is missing",
    "no-head": "With one stage, where is the output head?",
    "head-everywhere": "The head is in it. On which stage is it?",
    "nothing-is-whole": "Whole layers are missing: what does zero 3 hold for a while besides its shards?",
    "no-master-weights": "4 bytes a parameter are missing. The optimizer has 12",
    "no-optimizer": "12 bytes a parameter are missing",
    "shards-are-all": "What does zero 1 shard, and what not?",
    "replicas-hold-all": "What does your choice of zero shard?",
}


def place_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The layout by the rules, exactly; the GB within 0.06%: four digits, rounded."""
    form = wrong_form(returned, (*KEYS, "evidence"))
    if form is not None:
        return form
    run = place(int(returned["variant"]))
    for key in KEYS:
        number = plain(returned[key])
        if number is None:
            return Wrong(f"`{key}` is still empty", form=True)
        if isinstance(number, bool) or not isinstance(number, int | float) or number != int(number):
            what = f"{number:g}" if isinstance(number, float) else kind(number)
            return Wrong(f"`{key}` is a whole number, without quotes; yours is {what}", form=True)
        if number < (0 if key == "zero" else 1):
            return Wrong(f"`{key}` is {number:g}; it is a whole number from {0 if key == 'zero' else 1}", form=True)
    if int(returned["zero"]) not in (0, 1, 3):
        return Wrong("`zero` is 0, 1 or 3", form=True)
    at = {key: int(returned[key]) for key in KEYS}
    wrong = _breaks(run, at)
    if wrong is not None:
        return wrong
    value = returned["evidence"]
    if value is None:
        return Wrong("the layout keeps the rules and fits; `evidence` is still empty", form=True)
    return _wrong_evidence(run, at, float(value))


def _breaks(run: Run, at: Layout) -> Wrong | None:
    """The first rule that the layout breaks."""
    data, tensor, pipeline, node = at["data"], at["tensor"], at["pipeline"], run["node"]
    product = data * tensor * pipeline
    if product != DEVICES:
        text = f"data x tensor x pipeline is {product}; there are {DEVICES} devices"
        return Wrong(text, "every-device-is-a-data-rank" if data == DEVICES else None)
    if tensor > node or node % tensor:
        return Wrong(
            f"tensor {tensor} does not fit into nodes of {node}. What does it send, how often?",
            "tensor-leaves-the-node",
        )
    for what in ("heads", "kv_heads"):
        if run[what] % tensor:
            text = f"{run[what]} {'heads' if what == 'heads' else 'key-value heads'} cannot be cut over tensor {tensor}"
            return Wrong(text, "heads-can-be-cut")
    if run["layers"] % pipeline:
        text = f"{run['layers']} layers cannot be cut into {pipeline} equal stages"
        return Wrong(text, "layers-can-be-cut")
    sequences = at["micro_batch"] * at["micro_batches"]
    if data * sequences != run["batch"]:
        text = (
            f"a step of yours has {data} x {at['micro_batch']} x {at['micro_batches']} = {data * sequences} sequences"
        )
        rule = "all-ranks-multiply-the-batch" if sequences * DEVICES == run["batch"] else None
        rule = "a-replica-takes-the-batch" if sequences == run["batch"] else rule
        return Wrong(f"{text}; the recipe has {run['batch']}", rule)
    bubble = (pipeline - 1) / (at["micro_batches"] + pipeline - 1)
    wrong = _overflows(run, at)
    if wrong is None and bubble > BUBBLE:
        text = f"the pipeline is idle for {bubble:.1%} of a step. Which of your numbers make that smaller?"
        return Wrong(text, "few-micro-batches-will-do")
    return wrong


def _overflows(run: Run, at: Layout) -> Wrong | None:
    bytes_ = {key: size / 1e9 for key, size in held(run, at).items()}
    if sum(bytes_.values()) <= run["usable"]:
        return None
    text = f"state {bytes_['state']:.0f} GB, activations {bytes_['activations']:.0f} GB, of {run['usable']}"
    if bytes_["state"] > run["usable"]:
        ask = "the state overflows. What do your data ranks each hold whole?"
        return Wrong(f"{text}: {ask}", "replicas-share-the-state" if at["zero"] == 0 else "the-optimizer-is-all")
    if bytes_["activations"] > run["usable"]:
        smaller = held(run, {**at, "micro_batch": 1})["activations"] / 1e9
        if smaller <= run["usable"]:
            return Wrong(
                f"{text}: the activations overflow. How many sequences need to be there at once?",
                "micro-batches-are-free",
            )
        if at["pipeline"] > 1:
            ask = "the activations overflow. A stage has fewer layers: how many micro-batches does the first one hold?"
            return Wrong(f"{text}: {ask}", "pipeline-cuts-activations")
        ask = "the activations overflow. Which of your numbers divides those of one sequence?"
        return Wrong(f"{text}: {ask}", "fsdp-cuts-activations")
    return Wrong(
        f"{text}: each fits, and not both. Which of your numbers divides the larger of the two?", "each-fits-so-both-do"
    )


def _wrong_evidence(run: Run, at: Layout, value: float) -> Wrong | None:
    right = sum(held(run, at).values()) / 1e9
    if math.isclose(value, right, rel_tol=6e-4):
        return None
    before = "the layout keeps the rules and fits. The evidence does not: "
    if any(math.isclose(value, right * unit, rel_tol=6e-4) for unit in (1e3, 1e6, 1e9)):
        return Wrong(f"{before}it is in GB, 1e9 bytes", form=True)
    if math.isclose(value, right * 1e9 / 2**30, rel_tol=6e-4):
        return Wrong(f"{before}those are GiB; 1 GB is 1e9 bytes", form=True)
    found = {
        rule: hint
        for rule, hint in HINTS.items()
        if math.isclose(value, guess := sum(held(run, at, rule).values()) / 1e9, rel_tol=6e-4)
        and not math.isclose(guess, right, rel_tol=1.3e-3)
    }
    if found:
        rule = next(iter(found))
        known = rule if len(found) == 1 and rule in PLACE.misconceptions else None
        return Wrong(before + " Or: ".join(found.values()), known, form=True)
    close = nearly(value, right)
    return Wrong(before + (close or "state and activations, one line each, then their sum"), form=True)


PLACE = Exercise(
    id="place-70b",
    title="Place a 70B model on 64 devices",
    cases=one_case("your layout and evidence"),
    run=answer_run,
    judge=place_judge,
    misconceptions={
        "every-device-is-a-data-rank": "each device is a data-parallel rank, whatever else it is",
        "tensor-leaves-the-node": "tensor parallel works over any number of devices",
        "heads-can-be-cut": "tensor parallel can cut a head",
        "layers-can-be-cut": "stages can be of any number",
        "all-ranks-multiply-the-batch": "tensor and pipeline ranks multiply the batch too",
        "a-replica-takes-the-batch": "each replica takes the whole batch",
        "few-micro-batches-will-do": "a pipeline is busy with any number of micro-batches",
        "replicas-share-the-state": "data-parallel ranks share what they hold",
        "the-optimizer-is-all": "when the optimizer is sharded, the state is small",
        "micro-batches-are-free": "the size of a micro-batch does not matter to memory",
        "pipeline-cuts-activations": "p stages hold a p-th of the activations each",
        "fsdp-cuts-activations": "FSDP shards activations",
        "each-fits-so-both-do": "what fits alone fits together",
        "one-in-flight": "a stage holds one micro-batch",
        "all-in-flight": "a stage holds all micro-batches of a step",
        "no-activations": "memory is the model's state",
        "tensor-cuts-no-activations": "tensor parallel leaves activations whole",
        "nothing-is-whole": "with FSDP a device only ever holds shards",
        "no-embedding": "a model is its layers",
        "no-master-weights": "16-bit weights are all the weights there are",
        "shards-are-all": "every stage of ZeRO shards everything",
    },
)
