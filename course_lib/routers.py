"""Who takes which token, and what goes when an expert is full: the routers and drop rules of a mixture of experts.

Shapes: B sequences, T tokens, E experts. scores (B, T, E) are each token's softmax over the experts; gates (B, T, E)
are the weight of expert e's answer to token t, and 0 where e does not take t. Chapter 12 asks what a gate of token t
depends on: on t alone, on earlier tokens, on later ones, on other sequences. Each docstring says it.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = [
    "DROPS",
    "ROUTERS",
    "drop_by_score_in_batch",
    "drop_by_score_in_sequence",
    "drop_in_order",
    "drop_in_order_in_sequence",
    "expert_capacity",
    "expert_choice",
    "expert_choice_batch",
    "expert_choice_chunks",
    "new_thresholds",
    "share_scores",
    "threshold_choice",
    "token_choice",
]


def token_choice(scores: Tensor, top_k: int, bias: Tensor | None = None) -> Tensor:
    """Each token goes to the `top_k` experts it scores highest (Shazeer et al. 2017, arXiv 1701.06538).

    scores (B, T, E) -> gates (B, T, E). A token's gates depend on its own scores and on nothing else. bias (E,): added
    to the scores when experts are chosen, and not to the gates (Wang et al. 2024, arXiv 2408.15664).
    """
    experts = (scores if bias is None else scores + bias).topk(top_k, dim=2).indices  # (B, T, top_k)
    return torch.zeros_like(scores).scatter(2, experts, scores.gather(2, experts))


def expert_choice(scores: Tensor, top_k: int) -> Tensor:
    """Each expert takes the tokens of a sequence that score highest with it (Zhou et al. 2022, arXiv 2202.09368).

    scores (B, T, E) -> gates (B, T, E). An expert takes ceil(T top_k / E) tokens, so all work equally hard. A token is
    taken by about `top_k` experts on average, in the extreme by none or by all. Whether one is taken depends on the
    scores of all T tokens.
    """
    _, T, E = scores.shape
    gates, tokens = scores.topk(expert_capacity(T, E, top_k, 1.0), dim=1)  # (B, capacity, E)
    return torch.zeros_like(scores).scatter(1, tokens, gates)


def expert_choice_batch(scores: Tensor, top_k: int) -> Tensor:
    """Like `expert_choice`, out of the B T tokens of the whole batch: the published form, where B is large.

    Whether a token is taken depends on the scores of later tokens, and on those of other sequences.
    """
    return expert_choice(scores.flatten(0, 1)[None], top_k).view_as(scores)


def expert_choice_chunks(scores: Tensor, top_k: int, chunk: int) -> Tensor:
    """Like `expert_choice`, within each `chunk` neighbouring tokens of a sequence; the last chunk may be shorter.

    Whether a token is taken depends on the later tokens of its own chunk.
    """
    return torch.cat([expert_choice(piece, top_k) for piece in scores.split(chunk, dim=1)], dim=1)


def threshold_choice(scores: Tensor, thresholds: Tensor) -> Tensor:
    """Expert e takes every token that scores at least thresholds[e] with it. scores (B, T, E), thresholds (E,).

    The thresholds come from earlier batches (`new_thresholds`), so nothing of this batch decides but the token's own
    scores. How many tokens an expert takes is equal over many batches, and differs in any single one.
    """
    return scores * (scores >= thresholds)


def share_scores(scores: Tensor, top_k: int) -> Tensor:
    """(E,): the score at which each expert would have taken its share of these tokens, ceil(B T top_k / E) of them."""
    rows = scores.flatten(0, 1)  # (B T, E)
    return rows.topk(expert_capacity(len(rows), rows.shape[1], top_k, 1.0), dim=0).values[-1]


def new_thresholds(thresholds: Tensor, scores: Tensor, top_k: int, rate: float) -> Tensor:
    """Thresholds (E,) moved by the share `rate` to what would have been right for this batch. For after the step."""
    return thresholds.lerp(share_scores(scores, top_k).to(thresholds.dtype), rate)


ROUTERS: dict[str, Callable[..., Tensor]] = {
    "token_choice": token_choice,
    "expert_choice": expert_choice,
    "expert_choice_batch": expert_choice_batch,
    "expert_choice_chunks": expert_choice_chunks,
    "threshold": threshold_choice,
}


# ------------------------------------------------------------------------------------- what goes when an expert is full


def expert_capacity(tokens: int, n_experts: int, top_k: int, factor: float) -> int:
    """Assignments that an expert takes of a batch of `tokens`: tokens x top_k / experts x factor, rounded up.

    Fedus et al. 2021 (Switch, arXiv 2101.03961), equation 3, for top_k = 1; Lepikhin et al. 2020 (GShard, 2006.16668)
    have two experts a token.
    """
    return math.ceil(tokens * top_k / n_experts * factor)


def drop_in_order(gates: Tensor, capacity: int) -> Tensor:
    """Each expert keeps its first `capacity` tokens, in the order of the batch: by sequence, from left to right.

    gates (B, T, E) -> gates with zeros for the rest. A token depends on earlier ones of its sequence and on all of the
    sequences before it, and on nothing later.
    """
    taken = (gates != 0).flatten(0, 1)  # (B T, E)
    kept = taken & (taken.cumsum(0) <= capacity)
    return gates * kept.view_as(gates)


def drop_in_order_in_sequence(gates: Tensor, capacity: int) -> Tensor:
    """Each expert keeps the first of each sequence, capacity / B of them, rounded up, from left to right.

    A token depends on earlier ones of its sequence and on nothing else.
    """
    taken = gates != 0
    return gates * (taken.cumsum(1) <= _each(gates, capacity))


def drop_by_score_in_sequence(gates: Tensor, capacity: int) -> Tensor:
    """Each expert keeps the highest gates of each sequence, capacity / B of them, rounded up; ties: the first ones.

    A token depends on later ones of its sequence, and on no other sequence.
    """
    return gates * (_places(gates) < _each(gates, capacity))


def drop_by_score_in_batch(gates: Tensor, capacity: int) -> Tensor:
    """Each expert keeps the `capacity` highest gates of the batch; ties: the first ones.

    A token depends on later ones of its sequence, and on all other sequences.
    """
    return gates * (_places(gates.flatten(0, 1)[None]) < capacity).view_as(gates)


def _each(gates: Tensor, capacity: int) -> int:
    """A sequence's part of the batch's capacity."""
    return -(-capacity // max(1, gates.shape[0]))


def _places(gates: Tensor) -> Tensor:
    """(B, T, E) -> each gate's place in its sequence and expert when the highest comes first: 0, 1, ..."""
    return gates.argsort(dim=1, descending=True, stable=True).argsort(dim=1)


DROPS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "in_order": drop_in_order,
    "in_order_in_sequence": drop_in_order_in_sequence,
    "by_score_in_sequence": drop_by_score_in_sequence,
    "by_score_in_batch": drop_by_score_in_batch,
}
