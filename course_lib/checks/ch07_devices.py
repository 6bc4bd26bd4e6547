"""Reasoning exercise 07.6: how many devices end a run in time, and whether one replica fits on each of them."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, kind, variant_rng
from course_lib.checks.smell import plain

__all__ = ["DEVICES", "devices", "devices_text"]

MEMORY, BYTES = 80e9, 16
"""Bytes of a device, and of weights, gradients, master weights and moments for each parameter."""


def _needs(run: dict[str, Any], *, flops: float = 6, utilisation: float | None = None) -> float:
    """Devices, not rounded: what the run computes, by what one device computes in the time that is given."""
    mine = run["peak"] * (run["utilisation"] if utilisation is None else utilisation) * run["days"] * 86400
    return float(flops * run["parameters"] * run["tokens"] / mine)


def devices(variant: int) -> dict[str, Any]:
    """The numbers of a variant with the right answers, each at least 6% away from where it would turn."""
    rng = variant_rng("one-device-is-not-enough", variant)
    wanted = "BCACB"[variant % 5]
    while True:
        run: dict[str, Any] = {
            "parameters": int(rng.integers(10, 130)) * 100_000_000,
            "tokens": int(rng.integers(2, 31)) * 50_000_000_000,
            "peak": float(rng.choice([312e12, 989e12])),
            "utilisation": float(rng.choice([0.35, 0.4, 0.45])),
            "days": int(rng.choice([10, 14, 21, 30])),
            "activations": int(rng.integers(4, 40)) * 1e9,
        }
        needs, state = _needs(run), BYTES * run["parameters"]
        total = state + run["activations"]
        run["choice"] = "A" if total <= MEMORY else "B" if state <= MEMORY else "C"
        run["devices"], run["evidence"] = math.ceil(needs), total / 1e9
        clear = all(abs(size / MEMORY - 1) > 0.06 for size in (state, total)) and 0.15 < needs % 1 < 0.85
        if run["choice"] == wanted and clear and 12 < needs < 400:
            return run


def devices_text(variant: int) -> str:
    """What `question` prints."""
    run = devices(variant)
    return (
        f"A model of {run['parameters'] / 1e9:g}e9 parameters is to be trained on {run['tokens'] / 1e9:g}e9 tokens,"
        f" in {run['days']} days.\n"
        f"A device computes {run['peak'] / 1e12:g}e12 FLOP/s at its peak; the run reaches {run['utilisation']:.0%}"
        " of it, on however many devices.\n"
        "A device has 80e9 bytes. AdamW with 16-bit weights and gradients, master weights and moments in FP32.\n"
        f"The activations of one sequence, the smallest micro-batch there is, take {run['activations'] / 1e9:g}e9 bytes"
        " between forward and backward.\n"
        "Leave DDP's buckets out: the gradients can be views of them.\n\n"
        "devices:  the smallest whole number of devices that ends in time, by 6ND\n"
        'choice:   in data parallel on that many devices: "A" it fits on every device;\n'
        '          "B" weights, gradients and optimizer state fit, but not together with the activations;\n'
        '          "C" weights, gradients and optimizer state alone do not fit\n'
        "evidence: GB (1e9 bytes) that one of these devices would have to hold, state and activations together"
    )


def devices_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Devices and letter exact, the GB within 0.06%. The numbers lie clear of every rounding."""
    form = wrong_form(returned, ("devices", "choice", "evidence"))
    if form is not None:
        return form
    run, number = devices(int(returned["variant"])), plain(returned["devices"])
    choice, value = returned["choice"], returned["evidence"]
    if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
        return Wrong(f"`devices` is one number, without quotes; yours is {kind(number)}", form=True)
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in ("A", "B", "C")):
        return Wrong('`choice` is one letter in quotes: "A", "B" or "C"', form=True)
    choice = None if choice is None else choice.strip().upper()
    if number is not None and number != run["devices"] and abs(number / _needs(run) - 1) < 2e-3 and number % 1:
        return Wrong("`devices` is a whole number, and the run has to end in time", form=True)
    right = {
        "devices": number == run["devices"],
        "choice": choice == run["choice"],
        "evidence": value is not None and math.isclose(value, run["evidence"], rel_tol=6e-4),
    }
    if all(right.values()):
        return None
    done = [f"`{key}`" for key, ok in right.items() if ok]
    before = f"{' and '.join(done)} {'is' if len(done) == 1 else 'are'} right. " if done else ""
    if value is not None and any(math.isclose(value, run["evidence"] * unit, rel_tol=6e-4) for unit in (1e3, 1e6, 1e9)):
        return Wrong(f"{before}`evidence`: in GB, 1e9 bytes", form=True)
    if value is not None and math.isclose(value, run["evidence"] * 1e9 / 2**30, rel_tol=6e-4):
        return Wrong(f"{before}`evidence`: those are GiB; 1 GB is 1e9 bytes", form=True)
    for key in ("devices", "choice", "evidence"):
        if not right[key] and returned[key] is None:
            return Wrong(f"{before}`{key}` is still empty", form=True)
    wrong = _first_wrong(run, number, choice, value, right)
    return Wrong(before + wrong.message, wrong.misconception, form=len(done) == 2)  # two of three right cost no variant


def _first_wrong(run: dict[str, Any], number: Any, choice: Any, value: Any, right: dict[str, bool]) -> Wrong:
    if not right["devices"]:
        for rule, (guess, message) in _device_guesses(run).items():
            if math.isclose(number, guess, rel_tol=1e-9) or number == math.ceil(guess) or number == round(guess, 2):
                return Wrong(f"`devices`: {message}", rule if rule in DEVICES.misconceptions else None)
        return Wrong(
            f"`devices`: {number:g} is not it. What is to be computed, and what does one device compute in that time?"
        )
    if not right["evidence"]:
        for rule, (guess, message) in _byte_guesses(run).items():
            if math.isclose(value, guess, rel_tol=6e-4):
                return Wrong(f"`evidence`: {message}", rule if rule in DEVICES.misconceptions else None)
        return Wrong(
            f"`evidence`: {value:.4g} GB is not what a device would hold. Which five things, of how many bytes?"
        )
    state = BYTES * run["parameters"] / 1e9
    if choice == "A":
        rule = "more-devices-hold-more" if run["choice"] == "C" else "state-is-all"
        return Wrong(
            "`choice`: compare a device's bytes with your evidence. Does a second replica make the first smaller?", rule
        )
    if choice == "C":
        return Wrong(
            f"`choice`: how large is the state alone, of these {run['evidence']:.1f} GB?", "large-models-never-fit"
        )
    if state * 1e9 > MEMORY:
        return Wrong("`choice`: is there room for the state alone?", "only-activations-count")
    return Wrong("`choice`: compare a device's bytes with your evidence", "large-models-never-fit")


def _device_guesses(run: dict[str, Any]) -> dict[str, tuple[float, str]]:
    needs = _needs(run)
    return {
        "rounds-down": (math.floor(needs), "with that many the run ends a little late"),
        "runs-at-its-peak": (_needs(run, utilisation=1), "that many at their peak. What does the run reach?"),
        "forward-only": (_needs(run, flops=2), "6ND: which two of the three passes over the matrices are missing?"),
        "backward-costs-one-forward": (
            _needs(run, flops=4),
            "how many matrix products has backward for one of forward?",
        ),
        "enough-memory-is-enough": (
            BYTES * run["parameters"] / MEMORY,
            "that many would hold the state once. The time decides how many are needed",
        ),
    }


def _byte_guesses(run: dict[str, Any]) -> dict[str, tuple[float, str]]:
    size, act, n = run["parameters"], run["activations"], run["devices"]
    return {
        "replicas-share": (
            (BYTES * size / n + act) / 1e9,
            "you divided the state by the devices. What does a replica hold?",
        ),
        "all-is-shared": (
            (BYTES * size + act) / n / 1e9,
            "you divided by the devices. What does each of them hold in data parallel?",
        ),
        "weights-are-all": (
            (2 * size + act) / 1e9,
            "those are the weights and activations. What else does training hold?",
        ),
        "no-master-weights": (
            (12 * size + act) / 1e9,
            "4 bytes a parameter are missing: who holds the weights in FP32?",
        ),
        "no-gradients": ((14 * size + act) / 1e9, "2 bytes a parameter are missing: what does the update need?"),
        "activations-left-out": (BYTES * size / 1e9, "that is the state. What else is on the device?"),
        "state-left-out": (act / 1e9, "those are the activations. What else is on the device?"),
        "buckets": ((20 * size + act) / 1e9, "DDP's buckets are in it: 4 bytes a parameter. They are not asked"),
        "buckets-16": ((18 * size + act) / 1e9, "DDP's buckets are in it: 2 bytes a parameter. They are not asked"),
    }


DEVICES = Exercise(
    id="one-device-is-not-enough",
    title="One device is not enough",
    cases=one_case("your devices, choice and evidence"),
    run=answer_run,
    judge=devices_judge,
    misconceptions={
        "rounds-down": "a part of a device more makes no difference",
        "runs-at-its-peak": "a device computes at its peak",
        "forward-only": "a token costs 2N",
        "backward-costs-one-forward": "backward costs as much as forward",
        "enough-memory-is-enough": "as many devices are needed as hold the model",
        "replicas-share": "data parallel divides the state among the devices",
        "all-is-shared": "data parallel divides everything among the devices",
        "weights-are-all": "a model in training needs as much memory as its weights",
        "no-master-weights": "16-bit weights are all the weights there are",
        "activations-left-out": "memory is the model's state",
        "state-left-out": "an out-of-memory is always about activations",
        "more-devices-hold-more": "with enough devices every model fits",
        "state-is-all": "when the state fits, the run fits",
        "only-activations-count": "what does not fit is always the activations",
        "large-models-never-fit": "large models do not fit into data parallel",
    },
)
