"""Check 09.6: the bytes that cross each boundary between stages when a model has long skip connections."""

from collections.abc import Callable
from itertools import takewhile
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, kind
from course_lib.checks.smell import nearly, plain, same

__all__ = ["SKIP", "crossings"]

Skips = list[tuple[int, int]]


def skip_cases(seed: int) -> list[Case]:
    """Where blocks and skips lie is fixed, so that each rule decides a case; the sizes follow the seed."""
    rng = np.random.default_rng([seed, 906])

    def case(name: str, stages: list[int], skips: Skips) -> Case:
        job = {
            "micro_batches": int(rng.integers(3, 12)),
            "tokens": int(rng.integers(1, 9)) * 1024,
            "width": int(rng.integers(3, 40)) * 128,
            "activation_bytes": 2,
            "gradient_bytes": 4,
        }
        return {"name": name, "stages": stages, "skips": skips, "job": job}

    four = [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    return [
        case("no skip, two stages", [0, 0, 1, 1], []),
        case("one skip, from the first stage to the last", four, [(0, 10)]),
        case("a skip within a stage", four, [(3, 5)]),
        case("a skip to the next stage", four, [(3, 7)]),
        case("two skips from different blocks", four, [(0, 8), (4, 11)]),
        case("two skips from the same block", four, [(1, 6), (1, 11)]),
        case("a skip from the last block of a stage", four, [(2, 9)]),
        case("stages of different sizes, skips of all kinds", [0, 1, 1, 1, 1, 2, 3, 3, 3],
             [(0, 6), (1, 4), (2, 7), (2, 8), (3, 5), (4, 8)]),
        case("one stage", [0, 0, 0, 0], [(0, 3)]),
    ]  # fmt: skip


def skip_run(answer: Callable[..., Any], case: Case) -> Any:
    rows = answer(case["stages"], case["skips"], case["job"])
    rows = rows.tolist() if hasattr(rows, "tolist") else rows
    if not isinstance(rows, (list, tuple)):
        return {"kind": kind(rows)}
    return [[plain(part) for part in row] if isinstance(row, (list, tuple)) else kind(row) for row in rows]


def crossings(stages: list[int], skips: Skips, mistake: str = "") -> list[int]:
    """How many tensors cross each boundary in a forward: each output is walked down to the blocks that use it."""
    if mistake == "blocks for stages":
        uses = [*skips, *((block, block + 1) for block in range(len(stages) - 1))]
        return [len({a for a, b in uses if a <= boundary < b}) for boundary in range(max(stages))]
    counts = [0] * max(stages)
    for block, stage in enumerate(stages):
        users = [b for a, b in skips if a == block]
        following = [block + 1] if block + 1 < len(stages) else []
        messages = [[*following, *users]]
        if mistake == "every-use-is-a-message":
            messages = [following, *([user] for user in users)]
        if mistake == "the-stream-is-another-tensor":
            messages = [following, users]
        if mistake == "skips-alone":
            messages = [users]
        if mistake in ("a-skip-jumps", "lands"):
            messages = [following]
            there = {stages[user] for user in users if stages[user] > stage}
            for boundary in {stage if mistake == "a-skip-jumps" else far - 1 for far in there}:
                counts[boundary] += not (boundary == stage and stages[block + 1] > stage)
        for message in messages:
            for boundary in range(stage, max((stages[user] for user in message), default=stage)):
                counts[boundary] += 1
    return counts


def _without(stages: list[int]) -> list[int]:
    return crossings(stages, [])


def _rows(counts: list[int], job: dict[str, int]) -> list[tuple[float, float]]:
    numbers = job["micro_batches"] * job["tokens"] * job["width"]
    return [(count * numbers * job["activation_bytes"], count * numbers * job["gradient_bytes"]) for count in counts]


def skip_judge(case: Case, returned: Any) -> Wrong | None:
    """Relative 1e-9: products of whole numbers. Oracle: each output is walked to the last stage that uses it."""
    stages, skips, job = case["stages"], [tuple(pair) for pair in case["skips"]], case["job"]
    count = max(stages)
    form = _form(returned, count)
    if form is not None:
        return form
    right = _rows(crossings(stages, skips), job)
    if _equal(returned, right):
        return None
    earlier = [*takewhile(lambda other: other["name"] != case["name"], skip_cases(0))]
    for rule, (guess, message) in _guesses(stages, skips, job).items():
        unseen = not any(_shows(rule, other) for other in earlier)  # else it would have failed before
        if unseen and not _equal(guess, right) and _equal(returned, guess):
            return Wrong(message, rule if rule in SKIP.misconceptions else None)
    return _first(stages, returned, right, job)


def _form(returned: Any, count: int) -> Wrong | None:
    if isinstance(returned, dict):
        if returned["kind"] == "nothing":
            return Wrong("nothing came back. Does the function end in a `return`?", form=True)
        return Wrong(f"a list of pairs is wanted, one for each boundary; {returned['kind']} came back", form=True)
    if not isinstance(returned, list):
        return Wrong(f"a list of pairs is wanted, one for each boundary; {kind(returned)} came back", form=True)
    if len(returned) != count:
        return Wrong(f"{count + 1} stages have {count} boundaries; {len(returned)} rows came back", form=True)
    for row in returned:
        if not isinstance(row, list) or len(row) != 2:
            return Wrong(f"each entry is a pair (forward, backward); one of yours is {row!r}", form=True)
        if any(isinstance(n, bool) or not isinstance(n, int | float) for n in row):
            return Wrong(f"bytes are numbers; one of your pairs is {row!r}", form=True)
    return None


def _equal(a: Any, b: Any) -> bool:
    return all(same(x, y, 1e-9) for one, two in zip(a, b, strict=True) for x, y in zip(one, two, strict=True))


def _guesses(stages: list[int], skips: Skips, job: dict[str, int]) -> dict[str, tuple[Any, str]]:
    """Mistake -> the rows that it gives, and what to ask of it."""
    right = _rows(crossings(stages, skips), job)
    walk = lambda mistake: _rows(crossings(stages, skips, mistake), job)
    every = [row if a == 0 else (a + b, a + b) for row in right for a, b in [row]]
    touched = [
        n + sum(1 for a, b in skips if stages[a] == stages[b] == s) for s, n in enumerate(crossings(stages, skips))
    ]
    return {
        "a-skip-costs-nothing": (
            _rows(_without(stages), job),
            "those are the bytes without skips. How does a skip's output get to the block that uses it?",
        ),
        "a-skip-jumps": (
            walk("a-skip-jumps"),
            "a skip was counted at the boundary where it starts alone. Who hands it on?",
        ),
        "blocks for stages": (
            walk("blocks for stages"),
            "the number of a block was compared with that of a boundary. Which stage is block a on?",
        ),
        "lands": (walk("lands"), "a skip was counted at the last boundary alone. How does it get there?"),
        "every-use-is-a-message": (
            walk("every-use-is-a-message"),
            "an output that several blocks use was counted once for each. How often does a stage need it?",
        ),
        "the-stream-is-another-tensor": (
            walk("the-stream-is-another-tensor"),
            "the output of a stage's last block was counted twice at its boundary. What crosses there anyway?",
        ),
        "skips-alone": (
            walk("skips-alone"),
            "the model's own stream is missing: what does every block give to the next one?",
        ),
        "a-skip-within-a-stage-travels": (
            _rows(touched, job),
            "a skip whose two ends are on one stage was counted. Which boundary does it cross?",
        ),
        "once-a-step": (
            [(a / job["micro_batches"], b / job["micro_batches"]) for a, b in right],
            "that is for one micro-batch of the step",
        ),
        "backward-sends-nothing": ([(a, 0) for a, _ in right], "what crosses a boundary in backward?"),
        "gradients-of-the-stream-alone": (
            [(a, b) for (a, _), (_, b) in zip(right, _rows(_without(stages), job), strict=True)],
            "forward is right. In backward, the gradient of a skip is missing: which way does it go?",
        ),
        "gradients-do-not-add-up": (
            [(a, b) for (a, _), (_, b) in zip(right, walk("every-use-is-a-message"), strict=True)],
            "forward is right. In backward, an output that several blocks use has several gradients: "
            "how many does its block need?",
        ),
        "one-format-for-all": (
            [(a, a) for a, _ in right],
            "gradients do not have the format of activations here",
        ),
        "the other way": ([(b, a) for a, b in right], "forward and backward are the wrong way round"),
        "both": (every, "forward and backward are asked for one by one"),
        "numbers": (
            [(a / job["activation_bytes"], b / job["gradient_bytes"]) for a, b in right],
            "those are numbers; how many bytes has one?",
        ),
        "reversed": (right[::-1], "the boundaries are in the opposite order"),
    }


def _shows(rule: str, case: Case) -> bool:
    """Whether a mistake gives other bytes than the right ones in this case."""
    stages, skips, job = case["stages"], case["skips"], case["job"]
    return not _equal(_guesses(stages, skips, job)[rule][0], _rows(crossings(stages, skips), job))


def _first(stages: list[int], returned: Any, right: Any, job: dict[str, int]) -> Wrong:
    """The first boundary that is off, in tensors."""
    one = job["micro_batches"] * job["tokens"] * job["width"]
    for boundary, (got, want) in enumerate(zip(returned, right, strict=True)):
        for way, mine, wanted, size in zip(
            ("forward", "backward"), got, want, ("activation_bytes", "gradient_bytes"), strict=True
        ):
            close = nearly(mine, wanted)
            if close:
                return Wrong(f"boundary {boundary}, {way}: {close}")
            if not same(mine, wanted, 1e-9):
                tensors = mine / (one * job[size])
                message = f"boundary {boundary}, {way}: {mine:.6g} bytes, those of {tensors:.4g} tensors a micro-batch"
                if not same(tensors, round(tensors), 1e-9):
                    ask = "Which factor is missing or too much: micro-batches, tokens, width, bytes of a number?"
                    return Wrong(f"{message}, no whole number. {ask}")
                return Wrong(f"{message}. Which blocks up to there have an output that is used behind it?")
    return Wrong("the bytes are not right")


SKIP = Exercise(
    id="long-skip",
    title="What a long skip costs",
    cases=skip_cases,
    run=skip_run,
    judge=skip_judge,
    forbidden=("course_lib.planning", "course_lib.parallel"),
    misconceptions={
        "a-skip-costs-nothing": "a skip connection is free, because it computes nothing",
        "a-skip-jumps": "a skip goes from its first stage straight to its last",
        "every-use-is-a-message": "an output travels once for every block that uses it",
        "the-stream-is-another-tensor": "a skip travels beside the stream, even where it is the stream",
        "skips-alone": "where a model has skips, only these cross",
        "a-skip-within-a-stage-travels": "every skip costs traffic",
        "once-a-step": "a boundary is crossed once a step",
        "backward-sends-nothing": "only activations travel",
        "gradients-of-the-stream-alone": "a skip has no backward",
        "gradients-do-not-add-up": "each use of an output sends its own gradient back",
        "one-format-for-all": "gradients travel in the format of activations",
    },
)
