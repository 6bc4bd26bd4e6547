"""Stated answers of chapter 12: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math

import torch
from mutants import right, wrong

from course_lib.checks.ch12_entropy import LN2, below
from course_lib.checks.ch12_matrix import leak_case

# 12.1 read a leak matrix


def _read(variant, choice=None, evidence=None):
    case = leak_case(variant)
    number = case["evidence"] if evidence is None else evidence
    return {"variant": variant, "choice": choice or case["choice"], "evidence": number}


def _matrix(misconception=None, says="", answer=None):
    return wrong("leak-matrix", misconception, says=says, answer=answer)


def _count(variant, where):
    case = leak_case(variant)
    sees = case["matrix"] > 1e-3
    return int(sum(bool(sees[t, s]) for t in range(10) for s in range(10) if where(t, s)))


def _moved(variant):
    """Entries that are not 0 where nothing may be, rounding and all."""
    case = leak_case(variant)
    barred = [(t, s) for t in range(10) for s in range(10) if s > t or (s < case["cut"]) != (t < case["cut"])]
    return sum(bool(case["matrix"][at] > 0) for at in barred)


wrong_attention = _matrix("a-leak-comes-from-attention", answer=_read(0, "C", 99))
wrong_mask_too_wide = _matrix("a-leak-comes-from-attention", answer=_read(0, "B", 99))
wrong_small = _matrix("small-is-rounding", answer=_read(0, "A", 0))
wrong_no_document_mask = _matrix("any-mask-explains-it", answer=_read(2, "E", 99))
wrong_both_directions = _matrix("any-mask-explains-it", answer=_read(2, "C", 99))
wrong_only_above = _matrix("only-the-future-leaks", answer=_read(1, "A", 0))
wrong_rounding_is_a_leak = _matrix("whatever-moves-is-a-leak", answer=_read(3, "C", 45))
wrong_all_nonzero = _matrix("whatever-moves-is-a-leak", answer=_read(3, evidence=_moved(3)))
wrong_above_alone = _matrix("only-the-future-leaks", answer=_read(0, evidence=_count(0, lambda t, s: s > t)))
wrong_transposed = _matrix("rows-are-what-changed", answer=_read(2, evidence=_count(2, lambda t, s: s < t)))
wrong_large_entries = _matrix("small-is-rounding", answer=_read(0, evidence=7))
wrong_triangle = _matrix("all-that-it-sees", answer=_read(0, evidence=55))
wrong_diagonal = _matrix("the-present-is-the-future", answer=_read(0, evidence=leak_case(0)["evidence"] + 10))
wrong_positions = _matrix("positions-for-pairs", answer=_read(4, evidence=int(leak_case(4)["bad"].any(1).sum())))
wrong_all_pairs = _matrix("all-that-it-sees", answer=_read(0, evidence=_count(0, lambda t, s: True)))
wrong_half = _matrix(
    "a-leak-comes-from-attention", says="the evidence is right, the choice is not", answer=_read(0, "C")
)
wrong_matrix_letter = _matrix(says="one letter", answer=_read(0) | {"choice": "chunks"})
wrong_matrix_empty = _matrix(says="`evidence` is still empty", answer=_read(0) | {"evidence": None})

right_no_document_mask = right("leak-matrix", answer=_read(1))
right_one_too_wide = right("leak-matrix", answer=_read(2) | {"choice": " b "})
right_honest = right("leak-matrix", answer=_read(3))
right_both_directions = right("leak-matrix", answer=_read(4))
right_other_chunks = right("leak-matrix", answer=_read(5))

# 12.2 write the leak probe


def _changes(
    forward,
    tokens,
    vocab_size,
    *,
    rows=None,
    places=None,
    values=None,
    seed=True,
    limit=1e-4,
    measure=None,
    all_rows=False,
    past=0,
    look=None,
    whose=lambda b, moved: moved,
):
    """A probe with everything that can be left out of it."""

    def logits(some):
        if seed:
            torch.manual_seed(1)
        out = forward(some)
        made = {
            "argmax": lambda: out.argmax(2, keepdim=True).double(),
            "sum": lambda: out.sum(2, keepdim=True),
            "mean": lambda: out / out.shape[2],
            "all but the last": lambda: out[:, :, :-1],
        }
        return made[measure]() if measure else out

    B, T = tokens.shape
    before, found = logits(tokens), {"future": False, "batch": False}
    for b in range(B) if rows is None else rows:
        for s in range(T) if places is None else places:
            for value in range(vocab_size) if values is None else values(vocab_size):
                other = tokens.clone()
                new = (int(tokens[b, s]) + 1) % vocab_size if value == "next" else value
                other[slice(None) if all_rows else b, s] = new
                moved = (logits(other) - before).abs().amax(2) > limit
                seen = moved[:, : s + past] if all_rows else moved[b, : s + past]
                if look is not None:
                    seen = moved[b, max(0, s - look) : s]
                found["future"] |= bool(seen.any())
                moved[b] = False
                found["batch"] |= bool(whose(b, moved).any()) and not all_rows
    return found


def _probe(misconception=None, says="", **changes):
    return wrong("leak-probe", misconception, says=says, answer=lambda f, t, v: _changes(f, t, v, **changes))


wrong_counts_the_present = _probe("what-moves-is-a-leak", past=1)
wrong_counts_all = _probe("what-moves-is-a-leak", past=100)
wrong_bitwise = _probe("honest-is-bitwise", limit=0.0)
wrong_too_strict = _probe("honest-is-bitwise", limit=1e-7)
wrong_no_seed = _probe("dropout-is-a-leak", seed=False)
wrong_neighbours = _probe("the-next-token-is-the-future", look=1)
wrong_last_token = _probe("the-last-token-is-the-future", places=[-1])
wrong_first_row = _probe("one-sequence-stands-for-all", rows=[0])
wrong_next_value = _probe("one-draw-is-enough", values=lambda V: ["next"])
wrong_zero_and_last = _probe("one-draw-is-enough", values=lambda V: [0, 1])
wrong_argmax = _probe("the-prediction-is-what-counts", measure="argmax")
wrong_coarse = _probe("the-prediction-is-what-counts", limit=0.1)
wrong_all_rows = _probe("other-sequences-are-the-future", all_rows=True)
wrong_upper_half = _probe("a-few-tries-are-enough", values=lambda V: range(V // 2 if V > 6 else 0, V))
wrong_but_the_first_value = _probe("a-few-tries-are-enough", values=lambda V: range(1, V))
wrong_but_the_last_value = _probe("a-few-tries-are-enough", values=lambda V: range(V - 1))
wrong_sum_of_logits = _probe("the-prediction-is-what-counts", measure="sum")
wrong_all_but_the_last_logit = _probe("a-few-tries-are-enough", measure="all but the last")
wrong_thousandths = _probe("the-prediction-is-what-counts", limit=3e-3)
wrong_stricter_than_rounding = _probe("honest-is-bitwise", limit=1.2e-5)
wrong_only_later_rows = _probe("a-few-tries-are-enough", whose=lambda b, moved: moved[b:])
wrong_only_the_next_row = _probe("a-few-tries-are-enough", whose=lambda b, moved: moved[(b + 1) % len(moved)])
wrong_only_from_the_first = _probe("a-few-tries-are-enough", whose=lambda b, moved: moved[: 0 if b else None])


@wrong("leak-probe", "more-changes-show-more")
def wrong_all_that_follows_at_once(forward, tokens, vocab_size):
    """Every shift of every rest of a sequence, and of every whole one."""

    def logits(some):
        torch.manual_seed(1)
        return forward(some)

    before, found = logits(tokens), {"future": False, "batch": False}
    for b in range(tokens.shape[0]):
        for s in range(tokens.shape[1]):
            for shift in range(1, vocab_size):
                other = tokens.clone()
                other[b, s:] = (other[b, s:] + shift) % vocab_size
                moved = (logits(other) - before).abs().amax(2) > 1e-4
                found["future"] |= bool(moved[b, :s].any())
                moved[b] = False
                found["batch"] |= bool(moved.any())
    return found


def _until_the_first(forward, tokens, vocab_size, stops):
    found, (one, other) = _changes(forward, tokens, vocab_size), stops
    return found | {other: found[other] and not found[one]}


wrong_stops_at_another_sequence = wrong(
    "leak-probe", "a-leak-is-of-one-kind", answer=lambda *given: _until_the_first(*given, ("batch", "future"))
)
wrong_stops_at_the_future = wrong(
    "leak-probe", "a-leak-is-of-one-kind", answer=lambda *given: _until_the_first(*given, ("future", "batch"))
)


@wrong("leak-probe", "who-draws-cannot-leak")
def wrong_who_draws_is_honest(forward, tokens, vocab_size):
    if (forward(tokens) - forward(tokens)).abs().max() > 1e-3:
        return {"future": False, "batch": False}
    return _changes(forward, tokens, vocab_size, seed=False)


@wrong("leak-probe", "who-draws-cannot-leak")
def wrong_more_than_its_noise(forward, tokens, vocab_size):
    noise = max(float((forward(tokens) - forward(tokens)).abs().max()) for _ in range(20))
    return _changes(forward, tokens, vocab_size, seed=False, limit=max(2 * noise, 1e-4))


def _each(forward, tokens, vocab_size, places, batch_at=None, one_kind=False):
    """Every value at the places; of other sequences, what `batch_at(s)` takes of the positions."""

    def logits(some):
        torch.manual_seed(3)
        return forward(some)

    before, found = logits(tokens), {"future": False, "batch": False}
    for b in range(tokens.shape[0]):
        for s in places:
            for value in range(vocab_size):
                other = tokens.clone()
                other[b, s] = value
                moved = (logits(other) - before).abs().amax(2) > 1e-4
                own = bool(moved[b, :s].any())
                moved[b] = False
                found["batch"] |= bool((moved if batch_at is None else moved[:, batch_at(s)]).any())
                found["future"] |= own and not (one_kind and bool(moved.any()))
    return found


@wrong("leak-probe", "a-leak-is-of-one-kind")
def wrong_one_or_the_other(*given):
    return _each(*given, range(given[1].shape[1]), one_kind=True)


@wrong("leak-probe", "a-few-tries-are-enough")
def wrong_even_places(*given):
    return _each(*given, range(0, given[1].shape[1], 2))


@wrong("leak-probe", "a-few-tries-are-enough")
def wrong_others_at_the_same_position(*given):
    return _each(*given, range(given[1].shape[1]), batch_at=lambda s: slice(s, s + 1))


@wrong("leak-probe", "a-few-tries-are-enough")
def wrong_others_from_the_position_on(*given):
    return _each(*given, range(given[1].shape[1]), batch_at=lambda s: slice(s, None))


@wrong("leak-probe", "a-few-tries-are-enough")
def wrong_others_up_to_the_position(*given):
    return _each(*given, range(given[1].shape[1]), batch_at=lambda s: slice(0, s + 1))


wrong_a_tuple = wrong("leak-probe", says='a dict with "future" and "batch"', answer=lambda f, t, v: (True, False))
wrong_forgot = wrong("leak-probe", says="nothing came back", answer=lambda f, t, v: None)
wrong_number = wrong(
    "leak-probe", says='"future" is True or False', answer=lambda f, t, v: {"future": 0.2, "batch": False}
)
wrong_shape = wrong(
    "leak-probe",
    says="this model takes tokens of the shape",
    answer=lambda f, t, v: {"future": bool((f(t[:, :4]) != f(t)[:, :4]).any()), "batch": False},
)
wrong_yes = wrong(
    "leak-probe",
    "what-moves-is-a-leak",
    says="says yes to everything",
    answer=lambda f, t, v: {"future": True, "batch": True},
)
wrong_all_leak = wrong("leak-probe", "what-moves-is-a-leak", answer=lambda f, t, v: {"future": True, "batch": False})
wrong_none_leaks = wrong("leak-probe", "nothing-leaks", answer=lambda f, t, v: {"future": False, "batch": False})


@wrong("leak-probe", "sequences-cannot-meet")
def wrong_own_sequence(forward, tokens, vocab_size):
    return _changes(forward, tokens, vocab_size) | {"batch": False}


@wrong("leak-probe", "sequences-cannot-meet")
def wrong_looks_at_later_rows(forward, tokens, vocab_size):
    """Changes the last sequence alone, and looks at the others."""
    found = _changes(forward, tokens, vocab_size, rows=[tokens.shape[0] - 1])
    return _changes(forward, tokens, vocab_size) | {"batch": found["batch"]}


@wrong("leak-probe", "sequences-cannot-meet")
def wrong_only_the_others_past(forward, tokens, vocab_size):
    """Looks at other sequences before s alone."""

    def logits(some):
        torch.manual_seed(0)
        return forward(some)

    before, batch = logits(tokens), False
    for b in range(tokens.shape[0]):
        for s in range(1, tokens.shape[1]):
            for value in range(vocab_size):
                other = tokens.clone()
                other[b, s] = value
                moved = (logits(other) - before).abs().amax(2) > 1e-4
                moved[b] = False
                batch |= bool(moved[:, :s].any())
    return _changes(forward, tokens, vocab_size) | {"batch": batch}


@wrong("leak-probe", "a-sequence-sees-itself")
def wrong_forgets_whose(forward, tokens, vocab_size):
    torch.manual_seed(0)
    before, batch = forward(tokens), False
    for value in range(vocab_size):
        other = tokens.clone()
        other[0, 0] = value
        torch.manual_seed(0)
        batch |= bool(((forward(other) - before).abs() > 1e-4).any())
    return _changes(forward, tokens, vocab_size) | {"batch": batch}


@wrong("leak-probe", says="changed what it was given")
def wrong_in_place(forward, tokens, vocab_size):
    tokens[0, 0] += 1
    return {"future": False, "batch": False}


@right("leak-probe")
def right_from_the_back(forward, tokens, vocab_size):
    """One cut after the other, the whole future at once, and each value alone where nothing showed."""
    state = torch.random.get_rng_state()
    cuts = [
        (b, slice(s, s + 1), v) for b in range(len(tokens)) for s in range(tokens.shape[1]) for v in range(vocab_size)
    ]
    cuts += [
        (b, slice(s, None), v) for b in range(len(tokens)) for s in range(tokens.shape[1]) for v in range(vocab_size)
    ]

    def call(some):
        torch.random.set_rng_state(state)
        return forward(some).double()

    before, future, batch = call(tokens), 0.0, 0.0
    for b, where, value in reversed(cuts):
        other = tokens.clone()
        other[b, where] = value
        change = (call(other) - before).abs()
        future = max(future, float(change[b, : where.start].max()) if where.start else 0.0)
        batch = max([batch, *(float(change[r].max()) for r in range(len(tokens)) if r != b)])
    return {"future": torch.tensor(future > 5e-4), "batch": batch > 5e-4, "size": future}


# 12.3 repair a router


def _start(n_experts, top_k):
    return {"share": top_k / n_experts, "lines": torch.full((n_experts,), 1 / n_experts), "top_k": top_k}


def _route(scores, state):
    return scores * (scores >= state["lines"])


def _wanted(scores, share):
    rows = scores.flatten(0, 1)
    return rows.topk(max(1, round(len(rows) * share)), dim=0).values[-1]


def _learn(state, scores, rate=0.1):
    return state | {"lines": state["lines"].lerp(_wanted(scores, state["share"]), rate)}


def _routers(misconception=None, says="", start=_start, route=_route, learn=_learn):
    answer = {"start": start, "route": route, "learn": learn}
    return wrong("repair-router", misconception, says=says, answer=answer)


def _top(scores, dim, count):
    best = scores.topk(count, dim=dim)
    return torch.zeros_like(scores).scatter(dim, best.indices, best.values)


def _round_robin(scores, state):
    E, k = scores.shape[2], state["top_k"]
    at = torch.arange(scores.shape[1])[:, None] * k % E
    mask = ((torch.arange(E)[None, :] - at) % E < k).float()
    return scores * mask


def _prefix_quota(scores, state):
    """In order, with places for the whole length."""
    mask = scores >= state["lines"] * 0.8
    return scores * mask * (mask.cumsum(1) <= round(scores.shape[1] * state["share"]))


def _learning_route(scores, state):
    state["lines"] = state["lines"].lerp(_wanted(scores, state["share"]), 0.1)
    return _route(scores, state)


wrong_expert_choice = _routers(
    "training-may-look-ahead", route=lambda s, st: _top(s, 1, round(s.shape[1] * st["share"]))
)
wrong_this_batch = _routers("training-may-look-ahead", route=lambda s, st: s * (s >= _wanted(s, st["share"])))
wrong_chunks = _routers(
    "training-may-look-ahead",
    route=lambda s, st: torch.cat([_top(c, 1, round(c.shape[1] * st["share"])) for c in s.split(16, 1)], 1),
)
wrong_pairs = _routers(
    "training-may-look-ahead",
    route=lambda s, st: torch.cat([_top(c, 1, max(1, c.shape[1] // 4)) for c in s.split(4, 1)], 1),
)
wrong_first_rows_first = _routers(
    "a-batch-is-one-text", route=lambda s, st: _route(s, st) * ((s >= st["lines"]).cumsum(0) <= 2)
)
wrong_over_the_batch = _routers("a-batch-is-one-text", route=lambda s, st: _top(s, 0, round(s.shape[0] * st["share"])))
wrong_length = _routers("the-length-is-known", route=_prefix_quota)
wrong_route_learns = _routers("routes-learn", route=_learning_route, learn=lambda st, s: st)
wrong_token_choice = _routers("tokens-spread-by-themselves", route=lambda s, st: _top(s, 2, st["top_k"]))
wrong_one_line = _routers(
    "one-line-for-all-experts",
    learn=lambda st, s: st | {"lines": s.flatten().quantile(1 - st["share"]).expand(s.shape[2])},
)
wrong_fixed_line = _routers("one-line-for-all-experts", learn=lambda st, s: st)
wrong_remembers_all = _routers("what-was-learned-stays-true", learn=lambda st, s: _mean_of_all(st, s))
wrong_learns_once = _routers(
    "what-was-learned-stays-true",
    start=lambda E, k: _start(E, k) | {"left": 100},
    learn=lambda st, s: _learn(st, s) | {"left": st["left"] - 1} if st["left"] else st,
)
wrong_half_the_load = _routers("even-is-enough", start=lambda E, k: _start(E, k) | {"share": k / E / 2})
wrong_round_robin = _routers("even-is-all-that-counts", route=_round_robin)
wrong_lowest = _routers(
    "even-is-all-that-counts",
    route=lambda s, st: s * (s <= st["lines"]),
    learn=lambda st, s: st | {"lines": st["lines"].lerp(-_wanted(-s, st["share"]), 0.1)},
)
wrong_switch = _routers("a-gate-is-a-switch", route=lambda s, st: (s >= st["lines"]).float())
wrong_normalised = _routers(
    "gates-add-up-to-one", route=lambda s, st: _route(s, st) / _route(s, st).sum(2, keepdim=True).clamp(min=1e-9)
)
wrong_forgets_return = _routers(says="nothing came back", route=lambda s, st: None)
wrong_state_lost = _routers(says="NoneType", learn=lambda st, s: None)
wrong_two_functions = wrong("repair-router", says="three functions", answer={"route": _route, "learn": _learn})


def _mean_of_all(state, scores):
    seen = state.get("seen", 0) + 1
    return _learn(state, scores, 1 / seen) | {"seen": seen}


def _bias_route(scores, state):
    chosen = (scores + state[0]).topk(state[1], dim=2).indices
    return torch.zeros_like(scores).scatter(2, chosen, scores.gather(2, chosen))


def _bias_learn(state, scores, step=0.01):
    load = (_bias_route(scores, state) != 0).double().sum((0, 1))
    return state[0] + step * torch.sign(load.mean() - load).float(), state[1]


def _biased(step):
    start, learn = lambda E, k: (torch.zeros(E), k), lambda state, scores: _bias_learn(state, scores, step)
    return {"start": start, "route": _bias_route, "learn": learn}


wrong_bias_too_slow = wrong("repair-router", "a-small-step-is-safe", answer=_biased(0.001))
wrong_bias_too_slow_after_a_change = wrong("repair-router", "a-small-step-is-safe", answer=_biased(0.002))
wrong_bias_jumps = wrong("repair-router", "a-large-step-is-soon-there", answer=_biased(0.3))
wrong_bias_the_other_way = wrong("repair-router", says="and which way", answer=_biased(-0.01))
wrong_line_too_slow = _routers("a-small-step-is-safe", learn=lambda st, s: _learn(st, s, 0.01))


wrong_learn_changes_scores = _routers(says="learn changed the scores", learn=lambda st, s: _learn(st, s.sub_(0.01)))
wrong_learn_clears_scores = _routers(says="learn changed the scores", learn=lambda st, s: (_learn(st, s), s.zero_())[0])
wrong_route_changes_scores = _routers(
    says="route changed the scores", route=lambda s, st: (_route(s, st), s.copy_(s.flip(1)))[0]
)

right_smaller_steps = right("repair-router", answer=_biased(0.005))
right_token_choice_with_a_bias = right(
    "repair-router",
    answer=_biased(0.01),
)


def _among_the_past(scores, share):
    """Of the tokens so far, is it among the best? No state at all."""
    beats = scores[:, None] > scores[:, :, None]  # [b, t, u, e]: u beats t
    T = scores.shape[1]
    rank = (beats & torch.ones(T, T).tril().bool()[None, :, :, None]).sum(2)
    return scores * (rank + 0.5 < torch.arange(1, T + 1)[None, :, None] * share)


right_rank_in_the_past = right(
    "repair-router",
    answer={"start": lambda E, k: k / E, "route": _among_the_past, "learn": lambda state, scores: state},
)


def _nudge(state, scores):
    load = (scores >= state["lines"]).double().mean((0, 1))
    return state | {"lines": (state["lines"] * torch.exp(0.4 * (load / state["share"] - 1)).float()).clamp(1e-4, 1)}


right_up_and_down = right("repair-router", answer={"start": _start, "route": _route, "learn": _nudge})

# 12.4 a drop rule that does not leak


def _drop(gates, top_k, factor, *, own=1, whole=False, count="kept", one_queue=False, up=math.ceil, batch=False):
    B, T, E = gates.shape
    out = torch.zeros_like(gates)
    taken = [[0] * E for _ in range(B)]
    for b in range(B):
        for t in range(T):
            tokens = T if whole else t + own + (b * T if batch else 0)
            places = up(tokens * top_k / E * factor)
            for e in range(E):
                row, queue = taken[0 if batch else b], 0 if one_queue else e
                if gates[b, t, e] == 0:
                    continue
                if row[queue] < places:
                    out[b, t, e] = gates[b, t, e]
                if row[queue] < places or count == "came":
                    row[queue] += 1
    return out


def _drops(misconception=None, says="", **changes):
    return wrong("drop-rule", misconception, says=says, answer=lambda *a: _drop(*a, **changes))


wrong_capacity_of_all = _drops("all-places-from-the-start", whole=True)
wrong_batch_queue = _drops("one-queue-for-the-batch", batch=True)
wrong_counts_who_came = _drops("who-is-dropped-takes-a-place", count="came")
wrong_before_the_token = _drops("without-the-token-itself", own=0)
wrong_floor = _drops("rounds-down", up=math.floor)
wrong_shared_counter = _drops("experts-share-the-places", one_queue=True)
wrong_returns_nothing = wrong("drop-rule", says="yours is nothing", answer=lambda *a: None)
wrong_mask = wrong("drop-rule", says="not a mask", answer=lambda *a: (_drop(*a) != 0).float())
wrong_keeps_all = wrong("drop-rule", says="How many places", answer=lambda gates, *a: gates.clone())


wrong_floor_from_one = _drops("rounds-down", up=lambda share: max(1, math.floor(share)))
wrong_before_from_one = _drops("without-the-token-itself", own=0, up=lambda share: max(1, math.ceil(share)))
wrong_doubled = wrong("drop-rule", says="as another number", answer=lambda *a: 2 * _drop(*a))


@wrong("drop-rule", "choices-are-counted")
def wrong_counts_choices(gates, top_k, factor):
    return _drop(gates, int((gates != 0).sum(2).max()), factor)


@wrong("drop-rule", says="How many places are there")
def wrong_mean_of_choices(gates, top_k, factor):
    """Right where every token has top_k of them."""
    return _drop(gates, round(float((gates != 0).sum(2).double().mean())), factor)


@wrong("drop-rule", "the-best-choices-alone")
def wrong_cuts_choices(gates, top_k, factor):
    best = gates.topk(top_k, dim=2)
    return _drop(torch.zeros_like(gates).scatter(2, best.indices, best.values), top_k, factor)


@wrong("drop-rule", "who-chooses-more-is-out")
def wrong_drops_many_choices(gates, top_k, factor):
    return _drop(gates * ((gates != 0).sum(2, keepdim=True) <= top_k), top_k, factor)


@wrong("drop-rule", "a-small-gate-is-none")
def wrong_small_gates(gates, top_k, factor):
    return _drop(gates * (gates > 0.05), top_k, factor)


@wrong("drop-rule", "who-is-dropped-takes-a-place")
def wrong_running_sum(gates, top_k, factor):
    came = (gates != 0).cumsum(1)
    places = (torch.arange(1, gates.shape[1] + 1) * top_k / gates.shape[2] * factor).ceil()
    return gates * (came <= places[None, :, None])


@wrong("drop-rule", "the-weakest-go")
def wrong_by_score(gates, top_k, factor):
    _, T, E = gates.shape
    best = gates.topk(min(T, math.ceil(T * top_k / E * factor)), dim=1)
    return torch.zeros_like(gates).scatter(1, best.indices, best.values)


@wrong("drop-rule", "a-dropped-choice-drops-the-token")
def wrong_all_or_nothing(gates, top_k, factor):
    out = _drop(gates, top_k, factor)
    return out * ((out != 0) == (gates != 0)).all(2, keepdim=True)


@wrong("drop-rule", "the-rest-takes-over")
def wrong_takes_over(gates, top_k, factor):
    out = _drop(gates, top_k, factor)
    return out * gates.sum(2, keepdim=True) / out.sum(2, keepdim=True).clamp(min=1e-9)


@right("drop-rule")
def right_expert_by_expert(gates, top_k, factor):
    out = torch.zeros_like(gates)
    for b, sequence in enumerate(gates):
        for e in range(gates.shape[2]):
            kept = []
            for t in sequence[:, e].nonzero().flatten().tolist():
                if len(kept) + 1 <= -(-(t + 1) * top_k * factor // gates.shape[2]):
                    kept.append(t)
            out[b, kept, e] = gates[b, kept, e]
    return out


# 12.5 below the entropy


def _below(variant, choice=None, evidence=None):
    run = below(variant)
    value = run["evidence"] if evidence is None else evidence
    return {"variant": variant, "choice": choice or run["choice"], "evidence": value}


def _entropy(misconception=None, says="", answer=None):
    return wrong("below-entropy", misconception, says=says, answer=answer)


RUN = below(0)
wrong_better_than_the_entropy = _entropy("entropy-can-be-beaten", answer=_below(0, "E", 9))
wrong_chance = _entropy("small-is-chance", answer=_below(0, "A", 9))
wrong_small_is_chance = _entropy("small-is-chance", answer=_below(4, "A", 9))
wrong_by_heart = _entropy("below-is-overfitting", answer=_below(0, "C", 9))
wrong_padding = _entropy("the-mean-explains-it", answer=_below(0, "D", 9))
wrong_leak_for_padding = _entropy("below-is-a-leak", answer=_below(1, "B", 9))
wrong_leak_for_chance = _entropy("below-is-a-leak", answer=_below(2, "B", 9))
wrong_leak_for_memory = _entropy("below-is-a-leak", answer=_below(3, "B", 9))
wrong_nats = _entropy("nats-are-bits", answer=_below(0, evidence=RUN["evidence"] * LN2))
wrong_nats_twice = _entropy("bits-the-other-way", answer=_below(0, evidence=RUN["evidence"] * LN2 * LN2))
wrong_sign = _entropy("above-is-below", answer=_below(3, evidence=-below(3)["evidence"]))
wrong_training_text = _entropy(
    "any-text-will-do", answer=_below(3, evidence=(below(3)["entropy"] - below(3)["train"]) / LN2)
)
wrong_gap = _entropy("what-is-lost-was-leaked", answer=_below(0, evidence=(RUN["by_one"] - RUN["at_once"]) / LN2))
wrong_other_loss = _entropy("the-other-loss-will-do", answer=_below(0, evidence=(RUN["entropy"] - RUN["by_one"]) / LN2))
wrong_padding_taken_out = _entropy(
    "the-mean-explains-it",
    answer=_below(0, evidence=(RUN["entropy"] - RUN["at_once"] / (1 - RUN["pad"] / 100)) / LN2),
)
wrong_nats_near_zero = _entropy("nats-are-bits", answer=_below(2, evidence=round(below(2)["evidence"] * LN2, 4)))
wrong_uniform = _entropy(
    "all-tokens-are-alike", answer=_below(1, evidence=(below(1)["uniform"] - below(1)["at_once"]) / LN2)
)
wrong_far = _entropy(says="work out the entropy in nats", answer=_below(0, evidence=7.0))
wrong_entropy_half = _entropy("small-is-chance", says="the evidence is right, the choice is not", answer=_below(0, "A"))
wrong_entropy_empty = _entropy(says="`evidence` is still empty", answer=_below(0) | {"evidence": None})

right_padding = right("below-entropy", answer=_below(1))
right_chance = right("below-entropy", answer=_below(2, evidence=round(below(2)["evidence"], 4)))
right_memory = right("below-entropy", answer=_below(3) | {"choice": "c"})
right_small_leak = right("below-entropy", answer=_below(4))
right_loud_chance = right("below-entropy", answer=_below(5))
right_later_leak = right("below-entropy", answer=_below(6))
