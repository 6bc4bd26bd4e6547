"""Checks of chapter 1, the objective: a sequence's log-probability, bits per byte, a source's floor.

The exercises about labels are in `ch01_loss`, the reasoning exercise is in `ch01_leak`. Every oracle is written in
float64, without `course_lib`. A judge recognises a wrong answer by working out what each misconception gives.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np

from course_lib.checks.ch01_leak import WHICH_LEAKS, leak_curves, leak_question
from course_lib.checks.ch01_loss import PAD_BATCH, SHIFTED_LOSS
from course_lib.checks.core import Case, Exercise, Wrong, make_check
from course_lib.checks.smell import nearly, not_a_number, plain, same, smell

__all__ = ["EXERCISES", "check", "leak_curves", "leak_question"]

EXACT = 1e-5
"""Relative above 1, absolute below, as the notebook says: FP32 sums of 2,000 terms are off by a few 1e-6 at most, and a
chain may be stepped until it settles. The misconceptions are off by 1e-3 and more."""

# 01.1 The log-probability of a sequence ------------------------------------------------------------------------------


def _log(p: float) -> float:
    return math.log(p) if p > 0 else -math.inf


SEQUENCE = {
    "multiplies-first": "Multiplying probabilities and taking one log at the end is the same in floating point.",
    "adds-probabilities": "The probabilities of the steps are added.",
    "forgets-the-first-token": "The first token costs nothing because nothing comes before it.",
    "reads-the-table-sideways": "The table's row is the next token and its column the last one.",
    "wrong-unit": "Bits and nats are the same unit.",
    "loss-for-log-probability": "The log-probability of a sequence is a positive number.",
}
_SEQUENCE_SAYS = {
    "multiplies-first": "minus infinity came back, but no step of this text is impossible. What becomes of a product "
    "of 2,000 numbers below 1 in floating point?",
    "adds-probabilities": "the steps were added as probabilities. What does the chain rule do with them, and what does "
    "a logarithm make of that?",
    "forgets-the-first-token": "the first token is missing from the sum. Which table holds its probability?",
    "reads-the-table-sideways": "rows and columns are mixed up. Which of the two indices is the token that is known?",
    "wrong-unit": "the number is right in another unit. Which logarithm gives nats?",
    "loss-for-log-probability": "the sign is that of a loss. What sign has the log of a number below 1?",
    "mean": "it was divided by the number of tokens: a log-probability is a sum.",
    "no log": "a positive number: a probability? What is asked for is its logarithm.",
    "another first": "the first factor is not this text's. Which entry of `first` did you read?",
}


def _sequence_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 101])

    def source(vocab: int) -> tuple[np.ndarray, np.ndarray]:
        return rng.dirichlet(np.ones(vocab)), rng.dirichlet(np.full(vocab, 0.7), size=vocab)

    first, table = source(3)
    cases: list[Case] = [
        {"name": "three tokens", "first": first, "transition": table, "tokens": [2, 0, 1]},
        {"name": "a single token", "first": first, "transition": table, "tokens": [int(rng.integers(1, 3))]},
    ]
    certain = np.roll(np.eye(4), 1, axis=1)
    cases.append(
        {"name": "a text that is certain", "first": np.eye(4)[1], "transition": certain, "tokens": [1, 2, 3, 0]}
    )
    first, table = source(50)
    tokens = rng.integers(1, 50, size=2000).tolist()
    cases.append({"name": "2,000 tokens", "first": first, "transition": np.maximum(table, 1e-6), "tokens": tokens})
    first, table = source(5)
    table[3] = [0.5, 0.0, 0.25, 0.0, 0.25]
    cases.append({"name": "a step with probability 0", "first": first, "transition": table, "tokens": [4, 3, 1, 2]})
    return cases


def _run_sequence(answer: Any, case: Case) -> Any:
    with np.errstate(all="ignore"):
        return plain(answer(case["first"].copy(), case["transition"].copy(), list(case["tokens"])))


def _judge_sequence(case: Case, returned: Any) -> Wrong | None:
    if wrong := not_a_number(returned):
        return wrong
    first, table, tokens = case["first"], case["transition"], case["tokens"]
    pairs = list(pairwise(tokens))
    steps = [float(first[tokens[0]])] + [float(table[a, b]) for a, b in pairs]
    right = math.fsum(_log(p) for p in steps)
    if same(returned, right, EXACT):
        return None
    smells = {
        "loss-for-log-probability": -right,
        "forgets-the-first-token": math.fsum(_log(p) for p in steps[1:]),
        "reads-the-table-sideways": math.fsum([_log(steps[0])] + [_log(float(table[b, a])) for a, b in pairs]),
        "wrong-unit": right / math.log(2),
        "adds-probabilities": math.fsum(steps),
    }
    if math.isnan(returned):
        return Wrong(
            "NaN came back: 0 times an infinity, or the log of a negative number? Find the step that makes it."
        )
    if returned == -math.inf:
        if math.prod(steps) == 0:  # no factor is 0, their product underflows
            return Wrong(_SEQUENCE_SAYS["multiplies-first"], "multiplies-first")
        return Wrong("minus infinity came back: some factor was read as 0. Which entry of which table did you read?")
    if right == -math.inf:
        return Wrong(f"{returned:.4g} came back, but one step of this text has probability 0. How likely is the whole?")
    more = {"adds-probabilities": math.log(math.fsum(steps)), "wrong-unit": right / math.log(10)}
    name = smell(returned, smells, EXACT, right) or smell(returned, more, EXACT, right)
    slips = {
        "mean": right / len(tokens),
        "no log": math.exp(right),
        "another first": right - _log(steps[0]) + _log(float(first[0])),
    }
    slip = name or smell(returned, slips, EXACT, right)
    if slip is None and (close := nearly(returned, right)):
        return Wrong(close)
    says = _SEQUENCE_SAYS[slip] if slip else "write down the factors of this text and compare them with your steps."
    return Wrong(f"{returned:.4g} came back. It is off by {abs(returned - right):.3g} nats; {says}", name)


# 01.4 Bits per byte --------------------------------------------------------------------------------------------------

BITS = {
    "stays-in-nats": "Nats and bits are the same.",
    "inverted-ratio": "The loss of a token is multiplied by the bytes in a token.",
    "mean-of-means": "The mean of the batches' means is the mean over tokens.",
    "characters-for-bytes": "A character is a byte.",
    "per-token": "Bits per token can be compared between tokenizers.",
    "perplexity": "Perplexity is what is wanted.",
    "empty-batch-is-nan": "A batch without tokens spoils the whole evaluation.",
}
_BITS_SAYS = {
    "stays-in-nats": "this is nats per byte. How many nats are one bit?",
    "inverted-ratio": "tokens and bytes have changed places. Which of the two counts is larger, and should the number "
    "per byte be smaller or larger than per token?",
    "mean-of-means": "each batch got the same vote. How many tokens does each speak for?",
    "characters-for-bytes": "the text was measured in characters. How many bytes is one outside ASCII, in UTF-8?",
    "per-token": "this is a number per token. What would a tokenizer with longer tokens do to it?",
    "perplexity": "this looks like a perplexity, the exponential of a loss. What is asked for is not.",
    "empty-batch-is-nan": "a batch has no token that counts and reports NaN. What is NaN times 0, and what does that "
    "batch contribute?",
    "stops early": "the batches behind the first empty one are missing. How does your loop go on after it?",
}


def _bits_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 104])
    words = ["the", "loss", "of", "a", "token", "is", "minus", "log", "probability"]

    def text(n: int) -> str:
        return " ".join(rng.choice(words, size=n))

    def loss() -> float:
        return float(rng.uniform(2.5, 4.0))

    ascii_text, uniform = text(40), text(12)
    return [
        {"name": "one batch", "batches": [(loss(), len(ascii_text) // 4)], "text": ascii_text},
        {
            "name": "every byte a token, all 256 equally likely",
            "batches": [(math.log(256), len(uniform))],
            "text": uniform,
        },
        {"name": "batches of 700 and 40 tokens", "batches": [(loss(), 700), (loss() + 2, 40)], "text": text(500)},
        {"name": "a text outside ASCII", "batches": [(loss(), 9)], "text": "预训练：每个数字都要测量。" + text(2)},
        {
            "name": "batches in which no token counts",
            "batches": [(math.nan, 0), (loss(), 60), (math.nan, 0), (math.nan, 0), (loss() + 2, 25)],
            "text": text(30),
        },
    ]


def _run_bits(answer: Any, case: Case) -> Any:
    with np.errstate(all="ignore"):
        return plain(answer(list(case["batches"]), case["text"]))


def _judge_bits(case: Case, returned: Any) -> Wrong | None:
    if wrong := not_a_number(returned):
        return wrong
    counted = [(loss, n) for loss, n in case["batches"] if n]
    n_bytes, characters = len(case["text"].encode("utf-8")), len(case["text"])
    tokens = sum(n for _, n in counted)
    nats = math.fsum(loss * n for loss, n in counted)
    mean = nats / tokens
    right = nats / math.log(2) / n_bytes
    if same(returned, right, EXACT):
        return None
    means = math.fsum(loss for loss, _ in counted) / len(counted)
    smells = {
        "stays-in-nats": nats / n_bytes,
        "inverted-ratio": mean / math.log(2) * n_bytes / tokens,
        "mean-of-means": means * tokens / n_bytes / math.log(2),
        "characters-for-bytes": nats / math.log(2) / characters,
        "per-token": mean / math.log(2),
        "perplexity": math.exp(mean),
    }
    smells_more = {"inverted-ratio": mean * n_bytes / tokens}
    name = smell(returned, smells, EXACT, right) or smell(returned, smells_more, EXACT, right)
    if math.isnan(returned) and len(counted) < len(case["batches"]):
        name = "empty-batch-is-nan"
    if name is None and (close := nearly(returned, right)):
        return Wrong(close)
    says = _BITS_SAYS[name] if name else "write the units behind every number and see what cancels."
    if name is None and len(counted) < len(case["batches"]):
        first = counted[0][0] * counted[0][1] / math.log(2) / n_bytes
        says = _BITS_SAYS["stops early"] if same(returned, 0, EXACT) or same(returned, first, EXACT) else says
    return Wrong(f"{returned:.4g} came back; {says}", name)


# 01.5 The floor of a source ------------------------------------------------------------------------------------------

FLOOR = {
    "every-state-counts-alike": "The floor is the plain average of the rows' entropies.",
    "ignores-context": "The floor is the entropy of the tokens' overall frequencies.",
    "wrong-unit": "Bits and nats are the same unit.",
    "zero-times-log-zero": "An event that never happens makes the entropy undefined.",
    "has-not-settled": "Stepping the chain often enough always settles.",
    "adds-the-rows": "The floor is the sum of the rows' entropies.",
}
_FLOOR_SAYS = {
    "every-state-counts-alike": "each row got the same vote. How often does the source stand in each of its states?",
    "ignores-context": "this is what a model reaches that sees only how often tokens occur. What does the last token "
    "tell?",
    "wrong-unit": "the number is right in another unit. Which logarithm gives nats?",
    "zero-times-log-zero": "NaN came back: the table holds a 0. What does an event that never happens add to a mean?",
    "nan": "NaN came back. Two places can make one: 0 · log 0, and shares divided by a sum of 0. Which is yours?",
    "complex": "a complex number came back. The eigenvector for eigenvalue 1 is real: take its real part.",
    "sign": "an entropy is not negative. Which sign has the log of a probability?",
    "has-not-settled": "this source alternates and never settles by stepping. What do the shares of time solve?",
    "adds-the-rows": "the rows' entropies were added. A token is drawn from one row at a time: which, how often?",
}


def _entropy(p: np.ndarray) -> float:
    kept = p[p > 0]
    return float(-(kept * np.log(kept)).sum())


def _shares_of_time(table: np.ndarray) -> np.ndarray:
    """Stationary shares by squaring the lazy chain (I + P)/2, which has the same shares and no period."""
    lazy = (np.eye(len(table)) + table) / 2
    for _ in range(60):
        lazy = lazy @ lazy
        lazy /= lazy.sum(-1, keepdims=True)
    return lazy.mean(0)


def _floor_cases(seed: int) -> list[Case]:
    rng = np.random.default_rng([seed, 105])
    there_and_back = np.zeros((5, 5))  # tokens 0 and 1 are followed by 2, 3 or 4, and these by 0 or 1
    there_and_back[:2, 2:] = rng.dirichlet(np.ones(3), size=2)
    there_and_back[2:, :2] = rng.dirichlet(np.ones(2), size=3)
    busy = np.array([[0.9, 0.05, 0.05], [0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    zero = rng.dirichlet(np.ones(3), size=3)
    zero[1] = [0.6, 0.0, 0.4]
    return [
        {"name": "four tokens", "transition": rng.dirichlet(np.full(4, 0.6), size=4)},
        {"name": "two states that are rare", "transition": busy},
        {"name": "every token independent of the last", "transition": np.tile(rng.dirichlet(np.ones(5)), (5, 1))},
        {"name": "a table with a 0", "transition": zero},
        {"name": "a cycle: the next token is certain", "transition": np.roll(np.eye(4), 1, axis=1)},
        {"name": "a source that goes back and forth", "transition": there_and_back},
    ]


def _run_floor(answer: Any, case: Case) -> Any:
    with np.errstate(all="ignore"):
        floor = answer(case["transition"].copy())
    return "complex" if np.iscomplexobj(floor) else plain(floor)


def _judge_floor(case: Case, returned: Any) -> Wrong | None:
    if isinstance(returned, str) and returned == "complex":
        return Wrong(_FLOOR_SAYS["complex"])
    if wrong := not_a_number(returned):
        return wrong
    table = case["transition"]
    shares, rows = _shares_of_time(table), np.array([_entropy(row) for row in table])
    right = float(shares @ rows)
    if same(returned, right, EXACT):
        return None
    if math.isnan(returned):
        zero = (table == 0).any() and (np.linalg.matrix_power(table, 50) > 0).all()  # here shares cannot fail
        name = "zero-times-log-zero" if zero else None
        return Wrong(_FLOOR_SAYS[name or "nan"], name)
    smells = {
        "every-state-counts-alike": float(rows.mean()),
        "ignores-context": _entropy(shares),
        "wrong-unit": right / math.log(2),
        "adds-the-rows": float(rows.sum()),
    }
    name = smell(returned, smells, EXACT, right)
    for start in (np.full(len(table), 1 / len(table)), np.eye(len(table))[0]):
        for steps in (1000, 1001):
            stepped = {"has-not-settled": float(start @ np.linalg.matrix_power(table, steps) @ rows)}
            name = name or smell(returned, stepped, EXACT, right)
    if name is None and (close := nearly(returned, right)):
        return Wrong(close)
    says = _FLOOR_SAYS[name] if name else "try a source with two tokens, by hand."
    if name is None and returned < 0:
        says = _FLOOR_SAYS["sign"]
    return Wrong(f"{returned:.4g} nats came back, off by {abs(returned - right):.2g}; {says}", name)


EXERCISES = [
    Exercise(
        id="sequence-log-prob",
        title="The log-probability of a sequence",
        cases=_sequence_cases,
        run=_run_sequence,
        judge=_judge_sequence,
        misconceptions=SEQUENCE,
    ),
    PAD_BATCH,
    SHIFTED_LOSS,
    Exercise(
        id="bits-per-byte",
        title="Bits per byte from mean losses",
        cases=_bits_cases,
        run=_run_bits,
        judge=_judge_bits,
        misconceptions=BITS,
    ),
    Exercise(
        id="entropy-floor",
        title="The floor of a source",
        cases=_floor_cases,
        run=_run_floor,
        judge=_judge_floor,
        misconceptions=FLOOR,
    ),
    WHICH_LEAKS,
]

check = make_check("01", EXERCISES)
