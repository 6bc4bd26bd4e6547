"""Capstone 15.8: a configuration never seen before, estimated. Exactly one of its limits is broken: which?"""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import Letter, Number, judge_parts
from course_lib.checks.ch15_state import held
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ESTIMATE", "configuration", "estimate_text"]

YEAR = 365 * 86_400.0
BROKEN = "BDAFECG"
"""The limits that are broken, in the first seven variants; after them, each seven have an order of their own."""
SHAPES = (
    # layers, width, heads, heads of keys, size of a head, inside
    (24, 2560, 20, 4, 128, 6_912),
    (32, 4096, 32, 8, 128, 14_336),
    (40, 5120, 40, 8, 128, 13_824),
    (48, 6144, 48, 8, 128, 16_384),
    (64, 7168, 56, 8, 128, 20_480),
    (80, 8192, 64, 8, 128, 24_576),
)
DEVICES = (("A100", 312, 80), ("H100", 989, 80), ("B200", 2250, 180))


def sizes(run: dict[str, Any]) -> dict[str, int]:
    """Parameters of the embedding, a layer and the output layer, from the shapes; norms left out."""
    d, inside = run["width"], run["head_dim"]
    attention = d * inside * (run["heads"] + 2 * run["kv_heads"]) + run["heads"] * inside * d
    table = run["vocab"] * d
    return {"embedding": table, "layer": attention + 3 * d * run["ffn"], "head": table}


def _state(run: dict[str, Any], rule: str = "") -> float:
    keys = ("strategy", "data", "tensor", "pipeline", "layers")
    return float(held({**{key: run[key] for key in keys}, **sizes(run)}, rule)) / 1e9


def _numbers(run: dict[str, Any]) -> dict[str, float]:
    """The numbers asked for, and those of the limits."""
    part = sizes(run)
    n = part["embedding"] + run["layers"] * part["layer"] + part["head"]
    devices = run["data"] * run["tensor"] * run["pipeline"]
    flops = 6.0 * n * run["tokens"]
    days = flops / (devices * run["peak"] * 1e12 * run["mfu"] / 100) / 86_400 / (run["goodput"] / 100)
    write, mean = 14 * n / (run["storage"] * 1e9), YEAR / (run["rate"] * devices)
    m = run["batch"] / run["data"]
    return {
        "parameters": n,
        "steps": math.ceil(run["tokens"] / (run["batch"] * run["sequence"])),
        "flops": flops,
        "days": days,
        "state_gb": _state(run),
        "checkpoint_gb": 14 * n / 1e9,
        "cadence_minutes": math.sqrt(2 * write * mean) / 60,
        "devices": devices,
        "write": write,
        "mean": mean,
        "lost": math.sqrt(2 * write / mean),
        "m": m,
        "bubble": (run["pipeline"] - 1) / (m + run["pipeline"] - 1),
    }


def _broken(variant: int) -> str:
    turn, place = divmod(variant, len(BROKEN))
    order = variant_rng("capstone-estimate/limits", turn).permutation(len(BROKEN)) if turn else range(len(BROKEN))
    return BROKEN[int(order[place])]


def configuration(variant: int) -> dict[str, Any]:
    """A configuration with exactly one broken limit: none of the others is near."""
    rng, wanted = variant_rng("capstone-estimate", variant), _broken(variant)
    while True:
        layers, width, heads, kv, inside, ffn = SHAPES[int(rng.integers(len(SHAPES)))]
        name, peak, memory = DEVICES[int(rng.integers(len(DEVICES)))]
        run: dict[str, Any] = {"layers": layers, "width": width, "heads": heads, "kv_heads": kv, "head_dim": inside}
        run |= {"ffn": ffn, "vocab": int(rng.choice([50_000, 64_000, 100_000, 128_000])), "device": name, "peak": peak}
        run |= {"strategy": str(rng.choice(["zero1", "zero1", "fsdp"])), "data": int(rng.choice([8, 16, 32, 64, 128]))}
        run |= {"tensor": int(rng.choice([2, 4, 8])), "pipeline": int(rng.choice([2, 4, 8])), "memory": memory}
        if wanted in "FG":
            run["tensor"] = 16 if wanted == "F" else 6
        if run["strategy"] == "fsdp":
            run["tensor"] = run["tensor"] if wanted in "FG" else 1
            run["pipeline"], run["data"] = 1, run["data"] * 8
        run |= {"sequence": int(rng.choice([2_048, 4_096, 8_192])), "mfu": int(rng.choice([34, 38, 42, 47]))}
        run["batch"] = int(rng.choice([256, 384, 512, 768, 1_024, 1_536, 2_048, 3_072]))
        if wanted == "C":
            run["batch"], run["pipeline"] = run["data"] * 3 // 4, 1  # one stage: no bubble is broken beside it
        run |= {"goodput": int(rng.choice([80, 85, 90])), "storage": int(rng.choice([4, 10, 25, 60, 150]))}
        run |= {
            "tokens": float(rng.choice([0.3, 0.8, 1.5, 4.0, 10.0])) * 1e12,
            "rate": float(rng.choice([0.1, 0.2, 0.4])),
        }
        if wanted == "E":
            run |= {"storage": int(rng.choice([1, 2, 3])), "rate": float(rng.choice([0.4, 0.8, 1.2]))}
        found = _numbers(run)
        if layers % run["pipeline"] or not 20 < found["days"] < 300 or (run["batch"] % run["data"] and wanted != "C"):
            continue
        state, usable, share = found["state_gb"], 0.94 * memory, run["goodput"] / 100
        tight = usable - (0.8 if wanted == "A" else 1.0) * state - (0.0 if wanted == "A" else 0.15 * usable)
        run["usable"], run["activations"] = round(usable), math.floor(tight)
        run["deadline"] = math.floor(found["days"] * ((1 + share) / 2 if wanted == "D" else 1.25))
        broken = {
            "A": state + run["activations"] > run["usable"],
            "B": found["bubble"] > 0.1,
            "C": found["m"] < 1,
            "D": found["days"] > run["deadline"],
            "E": found["lost"] > 0.1,
            "F": run["tensor"] > 8,
            "G": heads % run["tensor"] != 0,
        }
        elsewhere = [letter for letter, is_so in broken.items() if is_so and letter != wanted]
        near = 0.07 < found["lost"] < 0.115 or 0.08 < found["bubble"] < 0.12 or found["write"] > 0.02 * found["mean"]
        small = state < 4 or run["activations"] < 4 or (wanted == "A" and 0.2 * state < 3)
        if broken[wanted] and not (small or near or elsewhere):
            return {**run, **found, "risk": wanted}


def estimate_text(variant: int) -> str:
    """What `question` prints."""
    run = configuration(variant)
    shares = {
        "zero1": "the data-parallel ranks share out the optimizer (ZeRO-1)",
        "fsdp": "the data-parallel ranks share out weights, gradients and optimizer (FSDP)",
    }
    return (
        f"model      {run['layers']} layers, width {run['width']:,}, {run['heads']} heads of {run['head_dim']} "
        "numbers, "
        f"{run['kv_heads']} heads of keys and values,\n"
        f"           gated feed-forward block with {run['ffn']:,} inside, vocabulary {run['vocab']:,}, not tied. Leave "
        "norms out\n"
        f"data       {run['tokens'] / 1e12:g}T tokens, sequences of {run['sequence']:,}, {run['batch']:,} sequences an "
        "update, one sequence a micro-batch\n"
        f"layout     data {run['data']}, tensor {run['tensor']}, pipeline {run['pipeline']} (1F1B); "
        f"{shares[run['strategy']]}\n"
        "state      BF16 weights, FP32 gradients, AdamW with FP32 master weights and averages. A checkpoint holds\n"
        "           weights, master weights and averages. Layers divide into the stages evenly; the first stage has\n"
        "           the embedding too, the last the output layer\n"
        f"devices    {run['device']}: {run['memory']} GB, {run['usable']} of them usable; peak {run['peak']} TFLOP/s; "
        "8 to "
        f"a node. MFU {run['mfu']}%, goodput {run['goodput']}%.\n"
        f"           Activations, logits and buffers take {run['activations']} GB of the fullest device\n"
        f"trouble    {run['rate']:g} failures of the run a device and year; storage takes {run['storage']} GB/s; "
        f"to be done within {run['deadline']} days\n\n"
        "parameters      a number, within 1%\n"
        "steps           updates, within 0.1%\n"
        "flops           by 6ND, within 1%\n"
        "days            from first to last, goodput counted, within 2%\n"
        "state_gb        GB (1e9 bytes) of state on the fullest device, within 2%\n"
        "checkpoint_gb   GB of one checkpoint, within 2%\n"
        "cadence_minutes minutes of training between two checkpoints, within 10%\n"
        "risk            the letter of the one limit that is broken:\n"
        '                "A" memory: the fullest device needs more than is usable\n'
        '                "B" bubble: more than 10% of the time (idle / total)\n'
        '                "C" batch: a data-parallel rank has no sequence\n'
        '                "D" time: it is not done in those days\n'
        '                "E" failures: at the best cadence writing and lost work take over 10% of the time\n'
        '                "F" network: a tensor-parallel group is larger than a node\n'
        '                "G" shapes: the heads of queries do not divide into the tensor-parallel ranks'
    )


LIMITS = {
    "A": ("what does the fullest device hold, state and the rest, against what is usable?", "memory-is-always-it"),
    "B": ("how many micro-batches has a data-parallel rank, and how long does its pipeline wait?", "stages-wait"),
    "C": ("how many sequences has the batch, and how many ranks want one?", "batches-are-small"),
    "D": ("how many days does it take, and how many are there?", "time-is-short"),
    "E": (
        "how often does the run fail, how long does a write take, and what do both take at the best cadence?",
        "all-fails",
    ),
    "F": ("how many devices compute one sequence together, and how many has a node?", "networks-are-slow"),
    "G": ("how many heads of queries has each tensor-parallel rank?", "shapes-do-not-fit"),
}


def _wrong_risk(given: str) -> Wrong:
    text, rule = LIMITS[given]
    return Wrong(f"limit {given} is kept: {text}", rule)


def estimate_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """1% or 2%: three digits by hand; the cadence within 10%, Young's or Daly's."""
    run = configuration(returned["variant"])
    part, n, days, g = sizes(run), run["parameters"], run["days"], run["goodput"] / 100
    mean, cadence, devices = n / run["devices"], run["cadence_minutes"], run["devices"]
    mha = n + 2 * run["layers"] * run["width"] * run["head_dim"] * (run["heads"] - run["kv_heads"])
    two, one = n - run["layers"] * run["width"] * run["ffn"], n - part["head"]
    states = [
        (rule, _state(run, rule), text)
        for rule, text in (
            ("stages-are-equal", "that is the mean over the stages"),
            ("ends-hold-layers-alone", "which stages hold more than layers?"),
            ("zero1-shards-all", "what do the ranks share out here, and what not?"),
            ("nothing-is-shared", "what do the ranks share out here?"),
            ("fsdp-keeps-weights", "what do the ranks share out here?"),
            ("zero1-over-all-devices", "among whom is the optimizer shared out?"),
            ("gradients-in-16-bit", "how many bytes has a gradient here?"),
            ("forgets-the-master", "which three numbers has the optimizer for a parameter?"),
        )
    ]
    return judge_parts(
        returned,
        [
            Number("parameters", n, 0.01, (
                ("every-head-has-its-keys", mha, "how many heads do keys and values have?"),
                ("two-matrices", two, "gated: how many matrices has the feed-forward block?"),
                ("one-table-for-both", one, "not tied: how many tables?"),
                ("one-table-for-both", one - part["head"], "where are embedding and output layer?"),
            ), "embedding, layers (attention: four matrices; feed-forward: three), output layer"),
            Number("steps", run["steps"], 0.001, (
                ("a-rank-steps-alone", run["steps"] * run["data"], "how many sequences has one update, over all "
                    "ranks?"),
                ("a-sequence-is-a-step", run["steps"] * run["batch"], "those are sequences, not updates"),
            ), "how many tokens has one update?"),
            Number("flops", run["flops"], 0.01, (
                ("forward-is-all", run["flops"] / 3, "that is the forward pass"),
            ), "6, times N, times D"),
            Number("days", days, 0.02, (
                ("all-time-counts", days * g, "that is when nothing is lost"),
                ("goodput-shortens", days * g * g, "does lost time make it shorter?"),
                ("peak-is-reached", days * run["mfu"] / 100, "that is at the peak"),
                ("one-device-works", days * devices, "that is with one device"),
                ("only-data-ranks-work", days * devices / run["data"], "how many devices has the whole layout?"),
            ), "FLOPs, over what all devices reach in a day, over the goodput"),
            Number("state_gb", run["state_gb"], 0.02, (
                *states, ("nothing-twice", 18 * mean / 1e9, "that is all state over all devices. Is nothing held "
                    "twice?"),
            ), "which stage is the fullest, and which of its bytes are cut by what?"),
            Number("checkpoint_gb", run["checkpoint_gb"], 0.02, (
                ("weights-are-a-checkpoint", 2 * n / 1e9, "those are the weights. What else does the text name?"),
                ("gradients-are-saved", 18 * n / 1e9, "are gradients saved?"),
                ("forgets-the-master", 10 * n / 1e9, "and the master weights?"),
                ("forgets-the-master", 12 * n / 1e9, "and the weights that forward reads?"),
                ("every-rank-saves-all", 14 * n * run["data"] / 1e9, "how often is each number written?"),
                ("a-device-is-a-checkpoint", 14 * mean / 1e9, "that is one device's part"),
            ), "which bytes of a parameter does a checkpoint hold, of how many parameters?"),
            Number("cadence_minutes", cadence, 0.1, (
                ("one-device-alone", cadence * math.sqrt(devices), "how often does *some* device fail?"),
                ("all-work-is-lost", cadence / math.sqrt(2), "how much of an interval is lost by a failure, on "
                    "average?"),
                ("once-a-failure", run["mean"] / 60, "that is the mean time between failures"),
                ("as-long-as-it-takes", run["write"] / 60, "that is the time of a write"),
            ), "seconds of a write, seconds between two failures: what loses least?"),
            Letter("risk", run["risk"], "ABCDEFG", _wrong_risk),
        ],
        ESTIMATE.misconceptions,
    )  # fmt: skip


ESTIMATE = Exercise(
    id="capstone-estimate",
    title="Capstone: estimate",
    cases=one_case("your estimate"),
    run=answer_run,
    judge=estimate_judge,
    misconceptions={
        "every-head-has-its-keys": "every head of queries has keys and values of its own",
        "two-matrices": "a feed-forward block has two matrices, gated or not",
        "one-table-for-both": "embedding and output layer are one table, or none",
        "a-rank-steps-alone": "each data-parallel rank makes updates of its own",
        "a-sequence-is-a-step": "each sequence makes an update",
        "forward-is-all": "training costs one forward pass a token",
        "all-time-counts": "every hour that is paid for trains",
        "goodput-shortens": "goodput multiplies the time",
        "peak-is-reached": "devices compute at their peak",
        "one-device-works": "the time is that of one device",
        "only-data-ranks-work": "a data-parallel rank is a device",
        "stages-are-equal": "a pipeline divides the state evenly",
        "ends-hold-layers-alone": "embedding and head are small",
        "zero1-shards-all": "every stage of ZeRO shares out everything",
        "nothing-is-shared": "sharding changes who computes, not what is held",
        "fsdp-keeps-weights": "FSDP keeps the weights whole",
        "zero1-over-all-devices": "the optimizer is shared out among all devices",
        "gradients-in-16-bit": "gradients have the format of the weights",
        "forgets-the-master": "16-bit weights, or master weights, are all the weights there are",
        "nothing-twice": "the devices together hold the state once",
        "weights-are-a-checkpoint": "a checkpoint is the weights",
        "gradients-are-saved": "a checkpoint is all state of a step",
        "every-rank-saves-all": "every replica writes the whole model",
        "a-device-is-a-checkpoint": "a checkpoint is what one device holds",
        "one-device-alone": "a run fails as often as one device",
        "all-work-is-lost": "each failure loses a whole interval",
        "once-a-failure": "one checkpoint for each failure is enough",
        "as-long-as-it-takes": "the more often, the better",
        "memory-is-always-it": "what breaks a plan is memory",
        "stages-wait": "a pipeline always waits too long",
        "batches-are-small": "a batch never has enough sequences",
        "time-is-short": "a run is never done in time",
        "all-fails": "many devices always fail too often",
        "networks-are-slow": "tensor parallel always leaves the node",
        "shapes-do-not-fit": "heads never divide",
    },
)
