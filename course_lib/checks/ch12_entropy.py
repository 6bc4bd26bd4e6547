"""Reasoning exercise 12.5: a loss below the entropy of its source. Which line explains it, and how many bits are it?"""

import math
from functools import partial
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ENTROPY", "below", "below_text"]

WANTED = "BDACBA"
"""The right line, variant by variant. The second B is small, and many standard errors; the second A looks large."""
SOURCES = "012021101202"
"""The source, variant by variant: none goes with one line alone. Where all tokens are alike, a loss has no chance in it
that puts it below the entropy: not with "A"."""
LN2 = math.log(2)
CLOSE = 3e-4
"""Bits: losses are printed to 1e-5, and an entropy that was rounded to four digits passes."""
ROUNDED = 5e-5
"""Bits: half of the fourth decimal."""


def _source(rng: Any, number: int) -> tuple[list[str], float, float]:
    """What the source does, its entropy in nats a token, and that of tokens that are all alike."""
    V = int(rng.choice([12, 16, 24, 32]))
    if number % 3 == 0:
        return [f"each of {V} tokens is as likely as any other, whatever came before"], math.log(V), math.log(V)
    if number % 3 == 1:
        p = round(float(rng.uniform(0.3, 0.6)), 2)
        again, other = p + (1 - p) / V, (1 - p) / V
        text = [
            f"with probability {p} a token is the one before it once more; else it is drawn from",
            f"all {V} tokens alike, of which the one before is one",
        ]
        return text, -again * math.log(again) - (V - 1) * other * math.log(other), math.log(V)
    text = [
        f"there are {V} tokens. After each of them come four that are fixed for it, with the",
        "probabilities 1/2, 1/4, 1/8 and 1/8",
    ]
    return text, 1.75 * LN2, math.log(V)


def below(variant: int) -> dict[str, Any]:
    """The numbers of a variant, losses in nats a token."""
    rng, kind = variant_rng("below-entropy", variant), WANTED[variant % len(WANTED)]
    text, entropy, uniform = _source(rng, int(SOURCES[variant % len(SOURCES)]))
    small, loud = variant % len(WANTED) == 4, variant % len(WANTED) == 5
    tokens = 1_000_000 if small else 4_000 if loud else int(rng.choice([100_000, 200_000, 400_000]))
    error = round(float(rng.uniform(0.5, 0.8)) / math.sqrt(tokens), 5)
    pad = int(rng.integers(10, 22)) if kind == "D" or loud else int(rng.integers(3, 9))
    leak = float(rng.uniform(0.012, 0.02) if small else rng.uniform(0.04, 0.09)) if kind == "B" else 0.0
    by_one = entropy + float(rng.uniform(0.02, 0.09)) if kind == "B" else 0.0
    at_once = {
        "A": entropy - float(rng.uniform(0.4, 0.9)) * error,
        "B": entropy - leak,
        "C": entropy + float(rng.uniform(0.08, 0.2)),
        "D": (entropy + float(rng.uniform(0.002, 0.006))) * (1 - pad / 100),
    }[kind]
    train = entropy - float(rng.uniform(0.15, 0.4)) if kind == "C" else at_once + float(rng.uniform(0.0002, 0.002))
    return {
        "source": text,
        "entropy": entropy,
        "uniform": uniform,
        "train": round(train, 5),
        "at_once": round(at_once, 5),
        "by_one": round(by_one or at_once, 5),
        "error": error,
        "tokens": tokens,
        "pad": pad,
        "choice": kind,
        "evidence": (entropy - round(at_once, 5)) / LN2,
    }


def below_text(variant: int) -> str:
    """What `question` prints."""
    run = below(variant)
    lines = [
        "Text is drawn from a source without end, so that no text comes twice by chance:",
        *("  " + line for line in run["source"]),
        "",
        "A model was trained on such text. Its losses, in nats a token, as its own code reports them:",
        f"  training text, last steps                   {run['train']:.5f}",
        f"  new text, whole sequences at once           {run['at_once']:.5f}",
        f"  the same new text, token by token           {run['by_one']:.5f}",
        f"The new text has {run['tokens']:,} tokens; the standard error of its two losses is {run['error']:.5f}.",
        f"{run['pad']}% of all positions, in both texts, are padding behind a text's end.",
        "Token by token: the logits of position t come from a call with the tokens up to t alone.",
        "",
        '  "A" all is well: what the losses lack to the entropy is chance',
        '  "B" read at once, a position sees later tokens',
        '  "C" the model knows its training text by heart',
        '  "D" the mean counts padding, with a loss of 0',
        '  "E" the model has found a rule that the entropy does not know',
        "",
        "choice:   the line that explains all three losses",
        "evidence: by how many bits a token the loss on new text, read at once, as reported, is below the source's",
        "          entropy; negative where it is above. Four decimals",
    ]
    return "\n".join(lines)


def below_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """The letter exact, the bits within 3e-4. A line's mark is twelve standard errors and more, that of chance one."""
    run = below(int(returned["variant"]))
    tolerance = max(6e-4, CLOSE / abs(run["evidence"]))
    choice, number = partial(_wrong_choice, run), partial(_wrong_number, run)
    return judge_choice(returned, run, "ABCDE", choice, number, rel_tol=tolerance)


def _wrong_choice(run: dict[str, Any], given: str) -> Wrong:
    right = run["choice"]
    if given == "E":
        text = "E: the source is given in full. What is the least that any model that sees the past alone can reach?"
        return Wrong(text, "entropy-can-be-beaten")
    if given == "A":
        which = "the loss on training text is" if right == "C" else "the losses are"
        return Wrong(
            f"A: how many standard errors below the entropy is what is below it? {which} far", "small-is-chance"
        )
    if given == "C":
        return Wrong("C: which loss is below the entropy then, and which is not?", "below-is-overfitting")
    if given == "D":
        text = f"D: by what would all three losses be multiplied, with {run['pad']}% padding?"
        return Wrong(text, "the-mean-explains-it")
    why = {
        "A": "by how many standard errors is the loss below the entropy?",
        "C": "is the loss on new text below the entropy?",
        "D": "what would become of the loss when the later tokens are not there?",
    }
    return Wrong(f"B: {why[right]}", "below-is-a-leak")


def _wrong_number(run: dict[str, Any], value: float) -> Wrong:
    right, before = run["evidence"], "the choice is right, the number is not: "
    guesses = {
        "nats-are-bits": (right * LN2, "that is in nats"),
        "bits-the-other-way": (right * LN2 * LN2, "nats become bits the other way round"),
        "above-is-below": (-right, "that has the wrong sign: positive is below the entropy"),
        "any-text-will-do": ((run["entropy"] - run["train"]) / LN2, "that is of the training text"),
        "what-is-lost-was-leaked": (
            (run["by_one"] - run["at_once"]) / LN2,
            "that is from one loss to the other; the entropy lies between",
        ),
        "the-other-loss-will-do": ((run["entropy"] - run["by_one"]) / LN2, "that is of the loss token by token"),
        "the-mean-explains-it": (
            (run["entropy"] - run["at_once"] / (1 - run["pad"] / 100)) / LN2,
            "the padding is taken out; the loss as it is reported is asked",
        ),
        "all-tokens-are-alike": (
            (run["uniform"] - run["at_once"]) / LN2,
            "is every token as likely as any other in this source?",
        ),
    }
    near = {rule: abs(value - guess) for rule, (guess, _) in guesses.items() if abs(guess - right) > CLOSE}
    least = min([CLOSE, *near.values()])  # near 0 guesses lie close together: those that fit best, up to rounding
    found = {rule: guesses[rule][1] for rule, off in near.items() if off <= min(CLOSE, least + ROUNDED)}
    if found:
        rule = next(iter(found))
        return Wrong(before + " Or: ".join(found.values()), rule if len(found) == 1 else None, form=True)
    return Wrong(before + "work out the entropy in nats, take the loss away, and divide by ln 2", form=True)


ENTROPY = Exercise(
    id="below-entropy",
    title="Below the entropy",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=below_judge,
    misconceptions={
        "entropy-can-be-beaten": "a good enough model gets below the entropy",
        "small-is-chance": "a small difference is chance",
        "below-is-overfitting": "what is too good was learned by heart",
        "the-mean-explains-it": "a loss that is too low is a mean over too much",
        "below-is-a-leak": "whatever is below the entropy is a leak",
        "nats-are-bits": "nats and bits are the same",
        "bits-the-other-way": "a nat is less than a bit",
        "above-is-below": "the sign does not matter",
        "any-text-will-do": "training text tells as much as new text",
        "what-is-lost-was-leaked": "what the model loses without the future is what it saw of it",
        "the-other-loss-will-do": "one loss on new text is as good as the other",
        "all-tokens-are-alike": "the entropy of a source is the logarithm of its vocabulary",
    },
)
