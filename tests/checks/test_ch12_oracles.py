"""What chapter 12's exercises call right, against every change of a token, the routers of the library, and chance."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from course_lib import routers
from course_lib.checks.ch12_drop import DROP, _drop
from course_lib.checks.ch12_entropy import _source, below
from course_lib.checks.ch12_matrix import WANTED, T, leak_case
from course_lib.checks.ch12_probe import PROBE
from course_lib.checks.ch12_router import ROUTER
from course_lib.checks.ch12_spots import SPOTS, VOCAB, spot_of, spot_tokens
from course_lib.checks.ch12_zoo import KINDS, forward_of
from course_lib.checks.core import evaluate


@pytest.mark.parametrize("variant", range(10))
def test_pairs_of_a_matrix_are_those_of_its_masks(variant: int) -> None:
    """By counting, with two documents of c and T - c tokens."""
    case = leak_case(variant)
    c, kind = case["cut"], case["choice"]
    assert kind == WANTED[variant % 5]
    counted = {"A": 0, "B": T - 2, "C": (c * (c - 1) + (T - c) * (T - c - 1)) // 2, "E": c * (T - c)}
    if kind in counted:
        assert case["evidence"] == counted[kind]
    else:  # a position sees another of its chunk, and what that one sees; never a later chunk
        pairs = np.argwhere(case["bad"])
        assert len(pairs) == case["evidence"] >= 4
        assert all(s // 4 <= t // 4 for t, s in pairs)
        assert len({(t, s) for t, s in pairs if s > t}) < sum(
            min(4, T - 4 * k) * (min(4, T - 4 * k) - 1) // 2 for k in range(3)
        ), "some pair of a chunk is quiet, or it would look like attention inside chunks"


@pytest.mark.parametrize("seed", [0, 5])
def test_models_leak_as_they_are_said_to(seed: int) -> None:
    """Every change of one token, and 50 changes of all that may not matter at once."""
    rng = np.random.default_rng(seed)
    for case in PROBE.cases(seed)[:2]:
        tokens, V = torch.from_numpy(case["tokens"]), case["vocab_size"]
        B, length = tokens.shape
        assert sorted(name for name, _ in case["models"]) == sorted(KINDS)
        for name, weights in case["models"]:
            forward = forward_of(name, weights, (B, length), V)

            def logits(some: torch.Tensor, forward=forward) -> torch.Tensor:
                torch.manual_seed(7)
                return forward(some)

            before, future, others = logits(tokens), 0.0, 0.0
            changes = [(b, slice(s, s + 1), v) for b in range(B) for s in range(length) for v in range(V)]
            for _ in range(50):
                b, s = int(rng.integers(B)), int(rng.integers(1, length))
                changes.append((b, slice(s, None), torch.from_numpy(rng.integers(0, V, length - s))))
            for b, where, value in changes:
                other = tokens.clone()
                other[b, where] = value
                moved = (logits(other) - before).abs().amax(2)
                future = max([future, *moved[b, : where.start].tolist()])
                moved[b] = 0
                others = max(others, float(moved.max()))
            for size, leaks in zip((future, others), KINDS[name], strict=True):
                assert size > 1e-3 if leaks else size < 2e-5, (name, future, others)


@pytest.mark.parametrize("seed", [0, 5])
def test_a_model_with_a_spot_moves_there_and_nowhere_else(seed: int) -> None:
    """Every change of one token, as above; and no spot is in the tokens from the start."""
    tokens = torch.from_numpy(spot_tokens(np.random.default_rng(seed)))
    for name, model in SPOTS.items():
        forward, moves = spot_of(name, seed, tokens.numpy()), set()
        torch.manual_seed(7)
        before = forward(tokens)
        for b, s, v in np.ndindex(*tokens.shape, VOCAB):
            other = tokens.clone()
            other[b, s] = v
            torch.manual_seed(7)
            moved = (forward(other) - before).abs()
            moved[b, s:] = 0
            moves |= {(b, s, v, *at) for at in (moved > 1e-3).nonzero().tolist()}
            assert moved[moved <= 1e-3].max() < 2e-5
        assert moves == {spot[:6] for spot in model.spots if abs(spot[6]) > 1e-3}
        assert model.future == any(b == row for b, _, _, row, *_ in moves)
        assert model.batch == any(b != row for b, _, _, row, *_ in moves)


def _hand_in(route, learn) -> dict:
    return {"start": lambda E, k: torch.full((E,), k / E), "route": route, "learn": learn}


@pytest.mark.parametrize("seed", range(3))
def test_the_threshold_router_of_the_library_is_right_and_expert_choice_is_not(seed: int) -> None:
    def case_k(scores: torch.Tensor) -> int:
        return 2 if scores.shape[2] == 8 else 1

    def learn(lines, scores):
        return routers.new_thresholds(lines, scores, case_k(scores), 0.1)

    free = replace(ROUTER, forbidden=())
    honest = evaluate(free, _hand_in(routers.threshold_choice, learn), seed)
    assert honest.status == "passed", honest.line
    leaky = evaluate(free, _hand_in(lambda s, lines: routers.expert_choice(s, case_k(s)), learn), seed)
    assert leaky.misconception == "training-may-look-ahead", leaky.line


@pytest.mark.parametrize("seed", range(5))
def test_the_drop_rule_knows_neither_the_future_nor_other_sequences(seed: int) -> None:
    for case in DROP.cases(seed):
        gates = case["gates"]
        whole, (_, length, E) = _drop(gates, case), gates.shape
        for t in range(1, length + 1):
            assert np.array_equal(_drop(gates[:, :t], case), whole[:, :t])
        for b in range(len(gates)):
            assert np.array_equal(_drop(gates[b : b + 1], case)[0], whole[b])
        most = [math.ceil(t * case["top_k"] / E * case["factor"]) for t in range(1, length + 1)]
        assert ((whole != 0).cumsum(1) <= np.array(most)[None, :, None]).all()
        dropped = (gates != 0) & (whole == 0)
        full = (whole != 0).cumsum(1) == np.array(most)[None, :, None]
        assert (full | ~dropped).all(), "whoever is dropped found its expert full"


def test_dropping_by_the_whole_length_is_what_the_library_does_in_order() -> None:
    """The mistake that the exercise calls a leak is `drop_in_order_in_sequence`: right with a length."""
    for case in DROP.cases(1)[1:]:
        gates = torch.from_numpy(case["gates"])
        B, length, E = gates.shape
        places = math.ceil(length * case["top_k"] / E * case["factor"])
        theirs = routers.drop_in_order_in_sequence(gates, B * places)
        assert np.array_equal(theirs.numpy(), _drop(case["gates"], case, "all-places-from-the-start"))


@pytest.mark.parametrize("number", range(3))
def test_entropies_are_those_of_drawn_text(number: int) -> None:
    """Minus the mean of ln p over 200,000 tokens drawn as the text says."""
    import re

    rng = np.random.default_rng(3)
    text, entropy, uniform = _source(np.random.default_rng(number), number)
    V, n = round(math.exp(uniform)), 200_000
    assert f"{V} tokens" in " ".join(text)
    if number == 0:
        losses = np.full(n, math.log(V))
    elif number == 1:
        p = float(re.findall(r"probability (0\.\d+)", " ".join(text))[0])
        again = rng.random(n) < p + (1 - p) / V
        losses = -np.log(np.where(again, p + (1 - p) / V, (1 - p) / V))
    else:
        p = np.array([1 / 2, 1 / 4, 1 / 8, 1 / 8])
        losses = -np.log(p[rng.choice(4, n, p=p)])
    assert abs(losses.mean() - entropy) <= 4 * losses.std() / math.sqrt(n) + 1e-9


@pytest.mark.parametrize("variant", range(18))
def test_each_line_explains_what_it_is_of(variant: int) -> None:
    run = below(variant)
    H, once, one, error = run["entropy"], run["at_once"], run["by_one"], run["error"]
    sigma = (H - once) / error
    if run["choice"] == "A":
        assert 0 < sigma < 1 and once == one
        assert once - H * (1 - run["pad"] / 100) > 10 * error, "padding would have made it far lower"
        assert "as likely as any other" not in run["source"][0], "its loss would have no spread"
    if run["choice"] == "B":
        assert sigma > 12 and one > H and abs(once / (1 - run["pad"] / 100) / H - 1) > 0.015
    if run["choice"] == "C":
        assert sigma < -20 and run["train"] < H - 0.1 and once == one
    if run["choice"] == "D":
        assert sigma > 12 and once == one and abs(once / (1 - run["pad"] / 100) / H - 1) < 0.01
