"""Reasoning exercise 14.4: what was done about a NaN step, read from the log of a run that goes on; and what it cost.

The runs are real: a softmax regression with Adam, written out in numpy, whose one batch gives NaN.
"""

from functools import partial
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["SKIP", "past", "skip_text"]

WANTED = "CBEAD"
"""The right line, variant by variant."""
INPUTS, CLASSES, EXAMPLES = 12, 6, 24
SHOWN_BEFORE, BACK = 4, 5


def past(variant: int) -> dict[str, Any]:
    """The log's rows from shortly before the bad step on, the way taken, and the batches that nothing learned from."""
    rng, way = variant_rng("past-the-nan", variant), WANTED[variant % len(WANTED)]
    bad, after = int(rng.integers(14, 30)), int(rng.integers(9, 15))
    left_out = int(rng.integers(BACK + 2, BACK + 7)) if way == "E" else 0
    truth = rng.normal(size=(INPUTS, CLASSES))
    w, m, v, count, rows = np.zeros((INPUTS, CLASSES)), 0.0, 0.0, 0, []
    for step in range(bad + after):
        batch = step + (left_out if step >= bad - BACK else 0)
        data = np.random.default_rng([variant, batch, 14])
        x = data.normal(size=(EXAMPLES, INPUTS))
        labels = (x @ truth + data.gumbel(size=(EXAMPLES, CLASSES))).argmax(1)
        shown = x @ w
        chances = np.exp(shown - shown.max(1, keepdims=True))
        chances /= chances.sum(1, keepdims=True)
        loss = float(-np.log(chances[np.arange(EXAMPLES), labels]).mean())
        chances[np.arange(EXAMPLES), labels] -= 1
        gradient = x.T @ chances / EXAMPLES
        struck = step == bad and way in "ABC"  # otherwise the cause was mended, or the batch is not read
        if struck:
            loss, gradient = float("nan"), np.full_like(gradient, np.nan)
        before = w
        if not (struck and way == "A"):
            if struck and way == "B":
                gradient = np.zeros_like(gradient)
            count += 1
            m, v = 0.9 * m + 0.1 * gradient, 0.95 * v + 0.05 * gradient**2
            w = w - 0.05 * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.95**count)) + 1e-8)
            if way == "C":
                w = np.where(np.isfinite(w), w, before)  # put back from a copy
        rows.append((step, batch, loss, float(np.linalg.norm(w - before)), count))
    missed = {"A": 1, "B": 1, "C": after, "D": 0, "E": left_out}[way]
    return {"rows": rows[bad - BACK - SHOWN_BEFORE :], "bad": bad, "choice": way, "evidence": missed, "after": after}


def skip_text(variant: int) -> str:
    """What `question` prints."""
    run = past(variant)
    lines = [
        f"The batch of step {run['bad']} gave a NaN loss. The run went on.",
        "This is its log now; each step reads one batch.",
        "",
        "  step   batch    loss    weights moved   Adam's own count",
        *(
            f"  {step:4}   {batch:5}   {loss:5.3f}   {moved:13.4f}   {count:16}"
            for step, batch, loss, moved, count in run["rows"]
        ),
        "",
        '  "A" no update when the gradient is NaN; the schedule goes on',
        '  "B" NaN in the gradients is replaced by 0, and the update is made',
        '  "C" the update is made, and weights that became NaN are put back from a copy',
        f'  "D" back to the checkpoint of step {run["bad"] - BACK}, the cause mended, the same batches once more',
        f'  "E" back to the checkpoint of step {run["bad"] - BACK}, and some batches left out',
        "",
        "After a roll-back the log's rows were overwritten.",
        "",
        "choice:   the letter of what was done",
        "evidence: how many of the batches, from batch 0 to that of the last row, the weights have learned",
        "          nothing from. A whole number",
    ]
    return "\n".join(lines)


def skip_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: a letter and a count."""
    run = past(returned["variant"])
    return judge_choice(returned, run, "ABCDE", partial(_wrong_choice, run), partial(_wrong_number, run), rel_tol=1e-6)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    right = run["choice"]
    if right == "C" and given in "AB":
        return Wrong(
            f"{given}: what moves after the NaN step? And which loss changes by more than its batch?",
            "finite-is-healthy",
        )
    if (right, given) == ("B", "A"):
        return Wrong("A: how far do the weights move in that step, and does Adam count it?", "no-gradient-no-step")
    if (right, given) == ("A", "B"):
        return Wrong("B: with a gradient of 0, what would momentum do in that step?", "no-gradient-no-step")
    if given == "C":
        return Wrong("C: what would the moments be after that, and the weights move by?", "nan-is-over-when-it-is-gone")
    if right in "DE" and given in "AB":
        return Wrong(
            f"{given}: which row of the log would show it? Look at step {run['bad']}", "a-skip-leaves-no-trace"
        )
    if {right, given} == {"D", "E"}:
        return Wrong(f"{given}: compare the columns of steps and batches, row by row", "the-cursor-is-the-step")
    return Wrong(f"{given}: after a roll-back, would the log still hold the NaN?", "a-roll-back-leaves-the-nan")


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    right, before = run["choice"], "the choice is right, the number is not: "
    if right == "C" and value == 1:
        return Wrong(before + "what have the later batches done to the weights?", "finite-is-healthy", form=True)
    if right == "C" and abs(value - run["after"]) <= 1:
        return Wrong(before + "count once more: from the NaN step to the last row, both included", form=True)
    if right == "B" and value == 0:
        text = "the weights moved in that step, but by whose gradients?"
        return Wrong(before + text, "a-move-is-learning", form=True)
    if right == "A" and value == 0:
        return Wrong(before + "is the batch of that step read again?", "a-skip-leaves-no-trace", form=True)
    if right == "D":
        return Wrong(before + "which batch was not read again?", "a-roll-back-loses-work", form=True)
    if right == "E" and value == 1:
        return Wrong(before + "look at the batches' numbers at the roll-back", "only-the-bad-batch", form=True)
    if right == "E" and value in (run["evidence"] - 1, run["evidence"] + 1):
        return Wrong(before + "count the numbers that are missing in the column", form=True)
    return Wrong(before + "go through the batches one by one: which has an update with its gradient in it?", form=True)


SKIP = Exercise(
    id="past-the-nan",
    title="Past the NaN",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=skip_judge,
    misconceptions={
        "finite-is-healthy": "a run with a finite loss is healthy",
        "no-gradient-no-step": "without a gradient a step does nothing",
        "nan-is-over-when-it-is-gone": "a NaN that is no longer in the weights is over",
        "a-skip-leaves-no-trace": "a step that is left out is as if it had not been",
        "the-cursor-is-the-step": "the number of the step is that of its batch",
        "a-roll-back-leaves-the-nan": "after a roll-back the NaN is still in the history of the run",
        "a-move-is-learning": "where weights move something is learned",
        "a-roll-back-loses-work": "a roll-back loses batches",
        "only-the-bad-batch": "a roll-back leaves out the bad batch alone",
    },
)
