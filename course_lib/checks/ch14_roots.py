"""Reasoning exercise 14.7: which of six incidents have one of the two roots, and which have none."""

from textwrap import fill
from typing import Any

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["ROOTS", "draw", "roots_text"]

CAUSALITY, BIAS, NEITHER = "causality", "bias", "neither"
INCIDENTS = {
    CAUSALITY: (
        ("Each position's inputs are divided by the norm over the whole sequence.", "which tokens is that norm of?"),
        (
            "Of each sequence a layer drops the fifth of the tokens with the lowest scores.",
            "which other tokens decide whether a token is dropped?",
        ),
        (
            "Similar passages are looked up for each sequence, and may come from the rest of its own document.",
            "what can such a passage hold that is yet to be predicted?",
        ),
        (
            "Documents are packed, and within each the attention goes both ways.",
            "what does a position see there when it predicts the next token?",
        ),
        (
            "The loss compares each position's logits with the token that is its input.",
            "is the token that is asked for among those that were given?",
        ),
        (
            "Time series: each is scaled to mean 0 and deviation 1 over its whole length, then predicted step by step.",
            "at an early step, what does that mean already know?",
        ),
    ),
    BIAS: (
        (
            "Gradients are cut off to BF16, not rounded, before every all-reduce.",
            "in which direction is a number that is cut off wrong, and how often?",
        ),
        (
            "The moving mean of the weights is kept in BF16, and 1/2000 of the difference is added at each step.",
            "what becomes of a small addend in BF16, and how often?",
        ),
        (
            "At every step the means of micro-batches of unlike numbers of tokens are averaged.",
            "whose tokens count too much, and is it the same ones at the next step?",
        ),
        (
            "The texts come from a sampler whose numerics make likely tokens a little likelier than the trainer's, and "
            "no ratio corrects for it.",
            "does the difference have a sign, and does it go away with more steps?",
        ),
        (
            "A scale is rounded down to a power of two before each multiplication, and nothing divides by what was "
            "lost.",
            "can the result be too large as often as too small?",
        ),
    ),
    NEITHER: (
        (
            "One device computes at half of its speed since noon, and all others wait for it.",
            "what is computed wrongly?",
        ),
        ("A checkpoint's file is torn, and loading it stops with an error.", "what does the model learn wrongly?"),
        (
            "Once in a while a memory chip flips one bit of one weight, up or down.",
            "does it lean to one side? Does anything see the future?",
        ),
        ("A batch of base64 text makes the loss jump once.", "does it happen at each step, and in one direction?"),
        (
            "After a resume the schedule is at its start: a far smaller learning rate for some steps.",
            "are the gradients wrong, or does a token see another?",
        ),
        ("A switch fails, and the collective times out.", "which number of the training is wrong?"),
        ("The host's memory is full, and the loader's process is killed.", "which number of the training is wrong?"),
        (
            "The rate is 3e-2 where 3e-3 was meant, and the loss never comes down.",
            "is each step wrong by a small error of one sign, or is it as it was asked for?",
        ),
    ),
}
COUNTS = ((2, 1, 3), (1, 2, 3), (1, 1, 4), (2, 2, 2), (1, 3, 2), (3, 1, 2))


def draw(variant: int) -> dict[str, Any]:
    """Six incidents by letter (text, root, question), and the letters of each root."""
    rng = variant_rng("two-roots", variant)
    chosen = [
        (*INCIDENTS[root][int(k)], root)
        for root, n in zip(INCIDENTS, COUNTS[variant % 6], strict=True)
        for k in rng.choice(len(INCIDENTS[root]), n, replace=False)
    ]
    lines = {"ABCDEF"[place]: chosen[int(k)] for place, k in enumerate(rng.permutation(6))}
    letters = {root: "".join(key for key, one in lines.items() if one[2] == root) for root in INCIDENTS}
    return {"lines": lines, **letters}


def roots_text(variant: int) -> str:
    """What `question` prints."""
    run = draw(variant)
    texts = [(letter, text) for letter, (text, _, _) in run["lines"].items()]
    lines = [
        *(fill(text, 100, initial_indent=f'  "{letter}" ', subsequent_indent=" " * 6) for letter, text in texts),
        "",
        "causality: the letters of those where, in training, something sees what it must not know yet",
        "bias:      the letters of those where a small error of one sign is made at every step, and adds up",
        'What is neither is in none of the two. Letters in quotes, such as "BE", in any order; "" for none',
    ]
    return "\n".join(lines)


def roots_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Exact: two sets of letters."""
    expected = ("variant", CAUSALITY, BIAS)
    for key in (*returned, *expected):
        if key not in expected or key not in returned:
            what = "is not one of them" if key not in expected else "is missing"
            return Wrong(f"the answer has the keys {', '.join(expected)}; `{key}` {what}", form=True)
    run, given = draw(returned["variant"]), {}
    for root in (CAUSALITY, BIAS):
        value = returned[root]
        if value is None:
            return Wrong(f'`{root}` is still empty; "" in quotes says that it is none of them', form=True)
        value = "".join(map(str, value)) if isinstance(value, list | tuple | set) else value
        if not isinstance(value, str) or not set(value.upper()) <= set("ABCDEF, "):
            return Wrong(f'`{root}` holds letters in quotes, "A" to "F"', form=True)
        given[root] = {one for one in value.upper() if one.isalpha()}
    both = given[CAUSALITY] & given[BIAS]
    if both:
        return Wrong(f"{', '.join(sorted(both))}: under both roots. Which one is it, if any?", form=True)
    wrong = []
    for letter, (_, question, root) in run["lines"].items():
        said = next((name for name in (CAUSALITY, BIAS) if letter in given[name]), NEITHER)
        if said != root:
            wrong.append((letter, said, root, question))
    if not wrong:
        return None
    letter, said, root, question = wrong[0]
    rules = {
        (NEITHER, CAUSALITY): "only-a-missing-mask-leaks",
        (NEITHER, BIAS): "small-errors-even-out",
        (CAUSALITY, NEITHER): "two-roots-explain-all",
        (BIAS, NEITHER): "two-roots-explain-all",
        (CAUSALITY, BIAS): "an-error-is-an-error",
        (BIAS, CAUSALITY): "a-leak-is-a-bias",
    }
    nothing_left = not any(one not in given[CAUSALITY] | given[BIAS] for one in "ABCDEF")
    rule = "two-roots-explain-all" if nothing_left and root == NEITHER else rules[said, root]
    return Wrong(f"{len(wrong)} of 6 stand elsewhere. {letter}: {question}", rule)


ROOTS = Exercise(
    id="two-roots",
    title="Two roots, and none",
    cases=one_case("your sorting"),
    run=answer_run,
    judge=roots_judge,
    misconceptions={
        "two-roots-explain-all": "whatever goes wrong is a leak or a bias",
        "only-a-missing-mask-leaks": "the future comes in through the attention mask, or not at all",
        "small-errors-even-out": "small errors even out over many steps",
        "an-error-is-an-error": "which root it is does not matter",
        "a-leak-is-a-bias": "a leak is a bias of the data",
    },
)
