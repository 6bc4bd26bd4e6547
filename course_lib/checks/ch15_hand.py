"""Reasoning exercises 15.1 and 15.3: FLOPs by hand, and device-hours, days and goodput, in both directions."""

from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.ch15_parts import Number, judge_parts
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["HAND", "HOURS", "hand", "hand_text", "hours", "hours_text"]

DAY = 86_400.0
PEAKS = (("A100", 312), ("H100", 989), ("B200", 2250))
"""Dense BF16 TFLOP/s of the data sheets."""

# --- 15.1 by hand -----------------------------------------------------------------------------------------------------


def hand(variant: int) -> dict[str, Any]:
    """A model, a text and some devices. Variant 0 is the claim's 1B x 100B; of three variants one is a mixture of
    experts, and one reads its text more than once."""
    rng = variant_rng("one-billion-by-hand", variant)
    name, peak = PEAKS[int(rng.integers(3))] if variant else PEAKS[1]
    run: dict[str, Any] = {
        "all": 1.0,
        "active": 1.0,
        "text": 100.0,
        "epochs": 1,
        "devices": 8,
        "mfu": 40,
        "device": name,
        "peak": peak,
    }
    if variant:
        run["all"] = run["active"] = float(rng.choice([0.4, 1.5, 3, 7, 13, 34]))
        run["text"] = float(rng.choice([60, 150, 300, 1_000]))
        run["devices"], run["mfu"] = int(rng.choice([8, 16, 64, 256])), int(rng.choice([32, 35, 42, 48]))
    if variant % 3 == 1:
        run["active"], run["all"] = ((1.3, 6.9), (13.0, 47.0), (22.0, 235.0))[int(rng.integers(3))]
    if variant % 3 == 2:
        run["epochs"] = int(rng.choice([7, 5, 4]))  # not 2 or 3: a forgotten factor of 6ND looks like one of those
    run["flops"] = 6 * run["active"] * 1e9 * run["text"] * 1e9 * run["epochs"]
    run["days"] = run["flops"] / (run["devices"] * run["peak"] * 1e12 * run["mfu"] / 100) / DAY
    return run


def hand_text(variant: int) -> str:
    """What `question` prints."""
    run = hand(variant)
    model = f"A dense model of {run['all']:g}B parameters"
    if run["active"] != run["all"]:
        model = f"A mixture of experts: {run['all']:g}B parameters, of which each token visits {run['active']:g}B,"
    times = "once" if run["epochs"] == 1 else f"{run['epochs']} times"
    return (
        f"{model} reads a text of {run['text']:g}B tokens {times}.\n"
        f"There are {run['devices']} devices ({run['device']}), each with a peak of {run['peak']} TFLOP/s, and the run "
        f"reaches an MFU of {run['mfu']}%.\n\n"
        "flops: FLOPs of the whole training by the rule of thumb, such as 1.2e21, within 1%\n"
        "days:  how many days it takes, when nothing breaks, within 2%"
    )


def hand_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """1% and 2%: two or three digits by hand."""
    run = hand(returned["variant"])
    flops, days, mfu = run["flops"], run["days"], run["mfu"] / 100
    n, d = run["active"] * 1e9, run["text"] * 1e9 * run["epochs"]
    return judge_parts(
        returned,
        [
            Number(
                "flops",
                flops,
                0.01,
                (
                    ("forward-is-all", 2 * n * d, "that is the forward pass. What does backward cost beside it?"),
                    ("backward-costs-as-forward", 4 * n * d, "backward makes two products for each of forward's"),
                    ("a-product-is-one-flop", 3 * n * d, "a multiply and an add are two FLOPs"),
                    ("all-experts-count", 6 * run["all"] * 1e9 * d, "how many parameters does one token meet?"),
                    ("a-text-counts-once", flops / run["epochs"], "how many tokens does the run read, all in all?"),
                ),
                "which number a parameter and token, times which N, times which D?",
            ),
            Number(
                "days",
                days,
                0.02,
                (
                    ("peak-is-reached", days * mfu, "that is at the peak. What share of it does the run reach?"),
                    ("mfu-shortens", days * mfu**2, "a lower MFU makes a run longer, not shorter"),
                    ("one-device-works", days * run["devices"], "how many devices share the work?"),
                    ("per-day-is-per-hour", days * 24, "those are hours"),
                ),
                "FLOPs, divided by what all devices reach in a second, and then seconds into days",
            ),
        ],
        HAND.misconceptions,
    )


HAND = Exercise(
    id="one-billion-by-hand",
    title="1B x 100B by hand",
    cases=one_case("your two numbers"),
    run=answer_run,
    judge=hand_judge,
    misconceptions={
        "forward-is-all": "training costs one forward pass a token",
        "backward-costs-as-forward": "backward costs as much as forward",
        "a-product-is-one-flop": "a multiply-add is one FLOP",
        "all-experts-count": "every parameter of a mixture works for every token",
        "a-text-counts-once": "reading a text again is free",
        "peak-is-reached": "devices compute at their peak",
        "mfu-shortens": "utilisation multiplies the time",
        "one-device-works": "the time is that of one device",
        "per-day-is-per-hour": "a day has one hour",
    },
)

# --- 15.3 hours of devices --------------------------------------------------------------------------------------------


def hours(variant: int) -> dict[str, Any]:
    """A run to plan, and a run that is over. Odd variants log TFLOP/s with recomputation, even ones an MFU."""
    rng = variant_rng("hours-of-devices", variant)
    name, peak = PEAKS[int(rng.integers(2))]
    plan: dict[str, Any] = {
        "parameters": float(rng.choice([3, 8, 13, 30, 70])),
        "tokens": float(rng.choice([0.4, 1.0, 2.0, 6.0])),
        "devices": int(rng.choice([128, 256, 512, 1_024])),
        "device": name,
        "peak": peak,
        "mfu": int(rng.choice([36, 41, 45])),
        "goodput": int(rng.choice([78, 84, 88, 93])),
    }
    over: dict[str, Any] = {
        "parameters": float(rng.choice([7, 12, 40, 65])),
        "tokens": float(rng.choice([0.3, 0.6, 1.4])),
        "mfu": int(rng.choice([34, 39, 44])),
        "recomputes": variant % 2 == 1,
    }
    true_goodput = int(rng.integers(62, 90)) / 100
    while not _apart(true_goodput, plan["goodput"] / 100, over["recomputes"]):
        true_goodput = int(rng.integers(62, 90)) / 100
    useful = 6 * over["parameters"] * 1e9 * over["tokens"] * 1e12
    device_hours = useful / (312e12 * over["mfu"] / 100) / 3600 / true_goodput
    over["hours"] = round(device_hours, -3 if device_hours > 3e5 else -2)
    over["log"] = round(312 * over["mfu"] / 100 * 8 / 6, 1)  # TFLOP/s of the log, with the second forward pass
    rate = over["log"] * 6 / 8 if over["recomputes"] else 312 * over["mfu"] / 100
    flops = 6 * plan["parameters"] * 1e9 * plan["tokens"] * 1e12
    steady = flops / (plan["peak"] * 1e12 * plan["mfu"] / 100) / 3600
    return {
        "plan": plan,
        "over": over,
        "steady": steady,
        "device_hours": steady / (plan["goodput"] / 100),
        "days": steady / (plan["goodput"] / 100) / plan["devices"] / 24,
        "goodput": useful / (rate * 1e12 * over["hours"] * 3600),
        "rate": rate,
    }


def _apart(goodput: float, planned: float, recomputes: bool) -> bool:
    """Whether three mistakes give three numbers: the plan's goodput, recomputation counted twice (4/3 of what is
    right), and the ratio upside down."""
    twice = 4 / 3 * goodput if recomputes else goodput
    return min(abs(goodput - planned), abs(twice - planned)) > 0.03 and abs(twice * goodput - 1) > 0.05


def hours_text(variant: int) -> str:
    """What `question` prints."""
    run = hours(variant)
    plan, over = run["plan"], run["over"]
    log = f"its log says an MFU of {over['mfu']}% while it computes"
    if over["recomputes"]:
        log = (
            f"its log says {over['log']:g} TFLOP/s a device while it computes. Every block was computed a second time\n"
            "for backward, and the log counts that work"
        )
    return (
        f"A plan: {plan['parameters']:g}B parameters, dense, {plan['tokens']:g}T tokens, {plan['devices']:,} devices "
        f"({plan['device']}, peak {plan['peak']} TFLOP/s).\n"
        f"While it computes it reaches an MFU of {plan['mfu']}%; its goodput is {plan['goodput']}%: so much of the "
        "time is spent on steps\nthat count. The rest is restarts, work done again, and waiting.\n\n"
        f"A run that is over: {over['parameters']:g}B parameters, dense, {over['tokens']:g}T tokens, on A100 (peak 312 "
        f"TFLOP/s). It was billed\n{over['hours']:,.0f} device-hours, and {log}.\n\n"
        "device_hours: of the plan, from its first second to its last, within 2%\n"
        "days:         of the plan, within 2%\n"
        "goodput:      of the run that is over, as a fraction such as 0.95, within 0.01"
    )


def hours_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """2%: three digits by hand; the goodput within 0.01 of about 0.75."""
    run = hours(returned["variant"])
    plan, over = run["plan"], run["over"]
    g, m = plan["goodput"] / 100, plan["mfu"] / 100
    right, days, goodput = run["device_hours"], run["days"], run["goodput"]
    log = over["log"] if over["recomputes"] else 312 * over["mfu"] / 100
    return judge_parts(
        returned,
        [
            Number(
                "device_hours",
                right,
                0.02,
                (
                    ("all-time-counts", right * g, "that is the time of the steps that count. What else is billed?"),
                    ("goodput-shortens", right * g * g, "does time that is lost make the bill smaller?"),
                    ("peak-is-reached", right * m, "that is at the peak"),
                    ("peak-is-reached", right * m * g, "that is at the peak, and nothing is lost"),
                    (
                        "devices-divide-twice",
                        right / plan["devices"],
                        "those are hours of the clock; each device bills",
                    ),
                ),
                "useful FLOPs, divided by what one device reaches in an hour, and by the share of time that counts",
            ),
            Number(
                "days",
                days,
                0.02,
                (
                    ("all-time-counts", days * g, "when nothing is lost it takes so long"),
                    ("goodput-shortens", days * g * g, "does time that is lost make it shorter?"),
                    ("one-device-works", days * plan["devices"], "that is with one device"),
                ),
                "the device-hours, shared by all devices, in days",
            ),
            Number(
                "goodput",
                goodput,
                0.01 / goodput,
                (
                    ("mfu-of-the-bill", goodput * run["rate"] / 312, "that is the MFU over all that was billed"),
                    ("upside-down", 1 / goodput, "that is above 1: which one is the larger time?"),
                    ("one-goodput-for-all", g, "that is the plan's. What do this run's own bill and log say?"),
                    ("recomputed-work-is-progress", goodput * run["rate"] / log, "does the log count 6ND?"),
                    ("recompute-counts-twice", goodput * log / run["rate"], "6ND on one side, what on the other?"),
                ),
                "hours that the useful work takes at the speed of the log, over the hours that were billed",
            ),
        ],
        HOURS.misconceptions,
    )


HOURS = Exercise(
    id="hours-of-devices",
    title="Device-hours, days, goodput",
    cases=one_case("your three numbers"),
    run=answer_run,
    judge=hours_judge,
    misconceptions={
        "all-time-counts": "every hour that is paid for trains",
        "goodput-shortens": "goodput multiplies the time",
        "peak-is-reached": "devices compute at their peak",
        "devices-divide-twice": "device-hours are hours",
        "one-device-works": "the time is that of one device",
        "mfu-of-the-bill": "MFU and goodput are one number",
        "one-goodput-for-all": "goodput is a constant of all runs",
        "upside-down": "a ratio is a ratio, either way",
        "recomputed-work-is-progress": "FLOPs of a log are FLOPs of the model",
        "recompute-counts-twice": "recomputation makes the model larger",
    },
)
