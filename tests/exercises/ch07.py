"""Stated answers of chapter 7: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import itertools

import numpy as np
import torch
import torch.distributed as dist
from mutants import right, wrong

from course_lib.checks.ch07_traffic import traffic

# 07.1 which chunk


@wrong("which-chunk", "always-the-same-chunk")
def wrong_own_chunk_for_ever(rank, step, ranks):
    return rank, step < ranks - 1


@wrong("which-chunk", "turns-the-other-way")
def wrong_downwards(rank, step, ranks):
    return (rank - step) % ranks, step < ranks - 1


@wrong("which-chunk", "turns-the-other-way", says="the chapter's ring")
def wrong_as_in_the_chapter(rank, step, ranks):
    return (rank - step - 1) % ranks, step < ranks - 1


@wrong("which-chunk", "starts-with-any-chunk")
def wrong_starts_before_its_own(rank, step, ranks):
    return (rank - 1 + step) % ranks, step < ranks - 1


@wrong("which-chunk", "one-chunk-at-a-time")
def wrong_step_is_the_chunk(rank, step, ranks):
    return step % ranks, step < ranks - 1


@wrong("which-chunk", "starts-over")
def wrong_second_half_from_the_start(rank, step, ranks):
    return (rank + step % (ranks - 1)) % ranks, step < ranks - 1


@wrong("which-chunk", "names-what-arrives")
def wrong_received_chunk(rank, step, ranks):
    return (rank + 1 + step) % ranks, step < ranks - 1


@wrong("which-chunk", "adds-to-the-end")
def wrong_always_adds(rank, step, ranks):
    return (rank + step) % ranks, True


@wrong("which-chunk", "adds-once-too-often")
def wrong_adds_n_times(rank, step, ranks):
    return (rank + step) % ranks, step < ranks


@wrong("which-chunk", "adds-once-too-often")
def wrong_adds_less(rank, step, ranks):
    return (rank + step) % ranks, step < ranks - 2


@wrong("which-chunk", "adding-comes-last")
def wrong_gathers_first(rank, step, ranks):
    return (rank + step) % ranks, step >= ranks - 1


@wrong("which-chunk", says="chunks 0 to 2; yours is 3")
def wrong_no_modulo(rank, step, ranks):
    return rank + step, step < ranks - 1


@wrong("which-chunk", says="two values are wanted")
def wrong_chunk_alone(rank, step, ranks):
    return (rank + step) % ranks


@wrong("which-chunk", says="True or False")
def wrong_says_add(rank, step, ranks):
    return (rank + step) % ranks, "add" if step < ranks - 1 else "copy"


@right("which-chunk")
def right_hands_on(rank, step, ranks):
    chunk = rank if step == 0 else right_hands_on.value((rank + 1) % ranks, step - 1, ranks)[0]
    return chunk, step + 1 < ranks


@right("which-chunk")
def right_two_phases(rank, step, ranks):
    if step < ranks - 1:
        return (rank + step) % ranks, True
    return np.int64((rank - 1 + (step - ranks + 1)) % ranks), np.False_


# 07.2 ring all-reduce


def _both(out, into):
    """Send and receive at once."""
    n, r = dist.get_world_size(), dist.get_rank()
    work = dist.isend(out, (r - 1) % n)
    dist.recv(into, (r + 1) % n)
    work.wait()


def _ring(buffer, *, add=True, gather=True, late=0, copy=True, start=0, short=0):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(n - 1 - short):
        out, into = parts[(r + start + s) % n], parts[(r + start + 1 + s) % n]
        came = torch.empty_like(into)
        _both(out, came)
        if add:
            into += came
        else:
            into.copy_(came)
    for s in range(n - 1 - short if gather else 0):
        begin = start + n - 1 + late
        out, into = parts[(r + begin + s) % n], parts[(r + begin + 1 + s) % n]
        came = torch.empty_like(into)
        _both(out, came)
        if copy:
            into.copy_(came)
        else:
            into += came


@wrong("ring-all-reduce", "a-sum-is-a-mean")
def wrong_mean(buffer):
    _ring(buffer)
    buffer /= dist.get_world_size()


@wrong("ring-all-reduce", "forgets-the-second-half")
def wrong_reduce_scatter_only(buffer):
    _ring(buffer, gather=False)


@wrong("ring-all-reduce", "forgets-the-second-half")
def wrong_reduce_scatter_only_from_another(buffer):
    _ring(buffer, gather=False, start=-1)


@wrong("ring-all-reduce", "nothing-is-added")
def wrong_overwrites(buffer):
    _ring(buffer, add=False)


@wrong("ring-all-reduce", "adds-in-both-halves")
def wrong_adds_twice(buffer):
    _ring(buffer, copy=False)


@wrong("ring-all-reduce", "nothing-is-added")
def wrong_second_half_starts_over(buffer):
    _ring(buffer, late=1 - dist.get_world_size())


@wrong("ring-all-reduce", "starts-with-an-incomplete-chunk")
def wrong_second_half_off_by_one(buffer):
    _ring(buffer, late=-1)


@wrong("ring-all-reduce", "one-step-too-few")
def wrong_a_step_less(buffer):
    _ring(buffer, short=1 if dist.get_world_size() > 2 else 0)


@wrong("ring-all-reduce", "send-returns-at-once", says="waits in send to rank 3")
def wrong_all_send_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        out, into = parts[(r + s) % n], parts[(r + 1 + s) % n]
        came = torch.empty_like(into)
        dist.send(out, (r - 1) % n)
        dist.recv(came, (r + 1) % n)
        into.copy_(into + came if s < n - 1 else came)


@wrong("ring-all-reduce", "a-message-is-there-already", says="waits in recv")
def wrong_all_receive_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    came = torch.empty_like(buffer)
    dist.recv(came, (r + 1) % n)
    dist.send(buffer, (r - 1) % n)


@wrong("ring-all-reduce", "irecv-has-received")
def wrong_reads_too_early(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        work = dist.irecv(came, (r + 1) % n)
        dist.send(parts[(r + s) % n], (r - 1) % n)
        parts[(r + 1 + s) % n].copy_(parts[(r + 1 + s) % n] + came if s < n - 1 else came)
        work.wait()


@wrong("ring-all-reduce", says="No number has changed".lower())
def wrong_cats_a_new_buffer(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = list(buffer.tensor_split(n))
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(parts[(r + s) % n], came)
        parts[(r + 1 + s) % n] = parts[(r + 1 + s) % n] + came if s < n - 1 else came
    buffer = torch.cat(parts)


@wrong("ring-all-reduce", "hands-on-what-came")
def wrong_hands_on(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    out = parts[r]
    for s in range(n - 1):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(out, came)
        parts[(r + 1 + s) % n].add_(came)
        out = came
    for s in range(n - 1):
        _both(parts[(r - 1 + s) % n], parts[(r + s) % n])


@wrong("ring-all-reduce", "ranks-divide-the-buffer")
def wrong_drops_the_rest(buffer):
    n = dist.get_world_size()
    _ring(buffer[: len(buffer) // n * n])


@wrong("ring-all-reduce", says="line")
def wrong_reshapes(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.view(n, -1)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[0])
        _both(parts[(r + s) % n].contiguous(), came)
        parts[(r + 1 + s) % n] = parts[(r + 1 + s) % n] + came if s < n - 1 else came


@wrong("ring-all-reduce", says="IndexError")
def wrong_chunk_gives_fewer(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.chunk(n)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(parts[(r + s) % n], came)
        parts[(r + 1 + s) % n].copy_(parts[(r + 1 + s) % n] + came if s < n - 1 else came)


@wrong("ring-all-reduce", "one-neighbour-is-enough")
def wrong_one_neighbour(buffer):
    if dist.get_world_size() > 1:
        came = torch.empty_like(buffer)
        _both(buffer.clone(), came)
        buffer += came


@wrong("ring-all-reduce", "whole-buffers-go-round")
def wrong_whole_buffers(buffer):
    out = buffer.clone()
    for _ in range(dist.get_world_size() - 1):
        came = torch.empty_like(out)
        _both(out, came)
        buffer += came
        out = came


@wrong("ring-all-reduce", "one-rank-adds")
def wrong_rank_zero_adds(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    if r:
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
        return
    for other in range(1, n):
        came = torch.empty_like(buffer)
        dist.recv(came, other)
        buffer += came
    for other in range(1, n):
        dist.send(buffer, other)


@wrong("ring-all-reduce", says="write it yourself")
def wrong_calls_all_reduce(buffer):
    dist.all_reduce(buffer)


@wrong("ring-all-reduce", says="another tensor")
def wrong_returns_a_new_tensor(buffer):
    summed = buffer.clone()
    _ring(summed)
    return summed


@wrong("ring-all-reduce", says="No number has changed".lower())
def wrong_sums_a_copy(buffer):
    _ring(buffer.clone())


@wrong("ring-all-reduce", says="one rank")
def wrong_sends_to_itself(buffer):
    _ring(buffer)
    if dist.get_world_size() == 1:
        dist.send(buffer, 0)


@wrong("ring-all-reduce", says="the other way")
def wrong_other_direction(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        out, into = parts[(r - 1 - s) % n], parts[(r - 2 - s) % n]
        came = torch.empty_like(into)
        work = dist.isend(out, (r + 1) % n)
        dist.recv(came, (r - 1) % n)
        work.wait()
        into.copy_(into + came if s < n - 1 else came)


@right("ring-all-reduce")
def right_from_another_chunk(buffer):
    _ring(buffer, start=1)


@right("ring-all-reduce")
def right_batched(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return buffer
    size = -(-len(buffer) // n)
    padded = torch.cat([buffer, buffer.new_zeros(size * n - len(buffer))]).view(n, size)
    for s in range(2 * n - 2):
        came = buffer.new_empty(size)
        ops = [
            dist.P2POp(dist.isend, padded[(r + s) % n], (r - 1) % n),
            dist.P2POp(dist.irecv, came, (r + 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        padded[(r + 1 + s) % n] = came + padded[(r + 1 + s) % n] if s < n - 1 else came
    buffer.copy_(padded.view(-1)[: len(buffer)])
    return buffer


@right("ring-all-reduce")
def right_receives_in_place(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        into = parts[(r + 1 + s) % n]
        came = torch.empty_like(into) if s < n - 1 else into
        receiving = dist.irecv(came, (r + 1) % n)
        sending = dist.isend(parts[(r + s) % n], (r - 1) % n)
        for work in (receiving, sending):
            work.wait()
        if s < n - 1:
            torch.add(into, came, out=into)


@right("ring-all-reduce")
def right_even_ranks_receive_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        into = parts[(r + 1 + s) % n]
        came = torch.empty_like(into)
        if r % 2:
            dist.send(parts[(r + s) % n], (r - 1) % n)
        dist.recv(came, (r + 1) % n)
        if r % 2 == 0:
            dist.send(parts[(r + s) % n], (r - 1) % n)
        into.copy_(into + came if s < n - 1 else came)


@right("ring-all-reduce")
def right_rank_zero_receives_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    edges = [len(buffer) * i // n for i in range(n + 1)]
    parts = [buffer[a:b] for a, b in itertools.pairwise(edges)]
    for s in range(2 * (n - 1)):
        out, into = parts[(r + 2 + s) % n].clone(), parts[(r + 3 + s) % n]
        came = torch.zeros_like(into)
        if r == 0:
            dist.recv(came, 1)
        dist.send(out, (r - 1) % n)
        if r:
            dist.recv(came, (r + 1) % n)
        into.copy_(into + came if s < n - 1 else came)


# 07.3 data parallel with accumulation


def _count(micro_batches):
    return torch.tensor(float(sum((targets != -100).sum() for _, targets in micro_batches)))


def _loss_sum(model, tokens, targets):
    logits = model(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _update(model, optimizer, micro_batches, *, count=None, op="sum", sync="end", keep=True, zero=True, own_loss=False):
    """A step with one thing changed."""
    total = _count(micro_batches)
    if count is None:
        dist.all_reduce(total)
    else:
        total = torch.tensor(float(count))
    loss_sum = torch.zeros(1, dtype=torch.float64)
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        if not keep:
            optimizer.zero_grad()
        loss.backward()
        loss_sum += loss.detach()
        if sync == "every":
            _reduce(model, op)
    if sync == "end":
        _reduce(model, op)
    optimizer.step()
    if zero:
        optimizer.zero_grad()
    if not own_loss:
        dist.all_reduce(loss_sum)
    return loss_sum.item()


def _reduce(model, op="sum"):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if op == "mean":
            p.grad /= dist.get_world_size()


@wrong("data-parallel", "mean-of-ranks", says="With equal counts you are right")
def wrong_mean_of_ranks(model, optimizer, micro_batches):
    own = _update(model, optimizer, micro_batches, count=max(_count(micro_batches), 1), op="mean", own_loss=True)
    return _mean_over_ranks(own)


def _mean_over_ranks(value):
    mean = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@wrong("data-parallel", "mean-of-means-is-fine")
def wrong_mean_of_means(model, optimizer, micro_batches):
    logged = 0.0
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / max((targets >= 0).sum(), 1) / len(micro_batches)
        loss.backward()
        logged += loss.item()
    _reduce(model, "mean")
    optimizer.step()
    optimizer.zero_grad()
    return _mean_over_ranks(logged)


@wrong("data-parallel", "adds-up-means")
def wrong_sum_of_ranks(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, count=max(_count(micro_batches), 1))


@wrong("data-parallel", "divides-twice")
def wrong_global_count_and_mean(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, op="mean")


@wrong("data-parallel", "sums-need-no-divisor")
def wrong_no_divisor(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, count=1)


@wrong("data-parallel", "padding-counts")
def wrong_counts_positions(model, optimizer, micro_batches):
    slots = torch.tensor(sum(targets.numel() for _, targets in micro_batches))
    dist.all_reduce(slots)
    return _update(model, optimizer, micro_batches, count=slots)


@wrong("data-parallel", "never-synchronises")
def wrong_own_gradients(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, sync="never")


@wrong("data-parallel", "reduces-the-running-sum")
def wrong_reduces_each_time(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, sync="every")


@wrong("data-parallel", "keeps-the-last-micro-batch")
def wrong_clears_between(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, keep=False)


@wrong("data-parallel", "old-gradients-stay")
def wrong_never_clears(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, zero=False)


@wrong("data-parallel", "logs-its-own-rank")
def wrong_own_loss(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, own_loss=True)


@wrong("data-parallel", "one-micro-batch")
def wrong_tensor_hook(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    last = False
    hooks = [p.register_hook(lambda g: dist.all_reduce(g) or g if last else g) for p in model.parameters()]
    for i, (tokens, targets) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        (_loss_sum(model, tokens, targets) / total).backward()
    for hook in hooks:
        hook.remove()
    optimizer.step()
    optimizer.zero_grad()
    return 0.0


@wrong("data-parallel", "reduces-the-weights")
def wrong_parameter_hook(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    for tokens, targets in micro_batches:
        (_loss_sum(model, tokens, targets) / total).backward()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return 0.0


@wrong("data-parallel", "reduces-the-weights")
def wrong_averages_moved_weights(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    for tokens, targets in micro_batches:
        (_loss_sum(model, tokens, targets) / total).backward()
    optimizer.step()
    optimizer.zero_grad()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    return 0.0


@wrong("data-parallel", "synchronises-every-micro-batch")
def wrong_correct_but_each_time(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    loss_sum = torch.zeros(1, dtype=torch.float64)
    grads = [torch.zeros_like(p) for p in model.parameters()]
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        loss_sum += loss.detach()
        for g, new in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            dist.all_reduce(new)
            g += new
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss_sum)
    return float(loss_sum)


@wrong("data-parallel", "an-empty-mean-is-zero")
def wrong_nan(model, optimizer, micro_batches):
    total = _count(micro_batches)
    every = total.clone()
    dist.all_reduce(every)
    loss_sum = 0.0
    for tokens, targets in micro_batches:
        n = (targets >= 0).sum()
        loss = _loss_sum(model, tokens, targets) / n * (n / every)
        loss.backward()
        loss_sum += loss.item()
    _reduce(model)
    optimizer.step()
    optimizer.zero_grad()
    back = torch.tensor(loss_sum, dtype=torch.float64)
    dist.all_reduce(back)
    return back


@wrong("data-parallel", "joins-the-micro-batches")
def wrong_joins(model, optimizer, micro_batches):
    tokens, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    return _update(model, optimizer, [(tokens, targets)])


@wrong("data-parallel", "ranks-need-not-agree", says="rank 1 of 3 returned without the all_reduce")
def wrong_skips_empty_micro_batches(model, optimizer, micro_batches):
    if not any((targets >= 0).any() for _, targets in micro_batches):
        return 0.0
    return _update(model, optimizer, micro_batches)


@wrong("data-parallel", says="write it yourself")
def wrong_uses_ddp(model, optimizer, micro_batches):
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    return _update(ddp, optimizer, micro_batches, sync="never")


@wrong("data-parallel", says="nothing came back")
def wrong_returns_nothing(model, optimizer, micro_batches):
    _update(model, optimizer, micro_batches)


@right("data-parallel")
def right_one_long_gradient(model, optimizer, micro_batches):
    optimizer.zero_grad()
    mine = sum(int((targets >= 0).sum()) for _, targets in micro_batches)
    loss_sum = 0.0
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets)
        loss.backward()
        loss_sum += loss.item()
    long = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([loss_sum, mine]).double()])
    dist.all_reduce(long)
    at = 0
    for p in model.parameters():
        p.grad = (long[at : at + p.numel()] / long[-1]).view_as(p)
        at += p.numel()
    optimizer.step()
    model.zero_grad()
    return long[-2] / long[-1]


@right("data-parallel")
def right_hook_in_the_last_backward(model, optimizer, micro_batches):
    n, pending, last = _count(micro_batches), [], False
    dist.all_reduce(n)

    def hook(p):
        if last:
            pending.append(dist.all_reduce(p.grad, async_op=True))

    hooks = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
    loss_sum = torch.zeros((), dtype=torch.float64)
    for i, (tokens, targets) in enumerate(micro_batches):
        last = i + 1 == len(micro_batches)
        loss = -model(tokens).log_softmax(-1).flatten(0, 1)[range(targets.numel()), targets.flatten().clamp(min=0)]
        loss = (loss * (targets.flatten() != -100)).sum() / n
        loss.backward()
        loss_sum += loss.detach()
    for work in pending:
        work.wait()
    for handle in hooks:
        handle.remove()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    dist.all_reduce(loss_sum)
    return loss_sum.item()


# 07.4 count the traffic


def _traffic(variant, elements, evidence=None):
    return {"variant": variant, "elements": elements, "evidence": evidence}


_run = {variant: traffic(variant) for variant in range(5)}
_ring_of = {v: 2 * (run["ranks"] - 1) / run["ranks"] * run["parameters"] for v, run in _run.items()}

wrong_once_through = wrong("count-the-traffic", "all-reduce-passes-once", answer=_traffic(0, _ring_of[0] / 2))
wrong_whole_twice = wrong("count-the-traffic", "whole-buffers", answer=_traffic(0, 2 * _run[0]["parameters"]))
wrong_one_buffer = wrong("count-the-traffic", "one-buffer", answer=_traffic(0, _run[0]["parameters"]))
wrong_to_everyone = wrong(
    "count-the-traffic", "sends-to-everyone", answer=_traffic(0, (_run[0]["ranks"] - 1) * _run[0]["parameters"])
)
wrong_in_total = wrong("count-the-traffic", "all-ranks-together", answer=_traffic(0, _run[0]["ranks"] * _ring_of[0]))
wrong_each_backward = wrong(
    "count-the-traffic", "every-backward-sends", answer=_traffic(0, _run[0]["micro_batches"] * _ring_of[0])
)
wrong_late_flag = wrong("count-the-traffic", "no-sync-around-backward", answer=_traffic(1, _ring_of[1]))
wrong_window_of_two = wrong("count-the-traffic", "an-update-sends-once", answer=_traffic(2, _ring_of[2]))
wrong_plain_loop = wrong("count-the-traffic", "an-update-sends-once", answer=_traffic(3, _ring_of[3]))
wrong_one_less = wrong(
    "count-the-traffic", says="one by one", answer=_traffic(0, (_run[0]["micro_batches"] - 1) * _ring_of[0])
)
wrong_one_step = wrong(
    "count-the-traffic", says="one step", answer=_traffic(0, _run[0]["parameters"] / _run[0]["ranks"])
)
wrong_width = wrong(
    "count-the-traffic", "a-number-has-four-bytes", answer=_traffic(0, _ring_of[0], _ring_of[0] * 4 / 1e9)
)
wrong_width_of_fp32 = wrong(
    "count-the-traffic",
    "a-number-has-four-bytes",
    answer=_traffic(2, _run[2]["elements"], _run[2]["elements"] * 2 / 1e9),
)
wrong_gib = wrong("count-the-traffic", says="GiB", answer=_traffic(0, _ring_of[0], _ring_of[0] * 2 / 2**30))
wrong_in_bytes = wrong("count-the-traffic", says="in GB", answer=_traffic(0, _ring_of[0], _ring_of[0] * 2))
wrong_text_for_elements = wrong("count-the-traffic", says="without quotes", answer=_traffic(0, "2.856e9", 5.711))
wrong_no_elements = wrong("count-the-traffic", says="still empty", answer=_traffic(0, None, 5.711))
wrong_key = wrong("count-the-traffic", says="the answer has the keys", answer={"variant": 0, "elements": 1, "gb": 2})

right_rounded = right(
    "count-the-traffic", answer=_traffic(0, float(f"{_ring_of[0]:.4g}"), float(f"{_ring_of[0] * 2 / 1e9:.4g}"))
)
right_with_formula = right(
    "count-the-traffic",
    answer=_traffic(
        1, _run[1]["micro_batches"] * _ring_of[1], np.float64(_run[1]["micro_batches"] * _ring_of[1] / 5e8)
    ),
)
right_half_of_them = right(
    "count-the-traffic",
    answer=_traffic(2, torch.tensor(_run[2]["micro_batches"] / 2 * _ring_of[2]), _run[2]["evidence"]),
)
right_every_time = right(
    "count-the-traffic", answer=_traffic(3, _run[3]["micro_batches"] * _ring_of[3], _run[3]["evidence"])
)

# 07.5 find the silent bug

TOLERANCE = 1e-5


def _close(a, b, tolerance=TOLERANCE):
    return torch.linalg.vector_norm(a - b) <= tolerance * torch.linalg.vector_norm(b)


def _diagnose(ranks, *, steps=None, among=None, close=_close, start=True, moved=True, whose=1.0, swap=False):
    watched = ranks if among is None else ranks[:among]
    if start and len({rank["before"][0] for rank in watched}) > 1:
        return "apart"
    for step in range(len(ranks[0]["loss"])) if steps is None else steps:
        own = [sum(rank["own"][step]) for rank in ranks]
        first = sum(rank["own"][step][0] for rank in ranks)
        for rank, mine in zip(watched, own, strict=False):
            used = rank["used"][step]
            if close(used, sum(own)):
                continue
            if close(used, sum(own) / len(ranks)):
                return "averaged"
            if close(used, mine):
                return "weights" if moved and any(one["before"] != one["after"] for one in ranks) else "never"
            found = "first" if close(used, mine - rank["own"][step][0] + first) else "last"
            return {"first": "last", "last": "first"}[found] if swap else found
    return "healthy"


@wrong("silent-bug", "a-falling-loss-is-healthy")
def wrong_looks_at_the_loss(ranks):
    return "healthy" if all(rank["loss"][-1] < 10 for rank in ranks) else "never"


@wrong("silent-bug", "equal-checksums-are-healthy")
def wrong_trusts_checksums(ranks):
    return "healthy" if all(rank["before"] == ranks[0]["before"] for rank in ranks) else _diagnose(ranks)


@wrong("silent-bug", "the-first-step-tells")
def wrong_first_step(ranks):
    return _diagnose(ranks, steps=[0]) if len({rank["before"][1] for rank in ranks}) == 1 else _diagnose(ranks)


@wrong("silent-bug", "two-ranks-tell")
def wrong_two_ranks(ranks):
    return _diagnose(ranks, among=2)


@wrong("silent-bug", "healthy-ranks-are-equal-in-all")
def wrong_to_the_bit(ranks):
    return _diagnose(ranks, close=torch.equal)


@wrong("silent-bug", "healthy-ranks-are-equal-in-all")
def wrong_losses_must_agree(ranks):
    return "never" if len({rank["loss"][0] for rank in ranks}) > 1 else _diagnose(ranks)


@wrong("silent-bug", "different-weights-started-so")
def wrong_any_difference_is_apart(ranks):
    apart = any(len({rank["before"][step] for rank in ranks}) > 1 for step in range(len(ranks[0]["loss"])))
    return "apart" if apart else _diagnose(ranks)


@wrong("silent-bug", "own-gradients-tell-all")
def wrong_never_looks_at_after(ranks):
    return _diagnose(ranks, moved=False)


@wrong("silent-bug", "weights-changed-so-they-were-sent")
def wrong_weights_move_over_a_step(ranks):
    found = _diagnose(ranks)
    return "weights" if found == "never" and ranks[0]["before"][0] != ranks[0]["before"][1] else found


@wrong("silent-bug", "unequal-ranks-sent-nothing")
def wrong_different_is_never(ranks):
    found = _diagnose(ranks)
    return "never" if found in ("first", "last") else found


@wrong("silent-bug", "which-micro-batch")
def wrong_the_other_one(ranks):
    return _diagnose(ranks, swap=True)


@wrong("silent-bug", says="does not fit")
def wrong_averaged_for_first(ranks):
    found = _diagnose(ranks)
    return "averaged" if found == "first" else found


@wrong("silent-bug", "own-gradients-tell-all")
def wrong_weights_in_the_first_step_alone(ranks):
    found = _diagnose(ranks)
    return "never" if found == "weights" and ranks[0]["before"][0] == ranks[0]["after"][0] else found


@wrong("silent-bug", "right-gradients-are-enough")
def wrong_no_start(ranks):
    return _diagnose(ranks, start=False)


@wrong("silent-bug", says="seven words")
def wrong_a_word_of_its_own(ranks):
    return "fine" if _diagnose(ranks) == "healthy" else "broken"


@wrong("silent-bug", says="a bool came back")
def wrong_a_bool(ranks):
    return _diagnose(ranks) == "healthy"


@right("silent-bug")
def right_by_prediction(ranks):
    n, m = len(ranks), len(ranks[0]["own"][0])
    if any(rank["before"][0] != ranks[-1]["before"][0] for rank in ranks):
        return "apart"
    for step in range(len(ranks[0]["used"])):
        own = torch.stack([torch.stack(rank["own"][step]) for rank in ranks]).double()  # (rank, micro-batch, P)
        used = torch.stack([rank["used"][step] for rank in ranks]).double()
        whole, mine = own.sum((0, 1)).expand(n, -1), own.sum(1)
        if torch.allclose(used, whole, rtol=1e-4, atol=1e-6):
            continue
        moved = any(
            before != after for rank in ranks for before, after in zip(rank["before"], rank["after"], strict=True)
        )
        predictions = {"averaged": whole / n, "weights" if moved else "never": mine}
        if m > 1:
            predictions["first"] = mine + own[:, 0].sum(0) - own[:, 0]
            predictions["last"] = mine + own[:, -1].sum(0) - own[:, -1]
        return min(predictions, key=lambda word: float((predictions[word] - used).norm()))
    return "healthy"


# 07.6 one device is not enough


def _devices(variant, number, choice, evidence):
    return {"variant": variant, "devices": number, "choice": choice, "evidence": evidence}


wrong_floor = wrong("one-device-is-not-enough", "rounds-down", answer=_devices(0, 56, "B", 85.4))
wrong_peak = wrong("one-device-is-not-enough", "runs-at-its-peak", answer=_devices(0, 23, "C", 1))
wrong_2nd = wrong("one-device-is-not-enough", "forward-only", answer=_devices(0, 19, "A", 85.4))
wrong_4nd = wrong("one-device-is-not-enough", "backward-costs-one-forward", answer=_devices(0, 38, "A", 85.4))
wrong_by_memory = wrong("one-device-is-not-enough", "enough-memory-is-enough", answer=_devices(1, 3, "C", 203.8))
wrong_fraction = wrong("one-device-is-not-enough", says="a whole number", answer=_devices(0, 56.48, "B", 85.4))
wrong_shared_state = wrong("one-device-is-not-enough", "replicas-share", answer=_devices(1, 13, "A", 29.52))
wrong_shared_all = wrong("one-device-is-not-enough", "all-is-shared", answer=_devices(1, 13, "A", 15.68))
wrong_weights = wrong("one-device-is-not-enough", "weights-are-all", answer=_devices(1, 13, "C", 38.6))
wrong_no_masters = wrong("one-device-is-not-enough", "no-master-weights", answer=_devices(1, 13, "C", 156.6))
wrong_state_only = wrong("one-device-is-not-enough", "activations-left-out", answer=_devices(0, 57, "A", 46.4))
wrong_activations = wrong("one-device-is-not-enough", "state-left-out", answer=_devices(0, 57, "A", 39))
wrong_grows = wrong("one-device-is-not-enough", "more-devices-hold-more", answer=_devices(1, 13, "A", 203.8))
wrong_fits_the_state = wrong("one-device-is-not-enough", "state-is-all", answer=_devices(0, 57, "A", 85.4))
wrong_activations_alone = wrong(
    "one-device-is-not-enough", "only-activations-count", answer=_devices(1, 13, "B", 203.8)
)
wrong_never_fits = wrong("one-device-is-not-enough", "large-models-never-fit", answer=_devices(2, 25, "B", 26.6))
wrong_letter = wrong("one-device-is-not-enough", says="one letter", answer=_devices(0, 57, "no", 85.4))
wrong_missing = wrong("one-device-is-not-enough", says="still empty", answer=_devices(0, 57, "B", None))

right_letter = right("one-device-is-not-enough", answer=_devices(0, 57, "b", 85.4))
right_variant = right("one-device-is-not-enough", answer=_devices(2, 25.0, "A", np.float64(26.6)))
right_last = right("one-device-is-not-enough", answer=_devices(1, torch.tensor(13), " c ", 203.8))
