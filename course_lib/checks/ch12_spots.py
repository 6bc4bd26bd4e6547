"""Small models of check 12.2 that leak in one spot: one token at one place moves one logit of one position.

Each decides one rule of a probe alone: a place, a value, a row, a position, a logit, a size, draws, two leaks at once,
one change at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.core import Wrong

__all__ = ["SHAPE", "SPOTS", "VOCAB", "spot_of", "spot_tokens", "wrong_spots"]

SHAPE, VOCAB = (3, 4), 12
Spot = tuple[int, int, int, int, int, int, float]
"""b, s, value, row, position, logit, size: `value` at place s of sequence b moves that logit by that much."""
LARGE, FAINT, ROUNDING = 0.3, 1.1e-3, 1.8e-5
NOISE = 3.0
"""How far a draw moves a logit: ten times the leaks, so that nobody sees them who does not repeat the draws."""
NEVER = (0, 3, 11)
"""Values that stand nowhere in the tokens, the first and the last among them."""


@dataclass(frozen=True)
class Model:
    """What it does, and what is true of it."""

    spots: tuple[Spot, ...]
    future: bool = False
    batch: bool = False
    draws: bool = False
    alone: bool = False
    """Its spots show only while all other tokens are as they were."""
    kind: str = "spot"


def _models() -> dict[str, Model]:
    ahead = [(0, 1, 0, 0), (1, 2, 11, 0), (2, 2, 3, 1), (0, 3, 6, 0), (1, 3, 9, 1), (2, 3, 2, 2)]  # b, s, value, t
    across = [  # b, s, value, row, t: each row to each other, before, at and after the place
        *((0, 0, 1, 1, 0), (0, 1, 4, 2, 0), (1, 3, 7, 0, 3), (1, 0, 10, 2, 3)),
        *((2, 2, 11, 0, 1), (2, 1, 0, 1, 2), (0, 3, 5, 1, 1), (2, 3, 8, 0, 3)),
    ]
    found = {
        "honest": Model((), kind="honest"),
        "draws": Model((), draws=True, kind="draws"),
        "rounds": Model(((0, 2, 5, 0, 1, 3, ROUNDING), (1, 1, 6, 2, 2, 9, -ROUNDING)), kind="rounds"),
    }
    for n, (b, s, value, t) in enumerate(ahead):
        found[f"ahead {n}"] = Model(((b, s, value, b, t, (5 * n) % VOCAB, LARGE),), future=True)
    for n, (b, s, value, row, t) in enumerate(across):
        found[f"across {n}"] = Model(((b, s, value, row, t, (11 + 5 * n) % VOCAB, -LARGE),), batch=True)
    both = ((1, 2, 7, 1, 1, 2, LARGE), (1, 2, 7, 0, 3, 8, LARGE))
    up_and_down = ((2, 3, 4, 2, 1, 2, LARGE), (2, 3, 4, 2, 1, 7, -LARGE))
    found |= {
        "both at once": Model(both, future=True, batch=True, kind="both"),
        "faint, ahead": Model(((1, 3, 5, 1, 0, 11, FAINT),), future=True, kind="faint"),
        "faint, across": Model(((2, 0, 6, 1, 3, 0, -FAINT),), batch=True, kind="faint"),
        "up and down": Model(up_and_down, future=True, kind="up and down"),
        "alone, ahead": Model(((0, 2, 9, 0, 1, 7, LARGE),), future=True, alone=True, kind="alone"),
        "alone, across": Model(((2, 1, 6, 0, 2, 5, LARGE),), batch=True, alone=True, kind="alone"),
        "draws, ahead": Model(((0, 2, 8, 0, 0, 4, LARGE),), future=True, draws=True, kind="draws"),
        "draws, across": Model(((1, 1, 3, 2, 1, 6, LARGE),), batch=True, draws=True, kind="draws"),
    }
    return found


SPOTS = _models()


def spot_tokens(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Tokens of SHAPE with no spot's value at its place, nor any of NEVER."""
    barred = {(b, s): set(NEVER) for b in range(SHAPE[0]) for s in range(SHAPE[1])}
    for model in SPOTS.values():
        for b, s, value, *_ in model.spots:
            barred[b, s].add(value)
    tokens = np.zeros(SHAPE, dtype=np.int64)
    for at, values in barred.items():
        tokens[at] = rng.choice(sorted(set(range(VOCAB)) - values))
    return tokens


def spot_of(name: str, seed: int, before: np.ndarray[Any, Any]) -> Callable[[Tensor], Tensor]:
    """The model: each position sees the tokens up to its own, and what a spot adds. `before`: the case's tokens."""
    model, rng = SPOTS[name], np.random.default_rng([seed, 1222])
    own, past = rng.normal(size=(2, VOCAB, VOCAB))

    def forward(tokens: Tensor) -> Tensor:
        given = tokens.numpy()
        logits = own[given] + past[given].cumsum(1) / 4
        if model.draws:
            logits = logits + NOISE * torch.rand(*SHAPE, VOCAB).numpy()
        many = model.alone and (given != before).sum() > 1
        for b, s, value, row, t, logit, size in model.spots:
            if given[b, s] == value and not many:
                logits[row, t, logit] += size
        return torch.from_numpy(logits.astype(np.float32))

    return forward


ALARMS = {
    "honest": ("it is honest. Which positions may move when the token at s changes?", "what-moves-is-a-leak"),
    "draws": ("it draws at random in each call, and that is no leak", "dropout-is-a-leak"),
    "rounds": ("what moves there is less than 2e-5. From which size does a change count?", "honest-is-bitwise"),
}
MISSED = {
    "draws": (
        "it draws at random in each call, and leaks less than its draws move. Can two calls have the same draws?",
        "who-draws-cannot-leak",
    ),
    "both": (
        "one change shows in the past of its own sequence and in another sequence. Did you look at both?",
        "a-leak-is-of-one-kind",
    ),
    "faint": ("one logit moves by 0.0011. From which size does it count?", "the-prediction-is-what-counts"),
    "alone": (
        "it shows when one token alone is another. How many did you change at a time?",
        "more-changes-show-more",
    ),
    "up and down": (
        "one logit goes up, and another down by as much. What of the logits do you compare?",
        "the-prediction-is-what-counts",
    ),
}


def wrong_spots(said: dict[str, list[bool]]) -> Wrong | None:
    """said: what the probe says of each model, [future, batch], in the order in which it met them. Exact."""
    wrong = [name for name, model in SPOTS.items() if tuple(said[name]) != (model.future, model.batch)]
    if not wrong:
        return None
    order = list(said)
    begin = f"{len(wrong)} of {len(order)} models wrong. model "
    for false_alarm in (True, False):
        for name in wrong:
            model = SPOTS[name]
            for key, found, true in zip(("future", "batch"), said[name], (model.future, model.batch), strict=True):
                if found == true or found != false_alarm:
                    continue
                text, rule = _alarm(model, key) if false_alarm else _missed(model, key)
                missed = "" if false_alarm else " is missed"
                return Wrong(f'{begin}{order.index(name) + 1} of {len(order)}, "{key}"{missed}: {text}', rule)
    return None


def _alarm(model: Model, key: str) -> tuple[str, str]:
    if model.kind in ALARMS:
        return ALARMS[model.kind]
    if key == "batch":
        return "its sequences do not see each other. Which rows may move when you change one?", "a-sequence-sees-itself"
    return "it sees another sequence, and not its own future", "other-sequences-are-the-future"


def _missed(model: Model, key: str) -> tuple[str, str]:
    if model.kind in MISSED:
        return MISSED[model.kind]
    b, s, value, row, t, logit, _ = model.spots[0]
    where = f"position {t} of " + ("the same sequence" if key == "future" else f"sequence {row}")
    text = f"token {value} at place {s} of sequence {b} moves logit {logit} at {where}, and nothing else shows it"
    return f"{text}. Did you try that one, and look there?", "a-few-tries-are-enough"
