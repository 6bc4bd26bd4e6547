"""Check 10.6: causal attention over a split sequence, keys and values handed round a ring.

The ranks are those of `ch10_group`, and in the last case two processes. The oracle is attention in one piece, float64.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from course_lib.checks.ch07_ranks import on_ranks, stopped
from course_lib.checks.ch10_blocks import Processes, ring_work
from course_lib.checks.ch10_group import ranks_here
from course_lib.checks.core import CHANGED, Case, Exercise, Wrong

__all__ = ["RING_ATTENTION"]

CLOSE = 2e-5
"""FP32 sums of up to 24 terms near 1 are off by 1e-6; every stated mistake moves some number by over 1e-2."""


def ring_cases(seed: int) -> list[Case]:
    """How positions are dealt out is fixed, the numbers and the mixed positions follow the seed."""
    rng = np.random.default_rng([seed, 1006])

    def case(name: str, split: str, ranks: int, share: int, real: bool = False) -> Case:
        length = ranks * share
        order = np.arange(length)
        if split == "zig-zag":
            chunks = np.array_split(order, 2 * ranks)
            order = np.concatenate([np.concatenate([chunks[r], chunks[-1 - r]]) for r in range(ranks)])
        if split == "mixed":
            order = rng.permutation(length)
        shape = (2, length, 4)
        q, k, v = (torch.tensor(rng.normal(size=shape) * scale, dtype=torch.float32) for scale in (3, 1, 2))
        rows = torch.tensor(order.reshape(ranks, share))
        return {"name": name, "split": split, "rows": rows, "q": q, "k": k, "v": v, "real": real}

    return [
        case("three ranks, a piece in a row each", "pieces", 3, 4),
        case("two ranks, a piece in a row each", "pieces", 2, 4),
        case("three ranks, zig-zag", "zig-zag", 3, 4),
        case("four ranks, positions in no order", "mixed", 4, 3),
        case("one rank", "pieces", 1, 5),
        case("two processes, zig-zag", "zig-zag", 2, 6, real=True),
    ]


def _on_a_process(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    return ring_work(answer, case, Processes(dist.get_rank(), dist.get_world_size()))


def ring_run(answer: Callable[..., Any], case: Case) -> dict[str, Any]:
    ranks = len(case["rows"])
    if case["real"]:
        return {"processes": on_ranks(_on_a_process, ranks, answer, case)}
    return ranks_here(lambda group: ring_work(answer, case, group), ranks)


# The oracle: all queries and keys at once. times (query, key): how often a key is counted for a query.


def _attention(case: Case, times: Tensor) -> Tensor:
    """(ranks, H, T/N, D), the queries as the ranks hold them; `times` is in that order too."""
    q, k, v = _in_order(case)
    logits = q @ k.mT / q.shape[-1] ** 0.5
    weights = times.double() * (logits - logits.amax(-1, keepdim=True)).exp()
    return _by_rank(case, weights @ v / weights.sum(-1, keepdim=True))


def _in_order(case: Case) -> list[Tensor]:
    return [case[name][:, case["rows"].flatten()].double() for name in ("q", "k", "v")]


def _by_rank(case: Case, out: Tensor) -> Tensor:
    return torch.stack(out.chunk(len(case["rows"]), 1))


def _averaged(case: Case, seen: Tensor) -> Tensor:
    """The mean of the outputs of the blocks that a rank sees anything of."""
    ranks, share = case["rows"].shape
    q, k, v = _in_order(case)
    logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(~seen, -torch.inf)
    total, count = torch.zeros_like(q), torch.zeros(ranks * share)
    for block in range(ranks):
        at = slice(block * share, (block + 1) * share)
        any_of_it = seen[:, at].view(ranks, share, share).flatten(1).any(1).repeat_interleave(share)
        total += torch.where(any_of_it[:, None], logits[..., at].softmax(-1) @ v[:, at], 0.0)
        count += any_of_it
    return _by_rank(case, total / count[:, None])


def _guesses(case: Case) -> dict[str, Tensor]:
    """What each mistake gives, (ranks, H, T/N, D)."""
    rows = case["rows"]
    ranks, share = rows.shape
    place = rows.flatten()
    block = torch.arange(ranks).repeat_interleave(share)
    mine, theirs = block[:, None], block[None, :]
    local = torch.arange(share).repeat(ranks)
    row = block * share + local  # the positions if every rank had a piece in a row
    seen = place <= place[:, None]
    steps = (mine - theirs) % ranks  # after how many steps a block arrives
    other = place.view(ranks, share)[(mine + steps) % ranks, local.expand(len(local), -1)]
    own = place.view(ranks, share)[mine, local.expand(len(local), -1)]  # the query's rank, and the key's place there
    order = rows.sort().values.flatten()
    before = (theirs == (mine - 1) % ranks) * (ranks - 1) + (mine == theirs) * 1
    times = {
        "every-key-is-seen": torch.ones_like(seen),
        "places-in-the-block": local <= local[:, None],
        "own-positions-for-all": own <= place[:, None],
        "the-mask-is-turned": place >= place[:, None],
        "rows-are-keys": own >= place.view(ranks, share)[theirs, local[:, None]],
        "nobody-sees-itself": place < place[:, None],
        "my-keys-are-enough": seen & (mine == theirs),
        "the-own-block-is-left-out": seen & (mine != theirs),
        "one-step-too-few": seen & (steps < ranks - 1),
        "later-ranks-are-later": seen & (theirs <= mine),
        "pieces-in-a-row": row <= place[:, None],
        "pieces in a row, both": row <= row[:, None],
        "comes-from-the-next": other <= place[:, None],
        "only-the-own-is-passed": seen * before,
        "counts-its-own-twice": seen * (1 + (mine == theirs)),
        "own block by places": torch.where(mine == theirs, local <= local[:, None], seen),
        "positions-are-in-order": order <= order[:, None],
    }
    found = {name: _attention(case, times[name]) for name in times}
    return found | {"outputs-are-averaged": _averaged(case, seen)}


RING_HINTS = {
    "every-key-is-seen": "every query sees every key. Which ones may it see?",
    "places-in-the-block": (
        "you compare places in the block, or positions of this rank alone. Where in the sequence are these keys?"
    ),
    "own-positions-for-all": "you compare with this rank's positions. Whose keys are these after a step?",
    "the-mask-is-turned": "each query sees itself and what comes after it",
    "rows-are-keys": "a row of `allowed` belongs to a key in yours. Which side of it are the queries?",
    "nobody-sees-itself": "no query sees its own key, and the first one sees none",
    "my-keys-are-enough": "each query sees the keys of its own rank alone. What travels?",
    "the-own-block-is-left-out": "the keys that a rank begins with are missing",
    "one-step-too-few": "the block that arrives last is missing. After how many steps has a rank had all {n} blocks?",
    "later-ranks-are-later": "a rank leaves out the blocks of all ranks after it. Which positions do those have here?",
    "pieces-in-a-row": "you take keys for a piece in a row. Which positions does a rank have here?",
    "pieces in a row, both": "you take each rank's positions for a piece in a row. Which ones does it have here?",
    "comes-from-the-next": "the keys have the positions of other ranks. From which side does a block come?",
    "only-the-own-is-passed": "the same block comes in every step. Which one does a rank pass on?",
    "counts-its-own-twice": "the keys that a rank begins with count twice",
    "own block by places": "in the own block you compare places. In which order does a rank hold its positions?",
    "positions-are-in-order": "you take each rank's positions in increasing order. In which order are q, k and v?",
    "outputs-are-averaged": "the output is the mean of the blocks' outputs. Which block should count more?",
}
SAME_BELIEF = {
    "own-positions-for-all": "places-in-the-block",
    "own block by places": "places-in-the-block",
    "pieces in a row, both": "pieces-in-a-row",
}


def ring_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Outputs within CLOSE of attention in one piece; what travels and what is computed is counted exactly."""
    returned = returned.get("processes", returned)
    if "stopped" in returned:
        if isinstance(returned["stopped"], dict):
            return stopped(returned["stopped"], "a-skipped-block-stays")
        message = f"{returned['stopped']}. A block that is of no use here: who waits for it?"
        return Wrong(message, "a-skipped-block-stays")
    guesses = _guesses(case)
    place = case["rows"].flatten()
    right = _attention(case, place <= place[:, None])
    got = [one["out"] for one in returned["ranks"]]
    for rank, out in enumerate(got):
        if not isinstance(out, Tensor):
            return Wrong(f"a tensor is wanted; on rank {rank} {out} came back. {_no_output(out)}", form=True)
        if out.shape != right[rank].shape:
            return Wrong(f"rank {rank} returns shape {tuple(out.shape)}; {tuple(right[rank].shape)} is wanted")
    both = torch.stack(got).double()
    if _near(both, right):
        return _too_much(case, returned["ranks"])
    for rule, guess in guesses.items():
        if _near(both, guess) and not _near(guess, right):
            return Wrong(RING_HINTS[rule].format(n=len(got)), SAME_BELIEF.get(rule, rule))
    wrong = _talks_wrong(case, returned["ranks"])
    if wrong is not None:
        return wrong
    if bool(torch.isnan(both).any()):
        return Wrong("NaN came out: some query has seen no key at all")
    bad = [rank for rank in range(len(got)) if not _near(both[rank], right[rank])]
    return Wrong(f"on rank {bad[0]} of {len(got)} the output is not that of attention in one piece")


def _no_output(came: str) -> str:
    """What to ask where no tensor came back."""
    if came == "nothing":
        return "Is there a `return`?"
    partial = came == "a tuple of three"
    return "That is a partial result: what makes an output of it?" if partial else "Which tensor is the output?"


def _talks_wrong(case: Case, ranks: list[dict[str, Any]]) -> Wrong | None:
    """What the calls of an answer tell whose outputs are wrong."""
    n, share = case["rows"].shape
    keys = case["k"][:, :share].numel() + case["v"][:, :share].numel()
    sent = [elements for _, elements in ranks[0]["calls"]]
    for rank, one in enumerate(ranks):
        if one["finished"] > 1:
            message = f"the outputs are wrong; rank {rank} calls `finish` {one['finished']} times"
            return Wrong(f"{message}. Over which keys do a softmax's weights add up to 1?", "outputs-are-added")
    if any(name != "rotate" for name, _ in ranks[0]["calls"]):
        return None
    if max(sent, default=0) > keys + share:
        message = f"the outputs are wrong; a rank sends {max(sent)} numbers in a step. Keys, values and positions are"
        return Wrong(f"{message} {keys + share}. What else goes, and whose is it after a step?", "queries-travel-too")
    if sum(sent) < (n - 1) * keys:
        message = (
            f"the outputs are wrong; a rank sends {sum(sent)} numbers in all. Keys and values of a block are {keys},"
        )
        return Wrong(f"{message} and there are {n} blocks. What has to come to a rank?")
    return None


def _near(got: Tensor, wanted: Tensor) -> bool:
    odd = torch.isnan(wanted)
    return bool((torch.isnan(got) == odd).all()) and bool(((got - wanted)[~odd].abs() <= CLOSE * 10).all())


def _too_much(case: Case, ranks: list[dict[str, Any]]) -> Wrong | None:
    """Refuse what is right, and sends or computes more than it has to."""
    n, share = case["rows"].shape
    for name in ("all_gather", "all_reduce", "reduce_scatter"):
        if any(call[0] == name for call in ranks[0]["calls"]):
            return Wrong(f"the outputs are right, with `{name}`. Here blocks go round by `rotate` alone", "all-at-once")
    block = case["k"][:, :share].numel() + case["v"][:, :share].numel() + share
    sent, most = [call[1] for call in ranks[0]["calls"]], (n - 1) * block
    if max(sent, default=0) > block:
        message = f"the outputs are right; a step sends {max(sent)} numbers. Keys, values and positions are {block}"
        return Wrong(message, "queries-travel-too")
    if sum(sent) > most:
        rule = "the-ring-is-closed" if sum(sent) >= most + block - share else None
        message = f"the outputs are right; a rank sends {sum(sent)} numbers. A block has {block}, of {n} ranks: "
        return Wrong(message + "how many steps does the last block need?", rule)
    place = case["rows"]
    for rank, one in enumerate(ranks):
        if not one["asked"]:
            return Wrong("the outputs are right, without `attend`: the check counts there what is computed")
        if max(keys for _, keys, _ in one["asked"]) > share:
            return Wrong("the outputs are right; `attend` was given more than one block of keys at once", "all-at-once")
        if one["visitors"] > 2 * block:
            message = (
                f"the outputs are right; rank {rank} holds {one['visitors']} numbers of other ranks' blocks at once"
            )
            return Wrong(
                f"{message}, and a block has {block}. What is left of one after it was computed?", "all-at-once"
            )
        useful = sum(bool((place[other] <= place[rank][:, None]).any()) for other in range(n))
        if any(allowed == 0 for _, _, allowed in one["asked"]):
            message = f"the outputs are right; rank {rank} computes a block of which it sees nothing"
            return Wrong(message, "what-is-masked-costs-nothing")
        if sum(queries * keys for queries, keys, _ in one["asked"]) > useful * share * share:
            return Wrong(f"the outputs are right; rank {rank} computes something twice")
        if one["changed"]:
            return Wrong(f"the outputs are right, but {CHANGED}")
    return None


RING_ATTENTION = Exercise(
    id="ring-attention",
    title="Ring attention",
    cases=ring_cases,
    run=ring_run,
    judge=ring_judge,
    forbidden=("course_lib.parallel", "torch.distributed", "torch.nn.functional.scaled_dot_product_attention"),
    misconceptions={
        "every-key-is-seen": "a mask is not needed where the sequence is split",
        "places-in-the-block": "within a block, places are positions",
        "the-mask-is-turned": "a query sees what comes after it",
        "rows-are-keys": "the rows of a mask are keys",
        "nobody-sees-itself": "a query sees the keys before its own",
        "my-keys-are-enough": "attention needs the keys of its own rank",
        "the-own-block-is-left-out": "what a rank sees has to arrive first",
        "one-step-too-few": "with N ranks a block takes N - 2 steps",
        "later-ranks-are-later": "the rank's number tells which blocks are in the future",
        "pieces-in-a-row": "a rank has a piece of the sequence in a row",
        "comes-from-the-next": "blocks come from the next rank",
        "only-the-own-is-passed": "each rank sends its own block in every step",
        "counts-its-own-twice": "the own block is counted before the ring begins, and in it",
        "positions-are-in-order": "whatever a rank holds is in increasing order",
        "outputs-are-added": "the outputs of blocks are added up",
        "outputs-are-averaged": "the outputs of blocks are averaged",
        "a-skipped-block-stays": "a block that this rank does not need, it need not pass on",
        "what-is-masked-costs-nothing": "a block that is masked costs nothing",
        "the-ring-is-closed": "blocks travel until they are home again",
        "queries-travel-too": "queries travel with keys and values",
        "all-at-once": "the blocks are brought together before attention begins",
    },
)
