"""Stated answers of chapter 5: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

from fractions import Fraction
from itertools import combinations

import torch
from mutants import right, wrong

from course_lib.checks.ch05_choose import at_worst
from course_lib.checks.ch05_fit import fit

# 05.1 forwards of a step


def _count(segments, micro, *, again=None, backward=2.0):
    n = sum(size for size, _ in segments)
    twice = sum(size for size, flag in segments if flag) if again is None else again
    return micro * (n + twice), ((1 + backward) * n + twice) / ((1 + backward) * n)


@wrong("forwards-of-a-step", "only-the-second-run")
def wrong_second_runs_alone(segments, micro_batches):
    twice = sum(size for size, flag in segments if flag)
    return micro_batches * twice, _count(segments, 1)[1]


@wrong("forwards-of-a-step", "a-segment-is-one-run")
def wrong_one_run_a_segment(segments, micro_batches):
    runs = _count(segments, micro_batches, again=sum(1 for _, flag in segments if flag))[0]
    return runs, _count(segments, 1)[1]


@wrong("forwards-of-a-step", "once-a-step")
def wrong_forgets_micro_batches(segments, micro_batches):
    return _count(segments, 1)


@wrong("forwards-of-a-step", "backward-is-free")
def wrong_forward_is_the_step(segments, micro_batches):
    return _count(segments, micro_batches)[0], _count(segments, 1, backward=0.0)[1]


@wrong("forwards-of-a-step", "backward-costs-one-forward")
def wrong_backward_like_forward(segments, micro_batches):
    return _count(segments, micro_batches)[0], _count(segments, 1, backward=1.0)[1]


@wrong("forwards-of-a-step", says="The second number is a ratio")
def wrong_absolute_work(segments, micro_batches):
    runs, work = _count(segments, micro_batches)
    return runs, micro_batches * work * 3 * sum(size for size, _ in segments)


@wrong("forwards-of-a-step", says="two numbers are wanted")
def wrong_runs_only(segments, micro_batches):
    return _count(segments, micro_batches)[0]


@wrong("forwards-of-a-step", says="nothing came back")
def wrong_forgets_return(segments, micro_batches):
    _count(segments, micro_batches)


@wrong("forwards-of-a-step", says="in the other order")
def wrong_other_order(segments, micro_batches):
    return _count(segments, micro_batches)[::-1]


@wrong("forwards-of-a-step", "backward-is-free", says="as if it ran twice too")
def wrong_backward_twice_too(segments, micro_batches):
    n = sum(size for size, _ in segments)
    return _count(segments, micro_batches)[0], 1 + sum(size for size, flag in segments if flag) / n


@right("forwards-of-a-step")
def right_as_a_fraction(segments, micro_batches):
    n = sum(size for size, _ in segments)
    return _count(segments, micro_batches)[0], 1 + Fraction(sum(size for size, flag in segments if flag), 3 * n)


@right("forwards-of-a-step")
def right_block_by_block(segments, micro_batches):
    blocks = [flag for size, flag in segments for _ in range(size)]
    work = sum(4 if flag else 3 for flag in blocks)
    runs = sum(1 + flag for _ in range(micro_batches) for flag in blocks)
    return torch.tensor(runs), work / (3 * len(blocks))


# 05.2 bytes kept


def _bytes(layers, tokens, inside, edge, every, *, held=None, offset=0, worst="right"):
    held = edge if held is None else held
    short = [(n + 1 + offset) % every == 0 for n in range(layers)]
    kept = tokens * sum(held if flag else inside for flag in short)
    back = tokens * (inside - held) if layers % every == 0 and any(short) else 0
    return kept, {"right": kept + back, "free": kept}[worst]


@wrong("bytes-kept", "keeps-nothing")
def wrong_no_inputs(layers, tokens, inside, edge, every):
    return _bytes(layers, tokens, inside, edge, every, held=0)


@wrong("bytes-kept", "kept-and-recomputed-swapped")
def wrong_swapped(layers, tokens, inside, edge, every):
    short = layers - layers // every
    kept = tokens * ((layers - short) * inside + short * edge)
    return kept, kept


@wrong("bytes-kept", "rounds-up")
def wrong_ceiling(layers, tokens, inside, edge, every):
    short = -(-layers // every)
    kept = tokens * ((layers - short) * inside + short * edge)
    return kept, kept + tokens * (inside - edge)


@wrong("bytes-kept", "recomputed-for-free")
def wrong_nothing_comes_back(layers, tokens, inside, edge, every):
    return _bytes(layers, tokens, inside, edge, every, worst="free")


@wrong("bytes-kept", "input-counted-twice")
def wrong_input_twice(layers, tokens, inside, edge, every):
    kept = _bytes(layers, tokens, inside, edge, every)[0]
    return kept, kept + (tokens * inside if layers >= every else 0)


@wrong("bytes-kept", "whole-model-comes-back")
def wrong_all_comes_back(layers, tokens, inside, edge, every):
    return _bytes(layers, tokens, inside, edge, every)[0], layers * inside * tokens


@wrong("bytes-kept", "later-blocks-stay")
def wrong_later_blocks_stay(layers, tokens, inside, edge, every):
    kept = _bytes(layers, tokens, inside, edge, every)[0]
    return kept, kept + (tokens * (inside - edge) if layers >= every else 0)


@wrong("bytes-kept", says="bytes a token")
def wrong_per_token(layers, tokens, inside, edge, every):
    return _bytes(layers, 1, inside, edge, every)


@wrong("bytes-kept", says="two numbers are wanted")
def wrong_one_number(layers, tokens, inside, edge, every):
    return float(_bytes(layers, tokens, inside, edge, every)[0])


@wrong("bytes-kept", says="In which direction does backward walk")
def wrong_direction(layers, tokens, inside, edge, every):
    held = [edge if (n + 1) % every == 0 else inside for n in range(layers)]
    moments = [sum(held), *(sum(held[n + 1 :]) + inside for n in range(layers) if held[n] == edge)]
    return tokens * sum(held), tokens * max(moments)


@wrong("bytes-kept", says="In which direction does backward walk")
def wrong_first_of_each_group(layers, tokens, inside, edge, every):
    held = [edge if n % every == 0 and n + every <= layers else inside for n in range(layers)]
    moments = [sum(held), *(sum(held[:n]) + inside for n in range(layers) if held[n] == edge)]
    return tokens * sum(held), tokens * max(moments)


@right("bytes-kept")
def right_backward_walk(layers, tokens, inside, edge, every):
    held = [edge if (n + 1) % every == 0 else inside for n in range(layers)]
    moments = [sum(held)]
    for n in range(layers - 1, -1, -1):
        moments.append(sum(held[:n]) + inside)  # a kept block is never above what was there
    return [tokens * sum(held), float(tokens * max(moments))]


# 05.3 a segment by hand


def _again(ctx, grad, *, restore=True):
    x, *parameters = ctx.saved_tensors
    x = x.detach().requires_grad_()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        if restore:
            torch.set_rng_state(ctx.state)
        y = ctx.run(x)
    return x, parameters, y


def _keep(ctx, run, x, parameters):
    ctx.run, ctx.state = run, torch.get_rng_state()
    ctx.save_for_backward(x, *parameters)


@wrong("segment-by-hand", "draws-other-masks")
class wrong_other_masks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad, restore=False)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", "draws-other-masks")
class wrong_state_saved_too_late(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        y = run(x)
        _keep(ctx, run, x, parameters)
        return y

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", "random-state-left-behind")
class wrong_leaves_the_state(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        x = x.detach().requires_grad_()
        torch.set_rng_state(ctx.state)
        with torch.enable_grad():
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", "keeps-the-graph")
class wrong_graph_kept_in_forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        with torch.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = run(ctx.x)
        ctx.parameters = parameters
        return ctx.y.detach()

    @staticmethod
    def backward(ctx, grad):
        return None, *torch.autograd.grad(ctx.y, [ctx.x, *ctx.parameters], grad)


@wrong("segment-by-hand", "only-the-input")
class wrong_weights_get_nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        return None, torch.autograd.grad(y, x, grad)[0], *(None for _ in parameters)


@wrong("segment-by-hand", "ignores-what-comes-from-above")
class wrong_sum_of_outputs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        return None, *torch.autograd.grad(y, [x, *parameters], torch.ones_like(y))


@wrong("segment-by-hand", "added-twice")
class wrong_added_and_returned(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        y.backward(grad)
        return None, x.grad, *(p.grad for p in parameters)


@wrong("segment-by-hand", says="write it yourself")
class wrong_calls_torch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        return torch.utils.checkpoint.checkpoint(run, x)


@wrong("segment-by-hand", says="hand in the class itself")
def wrong_hands_in_apply(*args):
    return right_by_hand.value.apply(*args)


class _Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        return run(x)

    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", "added-not-returned")
class wrong_added_and_none_returned(_Kept):
    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        y.backward(grad)
        return None, x.grad, *(None for _ in parameters)


@wrong("segment-by-hand", says="Whose tensor did you change?")
class wrong_changes_the_callers_input(_Kept):
    @staticmethod
    def backward(ctx, grad):
        x, *parameters = ctx.saved_tensors
        x.requires_grad_()
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.set_rng_state(ctx.state)
            y = ctx.run(x)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", says="Do you keep a copy")
class wrong_copy_of_the_input(_Kept):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.state = run, torch.get_rng_state()
        ctx.save_for_backward(x.clone(), *parameters)
        return run(x)


@wrong("segment-by-hand", says="Do you keep a copy")
class wrong_copy_of_the_output(_Kept):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        y = _Kept.forward(ctx, run, x, *parameters)
        ctx.output = y.clone()
        return y


@wrong("segment-by-hand", says="Does forward draw or seed any")
class wrong_seeds_in_forward(_Kept):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        torch.manual_seed(int(torch.randint(1000, ())))
        return _Kept.forward(ctx, run, x, *parameters)


@wrong("segment-by-hand", says="one gradient for each argument")
class wrong_one_gradient_too_few(_Kept):
    @staticmethod
    def backward(ctx, grad):
        x, parameters, y = _again(ctx, grad)
        return torch.autograd.grad(y, [x, *parameters], grad)


@wrong("segment-by-hand", says="does it end in a `return`?")
class wrong_backward_forgets_return(_Kept):
    @staticmethod
    def backward(ctx, grad):
        _again(ctx, grad)


@wrong("segment-by-hand", says="NoneType")
class wrong_forward_forgets_return(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        _keep(ctx, run, x, parameters)
        run(x)

    @staticmethod
    def backward(ctx, grad):
        return (None,)


@right("segment-by-hand")
class right_with_a_name_of_torchs(_Kept):
    @staticmethod
    def backward(ctx, grad):
        recomputed = _again
        checkpoint = torch.get_rng_state()
        x, parameters, y = recomputed(ctx, grad)
        torch.set_rng_state(checkpoint)
        return None, *torch.autograd.grad(y, [x, *parameters], grad)


@right("segment-by-hand")
class right_by_hand(torch.autograd.Function):
    @staticmethod
    def forward(ctx, run, x, *parameters):
        ctx.run, ctx.state, ctx.parameters, ctx.x = run, torch.random.get_rng_state(), parameters, x.detach()
        with torch.no_grad():
            return run(x)

    @staticmethod
    def backward(ctx, grad):
        outside = torch.get_rng_state()
        torch.set_rng_state(ctx.state)
        x = ctx.x.clone().requires_grad_(ctx.needs_input_grad[1])
        with torch.enable_grad():
            y = ctx.run(x)
        torch.set_rng_state(outside)
        wanted = [x, *ctx.parameters] if x.requires_grad else list(ctx.parameters)
        grads = torch.autograd.grad(y, wanted, grad)
        return (None, *grads) if x.requires_grad else (None, None, *grads)


# 05.4 choose the blocks


def _greedy(blocks, budget, rank):
    chosen = []
    for n in sorted(range(len(blocks)), key=lambda n: rank(blocks[n])):
        if at_worst(blocks, chosen)[0] <= budget:
            break
        chosen.append(n)
    return chosen if at_worst(blocks, chosen)[0] <= budget else None


@wrong("choose-blocks", "largest-first")
def wrong_largest_first(blocks, budget):
    return _greedy(blocks, budget, lambda block: block["edge"] - block["inside"])


@wrong("choose-blocks", "cheapest-first")
def wrong_cheapest_first(blocks, budget):
    return _greedy(blocks, budget, lambda block: block["ms"])


@wrong("choose-blocks", "best-ratio-first")
def wrong_best_ratio_first(blocks, budget):
    return _greedy(blocks, budget, lambda block: (block["edge"] - block["inside"]) / block["ms"])


def _cost(blocks, chosen):
    return sum(blocks[n]["ms"] for n in chosen)


def _thinned(blocks, budget, chosen):
    if chosen is None or at_worst(blocks, chosen)[0] > budget:
        return None
    for n in sorted(chosen, key=lambda n: -blocks[n]["ms"]):
        fewer = [m for m in chosen if m != n]
        chosen = fewer if at_worst(blocks, fewer)[0] <= budget else chosen
    return chosen


@wrong("choose-blocks", "fewest-blocks")
def wrong_fewest_blocks(blocks, budget):
    for count in range(len(blocks) + 1):
        fits = [c for c in combinations(range(len(blocks)), count) if at_worst(blocks, c)[0] <= budget]
        if fits:
            return list(min(fits, key=lambda chosen: _cost(blocks, chosen)))


@wrong("choose-blocks", "nothing-to-give-back")
def wrong_cheapest_then_thinned(blocks, budget):
    return _thinned(blocks, budget, _greedy(blocks, budget, lambda block: block["ms"]))


@wrong("choose-blocks", "nothing-to-give-back")
def wrong_all_then_thinned(blocks, budget):
    return _thinned(blocks, budget, list(range(len(blocks))))


@wrong("choose-blocks", "gives-up")
def wrong_at_most_four_blocks(blocks, budget):
    most = [c for count in range(5) for c in combinations(range(len(blocks)), count)]
    fits = [chosen for chosen in most if at_worst(blocks, chosen)[0] <= budget]
    return list(min(fits, key=lambda chosen: _cost(blocks, chosen))) if fits else None


@wrong("choose-blocks", "all-or-nothing")
def wrong_all_or_nothing(blocks, budget):
    everything = list(range(len(blocks)))
    return (
        [] if at_worst(blocks, [])[0] <= budget else everything if at_worst(blocks, everything)[0] <= budget else None
    )


@wrong("choose-blocks", "forgets-the-block-that-comes-back")
def wrong_counts_what_is_held(blocks, budget):
    fits = [
        chosen
        for count in range(len(blocks) + 1)
        for chosen in combinations(range(len(blocks)), count)
        if sum(b["edge"] if n in chosen else b["inside"] for n, b in enumerate(blocks)) <= budget
    ]
    return list(min(fits, key=lambda chosen: sum(blocks[n]["ms"] for n in chosen))) if fits else None


@wrong("choose-blocks", "gives-up")
def wrong_never_finds_one(blocks, budget):
    return None if at_worst(blocks, [])[0] > budget else []


@wrong("choose-blocks", "always-a-way")
def wrong_always_answers(blocks, budget):
    found = right_search.value(blocks, budget)
    return list(range(len(blocks) - 1)) if found is None else found


@wrong("choose-blocks", "always-a-way")
def wrong_all_when_nothing_fits(blocks, budget):
    found = right_search.value(blocks, budget)
    return list(range(len(blocks))) if found is None else found


@wrong("choose-blocks", says="a list of block numbers is wanted")
def wrong_gives_the_time(blocks, budget):
    return 12.5


@right("choose-blocks")
def right_search(blocks, budget):
    best = None
    for bits in range(2 ** len(blocks)):
        chosen = {n for n in range(len(blocks)) if bits >> n & 1}
        held = [b["edge"] if n in chosen else b["inside"] for n, b in enumerate(blocks)]
        peak = max([sum(held)] + [sum(held[:n]) + blocks[n]["inside"] for n in chosen])
        cost = sum(blocks[n]["ms"] for n in chosen)
        if peak <= budget and (best is None or cost < best[0]):
            best = cost, chosen
    return None if best is None else best[1]


# 05.5 what it does not save


def _form(variant, choice, evidence):
    return {"variant": variant, "choice": choice, "evidence": evidence}


_RUN, _SMALL = fit(0), fit(1)
_ACTIVATIONS = _RUN["recomputed"] - _RUN["state"]

wrong_saves_all = wrong("does-it-fit", "recomputing-shrinks-the-state", answer=_form(0, "B", 45.1))
wrong_nothing_helps = wrong("does-it-fit", "activations-stay", answer=_form(1, "C", 90.0))
wrong_weights = wrong("does-it-fit", "counts-weights-only", answer=_form(0, "A", 25.2))
wrong_small_state = wrong(
    "does-it-fit", "counts-weights-only", answer=_form(0, "C", (_RUN["state"] / 8 + _ACTIVATIONS) / 1e9)
)
wrong_no_master = wrong(
    "does-it-fit", "no-master-weights", answer=_form(0, "C", (_RUN["state"] * 0.75 + _ACTIVATIONS) / 1e9)
)
wrong_activations = wrong("does-it-fit", "state-left-out", answer=_form(0, "C", _ACTIVATIONS / 1e9))
wrong_no_edges = wrong("does-it-fit", "keeps-nothing", answer=_form(0, "C", (_RUN["state"] + _RUN["inside"]) / 1e9))
wrong_between_passes = wrong(
    "does-it-fit",
    "forgets-the-block-that-comes-back",
    answer=_form(0, "C", (_RUN["state"] + _RUN["blocks"] * _RUN["edge"]) / 1e9),
)
wrong_rounded = wrong("does-it-fit", says="nearly right", answer=_form(0, "C", _RUN["evidence"] * 1.0006))
wrong_half = wrong("does-it-fit", says="`evidence` is still empty", answer=_form(0, "C", None))
wrong_letter = wrong("does-it-fit", says="one letter in quotes", answer=_form(0, "no", 213))
wrong_letter_alone = wrong("does-it-fit", says="compare the card's bytes", answer=_form(0, "B", _RUN["evidence"]))
right_rounded = right("does-it-fit", answer=_form(0, "c", float(f"{_RUN['evidence']:.4g}")))
right_other_variant = right("does-it-fit", answer=_form(1, "B", _SMALL["evidence"]))
