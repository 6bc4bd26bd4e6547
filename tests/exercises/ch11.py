"""Stated answers of chapter 11: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import torch
from mutants import right, wrong

from course_lib.checks.ch11_next import next_axis, outcome
from course_lib.checks.ch11_place import held, place

# 11.1 what a token costs


def _cost(model, matrices=3, layers=None, router=1, shared=(1, 1), chosen=None, factor=6):
    expert = matrices * model["width"] * model["expert_width"]
    scores = router * model["width"] * model["experts"]
    many = model["layers"] if layers is None else layers
    top_k = model["top_k"] if chosen is None else chosen
    total = model["rest"] + many * (scores + (model["experts"] + shared[0] * model["shared"]) * expert)
    active = model["rest"] + many * (scores + (top_k + shared[1] * model["shared"]) * expert)
    return {"total": total, "active": active, "flops": factor * active}


def _costs(misconception=None, says="", **changes):
    return wrong("active-and-total", misconception, says=says, answer=lambda model: _cost(model, **changes))


wrong_two_matrices = _costs("two-matrices", matrices=2)
wrong_one_layer = _costs("one-layer", layers=1)
wrong_no_router = _costs("nobody-routes", router=0)
wrong_shared_asleep = _costs("shared-experts-rest", shared=(1, 0))
wrong_no_shared = _costs("no-shared-experts", shared=(0, 0))
wrong_one_choice = _costs("one-expert-a-token", chosen=1)
wrong_forward_only = _costs("forward-only", factor=2)
wrong_backward_is_one_forward = _costs("backward-costs-one-forward", factor=4)


@wrong("active-and-total", "the-router-scores-all")
def wrong_router_scores_shared(model):
    found, more = _cost(model), model["layers"] * model["width"] * model["shared"]
    total, active = found["total"] + more, found["active"] + more
    return {"total": total, "active": active, "flops": 6 * active}


@wrong("active-and-total", "each-layer-has-the-rest")
def wrong_rest_in_each_layer(model):
    found, more = _cost(model), (model["layers"] - 1) * model["rest"]
    total, active = found["total"] + more, found["active"] + more
    return {"total": total, "active": active, "flops": 6 * active}


@wrong("active-and-total", "the-rest-is-idle")
def wrong_rest_not_active(model):
    found = _cost(model)
    active = found["active"] - model["rest"]
    return found | {"active": active, "flops": 6 * active}


@wrong("active-and-total", says="not in billions")
def wrong_billions(model):
    return {key: value / 1e9 for key, value in _cost(model).items()}


@wrong("active-and-total", "all-experts-work")
def wrong_dense(model):
    found = _cost(model)
    return found | {"active": found["total"], "flops": 6 * found["total"]}


@wrong("active-and-total", "flops-of-all")
def wrong_flops_of_all(model):
    found = _cost(model)
    return found | {"flops": 6 * found["total"]}


@wrong("active-and-total", "a-share-of-everything")
def wrong_share(model):
    total = _cost(model)["total"]
    active = total * model["top_k"] / model["experts"]
    return {"total": total, "active": active, "flops": 6 * active}


@wrong("active-and-total", "the-router-is-chosen-too")
def wrong_router_of_the_chosen(model):
    found = _cost(model)
    active = found["active"] - model["layers"] * model["width"] * (model["experts"] - model["top_k"])
    return found | {"active": active, "flops": 6 * active}


@wrong("active-and-total", says="a dict with the keys")
def wrong_a_tuple(model):
    return tuple(_cost(model).values())


@wrong("active-and-total", says="nearly right")
def wrong_rounded(model):
    return {key: round(value, -6) + 3_000_000 for key, value in _cost(model).items()}


@wrong("active-and-total", says="changed what it was given")
def wrong_changes_the_model(model):
    found = _cost(model)
    model["layers"] = 0
    return found


@right("active-and-total")
def right_layer_by_layer(model):
    def layer(experts):
        return model["width"] * (model["experts"] + experts * 3 * model["expert_width"])

    total = model["rest"] + sum(layer(model["experts"] + model["shared"]) for _ in range(model["layers"]))
    active = model["rest"] + sum(layer(model["top_k"] + model["shared"]) for _ in range(model["layers"]))
    return {"flops": torch.tensor(6.0 * active, dtype=torch.float64), "total": total, "active": active}


@right("active-and-total")
def right_with_a_note(model):
    return _cost(model) | {"expert": 3 * model["width"] * model["expert_width"]}


# 11.2 there and back by all-to-all


def _counts(chosen, n_experts):
    return chosen.flatten().argsort(stable=True), torch.bincount(chosen.flatten(), minlength=n_experts)


class _Layer:
    """The reference, in parts that a wrong answer replaces."""

    def __call__(self, tokens, chosen, gates, me):
        order, per_expert = _counts(chosen, me.n_experts)
        ours = per_expert.view(me.ranks, -1)
        theirs = self.theirs(ours, me)
        send, receive = ours.sum(1).tolist(), self.receive(ours, theirs)
        rows = me.exchange(self.rows(tokens, order, chosen), send, receive)
        answers = self.answers(rows, self.labels(theirs, me), me)
        back = me.exchange(answers, receive, send)
        return self.combine(self.put(back, order), gates, order, chosen.shape)

    def theirs(self, ours, me):
        return me.exchange(ours, [1] * me.ranks, [1] * me.ranks)

    def receive(self, ours, theirs):
        return theirs.sum(1).tolist()

    def rows(self, tokens, order, chosen):
        return tokens[order // chosen.shape[1]]

    def labels(self, theirs, me):
        return torch.tensor(list(me.mine) * me.ranks).repeat_interleave(theirs.flatten())

    def answers(self, rows, labels, me):
        out = torch.zeros_like(rows)
        for e in me.mine:
            out[labels == e] = me.expert(e, rows[labels == e])
        return out

    def put(self, back, order):
        by_slot = torch.empty_like(back)
        by_slot[order] = back
        return by_slot

    def combine(self, by_slot, gates, order, shape):
        return (by_slot.view(*shape, by_slot.shape[1]) * gates[:, :, None]).sum(1)


def _layers(misconception=None, says="", **parts):
    layer = type("Changed", (_Layer,), parts)()
    return wrong("all-to-all", misconception, says=says, answer={"counts": _counts, "layer": layer})


def _from_counts(misconception=None, says="", counts=None):
    return wrong("all-to-all", misconception, says=says, answer={"counts": counts, "layer": _Layer()})


wrong_receives_what_it_sends = _layers(
    "receives-what-it-sends", receive=lambda self, ours, theirs: ours.sum(1).tolist()
)
wrong_counts_not_exchanged = _layers("receives-what-it-sends", theirs=lambda self, ours, me: ours)
wrong_stays_sorted = _layers("stays-sorted", put=lambda self, back, order: back)
wrong_puts_by_order = _layers("puts-back-by-order", put=lambda self, back, order: back[order])
wrong_slots_are_tokens = _layers(
    "a-slot-is-a-token", rows=lambda self, tokens, order, chosen: tokens[order % max(len(tokens), 1)]
)
wrong_no_gates = _layers(
    "gates-change-nothing", combine=lambda self, by_slot, gates, order, shape: by_slot.view(*shape, 5).sum(1)
)
wrong_gates_made_one = _layers(
    "gates-change-nothing",
    combine=lambda self, by_slot, gates, order, shape: (
        by_slot.view(*shape, 5) * (gates / gates.sum(1, keepdim=True))[:, :, None]
    ).sum(1),
)
wrong_gates_sorted_again = _layers(
    "gates-stay-behind",
    combine=lambda self, by_slot, gates, order, shape: (
        (by_slot * gates.flatten()[order][:, None]).view(*shape, 5).sum(1)
    ),
)
wrong_averages = _layers(
    "averages-the-choices",
    combine=lambda self, by_slot, gates, order, shape: (by_slot.view(*shape, 5) * gates[:, :, None]).mean(1),
)
wrong_first_answer = _layers(
    "only-the-first-choice",
    combine=lambda self, by_slot, gates, order, shape: by_slot.view(*shape, 5)[:, 0] * gates[:, :1],
)
wrong_gates_sorted = _layers(
    "gates-stay-behind",
    combine=lambda self, by_slot, gates, order, shape: (
        (by_slot * gates.flatten()[torch.argsort(order)][:, None]).view(*shape, 5).sum(1)
    ),
)
wrong_sorted_by_expert = _layers(
    "received-rows-are-sorted",
    labels=lambda self, theirs, me: torch.tensor(list(me.mine)).repeat_interleave(theirs.sum(0)),
)
wrong_one_expert = _layers(
    "one-expert-a-rank", labels=lambda self, theirs, me: torch.full((int(theirs.sum()),), me.mine[0])
)
wrong_one_row_a_token = _layers(
    "a-token-is-a-row", rows=lambda self, tokens, order, chosen: tokens[chosen[:, 0].argsort()]
)
wrong_rows_unsorted = _layers(
    "rows-as-they-are", rows=lambda self, tokens, order, chosen: tokens.repeat_interleave(chosen.shape[1], 0)
)
wrong_no_vanished_experts = _from_counts(
    "who-is-not-chosen-is-not-there",
    counts=lambda chosen, n_experts: (chosen.flatten().argsort(), torch.bincount(chosen.flatten())),
)
wrong_inverse = _from_counts(
    "the-inverse",
    counts=lambda chosen, n_experts: (_counts(chosen, n_experts)[0].argsort(), _counts(chosen, n_experts)[1]),
)
wrong_first_choice_counts = _from_counts(
    "only-the-first-choice",
    counts=lambda chosen, n_experts: (_counts(chosen, n_experts)[0], torch.bincount(chosen[:, 0], minlength=n_experts)),
)
wrong_order_of_tokens = _from_counts(
    "a-token-is-a-row", counts=lambda chosen, n_experts: (chosen[:, 0].argsort(), _counts(chosen, n_experts)[1])
)
wrong_not_sorted = _from_counts(
    says="sorted is wanted",
    counts=lambda chosen, n_experts: (torch.arange(chosen.numel()), _counts(chosen, n_experts)[1]),
)
wrong_counts_returns_nothing = _from_counts(says="a pair (order, per_expert)", counts=lambda chosen, n_experts: None)
wrong_not_both = wrong("all-to-all", says="hand in", answer=_counts)


class _Skips(_Layer):
    def __call__(self, tokens, chosen, gates, me):
        return tokens if len(tokens) == 0 else super().__call__(tokens, chosen, gates, me)


class _Everywhere(_Layer):
    """Computes everything where the tokens are."""

    def __call__(self, tokens, chosen, gates, me):
        out = torch.zeros_like(tokens)
        for e in range(me.n_experts):
            for j in range(chosen.shape[1]):
                taken = chosen[:, j] == e
                out[taken] += me.expert(e, tokens[taken]) * gates[taken, j, None]
        return out


class _Broadcasts:
    """Sends everything to everybody, gates and choices too; each rank answers for its experts."""

    def __call__(self, tokens, chosen, gates, me):
        n, ranks = len(tokens), me.ranks
        sizes = me.exchange(torch.full((ranks,), n), [1] * ranks, [1] * ranks).tolist()
        x, c, g = (
            me.exchange(t.repeat(ranks, *[1] * (t.ndim - 1)), [n] * ranks, sizes) for t in (tokens, chosen, gates)
        )
        out = torch.zeros_like(x)
        for e in me.mine:
            for j in range(c.shape[1]):
                taken = c[:, j] == e
                out[taken] += me.expert(e, x[taken]) * g[taken, j, None]
        return me.exchange(out, sizes, [n] * ranks).view(ranks, n, tokens.shape[1]).sum(0)


class _Loops(_Layer):
    def theirs(self, ours, me):
        while True:
            super().theirs(ours, me)


class _Overwrites(_Layer):
    """`+=` at an index that holds a token twice."""

    def put(self, back, order):
        return back

    def combine(self, by_slot, gates, order, shape):
        out = by_slot.new_zeros(shape[0], 5)
        out[order // shape[1]] += by_slot * gates.flatten()[order][:, None]
        return out


class _SameWayBack(_Layer):
    """The way back with the numbers of the way there."""

    def __call__(self, tokens, chosen, gates, me):
        order, per_expert = _counts(chosen, me.n_experts)
        ours = per_expert.view(me.ranks, -1)
        theirs = self.theirs(ours, me)
        send, receive = ours.sum(1).tolist(), theirs.sum(1).tolist()
        answers = me.exchange(self.rows(tokens, order, chosen), send, receive)
        return me.exchange(answers, send, receive)


wrong_overwrites = wrong("all-to-all", "an-index-twice-adds-twice", answer={"counts": _counts, "layer": _Overwrites()})
wrong_same_way_back = wrong(
    "all-to-all", says="Are the two exchanged?", answer={"counts": _counts, "layer": _SameWayBack()}
)
wrong_table_on_its_side = _layers(
    says="exchange 1 of rank 0: send adds up to 2, and there is 1 row",
    theirs=lambda self, ours, me: me.exchange(ours.t(), [1] * me.ranks, [1] * me.ranks),
)
wrong_scalar = _layers(
    says="yours has none", theirs=lambda self, ours, me: me.exchange(ours.sum(), [1] * me.ranks, [1] * me.ranks)
)


class _Silent(_Layer):
    def combine(self, by_slot, gates, order, shape):
        return None


wrong_skips_the_call = wrong(
    "all-to-all", "nothing-to-send-nothing-to-call", answer={"counts": _counts, "layer": _Skips()}
)
wrong_computes_everywhere = wrong(
    "all-to-all", "experts-are-everywhere", answer={"counts": _counts, "layer": _Everywhere()}
)
wrong_broadcasts = wrong("all-to-all", "everything-to-everybody", answer={"counts": _counts, "layer": _Broadcasts()})
wrong_never_ends = wrong("all-to-all", says="Does your loop end", answer={"counts": _counts, "layer": _Loops()})
wrong_forgets_the_return = wrong(
    "all-to-all", says="layer returned nothing", answer={"counts": _counts, "layer": _Silent()}
)


class _ChangesTokens(_Layer):
    def __call__(self, tokens, chosen, gates, me):
        out = super().__call__(tokens, chosen, gates, me)
        tokens.mul_(2)
        return out


class _ChangesChosen(_Layer):
    def __call__(self, tokens, chosen, gates, me):
        out = super().__call__(tokens, chosen, gates, me)
        chosen.fill_(0)
        return out


def _counts_and_clears(chosen, n_experts):
    found = _counts(chosen, n_experts)
    chosen.zero_()
    return found


wrong_changes_tokens = wrong(
    "all-to-all", says="changed what it was given", answer={"counts": _counts, "layer": _ChangesTokens()}
)
wrong_changes_chosen = wrong(
    "all-to-all", says="changed what it was given", answer={"counts": _counts, "layer": _ChangesChosen()}
)
wrong_counts_clears = _from_counts(says="changed what it was given", counts=_counts_and_clears)


def _by_experts(tokens, chosen, gates, me):
    """Right and slow: three exchanges for each expert."""
    out, flat = torch.zeros_like(tokens), chosen.flatten()
    for e in range(me.n_experts):
        slots, send = (flat == e).nonzero().squeeze(1), [0] * me.ranks
        send[e // len(me.mine)] = len(slots)
        receive = me.exchange(torch.tensor(send), [1] * me.ranks, [1] * me.ranks).tolist()
        rows = me.exchange(tokens[slots // chosen.shape[1]], send, receive)
        back = me.exchange(me.expert(e, rows) if e in me.mine else rows, receive, send)
        out.index_add_(0, slots // chosen.shape[1], back * gates.flatten()[slots, None])
    return out


def _by_choices(tokens, chosen, gates, me):
    """Right and slow: five exchanges for each choice."""
    out = torch.zeros_like(tokens)
    for j in range(chosen.shape[1]):
        order = chosen[:, j].argsort()
        send = torch.bincount(chosen[:, j] // len(me.mine), minlength=me.ranks).tolist()
        receive = me.exchange(torch.tensor(send), [1] * me.ranks, [1] * me.ranks).tolist()
        label, rows, gate = (me.exchange(t[order], send, receive) for t in (chosen[:, j], tokens, gates[:, j]))
        answers = torch.zeros_like(rows)
        for e in me.mine:
            answers[label == e] = me.expert(e, rows[label == e])
        out[order] += me.exchange(answers * gate[:, None], receive, send)
    return out


right_expert_by_expert = right("all-to-all", answer={"counts": _counts, "layer": _by_experts})
right_choice_by_choice = right("all-to-all", answer={"counts": _counts, "layer": _by_choices})


class _SendsLabels:
    """Right, differently: the experts' numbers travel beside the tokens, unsorted within a rank."""

    def __call__(self, tokens, chosen, gates, me):
        k = chosen.shape[1]
        flat, here = chosen.flatten(), me.n_experts // me.ranks
        places = [(flat // here == r).nonzero().squeeze(1) for r in range(me.ranks)]
        order = torch.cat(places)
        send = [len(p) for p in places]
        receive = me.exchange(torch.tensor(send), [1] * me.ranks, [1] * me.ranks)
        rows, labels = (me.exchange(t[i], send, receive) for t, i in ((tokens, order // k), (flat, order)))
        answers = rows.clone()
        for number, label in enumerate(labels.tolist()):
            answers[number : number + 1] = me.expert(label, rows[number : number + 1])
        back = me.exchange(answers, receive, send)
        out = torch.zeros_like(tokens)
        return out.index_add(0, order // k, back * gates.flatten()[order][:, None])


def _counts_in_python(chosen, n_experts):
    flat = chosen.flatten().tolist()
    return sorted(range(len(flat)), key=lambda s: (flat[s], -s)), [flat.count(e) for e in range(n_experts)]


right_labels_travel = right("all-to-all", answer={"counts": _counts_in_python, "layer": _SendsLabels()})
right_in_parts = right("all-to-all", answer={"counts": _counts, "layer": _Layer()})

# 11.3 a balancing bias


def _route(scores, bias, top_k):
    chosen = (scores + bias).topk(top_k, dim=1).indices
    kept = scores.gather(1, chosen)
    return chosen, kept / kept.sum(1, keepdim=True)


def _update(bias, counts, rate):
    return bias + rate * torch.sign(counts.double().mean() - counts).float()


def _routes(misconception=None, says="", route=None):
    return wrong("balancing-bias", misconception, says=says, answer={"route": route, "update": _update})


def _updates(misconception=None, says="", update=None):
    return wrong("balancing-bias", misconception, says=says, answer={"route": _route, "update": update})


def _gated(scores, seen, base, top_k):
    chosen = seen.topk(top_k, dim=1).indices
    kept = base.gather(1, chosen)
    return chosen, kept / kept.sum(1, keepdim=True)


wrong_bias_in_the_gate = _routes("bias-in-the-gate", route=lambda s, b, k: _gated(s, s + b, s + b, k))
wrong_bias_ignored = _routes("ignores-the-bias", route=lambda s, b, k: _gated(s, s, s, k))
wrong_bias_subtracted = _routes("the-bias-repels", route=lambda s, b, k: _gated(s, s - b, s, k))
wrong_softmax = _routes(
    "softmax-once-more",
    route=lambda s, b, k: (c := (s + b).topk(k, dim=1).indices, s.gather(1, c).softmax(1)),
)
wrong_raw_gates = _routes("gates-as-they-are", route=lambda s, b, k: (c := (s + b).topk(k, 1).indices, s.gather(1, c)))
wrong_over_all = _routes(
    "gates-of-all", route=lambda s, b, k: (c := (s + b).topk(k, 1).indices, s.gather(1, c) / s.sum(1, keepdim=True))
)
wrong_detached = _routes("routers-do-not-learn", route=lambda s, b, k: _route(s.detach(), b, k))
wrong_sum_detached = _routes(
    "routers-do-not-learn",
    route=lambda s, b, k: (
        c := (s + b).topk(k, 1).indices,
        s.gather(1, c) / s.gather(1, c).sum(1, keepdim=True).detach(),
    ),
)
wrong_gates_first = _routes(says="chosen holds whole numbers", route=lambda s, b, k: _route(s, b, k)[::-1])
wrong_whole_table = _routes(
    says="have the shape", route=lambda s, b, k: (_route(s, b, k)[0], s / s.sum(1, keepdim=True))
)

wrong_sign = _updates("feeds-the-busy", update=lambda b, c, rate: b + rate * torch.sign(c - c.double().mean()).float())
wrong_proportional = _updates("the-more-the-further", update=lambda b, c, rate: b + rate * (c.float().mean() - c))
wrong_relative = _updates("the-share-decides", update=lambda b, c, rate: b + rate * (1 - c / c.float().mean()))
wrong_equal_up = _updates(
    "equal-moves-too", update=lambda b, c, rate: b + rate * torch.where(c > c.double().mean(), -1.0, 1.0)
)
wrong_equal_down = _updates(
    "equal-moves-too", update=lambda b, c, rate: b + rate * torch.where(c < c.double().mean(), 1.0, -1.0)
)
wrong_only_down = _updates(
    "only-the-busy-are-moved", update=lambda b, c, rate: b - rate * (c > c.double().mean()).float()
)
wrong_only_up = _updates(
    "only-the-idle-are-moved", update=lambda b, c, rate: b + rate * (c < c.double().mean()).float()
)
wrong_anew = _updates("forgets-what-it-learned", update=lambda b, c, rate: _update(torch.zeros_like(b), c, rate))
wrong_median = _updates(
    says="compares with the mean",
    update=lambda b, c, rate: b + rate * torch.sign(c.double().quantile(0.5) - c).float(),
)
wrong_mean_of_the_used = _updates(
    "who-got-nothing-does-not-count",
    update=lambda b, c, rate: b + rate * torch.sign(c[c > 0].float().mean() - c),
)
wrong_no_step = _updates(says="has not moved", update=lambda b, c, rate: b.clone())
wrong_in_place = _updates(
    says="work on a copy", update=lambda b, c, rate: b.add_(rate * torch.sign(c.double().mean() - c).float())
)
wrong_returns_nothing = _updates(says="update returned nothing", update=lambda b, c, rate: None)


wrong_clamped = _updates("never-settles", update=lambda b, c, rate: _update(b, c, rate).clamp(-0.33, 0.33))


def _loop_route(scores, bias, top_k):
    chosen = torch.stack([torch.argsort(row + bias)[-top_k:] for row in scores])
    mask = torch.zeros_like(scores).scatter(1, chosen, 1.0)
    return chosen, (scores * mask / (scores * mask).sum(1, keepdim=True)).gather(1, chosen)


def _loop_update(bias, counts, rate):
    new, total = bias.clone(), int(counts.sum())
    for e, count in enumerate(counts.tolist()):
        if count * len(counts) > total:
            new[e] -= rate
        elif count * len(counts) < total:
            new[e] += rate
    return new


right_in_loops = right("balancing-bias", answer={"route": _loop_route, "update": _loop_update})

# 11.4 more tokens than places


def _places(
    experts, n_experts, capacity, group, priority, *, each=False, last=False, one=False, by_sequence=False, rest=False
):
    B, T, k = experts.shape
    slots = [(b, t, j) for b in range(B) for t in range(T) for j in range(k)]
    if priority == "choice":
        slots.sort(key=lambda slot: (slot[0], slot[2]) if by_sequence else min(slot[2], 1) if rest else slot[2])
    taken, found = {}, torch.zeros(experts.shape, dtype=torch.bool)
    for b, t, j in reversed(slots) if last else slots:
        queue = (b if group == "sequence" else 0, 0 if one else int(experts[b, t, j]), j if each else 0)
        if taken.get(queue, 0) < capacity:
            taken[queue] = taken.get(queue, 0) + 1
            found[b, t, j] = True
    return found


def _two_choices(experts, *rules):
    """Keeps no third choice where first choices come first."""
    found = _places(experts, *rules)
    found[:, :, 2:] &= rules[-1] == "token"
    return found


def _out(x, answers, gates, kept):
    return x + ((gates * kept)[..., None] * answers).sum(2)


def _kept(misconception=None, says="", kept=None):
    return wrong("capacity", misconception, says=says, answer={"kept": kept, "output": _out})


def _outputs(misconception=None, says="", output=None):
    return wrong("capacity", misconception, says=says, answer={"kept": _places, "output": output})


wrong_last_stay = _kept("the-last-stay", kept=lambda *a: _places(*a, last=True))
wrong_one_more = _kept("one-too-many", kept=lambda e, n, c, g, p: _places(e, n, c + 1, g, p))
wrong_one_less = _kept("one-too-few", kept=lambda e, n, c, g, p: _places(e, n, c - 1, g, p))
wrong_always_batch = _kept("per-batch", kept=lambda e, n, c, g, p: _places(e, n, c, "batch", p))
wrong_always_sequence = _kept("per-sequence", kept=lambda e, n, c, g, p: _places(e, n, c, "sequence", p))
wrong_always_token = _kept("token-by-token", kept=lambda e, n, c, g, p: _places(e, n, c, g, "token"))
wrong_always_choice = _kept("first-choices-first", kept=lambda e, n, c, g, p: _places(e, n, c, g, "choice"))
wrong_places_each = _kept("places-for-each-choice", kept=lambda *a: _places(*a, each=True))
wrong_one_queue = _kept("one-queue", kept=lambda *a: _places(*a, one=True))
wrong_by_sequence = _kept("first-choices-of-a-sequence", kept=lambda *a: _places(*a, by_sequence=True))
wrong_shared_places_by_choice = _kept(
    "per-batch",
    kept=lambda e, n, c, g, p: _places(e, n, c, "batch" if p == "choice" else g, p),
)
wrong_the_rest_by_token = _kept("the-rest-token-by-token", kept=lambda *a: _places(*a, rest=True))
wrong_two_choices = _kept(says="How many places were taken", kept=lambda *a: _two_choices(*a))
wrong_shape_of_two = _kept(says="has the shape", kept=lambda e, *a: _places(e[:, :, :2], *a))
wrong_whole_tokens = _kept(
    "a-dropped-choice-drops-the-token",
    kept=lambda *a: _places(*a) & _places(*a).all(2, keepdim=True),
)
wrong_takes_back = _kept(
    "a-dropped-choice-drops-the-token",
    kept=lambda *a: _places(*a) & _places(*a).flip(2).cummin(2).values.flip(2),  # those before the dropped one too
)
wrong_keeps_all = _kept("all-find-a-place", kept=lambda e, n, c, g, p: torch.ones_like(e).bool())
wrong_keeps_none = _kept(says="How many places were taken", kept=lambda e, n, c, g, p: torch.zeros_like(e).bool())
wrong_indices = _kept(says="kept holds True and False", kept=lambda e, n, c, g, p: e)
wrong_kept_nothing = _kept(says="nothing came back", kept=lambda *a: None)

wrong_ignores_kept = _outputs("nothing-is-dropped", output=lambda x, a, g, kept: x + (g[..., None] * a).sum(2))
wrong_no_residual = _outputs("the-layer-replaces", output=lambda x, a, g, kept: _out(x, a, g, kept) - x)
wrong_zero = _outputs(
    "a-dropped-token-is-zero", output=lambda x, a, g, kept: _out(x, a, g, kept) * kept.any(2, keepdim=True)
)
wrong_unweighted = _outputs("answers-without-gates", output=lambda x, a, g, kept: x + (kept[..., None] * a).sum(2))
wrong_takes_over = _outputs(
    "the-rest-takes-over",
    output=lambda x, a, g, kept: _out(
        x, a, g * g.sum(2, keepdim=True) / (g * kept).sum(2, keepdim=True).clamp(min=1e-9), kept
    ),
)
wrong_normalises = _outputs(
    "gates-add-up-to-one",
    output=lambda x, a, g, kept: _out(x, a, g / (g * kept).sum(2, keepdim=True).clamp(min=1e-9), kept),
)
wrong_output_nothing = _outputs(says="yours is nothing", output=lambda x, a, g, kept: None)


def _by_counting(experts, n_experts, capacity, group, priority):
    """Right, differently: a running count of one-hot rows in the order of the queue."""
    B, T, k = experts.shape
    whole = experts if group == "sequence" else experts.reshape(1, B * T, k)
    queue = whole.transpose(1, 2) if priority == "choice" else whole
    flat = torch.nn.functional.one_hot(queue.reshape(len(whole), -1), n_experts)
    place = (flat.cumsum(1) * flat).sum(2) - 1
    found = (place < capacity).view(queue.shape)
    return (found.transpose(1, 2) if priority == "choice" else found).reshape(B, T, k)


def _in_steps(x, answers, gates, kept):
    out = x.clone()
    for j in range(kept.shape[2]):
        out += torch.where(kept[:, :, j, None], gates[:, :, j, None] * answers[:, :, j], 0.0)
    return out


right_by_counting = right("capacity", answer={"kept": _by_counting, "output": _in_steps})

# 11.5 place a 70B model


def _at(variant, data, tensor, pipeline, micro_batch, zero, evidence=None, micro_batches=None, rule=""):
    run = place(variant)
    at = {"data": data, "tensor": tensor, "pipeline": pipeline, "micro_batch": micro_batch, "zero": zero}
    at["micro_batches"] = run["batch"] // (data * micro_batch) if micro_batches is None else micro_batches
    value = sum(held(run, at, rule).values()) / 1e9 if evidence is None else evidence
    return {"variant": variant, **at, "evidence": value}


def _placed(misconception=None, says="", answer=None):
    return wrong("place-70b", misconception, says=says, answer=answer)


wrong_pure_fsdp = _placed("fsdp-cuts-activations", answer=_at(0, 64, 1, 1, 1, 3))
wrong_pure_pipeline = _placed("pipeline-cuts-activations", answer=_at(0, 4, 1, 16, 1, 3))
wrong_ddp_and_tensor = _placed("replicas-share-the-state", answer=_at(0, 8, 8, 1, 1, 0))
wrong_zero_1 = _placed("the-optimizer-is-all", answer=_at(2, 16, 4, 1, 1, 1))
wrong_large_micro_batch = _placed("micro-batches-are-free", answer=_at(0, 8, 8, 1, 16, 3))
wrong_both = _placed("each-fits-so-both-do", answer=_at(0, 32, 2, 1, 1, 3))
wrong_tensor_16 = _placed("tensor-leaves-the-node", answer=_at(0, 4, 16, 1, 1, 3))
wrong_kv_heads = _placed("heads-can-be-cut", answer=_at(3, 8, 8, 1, 1, 3))
wrong_stages = _placed("layers-can-be-cut", answer=_at(3, 2, 4, 8, 1, 3))
wrong_bubble = _placed("few-micro-batches-will-do", answer=_at(0, 2, 4, 8, 1, 3))
wrong_all_ranks = _placed("all-ranks-multiply-the-batch", answer=_at(0, 16, 4, 1, 1, 3, micro_batches=2))
wrong_one_replica = _placed("a-replica-takes-the-batch", answer=_at(0, 16, 4, 1, 1, 3, micro_batches=128))
wrong_every_device = _placed("every-device-is-a-data-rank", answer=_at(0, 64, 4, 2, 1, 3))
wrong_devices = _placed(says="there are 64 devices", answer=_at(0, 8, 4, 1, 1, 3))
wrong_zero_2 = _placed(says="`zero` is 0, 1 or 3", answer=_at(0, 16, 4, 1, 1, 2))
wrong_text = _placed(says="`data` is a whole number", answer=_at(0, 16, 4, 1, 1, 3) | {"data": "16"})
wrong_empty = _placed(says="`tensor` is still empty", answer=_at(0, 16, 4, 1, 1, 3) | {"tensor": None})


def _weighed(misconception=None, says="", zero=3, pipeline=2, rule=""):
    data = 8 // pipeline
    return _placed(misconception, says=says, answer=_at(0, data, 8, pipeline, 1, zero, rule=rule))


wrong_one_in_flight = _weighed("one-in-flight", rule="one-in-flight")
wrong_all_in_flight = _weighed("all-in-flight", rule="all-in-flight")
wrong_no_activations = _weighed("no-activations", rule="no-activations")
wrong_whole_activations = _weighed("tensor-cuts-no-activations", rule="tensor-cuts-no-activations")
wrong_activations_in_shards = _weighed("fsdp-cuts-activations", pipeline=1, rule="fsdp-cuts-activations")
wrong_only_shards = _weighed("nothing-is-whole", rule="nothing-is-whole")
wrong_no_embedding = _weighed("no-embedding", zero=1, rule="no-embedding")
wrong_no_master = _weighed("no-master-weights", zero=1, rule="no-master-weights")
wrong_all_shards = _weighed("shards-are-all", zero=1, pipeline=1, rule="shards-are-all")
RIGHT = sum(held(place(0), _at(0, 8, 8, 1, 1, 3)).values())
wrong_gibibytes = _placed(says="those are GiB", answer=_at(0, 8, 8, 1, 1, 3, evidence=RIGHT / 2**30))
wrong_bytes = _placed(says="it is in GB", answer=_at(0, 8, 8, 1, 1, 3) | {"evidence": RIGHT})
wrong_no_evidence = _placed(says="`evidence` is still empty", answer=_at(0, 8, 8, 1, 1, 3) | {"evidence": None})

right_tensor_8_zero_1 = right("place-70b", answer=_at(0, 8, 8, 1, 1, 1))
right_four_stages = right("place-70b", answer=_at(0, 2, 8, 4, 1, 0))
right_two_stages_of_llama_3 = right("place-70b", answer=_at(1, 4, 8, 2, 1, 1))
right_deep_pipeline_on_small_nodes = right("place-70b", answer=_at(2, 1, 4, 16, 1, 0))
right_four_heads = right("place-70b", answer=_at(3, 16, 4, 1, 1, 3))
right_later_variant = right("place-70b", answer=_at(5, 8, 8, 1, 1, 3))

# 11.6 which axis next


def _choice(variant, choice=None, evidence=None, rule=""):
    run = next_axis(variant)
    value = outcome(run, choice or run["choice"], rule)[0] if evidence is None else evidence
    return {"variant": variant, "choice": choice or run["choice"], "evidence": value}


def _axis(misconception=None, says="", answer=None):
    return wrong("next-axis", misconception, says=says, answer=answer)


wrong_hybrid_does_not_fit = _axis("what-is-fast-fits", answer=_choice(4, "A"))
wrong_nothing_fits_there = _axis("what-is-fast-fits", answer=_choice(1, "E"))
wrong_tensor_at_network_speed = _axis("one-link-for-all", answer=_choice(4, "E"))
wrong_tensor_for_free = _axis("new-traffic-is-free", answer=_choice(1, "B"))
wrong_largest_wait = _axis("the-largest-wait-first", answer=_choice(3, "D"))
wrong_makes_room = _axis("room-is-always-short", answer=_choice(0, "C"))
wrong_second_best = _axis(says="B: it fits. Which other lines fit", answer=_choice(0, "B", evidence=1.0))
wrong_second_best_weighed = _axis(says="ms is right for B: it fits. Which other lines fit", answer=_choice(0, "B"))
wrong_tensor_elsewhere = _axis("any-axis-helps", answer=_choice(2, "B", evidence=1.0))
wrong_any = _axis("any-axis-helps", answer=_choice(0, "D"))
wrong_number_without_traffic = _axis("new-traffic-is-free", answer=_choice(0, rule="new-traffic-is-free"))
wrong_number_by_the_other_link = _axis("the-other-link", answer=_choice(4, rule="the-other-link"))
wrong_number_with_all_waits = _axis("nothing-removed", answer=_choice(0, rule="nothing-removed"))
wrong_number_with_no_waits = _axis("nothing-else-waits", answer=_choice(2, rule="nothing-else-waits"))
wrong_number_whole_weights = _axis("weights-stay-whole", answer=_choice(4, rule="weights-stay-whole"))
wrong_number_context = _axis("context-cuts-weights", answer=_choice(1, rule="context-cuts-weights"))
wrong_number_no_bubble = _axis("interleaving-ends-it", answer=_choice(2, rule="interleaving-ends-it"))
wrong_number_seconds = _axis(says="in seconds", answer=_choice(0, evidence=next_axis(0)["evidence"] / 1000))
wrong_number_as_it_is = _axis(says="the step as it is", answer=_choice(0, evidence=outcome(next_axis(0), "")[0]))
wrong_letter = _axis(says="one letter", answer=_choice(0) | {"choice": "tensor"})
wrong_no_number = _axis(says="`evidence` is still empty", answer=_choice(0) | {"evidence": None})

right_context = right("next-axis", answer=_choice(1))
right_interleaving = right("next-axis", answer=_choice(2))
right_bias = right("next-axis", answer=_choice(3))
right_tensor = right("next-axis", answer=_choice(4))
right_tensor_makes_room = right("next-axis", answer=_choice(5) | {"choice": "b"})
right_other_numbers = right("next-axis", answer=_choice(8))
