"""Reasoning exercise 09.5: can the next batch fill the bubble? Judged by the weights that its forwards would use."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.ch09_play import Named, needs, one_f_one_b, play
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["NEXT", "PLANS", "earliest", "next_batch", "next_text"]

PLANS = (
    (
        "C",
        "Rank {q} updates its weights right after its own last backward. From then on, while the ranks before it\n"
        "still compute backwards of this batch, it runs forwards of the next batch, in its bubble at the end.\n"
        "Rank 0 starts the next batch when it has updated its own weights.",
    ),
    (
        "A",
        "Each backward is cut in two: the gradient of the input at once, that of the weights when the rank has\n"
        "nothing else to do, at the latest right before the rank's own update.",
    ),
    (
        "B",
        "Wherever a rank waits in this step, it runs forwards of the next batch, as far as their input is there.\n"
        "Their backwards run in the next step, when all ranks have updated their weights.",
    ),
    (
        "C",
        "Gradients are clipped by the norm of all ranks' gradients of this batch. Rank {q} updates its weights, with\n"
        "gradients clipped so, right after its own last backward, and has the rest of the bubble for other work.",
    ),
    (
        "D",
        "Each backward is cut in two: the gradient of the input at once, that of the weights when the rank has\n"
        "nothing else to do. What is not done when the rank's last input gradient is, waits for the bubbles of the\n"
        "next step, and no update waits for it.",
    ),
    (
        "A",
        "Wherever a rank waits in this step, it runs forwards of a validation batch, as far as they fit, and none\n"
        "after its update. The validation loss is reported as that of the weights before this step's update.",
    ),
)
"""The right letter and the plan, variant by variant."""


def timeline(run: dict[str, Any], wait: Any = needs) -> dict[Named, int]:
    """When each action of 1F1B ends, then each rank's update, then one forward of the next batch on every rank."""
    lists = [[*items, ("U", 0), ("N", 0)] for items in one_f_one_b(run["ranks"], run["count"])]
    ends, stuck = play(lists, {"F": run["F"], "N": run["F"], "B": run["B"], "U": run["U"]}, wait)
    assert not stuck
    return ends


def earliest(run: dict[str, Any]) -> int:
    """When the first forward of the next batch can start on rank q."""
    return timeline(run)[run["q"], "N", 0] - run["F"]


def next_batch(variant: int) -> dict[str, Any]:
    """The numbers of a variant, with its plan and letter."""
    rng = variant_rng("next-batch", variant)
    ranks = int(rng.integers(4, 8))
    forward = int(rng.integers(4, 10))
    choice, plan = PLANS[variant % len(PLANS)]
    run = {
        "ranks": ranks,
        "count": ranks + int(rng.integers(2, 9)),
        "F": forward,
        "B": 2 * forward + int(rng.integers(1, 4)),
        "U": int(rng.integers(3, 9)),
        "q": int(rng.integers(2, ranks)),
    }
    return {**run, "plan": plan.format(**run), "choice": choice, "evidence": earliest(run)}


def next_text(variant: int) -> str:
    """What `question` prints."""
    run = next_batch(variant)
    ranks, count, forward, backward, update = (run[key] for key in ("ranks", "count", "F", "B", "U"))
    return (
        f"1F1B on {ranks} ranks, {count} micro-batches, one stage on each rank. A forward takes {forward} ms, a\n"
        f"backward {backward} ms, a rank's update {update} ms; sending takes no time. Unless the plan says otherwise,\n"
        "gradients are not clipped, and each rank updates its weights right after its own last backward and starts\n"
        "the next batch after that.\n\n"
        f"The plan:\n{run['plan']}\n\n"
        "What becomes of it? The model should be trained as without the plan: every forward and backward with the\n"
        "weights of its step, every update with all gradients of its batch.\n\n"
        'choice:   "A" it can be done, and trains as without it\n'
        '          "B" it can be done, and forwards that count use weights that lack an update\n'
        '          "C" it cannot be done: in that bubble, something that it waits for does not exist yet\n'
        '          "D" it can be done, and an update lacks gradients of its batch\n'
        "evidence: without the plan, when can the first forward of the next batch start on rank "
        f"{run['q']}, in ms from the start\n          of this step?"
    )


def next_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Letter and ms are exact: whole numbers. A wrong letter costs a try even beside the right ms: there are four."""
    form = wrong_form(returned, ("choice", "evidence"))
    if form is not None:
        return form
    run, choice, value = next_batch(int(returned["variant"])), returned["choice"], returned["evidence"]
    if choice is not None and (not isinstance(choice, str) or choice.strip().upper() not in list("ABCD")):
        return Wrong('`choice` is one letter in quotes, "A" to "D"', form=True)
    half = value is not None and math.isclose(value, run["evidence"], rel_tol=1e-9)
    if choice is None:
        return Wrong(f"`choice` is still empty{'; the evidence is right' if half else ''}", form=True)
    given = choice.strip().upper()
    if given != run["choice"]:
        wrong = _wrong_choice(int(returned["variant"]) % len(PLANS), given)
        before = "the evidence is right, the choice is not: " if half else ""
        return Wrong(before + wrong.message, wrong.misconception)
    if value is None:
        return Wrong("the choice is right; `evidence` is still empty", form=True)
    return None if half else _wrong_evidence(run, float(value))


ASKS = (
    ("from which rank does the input of such a forward come, and when is that rank done with this batch?",
     "the-own-update-is-enough"),
    ("which weights does the gradient of the weights need, and is it there when the update needs it?",
     "weight-gradients-are-late"),
    ("which weights do those forwards use, and which weights does the next step begin with?", "any-forward-fills"),
    ("what is that norm made of, and when does the last piece of it exist?", "the-norm-is-there"),
    ("which gradients has the update, at the moment at which it runs?", "an-update-can-wait"),
    ("of which weights is that loss to be? Which do these forwards use?", "nothing-fills"),
)  # fmt: skip
"""What to ask, plan by plan, and the misconception behind the nearest wrong letter."""

NEAREST = "ADAABB"
"""The letter behind which that misconception stands, plan by plan; another one has none, or one of its own."""


def _wrong_choice(plan: int, given: str) -> Wrong:
    message, belief = ASKS[plan]
    if given == NEAREST[plan]:
        return Wrong(message, belief)
    if given == "A" and PLANS[plan][0] in "BD":
        return Wrong(message, "a-full-timeline-is-a-right-one")
    if given == "D":
        return Wrong("which gradient of this batch comes after its rank's update in this plan?")
    if plan == 0 and given == "B":
        return Wrong(f"rank 0 does not start the next batch with old weights here: {message}")
    return Wrong(message)


def _wrong_evidence(run: dict[str, Any], value: float) -> Wrong:
    before, q = "the choice is right. ", run["q"]
    ends = timeline(run)
    one = {**run, "ranks": 1, "q": 0}
    guesses = {
        "the-own-update-is-enough": (
            ends[q, "U", 0],
            f"That is when rank {q} has updated. Where does its input come from?",
        ),
        "ranks-start-together": (
            ends[0, "U", 0],
            f"That is when rank 0 can start. How does its output get to rank {q}?",
        ),
        "an-update-takes-no-time": (earliest({**run, "U": 0}), "That is without the update. Who has to update before?"),
        "every-update-counts": (
            earliest(run) + q * run["U"],
            "The updates of later ranks do not stand in the way: when are they done?",
        ),
        "one-rank-is-the-step": (earliest(one), "That is how long a rank computes. When does it wait?"),
        "end": (earliest(run) + run["F"], "That is when the forward ends; its start is asked for"),
        "no update, own": (ends[q, "B", run["count"] - 1], f"That is when rank {q}'s last backward ends"),
        "no update": (ends[0, "B", run["count"] - 1], "That is when the last backward of all ends"),
        "from its update": (earliest(run) - ends[q, "U", 0], f"That is how long rank {q} waits after its update"),
        "seconds": (earliest(run) / 1000, "Those are seconds; ms are asked for"),
    }
    for rule, (guess, message) in guesses.items():
        if guess != run["evidence"] and math.isclose(value, guess, rel_tol=1e-9):
            return Wrong(before + message, rule if rule in NEXT.misconceptions else None, form=True)
    return Wrong(
        before + "The ms are not: which backward of this step ends last, on which rank, and what follows?", form=True
    )


NEXT = Exercise(
    id="next-batch",
    title="The next batch in the bubble",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=next_judge,
    misconceptions={
        "the-own-update-is-enough": "a rank that has updated its weights can go on with the next batch",
        "weight-gradients-are-late": "a weight gradient that is put off is of other weights, or misses the update",
        "any-forward-fills": "a forward may run whenever its rank is free",
        "the-norm-is-there": "a rank knows the norm of all gradients when it has its own",
        "an-update-can-wait": "a gradient that comes after the update is of old weights, and no more",
        "nothing-fills": "every forward before the update uses weights that are too old",
        "a-full-timeline-is-a-right-one": "a schedule without a bubble trains as one with it",
        "ranks-start-together": "all ranks start a batch at the same time",
        "an-update-takes-no-time": "the update is no part of the step",
        "every-update-counts": "the updates of the ranks follow one another",
        "one-rank-is-the-step": "a step is as long as one rank computes",
    },
)
