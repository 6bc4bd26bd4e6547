"""Stated answers of chapter 3: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from mutants import right, wrong

from course_lib.checks.ch03_doubled import _numbers, doubled

# 03.1 the size of a batch


def _size(run, shared=("tensor", "pipeline", "context_parallel"), steps=None):
    data = run["devices"] // math.prod(run[part] for part in shared)
    sequences = run["micro_batch"] * (run["accumulation"] if steps is None else steps) * data
    return sequences, sequences * run["context"], run["data_tokens"] // (sequences * run["context"])


@wrong("size-of-a-batch", "tensor-multiplies")
def wrong_tensor_ranks_read(run):
    return _size(run, ("pipeline", "context_parallel"))


@wrong("size-of-a-batch", "every-device-multiplies")
def wrong_all_devices(run):
    return _size(run, ())


@wrong("size-of-a-batch", "context-multiplies")
def wrong_context_ranks_read(run):
    return _size(run, ("tensor", "pipeline"))


@wrong("size-of-a-batch", "pipeline-multiplies")
def wrong_stages_read(run):
    return _size(run, ("tensor", "context_parallel"))


@wrong("size-of-a-batch", "devices-share-one-batch")
def wrong_one_rank(run):
    return _size({**run, "devices": run["tensor"] * run["pipeline"] * run["context_parallel"]})


@wrong("size-of-a-batch", "accumulation-is-no-factor")
def wrong_no_accumulation(run):
    return _size(run, steps=1)


@wrong("size-of-a-batch", "rounds-up")
def wrong_one_more_update(run):
    sequences, tokens, _ = _size(run)
    return sequences, tokens, math.ceil(run["data_tokens"] / tokens)


@wrong("size-of-a-batch", says="updates are whole")
def wrong_a_fraction(run):
    sequences, tokens, _ = _size(run)
    return sequences, tokens, run["data_tokens"] / tokens


@wrong("size-of-a-batch", says="the number of tokens is not")
def wrong_tokens_are_sequences(run):
    sequences, _, _ = _size(run)
    return sequences, sequences, run["data_tokens"] // sequences


@wrong("size-of-a-batch", says="nothing came back")
def wrong_size_forgets_return(run):
    _size(run)


@wrong("size-of-a-batch", says="write it yourself")
def wrong_size_asks_the_library(run):
    from course_lib.planning.formulas import effective_batch

    return effective_batch(run["micro_batch"], run["accumulation"]), 0, 0


@wrong("size-of-a-batch", says="right numbers in another order")
def wrong_size_order(run):
    sequences, tokens, updates = _size(run)
    return tokens, sequences, updates


@wrong("size-of-a-batch", says="a tuple of two came back")
def wrong_size_without_updates(run):
    return _size(run)[:2]


@wrong("size-of-a-batch", says="an int came back")
def wrong_size_only_sequences(run):
    return _size(run)[0]


@wrong("size-of-a-batch", says="the number of sequences is not that of this run")
def wrong_size_a_first_number_of_its_own(run):
    sequences, tokens, updates = _size(run)
    return sequences + 1, tokens, updates


@right("size-of-a-batch")
def right_size_as_an_array(run):
    return np.array(_size(run))


@right("size-of-a-batch")
def right_size_as_a_tensor(run):
    return torch.tensor(_size(run))


@right("size-of-a-batch")
def right_size_as_a_list_of_floats(run):
    ranks = run["devices"] / run["tensor"] / run["pipeline"] / run["context_parallel"]
    tokens = round(ranks * run["micro_batch"] * run["accumulation"] * run["context"])
    return [
        tokens / run["context"],
        torch.tensor(tokens),
        float((run["data_tokens"] - run["data_tokens"] % tokens) / tokens),
    ]


# 03.2 unequal tokens


def _sum(model, tokens, targets):
    return F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")


def _count(targets):
    return int((targets != -100).sum())


def _accumulate(model, micro_batches, divide, clear=True, skip=False):
    """divide(count of this one, of all, its slots, how many) -> what its summed loss is divided by."""
    if clear:
        model.zero_grad()
    if skip:
        micro_batches = [one for one in micro_batches if _count(one[1])]
    total = 0.0
    everything = sum(_count(targets) for _, targets in micro_batches)
    slots = sum(targets.numel() for _, targets in micro_batches)
    for tokens, targets in micro_batches:
        divisor = divide(max(_count(targets), 1), everything, slots, len(micro_batches))
        loss = _sum(model, tokens, targets) / divisor
        loss.backward()
        total += float(loss.detach())
    return total


@wrong("unequal-tokens", "mean-of-means-is-fine", says="With equal counts you are right")
def wrong_mean_of_means(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: own * k)


@wrong("unequal-tokens", "skips-the-empty-one")
def wrong_weighs_rows_but_skips_empty(model, micro_batches):
    counts = [_count(targets) for _, targets in micro_batches]
    if 0 in counts:
        return _accumulate(model, micro_batches, lambda own, all_, slots, k: own * k, skip=True)
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)


@wrong("unequal-tokens", "forgets-to-divide")
def wrong_adds_means(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: own)


@wrong("unequal-tokens", "padding-counts")
def wrong_divides_by_positions(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: slots)


@wrong("unequal-tokens", "sums-need-no-divisor")
def wrong_sums(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: 1)


@wrong("unequal-tokens", "divides-twice")
def wrong_divides_twice(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: all_ * k)


@wrong("unequal-tokens", "old-gradients-stay")
def wrong_does_not_clear(model, micro_batches):
    return _accumulate(model, micro_batches, lambda own, all_, slots, k: all_, clear=False)


@wrong("unequal-tokens", "keeps-the-last-micro-batch")
def wrong_clears_each_time(model, micro_batches):
    everything = sum(_count(targets) for _, targets in micro_batches)
    total = 0.0
    for tokens, targets in micro_batches:
        model.zero_grad()
        loss = _sum(model, tokens, targets) / everything
        loss.backward()
        total += loss.item()
    return total


@wrong("unequal-tokens", "an-empty-mean-is-zero")
def wrong_weighs_an_empty_mean(model, micro_batches):
    model.zero_grad()
    everything = sum(_count(targets) for _, targets in micro_batches)
    total = 0.0
    for tokens, targets in micro_batches:
        mean = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        loss = mean * _count(targets) / everything
        loss.backward()
        total += loss.item()
    return total


@wrong("unequal-tokens", "logs-the-last")
def wrong_returns_the_last(model, micro_batches):
    model.zero_grad()
    everything = sum(_count(targets) for _, targets in micro_batches)
    for tokens, targets in micro_batches:
        loss = _sum(model, tokens, targets) / everything
        loss.backward()
    return loss.item()


@wrong("unequal-tokens", says="still a mean of means", misconception="mean-of-means-is-fine")
def wrong_logs_a_mean_of_means(model, micro_batches):
    _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)
    with torch.no_grad():
        means = [float(_sum(model, *one)) / max(_count(one[1]), 1) for one in micro_batches]
    return sum(means) / len(means)


@wrong("unequal-tokens", says="nothing came back")
def wrong_unequal_forgets_return(model, micro_batches):
    _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)


@wrong("unequal-tokens", says="Which call fills p.grad")
def wrong_no_backward(model, micro_batches):
    return sum(float(_sum(model, *one).detach()) for one in micro_batches)


@wrong("unequal-tokens", says="the weights have changed")
def wrong_moves_the_weights(model, micro_batches):
    loss = _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


@wrong("unequal-tokens", says="It was filled once")
def wrong_clears_at_the_end(model, micro_batches):
    loss = _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)
    model.zero_grad()
    return loss


@wrong("unequal-tokens", says="every gradient is zero")
def wrong_zeroes_at_the_end(model, micro_batches):
    loss = _accumulate(model, micro_batches, lambda own, all_, slots, k: all_)
    model.zero_grad(set_to_none=False)
    return loss


def _joined(micro_batches):
    return tuple(torch.cat(parts) for parts in zip(*micro_batches, strict=True))


@wrong("unequal-tokens", "joins-the-micro-batches", says="one forward had 24 tokens at once")
def wrong_one_large_batch(model, micro_batches):
    return _accumulate(model, [_joined(micro_batches)], lambda own, all_, slots, k: all_)


@wrong("unequal-tokens", "joins-the-micro-batches", says="one forward had 24 tokens at once")
def wrong_one_large_batch_by_forward(model, micro_batches):
    model.zero_grad()
    tokens, targets = _joined(micro_batches)
    loss = F.cross_entropy(model.forward(tokens).flatten(0, 1), targets.flatten())
    loss.backward()
    return loss


@wrong("unequal-tokens", "joins-the-micro-batches", says="still there in the forward of the next")
def wrong_one_backward_for_all(model, micro_batches):
    model.zero_grad()
    loss = sum(_sum(model, *one) for one in micro_batches) / sum(_count(targets) for _, targets in micro_batches)
    loss.backward()
    return loss


@right("unequal-tokens")
def right_looks_first(model, micro_batches):
    """Forwards whose graph nobody holds: without gradients, or left behind for an empty micro-batch."""
    count = sum(_count(targets) for _, targets in micro_batches)
    with torch.no_grad():
        mean = sum(float(_sum(model, *one)) for one in micro_batches) / count
    model.zero_grad()
    for tokens, targets in micro_batches:
        logits = model(tokens).flatten(0, 1)
        if _count(targets) == 0:
            continue
        F.cross_entropy(logits, targets.flatten(), reduction="sum").div(count).backward()
    return mean


@right("unequal-tokens")
def right_row_by_row(model, micro_batches):
    rows = [(tokens[i : i + 1], targets[i : i + 1]) for tokens, targets in micro_batches for i in range(len(tokens))]
    return _accumulate(model, rows, lambda own, all_, slots, k: all_)


@right("unequal-tokens")
def right_divides_the_gradients(model, micro_batches):
    for p in model.parameters():
        p.grad = None
    seen, total = 0, torch.zeros(())
    for tokens, targets in micro_batches:
        loss = _sum(model, tokens, targets)
        loss.backward()
        seen, total = seen + _count(targets), total + loss.detach()
    for p in model.parameters():
        p.grad /= seen
    return total / seen


@right("unequal-tokens")
def right_weighs_the_means(model, micro_batches):
    model.zero_grad(set_to_none=False)
    counts = [_count(targets) for _, targets in micro_batches]
    total = 0.0
    for (tokens, targets), count in zip(micro_batches, counts, strict=True):
        if count:
            mean = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            (mean * (count / sum(counts))).backward()
            total += mean.item() * count / sum(counts)
    return total


# 03.3 a loop whose loss looks fine


def _window(model, optimizer, group, divisor=None):
    count = sum(_count(targets) for _, targets in group)
    total = 0.0
    for tokens, targets in group:
        loss = _sum(model, tokens, targets)
        (loss / (divisor or count)).backward()
        total += float(loss.detach()) / count
    optimizer.step()
    optimizer.zero_grad()
    return total


def _cut(pieces, window):
    return [pieces[at : at + window] for at in range(0, len(pieces), window)]


@wrong("quiet-loop", "the-rest-waits")
def wrong_as_it_was(model, optimizer, micro_batches, epochs, window):
    losses, total = [], 0.0
    for _ in range(epochs):
        for i, (tokens, targets) in enumerate(micro_batches):
            first = i - i % window
            count = sum(_count(wanted) for _, wanted in micro_batches[first : first + window])
            total = 0.0 if i == first else total
            loss = _sum(model, tokens, targets) / count
            loss.backward()
            total += loss.item()
            if (i + 1) % window == 0:
                optimizer.step()
                optimizer.zero_grad()
                losses.append(total)
    return losses


@wrong("quiet-loop", "the-rest-may-be-dropped")
def wrong_drops_the_rest(model, optimizer, micro_batches, epochs, window):
    groups = [group for group in _cut(micro_batches, window) if len(group) == window]
    return [_window(model, optimizer, group) for _ in range(epochs) for group in groups]


@wrong("quiet-loop", "windows-cross-epochs")
def wrong_one_long_list(model, optimizer, micro_batches, epochs, window):
    return [_window(model, optimizer, group) for group in _cut(micro_batches * epochs, window)]


@wrong("quiet-loop", "the-rest-counts-as-a-whole-window")
def wrong_divides_by_a_full_window(model, optimizer, micro_batches, epochs, window):
    losses = []
    for _ in range(epochs):
        for group in _cut(micro_batches, window):
            count = sum(_count(targets) for _, targets in group)
            losses.append(_window(model, optimizer, group, count * window / len(group)))
    return losses


@wrong("quiet-loop", "keeps-the-last-micro-batch")
def wrong_clears_inside(model, optimizer, micro_batches, epochs, window):
    losses = []
    for _ in range(epochs):
        for group in _cut(micro_batches, window):
            count = sum(_count(targets) for _, targets in group)
            with torch.no_grad():
                losses.append(sum(float(_sum(model, *one)) for one in group) / count)
            for one in group:
                optimizer.zero_grad()
                (_sum(model, *one) / count).backward()
            optimizer.step()
    return losses


@wrong("quiet-loop", "mean-of-means-is-fine")
def wrong_window_of_means(model, optimizer, micro_batches, epochs, window):
    losses = []
    for _ in range(epochs):
        for group in _cut(micro_batches, window):
            optimizer.zero_grad()
            for tokens, targets in group:
                (_sum(model, tokens, targets) / _count(targets) / len(group)).backward()
            optimizer.step()
            losses.append(0.0)
    return losses


@wrong("quiet-loop", says="losses came back for")
def wrong_loss_of_each_micro_batch(model, optimizer, micro_batches, epochs, window):
    losses = []
    for _ in range(epochs):
        for group in _cut(micro_batches, window):
            losses += [_window(model, optimizer, group)] * len(group)
    return losses


@wrong("quiet-loop", says="a list with the loss of each update; nothing came back")
def wrong_quiet_forgets_return(model, optimizer, micro_batches, epochs, window):
    for _ in range(epochs):
        for group in _cut(micro_batches, window):
            _window(model, optimizer, group)


def quiet_train(model, optimizer, micro_batches, epochs, window):
    """As the notebook gives it: right where `window` divides the micro-batches."""
    return wrong_as_it_was.value(model, optimizer, micro_batches, epochs, window)


@wrong("quiet-loop", says="`quiet_train` does this exercise's work")
def wrong_calls_the_old_one(model, optimizer, micro_batches, epochs, window):
    groups = _cut(micro_batches, window)
    return [quiet_train(model, optimizer, group, 1, len(group))[0] for _ in range(epochs) for group in groups]


def _old_one(model, optimizer, group):
    old = quiet_train
    return old(model, optimizer, group, 1, len(group))[0]


@wrong("quiet-loop", says="`quiet_train` does this exercise's work")
def wrong_calls_the_old_one_in_a_helper(model, optimizer, micro_batches, epochs, window):
    return [_old_one(model, optimizer, group) for _ in range(epochs) for group in _cut(micro_batches, window)]


@wrong("quiet-loop", "the-order-is-free")
def wrong_short_group_first(model, optimizer, micro_batches, epochs, window):
    first = len(micro_batches) % window
    groups = [group for group in [micro_batches[:first], *_cut(micro_batches[first:], window)] if group]
    return [_window(model, optimizer, group) for _ in range(epochs) for group in groups]


@wrong("quiet-loop", "the-order-is-free", says="another order than they were given in")
def wrong_from_the_end(model, optimizer, micro_batches, epochs, window):
    return [_window(model, optimizer, group) for _ in range(epochs) for group in _cut(micro_batches[::-1], window)]


@wrong("quiet-loop", says="no weight has moved")
def wrong_does_nothing(model, optimizer, micro_batches, epochs, window):
    return []


@wrong("quiet-loop", "joins-the-micro-batches")
def wrong_joins_each_window(model, optimizer, micro_batches, epochs, window):
    groups = _cut(micro_batches, window)
    return [_window(model, optimizer, [_joined(group)]) for _ in range(epochs) for group in groups]


@wrong("quiet-loop", says="a list with the loss of each update; an ndarray came back")
def wrong_losses_in_an_array(model, optimizer, micro_batches, epochs, window):
    return np.array([_window(model, optimizer, group) for group in _cut(micro_batches, window)])


@right("quiet-loop")
def right_steps_at_the_end_too(model, optimizer, micro_batches, epochs, window):
    losses = []
    for _ in range(epochs):
        optimizer.zero_grad()
        total, seen = 0.0, 0
        for i, (tokens, targets) in enumerate(micro_batches, start=1):
            loss = _sum(model, tokens, targets)
            loss.backward()
            total, seen = total + loss.item(), seen + _count(targets)
            if i % window == 0 or i == len(micro_batches):
                for p in model.parameters():
                    p.grad.div_(seen)
                optimizer.step()
                optimizer.zero_grad()
                losses.append(torch.tensor(total / seen))
                total, seen = 0.0, 0
    return losses


# 03.4 the place of the clip


def _update(model, optimizer, micro_batches, max_norm, rule=""):
    clip, k = torch.nn.utils.clip_grad_norm_, len(micro_batches)
    parameters = list(model.parameters())
    kept = [torch.zeros_like(p) for p in parameters]
    for tokens, targets in micro_batches:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        (loss if rule in ("undivided", "late division") else loss / k).backward()
        if rule == "running":
            clip(parameters, max_norm)
        if rule == "each":
            clip(parameters, max_norm)
            kept = [a + p.grad for a, p in zip(kept, parameters, strict=True)]
            model.zero_grad()
    if rule == "each":
        for a, p in zip(kept, parameters, strict=True):
            p.grad = a
    if rule == "too late":
        optimizer.step()
    norm = clip(parameters, 1e9 if rule in ("running", "each", "never") else max_norm)
    if rule == "late division":
        for p in parameters:
            p.grad /= k
    if rule != "too late":
        optimizer.step()
    after = torch.nn.utils.get_total_norm([p.grad for p in parameters])
    if rule != "left":
        optimizer.zero_grad()
    return float(after if rule == "after" else norm)


def _clip(rule, misconception=None, says=""):
    def update(model, optimizer, micro_batches, max_norm):
        norm = _update(model, optimizer, micro_batches, max_norm, rule)
        return None if rule == "none" else norm

    return wrong("clip-once", misconception, says=says, answer=update)


wrong_clips_the_running_sum = _clip("running", "clips-the-running-sum")
wrong_clips_each = _clip("each", "clips-each-micro-batch")
wrong_clips_after_the_step = _clip("too late", "clips-too-late")
wrong_clips_then_divides = _clip("late division", "clips-before-dividing")
wrong_never_divides = _clip("undivided", "forgets-to-divide")
wrong_returns_the_clipped_norm = _clip("after", "norm-after-clipping")
wrong_leaves_gradients = _clip("left", "old-gradients-stay")
wrong_never_clips = _clip("never", None, "Is it clipped")
wrong_clip_returns_nothing = _clip("none", None, "nothing came back instead of the norm")


@wrong("clip-once", says="no weight has moved")
def wrong_no_step(model, optimizer, micro_batches, max_norm):
    for tokens, targets in micro_batches:
        F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten()).backward()
    return torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)


@wrong("clip-once", says="0.5% of its length")
def wrong_a_little_short(model, optimizer, micro_batches, max_norm):
    optimizer.param_groups[0]["lr"] *= 0.995
    return _update(model, optimizer, micro_batches, max_norm)


@wrong("clip-once", "joins-the-micro-batches")
def wrong_clips_one_large_batch(model, optimizer, micro_batches, max_norm):
    return _update(model, optimizer, [_joined(micro_batches)], max_norm)


@wrong("clip-once", "joins-the-micro-batches")
def wrong_clips_one_backward(model, optimizer, micro_batches, max_norm):
    means = [_sum(model, *one) / _count(one[1]) for one in micro_batches]
    torch.stack(means).mean().backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    optimizer.zero_grad()
    return norm


@right("clip-once")
def right_by_hand(model, optimizer, micro_batches, max_norm):
    for tokens, targets in micro_batches:
        _sum(model, tokens, targets).backward()
    count = sum(targets.numel() for _, targets in micro_batches)
    grads = [p.grad.div_(count) for p in model.parameters()]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    if norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    optimizer.step()
    model.zero_grad()
    return norm


# 03.5 twice the accumulation


def _three(variant=0, **changes):
    run = doubled(variant)
    tokens, updates, hourly = _numbers(run, 2)
    answer = {"variant": variant, "tokens": tokens, "updates": math.floor(updates), "evidence": hourly}
    return {**answer, **{key: change(run, answer[key]) for key, change in changes.items()}}


def _doubled(misconception=None, says="", variant=0, **changes):
    return wrong("accumulation-doubled", misconception, says=says, answer=_three(variant, **changes))


wrong_tokens_as_before = _doubled("as-before", tokens=lambda run, _: _numbers(run, 1)[0])
wrong_tensor_reads = _doubled("every-device-multiplies", tokens=lambda run, right: right * run["tensor"])
wrong_one_rank_only = _doubled("one-rank-only", variant=2, tokens=lambda run, right: right // run["data"])
wrong_twice_as_often = _doubled("twice-as-often", updates=lambda run, _: math.floor(2 * _numbers(run, 1)[1]))
wrong_updates_as_before = _doubled("as-before", variant=1, updates=lambda run, _: math.floor(_numbers(run, 1)[1]))
wrong_half_the_pace = _doubled("exactly-half", evidence=lambda run, _: _numbers(run, 1)[2] / 2)
wrong_update_is_free = _doubled(
    "the-update-is-free", evidence=lambda run, _: 3.6e6 / (2 * run["steps"] * run["pass_ms"])
)
wrong_same_pace = _doubled("as-before", variant=3, evidence=lambda run, _: _numbers(run, 1)[2])
wrong_in_minutes = _doubled(says="number in a minute", evidence=lambda _, right: right / 60)
wrong_updates_with_a_rest = _doubled(says="a whole number", updates=lambda run, _: _numbers(run, 2)[1])
wrong_sequences = _doubled(says="a number of sequences", tokens=lambda run, right: right // run["context"])
wrong_empty = _doubled(says="`updates` is still empty", updates=lambda *_: None)
wrong_text = _doubled(says="without quotes", tokens=lambda _, right: str(right))
wrong_key = wrong("accumulation-doubled", says="`choice` is not one of them", answer={**_three(), "choice": 1})
wrong_two_digits = _doubled(says="three digits", evidence=lambda _, right: right * 1.012)
wrong_variant_in_quotes = wrong(
    "accumulation-doubled", says="whole number without quotes", answer={**_three(), "variant": "0"}
)
wrong_list = wrong("accumulation-doubled", says="the answer is a dict", answer=list(_three().values()))
right_doubled_cut_off = right(
    "accumulation-doubled", answer=_three(4, evidence=lambda _, right: math.floor(right / 10) * 10)
)
right_doubled = right("accumulation-doubled", answer=_three())
right_doubled_1 = right("accumulation-doubled", answer=_three(1, evidence=lambda _, right: float(f"{right:.3g}")))
right_doubled_7 = right("accumulation-doubled", answer=_three(7, tokens=lambda _, right: float(right)))


# 03.6 the largest micro-batch that fits


def _divisors(count):
    return [size for size in range(1, count + 1) if count % size == 0]


def _bisect(fits, sizes):
    low, high = 0, len(sizes)
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if fits(sizes[middle]) else (low, middle)
    if low == 0:
        raise ValueError("nothing fits")
    return sizes[low - 1]


def _share(batch, ranks):
    if batch % ranks:
        raise ValueError("cannot be shared")
    return batch // ranks


@wrong("largest-micro-batch", "need-not-divide")
def wrong_rounds_the_steps(fits, batch, ranks):
    share = _share(batch, ranks)
    micro = _bisect(fits, list(range(1, share + 1)))
    return micro, math.ceil(share / micro)


@wrong("largest-micro-batch", "powers-of-two-only")
def wrong_halves_only(fits, batch, ranks):
    share = _share(batch, ranks)
    if fits(share):
        return share, 1
    micro = _bisect(fits, [size for size in _divisors(share) if size & (size - 1) == 0])
    return micro, share // micro


@wrong("largest-micro-batch", "forgets-the-ranks")
def wrong_whole_batch_each(fits, batch, ranks):
    micro = _bisect(fits, _divisors(batch))
    return micro, batch // micro


@wrong("largest-micro-batch", "no-plan-is-a-plan")
def wrong_rounds_the_batch(fits, batch, ranks):
    micro = _bisect(fits, _divisors(batch // ranks))
    return micro, batch // ranks // micro


@wrong("largest-micro-batch", says="raise ValueError; nothing came back")
def wrong_returns_none(fits, batch, ranks):
    try:
        micro = _bisect(fits, _divisors(_share(batch, ranks)))
    except ValueError:
        return None
    return micro, batch // ranks // micro


@wrong("largest-micro-batch", says="raise ValueError; your code ends with RuntimeError")
def wrong_raises_another(fits, batch, ranks):
    try:
        micro = _bisect(fits, _divisors(_share(batch, ranks)))
    except ValueError:
        raise RuntimeError("no plan") from None
    return micro, batch // ranks // micro


@wrong("largest-micro-batch", says="raise ValueError; your code ends with AssertionError")
def wrong_asserts(fits, batch, ranks):
    assert batch % ranks == 0
    micro = _bisect(fits, _divisors(batch // ranks))
    return micro, batch // ranks // micro


@wrong("largest-micro-batch", says="Can every size that you asked about be the answer?")
def wrong_halves_every_size(fits, batch, ranks):
    share = _share(batch, ranks)
    most = _bisect(fits, list(range(1, share + 1)))
    micro = max(size for size in _divisors(share) if size <= most)
    return micro, share // micro


@wrong("largest-micro-batch", says="a larger micro-batch fits too")
def wrong_single_sequences(fits, batch, ranks):
    share = _share(batch, ranks)
    if not fits(1):
        raise ValueError("nothing fits")
    return 1, share


@wrong("largest-micro-batch", "tries-one-by-one")
def wrong_from_the_top(fits, batch, ranks):
    share = _share(batch, ranks)
    for micro in reversed(_divisors(share)):
        if fits(micro):
            return micro, share // micro
    raise ValueError("nothing fits")


@wrong("largest-micro-batch", says="micro-batch first")
def wrong_order(fits, batch, ranks):
    micro = _bisect(fits, _divisors(_share(batch, ranks)))
    return batch // ranks // micro, micro


@wrong("largest-micro-batch", says="does not fit")
def wrong_never_asks(fits, batch, ranks):
    return _share(batch, ranks), 1


@wrong("largest-micro-batch", says="return two numbers")
def wrong_micro_only(fits, batch, ranks):
    return _bisect(fits, _divisors(_share(batch, ranks)))


@wrong("largest-micro-batch", says="not a whole number of at least 1")
def wrong_asks_about_nothing(fits, batch, ranks):
    share = _share(batch, ranks)
    fits(share / 7)
    micro = _bisect(fits, _divisors(share))
    return micro, share // micro


@right("largest-micro-batch")
def right_with_bisect(fits, batch, ranks):
    import bisect

    if batch % ranks != 0:
        raise ValueError(f"{batch} / {ranks}")
    sizes = _divisors(batch // ranks)
    place = bisect.bisect_left(sizes, True, key=lambda size: not fits(size))
    if place == 0:
        raise ValueError("nothing fits")
    return [sizes[place - 1], batch / ranks / sizes[place - 1]]
