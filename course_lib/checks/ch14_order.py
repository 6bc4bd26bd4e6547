"""Reasoning exercise 14.1: which checks, in which order, for a symptom; and what that order costs on average."""

import math
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case, wrong_form
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ORDER", "order_text", "suspects"]

DATA, NUMERICS, OPTIMIZER, SYSTEM, OUT, RESTART = range(6)
LINES = {
    DATA: (
        "compare the targets of a batch with its inputs",
        "read the text of the last steps' batches",
        "count the tokens that the loss averages over, and those of padding",
        "hash the batches, and look for some that came before",
        "change later tokens, and watch the logits before them",
        "compare the words of each step's batch with those of the whole text",
    ),
    NUMERICS: (
        "count the weights that an update changes, in the format in which they are kept",
        "compare the logits of a batch with those of the same weights in FP64",
        "compute a logged gradient norm once more in FP32",
        "add up the loss of a batch once more in FP32",
    ),
    OPTIMIZER: (
        "compare the moments after the last resume with the checkpoint's",
        "find the farthest step of a single weight, in learning rates",
        "train the first steps again at a tenth of the learning rate",
    ),
    SYSTEM: (
        "compare the checksums of the weights over the ranks",
        "replay one step on another device, and compare bit by bit",
        "run one known product on every device, and compare the results",
    ),
    OUT: (
        "measure what is still held after a step",
        "time how long a step waits for its batch",
        "time each rank's own computing",
        "compare the learning rate after the resume with the schedule",
        "read the log of the loss scale",
    ),
    RESTART: ("start the run again from its beginning, same code and data",),
}
SYMPTOMS = (
    "The loss of a run has stopped falling, well above that of an earlier run.",
    "Since a resume the loss of a run is a little higher than before, and stays there.",
    "Loss and held-out loss of a run are both lower than anybody expected.",
    "The loss of a run rises now and then, and comes back after some steps.",
)
COUNTS = ((2, 1, 1, 1), (2, 2, 1, 1), (3, 1, 1, 1), (2, 1, 2, 1), (1, 2, 2, 1), (2, 2, 1, 2))


def suspects(variant: int) -> dict[str, Any]:
    """Lines by letter (text, kind, minutes), the order wanted, and the mean minutes until the fault is found."""
    rng = variant_rng("order-of-suspicion", variant)
    while True:
        chosen = [(kind, str(text)) for kind, n in enumerate(COUNTS[variant % 6]) for text in _draw(rng, kind, n)]
        chosen += [(OUT, text) for text in _draw(rng, OUT, 1)] + [(RESTART, LINES[RESTART][0])]
        minutes = [int(one) for one in 5 * rng.choice(range(1, 10), len(chosen), replace=False)]
        minutes[-1] = 240
        lines = {
            "ABCDEFGHIJ"[place]: (chosen[k][1], chosen[k][0], minutes[k])
            for place, k in enumerate(rng.permutation(len(chosen)))
        }
        real = [letter for letter, (_, kind, _) in lines.items() if kind < OUT]
        order = sorted(real, key=lambda letter: lines[letter][1:])
        by_letter = sorted(real, key=lambda letter: lines[letter][1])
        cheap = sorted(real, key=lambda letter: lines[letter][2])
        if by_letter != order and cheap[0] != order[0]:  # neither the print's order within a kind nor price alone
            return {"lines": lines, "order": "".join(order), "evidence": mean_minutes(lines, order)}


def _draw(rng: Any, kind: int, n: int) -> list[str]:
    return [str(one) for one in rng.choice(LINES[kind], n, replace=False)]


def mean_minutes(lines: dict[str, tuple[str, int, int]], order: Any) -> float:
    """Each check is as likely as the others to be the one that shows the fault; it counts when it has been made."""
    spent, total = 0, 0
    for letter in order:
        spent += lines[letter][2]
        total += spent
    return total / len(order)


def order_text(variant: int) -> str:
    """What `question` prints."""
    found = suspects(variant)
    lines = [
        SYMPTOMS[variant % len(SYMPTOMS)],
        "Time a step, memory, learning rate and loss scale are as ever.",
        "",
        "       minutes   check",
        *(f'  "{letter}" {minutes:6}     {text}' for letter, (text, _, minutes) in found["lines"].items()),
        "",
        'order:    letters of the checks that you would make, first one first, such as "CAB": in the order of',
        "          suspicion, within a kind the cheap ones first; without what cannot be the cause here, and",
        "          without what measures nothing. Only the dashboards that are as ever rule a check out, not",
        "          the symptom; a learning rate that is as ever may be too high from the start. What a resume",
        "          does to the moments counts as optimizer",
        "evidence: the mean minutes until the fault is found, in that order, when each of its checks is as likely",
        "          as the others to be the one that shows it. Checks are made one after the other.",
        "          Within 0.5",
    ]
    return "\n".join(lines)


def order_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The order exact; the minutes within 0.5, since one may round them to whole ones."""
    form = wrong_form(returned, ("order", "evidence"))
    if form is not None:
        return form
    run, given, value = suspects(returned["variant"]), returned["order"], returned["evidence"]
    lines, right = run["lines"], run["order"]
    fits = value is not None and math.isclose(value, run["evidence"], abs_tol=0.5)
    if given is None:
        return Wrong("`order` is still empty", form=True)
    letters = "".join(map(str, given)) if isinstance(given, list | tuple) else str(given)
    letters = "".join(one for one in letters.upper() if one.isalnum())
    if not letters or not set(letters) <= set(lines) or len(set(letters)) != len(letters):
        return Wrong(f'`order` holds letters from "A" to "{max(lines)}" in quotes, each once at most', form=True)
    wrong = None if letters == right else _wrong_order(letters, run)
    if wrong is not None:
        return Wrong(wrong.message, wrong.misconception, form=fits)
    if value is None:
        return Wrong("the order is right; `evidence` is still empty", form=True)
    return None if fits else _wrong_minutes(float(value), run)


def _wrong_order(letters: str, run: dict[str, Any]) -> Wrong:
    lines, right = run["lines"], run["order"]
    kinds = [lines[one][1] for one in letters]
    if RESTART in kinds:
        return Wrong("a line of your order measures nothing, and costs more than all the others", "restart-first")
    if OUT in kinds:
        one = letters[kinds.index(OUT)]
        return Wrong(f"{one}: on which dashboard would its fault show, and what does that one do?", "check-everything")
    missing = [one for one in right if one not in letters]
    if missing:
        text = f"{len(missing)} check(s) less than wanted. Can a fault of each kind move the loss?"
        return Wrong(text, "the-system-moves-no-loss" if {lines[one][1] for one in missing} == {SYSTEM} else None)
    if list(letters) == sorted(right, key=lambda one: lines[one][2]):
        return Wrong("that is by price alone. Which way do faults flow through a step?", "cheapest-first")
    if kinds == sorted(kinds):
        return Wrong("the kinds are in order; within one of them a dear check comes early", "cost-does-not-matter")
    place = next(n for n, (a, b) in enumerate(zip(letters, right, strict=True)) if lines[a][1] != lines[b][1])
    text = f"{letters[place]} comes too early: what lies upstream of it is not cleared yet"
    if kinds == sorted(kinds, reverse=True):
        return Wrong(text, "from-the-machine-up")
    return Wrong(text, "a-symptom-shows-its-cause")


def _wrong_minutes(value: float, run: dict[str, Any]) -> Wrong:
    minutes = [run["lines"][one][2] for one in run["order"]]
    guesses = {
        "the-last-one-it-is": (sum(minutes), "that is when all have been made. Is the fault always the last?"),
        "checks-before-cost-nothing": (sum(minutes) / len(minutes), "what was spent on the checks before it?"),
        "found-before-it-is-looked": (
            run["evidence"] - sum(minutes) / len(minutes),
            "the check that shows it has to be made, too",
        ),
        "half-of-all": (sum(minutes) / 2, "that would be so if all cost the same and could stop half-way"),
    }
    before = "the order is right, the minutes are not: "
    for rule, (guess, text) in guesses.items():
        if math.isclose(value, guess, abs_tol=0.1) and not math.isclose(guess, run["evidence"], abs_tol=1):
            return Wrong(before + text, rule, form=True)
    return Wrong(before + "for each check, what has been spent when it is done? Then the mean of those", form=True)


ORDER = Exercise(
    id="order-of-suspicion",
    title="The order of suspicion",
    cases=one_case("your order and evidence"),
    run=answer_run,
    judge=order_judge,
    misconceptions={
        "restart-first": "a restart is a check",
        "check-everything": "every check may help",
        "the-system-moves-no-loss": "a fault of the machine never moves a number of the training",
        "cheapest-first": "the cheapest check comes first, whatever it is about",
        "cost-does-not-matter": "within a kind any order is as good",
        "from-the-machine-up": "the machine is to be cleared before what runs on it",
        "a-symptom-shows-its-cause": "where a symptom shows, there is its cause",
        "the-last-one-it-is": "the fault is found when all checks have been made",
        "checks-before-cost-nothing": "only the check that finds it costs something",
        "found-before-it-is-looked": "the check that finds it costs nothing",
        "half-of-all": "on average half of the checks are made",
    },
)
