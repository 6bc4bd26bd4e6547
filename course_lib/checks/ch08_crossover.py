"""Check 08.6, the crossover: from how many devices on communication takes longer than computing, tried one by one."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind
from course_lib.checks.smell import nearly, not_a_number, plain, same

__all__ = ["CROSSOVER"]

Job = dict[str, int]
COUNTS = (1, 2, 5, 64, 1000)
"""Device counts at which the shares are compared."""


def crossover_cases(seed: int) -> list[Case]:
    """Where the crossing lies is fixed for each case, the sizes follow the seed. Two jobs differ in the model alone."""
    rng = np.random.default_rng([seed, 806])

    def job(low: float, high: float, sequences: float, passes: int = 3) -> Job:
        """One in which 1 + `low` to 1 + `high` devices communicate as long as they compute."""
        while True:
            tokens = int((sequence := int(rng.choice([2048, 4096, 8192]))) * sequences)
            flops, at = int(rng.integers(10, 90)) * 10**13, float(rng.uniform(low, high))
            found: Job = {
                "parameters": int(rng.integers(1, 70)) * 10**9,
                "tokens": tokens,
                "sequence": sequence,
                "flops": flops,
                "bandwidth": round(at * passes * flops / (3 * tokens) / 10**7) * 10**7,
                "passes": passes,
            }
            exact = 3 * tokens * found["bandwidth"] / (passes * flops)
            if low <= exact <= high and abs(exact - round(exact)) > 0.05:
                return found

    first = job(300, 500, 4096)
    # powers of two, so that float64 too has equal times at 8 devices; nine whole sequences
    even = {"parameters": 2**33, "tokens": 7 * 2**12, "sequence": 3000, "flops": 2**48, "bandwidth": 2**36}
    jobs = {
        "two devices cross already": job(0.3, 0.8, 256),
        "three passes, plenty of sequences": first,
        "the same job with a ten times larger model": first | {"parameters": 10 * first["parameters"]},
        "two passes": job(130, 250, 2048, 2),
        "the crossing lies beyond the last sequence": job(600, 1000, 512),
        "the last sequence is not whole": job(7.1, 7.9, 8.625),  # crosses at 9 devices, and 8 sequences are whole
        "exactly as long at 8 devices": even | {"passes": 3},
    }
    return [{"name": name, "job": found} for name, found in jobs.items()]


def crossover_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("share", "crossover")):
        raise WrongForm(f'hand in {{"share": share, "crossover": crossover}}, two functions; yours is {kind(answer)}')
    shares = [plain(answer["share"](case["job"], devices)) for devices in COUNTS]
    if None in shares:  # crossover may use share, and would fail for another reason
        return {"shares": shares, "crossover": None}
    return {"shares": shares, "crossover": plain(answer["crossover"](case["job"]))}


# The job, tried with one device after the other, in exact fractions.


def _seconds(job: Job, devices: int, rule: str = "") -> tuple[Fraction, Fraction]:
    """Seconds of computing and of communication on each device. `rule` makes one mistake."""
    flops = (2 if rule == "forward-is-the-step" else 6) * job["parameters"] * job["tokens"]
    width = {"a-number-is-a-byte": 1, "numbers-travel-in-fp32": 4}.get(rule, 2)
    passes = 3 if rule == "always-three-passes" else job["passes"]
    passes = passes if rule != "gradients-travel-in-fp32" else passes + 1  # one of them with twice the bytes
    share = Fraction(devices - 1, devices)
    if rule == "everything-travels":
        share = Fraction(1)
    if rule == "more-devices-more-to-send":
        share = Fraction(devices - 1)
    if rule == "only-a-shard-travels":
        share = Fraction(1, devices)
    compute = Fraction(flops, job["flops"] * (1 if rule == "the-work-is-not-divided" else devices))
    if rule == "whole-sequences-only":
        sequences = Fraction(job["tokens"], job["sequence"])
        compute = math.ceil(sequences / devices) / sequences * Fraction(flops, job["flops"])
    return compute, passes * width * job["parameters"] * share / job["bandwidth"]


def _first(job: Job, rule: str = "") -> int | None:
    """The first number of devices, no more than sequences, that communicate longer than they compute."""
    for devices in range(1, job["tokens"] // job["sequence"] + 1):
        if rule == "powers-of-two" and devices & (devices - 1):
            continue
        compute, communicate = _seconds(job, devices, rule)
        if communicate > compute or (rule == "as-long-is-longer" and communicate == compute):
            return devices
    return None


SHARE_RULES = {
    "forward-is-the-step": "computing takes a third of what it should. What does a step do besides forward?",
    "a-number-is-a-byte": "communication takes half of what it should. How many bytes has a number here?",
    "numbers-travel-in-fp32": "communication takes twice as long as it should. How many bytes has a number here?",
    "whole-sequences-only": "a device computes whole sequences in yours; in this model the work is divided evenly",
    "always-three-passes": "how many times does the model travel in this job?",
    "gradients-travel-in-fp32": "one pass has 4 bytes a number in yours. How many has it here?",
    "everything-travels": "of what travels round a ring, a device does not send all. Try it with one device",
    "more-devices-more-to-send": "what a device sends grows with the number of devices in yours. Can a ring do better?",
    "only-a-shard-travels": "a device sends one shard in yours. How often does it pass on what it received?",
    "the-work-is-not-divided": "computing takes as long on many devices as on one in yours",
}


def crossover_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Shares within 1e-6 (float64 against fractions), the number of devices exact. Oracle: `_first`."""
    job = case["job"]
    for devices, share in zip(COUNTS, returned["shares"], strict=True):
        wrong = _wrong_share(job, devices, share, returned["shares"])
        if wrong is not None:
            return wrong
    return _wrong_count(job, returned["crossover"])


def _share(job: Job, devices: int, rule: str = "") -> float:
    compute, communicate = _seconds(job, devices, rule)
    return float(compute / max(compute, communicate))


def _wrong_share(job: Job, devices: int, share: Any, shares: list[Any]) -> Wrong | None:
    form = not_a_number(share)
    where = f"share(job, {devices})"
    if form is not None:
        return Wrong(f"{where}: {form.message}", form=True)
    right = _share(job, devices)
    if same(share, right, 1e-6):
        return None
    for rule, hint in SHARE_RULES.items():
        if all(_number(s) and same(s, _share(job, n, rule), 1e-6) for n, s in zip(COUNTS, shares, strict=True)):
            return Wrong(f"{where} is {share:.4g}: {hint}", rule)
    compute, communicate = (float(part) for part in _seconds(job, devices))
    if same(share, compute / (compute + communicate), 1e-6):
        message = f"{where} is {share:.4g}: that is one after the other, and here the two overlap completely"
        return Wrong(message, "one-after-the-other")
    if communicate and same(share, compute / communicate, 1e-6):
        return Wrong(f"{where} is {share:.4g}. How long is a step in which computing takes longer?", "more-than-all")
    if _number(share) and share > 1 and same(1 / share, right, 1e-6):
        return Wrong(f"{where} is {share:.4g}; a share is at most 1. Which of the two times is divided by which?")
    if same(share, 100 * right, 1e-6):
        return Wrong(f"{where} is {share:.4g}; a share is a number from 0 to 1, not in percent", form=True)
    if communicate and same(share, communicate / max(compute, communicate), 1e-6):
        return Wrong(f"{where} is {share:.4g}: that is the share of the step in which it communicates")
    close = nearly(share, right)
    if close:
        return Wrong(f"{where} is {close}")
    return Wrong(f"{where} is {share:.4g}. Write down both times of one device, in seconds, then the longer of them")


def _number(value: Any) -> bool:
    return not_a_number(value) is None


def _wrong_count(job: Job, count: Any) -> Wrong | None:
    right, most = _first(job), job["tokens"] // job["sequence"]
    if count is None and right is None:
        return None
    before = "the shares are right. "
    if count is None:
        message = f"{before}crossover(job) gave None (or nothing), and there is a crossing among the first {most}"
        return Wrong(message, "there-is-no-crossing")
    if not _number(count) or count != int(count) or count < 1:
        text = f"{count:g}" if _number(count) else kind(count)
        return Wrong(f"{before}crossover(job) is a whole number from 1, or None; yours is {text}", form=True)
    if count == right:
        return None
    if right is None and count > most:
        message = f"{before}With {count:g} devices, how many of the {most} sequences has each?"
        if job["tokens"] % job["sequence"] and count == most + 1:
            message = f"{before}{count:g} devices want {count:g} sequences. Is the last one of this batch whole?"
        return Wrong(message, "forgets-the-floor")
    if count == most:
        message = f"{before}At {count:g} devices the sequences end. Is it the first past the crossing?"
        return Wrong(message, "the-floor-is-the-crossing")
    if right is not None and count == _first(job, "powers-of-two"):
        message = f"{before}{count:g} is past the crossing. Is a number between two of yours past it too?"
        return Wrong(message, "powers-of-two")
    if count == _first(job, "as-long-is-longer"):
        message = f"{before}At {count:g} devices both take equally long; one has to take longer"
        return Wrong(message, "as-long-is-longer")
    compute, communicate = _seconds(job, int(count))
    text = "is past the crossing, and not the first" if communicate > compute else "is not past the crossing"
    if right is not None and count == right - 1:
        text += ": one more is the first that is"
    return Wrong(f"{before}{count:g} {text}. Your own share() can tell you")


CROSSOVER = Exercise(
    id="crossover",
    title="Where communication takes over",
    cases=crossover_cases,
    run=crossover_run,
    judge=crossover_judge,
    forbidden=("course_lib.planning", "course_lib.parallel"),
    misconceptions={
        "forward-is-the-step": "a step costs 2 FLOPs a parameter and token",
        "a-number-is-a-byte": "numbers and bytes are the same",
        "numbers-travel-in-fp32": "the weights and gradients that travel have 4 bytes, always",
        "gradients-travel-in-fp32": "gradients are reduced in FP32, always",
        "whole-sequences-only": "a cost model divides the work no finer than a device does",
        "always-three-passes": "FSDP always sends three times the model",
        "everything-travels": "each device sends the whole model",
        "more-devices-more-to-send": "what a device sends grows with the number of devices",
        "only-a-shard-travels": "a device sends its shard, and that is all",
        "the-work-is-not-divided": "at a fixed batch each device keeps its work",
        "one-after-the-other": "computing and communication never overlap",
        "more-than-all": "faster communication makes computing more than the whole step",
        "there-is-no-crossing": "communication always hides behind computing",
        "forgets-the-floor": "a device can compute less than a sequence",
        "the-floor-is-the-crossing": "communication takes over where the sequences end",
        "powers-of-two": "numbers of devices are powers of two",
        "as-long-is-longer": "equal is past the crossing",
    },
)
