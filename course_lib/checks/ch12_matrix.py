"""Reasoning exercise 12.1: whose model made this leak matrix, and how many of its entries may not be there?"""

from functools import partial
from typing import Any

import numpy as np

from course_lib.checks.ch02_nine import answer_run, one_case
from course_lib.checks.choice import judge_choice
from course_lib.checks.core import Case, Exercise, Wrong, variant_rng

__all__ = ["MATRIX", "leak_case", "matrix_text"]

WANTED = "DEBAC"
"""The right line, variant by variant."""
T, V, D, CHUNK = 10, 12, 16, 4
FLOOR, CLEAR = 2e-5, 1e-3
"""What rounding moves stays below the first, what is seen moves by more than the second; nothing lies between."""
LARGER = (2e-3, 5e-3, 0.0095, 0.02, 0.05, 0.1, 0.5, 1.0)
"""Bars that are too high."""


def _model(kind: str, cut: int, w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """Logits (T, V) in FP32 of one attention layer and two experts. `kind`: the letter of what is wrong with it."""
    at = np.arange(T)
    seen = at[None, :] <= at[:, None] + {"B": 1, "C": T}.get(kind, 0)
    if kind != "E":
        seen = seen & ((at[None, :] < cut) == (at[:, None] < cut))
    x = w["embedding"][tokens] + w["position"]
    scores = np.where(seen, (x @ w["query"]) @ x.T / np.sqrt(D), -np.inf)
    weight = np.exp(scores - scores.max(1, keepdims=True))
    h = x + weight / weight.sum(1, keepdims=True) @ x @ w["value"]
    route = 1 / (1 + np.exp(-h @ w["router"]))  # (T, 2)
    taken = route >= 0.5
    if kind == "D":
        taken = np.zeros_like(taken)
        for start in range(0, T, CHUNK):
            here = route[start : start + CHUNK]
            for expert in range(2):
                best = np.argsort(-here[:, expert])[: -(-len(here) // 2)]
                taken[start + best, expert] = True
    h = h + np.einsum("te,ted->td", route * taken, np.einsum("td,edf->tef", h, w["experts"]))
    logits = (h @ w["head"]).astype(np.float32)
    shift = np.float32(8 + logits.max())  # as a kernel does that subtracts a maximum of the whole batch
    return np.asarray((logits - shift) + shift)


def _matrix(kind: str, cut: int, w: dict[str, np.ndarray], tokens: np.ndarray) -> np.ndarray:
    """[t, s]: the largest change of a logit at t over all tokens that can stand at s."""
    before, found = _model(kind, cut, w, tokens), np.zeros((T, T))
    for s in range(T):
        for token in range(V):
            other = tokens.copy()
            other[s] = token
            moved = np.abs(_model(kind, cut, w, other) - before).max(1)
            found[:, s] = np.maximum(found[:, s], moved)
    return found


def _may(cut: int) -> np.ndarray:
    at = np.arange(T)
    return (at[None, :] <= at[:, None]) & ((at[None, :] < cut) == (at[:, None] < cut))


def leak_case(variant: int) -> dict[str, Any]:
    """The matrix of a variant, the letter of its model, and how many entries are more than rounding and may not be."""
    rng = variant_rng("leak-matrix", variant)
    kind = WANTED[variant % len(WANTED)]
    while True:
        cut = int(rng.integers(4, 7))
        w = {
            "embedding": rng.normal(size=(V, D)),
            "position": rng.normal(size=(T, D)),
            "query": rng.normal(size=(D, D)) / D,
            "value": rng.normal(size=(D, D)) / np.sqrt(D),
            "router": rng.normal(size=(D, 2)),
            "experts": rng.normal(size=(2, D, D)) / D,
            "head": rng.normal(size=(D, V)) / np.sqrt(D),
        }
        matrix, may = _matrix(kind, cut, w, rng.integers(0, V, T)), _may(cut)
        sees = matrix > CLEAR
        if ((matrix > FLOOR) & ~sees).any() or not sees[may].all():
            continue
        bad = sees & ~may
        ahead = np.triu(np.ones((T, T), dtype=bool), 1)
        if kind == "D" and (bad[ahead].sum() == bad.sum() or len(set(np.argwhere(bad & ahead)[:, 0])) < 4):
            continue  # it crosses the documents' border too
        return {"matrix": matrix, "cut": cut, "choice": kind, "evidence": int(bad.sum()), "bad": bad}


def matrix_text(variant: int) -> str:
    """What `question` prints."""
    case = leak_case(variant)
    cut, rows = case["cut"], []
    for t in range(T):
        cells = " ".join("     0" if x == 0 else f"{x:6.0e}" for x in case["matrix"][t])
        rows.append(f"  t = {t}  {cells}")
    lines = [
        f"A row of {T} tokens holds two documents: positions 0 to {cut - 1}, and {cut} to {T - 1}.",
        "The model has one layer of attention, and experts behind it.",
        "At each position it may see its own token, and those before it in its document.",
        "",
        "Row t, column s: by how much the logits of position t move, at most, when token s alone is changed.",
        "It was measured in FP32, where rounding alone moves what should not move by up to 2e-5.",
        "",
        "         " + " ".join(f"{'s=' + str(s):>6}" for s in range(T)),
        *rows,
        "",
        '  "A" nothing is wrong with this model',
        '  "B" its causal mask is one position too wide',
        '  "C" its attention looks in both directions, inside a document',
        f'  "D" its experts pick tokens inside chunks of {CHUNK} positions (0 to {CHUNK - 1}, and so on)',
        '  "E" it has no document mask',
        "",
        "choice:   the letter",
        "evidence: how many pairs (t, s) there are where position t depends on a token s on which it may not",
    ]
    return "\n".join(lines)


def matrix_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Both exact. Entries are 50 times above or below the line between rounding and dependence."""
    asked = leak_case(int(returned["variant"]))
    choice, number = partial(_wrong_choice, asked), partial(_wrong_number, asked)
    return judge_choice(returned, asked, "ABCDE", choice, number, rel_tol=1e-9)


def _wrong_choice(asked: dict[str, Any], given: str) -> Wrong:
    right = asked["choice"]
    if right == "A":
        return Wrong(
            f"{given}: which entry shows it, and is that entry more than rounding?", "whatever-moves-is-a-leak"
        )
    if right == "E":
        return Wrong(
            f"{given}: look below the diagonal too. What may a token of the second document see?",
            "only-the-future-leaks",
        )
    if given == "A":
        return Wrong("A: is every entry above the diagonal of the size of rounding?", "small-is-rounding")
    if given == "E":
        return Wrong("E: would a missing document mask show above the diagonal?", "any-mask-explains-it")
    if right == "D":
        return Wrong(
            f"{given}: which tokens of the future does a position see, and which not? Mark them, and what they share",
            "a-leak-comes-from-attention",
        )
    return Wrong(f"{given}: how far ahead does a position see? Take one row, from the left", "any-mask-explains-it")


def _wrong_number(asked: dict[str, Any], value: float) -> Wrong:
    matrix, bad, before = asked["matrix"], asked["bad"], "the choice is right, the number is not: "
    sees, ahead = matrix > CLEAR, np.triu(np.ones((T, T), dtype=bool), 1)
    may = _may(asked["cut"])
    guesses = {
        "whatever-moves-is-a-leak": (
            int(((matrix > 0) & ~may).sum()),
            "every entry that is not 0 is in it. What does rounding do?",
        ),
        "only-the-future-leaks": (int((bad & ahead).sum()), "is the future all that a position may not see?"),
        "rows-are-what-changed": (int((sees & ahead.T).sum()), "is it the row or the column that was changed?"),
        "the-present-is-the-future": (
            int(bad.sum()) + T,
            "the diagonal is in it. May a position see its own token?",
        ),
        "positions-for-pairs": (int(bad.any(1).sum()), "those are the positions that see too much; pairs are asked"),
        "all-that-it-sees": (int(sees.sum()), "those are all pairs where one depends on the other"),
    }
    found = {rule: text for rule, (guess, text) in guesses.items() if value == guess and guess != asked["evidence"]}
    if found:
        rule = next(iter(found))
        return Wrong(before + " Or: ".join(found.values()), rule if len(found) == 1 else None, form=True)
    if value in {int((bad & (matrix > bar)).sum()) for bar in LARGER} - {asked["evidence"], 0}:
        text = "the largest of them are counted. How small is rounding?"
        return Wrong(before + text, "small-is-rounding", form=True)
    if value == T * (T + 1) // 2:
        text = "those are the pairs on and below the diagonal. Which of them may be?"
        return Wrong(before + text, "all-that-it-sees", form=True)
    return Wrong(before + "mark the entries that are more than rounding, then cross out those that may be", form=True)


MATRIX = Exercise(
    id="leak-matrix",
    title="Read a leak matrix",
    cases=one_case("your choice and evidence"),
    run=answer_run,
    judge=matrix_judge,
    misconceptions={
        "whatever-moves-is-a-leak": "an honest model's past does not move by a single bit",
        "small-is-rounding": "a leak is large",
        "only-the-future-leaks": "a token may see all that is before it in the row",
        "any-mask-explains-it": "all wrong masks look alike",
        "a-leak-comes-from-attention": "only attention carries something from one position to another",
        "rows-are-what-changed": "row and column of a leak matrix can be exchanged",
        "the-present-is-the-future": "a position may not see its own token",
        "positions-for-pairs": "a position that sees too much is one leak",
        "all-that-it-sees": "every dependence is a leak",
    },
)
