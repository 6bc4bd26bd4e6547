"""Checks of chapter 3, gradient accumulation: the size of a batch and the largest micro-batch that fits.

Code on a small model is in `ch03_accumulate` and `ch03_loops`, the reasoning exercise in `ch03_doubled`.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.ch02_gradients import number
from course_lib.checks.ch03_accumulate import UNEQUAL
from course_lib.checks.ch03_doubled import DOUBLED, doubled_text
from course_lib.checks.ch03_loops import CLIPPED, QUIET
from course_lib.checks.core import Case, Exercise, Wrong, ask, came, kind, make_check
from course_lib.checks.guard import is_stub

__all__ = ["EXERCISES", "check", "question"]

# --- 03.1 the size of a batch -----------------------------------------------------------------------------------------

PARTS = ("sequences", "tokens", "updates")


def size_cases(seed: int) -> list[Case]:
    """Each mistake first shows where no other gives its numbers."""
    rng = np.random.default_rng([seed, 301])

    def case(name: str, data: int, tensor: int, pipeline: int, context_parallel: int) -> Case:
        micro, steps, context = int(rng.integers(2, 5)), int(rng.integers(3, 8)), int(rng.choice([512, 1024]))
        tokens = data * micro * steps * context
        run = {
            "devices": data * tensor * pipeline * context_parallel,
            "tensor": tensor,
            "pipeline": pipeline,
            "context_parallel": context_parallel,
            "micro_batch": micro,
            "accumulation": steps,
            "context": context,
            "data_tokens": int(tokens * rng.integers(50, 90) + tokens * 3 // 5),
        }
        return {"name": name, "run": run}

    return [
        case("one device", 1, 1, 1, 1),
        case("8 devices, data parallel only", 8, 1, 1, 1),
        case("tensor, pipeline and context parallel together", 3, 2, 4, 3),
        case("16 devices, tensor parallel 4", 4, 4, 1, 1),
        case("32 devices, pipeline of 8", 4, 1, 8, 1),
        case("12 devices, context parallel 2", 6, 1, 1, 2),
    ]


def size_run(answer: Callable[..., Any], case: Case) -> Any:
    returned = answer(dict(case["run"]))
    if hasattr(returned, "tolist") and getattr(returned, "ndim", 0) == 1:  # an array or a tensor of three numbers
        returned = returned.tolist()
    if not isinstance(returned, tuple | list) or len(returned) != 3:
        return {"what": kind(returned)}
    return [number(value) for value in returned]


def _sizes(run: dict[str, int], rule: str = "") -> tuple[float, float, float]:
    """Sequences, tokens and updates: the right ones, and what each misconception would give."""
    data = run["devices"]
    shared = [part for part in ("tensor", "pipeline", "context_parallel") if rule != f"{part}-multiplies"]
    for part in shared if rule != "every-device-multiplies" else []:
        data //= run[part]
    if rule == "devices-share-one-batch":
        data = 1
    steps = 1 if rule == "accumulation-is-no-factor" else run["accumulation"]
    sequences = run["micro_batch"] * steps * data
    tokens = sequences * run["context"]
    updates = run["data_tokens"] / tokens
    return sequences, tokens, math.ceil(updates) if rule == "rounds-up" else math.floor(updates)


SIZE_HINTS = {
    "every-device-multiplies": "how many different sequences do two devices read that share one matrix?",
    "tensor-multiplies": "how many different sequences do two devices read that share one matrix?",
    "pipeline-multiplies": "the second stage of a pipeline reads what the first one hands on: are these new sequences?",
    "context_parallel-multiplies": "two context ranks hold the two halves of a sequence: how many sequences is that?",
    "devices-share-one-batch": "each data-parallel rank reads a part of its own. How many are there?",
    "accumulation-is-no-factor": "how many micro-batches has a device seen when it updates?",
    "rounds-up": "sequences and tokens are right. Is there enough data for that last update?",
}


def size_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact: all three are whole numbers. Oracle: the product over the ranks that read, written out."""
    if isinstance(returned, dict):
        return Wrong(f"return three numbers: sequences, tokens, updates; {returned['what']} came back", form=True)
    for name, value in zip(PARTS, returned, strict=True):
        if "number" not in value:
            return Wrong(f"{name}: a number is wanted; {came(value['type'])}", form=True)
    got = tuple(value["number"] for value in returned)
    right = _sizes(case["run"])
    if got == right:
        return None
    for rule, message in SIZE_HINTS.items():
        if got == _sizes(case["run"], rule) != right:
            name = rule.replace("context_parallel", "context")
            return Wrong(f"{got[0]:g} sequences an update, {got[2]:g} updates: {message}", name)
    if got[:2] == right[:2] and math.floor(got[2]) == right[2]:
        return Wrong("sequences and tokens are right; updates are whole, the rest of the data makes none")
    if sorted(got) == sorted(right):
        return Wrong("these are the right numbers in another order: sequences, tokens, updates", form=True)
    wrong = next(name for name, a, b in zip(PARTS, got, right, strict=True) if a != b)
    before = "; what comes before it is right" if wrong != PARTS[0] else ""
    return Wrong(f"the number of {wrong} is not that of this run{before}")


SIZE = Exercise(
    id="size-of-a-batch",
    title="The size of a batch",
    cases=size_cases,
    run=size_run,
    judge=size_judge,
    forbidden=("effective_batch", "updates_per_epoch", "world_size"),
    misconceptions={
        "every-device-multiplies": "the batch grows with every device",
        "tensor-multiplies": "tensor ranks read sequences of their own",
        "pipeline-multiplies": "pipeline stages read sequences of their own",
        "context-multiplies": "context ranks read sequences of their own",
        "devices-share-one-batch": "the batch does not depend on the devices",
        "accumulation-is-no-factor": "the batch is what goes through the model at once",
        "rounds-up": "what is left of the data makes an update too",
    },
)

# --- 03.6 the largest micro-batch that fits ---------------------------------------------------------------------------


def fit_cases(seed: int) -> list[Case]:
    """`limit`: the largest micro-batch that fits in memory; it mostly divides nothing."""
    rng = np.random.default_rng([seed, 306])

    def case(name: str, batch: int, ranks: int, limit: int) -> Case:
        return {"name": name, "batch": batch, "ranks": ranks, "limit": limit}

    return [
        case("24 sequences a rank", 96, 4, int(rng.integers(13, 24))),
        case("everything fits", 48, 2, 200),
        case("30 sequences a rank", 90, 3, int(rng.integers(17, 30))),
        case("a prime number of sequences a rank", 26, 2, int(rng.integers(2, 13))),
        case("only single sequences fit", 64, 4, 1),
        case("5,040 sequences on one rank", 5040, 1, int(rng.integers(422, 500))),
        case("the ranks do not divide the batch", 50, 4, 100),
        case("not even one sequence fits", 32, 2, 0),
    ]


def fit_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    tried: list[float] = []

    def fits(micro_batch: int) -> bool:
        tried.append(float(micro_batch))
        return bool(micro_batch <= case["limit"])

    try:
        returned = answer(fits, case["batch"], case["ranks"])
    except ValueError:
        return {"raised": True, "tried": tried}
    except (RuntimeError, AssertionError, ArithmeticError, LookupError) as error:
        if is_stub(error) or _best(case) is not None:
            raise
        return {"other": type(error).__name__, "tried": tried}
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        return {"what": kind(returned), "tried": tried}
    return {"plan": [number(value) for value in returned], "tried": tried}


def _divisors(count: int) -> list[int]:
    return [size for size in range(1, count + 1) if count % size == 0]


def _best(case: Case) -> tuple[int, int] | None:
    """The oracle tries every divisor: (micro-batch, accumulation), None where there is no plan."""
    if case["batch"] % case["ranks"]:
        return None
    share = case["batch"] // case["ranks"]
    sizes = [size for size in _divisors(share) if size <= case["limit"]]
    return (max(sizes), share // max(sizes)) if sizes else None


def fit_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact; tries at most what halving the sorted candidates needs."""
    right, tried = _best(case), returned["tried"]
    if any(size < 1 or not size.is_integer() for size in tried):
        return Wrong("`fits` was asked about a micro-batch that is not a whole number of at least 1")
    if right is None:
        if returned.get("raised") is True:
            return None
        if "other" in returned:
            return Wrong(
                f"there is no plan for this run: raise ValueError; your code ends with {returned['other']}", form=True
            )
        if "plan" not in returned:
            return Wrong(f"there is no plan for this run: raise ValueError; {returned['what']} came back", form=True)
        message = "there is no plan for this run, and yet one came back. What would a trainer do with it?"
        return Wrong(message, "no-plan-is-a-plan")
    if "raised" in returned:
        return Wrong("a ValueError, although there is a plan for this run")
    if "plan" not in returned:
        what = f"{returned['what']} came back"
        return Wrong(f"return two numbers: micro-batch and accumulation steps; {what}", form=True)
    if any("number" not in value for value in returned["plan"]):
        return Wrong("micro-batch and accumulation steps are numbers")
    micro, steps = (value["number"] for value in returned["plan"])
    if (micro, steps) != right:
        return _wrong_plan(case, micro, steps, right)
    share = case["batch"] // case["ranks"]
    allowed = math.ceil(math.log2(len(_divisors(share)) + 1))
    if len(tried) > allowed:
        message = f"the plan is right, but it took {len(tried)} tries, each a training step; {allowed} are enough"
        if len(tried) <= math.ceil(math.log2(share + 1)) and any(share % size for size in tried):
            return Wrong(f"{message}. Can every size that you asked about be the answer?")
        return Wrong(message, "tries-one-by-one")
    if not tried and case["limit"] < share:
        return Wrong("the plan is right, but memory was never asked")
    return None


def _wrong_plan(case: Case, micro: float, steps: float, right: tuple[int, int]) -> Wrong:
    batch, ranks, limit = case["batch"], case["ranks"], case["limit"]
    share = batch // ranks
    what = f"micro-batch {micro:g} x {steps:g} steps"
    if micro > limit:
        return Wrong(f"{what}: that micro-batch does not fit")
    if (steps, micro) == right and micro > 1:  # (1, share) is too small rather than turned around
        return Wrong("micro-batch first, accumulation steps second", form=True)
    if ranks > 1 and micro * steps == batch:
        return Wrong(f"{what} on each of {ranks} ranks: how many sequences is that?", "forgets-the-ranks")
    if micro * steps != share:
        return Wrong(f"{what} on each of {ranks} ranks are not {batch} sequences", "need-not-divide")
    powers = [size for size in _divisors(share) if size <= limit and size & (size - 1) == 0]
    smell = "powers-of-two-only" if micro == max(powers) and micro > 1 else None
    return Wrong(f"{what}: right in number, but a larger micro-batch fits too", smell)


FIT = Exercise(
    id="largest-micro-batch",
    title="The largest micro-batch that fits",
    cases=fit_cases,
    run=fit_run,
    judge=fit_judge,
    misconceptions={
        "need-not-divide": "the micro-batch is the largest that fits, whatever the batch",
        "powers-of-two-only": "a batch size is a power of two",
        "forgets-the-ranks": "each rank works on the whole batch",
        "no-plan-is-a-plan": "a plan can always be rounded into being",
        "tries-one-by-one": "trying costs nothing",
    },
)


def question(exercise: str, variant: int = 0) -> None:
    """Print the text of the reasoning exercise `accumulation-doubled` for a variant."""
    ask({"accumulation-doubled": doubled_text}, exercise, variant)


EXERCISES = [SIZE, UNEQUAL, QUIET, CLIPPED, DOUBLED, FIT]

check = make_check("03", EXERCISES)
