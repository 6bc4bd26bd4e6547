"""Check 15.6: how often to save. A simulation of failures decides, not a formula."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong
from course_lib.checks.smell import not_a_number, plain

__all__ = ["CADENCE", "mean_time", "simulated"]

YEAR = 365 * 86_400.0
DRAWS = 40_000
MARGIN = 1.03
FAR = 10.0


def mean_time(case: Case) -> float:
    """Seconds between two failures of the whole run, on average."""
    return YEAR / (case["failures_per_device_year"] * case["devices"])


def simulated(case: Case, interval: float) -> dict[str, float]:
    """A run that trains `interval` seconds, writes, and goes on, until something fails; then again from what was
    written. Over 40,000 failures: shares of the time between failures that were written away, and lost.

    The times between failures are drawn from an exponential distribution, one from each of as many equal slices of it,
    so that two intervals are compared on the same failures, and the noise is below 0.1% of what is lost.
    """
    rng = np.random.default_rng(1506)
    until = -mean_time(case) * np.log1p(-(np.arange(DRAWS) + rng.random(DRAWS)) / DRAWS)
    rounds = np.floor(until / (interval + case["write_seconds"]))
    everything, saved = until.sum(), rounds.sum() * interval
    written = rounds.sum() * case["write_seconds"] / everything
    return {"lost": 1 - saved / everything - written, "written": written, "both": 1 - saved / everything}


def best(case: Case) -> float:
    """The smallest share that any interval loses, tried one by one."""
    longest = 4 * mean_time(case)
    return min(simulated(case, one)["both"] for one in np.geomspace(case["write_seconds"] / 4, longest, 160))


def cadence_cases(seed: int) -> list[Case]:
    """Failures and writing times of very different runs; a restart that costs much, and one that costs nothing. The
    seed moves the best interval by up to a factor of 1.5, so that no table of six numbers will do."""
    rng = np.random.default_rng([seed, 1506])

    def case(name: str, write: float, rate: float, devices: int, restart: float) -> Case:
        more, often = np.exp(rng.uniform(-0.4, 0.4, 2)).tolist()
        given: Case = {"write_seconds": round(write * more, 1), "failures_per_device_year": round(rate * often, 3)}
        given["devices"] = devices
        return {"name": name, **given, "restart_seconds": restart}

    return [
        case("8 devices of a laboratory", 20.0, 0.5, 8, 120.0),
        case("1,024 devices", 60.0, 0.6, 1_024, 900.0),
        case("16,384 devices, as Llama 3 had", 40.0, 0.17, 16_384, 600.0),
        case("slow storage", 1_500.0, 0.3, 2_048, 600.0),
        case("a restart longer than the time between failures", 100.0, 2.0, 4_096, 9_000.0),
        case("one device that fails about every day", 5.0, 365.0, 1, 0.0),
    ]


def cadence_run(answer: Callable[..., Any], case: Case) -> Any:
    return plain(
        answer(case["write_seconds"], case["failures_per_device_year"], case["devices"], case["restart_seconds"])
    )


def guesses(case: Case) -> dict[str, tuple[float, str]]:
    """Misconception -> the seconds that it gives, and what to ask. After a "/", another way to the same one."""
    write, mean, devices = case["write_seconds"], mean_time(case), case["devices"]
    alone, restart = mean * devices, case["restart_seconds"]
    return {
        "one-device-alone": (math.sqrt(2 * write * alone), "how often does *some* device fail?"),
        "more-devices-fail-less": (math.sqrt(2 * write * alone * devices), "with more devices, which way does it go?"),
        "all-work-is-lost": (
            math.sqrt(write * mean),
            "when a failure comes, how much of an interval has been trained since the last write, on average?",
        ),
        "a-quarter-is-lost": (2 * math.sqrt(write * mean), "how much of an interval is lost, on average?"),
        "the-restart-counts": (
            math.sqrt(2 * write * (mean + restart)),
            "does saving more or less often change how long a restart takes?",
        ),
        "the-restart-counts/write": (
            math.sqrt(2 * (write + restart) * mean),
            "is a restart paid for at every write?",
        ),
        "once-a-failure": (mean, "how much is lost when the failure comes just before the write?"),
        "half-a-mean-time": (mean / 2, "what does that lose by each failure, and what would a write cost?"),
        "no-root": (2 * write * mean, "check the unit of your formula: seconds times seconds"),
        "as-long-as-it-takes": (write, "so half of the time is spent on writing"),
        "failures-a-year": (math.sqrt(2 * write / (case["failures_per_device_year"] * devices)), "in which unit is 1 "
            "/ rate?"),
        "a-day-is-a-year": (math.sqrt(2 * write * mean / 365), "how many seconds has a year?"),
    }  # fmt: skip


def cadence_judge(case: Case, returned: Any) -> Wrong | None:
    """What is lost may be 3% more than with the best interval: a quarter more or less in the interval, which is flat
    there. sqrt(2) is 6%, and is found."""
    form = not_a_number(returned)
    if form is not None:
        return Wrong(form.message, form=True)
    if not math.isfinite(returned) or returned <= 0:
        return Wrong(f"{returned:.4g} s is no time between two writes")
    found = simulated(case, returned)
    if found["both"] <= MARGIN * best(case):
        return None
    for factor, unit in ((60.0, "minutes"), (3600.0, "hours")):
        if abs(math.log(returned * factor / math.sqrt(2 * case["write_seconds"] * mean_time(case)))) < 0.03:
            mixed = ", or your formula mixes hours and seconds" if unit == "minutes" else ""
            return Wrong(f"{returned:.4g}: those are {unit}{mixed}; seconds are asked for")
    shares = (
        f"every {returned:.4g} s: {found['written']:.1%} of the time goes into writing and {found['lost']:.1%} into "
        "work "
        "that is lost"
    )
    for rule, (guess, text) in guesses(case).items():
        if math.isclose(returned, guess, rel_tol=2e-3):
            return Wrong(f"{shares}. {text[0].upper()}{text[1:]}", rule.split("/")[0])
    often = found["written"] > found["lost"]
    far = max(found["written"], found["lost"]) > FAR * min(found["written"], found["lost"])
    belief = ("safe-is-free" if often else "failures-are-rare") if far else None  # nearer it is a slip, no belief
    return Wrong(
        f"{shares}. Which of the two would a {'longer' if often else 'shorter'} interval make smaller?", belief
    )


CADENCE = Exercise(
    id="when-to-save",
    title="When to save",
    cases=cadence_cases,
    run=cadence_run,
    judge=cadence_judge,
    forbidden=("course_lib.planning", "course_lib.failures"),
    misconceptions={
        "one-device-alone": "a run fails as often as one device",
        "more-devices-fail-less": "devices back each other up",
        "all-work-is-lost": "each failure loses a whole interval",
        "a-quarter-is-lost": "each failure loses a quarter of an interval",
        "the-restart-counts": "a slow restart is a reason to save less often",
        "once-a-failure": "one checkpoint for each failure is enough",
        "half-a-mean-time": "twice for each failure is often enough, whatever a write costs",
        "no-root": "the interval grows with the time between failures, in proportion",
        "as-long-as-it-takes": "the more often, the better",
        "failures-a-year": "a rate a year is a rate a second",
        "a-day-is-a-year": "a year is a day",
        "safe-is-free": "writing costs nothing",
        "failures-are-rare": "a failure hardly ever comes",
    },
)
