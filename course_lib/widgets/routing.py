"""The explorer of routing: move a later token's score, and see whose expert that takes away."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from course_lib.figures.routing_svg import Routed, routing_still, routing_svg
from course_lib.widgets.controls import ChoiceControl, FloatControl, IntControl
from course_lib.widgets.explorer import Explorer, Goal, Preset, View, explorer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["routing_explorer"]

RULES: dict[str, tuple[str, str]] = {
    "tokens choose, no limit": ("token_choice", ""),
    "tokens choose; full: keep a sequence's first": ("token_choice", "in_order_in_sequence"),
    "tokens choose; full: keep the batch's first": ("token_choice", "in_order"),
    "tokens choose; full: keep a sequence's best": ("token_choice", "by_score_in_sequence"),
    "tokens choose; full: keep the batch's best": ("token_choice", "by_score_in_batch"),
    "experts choose in a sequence": ("expert_choice", ""),
    "experts choose in four tokens": ("expert_choice_chunks", ""),
    "experts choose in the batch": ("expert_choice_batch", ""),
    "experts take what is above a threshold": ("threshold", ""),
}
"""As the control names them: router and drop rule of `routers.py`."""

WORDS = (
    ("The", "cat", "sat", "on", "the", "mat", "and", "purred", "while", "we", "were", "out"),
    ("Most", "dogs", "run", "in", "a", "park", "all", "day", "until", "it", "gets", "dark"),
)
OPENS = "experts choose in a sequence"
START = 0.1
"""Of the score that moves."""
CHUNK = 4


@lru_cache(maxsize=64)
def _drawn(tokens: int, experts: int, seed: int) -> np.ndarray:
    """Scores (2, T, E) of the two sequences, or of an earlier batch."""
    logits = np.random.default_rng(seed).normal(0, 1.2, (2, len(WORDS[0]), experts))[:, :tokens]
    scores = np.exp(logits)
    return np.asarray(scores / scores.sum(2, keepdims=True))


def _scores(values: Mapping[str, Any], score: float) -> np.ndarray:
    """Scores (2, T, E) where the moved token's with expert A is `score`, and its others share the rest as before."""
    scores = _drawn(values["tokens"], values["experts"], 4).copy()
    row = scores[0, _place(values)]
    row[1:] *= (1 - score) / row[1:].sum()
    row[0] = score
    return scores


def _place(values: Mapping[str, Any]) -> int:
    return int(min(values["token"], values["tokens"])) - 1


def _route(values: Mapping[str, Any], scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Taken and dropped, (2, T, E) bool."""
    import torch

    from course_lib import routers

    router, drop = RULES[values["rule"]]
    given, top_k = torch.from_numpy(scores), values["top_k"]
    if router == "threshold":
        earlier = torch.from_numpy(_drawn(values["tokens"], values["experts"], 5))
        gates = routers.threshold_choice(given, routers.share_scores(earlier, top_k))
    elif router == "expert_choice_chunks":
        gates = routers.expert_choice_chunks(given, top_k, CHUNK)
    else:
        gates = routers.ROUTERS[router](given, top_k)
    kept = routers.DROPS[drop](gates, _capacity(values)) if drop else gates
    return (kept != 0).numpy(), ((gates != 0) & (kept == 0)).numpy()


def _capacity(values: Mapping[str, Any]) -> int:
    """What an expert takes of the batch's two sequences, where there is a limit."""
    from course_lib.routers import expert_capacity

    return expert_capacity(2 * values["tokens"], values["experts"], values["top_k"], values["factor"])


def _limited(values: Mapping[str, Any]) -> bool:
    return bool(RULES[values["rule"]][1])


def _asked(values: Mapping[str, Any]) -> Routed:
    scores = _scores(values, values["score"])
    taken, dropped = _route(values, scores)
    before, _ = _route(values, _scores(values, START))
    words = [sentence[: values["tokens"]] for sentence in WORDS]
    return Routed(words, scores, taken, dropped, before, _place(values))


def _changed(routed: Routed) -> tuple[list[str], list[str], list[str]]:
    """Words that other experts take than before: earlier in the sequence, later in it, in the other sequence."""
    where = (routed.taken != routed.before).any(2)  # (2, T)
    first, other = (
        [(i, words[i]) for i in np.flatnonzero(row).tolist()] for words, row in zip(routed.words, where, strict=True)
    )
    earlier = [word for i, word in first if i < routed.moved]
    later = [word for i, word in first if i > routed.moved]
    return earlier, later, [word for _, word in other]


def _words(values: Mapping[str, Any], routed: Routed) -> tuple[str, str]:
    """Title and subtitle."""
    earlier, _, other = _changed(routed)
    word, moved = routed.words[0][routed.moved], abs(values["score"] - START) > 1e-9
    if earlier:
        title = f"“{word}” comes later, and changes the experts of {_some(earlier)} before it"
    elif other:
        title = f"“{word}” moves {_some(other)} of the other sequence, and nothing before it"
    else:
        title = f"“{word}” moves no token before it" if moved else f"Move the score of “{word}” with expert A"
    subtitle = f"Its score with expert A went from {START:.2f} to {values['score']:.2f}." if moved else ""
    subtitle += f" {values['rule'].capitalize()}."
    if _limited(values):
        visits, takes, of = values["tokens"] * values["top_k"], _capacity(values), "batch"
        if RULES[values["rule"]][1].endswith("sequence"):
            takes, of = -(-takes // 2), "sequence"
        subtitle += f" An expert takes {takes} of the {visits if of == 'sequence' else 2 * visits} visits of a {of}."
    return title, subtitle.strip()


def _some(words: list[str]) -> str:
    return f"“{words[0]}”" if len(words) == 1 else f"{len(words)} tokens"


def _draw(**values: Any) -> View:
    routed = _asked(values)
    title, subtitle = _words(values, routed)
    earlier, later, other = _changed(routed)
    lost = (routed.before & ~routed.taken)[0, : routed.moved]  # (earlier tokens, E)
    row = [
        (str(len(earlier)), "earlier tokens changed"),
        (str(len(later)), "later ones"),
        (str(len(other)), "of the other sequence"),
    ]
    if _limited(values):
        row.append((str(int(routed.dropped.sum())), "visits dropped"))
    said = ", ".join(f"“{routed.words[0][t]}” from expert {'ABCD'[e]}" for t, e in zip(*np.nonzero(lost), strict=True))
    return View(
        routing_svg(routed, title=title, subtitle=subtitle),
        alt=f"{title}. {subtitle}" + f" Taken away: {said}." * bool(said),
        numbers=row,
        message=f"There are {values['tokens']} tokens: the last one moves."
        if values["token"] > values["tokens"]
        else "",
        data={"earlier": earlier, "later": later, "other": other, "lost": int(lost.sum()), "routed": routed},
    )


def _still(**values: Any) -> Figure:
    routed = _asked(values)
    title, subtitle = _words(values, routed)
    return routing_still(routed, title=title, subtitle=subtitle)


def _takes(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["lost"])


def _only_others(values: Mapping[str, Any], view: View) -> bool:
    return bool(view.data["other"]) and not view.data["earlier"]


def _limit_without(values: Mapping[str, Any], view: View) -> bool:
    """Visits are dropped, the score has gone far, and it moves its own token and later ones alone."""
    quiet = not view.data["earlier"] and not view.data["other"]
    return bool(values["score"] >= 0.9 and view.data["later"] and view.data["routed"].dropped.any() and quiet)


def routing_explorer() -> Explorer:
    """Display the explorer of chapter 12: two short sequences, up to four experts, and one score that moves.

    The routers and drop rules are `routers.py`'s own. What was taken before the score moved has a frame where it is
    taken no more.
    """
    return explorer(
        _draw,
        [
            ChoiceControl(name="rule", label="rule", options=tuple(RULES), default=OPENS),
            IntControl(name="token", label="token that moves", min=1, max=12, default=8),
            FloatControl(name="score", label="its score with expert A", min=0.02, max=0.98, step=0.02, default=START),
            FloatControl(
                name="factor",
                label="capacity factor",
                min=0.25,
                max=2,
                step=0.25,
                default=1,
                more=True,
                enabled=_limited,
            ),
            IntControl(name="experts", label="experts", min=2, max=4, default=3, more=True),
            IntControl(name="top_k", label="experts per token", min=1, max=2, default=1, more=True),
            IntControl(name="tokens", label="tokens in a sequence", min=4, max=12, default=8, more=True),
        ],
        presets=[
            Preset("Tokens choose", {"rule": "tokens choose, no limit"}),
            Preset("The best stay", {"rule": "tokens choose; full: keep a sequence's best"}),
            Preset("The first stay", {"rule": "tokens choose; full: keep the batch's first"}),
            Preset("A threshold", {"rule": "experts take what is above a threshold"}),
        ],
        goals=[
            Goal("A later token's score takes an expert away from an earlier token", _takes),
            Goal("It changes the other sequence, and nothing before it in its own", _only_others),
            Goal(
                "Visits are dropped; at 0.90 or more it changes later tokens of its own sequence alone", _limit_without
            ),
        ],
        still=_still,
        title="Whose expert does a later token take?",
        caption=(
            "A block is a sequence of the batch, a column a token, a row an expert; in a cell the token's score. "
            "The framed token's score with expert A moves. What an earlier token loses by that, generation cannot know."
        ),
    )
