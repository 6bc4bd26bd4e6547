"""Check 12.2: a probe for leaks, tried on models that are honest and on models that are not."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from course_lib.checks.ch12_spots import SPOTS, VOCAB, spot_of, spot_tokens, wrong_spots
from course_lib.checks.ch12_zoo import KINDS, forward_of, shows
from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, came, kind

__all__ = ["PROBE"]

PICKED = ("chunk", "queue-batch", "pick-batch")
"""Whether these show what is wrong with them depends on the tokens."""


def probe_cases(seed: int) -> list[Case]:
    """Two zoos of other sizes, each with all kinds in an order of its own; then the models with one spot."""
    rng = np.random.default_rng([seed, 1202])

    def zoo(name: str, B: int, T: int, vocab_size: int) -> Case:
        """T = 4 n + 1, so that the last token is alone in its chunk."""
        rare, models = vocab_size // 2, []  # neither there, nor next to a token that is there
        there = [token for token in range(vocab_size) if abs(token - rare) > 1]
        tokens = rng.choice(there, (B, T))
        for name_ in rng.permutation(list(KINDS)):
            while True:
                weights = int(rng.integers(1, 10**6))
                weights += (rare - weights) % vocab_size
                if name_ not in PICKED or shows(str(name_), weights, tokens, vocab_size):
                    break
            models.append([str(name_), weights])
        return {"name": name, "tokens": tokens, "vocab_size": vocab_size, "models": models}

    zoos = [zoo("thirteen models", 2, 9, 6), zoo("thirteen others", 3, 5, 5)]
    order = [[str(name), int(rng.integers(1, 10**6))] for name in rng.permutation(list(SPOTS))]
    return [*zoos, {"name": "one spot each", "tokens": spot_tokens(rng), "vocab_size": VOCAB, "models": order}]


def probe_run(answer: Callable[..., Any], case: Case) -> list[list[bool]]:
    """What the probe says of each model: [future, batch]."""
    import torch

    found = []
    for name, seed in case["models"]:
        tokens = torch.from_numpy(case["tokens"])
        inside = spot_of(name, seed, case["tokens"]) if name in SPOTS else None
        forward = forward_of(name, seed, case["tokens"].shape, case["vocab_size"], inside)
        said = answer(forward, tokens, case["vocab_size"])
        if not isinstance(said, Mapping):
            raise WrongForm(f'the probe returns a dict with "future" and "batch"; {came(type(said).__name__)}')
        if not {"future", "batch"} <= set(said):
            raise WrongForm(
                f'the probe returns a dict with "future" and "batch"; yours has {", ".join(map(str, said))}'
            )
        found.append([_truth(said[key], key) for key in ("future", "batch")])
    return found


def _truth(value: Any, key: str) -> bool:
    value = value.item() if getattr(value, "ndim", None) == 0 and hasattr(value, "item") else value
    if not isinstance(value, bool):
        raise WrongForm(f'"{key}" is True or False; yours is {kind(value)}')
    return value


MISSED = {
    "small": (
        "one logit of the past moves, by a few thousandths. What did you compare, and from which size does it count?",
        "the-prediction-is-what-counts",
    ),
    "next": ("a position sees the token right after it", None),
    "far": (
        "some positions see a token far after them. Which pairs of positions were tried?",
        "the-next-token-is-the-future",
    ),
    "chunk": (
        "a position can see some tokens of its future and not the last. Which places did you change?",
        "the-last-token-is-the-future",
    ),
    "row": ("one of its sequences sees its future. Which did you change and look at?", "one-sequence-stands-for-all"),
    "rare": ("the past notices one token alone. Which tokens did you try?", "one-draw-is-enough"),
    "pick-batch": (
        "it sees other sequences, and its own future as well. Does your probe look for both, and go on after one?",
        "a-leak-is-of-one-kind",
    ),
}
ALARMS = {
    "plain": ("it is honest. Which positions may move when the token at s changes?", "what-moves-is-a-leak"),
    "dropout": (
        "it is honest, and draws at random in each call. Do two calls with the same tokens agree?",
        "dropout-is-a-leak",
    ),
    "rounding": ("it is honest, and rounds. From which size does a change count?", "honest-is-bitwise"),
    "queue": ("it is honest: what is full depends on the past. Which positions may move?", "what-moves-is-a-leak"),
    "statistics": (
        "it sees other sequences, and not its own future. Whose token did you change, whose position moved?",
        "other-sequences-are-the-future",
    ),
    "queue-batch": (
        "it sees other sequences, and not its own future. Whose token did you change, whose position moved?",
        "other-sequences-are-the-future",
    ),
}


def probe_judge(case: Case, returned: Any) -> Wrong | None:
    """Exact. Of honest models nothing moves by more than 2e-5, of the others something moves by 1e-3."""
    names = [name for name, _ in case["models"]]
    if not all(isinstance(one, bool) for pair in returned for one in pair):
        return Wrong("the probe says True or False, of the future and of the batch", form=True)
    said = dict(zip(names, returned, strict=True))
    if names[0] in SPOTS:
        return wrong_spots(said)
    number = {name: f"model {place} of {len(names)}" for place, name in enumerate(names, start=1)}
    wrong = [name for name in KINDS if tuple(said[name]) != KINDS[name]]
    if not wrong:
        return None
    many = f"{len(wrong)} of {len(names)} models wrong. "
    for value, word in ((True, "yes"), (False, "no")):
        if all(of_a_model == [value, value] for of_a_model in said.values()):
            many += f"Your probe says {word} to everything. "
    for name, (text, rule) in ALARMS.items():  # first what the probe sees and is not there
        if said[name][0]:
            return Wrong(f'{many}{number[name]}, "future": {text}', rule)
    noisy = [name for name in ("dropout", "rounding") if said[name][1] and not said["plain"][1]]
    if noisy:
        return Wrong(f'{many}{number[noisy[0]]}, "batch": {ALARMS[noisy[0]][0]}', ALARMS[noisy[0]][1])
    for name in KINDS:
        if said[name][1] and not KINDS[name][1]:
            text = "its sequences do not see each other. Which rows may move when you change one?"
            return Wrong(f'{many}{number[name]}, "batch": {text}', "a-sequence-sees-itself")
    if not any(said[name][0] for name in MISSED):
        return Wrong(f'{many}{number["next"]}, "future" is missed: {MISSED["next"][0]}', "nothing-leaks")
    for name, (text, misconception) in MISSED.items():
        if not said[name][0]:
            return Wrong(f'{many}{number[name]}, "future" is missed: {text}', misconception)
    missed = next(name for name in wrong if KINDS[name][1] and not said[name][1])
    if KINDS[missed][0]:  # those that see other sequences alone come first, and are right
        text = "it sees its own future, and other sequences as well. Does your probe look for both, and go on after "
        return Wrong(f'{many}{number[missed]}, "batch" is missed: {text}one?', "a-leak-is-of-one-kind")
    text = "another sequence's logits move. Which sequences did you change, and where in the others did you look?"
    return Wrong(f'{many}{number[missed]}, "batch" is missed: {text}', "sequences-cannot-meet")


PROBE = Exercise(
    id="leak-probe",
    title="Write the leak probe",
    cases=probe_cases,
    run=probe_run,
    judge=probe_judge,
    forbidden=("course_lib.failures",),
    misconceptions={
        "what-moves-is-a-leak": "what a token moves, it may not move",
        "dropout-is-a-leak": "two calls of one model give the same",
        "honest-is-bitwise": "an honest model's past does not move by a single bit",
        "other-sequences-are-the-future": "all tokens of a batch that come later are one's future",
        "a-sequence-sees-itself": "a change is seen by other sequences when anything moves",
        "nothing-leaks": "a look at one change is a test",
        "the-next-token-is-the-future": "a leak comes from the token right after",
        "the-last-token-is-the-future": "who does not see the last token does not see the future",
        "one-sequence-stands-for-all": "what holds for one sequence of a batch holds for all",
        "one-draw-is-enough": "any other token shows what a token does",
        "the-prediction-is-what-counts": "a leak changes what is predicted",
        "who-draws-cannot-leak": "of a model that draws at random nothing can be said",
        "more-changes-show-more": "what one change shows, many at once show all the more",
        "a-leak-is-of-one-kind": "a change that other sequences see is no matter of the future",
        "a-few-tries-are-enough": "a leak shows wherever one looks",
        "sequences-cannot-meet": "the sequences of a batch never see each other",
    },
)
