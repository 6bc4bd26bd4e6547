"""Check 15.2: 6ND and the exact count of a training's FLOPs, from the shapes of its model."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from course_lib.checks.core import Case, Exercise, Wrong, WrongForm, kind
from course_lib.checks.smell import plain

__all__ = ["FLOPS", "exact", "six_nd"]

Product = tuple[str, int, int, int, int]


def products(shape: dict[str, Any], sequence: int) -> Iterator[Product]:
    """Every product of matrices in one forward pass over one sequence, one by one: (what, rows, inner, columns, how
    many of it)."""
    s, d, heads, kv, inside = sequence, shape["width"], shape["heads"], shape["kv_heads"], shape["head_dim"]
    for _ in range(shape["layers"]):
        yield "queries", s, d, heads * inside, 1
        yield "keys", s, d, kv * inside, 1
        yield "values", s, d, kv * inside, 1
        yield "scores", s, inside, s, heads
        yield "mix", s, s, inside, heads
        yield "output", s, heads * inside, d, 1
        visits = shape["active"] if shape["experts"] else 1
        if shape["experts"]:
            yield "router", s, d, shape["experts"], 1
        yield "gate", s, d, shape["ffn"], visits
        yield "up", s, d, shape["ffn"], visits
        yield "down", s, shape["ffn"], d, visits
    yield "head", s, d, shape["vocab"], 1


def exact(case: Case, rule: str = "") -> float:
    """FLOPs of forward and backward of all sequences; with a rule, what that mistake gives."""
    shape, s = dict(case["shape"]), case["sequence"]
    if rule == "every-head-has-its-keys":
        shape["kv_heads"] = shape["heads"]
    if rule == "heads-share-the-width":
        shape["head_dim"] = shape["width"] // shape["heads"]
    if rule == "all-experts-count" and shape["experts"]:
        shape["active"] = shape["experts"]
    total = 0
    for what, rows, inner, columns, number in products(shape, s):
        flops = 2 * rows * inner * columns * number
        if what in ("scores", "mix"):
            if rule == "scores-have-the-width":
                flops = 2 * s * s * shape["width"]
            if rule == "attention-is-free":
                continue
            if rule == "half-of-attention":  # a mask that saves half, or one of its two products
                flops //= 2
            if rule == "few-keys-few-scores":
                flops = flops * shape["kv_heads"] // shape["heads"]
        if (what, rule) in (("router", "the-router-is-free"), ("gate", "two-matrices"), ("head", "the-head-is-free")):
            continue
        total += flops
    if rule == "a-lookup-multiplies":
        total += 2 * s * shape["width"] * shape["vocab"]
    passes = {"forward-is-all": 1, "backward-costs-as-forward": 2}.get(rule, 3)
    total *= passes
    sequences = 1 if rule == "one-sequence-alone" else case["tokens"] // s
    return total / (2 if rule == "a-product-is-one-flop" else 1) * sequences


def parameters(case: Case, rule: str = "") -> int:
    """Parameters that a token meets: matrices from the list of products, embedding and norms besides."""
    shape = dict(case["shape"])
    if rule == "all-experts-count" and shape["experts"]:
        shape["active"] = shape["experts"]
    if rule == "every-head-has-its-keys":
        shape["kv_heads"] = shape["heads"]
    if rule == "heads-share-the-width":
        shape["head_dim"] = shape["width"] // shape["heads"]
    total = 0
    for what, _, inner, columns, number in products(shape, 1):
        skip = {"router": "the-router-is-free", "gate": "two-matrices"}.get(what) == rule
        if what in ("scores", "mix") or skip or (what == "head" and shape["tied"] and rule != "tied-counts-twice"):
            continue
        total += inner * columns * number
    untied_once = rule == "one-table-for-both" and not shape["tied"]
    if rule != "the-embedding-is-no-parameter" and not untied_once:
        total += shape["vocab"] * shape["width"]
    return total + (2 * shape["layers"] + 1) * shape["width"]


def six_nd(case: Case, rule: str = "") -> float:
    each = {"forward-is-all": 2, "backward-costs-as-forward": 4, "a-product-is-one-flop": 3}.get(rule, 6)
    return each * parameters(case, rule) * (case["sequence"] if rule == "one-sequence-alone" else case["tokens"])


ASKS = {
    "forward-is-all": "that is the forward pass alone",
    "backward-costs-as-forward": "a product has two inputs: how many gradients does backward make of it?",
    "a-product-is-one-flop": "that is half of it: a multiply and an add are two FLOPs",
    "attention-is-free": "it grows with no power of the sequence beyond the first. Which products have no weights?",
    "half-of-attention": "half of the products without weights is missing. How many are there, and is a mask counted?",
    "few-keys-few-scores": "each head of queries makes its own scores, whoever shares its keys",
    "every-head-has-its-keys": "how many heads do keys and values have here?",
    "heads-share-the-width": "is a head's size the width over the heads here?",
    "scores-have-the-width": "heads times numbers in a head: is that the width here? Look at scores and mix",
    "one-sequence-alone": "that is one sequence. How many does the training read?",
    "a-lookup-multiplies": "a row of a table is read. Is that a product?",
    "the-head-is-free": "what makes the logits?",
    "two-matrices": "how many matrices has the feed-forward block of the text?",
    "the-router-is-free": "what decides which experts a token visits?",
    "all-experts-count": "how many experts does one token meet?",
    "tied-counts-twice": "tied: how many tables are there?",
    "one-table-for-both": "not tied: how many tables are there?",
    "the-embedding-is-no-parameter": "N counts every parameter, looked up or multiplied",
}
NAMED = {"scores-have-the-width": "heads-share-the-width"}
"""Mistakes that are another one's, at another place."""


def flops_cases(seed: int) -> list[Case]:
    """What decides each rule is fixed, sizes follow the seed. Tokens are whole sequences."""
    rng = np.random.default_rng([seed, 1502])

    def case(name: str, sequence: int, sequences: int, **changes: Any) -> Case:
        shape: dict[str, Any] = {"layers": 16, "width": 2048, "heads": 32, "kv_heads": 8, "head_dim": 64, "ffn": 8192}
        shape |= {"vocab": 100_000, "tied": True, "experts": 0, "active": 0} | changes
        return {"name": name, "shape": shape, "sequence": sequence, "tokens": sequence * sequences}

    some, heads = int(rng.integers(2, 9)), int(rng.choice([6, 10, 12]))
    return [
        case("1.1B parameters, 100B tokens", 4_000, 25_000_000),
        case("the same in sequences of 200,000", 200_000, 500_000),
        case("not tied, more vocabulary than "
            "layers", 1_000, 10**6, layers=some, width=512, heads=8, ffn=1376, tied=False),
        case("as many heads of keys as of queries", 2_000, 10**5 * some, kv_heads=32, layers=6, vocab=50_000),
        case("heads wider than the "
            "width", 3_000, 10**4, width=1_024, heads=heads, kv_heads=2, head_dim=256, vocab=1_000),
        case(
            "a mixture of experts",
            2_048,
            10**5,
            layers=4 + some,
            ffn=512,
            experts=256,
            active=8,
            vocab=int(rng.integers(100, 300)) * 100,
        ),
    ]  # fmt: skip


def flops_run(answer: Callable[..., Any], case: Case) -> list[float]:
    said = answer(case["shape"], case["sequence"], case["tokens"])
    if said is None:
        raise WrongForm("nothing came back. Does every path end in a `return`?")
    if not isinstance(said, tuple | list) or len(said) != 2:
        raise WrongForm(f"two numbers are wanted, 6ND and the exact count; {kind(said)} came back")
    pair = [plain(one) for one in said]
    for one in pair:
        if isinstance(one, bool) or not isinstance(one, int | float):
            raise WrongForm(f"two numbers are wanted, 6ND and the exact count; one of yours is {kind(one)}")
    return [float(one) for one in pair]


def _off(a: float, b: float, tolerance: float) -> bool:
    return not abs(a - b) <= tolerance * abs(b)


def flops_judge(case: Case, returned: list[float]) -> Wrong | None:
    """6ND within 0.1%, so that norms may be left out; the exact count within 1e-6, far above the rounding of floats."""
    swapped = not _off(returned[0], exact(case), 1e-3) and not _off(returned[1], six_nd(case), 1e-3)
    if swapped and _off(exact(case), six_nd(case), 1e-2):
        return Wrong("6ND comes first, the exact count second: yours are in the other order", form=True)
    for n, (name, count, tolerance) in enumerate((("6ND", six_nd, 1e-3), ("the exact count", exact, 1e-6))):
        value, right = returned[n], count(case)
        if not _off(value, right, tolerance):
            continue
        for rule, text in ASKS.items():
            guess = count(case, rule)
            if _off(guess, right, 2 * tolerance) and not _off(value, guess, tolerance):
                known = NAMED.get(rule, rule)
                return Wrong(f"{name}: {value:.4g}: {text}", known if known in FLOPS.misconceptions else None)
        if n and not _off(value, right, 2e-3):
            off = f"off by {abs(value / right - 1):.2g}"
            return Wrong(f"{name}: {off}. Was it rounded, or is a small product missing, or one too many? List them")
        factor = value / right if right else 0.0
        what = "products of a layer, those without weights too" if n else "matrices of a layer"
        return Wrong(f"{name}: {value:.4g}, which is {factor:.3g} times what it should be. List the {what}")
    return None


FLOPS = Exercise(
    id="counted-flops",
    title="6ND, and what is counted",
    cases=flops_cases,
    run=flops_run,
    judge=flops_judge,
    forbidden=("course_lib.planning",),
    misconceptions={
        "forward-is-all": "training costs one forward pass a token",
        "backward-costs-as-forward": "backward costs as much as forward",
        "a-product-is-one-flop": "a multiply-add is one FLOP",
        "attention-is-free": "only weights make FLOPs",
        "half-of-attention": "a mask saves the work that it hides, or attention has one product without weights",
        "few-keys-few-scores": "with fewer heads of keys there are fewer scores",
        "every-head-has-its-keys": "every head of queries has keys and values of its own",
        "heads-share-the-width": "a head's size is the width over the heads",
        "a-lookup-multiplies": "an embedding multiplies",
        "the-head-is-free": "the output layer is no layer",
        "two-matrices": "a feed-forward block has two matrices, gated or not",
        "the-router-is-free": "the choice of experts costs nothing",
        "all-experts-count": "every parameter of a mixture works for every token",
        "tied-counts-twice": "a shared table counts twice",
        "one-table-for-both": "embedding and output layer are always one table",
        "the-embedding-is-no-parameter": "N is the matrices that multiply",
    },
)
