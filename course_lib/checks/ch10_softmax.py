"""Check 10.4: two partial results of attention become one, and the last one becomes an output.

A partial result of some keys is (m, l, o), for each head and query: the largest logit, the sum of exp(logit - m), and
the sum of exp(logit - m) times value. The oracle makes it of all these keys at once, in float64.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from course_lib.checks.ch10_group import untouched
from course_lib.checks.core import CHANGED, Case, Exercise, Wrong, WrongForm, kind

__all__ = ["MERGE", "partial_of"]

CLOSE = 2e-5
"""Of the largest number of a tensor. FP32 sums of 24 terms are off by 1e-6, each stated mistake by over 1e-3."""

Partial = tuple[Tensor, Tensor, Tensor]
NAMES = ("m", "l", "o")
INF = float("inf")


def partial_of(logits: Tensor, values: Tensor) -> Partial:
    """(m, l, o) of a block: logits (H, T, S), -inf where masked; values (H, S, D). A row without a key: -inf, 0, 0."""
    m = logits.amax(-1)
    weights = (logits - m.clamp(min=torch.finfo(m.dtype).min).unsqueeze(-1)).exp()
    return m, weights.sum(-1), weights @ values


def merge_cases(seed: int) -> list[Case]:
    """What decides is fixed: where the largest logit comes, how far apart, which rows are masked in which block.

    order: how the blocks are merged, in pairs of places; each result goes to the end of the list.
    """
    rng = np.random.default_rng([seed, 1004])
    queries, keys, width = 5, 6, 4

    def case(name: str, tops: list[list[float]], order: list[tuple[int, int]] | None = None) -> Case:
        """tops: for each block, each query's largest logit; -inf masks the row."""
        blocks = []
        for top in tops:
            logits = torch.tensor(rng.uniform(-6, -0.5, size=(2, queries, keys)), dtype=torch.float32)
            logits[..., int(rng.integers(keys))] = 0
            logits += torch.tensor(top, dtype=torch.float32)[:, None]
            values = torch.tensor(rng.uniform(0.5, 3, size=(2, keys, width)), dtype=torch.float32)
            blocks.append({"logits": logits, "values": values})
        return {"name": name, "blocks": blocks, "order": order or [(0, 1)]}

    a, b, c = (float(x) for x in rng.uniform(1, 3, size=3))
    four = [[0.0] * 5, [a, -b, c, 2, 1], [b, 3, -1, a, 0], [-1, c, 1, 3, b]]
    apart = [[200.0, -200, 199, -200, 0], [199.0, -199, -200, 200, -200]]
    low = [[-INF, -200, -INF, -201, -INF], [-200, -INF, -199, -INF, -202]]
    none_yet = [[-INF, -INF, 0, 1, -INF], [-INF, -INF, a, -INF, b], [b, -150, c, 0, 1]]
    return [
        case("two blocks, the larger logit in the one or the other", [[0, a, 0, 1 + c, b], [b, 0, 2 + a, 0, c]]),
        case("two blocks, logits from -200 to 200", apart),
        case("four blocks, one after the other", four, [(0, 1), (4, 2), (5, 3)]),
        case("four blocks, in pairs", four, [(1, 3), (2, 0), (5, 4)]),
        case("some queries see no key of a block, logits near -200", low),
        case("some queries see no key of the first two blocks", none_yet, [(0, 1), (3, 2)]),
    ]


def merge_run(answer: Any, case: Case) -> dict[str, Any]:
    if not isinstance(answer, Mapping) or not all(callable(answer.get(name)) for name in ("merge", "finish")):
        raise WrongForm(f'hand in {{"merge": merge, "finish": finish}}, two functions; yours is {kind(answer)}')
    held: list[Any] = [partial_of(block["logits"], block["values"]) for block in case["blocks"]]
    merged: list[Any] = []
    left = {"merge": True, "finish": True}
    for first, second in case["order"]:
        given = [tuple(t.clone() for t in held[place]) for place in (first, second)]
        back = answer["merge"](*given)
        left["merge"] &= all(map(untouched, given, (held[first], held[second])))
        if not isinstance(back, tuple | list) or len(back) != 3 or not all(isinstance(t, Tensor) for t in back):
            return {"merged": merged, "form": kind(back)}
        merged.append([t.detach().clone() for t in back])
        if not _shapes_fit(merged[-1], held[0]):
            return {"merged": merged, "out": None}
        held.append(tuple(merged[-1]))
    last = tuple(t.clone() for t in held[-1])
    out = answer["finish"](last)
    left["finish"] = untouched(last, held[-1])
    changed = [name for name in left if not left[name]]
    return {"merged": merged, "changed": changed, "out": out.detach().clone() if isinstance(out, Tensor) else kind(out)}


def _shapes_fit(got: Any, like: Any) -> bool:
    return all(a.shape == b.shape for a, b in zip(got, like, strict=True))


# The oracle: the keys of several blocks, put together.


def _of(case: Case, places: list[int]) -> Partial:
    """(m, l, o) of all keys of the blocks, in float64."""
    blocks = [case["blocks"][place] for place in places]
    logits = torch.cat([block["logits"].double() for block in blocks], -1)
    return partial_of(logits, torch.cat([block["values"].double() for block in blocks], -2))


def _near(got: Tensor, wanted: Tensor) -> bool:
    if got.shape != wanted.shape:
        return False
    finite = torch.isfinite(wanted)
    if not torch.equal(got.double()[~finite], wanted[~finite]):
        return False
    wanted = torch.where(finite, wanted, 0.0)
    scale = wanted.abs().max().clamp(min=1e-6)
    return bool((torch.where(finite, got.double() - wanted, 0.0).abs() <= CLOSE * scale).all())


def _exp(x: Tensor) -> Tensor:
    """exp of a difference of maxima; where both are -inf, 0: nothing is there to be scaled."""
    return torch.nan_to_num(x, nan=-INF, posinf=INF, neginf=-INF).exp()


def _guesses(first: Partial, second: Partial) -> dict[str, Partial]:
    """What each misconception makes of two right partial results."""
    (ma, la, oa), (mb, lb, ob) = first, second
    m = torch.maximum(ma, mb)
    a, b = _exp(ma - m), _exp(mb - m)
    col = lambda t: t.unsqueeze(-1)
    one = lambda m, a, b, la=la, lb=lb: (m, a * la + b * lb, col(a) * oa + col(b) * ob)
    ones = torch.ones_like(m)
    rise, norm = one(m, a, b), a * la + b * lb
    return {
        "right": rise,
        "nothing-is-rescaled": one(m, ones, ones),
        "only-the-sum-is-rescaled": (m, norm, oa + ob),
        "only-the-output-is-rescaled": (m, la + lb, rise[2]),
        "the-new-one-is-the-larger": one(m, a, ones),
        "the-old-one-is-the-larger": one(m, ones, b),
        "upside-down": one(m, _exp(m - ma), _exp(m - mb)),
        "the-first-maximum-stays": one(ma, ones, _exp(mb - ma)),
        "the-last-maximum-counts": one(mb, _exp(ma - mb), ones),
        "outputs-are-averaged": (m, norm, (oa / col(la) + ob / col(lb)) / 2),
        "finished-too-early": (m, norm, rise[2] / col(norm)),
        "taken for an output": (m, norm, (col(a * la) * oa + col(b * lb) * ob) / col(norm)),
        "sums-are-averaged": (m, norm / 2, rise[2] / 2),
        "sums averaged as they are": (m, (la + lb) / 2, (oa + ob) / 2),
        "sums-the-maxima": (ma + mb, norm, rise[2]),
    }


MERGE_HINTS = {
    "nothing-is-rescaled": "both sums are added as they are. Against which maximum was each of them made?",
    "only-the-sum-is-rescaled": "`l` is right, and `o` is not. Which factor stands before every value in it?",
    "only-the-output-is-rescaled": "`o` is right, and `l` is not. Which factor stands before every term in it?",
    "the-new-one-is-the-larger": "only the first result is rescaled. What if the first one has the larger maximum?",
    "the-old-one-is-the-larger": "only the second result is rescaled. What if the second one has the larger maximum?",
    "upside-down": "the factor grows where it should shrink: is exp(logit - m) larger or smaller for a larger m?",
    "the-first-maximum-stays": "`m` is that of the first result. What if the second one has a larger logit?",
    "the-last-maximum-counts": "`m` is that of the second result. What if the first one has a larger logit?",
    "outputs-are-averaged": "`o` is the mean of two outputs. Which block should count more, and by how much?",
    "finished-too-early": "`o` is divided already. What will the next block be added to?",
    "taken for an output": "`o` is weighted as if it had been divided by `l`. Has it been?",
    "sums-are-averaged": "`l` and `o` are half as large as they should be. Is a sum over more keys a mean of two sums?",
    "sums averaged as they are": (
        "`l` and `o` are means of two sums. Is a sum over more keys a mean, and against which maximum was each made?"
    ),
    "sums-the-maxima": "`m` is a sum of two maxima; it is the largest logit of both",
}


SAME_BELIEF = {"taken for an output": "finished-too-early", "sums averaged as they are": "sums-are-averaged"}


def merge_judge(case: Case, returned: dict[str, Any]) -> Wrong | None:
    """Each merged result, then the output, within CLOSE of the largest number of all keys taken together."""
    merged, keys = returned["merged"], [[place] for place in range(len(case["blocks"]))]
    for number, (first, second) in enumerate(case["order"]):
        if number == len(merged):
            message = f"`merge` returns three tensors, (m, l, o); {returned['form']} came back"
            return Wrong(message, form=True)
        wrong = _wrong_merge(case, keys[first], keys[second], merged[number])
        if wrong is not None:
            many = f"merge {number + 1} of {len(case['order'])}: " if len(case["order"]) > 1 else ""
            return Wrong(many + wrong.message, wrong.misconception, wrong.form)
        keys.append(keys[first] + keys[second])
    if "form" in returned:
        return Wrong(f"`merge` returns three tensors, (m, l, o); {returned['form']} came back", form=True)
    wrong = _wrong_finish(returned["out"], _of(case, keys[-1]), len(case["blocks"]))
    if wrong is None and returned["changed"]:
        return Wrong(f"the numbers are right, but in `{returned['changed'][0]}` {CHANGED}")
    return wrong


def _wrong_merge(case: Case, first: list[int], second: list[int], got: list[Tensor]) -> Wrong | None:
    right = _of(case, first + second)
    for name, mine, wanted in zip(NAMES, got, right, strict=True):
        if mine.shape != wanted.shape:
            shape = f"`{name}` has shape {tuple(mine.shape)}; {tuple(wanted.shape)} is wanted"
            if name == "m" and mine.numel() < wanted.numel():
                return Wrong(f"{shape}. Whose maximum is it?", "one-maximum-for-all")
            return Wrong(shape, form=True)
    if all(_near(mine, wanted) for mine, wanted in zip(got, right, strict=True)):
        return None
    return _named(got, right, _of(case, first), _of(case, second))


def _named(got: list[Tensor], right: Partial, a: Partial, b: Partial) -> Wrong:
    (m, _, _), both = right, (a[0] == -INF) & (b[0] == -INF)
    missing = (a[0] == -INF) | (b[0] == -INF)
    guesses = _guesses(a, b)
    guesses.pop("right")
    for rule, guess in guesses.items():
        hint = MERGE_HINTS[rule]
        same = all(_near_or_nan(mine, theirs) for mine, theirs in zip(got, guess, strict=True))
        if same and not all(_near(one, two) for one, two in zip(guess, right, strict=True)):
            rule = SAME_BELIEF.get(rule, rule)
            return Wrong(hint, rule if rule in MERGE.misconceptions else None)
    bad = torch.isnan(got[1]) | torch.isnan(got[2]).any(-1) | torch.isnan(got[0])
    if bool(bad.any()):
        if bool((bad == both).all()):
            message = "NaN where a query sees no key of either block: what is -inf minus -inf?"
            return Wrong(message, "minus-infinity-is-a-number")
        if bool((bad <= missing).all()):
            message = "NaN where a query sees no key of one block. Which of your factors is exp(inf), or 0 x inf?"
            return Wrong(message, "minus-infinity-is-a-number")
        return Wrong("NaN came out. Which of your numbers overflows? exp(89) is infinity in FP32", "exp-of-anything")
    if bool(torch.isinf(got[1]).any() or torch.isinf(got[2]).any()):
        message = "a sum is infinite: exp(89) is more than FP32 holds. Which exponents are never above 0?"
        return Wrong(message, "exp-of-anything")
    if bool((got[0].double() != m)[both].any()) and bool((got[0].double() == m)[~both].all()):
        low = float(got[0].double()[both & (got[0].double() != m)].max())
        if low < -1e3:  # below all logits: it works, and is not what the text defines
            return Wrong(
                f"`m` is {low:g} where a query sees no key of either block; the text has -inf there", form=True
            )
        message = "`m` is not -inf where a query sees no key of either block. What if all later logits are below it?"
        return Wrong(message, "no-key-is-logit-zero")
    if not _near(got[0], m):
        if bool((got[0].double() >= m).all()) and bool(((got[0].double() == m) | missing).all()):
            message = "`m` is larger than every logit of a query that sees no key of one block. What is its maximum?"
            return Wrong(message, "no-key-is-logit-zero")
        if bool((got[0] == got[0].max()).all()):
            return Wrong("`m` is the same for all queries. Whose logits is it to be above?", "one-maximum-for-all")
        return Wrong("`m` is not the largest logit of the two blocks, query by query")
    off = " and ".join(f"`{n}`" for n, mine, wanted in zip(NAMES, got, right, strict=True) if not _near(mine, wanted))
    rows = (got[1].double() - right[1]).abs() > CLOSE * right[1].abs().clamp(min=1)
    if bool(rows.any()) and bool((rows <= missing).all()):
        message = f"{off} is off where a query sees no key of one block. How much does that block add to it?"
        return Wrong(message, "no-key-is-logit-zero")
    return Wrong(f"`m` is right, {off} not that of both blocks together")


def _near_or_nan(got: Tensor, wanted: Tensor) -> bool:
    """Near, and NaN or infinite at the same places."""
    got, odd = got.double(), ~torch.isfinite(wanted)
    same = torch.equal(torch.nan_to_num(got[odd], nan=7.0), torch.nan_to_num(wanted[odd], nan=7.0))
    return same and _near(torch.where(odd, 0.0, got), torch.where(odd, 0.0, wanted))


def _wrong_finish(out: Any, right: Partial, blocks: int) -> Wrong | None:
    m, norm, o = right
    if not isinstance(out, Tensor):
        return Wrong(f"`finish` returns a tensor; yours returns {out}", form=True)
    if out.shape != o.shape:
        return Wrong(f"the output has shape {tuple(out.shape)}; {tuple(o.shape)} is wanted", form=True)
    wanted = o / norm.unsqueeze(-1)
    if _near(out, wanted):
        return None
    if _near(out, o):
        message = "the merged results are right. `finish` returns `o` itself: do its weights add up to 1?"
        return Wrong(message, "weights-add-up-by-themselves")
    if _near(out, o / blocks):
        message = "the merged results are right. `finish` divides by the number of blocks. What do the weights sum to?"
        return Wrong(message, "divides-by-the-blocks")
    if _near_or_nan(out, o / m.unsqueeze(-1)):
        return Wrong("the merged results are right. `finish` divides by `m`. What do the weights in `o` add up to?")
    if _near_or_nan(out, wanted * (-m).exp().unsqueeze(-1)) or _near_or_nan(out, wanted * m.exp().unsqueeze(-1)):
        return Wrong("the merged results are right. `m` has no part in the output any more: where did it go?")
    return Wrong("the merged results are right, and the output is not softmax(logits) times values")


MERGE = Exercise(
    id="online-softmax",
    title="Online softmax",
    cases=merge_cases,
    run=merge_run,
    judge=merge_judge,
    forbidden=(
        "course_lib.parallel",
        *(f"course_lib.checks.{name}" for name in ("ch10.Blocks", "ch10_blocks", "ch10_ring", "ch10_softmax")),
    ),
    misconceptions={
        "nothing-is-rescaled": "sums that were made against different maxima may be added",
        "only-the-sum-is-rescaled": "the values' sum does not depend on the maximum",
        "only-the-output-is-rescaled": "the weights' sum does not depend on the maximum",
        "the-new-one-is-the-larger": "each new block brings a larger logit",
        "the-old-one-is-the-larger": "the first block has the largest logit",
        "upside-down": "a larger maximum makes the old sums larger",
        "the-first-maximum-stays": "the first block's maximum is good enough for all",
        "the-last-maximum-counts": "the newest block's maximum is good enough for all",
        "outputs-are-averaged": "the outputs of two blocks are averaged",
        "sums-are-averaged": "what comes from two blocks is averaged",
        "finished-too-early": "a partial output has weights that add up to 1",
        "one-maximum-for-all": "one maximum serves all queries",
        "minus-infinity-is-a-number": "-inf can be subtracted from -inf",
        "exp-of-anything": "exp of any difference can be taken",
        "no-key-is-logit-zero": "a masked row has the maximum 0, or the weight of one key",
        "weights-add-up-by-themselves": "weights of exp(logit - m) add up to 1",
        "divides-by-the-blocks": "what was added up of n blocks is divided by n",
    },
)
