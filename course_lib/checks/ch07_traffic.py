"""Reasoning exercise 07.4: what one rank sends for an update, counted on paper before it is measured.

The oracle passes chunks round a ring, step after step, as often as DDP synchronises; it has no formula for either.
"""

import math
from itertools import pairwise
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng
from course_lib.checks.smell import plain

__all__ = ["LOOPS", "TRAFFIC", "synchronised", "traffic", "traffic_text"]

MODELS = [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
"""Parameters of the four GPT-2 models, tied embeddings counted once."""

LOOPS = {
    "plain": """\
for i, (tokens, targets) in enumerate(micro_batches):
    loss = share_of_loss(ddp(tokens), targets)
    loss.backward()
optimizer.step()""",
    "last": """\
for i, (tokens, targets) in enumerate(micro_batches):
    with ddp.no_sync() if i < len(micro_batches) - 1 else nullcontext():
        loss = share_of_loss(ddp(tokens), targets)
        loss.backward()
optimizer.step()""",
    "late": """\
for i, (tokens, targets) in enumerate(micro_batches):
    loss = share_of_loss(ddp(tokens), targets)
    with ddp.no_sync() if i < len(micro_batches) - 1 else nullcontext():
        loss.backward()
optimizer.step()""",
    "second": """\
for i, (tokens, targets) in enumerate(micro_batches):
    with ddp.no_sync() if i % 2 == 0 else nullcontext():
        loss = share_of_loss(ddp(tokens), targets)
        loss.backward()
optimizer.step()""",
}
ORDER = ("last", "late", "second", "plain")
"""The loop of variant 0, 1, ..."""

WIRE = {"FP32": 4, "BF16": 2}


def synchronised(loop: str, micro_batches: int) -> int:
    """In how many micro-batches DDP reduces: what its flag says when forward runs, micro-batch by micro-batch."""
    count = 0
    for i in range(micro_batches):
        inside = {"plain": False, "late": False, "last": i < micro_batches - 1, "second": i % 2 == 0}[loop]
        count += not inside
    return count


def _ring_sends(elements: int, ranks: int) -> int:
    """Elements that rank 0 sends in one all-reduce: chunks are handed on until all ranks have all sums."""
    sizes = [len(range(chunk, elements, ranks)) for chunk in range(ranks)]
    hand = [((rank - 1) % ranks, 1) for rank in range(ranks)]  # (chunk, ranks it has been at, in both rounds)
    sent = 0
    while any(visits < 2 * ranks - 1 for _, visits in hand):
        sent += sizes[hand[0][0]]
        hand = [(chunk, visits + 1) for chunk, visits in (hand[-1], *hand[:-1])]
    return sent


def traffic(variant: int) -> dict[str, Any]:
    """The numbers of a variant, and what they give; no two ways of counting give the same."""
    rng = variant_rng("count-the-traffic", variant)
    while True:
        run: dict[str, Any] = {
            "loop": ORDER[variant % len(ORDER)],
            "parameters": MODELS[int(rng.integers(len(MODELS)))],
            "ranks": int(rng.choice([5, 6, 8, 12])),
            "micro_batches": int(rng.choice([4, 6, 8, 10])),
            "wire": "FP32" if variant % 3 == 2 else "BF16",
        }
        run["count"] = synchronised(run["loop"], run["micro_batches"])
        run["elements"] = run["count"] * _ring_sends(run["parameters"], run["ranks"])
        run["evidence"] = run["elements"] * WIRE[run["wire"]] / 1e9
        values = sorted([run["elements"], *(value for value, _ in _element_guesses(run).values())])
        if all(b > 1.005 * a for a, b in pairwise(values)):
            return run


def traffic_text(variant: int) -> str:
    """What `question` prints."""
    run = traffic(variant)
    hook = (
        ""
        if run["wire"] == "FP32"
        else "ddp.register_comm_hook(None, bf16_compress_hook)   # gradients travel in BF16\n"
    )
    size = f"# {run['parameters']:,} parameters in FP32, {run['ranks']} ranks"
    lines = f"ddp = DistributedDataParallel(model)   {size}\n{hook}{LOOPS[run['loop']]}"
    body = "\n".join(f"    {line}" for line in lines.splitlines())
    return (
        f"One update of this loop, with {run['micro_batches']} micro-batches on each rank:\n\n"
        f"{body}\n\n"
        "All-reduces are rings. Whether the gradients come out right is not asked, only what goes over the wire.\n\n"
        "elements: how many numbers one rank sends for this update, in all its messages together\n"
        "evidence: the same in GB (1e9 bytes)\n"
        "both to four digits; 1.234e9 is a number too"
    )


def traffic_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Both within 0.06%: four digits; chunks differ by one element, which is far below that."""
    form = wrong_form(returned, ("elements", "evidence"))
    if form is not None:
        return form
    run = traffic(int(returned["variant"]))
    elements, value = plain(returned["elements"]), returned["evidence"]
    if elements is None:
        return Wrong("`elements` is still empty", form=True)
    if isinstance(elements, bool) or not isinstance(elements, int | float):
        return Wrong(f"`elements` is one number, without quotes; yours is {kind(elements)}", form=True)
    if not _fits(elements, run["elements"]):
        if value is not None and _fits(value, run["elements"]) and _fits(elements, run["evidence"]):
            return Wrong("swapped? `elements` counts numbers, `evidence` is in GB", form=True)
        if value is not None and _fits(value, run["evidence"]):
            width = WIRE[run["wire"]]
            text = f"`evidence` is right. How many numbers are that, when one has {width} bytes on this wire?"
            return Wrong(text, form=_fits(elements, run["elements"] * width))
        for rule, (guess, message) in _element_guesses(run).items():
            if _fits(elements, guess) and not _fits(guess, run["elements"]):
                return Wrong(message, rule if rule in TRAFFIC.misconceptions else None)
        if abs(elements / run["elements"] - 1) < 4e-3:
            return Wrong("`elements` is nearly right: to four digits", form=True)
        return Wrong(
            f"{elements:.4g} numbers are not what one rank sends. How often, how many steps, how large a chunk?"
        )
    if value is None:
        return Wrong("`elements` is right; `evidence` is still empty", form=True)
    if _fits(value, run["evidence"]):
        return None
    bytes_of = {name: run["elements"] * size / 1e9 for name, size in WIRE.items()}
    other = bytes_of["FP32" if run["wire"] == "BF16" else "BF16"]
    if _fits(value, other):
        return Wrong("`elements` is right; how many bytes has a number on this wire?", "a-number-has-four-bytes")
    if _fits(value, run["evidence"] * 1e9 / 2**30):
        return Wrong("`elements` is right; those are GiB, 1 GB is 1e9 bytes", form=True)
    if any(_fits(value, run["evidence"] * factor) for factor in (1e3, 1e6, 1e9)):
        return Wrong("`elements` is right; evidence is in GB, 1e9 bytes", form=True)
    if abs(value / run["evidence"] - 1) < 6e-3:
        return Wrong("`elements` is right; `evidence` nearly: to four digits", form=True)
    return Wrong(f"`elements` is right; {value:.4g} GB is not what they weigh")


def _fits(value: float, wanted: float) -> bool:
    return math.isclose(value, wanted, rel_tol=6e-4)


def _element_guesses(run: dict[str, Any]) -> dict[str, tuple[float, str]]:
    """Misconception -> the elements it gives, and the message."""
    size, n, m, count = run["parameters"], run["ranks"], run["micro_batches"], run["count"]
    once = _ring_sends(size, n)
    guesses = {
        "all-reduce-passes-once": (count * once / 2, "this is a ring's first half. How do the sums reach every rank?"),
        "whole-buffers": (count * 2 * size, "in how many steps of how large a chunk does a ring do it? Count them"),
        "one-buffer": (
            count * size,
            "each number leaves a rank more than once: when it is summed, and when the sum goes on",
        ),
        "sends-to-everyone": (
            count * (n - 1) * size,
            "this is what a rank sends that gives its whole buffer to each other one",
        ),
        "all-ranks-together": (count * once * n, "this is what all ranks send together; one rank's is asked for"),
        "a-chunk": (count * once / (2 * n - 2), "this is one step of the ring. How many are there?"),
    }
    if run["loop"] == "late":
        text = "where does DDP look at its flag, in forward or in backward? And where in this loop is `no_sync`?"
        guesses["no-sync-around-backward"] = (once, text)
    text = "go through the micro-batches one by one: in which of them does DDP send?"
    others = {1: "an-update-sends-once", m: "every-backward-sends", m - 1: "all-but-one"}
    if run["loop"] == "late":
        del others[1]
    return guesses | {name: (wrong * once, text) for wrong, name in others.items() if wrong != count}


TRAFFIC = Exercise(
    id="count-the-traffic",
    title="Count the traffic",
    cases=one_case("your elements and evidence"),
    run=answer_run,
    judge=traffic_judge,
    misconceptions={
        "all-reduce-passes-once": "an all-reduce sends every number once",
        "whole-buffers": "in a ring each rank sends its whole buffer, twice",
        "one-buffer": "an all-reduce costs as much as sending the buffer",
        "sends-to-everyone": "each rank sends its gradients to every other rank",
        "all-ranks-together": "traffic per rank and traffic in total are the same number",
        "no-sync-around-backward": "gradients are sent in backward, so `no_sync` belongs around backward",
        "every-backward-sends": "every backward under DDP sends",
        "an-update-sends-once": "DDP knows which micro-batch is the last",
        "a-number-has-four-bytes": "what is kept in FP32 travels in FP32, or what is computed in BF16 in BF16",
    },
)
